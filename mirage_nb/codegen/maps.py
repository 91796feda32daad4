"""Statements over all elements of a tile: elementwise maps, elementwise accumulators, savers.

In: a statement of a staged program. Out: lines in which thread `thread` of the block takes every T-th vector of
elements. Invariant: each element is computed by exactly one thread; register accumulators are indexed by
compile-time constants only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from mirage_nb.codegen.reader import Reader, Text
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.ir import AccumKind, DType, OutSaverAttrs
from mirage_nb.optimize.access import Conditions, Leaf, Scope, locate, output_leaf
from mirage_nb.tile.index import Index, Multi, broadcast_dim, broadcast_index, named, unravel
from mirage_nb.tile.rules.register_resident import AHEAD
from mirage_nb.tile.rules.sharing import Extents, Patches, Squares, Vectors
from mirage_nb.tile.staged.program import Add, Compute, Leave, Move, Save


def coordinates(out: Writer, walked: Vectors) -> Multi:
    """Name the coordinates of vector `e`; its index."""
    names, index = walked.coordinates
    out.lines([f"const int {name} = {part.bare};" for name, part in names.items()])
    return index


def corner(out: Writer, apart: Extents, threads: int) -> Multi:
    """Name the first element of this thread's patch, where there are so many threads along each dimension."""
    found = []
    for dim, (part, extent) in enumerate(zip(unravel(named("thread", threads), apart), apart, strict=True)):
        if extent > 1:
            out.line(f"const int c{dim} = {part.bare};")
        found.append(named(f"c{dim}", extent))
    return tuple(found)


def in_patch(begin: Multi, apart: Extents, own: Extents, slot: Index) -> Multi:
    """An element of the patch that begins there, which has so many along each dimension."""
    return tuple(c + step * far for c, step, far in zip(begin, unravel(slot, own), apart, strict=True))


@contextmanager
def each(out: Writer, scope: Scope, walked: Vectors) -> Iterator[Multi]:
    """Every vector of the tile once, over all threads; yields its multi-index."""
    with each_slot(out, scope, walked, most=AHEAD) as (index, _):
        yield index


@contextmanager
def each_slot(out: Writer, scope: Scope, walked: Vectors, most: int | None = None) -> Iterator[tuple[Multi, str]]:
    """As `each`, with the thread's vectors numbered at compile time, written out unless there are more than `most`;
    yields multi-index and number."""
    threads, slots = scope.threads, walked.slots(scope.threads)
    if isinstance(walked, Patches):
        with out.block():
            begin = corner(out, walked.apart, threads)
            with out.unrolled("s", slots) as slot:
                yield in_patch(begin, walked.apart, walked.own, named(slot, slots)), slot
        return
    with out.unrolled("s", slots, most) as slot, out.block() if slots == 1 else nullcontext():
        position = named("thread", threads) + named(slot, slots) * threads
        out.line(f"const int e = {position.bare};")
        with out.block(f"if (e < {walked.count})") if walked.count % threads else nullcontext():
            yield coordinates(out, walked), slot


class TileText(Text):
    """Writes them."""

    def compute(self, to: Compute) -> None:
        """A value, by threads that compute it."""
        with each(self.out, self.scope, to.vectors) as index:
            reader = Reader(self.scope, to.vectors.width)
            self._kept(reader, reader.compute(to.value, index, to.vectors.dim), to.value, index, to.vectors)

    def move(self, to: Move) -> None:
        """A value that is read."""
        with each(self.out, self.scope, to.vectors) as index:
            reader = Reader(self.scope, to.vectors.width)
            result = reader.read(to.source, index, to.vectors.dim)
            self._kept(reader, result, to.value, _shifted(self.scope, index, to.along, to.source), to.vectors)

    def _kept(self, reader: Reader, result: str, value: int, index: Multi, walked: Vectors) -> None:
        leaf = locate(self.scope, value, index, walked.dim, walked.width)
        store_vector(self.out, reader, [result], leaf, self.program.stored[value])

    def save(self, to: Save) -> None:
        """The same to device memory."""
        scope, type_ = self.scope, self.program.outputs[to.output]
        attrs, (saved,) = scope.block.ops[to.saver].attrs, scope.block.ops[to.saver].inputs
        assert isinstance(attrs, OutSaverAttrs)
        rows = to.vectors.rows if isinstance(to.vectors, Squares) else 1
        with each(self.out, scope, to.vectors) as index:
            reader = Reader(scope, to.vectors.width, rows=rows)
            result = reader.read(to.source, index, to.vectors.dim)
            at = _shifted(scope, index, to.along, to.source)
            leaf = output_leaf(scope, attrs, f"o{to.output}", at, scope.shape(saved), type_, to.vectors.width)
            self.out.lines(reader.ahead)
            with self.out.unrolled("w", rows) if rows > 1 else nullcontext():
                store_vector(self.out, reader, [result], leaf, type_.dtype)

    def start(self, registers: str, kind: AccumKind, count: int) -> None:
        """Registers at an accumulator's neutral element."""
        start = "NEGATIVE_INFINITY" if kind is AccumKind.MAX else "0.0f"
        rows = [(registers, start)]
        if kind is AccumKind.RESCALE:
            rows.append((f"top_{registers}", "NEGATIVE_INFINITY"))
        for array, value in rows:
            self.out.line(f"float {array}[{count}];")
            self.out.line("MIRAGE_UNROLL")
            self.out.line(f"for (int s = 0; s < {count}; ++s) {array}[s] = {value};")

    def add(self, to: Add) -> None:
        """Elements to registers."""
        with each_slot(self.out, self.scope, to.vectors) as (index, s):
            slot, reader = _register(to.vectors, s), Reader(self.scope, to.vectors.width)
            cells = to.result + slot, f"top_{to.result}{slot}"
            emit_fold(self.out, reader, to.operands, to.kind, cells, index, to.vectors.dim)

    def leave(self, to: Leave) -> None:
        """Registers to a tile."""
        walked = to.vectors
        with each_slot(self.out, self.scope, walked) as (index, s):
            leaf = locate(self.scope, to.value, index, walked.dim, walked.width)
            with self.out.unrolled("v", walked.width):
                self.out.line(f"{leaf.pointer}[{leaf.element}] = {to.source}{_register(walked, s)};")


