"""Blocks that hold their tiles in registers: no loop, no product, every tensor is used by the thread that loads it.

In: a block graph of elementwise operators and reductions. Out: a `Resident`: how threads share the tile. Along the last
axis a group of warps shares a row, each thread with vectors of it; along other axes, or several, a thread has whole
columns of the reductions, as wide as a vector, or a part of them, and where nothing is reduced a vector. Invariant:
nothing but partial results passes between threads, so a reduction costs one barrier at most. How wide vectors are, and
what fits, are the rules of `tile.register_resident`, which the ranking asks, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_nb.ir import BlockGraph, InIterAttrs, Op, OutSaverAttrs
from mirage_nb.tile.program import LANES
from mirage_nb.tile.register_resident import (
    REGISTER_BUDGET,
    WIDTHS,
    Holding,
    busy_lanes,
    hold,
    needed,
    row_lanes,
    row_slots,
    turned,
    views,
)
from mirage_nb.tile.sketch import Sketch


@dataclass(frozen=True, slots=True)
class Resident:
    """How threads share `tile`, the shape that all values of the block broadcast to.

    dims: the reduced axes of `tile`. width: elements of a vector along the last axis. slots: vectors per thread along
    the reduced axes. lanes: threads that share a reduction (1: a thread has all of it). warps: as many
    as there is work for. behind: inputs that are asked for behind the reductions: there is no room for them before, or
    registers that they would fill while others are on their way let more blocks run at once. turned: values that lie
    otherwise than the results of rows that they have an element for each of. viewed: loaded values, and the reshaped
    ones that they are read as. together: whether all blocks run side by side, each waiting for what it asked for alone.
    """

    tile: tuple[int, ...]
    dims: tuple[int, ...]
    width: int
    slots: int
    lanes: int
    warps: int
    behind: frozenset[int] = frozenset()
    turned: frozenset[int] = frozenset()
    viewed: tuple[tuple[int, int], ...] = ()
    together: bool = True

    @property
    def shared(self) -> bool:
        """Whether threads share a reduction."""
        return self.lanes > 1

    @property
    def rows(self) -> bool:
        """Whether warps share rows of the last axis."""
        return self.shared and self.dims == (len(self.tile) - 1,)

    @property
    def vectors(self) -> int:
        """Of the results of columns."""
        return math.prod(self.kept) // self.width

    @property
    def kept(self) -> tuple[int, ...]:
        """The tile without its reduced axes."""
        return tuple(1 if dim in self.dims else extent for dim, extent in enumerate(self.tile))

    @property
    def ragged(self) -> bool:
        """Whether some threads have less of a row or column than others."""
        each = self.width if self.rows else 1
        return self.shared and self.slots * self.lanes * each != self.tile[self.dims[0]]

    @property
    def computed_anew(self) -> bool:
        """Whether a thread has no registers for what it computes of all its elements, so that it does so wherever it
        needs them: two of 16 bits take one."""
        return self.shared and self.slots * self.width > REGISTER_BUDGET

    def spans(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Vectors of a value of `shape` that one thread holds along every reduced axis."""
        places = [dim - len(self.tile) for dim in self.dims]
        varies = (-place <= len(shape) and shape[place] > 1 for place in places)
        along = (self.slots if self.shared else self.tile[dim] for dim in self.dims)
        return tuple(extent if long else 1 for extent, long in zip(along, varies, strict=True))

    def long(self, shape: tuple[int, ...]) -> bool:
        """Whether a value of `shape` varies along a reduced axis."""
        return any(-(dim - len(self.tile)) <= len(shape) and shape[dim - len(self.tile)] > 1 for dim in self.dims)

    def run(self, shape: tuple[int, ...]) -> int:
        """Elements of a value of `shape` behind one another that a thread has of a row, and loads at once."""
        short = not self.rows and len(self.tile) - 1 in self.dims and self.tile[-1] in WIDTHS
        return self.tile[-1] if short and shape and shape[-1] > 1 else 1

    def vector(self, shape: tuple[int, ...]) -> int:
        """Elements of a value of `shape` in one vector: 1 if it does not vary along the last axis."""
        return self.width if shape and shape[-1] > 1 else 1

    def count(self, shape: tuple[int, ...]) -> int:
        """Vectors of a value of `shape` that one thread holds."""
        return math.prod(self.spans(shape))


def find_resident(block: BlockGraph, sketch: Sketch, warps: int, at_once: int = 0) -> Resident | None:
    """How `warps` warps, or more, hold the block's tiles, or None if they cannot. at_once: so many blocks run at least
    side by side (0: all of them)."""
    if any(isinstance(a := op.attrs, InIterAttrs) and a.tile for op in _literals(block, sketch)):
        return None  # a number that ends with its tensor: threads know no place of their elements
    found = hold(sketch, lambda value: block.types[value].shape, sorted(_ragged_runs(block)), warps)
    if found is None or not found.width:
        return None
    tile, width, results = tuple(map(int, found.tile)), int(found.width), int(found.results)
    dims = tuple(len(tile) + axis for axis in found.axes)
    together, viewed = not at_once or math.prod(block.grid) <= at_once, tuple(views(sketch).items())
    warps = int(found.warps)
    behind = _behind(block, sketch, found) if found.tight or (found.rows and not together) else frozenset[int]()
    if found.rows:
        lanes = int(busy_lanes(tile[-1], row_lanes(results, warps), width))
        slots = int(row_slots(tile[-1], lanes, width))
        lie = frozenset(turned(sketch) or ())
        return Resident(tile, dims, width, slots, lanes, lanes * results // LANES, behind, lie, viewed, together)
    parts = int(found.parts)
    if parts > 1:
        slots, shared = math.ceil(tile[dims[0]] / parts), parts * (results // width) // LANES
        return Resident(tile, dims, width, slots, parts, shared, behind, viewed=viewed, together=together)
    busy = _busy_warps(math.ceil(results / width), warps)
    slots = math.prod(tile[dim] for dim in dims)
    return Resident(tile, dims, width, slots, 1, busy, viewed=viewed, together=together)


def _busy_warps(vectors: int, warps: int) -> int:
    """As many as take so many vectors without one of them coming back more often than with all warps."""
    return math.ceil(vectors / math.ceil(vectors / (LANES * warps)) / LANES)


def _literals(block: BlockGraph, sketch: Sketch) -> list[Op]:
    return [op for op, node in zip(block.ops, sketch.nodes, strict=True) if node.literal]


def _behind(block: BlockGraph, sketch: Sketch, found: Holding) -> frozenset[int]:
    """Inputs that no reduction needs: all of them where there is no room, else those that are the same for all blocks,
    which caches keep."""
    wanted = needed(sketch)
    inputs = {values[0]: op.attrs for op, values in block.definitions() if isinstance(op.attrs, InIterAttrs)}
    late = {value: attrs for value, attrs in inputs.items() if value not in wanted}
    return frozenset(value for value, attrs in late.items() if found.tight or set(attrs.imap) == {None})


def _ragged_runs(block: BlockGraph) -> set[int]:
    """The innermost extents of tensors over whose ends tiles hang: no vector may cross one."""
    reads = (
        block.args[a.arg].shape for op in block.ops if isinstance(a := op.attrs, InIterAttrs) and a.tile is not None
    )
    saves = (a.shape for op in block.ops if isinstance(a := op.attrs, OutSaverAttrs) and a.shape is not None)
    return {shape[-1] for shape in (*reads, *saves) if shape}
