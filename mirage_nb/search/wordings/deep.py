"""Deep products of few results are summed in parts, by as many blocks as there are multiprocessors: X^T @ D.

In: a tensor program. Out: the same one in which products whose results are too few tiles for these are products of
parts of their depth, side by side, and a sum of what the parts gave: gradients of weights, covariances, Gram matrices.
Invariant: over the real numbers the program stays what it was.
"""

from __future__ import annotations

from math import ceil, prod

from mirage_nb.ir import DimAttrs, KernelGraph, Op, OpKind, ReshapeAttrs, TransposeAttrs
from mirage_nb.ir.rewrite import Rewrite, saying
from mirage_nb.predefined.reading import Reading
from mirage_nb.tile.rules.register_resident import LONGEST_COLUMN

BLOCKS = 128
"""About as many as there are multiprocessors."""
TILE = 64
"""Rows and columns of a block's tile, about."""
DEEP = 4
"""Times as deep as it is wide or high is a deep product."""
LEAST_DEPTH = 128
"""Elements that a part sums at least."""


def products(program: KernelGraph) -> dict[int, tuple[int, ...]]:
    """Such products of a program: for each its operands."""
    return {value: op.inputs for op, (value, *_) in program.definitions() if _parts(program, op, value) > 1}


def in_parts(program: KernelGraph) -> KernelGraph:
    """The program with these in parts."""
    parts = {value: _parts(program, op, value) for op, (value, *_) in program.definitions()}
    return _cut(program, {value: count for value, count in parts.items() if count > 1})


def halved(program: KernelGraph) -> KernelGraph:
    """The program with every product of two matrices in two parts, as far as depths are even in number."""
    plain = {value: op for op, (value, *_) in program.definitions() if _is_plain(program, op)}
    return _cut(program, {value: 2 for value, op in plain.items() if program.types[op.inputs[0]].shape[1] % 2 == 0})


def _is_plain(program: KernelGraph, op: Op) -> bool:
    return op.kind is OpKind.MATMUL and all(len(program.types[v].shape) == 2 for v in op.inputs)


def _parts(program: KernelGraph, op: Op, value: int) -> int:
    """How many parts of its depth a product has, whose tiles are no more blocks than there should be; 1: none."""
    if not _is_plain(program, op):
        return 1
    depth = program.types[op.inputs[0]].shape[1]
    tiles = prod(ceil(extent / TILE) for extent in program.types[value].shape)
    if depth < DEEP * max(program.types[value].shape):
        return 1
    most = min(LONGEST_COLUMN, depth // LEAST_DEPTH, BLOCKS // tiles)
    return max((n for n in range(2, most + 1) if depth % n == 0), default=1)


def _cut(program: KernelGraph, parts: dict[int, int]) -> KernelGraph:
    """The program with these products in so many parts."""
    reading = Reading(program)

    def side(made: Rewrite[KernelGraph], value: int, along: int, count: int) -> int:
        """An operand [2 dimensions], the one that is summed cut in parts, which stand in front."""
        turned = reading.transposed(value)
        if turned is not None:  # of the matrix as it lies
            value, along = turned, 1 - along
        shape = program.types[value].shape
        cut = (*shape[:along], count, shape[along] // count, *shape[along + 1 :])
        view = made.add(Op(OpKind.RESHAPE, made.places((value,)), ReshapeAttrs(cut)))
        order = (0, 1, 2) if along == 0 else (1, 0, 2)
        order = (order[0], order[2], order[1]) if turned is not None else order
        return view if order == (0, 1, 2) else made.add(Op(OpKind.TRANSPOSE, (view,), TransposeAttrs(order)))

    def summed(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        sides = tuple(side(made, v, along, parts[value]) for v, along in zip(op.inputs, (1, 0), strict=True))
        total = made.add(Op(OpKind.SUM, (made.add(Op(OpKind.MATMUL, sides)),), DimAttrs(0)))
        return made.add(Op(OpKind.RESHAPE, (total,), ReshapeAttrs(program.types[value].shape)))

    return saying(program, parts, summed)
