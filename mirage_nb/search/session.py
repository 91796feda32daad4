"""A search session: a supervising thread, replaceable workers, and a snapshot at any moment.

In: a tensor program, a target, an effort and a budget. Out: snapshots while it runs and a final one.
The supervising thread begins with the first configurations itself, for a moment: small searches end there,
and large ones have something to show before their workers are up. The rest goes to an executor, worker
processes by default. Invariant: a configuration is counted once, however often it was begun; one whose
worker died or hung is begun again, `ATTEMPTS` times in all. What follows the search (`finish`) can have
functions called by the same workers.
"""

from __future__ import annotations

import concurrent.futures as futures
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from mirage_nb.errors import MirageError, OptionError, SearchError
from mirage_nb.ir import KernelGraph
from mirage_nb.search import EFFORTS, Budget, Configuration, configurations, prepare
from mirage_nb.search.events import Prefix
from mirage_nb.search.pool import Workers
from mirage_nb.search.progress import Candidate, Snapshot, State
from mirage_nb.search.worker import Explored, Findings, Mailbox, Task, explore, merge_counts
from mirage_nb.settings import read_settings
from mirage_nb.targets import Target

T = TypeVar("T")

ATTEMPTS = 3
KEPT_CANDIDATES = 200
KEPT_PREFIXES = 2000
TICK_SECONDS = 0.05
HEAD_START_SECONDS = 0.3
"""How long the supervising thread searches by itself."""
STOP_SECONDS = 0.3
"""How long workers may take to hand over what they have after a stop."""
HANG_SECONDS = 10.0
"""How much longer than its task allows a worker may be silent before it is replaced."""


class Stopped(SearchError):
    """The session was stopped while something was waited for."""


@dataclass(slots=True)
class _Open:
    """A configuration that workers have: how often it was begun, and since when one may have been at it."""

    task: Task
    attempts: int
    since: float = field(default_factory=time.monotonic)


