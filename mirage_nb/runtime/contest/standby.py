"""Processes between two sessions: what they have loaded takes longer than most of what they are asked for.

A card's driver makes the contexts of all processes of a machine one after the other, half a second each, and what a
kernel is compared with on the card needs PyTorch. In: workers that nobody needs any more. Out: the same, for who wants
as many in the same surroundings. Invariants: what stands by has no call, and holds nothing of a program; it is gone a
while later, and with its interpreter.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from mirage_nb.search.session.nursery import surroundings
from mirage_nb.search.session.pool import Workers

STANDBY_SECONDS = 30.0
"""How long processes wait for the next session."""


class Standby:
    """Who waits, at most one set of workers for each number of them and each surroundings."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._there: dict[object, Workers] = {}

    def take(self, count: int, environment: Mapping[str, str]) -> Workers:
        """Up to `count` processes with these variables beside their owner's, those that wait if there are some."""
        with self._guard:
            found = self._there.pop(_key(count, environment), None)
        return found or Workers(count, urgent=True, environment=environment)

    def give(
        self, workers: Workers, count: int, environment: Mapping[str, str], forget: Callable[[], object]
    ) -> bool:
        """Have these wait, and `forget` what they hold; False where they cannot, and are still the caller's."""
        key = _key(count, environment)
        with self._guard:
            if key in self._there or not workers.idle:
                return False
            self._there[key] = workers
        workers.everywhere(forget)
        timer = threading.Timer(STANDBY_SECONDS, self._end, (key, workers))
        timer.daemon = True
        timer.start()
        return True

    def _end(self, key: object, workers: Workers) -> None:
        with self._guard:
            if self._there.get(key) is not workers:
                return
            del self._there[key]
        workers.terminate(wait=False)


STANDBY = Standby()
"""Processes belong to the machine, not to a session."""


def _key(count: int, environment: Mapping[str, str]) -> object:
    """A fork of this interpreter has none of its processes."""
    return os.getpid(), count, frozenset(environment.items()), surroundings()
