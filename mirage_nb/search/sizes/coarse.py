"""A coarse estimate: what one kernel, or two, would take for a program at best, before anybody searches for it.

In: a program over axes, a target. Out: microseconds. It knows no muGraph, only what every kernel of the program has to
do: read what it reads once, and again for every block that shares it; do its work, and again wherever blocks are laid
out along axes that a value has not; keep the tile of its results on the chip. Blocks lie along axes that all outputs
have and nothing folds; a second kernel may sum up what blocks along one more axis leave. It says which parts of a
program pay as one piece (`search.pieces.partition`) and ranks nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from mirage_nb.ir import HALVES, KernelGraph, OpKind
from mirage_nb.search.axes import Prepared, prepare
from mirage_nb.search.limits import MAX_GRID_DIMS
from mirage_nb.search.pieces.piece import HEAVY
from mirage_nb.search.sizes.constants import FITTED
from mirage_nb.search.sizes.instantiate import some_fit
from mirage_nb.search.structure import as_they_stand, looped
from mirage_nb.targets import Target
from mirage_nb.tile.rules.register_resident import held_elements
from mirage_nb.tile.rules.sharing import SUM_BYTES

TILES = (1, 16, 64, 128)
"""What a grid axis is cut into, about; or it stays whole."""
SPLITS = (1, 4, 16, 64)
"""Blocks along an axis whose parts a second kernel sums up."""
RESULT_US = 0.1
"""One more tensor that is written: of two ways to join operators, the one that stores less."""
NEAR_US = 0.5
"""Less between two estimates says nothing: attention of 32 heads at 18.4 and 18.7 took 24.5 and 22.8 us on an H200."""
NUMBER = FITTED.held_operations / FITTED.register_operations
"""Of the operations of an element, what one takes that is computed of numbers of places alone: a thread knows these."""
KNOWN = 4096

Numbers = npt.NDArray[np.float64]
Axes = frozenset[int]


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes that are read or written, or operations: of a value with these axes, computed along those of `over`."""

    axes: Axes
    over: Axes
    amount: float


@dataclass(slots=True)
class _Work:
    """What a program reads, its products and other operators; how many results it has, their elements and bytes."""

    count: int
    results: int
    written: int
    reads: list[_Part] = field(default_factory=list)
    products: list[_Part] = field(default_factory=list)
    others: list[_Part] = field(default_factory=list)


def coarse_us(prepared: Prepared, target: Target) -> float:
    """Microseconds of a program that can be said over axes, as one kernel or two; infinite where it fits no chip."""
    return min(_one_or_two_us(prepared, target))


@lru_cache(maxsize=KNOWN)
def generated_us(graph: KernelGraph, target: Target, looped: bool) -> float:
    """What a program takes as one kernel or two, which may have loops; infinite where it is none. It is cut into the
    same pieces in other words, and its pieces into theirs."""
    prepared = prepare(graph)
    fits = not prepared.refused and (looped or one_block_fits(prepared, target))
    return coarse_us(prepared, target) if fits else math.inf


def two_pay(prepared: Prepared, target: Target) -> bool:
    """Whether two kernels, the second of which sums up what the first one leaves, are estimated as fast as one."""
    one, two = _one_or_two_us(prepared, target)
    return two < one + NEAR_US


@lru_cache(maxsize=KNOWN)
def _one_or_two_us(prepared: Prepared, target: Target) -> tuple[float, float]:
    extents = [float(axis.extent) for axis in prepared.axes]
    work, grid, tensor = _work(prepared, extents), _grid(prepared), _products_per_us(prepared, target)
    written = {axis for layout in prepared.output_axes for axis in layout}

    def least_us(split: int | None) -> float:
        return _least_us(work, _Blocks.over(grid, split, extents), tensor, target)

    return least_us(None), min((least_us(a) for a in prepared.reduced if a not in written), default=math.inf)


def one_block_fits(prepared: Prepared, target: Target) -> bool:
    """Whether a block without a loop can hold what it computes of a program, as small as a grid cuts it; one that
    multiplies has a loop, where it can."""
    if any(operator.kind in HEAVY for operator, _ in prepared.program):
        return looped(prepared) is not None
    grid = {*_grid(prepared)}
    sizes = [prod(prepared.axes[axis].extent for axis in span - grid) for span in prepared.spans]
    if SUM_BYTES * sum(sizes) <= target.shared_per_block:
        return True
    return max(sizes) <= longest_row(prepared.graph, target) and some_fit(as_they_stand(prepared), prepared, target)


