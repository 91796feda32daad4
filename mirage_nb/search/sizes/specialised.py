"""Products of many rows as persistent blocks with roles: where a kernel can be emitted so, and what it takes.

In: the tiles of a kernel at many sizes. Out: a `Specialised`. What makes a block one of
products is said over axes here and over dimensions in `optimize.product`; how it is cut then are the rules of
`tile.rules`, for both.
One block runs on each multiprocessor and takes points of the grid in turns. A turn is its steps of 64 summed elements
and what is computed behind them; a step takes the products at the rate that the card keeps up when so many
multiprocessors multiply, or its copies, if these take longer. Products of f32 and f64 take what `tile.rates` says of
the kind of instruction that their precision stands for; plain cores with a few rows of a tile work beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mirage_nb.ir import DType
from mirage_nb.search.axes import Layout
from mirage_nb.search.saturation.values import BODY, TILE
from mirage_nb.search.sizes.anatomy import Numbers, Truths
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.layouts import layout_of
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.targets import Target
from mirage_nb.tile import rates, rules
from mirage_nb.tile.schemes import apart, one_kind
from mirage_nb.tile.sketch import ELEMENTWISE

WIDTHS = {True: {rules.FLOAT: DType.F32, rules.DOUBLE: DType.F64}, False: {2: DType.F16}}
"""Whether all inputs are f32 or wider -> bytes of the widest -> a type of so many."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a block does at a point: products of rows x columns, `depth` summed elements each, and `more` steps behind
    them. cycles: of one of f32 or f64, for a summed element; stage: bytes of a step; stages: of the ring; rest: bytes
    of second pieces and of held operands."""

    products: int
    rows: Numbers
    columns: Numbers
    depth: Numbers
    more: Numbers
    cycles: Numbers
    stage: Numbers
    stages: Numbers
    rest: Numbers


@dataclass(frozen=True, slots=True)
class Specialised:
    """A kernel emitted so, one number for each choice of sizes.

    able: where it can be. parts: warpgroups that multiply. turns: points of the block that has most. Microseconds:
    `us` from the first request of a tile on; of all turns, `products` and `copies`, of which the longer counts, and
    `values`, what stands behind the products; `device`, in which all bytes cross device memory once. memory: bytes of
    shared memory; stages: of the ring.
    """

    able: Truths
    parts: Numbers
    us: Numbers
    turns: Numbers
    products: Numbers
    copies: Numbers
    values: Numbers
    device: Numbers
    memory: Numbers
    stages: Numbers


def specialised(tiles: Tiles, target: Target, constants: Constants, device: Numbers) -> Specialised | None:
    """A kernel emitted so, None where it can be at no sizes. device: bytes that cross device memory."""
    found = tiles.outline.products
    if found is None or target.capability != rules.CAPABILITY or tiles.width not in WIDTHS[tiles.floats]:
        return None
    if found.added and tiles.floats:
        return None
    if tiles.width == rules.DOUBLE and any(s.stage != BODY and s.operator.kind in ELEMENTWISE for s in tiles.steps):
        return None  # elementwise functions are those of f32
    if any(tiles.outline.known.wide[read] for index in found.streamed for read in tiles.steps[index].reads):
        return None
    able, nothing = np.ones(tiles.shape, bool), np.zeros(tiles.shape)
    streamed: dict[object, Numbers] = {}
    rows = columns = depth = np.ones(tiles.shape)
    major, axes = "", (0, 0)
    for index in found.streamed:
        made = _product(tiles, index)
        if made is None:
            return None
        fits, rows, columns, depth, major, axes = made
        able = able & fits
        for read in tiles.steps[index].reads:
            step = tiles.steps[read]
            streamed[step.source, step.type] = _panels(tiles, tiles.elements[read] / (depth / tiles.sizes.loop))
    more = once = nothing
    if found.added:
        behind = _added(tiles, found.added, axes)
        if behind is None:
            return None
        fits, more, once = behind
        able = able & fits
    dtype, main = WIDTHS[tiles.floats][tiles.width], rows - rules.few(rows)
    able &= rules.fits(rows, columns, depth, len(found.sums), tiles.width, apart(target.precision, dtype))
    able &= depth == rules.step(tiles.width) * tiles.sizes.loop  # stages are alike: one loop says it all
    stage = sum(streamed.values(), nothing)
    cycles, rests = one_kind(main, columns, major, target.precision, dtype) if tiles.floats else (nothing, nothing)
    rest = rests * rules.step(tiles.width) * tiles.width + once
    stages = rules.stages(stage, target.shared_per_block - rest)
    able &= stages >= rules.SHALLOWEST
    if not able.any():
        return None
    turn = _Turn(len(found.streamed), rows, columns, depth, more, cycles, stage, stages, rest)
    return _timed(tiles, target, constants, able, turn, device)


def _timed(
    tiles: Tiles, target: Target, constants: Constants, able: Truths, turn: _Turn, device: Numbers
) -> Specialised:
    """What it takes."""
    points, steps = tiles.sizes.total_blocks(), turn.depth / rules.step(tiles.width) + turn.more
    turns = np.ceil(points / target.multiprocessors)
    last = points - (turns - 1) * target.multiprocessors
    full, rest = (_step_us(tiles, target, constants, turn, running) for running in (target.multiprocessors, last))
    copied = turn.stage / constants.stream_bytes_us
    step = constants.step_us
    looped = steps * ((turns - 1) * (np.maximum(full, copied) + step) + np.maximum(rest, copied) + step)
    operation = target.multiprocessors / (target.vector_rate * 1e6)
    count = sum(tiles.elements[i] for i, s in enumerate(tiles.steps) if s.stage != BODY and not s.operator.is_leaf)
    values = turns * count * constants.behind_operations * operation
    moved = device / (target.device_bandwidth * 1e3)
    us = constants.latency_us + np.maximum(looped, moved) + values
    return Specialised(
        able, rules.parts(turn.rows, tiles.width), us, turns, steps * ((turns - 1) * full + rest),
        turns * steps * copied, values, moved, turn.stage * turn.stages + turn.rest, turn.stages,
    )  # fmt: skip


def _step_us(tiles: Tiles, target: Target, constants: Constants, turn: _Turn, running: Numbers | float) -> Numbers:
    """Microseconds of a step's products where so many multiprocessors multiply: both units, side by side."""
    dtype, few = WIDTHS[tiles.floats][tiles.width], rules.few(turn.rows)
    times = turn.products * rules.step(tiles.width)
    cycles = times * rates.cycle_us(target)
    if tiles.floats:
        busy = cycles * turn.cycles
    else:
        share = np.minimum(constants.alone_share / target.multiprocessors, constants.sustained_share / running)
        busy = times * 2.0 * (turn.rows - few) * turn.columns / (share * target.tensor_rate * 1e6)
    together: Numbers = rates.together(busy, cycles * rates.few_cycles(few, turn.columns, dtype))
    return together


