"""Worker processes: an executor whose processes die alone.

In: picklable functions and arguments. Out: futures. A process that dies fails the one call that it had and
is replaced for the next; a call can be killed; and because processes are forked of one (`nursery`) that was started
with nothing but the import path, a script that starts a search needs no main guard. Invariant: a process, with all
that it started, is gone once its executor is shut down or the interpreter that owns it is gone, whatever it was doing.
"""

from __future__ import annotations

import collections
import concurrent.futures as futures
import contextlib
import os
import pickle
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, TypeVar

from mirage_nb.search.session.nursery import OWNER_SECONDS, START_SECONDS, Nursery, pair

T = TypeVar("T")

LOOK_SECONDS = 0.005
COMPLAINT_BYTES = 2000
NICENESS, URGENT_NICENESS = 5, 1
"""A third of the share of others on a busy core; all of an idle one. Of urgent calls: less than the notebook."""
AUTOGROUP = Path("/proc/self/autogroup")


class WorkerDied(futures.BrokenExecutor):
    """The process ended before it answered."""


class Cores:
    """The cores of this machine, as all executors of one interpreter share them.

    An owner may always use one; more only while all owners together use fewer than it may. So a search that
    comes second begins at once, and as calls end both come to the same number of processes.
    """

    def __init__(self) -> None:
        self._turn = threading.RLock()  # taken itself: a condition's own `with` may keep it when Ctrl-C comes
        self._news = threading.Condition(self._turn)
        self._used: collections.Counter[object] = collections.Counter()
        self._resting: set[object] = set()

    def take(self, owner: object, count: int, given_up: Callable[[], bool]) -> bool:
        """Wait for a core; False once it is not wanted any more. `count`: how many all owners may use."""
        with self._turn:
            while not given_up():
                busy = sum(used for other, used in self._used.items() if other not in self._resting)
                if not self._used[owner] or busy < count:
                    self._used[owner] += 1
                    return True
                self._news.wait()
        return False

    def give(self, owner: object) -> None:
        """A call has ended."""
        with self._turn:
            self._used[owner] -= 1
            if not self._used[owner]:
                del self._used[owner]
            self._news.notify_all()

    def rest(self, owner: object, resting: bool) -> None:
        """Calls of an owner who rests sleep: they use no cores."""
        with self._turn:
            (self._resting.add if resting else self._resting.discard)(owner)
            self._news.notify_all()


CORES = Cores()
"""Cores belong to the machine, not to a session: all executors share them, and where their processes come from."""
NURSERY = Nursery()


