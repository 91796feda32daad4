"""What is wrong with a staged program, found without numbers.

In: a staged program, the target that it is made for. Out: findings in words, none for a valid program, each with the
statement that it is about: tiles that do not fit, or whose elements share a place; threads, warps, lanes and registers
that do not share a tile out; copies of other bytes than lie there; and what `staged_run.follow` finds: reads and writes
without a barrier, stages, registers and outputs that nobody, or somebody twice, fills. Invariant: what has no findings
stores every element of its outputs once, of what was written before it was read.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mirage_nb.ir import BYTES, AccumKind, DimAttrs, InIterAttrs
from mirage_nb.targets import Target
from mirage_nb.tile.lines import line_of
from mirage_nb.tile.roles.program import GROUP, flat
from mirage_nb.tile.rules.boxes import bulk_of, read_once
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.rules.shared import LINE_BYTES, SWIZZLES, SharedLayout
from mirage_nb.tile.rules.sharing import DEPTH_TILE, Cells, Patches, Share, Side, Squares, Tiling, Twins, Vectors, twins
from mirage_nb.tile.rules.sketch import pairs
from mirage_nb.tile.rules.teams import RESERVED_BYTES
from mirage_nb.tile.staged import program as staged
from mirage_nb.tile.staged.program import How, Signal, StagedProgram, Statement, fragment
from mirage_nb.tile.staged.run import follow

ALIGNED = 128
"""Where tensors begin in shared memory."""
PATTERN = 1024
"""Where they do under a swizzle."""
WIDTHS = (1, 2, 4, 8, 16)
ROWS = ("top", "shift", "fade", "last", "sum")
"""What registers with numbers of rows are called, but for those of values that are columns."""
COPIED = (4, 8, 16)
"""Bytes of an asynchronous copy."""
WALKED: dict[type, str] = {
    **dict.fromkeys((staged.Fill, staged.Carry, staged.Compute, staged.Leave, staged.Dot), "value"),
    **dict.fromkeys((staged.Move, staged.Save), "source"),
}
"""The field that says which value's elements are shared out as vectors."""
NONSENSE = LookupError, ValueError, ZeroDivisionError, AssertionError
"""What a question about a program ends with that makes no sense."""


def validate(program: StagedProgram, target: Target) -> tuple[str, ...]:
    """Everything that is wrong, in words; () if nothing is."""
    try:
        return _Validator(program).findings(target)
    except NONSENSE as error:
        return (f"it makes no sense: {error!r}",)


