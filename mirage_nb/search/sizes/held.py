"""Blocks that hold their tiles in registers, at many sizes: where they can, and what they take.

In: the tiles of a kernel. Out: truths and registers, by the rules of `tile.held`, and microseconds.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from mirage_nb.search.saturation.values import TILE
from mirage_nb.search.sizes.anatomy import WARPS, Numbers, Truths, largest
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.masks import masks_of
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.targets import Target
from mirage_nb.tile.held import hold
from mirage_nb.tile.sketch import REDUCTIONS


def held_in_registers(tiles: Tiles) -> tuple[Truths, Numbers]:
    """Where a block holds its tiles so, and the registers of a thread that it takes for them."""
    sketch, nowhere, runs = tiles.outline.known.sketch, np.zeros(tiles.shape, bool), list[Numbers]()
    if tiles.kernel.loop is not None:
        return nowhere, np.zeros(tiles.shape)
    for index, step in enumerate(tiles.steps):
        if step.source is not None:
            over = reduce(np.logical_or, (tiles.hanging(a, code) for a, code in enumerate(step.type)), nowhere)
            last = next(reversed(tiles.layout(index)), None)
            runs.append(np.where(over, 0 if last is None else tiles.sizes.whole(last, step.type[last]), 0))
    found = hold(sketch, tiles.extents, runs, WARPS)
    if found is None:
        return nowhere, np.zeros(tiles.shape)
    fits: Truths = np.broadcast_to(found.width > 0, tiles.shape)
    for axis in {step.operator.axis for step in tiles.steps if step.operator.kind in REDUCTIONS}:
        if masks_of(tiles.kernel, axis, tiles.prepared.axes[axis].reduced):
            fits = fits & ~tiles.hanging(axis, TILE)  # a number that ends with its tensor
    return fits, np.broadcast_to(found.registers, tiles.shape)


def held_work(tiles: Tiles, target: Target, constants: Constants) -> Numbers:
    """Microseconds of a block that holds its tiles in registers."""
    operation = target.multiprocessors / (target.vector_rate * 1e6)
    spent = np.zeros(tiles.shape)
    for index, step in enumerate(tiles.steps):
        if not step.operator.is_leaf:
            biggest = largest(tiles.elements[i] for i in (index, *step.reads))
            spent = spent + biggest * constants.held_operations * operation
            spent = spent + (constants.exchange_us if step.operator.kind in REDUCTIONS else 0.0)
    return spent
