"""How a block's warps share one matrix multiplication.

In: extents of a Matmul in a block graph and the number of warps. Out: a `Tiling`: which operand is the
16-row side of mma.m16n8k16 and how batch, rows, columns and depth are split over warps. Invariant: the
split covers every 16 x 8 x 16 piece exactly once; depth is split only where the sum can wait until
after the loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from mirage_nb.ir import DType, TensorType

ROW_TILE, COLUMN_TILE, DEPTH_TILE = 16, 8, 16
ACCUMULATOR_REGISTERS = 128
"""f32 accumulators that one thread may hold for one Matmul."""


PARTIAL_BYTES = 32768
"""Shared memory that the partial sums of one Matmul may take after the loop."""


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


def on_tensor_cores(left: TensorType, right: TensorType) -> bool:
    """Whether mma.m16n8k16 takes these operands: both f16 or both bf16."""
    return left.dtype is right.dtype and left.dtype in (DType.F16, DType.BF16)


def tile_matmul(left: TensorType, right: TensorType, warps: int, *, deferred: bool, loop: int) -> Tiling:
    """The split with the least work per warp.

    `deferred`: the product feeds a sum accumulator, so partial sums of different warps may wait for the
    end of the loop, which runs `loop` times.
    """
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    longest = max(len(left.shape), len(right.shape))
    lead = zip(_leading(left, longest), _leading(right, longest), strict=True)
    batch = math.prod(max(a, b) for a, b in lead)
    # The side that pads less goes on 16 rows; with equal padding the usual one.
    straight = _ceil(m, ROW_TILE) * ROW_TILE * _ceil(n, COLUMN_TILE) * COLUMN_TILE
    turned = _ceil(n, ROW_TILE) * ROW_TILE * _ceil(m, COLUMN_TILE) * COLUMN_TILE
    swapped = turned < straight
    rows, columns = (n, m) if swapped else (m, n)
    powers = [1 << p for p in range(warps.bit_length()) if warps % (1 << p) == 0]
    depths = [p for p in powers if p == 1 or (deferred and 4 * p * batch * m * n <= PARTIAL_BYTES)]
    options = [
        Tiling(batch, rows, columns, k, swapped, (b, r, c, d))
        for b, r, c, d in product(powers, powers, powers, depths)
        if b * r * c * d <= warps
    ]
    return min(options, key=lambda tiling: _cost(tiling, loop))


def _leading(operand: TensorType, rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(operand.shape)) + operand.shape[:-2]


def _cost(tiling: Tiling, loop: int) -> tuple[float, ...]:
    b, r, c, k = tiling.per_warp
    registers = 4 * b * r * c
    # Shared memory reads per depth tile: an A tile is twice a B tile; one mma costs about as much as a B tile.
    work = b * k * (2 * r + c + r * c)
    batch, rows, columns, _ = tiling.tiles
    reduction = (tiling.copies - 1) * batch * rows * columns / loop / 4
    return (max(0, registers - ACCUMULATOR_REGISTERS), work + reduction, registers, *tiling.split)
