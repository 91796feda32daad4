"""ATen's views: bookkeeping of axes.

In: an `At` and the arguments of a node. Out: a term. Invariant: no view computes anything; whether PyTorch shares
memory between a view and its base does not show, since programs are functional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage_nb.frontend.aten.terms import At, Held, Result, Row, Undefined, full, padded
from mirage_nb.lang import views
from mirage_nb.lang.builder import Infinity, Term
from mirage_nb.lang.constants import Number
from mirage_nb.lang.lowering import ZERO


def _moved(row: Row) -> Row:
    """A view of what is the same everywhere is the same."""

    def lower(at: At, x: Any, *given: Any, **named: Any) -> Result:
        same = isinstance(x, Held) and isinstance(x.term, Number | Infinity | Undefined)
        return x.term if same else row(at, x, *given, **named)

    return lower


def _reshape(at: At, x: Any, *_: Any, **__: Any) -> Term:
    """view, reshape, flatten, squeeze, unsqueeze: the elements in row-major order under the shape that PyTorch says."""
    return views.reshaped(at.b, at.tensor(x), at.shape)


def _permute(at: At, x: Any, axes: Sequence[int]) -> Term:
    value = at.tensor(x)
    return views.transpose(at.b, value, tuple(at.axis(value, a) for a in axes))


def _swap(at: At, x: Any, one: int = 0, other: int = 1) -> Term:
    value = at.tensor(x)
    axes = list(range(len(at.b.shape(value))))
    if len(axes) < 2:
        return value
    axes[one], axes[other] = axes[other], axes[one]
    return _permute(at, x, axes)


def _expand(at: At, x: Any, *_: Any, **__: Any) -> Term:
    return full(at.b, at.tensor(x), at.shape)


def _cat(at: At, tensors: Sequence[Any], axis: int = 0) -> Term:
    """One behind the other; zeros before and after all others are a pad."""
    along = axis % len(at.shape)
    zeros = [isinstance(x.term, Number) and x.term == ZERO and x.filled is not None for x in tensors]
    if all(zeros):
        return ZERO
    first, behind = zeros.index(False), len(zeros) - zeros[::-1].index(False)
    values = tuple(at.tensor(x) for x in tensors[first:behind])
    before, after = (sum(x.filled.shape[along] for x in part) for part in (tensors[:first], tensors[behind:]))
    return padded(at.b, at.b.tensor(views.concatenated(at.b, values, None, along), "cat"), along, (before, after))


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
    **{f"aten.{name}": _moved(_reshape) for name in SHOWN},
    "aten.slice.Tensor": _moved(_slice),
    "aten.select.int": _moved(_select),
    "aten.split.Tensor": _split,
    "aten.split.sizes": _split,
    "aten.split_with_sizes.default": _split,
    "aten.chunk.default": _chunk,
    "aten.unbind.int": _unbind,
    "aten.narrow.default": _moved(lambda at, x, axis, start, length: _slice(at, x, axis, start, start + length)),
    "aten.permute.default": _moved(_permute),
    "aten.transpose.int": _moved(_swap),
    "aten.t.default": _moved(_swap),
    "aten.numpy_T.default": _moved(lambda at, x: _permute(at, x, range(len(at.shape))[::-1])),
    "aten.mT.default": _moved(lambda at, x: _swap(at, x, -1, -2)),
    "aten.expand.default": _moved(_expand),
    "aten.expand_as.default": _moved(_expand),
    "aten.cat.default": _cat,
    "aten.concat.default": _cat,
}
