"""Extraction: read muGraphs off a closure, each graph once, smallest first.

In: a saturated closure and the values to compute. Out: graphs, each a choice of one node for every value
that it needs. Merging may let two values be read off each other (v = -w and w = -v); a graph never does.
Invariant: with no limit hit, exactly the graphs of at most N operators are produced, once each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from mirage_nb.search.saturation.values import Node, Value

POLL_EVERY = 16
"""Values that are decided between two looks at the stop flag."""

Choice = dict[int, Node]
"""The node chosen for every value of a graph, by value id."""


Option = tuple[int, int, int, Node]
"""A node: 1 if it is an operator, the places that it reads, what every graph of those computes, itself."""


@dataclass(slots=True)
class Extraction:
    """The values of a closure, ordered for extraction; sets of values are integers with a bit for each place.

    `place[v]` exceeds the place of everything that a derivation of v reads, unless that can be derived from v.
    `required[place]` holds values that every graph of that value computes: their number bounds the operators of
    such a graph from below.
    """

    values: Sequence[Value]
    rank: list[int] = field(default_factory=list)
    place: list[int] = field(default_factory=list)
    required: list[int] = field(default_factory=list)
    _value: list[int] = field(default_factory=list)
    _options: list[tuple[Option, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rank = _ranks(self.values)
        self._value = sorted(range(len(self.values)), key=lambda v: (self.rank[v], v))
        self.place = [0] * len(self.values)
        for place, value in enumerate(self._value):
            self.place[value] = place
        self.required = [0] * len(self.values)
        for place, value in enumerate(self._value):
            self.required[place] = self._required(place, self.values[value])
        self._options = [tuple(self._option(node) for node in self.values[value].nodes) for value in self._value]

    def _required(self, place: int, value: Value) -> int:
        common = -1
        for operator, args in value.nodes:
            if operator.is_leaf:
                return 0
            common &= self._all(args)
        return common | 1 << place

    def _all(self, values: Iterable[int]) -> int:
        joined = 0
        for value in values:
            joined |= self.required[self.place[value]]
        return joined

    def _places(self, values: Iterable[int]) -> int:
        found = 0
        for value in values:
            found |= 1 << self.place[value]
        return found

    def _option(self, node: Node) -> Option:
        operator, args = node
        return (0 if operator.is_leaf else 1, self._places(args), self._all(args), node)

    def minimum(self, roots: Sequence[int], upto: int, stopped: Callable[[], bool]) -> int | None:
        """The operators of the smallest graph that computes all roots, or None if it has more than `upto`."""
        for bound in range(self._all(roots).bit_count(), upto + 1):
            if next(self.graphs(roots, bound, stopped), None) is not None:
                return bound
            if stopped():
                return None
        return None

    def graphs(self, roots: Sequence[int], size: int, stopped: Callable[[], bool]) -> Iterator[Choice]:
        """Every graph of exactly `size` operators that computes all roots; ends early when stopped.

        The value in the last place is decided first, so whatever it reads is still open, or closes a cycle if it
        was made from this value. A branch ends when its operators and those that all of its values require are
        more than `size`.
        """
        chosen: Choice = {}
        first = self._places(roots)
        top = first.bit_length() - 1
        stack = [(top, first ^ 1 << top, 1 << top, self._all(roots), 0, iter(self._options[top]))]
        steps = count()
        while stack:
            if next(steps) % POLL_EVERY == 0 and stopped():
                return
            top, rest, done, needed, used, options = stack[-1]
            for cost, reads, required, node in options:
                now, need = used + cost, needed | required
                if now + (need & ~done).bit_count() > size:
                    continue
                if reads & done and self._reaches(reads & done, top, done, chosen):
                    continue
                chosen[self._value[top]] = node
                ahead = rest | reads & ~done
                if ahead:
                    following = ahead.bit_length() - 1
                    bit = 1 << following
                    stack.append((following, ahead ^ bit, done | bit, need, now, iter(self._options[following])))
                    break
                if now == size:
                    yield dict(chosen)
            else:
                stack.pop()
                chosen.pop(self._value[top], None)

    def _reaches(self, reads: int, top: int, done: int, chosen: Choice) -> bool:
        """Whether what was decided for these places reads the one that is being decided."""
        seen = 0
        while reads:
            place = reads.bit_length() - 1
            if place == top:
                return True
            seen |= 1 << place
            reads = (reads | self._places(chosen[self._value[place]][1]) & done) & ~seen
        return False

    def ordered(self, choice: Choice) -> list[int]:
        """The values of a graph, operands first; the same order in every run."""
        order: dict[int, None] = {}

        def add(value: int) -> None:
            if value not in order:
                for read in choice[value][1]:
                    add(read)
                order[value] = None

        for value in sorted(choice, key=lambda v: (self.values[v].stage, self.rank[v], v)):
            add(value)
        return list(order)


def _ranks(values: Sequence[Value]) -> list[int]:
    """Longest path over all derivations, but for those that would read what is derived from their own value."""
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
