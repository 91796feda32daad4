"""Whether a block fits: its shared memory as emission lays it out, shared by tiles that live one after the other.

In: the tiles of a kernel at many sizes. Out: the bytes that a block needs with the fewest stages of its ring.
Invariant: what fits by this number can be emitted in one of its ways. The cost model counts more roughly what runs
side by side (`occupancy.memory_beside`), as its constants were fitted.
"""

from __future__ import annotations

import numpy as np

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.saturation.values import BODY
from mirage_nb.search.sizes.anatomy import Numbers, Part, Truths
from mirage_nb.search.sizes.occupancy import PARTIAL_BYTES, SWIZZLE_BYTES, parts_of
from mirage_nb.search.sizes.rows import LINE_BYTES, PATTERN_ROWS, pitched
from mirage_nb.search.sizes.tiles import ACCUMULATOR_BYTES, Tiles

FEWEST_STAGES = 2
"""Of the ring of a loop."""
BEFORE, LOOP, AFTER = range(3)
"""When a step runs: once before the loop, in every iteration, or after it; all of a kernel without a loop is after."""


def needed(tiles: Tiles, bulk: Truths) -> Numbers:
    """Bytes of shared memory; `bulk`: where the copy engine brings the ring."""
    lives = _Lives(tiles)
    unit = np.where(bulk | _swizzles(tiles), SWIZZLE_BYTES, LINE_BYTES)
    begins: list[list[Numbers]] = [[] for _ in range(len(tiles.steps) + 1)]
    ends: list[list[Numbers]] = [[] for _ in range(len(tiles.steps) + 1)]
    for index, part in enumerate(tiles.made.parts):
        nbytes = _nbytes(tiles, index, part, bulk)
        if nbytes is not None:
            nbytes = np.ceil(nbytes / unit) * unit
            first, last = lives.of(index, part)
            begins[first].append(nbytes)
            ends[last].append(nbytes)
    alive = peak = np.zeros(tiles.shape)
    for beginning, ending in zip(begins, ends, strict=True):
        for nbytes in beginning:
            alive = alive + nbytes
        peak = np.maximum(peak, alive)
        for nbytes in ending:
            alive = alive - nbytes
    return peak


class _Lives:
    """From which step of a block to which a tensor lives; after the last of them, results are saved."""

    def __init__(self, tiles: Tiles) -> None:
        steps, made = tiles.steps, tiles.made
        phases = [_phase(tiles, index) for index in range(len(steps))]
        order = sorted(range(len(steps)), key=lambda index: phases[index])
        self.place = {index: place for place, index in enumerate(order)}
        self.phases = phases
        self.end = len(steps)
        self.looped = phases.count(BEFORE)
        self.after = self.looped + phases.count(LOOP)
        self.until = [self.place[index] for index in range(len(steps))]
        for output in tiles.kernel.outputs:
            self.until[output] = self.end
        for index in reversed(range(len(steps))):
            # What stays in registers reads its operands where it is read itself.
            read_at = self.until[index] if made.parts[index] is Part.INLINE else self.place[index]
            for read in steps[index].reads:
                self.until[read] = max(self.until[read], read_at)

    def of(self, index: int, part: Part) -> tuple[int, int]:
        """The first and the last place at which a tensor must keep its bytes."""
        until, first = self.until[index], self.place[index]
        if part is Part.STREAMED:
            return 0, max(self.after - 1, 0)  # filled before the first step
        if part is Part.HELD or self.phases[index] == BEFORE:
            return 0, max(until, self.after - 1) if until >= self.looped else until
        if self.phases[index] == LOOP and until >= self.after:
            return self.looped, until
        return self.after if part is Part.ACCUMULATOR else first, until


def _phase(tiles: Tiles, index: int) -> int:
    """When a step runs; each iteration writes its part of a concatenation."""
    step = tiles.steps[index]
    if tiles.kernel.loop is None:
        return AFTER
    if tiles.made.varying[index] or step.operator.accum is AccumKind.CONCAT:
        return LOOP
    return BEFORE if step.stage == BODY else AFTER


def _swizzles(tiles: Tiles) -> bool:
    """Whether a block computes operands, which it may swizzle: all tensors begin where such a pattern may then."""
    made = tiles.made
    return any(made.parts[index] in (Part.TILE, Part.ACCUMULATOR, Part.PRIVATE) for index in made.operands)


def _nbytes(tiles: Tiles, index: int, part: Part, bulk: Truths) -> Numbers | None:
    """Bytes of what a step leaves in shared memory, None if that is nothing."""
    match part:
        case Part.STREAMED:
            return np.minimum(FEWEST_STAGES, tiles.sizes.loop) * tiles.boxes(index).stored(bulk)
        case Part.HELD if index in tiles.made.operands:
            return tiles.boxes(index).plain
        case Part.HELD:
            return tiles.nbytes(index)
        case Part.ACCUMULATOR if tiles.steps[index].operator.accum is not AccumKind.CONCAT:
            return _summed(tiles, index)
        case Part.ACCUMULATOR if index in tiles.made.passing:
            return None
        case Part.ACCUMULATOR | Part.TILE:
            return _computed(tiles, index)
        case Part.PRIVATE:
            nbytes = _computed(tiles, index)
            return np.where(tiles.private, 0.0, nbytes) if tiles.chained else nbytes
        case _:
            return None


def _computed(tiles: Tiles, index: int) -> Numbers:
    """Bytes of a tile that a block computes for all of its threads; operands lie in patterns of rows, or apart."""
    if index not in tiles.made.operands:
        product = tiles.steps[index].operator.kind is OpKind.MATMUL
        return _apart(tiles, index, ACCUMULATOR_BYTES) if product else tiles.elements[index] * ACCUMULATOR_BYTES
    row = _row(tiles, index)
    lines = np.ceil(tiles.elements[index] / row / PATTERN_ROWS) * PATTERN_ROWS
    return np.minimum(lines * row * tiles.width, _apart(tiles, index, tiles.width))


def _summed(tiles: Tiles, index: int) -> Numbers:
    """Bytes of an accumulator, or of the parts of it that warps leave who share the depth of a product."""
    summed, parts = tiles.elements[index] * ACCUMULATOR_BYTES, parts_of(tiles, index)
    if parts is None:
        return summed
    (read, *_) = tiles.steps[index].reads
    product = tiles.steps[read].operator.kind is OpKind.MATMUL
    copies = np.maximum(1.0, np.floor(np.minimum(parts, PARTIAL_BYTES / summed)))
    nbytes: Numbers = copies * (_apart(tiles, index, ACCUMULATOR_BYTES) if product else summed)
    return nbytes


def _apart(tiles: Tiles, index: int, width: int) -> Numbers:
    """Bytes of a tile whose rows begin in different banks."""
    row = _row(tiles, index)
    return pitched(row * width, tiles.elements[index] / row)


def _row(tiles: Tiles, index: int) -> Numbers:
    """Elements of a row of a tile."""
    axis = tiles.made.innermost[index]
    if axis is None:
        return tiles.elements[index]
    return tiles.sizes.extent(tiles.kernel, axis, tiles.steps[index].type[axis])