class Workers(futures.Executor):
    """Up to `count` processes, started as calls come in. `urgent`: somebody waits for these few calls, so that they
    begin whatever others do with the cores. `environment`: variables that their processes have beside their owner's."""

    def __init__(self, count: int, *, urgent: bool = False, environment: Mapping[str, str] | None = None) -> None:
        self._count, self._urgent, self._environment = count, urgent, environment or {}
        self._turn = threading.RLock()  # taken itself: a condition's own `with` may keep it when Ctrl-C comes
        self._news = threading.Condition(self._turn)
        self._calls: collections.deque[_Call] = collections.deque()
        self._keepers: list[threading.Thread] = []
        self._idle = 0
        self._live: dict[_Worker, futures.Future[Any] | None] = {}
        self._errands: list[Callable[[], object]] = []
        self._open = True
        self._killed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> futures.Future[T]:
        """Call `fn` in a process. Its future raises what the call raises, or WorkerDied.

        Raises:
            RuntimeError: these workers were shut down, or no thread can be started.
        """
        future: futures.Future[T] = futures.Future()
        NURSERY.needs(getattr(fn, "func", fn))
        with self._turn:
            if not self._open:
                raise RuntimeError("these workers were shut down")
            self._calls.append((future, fn, args, kwargs))
            if len(self._calls) > self._idle and len(self._keepers) < self._count:
                self._hire()
            self._news.notify()
        return future

    def _hire(self) -> None:
        """One more keeper; where no thread can be started, those that are there will do."""
        keeper = threading.Thread(target=self._keep, name="mirage worker", daemon=True)
        try:
            keeper.start()
        except RuntimeError:
            if not self._keepers:
                self._calls.clear()
                raise
        else:
            self._keepers.append(keeper)

    @property
    def processes(self) -> tuple[int, ...]:
        """The identities of the processes that are there now."""
        with self._turn:
            return tuple(worker.pid for worker in self._live)

    def kill(self, future: futures.Future[Any]) -> None:
        """End the process that works on this call, if one does; the future then raises WorkerDied."""
        with self._turn:
            for worker, call in self._live.items():
                if call is future:
                    worker.kill()

    def abandon(self, future: futures.Future[Any]) -> None:
        """Nobody waits for this call any more: it does not begin; what is urgent stands in the way of no other one."""
        if not future.cancel() and self._urgent:
            self.kill(future)

    @property
    def idle(self) -> bool:
        """Whether they take calls, and have none."""
        with self._turn:
            return self._open and not self._calls and not any(self._live.values())

    def everywhere(self, function: Callable[[], object]) -> None:
        """Call this in every process that is there, before its next call; nobody hears what comes of it."""
        NURSERY.needs(function)
        with self._turn:
            self._errands.append(function)
            self._news.notify_all()

    def rest(self, resting: bool) -> None:
        """Whether calls sleep for a while, so that others may use the cores."""
        CORES.rest(self, resting)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; processes end when they have nothing left to do."""
        with self._turn:
            self._open = False
            if cancel_futures:
                for future, *_ in self._calls:
                    future.cancel()
                self._calls.clear()
            self._news.notify_all()
            keepers = list(self._keepers)
        if wait:
            for keeper in keepers:
                keeper.join()

    def terminate(self, wait: bool = True) -> None:
        """End all processes now; calls that have not ended fail. Returns when the processes are gone, unless nobody is
        to wait for that."""
        with self._turn:
            self._killed = True
            for worker in self._live:
                worker.kill()
        CORES.rest(self, False)  # wakes who waits for a core
        self.shutdown(wait, cancel_futures=True)

    def _keep(self) -> None:
        """One thread for each process: it hands over a call, waits, and replaces a process that died."""
        worker: _Worker | None = None
        done = len(self._errands)  # a process that is yet to come has none
        while (call := self._next(done)) is not None:
            future, function, args, kwargs = call
            if done < len(self._errands) and function is self._errands[done]:
                done += 1
            try:
                request = pickle.dumps((function, args, kwargs))
                if worker is None:
                    worker = self._start()
                worker.await_ready()
                if self._begins(future):
                    answered, value = self._ask(worker, future, request)
                    if answered:
                        future.set_result(value)
                    else:
                        future.set_exception(value)
                if worker.killed:  # it had answered just before, and takes no more calls
                    self._end(worker)
                    worker = None
            except (EOFError, OSError) as error:
                ended = self._end(worker) if worker is not None else ""
                worker = None
                reason = str(error) if isinstance(error, TimeoutError) or not ended else ended
                _fail(future, WorkerDied(f"a worker process ended: {reason}"))
            except Exception as error:  # noqa: BLE001  # whatever keeps the call from being made is its outcome
                _fail(future, error)
            del call, future, args, kwargs  # nothing is kept alive until the next call
        if worker is not None:
            self._end(worker)

    def _next(self, errands: int) -> _Call | None:
        """The next call, after so many errands; None once there will be no more."""
        with self._turn:
            self._idle += 1
            while not self._calls and errands == len(self._errands) and self._open:
                self._news.wait()
            self._idle -= 1
            if errands < len(self._errands) and self._open:
                return futures.Future(), self._errands[errands], (), {}
            return self._calls.popleft() if self._calls else None

    def _begins(self, future: futures.Future[Any]) -> bool:
        """Wait for a core; whether the call is still wanted then."""
        most = sys.maxsize if self._urgent else self._count
        if CORES.take(self, most, lambda: self._killed or future.cancelled()):
            if future.set_running_or_notify_cancel():
                return True
            CORES.give(self)
        else:
            future.cancel()
            future.set_running_or_notify_cancel()
        return False

    def _start(self) -> _Worker:
        worker = _Worker(URGENT_NICENESS if self._urgent else NICENESS, self._environment)
        with self._turn:
            self._live[worker] = None
            if self._killed:
                worker.kill()
        return worker

    def _ask(self, worker: _Worker, future: futures.Future[Any], request: bytes) -> tuple[bool, Any]:
        with self._turn:
            self._live[worker] = future
        try:
            return worker.ask(request)
        finally:
            CORES.give(self)
            with self._turn:
                self._live[worker] = None

    def _end(self, worker: _Worker) -> str:
        with self._turn:
            del self._live[worker]  # from here on its number may become another's
        return worker.end()


def _fail(future: futures.Future[Any], error: Exception) -> None:
    if future.running() or future.set_running_or_notify_cancel():
        future.set_exception(error)


_Call = tuple["futures.Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class _Worker:
    """One process, head of a group of its own, and the socket to it. Used by one thread at a time, but `kill`."""

    def __init__(self, niceness: int, environment: Mapping[str, str]) -> None:
        ours, theirs = pair()
        with Connection(theirs), contextlib.ExitStack() as held:
            self._link = held.enter_context(Connection(ours))
            self._complaints = held.enter_context(_paper())
            self.pid = NURSERY.fork(theirs, self._complaints.fileno(), niceness, environment)
            held.pop_all()
        self._ready = self.killed = False

    def await_ready(self) -> None:
        """Wait until the process has started. Raises EOFError or OSError when it died before, or does not."""
        if not self._ready:
            if not self._link.poll(START_SECONDS):
                raise TimeoutError(f"it did not start within {START_SECONDS:g} s")
            self._link.recv_bytes()
            self._ready = True

    def ask(self, request: bytes) -> tuple[bool, Any]:
        """Whether the call returned, and its value or exception. Raises EOFError or OSError when it died."""
        self._link.send_bytes(request)
        answer: tuple[bool, Any] = pickle.loads(self._link.recv_bytes())
        return answer

    def kill(self) -> None:
        """End the process and what it started. Never after `end`."""
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> str:
        """Make sure that nothing is left of it; says how it ended."""
        status = NURSERY.ended(self.pid)
        if status is None:
            self.kill()
        while status is None:
            time.sleep(LOOK_SECONDS)
            status = NURSERY.ended(self.pid)
        self._link.close()
        with self._complaints as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - COMPLAINT_BYTES))
            said = file.read().decode(errors="replace").strip().splitlines()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return f"{how}, {said[-1]}" if said else how


def _paper() -> IO[bytes]:
    """For the last words of a process; where there is no room for them they are lost."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return open(os.devnull, "r+b")


