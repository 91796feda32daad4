"""Tessellation: an exact cover of a product's computation space by instructions of one or several kinds.

In: a space m x n x k x batch, kinds with their extents and cycles, how well units run side by side. Out: a
`Tessellation`, regions that lie beside each other, each tiled uniformly by one kind; None where no cover exists. The
formulation is Mosaic's (section 4.2): uniform tessellations are joined to non-uniform ones, along i, j or batch
(independent) or along k (reduction, which costs an addition for every result). Its heuristic (section 4.3, Algorithm 1)
chooses where to cut: at the multiples of a kind next to the ratio of the rates, infinite and zero included, and where
the multiples of a kind end, so that what is left of odd extents goes to smaller kinds instead of being padded. Where
the space is small every cut is tried. Invariant: regions are disjoint, and together are the space; a single kind is
the answer wherever it is the fastest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mirage_nb.tile.instructions.table import Unit

Extents = tuple[int, int, int, int]
"""Along i, j, k and batch."""
K = 2
SMALL_POINTS = 12
"""Points of a space of which every cut is tried."""
KEPT = 5
"""Covers of a box that are kept: none is slower on every unit than another."""
DEPTH, SMALL_DEPTH = 3, 5
"""Cuts inside one another, and in a small space."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An instruction, or what a group of warps makes of one: what it covers, and cycles of its unit."""

    name: str
    extents: Extents
    cycles: float
    unit: Unit


@dataclass(frozen=True, slots=True)
class SideBySide:
    """What a multiprocessor does with units at once. lost: how much of the shorter unit's time is not hidden behind the
    longer one's, measured; 0: all is hidden, 1: nothing. combine: cycles of the plain cores for a result that several
    kinds have summed."""

    lost: float = 0.0
    combine: float = 1 / 128


