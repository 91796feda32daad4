"""ATen's views: bookkeeping of axes.

In: an `At` and the arguments of a node. Out: a term. Invariant: no view computes anything; whether PyTorch shares
memory between a view and its base does not show, since programs are functional.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from mirage_nb.frontend.aten.terms import At, Row, full
from mirage_nb.ir.ops import DimAttrs, OpKind, RepeatAttrs
from mirage_nb.lang import lowering
from mirage_nb.lang.builder import Term
from mirage_nb.lang.constants import Number


def _reshape(at: At, x: Any, *_: Any, **__: Any) -> Term:
    """view, reshape, flatten, squeeze, unsqueeze: the elements in row-major order under the shape that PyTorch says."""
    term = at.term(x)
    return term if isinstance(term, Number) else lowering.reshaped(at.b, term, at.shape)


def _permute(at: At, x: Any, axes: Sequence[int]) -> Term:
    term = at.term(x)
    return term if isinstance(term, Number) else lowering.transpose(at.b, term, tuple(at.axis(term, a) for a in axes))


def _swap(at: At, x: Any, one: int = 0, other: int = 1) -> Term:
    term = at.term(x)
    if isinstance(term, Number):
        return term
    axes = list(range(len(at.b.shape(term))))
    if len(axes) < 2:
        return term
    axes[one], axes[other] = axes[other], axes[one]
    return lowering.transpose(at.b, term, tuple(at.axis(term, a) for a in axes))


def _expand(at: At, x: Any, *_: Any, **__: Any) -> Term:
    term = at.term(x)
    return term if isinstance(term, Number) else full(at.b, term, at.shape)


def _repeat(at: At, x: Any, times: Sequence[int]) -> Term:
    value = at.tensor(x)
    held = at.b.shape(value)
    value = lowering.reshaped(at.b, value, (1,) * (len(times) - len(held)) + held)
    for axis, count in enumerate(times):
        if count != 1:
            value = at.b.emit(OpKind.REPEAT, value, attrs=RepeatAttrs(axis, count))
    return value


def _cat(at: At, tensors: Sequence[Any], axis: int = 0) -> Term:
    values = [at.tensor(x) for x in tensors]
    along = DimAttrs(at.axis(values[0], axis))
    return reduce(lambda x, y: at.b.emit(OpKind.CONCAT, x, y, attrs=along), values)


def _stack(at: At, tensors: Sequence[Any], axis: int = 0) -> Term:
    where = axis + len(at.shape) if axis < 0 else axis
    values = []
    for x in tensors:
        value = full(at.b, at.tensor(x), (*at.shape[:where], *at.shape[where + 1 :]))
        held = at.b.shape(value)
        values.append(lowering.reshaped(at.b, value, (*held[:where], 1, *held[where:])))
    return reduce(lambda x, y: at.b.emit(OpKind.CONCAT, x, y, attrs=DimAttrs(where)), values)


ROWS: dict[str, Row] = {
    "aten.view.default": _reshape,
    "aten._unsafe_view.default": _reshape,
    "aten.reshape.default": _reshape,
    "aten.flatten.using_ints": _reshape,
    "aten.unflatten.int": _reshape,
    "aten.unsqueeze.default": _reshape,
    "aten.squeeze.default": _reshape,
    "aten.squeeze.dim": _reshape,
    "aten.squeeze.dims": _reshape,
    "aten.view_as.default": _reshape,
    "aten.permute.default": _permute,
    "aten.transpose.int": _swap,
    "aten.t.default": _swap,
    "aten.numpy_T.default": lambda at, x: _permute(at, x, range(len(at.shape))[::-1]),
    "aten.mT.default": lambda at, x: _swap(at, x, -1, -2),
    "aten.expand.default": _expand,
    "aten.expand_as.default": _expand,
    "aten.repeat.default": _repeat,
    "aten.cat.default": _cat,
    "aten.concat.default": _cat,
    "aten.stack.default": _stack,
}
