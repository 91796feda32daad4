"""How a block's warps share one matrix multiplication, or a whole loop body that stays with them.

In: extents of a Matmul in a block graph and the number of warps. Out: a `Tiling`: which operand is the 16-row side of
mma.m16n8k16 and how batch, rows, columns and depth are split over warps. Invariant: the split covers every 16 x 8 x 16
piece exactly once; depth is split only where the sum can wait until after the loop. Of a block whose loop chains matrix
multiplications (attention) a `Region`, by the rules of `tile.bodies`: every value of the body stays in registers of the
warp that computes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mirage_nb.ir import BlockGraph, TensorType
from mirage_nb.tile.bodies import find_body, row_tiles, split
from mirage_nb.tile.sharing import COLUMN_TILE, DEPTH_TILE, ROW_TILE, share
from mirage_nb.tile.sketch import Sketch


@dataclass(frozen=True, slots=True)
class Tiling:
    """One Matmul [batch, m, k] @ [batch, k, n] on the warps of a block.

    `swapped`: the long side n stands on the 16 rows of the instruction and m on its 8 columns (the
    product is computed transposed). `rows` and `columns` are the extents on those two sides.
    `split` is the number of warps over (batch, rows, columns, depth).
    """

    batch: int
    rows: int
    columns: int
    depth: int
    swapped: bool
    split: tuple[int, int, int, int]

    @property
    def tiles(self) -> tuple[int, int, int, int]:
        """Instruction tiles over (batch, rows, columns, depth)."""
        return self.batch, -(-self.rows // ROW_TILE), -(-self.columns // COLUMN_TILE), -(-self.depth // DEPTH_TILE)

    @property
    def per_warp(self) -> tuple[int, int, int, int]:
        """Instruction tiles of one warp over (batch, rows, columns, depth)."""
        b, r, c, k = (-(-t // w) for t, w in zip(self.tiles, self.split, strict=True))
        return b, r, c, k

    @property
    def copies(self) -> int:
        """Partial sums that are added after the loop."""
        return self.split[3]


def tile_matmul(left: TensorType, right: TensorType, warps: int, *, deferred: bool, loop: int) -> Tiling:
    """The split with the least work per warp; the arguments are those of `tile.sharing.share`."""
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    batch = math.prod(np.broadcast_shapes(left.shape[:-2], right.shape[:-2]))
    found = share(batch, m, k, n, warps, deferred=deferred, loop=loop)
    swapped = bool(found.swapped)
    rows, columns = (n, m) if swapped else (m, n)
    b, r, c, d = map(int, found.split)
    return Tiling(batch, rows, columns, k, swapped, (b, r, c, d))


@dataclass(frozen=True, slots=True)
class Region:
    """How warps share a warp-private loop body.

    rows: extent of the row axis; split over `row_warps`. Columns of the `keyed` values and the depth of
    products with them are split over `key_warps`. shifts: Max values that are replaced by their running
    maximum, so that rescaled accumulators add in place. ops: the operators of the body, accumulators
    included, in order. direct: accumulators go from registers to device memory, through elementwise operators only.
    """

    rows: int
    row_warps: int
    key_warps: int
    keyed: frozenset[int]
    shifts: frozenset[int]
    ops: tuple[int, ...]
    direct: bool = False

    @property
    def warps(self) -> int:
        """Warps that work; others wait at barriers."""
        return self.row_warps * self.key_warps

    @property
    def padded_rows(self) -> int:
        """Rows of all warps together."""
        return self.row_warps * self.row_tiles * ROW_TILE

    @property
    def row_tiles(self) -> int:
        """16-row tiles of one warp."""
        return int(row_tiles(self.rows, self.row_warps))

    def column_tiles(self, value: int, columns: int) -> int:
        """8-column tiles of a value that one warp holds."""
        return columns // COLUMN_TILE // (self.key_warps if value in self.keyed else 1)

    def tiling(self, value: int, columns: int, depth: int) -> Tiling:
        """How warps share `value`, [rows, columns], a product over `depth` or an accumulator."""
        keyed = value in self.keyed
        split = (1, self.row_warps, self.key_warps if keyed else 1, 1 if keyed else self.key_warps)
        return Tiling(1, self.rows, columns, depth, False, split)


def find_region(block: BlockGraph, sketch: Sketch, warps: int) -> Region | None:
    """The region of a block graph whose chains are fused; None if its body does not fit the pattern."""
    body = find_body(sketch)
    if body is None:
        return None
    found = split(body, lambda value: block.types[value].shape, warps)
    if not found.able:
        return None
    key_warps = int(found.key_warps)
    return Region(
        found.rows, int(found.row_warps), key_warps, body.keyed, body.shifts, body.ops, key_warps == 1 and body.plain
    )