class _Validator:
    """Looks at one program. made: operators by their values; shared: the values that lie in shared memory; products:
    the pairs that are multiplied."""

    def __init__(self, program: StagedProgram) -> None:
        self.program, self.block, self.region = program, program.block, program.region
        self.types, self.threads = program.block.types, program.threads
        self.statements = [*flat(program.loader), *flat(program.code)]
        self.made = {v: op for op, values in self.block.definitions() for v in values}
        self.shared = {b.value for b in program.buffers}
        self.products = {pair for op in self.block.ops for pair in pairs(op.kind, op.inputs)}

    def findings(self, target: Target) -> tuple[str, ...]:
        found = [*self._memory(target), *self._each(self._known)]
        if found:  # what follows takes names for granted
            return tuple(found)
        found = [*self._declared(), *self._together(self.program.code, None), *self._each(self._shares)]
        return tuple(dict.fromkeys(found)) or follow(self.program)

    def _each(self, asked: Callable[[Statement], Iterator[str]]) -> Iterator[str]:
        """What is wrong with each statement."""
        for statement in self.statements:
            for what in asked(statement):
                yield f"{line_of(statement)}: {what}"

    def _memory(self, target: Target) -> Iterator[str]:
        """Shared tensors: where they lie, how, and whether there is room."""
        program = self.program
        if program.shared_bytes > target.shared_per_block - RESERVED_BYTES:
            yield f"{program.shared_bytes} bytes of shared memory"
        shared = {v for v, place in enumerate(program.places) if place is Place.SHARED}
        if len(program.buffers) != len(self.shared) or self.shared != shared:
            yield "tensors in shared memory and their places differ"
        for buffer in program.buffers:
            layout = buffer.layout
            if layout.shape != self.types[buffer.value].shape or layout.dtype is not program.stored[buffer.value]:
                yield f"%{buffer.value} has other elements"
            elif buffer.offset % (PATTERN if layout.swizzle else ALIGNED) or buffer.offset < 0 or buffer.copies < 1:
                yield f"%{buffer.value} begins anywhere, or nowhere"
            elif layout.nbytes % ALIGNED:
                yield f"what lies behind %{buffer.value}, its next stage, begins anywhere"
            elif not _apart(layout):
                yield f"elements of %{buffer.value} share a place, or lie outside of it"
            elif buffer.value in program.streamed and buffer.copies != program.stages:
                yield f"%{buffer.value} has {buffer.copies} stages of {program.stages}"

    def _known(self, statement: Statement) -> Iterator[str]:
        """Whether a statement is about values, tiles, products and outputs that there are."""
        block, made, places = self.block, self.made, self.program.places
        match statement:
            case staged.Save(output) | staged.SaveRows(output) if output >= len(block.savers):
                yield f"there is no output {output}"
            case staged.Save(output, saver, source, along):
                (saved,) = block.savers[output].inputs
                streamed = places[saved] is Place.NONE
                if source != (made[saved].inputs[0] if streamed else saved) or (along is None) is streamed:
                    yield f"output {output} is no %{source}"
                if block.ops[saver] != block.savers[output]:
                    yield f"output {output} is saved by another operator"
            case staged.Dot(_, value, multiplied) if not self.products.issuperset(multiplied) or value not in made:
                yield f"{multiplied} are no products"
            case staged.Multiply(_, _, rows, columns):
                pair = rows.value, columns.value
                if (pair[::-1] if rows.transposed else pair) not in self.products:
                    yield f"{pair} is no product"
            case staged.MultiplyPacked(_, packed, _, columns) | staged.MultiplyPanels(_, packed, columns):
                if (int(packed[1:]), columns.value) not in self.products:
                    yield f"{packed} and %{columns.value} are no product"
            case staged.Evaluate(value) | staged.Largest(value):
                if value not in made or places[value] is not Place.REGISTER:
                    yield f"%{value} is in no registers"
                return
            case staged.Reduce(value, after, kind, operands):
                if after not in made or made[after].inputs != operands:
                    yield f"%{after} is no {kind.value} of {operands}"
            case staged.Partial(_, kind, operands) | staged.Add(_, kind, operands):
                if all(op.inputs != operands for op in block.ops):
                    yield f"nothing is a {kind.value} of {operands}"
            case staged.Move(value, source) if made[value].inputs[:1] != (source,):
                yield f"%{value} takes in no %{source}"
        tile = getattr(statement, "leaf", getattr(statement, "value", None))
        if isinstance(tile, int) and not isinstance(statement, staged.Dot) and tile not in self.shared:
            yield f"%{tile} has no place in shared memory"

    def _together(self, body: tuple[Statement, ...], tiling: Tiling | None) -> Iterator[str]:
        """Whether statements are shared out as their warps find their place."""
        for statement in body:
            own = getattr(statement, "tiling", None)
            match statement:
                case staged.Warps(body=inside):
                    yield from self._together(inside, own)
                case staged.Task(body=inside) | staged.Loop(body=inside) | staged.Refill(body=inside):
                    shared = [s.tiling for s in inside if isinstance(s, staged.Warps)]
                    if own is not None and shared and own != shared[0]:
                        yield f"{line_of(statement)}: its warps share {shared[0]}"
                    yield from self._together(inside, tiling)
                case _ if tiling is not None and own not in (None, tiling):
                    yield f"{line_of(statement)}: its warps share {tiling}"

    def _declared(self) -> Iterator[str]:
        """Warps, stages, arrays beside the tensors; registers as long as they are used."""
        program, region, loop = self.program, self.region, self.block.loop
        if not 1 <= program.warps <= 32 or (program.streamed and program.stages < 2):
            yield f"{program.warps} warps, {program.stages} stages"
        if program.code.count(Signal.PLACE) != (region is not None):
            yield "warps do not find their place once"
        brought = [s.value for s in self.statements if isinstance(s, staged.Fill | staged.Carry | staged.Bring)]
        attrs = {value: self.made[value].attrs for value in self.shared}
        loaded = {value: a.fmap is not None for value, a in attrs.items() if isinstance(a, InIterAttrs)}
        if set(brought) != loaded.keys() or len(set(program.streamed)) != len(program.streamed):
            yield "what is copied is not what lies there"
        if {value for value, anew in loaded.items() if anew and loop > 1} != set(program.streamed):
            yield "what is streamed is not what changes in every iteration"
        wanted = {}
        for statement in self.statements:
            match statement:
                case staged.Reduce(share=share) | staged.Total(share=share) if share.whole_block:
                    wanted["scratch"] = program.warps
                case staged.Publish(results) if region is not None:
                    wanted |= dict.fromkeys((f"{r}_all" for r in results), region.key_warps * region.padded_rows)
        if dict(program.scratch) != wanted or len(program.scratch) != len(wanted):
            yield "arrays that warps share are too long or too short"
        loops = [(s.counter, s.first, s.count) for s in self.statements if isinstance(s, staged.Loop)]
        over = [ends for counter, *ends in loops if counter == "iteration"]
        if over not in ([], [[0, loop]]) or any(first < 0 for _, first, _ in loops):
            yield "loops that are not over the iterations"
        refills = [(s.ahead, s.count) for s in self.statements if isinstance(s, staged.Refill)]
        if any(refill != (program.stages - 1, loop) for refill in refills):
            yield "stages are refilled for other iterations"
        yield from self._registers()

    def _registers(self) -> Iterator[str]:
        started = {s.result: s for s in self.statements if isinstance(s, staged.Start)}
        zeros = {s.result: s.form for s in self.statements if isinstance(s, staged.Zeros)}
        folded = {s.result: s.share for s in self.statements if isinstance(s, staged.Partial)}
        multiplied = {s.result: s.vectors for s in self.statements if isinstance(s, staged.Dot)}
        for statement in self.statements:
            match statement:
                case staged.Add(result, kind, _, vectors):
                    count = vectors.registers(self.threads)
                case staged.Dot(result, _, _, vectors) if result:
                    count, kind = vectors.slots(self.threads), AccumKind.SUM
                case staged.Leave(_, result, vectors) if multiplied.get(result, vectors) != vectors:
                    yield f"{line_of(statement)}: {result} is left otherwise than it was multiplied"
                    continue
                case staged.Leave(_, result, vectors) if result in started:
                    count, kind = vectors.registers(self.threads), started[result].kind
                case staged.Partial(result, kind, _, share) | staged.Total(_, result, kind, share):
                    count = share.slots
                case staged.Multiply(result, tiling) | staged.Unload(_, result, tiling):
                    if result in zeros and zeros[result] != (*tiling.per_warp[:3], 4):
                        yield f"{line_of(statement)}: {result} has {zeros[result]} registers"
                    continue
                case _:
                    continue
            if isinstance(statement, staged.Total) and folded.get(result, statement.share) != statement.share:
                yield f"{line_of(statement)}: {result} is shared otherwise than it was folded"
            if result in started and (started[result].count, started[result].kind) != (count, kind):
                yield f"{line_of(statement)}: its registers are a {line_of(started[result])}"

    def _shares(self, statement: Statement) -> Iterator[str]:
        """Whether everybody's parts make the whole."""
        types, tiling, vectors = self.types, getattr(statement, "tiling", None), getattr(statement, "vectors", None)
        if tiling is not None and (tiling.warps > self.program.warps or min(tiling.split) < 1):
            yield f"{tiling.warps} warps of {self.program.warps}"
        if vectors is not None and (walked := WALKED.get(type(statement))) is not None:
            yield from _vectors(types[getattr(statement, walked)].shape, vectors, self.threads)
            if isinstance(vectors, Squares) and not isinstance(statement, staged.Save):
                yield "squares are saved, nothing else"
            if isinstance(vectors, Patches) and not isinstance(statement, staged.Leave | staged.Dot):
                yield "patches are multiplied, nothing else"
        match statement:
            case staged.Fill(value, vectors):
                nbytes, layout = vectors.width * types[value].dtype.size, self.program.buffer(value).layout
                aligned = layout.strides[-1:] == (1,) and not any(s % vectors.width for s in layout.strides[:-1])
                if nbytes not in COPIED or not aligned:
                    yield f"%{value} is copied {nbytes} bytes at a time"
            case staged.Carry(value, vectors, batch) if not 1 <= batch <= vectors.slots(self.threads):
                yield f"{batch} vectors at once"
            case staged.Bring(value, bulk, once):
                attrs = self.made[value].attrs
                if not isinstance(attrs, InIterAttrs) or bulk != bulk_of(self.block, attrs):
                    yield f"%{value} comes in other boxes"
                elif once and not read_once(self.block, attrs):
                    yield f"%{value} is read again"
            case staged.Move(value, _, along) if getattr(self.made[value].attrs, "dim", None) != along:
                yield f"%{value} is joined along {along}"
            case staged.Add(_, _, operands, vectors):
                yield from _vectors(types[operands[0]].shape, vectors, self.threads)
            case staged.Dot(vectors=vectors) if vectors.width != 1:
                yield "threads have whole elements of a product"
            case staged.Partial(_, _, operands, share) | staged.Reduce(_, _, _, operands, share):
                yield from _share(types[operands[0]].shape, share, self.threads)
                if isinstance(statement, staged.Reduce) and self.made[statement.made].attrs != DimAttrs(share.dim):
                    yield f"%{statement.made} is reduced along {share.dim}"
            case staged.Total(value, _, _, share):
                yield from _share(share.shape, share, self.threads)
                if types[value].elements != share.results:
                    yield f"%{value} has {share.results} results"
            case staged.Warps(count) if count and (self.region is None or count != self.region.warps):
                yield f"{count} warps"
            case staged.Largest(value, _, running):
                if self.region is None or running is not (value in self.region.shifts):
                    yield f"%{value} is a running maximum, or is not"
            case staged.Zeros(result, form) if (own := self._form(result)) is not None:
                if form != ((own.rows, 4) if result.startswith("sum") else own.form):
                    yield f"{result} has other cells than {form}"
            case staged.Pack(source=name, dtype=dtype) | staged.SumPacked(packed=name, dtype=dtype):
                if types[_value(name)].dtype is not dtype:
                    yield f"{name} is packed as {dtype.value}"
        yield from self._cells(statement)
        yield from self._multiplied(statement)

    def _multiplied(self, statement: Statement) -> Iterator[str]:
        """Whether products and their sides are as deep and as wide as the tiles are."""
        match statement:
            case staged.Multiply(_, tiling, rows, columns):
                yield from self._sides(tiling, rows, columns)
            case staged.MultiplyPacked(_, _, tiling, columns, depth):
                if depth * DEPTH_TILE * tiling.copies != columns.depth or columns.extent != tiling.columns:
                    yield f"{depth} tiles of the depth are multiplied"
                yield from self._side(columns, tiling.swapped)
            case staged.MultiplyPanels(_, _, columns, leaf, depth):
                panels = self.program.buffer(leaf).layout.swizzle == LINE_BYTES and self.program.warps % GROUP == 0
                if self._leaf(columns.value) != leaf or self.types[leaf].elements != columns.extent * columns.depth:
                    yield f"%{columns.value} does not lie in %{leaf}"
                if depth * DEPTH_TILE != columns.depth or not panels:
                    yield f"{depth} tiles of the depth are multiplied by panels"
                yield from self._side(columns, False)
            case staged.Load(result, tiling, rows, depth):
                wanted = tiling.columns if tiling.swapped else tiling.rows
                if depth * DEPTH_TILE != rows.depth or rows.extent != wanted:
                    yield f"{depth} tiles of rows are loaded"
                products = [p for p in self._of(staged.Multiply) if p.held == result]
                if any((rows, tiling) != (product.rows, product.tiling) for product in products):
                    yield f"{result} are other rows than those of their product"
                if not products:
                    yield from self._side(rows, not tiling.swapped)
            case staged.Unload(value, source, tiling):
                if self.types[value].elements != tiling.batch * tiling.rows * tiling.columns:
                    yield f"%{value} is another result"
                into = self._of(staged.Multiply | staged.MultiplyPacked | staged.MultiplyPanels)
                lie = {twins(self.types, getattr(p, "rows", None), p.columns) for p in into if p.result == source}
                if lie - {statement.twins}:
                    yield f"{source} lies otherwise"

    def _of(self, kind: Any) -> Iterator[Any]:
        """The statements of a kind, or of several."""
        return (s for s in self.statements if isinstance(s, kind))

    def _side(self, side: Side, straight: bool) -> Iterator[str]:
        """A side of a product whose rows are in registers, of which lanes have two pairs."""
        if side.fours or side.transposed is straight:
            yield f"%{side.value} is another side than its product has"

    def _leaf(self, value: int) -> int:
        """What a value is a view of."""
        while self.program.places[value] is Place.VIEW:
            (value,) = self.made[value].inputs
        return value

    def _sides(self, tiling: Tiling, rows: Side, columns: Side) -> Iterator[str]:
        if rows.depth != columns.depth or rows.transposed is columns.transposed:
            yield "sides of a product are of other depths"
        if (rows.extent, columns.extent) != (tiling.rows, tiling.columns) or rows.transposed is not tiling.swapped:
            yield "sides of a product are of other extents"
        odd = twins(self.types, rows, columns) is Twins.COLUMNS and tiling.per_warp[2] % 2 > 0
        both = all(side.along == "side" and self.types[side.value].dtype in BYTES for side in (rows, columns))
        if rows.fours is not columns.fours or odd or both:
            yield "lanes have other elements of the two sides"
        for side in (rows, columns):
            if side.along == "depth" and self.types[side.value].dtype in BYTES and not side.fours:
                yield f"%{side.value} comes in fours"
            *_, height, width = self.types[side.value].shape
            if (side.extent, side.depth) != ((width, height) if side.transposed else (height, width)):
                yield f"%{side.value} is another side"

    def _cells(self, statement: Statement) -> Iterator[str]:
        """Whether registers of fragments are as many as their values take, wherever they are named."""
        for name, cells in self._named(statement):
            if cells != self._form(name):
                yield f"{name} has other cells than {cells.rows} x {cells.columns}"

    def _named(self, statement: Statement) -> tuple[tuple[str, Cells], ...]:
        """Registers that a statement names, and the cells that it takes them to have."""
        match statement:
            case staged.Evaluate(value, cells):
                return ((fragment(value), cells),)
            case staged.Largest(_, source, _, cells) | staged.SumPacked(_, source, _, cells):
                return ((source, cells),)
            case staged.Pack(result, source, _, cells):
                return (result, cells), (source, cells)
            case staged.MultiplyPacked(_, packed, depth=depth) if self.region is not None:
                return ((packed, Cells(self.region.row_tiles, 2 * depth)),)
            case staged.Change(result, How.ALONG, cells, by):
                return (result, replace(cells, columns=0)), (by, cells)
            case staged.Change(result, How.SUM | How.LARGEST, cells, by):
                return (result, cells), (by, cells)
            case staged.Change(result, How.FADE | How.SPOIL, cells, by):
                return (result, cells), (by, replace(cells, columns=0))
            case staged.Change(result, _, cells):
                return ((result, cells),)
        return ()

    def _form(self, name: str) -> Cells | None:
        """Of registers that are called after their value; without columns, if they have numbers of rows."""
        if self.region is None:
            return None
        value, rows = _value(name), name.startswith(ROWS)
        columns = 1 if rows else self.types[value].shape[-1]
        return Cells(self.region.row_tiles, self.region.column_tiles(value, columns) if columns > 1 else 0)


