"""Worker processes: outcomes, deaths, ends; nothing is left behind."""

from __future__ import annotations

import gc
import math
import operator
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirage_nb.errors import OptionError
from mirage_nb.search.session import nursery, pool
from mirage_nb.search.session.pool import NICENESS, URGENT_NICENESS, Cores, WorkerDied, Workers, _answer
from tests.sessions import FOREVER, SOON, alive, threads, until

ROOT = Path(__file__).resolve().parents[2]


def there(pid: int) -> bool:
    """Whether a process is there, a zombie included."""
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(autouse=True)
def cores() -> None:
    """Nobody else has any of the machine's: a session of another test may still be ending."""
    assert until(lambda: not pool.CORES._used)


@pytest.fixture
def workers() -> Iterator[Workers]:
    found = Workers(2)
    yield found
    found.terminate()


def test_values_and_exceptions_come_back(workers: Workers) -> None:
    assert list(workers.map(math.sqrt, range(5))) == [math.sqrt(n) for n in range(5)]
    with pytest.raises(ZeroDivisionError):
        workers.submit(operator.truediv, 1, 0).result()
    with pytest.raises((AttributeError, pickle.PicklingError), match=r"pickle|local object"):
        workers.submit(lambda: 1).result()  # type: ignore[misc]
    assert len(workers.processes) <= 2


def raise_told() -> None:
    raise OptionError("what", hint="how")


def raise_unpicklable() -> None:
    class Local(Exception):
        pass

    raise Local("gone")


def test_errors_arrive_whole_and_odd_ones_in_words() -> None:
    answered, error = pickle.loads(_answer(pickle.dumps((raise_told, (), {}))))
    assert not answered and (error.message, error.hint) == ("what", "how")
    answered, error = pickle.loads(_answer(pickle.dumps((raise_unpicklable, (), {}))))
    assert not answered and "Local: gone" in str(error)


def test_a_death_fails_one_call_only(workers: Workers) -> None:
    doomed = workers.submit(time.sleep, FOREVER)
    other = workers.submit(time.sleep, 1.0)
    assert until(doomed.running)
    workers.kill(doomed)
    with pytest.raises(WorkerDied, match="signal 9"):
        doomed.result(SOON)
    assert other.result(SOON) is None
    assert workers.submit(math.sqrt, 4).result(SOON) == 2


def test_the_last_words_of_a_process_are_told(workers: Workers) -> None:
    with pytest.raises(WorkerDied, match="status 3"):
        workers.submit(os._exit, 3).result(SOON)
    said = workers.submit(exec, "import sys, os; print('last words', file=sys.stderr, flush=True); os._exit(1)")
    with pytest.raises(WorkerDied, match="status 1, last words"):
        said.result(SOON)


