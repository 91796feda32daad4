"""Arguments of other types than a public function says are named before anything is begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import mirage_nb
from mirage_nb.errors import OptionError
from mirage_nb.search import Limits
from mirage_nb.typed import typed

PROGRAM = "X: f16[4, 4]\nreturn exp(X)"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: mirage_nb.superoptimize(PROGRAM, budget="60"), "budget"),
        (lambda: mirage_nb.superoptimize(PROGRAM, budget=True), "budget"),
        (lambda: mirage_nb.superoptimize(PROGRAM, seed="a"), "seed"),
        (lambda: mirage_nb.superoptimize(PROGRAM, max_block_ops=1.5), "max_block_ops"),
        (lambda: mirage_nb.superoptimize(PROGRAM, executor=3), "executor"),
        (lambda: mirage_nb.superoptimize(PROGRAM, axioms={"sum_div": "no"}), "axioms"),
        (lambda: mirage_nb.superoptimize(PROGRAM, axioms=["sum_div"]), "axioms"),
        (lambda: mirage_nb.superoptimize(PROGRAM, limits={"blocks": (1, 2)}), "limits"),
        (lambda: mirage_nb.superoptimize(PROGRAM, limits=Limits(blocks=3)), "blocks"),
        (lambda: mirage_nb.superoptimize(PROGRAM, limits=Limits(loop=(1, 2, 3))), "loop"),
        (lambda: mirage_nb.superoptimize(PROGRAM, limits=Limits(without="Matmul")), "without"),
        (lambda: mirage_nb.superoptimize(None), "program"),
        (lambda: mirage_nb.superoptimize(mirage_nb.parse(PROGRAM).graph), "program"),
        (lambda: mirage_nb.superoptimize(PROGRAM, effrot="quick"), "effrot"),
        (lambda: mirage_nb.resume(3), "name"),
        (lambda: mirage_nb.parse(b"x"), "text"),
        (lambda: mirage_nb.parse_graph(3), "text"),
        (lambda: mirage_nb.print_graph(mirage_nb.parse(PROGRAM)), "graph"),
        (lambda: mirage_nb.prove("a", "b"), "program"),
        (lambda: mirage_nb.load_kernel(3), "path"),
    ],
)
def test_what_does_not_fit_is_named(call: Callable[[], object], named: str) -> None:
    with pytest.raises(OptionError, match=named) as raised:
        call()
    assert "it takes" in str(raised.value)


def test_what_fits_is_handed_on() -> None:
    @typed
    def given(a: float, b: tuple[int, int | None] = (1, None), *, c: str | Path = "") -> tuple[object, ...]:
        return a, b, c

    @typed
    def many(a: Iterable[str]) -> list[str]:
        return [*a]

    assert many(("b", "c")) == many(iter("bc")) == ["b", "c"]
    path, pair = Path("a"), (np.int64(3), None)
    assert given(np.float32(2), pair, c=path) == (2, pair, path)
    assert given(Fraction(1, 3)) == (Fraction(1, 3), (1, None), "")


def test_a_path_of_a_program_may_be_a_string(tmp_path: Path) -> None:
    (tmp_path / "mine.mirage").write_text(PROGRAM, encoding="utf-8")
    session = mirage_nb.superoptimize(str(tmp_path / "mine.mirage"), effort="quick")
    session.stop()
    assert session.program.name == "mine"


def test_a_pause_rests_the_ranges_of_a_size_that_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    made = mirage_nb.superoptimize("B: size(1, 4)\nX: f16[B, 16]\nreturn exp(X)", effort="quick")
    smaller = made.smaller
    assert smaller is not None
    said: list[str] = []
    for session, name in ((made, "own"), (smaller, "smaller")):
        session.search.stop()
        monkeypatch.setattr(session.search, "pause", partial(said.append, name))
    smaller._began = False
    made.pause()
    smaller._began = True
    made.pause()
    assert said == ["own", "own", "smaller"]
