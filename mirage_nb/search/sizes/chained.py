"""Chained products as persistent blocks with roles: where a kernel of attention can be emitted so, and what it takes.

In: the tiles of a kernel at many sizes. Out: a `Specialised`. What makes a block one of chained products is said over
axes here and over dimensions in `optimize.attention`; how it is cut then are the rules of `tile.rules`, for both.
An iteration takes its two products at the rate that the card keeps up, or its exponentials, if these take longer: the
one runs while the other is computed. A point takes its iterations, and what is behind and in front of them.
"""

from __future__ import annotations

import numpy as np

from mirage_nb.ir import HALVES, AccumKind, DType
from mirage_nb.search.axes import Layout
from mirage_nb.search.saturation.values import TILE, Type
from mirage_nb.search.sizes.anatomy import Numbers, Truths
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.layouts import layout_of
from mirage_nb.search.sizes.specialised import Specialised, specialised
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.structure import KernelStructure
from mirage_nb.targets import Target
from mirage_nb.tile import rules

ELEMENT_BYTES = 2


def chained(tiles: Tiles, target: Target, constants: Constants, device: Numbers) -> Specialised | None:
    """A kernel emitted so, None where it can be at no sizes. device: bytes that cross device memory."""
    chain = tiles.outline.chain
    if chain is None or target.capability != rules.CAPABILITY:
        return None
    types = {_dtype(tiles, i) for i in (chain.queries, chain.keys, chain.values)}
    if len(types) > 1 or not types <= HALVES:
        return None
    known = tiles.outline.known
    if any(known.wide[i] or known.partial[i] for i in (chain.queries, chain.keys, chain.values)):
        return None
    if chain.summed in tiles.kernel.grid or not (_rescaled(tiles.kernel) or types == {DType.BF16}):
        return None
    loop = tiles.kernel.loop
    assert loop is not None
    scored = tiles.steps[chain.scores].type
    keys_type = tiles.steps[chain.keys].type
    cut = [
        _matrix(tiles, chain.queries, chain.summed, [a for a, code in enumerate(keys_type) if code]),
        _matrix(tiles, chain.keys, chain.summed, [a for a in range(len(scored)) if a != loop]),
        _matrix(tiles, chain.values, loop, [a for a, code in enumerate(scored) if code]),
    ]
    if any(part is None for part in cut):
        return None
    able = np.ones(tiles.shape, bool)
    for part in cut:
        assert part is not None
        able &= part[0]
    rows, keys, columns = (part[1] for part in cut if part is not None)
    depth = tiles.sizes.extent(tiles.kernel, chain.summed, tiles.steps[chain.queries].type[chain.summed] & TILE)
    able &= rules.chained_fits(rows, keys, depth, columns, target.shared_per_block)
    if not able.any():
        return None
    stages = rules.chained_stages(rows, keys, depth, columns, target.shared_per_block)
    # Of keys that rows see only up to themselves, they need one half, and those beside them.
    all_keys = tiles.sizes.loop
    halved = np.minimum(all_keys, (all_keys + rows / keys) / 2)
    iterations = halved if chain.masked and chain.places else all_keys
    return _timed(tiles, target, constants, able, (rows, keys, depth, columns), stages, iterations, device)


def with_roles(tiles: Tiles, target: Target, constants: Constants, device: Numbers) -> Specialised | None:
    """A kernel whose warps have roles: one of products, or of chained ones."""
    return specialised(tiles, target, constants, device) or chained(tiles, target, constants, device)


def _rescaled(kernel: KernelStructure) -> bool:
    """Whether a running maximum holds the exponentials up."""
    return any(step.operator.accum is AccumKind.RESCALE for step in kernel.steps)


def _dtype(tiles: Tiles, index: int) -> DType | None:
    """The element type of an input of the program; None of what an earlier kernel left."""
    source = tiles.steps[index].source
    assert source is not None
    prepared = tiles.prepared
    return prepared.graph.types[prepared.tensors[source.index].input].dtype if source.kernel is None else None


def _matrix(tiles: Tiles, index: int, summed: int, shared: list[int]) -> tuple[Truths, Numbers] | None:
    """Where an operand comes in whole boxes, with one long axis that is not summed and not shared; its extent. None:
    nowhere."""
    step, sizes, kernel = tiles.steps[index], tiles.sizes, tiles.kernel
    assert step.source is not None
    layout: Layout = layout_of(tiles.prepared, kernel, index, step.source)
    axes = [a for a in layout if a is not None]
    if not axes or summed not in axes or layout[-1] is None:
        return None

    def extent(axis: int) -> Numbers:
        return sizes.extent(kernel, axis, _inside(step.type, axis))

    fits = np.ones(tiles.shape, bool)
    own = [a for a in axes if a != summed and a not in shared]
    length, longest = np.ones(tiles.shape), np.ones(tiles.shape)
    for axis in own:
        length, longest = length * extent(axis), np.maximum(longest, extent(axis))
    for axis in axes:
        fits &= ~tiles.hanging(axis, step.type[axis])
        if axis != summed and axis in shared:
            fits &= extent(axis) == 1
    last = axes[-1]
    if sizes.extents[last] * ELEMENT_BYTES % rules.CHUNK_BYTES:
        return None
    return fits & (length == longest) & (np.mod(extent(last), rules.STEP) == 0), length


def _inside(type_: Type, axis: int) -> int:
    return type_[axis] & TILE


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
