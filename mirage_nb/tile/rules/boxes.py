"""How a tile travels in bulk: one rule for the planner of a block and for the ranking.

In: the extents of a tile, as numbers or as arrays of them, and of the tensor that it is cut from. Out: the same kind:
the boxes of bulk tensor copies, none where the copy engine cannot take the tile; `Matrix`, the global tensor of a tile
program that boxes are cut from. Invariant: boxes are as wide as panels and at most 256 rows high, and below each other
they begin on a swizzle pattern.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_nb.ir import BlockGraph, InIterAttrs, TensorType
from mirage_nb.ir.windows import Window, as_matrix
from mirage_nb.tile.roles.program import Copy, Index, Program, Read, Tile
from mirage_nb.tile.rules.shared import CHUNK_BYTES, LINE_BYTES, PATTERN_ROWS, panel_bytes

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


@dataclass(frozen=True, slots=True)
class Bulk:
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


def bulk_of(block: BlockGraph, attrs: InIterAttrs) -> Bulk | None:
    """The bulk tensor copies of one tile, None where alignment or shape rule them out."""
    operand, tile = block.args[attrs.arg], block.tile_shape(attrs)
    if not tile:
        return None
    found = boxes(tile, operand.shape, operand.dtype.size, block.overhanging(attrs))
    if not found.fits:
        return None
    fold, swizzle = int(found.fold), int(found.swizzle)
    rows, box = math.prod(operand.shape[:-1]) // fold, (int(found.rows), swizzle // operand.dtype.size)
    return Bulk(rows, operand.shape[-1] * fold, box, int(found.down), int(found.across), swizzle, fold)


def read_once(block: BlockGraph, attrs: InIterAttrs) -> bool:
    """Whether the blocks read every element of operand `attrs.arg` exactly once, through this iterator."""
    readers = [op for op in block.ops if isinstance(op.attrs, InIterAttrs) and op.attrs.arg == attrs.arg]
    splits = [*zip(attrs.imap, block.grid, strict=True), (attrs.fmap, block.loop)]
    return len(readers) == 1 and all(dim is not None for dim, extent in splits if extent > 1)


# -- what boxes are cut from


@dataclass(frozen=True, slots=True)
class Matrix:
    """A global tensor as the copy engine has it for some box: the dimensions up to the box's rows are the rows."""

    tile: Tile
    split: int

    @classmethod
    def of(cls, source: Tile, target: Tile) -> Matrix:
        """As boxes of `target` are cut from it."""
        return cls(source, source.axes.index(target.axes[0]) + 1, target.shape[0])

    box: int

    @property
    def apart(self) -> bool:
        """Whether boxes end with the rows of one matrix of several, because they do not divide these."""
        return self.tile.shape[self.split - 1] % self.box > 0

    @property
    def matrices(self) -> int:
        """How many there are behind each other, where they are apart."""
        return math.prod(self.tile.shape[: self.split - 1]) if self.apart else 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows = math.prod(self.tile.shape[: self.split]) // self.matrices
        return rows, math.prod(self.tile.shape[self.split :])

    def place(self, at: tuple[Index, ...]) -> tuple[Index, Index, Index]:
        """Matrix, row and column of a box."""
        split = self.split - 1 if self.matrices > 1 else 0
        return self._flat(at, 0, split), self._flat(at, split, self.split), self._flat(at, self.split, len(at))

    def _flat(self, at: tuple[Index, ...], first: int, last: int) -> Index:
        found = Index()
        for place, extent in zip(at[first:last], self.tile.shape[first:last], strict=True):
            found = found * extent + place
        return found


def in_boxes(window: Window, type_: TensorType, columns: int) -> bool:
    """Whether the copy engine brings boxes of a window, as a matrix with so many columns."""
    lies = as_matrix(window, type_.shape, columns)
    return lies is not None and all(elements * type_.dtype.size % CHUNK_BYTES == 0 for elements in lies)


def columns_brought(program: Program, operand: int) -> int | None:
    """How many columns an operand has as a matrix, if boxes of it are all that a program reads of it."""
    read = any(isinstance(s, Read) and program.operand(s.source) == operand for s in program.every)
    copies = [s for s in program.every if isinstance(s, Copy) and program.operand(s.source) == operand]
    found = {Matrix.of(program.tile(s.source), program.tile(s.target)).shape[1] for s in copies}
    return found.pop() if len(found) == 1 and not read else None
