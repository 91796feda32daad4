"""What a library's kernel takes however idle the card is: the time of its longest block, which sums one tile up.

In: extents of a product, or of attention, a target. Out: microseconds beside the launch. The constants are fitted to
`bench/records/library-h200-2026-11-22.json`, small shapes to large ones; `bench library --from` shows how well.
"""

from __future__ import annotations

import math

from mirage_nb.targets import Target

TILE = 128, 64
"""Of a product, along the longer and the shorter side; a side that is shorter is taken in steps of `GRAIN`."""
GRAIN = 32
DEEPEST = 1024
"""A longer sum is shared out between blocks, whose results one more kernel adds up."""
STEP_US = 0.003
"""The least time of a tile's step along the depth: cuBLAS took 3.1 us for 1024 of them in f16."""
TILE_SHARE = 0.9
"""Of its part of the rate, what a multiprocessor reaches in one tile: 128 x 64 x 512 in f32 took 22 us."""
QUERIES = 128
"""Of one block of attention, where a library does not say otherwise."""


def product_us(sides: tuple[int, int], depth: int, batch: int, rate: float, target: Target) -> float:
    """The longest blocks of a product of matrices. rate: operations in a microsecond, of the whole card."""
    short, long = sorted(sides)
    tile = [min(most, GRAIN * math.ceil(side / GRAIN)) for most, side in zip(TILE, (long, short), strict=True)]
    parts = math.ceil(depth / DEEPEST)
    blocks = batch * parts * math.prod(math.ceil(side / n) for side, n in zip((long, short), tile, strict=True))
    step = max(2.0 * math.prod(tile) * target.multiprocessors / (rate * TILE_SHARE), STEP_US)
    together = target.start_us if parts > 1 else 0.0
    return max(1.0, blocks / target.multiprocessors) * min(depth, DEEPEST) * step + together


def attention_us(
    heads: int, queries: int, keys: float, step_us: float, target: Target, *, rows: int = QUERIES, splits: bool = True
) -> float:
    """The longest blocks of attention: each goes over the keys of its queries, `step_us` for one of them.

    Args:
        keys: of a query, on average.
        rows: queries of a block.
        splits: whether keys are shared out between blocks where these are few, and put together by one more kernel.
    """
    blocks = heads * math.ceil(queries / rows)
    whole = max(1.0, blocks / target.multiprocessors) * keys * step_us
    parts = target.multiprocessors // blocks
    if not splits or parts < 2:
        return whole
    return min(whole, keys * step_us / parts + target.start_us + target.launch_us)
