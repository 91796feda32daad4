"""Extraction: read muGraphs off a closure, each graph once, smallest first.

In: a saturated closure and the values to compute. Out: graphs, each a choice of one node for every value
that it needs. Invariant: with no limit hit, exactly the graphs of at most N operators are produced, once
each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mirage_nb.search.values import Node, Value

Choice = dict[int, Node]
"""The node chosen for every value of a graph, by value id."""


@dataclass(slots=True)
class Extraction:
    """The values of a closure, ordered for extraction.

    `rank[v]` exceeds the rank of everything that a derivation of v reads. `required[v]` is the set (as bits)
    of values that every graph of v computes: its size bounds the operators of such a graph from below.
    """

    values: Sequence[Value]
    rank: list[int] = field(default_factory=list)
    required: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rank = _ranks(self.values)
        self.required = [0] * len(self.values)
        for index in sorted(range(len(self.values)), key=self.rank.__getitem__):
            self.required[index] = self._required(index)

    def _required(self, index: int) -> int:
        common = -1
        for operator, args in self.values[index].nodes:
            if operator.is_leaf:
                return 0
            common &= self._all(args)
        return common | 1 << index

    def _all(self, values: Iterable[int]) -> int:
        joined = 0
        for value in values:
            joined |= self.required[value]
        return joined

    def minimum(self, roots: Sequence[int], upto: int, stopped: Callable[[], bool]) -> int | None:
        """The operators of the smallest graph that computes all roots, or None if it has more than `upto`."""
        for bound in range(self._all(roots).bit_count(), upto + 1):
            if next(self.graphs(roots, bound, stopped), None) is not None:
                return bound
            if stopped():
                return None
        return None

    def graphs(self, roots: Sequence[int], size: int, stopped: Callable[[], bool]) -> Iterator[Choice]:
        """Every graph of exactly `size` operators that computes all roots; ends early when stopped."""
        yield from self._extend({}, 0, frozenset(roots), 0, size, stopped)

    def _extend(
        self, chosen: Choice, done: int, front: frozenset[int], used: int, size: int, stopped: Callable[[], bool]
    ) -> Iterator[Choice]:
        """Graphs that extend `chosen` (the values in `done`) by what `front` still needs."""
        if not front:
            if used == size:
                yield dict(chosen)
            return
        rank = self.rank
        value = max(front, key=lambda v: (rank[v], v))
        rest = front - {value}
        beside = self._all(rest)
        done |= 1 << value
        for node in self.values[value].nodes:
            operator, args = node
            now = used if operator.is_leaf else used + 1
            if now + ((beside | self._all(args)) & ~done).bit_count() > size or stopped():
                continue
            chosen[value] = node
            ahead = rest.union(a for a in args if a not in chosen)
            yield from self._extend(chosen, done, ahead, now, size, stopped)
            del chosen[value]

    def ordered(self, choice: Choice) -> list[int]:
        """The values of a graph, operands first; the same order in every run."""
        return sorted(choice, key=lambda v: (self.values[v].stage, self.rank[v], v))


def _ranks(values: Sequence[Value]) -> list[int]:
    """Longest path over all derivations; one that would read its own value is left out of the count."""
    rank = [-1] * len(values)
    for start in range(len(values)):
        stack: list[tuple[int, int]] = [(start, 0)]
        open_: set[int] = set()
        while stack:
            value, phase = stack.pop()
            if phase:
                open_.discard(value)
                reads = (a for _, args in values[value].nodes for a in args)
                rank[value] = 1 + max((rank[a] for a in reads), default=-1)
            elif rank[value] < 0 and value not in open_:
                open_.add(value)
                stack.append((value, 1))
                stack.extend((a, 0) for _, args in values[value].nodes for a in args if rank[a] < 0 and a not in open_)
    return rank
