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
from mirage_nb.frontend.aten.terms import At, Held, Left, Result, Row, narrowest, number, padded
from mirage_nb.ir.dtypes import DType, TensorType
from mirage_nb.ir.ops import DimAttrs, OpKind, broadcast
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


def _rows(b: Builder, x: Value, axis: int) -> Value:
    """The elements with an axis in front of all others, as a matrix."""
    shape = b.shape(x)
    order = (axis, *(d for d in range(len(shape)) if d != axis))
    matrix = shape[axis], math.prod(shape) // shape[axis]
    return views.reshaped(b, b.tensor(views.transpose(b, x, order), "rows"), matrix)


def _written(b: Builder, value: Value, axis: int, index: Value, rows: Value, *, added: bool = False) -> Term:
    """A tensor with rows (a matrix, in the order of the index) at the places of an axis, or added to what is there."""
    ones = _ones(b, index, b.shape(value)[axis])
    narrow = b.tensor(lowering.cast(b.dtype(value))(b, ones), "places")
    turned = b.tensor(views.transpose(b, narrow, (1, 0)), "places")
    made = b.emit(OpKind.MATMUL, turned, rows)
    if not added and not _is_distinct(b, index):
        times = views.reshaped(b, reductions.folded(b, OpKind.SUM, narrow, (0,)), (b.shape(value)[axis], 1))
        made = b.tensor(lowering.divide(b, made, lowering.maximum(b, times, lowering.ONE)), "rows")
    moved = _back(b, made, b.shape(value), axis)
    return lowering.add(b, value, moved) if added else masks.where(b, _there(b, ones, value, axis), moved, value)


def _is_distinct(b: Builder, index: Value) -> bool:
    """Whether an index is known to name no place twice."""
    op = b.definition(index)
    while op is not None and op.kind in (OpKind.CAST, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.SLICE):
        index = Value(op.inputs[0])
        op = b.definition(index)
    return math.prod(b.shape(index)) == 1 or (op is not None and op.kind is OpKind.ARANGE)


def _ones(b: Builder, index: Value, extent: int) -> Value:
    """A row for every place of an index, of ones there and zeros elsewhere."""
    flat = views.reshaped(b, index, (math.prod(b.shape(index)),))
    return b.tensor(masks.one_hot(b, _from_start(b, flat, extent), extent), "places")


def _there(b: Builder, ones: Value, value: Value, axis: int) -> Value:
    """The mask of the places of an axis that some row has a one at."""
    hit = b.emit(OpKind.MAX, ones, attrs=DimAttrs(0)) if b.shape(ones)[0] > 1 else ones
    return views.reshaped(b, hit, tuple(n if d == axis else 1 for d, n in enumerate(b.shape(value))))


def _alike(at: At, source: Any, axes: range, rank: int) -> masks.Choice | None:
    """What is written, of extent 1 along these axes of so many, where it is the same at all places; else nothing."""
    new = at.choice(source)
    if not isinstance(new, int):
        return new
    slim = narrowest(at.b, new)
    shape = (1,) * (rank - len(at.b.shape(slim))) + at.b.shape(slim)
    return views.reshaped(at.b, slim, shape) if all(shape[axis] == 1 for axis in axes) else None


def _back(b: Builder, rows: Value, shape: Sequence[int], axis: int) -> Value:
    """A matrix of rows as a tensor of this shape, the rows along an axis."""
    rest = [n for d, n in enumerate(shape) if d != axis]
    made = views.reshaped(b, rows, (shape[axis], *rest))
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    return b.tensor(views.transpose(b, made, tuple(order)), "rows")


def _index_copy(at: At, x: Any, axis: int, index: Any, source: Any) -> Term:
    b, value, places = at.b, at.tensor(x), at.tensor(index)
    along, rank = at.axis(value, axis), len(at.shape)
    same = _alike(at, source, range(along, along + 1), rank) if math.prod(b.shape(places)) > 1 else None
    if same is not None:
        return masks.where(b, _there(b, _ones(b, places, at.shape[along]), value, along), same, value)
    return _written(b, value, along, places, _rows(b, at.tensor(source), along))


