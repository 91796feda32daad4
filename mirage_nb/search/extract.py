"""Extraction: read muGraphs off a closure, each graph once, smallest first.

In: a saturated closure and the values to compute. Out: graphs, each a choice of one node for every value
that it needs. Invariant: with no limit hit, exactly the graphs of at most N operators are produced, once
each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mirage_nb.search.values import Node, Value

UNREACHABLE = 1_000_000

Choice = dict[int, Node]
"""The node chosen for every value of a graph, by value id."""


@dataclass(slots=True)
class Extraction:
    """The values of a closure, ordered for extraction.

    `rank[v]` exceeds the rank of everything that a derivation of v reads; `cost[v]` bounds from below the
    operators of any graph that computes v.
    """

    values: Sequence[Value]
    rank: list[int] = field(default_factory=list)
    cost: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rank = _ranks(self.values)
        self.cost = [UNREACHABLE] * len(self.values)
        for index in sorted(range(len(self.values)), key=self.rank.__getitem__):
            self._settle(index)
        changed = True
        while changed:
            changed = sum(map(self._settle, range(len(self.values)))) > 0

    def _settle(self, index: int) -> bool:
        best = self.cost[index]
        for operator, args in self.values[index].nodes:
            best = min(best, 0 if operator.is_leaf else 1 + max(self.cost[a] for a in args))
        better = best < self.cost[index]
        self.cost[index] = best
        return better

    def minimum(self, roots: Sequence[int], upto: int, stopped: Callable[[], bool]) -> int | None:
        """The operators of the smallest graph that computes all roots, or None if it has more than `upto`."""
        for bound in range(max(self.cost[r] for r in roots), upto + 1):
            if next(self.graphs(roots, bound, stopped), None) is not None:
                return bound
            if stopped():
                return None
        return None

    def graphs(self, roots: Sequence[int], size: int, stopped: Callable[[], bool]) -> Iterator[Choice]:
        """Every graph of exactly `size` operators that computes all roots; ends early when stopped."""
        yield from self._extend({}, frozenset(roots), 0, size, stopped)

    def _extend(
        self, chosen: Choice, front: frozenset[int], used: int, size: int, stopped: Callable[[], bool]
    ) -> Iterator[Choice]:
        if not front:
            if used == size:
                yield dict(chosen)
            return
        value = max(front, key=lambda v: (self.rank[v], v))
        rest = front - {value}
        for node in self.values[value].nodes:
            operator, args = node
            step = 0 if operator.is_leaf else 1
            ahead = rest.union(a for a in args if a not in chosen)
            needed = sum(self.cost[v] > 0 for v in ahead)
            needed = max(needed, max((self.cost[v] for v in ahead), default=0))
            if used + step + needed > size or stopped():
                continue
            chosen[value] = node
            yield from self._extend(chosen, ahead, used + step, size, stopped)
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
                stack.extend(
                    (a, 0) for _, args in values[value].nodes for a in args if rank[a] < 0 and a not in open_
                )
    return rank
