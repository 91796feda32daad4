"""Groups of operators: which read which, and what comes between two of them.

In: groups of a program's operators, each known by the value that it makes, and what every operator reads. Out: the
same groups, two of them joined at a time. Invariants: no groups wait for each other, as long as only those are joined
between which none has to come; `place` puts every group behind those that it reads.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping


class Groups:
    """A partition of operators, which becomes coarser.

    Args:
        members: of the groups at first, by their numbers: each is the last of its operators.
        sources: what every operator reads.
        readers: of every value.
    """

    def __init__(
        self,
        members: Mapping[int, frozenset[int]],
        sources: Mapping[int, Collection[int]],
        readers: Mapping[int, Collection[int]],
    ) -> None:
        self.members = dict(members)
        self.of = {value: number for number, group in members.items() for value in group}
        self._sources, self._readers = sources, readers
        last = max(self.of, default=0) + 1
        self._fresh = itertools.count(last)
        self._place = {number: number * last for number in members}  # with room between them for what is lifted

    def after(self, number: int) -> set[int]:
        """The groups that read what this one writes."""
        return {self.of[r] for v in self.members[number] for r in self._readers.get(v, ())} - {number}

    def before(self, number: int) -> set[int]:
        """The groups that write what this one reads."""
        return {self.of[s] for v in self.members[number] for s in self._sources[v] if s in self.of} - {number}

    def join(self, first: int, second: int) -> int:
        """One group of two that are not apart, and its number."""
        number = next(self._fresh)
        self.members[number] = members = self.members.pop(first) | self.members.pop(second)
        self.of.update(dict.fromkeys(members, number))
        self._place[number] = max(self._place.pop(first), self._place.pop(second))
        self._lift(number)
        return number

    def dissolve(self, number: int) -> None:
        """Groups of one operator again."""
        place = self._place.pop(number)
        members = sorted(self.members.pop(number))
        self.members |= {value: frozenset([value]) for value in members}
        self.of |= {value: value for value in members}
        self._place.update(dict.fromkeys(members, place))
        for value in members:
            self._lift(value)

    def _lift(self, number: int) -> None:
        """Put what reads a group behind it."""
        front = [number]
        while front:
            one = front.pop()
            for other in self.after(one):
                if self._place[other] <= self._place[one]:
                    self._place[other] = self._place[one] + 1
                    front.append(other)

    def apart(self, first: int, second: int) -> bool:
        """Whether a third group has to come between two."""
        if self._place[first] > self._place[second]:
            first, second = second, first
        last = self._place[second]
        front = [n for n in self.after(first) if self._place[n] < last]
        seen = set(front)
        while front:
            after = self.after(front.pop())
            if second in after:
                return True
            found = {n for n in after - seen if self._place[n] < last}
            seen |= found
            front.extend(found)
        return False

    def ordered(self) -> Iterator[int]:
        """The groups in launch order; of those that may come next, the one that begins first."""
        waiting = {number: len(self.before(number)) for number in self.members}
        ready = [(min(self.members[number]), number) for number, count in waiting.items() if not count]
        heapq.heapify(ready)
        while ready:
            _, number = heapq.heappop(ready)
            yield number
            for other in self.after(number):
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (min(self.members[other]), other))