@dataclass(frozen=True, slots=True)
class Region:
    """A box that one kind tiles."""

    kind: Kind
    at: Extents
    extents: Extents

    @property
    def instances(self) -> int:
        """Instructions."""
        return math.prod(e // k for e, k in zip(self.extents, self.kind.extents, strict=True))


@dataclass(frozen=True, slots=True)
class Tessellation:
    """A cover. cycles: of each unit, combining included."""

    space: Extents
    regions: tuple[Region, ...]
    tensor: float
    plain: float
    side_by_side: SideBySide = field(default=SideBySide())

    @property
    def cycles(self) -> float:
        """Of a multiprocessor."""
        return _time(self.tensor, self.plain, self.side_by_side)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the kinds that are used."""
        return tuple(sorted({region.kind.name for region in self.regions}))


@dataclass(frozen=True, slots=True)
class _Cover:
    """A cover of a box somewhere: cycles of the units, and what it is made of: a kind, or two covers and a cut."""

    tensor: float
    plain: float
    kind: Kind | None = None
    axis: int = 0
    cut: int = 0
    parts: tuple[_Cover, ...] = ()


def _time(tensor: float, plain: float, side: SideBySide) -> float:
    return max(tensor, plain) + side.lost * min(tensor, plain)


def tessellate(space: Extents, kinds: Sequence[Kind], side: SideBySide | None = None) -> Tessellation | None:
    """The fastest cover that the heuristic finds; None where there is none. Raises ValueError for an empty space."""
    if min(space) < 1 or any(min(kind.extents) < 1 for kind in kinds):
        raise ValueError(f"a space of {space}, kinds of {[kind.extents for kind in kinds]}")
    side = side or SideBySide()
    covers = _Planner(tuple(kinds), side, _shares(kinds)).covers(space, SMALL_DEPTH if _small(space) else DEPTH)
    if not covers:
        return None
    best = min(covers, key=lambda c: (_time(c.tensor, c.plain, side), len(list(_regions(c, (0, 0, 0, 0), space)))))
    return Tessellation(space, _merged(_regions(best, (0, 0, 0, 0), space)), best.tensor, best.plain, side)


@dataclass(slots=True)
class _Planner:
    """Covers of boxes, each size once."""

    kinds: tuple[Kind, ...]
    side: SideBySide
    shares: tuple[float, ...]
    known: dict[tuple[Extents, int], list[_Cover]] = field(default_factory=dict)

    def covers(self, box: Extents, depth: int) -> list[_Cover]:
        """Covers of a box none of which is beaten on both units."""
        key = (box, depth)
        if key not in self.known:
            found = [cover for kind in self.kinds if (cover := _uniform(kind, box)) is not None]
            for axis, cut in self._cuts(box) if depth else ():
                found += self._joined(box, axis, cut, depth - 1)
            self.known[key] = _undominated(found, self.side)
        return self.known[key]

    def _joined(self, box: Extents, axis: int, cut: int, depth: int) -> Iterator[_Cover]:
        first, second = _part(box, axis, cut), _part(box, axis, box[axis] - cut)
        extra = self.side.combine * box[0] * box[1] * box[3] if axis == K else 0.0
        before = self.covers(first, depth)
        for a, b in itertools.product(before, self.covers(second, depth) if before else ()):
            yield _Cover(a.tensor + b.tensor, a.plain + b.plain + extra, None, axis, cut, (a, b))

    def _cuts(self, box: Extents) -> Iterator[tuple[int, int]]:
        """Where a box may be cut."""
        for axis, extent in enumerate(box):
            if _small(box):
                yield from ((axis, cut) for cut in range(1, extent))
                continue
            found: set[int] = set()
            for kind in self.kinds:
                step = kind.extents[axis]
                found.add(extent // step * step)
                found |= {math.floor(extent * share / step) * step for share in self.shares}
                found |= {math.ceil(extent * share / step) * step for share in self.shares}
            yield from ((axis, cut) for cut in sorted(found) if 0 < cut < extent)


def _shares(kinds: Sequence[Kind]) -> tuple[float, ...]:
    """What part of a space one kind takes that runs beside another of the other unit and ends with it."""
    rates = {kind: math.prod(kind.extents) / kind.cycles for kind in kinds}
    pairs = ((a, b) for a, b in itertools.permutations(kinds, 2) if a.unit is not b.unit)
    return tuple(sorted({rates[a] / (rates[a] + rates[b]) for a, b in pairs}))


def _small(box: Extents) -> bool:
    """Whether every cut is tried."""
    return math.prod(box) <= SMALL_POINTS


def _uniform(kind: Kind, box: Extents) -> _Cover | None:
    if any(extent % step for extent, step in zip(box, kind.extents, strict=True)):
        return None
    cycles = kind.cycles * math.prod(box) / math.prod(kind.extents)
    tensor = kind.unit is Unit.TENSOR
    return _Cover(cycles if tensor else 0.0, 0.0 if tensor else cycles, kind)


def _undominated(covers: list[_Cover], side: SideBySide) -> list[_Cover]:
    """Those that no other beats on both units; of many the fastest, and those that use one unit least."""
    found: list[_Cover] = []
    for cover in sorted(covers, key=lambda c: (c.tensor, c.plain)):
        if not found or cover.plain < found[-1].plain:
            found.append(cover)
    if len(found) > KEPT:
        ranked = sorted(found, key=lambda c: _time(c.tensor, c.plain, side))
        kept = {id(c) for c in (found[0], found[-1], *ranked[: KEPT - 2])}
        found = [c for c in found if id(c) in kept]
    return found


def _part(box: Extents, axis: int, extent: int) -> Extents:
    i, j, k, b = (extent if n == axis else e for n, e in enumerate(box))
    return i, j, k, b


def _regions(cover: _Cover, at: Extents, box: Extents) -> Iterator[Region]:
    """The regions of a cover that begins at `at`."""
    if cover.kind is not None:
        yield Region(cover.kind, at, box)
        return
    axis, cut = cover.axis, cover.cut
    yield from _regions(cover.parts[0], at, _part(box, axis, cut))
    yield from _regions(cover.parts[1], _part(at, axis, at[axis] + cut), _part(box, axis, box[axis] - cut))


def _merged(regions: Iterator[Region]) -> tuple[Region, ...]:
    """Neighbours of one kind that are one box, as one."""
    found = list(regions)
    again = True
    while again:
        again = False
        for a, b in itertools.permutations(found, 2):
            axis = _beside(a, b)
            if axis is not None:
                found.remove(b)
                found[found.index(a)] = replace(a, extents=_part(a.extents, axis, a.extents[axis] + b.extents[axis]))
                again = True
                break
    return tuple(found)


def _beside(a: Region, b: Region) -> int | None:
    """The axis along which b begins where a ends, the others being alike."""
    if a.kind is not b.kind:
        return None
    differ = [n for n in range(4) if (a.at[n], a.extents[n]) != (b.at[n], b.extents[n])]
    if len(differ) != 1 or a.at[differ[0]] + a.extents[differ[0]] != b.at[differ[0]]:
        return None
    return differ[0]


def counts(tessellation: Tessellation) -> NDArray[np.int64]:
    """How many instructions meet every point (i, j, k, b), instruction by instruction: ones for a cover."""
    found = np.zeros(tessellation.space, np.int64)
    for region in tessellation.regions:
        steps = region.kind.extents
        starts = (range(a, a + e, s) for a, e, s in zip(region.at, region.extents, steps, strict=True))
        for start in itertools.product(*starts):
            found[tuple(slice(a, a + s) for a, s in zip(start, steps, strict=True))] += 1
    return found
