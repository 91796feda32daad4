"""ATen's reductions: sums, means, extremes, variances, norms of vectors.

In: an `At` and the arguments of a node. Out: a term. Invariant: a reduction over all axes leaves one axis of
extent 1, since programs have no tensor without axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mirage_nb.frontend.aten.borrowed import borrowed
from mirage_nb.frontend.aten.terms import At, Held, Left, Result, Row
from mirage_nb.ir.ops import OpKind
from mirage_nb.lang import lowering, reductions, views
from mirage_nb.lang.builder import Term, Value

Axes = int | Sequence[int] | None
Fold = Callable[..., Term]
"""A row with one result."""


def _shaped(at: At, x: Term) -> Term:
    """Without the axes that PyTorch says are gone."""
    return views.reshaped(at.b, at.b.tensor(x, "a reduction"), at.shape)


def _named(lower: Callable[..., Term]) -> Fold:
    """The reduction of the language that this is."""

    def row(at: At, x: Any, axes: Axes = None, keepdim: bool = False, **_: Any) -> Term:
        value = at.computed(at.tensor(x))
        return _shaped(at, lower(at.b, value, at.axes(value, axes), True))

    return row


_sum, _max = _named(reductions.reduction(OpKind.SUM)), _named(reductions.reduction(OpKind.MAX))
_mean, _min, _logsumexp = _named(reductions.mean), _named(reductions.minimum), _named(reductions.logsumexp)


def _with_indices(row: Fold) -> Row:
    """What also returns indices, which have no term."""
    return lambda at, x, axis, keepdim=False: (row(at, x, axis, keepdim), None)


def variance(at: At, x: Value, axes: tuple[int, ...], correction: float | None) -> Term:
    """The variance over axes, which stay; by default divided by one less than there are elements."""
    less = 1 if correction is None else int(correction)
    if less != (1 if correction is None else correction) or less >= math.prod(at.b.shape(x)[axis] for axis in axes):
        raise Left("a variance of too few elements")
    return reductions.variance(at.b, x, axes, less, True)


def _var(at: At, x: Any, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False) -> Term:
    value = at.tensor(x)
    return _shaped(at, variance(at, value, at.axes(value, axes), correction))


def _var_mean(at: At, x: Any, axes: Axes = None, **kept: Any) -> Result:
    middle = _mean(at, x, axes)
    return _var(at, x, axes, **kept), middle


def _vector_norm(at: At, x: Any, order: float | None = 2, axes: Axes = None, keepdim: bool = False, **_: Any) -> Term:
    value = at.computed(at.tensor(x))
    return borrowed("norm")(at, Held(value), order, at.axes(value, axes), keepdim)


ROWS: dict[str, Row] = {
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.prod.default": _named(reductions.product),
    "aten.prod.dim_int": _named(reductions.product),
    "aten.logsumexp.default": _logsumexp,
    "aten.amax.default": _max,
    "aten.max.default": _max,
    "aten.max.dim": _with_indices(_max),
    "aten.amin.default": _min,
    "aten.min.default": _min,
    "aten.min.dim": _with_indices(_min),
    "aten.var.correction": _var,
    "aten.var.dim": lambda at, x, axes, unbiased=True, keepdim=False: (
        _var(at, x, axes, correction=float(unbiased), keepdim=keepdim)
    ),
    "aten.var_mean.correction": _var_mean,
    "aten.std.correction": lambda at, x, axes=None, **kept: lowering.sqrt(at.b, _var(at, x, axes, **kept)),
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten.norm.ScalarOpt_dim": _vector_norm,
    "aten.norm.Scalar": _vector_norm,
}
