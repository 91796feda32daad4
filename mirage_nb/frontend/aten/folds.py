"""ATen's reductions: sums, means, extremes, variances, norms of vectors.

In: an `At` and the arguments of a node. Out: a term. Invariant: a reduction over all axes leaves one axis of
extent 1, since programs have no tensor without axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from mirage_nb.frontend.aten.pointwise import apply
from mirage_nb.frontend.aten.terms import At, Left, Result, Row
from mirage_nb.ir.ops import OpKind
from mirage_nb.lang import lowering
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.constants import Number

Axes = int | Sequence[int] | None
Fold = Callable[..., Term]
"""A row with one result."""


def folded(b: Builder, kind: OpKind, x: Value, axes: tuple[int, ...]) -> Value:
    """The reduction over axes, which stay with extent 1."""
    made = lowering.reduction(kind)(b, x, axes, True)
    assert not isinstance(made, Number)  # a reduction of a tensor
    return made


def mean(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    """The mean over axes, which stay with extent 1."""
    made = lowering.mean(b, x, axes, True)
    assert not isinstance(made, Number)  # a reduction of a tensor
    return made


def variance(b: Builder, x: Value, axes: tuple[int, ...], correction: float | None) -> tuple[Value, Value]:
    """The variance and the mean over axes; by default divided by one less than there are elements."""
    count = math.prod(b.shape(x)[axis] for axis in axes)
    left = Fraction(count) - Fraction(1 if correction is None else correction)
    if left <= 0:
        raise Left("a variance of too few elements")
    middle = mean(b, x, axes)
    spread = mean(b, b.tensor(lowering.square(b, lowering.subtract(b, x, middle)), "variance"), axes)
    scaled = lowering.scale(b, spread, Number.of(count / left))
    return b.tensor(scaled, "variance"), middle


def _shaped(at: At, x: Value) -> Value:
    """Without the axes that PyTorch says are gone."""
    return lowering.reshaped(at.b, x, at.shape)


def _fold(kind: OpKind) -> Fold:
    def lower(at: At, x: Any, axes: Axes = None, keepdim: bool = False, **_: Any) -> Term:
        value = at.tensor(x)
        return _shaped(at, folded(at.b, kind, value, at.axes(value, axes)))

    return lower


def _mean(at: At, x: Any, axes: Axes = None, keepdim: bool = False, **_: Any) -> Term:
    value = at.tensor(x)
    return _shaped(at, mean(at.b, value, at.axes(value, axes)))


def _minimum(at: At, x: Any, axes: Axes = None, keepdim: bool = False) -> Term:
    negative = at.b.tensor(lowering.negate(at.b, at.tensor(x)), "minimum")
    most = folded(at.b, OpKind.MAX, negative, at.axes(negative, axes))
    return lowering.negate(at.b, _shaped(at, most))


def _with_indices(row: Fold) -> Row:
    """What also returns indices, which have no term."""
    return lambda at, x, axis, keepdim=False: (row(at, x, axis, keepdim), None)


def _var(at: At, x: Any, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False) -> Term:
    value = at.tensor(x)
    return _shaped(at, variance(at.b, value, at.axes(value, axes), correction)[0])


def _var_mean(at: At, x: Any, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False) -> Result:
    value = at.tensor(x)
    spread, middle = variance(at.b, value, at.axes(value, axes), correction)
    return _shaped(at, spread), _shaped(at, middle)


def _std(at: At, x: Any, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False) -> Term:
    return lowering.sqrt(at.b, _var(at, x, axes, correction=correction))


def _vector_norm(at: At, x: Any, order: float = 2, axes: Axes = None, keepdim: bool = False, **_: Any) -> Term:
    value = at.tensor(x)
    along = at.axes(value, axes)
    match order:
        case 2:
            squared = at.b.tensor(lowering.square(at.b, value), "norm")
            return lowering.sqrt(at.b, _shaped(at, folded(at.b, OpKind.SUM, squared, along)))
        case 1:
            return _shaped(at, folded(at.b, OpKind.SUM, apply(at.b, value, "abs", "abs(x)"), along))
        case _:
            raise Left(f"a norm of order {order}")


def _frobenius(at: At, x: Any, order: float | None = 2, axes: Axes = None, keepdim: bool = False) -> Term:
    return _vector_norm(at, x, 2 if order is None else order, axes, keepdim)


ROWS: dict[str, Row] = {
    "aten.sum.default": _fold(OpKind.SUM),
    "aten.sum.dim_IntList": _fold(OpKind.SUM),
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.amax.default": _fold(OpKind.MAX),
    "aten.max.default": _fold(OpKind.MAX),
    "aten.max.dim": _with_indices(_fold(OpKind.MAX)),
    "aten.amin.default": _minimum,
    "aten.min.default": _minimum,
    "aten.min.dim": _with_indices(_minimum),
    "aten.var.correction": _var,
    "aten.var_mean.correction": _var_mean,
    "aten.std.correction": _std,
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten.norm.ScalarOpt_dim": _frobenius,
    "aten.norm.Scalar": _frobenius,
}
