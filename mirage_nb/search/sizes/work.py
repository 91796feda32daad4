"""What the threads of a block have to do: products, passes over tiles, reductions, barriers.

In: the tiles of a kernel at many sizes. Out: `Work`, the microseconds of one iteration, of what comes before the loop
and of what comes after it. What hangs over the end of an axis is computed like everything else, and what zeros there
would spoil is masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mirage_nb.ir import OpKind
from mirage_nb.search.saturation.values import BODY, DATA, TILE
from mirage_nb.search.sizes.anatomy import REDUCTIONS, WARPS, Numbers, Part, largest
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.masks import masks_of
from mirage_nb.search.sizes.occupancy import PARTIAL_BYTES, WARPGROUPS
from mirage_nb.search.sizes.tiles import ACCUMULATOR_BYTES, MATMUL_GRAIN, Tiles
from mirage_nb.targets import Target

SHARED_DEPTHS = (2, 4, 8)
"""Warps that may share the depth of a product."""


@dataclass(slots=True)
class Work:
    """Microseconds of a block: `looped` in one iteration, `early` before the loop, `late` after it. `products`: of
    one iteration, what the tensor cores are busy with products."""

    looped: Numbers
    early: Numbers
    late: Numbers
    products: Numbers


def work(tiles: Tiles, target: Target, constants: Constants) -> Work:
    """What a block does whose tiles pass through shared memory or stay in fragments."""
    return _Steps(tiles, target, constants).work()


class _Steps:
    """Adds up the steps of a block."""

    def __init__(self, tiles: Tiles, target: Target, constants: Constants) -> None:
        self.tiles, self.target, self.constants = tiles, target, constants
        self.operation = target.multiprocessors / (target.vector_rate * 1e6)
        """Microseconds that an operation takes of one multiprocessor."""
        self.looped, self.early, self.late, self.busy = (np.zeros(tiles.shape) for _ in range(4))
        self.passed: dict[tuple[int, int, float], Numbers] = {}

    def passes(self, index: int, share: float = 1.0, vector: Numbers | None = None) -> Numbers:
        """All threads walk over a tile, a vector each at a time."""
        elements = self.tiles.elements[index]
        vector = self.tiles.vector(index) if vector is None else vector
        key = (id(elements), id(vector), share)
        if key not in self.passed:
            vectors = np.ceil(elements / (32 * WARPS * vector))
            operations = elements * share * self.constants.vector_operations * self.operation
            self.passed[key] = vectors * self.constants.pass_us + operations
        return self.passed[key]

    def work(self) -> Work:
        """All of them."""
        tiles, constants = self.tiles, self.constants
        parts, varying = tiles.made.parts, tiles.made.varying
        waits: list[bool] = []
        for index, step in enumerate(tiles.steps):
            part = parts[index]
            waits.append(part is Part.DIRECT or (part is Part.INLINE and any(waits[read] for read in step.reads)))
            if step.operator.is_leaf or part is Part.INLINE:
                continue
            if part is Part.ACCUMULATOR:
                self.late = self.late + np.where(tiles.direct, 0.0, constants.barrier_us + self.passes(index))
                if varying[step.reads[0]] and parts[step.reads[0]] is Part.INLINE:
                    self.looped = self.looped + self.passes(step.reads[0])
                continue
            if step.operator.kind is OpKind.MATMUL:
                spent = self._product(index)
            else:
                spent = self._elementwise(index, any(waits[read] for read in step.reads))
            barrier = constants.loop_barrier_us if varying[index] else constants.barrier_us
            if part is Part.TILE:
                spent = spent + barrier
            elif part is Part.PRIVATE:
                spent = spent + np.where(tiles.private, 0.0, barrier)
            self._spend(index, spent)
        self._mask()
        for output in tiles.kernel.outputs:
            saved = self.passes(output, vector=tiles.saved_vector(output))
            self.late = self.late + np.where(tiles.direct, 0.0, constants.barrier_us) + saved
        return Work(self.looped, self.early, self.late, self.busy)

    def _spend(self, index: int, spent: Numbers) -> None:
        """What a step takes, in the loop, before it, or after it."""
        if self.tiles.made.varying[index]:
            self.looped = self.looped + spent
        elif self.tiles.steps[index].stage == BODY:
            self.early = self.early + spent
        else:
            self.late = self.late + spent

    def _mask(self) -> None:
        """Masks are arithmetic on values in registers: a product, and a sum where a maximum follows."""
        for axis in self.tiles.sizes.tiles:
            over = self.tiles.hanging(axis, TILE)
            if over.any():
                reduced = self.tiles.prepared.axes[axis].reduced
                for mask in masks_of(self.tiles.kernel, axis, reduced):
                    operations = self.tiles.elements[mask.step] * mask.operations
                    us = operations * self.constants.held_operations * self.operation
                    self._spend(mask.step, np.where(over, us, 0.0))

    def _elementwise(self, index: int, waits: bool) -> Numbers:
        """A step that is no product; `waits`: it reads from device memory itself."""
        tiles, constants = self.tiles, self.constants
        step = tiles.steps[index]
        share = constants.reduced if step.operator.kind in REDUCTIONS else 1.0
        spent: Numbers = largest(self.passes(i, share) for i in (index, *step.reads))
        if not tiles.made.varying[index] and waits:
            rounds = largest(tiles.elements[i] / (32 * WARPS * tiles.vector(i)) for i in step.reads)
            spent = spent + np.ceil(rounds) * constants.direct_us
        if tiles.made.parts[index] is Part.PRIVATE:
            biggest = largest(tiles.elements[i] for i in (index, *step.reads))
            spent = np.where(tiles.private, biggest * constants.register_operations * self.operation, spent)
        return spent

    def _product(self, index: int) -> Numbers:
        """Tensor instructions of the busiest warp: warps share rows and columns, and depth too where sums can wait.

        Each waits for the one before it that adds to the same sums. Products of f32 are computed by scalar units.
        """
        tiles, constants, target = self.tiles, self.constants, self.target
        step = tiles.steps[index]
        left, right = (tiles.steps[read].type for read in step.reads)
        height, columns, rest = (np.ones(tiles.shape) for _ in range(3))
        for axis, (a, b) in enumerate(zip(left, right, strict=True)):
            if a & DATA and not b & DATA:
                height = height * tiles.sizes.extent(tiles.kernel, axis, a)
            elif b & DATA and not a & DATA:
                columns = columns * tiles.sizes.extent(tiles.kernel, axis, b)
            elif a & DATA and axis != step.operator.axis:
                rest = rest * tiles.sizes.extent(tiles.kernel, axis, a)
        depth = tiles.sizes.extent(tiles.kernel, step.operator.axis, left[step.operator.axis])
        if any(tiles.made.wide[read] for read in step.reads):
            scalar: Numbers = np.ceil(rest * height * columns / (32 * WARPS)) * depth * constants.scalar_us
            return scalar
        narrow, long = np.minimum(height, columns), np.maximum(height, columns)
        tall, thin, deep = MATMUL_GRAIN
        results = rest * np.ceil(long / tall) * np.ceil(narrow / thin)
        steps = np.ceil(depth / deep)
        most = self._sharing(index, ACCUMULATOR_BYTES * rest * height * columns, steps)
        # Where there are warpgroups, the rate is theirs.
        share = constants.tensor_share if target.capability == WARPGROUPS else 1.0
        rate = share * target.tensor_rate * 1e6 / target.multiprocessors
        gathered = np.where((long % thin > 0) | (depth % thin > 0), constants.gather, 1.0)
        instruction = 2.0 * tall * thin * deep / rate
        alone = np.ceil(results * most / WARPS) * (WARPS * instruction)
        spent: Numbers = np.ceil(steps / most) * gathered * np.maximum(alone, constants.product_us)
        if tiles.made.varying[index]:
            self.busy = self.busy + results * steps * instruction
        return spent

    def _sharing(self, index: int, sums: Numbers, steps: Numbers) -> Numbers:
        """Into how many parts warps cut the depth of a product whose sums take so many bytes: a power of two."""
        part = self.tiles.made.parts[index]
        if part not in (Part.FOLDED, Part.PRIVATE):
            return np.ones(self.tiles.shape)
        fit = PARTIAL_BYTES / sums
        most = np.ones(self.tiles.shape)
        for count in SHARED_DEPTHS:
            most = np.where(fit >= count, count, most)
        most = np.minimum(most, steps)
        return np.where(self.tiles.private, most, 1.0) if part is Part.PRIVATE else most


def held_work(tiles: Tiles, target: Target, constants: Constants) -> Numbers:
    """Microseconds of a block that holds its tiles in registers."""
    operation = target.multiprocessors / (target.vector_rate * 1e6)
    spent = np.zeros(tiles.shape)
    for index, step in enumerate(tiles.steps):
        if not step.operator.is_leaf:
            biggest = largest(tiles.elements[i] for i in (index, *step.reads))
            spent = spent + biggest * constants.held_operations * operation
            spent = spent + (constants.exchange_us if step.operator.kind in REDUCTIONS else 0.0)
    return spent
