"""How warps share a loop body that stays in their registers: one rule for the planner and for the ranking.

In: extents, as numbers or as arrays of them, and the number of warps. Out: the same kind: over how many warps rows and
keys are split, and whether a thread can hold what it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_nb.tile.sharing import COLUMN_TILE, DEPTH_TILE, ROW_TILE

REGISTER_BUDGET = 176
"""f32 values of fragments that one thread may hold at once."""
LANE_VALUES = 4
"""Of an 8-column fragment, f32 values of one thread."""


@dataclass(frozen=True, slots=True)
class Held:
    """A value of the body: its columns; whether they lie along the keys, which warps may share; whether it is an
    accumulator."""

    columns: Any
    keyed: bool
    summed: bool


def row_tiles(rows: Any, row_warps: Any) -> Any:
    """16-row tiles of one warp."""
    return np.ceil(np.ceil(np.divide(rows, ROW_TILE)) / row_warps)


def row_warps(rows: Any, warps: int) -> Any:
    """Warps that have rows of their own."""
    tiles, found = np.ceil(np.divide(rows, ROW_TILE)), np.ones_like(rows)
    for count in (2, 4, 8, 16, 32):
        found = np.where((count <= tiles) & (warps % count == 0), count, found)
    return found


def key_warps(rows: Any, held: Sequence[Held], splittable: bool, warps: int) -> Any:
    """Warps that share the keys of one row: as many as are left, and have whole fragments."""
    found = np.floor_divide(warps, row_warps(rows, warps)) if splittable else np.ones_like(rows)
    for _ in range(warps.bit_length()):
        odd = np.zeros_like(rows, bool)
        for value in held:
            odd = odd | (value.keyed & np.not_equal(np.mod(value.columns, found * DEPTH_TILE), 0))
        found = np.where(odd & np.greater(found, 1), np.floor_divide(found, 2), found)
    return found


def fits(rows: Any, held: Sequence[Held], splittable: bool, warps: int) -> Any:
    """Whether half of the warps have something to do, and their threads hold it: accumulators, and the widest value
    beside them."""
    down, across = row_warps(rows, warps), key_warps(rows, held, splittable, warps)
    sums: Any = 0
    widest: Any = 0
    for value in held:
        columns = np.floor_divide(np.floor_divide(value.columns, COLUMN_TILE), across if value.keyed else 1)
        size = LANE_VALUES * row_tiles(rows, down) * columns
        sums, widest = (sums + size, widest) if value.summed else (sums, np.maximum(widest, size))
    return (2 * down * across >= warps) & (sums + widest <= REGISTER_BUDGET)
