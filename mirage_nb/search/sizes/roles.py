"""Loop bodies of products alone, and of two chained ones: what blocks with roles can compute, over axes.

In: a kernel structure. Out: its products, or its `Chain`. `optimize.product` and `optimize.attention` say the same over
dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.saturation.values import BODY, ITER, TILE, Type
from mirage_nb.search.structure import KernelStructure, Step
from mirage_nb.tile.sketch import ELEMENTWISE

_FOLDS = frozenset({OpKind.SUM, OpKind.MAX})


@dataclass(frozen=True, slots=True)
class Products:
    """The products of a loop body that does nothing else, the accumulators of their sums, and products of held operands
    that are added to these behind it."""

    streamed: tuple[int, ...]
    sums: tuple[int, ...]
    added: tuple[int, ...]


def products_of(kernel: KernelStructure) -> Products | None:
    """The products of a loop body that does nothing else; None if it does."""
    if kernel.loop is None:
        return None
    steps, products, sums, added = kernel.steps, [], [], list[int]()
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
        elif step.stage != BODY and kind is OpKind.MATMUL and all(_is_held(steps, i) for i in step.reads):
            added.append(index)
        elif step.stage != BODY and kind not in ELEMENTWISE:
            return None
    if not products or not sums or not all(_is_added(kernel, index, sums) for index in added):
        return None
    return Products(tuple(products), tuple(sums), tuple(added))


def _is_held(steps: Sequence[Step], index: int) -> bool:
    operator = steps[index].operator
    return operator.kind is OpKind.ACCUM and operator.accum is AccumKind.HOLD


def _is_added(kernel: KernelStructure, index: int, sums: Sequence[int]) -> bool:
    """Whether all that becomes of a product is that it is added to an accumulator that nothing else reads."""
    readers = [step for step in kernel.steps if index in step.reads]
    if len(readers) != 1 or readers[0].operator.kind is not OpKind.ADD or index in kernel.outputs:
        return False
    (total,) = {*readers[0].reads} - {index} or {index}
    alone = sum(total in step.reads for step in kernel.steps) == 1
    return total in sums and alone and total not in kernel.outputs


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
