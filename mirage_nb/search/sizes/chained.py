"""Chained products as persistent blocks with roles: where a kernel of attention can be emitted so, and what it takes.

In: the tiles of a kernel at many sizes. Out: a `Specialised`. What makes a block one of chained products is said over
axes here and over dimensions in `tile.attention`; how it is cut then are the rules of `tile.rules`, for both.
An iteration takes its two products at the rate that the card keeps up, or its exponentials, if these take longer: the
one runs while the other is computed. A point takes its iterations, and what is behind and in front of them.
"""

from __future__ import annotations

import numpy as np

from mirage_nb.ir import DType, OpKind
from mirage_nb.search.sizes.anatomy import Numbers, Truths
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.specialised import Specialised, specialised
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.targets import Target
from mirage_nb.tile import rules
from mirage_nb.tile.attention import KEYS
from mirage_nb.tile.products import SUMMED, Operand


def chained(tiles: Tiles, target: Target, constants: Constants, device: Numbers) -> Specialised | None:
    """A kernel emitted so, None where it can be at no sizes. device: bytes that cross device memory."""
    chain = tiles.outline.chain
    if chain is None or target.capability != rules.CAPABILITY:
        return None
    found = chain.found
    if len(found.results) != 1 or len(found.tops) > 1 or not (found.tops or found.dtype is DType.BF16):
        return None
    cut = [
        _matrix(tiles, operand, summed, own)
        for operand, summed, own in zip(
            (found.queries, found.keys, found.values), (SUMMED, SUMMED, KEYS), chain.own, strict=True
        )
    ]
    able = np.logical_and.reduce([part[0] for part in cut])
    rows, keys, columns = (part[1] for part in cut)
    queries = tiles.outline.read_by(found.queries.attrs)
    depth = tiles.extent(queries.extents[found.queries.axes.index(SUMMED)])
    able &= rules.chained_fits(rows, keys, depth, columns, target.shared_per_block)
    if not able.any():
        return None
    stages = rules.chained_stages(rows, keys, depth, columns, target.shared_per_block)
    # Of keys that rows see only up to themselves, they need one half, and those beside them.
    all_keys = tiles.sizes.loop
    halved = np.minimum(all_keys, (all_keys + rows / keys) / 2)
    masked = any(cell.node.kind is OpKind.WHERE for cell in tiles.outline.cells)
    iterations = halved if masked and len(tiles.outline.reads) > len(cut) else all_keys
    return _timed(tiles, target, constants, able, (rows, keys, depth, columns), stages, iterations, device)


def with_roles(tiles: Tiles, target: Target, constants: Constants, device: Numbers) -> Specialised | None:
    """A kernel whose warps have roles: one of products, or of chained ones."""
    return specialised(tiles, target, constants, device) or chained(tiles, target, constants, device)


def _matrix(tiles: Tiles, operand: Operand, summed: str, own: tuple[int, ...]) -> tuple[Truths, Numbers]:
    """Where an operand comes in whole boxes, with one long dimension among its own ones beside the summed one; its
    extent."""
    extents, tensor, width, hanging = tiles.cut(tiles.outline.read_by(operand.attrs))
    fits, length, longest = np.mod(extents[-1], rules.STEP) == 0, np.ones(tiles.shape), np.ones(tiles.shape)
    fits &= tensor[-1] * width % rules.CHUNK_BYTES == 0
    for dim, extent in enumerate(extents):
        fits &= ~hanging[dim]
        if dim in own:
            length, longest = length * extent, np.maximum(longest, extent)
        elif operand.axes[dim] != summed:
            fits &= extent == 1
    return fits & (length == longest), length


def _timed(
    tiles: Tiles, target: Target, constants: Constants, able: Truths, extents: tuple[Numbers, ...], stages: Numbers,
    iterations: Numbers, device: Numbers,
) -> Specialised:  # fmt: skip
    """What it takes; extents: rows and keys of a tile, summed elements, columns."""
    rows, keys, depth, columns = extents
    turns = np.ceil(tiles.sizes.total_blocks() / target.multiprocessors)
    rate = constants.chained_share * target.tensor_rate * 1e6 / target.multiprocessors
    products = 2 * rows * keys * (depth + columns) / rate
    exponentials = rows * keys / constants.exponentials_us
    copied = 2 * keys * (depth + columns) / constants.stream_bytes_us
    longest = np.maximum(np.maximum(products, exponentials), copied) + constants.chained_step_us
    looped = turns * (iterations * longest + constants.chained_point_us)
    moved = device / (target.device_bandwidth * 1e3)
    us = constants.latency_us + np.maximum(looped, moved)
    steps, values = turns * iterations, turns * constants.chained_point_us
    memory = 2 * (rows * depth + stages * keys * (depth + columns))
    return Specialised(
        able, rules.parts(rows), us, turns, steps * np.maximum(products, exponentials), steps * copied, values, moved,
        memory, stages,
    )  # fmt: skip