def _value(name: str) -> int:
    """The value that registers are called after."""
    return int(name.rstrip("_").lstrip(string.ascii_lowercase + "_"))


def _vectors(shape: tuple[int, ...], vectors: Vectors, threads: int) -> Iterator[str]:
    whole = vectors.width in WIDTHS and (not shape or shape[-1] % vectors.width == 0)
    if vectors.shape != shape or not whole:
        yield f"vectors of {vectors.width} over {vectors.shape}"
    elif isinstance(vectors, Patches) and (vectors.width > 1 or not _are_all(shape, vectors.own, threads)):
        yield f"patches of {vectors.own} of {shape} for {threads} threads"
    elif isinstance(vectors, Squares):
        across, rows = vectors.across, vectors.rows
        if not 0 <= across < len(shape) - 1 or rows not in WIDTHS or shape[across] % rows:
            yield f"squares with {rows} rows along dimension {across} of {shape}"


def _share(shape: tuple[int, ...], share: Share, threads: int) -> Iterator[str]:
    groups = 1 if share.whole_block else threads // max(1, share.lanes)
    lanes = share.lanes == threads if share.whole_block else share.lanes in (1, 2, 4, 8, 16, 32)
    inner = share.dim == len(shape) - 1 or bool(share.patch)
    if share.shape != shape or not 0 <= share.dim < len(shape) or not lanes or share.width not in WIDTHS:
        yield f"{share} of {shape}"
    elif share.patch and (share.lanes > 1 or share.whole_block or not _are_all(share.kept, share.patch, threads)):
        yield f"patches of {share.patch} of {share.kept} for {threads} threads"
    elif share.shape[share.dim] % share.width or (share.width > 1 and not inner):
        yield f"vectors of {share.width} along {share.shape[share.dim]}"
    elif share.slots != -(-share.results // groups):
        yield f"{share.slots} results for each of {groups}"


def _are_all(shape: tuple[int, ...], own: tuple[int, ...], threads: int) -> bool:
    """Whether patches with `own` elements along each dimension, of so many threads, are all elements, each once."""
    able = len(own) == len(shape) and min(own) > 0 and not any(n % part for n, part in zip(shape, own, strict=True))
    return able and math.prod(shape) == threads * math.prod(own)


def _apart(layout: SharedLayout) -> bool:
    """Whether every element has a place of its own: panels are whole, or dimensions nest."""
    if layout.swizzle:
        panels = layout.shape[-1] * layout.fold // max(1, layout.panel)
        whole = layout.panel_rows * panels * layout.panel == layout.elements
        return layout.swizzle in SWIZZLES and layout.panel * panels == layout.shape[-1] * layout.fold and whole
    reach = 1
    for stride, extent in sorted(zip(layout.strides, layout.shape, strict=True)):
        if extent > 1 and stride < reach:
            return False
        reach += stride * (extent - 1)
    return reach <= layout.elements
