"""Blocks that hold their tiles in registers, at many sizes: where they can, and what they take.

In: the tiles of a kernel. Out: truths, and microseconds. What such a block is is said over axes here and over
dimensions in `optimize.held`; how threads share its tiles, and what fits, are the rules of `tile.held`, for both.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from mirage_nb.search.axes import Layout
from mirage_nb.search.saturation.values import TILE
from mirage_nb.search.sizes.anatomy import ELEMENTWISE, WARPS, Numbers, Truths, largest
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.layouts import broadcast_layout, line_up
from mirage_nb.search.sizes.masks import masks_of
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.targets import Target
from mirage_nb.tile.held import Loaded, by_columns, by_rows, widest
from mirage_nb.tile.sketch import REDUCTIONS


def held_in_registers(tiles: Tiles) -> Truths:
    """Where a block holds its tiles so: no loop, no product, and it reduces along one axis."""
    steps, nowhere = tiles.steps, np.zeros(tiles.shape, bool)
    axes = {step.operator.axis for step in steps if step.operator.kind in REDUCTIONS}
    simple = all(s.operator.is_leaf or s.operator.kind in REDUCTIONS | ELEMENTWISE for s in steps)
    if tiles.kernel.loop is not None or not simple or len(axes) != 1 or tiles.outline.known.turned:
        return nowhere
    (axis,), layouts = axes, tiles.outline.known.layouts[: len(steps)]
    order: Layout = ()
    for layout in layouts:
        if not line_up(order, layout):
            return nowhere
        order = broadcast_layout(order, layout)
    shapes = [_shape(tiles, index) for index in range(len(steps))]
    tile = {a: largest(shape[a] for shape in shapes) for a in range(len(steps[0].type))}
    fits = ~nowhere
    for shape in shapes:  # they broadcast to one tile
        for a, extent in tile.items():
            fits &= (shape[a] == 1) | (shape[a] == extent)
    for output in tiles.kernel.outputs:  # which is saved whole
        for a, extent in tile.items():
            fits &= (shapes[output][a] == extent) | (a == axis)
    for step in steps:
        if step.operator.kind in REDUCTIONS:
            fits &= shapes[step.reads[0]][axis] > 1
    if masks_of(tiles.kernel, axis, tiles.prepared.axes[axis].reduced):
        fits &= ~tiles.hanging(axis, TILE)  # a number that ends with its tensor
    loaded, runs = [], [] if order[-1] is None else [tile[order[-1]]]
    for index, step in enumerate(steps):
        if step.source is None:
            continue
        last = layouts[index][-1] if layouts[index] else None
        size = tiles.bytes_of_element(index)
        loaded.append(Loaded(shapes[index][axis] > 1, False if last is None else shapes[index][last] > 1, size))
        over = reduce(np.logical_or, (tiles.hanging(a, code) for a, code in enumerate(step.type)), nowhere)
        runs.append(np.where(over, 0 if last is None else tiles.sizes.whole(last, step.type[last]), 0))
    most = widest(runs, [tile_.size for tile_ in loaded])
    results = reduce(np.multiply, (extent for a, extent in tile.items() if a != axis), np.ones(tiles.shape))
    if order[-1] == axis:
        width = by_rows(tile[axis], results, most, loaded, WARPS)
    else:
        width = by_columns(tile[axis], results, most, loaded)
    found: Truths = fits & (width > 0)
    return found


def _shape(tiles: Tiles, index: int) -> list[Numbers]:
    """The extent of a step along every axis."""
    step, one = tiles.steps[index], np.ones(tiles.shape)
    return [tiles.sizes.extent(tiles.kernel, a, code) if code else one for a, code in enumerate(step.type)]


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
