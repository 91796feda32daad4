"""ATen's orders: extremes with their places, sorted elements, the largest few.

In: an `At` and the arguments of a node. Out: terms, of values and of places. An element's rank is how many others stand
before it, of equal ones the first first. These are rows of whole programs alone: in a model that PyTorch runs, it sorts
faster than all pairs are compared.
"""

from __future__ import annotations

from typing import Any

from mirage_nb.frontend.aten.borrowed import borrowed, several
from mirage_nb.frontend.aten.terms import At, Result, Row


def _sort(at: At, x: Any, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Result:
    return several("_ordered")(at, x, dim, descending)


def _topk(at: At, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Result:
    return several("_ordered")(at, x, dim, largest, k)


def _kth(at: At, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Result:
    """The k-th smallest element of an axis, counted from 1, and its place."""
    return several("_kth")(at, x, k, dim)


def _found(
    at: At, bounds: Any, x: Any, *, right: bool = False, side: str | None = None, sorter: Any = None, **_: Any
) -> Result:
    """How many bounds, in order, stand before each element; right: or are equal to it."""
    return borrowed("_stand_before")(at, bounds, x, right or side == "right", sorter)


ROWS: dict[str, Row] = {
    "aten.searchsorted.Tensor": _found,
    "aten.searchsorted.Scalar": _found,
    "aten.bucketize.Tensor": lambda at, x, bounds, *, right=False, **_: _found(at, bounds, x, right=right),
    "aten.max.dim": several("max"),
    "aten.min.dim": several("min"),
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.topk.default": _topk,
    "aten.kthvalue.default": _kth,
    "aten.median.dim": lambda at, x, axis=-1, keepdim=False: several("_median")(at, x, axis),
    "aten.median.default": borrowed("_middle"),
}
