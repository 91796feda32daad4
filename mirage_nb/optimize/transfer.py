"""How streamed tiles travel from device to shared memory.

In: an input iterator of a block graph. Out: its `Boxes`, the bulk tensor copies that bring one tile, or
None if the copy engine cannot take the tile. Invariant: boxes are as wide as the panels and at most 256 rows
high, and together they fill the swizzled layout of the tile (paper section 6: bulk copies ask for a layout).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_nb.ir import BlockGraph, InIterAttrs
from mirage_nb.tile.boxes import boxes as tile_boxes


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
    operand, tile = block.args[attrs.arg], block.tile_shape(attrs)
    if not tile:
        return None
    found = tile_boxes(tile, operand.shape, operand.dtype.size, block.overhanging(attrs))
    if not found.fits:
        return None
    fold, swizzle = int(found.fold), int(found.swizzle)
    rows, box = math.prod(operand.shape[:-1]) // fold, (int(found.rows), swizzle // operand.dtype.size)
    return Boxes(rows, operand.shape[-1] * fold, box, int(found.down), int(found.across), swizzle, fold)


def read_once(block: BlockGraph, attrs: InIterAttrs) -> bool:
    """Whether the blocks read every element of operand `attrs.arg` exactly once, through this iterator."""
    readers = [op for op in block.ops if isinstance(op.attrs, InIterAttrs) and op.attrs.arg == attrs.arg]
    splits = [*zip(attrs.imap, block.grid, strict=True), (attrs.fmap, block.loop)]
    return len(readers) == 1 and all(dim is not None for dim, extent in splits if extent > 1)
