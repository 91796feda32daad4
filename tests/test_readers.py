"""Files from strangers: whatever is in them, every reader reads it or says what is wrong with it, soon."""

from __future__ import annotations

import functools
import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirage_nb.__main__ import main
from mirage_nb.bench import ablation, cost, kernels, search, verify
from mirage_nb.codegen import emit
from mirage_nb.errors import FormatError, MirageError
from mirage_nb.ir.jsonform import parse_json, print_json
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.lang import parse
from mirage_nb.runtime.kernel.saved import file_text, load_kernel, lower
from mirage_nb.runtime.store import Store
from mirage_nb.search.session.findings import Explored
from mirage_nb.search.session.ledger import Facts
from mirage_nb.search.session.plain import read, write
from mirage_nb.targets import find_target
from mirage_nb.verify.files import read_graph, verify_files
from tests.clock import cpu_limit
from tests.codegen.mugraphs import split_safe_attention
from tests.hostile import damaged_json, damaged_text
from tests.mugraphs import cases
from tests.runtime.test_store import explored, facts, header

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 3.0
COUNT = 40
PROGRAMS = (
    "B = 4\nX: f16[B, 64]\nG: f16[64]\nW: f16[64, 96]\nY = rms_norm(X, G)\nreturn clamp(Y @ W, low=-1, high=2 ** 3)",
    "def mish(x): return x * tanh(log(1 + exp(x)))\nX: f32[2, 8]\nZ = mish(X) ** 0.5\nreturn transpose(Z, (1, 0))",
    "Q: f16[2, 16, 8]\nK: f16[2, 8, 32]\nS = Q @ K\nE = exp(S - max(S, axis=-1, keepdims=True))\n"
    "return E / sum(E, axis=-1, keepdims=True)",
)
Reader = Callable[[str, Path], Any]
Damage = Callable[[str, random.Random], str]


@functools.cache
def mugraph_texts() -> tuple[str, ...]:
    return tuple(print_graph(g) for case in cases() for g in (case.candidate, case.program))


@functools.cache
def saved_text() -> str:
    text = "X: f16[8, 16]\nY: f16[16, 4]\nreturn exp(X @ Y * 0.5)"
    return file_text(lower(emit(parse(text).graph, find_target("h200")), parse(text).graph, arch="sm_90a"))


@functools.cache
def saved_kernels_text() -> str:
    return file_text(lower(emit(split_safe_attention(), find_target("h200")), arch="sm_90a"))


def in_file(damage: Damage, text: str, chance: random.Random) -> str:
    """The plan of a saved file changed, within its file."""
    head, opened, behind = text.partition("PLAN = r'''\n")
    block, closed, tail = behind.partition("\n'''\n")
    return head + opened + damage(block, chance).replace("'", "\\u0027") + closed + tail


def stored(text: str, folder: Path) -> None:
    """A store whose payload is this text."""
    store = Store(folder / "s.sqlite")
    if not store.path.exists():
        store.save("s", header(), explored()[:1], facts())
    table, column, text = text.split(" ", 2)
    with sqlite3.connect(store.path) as db:
        (before,) = db.execute(f"SELECT {column} FROM {table}").fetchone()
        db.execute(f"UPDATE {table} SET {column} = ?", (text.encode("utf-8", "replace").decode(),))
    try:
        store.load("s")
    finally:
        with sqlite3.connect(store.path) as db:
            db.execute(f"UPDATE {table} SET {column} = ?", (before,))


def in_store(damage: Damage, text: str, chance: random.Random) -> str:
    table, column, payload = text.split(" ", 2)
    return f"{table} {column} {damage(payload, chance)}"


def in_payload(damage: Damage, text: str, chance: random.Random) -> str:
    """A payload changed, or one of the graphs in its table."""
    top = json.loads(text)
    if top["graphs"] and chance.random() < 0.5:
        place = chance.randrange(len(top["graphs"]))
        top["graphs"][place] = damage(top["graphs"][place], chance)
        return json.dumps(top)
    return damage(text, chance)


def written(text: str, folder: Path) -> Path:
    path = folder / "file"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path


BENCH: dict[str, Callable[[Path], Any]] = {
    "ablation": lambda path: ablation.print_record(str(path)),
    "cost": cost.read_record,
    "kernels": lambda path: kernels.show_record([str(path)], None),
    "search": lambda path: search.show_record(str(path), None),
    "verify": verify.show_record,
}
"""What reads the records of `bench`."""


