"""ATen's lookups and writes at places that tensors of integers name: embeddings, caches of keys and values.

In: an `At` and the arguments of a node; an index is a tensor of whole numbers, held in single precision. Out: a term: a
row is picked by a product with ones at its place. Invariants: places counted from the end are those that PyTorch
takes them for; what PyTorch leaves open (one place written twice) is any number. These are rows of whole programs
(`from_torch`) alone: in a model that PyTorch runs, it looks up where a table lies and writes a cache in place.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

from mirage_nb.frontend.aten.borrowed import borrowed
from mirage_nb.frontend.aten.terms import At, Held, Left, Row, number
from mirage_nb.ir.ops import DimAttrs, OpKind
from mirage_nb.lang import lowering, masks, views
from mirage_nb.lang.builder import Builder, Term, Text, Value
from mirage_nb.lang.calls import call
from mirage_nb.lang.constants import Number


def _at(at: At, indices: Sequence[Any]) -> tuple[int, Value]:
    """The one axis that is indexed by a tensor, and its index."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        raise Left("an index of several axes together")
    axis, index = given[0]
    if isinstance(index, Held) and index.logical:
        raise Left("an index of truth values: how many elements there are depends on them")
    return axis, at.tensor(index)


def _from_start(b: Builder, index: Value, extent: int) -> Value:
    """Places of an axis, of which negative ones count from its end."""
    behind = b.tensor(masks.comparison(ast.Lt)(b, index, lowering.ZERO), "an index")
    return b.tensor(lowering.add(b, index, lowering.multiply(b, behind, number(extent))), "an index")


def _index(at: At, x: Any, indices: Sequence[Any]) -> Term:
    axis, index = _at(at, indices)
    value = at.tensor(x)
    return masks.take(at.b, value, _from_start(at.b, index, at.b.shape(value)[axis]), axis)


def _rows(b: Builder, x: Value, axis: int) -> Value:
    """The elements with an axis in front of all others, as a matrix."""
    shape = b.shape(x)
    order = (axis, *(d for d in range(len(shape)) if d != axis))
    matrix = shape[axis], math.prod(shape) // shape[axis]
    return views.reshaped(b, b.tensor(views.transpose(b, x, order), "rows"), matrix)


def _written(at: At, x: Any, axis: int, index: Value, rows: Value, *, added: bool = False) -> Term:
    """x with rows (a matrix, in the order of the index) at the places of an axis, or added to what is there."""
    b, value = at.b, at.tensor(x)
    shape = b.shape(value)
    flat = views.reshaped(b, index, (math.prod(b.shape(index)),))
    ones = b.tensor(masks.one_hot(b, _from_start(b, flat, shape[axis]), shape[axis]), "places")
    narrow = b.tensor(lowering.cast(b.dtype(value))(b, ones), "places")
    turned = b.tensor(views.transpose(b, narrow, (1, 0)), "places")
    moved = _back(b, b.emit(OpKind.MATMUL, turned, rows), shape, axis)
    if added:
        return lowering.add(b, value, moved)
    there = b.emit(OpKind.MAX, ones, attrs=DimAttrs(0)) if b.shape(ones)[0] > 1 else ones
    mask = views.reshaped(b, there, tuple(n if d == axis else 1 for d, n in enumerate(shape)))
    return masks.where(b, mask, moved, value)


def _back(b: Builder, rows: Value, shape: Sequence[int], axis: int) -> Value:
    """A matrix of rows as a tensor of this shape, the rows along an axis."""
    rest = [n for d, n in enumerate(shape) if d != axis]
    made = views.reshaped(b, rows, (shape[axis], *rest))
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    return b.tensor(views.transpose(b, made, tuple(order)), "rows")


def _index_copy(at: At, x: Any, axis: int, index: Any, source: Any) -> Term:
    along = at.axis(at.tensor(x), axis)
    return _written(at, x, along, at.tensor(index), _rows(at.b, at.tensor(source), along))


