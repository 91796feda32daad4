"""How the warps of a block share one product of tiles: one rule for the planner of a block and for the ranking.

In: extents, as numbers or as arrays of them, and the number of warps. Out: the same kind: which side stands on the 16
rows of mma.m16n8k16, and over how many warps batch, rows, columns and depth are split. Invariant: the split with the
least work per warp; depth is split only where the sum can wait until after the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

ROW_TILE, COLUMN_TILE, DEPTH_TILE = 16, 8, 16
ACCUMULATOR_REGISTERS = 128
"""f32 accumulators that one thread may hold for one product."""
PARTIAL_BYTES = 32768
"""Shared memory that the partial sums of one product may take after the loop."""
SUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Shared:
    """How a product is shared. `swapped`: its columns stand on the 16 rows; `split`: warps over (batch, rows, columns,
    depth) of the instruction's sides."""

    swapped: Any
    split: tuple[Any, Any, Any, Any]


def is_swapped(m: Any, n: Any) -> Any:
    """Whether n stands on the 16 rows and m on the 8 columns: the side that pads less, m where they pad alike."""
    straight = np.ceil(np.divide(m, ROW_TILE)) * ROW_TILE * np.ceil(np.divide(n, COLUMN_TILE)) * COLUMN_TILE
    turned = np.ceil(np.divide(n, ROW_TILE)) * ROW_TILE * np.ceil(np.divide(m, COLUMN_TILE)) * COLUMN_TILE
    return turned < straight


def share(batch: Any, m: Any, k: Any, n: Any, warps: int, *, deferred: bool, loop: Any) -> Shared:
    """A product [batch, m, k] @ [batch, k, n] on so many warps.

    `deferred`: it feeds a sum accumulator, so partial sums of different warps may wait for the end of the loop, which
    runs `loop` times.
    """
    swapped = is_swapped(m, n)
    sides = (batch, np.where(swapped, n, m), np.where(swapped, m, n), k)
    units = (1, ROW_TILE, COLUMN_TILE, DEPTH_TILE)
    tiles = [np.ceil(np.divide(side, unit)) for side, unit in zip(sides, units, strict=True)]
    splits = _splits(warps)
    if not deferred:
        splits = splits[:, splits[3] == 1]
    options = splits.reshape(4, -1, *(1,) * np.ndim(sum(tiles)))
    b, r, c, d = (np.ceil(tile / option) for tile, option in zip(tiles, options, strict=True))
    registers = 4 * b * r * c
    # Shared memory reads per depth tile: an A tile is twice a B tile; one mma costs about as much as a B tile.
    work = b * d * (2 * r + c + r * c)
    reduction = (options[3] - 1) * tiles[0] * tiles[1] * tiles[2] / loop / 4
    fits = (options[3] == 1) | (SUM_BYTES * options[3] * batch * m * n <= PARTIAL_BYTES)
    best = np.broadcast_to(fits, np.broadcast_shapes(np.shape(fits), registers.shape))
    for least in (np.maximum(0, registers - ACCUMULATOR_REGISTERS), work + reduction, registers):
        found = np.where(best, least, np.inf)
        best = best & (found == found.min(axis=0))
    chosen = best.argmax(axis=0)  # of equal ones the first: fewest warps over the batch, then over rows, ...
    return Shared(swapped, (splits[0][chosen], splits[1][chosen], splits[2][chosen], splits[3][chosen]))


def depth_split(batch: Any, m: Any, k: Any, n: Any, warps: int, loop: Any) -> npt.NDArray[np.float64]:
    """Over how many warps the depth of products is split whose sums can wait, for arrays of extents: one, where two
    sums would already take too much memory."""
    found = np.ones_like(loop, np.float64)
    small = 2 * SUM_BYTES * batch * m * n <= PARTIAL_BYTES
    if small.any():
        batch, m, k, n, loop = (extent[small] for extent in (batch, m, k, n, loop))
        found[small] = share(batch, m, k, n, warps, deferred=True, loop=loop).split[3]
    return found


@lru_cache(maxsize=16)
def _splits(warps: int) -> npt.NDArray[np.int64]:
    """All ways to split so many warps, or fewer, over the four sides, in order."""
    powers = [1 << p for p in range(warps.bit_length()) if warps % (1 << p) == 0]
    able = [split for split in product(powers, repeat=4) if np.prod(split) <= warps]
    return np.array(able, np.int64).T
