"""Work in the background: a supervising thread at a time, workers, a lock, and a life with pauses.

In: pieces of work. Out: their effects, and a state that a user can watch and steer. Invariants: at most one
supervising thread works, the next one waits for the one before it; when a thread has ended its workers and
its files are gone; a stop shows at once, whatever is being done; Ctrl-C in a user's thread, at whatever moment, ends
that call and leaves no lock held (so locks are taken by themselves, never through a condition).
"""

from __future__ import annotations

import concurrent.futures as futures
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from mirage_nb.errors import MirageError, SearchError
from mirage_nb.search.session.channel import Channel, temporary_folder
from mirage_nb.search.session.crew import Stopped, call_all, internal_error
from mirage_nb.search.session.pool import Workers
from mirage_nb.search.session.progress import State
from mirage_nb.settings import read_settings

T = TypeVar("T")

LIVE = (State.RUNNING, State.PAUSED)
LOOK_SECONDS = 0.01
"""How often somebody who waits looks."""


class Background:
    """The life of a session.

    Args:
        name: what the user calls it.
        executor: where its workers are; by default worker processes are started and ended with each piece of work.
    """

    failure = ""
    """Why the session failed, whatever else was told since."""

    def __init__(self, name: str, executor: futures.Executor | None) -> None:
        self.name = name
        self._given = executor
        self._width = read_settings().workers
        self._turn = threading.RLock()
        self._news = threading.Condition(self._turn)
        self._saving = threading.Lock()
        self._state = State.WAITING
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._extended = False
        self._channel: Channel | None = None
        self._workers: futures.Executor | None = None
        self._extra: futures.Executor | None = None
        self._started = 0.0
        self._seconds = 0.0
        self._paused_at = 0.0

    @property
    def left(self) -> float:
        """Seconds that are left of the session's limit; infinite without one."""
        raise NotImplementedError

    def tell(self, message: str) -> None:
        """Add a line to what the user is told; once."""
        raise NotImplementedError

    def _rested(self, seconds: float) -> None:
        """Called with the lock held when a pause of so many seconds ends."""
        raise NotImplementedError

    def _save(self) -> None:
        """Called when a piece of work has ended."""
        raise NotImplementedError

    # -- what a user does -------------------------------------------------------------------------

    def stop(self) -> None:
        """End the search; what was found stays. Returns at once, and the state is STOPPED from now on."""
        with self._turn:
            if self._state in LIVE:
                self._seconds = self._elapsed()
                self._state = State.STOPPED
            if self._state is State.STOPPED:  # said again if need be: Ctrl-C may have ended an earlier call
                if self._channel is not None:
                    self._leave(self._channel.stop_flag.touch)
                self._news.notify_all()

    def pause(self) -> None:
        """Workers sleep at their next look, and what follows the search after its present step; nothing is lost."""
        with self._turn:
            if self._state is State.RUNNING:
                self._state = State.PAUSED
                self._paused_at = time.monotonic()
            self._rest()

    def resume(self) -> None:
        """Go on after a pause."""
        with self._turn:
            if self._state is State.PAUSED:
                self._state = State.RUNNING
                paused = time.monotonic() - self._paused_at
                self._started += paused
                self._rested(paused)
            self._rest()
            self._news.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the session has ended, at most `timeout` seconds; returns whether it has."""
        with self._turn:
            ended = self._ended
        until = None if timeout is None else time.monotonic() + timeout
        while not ended.is_set():  # looked at only: a wait that Ctrl-C ends at a bad moment may keep an event's lock
            left = LOOK_SECONDS if until is None else min(LOOK_SECONDS, until - time.monotonic())
            if left <= 0:
                return False
            time.sleep(left)
        return True

    def follow(self, work: Callable[[], None]) -> None:
        """One more piece of work after the search, in a new supervising thread; returns at once.

        Raises:
            SearchError: the session has not ended.
        """
        with self._turn:
            if self._state not in (State.FINISHED, State.STOPPED):
                raise SearchError(f"the session is {self._state.value}", hint="wait for its end, or stop it")
            self._begin(lambda: self._follow(work))

    # -- what follows the search ------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Its state now."""
        return self._state

    def proceed(self) -> bool:
        """Sit out a pause; False once the session was stopped, or extended so that the search goes on."""
        with self._turn:
            while self._state is State.PAUSED and not self._extended:
                self._news.wait(LOOK_SECONDS)  # not for ever: Ctrl-C may come between a change and its news
            return not self._is_over() and not self._extended

    def call(self, function: Callable[..., T], /, *args: Any, seconds: float) -> T:
        """`function(*args)` by a process beside the workers. Where the session has a limit, its seconds are those until
        that is there, too.

        Raises:
            SearchError: it took longer than `seconds`, or its worker died.
            Stopped: the session was stopped or extended meanwhile.
            whatever the function raises.
        """
        until = math.inf if self.left == math.inf else time.monotonic() + seconds
        ((_, future),) = call_all(self._beside(), function, [args], seconds, self._check, until)
        return future.result()

    def begin_beside(self, function: Callable[..., None], /, *args: Any) -> None:
        """The same, for its effects on later calls: nobody waits for it."""
        with contextlib.suppress(RuntimeError):  # as of `call`, which says so
            self._beside().submit(function, *args)

    def call_all(
        self,
        function: Callable[..., T],
        arguments: Sequence[tuple[Any, ...]],
        *,
        seconds: float,
        until: float = math.inf,
    ) -> Iterator[tuple[int, futures.Future[T]]]:
        """Many calls side by side, begun now; yields the number of a call and its done future as they end.

        Outcomes are those of `call`; calls that have not ended when the clock (`time.monotonic`) says `until` fail.
        Raises Stopped as `call` does.
        """
        return call_all(self._executor(), function, arguments, seconds, self._check, until)

    def _check(self) -> None:
        if not self.proceed():
            raise Stopped("the session was stopped")

    # -- the supervising thread -------------------------------------------------------------------

    def _begin(self, work: Callable[[], None]) -> None:
        """A new supervising thread, which waits for the one before it. Called with the lock held.

        Raises:
            SearchError: no thread can be started.
        """
        known = before, *_ = self._thread, self._ended, self._state
        ended, void = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=self._supervise, args=(work, before, ended, void), name=f"mirage {self.name}", daemon=True
        )
        try:
            self._thread, self._ended, self._state = thread, ended, State.RUNNING
            self._extended = False
            self._started = time.monotonic()
            thread.start()
        except BaseException as error:  # Ctrl-C, too: there may be a thread or not, and it waits for the lock
            void.set()
            self._thread, self._ended, self._state = known
            if isinstance(error, RuntimeError):
                what = f"the search cannot begin: {error}"
                raise SearchError(what, hint="end other programs, and try again") from error
            raise

    def _supervise(
        self, work: Callable[[], None], before: threading.Thread | None, ended: threading.Event, void: threading.Event
    ) -> None:
        with self._turn:
            if void.is_set():
                return
        try:
            if before is not None:
                before.join()
            with temporary_folder() as folder:
                self._open_channel(Channel(folder))
                try:
                    work()
                finally:
                    self._dismiss()
            self._end(State.FINISHED)
        except MirageError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001  # a thread may not print; the session says what happened
            self._fail(internal_error(error))
        finally:
            try:
                self._save()
            finally:
                ended.set()

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

    def _is_over(self) -> bool:
        """In a supervising thread: whether its work was stopped, even if another thread goes on with it."""
        return self._state is State.STOPPED or self._thread is not threading.current_thread()

    def _end(self, state: State) -> None:
        with self._turn:
            if not self._is_over():
                self._seconds = self._elapsed()
                self._state = state

    def _fail(self, why: str) -> None:
        self.failure = why
        self.tell(why)
        self._end(State.FAILED)

    def _elapsed(self) -> float:
        """Seconds of work: a pause is none."""
        if self._state not in LIVE:
            return self._seconds
        now = self._paused_at if self._state is State.PAUSED else time.monotonic()
        return self._seconds + now - self._started

    def _open_channel(self, channel: Channel) -> None:
        with self._turn:
            self._channel = channel
            if self._is_over():
                self._leave(channel.stop_flag.touch)
            self._rest()

    def _renew_channel(self) -> bool:
        """Make the folder again if somebody has swept it away; whether that was so."""
        with self._turn:
            if self._channel is None or self._channel.folder.exists():
                return False
            self._leave(partial(self._channel.folder.mkdir, mode=0o700, parents=True))
            self._rest()
            self._rested(0.0)  # the limit stands in the folder
            return True

    def _rest(self) -> None:
        """Let workers know whether the session is paused."""
        paused = self._state is State.PAUSED
        if self._channel is not None and paused:
            self._leave(self._channel.pause_flag.touch)
        elif self._channel is not None:
            self._leave(partial(self._channel.pause_flag.unlink, missing_ok=True))
        for workers in (self._workers, self._extra):
            if isinstance(workers, Workers):
                workers.rest(paused)

    def _leave(self, note: Callable[[], object]) -> None:
        """Leave a note for workers, if that can be done."""
        try:
            note()
        except OSError as error:
            self.tell(f"workers may not hear of a pause, a stop, or a limit: {error}")

    def _executor(self) -> futures.Executor:
        with self._turn:
            if self._workers is None:
                self._workers = self._given or Workers(self._width)
            return self._workers

    def _beside(self) -> futures.Executor:
        """One process that takes calls while workers search, one by one."""
        with self._turn:
            if self._extra is None:
                self._extra = self._given or Workers(1, urgent=True)
            return self._extra

    def _dismiss(self) -> None:
        with self._turn:
            ended = self._workers, self._extra
            self._workers = self._extra = self._channel = None
        for workers in ended:
            if isinstance(workers, Workers):
                workers.terminate()
