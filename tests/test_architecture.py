"""The house rules, read off the syntax trees of the package: who may import what, and how long code gets.

A rule takes a module's name and tree and yields violations; a table holds all rules. Each is run over the
package, and over small bad and good snippets that show it can fail and does not cry wolf.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

import mirage_nb

ROOT = Path(__file__).resolve().parents[1]

# A module imports lower ranks, or up to its own rank in its own room; the longest prefix counts. Data that
# several rooms of one rank speak about (verdicts) ranks below them.
RANKS: dict[str, int] = {
    "mirage_nb.errors": 0,
    "mirage_nb.records": 0,
    "mirage_nb.settings": 0,
    "mirage_nb.targets": 0,
    "mirage_nb.typed": 0,
    "mirage_nb.ir": 1,
    "mirage_nb.lang": 2,
    "mirage_nb.frontend.aten": 3,
    "mirage_nb.frontend.complexes": 3,
    "mirage_nb.frontend.fixed": 3,
    "mirage_nb.frontend.fourier": 3,
    "mirage_nb.frontend.lists": 3,
    "mirage_nb.frontend.program": 3,
    "mirage_nb.frontend.recognise": 3,
    "mirage_nb.frontend.spelled": 3,
    "mirage_nb.frontend.translate": 3,
    "mirage_nb.algebra": 2,
    "mirage_nb.interp": 2,
    "mirage_nb.tile": 2,
    "mirage_nb.predefined": 2,
    "mirage_nb.verify.verdict": 2,
    "mirage_nb.verify": 3,
    "mirage_nb.search": 3,
    "mirage_nb.optimize": 3,
    "mirage_nb.search.session": 4,
    "mirage_nb.codegen": 4,
    "mirage_nb.runtime": 5,
    "mirage_nb.pipeline": 6,
    "mirage_nb.library": 6,
    "mirage_nb.frontend.compiled": 7,
    "mirage_nb.frontend": 8,
    "mirage_nb.bench": 8,
    "mirage_nb.report": 7,
    "mirage_nb.options": 7,
    "mirage_nb.viz": 7,
    "mirage_nb.widgets": 8,
    "mirage_nb.arguments": 9,
    "mirage_nb": 9,
    # The two doors use the public names; the public names know nothing of the doors.
    "mirage_nb.__main__": 10,
    "mirage_magics": 10,
}
LAZY_UPWARD = {("mirage_nb.ir", "mirage_nb.viz"), ("mirage_nb", "mirage_magics")}
LAZY = LAZY_UPWARD | {("mirage_nb", f"mirage_nb.{name}") for name in ("verify", "pipeline", "frontend")}
# The largest parts, and PyTorch, wait for their first use.
OPTIONAL = {
    "IPython", "anywidget", "cupy", "dask", "distributed",
    "egglog", "flint", "ipywidgets", "matplotlib", "pygments", "resvg_py", "torch", "z3",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Names that only some rooms may use."""

    names: tuple[str, ...]
    rooms: tuple[str, ...]


PLACES = (
    Place(("cupy", "torch"), ("mirage_nb.runtime", "mirage_nb.bench", "mirage_nb.frontend")),
    Place(("IPython", "anywidget", "ipywidgets"), ("mirage_nb.widgets", "mirage_magics")),
    Place(
        ("threading", "_thread", "multiprocessing", "concurrent", "subprocess",
         "os.fork", "os.forkpty", "os.popen", "os.posix_spawn", "os.system"),
        ("mirage_nb.search.session", "mirage_nb.runtime", "mirage_nb.widgets"),
    ),
    Place(("sqlite3",), ("mirage_nb.runtime",)),
    Place(("os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"), ("mirage_nb.settings",)),
)  # fmt: skip

FREE = {"concurrent.futures.Executor", "threading.RLock"}  # the type of a parameter, and a lock: they start nothing

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_IMPORT_SECONDS = 0.3
MAX_NUMPY_IMPORTS = 4  # the same limit on machines that other work slows down: about 0.075 s for one
UNWANTED_AT_IMPORT = {"IPython", "anywidget", "cupy", "ipywidgets", "torch", "z3"}

