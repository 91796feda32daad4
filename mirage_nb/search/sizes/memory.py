"""Shared memory of a block, as emission lays it out: what lies there, how long, in how many copies.

In: the tiles of a kernel at many sizes. Out: `Memory`, bytes beside the ring and of the ring at every depth. The steps
of a block, their order and how long their tensors live (`tile.order`), the bytes of a tensor (`tile.shared`) and over
how many warps a product is split (`tile.sharing`) are the rules that the planner asks, too. Invariant: what fits by
these numbers can be emitted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.saturation.values import BODY
from mirage_nb.search.sizes.anatomy import WARPS, Anatomy, Numbers, Part, Truths
from mirage_nb.search.sizes.bodies import private
from mirage_nb.search.sizes.layouts import multiplied
from mirage_nb.search.sizes.tiles import ACCUMULATOR_BYTES, TILE_BYTES, Outline, Tiles
from mirage_nb.search.structure import KernelStructure
from mirage_nb.tile.order import Phase, lifetime, scheduled
from mirage_nb.tile.shared import LINE_BYTES, PATTERN_BYTES, Laid, Shape, Use, lay
from mirage_nb.tile.sharing import depth_split, is_swapped

DEPTHS = (2, 3, 4)
"""Stages of a ring; fewer where the loop has fewer iterations."""
SHARED = frozenset({Part.STREAMED, Part.HELD, Part.TILE, Part.ACCUMULATOR})
"""Parts whose values lie in shared memory."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A step of a block, as the planner has them: the step of the structure that it computes, and what it leaves in
    shared memory; `accum`: the accumulator that takes its result."""

    step: int
    value: int | None
    phase: Phase
    reads: frozenset[int] = frozenset()
    issued: bool = False
    accum: int | None = None
    fragment: bool = False


@lru_cache(maxsize=1024)
def staged(known: Outline, chained: bool, direct: bool) -> tuple[Staged, ...]:
    """The steps of a block in order. chained: the body of its loop stays with warps; direct: its accumulators
    go from registers to device memory, too."""
    steps = _Steps(known.kernel, known.made, chained, direct)
    found = [one for members in steps.made.groups for one in steps.of(members)] + steps.saved()
    return scheduled(sorted(found, key=lambda one: one.phase.value))


class _Steps:
    """Makes them."""

    def __init__(self, kernel: KernelStructure, made: Anatomy, chained: bool, direct: bool) -> None:
        self.kernel, self.made, self.direct = kernel, made, direct
        self.parts = [
            made.apart[i] if part is Part.PRIVATE and not chained else part for i, part in enumerate(made.parts)
        ]
        self.body = {i for i, part in enumerate(self.parts) if part is Part.PRIVATE}
        self.body |= {
            i for i, step in enumerate(kernel.steps) if step.operator.kind is OpKind.ACCUM and self.body & {*step.reads}
        }

    def of(self, members: tuple[int, ...]) -> list[Staged]:
        """Those of one operator, or of a chain."""
        steps, index = self.kernel.steps, members[0]
        part, phase = self.parts[index], self.phase(index)
        reads = frozenset[int]().union(*(self.shared(r) for m in members for r in steps[m].reads if r not in members))
        if part in (Part.STREAMED, Part.HELD):
            return [Staged(index, index, Phase.LOOP if part is Part.STREAMED else Phase.BEFORE, issued=True)]
        if steps[index].operator.kind is OpKind.ACCUM and part is Part.ACCUMULATOR:
            return self.accumulated(index, reads)
        if index in self.body:
            return [Staged(index, None, Phase.LOOP, reads, fragment=True)]
        if part is Part.FOLDED:
            accum = next(i for i, step in enumerate(steps) if index in step.reads)
            return [Staged(index, None, Phase.LOOP, reads, accum=accum)]
        return [Staged(m, m, phase, reads) for m in members if self.parts[m] is Part.TILE]

    def accumulated(self, index: int, reads: frozenset[int]) -> list[Staged]:
        """Those of an accumulator."""
        operator, (source, *_) = self.kernel.steps[index].operator, self.kernel.steps[index].reads
        if index in self.made.passing:
            return []
        if operator.accum is AccumKind.CONCAT:
            return [Staged(index, index, Phase.LOOP, reads)]
        finish = Staged(index, index, Phase.AFTER)
        if index in self.body:
            step = Staged(index, None, Phase.LOOP, reads, accum=index, fragment=True)
            return [step] if self.direct else [step, finish]
        if self.parts[source] is Part.FOLDED:
            return [finish]
        return [Staged(index, None, Phase.LOOP, reads, accum=index), finish]

    def saved(self) -> list[Staged]:
        """Those of what is saved."""
        return [
            Staged(i, None, Phase.LOOP if i in self.made.passing else Phase.AFTER, self.shared(i))
            for i in self.kernel.outputs
        ]

    def phase(self, index: int) -> Phase:
        """When it runs; all of a kernel without a loop is after."""
        if self.kernel.loop is None or self.kernel.steps[index].stage != BODY:
            return Phase.AFTER
        return Phase.LOOP if self.made.varying[index] else Phase.BEFORE

    def shared(self, index: int) -> frozenset[int]:
        """The shared tensors behind a value."""
        index = self.made.holder[index]
        if index in self.body and self.direct and self.parts[index] is Part.ACCUMULATOR:
            return frozenset()
        if self.parts[index] in SHARED and index not in self.made.passing:
            return frozenset({index})
        if self.parts[index] in (Part.DIRECT, Part.CONSTANT):
            return frozenset()
        together = self.made.together[index]
        reads = {r for m in together for r in self.kernel.steps[m].reads if r not in together}
        return frozenset[int]().union(*map(self.shared, reads))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a block: `beside` the ring while it is there, `after` it; of the ring, a row for each of `DEPTHS`."""

    beside: Numbers
    after: Numbers
    ring: Numbers

    def peak(self) -> Numbers:
        """Bytes at every depth."""
        found: Numbers = np.maximum(self.beside + self.ring, self.after)
        return found