def test_a_process_that_is_killed_as_it_answers_gets_no_other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call, a compilation, was lost with it: "did not end: a worker process ended: signal 9"."""
    ask, one = pool._Worker.ask, Workers(1)

    def late(worker: pool._Worker, request: bytes) -> tuple[bool, object]:
        answered = ask(worker, request)
        one.kill(one._live[worker])  # type: ignore[arg-type]
        return answered

    monkeypatch.setattr(pool._Worker, "ask", late)
    try:
        first, second = (one.submit(os.getpid) for _ in range(2))
        assert first.result(SOON) != second.result(SOON)
    finally:
        one.terminate()


def test_a_stopped_process_can_be_killed(workers: Workers) -> None:
    hung = workers.submit(os.kill, 0, signal.SIGSTOP)  # the whole group
    assert until(hung.running)
    (pid,) = workers.processes
    assert until(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text())
    workers.kill(hung)
    with pytest.raises(WorkerDied):
        hung.result(SOON)
    assert until(lambda: not there(pid))


def test_terminate_is_quick_and_leaves_nothing(workers: Workers) -> None:
    before = threads()
    calls = [workers.submit(time.sleep, FOREVER) for _ in range(5)]
    child = workers.submit(time.sleep, FOREVER)
    assert until(lambda: all(call.running() for call in calls[:2]))  # which of them comes first nobody knows
    pids = workers.processes
    assert len(pids) == 2
    begun = time.monotonic()
    workers.terminate()
    assert time.monotonic() - begun < SOON
    assert not any(there(pid) for pid in pids)
    assert threads() <= before
    assert all(call.done() for call in [*calls, child])
    assert calls[-1].cancelled()
    with pytest.raises(RuntimeError, match="shut down"):
        workers.submit(math.sqrt, 1)


def test_what_a_process_started_ends_with_it(workers: Workers) -> None:
    call = workers.submit(subprocess.run, ["sleep", str(FOREVER)])
    assert until(call.running)
    (pid,) = workers.processes
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert until(lambda: children.read_text().split())
    (child,) = map(int, children.read_text().split())
    workers.kill(call)
    assert until(lambda: not alive(child))


def test_shutdown_lets_calls_end_unless_they_are_cancelled() -> None:
    workers = Workers(1)
    first, second = workers.submit(time.sleep, 0.2), workers.submit(math.sqrt, 9)
    workers.shutdown()
    assert first.result(0) is None and second.result(0) == 3
    workers = Workers(1)
    first, second = workers.submit(time.sleep, 0.2), workers.submit(math.sqrt, 9)
    assert until(first.running)
    workers.shutdown(cancel_futures=True)
    assert first.result(0) is None and second.cancelled()


FORK = f"if os.fork() == 0:\n os.close(1)\n os.close(2)\n time.sleep({FOREVER})\n os._exit(0)\nos._exit(0)"
"""Leaves somebody behind who holds whatever the owner held."""


def test_processes_end_with_their_owner() -> None:
    ends = ("os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit()", FORK)
    script = (
        "import os, signal, sys, time\n"
        "from mirage_nb.search.session.pool import Workers\n"
        "workers = Workers(1)\n"
        f"call = workers.submit(time.sleep, {FOREVER})\n"
        "while not call.running(): time.sleep(0.01)\n"
        "print(*workers.processes, flush=True)\n"
    )
    owners = [
        subprocess.Popen([sys.executable, "-c", script + end], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for end in ends
    ]
    for end, owner in zip(ends, owners, strict=True):
        pid = int(owner.communicate(timeout=SOON)[0])
        assert until(lambda pid=pid: not there(pid)), end  # type: ignore[misc]


def test_a_process_that_does_not_start_is_replaced(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pool, "NURSERY", nursery.Nursery())
    with monkeypatch.context() as patch:
        patch.setattr(nursery, "START_SECONDS", 1.0)
        patch.setattr(nursery, "BOOT", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
        with pytest.raises(WorkerDied, match="did not start within 1 s"):
            workers.submit(math.sqrt, 4).result(SOON)
    assert not workers.processes
    assert workers.submit(math.sqrt, 4).result(SOON) == 2


def test_where_there_is_no_process_to_be_had_it_is_said(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "NURSERY", nursery.Nursery())
    monkeypatch.setattr(nursery, "BOOT", f"import os\nos.fork = lambda: os.open('/dev/full/x', 0)\n{nursery.BOOT}")
    with pytest.raises(WorkerDied, match="Not a directory"):
        workers.submit(math.sqrt, 4).result(SOON)
    assert pool.NURSERY._process is not None and pool.NURSERY._process.poll() is None


DOCTOR = "mirage_nb.runtime.doctor"  # nobody here imports it


def test_what_workers_are_forked_of_begins_and_imports_before_there_are_any(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "NURSERY", begun := nursery.Nursery())
    begun.needs(SimpleNamespace(__module__=DOCTOR))
    begun.begin()
    before = begun._process
    assert before is not None
    before.kill()
    before.wait()
    begun.begin()
    assert begun._process is not before and workers.submit(_has_loaded, DOCTOR).result(SOON)


def _has_loaded(module: str) -> bool:
    return module in sys.modules


def test_workers_look_for_garbage_less_often_than_their_owner(workers: Workers) -> None:
    before = gc.get_threshold()
    assert workers.submit(gc.get_threshold).result(SOON) == nursery.GARBAGE and gc.get_threshold() == before


def test_workers_end_with_what_they_were_forked_of_and_another_one_takes_its_place(workers: Workers) -> None:
    call = workers.submit(time.sleep, FOREVER)
    assert until(call.running)
    before = pool.NURSERY._process
    assert before is not None
    before.kill()
    with pytest.raises(WorkerDied, match="signal 9"):
        call.result(SOON)
    assert workers.submit(math.sqrt, 4).result(SOON) == 2 and pool.NURSERY._process is not before


def test_workers_have_their_owners_environment_folder_and_path_of_the_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "only_there.py").write_text("import os\ndef seen():\n return os.environ.get('ONLY_NOW'), os.getcwd()\n")
    for value in ("first", "second"):
        monkeypatch.setenv("ONLY_NOW", value)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        from only_there import seen  # type: ignore[import-not-found]

        workers = Workers(1)
        assert workers.submit(seen).result(SOON) == (value, str(tmp_path))
        workers.terminate()


def test_last_words_need_no_room(workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert workers.submit(math.sqrt, 4).result(SOON) == 2
    with pytest.raises(WorkerDied, match="status 3"):
        workers.submit(os._exit, 3).result(SOON)


def test_an_interpreter_without_standard_streams_has_workers(tmp_path: Path) -> None:
    script = (
        "import math, sys\n"
        "from mirage_nb.search.session.pool import Workers\n"
        "workers = Workers(2)\n"
        "open(sys.argv[1], 'w').write(repr(list(workers.map(math.sqrt, range(5)))))\n"
        "workers.terminate()\n"
    )
    command = ["sh", "-c", 'exec "$0" -c "$1" "$2" 0>&- 1>&- 2>&-', sys.executable, script, tmp_path / "out"]
    subprocess.run(command, cwd=ROOT, timeout=SOON, check=True)
    assert (tmp_path / "out").read_text() == repr([math.sqrt(n) for n in range(5)])


def test_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers = Workers(2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            workers.submit(math.sqrt, 1)
    first = workers.submit(math.sqrt, 4)
    monkeypatch.setattr(threading.Thread, "start", refused)
    others = [workers.submit(math.sqrt, 9) for _ in range(3)]  # those that are there will do
    assert first.result(SOON) == 2 and [other.result(SOON) for other in others] == [3, 3, 3]
    workers.terminate()


# -- cores are shared ---------------------------------------------------------------------------------


def test_a_notebook_comes_first_and_urgent_calls_before_others(workers: Workers) -> None:
    assert workers.submit(os.nice, 0).result(SOON) == min(19, os.nice(0) + NICENESS)
    urgent = Workers(1, urgent=True)
    assert urgent.submit(os.nice, 0).result(SOON) == min(19, os.nice(0) + URGENT_NICENESS)
    urgent.terminate()


def test_one_core_is_always_there_and_more_while_others_leave_them() -> None:
    cores = Cores()
    never = threading.Event().is_set
    taken: list[str] = []

    def take(owner: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: cores.take(owner, 2, never) and taken.append(owner))
        thread.start()
        return thread

    threads = [take("a"), take("a")]
    assert until(lambda: taken == ["a", "a"])
    threads.append(take("a"))
    time.sleep(0.2)
    assert taken == ["a", "a"]  # all cores are in use
    threads.append(take("b"))
    assert until(lambda: taken == ["a", "a", "b"])  # who comes second begins at once
    cores.give("a")
    time.sleep(0.2)
    assert taken == ["a", "a", "b"]  # and keeps its share
    cores.rest("b", True)
    assert until(lambda: taken == ["a", "a", "b", "a"])  # unless it sleeps
    cores.rest("b", False)
    assert not cores.take("b", 2, lambda: True)
    for owner in ("a", "a", "b"):
        cores.give(owner)
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()


def test_two_executors_share_two_cores() -> None:
    first, second = Workers(2), Workers(2)
    try:
        before = [first.submit(time.sleep, FOREVER) for _ in range(4)]
        assert until(lambda: before[0].running() and before[1].running())
        after = [second.submit(time.sleep, FOREVER) for _ in range(4)]
        assert until(lambda: any(call.running() for call in after))
        time.sleep(0.3)
        assert [call.running() for call in before] == [True, True, False, False]
        assert sum(call.running() for call in after) == 1  # who comes second begins at once, with one
        first.kill(before[0])
        assert until(before[0].done)
        time.sleep(0.3)
        assert sum(call.running() for call in [*before, *after]) == 2  # one of each
        second.rest(True)
        assert until(lambda: sum(call.running() for call in before) == 2)
    finally:
        first.terminate()
        second.terminate()


def test_urgent_calls_wait_for_nobody() -> None:
    """First runs and the inputs for them waited, but for one, until a search left its cores."""
    search, trials = Workers(1), Workers(2, urgent=True)
    try:
        before = search.submit(time.sleep, FOREVER)
        assert until(before.running)
        urgent = [trials.submit(time.sleep, FOREVER) for _ in range(2)]
        assert until(lambda: all(call.running() for call in urgent))
    finally:
        search.terminate()
        trials.terminate()


def test_calls_that_wait_for_a_core_end_with_their_executor() -> None:
    first, second = Workers(1), Workers(2)
    try:
        blocking = [second.submit(time.sleep, FOREVER), second.submit(time.sleep, FOREVER)]
        assert until(lambda: all(call.running() for call in blocking))
        waiting = [first.submit(time.sleep, FOREVER), first.submit(time.sleep, FOREVER)]
        assert until(waiting[0].running)
        first.terminate()
        assert all(call.done() for call in waiting) and not any(call.done() for call in blocking)
    finally:
        second.terminate()


def count_calls() -> int:
    """How often this process was asked."""
    count_calls.asked = getattr(count_calls, "asked", 0) + 1  # type: ignore[attr-defined]
    return int(count_calls.asked)  # type: ignore[attr-defined]


def slow_count(seconds: float) -> tuple[int, int]:
    """The process, and how often it was asked before; slowly, so that others have the next call."""
    time.sleep(seconds)
    return os.getpid(), getattr(count_calls, "asked", 0)


def test_what_is_for_everybody_is_done_once_by_every_process_that_is_there() -> None:
    workers = Workers(3)
    try:
        first = dict(workers.map(slow_count, [0.3, 0.3]))
        assert len(first) == 2 and workers.idle
        workers.everywhere(count_calls)
        again = dict(workers.map(slow_count, [0.3, 0.3, 0.3]))
        assert first.keys() < again.keys(), "and one more"
        assert sorted(again.values()) == [0, 1, 1] and {again[pid] for pid in first} == {1}
        asked = workers.submit(time.sleep, FOREVER)
        assert until(asked.running) and not workers.idle
    finally:
        workers.terminate()
    assert not workers.idle
