"""Tiles that lie along one dimension where they are read and along another one where what is made of them is stored.

In: a block graph and where its values live; extents, as numbers (the planner of one block) or as arrays of them (the
ranking of thousands of sizes at once). Out: along which dimension of a result that lies which it is computed of; the
sides of the square of elements that a thread then has, so that its loads and its stores are vectors, turned round in
its registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mirage_nb.ir import BlockGraph, Op, OpKind
from mirage_nb.ir.graph import reached
from mirage_nb.tile.index import dims_behind
from mirage_nb.tile.rules.placement import Place

SQUARES = ((8, 8), (8, 4), (4, 8), (4, 4), (8, 2), (2, 8), (4, 2), (2, 4), (2, 2), (1, 8), (1, 4), (1, 2))
"""Elements of a thread along the last dimension of a result, and along that along which lies what it is computed of."""
SIDE_BYTES = 16
"""Of a side of a square, at most."""


def across(block: BlockGraph, places: Sequence[Place], value: int) -> tuple[int, int] | None:
    """The dimension of a value, not its last one, along which the largest tile lies that it is computed of, and that
    tile; None if it does not lie across one."""
    shape = block.types[value].shape
    if not shape or shape[-1] == 1 or all(op.kind is not OpKind.TRANSPOSE for op in block.ops):
        return None
    made = {v: (op, number) for op, values in block.definitions() for number, v in enumerate(values)}
    found: list[tuple[int, int]] = []
    *others, last = (_tiles(block, places, made, (value, dim)) for dim in range(len(shape)))
    for dim, tiles in enumerate(others):
        ends = {leaf for leaf, inner in tiles if inner == len(block.types[leaf].shape) - 1}
        found += [(dim, leaf) for leaf in sorted(ends.intersection(leaf for leaf, _ in last))]
    return max(found, key=lambda one: block.types[one[1]].elements, default=None)


def _tiles(
    block: BlockGraph, places: Sequence[Place], made: Mapping[int, tuple[Op, int]], start: tuple[int, int]
) -> set[tuple[int, int]]:
    """The tiles in memory that a value is computed of, and which of their dimensions a dimension of it is."""

    def is_there(read: tuple[int, int]) -> bool:
        return places[read[0]] in (Place.SHARED, Place.DEVICE)

    def behind(read: tuple[int, int]) -> list[tuple[int, int]]:
        found = () if is_there(read) else dims_behind(block, *made[read[0]], read[1])
        return [(operand, inner) for operand, inner in found if inner is not None]

    return {read for read in reached([start], behind) if is_there(read)}


def square(last: Any, along: Any, elements: Any, threads: int, size: int) -> tuple[Any, Any]:
    """The sides of a thread's square in a tile of `elements` elements of so many bytes, as in `SQUARES`, where runs of
    `last` and of `along` elements lie in the tile and in the tensors; (1, 1) if there is none. The largest that leaves
    work for all threads, else the smallest."""
    width = rows = np.ones_like(last)
    done: Any = np.zeros_like(last, bool)
    for wide, high in SQUARES:
        if max(wide, high) * size <= SIDE_BYTES:
            able = (np.mod(last, wide) == 0) & (np.mod(along, high) == 0) & ~done
            width, rows = np.where(able, wide, width), np.where(able, high, rows)
            done = done | (able & (elements >= threads * wide * high))
    return width, rows
