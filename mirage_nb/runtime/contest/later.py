"""Work for later: jobs that a few threads do in their order, behind whatever the interpreter does meanwhile.

In: functions. Out: `Job`s that say whether they have ended. Invariant: a job never fails loudly (what it raised is
kept), and the threads keep no interpreter from ending.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

Guard = threading.Lock
"""Held by the one thread that may do something which a user's threads share."""


@dataclass
class Job:
    """A function that is called once. `error`: what it raised, once it has ended."""

    work: Callable[[], None]
    error: BaseException | None = None
    _ended: threading.Event = field(default_factory=threading.Event)
    _process: int = field(default_factory=os.getpid)

    @property
    def ended(self) -> bool:
        """Whether it has ended, well or not, or will not: it is another process's, of which this one is a fork."""
        return self._ended.is_set() or self.lost

    @property
    def lost(self) -> bool:
        """Whether this process was forked off before it had ended: the threads that do jobs did not come along."""
        return self._process != os.getpid() and not self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it has ended, at most `timeout` seconds; whether it has."""
        return self.lost or self._ended.wait(timeout)

    def run(self) -> None:
        """Do it."""
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  # whoever asked for the job looks at it
            self.error = error
        finally:
            self._ended.set()


class Later:
    """Jobs that wait, the weightiest in front and of these the first, and up to `most` threads that do them side by
    side."""

    def __init__(self, name: str, most: int = 1) -> None:
        self._name, self._most = name, most
        self._jobs: queue.PriorityQueue[tuple[float, int, Job]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._guard = threading.Lock()
        self._threads: list[threading.Thread] = []

    def put(self, job: Job, weight: float = 0.0) -> None:
        """Put a job behind those that wait and weigh as much; returns at once."""
        self._jobs.put((-weight, next(self._numbers), job))
        with self._guard:
            self._threads = [thread for thread in self._threads if thread.is_alive()]  # none is in a forked process
            if len(self._threads) < self._most:
                self._threads.append(threading.Thread(target=self._go, name=self._name, daemon=True))
                self._threads[-1].start()

    def _go(self) -> None:
        while True:
            job = self._jobs.get()[-1]
            if not job.lost:
                job.run()
