"""The passes over a candidate: their order, what ends them, and what a session hands out."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pytest

import mirage_nb
from mirage_nb.errors import EmitError, LaunchError, OptionError, TargetError
from mirage_nb.runtime import passes

PROGRAM = "X: f16[8, 64]\nY: f16[64, 32]\nZ = exp(X) @ Y\nreturn Z"


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    """Workers in this interpreter: a session of a few milliseconds needs no others."""
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture(scope="module")
def session(executor: Executor) -> mirage_nb.Session:
    return finished(executor)


def finished(executor: Executor) -> mirage_nb.Session:
    found = mirage_nb.superoptimize(PROGRAM, name="small", target="h200", effort="quick", executor=executor)
    found.result(120)
    return found


def test_passes_run_in_reading_order(session: mirage_nb.Session) -> None:
    assert session.best is not None
    digest = session.best.candidate.digest
    assert [p.name for p in session.trace if p.candidate == digest] == ["emit", "compile", "execute"]
    assert all(p.outcome == "ok" and p.seconds >= 0 for p in session.trace)


def test_the_winner_computes_the_program(session: mirage_nb.Session) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float16) for shape in ((8, 64), (64, 32)))
    expected = np.exp(x.astype(np.float64)) @ y
    for found in (session(x, y), session(X=x, Y=y), session(x, Y=y)):
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-1)
    with pytest.raises(LaunchError, match="X, Y"):
        session(x)
    with pytest.raises(LaunchError, match="X, Y"):
        session(x, X=x)


def test_a_candidate_that_a_pass_cannot_take_makes_room_for_the_next(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    emit = passes.emit

    def refusing_one(graph: mirage_nb.KernelGraph, *rest: object) -> object:
        if not refused:
            refused.append(graph.digest())
        if graph.digest() == refused[0]:
            raise EmitError("no such instruction")
        return emit(graph, *rest)

    monkeypatch.setattr(passes, "emit", refusing_one)
    session = finished(executor)
    assert [(p.name, p.outcome) for p in session.trace if p.candidate == refused[0]] == [("emit", "failed")]
    assert session.best is not None and session.best.candidate.digest != refused[0]
    assert any("no such instruction" in message for message in session.snapshot().messages)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"effort": "heroic"}, OptionError, "quick"),
        ({"target": "abacus"}, TargetError, "h200"),
        ({"budget": -1.0}, OptionError, "positive"),
        ({"max_block_ops": 0}, OptionError, "1 or more"),
    ],
)
def test_mistakes_are_named_before_anything_starts(
    options: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        mirage_nb.superoptimize(PROGRAM, **options)
