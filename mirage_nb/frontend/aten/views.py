"""ATen's views: bookkeeping of axes.

In: an `At` and the arguments of a node. Out: a term. Invariant: no view computes anything; whether PyTorch shares
memory between a view and its base does not show, since programs are functional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage_nb.frontend.aten.terms import At, Result, Row, full
from mirage_nb.lang import views
from mirage_nb.lang.builder import Term
from mirage_nb.lang.constants import Number


def _reshape(at: At, x: Any, *_: Any, **__: Any) -> Term:
    """view, reshape, flatten, squeeze, unsqueeze: the elements in row-major order under the shape that PyTorch says."""
    term = at.term(x)
    return term if isinstance(term, Number) else views.reshaped(at.b, term, at.shape)


def _permute(at: At, x: Any, axes: Sequence[int]) -> Term:
    term = at.term(x)
    return term if isinstance(term, Number) else views.transpose(at.b, term, tuple(at.axis(term, a) for a in axes))


def _swap(at: At, x: Any, one: int = 0, other: int = 1) -> Term:
    term = at.term(x)
    if isinstance(term, Number):
        return term
    axes = list(range(len(at.b.shape(term))))
    if len(axes) < 2:
        return term
    axes[one], axes[other] = axes[other], axes[one]
    return views.transpose(at.b, term, tuple(at.axis(term, a) for a in axes))


def _expand(at: At, x: Any, *_: Any, **__: Any) -> Term:
    term = at.term(x)
    return term if isinstance(term, Number) else full(at.b, term, at.shape)


def _cat(at: At, tensors: Sequence[Any], axis: int = 0) -> Term:
    values = tuple(at.tensor(x) for x in tensors)
    return views.concatenated(at.b, values, None, at.axis(values[0], axis))


def _slice(at: At, x: Any, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Term:
    value = at.tensor(x)
    along = at.axis(value, axis)
    numbers = range(*slice(start, end, step).indices(at.b.shape(value)[along]))
    return views.sliced(at.b, value, along, numbers[0], len(numbers), step)


def _select(at: At, x: Any, axis: int, index: int) -> Term:
    value = at.tensor(x)
    along = at.axis(value, axis)
    chosen = views.sliced(at.b, value, along, index % at.b.shape(value)[along], 1)
    return views.reshaped(at.b, chosen, at.shape)


def _split(at: At, x: Any, sizes: int | Sequence[int], axis: int = 0) -> Result:
    """Parts of one extent, the last one perhaps smaller, or of these extents."""
    value = at.tensor(x)
    along = at.axis(value, axis)
    whole = at.b.shape(value)[along]
    extents = [min(sizes, whole - at_) for at_ in range(0, whole, sizes)] if isinstance(sizes, int) else list(sizes)
    return _parts(views.split(at.b, value, tuple(extents), along))


def _chunk(at: At, x: Any, parts: int, axis: int = 0) -> Result:
    value = at.tensor(x)
    return _split(at, x, -(-at.b.shape(value)[at.axis(value, axis)] // parts), axis)


def _parts(made: Any) -> Result:
    return made if isinstance(made, tuple) else (made,)


def _unbind(at: At, x: Any, axis: int = 0) -> Result:
    value = at.tensor(x)
    along = at.axis(value, axis)
    return tuple(_select(at, x, along, index) for index in range(at.b.shape(value)[along]))


SHOWN = (
    "view.default", "_unsafe_view.default", "reshape.default", "view_as.default", "flatten.using_ints",
    "unflatten.int", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims",
)  # fmt: skip
"""The same elements in the same order."""

ROWS: dict[str, Row] = {
    **{f"aten.{name}": _reshape for name in SHOWN},
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.split.Tensor": _split,
    "aten.split.sizes": _split,
    "aten.split_with_sizes.default": _split,
    "aten.chunk.default": _chunk,
    "aten.unbind.int": _unbind,
    "aten.narrow.default": lambda at, x, axis, start, length: _slice(at, x, axis, start, start + length),
    "aten.permute.default": _permute,
    "aten.transpose.int": _swap,
    "aten.t.default": _swap,
    "aten.numpy_T.default": lambda at, x: _permute(at, x, range(len(at.shape))[::-1]),
    "aten.mT.default": lambda at, x: _swap(at, x, -1, -2),
    "aten.expand.default": _expand,
    "aten.expand_as.default": _expand,
    "aten.cat.default": _cat,
    "aten.concat.default": _cat,
}