def _index_put(at: At, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Result:
    if any(isinstance(index, Held) and index.logical for index in indices):
        return put(at, x, indices, values, accumulate)
    b = at.b
    value, places, axis, order = _together(at, x, indices)
    shape, behind = b.shape(value), axis + len(places)
    common = broadcast(tuple(map(b.shape, places)))
    count, extent, lead = len(common), math.prod(shape[axis:behind]), shape[axis:behind]
    index = masks.place_of(b, [b.tensor(views.expand(b, place, common), "an index") for place in places], lead)
    flat = views.reshaped(b, value, (*shape[:axis], extent, *shape[behind:]))
    wanted = (*shape[:axis], *common, *shape[behind:])
    same = None if accumulate else _alike(at, values, range(axis, axis + count), len(wanted))
    if same is not None and math.prod(common) > 1:
        if isinstance(same, int):
            held = b.shape(same)
            same = views.reshaped(b, same, (*held[:axis], 1, *held[axis + count :]))
        chosen = masks.where(b, _there(b, _ones(b, index, extent), flat, axis), same, flat)
        return views.turned_back(b, views.reshaped(b, b.tensor(chosen, "places"), shape), order)
    new = b.tensor(views.expand(b, at.tensor(values), wanted), "values")
    turned = (*range(axis, axis + count), *range(axis), *range(axis + count, len(wanted)))
    rows = views.reshaped(b, b.tensor(views.transpose(b, new, turned), "values"),
                          (math.prod(common), math.prod(shape) // extent))  # fmt: skip
    made = views.reshaped(b, b.tensor(_written(b, flat, axis, index, rows, added=accumulate), "places"), shape)
    return views.turned_back(b, made, order)


def _bags(
    at: At, table: Any, index: Any, offsets: Any, scaled: bool = False, mode: int = 0, sparse: bool = False,
    weights: Any = None, last: bool = False, padding: int = -1,
) -> Result:  # fmt: skip
    """Sums, means or maxima of looked up rows: a bag has those from its offset on to the next one's. What lies at the
    place of padding is in no bag."""
    b = at.b
    rows, starts = b.tensor(borrowed("embedding")(at, index, table), "bags"), at.tensor(offsets)
    if last:  # an offset behind the last bag
        starts = views.sliced(b, starts, 0, 0, b.shape(starts)[0] - 1)
    (bags,), (count, _) = b.shape(starts), b.shape(rows)
    begun = masks.comparison(ast.LtE)(b, views.reshaped(b, starts, (bags, 1)), masks.arange(b, count, None, 1))
    inside = b.tensor(lowering.cast(b.dtype(rows))(b, begun), "bags")
    if bags > 1:
        behind = padded(b, views.sliced(b, inside, 0, 1, bags - 1), 0, (0, 1))
        inside = b.tensor(lowering.subtract(b, inside, behind), "bags")
    if padding != -1:
        kept = masks.comparison(ast.NotEq)(b, views.reshaped(b, at.tensor(index), (count,)), number(padding))
        inside = b.tensor(lowering.multiply(b, inside, b.tensor(lowering.cast(b.dtype(rows))(b, kept), "bags")), "bags")
    if weights is not None:
        rows = b.tensor(lowering.multiply(b, rows, views.reshaped(b, at.tensor(weights), (count, 1))), "bags")
    if mode == 2:
        return _largest(b, inside, rows), None, None, None
    made = b.emit(OpKind.MATMUL, inside, rows)
    if mode == 1:
        sizes = reductions.folded(b, OpKind.SUM, inside, (1,))
        most = lowering.maximum(b, views.reshaped(b, sizes, (bags, 1)), lowering.ONE)
        made = b.tensor(lowering.divide(b, made, most), "bags")
    return made, None, None, None


def _largest(b: Builder, inside: Value, rows: Value) -> Term:
    """The maxima of rows over those in each bag, zero in empty bags."""
    (bags, count), width = b.shape(inside), b.shape(rows)[-1]
    mask = views.reshaped(b, b.tensor(masks.comparison(ast.Gt)(b, inside, lowering.ZERO), "bags"), (bags, count, 1))
    held = b.tensor(masks.where(b, mask, rows, Infinity(-1)), "bags")
    made = views.reshaped(b, reductions.folded(b, OpKind.MAX, held, (1,)), (bags, width))
    any_there = views.reshaped(b, reductions.folded(b, OpKind.MAX, mask, (1,)), (bags, 1))
    return masks.where(b, any_there, made, lowering.ZERO)


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
    along, rank = axis % len(at.shape), len(at.shape)
    same = _alike(at, source, range(along, along + 1), rank)
    if same is not None and at.b.shape(at.tensor(index))[along] > 1:
        made = call(at.b, "scatter", at.tensor(x), Number.of(along), at.tensor(index), same)
        return at.b.tensor_of(made, "scatter")
    alone = at.b.shape(at.tensor(index))[along] == 1
    return borrowed("scatter_reduce")(at, x, axis, index, source, "sum" if alone else "mean", include_self=False)


def _beside(row: Callable[..., Term]) -> Callable[..., Term]:
    """Along other axes an index may be shorter than a tensor, which stays as it is there, and than what is written."""

    def cut(at: At, x: Any, axis: int, index: Any, *given: Any, **named: Any) -> Term:
        b, shape = at.b, at.b.shape(at.tensor(index))
        parts = [Held(_leading(b, at.tensor(one), shape)) if isinstance(one, Held) else one for one in given]
        if isinstance(at.choice(x), Infinity):
            return row(at, x, axis, index, *parts, **named)
        value, rest = at.tensor(x), list[tuple[int, Value]]()
        for d, extent in enumerate(b.shape(value)):
            if d != axis % len(shape) and shape[d] < extent:
                rest.append((d, views.sliced(b, value, d, shape[d], extent - shape[d])))
                value = views.sliced(b, value, d, 0, shape[d])
        made = row(replace(at, shape=b.shape(value)), Held(value), axis, index, *parts, **named)
        for d, behind in reversed(rest):
            made = views.concatenated(b, (b.tensor(made, "places"), behind), None, d)
        return made

    return cut


def _leading(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    """The first elements of every axis."""
    for d, extent in enumerate(shape):
        x = views.sliced(b, x, d, 0, extent) if extent < b.shape(x)[d] else x
    return x


def _gather(at: At, x: Any, axis: int, index: Any, **_: Any) -> Term:
    """An index may be shorter along other axes."""
    b, value, shape = at.b, at.tensor(x), at.b.shape(at.tensor(index))
    along = axis % len(shape)
    held = Held(_leading(b, value, [b.shape(value)[d] if d == along else n for d, n in enumerate(shape)]))
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
