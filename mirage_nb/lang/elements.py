"""One element of each row: what stands at the places that an index names, and sums in which a mask leaves one element.

In: a tensor, an axis, whole numbers. Out: terms. Invariant: of what is computed element by element only the elements at
those places are; sums that leave one are 0 where the index names no place.
"""

from __future__ import annotations

import ast
import math
from functools import partial, reduce

from mirage_nb.errors import MirageError, ShapeError
from mirage_nb.ir.graph import Op
from mirage_nb.ir.ops import (
    OPS,
    ApplyAttrs,
    ArangeAttrs,
    DimAttrs,
    OpKind,
    Shape,
    Trait,
    WhereAttrs,
    broadcast,
    show_shape,
)
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.constants import Number, multiply
from mirage_nb.lang.lowering import COMPARED, ONE, STEPS, ZERO, cast, formula_at, is_whole, scale
from mirage_nb.lang.masks import both, comparison, from_zero, of_places, one_hot, place_of, take, where
from mirage_nb.lang.ranges import bounds
from mirage_nb.lang.views import expand, reshaped, transpose, turned_back

TOTAL = frozenset({
    OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.SQR, OpKind.EXP, OpKind.SILU, OpKind.GELU, OpKind.SIGMOID, OpKind.RELU,
    OpKind.CLAMP, OpKind.MAXIMUM, OpKind.WHERE, OpKind.CAST, *COMPARED.values(),
})  # fmt: skip
"""Elementwise operators that have a value everywhere; what others need that is said of their last operand."""


def picked_together(b: Builder, x: Value, indices: list[Value], axis: int = 0) -> Term:
    """x[i, j]: for every element of the indices, which have one shape, the one of x at these places; behind so many
    axes that are taken whole."""
    shapes = tuple(b.shape(i) for i in indices)
    try:
        common = broadcast(shapes) if axis + len(indices) <= len(b.shape(x)) else None
    except ShapeError:
        common = None
    if common is None:
        found = " and ".join(sorted({show_shape(shape) for shape in shapes}))
        hint = "indices have one shape, or extents of 1, one an axis"
        raise ShapeError(f"indices {found} of {show_shape(b.shape(x))}", hint=hint)
    indices = [b.tensor(of_places(expand, 0)(b, i, common), "an index") for i in indices]
    lead = b.shape(x)[axis : axis + len(indices)]
    op = b.definition(indices[0])
    if len(indices) == len(b.shape(x)) == 2 and op is not None and op.attrs == ArangeAttrs(lead[0]):  # one of each row
        last = from_zero(b, indices[1], lead[1])
        return reshaped(b, b.tensor(gather(b, x, reshaped(b, last, (lead[0], 1)), 1), "an index"), (lead[0],))
    shape = (*b.shape(x)[:axis], math.prod(lead), *b.shape(x)[axis + len(indices) :])
    return take(b, reshaped(b, x, shape), place_of(b, indices, lead), axis)


def gather(b: Builder, x: Value, index: Value, axis: int) -> Term:
    """For every element of the index, the one of x at that place of the axis and its own places of the others."""
    shape, wanted = b.shape(x), b.shape(index)
    if len(wanted) != len(shape) or any(wanted[d] != shape[d] for d in range(len(shape)) if d != axis):
        raise ShapeError(
            f"gather: {show_shape(wanted)} is no index of axis {axis} of {show_shape(shape)}",
            hint="the index has the extents of x but for the axis; take(x, index, axis) has any shape",
        )
    return _computed(b, x, from_zero(b, index, shape[axis]), axis)


def sum_of_one(b: Builder, x: Value, axis: int) -> Term | None:
    """The sum along an axis of what a mask leaves one element of, each time by its number, as of one_hot(I, n) * X:
    that element of what X is computed of. None of another sum, or where X is not computed element by element."""
    value, factor = x, ONE
    while (op := b.definition(value)) is not None:
        scaled = b.number(Value(op.inputs[1])) if op.kind is OpKind.MUL else None
        if scaled is None and op.kind is not OpKind.CAST:
            break
        value, factor = Value(op.inputs[0]), multiply(factor, scaled or ONE)
    if op is None or (op.kind is not OpKind.MUL and op.attrs != WhereAttrs()):
        return None
    for mask, table in (map(Value, pair) for pair in (op.inputs, op.inputs[::-1])[: 1 + (op.kind is OpKind.MUL)]):
        if b.shape(table) != b.shape(x) or not _parts(b, table, axis):
            continue
        if (index := _numbering(b, mask, axis, b.shape(x))) is not None:
            made = _where(b, _within(b, index, b.shape(x)[axis]), _computed(b, table, index, axis), ZERO)
            return cast(b.dtype(x))(b, scale(b, made, factor))
    return None


def _where(b: Builder, mask: Value | None, x: Value, other: Number) -> Value:
    """x where a mask is, if there is one."""
    return x if mask is None else b.tensor(where(b, mask, x, other), "an element")


