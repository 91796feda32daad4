"""Loop bodies of products alone, and of two chained ones: what blocks with roles can compute, over axes.

In: a kernel structure. Out: its products, or its `Chain`. `optimize.product` and `optimize.attention` say the same over
dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.saturation.values import BODY, ITER, TILE, Type
from mirage_nb.search.structure import KernelStructure
from mirage_nb.tile.sketch import ELEMENTWISE

_FOLDS = frozenset({OpKind.SUM, OpKind.MAX})
Products = tuple[tuple[int, ...], tuple[int, ...]]
"""The products of a loop body that does nothing else, and the accumulators of their sums."""


def products_of(kernel: KernelStructure) -> Products | None:
    """The products of a loop body that does nothing else, and the accumulators of their sums; None if it does."""
    if kernel.loop is None:
        return None
    steps, products, sums = kernel.steps, [], []
    for index, step in enumerate(steps):
        kind = step.operator.kind
        read = [steps[i].operator.kind for i in step.reads]
        if step.operator.is_leaf:
            continue
        if kind is OpKind.ACCUM:
            summed = step.operator.accum is AccumKind.SUM and read[0] in (OpKind.MATMUL, OpKind.ADD)
            if not summed and (step.operator.accum is not AccumKind.HOLD or read != [OpKind.IN_ITER]):
                return None
            sums += [index] * summed
        elif step.stage == BODY and kind is OpKind.MATMUL and step.operator.axis == kernel.loop:
            streamed = all(steps[i].type[kernel.loop] & ITER for i in step.reads)
            if not streamed or read != [OpKind.IN_ITER, OpKind.IN_ITER]:
                return None
            products.append(index)
        elif step.stage == BODY and (kind is not OpKind.ADD or not set(read) <= {OpKind.MATMUL, OpKind.ADD}):
            return None
        elif step.stage != BODY and kind not in ELEMENTWISE:
            return None
    return (tuple(products), tuple(sums)) if products and sums else None


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps that read queries, keys and values, the first product, and the axis that it sums; those that read
    numbered places; whether scores are masked."""

    queries: int
    keys: int
    values: int
    scores: int
    summed: int
    places: tuple[int, ...]
    masked: bool


def chain_of(kernel: KernelStructure) -> Chain | None:
    """The two products of a loop body that chains them, with row by row computation between; None if it is another."""
    steps, loop = kernel.steps, kernel.loop
    products = [i for i, s in enumerate(steps) if s.operator.kind is OpKind.MATMUL]
    if loop is None or len(products) != 2 or any(steps[i].stage != BODY for i in products) or loop in kernel.grid:
        return None
    first, second = products
    inputs = {i for i, s in enumerate(steps) if s.operator.kind is OpKind.IN_ITER}
    # Operands of a product come in any order: the streamed one of the first is that of the keys.
    queries, keys = sorted(steps[first].reads, key=lambda i: bool(steps[i].type[loop] & ITER))
    weights, values = sorted(steps[second].reads, key=lambda i: i in inputs)
    read = (queries, keys, values)
    places = {i for i in inputs - {*read} if _places(steps[i].type)}
    if inputs != {*read, *places} or steps[second].operator.axis != loop or weights in inputs:
        return None
    if [bool(steps[i].type[loop] & ITER) for i in read] != [False, True, True]:
        return None
    for index, step in enumerate(steps):
        kind = step.operator.kind
        if step.operator.is_leaf or index in products:
            continue
        if kind is OpKind.ACCUM:
            if step.operator.accum not in (AccumKind.SUM, AccumKind.RESCALE):
                return None
        elif kind in _FOLDS:
            if step.operator.axis != loop:
                return None
        elif kind not in ELEMENTWISE:
            return None
    masked = any(s.operator.kind is OpKind.WHERE for s in steps)
    return Chain(queries, keys, values, first, steps[first].operator.axis, tuple(places), masked)


def _places(type_: Type) -> bool:
    """Whether an input has a single axis, as numbered places have."""
    return sum(bool(code & TILE) for code in type_) == 1
