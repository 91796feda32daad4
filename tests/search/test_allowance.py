"""Budgets: kept by everything, whatever workers do; a pause takes nothing of them."""

from __future__ import annotations

import concurrent.futures as futures
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_nb import superoptimize
from mirage_nb.codegen import Emitted
from mirage_nb.lang import parse
from mirage_nb.runtime import passes
from mirage_nb.runtime.contest import without_gpu
from mirage_nb.runtime.contest.winner import ALONE
from mirage_nb.runtime.execution.emulate import CpuModule
from mirage_nb.runtime.requested import reserve
from mirage_nb.search import Budget
from mirage_nb.search.session import session as module
from mirage_nb.search.session.allowance import GRACE_SECONDS, Allowance
from mirage_nb.search.session.progress import State
from mirage_nb.search.session.session import SearchSession
from mirage_nb.targets import TARGETS
from tests.clock import keeps_to
from tests.search.programs import attention_safe
from tests.sessions import SOON

PROGRAM = "X: f16[4, 64]\nW: f16[64, 96]\nreturn rms_norm(X) @ W"


class Clock:
    """Seconds that pass when they are told to; or some whenever somebody looks, on a busy machine as on a quiet one."""

    def __init__(self) -> None:
        self.now, self.step = 1000.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("mirage_nb.search.session.channel.time.monotonic", made)
    return made


LEFT = 1.2
"""Seconds that a session has for what follows its search."""
WHOLE = 600.0


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a search takes here, LEFT seconds of the budget WHOLE are left when it has ended."""
    passed, real, run = [0.0], time.monotonic, passes.Passes.run

    def begin(self: passes.Passes) -> None:
        passed[0] += self.search.left - LEFT
        run(self)

    monkeypatch.setattr("mirage_nb.search.session.channel.time.monotonic", lambda: real() + passed[0])
    monkeypatch.setattr(passes.Passes, "run", begin)


def test_a_part_is_kept_for_what_follows_the_search(clock: Clock) -> None:
    allowed = Allowance(60.0, lambda seconds: seconds / 4)
    assert allowed.left == float("inf") and not allowed.search_is_over
    allowed.begin()
    clock.now += 45.0
    assert allowed.left == 15.0 and not allowed.search_is_over
    clock.now += GRACE_SECONDS + 0.01
    assert allowed.search_is_over
    allowed.rested(10.0)
    assert not allowed.search_is_over and allowed.left == pytest.approx(24.69)
    clock.now += 30.0
    assert allowed.left < 0


def test_without_a_limit_nothing_is_over(clock: Clock) -> None:
    allowed = Allowance(None)
    allowed.begin()
    clock.now += 1e9
    assert not allowed.search_is_over and allowed.left == float("inf")


def test_an_earlier_life_leaves_what_follows_a_search_its_seconds() -> None:
    assert Allowance(None).counted(50.0) == 50.0
    allowed = Allowance(60.0, lambda seconds: seconds / 4)
    assert allowed.counted(20.0) == 20.0 and allowed.counted(1000.0) == 45.0


@pytest.mark.parametrize(("seconds", "kept"), [(1.0, 0.5), (6.0, 3.0), (10.0, 3.0), (60.0, 15.0), (600.0, 15.0)])
def test_what_is_kept_is_small(seconds: float, kept: float) -> None:
    assert reserve(None, seconds) == kept < seconds


class Stuck(futures.Executor):
    """Workers that begin everything and never look at the clock."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_running_or_notify_cancel()
        return future


