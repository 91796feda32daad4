"""Products as sums of products of parts, side by side, and of one depth: one loop goes over all of these.

In: a tensor program. Out: the same one in which products of what is joined along their depth are sums of products of
its parts, and in which products of which none is made of the other, with results of one shape, and of different depths,
are sums of products of the greatest depth that divides all: the input of a recurrent cell is narrower than its state.
Invariant: over the real numbers the program stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import accumulate
from math import gcd

from mirage_nb.ir import DimAttrs, KernelGraph, Op, OpKind, SliceAttrs, TransposeAttrs
from mirage_nb.ir.ops import Shape
from mirage_nb.ir.rewrite import Rewrite, saying
from mirage_nb.search.pieces.piece import is_heavy

PARTS = 8
"""Products in place of those of one shape, at most: a block has a tile of each in flight."""
LEAST_DEPTH = 64
"""Elements that a product of a part sums at least."""


def joined(program: KernelGraph, least: int = LEAST_DEPTH) -> dict[int, tuple[int, ...]]:
    """Products of what is joined along their depth of parts of `least` elements or more: for each those, and what they
    are multiplied with."""
    maker = {value: op for op, values in program.definitions() for value in values}
    found: dict[int, tuple[int, ...]] = {}
    for value, op in maker.items():
        if op.kind is OpKind.MATMUL and len(parts := _joined(program, maker, op.inputs[0])) > 1:
            if min(program.types[v].shape[-1] for v in parts) >= least:
                found[value] = (*parts, op.inputs[1])
    return found


def parted(program: KernelGraph, least: int = LEAST_DEPTH) -> KernelGraph:
    """The program with these as sums of products of the parts."""
    found = joined(program, least)
    depths = {value: [program.types[v].shape[-1] for v in parts] for value, (*parts, _) in found.items()}

    def summed(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        *parts, right = found[value]
        starts = accumulate(depths[value], initial=0)
        rows = (part(made, program, right, -2, start, n) for start, n in zip(starts, depths[value], strict=False))
        return _sum(made, zip(made.places(parts), rows, strict=True))

    return saying(program, found, summed)


def _joined(program: KernelGraph, maker: Mapping[int, Op], value: int) -> list[int]:
    """What a value is joined of along its last dimension, in order; itself if it is not."""
    op = maker.get(value)
    if op is None or op.kind is not OpKind.CONCAT or op.attrs != DimAttrs(len(program.types[value].shape) - 1):
        return [value]
    return [part for v in op.inputs for part in _joined(program, maker, v)]


def uneven(program: KernelGraph) -> dict[int, tuple[int, ...]]:
    """The products that are cut: for each its operands."""
    products = _beside(program)
    return {value: products[value].inputs for value in _parts(program, products)}


def evened(program: KernelGraph) -> KernelGraph:
    """The program with these as sums of products."""
    return _cut(program, _parts(program, _beside(program)))


def halved(program: KernelGraph) -> KernelGraph:
    """The program with every product as that of two halves, as far as depths are even in number."""
    products = {value: op for op, (value, *_) in program.definitions() if op.kind is OpKind.MATMUL}
    return _cut(program, {value: 2 for value, op in products.items() if _depth(program, op) % 2 == 0})


def _beside(program: KernelGraph) -> dict[int, Op]:
    """Products beside which there are others: neither is made of the other one."""
    made_of: dict[int, frozenset[int]] = {}
    found: dict[int, Op] = {}
    others = set[int]()
    for op, (value, *_) in program.definitions():
        before = frozenset[int]().union(*(made_of.get(v, ()) for v in op.inputs))
        if is_heavy(program, op):
            if apart := found.keys() - before:
                others |= {value, *apart}
            found[value], before = op, before | {value}
        made_of[value] = before
    return {value: found[value] for value in sorted(others)}


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
    """The program with these products as sums of those of so many parts."""

    def summed(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        left, right = op.inputs
        depth = _depth(program, op) // parts[value]
        starts = range(0, _depth(program, op), depth)
        sides = ((part(made, program, left, -1, n, depth), part(made, program, right, -2, n, depth)) for n in starts)
        return _sum(made, sides)

    return saying(program, parts, summed)


def _sum(made: Rewrite[KernelGraph], sides: Iterable[tuple[int, int]]) -> int:
    """The sum of these products."""
    products = [made.add(Op(OpKind.MATMUL, pair)) for pair in sides]
    return reduce(lambda a, b: made.add(Op(OpKind.ADD, (a, b))), products)


def part(made: Rewrite[KernelGraph], program: KernelGraph, value: int, dim: int, start: int, extent: int) -> int:
    """A part of a value along a dimension, counted from the last; of a matrix that is turned as it lies."""
    turned = next((op for op, values in program.definitions() if value in values), None)
    dim += len(program.types[value].shape)
    if turned is None or not isinstance(turned.attrs, TransposeAttrs):
        return made.add(Op(OpKind.SLICE, made.places((value,)), SliceAttrs(dim, start, extent)))
    taken = Op(OpKind.SLICE, made.places(turned.inputs), SliceAttrs(turned.attrs.perm[dim], start, extent))
    return made.add(Op(OpKind.TRANSPOSE, (made.add(taken),), turned.attrs))
