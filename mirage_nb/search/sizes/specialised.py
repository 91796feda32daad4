"""Kernels whose warps have roles: products of many rows, and chained products, as persistent blocks.

In: the tiles of a kernel at many sizes. Out: a `Specialised`: where it can be emitted so, and what it takes. What makes
a block one of products is said over axes here and over dimensions in `tile.rules.products` and `tile.rules.attention`;
how it is cut then are the rules of `tile.rules.teams`, for both. One block runs on each multiprocessor and takes points
of the grid in turns. A turn is its steps of 64 summed elements and what is computed behind them; a step takes the
products at the rate that the card keeps up when so many multiprocessors multiply, or its copies, if these take longer.
Products of f32 and f64 take what `tile.instructions.rates` says of the kind of instruction that their precision stands
for; plain cores with a few rows of a tile work beside it. Operands that are stored in bytes are widened by the groups
of warps that multiply by them. An iteration of chained products takes its two products at the rate that the card keeps
up, or its exponentials, if these take longer: the one runs while the other is computed. A point takes the iterations
that its mask needs, and what is behind and in front of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mirage_nb.ir import FLOAT8, HALVES, DType, OpKind
from mirage_nb.search.sizes.anatomy import Chain, Numbers, Truths, largest
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.targets import Target
from mirage_nb.tile.instructions import rates
from mirage_nb.tile.instructions.schemes import apart, one_kind
from mirage_nb.tile.rules import teams
from mirage_nb.tile.rules.attention import KEYS
from mirage_nb.tile.rules.products import COLUMNS, RANK, ROWS, SUMMED, Operand, ProductBlock, boxed, distinct
from mirage_nb.tile.rules.shared import CHUNK_BYTES, PATTERN_ROWS


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a block does at a point: products of rows x columns of a type (those of low rank count by their columns),
    `depth` summed elements each, `step` of them in a stage, and `more` steps behind them; widened: right operands are.
    cycles: of one of f32 or f64, for a summed element;
    stage: bytes of a step; stages: of the ring; rest: bytes of second pieces and of held operands."""

    dtype: DType
    step: int
    widened: bool
    products: Numbers | int
    rows: Numbers
    columns: Numbers
    depth: Numbers
    more: int
    cycles: Numbers
    stage: Numbers
    stages: Numbers
    rest: Numbers

    @property
    def speedup(self) -> int:
        """Of tensor cores over what they reach with elements of 16 bits."""
        return 2 if self.dtype in FLOAT8 else 1

    @property
    def parts(self) -> Numbers:
        """Warpgroups that multiply."""
        if self.widened:
            return self.columns / min(teams.WIDENED_COLUMNS)
        found: Numbers = teams.parts(self.rows, self.dtype.size)
        return found


@dataclass(frozen=True, slots=True)
class Specialised:
    """A kernel emitted so, one number for each choice of sizes.

    able: where it can be. parts: warpgroups that multiply. turns: points of the block that has most. Microseconds:
    `us` from the first request of a tile on; of all turns, `products` and `copies`, of which the longer counts, and
    `values`, what stands behind the products; `device`, in which all bytes cross device memory once. memory: bytes of
    shared memory; stages: of the ring. again: it is emitted as with another for-loop range, that of its steps.
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
    again: Truths


def specialised(tiles: Tiles, target: Target, constants: Constants, device: Numbers) -> Specialised | None:
    """A kernel emitted so, None where it can be at no sizes. device: bytes that cross device memory."""
    made = tiles.outline.products
    if made is None or target.capability != teams.CAPABILITY or (major := made.major) is None:
        return None
    dtype, able, nothing = made.dtype, np.ones(tiles.shape, bool), np.zeros(tiles.shape)
    step, streamed = made.step, dict[object, Numbers]()
    rows = columns = depth = np.ones(tiles.shape)
    for factors in made.factors:
        rows, columns = (_along(tiles, *pair) for pair in ((factors.left, ROWS), (factors.right, COLUMNS)))
        depth = _along(tiles, factors.left, SUMMED) * tiles.sizes.loop
        for operand, lines, size in ((factors.left, rows, dtype.size), (factors.right, columns, made.other.size)):
            able = able & _fits(tiles, operand, step)
            moved = tiles.outline.read_by(operand.attrs)
            streamed[moved.tensor, moved.extents] = _panels(lines, step * size)
    ranks, once = _held(tiles, made)
    if len(ranks) > 1:
        return None
    for operand in {o for added in made.added.values() for o, _ in added.held} | {f.right for f in made.low.values()}:
        able = able & _fits(tiles, operand, step)
    low = made.low_columns(max(ranks, default=0))
    for factors in made.low.values():
        moved = tiles.outline.read_by(factors.right.attrs)
        lines = np.full(tiles.shape, float(teams.STEP if factors.right.axes[-1] == RANK else low))
        streamed[moved.tensor, moved.extents] = _panels(lines, step * dtype.size)
    able = able & teams.low_fits(rows, columns, len(made.sums), len(made.low) * low)
    main = rows - teams.few(rows)
    doubled = apart(target.precision, dtype)
    if made.widened:
        able = able & teams.widened_fits(rows, columns, depth, len(made.sums)) & (not made.folded)
    else:
        able = able & teams.fits(rows, columns, depth, len(made.sums), dtype.size, doubled, made.folded)
    stage = sum(streamed.values(), nothing)
    cycles, rests = nothing, nothing
    if dtype not in HALVES | FLOAT8:
        cycles, rests = one_kind(main, columns, major[0], target.precision, dtype)
    rest = rests * step * dtype.size + once
    stages = teams.stages(stage, target.shared_per_block - rest)
    able &= stages >= teams.SHALLOWEST
    if not able.any():
        return None
    more = sum(-(-rank // step) for rank in ranks)
    products = len(made.factors) + len(made.low) * low / columns
    turn = _Turn(dtype, step, made.widened, products, rows, columns, depth, more, cycles, stage, stages, rest)
    return _timed(tiles, target, constants, able, turn, device)


def _along(tiles: Tiles, operand: Operand, axis: str) -> Numbers:
    """Of an operand's tile along an axis."""
    return tiles.extent(tiles.outline.read_by(operand.attrs).extents[operand.axes.index(axis)])


