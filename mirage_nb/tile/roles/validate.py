"""What is wrong with a tile program, found without running it.

In: a tile program, the target that it is made for. Out: findings in words, none for a valid program: names,
instructions and layouts that do not fit, too little shared memory, too few registers or barriers, pipelines whose bytes
and arrivals do not add up; and what `flow` finds by following each role: accesses out of bounds, stages read before
they are filled or after they are handed back, elements that are stored twice or never, tiles that lie elsewhere than
they are taken for. Invariant: what has no findings runs to its end and writes every element of its outputs once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mirage_nb.targets import Target
from mirage_nb.tile.instructions.groups import GROUPS, ROWS
from mirage_nb.tile.instructions.table import INSTRUCTIONS, Place
from mirage_nb.tile.roles.flow import follow
from mirage_nb.tile.roles.marks import wrongly_marked
from mirage_nb.tile.roles.program import (
    GROUP,
    LANES,
    Acquire,
    Await,
    Copy,
    Layout,
    Mark,
    Multicast,
    Pipeline,
    Product,
    Program,
    Release,
    Role,
    Tile,
    flat,
)
from mirage_nb.tile.roles.registers import registers
from mirage_nb.tile.rules.boxes import BOX_ROWS
from mirage_nb.tile.rules.shared import CHUNK_BYTES, LINE_BYTES, PATTERN_ROWS
from mirage_nb.tile.rules.teams import BESIDE_SUMS, FLOAT_STEP, REGISTER_UNIT, RESERVED_BYTES, first_registers

LAYOUTS = {Place.GLOBAL: Layout.ROWS, Place.SHARED: Layout.PANELS, Place.REGISTER: Layout.FRAGMENT}
"""How tiles lie, by their place."""
THREADS = 1024
LEAST_REGISTERS, MOST_REGISTERS = 24, 255
WORKING_REGISTERS = 28
"""Of a thread, beside its accumulators: no kernel with so many spills any."""
CLUSTERS = range(1, 9)
"""Blocks of a cluster, on every card that has them."""
BARRIER = 8
"""Bytes of an mbarrier."""
NAMES: dict[type, tuple[str, ...]] = {
    Copy: ("source", "target"), Multicast: ("source", "target"), Product: ("result", "left", "right"),
    Mark: ("target",),
}  # fmt: skip
"""The fields that name tiles, of statements about which more is asked than whether these are there."""


def validate(program: Program, target: Target) -> tuple[str, ...]:
    """Everything that is wrong, in words; () if nothing is."""
    found = tuple(_declared(program))
    if found:  # what follows takes names and shapes for granted
        return found
    found = (*_capacity(program, target), *_pipelines(program), *_products(program, target), *wrongly_marked(program))
    return found or follow(program)


def _declared(program: Program) -> Iterator[str]:
    """Names that are missing or there twice, extents that are none."""
    groups = (program.axes, program.roles, program.tiles, program.pipelines)
    for name, count in Counter(part.name for group in groups for part in group).items():
        if count > 1 and not (count == 2 and name in program.extents):
            yield f"{name} is declared {count} times"
    tiles, axes = {t.name: t for t in program.tiles}, program.extents
    for name, extent in axes.items():
        if extent < 1:
            yield f"axis {name} has {extent} elements"
    for tile in program.tiles:
        if len(tile.axes) != len(tile.shape) or not tile.shape or min(tile.shape) < 1 or tile.stages < 1:
            yield f"tile {tile.name} has axes {tile.axes} and extents {tile.shape}, {tile.stages} stages"
            continue
        for axis, extent in zip(tile.axes, tile.shape, strict=True):
            if axis and axis not in axes:
                yield f"tile {tile.name} has an unknown axis {axis}"
            elif tile.place is Place.GLOBAL and extent != axes.get(axis, 1):
                yield f"tensor {tile.name} has {extent} elements along {axis or 'a dimension without axis'}"
    for name in program.outputs:
        if name not in tiles or tiles[name].place is not Place.GLOBAL:
            yield f"output {name} is no global tile"
    if [name for name, _ in program.code] != [role.name for role in program.roles]:
        yield "code and roles differ"
        return
    known = {t.name for t in program.pipelines}
    for pipeline in program.pipelines:
        if not pipeline.tiles or not set(pipeline.tiles) <= tiles.keys():
            yield f"pipeline {pipeline.name} fills unknown tiles"
    for role, statements in program.code:
        for statement in flat(statements):
            if isinstance(statement, Acquire | Await | Release) and statement.pipeline not in known:
                yield f"{role}: there is no pipeline {statement.pipeline}"
            names = NAMES.get(type(statement), ())
            for name in (getattr(statement, field) for field in names):
                if name not in tiles:
                    yield f"{role}: there is no tile {name}"
            if isinstance(statement, Product) and statement.instruction not in ROWS:
                yield f"{role}: there is no instruction {statement.instruction}"


def _capacity(program: Program, target: Target) -> Iterator[str]:
    """Shared memory, threads, registers, barriers."""
    if program.capability != target.capability:
        yield f"made for capability {program.capability}, the target has {target.capability}"
    reserved = RESERVED_BYTES * (2 if program.marks else 1)
    if program.shared_bytes > (free := target.shared_per_block - reserved):
        yield f"{program.shared_bytes} bytes of shared memory; the target has {free}"
    marks = sum(t.nbytes * t.stages for t in program.tiles if t.name in program.marks)
    if 2 * BARRIER * sum(p.stages for p in program.pipelines) + marks > RESERVED_BYTES:
        yield "too many barriers, or marks"
    if program.threads > THREADS or program.blocks < 1 or any(role.warps < 1 for role in program.roles):
        yield f"{program.threads} threads in {program.blocks} blocks"
        return
    if program.cluster not in CLUSTERS or program.blocks % program.cluster:
        yield f"{program.blocks} blocks in clusters of {program.cluster}"
    yield from _grouped(program)
    entry = first_registers(program.threads, target.registers_per_multiprocessor)
    claimed = [role for role in program.roles if role.registers]
    if claimed:
        if len(claimed) < len(program.roles) or sum(role.warps for role in claimed) % GROUP:
            yield "registers are handed over by whole groups of four warps of all roles"
        if sum(role.registers * LANES * role.warps for role in claimed) > entry * program.threads:
            yield "the roles claim more registers than the block has"
    for role in program.roles:
        yield from _registers(program, role, min(entry, MOST_REGISTERS))


def _grouped(program: Program) -> Iterator[str]:
    """Whether roles have groups of four warps for themselves; those of the last one, which do not multiply, may share
    it and its registers."""
    first = 0
    for place, role in enumerate(program.roles):
        several, rest = first % GROUP + role.warps > GROUP, program.roles[place:]
        multiplies = any(isinstance(s, Product) for s in flat(program.statements(role.name)))
        if first % GROUP and (multiplies or several or role.registers != program.roles[place - 1].registers):
            yield f"{role.name} begins inside a group of four warps"
        if role.warps % GROUP and (multiplies or sum(r.warps for r in rest) + first % GROUP > GROUP) and rest[1:]:
            yield f"{role.name} ends inside a group of four warps"
        first += role.warps


def _registers(program: Program, role: Role, entry: int) -> Iterator[str]:
    held = [pair for tile in program.register_tiles(role.name) for pair in zip(tile.axes, tile.shape, strict=True)]
    if len(dict(held)) < len(set(held)):
        yield f"{role.name}: its register tiles differ along an axis"
    if role.registers and (role.registers % REGISTER_UNIT or role.registers < LEAST_REGISTERS or role.registers > 256):
        yield f"{role.name}: {role.registers} registers cannot be claimed"
    needed, limit = registers(program, role), role.registers or entry
    if needed and needed + WORKING_REGISTERS > limit:
        yield f"{role.name}: {needed} registers of accumulators, of {limit}"


def _pipelines(program: Program) -> Iterator[str]:
    """Bytes, slots and arrivals."""
    filled = Counter(name for pipeline in program.pipelines for name in pipeline.tiles)
    rests = {s.rest for s in program.every if isinstance(s, Product) and s.rest}
    filled.update(rests)
    for tile in program.tiles:
        if tile.place is Place.SHARED and filled[tile.name] != 1:
            yield f"{filled[tile.name]} pipelines fill tile {tile.name}"
    for pipeline in program.pipelines:
        tiles = [program.tile(name) for name in pipeline.tiles]
        if any(t.place is not Place.SHARED or t.stages != pipeline.stages for t in tiles):
            yield f"pipeline {pipeline.name} has {pipeline.stages} stages, not all of its tiles have"
        if sum(t.nbytes for t in tiles) != pipeline.nbytes:
            yield f"pipeline {pipeline.name} announces {pipeline.nbytes} bytes of {sum(t.nbytes for t in tiles)}"
        yield from _ends(program, pipeline)


def _ends(program: Program, pipeline: Pipeline) -> Iterator[str]:
    """Who fills a pipeline, who empties it."""

    def roles(kind: type[Acquire | Await | Release]) -> list[Role]:
        return [
            role
            for role in program.roles
            if any(isinstance(s, kind) and s.pipeline == pipeline.name for s in flat(program.statements(role.name)))
        ]

    fills, takes, returns = roles(Acquire), roles(Await), roles(Release)
    if len(fills) != 1 or not takes or takes != returns or fills[0] in takes:
        yield f"pipeline {pipeline.name} needs one role that fills it, and others that empty it"
    arrivals = sum(role.warps for role in returns) * program.emptied_by(pipeline.name)
    if arrivals != pipeline.arrivals:
        yield f"pipeline {pipeline.name} waits for {pipeline.arrivals} arrivals, {arrivals} warps hand stages back"


def _products(program: Program, target: Target) -> Iterator[str]:
    """Instructions that the target lacks, or that do not take these tiles."""
    for tile in (t for t in program.tiles if t.name not in program.marks):
        yield from _laid(tile)
    for role in program.roles:
        for statement in flat(program.statements(role.name)):
            if isinstance(statement, Product):
                yield from _product(program, role, statement, target)
            elif isinstance(statement, Copy):
                yield from _copied(program, statement)


def _laid(tile: Tile) -> Iterator[str]:
    if tile.layout is not LAYOUTS[tile.place]:
        yield f"tile {tile.name} lies in {tile.layout.value} in {tile.place.value} memory"
    if tile.place is not Place.SHARED and tile.stages > 1:
        yield f"tile {tile.name} has stages, and no pipeline fills it"
    if tile.place is not Place.GLOBAL and len(tile.shape) != 2 and not (tile.place is Place.REGISTER and tile.axes):
        yield f"tile {tile.name} is no matrix"
    elif tile.place is Place.SHARED:
        rows, columns = tile.shape
        if columns * tile.dtype.size % LINE_BYTES or rows % PATTERN_ROWS or rows > BOX_ROWS:
            yield f"tile {tile.name} of {rows} x {columns} fills no panels"


def _copied(program: Program, copy: Copy) -> Iterator[str]:
    """Whether the copy engine brings such boxes."""
    source, target = program.tile(copy.source), program.tile(copy.target)
    if isinstance(copy, Multicast) and (program.cluster < 2 or target.shape[0] % (program.cluster * PATTERN_ROWS)):
        yield f"{target.name} has no part of its rows for each of {program.cluster} blocks"
    if source.place is not Place.GLOBAL or source.name in program.outputs or target.place is not Place.SHARED:
        yield f"{source.name} cannot be copied to {target.name}"
        return
    if source.dtype is not target.dtype or tuple(a for a in source.axes if a in target.axes) != target.axes:
        yield f"boxes of {source.name} are no {target.name}"
    if source.shape[-1] * source.dtype.size % CHUNK_BYTES:
        yield f"rows of {source.name} begin anywhere"


def _product(program: Program, role: Role, product: Product, target: Target) -> Iterator[str]:
    instruction = ROWS[product.instruction]
    left, right, result = (program.tile(name) for name in (product.left, product.right, product.result))
    if not instruction.on(target.capability):
        yield f"{role.name}: the target lacks {instruction.name}"
    begin = first_registers(program.threads, target.registers_per_multiprocessor)
    if instruction.name in INSTRUCTIONS and instruction.registers + BESIDE_SUMS > begin:
        yield f"{role.name}: {instruction.name} is not compiled for threads that begin with {begin} registers"
    if role.warps % instruction.warps:
        yield f"{role.name}: {role.warps} warps, {instruction.name} takes {instruction.warps} together"
    if left.place not in instruction.left or right.place not in instruction.right or result.place is not Place.REGISTER:
        yield f"{role.name}: {instruction.name} takes no operands from there"
        return
    if (left.dtype, right.dtype) != instruction.types or result.dtype is not instruction.sums:
        yield f"{role.name}: {instruction.name} takes other elements"
    yield from _rest(program, role, product)
    summed = set(left.axes) & set(right.axes)
    if len(summed) != 1 or len({*left.axes, *right.axes}) != 3:
        yield f"{role.name}: {product.left} and {product.right} are multiplied along {len(summed)} axes"
        return
    (axis,) = summed
    depths = {tile.shape[tile.axes.index(axis)] for tile in (left, right)}
    if len(depths) != 1 or depths.pop() % instruction.k:
        yield f"{role.name}: {product.left} and {product.right} differ along {axis}, or {instruction.name} is deeper"
    (row,), (column,) = set(left.axes) - summed, set(right.axes) - summed
    rows, columns = left.shape[left.axes.index(row)], right.shape[right.axes.index(column)]
    if result.axes != (row, column) or result.shape[0] % instruction.m or result.shape[1] != instruction.n:
        yield f"{role.name}: {product.result} is no result of {instruction.name}"
    for what, index, size, extent in (
        ("rows", product.row, result.shape[0], rows),
        ("columns", product.column, result.shape[1], columns),
    ):
        last = index.const + sum(factor * (role.parts - 1) for _, factor in index.terms)
        if any(name != "part" for name, _ in index.terms) or index.const < 0 or last + size > extent:
            yield f"{role.name}: parts reach beyond the {extent} {what} of a slot"
        across = what == "columns" and instruction.name in GROUPS
        unit = FLOAT_STEP if across else instruction.m if instruction.m % PATTERN_ROWS == 0 else PATTERN_ROWS
        if any(n % unit for n in (index.const, *(factor for _, factor in index.terms))):
            yield f"{role.name}: parts begin inside an instruction's {what}"


def _rest(program: Program, role: Role, product: Product) -> Iterator[str]:
    """Whether there is room for second pieces exactly where they are read from shared memory."""
    row = ROWS[product.instruction]
    needed = row.arithmetic.apart and row.texel.left is None
    if not product.rest:
        if needed:
            yield f"{role.name}: {row.name} has nowhere to keep second pieces"
        return
    tile = next((t for t in program.tiles if t.name == product.rest), None)
    left = program.tile(product.left)
    if not needed or tile is None:
        yield f"{role.name}: {product.rest} is no tile that {row.name} needs"
    elif tile.place is not Place.SHARED or tile.shape != (row.m * role.parts, left.shape[1]) or tile.stages != 1:
        yield f"{role.name}: {product.rest} does not take the second pieces of {product.left}"
