"""Products of one row, said as sums: what a kernel computes whose threads hold rows of the matrix.

In: a tensor program. Out: the same program in which the product of one row with a matrix that lies transposed (weights
as PyTorch keeps them) multiplies the row with every row of the matrix, element by element, and sums these up. Such a
product reads every element once and is nothing but memory: threads that each hold a part of a row do it without a
tensor core and without shared memory, and what stands in front of the row, or behind the sums, is theirs, too.
Matrices of different heights that share the row, as of queries and of fewer keys and values, are cut into parts of one
height first, so that one kernel holds rows of all. Invariant: over the real numbers the program stays what it was.
"""

from __future__ import annotations

from functools import reduce
from math import gcd

from mirage_nb.ir import OPS, DimAttrs, KernelGraph, Op, OpKind, ReshapeAttrs, Trait
from mirage_nb.ir.rewrite import Rewrite, saying
from mirage_nb.predefined.reading import Reading
from mirage_nb.search.wordings.depths import part

PARTS = 8
"""Parts of the matrices that share a row, at most: a thread has a row of each in flight."""


def products(program: KernelGraph, most: int = 1) -> dict[int, tuple[int, ...]]:
    """Such products of a program, of so many rows at most: for each the rows, and the matrix as it lies."""
    reading = Reading(program)
    return {v: found for op, (v, *_) in program.definitions() if (found := _operands(reading, op, most))}


def layers(program: KernelGraph, most: int) -> dict[int, list[int]]:
    """Products of so many rows at most, of any matrix, by what has these rows, seen through reshapes: layers of it."""
    reading, found = Reading(program), dict[int, list[int]]()
    for op, (value, *_) in program.definitions():
        if op.kind is OpKind.MATMUL and reading.shape(op.inputs[0])[-2] <= most:
            found.setdefault(reading.reshaped(op.inputs[0]), []).append(value)
    return found


def as_sums(program: KernelGraph) -> KernelGraph:
    """The program with such products as sums; itself where it has none."""
    found = products(program)

    def sums(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        row, matrix = found[value]
        deepest = DimAttrs(len(program.types[matrix].shape) - 1)
        multiplied = made.add(Op(OpKind.MUL, made.places((matrix, row))))
        summed = made.add(Op(OpKind.SUM, (multiplied,), deepest))
        return made.add(Op(OpKind.RESHAPE, (summed,), ReshapeAttrs(program.types[value].shape)))

    return saying(program, found, sums)


def uneven(program: KernelGraph, most: int = 1) -> dict[int, tuple[int, ...]]:
    """Such products that share their row with others, and whose matrix has several parts of the greatest height that
    divides those of all: for each the row, and the matrix as it lies."""
    found = products(program, most)
    return {value: found[value] for value in _parts(program, most)}


def evened(program: KernelGraph, most: int = 1) -> KernelGraph:
    """The program with a product of each part of these matrices, and the results put together."""
    return _cut(program, _parts(program, most), most)


def halved(program: KernelGraph, most: int = 1) -> KernelGraph:
    """The program with every such product as those of two halves, as far as rows are even in number."""
    even = (value for value in products(program, most) if program.types[value].shape[-1] % 2 == 0)
    return _cut(program, dict.fromkeys(even, 2), most)


def _parts(program: KernelGraph, most: int) -> dict[int, int]:
    """How many parts of one height the matrix of a product has, where it has several, and there are not too many of
    them together; as many has one whose results meet those of another, element by element."""
    found = products(program, most)
    sharing: dict[int, dict[int, int]] = {}
    for value, (row, _) in found.items():
        sharing.setdefault(row, {})[value] = program.types[value].shape[-1]
    high = ({v: width for v, width in w.items() if PARTS * width > max(w.values())} for w in sharing.values())
    parts = ({value: width // gcd(*widths.values()) for value, width in widths.items()} for widths in high)
    few = (some for some in parts if sum(some.values()) <= PARTS)
    cut = {value: count for some in few for value, count in some.items() if count > 1}
    return {v: count for value, count in cut.items() for v in _met(program, value) if v in found} | cut


def _met(program: KernelGraph, value: int) -> set[int]:
    """Values of the shape of this one that are computed together with it, element by element."""
    shape, joined = program.types[value].shape, {value}
    alike = [
        {*op.inputs, *values}
        for op, values in program.definitions()
        if Trait.ELEMENTWISE in OPS[op.kind].traits and program.types[values[0]].shape == shape
    ]
    while more := {v for some in alike if joined & some for v in some if program.types[v].shape == shape} - joined:
        joined |= more
    return joined


def _cut(program: KernelGraph, parts: dict[int, int], most: int) -> KernelGraph:
    """The program with these products as those of so many parts of their matrix."""
    found = products(program, most)

    def each(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        (row,), last = made.places(found[value][:1]), len(program.types[value].shape) - 1
        height = program.types[value].shape[last] // parts[value]
        columns = (part(made, program, op.inputs[1], -1, n * height, height) for n in range(parts[value]))
        results = [made.add(Op(OpKind.MATMUL, (row, column))) for column in columns]
        return reduce(lambda a, b: made.add(Op(OpKind.CONCAT, (a, b), DimAttrs(last))), results)

    return saying(program, parts, each)


def _operands(reading: Reading, op: Op, most: int) -> tuple[int, ...]:
    """The few rows of a product, and the matrix whose rows they are multiplied with; nothing of another product."""
    if op.kind is not OpKind.MATMUL:
        return ()
    row, matrix = op.inputs[0], reading.transposed(op.inputs[1])
    shape = reading.shape(row)
    if matrix is None or shape[-2] > most or len(shape) != len(reading.shape(matrix)):
        return ()
    return (row, matrix) if reading.shape(matrix)[-2] > 1 else ()