def _fits(tiles: Tiles, operand: Operand, step: int) -> Truths:
    """Where an operand is a matrix that comes in whole boxes; what is held, with all that is summed."""
    extents, tensor, size, hanging = tiles.cut(tiles.outline.read_by(operand.attrs))
    fits: Truths = np.broadcast_to(boxed(operand, tensor, extents, hanging, step, size), tiles.shape)
    for extent in extents[:-2]:
        fits = fits & (extent == 1)
    if RANK in operand.axes:
        fits = fits & (extents[operand.axes.index(RANK)] == tensor[operand.axes.index(RANK)])
    return fits


def _held(tiles: Tiles, made: ProductBlock) -> tuple[set[int], Numbers | float]:
    """What products behind the loop sum; bytes of their held operands."""
    ranks = set[int]()
    panels: dict[object, Numbers] = {}
    for added in made.added.values():
        for operand, axis in added.held:
            moved = tiles.outline.read_by(operand.attrs)
            name = moved.extents[operand.axes.index(RANK)]
            rank = 1 if name is None else name.whole(tiles.sizes)
            ranks.add(rank)
            nbytes = _panels(_along(tiles, operand, axis), made.step * made.dtype.size)
            low = made.low_columns(rank) if operand.axes[0] == RANK else 0
            panels[moved.tensor, moved.extents] = nbytes * (low or teams.STEP) / teams.STEP
    return ranks, sum(panels.values(), 0.0)


def _timed(
    tiles: Tiles, target: Target, constants: Constants, able: Truths, turn: _Turn, device: Numbers
) -> Specialised:
    """What it takes."""
    points, steps = tiles.sizes.total_blocks(), turn.depth / turn.step + turn.more
    turns = np.ceil(points / target.multiprocessors)
    last = points - (turns - 1) * target.multiprocessors
    full, rest = (_step_us(target, constants, turn, running) for running in (target.multiprocessors, last))
    copied = turn.stage / (constants.byte_stream_bytes_us if turn.dtype in FLOAT8 else constants.stream_bytes_us)
    step = constants.step_us
    looped = steps * ((turns - 1) * (np.maximum(full, copied) + step) + np.maximum(rest, copied) + step)
    operation = target.multiprocessors / (target.vector_rate * 1e6)
    values = turns * _behind(tiles, constants) * operation
    moved = device / (target.device_bandwidth * 1e3)
    us = constants.latency_us + np.maximum(looped, moved) + values
    return Specialised(
        able, turn.parts, us, turns, steps * ((turns - 1) * full + rest),
        turns * steps * copied, values, moved, turn.stage * turn.stages + turn.rest, turn.stages,
        tiles.sizes.loop != np.maximum(steps - turn.more, 2),
    )  # fmt: skip


