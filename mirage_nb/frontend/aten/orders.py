"""ATen's orders: extremes with their places, sorted elements, the largest few.

In: an `At` and the arguments of a node. Out: terms, of values and of places. An element's rank is how many others stand
before it, of equal ones the first first. These are rows of whole programs alone: in a model that PyTorch runs, it sorts
faster than all pairs are compared.
"""

from __future__ import annotations

import ast
import math
from typing import Any

from mirage_nb.frontend.aten.borrowed import borrowed
from mirage_nb.frontend.aten.folds import ROWS as FOLDS
from mirage_nb.frontend.aten.terms import At, Held, Left, Result, Row
from mirage_nb.ir.dtypes import DType
from mirage_nb.ir.ops import OpKind
from mirage_nb.lang import lowering, masks, reductions, views
from mirage_nb.lang.builder import Value
from mirage_nb.lang.constants import Number

MOST = 1024
"""Elements of an axis of which all pairs are compared."""


def _with_places(name: str, places: str) -> Row:
    """An extreme along an axis, and where it is."""

    def row(at: At, x: Any, axis: int, keepdim: bool = False) -> Result:
        first, *_ = _several(FOLDS[name](at, x, axis, keepdim))
        return first, borrowed(places)(at, x, axis, keepdim)

    return row


def _several(made: Result) -> tuple[Any, ...]:
    assert isinstance(made, tuple)
    return made


def _ordered(at: At, x: Any, axis: int, descending: bool, count: int | None = None) -> tuple[Value, Value]:
    """The first elements of an axis in order, and their places."""
    b, value = at.b, at.tensor(x)
    along = at.axis(value, axis)
    extent = b.shape(value)[along]
    if extent > MOST:
        raise Left(f"an order of {extent} elements")
    order = (*(d for d in range(len(b.shape(value))) if d != along), along)
    rows = b.tensor(views.transpose(b, value, order), "an order")
    lead = b.shape(rows)[:-1]
    here, there = views.reshaped(b, rows, (*lead, extent, 1)), views.reshaped(b, rows, (*lead, 1, extent))
    places = b.tensor(masks.arange(b, extent), "an order")
    place = views.reshaped(b, places, (extent, 1))

    def compared(kind: type[ast.cmpop], one: Value, other: Value) -> Value:
        return b.tensor(masks.comparison(kind)(b, one, other), "an order")

    same = masks.both(b, compared(ast.Eq, there, here), compared(ast.Lt, places, place))
    before = masks.either(b, compared(ast.Gt if descending else ast.Lt, there, here), same)
    counted = b.tensor(lowering.cast(DType.F32)(b, b.tensor(before, "an order")), "an order")
    rank = views.reshaped(b, reductions.folded(b, OpKind.SUM, counted, (len(lead) + 1,)), (*lead, extent))
    picked = b.tensor(masks.one_hot(b, rank, extent if count is None else count), "an order")

    def at_rank(held: Value) -> Value:
        chosen = b.tensor(masks.where(b, picked, held, lowering.ZERO), "an order")
        total = views.reshaped(b, reductions.folded(b, OpKind.SUM, chosen, (len(lead),)), (*lead, b.shape(chosen)[-1]))
        return b.tensor(views.turned_back(b, total, order), "an order")

    return at_rank(here), at_rank(place)


def _sort(at: At, x: Any, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Result:
    return _ordered(at, x, dim, descending)


def _topk(at: At, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Result:
    return _ordered(at, x, dim, largest, k)


def _chosen(at: At, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Result:
    """The k-th smallest element of an axis, counted from 1, and its place."""
    return tuple(
        views.reshaped(at.b, views.sliced(at.b, made, at.axis(made, dim), k - 1, 1), at.shape)
        for made in _ordered(at, x, dim, False, k)
    )


def _median(at: At, x: Any, dim: int = -1, keepdim: bool = False) -> Result:
    value = at.tensor(x)
    return _chosen(at, x, (at.b.shape(value)[at.axis(value, dim)] + 1) // 2, dim)


def _middle(at: At, x: Any) -> Result:
    """The median of all elements."""
    value = at.tensor(x)
    flat = Held(views.reshaped(at.b, value, (math.prod(at.b.shape(value)),)))
    made: Value = _several(_median(at, flat))[0]
    return made


def _found(
    at: At, bounds: Any, x: Any, *, right: bool = False, side: str | None = None, sorter: Any = None, **_: Any
) -> Result:
    """How many bounds, in order, stand before each element; right: or are equal to it."""
    b, held = at.b, at.tensor(bounds)
    if sorter is not None:
        held = b.tensor(borrowed("gather")(at, bounds, -1, sorter), "an order")
    value, count = at.term(x), b.shape(held)[-1]
    if count > MOST:
        raise Left(f"an order of {count} elements")
    if not isinstance(value, Number):
        value = views.reshaped(b, value, (*b.shape(value), 1))
    if len(b.shape(held)) > 1:
        held = views.reshaped(b, held, (*b.shape(held)[:-1], 1, count))
    behind = masks.comparison(ast.Gt if right or side == "right" else ast.GtE)(b, held, value)
    before = b.tensor(lowering.cast(DType.F32)(b, masks.opposite(b, b.tensor(behind, "an order"))), "an order")
    return views.reshaped(b, reductions.folded(b, OpKind.SUM, before, (len(b.shape(before)) - 1,)), at.shape)


ROWS: dict[str, Row] = {
    "aten.searchsorted.Tensor": _found,
    "aten.searchsorted.Scalar": _found,
    "aten.bucketize.Tensor": lambda at, x, bounds, *, right=False, **_: _found(at, bounds, x, right=right),
    "aten.max.dim": _with_places("aten.max.dim", "argmax"),
    "aten.min.dim": _with_places("aten.min.dim", "argmin"),
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.topk.default": _topk,
    "aten.kthvalue.default": _chosen,
    "aten.median.dim": _median,
    "aten.median.default": _middle,
}
