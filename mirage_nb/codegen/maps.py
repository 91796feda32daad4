"""Steps over all elements of a tile: elementwise maps, elementwise accumulators, savers, reductions.

In: a step of a block plan. Out: statements in which thread `thread` of the block takes every T-th vector of
elements. Invariant: each element is computed by exactly one thread; register accumulators are indexed by
compile-time constants only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from mirage_nb.codegen.index import Index, linear, named, unravel
from mirage_nb.codegen.reader import Leaf, Reader, Scope, grid_part, locate, masked, view
from mirage_nb.codegen.thread_values import Multi, broadcast_dim, broadcast_index, operand_dims, vector_reads
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    DimAttrs,
    DType,
    Op,
    OpKind,
    OutSaverAttrs,
    RepeatAttrs,
    TensorType,
    ThreadGraph,
)
from mirage_nb.tile.placement import Place, Step
from mirage_nb.tile.register_resident import AHEAD

VECTOR = 8
"""Elements that a thread takes at once, where the tile allows it."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How threads walk over a tile: vectors of `width` elements along the last dimension."""

    shape: tuple[int, ...]
    width: int

    @property
    def counted(self) -> tuple[int, ...]:
        """The shape in vectors."""
        return (*self.shape[:-1], self.shape[-1] // self.width) if self.shape else ()

    @property
    def count(self) -> int:
        """Vectors in the tile."""
        return math.prod(self.counted)

    @property
    def dim(self) -> int | None:
        """The dimension along which vectors lie, None for single elements."""
        return len(self.shape) - 1 if self.width > 1 else None

    def slots(self, threads: int) -> int:
        """Vectors per thread, at most."""
        return -(-self.count // threads)

    def index(self) -> tuple[list[str], Multi]:
        """Statements that name the coordinates of vector `e`, and the multi-index."""
        lines: list[str] = []
        found: list[Index] = []
        parts = unravel(named("e", self.count), self.counted)
        for dim, (part, extent) in enumerate(zip(parts, self.counted, strict=True)):
            last = dim == len(parts) - 1
            if extent > 1 and part.terms != (("e", self.count, 1),):
                lines.append(f"const int i{dim} = {part.bare};")
                part = named(f"i{dim}", extent)
            found.append(part * self.width if last else part)
        return lines, tuple(found)


def walk(scope: Scope, value: int, *, computed: bool = False) -> Walk:
    """The widest vectors that the value's views allow and that still leave work for all threads.

    `computed`: the step computes `value` itself; otherwise it reads it.
    """
    shape = scope.shape(value)
    for width in (VECTOR, 4, 2) if shape else ():
        enough = math.prod(shape) // width >= scope.threads or width == 2
        if shape[-1] % width or not enough:
            continue
        if vectorizes(scope, value, len(shape) - 1, width, computed=computed):
            return Walk(shape, width)
    return Walk(shape, 1)


def vectorizes(scope: Scope, value: int, dim: int | None, width: int, *, computed: bool = False) -> bool:
    """Whether `width` consecutive elements along `dim` can be read with one index."""
    found = {(value, dim)}
    waiting = _vector_operands(scope, value, dim, width, computed=computed)
    while waiting:
        operand = waiting.pop()
        if operand not in found:
            found.add(operand)
            behind = _vector_operands(scope, *operand, width)
            waiting = None if behind is None else waiting + behind
    return waiting is not None


def _vector_operands(
    scope: Scope, value: int, dim: int | None, width: int, *, computed: bool = False
) -> list[tuple[int, int | None]] | None:
    """The operands that have to be read so, and the vector dimension of each, for a value to be; None if it cannot."""
    place = scope.plan.places[value]
    if dim is None or place in (Place.LITERAL, Place.COUNTED, Place.DEVICE):
        return []
    if place is Place.SHARED and not computed:
        layout = scope.staged.buffer(value).layout
        return [] if not layout.swizzle or width * layout.dtype.size <= 16 else None
    op = scope.ops[value]
    shape = scope.shape(value)
    match op.kind:
        case OpKind.RESHAPE:
            source = scope.shape(op.inputs[0])
            fits = dim == len(shape) - 1 and bool(source) and source[-1] % width == 0 == shape[-1] % width
            return [(op.inputs[0], len(source) - 1)] if fits else None
        case OpKind.TRANSPOSE | OpKind.ACCUM:
            inner, _, inner_dim = view(scope, op, (Index(),) * len(shape), dim)
            return [(inner, inner_dim)]
        case OpKind.REPEAT | OpKind.CONCAT:
            assert isinstance(op.attrs, RepeatAttrs | DimAttrs)
            whole = op.attrs.dim != dim or all(scope.shape(v)[dim] % width == 0 for v in op.inputs)
            return [(v, dim) for v in op.inputs] if whole else None
        case OpKind.FUSED:
            assert isinstance(op.body, ThreadGraph)
            reads = vector_reads(op.body, op.body.outputs[scope.results[value]], dim)
            return [(op.inputs[v], d) for v, d in reads]
        case _:
            dims = operand_dims(scope.block, op, dim, len(shape))
            return list(zip(op.inputs, dims, strict=True))


@contextmanager
def each(out: Writer, scope: Scope, walked: Walk) -> Iterator[Multi]:
    """Every vector of the tile once, over all threads; yields its multi-index."""
    with each_slot(out, scope, walked, most=AHEAD) as (index, _):
        yield index


@contextmanager
def each_slot(out: Writer, scope: Scope, walked: Walk, most: int | None = None) -> Iterator[tuple[Multi, str]]:
    """As `each`, with the thread's vectors numbered at compile time, written out unless there are more than `most`;
    yields multi-index and number."""
    threads, slots = scope.threads, walked.slots(scope.threads)
    with out.unrolled("s", slots, most) as slot, out.block() if slots == 1 else nullcontext():
        position = named("thread", threads) + named(slot, slots) * threads
        out.line(f"const int e = {position.bare};")
        lines, index = walked.index()
        with out.block(f"if (e < {walked.count})") if walked.count % threads else nullcontext():
            out.lines(lines)
            yield index, slot


def emit_map(out: Writer, scope: Scope, step: Step) -> None:
    """A value computed element by element into its shared tile."""
    assert step.value is not None
    op = scope.block.ops[step.op]
    folded = isinstance(op.attrs, AccumAttrs)  # a concat or hold accumulator: it only moves its operand
    source = op.inputs[0] if folded else step.value
    walked = walk(scope, source, computed=not folded)
    with each(out, scope, walked) as index:
        reader = Reader(scope, walked.width)
        result = reader.read(source, index, walked.dim) if folded else reader.compute(source, index, walked.dim)
        if isinstance(op.attrs, AccumAttrs) and op.attrs.dim is not None:
            index = shifted(scope, index, op.attrs.dim, source)
        leaf = locate(scope, step.value, index, walked.dim, walked.width)
        store_vector(out, reader, result, leaf, scope.plan.stored[step.value])


def shifted(scope: Scope, index: Multi, dim: int, tile: int) -> Multi:
    """The index into a concatenation over iterations."""
    moved = index[dim] + named("iteration", scope.block.loop) * scope.shape(tile)[dim]
    return (*index[:dim], moved, *index[dim + 1 :])


def emit_save(out: Writer, scope: Scope, step: Step, output: str, out_type: TensorType) -> None:
    """A value computed element by element into device memory; a streamed one at its place for iteration i."""
    op = scope.block.ops[step.op]
    assert isinstance(op.attrs, OutSaverAttrs)
    saved = op.inputs[0]
    tile, source, along = scope.shape(saved), saved, None
    feeding = scope.ops[saved]
    if scope.plan.places[saved] is Place.NONE and isinstance(feeding.attrs, AccumAttrs):
        source, along = feeding.inputs[0], feeding.attrs.dim
    walked = walk(scope, source)
    with each(out, scope, walked) as index:
        reader = Reader(scope, walked.width)
        result = reader.read(source, index, walked.dim)
        if along is not None:
            index = shifted(scope, index, along, source)
        leaf = output_leaf(scope, op.attrs, output, index, tile, out_type, walked.width)
        store_vector(out, reader, result, leaf, out_type.dtype)


def output_leaf(
    scope: Scope,
    attrs: OutSaverAttrs,
    output: str,
    index: Multi,
    tile: tuple[int, ...],
    out_type: TensorType,
    width: int,
) -> Leaf:
    """Where `width` elements of this block's tile lie in an output, the first at `index`."""
    parts = [grid_part(scope.block, attrs.omap, dim) for dim in range(len(tile))]
    at = tuple(part * extent + inner for part, extent, inner in zip(parts, tile, index, strict=True))
    offset = linear(at, out_type.shape)
    leaf = Leaf(output, offset.bare, (offset + named("v", width)).bare, offset.multiple_of(width), True)
    over = [(part.limit + 1) * extent > whole for part, extent, whole in zip(parts, tile, out_type.shape, strict=True)]
    reach = scope.reaches.outputs.get(int(output.removeprefix("o")))
    return masked(leaf, at, out_type.shape, over, len(tile) - 1 if width > 1 else None, width, reach)


def store_vector(out: Writer, reader: Reader, result: str, leaf: Leaf, dtype: DType) -> None:
    """What the reader computed goes to memory, rounded to `dtype`."""
    width, target = reader.width, c_type(dtype)
    out.lines(reader.loads)
    if width == 1:
        out.lines(reader.body)
        out.line(f"{_when(leaf.inside)}{leaf.pointer}[{leaf.offset}] = from_float<{target}>({result});")
        return
    if not leaf.whole:
        with out.unrolled("v", width):
            out.lines(reader.body)
            out.line(f"{_when(leaf.each_inside)}{leaf.pointer}[{leaf.element}] = from_float<{target}>({result});")
        return
    out.line(f"Vec<float, {width}> y;")
    with out.unrolled("v", width):
        out.lines(reader.body)
        out.line(f"y[v] = {result};")
    out.line(f"{_when(leaf.inside)}store({leaf.pointer} + ({leaf.offset}), from_floats<{target}>(y));")


def _when(condition: str) -> str:
    return f"if ({condition}) " if condition else ""


def emit_accumulate(out: Writer, scope: Scope, step: Step) -> None:
    """An accumulator of a value that is computed element by element; registers `a<value>` hold it."""
    op = scope.block.ops[step.op]
    assert isinstance(op.attrs, AccumAttrs)
    source = op.inputs[0]
    walked = walk(scope, source)
    target = f"a{scope.first[step.op]}"
    with each_slot(out, scope, walked) as (index, s):
        slot = register_slot(walked, s)
        cells = target + slot, f"top_{target}{slot}"
        emit_fold(out, Reader(scope, walked.width), op, op.attrs.kind, cells, index, walked.dim)


def emit_fold(
    out: Writer, reader: Reader, op: Op, kind: AccumKind, cells: tuple[str, str], index: Multi, dim: int | None
) -> None:
    """The first operand of an operator at `index`, shifted by its second one if it is to be rescaled, is added to an
    accumulator and its running maximum."""
    value, shift = reader.read(op.inputs[0], index, dim), ""
    if kind is AccumKind.RESCALE:
        shape = reader.scope.shape(op.inputs[1])
        shift = reader.read(op.inputs[1], broadcast_index(index, shape), broadcast_dim(dim, len(index), shape))
    out.lines(reader.loads)
    with out.unrolled("v", reader.width):
        out.lines([*reader.body, *_fold(kind, *cells, value, shift)])


def _fold(kind: AccumKind, target: str, top: str, value: str, shift: str) -> list[str]:
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


def declare_accumulator(out: Writer, registers: str, kind: AccumKind, count: int) -> None:
    """Registers that start at the accumulator's neutral element."""
    start = "NEGATIVE_INFINITY" if kind is AccumKind.MAX else "0.0f"
    rows = [(registers, start)]
    if kind is AccumKind.RESCALE:
        rows.append((f"top_{registers}", "NEGATIVE_INFINITY"))
    for array, value in rows:
        out.line(f"float {array}[{count}];")
        out.line("MIRAGE_UNROLL")
        out.line(f"for (int s = 0; s < {count}; ++s) {array}[s] = {value};")


def emit_finish_map(out: Writer, scope: Scope, step: Step) -> None:
    """Registers of an elementwise accumulator go to its shared tile."""
    assert step.value is not None
    walked = walk(scope, scope.block.ops[step.op].inputs[0])
    with each_slot(out, scope, walked) as (index, s):
        leaf = locate(scope, step.value, index, walked.dim, walked.width)
        with out.unrolled("v", walked.width):
            out.line(f"{leaf.pointer}[{leaf.element}] = a{step.value}{register_slot(walked, s)};")


def register_slot(walked: Walk, slot: str) -> str:
    """The accumulator register of element v of vector `slot`."""
    return f"[{slot}]" if walked.width == 1 else f"[{slot} * {walked.width} + v]"