def records() -> tuple[str, ...]:
    folder = Path(kernels.__file__).parent / "records"
    return tuple(f"{name} {sorted(folder.glob(f'{name}-*.json'))[-1].read_text()}" for name in BENCH)


def in_record(damage: Damage, text: str, chance: random.Random) -> str:
    name, text = text.split(" ", 1)
    return f"{name} {damage(text, chance)}"


def recorded(text: str, folder: Path) -> None:
    name, text = text.split(" ", 1)
    BENCH[name](written(text, folder))


READERS: dict[str, tuple[Callable[[], tuple[str, ...]], Damage, Reader]] = {
    "muGraph text": (mugraph_texts, damaged_text, lambda text, _: parse_graph(text)),
    "muGraph JSON": (
        lambda: tuple(print_json(case.candidate) for case in cases()), damaged_json, lambda text, _: parse_json(text),
    ),
    "any of the three": (lambda: PROGRAMS, damaged_text, lambda text, _: read_graph(text)),
    "verify": (
        lambda: tuple(print_graph(case.candidate) for case in cases()), damaged_text,
        lambda text, _: verify_files(text, text),
    ),
    "saved kernel": (
        lambda: (saved_text(), saved_kernels_text()), functools.partial(in_file, damaged_json),
        lambda text, folder: load_kernel(written(text, folder)),
    ),
    "saved kernel as text": (
        lambda: (saved_text(),), damaged_text, lambda text, folder: load_kernel(written(text, folder)),
    ),
    "findings": (
        lambda: (write(explored()[0]),), functools.partial(in_payload, damaged_json),
        lambda text, _: read(Explored, text),
    ),
    "facts": (
        lambda: (write(facts()),), functools.partial(in_payload, damaged_json), lambda text, _: read(Facts, text),
    ),
    "store": (
        lambda: (
            f"sessions header {write(header())}", f"sessions facts {write(facts())}",
            f"findings payload {write(explored()[0])}",
        ),
        functools.partial(in_store, functools.partial(in_payload, damaged_json)), stored,
    ),
    "records": (records, functools.partial(in_record, damaged_json), recorded),
}  # fmt: skip


def attempts(reader: str, count: int, folder: Path, seed: int = 0) -> Iterator[str]:
    """Damaged files, each read or refused; yields what was refused."""
    texts, damage, read_it = READERS[reader]
    for number in range(count):
        chance = random.Random(f"{reader} {seed} {number}")
        text = damage(chance.choice(texts()), chance)
        try:
            with cpu_limit(SECONDS):
                read_it(text, folder)
        except MirageError as error:
            assert str(error) and len(str(error)) < 4000
            yield str(error)
        except BaseException:
            (folder / "culprit").write_text(text, encoding="utf-8", errors="surrogatepass")
            print(f"{reader}, seed {seed}, number {number}: {folder / 'culprit'}")
            raise


@pytest.mark.parametrize("reader", READERS)
def test_whatever_is_in_a_file_it_is_read_or_refused(reader: str, tmp_path: Path) -> None:
    assert len(list(attempts(reader, COUNT, tmp_path))) > COUNT / 8, "some of them are refused"


@pytest.mark.parametrize("name", ["\x1b[2J\x1b[Hproved", "X\rfield, 4 trials", "\u202eX", "\x9b31m"])
def test_a_name_cannot_speak_to_the_terminal(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a file calls its tensors is shown, not obeyed, in verdicts and in errors."""
    quoted = json.dumps(name)
    graph = f"mugraph 1\ninput %0 {quoted} f16[2]\n%1 = Sqr(%0)\noutput %1 O\n"
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text(graph)
    other.write_text(graph.replace("Sqr", "EwExp"))
    wrong = tmp_path / "wrong"
    wrong.write_text(f"mugraph 1\ninput %0 X f16[2]\n%1 = Sqr(%0) {name}=1\noutput %1 O\n")
    assert [main(["verify", str(one), str(path)]) for path in (one, other, wrong)] == [0, 1, 2]
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert all(c.isprintable() or c == "\n" for c in text)


def test_half_a_character_is_no_name() -> None:
    text = print_json(parse(PROGRAMS[0]).graph).replace('"X"', '"\\ud800"')
    with pytest.raises(FormatError, match="half a character"):
        parse_json(text)


CHILD = """
import resource, sys
from pathlib import Path
from tests import test_readers
resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
for seed in range(int(sys.argv[3])):
    list(test_readers.attempts(sys.argv[1], 50, Path(sys.argv[2]), seed))
"""


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_thousands_of_them_within_limits_of_memory(reader: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, reader, str(tmp_path), "60"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