def test_a_worker_that_never_looks_at_the_clock_is_given_up(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(module, "HEAD_START_SECONDS", -1.0)
    clock.step = 0.01
    session = SearchSession(attention_safe(), TARGETS["h200"], seconds=1.0, executor=Stuck())
    finished: list[float] = []
    session.start(lambda: finished.append(session.left), lambda seconds: 0.3)
    found = session.result(SOON)
    assert found.state is State.FINISHED and found.candidates, "its own operators are there all the same"
    assert 0.7 <= found.seconds <= 2.0 and finished[0] <= 0.3
    assert any("the budget was over" in why for why in found.cut)


def test_a_pause_is_no_time_of_a_session(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(module, "HEAD_START_SECONDS", -1.0)
    clock.step = 0.01
    session = SearchSession(attention_safe(), TARGETS["h200"], seconds=0.8, executor=Stuck()).start()
    session.pause()
    paused = session.snapshot().seconds
    clock.now += 1.2
    assert session.snapshot().state is State.PAUSED and session.snapshot().seconds == paused
    session.resume()
    found = session.result(SOON)
    assert found.state is State.FINISHED and 0.8 <= found.seconds <= 1.8


def forever(*arguments: object) -> None:
    """Stands in a worker for the execution of a kernel."""
    time.sleep(600)


@pytest.mark.usefixtures("late")
def test_a_pass_that_does_not_end_takes_no_more_than_the_whole_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own operators run all the same, each alone, and it is said that they did no more."""
    monkeypatch.setattr(passes, "try_on_cpu", forever)
    monkeypatch.setattr(passes, "drawn", forever)  # which nobody waits for in this process
    monkeypatch.setattr(without_gpu, "draw_ahead", forever)
    monkeypatch.setattr(without_gpu, "AT_ONCE", 0.0)  # whatever is executed is executed by workers

    def taken() -> float:
        session = superoptimize(PROGRAM, effort="quick", budget=WHOLE)
        snapshot = session.result(WHOLE + SOON)
        assert snapshot.state is State.FINISHED and snapshot.seconds > WHOLE - 0.3
        assert any(": not executed: there was no time left; extend(" in m for m in snapshot.messages)
        (winner,) = session.winners
        assert winner.is_own and winner.candidate.executed_on == ALONE and snapshot.outcome == "finished"
        assert winner.report.ok and 0 < winner.report.relative_error < winner.report.allowed
        assert session(*(np.ones(i.type.shape, np.float16) for i in session.program.graph.inputs)).shape == (4, 96)
        return snapshot.seconds

    keeps_to(WHOLE + 1.0, taken)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("slow", ["compiler", "kernel"])
def test_a_kernel_that_runs_at_once_takes_no_more_than_the_whole_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: str
) -> None:
    CpuModule('#include "mirage_device.cuh"\nextern "C" __global__ void nothing() {}')  # with it, once, the runner
    if slow == "compiler":
        script = tmp_path / "g++"
        script.write_text('#!/bin/sh\ncase "$*" in *kernel.cc*) sleep 60;; esac\nexec g++ "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("MIRAGE_NB_CXX", str(script))
        before = f"  // {tmp_path}: no other test compiled it\n"
    else:
        before = "  volatile int waiting = 1;\n  while (waiting) {}\n"
    emit, first = passes.emit, "  const int thread ="
    monkeypatch.setattr(passes, "emit", lambda *given: changed(emit(*given), first, before + first))

    def taken() -> float:
        snapshot = superoptimize(PROGRAM, effort="quick", budget=WHOLE).result(WHOLE + SOON)
        assert snapshot.state is State.FINISHED and snapshot.seconds > WHOLE - LEFT
        assert any("g++ took more than" in m or "timeout" in m for m in snapshot.messages), snapshot.messages
        return snapshot.seconds

    keeps_to(WHOLE + 1.0, taken)


def changed(emitted: Emitted, old: str, new: str) -> Emitted:
    return replace(emitted, source=emitted.source.replace(old, new))


def test_what_numpy_takes_long_for_is_left_to_processes() -> None:
    """They are ended when time is over; one product of many operations takes less than as many elements."""
    assert without_gpu.operations(parse("X: f16[1024, 4096]\nreturn softmax(X)").graph) > without_gpu.AT_ONCE
    assert without_gpu.operations(parse("X: f16[512, 512]\nreturn X @ X").graph) < without_gpu.AT_ONCE


def test_what_ends_for_want_of_time_takes_no_more_to_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(module, "why_nothing", lambda *given: asked.append(given) or "nothing")
    for seconds, wanted in ((1e-3, 0), (60.0, 1)):
        budget = Budget(10.0, 60_000, 3)
        session = SearchSession(parse(PROGRAM).graph, TARGETS["h200"], effort="quick", budget=budget, seconds=seconds)
        assert session.start().result(60).state is State.FINISHED and len(asked) == wanted
