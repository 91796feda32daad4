"""The ways to emit what a session has timed: of a muGraph those that are close to the best kernel, of the program's own
operators all that libraries have.

In: winners with their times. Out: those that a race times once more; the next way where one of a library's is left out.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_nb.runtime.contest.winner import Winner
from mirage_nb.search.composition import OWN_OPERATORS

SLOW = 1.3
"""A way to emit that takes longer than the best by this factor is timed for a few replays only."""
CLOSE = 1.15
"""Ways within this factor of the best are raced once more: what is best by the least of many short timings may not
be."""
HASTY_US = 0.5
"""Behind a foreign kernel, what starts early is timed by so much too fast, from one capture to the next: of 30 short
timings of kernels of 2.2 us a third said 1.55 to 1.75, on an H200; of 40 others of 2.0 us one did."""


class Ways:
    """By their labels. May be used from any thread. `met`: those close to the best that were tried on hard inputs."""

    def __init__(self) -> None:
        self.met = tuple[Winner, ...]()
        self._guard = threading.Lock()
        self._held: dict[str, Winner] = {}

    def add(self, winners: Sequence[Winner]) -> None:
        """Keep these, and of all what is still close."""
        with self._guard:
            held = [*self._held.values(), *winners]
            best = min(map(_at_most, held), default=math.inf)
            self._held = {w.label: w for w in held if _is_own(w) or _pace(w) <= CLOSE * best}

    def learn(self, winner: Winner) -> None:
        """What is known of one by now."""
        with self._guard:
            if winner.label in self._held:
                self._held[winner.label] = winner

    def without(self, winner: Winner) -> Winner | None:
        """Forget one; of the program's own operators, the best way that is left."""
        with self._guard:
            self._held.pop(winner.label, None)
            left = [way for way in self._held.values() if _is_own(way)] if _is_own(winner) else []
        return min(left, key=lambda way: way.candidate.rank, default=None)

    def of_both_kinds(self, winners: Mapping[str, Winner]) -> list[Winner]:
        """Of every winner that is close to the best, by its digest, the fastest way that starts early and the fastest
        that does not: which of them is faster depends on what runs before and behind. The fastest first."""
        found: dict[tuple[str, bool], Winner] = {}
        for way in self.near(winners, CLOSE):
            found.setdefault((way.candidate.digest, way.emitted.options.chained), way)
        return [*found.values()]

    def near(self, winners: Mapping[str, Winner], factor: float) -> list[Winner]:
        """The winners within this factor of the best, by their digests, and other ways to emit them that are close to
        it, the surely fastest first."""
        best = min(map(_at_most, winners.values()), default=math.inf)
        found = [winner for winner in winners.values() if _pace(winner) <= factor * best]
        with self._guard:
            ways = [(way, winners.get(way.candidate.digest)) for way in self._held.values()]
        for way, winner in ways:
            if winner is not None and winner.label != way.label and _pace(way) <= CLOSE * best:
                times = way.candidate.time_us, way.candidate.chain_us
                found.append(replace(way, candidate=winner.candidate).timed(*times))
        return sorted(found, key=lambda way: (_at_most(way), way.candidate.rank))


def _is_own(winner: Winner) -> bool:
    return winner.candidate.configuration == OWN_OPERATORS


def _pace(winner: Winner) -> float:
    return winner.candidate.pace or math.inf


def hasty_us(winner: Winner) -> float:
    """What its time may be too short by."""
    behind_foreign = not winner.origin.program.is_weight_bound
    return HASTY_US if winner.emitted.options.chained and behind_foreign else 0.0


def _at_most(winner: Winner) -> float:
    """What it is ranked by, if its timing was as much too short as that may be."""
    return _pace(winner) + hasty_us(winner)
