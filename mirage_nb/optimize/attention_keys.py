"""How a point of chained products takes its tiles of keys: in which loops, the last tile first.

In: what a mask says of tiles (`tile.rules.mask`), how many tiles of rows there are. Out: `Keys`: tables of what is
another number for every tile of rows, loops without bodies, and where each of them begins. Invariant: the loops take
what is needed once, and those that say so take all of it that is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_nb.tile.roles.program import Index, Loop, Skip, Table, counted
from mirage_nb.tile.rules.attention import KEYS
from mirage_nb.tile.rules.mask import Needed, Ranges, Span
from mirage_nb.tile.rules.products import ROWS

MASKED = "i"
"""The counter of iterations whose scores are masked."""
FIRST = "h"
"""The counter of the last iterations, where a window begins."""
LAST = "last"
"""The counter behind the tiles of keys that a tile of rows needs."""
EDGE, INNER, FAR = "edge", "inner", "far"
"""The counters of iterations over masked tiles, plain ones, and those where what is needed begins, by tables."""
FEWER = {EDGE: "edges", INNER: "inners", FAR: "fars"}
"""The counters of how many of them a tile of rows has, less than the one with most."""


@dataclass(frozen=True, slots=True)
class Section:
    """Iterations: their loop without a body; how many were done before; whether the mask is asked in them."""

    loop: Loop
    done: Index
    chosen: bool


@dataclass(frozen=True, slots=True)
class Keys:
    """The tiles of keys of a point. end: behind the last one; reach: how many there are at most, where the first ones
    are left out; load: all of them in one loop; chosen: the mask is asked in the first iteration, which stands in front
    of the sections; uneven: some rows need more than others, turned: the last ones do."""

    tables: tuple[Table, ...]
    end: Index
    reach: Index | None
    load: Loop
    chosen: bool
    sections: tuple[Section, ...]
    uneven: bool
    turned: bool

    def tile(self, done: Index) -> Index:
        """The tile of an iteration: the last ones come first."""
        return self.end + Index((), -1) + done * -1

    def skipped(self, step: int) -> tuple[Skip, ...]:
        """What is left out of the sum over keys, in tiles of so many."""
        if not self.end.terms and self.reach is None:
            return ()
        return (Skip(KEYS, self.end * step, None if self.reach is None else self.reach * step),)


def keys_of(needed: Needed, rows: int) -> Keys:
    """How so many tiles of rows take them."""
    return _listed(needed) if isinstance(needed, Ranges) else _lined(needed, rows)


def _lined(span: Span, rows: int) -> Keys:
    """By a line: the counter of rows runs from the last ones."""
    end = Index(((ROWS, -span.slope),), span.slope * (rows - 1) + span.base) if span.slope else Index((), span.base)
    masked = max(1, span.masked)

    def loop(counter: str, done: int, left: int = 0) -> Loop:
        most = None if span.most is None else span.most - done - left
        return Loop(counter, end.const - done, (), Index(end.terms), most)

    sections = []
    if masked > 1:
        sections.append(Section(Loop(MASKED, masked - 1, ()), Index((), 1), True))
    rest = loop(KEYS, masked, span.first)
    if (rest.more.terms or rest.count) and rest.most != 0:
        sections.append(Section(rest, Index((), masked), False))
    if span.most is not None and span.first:
        done = span.most - span.first
        sections.append(Section(loop(FIRST, done), Index((), done), True))
    reach = None if span.most is None else Index((), span.most)
    turned = bool(span.slope)
    return Keys((), end, reach, loop(KEYS, 0), span.masked > 0, tuple(sections), turned, turned)


def _listed(ranges: Ranges) -> Keys:
    """By tables: the counter of rows runs from those that need more."""
    needed = ranges.read(len(ranges.ends))
    turned = bool(needed[-1] > needed[0])
    tables: list[Table] = []

    def told(counter: str, numbers: Sequence[int]) -> Index:
        if len({*numbers}) == 1:
            return Index((), numbers[0])
        tables.append(Table(counter, ROWS, tuple(numbers[::-1] if turned else numbers)))
        return counted(counter)

    end, reach, done, sections = told(LAST, ranges.ends), Index(), Index(), []
    for counter, numbers in ((EDGE, ranges.masked), (INNER, ranges.plain), (FAR, ranges.far)):
        most = max(numbers)
        fewer = told(FEWER[counter], [number - most for number in numbers])
        first = int(counter == EDGE)  # which stands in front of the loops
        if most - first:
            loop = Loop(counter, most - first, (), fewer)
            sections.append(Section(loop, done + Index((), first), counter != INNER))
        done = done + fewer + Index((), most)
    reach = done
    load = Loop(KEYS, reach.const, (), Index(reach.terms))
    return Keys(tuple(tables), end, reach, load, True, tuple(sections), len({*needed}) > 1, turned)
