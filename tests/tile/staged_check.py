"""What is wrong with a staged program, found without numbers.

In: a staged program, the target that it is made for, what may overlap. Out: findings in words, none for a valid one:
tiles that do not fit, or whose elements share a place; threads, warps, lanes and registers that do not share a tile
out; copies of other bytes than lie there; and what `staged_run.follow` finds: reads and writes without a barrier,
stages, registers and outputs that nobody, or somebody twice, fills.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mirage_nb.ir import AccumKind, InIterAttrs
from mirage_nb.optimize.layout import boxes, read_once
from mirage_nb.optimize.overlap import Overlap
from mirage_nb.targets import Target
from mirage_nb.tile import staged
from mirage_nb.tile.placement import Place
from mirage_nb.tile.rules import RESERVED_BYTES
from mirage_nb.tile.shared import SWIZZLES, Buffer
from mirage_nb.tile.sharing import Cells, Share, Side, Tiling, Vectors
from mirage_nb.tile.sketch import pairs
from mirage_nb.tile.staged import How, StagedProgram, flat
from tests.tile.staged_run import follow

ALIGNED = 128
"""Where tensors begin in shared memory."""
PATTERN = 1024
"""Where they do under a swizzle."""
WIDTHS = (1, 2, 4, 8)
COPIED = (4, 8, 16)
"""Bytes of an asynchronous copy."""


def validate(program: StagedProgram, target: Target, overlap: Overlap | None = None) -> tuple[str, ...]:
    """All findings."""
    statements = [*flat(program.loader), *flat(program.code)]
    found = [*_memory(program, target), *_known(program, statements)]
    if found:  # what follows takes names for granted
        return tuple(found)
    found = [*_declared(program, statements), *_together(program.code, None)]
    for statement in statements:
        found += _shares(program, statement)
    return tuple(dict.fromkeys(found)) or follow(program, overlap)


def _memory(program: StagedProgram, target: Target) -> Iterator[str]:
    """Shared tensors: where they lie, how, and whether there is room."""
    block, end = program.block, max((b.offset + b.nbytes for b in program.buffers), default=0)
    if end > target.shared_per_block - RESERVED_BYTES:
        yield f"{end} bytes of shared memory"
    values = [b.value for b in program.buffers]
    shared = {v for v, place in enumerate(program.places) if place is Place.SHARED}
    if len(values) != len(set(values)) or set(values) != shared:
        yield "tensors in shared memory and their places differ"
    for buffer in program.buffers:
        layout = buffer.layout
        if layout.shape != block.types[buffer.value].shape or layout.dtype is not program.stored[buffer.value]:
            yield f"%{buffer.value} has other elements"
        elif buffer.offset % (PATTERN if layout.swizzle else ALIGNED) or buffer.offset < 0 or buffer.copies < 1:
            yield f"%{buffer.value} begins anywhere, or nowhere"
        elif not _apart(buffer):
            yield f"elements of %{buffer.value} share a place, or lie outside of it"
        elif buffer.value in program.streamed and buffer.copies != program.stages:
            yield f"%{buffer.value} has {buffer.copies} stages of {program.stages}"


def _apart(buffer: Buffer) -> bool:
    """Whether every element has a place of its own."""
    layout = buffer.layout
    if layout.swizzle:
        panels = layout.shape[-1] * layout.fold // max(1, layout.panel)
        whole = layout.panel_rows * panels * layout.panel == layout.elements
        return layout.swizzle in SWIZZLES and layout.panel * panels == layout.shape[-1] * layout.fold and whole
    if len(layout.strides) != len(layout.shape):
        return False
    offsets = np.zeros(layout.shape, np.int64)
    for grid, stride in zip(np.indices(layout.shape, sparse=True), layout.strides, strict=True):
        offsets = offsets + grid * stride
    return bool(offsets.max(initial=0) < layout.elements and len(np.unique(offsets)) == offsets.size)


def _known(program: StagedProgram, statements: list[staged.Statement]) -> Iterator[str]:
    """Whether statements are about values, tiles, products and outputs that there are."""
    block, shared = program.block, {b.value for b in program.buffers}
    made = {v: op for op, values in block.definitions() for v in values}
    multiplied = {pair for op in block.ops for pair in pairs(op.kind, op.inputs)}
    for statement in statements:
        match statement:
            case staged.Save(output, saver, source, along) if output < len(block.savers):
                (saved,) = block.savers[output].inputs
                streamed = program.places[saved] is Place.NONE
                if source != (made[saved].inputs[0] if streamed else saved) or (along is None) is streamed:
                    yield f"output {output} is no %{source}"
                if block.ops[saver] != block.savers[output]:
                    yield f"output {output} is saved by another operator"
            case staged.Save(output) | staged.SaveRows(output) if output >= len(block.savers):
                yield f"there is no output {output}"
            case staged.Dot(_, value, pairs_) if not multiplied.issuperset(pairs_) or made.get(value) is None:
                yield f"{pairs_} are no products"
            case staged.Multiply(_, _, rows, columns):
                pair = rows.value, columns.value
                if (pair[::-1] if rows.transposed else pair) not in multiplied:
                    yield f"{pair} is no product"
            case staged.MultiplyPacked(_, packed, _, columns) | staged.MultiplyPanels(_, packed, columns):
                if (int(packed[1:]), columns.value) not in multiplied:
                    yield f"{packed} and %{columns.value} are no product"
            case staged.Evaluate(value) | staged.Largest(value) if value not in made or program.places[
                value
            ] is not Place.REGISTER:
                yield f"%{value} is in no registers"
            case staged.Reduce(value, after, kind, operands):
                if after not in made or made[after].inputs != operands or value not in shared:
                    yield f"%{after} is no {kind.value} of {operands}"
            case staged.Partial(_, kind, operands) if all(op.inputs != operands for op in block.ops):
                yield f"nothing is a {kind.value} of {operands}"
            case staged.Add(_, kind, operands) if all(op.inputs != operands for op in block.ops):
                yield f"nothing is a {kind.value} of {operands}"
            case staged.Move(value, source) if value not in shared or made[value].inputs[:1] != (source,):
                yield f"%{value} takes in no %{source}"
        tile = getattr(statement, "leaf", getattr(statement, "value", None))
        held = isinstance(statement, staged.Dot | staged.Evaluate | staged.Largest | staged.Signal)
        if tile is not None and not held and tile not in shared:
            yield f"%{tile} has no place in shared memory"


def _together(body: tuple[staged.Statement, ...], tiling: Tiling | None) -> Iterator[str]:
    """Whether statements are shared out as their warps find their place."""
    for statement in body:
        own = getattr(statement, "tiling", None)
        if isinstance(statement, staged.Task):
            inner = [s.tiling for s in statement.body if isinstance(s, staged.Warps)]
            if own is not None and inner and own != inner[0]:
                yield f"{own} is said of {inner}"
            yield from _together(statement.body, tiling)
        elif isinstance(statement, staged.Warps):
            yield from _together(statement.body, own)
        elif isinstance(statement, staged.Loop | staged.Refill):
            yield from _together(statement.body, tiling)
        elif tiling is not None and own not in (None, tiling):
            yield f"{own} of warps that share {tiling}"


def _declared(program: StagedProgram, statements: list[staged.Statement]) -> Iterator[str]:
    """Warps, stages, arrays beside the tensors; registers as long as they are used."""
    region = program.region
    if not 1 <= program.warps <= 32 or (program.streamed and program.stages < 2):
        yield f"{program.warps} warps, {program.stages} stages"
    brought = [s.value for s in statements if isinstance(s, staged.Fill | staged.Carry | staged.Bring)]
    attrs = {b.value: _attrs(program, b.value) for b in program.buffers}
    loaded = {value: a.fmap is not None for value, a in attrs.items() if isinstance(a, InIterAttrs)}
    if set(brought) != loaded.keys() or len(set(program.streamed)) != len(program.streamed):
        yield "what is copied is not what lies there"
    if {value for value, anew in loaded.items() if anew and program.block.loop > 1} != set(program.streamed):
        yield "what is streamed is not what changes in every iteration"
    wanted = {}
    if any(isinstance(s, staged.Reduce | staged.Total) and s.share.whole_block for s in statements):
        wanted["scratch"] = program.warps
    for statement in statements:
        for name in statement.results if isinstance(statement, staged.Publish) and region else ():
            wanted[f"{name}_all"] = region.key_warps * region.padded_rows
    if dict(program.scratch) != wanted or len(program.scratch) != len(wanted):
        yield "arrays that warps share are too long or too short"
    loops = [s.count - s.first for s in statements if isinstance(s, staged.Loop) and s.counter == "iteration"]
    if any(count != program.block.loop for count in loops) or len(loops) > 1:
        yield "loops that are not over the iterations"
    refills = [(s.ahead, s.count) for s in statements if isinstance(s, staged.Refill)]
    if any(refill != (program.stages - 1, program.block.loop) for refill in refills):
        yield "stages are refilled for other iterations"
    yield from _registers(program, statements)


def _registers(program: StagedProgram, statements: list[staged.Statement]) -> Iterator[str]:
    started = {s.result: s for s in statements if isinstance(s, staged.Start)}
    zeros = {s.result: s.form for s in statements if isinstance(s, staged.Zeros)}
    for statement in statements:
        match statement:
            case staged.Add(result, kind, _, vectors):
                count = vectors.registers(program.threads)
            case staged.Dot(result, _, _, vectors) if result:
                count, kind = vectors.slots(program.threads), AccumKind.SUM
            case staged.Partial(result, kind, _, share):
                count = share.slots
            case staged.Leave(_, result, vectors) if result in started:
                count, kind = vectors.registers(program.threads), started[result].kind
            case staged.Total(_, result, kind, share):
                count = share.slots
            case staged.Multiply(result, tiling) | staged.Unload(_, result, tiling):
                if result in zeros and zeros[result] != (*tiling.per_warp[:3], 4):
                    yield f"{result} has {zeros[result]} registers"
                continue
            case _:
                continue
        if result in started and (started[result].count != count or started[result].kind is not kind):
            yield f"{result} has {started[result].count} registers of a {started[result].kind.value}"


def _attrs(program: StagedProgram, value: int) -> object:
    return next(op.attrs for op, values in program.block.definitions() if value in values)


def _shares(program: StagedProgram, statement: staged.Statement) -> Iterator[str]:
    """Whether everybody's parts make the whole."""
    types, threads = program.block.types, program.threads
    match statement:
        case staged.Fill(value, vectors):
            yield from _vectors(types[value].shape, vectors)
            nbytes, layout = vectors.width * types[value].dtype.size, program.buffer(value).layout
            aligned = layout.strides[-1:] == (1,) and not any(s % vectors.width for s in layout.strides[:-1])
            if nbytes not in COPIED or not aligned:
                yield f"%{value} is copied {nbytes} bytes at a time"
        case staged.Carry(value, vectors, batch):
            yield from _vectors(types[value].shape, vectors)
            if not 1 <= batch <= vectors.slots(threads):
                yield f"%{value}: {batch} vectors at once"
        case staged.Bring(value, bulk, once):
            attrs = _attrs(program, value)
            if not isinstance(attrs, InIterAttrs) or bulk != boxes(program.block, attrs):
                yield f"%{value} comes in other boxes"
            elif once and not read_once(program.block, attrs):
                yield f"%{value} is read again"
        case staged.Compute(value, vectors):
            yield from _vectors(types[value].shape, vectors)
        case staged.Move(value, source, along, vectors):
            yield from _vectors(types[source].shape, vectors)
            if getattr(_attrs(program, value), "dim", None) != along:
                yield f"%{value} is joined along {along}"
        case staged.Save(source=source, vectors=vectors):
            yield from _vectors(types[source].shape, vectors)
        case staged.Add(_, _, operands, vectors):
            yield from _vectors(types[operands[0]].shape, vectors)
        case staged.Leave(value, _, vectors):
            yield from _vectors(types[value].shape, vectors)
        case staged.Dot(_, value, _, vectors):
            yield from _vectors(types[value].shape, vectors)
            if vectors.width != 1:
                yield f"%{value}: threads have whole elements of a product"
        case staged.Partial(_, _, operands, share) | staged.Reduce(_, _, _, operands, share):
            yield from _share(types[operands[0]].shape, share, threads)
        case staged.Total(value, _, _, share):
            yield from _share(share.shape, share, threads)
            if math.prod(types[value].shape) != share.results:
                yield f"%{value} has {share.results} results"
        case staged.Multiply(_, tiling, rows, columns):
            yield from _tiling(program, tiling)
            yield from _sides(program, tiling, rows, columns)
        case staged.MultiplyPacked(_, _, tiling, columns, depth):
            yield from _tiling(program, tiling)
            if depth * 16 * tiling.copies != columns.depth or columns.extent != tiling.columns:
                yield f"{depth} tiles of the depth are multiplied"
        case staged.MultiplyPanels(_, _, columns, leaf, depth):
            if depth * 16 != columns.depth or program.buffer(leaf).layout.swizzle != 128 or program.warps % 4:
                yield f"{depth} tiles of the depth are multiplied by panels"
        case staged.Load(_, tiling, rows, depth):
            yield from _tiling(program, tiling)
            if depth * 16 != rows.depth or rows.extent != (tiling.columns if tiling.swapped else tiling.rows):
                yield f"{depth} tiles of rows are loaded"
        case staged.Unload(value, _, tiling):
            yield from _tiling(program, tiling)
            if math.prod(types[value].shape) != tiling.batch * tiling.rows * tiling.columns:
                yield f"%{value} is no result of {tiling}"
        case staged.Warps(count) if count and (program.region is None or count != program.region.warps):
            yield f"{count} warps"
        case staged.Evaluate(value, cells):
            yield from _cells(program, cells, types[value].shape[-1], value)
        case staged.Largest(value, _, running, cells):
            if program.region is None or running is not (value in program.region.shifts):
                yield f"%{value} is a running maximum, or is not"
            yield from _cells(program, cells, None, value)
        case staged.Change(_, how, cells):
            yield from _cells(program, cells, 1 if how in (How.LOWEST, How.SETTLE) else None, None)