def longest_row(program: KernelGraph, target: Target) -> int:
    """Elements of a row that a block without a loop may hold: in shared memory, or in registers as the largest input
    has them."""
    largest = max((i.type for i in program.inputs), key=lambda type_: type_.elements, default=None)
    held = held_elements(largest.dtype.size) if largest is not None else 0
    return max(target.shared_per_block // SUM_BYTES, held)


def _products_per_us(prepared: Prepared, target: Target) -> float:
    """Operations of products that all multiprocessors do together."""
    graph = prepared.graph
    factors = (graph.types[value].dtype for op in graph.ops if op.kind in HEAVY for value in op.inputs)
    wide = any(dtype not in HALVES for dtype in factors)
    return 1e6 * FITTED.tensor_share * (target.vector_rate if wide else target.tensor_rate)


def _grid(prepared: Prepared) -> tuple[int, ...]:
    """The longest axes that all outputs have, and nothing folds."""
    common = set(prepared.free)
    for layout in prepared.output_axes:
        common.intersection_update(layout)
    able = [axis for axis in common if prepared.axes[axis].extent > 1]
    return tuple(sorted(sorted(able, key=lambda a: (-prepared.axes[a].extent, a))[:MAX_GRID_DIMS]))


def _work(prepared: Prepared, extents: Sequence[float]) -> _Work:
    def part(axes: Axes, over: Axes, each: float = 1.0) -> _Part:
        return _Part(axes, over, each * prod(extents[a] for a in over))

    outputs = prepared.graph.output_types
    work = _Work(len(outputs), sum(t.elements for t in outputs), sum(t.nbytes for t in outputs))
    spans, numbers = prepared.spans, set[int]()
    for value, ((operator, args), own) in enumerate(zip(prepared.program, spans, strict=True)):
        over: Axes = own.union(*(spans[a] for a in args))
        if operator.kind is OpKind.IN_ITER:
            given = prepared.graph.inputs[prepared.tensors[operator.leaf].input]
            if given.places:
                numbers.add(value)
            else:
                work.reads.append(part(own, own, given.type.dtype.size))
            continue
        if numbers.issuperset(args):
            numbers.add(value)
        if operator.kind is OpKind.MATMUL:
            work.products.append(part(own, over, 2.0))
        elif operator.kind is not OpKind.CONST:
            each = NUMBER if value in numbers else 1.0
            work.others.append(part(own, own if operator.kind is OpKind.CONCAT else over, each))
    return work


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Every way considered to lay out blocks: how many along each axis, one number for each way; along `split` every
    block leaves a part of a sum."""

    along: dict[int, Numbers]
    split: int | None
    total: Numbers

    @classmethod
    def over(cls, grid: Sequence[int], split: int | None, extents: Sequence[float]) -> _Blocks:
        """Along the axes of a grid, and along one more."""
        tiles = [[t for t in TILES if t < extents[a]] + [extents[a]] for a in grid]
        parts = [1] if split is None else [n for n in SPLITS if 1 < n < extents[split]]
        table = np.array([*product(*tiles, parts)], np.float64).reshape(-1, len(grid) + 1)
        along = {axis: np.ceil(extents[axis] / table[:, place]) for place, axis in enumerate(grid)}
        if split is not None:
            along[split] = table[:, -1]
        return cls(along, split, np.prod([np.ones(len(table)), *along.values()], axis=0))

    def amount(self, parts: Sequence[_Part]) -> Numbers:
        """Of all blocks: what several of them need each does, or reads, by itself."""
        total: Numbers = np.zeros(len(self.total))
        for part in parts:
            again = np.ones(len(total))
            for axis, blocks in self.along.items():
                if axis not in (part.over if axis == self.split else part.axes):
                    again = again * blocks
            total = total + part.amount * again
        return total


def _least_us(work: _Work, blocks: _Blocks, tensor: float, target: Target) -> float:
    if not len(blocks.total):
        return math.inf
    unique = sum(part.amount for part in work.reads) + work.written
    bandwidth = target.device_bandwidth * 1e3
    turns = np.ceil(blocks.total / target.multiprocessors) / blocks.total
    moved = blocks.amount(work.reads)
    copying = np.maximum(moved * turns / FITTED.port_bytes_us, moved / (bandwidth * FITTED.l2_speedup))
    vector = 1e6 * target.vector_rate / FITTED.register_operations
    working = blocks.amount(work.products) / tensor + blocks.amount(work.others) / vector
    longest = np.maximum(copying, working * turns * target.multiprocessors)
    us = target.start_us + RESULT_US * work.count + np.maximum(longest, unique / bandwidth)
    if blocks.split is not None:
        us = us + target.start_us + 2 * SUM_BYTES * blocks.along[blocks.split] * work.results / bandwidth
    if work.products:
        tiles = blocks.total if blocks.split is None else blocks.total / blocks.along[blocks.split]
        us = np.where(SUM_BYTES * work.results / tiles > target.shared_per_block, math.inf, us)
    return float(us.min())
