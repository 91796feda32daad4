"""Sessions: life, streaming, workers that die or hang, any executor, and nothing left behind."""

from __future__ import annotations

import concurrent.futures as futures
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from mirage_nb.errors import LaunchError, OptionError, SearchError
from mirage_nb.ir import OpKind
from mirage_nb.lang import parse
from mirage_nb.search import Budget
from mirage_nb.search.composition import LIBRARY_AND_FUSED, UNSEARCHED
from mirage_nb.search.limits import NO_LIMITS
from mirage_nb.search.session import crew, unsearched
from mirage_nb.search.session import session as module
from mirage_nb.search.session.piecewise import Pieces
from mirage_nb.search.session.pool import Workers
from mirage_nb.search.session.progress import Snapshot, State
from mirage_nb.search.session.session import SearchSession
from mirage_nb.targets import find_target
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.sessions import FOREVER, LONG, SOON, children, facts, threads, until

ROOT = Path(__file__).resolve().parents[2]
H200 = find_target("h200")
SMALL = "X: f16[4, 64]\nW: f16[64, 96]\nreturn rms_norm(X) @ W"
BRIEF = "X: f16[4, 64]\nW: f16[64, 96]\nreturn (X * X) @ W"


def search(text: str = SMALL, **options: object) -> SearchSession:
    return SearchSession(parse(text).graph, H200, **options)  # type: ignore[arg-type]


def processes(session: SearchSession) -> tuple[int, ...]:
    workers = (session._workers, session._extra)
    return tuple(process for some in workers if isinstance(some, Workers) for process in some.processes)


@cache
def undisturbed() -> tuple[object, ...]:
    """The facts of a search that nothing happens to."""
    return facts(search().start().result(120))


def test_a_search_from_start_to_end() -> None:
    session = search(name="small", effort="quick")
    assert session.snapshot().state is State.WAITING
    found = session.start().result(60)
    assert (found.name, found.state, found.exhausted, found.cut) == ("small", State.FINISHED, True, ())
    assert found.configurations_done == found.configurations_total > 0
    assert found.best is found.candidates[0]
    assert [c.rank for c in found.candidates] == sorted(c.rank for c in found.candidates)
    assert len({c.digest for c in found.candidates}) == len(found.candidates)
    aside = [c for c in found.candidates if c.configuration in UNSEARCHED]
    assert found.verified >= len(found.candidates) - len(aside) and len(aside) == 3
    assert found.baseline in aside and found.structures > 0
    assert found.first_seconds is not None and found.first_seconds < found.seconds
    assert sum(found.counts.values()) > 0 and found.prefixes
    with pytest.raises(SearchError, match="before"):
        session.start()