def _vectors(shape: tuple[int, ...], vectors: Vectors) -> Iterator[str]:
    whole = vectors.width in WIDTHS and (not shape or shape[-1] % vectors.width == 0)
    if vectors.shape != shape or not whole:
        yield f"vectors of {vectors.width} over {vectors.shape}"


def _share(shape: tuple[int, ...], share: Share, threads: int) -> Iterator[str]:
    groups = 1 if share.whole_block else threads // max(1, share.lanes)
    lanes = share.lanes == threads if share.whole_block else share.lanes in (1, 2, 4, 8, 16, 32)
    if share.shape != shape or not 0 <= share.dim < len(shape) or not lanes or share.width not in WIDTHS:
        yield f"{share} of {shape}"
    elif share.shape[share.dim] % share.width or (share.width > 1 and share.dim != len(shape) - 1):
        yield f"vectors of {share.width} along {share.shape[share.dim]}"
    elif share.slots != -(-share.results // groups):
        yield f"{share.slots} results for each of {groups}"


def _tiling(program: StagedProgram, tiling: Tiling) -> Iterator[str]:
    if tiling.warps > program.warps or min(tiling.split) < 1:
        yield f"{tiling.warps} warps of {program.warps}"


def _sides(program: StagedProgram, tiling: Tiling, rows: Side, columns: Side) -> Iterator[str]:
    if rows.depth != columns.depth or rows.transposed is columns.transposed:
        yield "sides of a product are of other depths"
    if (rows.extent, columns.extent) != (tiling.rows, tiling.columns) or rows.transposed is not tiling.swapped:
        yield "sides of a product are of other extents"
    for side in (rows, columns):
        shape = program.block.types[side.value].shape
        if side.extent != shape[-1 if side.transposed else -2] or side.depth != shape[-2 if side.transposed else -1]:
            yield f"%{side.value} is another side"


def _cells(program: StagedProgram, cells: Cells, columns: int | None, value: int | None) -> Iterator[str]:
    region = program.region
    if region is None or cells.rows != region.row_tiles:
        yield f"{cells.rows} tiles of rows"
    elif columns is not None:
        wanted = region.column_tiles(-1 if value is None else value, columns) if columns > 1 else 0
        if cells.columns != wanted:
            yield f"{cells.columns} tiles of columns"

