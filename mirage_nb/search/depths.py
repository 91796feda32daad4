"""Products side by side have one depth: the deeper ones are sums of products of parts, one loop goes over all of these.

In: a tensor program. Out: the same one in which products of few rows that no other of them is made of, with results of
one shape, and of different depths, are sums of products of the greatest depth that divides all: the input of a
recurrent cell is narrower than its state. Invariant: over the real numbers the program stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import gcd

from mirage_nb.ir import KernelGraph, Op, OpKind, SliceAttrs, TransposeAttrs
from mirage_nb.ir.ops import Shape
from mirage_nb.ir.rewrite import Rewrite, saying
from mirage_nb.search.one_row import beside

PARTS = 8
"""Products in place of those of one shape, at most: a block has a tile of each in flight."""
LEAST_DEPTH = 64
"""Elements that a product of a part sums at least."""


def uneven(program: KernelGraph, most: int) -> dict[int, tuple[int, ...]]:
    """Products of so many rows at most that are cut: for each its operands."""
    products = beside(program, most)
    return {value: products[value].inputs for value in _parts(program, products)}


def evened(program: KernelGraph, most: int) -> KernelGraph:
    """The program with these as sums of products."""
    return _cut(program, _parts(program, beside(program, most)))


def halved(program: KernelGraph) -> KernelGraph:
    """The program with every product as that of two halves, as far as depths are even in number."""
    products = {value: op for op, (value, *_) in program.definitions() if op.kind is OpKind.MATMUL}
    return _cut(program, {value: 2 for value, op in products.items() if _depth(program, op) % 2 == 0})


def _parts(program: KernelGraph, products: Mapping[int, Op]) -> dict[int, int]:
    """How many parts there are of each of these that has several."""
    found: dict[int, int] = {}
    by_shape: dict[Shape, dict[int, int]] = {}
    for value, op in products.items():
        by_shape.setdefault(program.types[value].shape, {})[value] = _depth(program, op)
    for depths in by_shape.values():
        least = gcd(*depths.values())
        counts = {value: depth // least for value, depth in depths.items()}
        if least >= LEAST_DEPTH and sum(counts.values()) <= PARTS and len({*counts.values()}) > 1:
            found.update((value, count) for value, count in counts.items() if count > 1)
    return found


def _depth(program: KernelGraph, op: Op) -> int:
    """Terms of a sum of a product."""
    return program.types[op.inputs[0]].shape[-1]


def _cut(program: KernelGraph, parts: Mapping[int, int]) -> KernelGraph:
    """The program with these products as sums of those of so many parts, which are taken of matrices as they lie."""
    maker = {value: op for op, values in program.definitions() for value in values}

    def part(made: Rewrite[KernelGraph], value: int, dim: int, start: int, extent: int) -> int:
        turned = maker[value] if value in maker else None
        if turned is None or not isinstance(turned.attrs, TransposeAttrs):
            return made.add(Op(OpKind.SLICE, made.places((value,)), SliceAttrs(dim, start, extent)))
        taken = SliceAttrs(turned.attrs.perm[dim], start, extent)
        return made.add(
            Op(OpKind.TRANSPOSE, (made.add(Op(OpKind.SLICE, made.places(turned.inputs), taken)),), turned.attrs)
        )

    def summed(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        depth, products = _depth(program, op) // parts[value], list[int]()
        dims = [len(program.types[v].shape) - behind for v, behind in zip(op.inputs, (1, 2), strict=True)]
        for start in range(0, _depth(program, op), depth):
            sides = (part(made, v, dim, start, depth) for v, dim in zip(op.inputs, dims, strict=True))
            products.append(made.add(Op(OpKind.MATMUL, (*sides,))))
        return reduce(lambda a, b: made.add(Op(OpKind.ADD, (a, b))), products)

    return saying(program, parts, summed)
