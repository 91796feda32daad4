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
from mirage_nb.tile.shared import CHUNK_BYTES, LINE_BYTES

BOX_ROWS = 256
"""Rows that one bulk tensor copy may bring."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """A tile as bulk tensor copies over its operand seen as a matrix [rows, columns].

    Each copy brings `box` (rows, columns) elements; the tile is `down` x `across` of them. `swizzle` is the
    width of a box in bytes. fold: so many short rows of the operand, which lie behind each other in memory, are
    one row of the matrix: the engine takes as long for a short row as for one of 128 bytes.
    """

    rows: int
    columns: int
    box: tuple[int, int]
    down: int
    across: int
    swizzle: int
    fold: int = 1

    @property
    def elements(self) -> int:
        """Elements of the whole tile."""
        return self.box[0] * self.box[1] * self.down * self.across


def boxes(block: BlockGraph, attrs: InIterAttrs) -> Boxes | None:
    """The bulk tensor copies of one tile, None where alignment or shape rule them out."""
    operand = block.args[attrs.arg]
    tile = block.tile_shape(attrs)
    if not tile or math.prod(tile[:-2]) != 1 or not _ends_with_the_matrix(block, attrs):
        return None
    height, last, size = tile[-2] if len(tile) > 1 else 1, tile[-1], operand.dtype.size
    fold = 1
    if last == operand.shape[-1] and last * size % CHUNK_BYTES == 0 == LINE_BYTES % (last * size):
        fold = math.gcd(height, LINE_BYTES // (last * size))
        if fold * last * size != LINE_BYTES or (fold > 1 and operand.shape[-2] % fold):
            fold = 1
    swizzle = LINE_BYTES if fold > 1 else panel_bytes(tile, operand.dtype)
    if not swizzle:
        return None
    width, height = swizzle // size, height // fold
    down = -(-height // BOX_ROWS)
    # A swizzle pattern is eight rows: boxes below each other must begin on one.
    if height % down or (down > 1 and height // down % 8):
        return None
    rows = math.prod(operand.shape[:-1]) // fold
    across = last * fold // width
    return Boxes(rows, operand.shape[-1] * fold, (height // down, width), down, across, swizzle, fold)


def read_once(block: BlockGraph, attrs: InIterAttrs) -> bool:
    """Whether the blocks read every element of operand `attrs.arg` exactly once, through this iterator."""
    readers = [op for op in block.ops if isinstance(op.attrs, InIterAttrs) and op.attrs.arg == attrs.arg]
    splits = [*zip(attrs.imap, block.grid, strict=True), (attrs.fmap, block.loop)]
    return len(readers) == 1 and all(dim is not None for dim, extent in splits if extent > 1)


def _ends_with_the_matrix(block: BlockGraph, attrs: InIterAttrs) -> bool:
    """Whether what hangs over the end of the operand lies outside of the matrix, where the engine writes zeros.

    Rows have to begin on 16 bytes, and no further row may follow behind the last one.
    """
    operand, overhanging = block.args[attrs.arg], block.overhanging(attrs)
    if overhanging[-1] and operand.shape[-1] * operand.dtype.size % CHUNK_BYTES:
        return False
    return not any(overhanging[:-1]) or math.prod(operand.shape[:-2]) == 1
