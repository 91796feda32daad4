"""Processes between two sessions: what they have loaded takes longer than most of what they are asked for.

A card's driver makes the contexts of all processes of a machine one after the other, half a second each, and what a
kernel is compared with on the card needs PyTorch. In: workers that nobody needs any more. Out: the same, for who wants
as many in the same surroundings. Invariants: what stands by has no call, and holds nothing of a program; it is gone a
while later, and with its interpreter.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mirage_nb.search.session.nursery import surroundings
from mirage_nb.search.session.pool import Workers

STANDBY_SECONDS = 30.0
"""How long processes wait for the next session."""


@dataclass(frozen=True, slots=True)
class Place:
    """What processes were started for and in: how many, with which variables beside their owner's, and all else that
    they have of that interpreter, which a fork of it does not."""

    count: int
    variables: frozenset[tuple[str, str]]
    around: tuple[object, ...]

    @classmethod
    def now(cls, count: int, variables: Iterable[tuple[str, str]]) -> Place:
        """As they would be started at this moment."""
        return cls(count, frozenset(variables), (os.getpid(), *surroundings()))


class Standby:
    """Who waits, at most one set of workers for each place."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._there: dict[Place, Workers] = {}

    def take(self, place: Place) -> Workers:
        """The processes of this place that wait, if there are some, else others, which start as they are called."""
        with self._guard:
            found = self._there.pop(place, None)
        return found or Workers(place.count, urgent=True, environment=dict(place.variables))

    def give(self, workers: Workers, place: Place, forget: Callable[[], object]) -> bool:
        """Have these wait, and `forget` what they hold; False where they cannot, and are still the caller's: some of
        them may have been started elsewhere, if their owner has moved since."""
        with self._guard:
            moved = place != Place.now(place.count, place.variables)
            if moved or place in self._there or not workers.idle:
                return False
            workers.everywhere(forget)
            self._there[place] = workers
        timer = threading.Timer(STANDBY_SECONDS, self._end, (place, workers))
        timer.daemon = True
        timer.start()
        return True

    def _end(self, place: Place, workers: Workers) -> None:
        with self._guard:
            if self._there.get(place) is not workers:
                return
            del self._there[place]
        workers.terminate(wait=False)


STANDBY = Standby()
"""Processes belong to the machine, not to a session."""