def _shifted(scope: Scope, index: Multi, dim: int | None, tile: int) -> Multi:
    """The index into a concatenation of tiles over iterations, along a dimension if there is one."""
    if dim is None:
        return index
    moved = index[dim] + named("iteration", scope.block.loop) * scope.shape(tile)[dim]
    return (*index[:dim], moved, *index[dim + 1 :])


def store_vector(out: Writer, reader: Reader, results: Sequence[str], leaf: Leaf, dtype: DType) -> None:
    """What the reader computed goes to memory, rounded to `dtype`; elements of several results take turns."""
    width, target, turns = reader.width, c_type(dtype), len(results)
    out.lines(reader.loads)
    if width * turns == 1:
        out.lines(reader.body)
        out.line(f"{_when(leaf.inside)}{leaf.pointer}[{leaf.offset}] = from_float<{target}>({results[0]});")
        return
    if not leaf.whole:
        with out.unrolled("v", width):
            out.lines(reader.body)
            out.line(f"{_when(leaf.each_inside)}{leaf.pointer}[{leaf.element}] = from_float<{target}>({results[0]});")
        return
    out.line(f"Vec<float, {width * turns}> y;")
    with out.unrolled("v", width) as v:
        out.lines(reader.body)
        for turn, result in enumerate(results):
            out.line(f"y[{v if turns == 1 else f'{v} * {turns} + {turn}'}] = {result};")
    out.line(f"{_when(leaf.inside)}store({leaf.pointer} + ({leaf.offset}), from_floats<{target}>(y));")


def _when(condition: Conditions) -> str:
    return f"if ({condition}) " if condition else ""


def emit_fold(
    out: Writer,
    reader: Reader,
    operands: tuple[int, ...],
    kind: AccumKind,
    cells: tuple[str, str],
    index: Multi,
    dim: int | None,
) -> None:
    """The first operand at `index`, shifted by the second one if it is to be rescaled, is added to an accumulator and
    its running maximum."""
    value, shift = reader.read(operands[0], index, dim), ""
    if kind is AccumKind.RESCALE:
        shape = reader.scope.shape(operands[1])
        shift = reader.read(operands[1], broadcast_index(index, shape), broadcast_dim(dim, len(index), shape))
    out.lines(reader.loads)
    with out.unrolled("v", reader.width):
        out.lines([*reader.body, *fold(kind, *cells, value, shift)])


def fold(kind: AccumKind, target: str, top: str, value: str, shift: str) -> list[str]:
    """Statements that add `value` to an accumulator; `top` is its running maximum so far."""
    match kind:
        case AccumKind.SUM:
            return [f"{target} += {value};"]
        case AccumKind.MAX:
            return [f"{target} = maximum({target}, {value});"]
        case _:
            return [
                f"const float rise = maximum({top}, {shift});",
                f"{target} = rescaled({target}, {top}, rise) + rescaled({value}, {shift}, rise);",
                f"{top} = rise;",
            ]


def _register(walked: Vectors, slot: str) -> str:
    """The accumulator register of element v of vector `slot`."""
    return f"[{slot}]" if walked.width == 1 else f"[{slot} * {walked.width} + v]"