def memory(tiles: Tiles, bulk: Truths, warps: int = WARPS) -> Memory:
    """The shared memory of a block of so many warps. bulk: where the copy engine brings the ring."""
    found = _counted(tiles, bulk, warps, chained=False, direct=False)
    if tiles.chained:
        for direct in (False, True):
            where = tiles.private & (tiles.body.direct == direct)
            if where.any():
                other = _counted(tiles, bulk, warps, chained=True, direct=direct)
                chosen = [(other.beside, found.beside), (other.after, found.after), (other.ring, found.ring)]
                found = Memory(*(np.where(where, mine, others) for mine, others in chosen))
    return found


def _counted(tiles: Tiles, bulk: Truths, warps: int, *, chained: bool, direct: bool) -> Memory:
    steps = staged(tiles.outline, chained, direct)
    tensors = {s.value: _Tensor(tiles, s, steps, warps) for s in steps if s.value is not None}
    laid = {value: tensor.lay() for value, tensor in tensors.items()}
    here = {value: tiles.staged(value) for value in tensors if value in tiles.made.early}
    swizzled = reduce(np.logical_or, (one.swizzled & here.get(v, True) for v, one in laid.items()), bulk)
    unit = np.where(swizzled, PATTERN_BYTES, LINE_BYTES)
    nowhere = np.zeros(tiles.shape)
    ring = np.zeros((len(DEPTHS), *tiles.shape))
    alive = [nowhere] * len(steps)
    loop = [i for i, s in enumerate(steps) if s.phase is Phase.LOOP]
    for value, tensor in tensors.items():
        if tensor.made.issued and tensor.made.phase is Phase.LOOP:
            nbytes = np.where(bulk, tiles.boxes(value).nbytes, laid[value].nbytes) * here.get(value, 1.0)
            for row, depth in enumerate(DEPTHS):
                ring[row] += _whole(nbytes * np.minimum(depth, tiles.sizes.loop), unit)
            continue
        nbytes = _whole(laid[value].nbytes * tensor.copies() * here.get(value, 1.0), unit)
        first, last = lifetime(steps, value)
        for place in range(first, last + 1):
            alive[place] = alive[place] + nbytes
    end = max(loop, default=-1) + 1
    most = [reduce(np.maximum, part, nowhere) for part in (alive[:end], alive[end:])]
    return Memory(most[0], most[1], ring)


