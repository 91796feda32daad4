"""What the threads of a block have to do: products, passes over tiles, reductions, barriers.

In: the tiles of a kernel at many sizes. Out: `Work`, the microseconds of one iteration, of what comes before the loop
and of what comes after it; where a block holds its tiles in registers by the rules of `tile.rules.register_resident`,
and what it does then. What hangs over the end of an axis is computed like everything else, and what zeros there would
spoil is masked.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import NamedTuple

import numpy as np

from mirage_nb.ir import OpKind
from mirage_nb.search.sizes.anatomy import WARPS, Along, Cell, Moved, Numbers, Part, Truths, common, largest
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.layouts import past_one
from mirage_nb.search.sizes.patches import Patched, of_product, patched
from mirage_nb.search.sizes.tiles import Tiles, sides
from mirage_nb.targets import Target
from mirage_nb.tile.roles.program import LANES
from mirage_nb.tile.rules.register_resident import hold, joins
from mirage_nb.tile.rules.shared import BANKS
from mirage_nb.tile.rules.sharing import COLUMN_TILE, DEPTH_TILE, PARTIAL_BYTES, ROW_TILE, SUM_BYTES
from mirage_nb.tile.rules.sketch import FOLDS, Node, Sketch
from mirage_nb.tile.rules.teams import CAPABILITY

HELD_REGISTERS = 24
"""Of a thread that holds tiles, beside what it loads."""
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


_Passes = dict[int, Numbers]
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

    def passes(self, value: int, *, saved: Moved | None = None) -> Numbers:
        """All threads walk over a tile, a vector each at a time."""
        rounds = self.tiles.rounds(value, saved=saved)
        if id(rounds) not in self.passed:
            self.passed[id(rounds)] = self._walk(rounds, self.tiles.elements[value])
        return self.passed[id(rounds)]

    def _walk(self, rounds: Numbers, elements: Numbers) -> Numbers:
        operations = elements * self.constants.vector_operations * self.operation
        return np.ceil(rounds) * self.constants.pass_us + operations

    def work(self) -> Work:
        """All of them."""
        tiles, constants, known = self.tiles, self.constants, self.tiles.outline
        waits: dict[int, bool] = {}
        for cell in known.cells:
            value, part = cell.value, known.parts[cell.value]
            waits[value] = part is Part.DIRECT or (part is Part.INLINE and any(waits[read] for read in cell.reads))
            threads = value in known.heads
            if threads:
                self._spend(cell, self._in_threads(cell))
            if cell.is_leaf or part is Part.INLINE:
                continue
            varying = known.varying[value]
            if part is Part.ACCUMULATOR:
                self.late = self.late + self._unless(tiles.body.direct, constants.barrier_us + self.passes(value))
                if known.varying[cell.reads[0]] and known.parts[cell.reads[0]] is Part.INLINE:
                    self.looped = self.looped + self.passes(cell.reads[0])
                continue
            if cell.node.kind is OpKind.MATMUL and not threads:
                spent, busy = self._product(cell)
                if varying:
                    self.busy = self.busy + busy
            else:
                spent = self._elementwise(cell, any(waits[read] for read in cell.reads))
            barrier = constants.loop_barrier_us if varying else constants.barrier_us
            if part is Part.TILE:
                spent = spent + barrier
            elif part is Part.PRIVATE:
                spent = spent + self._unless(tiles.private, barrier)
            self._spend(cell, spent)
        self._mask()
        for value in known.scaled:
            self.looped = self.looped + self.passes(value) + constants.loop_barrier_us
        for value, moved in known.saves:
            if value in known.across:
                width, rows = tiles.square(value, moved)
                squares = np.ceil(tiles.elements[value] / (LANES * WARPS * width * rows))
                saved = self._walk(squares * rows, tiles.elements[value])
            else:
                saved = self.passes(known.leaves[value], saved=moved)
            self.late = self.late + self._unless(tiles.body.direct, constants.barrier_us) + saved
        return Work(self.looped, self.early, self.late, self.busy)

    def _unless(self, spared: Truths, us: Numbers | float) -> Numbers | float:
        """What is spent where a warp-private body does not spare it."""
        return np.where(spared, 0.0, us) if self.tiles.chained else us

    def _spend(self, cell: Cell, spent: Numbers) -> None:
        """What a value takes, in the loop, before it, or after it."""
        if self.tiles.outline.varying[cell.value]:
            self.looped = self.looped + spent
        elif not cell.late:
            self.early = self.early + spent
        else:
            self.late = self.late + spent

    def _mask(self) -> None:
        """Masks are arithmetic on values in registers: a product, and a sum where a maximum follows."""
        for mask, over in self.tiles.masks():
            operations = self.tiles.elements[mask.value] * mask.operations
            us = operations * self.constants.held_operations * self.operation
            self._spend(self.tiles.outline.by_value[mask.value], np.where(over, us, 0.0))

    def _elementwise(self, cell: Cell, waits: bool) -> Numbers:
        """A value that is no product; `waits`: it is computed of what is read from device memory itself."""
        tiles, constants = self.tiles, self.constants
        spent: Numbers = largest(self.passes(i) for i in (cell.value, *cell.reads))
        if (found := patched(tiles, cell, constants)) is not None:
            spent = self._in_patches(found, tiles.elements[cell.node.reads[0]], spent, self.passes(cell.value))
        if not tiles.outline.varying[cell.value] and waits:
            spent = spent + np.ceil(largest(tiles.rounds(i) for i in cell.reads)) * constants.direct_us
        if tiles.outline.parts[cell.value] is Part.PRIVATE and tiles.chained:
            biggest = largest(tiles.elements[i] for i in (cell.value, *cell.reads))
            spent = np.where(tiles.private, biggest * constants.register_operations * self.operation, spent)
        return spent

    def _in_patches(self, found: Patched, elements: Numbers, other: Numbers, beside: Numbers | float = 0.0) -> Numbers:
        """So many elements, folded in patches where that can be and takes less than otherwise."""
        own = elements * found.operations * self.operation + np.ceil(found.steps) * self.constants.pass_us
        return np.where(found.able, np.minimum(own + beside, other), other)

    def _in_threads(self, cell: Cell) -> Numbers:
        """The multiply-adds of a product in a thread graph, those of one result one after the other; each reads all
        parts of a sum that warps share by depth."""
        known = self.tiles.outline
        shape, constants, parts = product_of(self.tiles, cell), self.constants, np.ones(self.tiles.shape)
        for read in cell.reads:
            if known.parts[read] is Part.ACCUMULATOR:
                source = known.by_value[known.by_value[read].reads[0]]
                if known.parts[source.value] is Part.FOLDED and source.value in known.cores:
                    parts = np.maximum(parts, self._sharing(source, product_of(self.tiles, source)))
        deep = np.where(shape.depth > constants.thread_depth, constants.deep_operations, constants.thread_operations)
        operations = np.maximum(deep, constants.across_operations) if self._is_turned(cell.node.reads[1]) else deep
        throughput = shape.elements * shape.depth * operations * self.operation
        return throughput + shape.depth * parts * constants.scalar_us

    def _is_turned(self, value: int) -> bool:
        """Whether threads read a value across: what is transposed where it lies has no vectors along its columns."""
        known = self.tiles.outline
        node = known.sketch.nodes[known.sketch.defined[value]]
        return known.parts[value] is Part.INLINE and node.kind is OpKind.TRANSPOSE

    def _product(self, cell: Cell) -> tuple[Numbers, Numbers]:
        """Microseconds of a product, and those in which the tensor cores are busy with it."""
        known = self.tiles.outline
        part, wide = known.parts[cell.value], cell.value not in known.cores
        turned = wide and self._is_turned(cell.node.reads[1])
        if part is Part.PRIVATE:  # what it takes depends on all of the body
            return self._multiplied(cell, wide, turned)
        key = (*(known.extents[value] for value in cell.node.reads), wide, turned, part is Part.FOLDED)
        if key not in self.products:
            self.products[key] = self._multiplied(cell, wide, turned)
        return self.products[key]

    def _multiplied(self, cell: Cell, wide: bool, turned: bool) -> tuple[Numbers, Numbers]:
        """Tensor instructions of the busiest warp: warps share rows and columns, and depth too where sums can wait.

        Each waits for the one before it that adds to the same sums. Products of f32 are computed by scalar units.
        """
        constants, target = self.constants, self.target
        shape = product_of(self.tiles, cell)
        if wide:
            scalar = np.ceil(shape.elements / (LANES * WARPS)) * shape.depth * constants.scalar_us
            banks = np.maximum(common(shape.depth, BANKS) * constants.bank_share, 1.0) if turned else 1.0
            patches = of_product(self.tiles, cell, shape.elements, constants)
            return self._in_patches(patches, shape.elements * shape.depth, scalar * banks), np.zeros(self.tiles.shape)
        most = self._sharing(cell, shape)
        # Where there are warpgroups, the rate is theirs.
        share = constants.tensor_share if target.capability == CAPABILITY else 1.0
        rate = share * target.tensor_rate * 1e6 / target.multiprocessors
        instruction = 2.0 * ROW_TILE * COLUMN_TILE * DEPTH_TILE / rate
        alone = np.ceil(shape.results * most / WARPS) * (WARPS * instruction)
        gathered = np.where(shape.gathered, constants.gather, 1.0)
        spent = np.ceil(shape.steps / most) * gathered * np.maximum(alone, constants.product_us)
        return spent, shape.results * shape.steps * instruction

    def _sharing(self, cell: Cell, shape: Product) -> Numbers:
        """Into how many parts warps cut the depth of a product, as memory for their sums allows: a power of two."""
        part = self.tiles.outline.parts[cell.value]
        if part not in (Part.FOLDED, Part.PRIVATE):
            return np.ones(self.tiles.shape)
        fit = PARTIAL_BYTES / (SUM_BYTES * shape.elements)
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


def product_of(tiles: Tiles, cell: Cell) -> Product:
    """The product of a value, the longer side of its result in the rows of the instructions."""
    left, right = (tiles.outline.extents[value] for value in cell.node.reads)

    def found() -> Product:
        batch, rows, depth, columns = sides(tiles, left, right)
        narrow, long = np.minimum(rows, columns), np.maximum(rows, columns)
        return Product(
            batch * rows * columns,
            depth,
            batch * np.ceil(long / ROW_TILE) * np.ceil(narrow / COLUMN_TILE),
            np.ceil(depth / DEPTH_TILE),
            (common(long, COLUMN_TILE) < COLUMN_TILE) | (common(depth, COLUMN_TILE) < COLUMN_TILE),
        )

    return tiles.sizes.once(("product", left, right), found)


class Held(NamedTuple):
    """Where a block holds its tiles in registers; where its threads share rows or columns; registers of a thread that
    tiles take; its warps; how often all threads take columns."""

    fits: Truths
    shared: Truths
    registers: Numbers
    warps: Numbers
    rounds: Numbers

    def lone(self, target: Target) -> Truths:
        """Where a block has a multiprocessor for itself."""
        found: Truths = 2 * (HELD_REGISTERS + self.registers) * self.warps * LANES > target.registers_per_multiprocessor
        return found


def held_in_registers(tiles: Tiles) -> Held:
    """What a block holds so: of a kernel at the same sizes it is asked more than once."""
    return tiles.sizes.once(("held", tiles.outline), partial(_held, tiles))


def _held(tiles: Tiles) -> Held:
    known, nowhere, runs = tiles.outline, np.zeros(tiles.shape, bool), list[Numbers]()
    none = Held(nowhere, nowhere, *np.zeros((3, *tiles.shape)))
    if known.flat.looped:
        return none
    for moved in known.reads.values():
        _, tensor, _, hanging = tiles.cut(moved)
        runs.append(np.where(reduce(np.logical_or, hanging), tensor[-1], 0))
    sketch, fits = _as_reshapes(tiles)
    found = hold(sketch, tiles.extents, runs, WARPS)
    if found is None:
        return none
    fits = fits & (found.width > 0)
    for _, over in tiles.masks():
        fits = fits & ~over  # a number that ends with its tensor
    shared, registers, warps = (np.broadcast_to(a, tiles.shape) for a in (found.shared, found.registers, found.warps))
    rounds = np.ceil(found.results / (np.maximum(found.width, 1) * LANES * warps))
    return Held(fits, fits & shared, registers, warps, np.where(shared, 0, rounds))


def _as_reshapes(tiles: Tiles) -> tuple[Sketch, Truths]:
    """The operators, transposes of tiles as the reshapes that they are at some sizes; where all of them are."""
    sketch, fits, nodes = tiles.outline.sketch, np.ones(tiles.shape, bool), list[Node]()
    placing = joins(sketch) if any(node.kind is OpKind.TRANSPOSE for node in sketch.nodes) else frozenset[int]()
    for index, node in enumerate(sketch.nodes):
        if node.kind is OpKind.TRANSPOSE and index not in placing:
            names = [tiles.outline.extents[value] for value in (*node.reads, *node.makes)]
            order, wanted = ([name.axis for name in some if isinstance(name, Along)] for some in names)
            short = {name.axis: tiles.extent(name) == 1 for name in names[0] if isinstance(name, Along)}
            fits, node = fits & past_one(order, wanted, short), replace(node, kind=OpKind.RESHAPE)
        nodes.append(node)
    return replace(sketch, nodes=tuple(nodes)) if nodes != [*sketch.nodes] else sketch, fits


def held_work(tiles: Tiles, held: Held, target: Target, constants: Constants) -> Numbers:
    """Microseconds of a block that holds its tiles in registers."""
    operations = np.where(held.lone(target), constants.lone_operations, constants.held_operations)
    operation = operations * target.multiprocessors / (target.vector_rate * 1e6)
    spent = held.rounds * constants.pass_us
    for cell in tiles.outline.cells:
        if not cell.is_leaf:
            biggest = largest(tiles.elements[i] for i in (cell.value, *cell.reads))
            spent = spent + biggest * operation
            spent = spent + (constants.exchange_us if cell.node.kind in FOLDS else 0.0)
    return spent
