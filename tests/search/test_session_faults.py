"""What happens to a session on a machine in trouble: no room, no memory, no threads, a clock that is set."""

from __future__ import annotations

import itertools
import random
import signal
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirage_nb.errors import SearchError
from mirage_nb.search.session import session as module
from mirage_nb.search.session.progress import Snapshot, State
from mirage_nb.search.session.session import SearchSession
from mirage_nb.search.session.worker import explore
from tests.search.test_session import processes, search, undisturbed
from tests.sessions import LONG, facts, until


def sweep(scratch: Path, number: int) -> None:
    """Everything in the folder is gone at once, and the folder, too."""
    if until(scratch.exists):
        scratch.rename(scratch.with_name(f"{scratch.name}-swept-{number}"))


def test_a_clock_that_is_set_ends_no_search_and_prolongs_none(
    monkeypatch: pytest.MonkeyPatch, sessions: list[SearchSession]
) -> None:
    clock = time.time

    def turned(hours: float) -> None:
        jumps = time.monotonic() + 0.1
        monkeypatch.setattr(time, "time", lambda: clock() + (3600.0 * hours if time.monotonic() > jumps else 0.0))

    turned(-1)
    sessions.append(search(LONG).start())
    assert until(lambda: processes(sessions[0]))  # the head start ended
    monkeypatch.setattr(module, "HEAD_START_SECONDS", 60.0)
    turned(1)
    found = search(effort="quick", seconds=600.0).start().result(120)
    assert found.exhausted and found.configurations_done == found.configurations_total


def test_a_folder_that_is_swept_away_costs_nothing_but_time(
    no_head_start: None, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRAGE_NB_WORKERS", "2")
    session = search().start()
    for number in range(3):
        assert until(lambda: session._channel is not None and session._channel.folder.exists() and processes(session))
        sweep(scratch, number)
        time.sleep(0.1)
    found = session.result(120)
    assert facts(found) == undisturbed() and found.configurations_done == found.configurations_total
    assert found.messages == () and not list(scratch.iterdir())


def test_without_a_folder_it_is_steered_all_the_same(no_head_start: None, scratch: Path) -> None:
    session = search(LONG, seconds=60.0).start()
    assert until(lambda: processes(session))
    acts = (session.pause, session.resume, partial(session.extend, seconds=90.0), session.stop)
    for number, act in enumerate(acts):
        sweep(scratch, number)
        act()
    assert session.wait(20) and session.snapshot().state is State.STOPPED


def test_where_there_is_no_room_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    session = search(effort="quick").start()
    with pytest.raises(SearchError, match=r"no folder for temporary files(?s:.*)TMPDIR"):
        session.result(20)
    assert session.snapshot().state is State.FAILED
    session.tell("the session is not stored")
    with pytest.raises(SearchError, match="no folder for temporary files"):
        session.result()


def test_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    session = search(effort="quick")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(SearchError, match="cannot begin: can't start new thread"):
            session.start()
    assert session.snapshot().state is State.WAITING
    found = session.start().result(60)
    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(SearchError, match="cannot begin"):
        session.follow(lambda: None)
    assert session.wait(0) and session.snapshot() == found


def test_a_lack_of_memory_is_told_and_costs_one_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def restore(self) -> Any:
            raise MemoryError

        def keep(self, ended: object, facts: object) -> None:
            raise MemoryError

    calls = itertools.count()

    def starved(task: Any, post: Any = None) -> Any:
        if next(calls) == 0:
            raise MemoryError
        return explore(task, post)

    monkeypatch.setattr(module, "HEAD_START_SECONDS", 60.0)
    monkeypatch.setattr(module, "explore", starved)
    found = search(checkpoint=Full()).start().result(60)
    assert found.state is State.FINISHED and found.candidates
    assert found.configurations_done == found.configurations_total - 1
    assert [cut for cut in found.cut if cut.endswith(": not enough memory")]
    assert [m for m in found.messages if "is not stored: not enough memory" in m]


def test_ctrl_c_at_any_moment_leaves_no_lock_held(sessions: list[SearchSession]) -> None:
    session = search(LONG).start()
    sessions.append(session)
    calls = (session.snapshot, session.pause, session.resume, partial(session.wait, 0.001), session.candidates)
    rng, interrupted = random.Random(0), 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        while interrupted < 200:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.choice([1e-4, 1e-3]) * rng.random() + 1e-6)
                for _ in range(10):
                    rng.choice(calls)()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    answers: list[Snapshot] = []
    threading.Thread(target=lambda: answers.append(session.snapshot()), daemon=True).start()
    assert until(lambda: answers)
    session.resume()
    found = session.snapshot().verified
    assert until(lambda: session.snapshot().verified > found)
