"""Blocks that hold their tiles in registers: no loop, no product, every tensor is used by the thread that loads it.

In: a block graph of elementwise operators and reductions along one axis. Out: a `Held`: how threads share the
tile. Along the last axis a group of warps shares a row, each thread with vectors of it; along another axis a
thread has whole columns of the reduction, as wide as a vector. Invariant: nothing but partial results of a row
passes between threads, so a reduction costs one barrier at most. How wide vectors are, and what fits, are the rules of
`tile.held`, which the ranking asks, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mirage_nb.ir import OPS, BlockGraph, DimAttrs, InIterAttrs, Op, OpKind, OutSaverAttrs, Trait
from mirage_nb.tile.held import Loaded, by_columns, by_rows, row_lanes, row_slots, widest
from mirage_nb.tile.program import LANES
from mirage_nb.tile.sketch import REDUCTIONS

_SOURCES = frozenset({OpKind.IN_ITER, OpKind.CONST})


@dataclass(frozen=True, slots=True)
class Held:
    """How threads share `tile`, the shape that all values of the block broadcast to.

    dim: the reduced axis of `tile`. width: elements of a vector along the last axis. slots: vectors per thread
    along `dim`. lanes: threads that share a reduction (1: a thread has all of it). warps: as many as there is
    work for. behind: inputs that are asked for behind the reductions: registers that they would fill while others are
    on their way let more blocks run at once.
    """

    tile: tuple[int, ...]
    dim: int
    width: int
    slots: int
    lanes: int
    warps: int
    behind: frozenset[int] = frozenset()

    @property
    def rows(self) -> bool:
        """Whether the reduced axis is the last one."""
        return self.dim == len(self.tile) - 1

    @property
    def kept(self) -> tuple[int, ...]:
        """The tile without its reduced axis."""
        return (*self.tile[: self.dim], 1, *self.tile[self.dim + 1 :])

    @property
    def ragged(self) -> bool:
        """Whether some threads have less of a row than others."""
        return self.rows and self.slots * self.lanes * self.width != self.tile[-1]

    def long(self, shape: tuple[int, ...]) -> bool:
        """Whether a value of `shape` varies along the reduced axis."""
        place = self.dim - len(self.tile)
        return -place <= len(shape) and shape[place] > 1

    def vector(self, shape: tuple[int, ...]) -> int:
        """Elements of a value of `shape` in one vector: 1 if it does not vary along the last axis."""
        return self.width if shape and shape[-1] > 1 else 1

    def count(self, shape: tuple[int, ...]) -> int:
        """Vectors of a value of `shape` that one thread holds."""
        return self.slots if self.long(shape) else 1


def find_held(block: BlockGraph, literal_args: frozenset[int], warps: int, at_once: int = 0) -> Held | None:
    """How `warps` warps hold the block's tiles, or None if they cannot or if there is nothing to reduce. at_once: so
    many blocks run at least side by side (0: all of them)."""
    reductions = [(op, op.attrs.dim) for op in block.ops if op.kind in REDUCTIONS and isinstance(op.attrs, DimAttrs)]
    if block.loop > 1 or not reductions or not all(_simple(op) for op in block.ops):
        return None
    if any(isinstance(a := op.attrs, InIterAttrs) and a.arg in literal_args and a.tile for op in block.ops):
        return None  # a number that ends with its tensor: threads know no place of their elements
    shapes = [block.types[v].shape for op, vs in block.definitions() if op.kind is not OpKind.RESHAPE for v in vs]
    tile = _common(shapes)
    axis, *others = {dim - len(block.types[op.inputs[0]].shape) for op, dim in reductions}
    if tile is None or others or not _saves(block, tile, axis):
        return None
    if any(block.types[op.inputs[0]].shape[axis] == 1 for op, _ in reductions):
        return None
    loaded = [
        block.types[values[0]]
        for op, values in block.definitions()
        if isinstance(op.attrs, InIterAttrs) and op.attrs.arg not in literal_args
    ]
    tiles = [Loaded(_extent(t.shape, axis) > 1, _extent(t.shape, -1) > 1, t.dtype.size) for t in loaded]
    most = widest([tile[-1], *_ragged_runs(block)], [t.dtype.size for t in loaded])
    results = math.prod(tile) // tile[axis]
    if axis == -1:
        width = int(by_rows(tile[-1], results, most, tiles, warps))
        lanes = int(row_lanes(results, warps))
        behind = _behind(block) if at_once and math.prod(block.grid) > at_once else frozenset[int]()
        slots = int(row_slots(tile[-1], lanes, width))
        return Held(tile, len(tile) - 1, width, slots, lanes, warps, behind) if width else None
    width = int(by_columns(tile[axis], results, most, tiles))
    busy = min(warps, math.ceil(results / max(width, 1) / LANES))
    return Held(tile, len(tile) + axis, width, tile[axis], 1, busy) if width else None


def _behind(block: BlockGraph) -> frozenset[int]:
    """Inputs that are the same for all blocks, which caches keep, and that no reduction needs."""
    needed: set[int] = set()
    for op, values in reversed(tuple(block.definitions())):
        if op.kind in REDUCTIONS or not needed.isdisjoint(values):
            needed.update(op.inputs)
    return frozenset(
        values[0]
        for op, values in block.definitions()
        if isinstance(op.attrs, InIterAttrs) and values[0] not in needed and set(op.attrs.imap) == {None}
    )


def _extent(shape: tuple[int, ...], axis: int) -> int:
    return shape[axis] if -axis <= len(shape) else 1


def _ragged_runs(block: BlockGraph) -> set[int]:
    """The innermost extents of tensors over whose ends tiles hang: no vector may cross one."""
    reads = (
        block.args[a.arg].shape for op in block.ops if isinstance(a := op.attrs, InIterAttrs) and a.tile is not None
    )
    saves = (a.shape for op in block.ops if isinstance(a := op.attrs, OutSaverAttrs) and a.shape is not None)
    return {shape[-1] for shape in (*reads, *saves) if shape}


def _simple(op: Op) -> bool:
    """Whether threads can do this operator in their registers."""
    allowed = op.kind in REDUCTIONS | _SOURCES | {OpKind.FUSED, OpKind.RESHAPE, OpKind.OUT_SAVER}
    return allowed or Trait.ELEMENTWISE in OPS[op.kind].traits


def _common(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape that all of them broadcast to, if it is one of their extents or 1 everywhere."""
    found: list[int] = []
    for shape in shapes:
        found = [1] * (len(shape) - len(found)) + found
        for dim in range(-len(shape), 0):
            if 1 not in (shape[dim], found[dim]) and shape[dim] != found[dim]:
                return None
            found[dim] = max(found[dim], shape[dim])
    return tuple(found) or None


def _saves(block: BlockGraph, tile: tuple[int, ...], axis: int) -> bool:
    """Whether reshapes only rename what is saved, and what is saved has every kept position of the tile once."""
    renamed = {values[0]: op.inputs[0] for op, values in block.definitions() if op.kind is OpKind.RESHAPE}
    for op in block.ops:
        if op.kind is OpKind.OUT_SAVER:
            value = op.inputs[0]
            while value in renamed:
                value = renamed[value]
            kept, wanted = list(block.types[value].shape), list(tile)
            if len(kept) != len(wanted) or kept[axis] not in (1, wanted[axis]):
                return False
            kept[axis] = wanted[axis] = 1
            if kept != wanted:
                return False
        elif op.kind is not OpKind.RESHAPE and not renamed.keys().isdisjoint(op.inputs):
            return False
    return True