def _numbering(b: Builder, mask: Value, axis: int, shape: Shape) -> Value | None:
    """The whole numbers where a mask of tensors of this shape is 1 in those places of an axis that these number, one
    for each row, and 0 elsewhere."""
    while (op := b.definition(mask)) is not None and op.kind is OpKind.CAST:
        mask = Value(op.inputs[0])
    if op is None or not isinstance(op.attrs, ApplyAttrs) or op.attrs.formula != STEPS[ast.Eq]:
        return None
    difference = b.definition(Value(op.inputs[0]))
    if difference is None or difference.kind is not OpKind.SUB:
        return None
    rows = tuple(1 if dim == axis else extent for dim, extent in enumerate(shape))
    for place, number in (map(Value, pair) for pair in (difference.inputs, difference.inputs[::-1])):
        lined = b.shape(place)[axis - len(shape) :][:1] == shape[axis : axis + 1] == (math.prod(b.shape(place)),)
        if lined and _counts(b, place) and b.shape(number) == rows and is_whole(b, number):
            return number
    return None


def _counts(b: Builder, value: Value) -> bool:
    """Whether a tensor holds 0, 1, ... in order."""
    while (op := b.definition(value)) is not None and op.kind is OpKind.RESHAPE:
        value = Value(op.inputs[0])
    return op is not None and op.kind is OpKind.ARANGE


def _within(b: Builder, index: Value, extent: int) -> Value | None:
    """Where an index, a whole number, names one of so many places; None if that is everywhere. Both ends are asked the
    same way: as conditions that hold, which draws of conditions find together."""
    least, most = bounds(b, index, -math.inf) or (-math.inf, math.inf)
    ends = [] if least >= 0 else [comparison(ast.GtE)(b, index, ZERO)]
    ends += [] if most < extent else [comparison(ast.LtE)(b, index, Number.of(extent - 1))]
    return b.tensor(reduce(partial(both, b), ends), "an index") if ends else None


def _parts(b: Builder, value: Value, axis: int) -> list[Value]:
    """What has the axis of that of which a tensor is computed, element by element; nothing where it is not, or of
    tensors that are repeated."""
    op, shape = b.definition(value), b.shape(value)
    if op is None or Trait.ELEMENTWISE not in OPS[op.kind].traits or not _is_one_defined(op):
        return []
    behind = len(shape) - axis
    long = [v for v in map(Value, op.inputs) if len(b.shape(v)) >= behind and b.shape(v)[-behind] != 1]
    return long if all(b.shape(v) == shape for v in long) else []


def _is_one_defined(op: Op) -> bool:
    """Whether an elementwise operator has a value of 1."""
    if not isinstance(op.attrs, ApplyAttrs):
        return True
    try:
        return math.isfinite(formula_at(op.attrs.formula, ONE).nearest)
    except (MirageError, ArithmeticError, ValueError):
        return False


def _computed(b: Builder, x: Value, index: Value, axis: int) -> Value:
    """The elements of x at these places of an axis, which are counted from 0, computed of those of what it is made of.
    What has no value everywhere is asked of 1 where the index names no place."""
    inside, front = dict[Value, list[Value]](), [x]
    while front:
        if (value := front.pop()) not in inside:
            inside[value] = _parts(b, value, axis)
            front += inside[value]
    made: dict[Value, Value] = {}
    for value in sorted(inside):
        op = b.definition(value)
        if op is None or not inside[value]:
            made[value] = _looked_up(b, value, index, axis)
            continue
        operands = [made[Value(v)] if v in inside[value] else Value(v) for v in op.inputs]
        if op.kind not in TOTAL and op.inputs[-1] in inside[value]:
            operands[-1] = _where(b, _within(b, index, b.shape(x)[axis]), operands[-1], ONE)
        made[value] = b.tensor(cast(b.dtype(value))(b, b.emit(op.kind, *operands, attrs=op.attrs)), "an element")
    return made[x]


def _looked_up(b: Builder, x: Value, index: Value, axis: int) -> Value:
    """The same as sums of all elements, of which all but one are chosen away."""
    shape, wanted = b.shape(x), b.shape(index)
    order = (*(d for d in range(len(shape)) if d != axis), axis)
    table = b.tensor(transpose(b, x, order), "gather")
    table = reshaped(b, table, (*b.shape(table)[:-1], 1, shape[axis]))
    picked = b.tensor(one_hot(b, index, shape[axis]), "gather")
    row = b.tensor(transpose(b, picked, (*order, len(shape))), "gather")
    chosen = b.emit(OpKind.WHERE, row, table, attrs=WhereAttrs())
    total = b.emit(OpKind.SUM, chosen, attrs=DimAttrs(len(shape))) if shape[axis] > 1 else chosen
    found = reshaped(b, total, tuple(wanted[d] for d in order))
    return b.tensor(turned_back(b, found, order), "gather")
