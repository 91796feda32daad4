"""Shared memory of a block, as emission lays it out: what lies there, how long, in how many copies.

In: the tiles of a kernel at many sizes. Out: `Memory`, bytes beside the ring and of the ring at every depth. The steps
of a block and where values live (`tile.rules.placement`), their order and how long tensors live (`tile.rules.order`),
the bytes of a tensor (`tile.rules.shared`) and over how many warps a product is split (`tile.rules.sharing`) are the
rules that the planner asks, too. Invariant: what fits by these numbers can be emitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from mirage_nb.ir import AccumKind
from mirage_nb.search.sizes.anatomy import KNOWN, WARPS, Numbers, Outline, Truths
from mirage_nb.search.sizes.tiles import Tiles, sides
from mirage_nb.tile.rules.order import Phase, lifetime, scheduled
from mirage_nb.tile.rules.placement import Placement, Step, StepKind, Touched, place, touched
from mirage_nb.tile.rules.shared import LINE_BYTES, PATTERN_BYTES, Laid, Shape, Use, lay
from mirage_nb.tile.rules.sharing import depth_split, is_swapped

DEPTHS = (2, 3, 4)
"""Stages of a ring; fewer where the loop has fewer iterations."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The steps of a block in order, those operators whose values stay with warps, how its shared tensors are touched,
    and from when to when they live."""

    placed: Placement
    private: frozenset[int]
    steps: tuple[Step, ...]
    tensors: dict[int, Touched]
    lives: dict[int, tuple[int, int]]


@lru_cache(maxsize=KNOWN)
def staged(known: Outline, chained: bool, direct: bool) -> Staged:
    """The steps of a block in order. chained: the body of its loop stays with warps; direct: its accumulators
    go from registers to device memory, too."""
    placed, sketch, private = known.placed, known.sketch, frozenset[int]()
    if chained and known.body is not None:
        private = frozenset(known.body.ops)
        placed = place(sketch, private, direct=direct)
    steps, tensors = scheduled(placed.steps), touched(sketch, placed)
    return Staged(placed, private, steps, tensors, {value: lifetime(steps, value) for value in tensors})


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
    found = staged(tiles.outline, chained, direct)
    tensors = {value: _Tensor(tiles, value, found, how, warps) for value, how in found.tensors.items()}
    laid = {value: tensor.lay() for value, tensor in tensors.items()}
    here = {value: tiles.staged(value) for value in tensors if value in found.placed.early | found.placed.lone}
    swizzled = reduce(np.logical_or, (one.swizzled & here.get(v, True) for v, one in laid.items()), bulk)
    unit = np.where(swizzled, PATTERN_BYTES, LINE_BYTES)
    nowhere = np.zeros(tiles.shape)
    ring = np.zeros((len(DEPTHS), *tiles.shape))
    end = max((i for i, s in enumerate(found.steps) if s.phase is Phase.LOOP), default=-1) + 1
    held: dict[int, Numbers] = {}
    for value, tensor in tensors.items():
        left = tensor.how.left
        if left.issued and left.phase is Phase.LOOP:
            nbytes = np.where(bulk, tiles.boxes(value).nbytes, laid[value].nbytes) * here.get(value, 1.0)
            for row, depth in enumerate(DEPTHS):
                ring[row] += _whole(nbytes * np.minimum(depth, tiles.sizes.loop), unit)
            continue
        held[value] = _whole(laid[value].nbytes * tensor.copies() * here.get(value, 1.0), unit)
    beside = after = nowhere
    for at in {end, *(found.lives[value][0] for value in held)}:  # most lives where something begins to
        alive = [nbytes for value, nbytes in held.items() if found.lives[value][0] <= at <= found.lives[value][1]]
        total = reduce(np.add, alive, nowhere)
        if at < end:
            beside = np.maximum(beside, total)
        else:
            after = np.maximum(after, total)
    return Memory(beside, after, ring)


def _whole(nbytes: Numbers, unit: Numbers) -> Numbers:
    found: Numbers = np.ceil(nbytes / unit) * unit
    return found


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A shared tensor of a block, and how it is touched."""

    tiles: Tiles
    value: int
    staged: Staged
    how: Touched
    warps: int

    def lay(self) -> Laid:
        """How it lies: the cheapest way for those that write and read it."""
        writer, reads = self.how.tiled, self.how.reads
        if writer is None:
            return self._laid(Use.COPY if self.how.left.issued else Use.VECTOR, *reads)
        straight = self._laid(Use.STRAIGHT, *reads)
        if writer.kind is StepKind.FRAGMENT:
            return straight
        _, m, _, n = self._product(writer)
        swapped = is_swapped(m, n)
        return straight.where(swapped, self._laid(Use.TURNED, *reads)) if swapped.any() else straight

    def copies(self) -> Numbers | float:
        """Partial sums that warps leave."""
        left, known, body = self.how.left, self.tiles.outline, self.tiles.outline.body
        if left.kind is not StepKind.FINISH:
            return 1.0
        if body is not None and left.op in self.staged.private:
            whole = known.sketch.nodes[left.op].accum is AccumKind.MAX or self.value in body.keyed
            return 1.0 if whole else self.tiles.private_on(self.warps).keys
        if (writer := self.how.tiled) is None:
            return 1.0
        node = known.sketch.nodes[writer.op]
        key = tuple(known.extents[value] for value in node.pairs[0])
        loop = self.tiles.sizes.loop
        return self.tiles.sizes.once(
            ("split", key, self.warps), lambda: depth_split(*self._product(writer), self.warps, loop)
        )

    def _product(self, writer: Step) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Batch, rows, summed elements and columns of the product that writes it."""
        pair = self.tiles.outline.sketch.nodes[writer.op].pairs[0]
        left, right = (self.tiles.outline.extents[value] for value in pair)
        return sides(self.tiles, left, right)

    def _laid(self, *uses: Use) -> Laid:
        names, size = self.tiles.outline.extents[self.value], self.staged.placed.stored[self.value].size

        def found() -> Laid:
            one = np.ones(self.tiles.shape)
            *lead, rows, last = [one, one, *self.tiles.extents(self.value)]
            return lay(Shape(reduce(np.multiply, lead, one), rows, last, size, len(names) < 2), uses)

        return self.tiles.sizes.once(("laid", names, size, frozenset(uses)), found)
