"""Files of up to a megabyte that are no proofs, or bad ones, made to keep a reader busy.

In: nothing. Out: `HOSTILE_FILES`: name to JSON text; and what reading and checking one takes. Whatever stands in a
file, that takes seconds and megabytes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mirage_nb.errors import MirageError, VerificationError
from mirage_nb.lang import parse
from mirage_nb.runtime.many_calls import side_by_side
from mirage_nb.verify.proof import Proof, check

MEGABYTE = 1_000_000
GRAPH = "X: f32[4, 6]\nreturn X + 1\n"


def tried(contents: str) -> str:
    """What reading a file, and checking what was read against a program and itself, ends with."""
    graph = parse(GRAPH).graph
    try:
        check(Proof.from_json(contents), graph, graph)
    except MirageError as error:
        return str(error)
    return ""


def taken(*names: str) -> tuple[float, int]:
    """CPU seconds that the slowest of these files takes, and megabytes of a process that reads them and little else;
    all of them without a name."""
    found: list[tuple[float, int]] = []
    failed: list[str] = []

    def kept(one: tuple[float, int]) -> bool:
        found.append(one)
        return True

    side_by_side(iter([partial(measured, names or tuple(HOSTILE_FILES))]), kept, 1, SECONDS, failed.append)
    if not found:
        raise VerificationError("; ".join(failed) or f"reading files did not end within {SECONDS:g} s")
    return found[0]


SECONDS = 600.0


def measured(names: Sequence[str]) -> tuple[float, int]:
    """The same of this process."""
    slowest = 0.0
    for name in names:
        contents = HOSTILE_FILES[name]()
        started = time.process_time()
        tried(contents)
        slowest = max(slowest, time.process_time() - started)
    most = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return slowest, int(most[1]) // 1024 if most else 0


def text(terms: list[Any], steps: list[Any] = [], **other: Any) -> str:  # noqa: B006 (read only)
    plain = {"schema": "mirage proof", "version": 1, "outputs": [0], "literal": False, "properties": {}}
    return json.dumps(plain | {"terms": terms, "steps": steps} | other)


def filled(head: list[Any], row: Callable[[int], Any], limit: int = MEGABYTE) -> str:
    """As many rows as fit into the file, each made from its place."""
    rows, size = list(head), len(text(head))
    while size < limit - 400:
        rows.append(row(len(rows)))
        size += len(json.dumps(rows[-1])) + 2
    return text(rows)


def index(*names: str, start: int = 1) -> list[Any]:
    return [[name, -start - i] for i, name in enumerate(names)]


def element(*indices: Any) -> list[Any]:
    return ["in", ["X", [list(indices)]]]


X = ["in", ["X", [[["X.0", -1]], [["X.1", -2]]]]]
WIDE = element(*index(*(f"a{i}" for i in range(40))))
TIED = element(*index(*["a"] * 40))

HOSTILE_FILES: dict[str, Callable[[], str]] = {
    "nested binders over one axis": lambda: text(
        [TIED, *(["Sum", [["a", -1 - i - 5 * level] for i in range(5)], level] for level in range(8))]
    ),
    "every term with forty indices": lambda: filled([WIDE], lambda i: ["exp", None, i - 1 if i % 150 else 0]),
    "different sets of indices": lambda: filled(
        [element(["a", -1 - i]) for i in range(400)], lambda i: ["add", None, i % 400, (i * 7) % 400, i % 399, i % 41]
    ),
    "wide sums": lambda: filled(
        [["sym", [f"c{i}", False]] for i in range(300)], lambda i: ["add", None, i - 1 if i % 150 else 0, i % 300]
    ),
    "wide sums of wide sums": lambda: filled(
        [*(["sym", [f"c{i}", False]] for i in range(1000)), ["add", None, *range(1000)]],
        lambda i: ["mul", None, *[1000] * 600],
    ),
    "long numerals": lambda: filled(
        [["num", str(3**1200) + "/" + str(2**1900)]], lambda i: ["mul", None, i - 1 if i % 2 else 0, 0]
    ),
    "many numerals": lambda: filled([], lambda i: ["num", f"{7 ** (i % 500)}/{11 ** (i % 300)}"]),
    "a binder at every level": lambda: filled(
        [WIDE], lambda i: ["Sum", [["a0", -1]], i - 1] if i % 190 else ["exp", None, 0]
    ),
    "many binders around one large term": lambda: filled(
        [*(["in", [f"X{i}", [[["k", -1]]]]] for i in range(300)), ["add", None, *range(300)]],
        lambda i: ["Sum", [["k", -1]], 300],
    ),
    "alternating binders": lambda: filled(
        [*(["in", [f"X{i}", [[["k", -1]]]]] for i in range(300)), ["add", None, *range(300)], ["mul", None, 300, 0]],
        lambda i: ["Sum", [["k", -2 - i]], 300] if i % 2 else ["add", None, 300, i - 1],
    ),
    "doubling": lambda: filled([["sym", ["c", True]]], lambda i: ["fn", "f" * 40, i - 1, i - 1]),
    "long names": lambda: filled([], lambda i: ["sym", [f"{i}" + "c" * 190, True]]),
    "long labels": lambda: filled([], lambda i: element(["k" * 200 + str(i), -1])),
    "large numbers of indices": lambda: text([element(["k", -(2**39)]), ["Sum", [["k", -(2**39)]], 0]]),
    "an endless index": lambda: text([element(*index(*["k"] * 60_000))]),
    "sides in sides": lambda: text([element(["L", [["R", [["L", [["R", [["k", -1]]]]]]]]])] * 4000),
    "brackets": lambda: "[" * MEGABYTE,
    "braces": lambda: '{"a":' * (MEGABYTE // 5),
    "empty lists": lambda: '{"terms": [' + "[]," * 300_000 + "[]]}",
    "zeros": lambda: '{"terms": [' + "0," * 480_000 + "0]}",
    "digits": lambda: '{"terms": ' + "9" * 900_000 + "}",
    "keys": lambda: json.dumps({f"k{i}": i for i in range(60_000)}),
    "one key again and again": lambda: "{" + '"schema": 1,' * 80_000 + '"schema": 1}',
    "steps without terms": lambda: text([], [{"axiom": "inv_inv", "backward": False, "bindings": {"a": 0}}] * 15_000),
    "bindings": lambda: text(
        [], [{"axiom": "x", "backward": False, "bindings": {f"b{i}": [] for i in range(4000)}}] * 15
    ),
    "properties": lambda: text([], properties={f"f{i}": ["odd"] for i in range(4000)}),
    "steps there and back": lambda: text(
        [X, ["num", "1"], ["inv", None, 0], ["inv", None, 2]],
        [{"axiom": "inv_inv", "backward": not i % 2, "bindings": {"a": 0}} for i in range(15_000)],
    ),
    "steps that grow": lambda: text(
        [X, *(["inv", None, i] for i in range(150))],
        [{"axiom": "inv_inv", "backward": True, "bindings": {"a": i % 2}} for i in range(15_000)],
    ),
    "steps that double": lambda: text(
        [X, ["num", "1/2"], ["num", "0"]],
        [{"axiom": "distribute", "backward": False, "bindings": {"a": 1, "b": 1, "c": 0, "r": 2}}] * 12_000,
    ),
    "steps on a large term": lambda: text(
        [X, ["num", "0"], *(["num", str(i)] for i in range(2, 1002)), *(["mul", None, 0, i] for i in range(2, 1002)),
         ["add", None, 0, *range(1002, 2002)], ["inv", None, 2002], ["mul", None, 0, 2002, 2003]],
        [{"axiom": "distribute", "backward": False, "bindings": {"a": 2002, "b": 2002, "c": 2004, "r": 1}}] * 9000,
    ),
    "outputs": lambda: text([], outputs=list(range(4000))),
}
