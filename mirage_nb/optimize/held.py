"""Blocks that hold their tiles in registers: no loop, no product, every tensor is used by the thread that loads it.

In: a block graph of elementwise operators and reductions along one axis. Out: a `Held`: how threads share the
tile. Along the last axis a group of warps shares a row, each thread with vectors of it; along another axis a
thread has whole columns of the reduction, as wide as a vector. Invariant: nothing but partial results of a row
passes between threads, so a reduction costs one barrier at most. How wide vectors are, and what fits, are the rules of
`tile.held`, which the ranking asks, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_nb.ir import BlockGraph, InIterAttrs, Op, OutSaverAttrs
from mirage_nb.tile.held import busy_lanes, hold, row_lanes, row_slots, turned
from mirage_nb.tile.program import LANES
from mirage_nb.tile.sketch import REDUCTIONS, Sketch


@dataclass(frozen=True, slots=True)
class Held:
    """How threads share `tile`, the shape that all values of the block broadcast to.

    dim: the reduced axis of `tile`. width: elements of a vector along the last axis. slots: vectors per thread
    along `dim`. lanes: threads that share a reduction (1: a thread has all of it). warps: as many as there is
    work for. behind: inputs that are asked for behind the reductions: registers that they would fill while others are
    on their way let more blocks run at once. turned: values that lie otherwise than the results of rows that they have
    an element for each of. together: whether all blocks run side by side, each waiting for what it asked for alone.
    """

    tile: tuple[int, ...]
    dim: int
    width: int
    slots: int
    lanes: int
    warps: int
    behind: frozenset[int] = frozenset()
    turned: frozenset[int] = frozenset()
    together: bool = True

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


def find_held(block: BlockGraph, sketch: Sketch, warps: int, at_once: int = 0) -> Held | None:
    """How `warps` warps hold the block's tiles, or None if they cannot or if there is nothing to reduce. at_once: so
    many blocks run at least side by side (0: all of them)."""
    if any(isinstance(a := op.attrs, InIterAttrs) and a.tile for op in _literals(block, sketch)):
        return None  # a number that ends with its tensor: threads know no place of their elements
    found = hold(sketch, lambda value: block.types[value].shape, sorted(_ragged_runs(block)), warps)
    if found is None or not found.width:
        return None
    tile, width, results = tuple(map(int, found.tile)), int(found.width), int(found.results)
    together = not at_once or math.prod(block.grid) <= at_once
    if found.axis == -1:
        lanes = int(busy_lanes(tile[-1], row_lanes(results, warps), width))
        behind = frozenset[int]() if together else _behind(block)
        slots = int(row_slots(tile[-1], lanes, width))
        lie = frozenset(turned(sketch) or ())
        return Held(tile, len(tile) - 1, width, slots, lanes, lanes * results // LANES, behind, lie, together)
    busy = min(warps, math.ceil(results / width / LANES))
    return Held(tile, len(tile) + found.axis, width, tile[found.axis], 1, busy, together=together)


def _literals(block: BlockGraph, sketch: Sketch) -> list[Op]:
    return [op for op, node in zip(block.ops, sketch.nodes, strict=True) if node.literal]


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


def _ragged_runs(block: BlockGraph) -> set[int]:
    """The innermost extents of tensors over whose ends tiles hang: no vector may cross one."""
    reads = (
        block.args[a.arg].shape for op in block.ops if isinstance(a := op.attrs, InIterAttrs) and a.tile is not None
    )
    saves = (a.shape for op in block.ops if isinstance(a := op.attrs, OutSaverAttrs) and a.shape is not None)
    return {shape[-1] for shape in (*reads, *saves) if shape}
