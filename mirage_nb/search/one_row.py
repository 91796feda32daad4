"""Products of one row, said as sums: what a kernel computes whose threads hold rows of the matrix.

In: a tensor program. Out: the same program in which the product of one row with a matrix that lies transposed (weights
as PyTorch keeps them) multiplies the row with every row of the matrix, element by element, and sums these up. Such a
product reads every element once and is nothing but memory: threads that each hold a part of a row do it without a
tensor core and without shared memory, and what stands in front of the row, or behind the sums, is theirs, too.
Invariant: over the real numbers the program stays what it was.
"""

from __future__ import annotations

from mirage_nb.ir import DimAttrs, KernelGraph, Op, OpKind, ReshapeAttrs, TransposeAttrs
from mirage_nb.ir.rewrite import Rewrite, saying


def products(program: KernelGraph) -> dict[int, tuple[int, ...]]:
    """Such products of a program: for each the row, and the matrix as it lies."""
    maker = {values[0]: op for op, values in program.definitions()}
    return {value: found for value, op in maker.items() if (found := _operands(program, maker, op))}


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


def _operands(program: KernelGraph, maker: dict[int, Op], op: Op) -> tuple[int, ...]:
    """The one row of a product, and the matrix whose rows it is multiplied with; nothing if it is another product."""
    if op.kind is not OpKind.MATMUL:
        return ()
    row, turned = op.inputs
    attrs = maker[turned].attrs if turned in maker else None
    shape = program.types[row].shape
    if not isinstance(attrs, TransposeAttrs) or shape[-2] != 1 or len(shape) != len(attrs.perm):
        return ()
    *lead, first, second = attrs.perm
    (matrix,) = maker[turned].inputs
    straight = [*lead, second, first] == [*range(len(shape))] and program.types[matrix].shape[-2] > 1
    return (row, matrix) if straight else ()
