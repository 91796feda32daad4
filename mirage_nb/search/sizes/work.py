"""What the threads of a block have to do: products, passes over tiles, reductions, barriers.

In: the tiles of a kernel at many sizes. Out: `Work`, the microseconds of one iteration, of what comes before the loop
and of what comes after it. What hangs over the end of an axis is computed like everything else, and what zeros there
would spoil is masked.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from mirage_nb.ir import OpKind
from mirage_nb.search.saturation.values import BODY, TILE
from mirage_nb.search.sizes.anatomy import WARPS, Numbers, Part, Truths, common, data_of, largest
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.masks import masks_of
from mirage_nb.search.sizes.occupancy import WARPGROUPS
from mirage_nb.search.sizes.tiles import ACCUMULATOR_BYTES, MATMUL_GRAIN, Tiles
from mirage_nb.targets import Target
from mirage_nb.tile.sharing import PARTIAL_BYTES
from mirage_nb.tile.sketch import REDUCTIONS

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


_Passes = dict[tuple[int, float], Numbers]
_Products = dict[Hashable, tuple[Numbers, Numbers]]


class _Steps:
    """Adds up the steps of a block."""

    def __init__(self, tiles: Tiles, target: Target, constants: Constants) -> None:
        self.tiles, self.target, self.constants = tiles, target, constants
        self.operation = target.multiprocessors / (target.vector_rate * 1e6)
        """Microseconds that an operation takes of one multiprocessor."""
        self.looped, self.early, self.late, self.busy = (np.zeros(tiles.shape) for _ in range(4))
        known: tuple[_Passes, _Products] = tiles.sizes.once(("work", target, constants), lambda: ({}, {}))
        self.passed, self.products = known

    def passes(self, index: int, share: float = 1.0, *, saved: bool = False) -> Numbers:
        """All threads walk over a tile, a vector each at a time."""
        rounds = self.tiles.rounds(index, saved=saved)
        key = (id(rounds), share)
        if key not in self.passed:
            operations = self.tiles.elements[index] * share * self.constants.vector_operations * self.operation
            self.passed[key] = np.ceil(rounds) * self.constants.pass_us + operations
        return self.passed[key]

    def work(self) -> Work:
        """All of them."""
        tiles, constants = self.tiles, self.constants
        parts, varying = tiles.outline.parts, tiles.outline.varying
        waits: list[bool] = []
        for index, step in enumerate(tiles.steps):
            part = parts[index]
            waits.append(part is Part.DIRECT or (part is Part.INLINE and any(waits[read] for read in step.reads)))
            if step.threads:
                self._spend(index, self._in_threads(index))
            if step.operator.is_leaf or part is Part.INLINE:
                continue
            if part is Part.ACCUMULATOR:
                self.late = self.late + self._unless(tiles.body.direct, constants.barrier_us + self.passes(index))
                if varying[step.reads[0]] and parts[step.reads[0]] is Part.INLINE:
                    self.looped = self.looped + self.passes(step.reads[0])
                continue
            if step.operator.kind is OpKind.MATMUL and not step.threads:
                spent, busy = self._product(index)
                if varying[index]:
                    self.busy = self.busy + busy
            else:
                spent = self._elementwise(index, any(waits[read] for read in step.reads))
            barrier = constants.loop_barrier_us if varying[index] else constants.barrier_us
            if part is Part.TILE:
                spent = spent + barrier
            elif part is Part.PRIVATE:
                spent = spent + self._unless(tiles.private, barrier)
            self._spend(index, spent)
        self._mask()
        for output in tiles.kernel.outputs:
            saved = self.passes(output, saved=True)
            self.late = self.late + self._unless(tiles.body.direct, constants.barrier_us) + saved
        return Work(self.looped, self.early, self.late, self.busy)

    def _unless(self, spared: Truths, us: Numbers | float) -> Numbers | float:
        """What is spent where a warp-private body does not spare it."""
        return np.where(spared, 0.0, us) if self.tiles.chained else us

    def _spend(self, index: int, spent: Numbers) -> None:
        """What a step takes, in the loop, before it, or after it."""
        if self.tiles.outline.varying[index]:
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
        if not tiles.outline.varying[index] and waits:
            spent = spent + np.ceil(largest(tiles.rounds(i) for i in step.reads)) * constants.direct_us
        if tiles.outline.parts[index] is Part.PRIVATE and tiles.chained:
            biggest = largest(tiles.elements[i] for i in (index, *step.reads))
            spent = np.where(tiles.private, biggest * constants.register_operations * self.operation, spent)
        return spent

    def _in_threads(self, index: int) -> Numbers:
        """The multiply-adds of a product in a thread graph, those of one result one after the other; each reads all
        parts of a sum that warps share by depth."""
        shape, constants, parts = product_of(self.tiles, index), self.constants, np.ones(self.tiles.shape)
        for read in self.tiles.steps[index].reads:
            if self.tiles.outline.parts[read] is Part.ACCUMULATOR:
                (source, *_) = self.tiles.steps[read].reads
                if self.tiles.outline.parts[source] is Part.FOLDED and source in self.tiles.outline.known.cores:
                    parts = np.maximum(parts, self._sharing(source, product_of(self.tiles, source)))
        throughput = shape.elements * shape.depth * constants.thread_operations * self.operation
        return throughput + shape.depth * parts * constants.scalar_us

    def _product(self, index: int) -> tuple[Numbers, Numbers]:
        """Microseconds of a product, and those in which the tensor cores are busy with it."""
        step, part = self.tiles.steps[index], self.tiles.outline.parts[index]
        wide = index not in self.tiles.outline.known.cores
        if part is Part.PRIVATE:  # what it takes depends on all of the body
            return self._multiplied(index, wide)
        types = (data_of(self.tiles.steps[read].type) for read in step.reads)
        key = (*types, step.operator.axis, wide, part is Part.FOLDED)
        if key not in self.products:
            self.products[key] = self._multiplied(index, wide)
        return self.products[key]

    def _multiplied(self, index: int, wide: bool) -> tuple[Numbers, Numbers]:
        """Tensor instructions of the busiest warp: warps share rows and columns, and depth too where sums can wait.

        Each waits for the one before it that adds to the same sums. Products of f32 are computed by scalar units.
        """
        constants, target = self.constants, self.target
        shape = product_of(self.tiles, index)
        if wide:
            scalar = np.ceil(shape.elements / (32 * WARPS)) * shape.depth * constants.scalar_us
            return scalar, np.zeros(self.tiles.shape)
        most = self._sharing(index, shape)
        # Where there are warpgroups, the rate is theirs.
        share = constants.tensor_share if target.capability == WARPGROUPS else 1.0
        rate = share * target.tensor_rate * 1e6 / target.multiprocessors
        instruction = 2.0 * math.prod(MATMUL_GRAIN) / rate
        alone = np.ceil(shape.results * most / WARPS) * (WARPS * instruction)
        gathered = np.where(shape.gathered, constants.gather, 1.0)
        spent = np.ceil(shape.steps / most) * gathered * np.maximum(alone, constants.product_us)
        return spent, shape.results * shape.steps * instruction

    def _sharing(self, index: int, shape: Product) -> Numbers:
        """Into how many parts warps cut the depth of a product, as memory for their sums allows: a power of two."""
        part = self.tiles.outline.parts[index]
        if part not in (Part.FOLDED, Part.PRIVATE):
            return np.ones(self.tiles.shape)
        fit = PARTIAL_BYTES / (ACCUMULATOR_BYTES * shape.elements)
        most = np.ones(self.tiles.shape)
        for count in SHARED_DEPTHS:
            most = np.where(fit >= count, count, most)
        most = np.minimum(most, shape.steps)
        return np.where(self.tiles.private, most, 1.0) if part is Part.PRIVATE else most


@dataclass(frozen=True, slots=True)
class Product:
    """A product of tiles in tensor instructions: `results` of the smallest ones, `steps` along the depth; `elements`
    and `depth` as they are. `gathered`: the operands are no multiples of 8 wide, and read element by element."""

    elements: Numbers
    depth: Numbers
    results: Numbers
    steps: Numbers
    gathered: Truths


def product_of(tiles: Tiles, index: int) -> Product:
    """The product of a step, the longer side of its result in the rows of the instructions."""
    step, sizes = tiles.steps[index], tiles.sizes
    along, (left, right) = step.operator.axis, (data_of(tiles.steps[read].type) for read in step.reads)

    def found() -> Product:
        height, columns, rest = (np.ones(tiles.shape) for _ in range(3))
        for axis, (a, b) in enumerate(zip(left, right, strict=True)):
            if a and not b:
                height = height * sizes.extent(tiles.kernel, axis, a)
            elif b and not a:
                columns = columns * sizes.extent(tiles.kernel, axis, b)
            elif a and axis != along:
                rest = rest * sizes.extent(tiles.kernel, axis, a)
        depth = sizes.extent(tiles.kernel, along, left[along])
        narrow, long = np.minimum(height, columns), np.maximum(height, columns)
        tall, thin, deep = MATMUL_GRAIN
        return Product(
            rest * height * columns,
            depth,
            rest * np.ceil(long / tall) * np.ceil(narrow / thin),
            np.ceil(depth / deep),
            (common(long, thin) < thin) | (common(depth, thin) < thin),
        )

    return sizes.once(("product", left, right, along), found)
