"""A card that runs everything at once: whatever emits, compiles and verifies is called here, and nothing is run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb.codegen import Emitted, Options, emit
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime import passes
from mirage_nb.runtime.contest import heats, on_card
from mirage_nb.runtime.contest.trial import Outcome
from mirage_nb.runtime.contest.winner import Winner
from mirage_nb.runtime.execution.compile import Cubin
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.search.session.progress import Candidate
from mirage_nb.targets import Target
from mirage_nb.verify.reals.float_gate import FloatReport

CARD = Gpu("Some card", 90, 132, "13.0", 60 * 2**20)
CUBIN = Cubin(b"", "sm_90a", "", {}, None)


def attach(monkeypatch: pytest.MonkeyPatch, race: object, finalists: int, richer: int) -> None:
    """Attach it; `race` stands for `mirage_nb.runtime.contest.race`."""
    monkeypatch.setattr(passes, "FINALISTS_GPU", finalists)
    monkeypatch.setattr(on_card, "RICHER", richer)
    monkeypatch.setattr("mirage_nb.pipeline.attached_gpu", lambda: CARD)
    monkeypatch.setattr(heats, "emit_and_compile", _emitted)
    monkeypatch.setattr("mirage_nb.search.session.background.call_all", _called)
    monkeypatch.setattr(passes.Passes, "on_gpu", _on_gpu)
    trials = SimpleNamespace(terminate=lambda wait: None)
    monkeypatch.setattr(passes.Passes, "trials", lambda self: nullcontext(trials))
    monkeypatch.setattr(passes, "busy_percent", lambda: 3)
    monkeypatch.setattr(passes.Passes, "begin", lambda self: None)
    monkeypatch.setattr(passes.Passes, "first_runs", lambda self, entries, trials, until=0.0: enumerate(entries))
    monkeypatch.setattr(passes.Passes, "make_gate", lambda self, trials, until=0.0: setattr(self, "gate", trials))
    monkeypatch.setattr(passes.Passes, "new_gate", lambda self, *given: None)
    monkeypatch.setattr(passes.Passes, "gated", lambda self, winner, gate=None: winner)
    monkeypatch.setitem(sys.modules, "mirage_nb.runtime.contest.race", race)  # type: ignore[arg-type]


def _emitted(graph: KernelGraph, target: Target, options: Options | None) -> tuple[Emitted, Cubin]:
    return emit(graph, target, options), CUBIN


def _called(
    executor: object,
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    seconds: float,
    check: Callable[[], None],
    until: float,
) -> Iterator[tuple[int, Future[Any]]]:
    for number, args in enumerate(arguments):
        check()
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001  # it is raised where the result is asked for
            future.set_exception(error)
        yield number, future


def _on_gpu(self: passes.Passes, candidate: Candidate, emitted: Emitted, cubin: Cubin, gpu: Gpu, trials: Any) -> Winner:
    stand_in: Any = SimpleNamespace(device=gpu.name)
    outcome = Outcome(FloatReport(1e-4, True), True)
    return Winner.judged(candidate, emitted, stand_in, cubin, outcome, self.origin)