def _panels(tiles: Tiles, lines: Numbers) -> Numbers:
    """Bytes of so many lines of a step in shared memory."""
    filled: Numbers = np.ceil(lines / rules.PATTERN_ROWS) * rules.PATTERN_ROWS * rules.step(tiles.width) * tiles.width
    return filled


def _added(
    tiles: Tiles, added: tuple[int, ...], axes: tuple[int, int]
) -> tuple[Truths, Numbers, Numbers] | None:
    """Where the operands of products of held matrices come in whole boxes; the steps of these products, and the bytes
    of the operands. axes: of the rows and columns that they are added to. None: nowhere."""
    fits, sizes, kernel = np.ones(tiles.shape, bool), tiles.sizes, tiles.kernel
    deep: set[int] = set()
    held: dict[object, Numbers] = {}
    for index in added:
        summed = tiles.steps[index].operator.axis
        assert summed is not None
        deep.add(sizes.extents[summed])
        inner = set[int]()
        for hold in tiles.steps[index].reads:
            read = tiles.steps[hold].reads[0]
            layout, step = tiles.layout(read), tiles.steps[read]
            own = {a for a in layout if a is not None} - {summed}
            if len(layout) != 2 or len(own) != 1 or not own <= {*axes}:
                return None
            (axis,) = own
            last = layout[-1]
            extent = sizes.extent(kernel, axis, step.type[axis])
            whole = sizes.extent(kernel, summed, step.type[summed])
            if last is None or sizes.extents[last] * tiles.width % rules.CHUNK_BYTES:
                return None
            fits &= whole == sizes.extents[summed]
            if last == axis:
                fits &= extent % (rules.step(tiles.width) if axis == axes[1] else rules.HEIGHT) == 0
            held[step.source, step.type] = _panels(tiles, extent)
            inner.add(axis)
        if inner != {*axes}:
            return None
    if len(deep) > 1:
        return None
    more = np.full(tiles.shape, float(-(-deep.pop() // rules.step(tiles.width))))
    return fits, more, sum(held.values(), np.zeros(tiles.shape))


def _product(tiles: Tiles, index: int) -> tuple[Truths, Numbers, Numbers, Numbers, str, tuple[int, int]] | None:
    """Where a product's operands come in whole boxes; its rows, columns and summed elements; what runs along a line of
    the left one; the axes of rows and columns. None: nowhere."""
    step, sizes, kernel = tiles.steps[index], tiles.sizes, tiles.kernel
    axis = step.operator.axis
    types = [tiles.steps[read].type for read in step.reads]
    layouts: list[Layout] = []
    for read in step.reads:
        source = tiles.steps[read].source
        assert source is not None
        layouts.append(layout_of(tiles.prepared, kernel, read, source))
    own = [
        [a for a in layout if a is not None and a != axis and not types[1 - side][a]]
        for side, layout in enumerate(layouts)
    ]
    if not all(own) or any(axis not in layout[-2:] for layout in layouts):
        return None
    row, column = own[0][-1], own[1][-1]
    if (layouts[0][-2:], layouts[1][-2:]) == ((axis, row), (column, axis)) or _turned(tiles, row, column):
        return None
    fits = np.ones(tiles.shape, bool)
    for side, (layout, type_, inner) in enumerate(zip(layouts, types, (row, column), strict=True)):
        if set(layout[-2:]) != {axis, inner}:
            return None
        last = layout[-1]
        assert last is not None
        if sizes.extents[last] * tiles.width % rules.CHUNK_BYTES:
            return None
        for other in (a for a in layout[:-2] if a is not None):
            fits &= sizes.extent(kernel, other, type_[other]) == 1
            fits &= ~tiles.hanging(inner, type_[inner]) & ~tiles.hanging(axis, type_[axis])
            fits &= sizes.extent(kernel, inner, type_[inner]) % rules.PATTERN_ROWS == 0
        if last == inner:
            fits &= sizes.extent(kernel, inner, type_[inner]) % (rules.step(tiles.width) if side else rules.HEIGHT) == 0
    rows, columns = (sizes.extent(kernel, a, t[a]) for a, t in zip((row, column), types, strict=True))
    depth = sizes.extent(kernel, axis, types[0][axis] & TILE) * sizes.loop
    return fits, rows, columns, depth, "k" if layouts[0][-1] == axis else "m", (row, column)


def _turned(tiles: Tiles, row: int, column: int) -> bool:
    """Whether some output of the program has its columns before its rows: it leaves a block turned round."""
    layouts = tiles.prepared.output_axes
    return any({row, column} <= set(o) and o.index(column) < o.index(row) for o in layouts)
