"""How a block's warps share one matrix multiplication.

In: extents of a Matmul in a block graph and the number of warps. Out: a `Tiling`: which operand is the
16-row side of mma.m16n8k16 and how batch, rows, columns and depth are split over warps. Invariant: the
split covers every 16 x 8 x 16 piece exactly once; depth is split only where the sum can wait until
after the loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_nb.ir import TensorType
from mirage_nb.tile.sharing import COLUMN_TILE, DEPTH_TILE, ROW_TILE, share


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
        return (
            self.batch,
            _ceil(self.rows, ROW_TILE),
            _ceil(self.columns, COLUMN_TILE),
            _ceil(self.depth, DEPTH_TILE),
        )

    @property
    def per_warp(self) -> tuple[int, int, int, int]:
        """Instruction tiles of one warp over (batch, rows, columns, depth)."""
        b, r, c, k = (_ceil(t, w) for t, w in zip(self.tiles, self.split, strict=True))
        return b, r, c, k

    @property
    def copies(self) -> int:
        """Partial sums that are added after the loop."""
        return self.split[3]


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)


def tile_matmul(left: TensorType, right: TensorType, warps: int, *, deferred: bool, loop: int) -> Tiling:
    """The split with the least work per warp; the arguments are those of `tile.sharing.share`."""
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    longest = max(len(left.shape), len(right.shape))
    lead = zip(_leading(left, longest), _leading(right, longest), strict=True)
    batch = math.prod(max(a, b) for a, b in lead)
    found = share(batch, m, k, n, warps, deferred=deferred, loop=loop)
    swapped = bool(found.swapped)
    rows, columns = (n, m) if swapped else (m, n)
    b, r, c, d = map(int, found.split)
    return Tiling(batch, rows, columns, k, swapped, (b, r, c, d))


def _leading(operand: TensorType, rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(operand.shape)) + operand.shape[:-2]
