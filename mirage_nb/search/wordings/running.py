"""Products with a triangle of ones, said as what they are: running sums.

In: a tensor program. Out: the same program in which such products, of rows or of columns, from either end, with the
element itself or without, are `RunningSum`s: each element is added once, and threads that hold a row or a column do
that where they hold it. Invariant: over the real numbers the program stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import (
    ArangeAttrs,
    ConstAttrs,
    DimAttrs,
    KernelGraph,
    Op,
    OpKind,
    ReshapeAttrs,
    RunningAttrs,
    SliceAttrs,
    TransposeAttrs,
)
from mirage_nb.ir.rewrite import Rewrite, saying
from mirage_nb.predefined.masks import triangle
from mirage_nb.predefined.patterns import FLOATS
from mirage_nb.predefined.reading import Reading
from mirage_nb.search.pieces.piece import Whole

SMALL_SUMMED, SMALL = 5, 2
"""Elements of a small program along what is summed, and along all else."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Running sums of a value, said by a product with `matrix`."""

    source: int
    attrs: RunningAttrs
    matrix: int


def sums(program: KernelGraph) -> dict[int, tuple[int, ...]]:
    """The running sums of a program: for each the value that it sums."""
    return {value: (found.source,) for value, found in _sums(program).items()}


def as_running(program: KernelGraph) -> KernelGraph:
    """The program with such products as running sums; itself where it has none."""
    found = _sums(program)

    def running(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        return made.add(Op(OpKind.RUNNING_SUM, made.places((found[value].source,)), found[value].attrs))

    return saying(program, found, running)


def small(piece: KernelGraph, seed: int) -> tuple[KernelGraph, KernelGraph]:
    """What makes one running sum, of few elements, with a triangle of numbers as field trials know them, and the same
    as a running sum."""
    found = _only(piece)
    made = _smaller(piece, piece.types[found.source].shape[found.attrs.dim])
    matrix = Whole.of(made).part(set(), [_only(made).matrix])
    (ones,) = evaluate(matrix.graph, [])

    def numbers(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        dtype = piece.types[found.matrix].dtype
        bits = [made.add(Op(OpKind.CONST, (), ConstAttrs(Fraction(bit), dtype=dtype))) for bit in (0, 1)]
        bits = [made.add(Op(OpKind.RESHAPE, (bit,), ReshapeAttrs((1,)))) for bit in bits]
        row = reduce(lambda a, b: made.add(Op(OpKind.CONCAT, (a, b), DimAttrs(0))), (bits[int(x)] for x in ones.flat))
        return made.add(Op(OpKind.RESHAPE, (row,), ReshapeAttrs(ones.shape)))

    return _needed(saying(made, matrix.writes, numbers)), _needed(as_running(made))


def _needed(graph: KernelGraph) -> KernelGraph:
    return Whole.of(graph).part(set(), [*graph.outputs]).graph


def _only(piece: KernelGraph) -> _Found:
    ((_, found),) = _sums(piece).items()
    return found


def _smaller(piece: KernelGraph, summed: int) -> KernelGraph:
    """The same for few elements; `summed`: what has so many of them is as long as what is summed."""

    def less(extent: int) -> int:
        return SMALL_SUMMED if extent == summed else min(extent, SMALL)

    def shape(extents: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(less, extents))

    inputs = (replace(i, type=replace(i.type, shape=shape(i.type.shape)), size=None) for i in piece.inputs)
    made = Rewrite(KernelGraph.start(*inputs))
    for op, values in piece.definitions():
        match op.attrs:
            case ArangeAttrs(extent):
                op = replace(op, attrs=replace(op.attrs, extent=less(extent)))
            case ReshapeAttrs(extents):
                op = replace(op, attrs=ReshapeAttrs(shape(extents)))
            case SliceAttrs(dim, _, extent, -1):
                op = replace(op, attrs=SliceAttrs(dim, less(extent) - 1, less(extent), -1))
        made.copy(op, values)
    return made.returning(piece)


def _sums(program: KernelGraph) -> dict[int, _Found]:
    """Running sums, the outermost of values that say one."""
    reading, found, inner = Reading(program), dict[int, _Found](), set[int]()
    for op, (value, *_) in program.definitions():
        made = _product(reading, op, len(program.types[value].shape)) or _turned(reading, found, op)
        if made is None:
            continue
        source, result = program.types[made.source], program.types[value]
        if (source.shape, source.dtype) == (result.shape, result.dtype) and result.dtype in FLOATS:
            found[value] = made
            inner.update(op.inputs)
    return {value: made for value, made in found.items() if value not in inner}


def _product(reading: Reading, op: Op, rank: int) -> _Found | None:
    """The running sums of rows or columns that a product is."""
    if op.kind is OpKind.MATMUL:
        for dim, (source, matrix) in zip((rank - 1, rank - 2), (op.inputs, op.inputs[::-1]), strict=True):
            ones = triangle(reading, matrix) if reading.shape(source)[-1] > 1 else None
            if ones is not None:
                return _Found(source, RunningAttrs(dim, ones.left == (dim == rank - 1), ones.strict), matrix)
    return None


def _turned(reading: Reading, known: dict[int, _Found], op: Op) -> _Found | None:
    """Running sums of what was turned, turned back."""
    inner = known.get(op.inputs[0]) if op.inputs else None
    before = reading.op(inner.source, op.kind) if inner is not None else None
    if inner is None or before is None:
        return None
    attrs = inner.attrs
    match op.attrs, before.attrs:
        case TransposeAttrs(perm), TransposeAttrs(first) if [first[p] for p in perm] == [*range(len(perm))]:
            return replace(inner, source=before.inputs[0], attrs=replace(attrs, dim=perm.index(attrs.dim)))
        case SliceAttrs(dim, step=-1), SliceAttrs() if op.attrs == before.attrs and dim == attrs.dim:
            return replace(inner, source=before.inputs[0], attrs=replace(attrs, backward=not attrs.backward))
    return None
