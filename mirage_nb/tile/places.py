"""Where things lie along axes: coordinates, parts that were summed, bounds, and what is stored once.

In: tiles, indices, the counters of a role. Out: findings in words. `tile.roles.flow` follows the statements and asks
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mirage_nb.tile.instructions.table import Place
from mirage_nb.tile.roles.program import PART, Index, Program, Store, Tile, counted

Coordinates = dict[str, Index]
Parts = frozenset[tuple[Index, int]]
"""Where parts of an axis begin, and how long they are."""
Terms = tuple[tuple[str, int], ...]
"""Of an index: counters and factors."""


@dataclass(frozen=True, slots=True)
class Held:
    """A value, or what a register tile holds: where it begins along its axes; of what was summed, along which axis and
    of which operands, the parts; the tiles of rows and columns that it is computed from, each as it was then."""

    at: Coordinates = field(default_factory=dict)
    folded: dict[tuple[str, str], Parts] = field(default_factory=dict)
    axes: tuple[str, ...] = ()
    reads: dict[str, int] = field(default_factory=dict)
    version: int = 0


def joined(one: Held, other: Held) -> Held:
    """What is computed of two values."""
    keys = one.folded.keys() | other.folded.keys()
    folded = {key: one.folded.get(key, frozenset()) | other.folded.get(key, frozenset()) for key in keys}
    axes = max(one.axes, other.axes, key=len)
    return Held(one.at | other.at, folded, axes, one.reads | other.reads)


def through(parts: Parts, counter: str, count: int) -> Parts:
    """Parts at all values of a counter."""
    found = set()
    for start, length in parts:
        step, rest = dict(start.terms).get(counter, 0), tuple(term for term in start.terms if term[0] != counter)
        found |= {(Index(rest, start.const + step * value), length) for value in range(count)}
    return frozenset(found)


class Places:
    """The counters of a role: how many values those of the walk take, and what those of loops are now."""

    def __init__(self, program: Program, role: str, counters: dict[str, int]) -> None:
        self.program, self.role, self.counters = program, role, counters
        self.bound: dict[str, int] = {}
        self.summed: dict[str, range] = {}
        """Of axes that are not summed as a whole at this point, what is."""
        self.partly = False
        """Whether marks leave some of it out, so that nothing is asked of sums."""

    def index(self, index: Index) -> Index:
        """With the counters of loops replaced by what they are."""
        terms = tuple(term for term in index.terms if term[0] not in self.bound)
        return Index(terms, index.const + sum(f * self.bound[c] for c, f in index.terms if c in self.bound))

    def tensor(self, name: str) -> Tile | None:
        """The global tile of this name."""
        return next((t for t in self.program.tiles if t.name == name and t.place is Place.GLOBAL), None)

    def box(self, tile: Tile, role: str = "") -> dict[str, int]:
        """What one access to a global tensor behind the products reaches along its axes."""
        return dict(zip(tile.axes, self.program.box(tile, role or self.role), strict=True))

    def held(self, tile: Tile) -> tuple[str, ...]:
        """The axes of a global tensor along which this role's register tiles lie, rows first."""
        return self.program.held_axes(tile, self.role)

    def placed(self, tile: Tile, at: tuple[Index, ...]) -> Coordinates:
        """The coordinates of a box of a global tensor."""
        return {axis: self.index(index) for axis, index in zip(tile.axes, at, strict=False) if axis}

    def reduced(self, value: Held, axis: str) -> Held:
        """A value summed along an axis, as far as its tile reaches."""
        held = [t for t in self.program.tiles if t.place is Place.REGISTER and axis in t.axes]
        length = max((t.shape[t.axes.index(axis)] for t in held), default=1)
        key = (axis, "")
        parts = value.folded.get(key, frozenset()) | {(value.at.get(axis, Index()), length)}
        at = {name: place for name, place in value.at.items() if name != axis}
        return Held(at, {**value.folded, key: parts}, tuple(a for a in value.axes if a != axis))

    def whole(self, axis: str, what: str, parts: Parts) -> Iterator[str]:
        """Whether parts are all of the axis, or of the part of it that counters choose."""
        if self.partly:
            return
        summed = self.summed.get(axis, range(self.program.extents[axis]))
        extent, end, last = min(self.program.extents[axis], summed.stop), summed.start, 0
        terms = {start.terms for start, _ in parts}
        for start, length in sorted(parts, key=lambda part: part[0].const):
            if start.const != end or len(terms) > 1:
                yield f"{what}: steps along {axis} leave elements out, or take some twice"
                return
            last, end = start.const, start.const + length
        for counter, factor in sorted(next(iter(terms)), key=lambda term: term[1]):
            if factor != end:
                yield f"{what}: steps along {axis} leave elements out, or take some twice"
                return
            last += factor * (self.counters.get(counter, 1) - 1)
            end *= self.counters.get(counter, 1)
        if end < extent or last >= extent:
            yield f"{what}: {end} of {extent} elements along {axis} are summed"

    def with_parts(self, value: Held) -> Coordinates:
        """The coordinates of a value, those counters included that choose the part of an axis that it sums, where no
        place says so."""
        chosen = {name for parts in value.folded.values() for start, _ in parts for name, _ in start.terms}
        chosen -= {name for place in value.at.values() for name, _ in place.terms}
        return {**value.at, **{name: counted(name) for name in chosen}}

    def stored(self, store: Store) -> Iterator[str]:
        """Whether all elements of an output are stored once, by this role and those beside it."""
        tile, used = self.program.tile(store.target), list[str]()
        for dim, (axis, extent, index) in enumerate(zip(tile.axes, tile.shape, store.at, strict=True)):
            used += [name for name, _ in index.terms]
            (terms, first), size = self._together(tile, store, dim)
            yield from self._covers(axis, extent, Index(terms, first), size)
        once = {name for name, count in self.counters.items() if count > 1}
        if sorted(used) != sorted(set(used)) or not once <= set(used):
            yield f"elements of {tile.name} are stored more than once"

    def _together(self, tile: Tile, store: Store, dim: int) -> tuple[tuple[Terms, int], int]:
        """Where begins what this role and those beside it store along a dimension, and how far it reaches without a gap
        or an overlap; 0 where there is one. Beside it are those that store the same places along all others."""
        others = [n for n in range(len(store.at)) if n != dim]
        mine = [self._span(tile, self.role, store, n) for n in others]
        parts: dict[int, int] = {}
        (terms, first), size = self._span(tile, self.role, store, dim)
        for role, other in self.program.stores(store.target):
            if len(other.at) != len(store.at) or mine != [self._span(tile, role, other, n) for n in others]:
                continue
            (counters, at), extent = self._span(tile, role, other, dim)
            if counters == terms:
                size, parts = (0 if at in parts else size), {**parts, at: extent}
        return (terms, min(parts, default=first)), _reach(parts) if size else 0

    def _span(self, tile: Tile, role: str, store: Store, dim: int) -> tuple[tuple[Terms, int], int]:
        """The same of a role alone, whose groups store part for part."""
        index, size = store.at[dim], self.box(tile, role).get(tile.axes[dim], 1)
        step = dict(index.terms).get(PART, 0)
        count = next(r.parts for r in self.program.roles if r.name == role) if step else 1
        starts = [index.const + step * part for part in range(count)]
        terms = tuple(sorted(term for term in index.terms if term[0] != PART))
        return (terms, min(starts)), _reach(dict.fromkeys(starts, size))

    def _covers(self, axis: str, extent: int, index: Index, size: int) -> Iterator[str]:
        """Whether the tiles of all counters lie behind each other, from the first element to the last."""
        last, index = 0, self._forward(index)
        for name, factor in sorted(index.terms, key=lambda term: term[1]):
            if factor != size:
                yield f"tiles along {axis} are {factor} apart, and {size} long"
                return
            last += factor * (self.counters.get(name, 1) - 1)
            size *= self.counters.get(name, 1)
        if index.const or size < extent or last >= extent:
            yield f"{size} of {extent} elements along {axis} are stored, from {index.const} on"

    def _forward(self, index: Index) -> Index:
        """The same places, with counters that run the other way."""
        turned = sum(factor * (self.counters.get(name, 1) - 1) for name, factor in index.terms if factor < 0)
        return Index(tuple((name, abs(factor)) for name, factor in index.terms), index.const + turned)

    def bounds(
        self, tile: Tile, at: tuple[Index, ...], box: dict[str, int], *, engine: bool, apart: bool = False
    ) -> Iterator[str]:
        """Whether every box begins inside the tensor, or what a role has of a box that does; one that ends beyond it is
        cut off there. apart: boxes end with their matrix."""
        if len(at) != len(tile.shape):
            yield f"{len(at)} indices into {tile.name}"
            return
        for dim, (axis, extent, place) in enumerate(zip(tile.axes, tile.shape, at, strict=True)):
            index = self.index(place)
            unknown = [name for name, _ in index.terms if name not in self.counters]
            if unknown:
                yield f"{tile.name}: {', '.join(unknown)} does not run here"
                continue
            index = self._forward(index)
            if index.const < 0:
                yield f"{tile.name}: an index before its first element"
            last = index.const + sum(factor * (self.counters[name] - 1) for name, factor in index.terms)
            own = index.const + sum(f * (self.counters[n] - 1) for n, f in index.terms if n == PART)
            if last - (0 if engine or axis not in self.held(tile) else own) >= extent:
                yield f"{tile.name}: an index {last} of {extent} along {axis or 'a dimension of one element'}"
            over = engine and axis in box and last + box[axis] > extent
            if over and self._next(tile, dim, box, apart):
                yield f"{tile.name}: boxes reach into the next matrix"

    def _next(self, tile: Tile, dim: int, box: dict[str, int], apart: bool) -> bool:
        """Whether something else follows the end of a dimension of a box, as rows and columns of one matrix lie."""
        rows = next(n for n, other in enumerate(tile.axes) if other in box)
        return max(tile.shape[: 0 if apart else rows] if dim == rows else tile.shape[rows + 1 : dim], default=1) > 1


def _reach(parts: dict[int, int]) -> int:
    """How far parts that begin at these places reach behind each other; 0 where there is a gap or an overlap."""
    left = dict(parts)
    first = at = min(left, default=0)
    while at in left:
        at += left.pop(at)
    return at - first if not left else 0