def _behind(tiles: Tiles, constants: Constants) -> Numbers:
    """Operations behind the products of a tile: its elements are stored, and those of each operator computed."""
    late, none = [cell for cell in tiles.outline.cells if cell.late and not cell.is_leaf], np.zeros(tiles.shape)
    if tiles.outline.products is None or not tiles.outline.products.folded:
        return constants.behind_operations * sum((tiles.elements[cell.value] for cell in late), none)
    stored = sum((tiles.elements[value] for value, _ in tiles.outline.saves), none)
    made = [(cell.value, *cell.reads) for cell in late if cell.node.kind is not OpKind.ACCUM]
    computed = sum((largest(tiles.elements[value] for value in values) for values in made), none)
    return constants.behind_operations * stored + constants.folded_operations * computed


def _step_us(target: Target, constants: Constants, turn: _Turn, running: Numbers | float) -> Numbers:
    """Microseconds of a step's products where so many multiprocessors multiply: both units, side by side."""
    few = 0 if turn.widened else teams.few(turn.rows)
    times = turn.products * turn.step
    cycles = times * rates.cycle_us(target)
    if turn.dtype not in HALVES | FLOAT8:
        busy = cycles * turn.cycles
    else:
        alone = constants.alone_share / target.multiprocessors
        work = times * 2.0 * (turn.rows - few) * turn.columns / (turn.speedup * target.tensor_rate * 1e6)
        busy = work / np.minimum(alone, constants.sustained_share / running)
        if turn.widened:  # a group of warps does one after the other, while others do the same
            operations = constants.widen_operations * target.multiprocessors / (target.vector_rate * 1e6)
            own = work / turn.parts / alone + times * (constants.widen_us + turn.columns * operations)
            busy = np.maximum(busy, own)
    together: Numbers = rates.together(busy, cycles * rates.few_cycles(few, turn.columns, turn.dtype))
    return together


def _panels(lines: Numbers, line: int) -> Numbers:
    """Bytes of so many lines of a step in shared memory."""
    filled: Numbers = np.ceil(lines / PATTERN_ROWS) * PATTERN_ROWS * line
    return filled


def chained(tiles: Tiles, target: Target, constants: Constants, device: Numbers) -> Specialised | None:
    """A kernel emitted so, None where it can be at no sizes. device: bytes that cross device memory."""
    chain = tiles.outline.chain
    if chain is None or target.capability != teams.CAPABILITY:
        return None
    found = chain.found
    if len(found.results) != 1 or len(found.tops) > 1 or not found.is_held:
        return None
    if not distinct((found.queries, found.keys, found.values), tiles.outline.tensor) or (chain.shared and chain.masks):
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
    if chain.shared:
        able &= ~tiles.cut(tiles.outline.read_by(found.values.attrs))[3][found.values.axes.index(KEYS)]
    along, registers, nbytes = _beside(tiles, chain, rows, keys)
    able &= along & teams.chained_fits(rows, keys, depth, columns, target.shared_per_block, registers)
    if not able.any():
        return None
    stages = teams.chained_stages(rows, keys, depth, columns, target.shared_per_block)
    lengths = {ROWS: rows, KEYS: keys}
    for axis, name in chain.numbered.values():
        able &= tiles.extent(name) == lengths[axis]
    read = _read(tiles, chain, able, lengths)
    return _chained_timed(tiles, target, constants, able, (rows, keys, depth, columns), nbytes, stages, read, device)


def _beside(tiles: Tiles, chain: Chain, rows: Numbers, keys: Numbers) -> tuple[Truths, Numbers, Numbers]:
    """Where what is read beside the matrices lies along them, none of it beyond its end; a thread's registers for what
    an iteration reads, and its bytes."""
    able, registers, nbytes = np.ones(tiles.shape, bool), np.zeros(tiles.shape), np.zeros(tiles.shape)
    for one in chain.beside:
        extents, _, width, hanging = tiles.cut(tiles.outline.read_by(one.attrs))
        keyed, lines = np.zeros(tiles.shape, bool), np.zeros(tiles.shape, bool)
        able &= width <= DType.F32.size
        for dim, extent in enumerate(extents):
            able &= ~hanging[dim]
            if dim in one.keys:
                keyed |= extent > 1
            elif dim in one.rows:
                lines |= extent > 1
            else:
                able &= extent == 1
        registers += np.where(keyed, teams.registers_beside(keys, width, lines), 0.0)
        nbytes += np.where(keyed, keys * np.where(lines, rows, 1.0) * width, 0.0)
    return able, registers, nbytes


