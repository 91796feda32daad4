"""How streamed tiles travel from device to shared memory.

In: an input iterator of a block graph. Out: its `Boxes`, the bulk tensor copies that bring one tile, or
None if the copy engine cannot take the tile. Invariant: boxes are as wide as the panels and at most 256 rows
high, and together they fill the swizzled layout of the tile (paper section 6: bulk copies ask for a layout).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_nb.ir import BlockGraph, InIterAttrs
from mirage_nb.optimize.swizzle import panel_bytes

BOX_ROWS = 256
"""Rows that one bulk tensor copy may bring."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """A tile as bulk tensor copies over its operand seen as a matrix [rows, columns].

    Each copy brings `box` (rows, columns) elements; the tile is `down` x `across` of them. `swizzle` is the
    width of a box in bytes.
    """

    rows: int
    columns: int
    box: tuple[int, int]
    down: int
    across: int
    swizzle: int

    @property
    def elements(self) -> int:
        """Elements of the whole tile."""
        return self.box[0] * self.box[1] * self.down * self.across


def boxes(block: BlockGraph, attrs: InIterAttrs) -> Boxes | None:
    """The bulk tensor copies of one tile, None where alignment or shape rule them out."""
    operand = block.args[attrs.arg]
    tile = block.tile_shape(attrs)
    swizzle = panel_bytes(tile, operand.dtype)
    if not swizzle or math.prod(tile[:-2]) != 1:
        return None
    width = swizzle // operand.dtype.size
    height = tile[-2] if len(tile) > 1 else 1
    down = -(-height // BOX_ROWS)
    # A swizzle pattern is eight rows: boxes below each other must begin on one.
    if height % down or (down > 1 and height // down % 8):
        return None
    rows = math.prod(operand.shape[:-1])
    return Boxes(rows, operand.shape[-1], (height // down, width), down, tile[-1] // width, swizzle)
