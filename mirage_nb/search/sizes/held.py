"""Blocks that hold their tiles in registers, at many sizes: where they can, and what they take.

In: the tiles of a kernel. Out: truths and registers, by the rules of `tile.held`, and microseconds.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from mirage_nb.search.sizes.anatomy import WARPS, Numbers, Truths, largest
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.targets import Target
from mirage_nb.tile.held import hold
from mirage_nb.tile.sketch import REDUCTIONS


def held_in_registers(tiles: Tiles) -> tuple[Truths, Numbers]:
    """Where a block holds its tiles so, and the registers of a thread that it takes for them."""
    known, nowhere, runs = tiles.outline, np.zeros(tiles.shape, bool), list[Numbers]()
    if known.flat.looped:
        return nowhere, np.zeros(tiles.shape)
    for moved in known.reads.values():
        _, tensor, _, hanging = tiles.cut(moved)
        runs.append(np.where(reduce(np.logical_or, hanging), tensor[-1], 0))
    found = hold(known.sketch, tiles.extents, runs, WARPS)
    if found is None:
        return nowhere, np.zeros(tiles.shape)
    fits: Truths = np.broadcast_to(found.width > 0, tiles.shape)
    for _, over in tiles.masks():
        fits = fits & ~over  # a number that ends with its tensor
    return fits, np.broadcast_to(found.registers, tiles.shape)


def held_work(tiles: Tiles, target: Target, constants: Constants) -> Numbers:
    """Microseconds of a block that holds its tiles in registers."""
    operation = target.multiprocessors / (target.vector_rate * 1e6)
    spent = np.zeros(tiles.shape)
    for cell in tiles.outline.cells:
        if not cell.is_leaf:
            biggest = largest(tiles.elements[i] for i in (cell.value, *cell.reads))
            spent = spent + biggest * constants.held_operations * operation
            spent = spent + (constants.exchange_us if cell.node.kind in REDUCTIONS else 0.0)
    return spent
