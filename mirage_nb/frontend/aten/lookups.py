"""ATen's lookups and writes at places that tensors of integers name: embeddings, caches of keys and values.

In: an `At` and the arguments of a node; an index is a tensor of whole numbers, held in single precision. Out: a term: a
row is picked by a product with ones at its place. Invariants: places counted from the end are those that PyTorch
takes them for; what PyTorch leaves open (other numbers written into one place) is any number, and equal ones that are
written twice are that number. These are rows of whole programs (`from_torch`) alone: in a model that PyTorch runs, it
looks up where a table lies and writes a cache in place.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mirage_nb.frontend.aten.borrowed import borrowed
from mirage_nb.frontend.aten.masks import ROWS as MASKS
from mirage_nb.frontend.aten.masks import put
from mirage_nb.frontend.aten.pointwise import ROWS as POINTWISE
from mirage_nb.frontend.aten.terms import At, Held, Left, Result, Row, narrowest, number
from mirage_nb.ir.dtypes import DType, TensorType
from mirage_nb.ir.ops import OpKind, Shape, broadcast
from mirage_nb.lang import elements, lowering, masks, reductions, views
from mirage_nb.lang.builder import Builder, Infinity, Term, Value
from mirage_nb.lang.calls import call
from mirage_nb.lang.constants import Number
from mirage_nb.lang.ranges import bounds


def _indexed(at: At, indices: Sequence[Any]) -> dict[int, Value]:
    """The axes that are indexed by tensors, and their indices."""
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    if any(isinstance(index, Held) and index.logical for index in given.values()):
        raise Left("an index of truth values: how many elements there are depends on them")
    return {axis: at.tensor(index) for axis, index in given.items()}


def _from_start(b: Builder, index: Value, extent: int) -> Value:
    """Places of an axis, of which negative ones count from its end."""
    within = bounds(b, index, -math.inf)
    if within is not None and within[0] >= 0:
        return index
    behind = b.tensor(masks.comparison(ast.Lt)(b, index, lowering.ZERO), "an index")
    return b.tensor(lowering.add(b, index, lowering.multiply(b, behind, number(extent))), "an index")


def _together(at: At, x: Any, indices: Sequence[Any]) -> tuple[Value, list[Value], int, tuple[int, ...]]:
    """x with the axes side by side that are indexed, which are in front of all others where they were not; the places;
    the first of these axes, and the order in which x has its axes now."""
    b, value, given = at.b, at.tensor(x), _indexed(at, indices)
    shape, (first, *_) = b.shape(value), given
    places = [_from_start(b, index, shape[axis]) for axis, index in given.items()]
    order = tuple(range(len(shape)))
    if [*given] != [*range(first, first + len(given))]:
        first, order = 0, (*given, *(axis for axis in order if axis not in given))
        value = b.tensor(views.transpose(b, value, order), "an index")
    return value, places, first, order


def _index(at: At, x: Any, indices: Sequence[Any]) -> Term:
    """Places of several axes together are their own axis where the first of these stands, or in front of all others
    where those are not side by side."""
    value, places, first, _ = _together(at, x, indices)
    if len(places) == 1:
        return masks.take(at.b, value, places[0], first)
    return elements.picked_together(at.b, value, places, first)


def _narrow(at: At, source: Any, axes: range, rank: int) -> Term | Infinity:
    """What is written, of so many axes: of extent 1 along these where it is the same at all places."""
    new = at.choice(source)
    if not isinstance(new, int):
        return new
    slim = narrowest(at.b, new)
    shape = (1,) * (rank - len(at.b.shape(slim))) + at.b.shape(slim)
    return views.reshaped(at.b, slim, shape) if all(shape[axis] == 1 for axis in axes) else new


def _written(b: Builder, x: Value, axis: int, index: Value, new: Term | Infinity) -> Value:
    """A tensor with another one, or what is the same everywhere, at the places of an axis."""
    distinct = Number.of(_is_distinct(b, index))
    return b.tensor_of(call(b, "_written", x, Number.of(axis), index, new, distinct), "places")


def _is_distinct(b: Builder, index: Value) -> bool:
    """Whether an index is known to name no place twice."""
    op = b.definition(index)
    while op is not None and op.kind in (OpKind.CAST, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.SLICE):
        index = Value(op.inputs[0])
        op = b.definition(index)
    return math.prod(b.shape(index)) == 1 or (op is not None and op.kind is OpKind.ARANGE)


def _index_copy(at: At, x: Any, axis: int, index: Any, source: Any) -> Term:
    value, along = at.tensor(x), axis % len(at.shape)
    new = _narrow(at, source, range(along, along + 1), len(at.shape))
    return _written(at.b, value, along, _from_start(at.b, at.tensor(index), at.shape[along]), new)


def _index_put(at: At, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Result:
    if any(isinstance(index, Held) and index.logical for index in indices):
        return put(at, x, indices, values, accumulate)
    b = at.b
    value, places, axis, order = _together(at, x, indices)
    shape, behind = b.shape(value), axis + len(places)
    common = broadcast(tuple(map(b.shape, places)))
    end, count = axis + len(common), math.prod(common)
    every = [b.tensor(views.expand(b, place, common), "an index") for place in places]
    index = views.reshaped(b, masks.place_of(b, every, shape[axis:behind]), (count,))
    flat = views.reshaped(b, value, (*shape[:axis], math.prod(shape[axis:behind]), *shape[behind:]))
    wanted = (*shape[:axis], *common, *shape[behind:])
    new = at.tensor(values) if accumulate else _narrow(at, values, range(axis, end), len(wanted))
    if isinstance(new, int):
        held = b.shape(new)
        if accumulate or len(held) != len(wanted) or math.prod(held[axis:end]) > 1:
            new, held = b.tensor(views.expand(b, new, wanted), "values"), wanted
        new = views.reshaped(b, new, (*held[:axis], math.prod(held[axis:end]), *held[end:]))
    if accumulate:
        made = b.tensor_of(call(b, "index_add", flat, Number.of(axis), index, new), "places")
    else:
        made = _written(b, flat, axis, index, new)
    return views.turned_back(b, views.reshaped(b, made, shape), order)


def _bags(
    at: At, table: Any, index: Any, offsets: Any, scaled: bool = False, mode: int = 0, sparse: bool = False,
    weights: Any = None, last: bool = False, padding: int = -1,
) -> Result:  # fmt: skip
    """Sums, means or maxima of looked up rows: a bag has those from its offset on to the next one's. What lies at the
    place of padding is in no bag."""
    return borrowed("_bags")(at, table, index, offsets, mode, weights, last, padding), None, None, None


def _cast(at: At, x: Any, *given: Any, **named: Any) -> Result:
    """Also to whole numbers, without what is behind the point."""
    wanted = named.get("dtype", given[0] if given else None)
    is_whole = wanted is None or not (wanted.is_floating_point or wanted.is_complex)
    if at.truth or at.dtype is not None or at.logical(x) is not None or not is_whole:
        return POINTWISE["aten.to.dtype"](at, x, *given, **named)
    return at.term(x) if lowering.is_whole(at.b, at.term(x)) else lowering.trunc(at.b, at.term(x))


def _last_bits(at: At, x: Any, y: int) -> Result:
    """Of whole numbers, or masks."""
    if at.logical(x) is not None:
        return MASKS["aten.bitwise_and.Scalar"](at, x, y)
    return masks.both(at.b, at.tensor(x), number(y))


def _shifted(at: At, x: Any, y: int) -> Term:
    return masks.shifted(lowering.floor_divide)(at.b, at.tensor(x), number(y))


def _scatter(at: At, x: Any, axis: int, index: Any, source: Any) -> Term:
    """Of other numbers that are written into one place PyTorch keeps any, of equal ones that one: their mean."""
    along, b = axis % len(at.shape), at.b
    new = _narrow(at, source, range(along, along + 1), len(at.shape))
    if isinstance(new, int) and b.shape(new)[along] > 1:
        return borrowed("scatter_reduce")(at, x, axis, index, source, "mean", include_self=False)
    return b.tensor_of(call(b, "scatter", at.tensor(x), Number.of(along), at.tensor(index), new), "scatter")


def _leading(b: Builder, x: Value, shape: Shape, but: int = -1) -> tuple[Value, list[tuple[int, Value]]]:
    """The first elements of every axis but one, and what is behind them, of the last axis first."""
    behind: list[tuple[int, Value]] = []
    for d, (extent, count) in enumerate(zip(b.shape(x), shape, strict=True)):
        if d != but and count < extent:
            behind.insert(0, (d, views.sliced(b, x, d, count, extent - count)))
            x = views.sliced(b, x, d, 0, count)
    return x, behind


def _beside(row: Callable[..., Term]) -> Callable[..., Term]:
    """Along other axes an index may be shorter than a tensor, which stays as it is there, and than what is written."""

    def cut(at: At, x: Any, axis: int, index: Any, *given: Any, **named: Any) -> Term:
        b, shape = at.b, at.b.shape(at.tensor(index))
        parts = [Held(_leading(b, at.tensor(one), shape)[0]) if isinstance(one, Held) else one for one in given]
        if isinstance(at.choice(x), Infinity):
            return row(at, x, axis, index, *parts, **named)
        value, behind = _leading(b, at.tensor(x), shape, axis % len(shape))
        made = row(replace(at, shape=b.shape(value)), Held(value), axis, index, *parts, **named)
        for d, rest in behind:
            made = views.concatenated(b, (b.tensor(made, "places"), rest), None, d)
        return made

    return cut


def _gather(at: At, x: Any, axis: int, index: Any, **_: Any) -> Term:
    """An index may be shorter along other axes."""
    shape = at.b.shape(at.tensor(index))
    held = Held(_leading(at.b, at.tensor(x), shape, axis % len(shape))[0])
    return borrowed("gather")(at, held, axis, index)


def _into(row: Callable[..., Term]) -> Row:
    """Into what is infinite everywhere, too: it stays so where nothing is written."""

    def written(at: At, x: Any, axis: int, index: Any, source: Any) -> Result:
        if not isinstance(whole := at.choice(x), Infinity):
            return row(at, x, axis, index, source)
        zeros = Held(lowering.ZERO, filled=TensorType(at.shape, at.dtype or DType.F32))
        made, ones = row(at, zeros, axis, index, source), _beside(borrowed("scatter"))(at, zeros, axis, index, 1)
        return masks.where(at.b, at.b.tensor(ones, "places"), at.b.tensor(made, "scatter"), whole)

    return written


def _reduced(
    at: At, x: Any, axis: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Term:  # fmt: skip
    """Into what is the infinity that an extreme begins with, too: where nothing comes it stays."""
    most = {"amax": -1, "amin": 1}.get(reduce)
    if not isinstance(whole := at.choice(x), Infinity) or whole.sign != most:
        return borrowed("scatter_reduce")(at, x, axis, index, source, reduce, include_self=include_self)
    b, order = at.b, [d for d in range(len(at.shape)) if d != axis % len(at.shape)] + [axis % len(at.shape)]
    places, new = (b.tensor(views.transpose(b, at.tensor(one), tuple(order)), "places") for one in (index, source))
    picked = b.tensor(masks.one_hot(b, places, at.shape[order[-1]]), "places")
    held = b.tensor(masks.where(b, picked, views.reshaped(b, new, (*b.shape(new), 1)), whole), "places")
    fold = reductions.reduction(OpKind.MAX) if reduce == "amax" else reductions.minimum
    made = b.tensor(fold(b, held, (len(order) - 1,), False), "places")
    return views.turned_back(b, made, order)


def _of_truth(row: Row) -> Row:
    """Of truth values, too: ones and zeros are looked up and written."""
    return lambda at, *given, **named: row(replace(at, truth=False), *given, **named)


NUMBERS: dict[str, Row] = {
    **dict.fromkeys(("aten._to_copy.default", "aten.to.dtype", "prims.convert_element_type.default"), _cast),
    "aten.copy.default": lambda at, x, source, *_: _cast(at, source),
    "aten.bitwise_and.Scalar": _last_bits,
    "aten.__rshift__.Scalar": _shifted,
}
"""What is computed of whole numbers, or makes them."""

_ROWS: dict[str, Row] = {
    **{f"aten._embedding_bag{only}.default": _bags for only in ("", "_forward_only")},
    "aten.embedding.default": lambda at, table, index, *_, **__: borrowed("embedding")(at, index, table),
    "aten.index_select.default": borrowed("index_select"),
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten.index_copy.default": _index_copy,
    "aten._unsafe_index.Tensor": _index,
    "aten.index_add.default": borrowed("index_add"),
    "aten.scatter_add.default": _beside(borrowed("scatter_add")),
    "aten.scatter_reduce.two": _beside(_reduced),
    "aten.scatter.value": _into(_beside(borrowed("scatter"))),
    "aten.scatter.src": _into(_beside(_scatter)),
    "aten.index_put.default": _index_put,
    "aten.view_as_real.default": lambda at, x: at.term(x),  # complex numbers are given as pairs
}
ROWS = {name: _of_truth(row) for name, row in _ROWS.items()}