def test_what_needs_no_search_is_screened_first_and_verified_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What gets no verdict that is accepted then is dropped."""
    (fused,) = (c for c in search(effort="quick").start().result(60).candidates if c.configuration == LIBRARY_AND_FUSED)
    assert "over the reals" in fused.verdict.note
    monkeypatch.setattr(unsearched, "judged", lambda *pair: Verdict(VerdictKind.UNDECIDED, note="nobody knows"))
    found = search(effort="quick").start().result(60)
    assert fused.digest in {one.digest for one in found.rejected} - {c.digest for c in found.candidates}
    assert any("nobody knows" in message for message in found.messages)
    pieces = Pieces(parse(SMALL).graph, H200, NO_LIMITS, 0)
    for _ in pieces.verify():
        assert pieces.wholes(lambda digest: ())
    (own,) = pieces.wholes(lambda digest: ())
    assert not any(op.kind is OpKind.GRAPH for op in own.graph.ops)


def test_a_paused_session_verifies_nothing(no_head_start: None, sessions: list[SearchSession]) -> None:
    asked: list[None] = []

    def verdicts() -> Iterator[None]:
        while True:
            yield asked.append(None)

    sessions.append(session := search(LONG).start())
    assert until(lambda: processes(session))
    session._verdicts = verdicts()
    assert until(lambda: asked)
    session.pause()

    def rests() -> bool:
        count = len(asked)
        time.sleep(0.3)
        return len(asked) == count

    assert until(rests)  # after the tick that it was in
    count = len(asked)
    session.resume()
    assert until(lambda: len(asked) > count)


@pytest.mark.parametrize("text", [SMALL, LONG])
def test_the_first_candidate_takes_less_than_a_second(text: str, sessions: list[SearchSession]) -> None:
    """Of one core, of which this process may have little: what others do here says nothing."""
    before = time.process_time()
    session = search(text).start()
    sessions.append(session)
    assert until(lambda: session.snapshot().candidates or time.process_time() - before > 1.0, 60)
    assert session.snapshot().candidates and session.snapshot().first_seconds is not None


def test_equal_seeds_give_equal_results_whoever_works(no_head_start: None, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = facts(found := search(BRIEF).start().result(120))
    monkeypatch.setenv("MIRAGE_NB_WORKERS", "2")
    assert facts(search(BRIEF).start().result(120)) == alone
    with futures.ThreadPoolExecutor(3) as executor:
        assert facts(search(BRIEF, executor=executor).start().result(120)) == alone
        assert executor.submit(int, "1").result() == 1  # it stays the caller's
    with monkeypatch.context() as wide:
        wide.setattr(module, "WIDE", 2)
        assert facts(search(BRIEF).start().result(120)) == alone
        wide.setattr(module, "WORTH_CUTTING", 1)  # cut before workers have it: pieces, too
        cut = search(BRIEF).start().result(120)
        assert cut.best and found.best and cut.best.estimate_us <= found.best.estimate_us
    monkeypatch.setattr(module, "HEAD_START_SECONDS", 60.0)
    assert facts(search(BRIEF).start().result(120)) == alone


@pytest.mark.parametrize("cores", [1, 8])
def test_workers_have_a_program_before_its_compositions_where_they_are_many(
    cores: int, no_head_start: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    begin, made = module.Crew.begin, module.unsearched
    monkeypatch.setattr(module.Crew, "begin", lambda crew, tasks: (order.append("crew"), begin(crew, tasks))[1])
    monkeypatch.setattr(module, "unsearched", lambda *args: (order.append("compositions"), made(*args))[1])
    monkeypatch.setenv("MIRAGE_NB_WORKERS", str(cores))
    monkeypatch.setattr(module, "WIDE", 8)
    assert search(BRIEF).start().result(120).candidates
    assert order == (["crew", "compositions"] if cores == 8 else ["compositions", "crew"])


def test_three_seeds_give_the_same_sets(no_head_start: None) -> None:
    """Seeds decide which random elements tell values apart, never what is found."""
    with futures.ThreadPoolExecutor(2) as executor:
        found = [search(effort="quick", seed=seed, executor=executor).start().result(60) for seed in (0, 1, 2)]
    first, *others = [[(c.digest, c.configuration, c.estimate_us) for c in one.candidates] for one in found]
    assert first and all(other == first for other in others)
    assert len({tuple(c.verdict.primes for c in one.candidates) for one in found}) == 3
    assert found[0].counts == found[1].counts == found[2].counts


def test_any_process_pool_will_do(no_head_start: None) -> None:
    with futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        found = search(effort="quick", executor=executor).start().result(120)
    assert found.exhausted and found.candidates


def test_an_executor_that_takes_nothing_is_named(no_head_start: None) -> None:
    executor = futures.ThreadPoolExecutor(1)
    executor.shutdown()
    found = search(effort="quick", executor=executor).start().result(20)
    assert not found.exhausted
    assert all("takes no more work" in cut for cut in found.cut) and found.cut


def test_findings_stream_while_configurations_run(no_head_start: None, sessions: list[SearchSession]) -> None:
    session = search(LONG).start()
    sessions.append(session)
    seen: list[Snapshot] = []
    while len({s.verified for s in seen}) < 5:
        assert len(seen) < 2000
        seen.append(session.snapshot())
        time.sleep(0.02)
    assert any(s.candidates and s.configurations_done < s.configurations_total for s in seen)
    assert [s.verified for s in seen] == sorted(s.verified for s in seen)
    assert [s.configurations_done for s in seen] == sorted(s.configurations_done for s in seen)


@pytest.mark.parametrize("begun", ["head start", "workers"])
def test_stop_shows_at_once_and_leaves_nothing(
    begun: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEAD_START_SECONDS", 60.0 if begun == "head start" else -1.0)
    before = threads()
    session = search(LONG).start()
    assert until(lambda: session.snapshot().structures)
    pids = processes(session)
    assert bool(pids) == (begun == "workers")
    session.stop()
    assert session.snapshot().state is State.STOPPED
    assert session.wait(20)  # to its end it would take minutes
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    last = session.result(0)
    assert last.candidates and "stopped by the user" in last.cut and not last.exhausted
    assert last.seconds == session.snapshot().seconds
    assert until(lambda: threads() <= before)
    assert not list(scratch.iterdir())


def test_ten_sessions_leave_nothing_behind(scratch: Path, no_head_start: None) -> None:
    with Workers(1) as workers:
        assert workers.submit(int).result(60) == 0  # what they are forked of stays for a while
    before, processes_before, descriptors = threads(), children(), set(os.listdir("/proc/self/fd"))
    for number in range(10):
        session = search(LONG if number % 2 else SMALL, effort="standard" if number % 2 else "quick").start()
        if number % 2:
            assert until(partial(processes, session))
            session.stop()
        session.result(60)
    assert until(lambda: threads() <= before)
    assert not list(scratch.iterdir())
    assert children() <= processes_before
    assert set(os.listdir("/proc/self/fd")) <= descriptors


def test_stop_before_the_thread_has_begun_and_after_the_end() -> None:
    session = search().start()
    session.stop()
    assert session.wait(10) and session.snapshot().state is State.STOPPED
    session = search(effort="quick").start()
    session.result(60)
    session.stop()
    session.pause()
    session.resume()
    assert session.snapshot().state is State.FINISHED


@pytest.mark.parametrize("head_start", [60.0, -1.0])
def test_pause_holds_the_work_and_resume_goes_on(
    head_start: float, monkeypatch: pytest.MonkeyPatch, sessions: list[SearchSession]
) -> None:
    monkeypatch.setattr(module, "HEAD_START_SECONDS", head_start)
    session = search(LONG).start()
    sessions.append(session)
    assert until(lambda: session.snapshot().verified)
    session.pause()
    assert session.snapshot().state is State.PAUSED
    time.sleep(0.5)  # what was under way ends
    before = session.snapshot()
    time.sleep(0.5)
    assert session.snapshot().verified == before.verified
    session.resume()
    assert session.snapshot().state is State.RUNNING
    assert until(lambda: session.snapshot().verified > before.verified)
    session.pause()
    session.stop()
    assert session.wait(10) and session.snapshot().state is State.STOPPED


def test_a_pause_costs_a_configuration_nothing_of_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_START_SECONDS", 60.0)
    budget = Budget(seconds=1.0)
    expected = facts(search(effort="quick", budget=budget).start().result(60))
    session = search(effort="quick", budget=budget).start()
    session.pause()
    time.sleep(1.5)
    session.resume()
    assert facts(session.result(60)) == expected


def test_a_killed_worker_costs_nothing_but_time(no_head_start: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_NB_WORKERS", "2")
    session = search().start()
    assert until(lambda: session.snapshot().verified and len(processes(session)) == 2)
    os.kill(processes(session)[0], signal.SIGKILL)
    found = session.result(120)
    assert facts(found) == undisturbed()
    assert found.configurations_done == found.configurations_total
    assert [m for m in found.messages if "done again" in m and "signal 9" in m]


DEADLY = """
import os, signal
from mirage_nb.search.session import worker

