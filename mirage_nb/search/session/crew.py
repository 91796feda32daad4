"""Tasks in the hands of an executor: begun, watched, begun again when their worker was lost.

In: tasks. Out: what became of them, told to their session. Invariant: a task is told about once, however often
it was begun; one whose worker died or hung is begun again, `ATTEMPTS` times in all.
"""

from __future__ import annotations

import concurrent.futures as futures
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mirage_nb.errors import MirageError, SearchError
from mirage_nb.search.session.findings import Explored
from mirage_nb.search.session.plain import Memo
from mirage_nb.search.session.pool import Workers
from mirage_nb.search.session.worker import Task, explore
from mirage_nb.search.space import Configuration

if TYPE_CHECKING:
    from mirage_nb.search.session.session import SearchSession

T = TypeVar("T")

CALL_TICK_SECONDS = 0.05
ATTEMPTS = 3
NO_TIME = "there was no time left; extend(seconds=...) gives it more"
HANG_SECONDS = 10.0
"""How much longer than its task may compute a worker may be silent before it is replaced."""


@dataclass(slots=True)
class _Open:
    """A task that the executor has: how often it was begun, and since when a worker has been silent."""

    task: Task
    attempts: int = 1
    since: float = field(default_factory=time.monotonic)
    memo: Memo = field(default_factory=dict)


class Crew:
    """The open tasks of one session."""

    def __init__(self, executor: futures.Executor, overseer: SearchSession) -> None:
        self._executor = executor
        self._overseer = overseer
        self._open: dict[futures.Future[Explored], _Open] = {}

    @property
    def configurations(self) -> frozenset[Configuration]:
        """What is being explored, or waits for it."""
        return frozenset(entry.task.configuration for entry in self._open.values())

    def begin(self, tasks: Sequence[Task]) -> None:
        """Give tasks to the executor."""
        for task in tasks:
            self._begin(_Open(task))

    def recall(self) -> None:
        """Take back every task that no worker has begun."""
        for future in [future for future in self._open if future.cancel()]:
            del self._open[future]

    def give_up(self, why: str) -> None:
        """Take what was posted, and end every task, those that are at work too."""
        self._look(paused=True)
        for future, entry in self._open.items():
            if not future.cancel() and isinstance(self._executor, Workers):
                self._executor.kill(future)
            self._overseer.left_out(entry.task, f"{entry.task.configuration}: {why}")
        self._open.clear()

    def step(self, seconds: float, *, again: bool, paused: bool) -> None:
        """Wait a little, and tell what has happened. `again`: tasks whose workers were lost are begun again."""
        done, _ = futures.wait(self._open, timeout=seconds, return_when=futures.FIRST_COMPLETED)
        for future in done:
            entry = self._open.pop(future)
            lost = self._collect(future, entry)
            if lost and again:
                self._again(entry, lost)
        self._look(paused)

    def _begin(self, entry: _Open) -> None:
        try:
            self._open[self._executor.submit(explore, entry.task)] = entry
        except RuntimeError as error:  # broken for good, or shut down by its owner
            why = f"{entry.task.configuration}: left out, the executor takes no more work: {error}"
            self._overseer.left_out(entry.task, why)

    def _again(self, entry: _Open, why: str) -> None:
        """Begin a task again, unless its workers died too often."""
        where = entry.task.configuration
        if entry.attempts == ATTEMPTS:
            self._overseer.left_out(entry.task, f"{where}: left out, its workers died {ATTEMPTS} times")
        else:
            self._overseer.tell(f"{where}: done again, {why}")
            self._begin(_Open(entry.task, entry.attempts + 1))

    def _collect(self, future: futures.Future[Explored], entry: _Open) -> str:
        """Tell one outcome; when the worker was lost, returns how."""
        try:
            self._overseer.ended(future.result())
        except futures.CancelledError:
            self._overseer.left_out(entry.task, f"{entry.task.configuration}: cancelled")
        except futures.BrokenExecutor as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  # one broken configuration must not lose the others
            self._overseer.left_out(entry.task, failure(entry.task, error))
        return ""

    def _look(self, paused: bool) -> None:
        """Read what workers posted, and end those that hang: their tasks are begun again."""
        now = time.monotonic()
        for future, entry in self._open.items():
            found = entry.task.channel.collect(entry.task.index, entry.memo)
            if found is not None:
                self._overseer.posted(entry.task, found)
            if found is not None or not future.running() or paused:
                entry.since = now
            elif now - entry.since > entry.task.seconds + HANG_SECONDS and isinstance(self._executor, Workers):
                self._overseer.tell(f"{entry.task.configuration}: its worker hung")
                self._executor.kill(future)


class Stopped(SearchError):
    """The session was stopped, or extended, while something was waited for."""


def call_all(
    executor: futures.Executor,
    function: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    seconds: float,
    check: Callable[[], None],
    until: float = math.inf,
    grace: float = 0.0,
    called: str = "it",
    kind: type[MirageError] = SearchError,
) -> Iterator[tuple[int, futures.Future[T]]]:
    """Many calls side by side, begun now; yields the number of a call and its done future as they end.

    A call fails, with an error of this `kind`, when it takes longer than `seconds`, as far as somebody waits, or its
    worker dies; all that are left fail when the clock (`time.monotonic`) says `until`, those that were begun so many
    seconds later. `check` is called all the time; what it raises ends the waiting. `called`: the call in messages.
    """
    try:
        waiting = {executor.submit(function, *args): number for number, args in enumerate(arguments)}
    except RuntimeError as error:  # broken for good, or shut down by its owner
        raise SearchError(f"the executor takes no more work: {error}") from error

    def watched() -> Iterator[tuple[int, futures.Future[T]]]:
        since: dict[futures.Future[T], float] = {}
        try:
            while waiting:
                done, _ = futures.wait(waiting, timeout=CALL_TICK_SECONDS, return_when=futures.FIRST_COMPLETED)
                check()
                for future in done:
                    number, lost = waiting.pop(future), future.exception()
                    if isinstance(lost, futures.BrokenExecutor):
                        future = _failed(kind(f"{called} did not end: {lost}"))
                    yield number, future
                now = time.monotonic()
                late = [f for f in waiting if f.running() and now - since.setdefault(f, now) > seconds]
                if now > until:
                    late += [f for f in waiting if now > until + grace or f.cancel()]
                for future in dict.fromkeys(late):
                    if isinstance(executor, Workers) and not future.cancel():
                        executor.kill(future)
                    why = f"{called} took more than {seconds:g} s" if now < until else NO_TIME
                    yield waiting.pop(future), _failed(kind(why))
        finally:
            for future in waiting:
                if isinstance(executor, Workers):
                    executor.abandon(future)
                else:
                    future.cancel()

    return watched()


def _failed(error: MirageError) -> futures.Future[Any]:
    future: futures.Future[Any] = futures.Future()
    future.set_exception(error)
    return future


def failure(task: Task, error: Exception) -> str:
    """Why a task failed, on one line."""
    return f"{task.configuration}: {error if isinstance(error, MirageError) else internal_error(error)}"


def internal_error(error: Exception) -> str:
    """What a report of a mistake in this program needs on one line: the error and where it rose."""
    if isinstance(error, MemoryError):
        return f"not enough memory{f': {error}' if str(error) else ''}"
    place = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" ({Path(place.filename).name}:{place.lineno})" if place else ""
    return f"internal error: {type(error).__name__}: {error}{where}"