def serve(link: Connection, parent: int, niceness: int) -> None:
    """What a worker process runs: it answers calls until its owner is gone, and with it the process's parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the session that owns this process
    _give_way(niceness)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(link, requests, parent), daemon=True).start()
    link.send_bytes(b"ready")
    while True:
        link.send_bytes(_answer(requests.get()))


def _give_way(niceness: int) -> None:
    """The notebook comes first: a cell that is run during a search finds a core at once."""
    os.nice(niceness)
    with contextlib.suppress(OSError):  # on desktops every group of processes has a niceness of its own
        AUTOGROUP.write_text(str(niceness))


def _receive(link: Connection, requests: queue.SimpleQueue[bytes], parent: int) -> None:
    """Notices the end of the owner while a call is at work, too."""
    try:
        while os.getppid() == parent:
            if link.poll(OWNER_SECONDS):
                requests.put(link.recv_bytes())
    finally:  # whatever it was: nobody would hear of an answer
        os.killpg(0, signal.SIGKILL)


def _answer(request: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(request)
        return pickle.dumps((True, function(*args, **kwargs)))
    except Exception as error:  # noqa: BLE001  # it is raised where the call was made
        try:
            answer = pickle.dumps((False, error))
            pickle.loads(answer)
        except Exception:  # noqa: BLE001  # not every exception survives the way
            answer = pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
        return answer
