"""Arguments of other types than a public function says are named before anything is begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from typing_extensions import TypeAliasType

import mirage_nb
from mirage_nb.errors import ArgumentError, LaunchError, OptionError, ShapeError
from mirage_nb.library import export_winners, find_winners, import_winners
from mirage_nb.search import Limits
from mirage_nb.typed import typed
from mirage_nb.viz.explorer import explorer_page
from mirage_nb.viz.export import export
from mirage_nb.viz.steps import Walkthrough

PROGRAM = "X: f16[4, 4]\nreturn exp(X)"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: mirage_nb.superoptimize(PROGRAM, budget="60"), "budget"),
        (lambda: mirage_nb.superoptimize(PROGRAM, budget=True), "budget"),
        (lambda: mirage_nb.superoptimize(PROGRAM, budget=10**5000), "budget"),
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
        (lambda: mirage_nb.parse(), "text"),
        (lambda: mirage_nb.parse(PROGRAM, sizes={"B": True}), "sizes"),
        (lambda: mirage_nb.load(None), "path"),
        (lambda: mirage_nb.Store(3), "path"),
        (lambda: mirage_nb.Store(), "Store: missing a required argument: 'path'"),
        (lambda: mirage_nb.Store("s").load(3), "name"),
        (lambda: mirage_nb.Session(), "Session: missing"),
        (lambda: mirage_nb.Proof.from_json(None), "text"),
        (lambda: mirage_nb.Target("mine"), "Target: missing a required argument: 'arch'"),
        (lambda: replace(mirage_nb.TARGETS["h200"], l2_bytes="60 MB"), "l2_bytes"),
        (lambda: Limits(block=(1, 8)), "block"),
        (lambda: mirage_nb.from_torch(3, 3), "module"),
        (lambda: mirage_nb.model_report(None, 3), "model"),
        (lambda: export(None, "a.html"), "session"),
        (lambda: explorer_page(mirage_nb.parse(PROGRAM).graph, "h200"), "target"),
        (lambda: Walkthrough.of(None), "snapshot"),
        (lambda: find_winners(3, "h200"), "program"),
        (lambda: export_winners("a", [3]), "names"),
        (lambda: import_winners(None), "path"),
    ],
)
def test_what_does_not_fit_is_named(call: Callable[[], object], named: str) -> None:
    with pytest.raises(OptionError, match=named) as raised:
        call()
    assert "it takes" in str(raised.value)


@pytest.fixture(scope="module")
def session() -> mirage_nb.Session:
    made = mirage_nb.superoptimize("B: size(1, 4)\nX: f16[B, 16]\nreturn exp(X)", effort="quick")
    made.result(120)
    return made


WRONG = (None, b"x", 1.5, {"a": 1}, object(), np.ones((2, 2)))


@pytest.mark.parametrize("wrong", range(len(WRONG)))
def test_no_method_of_a_session_takes_what_it_cannot(wrong: int, session: mirage_nb.Session) -> None:
    for call in (session.at, session.pin, session.exclude, session.include, session.submit, session.explain,
                 session.estimate_of, session.source_of, session.build):  # fmt: skip
        for given in ((), (WRONG[wrong],)):
            with pytest.raises(OptionError, match=call.__name__ if not given else "it takes"):
                call(*given)
    for call in (session.stop, session.resume, session.snapshot):
        with pytest.raises(OptionError, match="it takes none"):
            call(WRONG[wrong])


def test_a_winner_takes_tensors_by_name_and_no_others(session: mirage_nb.Session) -> None:
    x = np.full((4, 16), 0.5, np.float16)
    assert np.array_equal(session.best(X=x), session(x)) and session.best.prepare(X=x).outputs[0].shape == (4, 16)
    with pytest.raises(ShapeError, match="X is no tensor, but of type NoneType"):
        session(None)
    assert session.estimate_of(session.best) == session.estimate_of(session.best.candidate)
    for call in (session, session.best, session.best.prepare):
        for given in ({"Y": x}, {"X": x, "Y": x}):
            with pytest.raises(LaunchError, match="expected the tensors X"):
                call(**given)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 10**400])
def test_budgets_that_are_none_change_nothing(wrong: float, session: mirage_nb.Session) -> None:
    with pytest.raises(OptionError, match="budget"):
        mirage_nb.superoptimize(PROGRAM, budget=wrong)
    for bound in ("seconds", "configuration_seconds", "max_values", "max_block_ops"):
        before = session.search.bounds, session.search.seconds
        if bound.startswith("max") and wrong == 10**400:
            continue  # a bound like any other
        with pytest.raises(OptionError):
            session.extend(**{bound: wrong})
        assert (session.search.bounds, session.search.seconds) == before
    for seed in (-1, 2**62):
        with pytest.raises(OptionError, match="a seed of"):
            mirage_nb.superoptimize(PROGRAM, seed=seed)


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


def test_named_types_are_looked_into() -> None:
    """As NumPy's are from 2.5 on; typing has them from Python 3.12 on."""
    element = TypeVar("element")
    pairs = TypeAliasType("pairs", tuple[int, int])
    arrays = TypeAliasType("arrays", np.ndarray[Any, np.dtype[element]], type_params=(element,))

    def given(a: object) -> object:
        return a

    given.__annotations__["a"] = Mapping[str, pairs | arrays[np.int64]]
    called = typed(given)
    assert called({"a": (1, 2), "b": np.arange(3)}) is not None
    for wrong in ((1, 2, 3), "a", 3):
        with pytest.raises(ArgumentError, match=r"a\['a'\] is .*\n.*it takes .*pairs"):
            called({"a": wrong})


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
