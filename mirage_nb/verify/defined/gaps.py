"""Points at which a candidate may have no value although its program has one.

In: the elements of both graphs that are looked at. Out: `Suspect`s. What the candidate divides by or takes roots,
powers and logarithms of, and the program does not, is followed along straight lines between points: where it changes
its sign it has a zero, where it turns round near zero it may have two. A straight line meets its zero in one step and a
parabola its vertex, in exact numbers; other zeros are enclosed in short intervals. Where such a number is 0 or negative
at some point already, but the program has no value there, the elements that it depends on are put into a point at which
the program has one. A suspect is no more than a place to look at: whether values are there is seen there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirage_nb.interp.nodes import Index
from mirage_nb.interp.numbers import HALF, ONE, ZERO, Array, Hole, Number, arb, as_ball, fmpq, precision
from mirage_nb.interp.slices import Draw, Made, Slice
from mirage_nb.verify.reals.points import KINDS, between, point

LINES = ((0, 2), (0, 4), (3, 6))
"""Pairs of kinds of points between which is looked."""
FOLLOWED = 8
"""Numbers that are followed on a line."""
HALVINGS = 24
TRANSPLANTS = 24
"""Points at most that are made of two."""
BITS = 256


Seen = tuple[Draw, Made]
"""A point, and what was made there."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A point; or, with `crossing`, all points of a short interval, in which something that the candidate divides by
    has both signs: the operator's number, and the place."""

    draw: Draw
    crossing: tuple[int, int] | None = None


def gaps(program: Slice, candidate: Slice, seed: int, bits: int, seen: Sequence[Seen]) -> Iterator[Suspect]:
    """Where to look, after both were computed with so many bits at these points."""
    yield from itertools.islice(_transplants(program, candidate, bits, seen), TRANSPLANTS)
    for number, (start, end) in enumerate(LINES):
        line = _Line(candidate, point(KINDS[start], seed + number), point(KINDS[end], seed + number + 1))
        with precision(BITS):
            own = _keys(program, line.first)
        yield from line.suspects(own)


def _transplants(program: Slice, candidate: Slice, bits: int, seen: Sequence[Seen]) -> Iterator[Suspect]:
    """Points at which the program has values, but for the elements that make a critical number of the candidate, and
    not of the program, 0 or negative at another point."""
    with precision(bits):
        outputs = [program.compute(*one) for one in seen]
    counts = [sum(type(x) is not Hole for part in found for x in part) for found in outputs]
    good = seen[counts.index(max(counts))][0]
    for bad, made in seen:
        with precision(bits):
            own, numbers = _keys(program, bad, made), [x.tolist() for x in candidate.critical(bad, made)]
        for operator, values in enumerate(numbers):
            places = [n for n, x in enumerate(values) if _is_suspect(x) and _key(x) not in own]
            if places:
                yield Suspect(_mixed(bad, good, candidate.reads(operator, places)))


def _is_suspect(x: Number) -> bool:
    """Whether a number may be none to divide by, or to take a root of."""
    return type(x) is not Hole and bool(x <= 0)


def _is_number(x: Number) -> bool:
    """Whether there is a value that is no infinity, as masks choose it."""
    return type(x) is fmpq or (type(x) is arb and bool(x.is_finite()))


def _mixed(bad: Draw, good: Draw, reads: Mapping[str, Index]) -> Draw:
    """One point at these elements, another one elsewhere."""

    def draw(name: str, at: Index) -> Array:
        found = good(name, at).copy()
        here = np.isin(at, reads.get(name, np.zeros(0, np.int64)))
        if here.any():
            found[here] = bad(name, at[here])
        return found

    return draw


def _keys(graph: Slice, draw: Draw, made: Made | None = None) -> set[str]:
    """What a graph divides by and takes roots of at a point."""
    return {_key(x) for values in graph.critical(draw, made) for x in values}


def _key(x: Number) -> str:
    """The same for numbers that are equal, however both were computed: what is drawn are short binary fractions, whose
    digits may end where one would round, and times pi they never do."""
    if type(x) is Hole:
        return str(x.value)
    with precision(BITS):
        return str((abs(as_ball(x)) * arb.pi()).str(15, radius=False))


class _Line:
    """What the critical numbers of a graph are between two points."""

    def __init__(self, graph: Slice, first: Draw, last: Draw) -> None:
        self._graph = graph
        self._last = last
        self.first = first

    def suspects(self, known: set[str]) -> Iterator[Suspect]:
        """Where a number that is not known may be zero."""
        ends = [self._numbers(share) for share in (ZERO, HALF, ONE)]
        followed = 0
        for number, first in enumerate(ends[0]):
            for place, x in enumerate(first):
                values = [end[number][place] for end in ends]
                if _key(x) in known or not all(map(_is_number, values)):
                    continue
                known.add(_key(x))
                followed += 1
                if followed > FOLLOWED:
                    return
                yield from self._of((number, place), *values)

    def _of(self, which: tuple[int, int], a: Number, b: Number, c: Number) -> Iterator[Suspect]:
        """Suspects of one number from its values at the start, half way and at the end."""
        bend = a - b - b + c
        if not as_ball(bend).contains(0):
            yield self._at(HALF - _short((c - a) / (bend * 4)))
        for low, high, x, y in ((ZERO, HALF, a, b), (HALF, ONE, b, c)):
            if x * y < 0:
                share = low + _short(x / (x - y)) * (high - low)
                yield self._at(share)
                yield self._enclosed(which, low, high, bool(x < 0))

    def _enclosed(self, which: tuple[int, int], low: fmpq, high: fmpq, rises: bool) -> Suspect:
        """A short interval in which the number changes its sign."""
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            value = self._numbers(middle)[which[0]][which[1]]
            if type(value) is Hole or as_ball(value).contains(0):
                return self._at(middle)
            low, high = (middle, high) if bool(value < 0) == rises else (low, middle)
        with precision(BITS):
            share = as_ball(low).union(as_ball(high))
        return Suspect(between(self.first, self._last, share), which)

    def _at(self, share: fmpq) -> Suspect:
        return Suspect(between(self.first, self._last, share))

    def _numbers(self, share: fmpq) -> list[list[Number]]:
        with precision(BITS):
            return [x.tolist() for x in self._graph.critical(between(self.first, self._last, share))]


def _short(x: Number) -> fmpq:
    """The number itself, or a rational near a ball."""
    if type(x) is fmpq:
        return x
    mantissa, exponent = (x.mid() * 2**60).floor().mid().man_exp()
    return fmpq(int(mantissa)) * fmpq(2) ** int(exponent) / 2**60