MUTABLE_CALLS = {"Counter", "OrderedDict", "defaultdict", "deque", "dict", "list", "set"}
MUTATING_METHODS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove",
    "setdefault", "update",
}  # fmt: skip

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed file; `name` is its dotted import name, tests are named `tests.…`."""

    name: str
    text: str
    tree: ast.Module
    is_package: bool = False
    gated: frozenset[str] = frozenset()  # our modules that cannot be imported without an optional extra


@dataclass(frozen=True, slots=True)
class Use:
    """One dotted name that a module imports or takes from `os`, and when."""

    target: str
    line: int
    when: str  # "load", "call" or "typing"
    imported: bool = True


Violation = tuple[int, str]


def under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def ranked(name: str) -> str | None:
    """The longest ranked prefix; nothing for names that are not ours."""
    return module_of(name, RANKS)


def room_of(prefix: str) -> str:
    """The package of a ranked prefix; the single files at rank 0 are one room."""
    return "base" if RANKS[prefix] == 0 else ".".join(prefix.split(".")[:2])


SEEN = (ast.Import, ast.ImportFrom, ast.Call, ast.Attribute, *FUNCTIONS, ast.Lambda, ast.If)
"""What `uses` looks at; all else is only passed through."""


def uses(source: Source) -> tuple[Use, ...]:
    """Every import, constant `import_module` and attribute of `os` in the module."""
    return _uses(source.tree, source.name, source.is_package)


@cache
def _uses(tree: ast.Module, name: str, is_package: bool) -> tuple[Use, ...]:
    source, found = Source(name, "", tree, is_package), list[Use]()
    waiting: list[tuple[ast.AST, str]] = [(tree, "load")]
    while waiting:
        node, when = waiting.pop()
        match node if isinstance(node, SEEN) else None:
            case ast.Import(names=names):
                found.extend(Use(alias.name, node.lineno, when) for alias in names)
            case ast.ImportFrom(names=names):
                base = absolute(source, node)
                found.extend(Use(f"{base}.{alias.name}", node.lineno, when) for alias in names)
            case ast.Call(
                func=ast.Attribute(attr=called) | ast.Name(id=called),
                args=[ast.Constant(value=str(target)), *_],
            ) if called in ("import_module", "__import__"):
                found.append(Use(target, node.lineno, when))
            case ast.Attribute(value=ast.Name(id="os"), attr=attr):
                found.append(Use(f"os.{attr}", node.lineno, when, imported=False))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                when = "call"
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                when = "typing"
        waiting += [(child, when) for child in ast.iter_child_nodes(node)]
    return tuple(sorted(found, key=lambda use: use.line))


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All of them, however deep; no expression has one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            if isinstance(child, FUNCTIONS):
                yield child
            yield from functions(child)


def absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = source.name.split(".")
    parts = parts[: len(parts) - node.level + source.is_package]
    return ".".join([*parts, node.module] if node.module else parts)


def ranks(source: Source) -> Iterator[Violation]:
    """Modules import lower ranks or their own room, two lazy exceptions apart; every room has a rank."""
    prefix = ranked(source.name)
    if prefix is None or (prefix == "mirage_nb" and source.name != "mirage_nb"):
        yield 1, f"{source.name} has no rank; give its room one in RANKS"
        return
    for use in uses(source):
        target = ranked(use.target)
        if not use.imported or target is None or (use.when == "call" and (prefix, target) in LAZY_UPWARD):
            continue
        highest = RANKS[prefix] if room_of(prefix) == room_of(target) else RANKS[prefix] - 1
        if RANKS[target] > highest:
            yield use.line, f"{prefix} (rank {RANKS[prefix]}) imports {use.target} (rank {RANKS[target]})"


def places(source: Source) -> Iterator[Violation]:
    """Some names are used in few rooms only."""
    for use in uses(source):
        for place in PLACES:
            if use.target not in FREE and any(under(use.target, name) for name in place.names):
                if not any(under(source.name, room) for room in place.rooms):
                    yield use.line, f"{use.target} belongs in {', '.join(place.rooms)}"


def star_imports(source: Source) -> Iterator[Violation]:
    """No `import *`."""
    for use in uses(source):
        if use.target.endswith(".*"):
            yield use.line, f"import * from {use.target[:-2]}"


def lazy_imports(source: Source) -> Iterator[Violation]:
    """Functions import optional extras, our modules that need one, and the rooms in LAZY."""
    for use in uses(source):
        if use.imported and use.when == "call":
            pair = (ranked(source.name), ranked(use.target))
            optional = use.target.split(".")[0] in OPTIONAL or any(under(use.target, name) for name in source.gated)
            if pair not in LAZY and not optional:
                yield use.line, f"{use.target} is imported inside a function"


def gated_modules(sources: list[Source]) -> frozenset[str]:
    """Our modules that load an optional extra as they are imported, themselves or through others of ours."""
    loads = {source.name: [use.target for use in uses(source) if use.when == "load"] for source in sources}
    gated: set[str] = set()
    while new := {
        name
        for name, targets in loads.items()
        if name not in gated and any(t.split(".")[0] in OPTIONAL or module_of(t, loads) in gated for t in targets)
    }:
        gated |= new
    return frozenset(gated)


def module_of(target: str, names: Collection[str]) -> str | None:
    """The module that an imported name comes from: the longest of `names` that it stands under."""
    parts = target.split(".")
    beginnings = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in beginnings if name in names), None)


def global_statements(source: Source) -> Iterator[Violation]:
    """No `global`."""
    for function in functions(source.tree) if "global" in source.text else ():
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                yield node.lineno, f"global {', '.join(node.names)}"


def mutable_state(source: Source) -> Iterator[Violation]:
    """Functions do not change module-level containers; a registry is filled by a function named register."""
    names = {
        target.id
        for node in source.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_mutable(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for function in functions(source.tree) if names else ():
        if function.name.lstrip("_").startswith("register"):
            continue
        for node in ast.walk(function):
            match node:
                case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if name in names:
                    yield node.lineno, f"{function.name} changes {name}"
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if name in names:
                    if attr in MUTATING_METHODS:
                        yield node.lineno, f"{function.name} changes {name}"


def is_mutable(value: ast.expr | None) -> bool:
    match value:
        case ast.Dict() | ast.List() | ast.Set() | ast.DictComp() | ast.ListComp() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in MUTABLE_CALLS
    return False


def sizes(source: Source) -> Iterator[Violation]:
    """Files stay under 500 lines, functions under 80."""
    lines = len(source.text.splitlines())
    if lines >= MAX_FILE_LINES:
        yield lines, f"{lines} lines; the limit is {MAX_FILE_LINES - 1}"
    for node in functions(source.tree):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length >= MAX_FUNCTION_LINES:
            yield node.lineno, f"{node.name} has {length} lines; the limit is {MAX_FUNCTION_LINES - 1}"


Rule = Callable[[Source], Iterator[Violation]]
PACKAGE_RULES: tuple[Rule, ...] = (
    ranks, places, star_imports, lazy_imports, global_statements, mutable_state, sizes,
)  # fmt: skip


@cache
def house() -> dict[Path, Source]:
    """Every Python file of the package and the tests."""
    found: dict[Path, Source] = {}
    for folder, package in (("mirage_nb", "mirage_nb"), ("magics", "mirage_magics"), ("tests", "tests")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [package, *path.relative_to(ROOT / folder).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            text = path.read_text(encoding="utf-8")
            name = ".".join(parts[:-1] if is_package else parts)
            found[path.relative_to(ROOT)] = Source(name, text, ast.parse(text), is_package)
    gated = gated_modules([source for source in found.values() if not under(source.name, "tests")])
    return {path: replace(source, gated=gated) for path, source in found.items()}


def snippet(name: str, text: str) -> Source:
    """`name` ends in a dot for a package's `__init__`."""
    gated = frozenset({"mirage_nb.runtime.execution.launch"})
    return Source(name.rstrip("."), text, ast.parse(text), name.endswith("."), gated)


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_the_house_obeys(rule: Rule) -> None:
    broken = [
        f"{path}:{line}: {message}"
        for path, source in house().items()
        if rule is sizes or not under(source.name, "tests")
        for line, message in rule(source)
    ]
    assert not broken, "\n".join(broken)


