"""How a tile travels in bulk: one rule for the planner of a block and for the ranking.

In: the extents of a tile, as numbers or as arrays of them, and of the tensor that it is cut from. Out: the same kind:
the boxes of bulk tensor copies, none where the copy engine cannot take the tile. Invariant: boxes are as wide as
panels and at most 256 rows high, and below each other they begin on a swizzle pattern.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_nb.tile.shared import CHUNK_BYTES, LINE_BYTES, PATTERN_ROWS, panel_bytes

BOX_ROWS = 256
"""Rows that one bulk tensor copy may bring."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of `rows` rows and `swizzle` bytes, `down` x `across` of them, where a tile `fits`. fold: so many short
    rows of the tensor, which lie behind each other in memory, are one row of a box."""

    fits: Any
    rows: Any
    swizzle: Any
    down: Any
    across: Any
    fold: Any

    @property
    def lines(self) -> Any:
        """Rows of all boxes."""
        return self.rows * self.down * self.across

    @property
    def nbytes(self) -> Any:
        """Of the tile in shared memory, in whole patterns."""
        return -(-(self.rows * self.down) // PATTERN_ROWS) * PATTERN_ROWS * self.across * self.swizzle


def boxes(extents: Sequence[Any], tensor: Sequence[int], size: int, over: Sequence[Any]) -> Boxes:
    """The boxes of a tile of `extents`, cut from a tensor of elements of `size` bytes; over: per dimension, whether the
    last tile hangs over the end.

    Rows of a tensor over whose end tiles hang begin on 16 bytes. The engine writes zeros behind the end of a matrix,
    but not behind one of several. It takes as long for a short row as for one of 128 bytes.
    """
    last, height = extents[-1], extents[-2] if len(extents) > 1 else np.ones_like(extents[-1])
    whole, fold = tensor[-1] * size, np.ones_like(last)
    if whole % CHUNK_BYTES == 0 == LINE_BYTES % whole:
        together = LINE_BYTES // whole
        if (tensor[-2] if len(tensor) > 1 else 1) % together == 0:
            fold = np.where(np.equal(last, tensor[-1]) & np.equal(np.mod(height, together), 0), together, 1)
    height, last = np.floor_divide(height, fold), np.multiply(last, fold)
    swizzle = panel_bytes(last, size)
    down = np.ceil(np.divide(height, BOX_ROWS))
    rows = np.divide(height, down)
    fits = np.greater(swizzle, 0) & np.equal(np.mod(height, down), 0)
    fits = fits & (np.equal(down, 1) | np.equal(np.mod(rows, PATTERN_ROWS), 0))
    for extent in extents[:-2]:
        fits = fits & np.equal(extent, 1)
    ends = [*(math.prod(tensor[:-2]) == 1 for _ in tensor[:-1]), whole % CHUNK_BYTES == 0]
    for taken, beyond in zip(ends, over, strict=True):
        if not taken:
            fits = fits & ~np.asarray(beyond, bool)
    across = np.floor_divide(last * size, np.maximum(swizzle, 1))
    return Boxes(fits, rows, swizzle, down, across, fold)