def _whole(nbytes: Numbers, unit: Numbers) -> Numbers:
    found: Numbers = np.ceil(nbytes / unit) * unit
    return found


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A shared tensor of a block, and the step that leaves it."""

    tiles: Tiles
    made: Staged
    steps: Sequence[Staged]
    warps: int

    def lay(self) -> Laid:
        """How it lies: the cheapest way for those that write and read it."""
        size = self._size()
        reads = {Use.FACTOR if size == TILE_BYTES and self._tiled(s) else Use.VECTOR for s in self._readers()}
        writer = self._writer()
        if self.made.issued:
            return self._laid(size, Use.COPY, *reads)
        if writer is None:
            return self._laid(size, Use.VECTOR, *reads)
        if writer.fragment:
            return self._laid(size, Use.STRAIGHT, *reads)
        product = _Product.of(self.tiles, writer.step)
        swapped = is_swapped(product.m, product.n)
        straight = self._laid(size, Use.STRAIGHT, *reads)
        if not swapped.any():
            return straight
        return straight.where(swapped, self._laid(size, Use.TURNED, *reads))

    def copies(self) -> Numbers | float:
        """Partial sums that warps leave."""
        writer = next((s for s in self.steps if s.fragment and s.accum == self.made.step), self._writer())
        if writer is None or self.made.phase is not Phase.AFTER or writer.accum is None:
            return 1.0
        if writer.fragment:
            body, kernel = self.tiles.outline.body, self.tiles.kernel
            assert body is not None
            whole = self.tiles.steps[writer.step].operator.accum is AccumKind.MAX or writer.step in body.keyed
            known = self.tiles.outline.layouts
            return 1.0 if whole else private(kernel, body, known, self.tiles.sizes, self.warps).keys
        return _Product.of(self.tiles, writer.step).split(self.tiles, self.warps)

    def _laid(self, size: int, *uses: Use) -> Laid:
        value = self.tiles.made.leaves[self.made.step]
        layout = self.tiles.outline.layouts[value]
        type_ = self.tiles.steps[value].type
        key = ("laid", layout, tuple(type_), size, frozenset(uses))

        def found() -> Laid:
            one = np.ones(self.tiles.shape)
            extents = [one if a is None else self.tiles.sizes.extent(self.tiles.kernel, a, type_[a]) for a in layout]
            *lead, rows, last = [one, one, *extents]
            return lay(Shape(reduce(np.multiply, lead, one), rows, last, size, len(layout) < 2), uses)

        return self.tiles.sizes.once(key, found)

    def _size(self) -> int:
        """Bytes of an element: operands of tensor cores have 16 bits, what is computed has 32."""
        value = self.tiles.made.leaves[self.made.step]
        if self.made.issued:
            return self.tiles.bytes_of_element(value)
        step = self.tiles.steps[value]
        summed = step.operator.kind is OpKind.ACCUM and step.operator.accum is not AccumKind.CONCAT
        factor = value in self.tiles.outline.factors and not summed
        return TILE_BYTES if factor else ACCUMULATOR_BYTES

    def _readers(self) -> list[Staged]:
        return [s for s in self.steps if self.made.value in s.reads]

    def _writer(self) -> Staged | None:
        """The product on tensor cores that computes it, if one does."""
        if self.made.phase is Phase.AFTER and self.tiles.steps[self.made.step].operator.kind is OpKind.ACCUM:
            return next((s for s in self.steps if s.accum == self.made.step and self._tiled(s)), None)
        return self.made if self._tiled(self.made) else None

    def _tiled(self, step: Staged) -> bool:
        structure = self.tiles.steps[step.step]
        if structure.operator.kind is OpKind.ACCUM:
            return step.fragment and self.tiles.outline.layouts[step.step][-1:] != (None,)
        return step.step in self.tiles.outline.cores


@dataclass(frozen=True, slots=True)
class _Product:
    """Extents of a product, as its operands lie."""

    key: Hashable
    batch: Numbers
    m: Numbers
    k: Numbers
    n: Numbers

    @classmethod
    def of(cls, tiles: Tiles, index: int) -> _Product:
        """The product of a step."""
        step, known = tiles.steps[index], tiles.outline.layouts
        exchanged, left, right = multiplied(known[step.reads[0]], known[step.reads[1]], step.operator.axis)
        of_left, of_right = (tiles.steps[r].type for r in (step.reads[::-1] if exchanged else step.reads))

        def extent(axis: int | None, of: tuple[int, ...]) -> Numbers:
            return np.ones(tiles.shape) if axis is None else tiles.sizes.extent(tiles.kernel, axis, of[axis])

        lead = {a: t for part, t in ((left, of_left), (right, of_right)) for a in part[:-2] if a is not None}
        batch = reduce(np.multiply, (extent(a, t) for a, t in lead.items()), np.ones(tiles.shape))
        key = (left, right, tuple(of_left), tuple(of_right))
        return cls(key, batch, extent(left[-2], of_left), extent(left[-1], of_left), extent(right[-1], of_right))

    def split(self, tiles: Tiles, warps: int) -> Numbers:
        """Over how many warps its depth is split."""

        def found() -> Numbers:
            return depth_split(self.batch, self.m, self.k, self.n, warps, tiles.sizes.loop)

        return tiles.sizes.once(("split", self.key, warps), found)