def explore(task, post=None):
    if task.index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return worker.explore(task, post)
"""


def test_three_deaths_leave_one_configuration_out(
    no_head_start: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(crew, "explore", importlib.import_module("deadly").explore)
    found = search(BRIEF).start().result(120)
    assert found.state is State.FINISHED and not found.exhausted
    assert len([m for m in found.messages if "done again" in m]) == 1  # the same words twice are told once
    assert [cut for cut in found.cut if "died 3 times" in cut]
    assert found.configurations_done == found.configurations_total - 1
    assert found.candidates


def test_a_worker_that_hangs_is_replaced(no_head_start: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "HANG_SECONDS", 0.2)
    monkeypatch.setenv("MIRAGE_NB_WORKERS", "1")
    session = search(budget=Budget(seconds=2.0)).start()
    assert until(lambda: session.snapshot().verified)
    (pid,) = processes(session)
    os.kill(pid, signal.SIGSTOP)
    found = session.result(120)
    assert [m for m in found.messages if "hung" in m] and [m for m in found.messages if "done again" in m]
    assert found.configurations_done == found.configurations_total
    assert not Path(f"/proc/{pid}").exists()


def test_a_time_limit_ends_the_search_and_is_told(no_head_start: None) -> None:
    found = search(LONG, seconds=1.5).start().result(60)
    assert found.state is State.FINISHED and not found.exhausted and found.cut
    assert found.configurations_done < found.configurations_total
    assert found.seconds < 10


def test_mistakes_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="effort"):
        search(effort="heroic")
    with pytest.raises(SearchError, match="not finished after 0 s"):
        search().result(0)

    def broken(*arguments: object, **named: object) -> None:
        raise ZeroDivisionError("nobody expects this")

    monkeypatch.setattr(module, "explore", broken)
    found = search(effort="quick").start().result(20)
    assert found.cut and all("nobody expects this" in cut and "internal error" in cut for cut in found.cut)
    monkeypatch.setattr(module, "prepare", broken)
    session = search(effort="quick").start()
    with pytest.raises(SearchError, match="nobody expects this"):
        session.result(20)
    assert session.snapshot().state is State.FAILED


# -- what follows the search ------------------------------------------------------------------------


def fail_with(error: Exception) -> Callable[[], None]:
    def finish() -> None:
        raise error

    return finish


@pytest.mark.parametrize("error", [LaunchError("no card"), ZeroDivisionError("a bug")])
def test_whatever_happens_afterwards_the_candidates_stay(error: Exception) -> None:
    found = search(effort="quick").start(fail_with(error)).result(60)
    assert found.state is State.FINISHED and found.candidates
    assert str(error) in found.messages[-1]


def test_candidates_can_be_updated_and_dropped() -> None:
    session = search(effort="quick")
    session.start().result(60)
    first, second, *_ = session.snapshot().candidates
    session.drop(first.digest, "wrong")
    session.tell("once")
    session.tell("once")
    assert session.snapshot().candidates[0] == second
    assert session.snapshot().messages == ("wrong", "once")


def test_calls_by_workers() -> None:
    outcomes: list[object] = []
    session = search(effort="quick")

    def finish() -> None:
        outcomes.append(session.call(divmod, 7, 2, seconds=30))
        for function, *arguments in ((time.sleep, 60), (os._exit, 4), (divmod, 1, 0)):
            try:
                session.call(function, *arguments, seconds=0.5 if function is time.sleep else 30)
            except (SearchError, ArithmeticError) as error:
                outcomes.append(error)
        outcomes.append(sorted((n, f.result()) for n, f in session.call_all(abs, [(-1,), (-2,)], seconds=30)))

    assert session.start(finish).result(60).messages == ()
    value, late, died, divided, both = outcomes
    assert value == (3, 1) and both == [(0, 1), (1, 2)]
    assert "it took more than 0.5 s" in str(late)
    assert "did not end" in str(died) and "status 4" in str(died)
    assert isinstance(divided, ZeroDivisionError)


def test_stop_ends_a_call_and_pause_holds_what_follows() -> None:
    steps: list[str] = []
    session = search(effort="quick")

    def finish() -> None:
        steps.append("waiting")
        session.proceed()
        steps.append("calling")
        session.call(time.sleep, FOREVER, seconds=FOREVER)
        steps.append("never")

    session.start(lambda: (session.pause(), finish())[0])
    assert until(lambda: steps == ["waiting"])
    time.sleep(0.2)
    assert steps == ["waiting"] and session.snapshot().state is State.PAUSED
    session.resume()
    assert until(lambda: steps == ["waiting", "calling"] and processes(session))
    pids = processes(session)
    session.stop()
    assert session.wait(SOON)
    assert steps == ["waiting", "calling"]
    assert session.snapshot().state is State.STOPPED and session.snapshot().messages == ()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from mirage_nb.search.session import session\n"
        "from mirage_nb.search.session.session import SearchSession\n"
        "from mirage_nb.lang import parse\n"
        "from mirage_nb.targets import find_target\n"
        "session.HEAD_START_SECONDS = -1\n"
        "print('once')\n"
        f"found = SearchSession(parse({SMALL!r}).graph, find_target('h200'), effort='quick').start().result(100)\n"
        "print(found.state.value, len(found.candidates) > 0, found.messages)\n"
    )
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr) == ("once\nfinished True ()\n", "")
