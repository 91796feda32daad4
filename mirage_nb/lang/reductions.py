"""Reductions: what sums, maxima and statistics over axes become.

In: a tensor, the dimensions to fold (counted from 0), whether they stay with extent 1. Out: a term. Invariant:
dimensions of extent 1 are folded by nothing, and what is left of all dimensions is one element, [1].
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from fractions import Fraction

from mirage_nb.errors import ProgramSyntaxError, ShapeError
from mirage_nb.ir.dtypes import HALVES, DType
from mirage_nb.ir.ops import DimAttrs, OpKind, WhereAttrs
from mirage_nb.lang.builder import Builder, Infinity, Term, Value
from mirage_nb.lang.constants import Number
from mirage_nb.lang.elements import sum_of_one
from mirage_nb.lang.lowering import LOG, ZERO, add, cast, multiply, negate, scale, sqrt, subtract
from mirage_nb.lang.masks import comparison, where
from mirage_nb.lang.views import shaped, sliced

Axes = tuple[int, ...]


def folded(b: Builder, kind: OpKind, x: Value, axes: Axes) -> Value:
    """The reduction over these dimensions, all kept with extent 1."""
    for axis in axes if kind is OpKind.SUM else ():
        if b.shape(x)[axis] != 1 and (found := sum_of_one(b, x, axis)) is not None:
            x = b.tensor(found, "sum")
    for axis in axes:
        if b.shape(x)[axis] != 1:
            parts = _stacked(b, x, axis)
            x = _together(b, kind, parts) if parts else b.emit(kind, x, attrs=DimAttrs(axis))
    return x


def _stacked(b: Builder, x: Value, axis: int) -> list[Value]:
    """What a tensor is a stack of along an axis, the last one first; nothing if it is none."""
    parts: list[Value] = []
    while (op := b.definition(x)) is not None and op.kind is OpKind.CONCAT and op.attrs == DimAttrs(axis):
        x, part = map(Value, op.inputs)
        parts.append(part)
    parts.append(x)
    return parts if len(parts) > 1 and all(b.shape(part)[axis] == 1 for part in parts) else []


def _together(b: Builder, kind: OpKind, parts: list[Value]) -> Value:
    """The sum, or the maximum, of tensors, as one of a stack of them is computed: sums in no fewer digits than f32."""
    dtype = b.dtype(parts[0])
    wide = kind is OpKind.SUM and dtype in HALVES
    *others, made = (b.tensor(cast(DType.F32)(b, part), "sum") if wide else part for part in parts)
    for part in reversed(others):
        made = b.emit(OpKind.ADD if kind is OpKind.SUM else OpKind.MAXIMUM, made, part)
    return b.tensor(cast(dtype)(b, made), "sum")


def dropped(b: Builder, x: Term, axes: Axes, keepdims: bool) -> Term:
    """Without `keepdims` the reduced dimensions go."""
    value = b.tensor(x, "a reduction")
    if keepdims:
        return value
    left = tuple(extent for dim, extent in enumerate(b.shape(value)) if dim not in axes)
    return shaped(b, value, left)


def reduction(kind: OpKind) -> Callable[[Builder, Value, Axes, bool], Term]:
    """The function that folds dimensions with Sum or Max."""

    def lower(b: Builder, x: Value, axes: Axes, keepdims: bool) -> Term:
        return dropped(b, folded(b, kind, x, axes), axes, keepdims)

    return lower


def minimum(b: Builder, x: Value, axes: Axes, keepdims: bool) -> Term:
    """The negative of the maximum of the negatives."""
    opposite = b.tensor(negate(b, x), "min")
    return negate(b, dropped(b, folded(b, OpKind.MAX, opposite, axes), axes, keepdims))


def product(b: Builder, x: Value, axes: Axes, keepdims: bool) -> Term:
    """The product over dimensions: one half times the other, again and again."""
    for axis in axes:
        left: list[Value] = []
        while (extent := b.shape(x)[axis]) > 1:
            half = extent // 2
            if extent % 2:
                left.append(sliced(b, x, axis, extent - 1, 1))
            halves = (sliced(b, x, axis, start, half) for start in (0, half))
            x = b.tensor(multiply(b, *halves), "prod")
        for rest in left:
            x = b.tensor(multiply(b, x, rest), "prod")
    return dropped(b, x, axes, keepdims)


def averaged(b: Builder, x: Value, axes: Axes, less: int = 0) -> Value:
    """The sum over so many elements, or `less` fewer."""
    count = math.prod(b.shape(x)[axis] for axis in axes) - less
    if count < 1:
        raise ShapeError(f"var of {count + less} elements with ddof={less}", hint="ddof is less than the elements")
    total = scale(b, folded(b, OpKind.SUM, x, axes), Number.of(Fraction(1, count)))
    return b.tensor(total, "mean")


def mean(b: Builder, x: Value, axes: Axes, keepdims: bool) -> Term:
    """The sum times the constant 1/n."""
    return dropped(b, averaged(b, x, axes), axes, keepdims)


def _spread(b: Builder, x: Value, axes: Axes, ddof: int) -> Value:
    if ddof < 0:
        raise ProgramSyntaxError(f"ddof is {ddof}", hint="ddof=0 divides by n, ddof=1 by n - 1")
    apart = b.tensor(subtract(b, x, averaged(b, x, axes)), "var")
    return averaged(b, b.emit(OpKind.SQR, apart), axes, ddof)


def variance(b: Builder, x: Value, axes: Axes, ddof: int, keepdims: bool) -> Term:
    """The mean square of what is left without the mean."""
    return dropped(b, _spread(b, x, axes, ddof), axes, keepdims)


def deviation(b: Builder, x: Value, axes: Axes, ddof: int, keepdims: bool) -> Term:
    """The square root of the variance."""
    return dropped(b, sqrt(b, _spread(b, x, axes, ddof)), axes, keepdims)


def log_of_sum(b: Builder, x: Value, axes: Axes) -> tuple[Value, Value, Value]:
    """x less its maximum, that maximum, and the logarithm of the sum of the exponentials of the former."""
    return _less(b, x, folded(b, OpKind.MAX, x, axes), axes)


def _less(b: Builder, x: Value, top: Value, axes: Axes) -> tuple[Value, Value, Value]:
    """The same of x less something."""
    shifted = b.tensor(subtract(b, x, top), "logsumexp")
    total = folded(b, OpKind.SUM, b.emit(OpKind.EXP, shifted), axes)
    return shifted, top, b.tensor(LOG(b, total), "logsumexp")


def masks(b: Builder, x: Value) -> list[Value]:
    """The conditions that leave minus infinity of what a tensor is made of."""
    choices = (op for op in map(b.definition, b.needed([x])) if op is not None and op.kind is OpKind.WHERE)
    return [Value(op.inputs[0]) for op in choices if isinstance(op.attrs, WhereAttrs) and op.attrs.infinite < 0]


def logsumexp(b: Builder, x: Value, axes: Axes, keepdims: bool) -> Term:
    """The logarithm of the sum of exponentials, with the maximum taken out first; of what an input may have masked by
    minus infinity everywhere, that is it. Masks of places are taken to leave something, so that tiles are rescaled.
    """
    top = folded(b, OpKind.MAX, x, axes)
    if any(b.definition(value) is None for value in b.needed(masks(b, x))):
        hidden = b.tensor(comparison(ast.Eq)(b, top, Infinity(-1)), "logsumexp")
        top = b.tensor(where(b, hidden, ZERO, top), "logsumexp")
    _, _, logarithm = _less(b, x, top, axes)
    return dropped(b, add(b, logarithm, top), axes, keepdims)
