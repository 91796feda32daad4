"""Larger bounds for a session: what is done is not done again, in every state, and the results are those of one
that had the larger bounds from the start."""

from __future__ import annotations

import concurrent.futures as futures
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from mirage_nb.errors import OptionError, SearchError
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Budget, configurations, prepare, run_configuration
from mirage_nb.search.saturation.events import Counts
from mirage_nb.search.session import crew
from mirage_nb.search.session import session as module
from mirage_nb.search.session.findings import Bounds, Explored, Findings
from mirage_nb.search.session.progress import Snapshot, State
from mirage_nb.search.session.session import SearchSession
from mirage_nb.search.session.worker import Task, explore
from mirage_nb.targets import find_target
from tests.sessions import LONG, until

H200 = find_target("h200")
SMALL = "X: f16[4, 64]\nE = exp(X)\nreturn E / sum(E, axis=-1, keepdims=True)"
NARROW = Budget(60.0, 60_000, 4)
WIDE = Budget(60.0, 60_000, 6)


class Counting:
    """Stands in for `explore`: counts what is explored; every exploration takes a permit."""

    def __init__(self) -> None:
        self.begun: Counter[tuple[str, Bounds]] = Counter()
        self.permits = threading.Semaphore(1000)

    def __call__(self, task: Task, post: Callable[[Findings], None] | None = None) -> Explored:
        self.begun[str(task.configuration), task.bounds] += 1
        assert self.permits.acquire(timeout=20)
        return explore(task, post)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Workers are threads of this process, and what they explore is counted."""
    found = Counting()
    monkeypatch.setattr(module, "HEAD_START_SECONDS", -1.0)
    monkeypatch.setattr(crew, "explore", found)
    return found


@pytest.fixture
def threads() -> Iterator[futures.ThreadPoolExecutor]:
    with futures.ThreadPoolExecutor(2) as executor:
        yield executor


def search(executor: futures.Executor, budget: Budget = NARROW, **options: object) -> SearchSession:
    graph = parse(SMALL).graph
    return SearchSession(graph, H200, effort="quick", budget=budget, executor=executor, **options)  # type: ignore[arg-type]


def digests(snapshot: Snapshot) -> set[str]:
    return {c.digest for c in snapshot.candidates}


def test_more_operators_open_only_configurations_that_wanted_them(
    counting: Counting, threads: futures.ThreadPoolExecutor
) -> None:
    session = search(threads).start()
    before = session.result(60)
    first = Counter(counting.begun)
    session.extend(max_block_ops=6)
    after = session.result(60)
    again = counting.begun - first
    total = after.configurations_total
    assert set(first.values()) == {1} and len(first) == total == after.configurations_done
    assert 0 < len(again) < total and set(again.values()) == {1}
    assert after.configurations_kept == total - len(again)
    fresh = search(threads, WIDE).start().result(60)
    assert (after.candidates, after.counts, after.cut) == (fresh.candidates, fresh.counts, fresh.cut)
    assert digests(before) & digests(after)
    counting.begun.clear()
    session.extend(max_block_ops=6)  # nothing new
    assert session.result(60).configurations_kept == total and not counting.begun


def test_bounds_that_kept_nothing_out_open_no_configuration(
    counting: Counting, threads: futures.ThreadPoolExecutor
) -> None:
    session = search(threads, WIDE).start()
    before = session.result(60)
    counting.begun.clear()
    session.extend(max_values=80_000, configuration_seconds=120.0)
    after = session.result(60)
    assert not counting.begun and session.budget.max_values == 80_000
    assert after.configurations_kept == after.configurations_total == before.configurations_done
    assert (after.candidates, after.counts, after.cut) == (before.candidates, before.counts, before.cut)


def test_bounds_that_were_not_reached_change_nothing() -> None:
    prepared = prepare(parse(SMALL).graph)
    effort = EFFORTS["standard"]
    kept = 0

    def ignore(counts: Counts) -> None:
        pass

    for configuration in configurations(prepared, effort):
        for low, high, bound in (
            (Budget(60.0, 60_000, 5), Budget(60.0, 60_000, 12), "max_block_ops"),
            (Budget(60.0, 60, 12), Budget(60.0, 60_000, 12), "max_values"),
        ):
            small = run_configuration(prepared, configuration, effort, low, ignore, lambda: False)
            large = run_configuration(prepared, configuration, effort, high, ignore, lambda: False)
            if bound not in small.reached:
                kept += 1
                assert (small.structures, small.counts, small.cut) == (large.structures, large.counts, large.cut)
    assert kept


def test_a_larger_effort_keeps_what_was_found(threads: futures.ThreadPoolExecutor) -> None:
    graph = parse(SMALL).graph
    session = search(threads, EFFORTS["quick"].budget)
    before = session.start().result(60)
    session.extend(effort="standard")
    after = session.result(120)
    assert session.effort == "standard" and session.budget == EFFORTS["standard"].budget
    assert after.configurations_done == after.configurations_total > before.configurations_total
    fresh = SearchSession(graph, H200, executor=threads).start().result(120)
    assert after.counts == fresh.counts and digests(before) & digests(after)


def test_a_stopped_session_goes_on_with_what_is_left(counting: Counting, threads: futures.ThreadPoolExecutor) -> None:
    counting.permits = threading.Semaphore(2)
    session = search(threads).start()
    assert until(lambda: session.snapshot().configurations_done == 2 and len(counting.begun) == 4)
    session.stop()
    counting.permits.release(1000)
    stopped = session.result(20)
    assert "stopped by the user" in stopped.cut
    done = stopped.configurations_done
    assert done == 2 < stopped.configurations_total
    begun = sum(counting.begun.values())
    session.extend()
    assert session.snapshot().state is State.RUNNING
    after = session.result(60)
    assert after.state is State.FINISHED and after.configurations_kept == done
    assert "stopped by the user" not in after.cut
    assert sum(counting.begun.values()) - begun == after.configurations_total - done
    fresh = search(threads).start().result(60)
    assert (after.candidates, after.counts, after.cut) == (fresh.candidates, fresh.counts, fresh.cut)


def test_extending_a_running_session_interrupts_nobody(
    counting: Counting, threads: futures.ThreadPoolExecutor
) -> None:
    counting.permits = threading.Semaphore(0)
    session = search(threads).start()
    assert until(lambda: len(counting.begun) == 2)
    session.extend(max_block_ops=6)
    time.sleep(0.3)
    counting.permits.release(1000)
    after = session.result(60)
    with_old = [where for where, bounds in counting.begun if bounds.budget == NARROW]
    assert len(with_old) == 2 and set(counting.begun.values()) == {1}
    assert len(counting.begun) in (after.configurations_total, after.configurations_total + 1)
    assert after.configurations_done == after.configurations_total
    fresh = search(threads, WIDE).start().result(60)
    assert (after.candidates, after.counts, after.cut) == (fresh.candidates, fresh.counts, fresh.cut)


def test_extending_a_paused_session_lets_it_pause(counting: Counting, threads: futures.ThreadPoolExecutor) -> None:
    session = search(threads).start()
    session.pause()
    session.extend(max_block_ops=6)
    time.sleep(0.3)
    assert session.snapshot().state is State.PAUSED
    session.resume()
    assert session.result(60).configurations_done == session.snapshot().configurations_total


def test_extending_right_after_a_stop(threads: futures.ThreadPoolExecutor) -> None:
    for _ in range(3):
        session = search(threads).start()
        session.stop()
        session.extend()
        session.stop()
        session.extend()
        assert session.result(60).configurations_done == session.snapshot().configurations_total


def test_extending_during_what_follows_searches_again_and_finishes_again(threads: futures.ThreadPoolExecutor) -> None:
    calls: list[str] = []
    session = search(threads)

    def finish() -> None:
        calls.append("begun")
        if len(calls) == 1:
            session.extend(max_block_ops=6)
            assert not session.proceed()
            session.call(time.sleep, 2, seconds=100)
        calls.append("ended")

    found = session.start(finish).result(60)
    assert calls == ["begun", "begun", "ended"] and found.configurations_done == found.configurations_total
    assert session.budget.max_block_ops == 6 and found.messages == ()


def test_a_time_limit_can_be_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_START_SECONDS", 60.0)
    session = SearchSession(parse(SMALL).graph, H200, seconds=0.02).start()
    first = session.result(30)
    assert first.configurations_done < first.configurations_total and first.cut
    session.extend(seconds=60)
    after = session.result(60)
    assert after.configurations_done == after.configurations_total
    assert after.configurations_kept == first.configurations_done
    assert after.seconds > first.seconds


def test_a_pause_is_no_time_of_the_search_and_a_running_limit_can_be_moved(threads: futures.ThreadPoolExecutor) -> None:
    session = search(threads, seconds=2.0).start()
    session.pause()
    time.sleep(2.5)
    session.resume()
    session.extend(seconds=30.0)
    found = session.result(60)
    assert found.configurations_done == found.configurations_total


def test_one_more_piece_of_work(threads: futures.ThreadPoolExecutor) -> None:
    session = search(threads)
    with pytest.raises(SearchError, match="waiting"):
        session.follow(lambda: None)
    session.start()
    with pytest.raises(SearchError, match="running"):
        session.follow(lambda: None)
    before = session.result(60)
    values: list[object] = []
    session.follow(lambda: values.append((session.call(divmod, 7, 2, seconds=30), session.snapshot().state)))
    assert session.result(30).candidates == before.candidates
    assert values == [((3, 1), State.RUNNING)] and session.snapshot().state is State.FINISHED
    session.follow(lambda: session.call(time.sleep, 2, seconds=100))
    session.stop()
    assert session.wait(10) and session.snapshot().state is State.STOPPED
    session.follow(lambda: 1 // 0)
    assert "ZeroDivisionError" in session.result(10).messages[-1]


def test_bounds_only_grow(threads: futures.ThreadPoolExecutor) -> None:
    session = search(threads)
    with pytest.raises(SearchError, match="cannot be extended"):
        session.extend()
    session.start().result(60)
    session.extend(effort="standard")
    for bounds, message in (
        ({"max_block_ops": 4}, "max_block_ops: 4 is less than 24"),
        ({"max_values": -1}, "max_values"),
        ({"configuration_seconds": 1.0}, "seconds"),
        ({"effort": "quick"}, "smaller than 'standard'"),
        ({"effort": "heroic"}, "unknown effort"),
    ):
        with pytest.raises(OptionError, match=message):
            session.extend(**bounds)  # type: ignore[arg-type]
    session.stop()
    assert session.wait(20) and session.budget == EFFORTS["standard"].budget


def test_pause_stop_and_extend_wait_for_nobody() -> None:
    """Not for workers that are at work, either: what is asked for shows on return."""
    session = SearchSession(parse(LONG).graph, H200).start()
    assert until(lambda: session._workers is not None and session.snapshot().verified)
    for act, state in ((session.pause, State.PAUSED), (session.resume, State.RUNNING), (session.stop, State.STOPPED)):
        act()
        assert session.snapshot().state is state
    session.extend()
    assert session.snapshot().state is State.RUNNING
    session.stop()
    assert session.wait(20)
