"""A search session: a supervising thread, replaceable workers, and a snapshot at any moment.

In: a tensor program, a target, an effort and a budget. Out: snapshots while it runs and a final one.
The supervising thread only hands out configurations and collects what comes back; the work is done by
an executor (spawned processes by default). A configuration is counted once, when its result arrives;
a worker that dies is replaced and its configuration done again, at most `ATTEMPTS` times.
"""

from __future__ import annotations

import concurrent.futures as futures
import multiprocessing
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from mirage_nb.errors import MirageError, OptionError, SearchError
from mirage_nb.ir import KernelGraph
from mirage_nb.search import EFFORTS, Budget, Configuration, configurations, prepare
from mirage_nb.search.events import Counts, Prefix
from mirage_nb.search.progress import Candidate, Snapshot, State
from mirage_nb.search.worker import Explored, Mailbox, Task, explore, ignore_interrupts, merge_counts
from mirage_nb.settings import read_settings
from mirage_nb.targets import Target

ATTEMPTS = 3
KEPT_CANDIDATES = 200
KEPT_PREFIXES = 2000
TICK_SECONDS = 0.05
ENDED = (State.STOPPED, State.FINISHED, State.FAILED)

Finish = Callable[["SearchSession"], None]


class SearchSession:
    """One background search.

    Args:
        program: the tensor program, a kernel graph of pre-defined operators.
        target: the GPU to instantiate for.
        effort: name of an effort preset.
        budget: limits of one configuration; default: the effort's.
        seconds: limit of the whole search; None leaves it to the budget.
        name: what the user calls it.
        executor: anything with the concurrent.futures interface; by default worker processes are spawned
            and ended with the session. A given executor stays the caller's.
        finish: called in the supervising thread after the search, to execute and time the winners.
        seed: of all random elements; equal seeds give equal results.

    Raises:
        OptionError: an unknown effort.
    """

    def __init__(
        self,
        program: KernelGraph,
        target: Target,
        *,
        effort: str = "standard",
        budget: Budget | None = None,
        seconds: float | None = None,
        name: str = "",
        executor: futures.Executor | None = None,
        finish: Finish | None = None,
        seed: int = 0,
    ) -> None:
        if effort not in EFFORTS:
            raise OptionError(f"unknown effort {effort!r}", hint=f"one of {', '.join(EFFORTS)}")
        self.program = program
        self.target = target
        self.effort = effort
        self.budget = budget if budget is not None else EFFORTS[effort].budget
        self.seconds = seconds
        self.name = name
        self.seed = seed
        self._given = executor
        self._finish = finish
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = State.WAITING
        self._started = 0.0
        self._seconds = 0.0
        self._first: float | None = None
        self._total = 0
        self._explored: dict[int, Explored] = {}
        self._running: dict[int, Counts] = {}
        self._candidates: dict[str, Candidate] = {}
        self._cut: list[str] = []
        self._messages: list[str] = []
        self._box = Mailbox(Path(tempfile.gettempdir()) / "mirage-nb-never-started")

    # -- what a user does -------------------------------------------------------------------------

    def start(self) -> SearchSession:
        """Begin in the background and return at once. A session is started once."""
        with self._lock:
            if self._state is not State.WAITING:
                raise SearchError("the session was started before", hint="make a new one")
            self._state = State.RUNNING
        self._box = Mailbox(Path(tempfile.mkdtemp(prefix="mirage-nb-")))
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._supervise, name=f"mirage {self.name}", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the search; what was found stays. Returns at once, and the state is STOPPED from now on."""
        with self._lock:
            if self._state in (State.RUNNING, State.PAUSED):
                self._box.stop_flag.touch()
                self._state = State.STOPPED
                self._seconds = time.monotonic() - self._started

    def pause(self) -> None:
        """Workers sleep at their next look; nothing is lost."""
        with self._lock:
            if self._state is State.RUNNING:
                self._box.pause_flag.touch()
                self._state = State.PAUSED

    def resume(self) -> None:
        """Go on after a pause."""
        with self._lock:
            if self._state is State.PAUSED:
                self._box.pause_flag.unlink(missing_ok=True)
                self._state = State.RUNNING

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the session has ended, at most `timeout` seconds; returns whether it has."""
        return self._ended.wait(timeout)

    def result(self, timeout: float | None = None) -> Snapshot:
        """Block until the session has ended and return the last snapshot.

        Raises:
            SearchError: it did not end in time, or it failed.
        """
        if not self.wait(timeout):
            raise SearchError(f"not finished after {timeout:g} s", hint="wait longer, or stop it and look at the snapshot")
        last = self.snapshot()
        if last.state is State.FAILED:
            raise SearchError(last.messages[-1] if last.messages else "the search failed")
        return last

    def snapshot(self) -> Snapshot:
        """The state now."""
        with self._lock:
            counts = {index: done.counts for index, done in self._explored.items()}
            for index, running in self._running.items():
                counts.setdefault(index, running)
            done = self._explored.values()
            ranked = sorted(self._candidates.values(), key=_rank)
            live = self._state in (State.RUNNING, State.PAUSED)
            return Snapshot(
                name=self.name,
                state=self._state,
                seconds=time.monotonic() - self._started if live else self._seconds,
                first_seconds=self._first,
                configurations_done=len(self._explored),
                configurations_total=self._total,
                counts=merge_counts(counts),
                structures=sum(d.structures for d in done),
                verified=len(self._candidates),
                refuted=sum(len(d.refuted) for d in done),
                outside_lax=sum(d.outside_lax for d in done),
                candidates=tuple(ranked[:KEPT_CANDIDATES]),
                prefixes=self._sample(),
                cut=tuple(self._cut),
                messages=tuple(self._messages),
                exhausted=bool(self._total) and len(self._explored) == self._total and not self._cut,
            )

    def update(self, candidate: Candidate) -> None:
        """Replace a candidate by a version that knows more: a time, an error, a stricter verdict."""
        with self._lock:
            self._candidates[candidate.digest] = candidate

    def drop(self, digest: str, why: str) -> None:
        """Take a candidate out of the results and say why."""
        with self._lock:
            self._candidates.pop(digest, None)
            self._messages.append(why)

    def tell(self, message: str) -> None:
        """Add a line to what the user is told."""
        with self._lock:
            self._messages.append(message)

    # -- the supervising thread -------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            self._search()
            if self._finish is not None and self._state is State.RUNNING:
                self._finish(self)
            self._end(State.FINISHED)
        except MirageError as error:
            self.tell(str(error))
            self._end(State.FAILED)
        except Exception as error:
            self.tell(f"internal error: {type(error).__name__}: {error}")
            self._end(State.FAILED)
            raise
        finally:
            shutil.rmtree(self._box.folder, ignore_errors=True)
            self._ended.set()

    def _end(self, state: State) -> None:
        with self._lock:
            if self._state is not State.STOPPED:
                self._state = state
                self._seconds = time.monotonic() - self._started

    def _search(self) -> None:
        prepared = prepare(self.program, seed=self.seed)
        work = configurations(prepared, EFFORTS[self.effort])
        with self._lock:
            self._total = len(work)
        waiting = [self._task(index, configuration) for index, configuration in enumerate(work)]
        attempts = dict.fromkeys(range(len(work)), 0)
        while waiting and self._state is not State.STOPPED:
            for task in waiting:
                attempts[task.index] += 1
            lost = self._round(waiting)
            waiting = [task for task in lost if attempts[task.index] < ATTEMPTS]
            for task in lost:
                if attempts[task.index] >= ATTEMPTS:
                    self._skip(task, f"{task.configuration}: lost, its worker died {ATTEMPTS} times")
        if self._state is State.STOPPED:
            self._note_cut("stopped by the user")

    def _task(self, index: int, configuration: Configuration) -> Task:
        return Task(
            index=index,
            program=self.program,
            configuration=configuration,
            effort=self.effort,
            budget=self.budget,
            target=self.target,
            seed=self.seed,
            deadline=None if self.seconds is None else time.time() + self.seconds,
            mailbox=self._box,
        )

    def _round(self, tasks: list[Task]) -> list[Task]:
        """Hand out tasks and collect results; returns the tasks whose worker was lost."""
        executor = self._given or _spawn_pool(len(tasks))
        lost: list[Task] = []
        try:
            open_tasks = {executor.submit(explore, task): task for task in tasks}
            while open_tasks:
                done, _ = futures.wait(open_tasks, timeout=TICK_SECONDS, return_when=futures.FIRST_COMPLETED)
                for future in done:
                    task = open_tasks.pop(future)
                    if not self._collect(future, task):
                        lost.append(task)
                self._look_at_counts(list(open_tasks.values()))
                if self._state is State.STOPPED:
                    for future in open_tasks:
                        future.cancel()
        except BrokenProcessPool:
            lost = [task for task in tasks if task.index not in self._explored]
        finally:
            if executor is not self._given:
                executor.shutdown(wait=True, cancel_futures=True)
        if lost:
            self.tell(f"a worker died; {len(lost)} configuration(s) are done again")
        return lost

    def _collect(self, future: futures.Future[Explored], task: Task) -> bool:
        """Take in one result; False when the worker died."""
        try:
            found = future.result()
        except BrokenProcessPool:
            return False
        except futures.CancelledError:
            return True
        except MirageError as error:
            self._skip(task, f"{task.configuration}: {error}")
            return True
        except Exception as error:  # noqa: BLE001  # one broken configuration must not lose the others
            self._skip(task, f"{task.configuration}: internal error, {type(error).__name__}: {error}")
            return True
        with self._lock:
            self._explored[found.index] = found
            self._running.pop(found.index, None)
            self._cut.extend(c for c in found.cut if c not in self._cut)
            for candidate in found.candidates:
                self._candidates.setdefault(candidate.digest, candidate)
            if found.candidates and self._first is None:
                self._first = time.monotonic() - self._started
        return True

    def _look_at_counts(self, tasks: list[Task]) -> None:
        fresh = {task.index: self._box.collect(task.index) for task in tasks}
        with self._lock:
            self._running = fresh

    def _skip(self, task: Task, why: str) -> None:
        self._note_cut(why)
        self.tell(why)

    def _note_cut(self, why: str) -> None:
        with self._lock:
            if why not in self._cut:
                self._cut.append(why)

    def _sample(self) -> tuple[Prefix, ...]:
        if not self._explored:
            return ()
        share = max(1, KEPT_PREFIXES // len(self._explored))
        return tuple(p for index in sorted(self._explored) for p in self._explored[index].prefixes[:share])


def _rank(candidate: Candidate) -> tuple[float, float, int, str]:
    """Measured ones first, fastest first; then by estimate."""
    timed = candidate.time_us if candidate.time_us is not None else float("inf")
    return (timed, candidate.estimate_us, candidate.operators, candidate.digest)


def _spawn_pool(tasks: int) -> futures.ProcessPoolExecutor:
    """Worker processes started from scratch: they share no state with the notebook's kernel."""
    return futures.ProcessPoolExecutor(
        max_workers=min(read_settings().workers, max(1, tasks)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=ignore_interrupts,
    )

