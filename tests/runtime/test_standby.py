"""Processes that wait for the next session: who gets them, what they still hold, and when they are gone."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator

import pytest

from mirage_nb.runtime.contest import standby, trial
from mirage_nb.runtime.contest.standby import Standby
from mirage_nb.runtime.contest.trial import Stopped, Trials
from tests.sessions import FOREVER, alive, until


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standby]:
    """Nobody waits but who is told to here."""
    found = Standby()
    monkeypatch.setattr(trial, "STANDBY", found)
    yield found
    for workers in found._there.values():
        workers.terminate()


def process_of(count: int = 1) -> int:
    """The process of a session that has one call and ends."""
    with Trials(lambda: True, count, kept=True) as trials:
        return trials.call(os.getpid, seconds=60)


def test_the_next_session_has_the_processes_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    first = process_of()
    assert process_of() == first
    assert process_of(2) != first, "who wants more has others"
    with Trials(lambda: True) as trials:
        assert trials.call(os.getpid, seconds=60) != first, "who keeps none gets none"
    monkeypatch.setenv("MIRAGE_NB_HOME", "/elsewhere")
    assert process_of() != first, "they have the environment of their start"


def test_whose_owner_has_moved_meanwhile_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a session in which a variable was set were given to the next one, which has it, as those that do."""
    with Trials(lambda: True, kept=True) as trials:
        first = trials.call(os.getpid, seconds=60)
        monkeypatch.setenv("MIRAGE_NB_HOME", "/elsewhere")
    assert not alive(first)
    with Trials(lambda: True, kept=True) as trials:
        assert trials.call(os.getenv, "MIRAGE_NB_HOME", seconds=60) == "/elsewhere"


def test_two_at_a_time_share_no_process() -> None:
    one, other = (Trials(lambda: True, kept=True) for _ in range(2))
    processes = {t.call(os.getpid, seconds=60) for t in (one, other)}
    assert len(processes) == 2
    one.terminate()
    other.terminate()  # one set waits, no second one
    assert process_of() in processes
    assert until(lambda: sum(map(alive, processes)) == 1)


def test_who_has_a_call_does_not_wait() -> None:
    trials = Trials(lambda: True, kept=True)
    process = trials.call(os.getpid, seconds=60)
    asked = trials.later(time.sleep, FOREVER)
    assert until(asked.running)
    trials.terminate()
    assert not alive(process) and process_of() != process


def test_whose_processes_wait_has_none() -> None:
    trials = Trials(lambda: True, kept=True)
    process = trials.call(os.getpid, seconds=60)
    trials.terminate()
    with pytest.raises(RuntimeError):
        trials.later(os.getpid)
    with pytest.raises(Stopped):
        trials.call(os.getpid, seconds=60)
    trials.terminate()
    assert process_of() == process, "ending twice ends nothing of the next one's"


def hold() -> int:
    """Have inputs of a program, as this process has no card for them."""
    inputs = functools.lru_cache(list)
    trial._any_inputs = inputs  # type: ignore[assignment]
    inputs("")
    return held()


def held() -> int:
    """Of how many programs this process holds inputs."""
    return trial._any_inputs.cache_info().currsize


def test_they_forget_what_they_hold_and_are_gone_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "STANDBY_SECONDS", 0.5)
    with Trials(lambda: True, kept=True) as trials:
        process = trials.call(os.getpid, seconds=60)
        assert trials.call(hold, seconds=60) == 1
    with Trials(lambda: True, kept=True) as trials:
        assert trials.call(os.getpid, seconds=60) == process
        assert trials.call(held, seconds=60) == 0
        time.sleep(0.7)
        assert alive(process), "the time of who is asked again begins anew"
    assert until(lambda: not alive(process))