def test_the_rules_see_the_house() -> None:
    names = {source.name for source in house().values()}
    assert {"mirage_nb", "mirage_nb.ir", "mirage_nb.ir.ops", "tests.test_architecture"} <= names


BAD: tuple[tuple[Rule, str, str], ...] = (
    (ranks, "mirage_nb.ir.ops", "from mirage_nb.search.saturation.values import Value"),
    (ranks, "mirage_nb.ir.ops", "from mirage_nb import viz"),
    (ranks, "mirage_nb.ir.ops", "import mirage_nb.viz.svg"),
    (ranks, "mirage_nb.ir.ops", "from ..lang import parse"),
    (ranks, "mirage_nb.ir.", "from ..lang import parse"),
    (ranks, "mirage_nb.lang.parse", "from mirage_nb.algebra.axioms import AXIOMS"),
    (ranks, "mirage_nb.search.saturation.closure", "from mirage_nb.search.session.session import SearchSession"),
    (ranks, "mirage_nb.search.saturation.closure", "from ..session import SearchSession"),
    (ranks, "mirage_nb.search.session.session", "from mirage_nb.codegen import emit"),
    (ranks, "mirage_nb.verify.verdict", "from mirage_nb.verify.trials import verify"),
    (ranks, "mirage_nb.lang.parse", "def f():\n    from mirage_nb.viz import picture"),
    (ranks, "mirage_nb.viz.svg", "import mirage_nb"),
    (ranks, "mirage_nb.", "from mirage_magics import load"),
    (ranks, "mirage_nb.", "from mirage_nb.__main__ import main"),
    (ranks, "mirage_nb.attic.old", "import math"),
    (places, "mirage_nb.ir.ops", "import torch"),
    (places, "mirage_nb.ir.ops", "def f():\n    from torch.nn import functional"),
    (places, "mirage_nb.codegen.cuda", "from cupy.cuda import nvrtc"),
    (places, "mirage_nb.viz.svg", "from IPython.display import HTML"),
    (places, "mirage_nb.search.saturation.closure", "from concurrent.futures import ThreadPoolExecutor"),
    (places, "mirage_nb.search.saturation.closure", "import concurrent.futures"),
    (places, "mirage_nb.search.sessions", "import threading"),
    (places, "mirage_nb.search.saturation.closure", "import os\n\n\ndef f():\n    os.fork()"),
    (places, "mirage_nb.bench.tables", "import sqlite3"),
    (places, "mirage_nb.runtime.execution.compile", "import os\n\nHOME = os.environ['HOME']"),
    (places, "mirage_nb.runtime.execution.compile", "from os import getenv"),
    (places, "mirage_nb.runtime.execution.compile", "import os\n\nprint(os.getenv('HOME'))"),
    (star_imports, "mirage_nb.ir.", "from mirage_nb.ir.ops import *"),
    (star_imports, "mirage_nb.ir.", "from .ops import *"),
    (lazy_imports, "mirage_nb.ir.ops", "def f():\n    import math"),
    (lazy_imports, "mirage_nb.ir.ops", "f = lambda: __import__('math')"),
    (lazy_imports, "mirage_nb.ir.ops", "class C:\n    async def f(self):\n        from .dtypes import DType"),
    (lazy_imports, "mirage_nb.pipeline", "def f():\n    importlib.import_module('mirage_nb.viz')"),
    (lazy_imports, "mirage_nb.pipeline", "def f():\n    import torchvision"),
    (
        lazy_imports,
        "mirage_nb.runtime.execution.execute",
        "def f():\n    from mirage_nb.runtime.execution.compile import compile_cubin",
    ),
    (global_statements, "mirage_nb.pipeline", "def f():\n    global state\n    state = 1"),
    (mutable_state, "mirage_nb.pipeline", "seen = {}\n\n\ndef f(k):\n    seen[k] = 1"),
    (mutable_state, "mirage_nb.pipeline", "seen: set[int] = set()\n\n\ndef f(k):\n    seen.add(k)"),
    (mutable_state, "mirage_nb.pipeline", "seen = collections.deque()\n\n\ndef f(k):\n    del seen[k]"),
    (mutable_state, "mirage_nb.pipeline", "seen = defaultdict(int)\n\n\ndef f(k):\n    seen[k] += 1"),
    (sizes, "tests.test_long", "x = 1\n" * MAX_FILE_LINES),
    (sizes, "tests.test_long", "def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LINES - 1)),
)

GOOD: tuple[tuple[Rule, str, str], ...] = (
    (ranks, "mirage_nb.settings", "from mirage_nb.errors import OptionError"),
    (ranks, "mirage_nb.ir.graph", "from .ops import OPS\nfrom mirage_nb.errors import GraphError"),
    (ranks, "mirage_nb.ir.show", "def f():\n    from mirage_nb.viz import picture"),
    (ranks, "mirage_nb.search.session.session", "from ..saturation.closure import saturate\nfrom .worker import run"),
    (ranks, "mirage_nb.search.", "from .saturation.closure import saturate"),
    (ranks, "mirage_nb.search.session.progress", "from mirage_nb.verify.verdict import Verdict"),
    (ranks, "mirage_nb.", "def f():\n    from mirage_magics import load"),
    (ranks, "mirage_magics.", "from mirage_nb import superoptimize\nimport mirage_nb_extra"),
    (places, "mirage_nb.runtime.execution.launch", "import cupy\nimport subprocess"),
    (places, "mirage_nb.search.session.background", "import threading"),
    (places, "mirage_nb.ir.ops", "import torchvision, os\n\nprint(os.path.sep)"),
    (places, "mirage_nb.pipeline", "from concurrent.futures import Executor"),
    (places, "mirage_nb.settings", "import os\n\nHOME = os.environ['HOME']"),
    (star_imports, "mirage_nb.ir.", "from mirage_nb.ir.ops import OPS"),
    (lazy_imports, "mirage_nb.pipeline", "import math\n\nif True:\n    import cmath"),
    (lazy_imports, "mirage_nb.optimize.layout", "def f():\n    import z3"),
    (lazy_imports, "mirage_nb.runtime.execution.execute", "def f():\n    from .launch import GpuExecutable"),
    (lazy_imports, "mirage_nb.", "def __getattr__(name):\n    from mirage_nb import pipeline"),
    (lazy_imports, "mirage_nb.ir.show", "def f():\n    from mirage_nb.viz import picture"),
    (global_statements, "mirage_nb.pipeline", "def f(x):\n    def g():\n        nonlocal x\n        x = 2"),
    (mutable_state, "mirage_nb.pipeline", "TABLE = {}\n\n\ndef register(k):\n    TABLE[k] = 1"),
    (mutable_state, "mirage_nb.pipeline", "TABLE = {}\n\n\ndef f(k):\n    return TABLE[k], TABLE.get(k)"),
    (mutable_state, "mirage_nb.pipeline", "TABLE = {}\nTABLE[1] = 2\n\n\ndef f(seen):\n    seen[1] = 2"),
    (sizes, "tests.test_long", "x = 1\n" * (MAX_FILE_LINES - 1)),
    (sizes, "tests.test_long", "def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LINES - 2)),
)


@pytest.mark.parametrize(("rule", "name", "text"), BAD, ids=lambda value: getattr(value, "__name__", None))
def test_bad_snippets_are_caught(rule: Rule, name: str, text: str) -> None:
    assert list(rule(snippet(name, text)))


@pytest.mark.parametrize(("rule", "name", "text"), GOOD, ids=lambda value: getattr(value, "__name__", None))
def test_good_snippets_pass(rule: Rule, name: str, text: str) -> None:
    assert list(rule(snippet(name, text))) == []


def test_every_rule_has_snippets_of_both_kinds() -> None:
    assert {row[0] for row in BAD} == {row[0] for row in GOOD} == set(PACKAGE_RULES)


def test_modules_that_need_an_extra_are_found() -> None:
    sources = [
        snippet("mirage_nb.runtime.execution.launch", "import cupy"),
        snippet("mirage_nb.runtime.contest.race", "from ..execution.launch import GpuExecutable"),
        snippet("mirage_nb.runtime.typed", "if TYPE_CHECKING:\n    import torch"),
        snippet("mirage_nb.runtime.gpu", "def f():\n    import cupy"),
        snippet("mirage_nb.runtime.all", "from mirage_nb.runtime import gpu, typed"),
    ]
    assert gated_modules(sources) == {"mirage_nb.runtime.execution.launch", "mirage_nb.runtime.contest.race"}


def probe(statement: str) -> tuple[float, set[str]]:
    """Seconds of processor time that `statement` takes in a fresh interpreter, and the modules loaded."""
    code = (
        "import json, sys, time\n"
        "start = time.process_time()\n"
        f"{statement}\n"
        "print(json.dumps([time.process_time() - start, list(sys.modules)]))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, modules = json.loads(run.stdout)
    return seconds, set(modules)


def test_import_is_quick_and_light() -> None:
    runs = [(probe("import mirage_nb"), probe("import numpy")) for _ in range(5)]
    loaded = runs[0][0][1]
    assert "mirage_nb" in loaded
    assert not loaded & UNWANTED_AT_IMPORT
    # Other work on the machine only ever adds to processor time, so the least of several runs is the cost.
    seconds, numpy_seconds = (min(run[i][0] for run in runs) for i in (0, 1))
    assert seconds < max(MAX_IMPORT_SECONDS, MAX_NUMPY_IMPORTS * numpy_seconds)


def test_public_names_are_there_and_no_others() -> None:
    assert all(getattr(mirage_nb, name) is not None for name in mirage_nb.__all__)
    assert set(mirage_nb.__all__) <= set(dir(mirage_nb))
    with pytest.raises(AttributeError, match="superoptimise"):
        _ = mirage_nb.superoptimise


def test_the_probe_sees_a_slow_and_heavy_import() -> None:
    busy = f"import z3\nwhile time.process_time() - start < {MAX_IMPORT_SECONDS}: pass"
    seconds, modules = probe(busy)
    assert seconds >= MAX_IMPORT_SECONDS
    assert modules & UNWANTED_AT_IMPORT == {"z3"}