def _read(tiles: Tiles, chain: Chain, able: Truths, lengths: dict[str, Numbers]) -> tuple[Numbers, Numbers]:
    """Tiles of keys that rows read, where they can be those of a mask: on average, and the most."""
    iterations, most = tiles.sizes.loop.copy(), tiles.sizes.loop.copy()
    if not chain.masks or not able.any():
        return iterations, most
    whole = {axis: name.whole(tiles.sizes) for axis, name in chain.numbered.values() if name is not None}
    sizes = np.stack([lengths[ROWS], lengths[KEYS], tiles.sizes.loop])[:, able].astype(int)
    each, where = np.unique(sizes, axis=1, return_inverse=True)
    found = []
    for height, width, loop in each.T.tolist():
        rows = -(-whole.get(ROWS, height) // height)
        read = chain.span((rows, height), (loop, width)).read(rows)
        found.append((read.mean(), read.max()))
    iterations[able], most[able] = np.array(found)[where.ravel()].T
    return iterations, most


def with_roles(tiles: Tiles, target: Target, constants: Constants, device: Numbers) -> Specialised | None:
    """A kernel whose warps have roles: one of products, or of chained ones. Windows are copied that it does not read in
    boxes, each by a kernel in front of it."""
    found = specialised(tiles, target, constants, device) or chained(tiles, target, constants, device)
    outline = tiles.outline
    seen = {read.tensor: read for read in outline.reads.values() if read.boxed is not None} if found else {}
    if found is None or not seen:
        return found
    operands: set[Operand] = set()
    if outline.products is not None:
        operands = outline.products.operands
    elif outline.chain is not None:
        operands = {outline.chain.found.queries, outline.chain.found.keys, outline.chain.found.values}
    boxed = {outline.read_by(operand.attrs).tensor for operand in operands}
    us = found.us
    for tensor, read in seen.items():
        if not (read.boxed and tensor in boxed):
            elements = math.prod(name.whole(tiles.sizes) for name in read.extents if name is not None)
            us = us + target.start_us + target.launch_us + 2 * elements * read.width / (target.device_bandwidth * 1e3)
    return replace(found, us=us)


def _matrix(tiles: Tiles, operand: Operand, summed: str, own: tuple[int, ...]) -> tuple[Truths, Numbers]:
    """Where an operand comes in boxes, with one long dimension among its own ones beside the summed one; its extent."""
    extents, tensor, width, hanging = tiles.cut(tiles.outline.read_by(operand.attrs))
    fits, length, longest = np.mod(extents[-1], teams.STEP) == 0, np.ones(tiles.shape), np.ones(tiles.shape)
    fits &= tensor[-1] * width % CHUNK_BYTES == 0
    taken = np.ones(tiles.shape, bool)  # by no dimension in front: boxes hang over the end of their rows
    for dim, extent in enumerate(extents):
        rows = dim in own if summed != KEYS else operand.axes[dim] == KEYS
        fits &= ~hanging[dim] | (taken & rows)
        taken &= extent == 1
        if dim in own:
            length, longest = length * extent, np.maximum(longest, extent)
        elif operand.axes[dim] != summed:
            fits &= extent == 1
    return fits & (length == longest), length


def _chained_timed(
    tiles: Tiles, target: Target, constants: Constants, able: Truths, extents: tuple[Numbers, ...], beside: Numbers,
    stages: Numbers, read: tuple[Numbers, Numbers], device: Numbers,
) -> Specialised:  # fmt: skip
    """What it takes; extents: rows and keys of a tile, summed elements, columns; beside: bytes that an iteration reads
    beside keys and values; read: as of `_read`."""
    rows, keys, depth, columns = extents
    turns = np.ceil(tiles.sizes.total_blocks() / target.multiprocessors)
    iterations = np.maximum(read[0], read[1] / turns)
    rate = constants.chained_share * target.tensor_rate * 1e6 / target.multiprocessors
    products = 2 * rows * keys * (depth + columns) / rate
    exponentials = rows * keys / constants.exponentials_us
    copied = (2 * keys * (depth + columns) + beside) / constants.stream_bytes_us
    longest = np.maximum(np.maximum(products, exponentials), copied) + constants.chained_step_us
    looped = turns * (iterations * longest + constants.chained_point_us)
    moved = device / (target.device_bandwidth * 1e3)
    us = constants.latency_us + np.maximum(looped, moved)
    steps, values = turns * iterations, turns * constants.chained_point_us
    memory = 2 * (rows * depth + stages * keys * (depth + columns))
    return Specialised(
        able, teams.parts(rows), us, turns, steps * np.maximum(products, exponentials), steps * copied, values, moved,
        memory, stages, np.zeros(tiles.shape, bool),
    )  # fmt: skip