class SearchSession:
    """One background search.

    Args:
        program: the tensor program, a kernel graph of pre-defined operators.
        target: the GPU to instantiate for.
        effort: name of an effort preset.
        budget: limits of one configuration; default: the effort's.
        seconds: limit of the whole search; None leaves it to the budget.
        name: what the user calls it.
        executor: anything with the concurrent.futures interface; by default worker processes are started
            and ended with the session. A given executor stays the caller's.
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
        self._width = read_settings().workers
        self._turn = threading.Condition()
        self._ended = threading.Event()
        self._state = State.WAITING
        self._box: Mailbox | None = None
        self._workers: futures.Executor | None = None
        self._started = 0.0
        self._seconds = 0.0
        self._first: float | None = None
        self._total = 0
        self._done: set[int] = set()
        self._findings: dict[int, Findings] = {}
        self._prefixes: dict[int, tuple[Prefix, ...]] = {}
        self._known: dict[str, Candidate] = {}
        self._dropped: set[str] = set()
        self._cut: dict[int, tuple[str, ...]] = {}
        self._messages: list[str] = []

    # -- what a user does -------------------------------------------------------------------------

    def start(self, finish: Callable[[], None] | None = None) -> SearchSession:
        """Begin in the background and return at once. A session is started once.

        Args:
            finish: called in the supervising thread after the search, unless that was stopped.
        """
        with self._turn:
            if self._state is not State.WAITING:
                raise SearchError("the session was started before", hint="make a new one")
            self._state = State.RUNNING
            self._started = time.monotonic()
        thread = threading.Thread(target=self._supervise, args=(finish,), name=f"mirage {self.name}", daemon=True)
        thread.start()
        return self

    def stop(self) -> None:
        """End the search; what was found stays. Returns at once, and the state is STOPPED from now on."""
        with self._turn:
            if self._state in (State.RUNNING, State.PAUSED):
                self._state = State.STOPPED
                self._seconds = time.monotonic() - self._started
                if self._box is not None:
                    self._box.stop_flag.touch()
                self._turn.notify_all()

    def pause(self) -> None:
        """Workers sleep at their next look, and what follows the search after its present step; nothing is lost."""
        with self._turn:
            if self._state is State.RUNNING:
                self._state = State.PAUSED
                if self._box is not None:
                    self._box.pause_flag.touch()

    def resume(self) -> None:
        """Go on after a pause."""
        with self._turn:
            if self._state is State.PAUSED:
                self._state = State.RUNNING
                if self._box is not None:
                    self._box.pause_flag.unlink(missing_ok=True)
                self._turn.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the session has ended, at most `timeout` seconds; returns whether it has."""
        return self._ended.wait(timeout)

    def result(self, timeout: float | None = None) -> Snapshot:
        """Block until the session has ended and return the last snapshot.

        Raises:
            SearchError: it did not end in time, or it failed.
        """
        if not self.wait(timeout):
            hint = "wait longer, or stop it and look at the snapshot"
            raise SearchError(f"not finished after {timeout:g} s", hint=hint)
        last = self.snapshot()
        if last.state is State.FAILED:
            raise SearchError(last.messages[-1])
        return last

    def snapshot(self) -> Snapshot:
        """The state now."""
        with self._turn:
            live = self._state in (State.RUNNING, State.PAUSED)
            findings = self._findings.values()
            return Snapshot(
                name=self.name,
                state=self._state,
                seconds=time.monotonic() - self._started if live else self._seconds,
                first_seconds=self._first,
                configurations_done=len(self._done),
                configurations_total=self._total,
                counts=merge_counts(found.counts for found in findings),
                structures=sum(found.structures for found in findings),
                verified=sum(found.verified for found in findings),
                refuted=sum(found.refuted for found in findings),
                outside_lax=sum(found.outside_lax for found in findings),
                candidates=tuple(sorted(self._candidates(), key=lambda c: c.rank)[:KEPT_CANDIDATES]),
                prefixes=self._sample(),
                cut=tuple(dict.fromkeys(why for index in sorted(self._cut) for why in self._cut[index])),
                messages=tuple(self._messages),
                exhausted=bool(self._total) and len(self._done) == self._total and not self._cut,
            )

    # -- what follows the search ------------------------------------------------------------------

    def proceed(self) -> bool:
        """Sit out a pause; False once the session was stopped."""
        with self._turn:
            while self._state is State.PAUSED:
                self._turn.wait()
            return self._state is not State.STOPPED

    def update(self, candidate: Candidate) -> None:
        """Replace a candidate by a version that knows more: a time, an error, a stricter verdict."""
        with self._turn:
            self._known[candidate.digest] = candidate

    def drop(self, digest: str, why: str) -> None:
        """Take a candidate out of the results and say why."""
        with self._turn:
            self._dropped.add(digest)
            self._messages.append(why)

    def tell(self, message: str) -> None:
        """Add a line to what the user is told; once."""
        with self._turn:
            if message not in self._messages:
                self._messages.append(message)

    def call(self, function: Callable[..., T], /, *args: Any, seconds: float) -> T:
        """`function(*args)` by a worker.

        Raises:
            SearchError: it took longer than `seconds`, or its worker died.
            Stopped: the session was stopped meanwhile.
            whatever the function raises.
        """
        ((_, future),) = self.call_all(function, [args], seconds=seconds)
        return future.result()

    def call_all(
        self, function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], *, seconds: float
    ) -> Iterator[tuple[int, futures.Future[T]]]:
        """Many calls side by side; yields the number of a call and its done future as they end.

        Outcomes are those of `call`. Raises Stopped as `call` does.
        """
        executor = self._executor()
        try:
            waiting = {executor.submit(function, *args): number for number, args in enumerate(arguments)}
        except RuntimeError as error:  # broken for good, or shut down by its owner
            raise SearchError(f"the executor takes no more work: {error}") from error
        since: dict[futures.Future[T], float] = {}
        try:
            while waiting:
                done, _ = futures.wait(waiting, timeout=TICK_SECONDS, return_when=futures.FIRST_COMPLETED)
                if not self.proceed():
                    raise Stopped("the session was stopped")
                for future in done:
                    number, lost = waiting.pop(future), future.exception()
                    if isinstance(lost, futures.BrokenExecutor):
                        future = _failed(f"{function.__name__} did not end: {lost}")
                    yield number, future
                now = time.monotonic()
                for future in [f for f in waiting if f.running() and now - since.setdefault(f, now) > seconds]:
                    if isinstance(executor, Workers):
                        executor.kill(future)
                    yield waiting.pop(future), _failed(f"{function.__name__} took more than {seconds:g} s")
        finally:
            for future in waiting:
                future.cancel()

    # -- the supervising thread -------------------------------------------------------------------

    def _supervise(self, finish: Callable[[], None] | None) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="mirage-nb-", ignore_cleanup_errors=True) as folder:
                self._open_box(Mailbox(Path(folder)))
                try:
                    self._search()
                    if finish is not None and self.proceed():
                        self._follow(finish)
                finally:
                    self._dismiss()
            self._end(State.FINISHED)
        except MirageError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001  # a thread may not print; the session says what happened
            self._fail(internal_error(error))
        finally:
            self._ended.set()

    def _open_box(self, box: Mailbox) -> None:
        with self._turn:
            self._box = box
            if self._state is State.STOPPED:
                box.stop_flag.touch()
            if self._state is State.PAUSED:
                box.pause_flag.touch()

    def _follow(self, finish: Callable[[], None]) -> None:
        """What follows the search; whatever goes wrong there, the muGraphs that were found stay."""
        try:
            finish()
        except Stopped:
            return
        except MirageError as error:
            self.tell(str(error))
        except Exception as error:  # noqa: BLE001  # as above
            self.tell(internal_error(error))

    def _end(self, state: State) -> None:
        with self._turn:
            if self._state is not State.STOPPED:
                self._state = state
                self._seconds = time.monotonic() - self._started

    def _fail(self, why: str) -> None:
        self.tell(why)
        self._end(State.FAILED)

    def _search(self) -> None:
        prepared = prepare(self.program, seed=self.seed)
        work = configurations(prepared, EFFORTS[self.effort])
        tasks = [self._task(index, configuration) for index, configuration in enumerate(work)]
        with self._turn:
            self._total = len(tasks)
        tasks = self._head_start(tasks)
        if tasks and self.proceed():
            self._hand_out(tasks)
        if not self.proceed():
            self._leave_out(self._total, "stopped by the user")

    def _task(self, index: int, configuration: Configuration) -> Task:
        assert self._box is not None
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

    def _head_start(self, tasks: Sequence[Task]) -> list[Task]:
        """Explore in this thread for a moment; returns the tasks that are left."""
        until = time.time() + HEAD_START_SECONDS
        for number, task in enumerate(tasks):
            if time.time() > until or not self.proceed():
                return list(tasks[number:])
            own = until if task.deadline is None else min(until, task.deadline)
            try:
                found = explore(replace(task, deadline=own), self._note)
            except Exception as error:  # noqa: BLE001  # one broken configuration must not lose the others
                self._leave_out(task.index, _why(task, error))
                continue
            if found.unfinished and own == until and self.proceed():
                return list(tasks[number:])
            self._take(found)
        return []

    def _hand_out(self, tasks: Sequence[Task]) -> None:
        """Let workers explore, and collect what they find until nothing is open or the session is stopped."""
        executor = self._executor()
        waiting: dict[futures.Future[Explored], _Open] = {}
        for task in tasks:
            self._begin(executor, _Open(task, attempts=1), waiting)
        stopped_at: float | None = None
        while waiting and (stopped_at is None or time.monotonic() - stopped_at < STOP_SECONDS):
            done, _ = futures.wait(waiting, timeout=TICK_SECONDS, return_when=futures.FIRST_COMPLETED)
            for future in done:
                entry = waiting.pop(future)
                lost = self._collect(future, entry)
                if lost and stopped_at is None:
                    self._again(executor, entry, lost, waiting)
            self._look(executor, waiting)
            if stopped_at is None and self._state is State.STOPPED:
                stopped_at = time.monotonic()
        for future in waiting:
            future.cancel()

    def _executor(self) -> futures.Executor:
        if self._workers is None:
            self._workers = self._given or Workers(self._width)
        return self._workers

    def _dismiss(self) -> None:
        if isinstance(self._workers, Workers):
            self._workers.terminate()
        self._workers = None

    def _begin(
        self, executor: futures.Executor, entry: _Open, waiting: dict[futures.Future[Explored], _Open]
    ) -> None:
        try:
            waiting[executor.submit(explore, entry.task)] = entry
        except RuntimeError as error:  # broken for good, or shut down by its owner
            why = f"{entry.task.configuration}: left out, the executor takes no more work: {error}"
            self._leave_out(entry.task.index, why)

    def _again(
        self, executor: futures.Executor, entry: _Open, why: str, waiting: dict[futures.Future[Explored], _Open]
    ) -> None:
        """Begin a configuration again, unless its workers died too often."""
        where = entry.task.configuration
        if entry.attempts == ATTEMPTS:
            self._leave_out(entry.task.index, f"{where}: left out, its workers died {ATTEMPTS} times")
        else:
            self.tell(f"{where}: done again, {why}")
            self._begin(executor, _Open(entry.task, entry.attempts + 1), waiting)

    def _collect(self, future: futures.Future[Explored], entry: _Open) -> str:
        """Take in one result; when the worker was lost, how."""
        try:
            self._take(future.result())
        except futures.CancelledError:
            self._leave_out(entry.task.index, f"{entry.task.configuration}: cancelled")
        except futures.BrokenExecutor as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  # one broken configuration must not lose the others
            self._leave_out(entry.task.index, _why(entry.task, error))
        return ""

    def _look(self, executor: futures.Executor, waiting: Mapping[futures.Future[Explored], _Open]) -> None:
        """Read what workers posted, and end those that hang: their configurations are begun again."""
        now = time.monotonic()
        for future, entry in waiting.items():
            posted = entry.task.mailbox.collect(entry.task.index)
            if posted is not None:
                self._note(entry.task.index, posted)
            if not future.running() or self._state is State.PAUSED:
                entry.since = now
            elif now - entry.since > entry.task.seconds + HANG_SECONDS and isinstance(executor, Workers):
                self.tell(f"{entry.task.configuration}: its worker hung")
                executor.kill(future)

    def _note(self, index: int, findings: Findings) -> None:
        """Findings of a configuration that is not done; a fresh attempt does not hide what an earlier one found."""
        with self._turn:
            before = self._findings.get(index)
            if before is not None and findings.verified < before.verified:
                return
            self._findings[index] = findings
            if findings.candidates and self._first is None:
                self._first = time.monotonic() - self._started

    def _take(self, found: Explored) -> None:
        """The end of a configuration."""
        self._note(found.index, found.findings)
        with self._turn:
            self._prefixes[found.index] = found.prefixes
            if found.cut:
                self._cut[found.index] = found.cut
            if not found.unfinished:
                self._done.add(found.index)

    def _leave_out(self, index: int, why: str) -> None:
        """Name what was not searched, in the order of configurations; the session's own reasons come last."""
        with self._turn:
            self._cut[index] = (*self._cut.get(index, ()), why)

    def _candidates(self) -> Iterator[Candidate]:
        """Each once, from the first configuration that has it, as it is known now."""
        seen = set(self._dropped)
        for index in sorted(self._findings):
            for candidate in self._findings[index].candidates:
                if candidate.digest not in seen:
                    seen.add(candidate.digest)
                    yield self._known.get(candidate.digest, candidate)

    def _sample(self) -> tuple[Prefix, ...]:
        if not self._prefixes:
            return ()
        share = max(1, KEPT_PREFIXES // len(self._prefixes))
        return tuple(p for index in sorted(self._prefixes) for p in self._prefixes[index][:share])


def _why(task: Task, error: Exception) -> str:
    return f"{task.configuration}: {error if isinstance(error, MirageError) else internal_error(error)}"


def _failed(why: str) -> futures.Future[Any]:
    future: futures.Future[Any] = futures.Future()
    future.set_exception(SearchError(why))
    return future


def internal_error(error: Exception) -> str:
    """What a report of a mistake in this program needs on one line: the error and where it rose."""
    place = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" ({Path(place.filename).name}:{place.lineno})" if place else ""
    return f"internal error: {type(error).__name__}: {error}{where}"