def _index_put(at: At, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Term:
    axis, index = _at(at, indices)
    b, shape = at.b, at.shape
    wanted = (*shape[:axis], *b.shape(index), *shape[axis + 1 :])
    count = len(b.shape(index))
    full = views.expand(b, at.tensor(values), wanted)
    order = (*range(axis, axis + count), *range(axis), *range(axis + count, len(wanted)))
    rest = math.prod(shape) // shape[axis]
    rows = views.reshaped(b, b.tensor(views.transpose(b, b.tensor(full, "values"), order), "values"),
                          (math.prod(b.shape(index)), rest))  # fmt: skip
    return _written(at, x, axis, index, rows, added=accumulate)


def _slice_scatter(
    at: At, x: Any, source: Any, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Term:
    """The parts of an axis around those that are written; between them, where it is written in steps."""
    b, new, whole = at.b, at.tensor(source), at.term(x)
    along = at.axis(new, axis)
    extent = at.shape[along]
    first, last, step = slice(start, end, step).indices(extent)
    if isinstance(whole, Number):
        return _placed(b, new, whole, along, first, step, extent)
    if step != 1:
        shape = tuple(Number.of(n if d == along else 1) for d, n in enumerate(b.shape(new)))
        ones = b.tensor_of(call(b, "full", shape, lowering.ONE), "places")
        there = _placed(b, ones, lowering.ZERO, along, first, step, extent)
        b.masks.add(there)
        return masks.where(b, there, _placed(b, new, lowering.ZERO, along, first, step, extent), whole)
    parts = [(0, first), (last, extent)]
    around = [views.sliced(b, whole, along, n, m - n) if m > n else None for n, m in parts]
    held = tuple(part for part in (around[0], new, around[1]) if part is not None)
    return new if len(held) == 1 else views.concatenated(b, held, None, along)


def _placed(b: Builder, x: Value, around: Number, along: int, first: int, step: int, extent: int) -> Value:
    """x at every so many places of an axis of this extent, and a number at all others."""
    shape = b.shape(x)
    if step > 1:
        apart = _padded(b, views.reshaped(b, x, (*shape[:along], 1, *shape[along:])), along, (0, step - 1), around)
        order = [*range(along), along + 1, along, *range(along + 2, len(shape) + 1)]
        turned = b.tensor(views.transpose(b, apart, tuple(order)), "a slice")
        x = views.reshaped(b, turned, (*shape[:along], shape[along] * step, *shape[along + 1 :]))
    return _padded(b, x, along, (first, extent - first - shape[along] * step), around)


def _padded(b: Builder, x: Value, along: int, amounts: tuple[int, int], around: Number) -> Value:
    every = (0, 0) * (len(b.shape(x)) - 1 - along) + amounts
    return b.tensor_of(call(b, "pad", x, tuple(map(Number.of, every)), Text("constant"), around), "a slice")


def _select_scatter(at: At, x: Any, source: Any, axis: int, index: int) -> Term:
    along = axis % len(at.shape)
    place = index % at.shape[along]
    shape = tuple(1 if d == along else n for d, n in enumerate(at.shape))
    new = views.reshaped(at.b, at.tensor(source), shape)
    return _slice_scatter(at, x, Held(new), along, place, place + 1)


def _empty(at: At, *_: Any, **__: Any) -> Term:
    """What PyTorch leaves open is any number."""
    if at.dtype is None:
        raise Left("an empty tensor that is not of floating-point numbers")
    return lowering.ZERO


ROWS: dict[str, Row] = {
    "aten.embedding.default": lambda at, table, index, *_, **__: borrowed("embedding")(at, index, table),
    "aten.index_select.default": borrowed("index_select"),
    "aten.gather.default": lambda at, x, axis, index, **_: borrowed("gather")(at, x, axis, index),
    "aten.index.Tensor": _index,
    "aten.index_copy.default": _index_copy,
    "aten.index_put.default": _index_put,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    **{f"aten.{name}": _empty for name in ("empty.memory_format", "empty_permuted.default", "empty_like.default")},
    "aten.view_as_real.default": lambda at, x: at.term(x),  # complex numbers are given as pairs
}
