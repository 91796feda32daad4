"""Work for later: jobs that one thread does one after the other, behind whatever the interpreter does meanwhile.

In: functions. Out: `Job`s that say whether they have ended. Invariant: a job never fails loudly (what it raised is
kept), and the thread keeps no interpreter from ending.
"""

from __future__ import annotations

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

    @property
    def ended(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it has ended, at most `timeout` seconds; whether it has."""
        return self._ended.wait(timeout)

    def run(self) -> None:
        """Do it."""
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  # whoever asked for the job looks at it
            self.error = error
        finally:
            self._ended.set()


class Later:
    """A queue of jobs, and the thread that does them, from the first job on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, job: Job) -> None:
        """Put a job behind those that wait; returns at once."""
        self._jobs.put(job)
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._go, name=self._name, daemon=True)
                self._thread.start()

    def _go(self) -> None:
        while True:
            self._jobs.get().run()
