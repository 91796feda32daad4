"""The rules by which a block holds rows or columns in the registers of its threads: one set for all who ask.

In: extents, as numbers (the planner of one block) or as arrays of them (the ranking of thousands of sizes at once).
Out: the same kind: elements of a thread's vectors, 0 where the tiles do not fit. Where a row is reduced, whole warps
share it; where a column is, a thread has all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_nb.tile.program import LANES

REGISTER_BUDGET = 128
"""32-bit registers that the tiles of one thread may take."""
LONGEST_COLUMN = 64
"""Elements of a column that one thread may hold."""
WIDTHS = (1, 2, 4, 8)
"""Elements of a vector."""
VECTOR_BYTES = 16
"""The widest vector that a thread loads or stores."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tile that is loaded: whether it varies along the reduced axis, and along the last one; bytes of an element."""

    long: Any
    varied: Any
    size: int


def widest(runs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Elements of the widest vector whose multiples are all of these runs, of elements of these sizes."""
    most: Any = 1
    for width in WIDTHS:
        fits: Any = width * max(sizes, default=4) <= VECTOR_BYTES
        for run in runs:
            fits = fits & np.equal(np.mod(run, width), 0)
        most = np.where(fits, width, most)
    return most


def row_lanes(rows: Any, warps: int) -> Any:
    """Threads that share a row."""
    return np.floor_divide(LANES * warps, rows)


def row_slots(last: Any, lanes: Any, width: Any) -> Any:
    """Vectors of a row that a thread has at most."""
    return np.ceil(last / np.maximum(width, 1) / np.maximum(lanes, 1))


def by_rows(last: Any, rows: Any, most: Any, loaded: Sequence[Loaded], warps: int) -> Any:
    """So many rows of `last` elements, whole warps for each: the widest vectors up to `most` that leave no thread
    without one, else single elements."""
    lanes = row_lanes(rows, warps)
    width: Any = 1
    for wider in WIDTHS[1:]:
        width = np.where((wider <= most) & (np.floor_divide(last, wider) >= lanes), wider, width)
    slots = row_slots(last, lanes, width)
    # In f32 there is one more tile, which is computed from the others.
    fits = _registers(loaded, slots, width) + slots * width <= REGISTER_BUDGET
    return np.where(fits & np.equal(np.mod(warps, rows), 0), width, 0)


def by_columns(along: Any, results: Any, most: Any, loaded: Sequence[Loaded]) -> Any:
    """So many columns of `along` elements: the widest vectors of columns up to `most` that give a warp something to do
    and fit."""
    width: Any = 0
    for wider in WIDTHS:
        busy = np.floor_divide(results, wider) >= LANES if wider > 1 else np.greater(results, 0)
        fits = _registers(loaded, along, wider) <= REGISTER_BUDGET
        width = np.where((wider <= most) & busy & fits, wider, width)
    return np.where(np.less_equal(along, LONGEST_COLUMN), width, 0)


def _registers(loaded: Sequence[Loaded], slots: Any, width: Any) -> Any:
    """Of a thread, for the loaded tiles."""
    return sum(
        np.where(tile.long, slots, 1) * np.ceil(np.where(tile.varied, width, 1) * tile.size / 4) for tile in loaded
    )
