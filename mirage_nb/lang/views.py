"""Views: what moves, copies and picks elements becomes.

In: tensors, axes and extents of the notation. Out: terms. Invariant: views that change nothing vanish, and a view of
a view of the same kind is one view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mirage_nb.errors import ShapeError
from mirage_nb.ir.ops import (
    DimAttrs,
    OpKind,
    PadAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    Shape,
    SliceAttrs,
    TransposeAttrs,
    show_shape,
)
from mirage_nb.lang import constants
from mirage_nb.lang.builder import Builder, Result, Scalar, Term, Value
from mirage_nb.lang.constants import Number

SCALAR: Shape = (1,)
"""A scalar is a tensor of one element."""


def reshaped(b: Builder, x: Value, shape: Shape) -> Value:
    """The same elements in row-major order under another shape; a reshape of a reshape is one reshape."""
    op = b.definition(x)
    if op is not None and op.kind is OpKind.RESHAPE:
        x = Value(op.inputs[0])
    return x if shape == b.shape(x) else b.emit(OpKind.RESHAPE, x, attrs=ReshapeAttrs(shape))


def shaped(b: Builder, x: Value, shape: Shape) -> Value:
    """The same; without any extent it is a scalar."""
    return reshaped(b, x, shape) if shape else Value(Scalar(reshaped(b, x, SCALAR)))


def reshape(b: Builder, x: Value, extents: tuple[int, ...]) -> Term:
    """reshape(x, d0, d1, ...); one extent may be -1 and follows from the others."""
    shape, elements = list(extents), math.prod(b.shape(x))
    if extents.count(-1) == 1:
        others = math.prod(extent for extent in extents if extent != -1)
        if others > 0 and elements % others == 0:
            shape[extents.index(-1)] = elements // others
    if any(extent < 1 for extent in shape):
        raise ShapeError(
            f"{show_shape(b.shape(x))} cannot become {show_shape(extents)}",
            hint="extents are positive; one of them may be -1 if the others divide the number of elements",
        )
    if math.prod(shape) != elements:
        raise ShapeError(
            f"{show_shape(b.shape(x))} has {elements} elements, {show_shape(tuple(shape))} has not",
            hint="the product of the extents stays the same",
        )
    return shaped(b, x, tuple(shape))


def turned_back(b: Builder, x: Value, order: Sequence[int]) -> Term:
    """x with every dimension where it was before a transpose by this order."""
    return transpose(b, x, tuple(order.index(d) for d in range(len(order))))


def transpose(b: Builder, x: Value, axes: tuple[int, ...]) -> Term:
    """Dimension i of the result is dimension axes[i] of x; without axes the last two are swapped."""
    rank = len(b.shape(x))
    if not axes:
        if rank < 2:
            hint = "v[:, None] is a column, v[None] a row; v @ w is the sum of their products"
            raise ShapeError(f"{show_shape(b.shape(x))} has no two dimensions to swap", hint=hint)
        axes = (*range(rank - 2), rank - 1, rank - 2)
    if sorted(axes) != list(range(rank)):
        raise ShapeError(
            f"transpose: {', '.join(map(str, axes))} does not name each dimension of {show_shape(b.shape(x))} once",
            hint=f"for example transpose(x, {', '.join(map(str, reversed(range(rank))))})",
        )
    op = b.definition(x)
    if op is not None and isinstance(op.attrs, TransposeAttrs):
        x, axes = Value(op.inputs[0]), tuple(op.attrs.perm[axis] for axis in axes)
    if axes == tuple(range(rank)):
        return x
    return b.emit(OpKind.TRANSPOSE, x, attrs=TransposeAttrs(axes))


def swap_last(b: Builder, x: Term) -> Term:
    """x.T"""
    return transpose(b, b.tensor(x, ".T"), ())


def repeat(b: Builder, x: Value, times: int, axis: int) -> Term:
    """Whole copies of x behind each other along an axis."""
    if times < 1:
        raise ShapeError(f"repeat: {constants.shorten(str(times))} copies", hint="at least one")
    return x if times == 1 else b.emit(OpKind.REPEAT, x, attrs=RepeatAttrs(axis, times))


def concatenated(b: Builder, x: Result, y: Value | None, axis: int) -> Term:
    """Tensors behind each other along an axis: concat(x, y, axis) or concat([x, y, ...], axis=axis)."""
    parts: list[Value] = [*_several(b, x, "concat"), *(() if y is None else (y,))]
    joined = parts[0]
    for part in parts[1:]:
        joined = b.emit(OpKind.CONCAT, joined, part, attrs=DimAttrs(axis))
    return joined


def stacked(b: Builder, tensors: Result, axis: int) -> Term:
    """Tensors of one shape behind each other along a new axis."""
    parts = _several(b, tensors, "stack")
    if len({b.shape(part) for part in parts}) > 1:
        shapes = " and ".join(show_shape(b.shape(part)) for part in parts[:2])
        raise ShapeError(f"stack: {shapes} differ", hint="stacked tensors have one shape")
    shape = () if all(isinstance(part, Scalar) for part in parts) else b.shape(parts[0])
    axis = min(axis, len(shape))
    wide = tuple(reshaped(b, part, (*shape[:axis], 1, *shape[axis:])) for part in parts)
    return concatenated(b, wide, None, axis)


def _several(b: Builder, x: Result, what: str) -> tuple[Value, ...]:
    terms = x if isinstance(x, tuple) else (x,)
    if not terms:
        raise ShapeError(f"{what} of nothing", hint="name the tensors in [ ]")
    return tuple(b.tensor_of(term, what) for term in terms)


def expand(b: Builder, x: Value, extents: tuple[int, ...]) -> Term:
    """x repeated along axes of extent 1, and along new ones in front; -1 leaves an axis as it is."""
    shape = b.shape(x)
    spare = len(extents) - len(shape)
    padded = (*(1 for _ in range(spare)), *shape)
    wanted = tuple(held if asked == -1 else asked for asked, held in zip(extents, padded, strict=False))
    if spare < 0 or any(asked != held and (held != 1 or asked < 1) for asked, held in zip(wanted, padded, strict=True)):
        raise ShapeError(
            f"{show_shape(shape)} cannot be expanded to {show_shape(extents)}",
            hint="extents align at the right; axes of extent 1 are repeated, -1 leaves one as it is",
        )
    x = reshaped(b, x, padded)
    for axis, (asked, held) in enumerate(zip(wanted, padded, strict=True)):
        if asked != held:
            x = b.emit(OpKind.REPEAT, x, attrs=RepeatAttrs(axis, asked))
    return x


def sliced(b: Builder, x: Value, axis: int, start: int, extent: int, step: int = 1) -> Value:
    """So many elements of one dimension; a slice of a slice is one slice, one within a part of a concatenation, or
    within what is padded, is one of that, and one of padding alone is known to be zeros."""
    op, empty = b.definition(x), False
    while op is not None and op.kind is OpKind.CONCAT and op.attrs == DimAttrs(axis):
        first, second = map(Value, op.inputs)
        held, last = b.shape(first)[axis], start + (extent - 1) * step
        if min(start, last) < held <= max(start, last):
            break
        x, start = (first, start) if start < held else (second, start - held)
        op = b.definition(x)
    if op is not None and isinstance(op.attrs, PadAttrs) and op.attrs.dim == axis:
        inner, place = Value(op.inputs[0]), start - op.attrs.before
        if all(0 <= end < b.shape(inner)[axis] for end in (place, place + (extent - 1) * step)):
            return sliced(b, inner, axis, place, extent, step)
        places = range(place, place + extent * step, step)
        empty = max(places) < 0 or min(places) >= b.shape(inner)[axis]
    if op is not None and isinstance(op.attrs, SliceAttrs) and op.attrs.dim == axis:
        x, start, step = Value(op.inputs[0]), op.attrs.start + start * op.attrs.step, step * op.attrs.step
    whole = b.shape(x)[axis]
    if extent == 1:
        step = 1
    if (start, extent, step) == (0, whole, 1):
        return x
    made = b.emit(OpKind.SLICE, x, attrs=SliceAttrs(axis, start, extent, step))
    if empty:
        b.fills[made] = Number.of(0)
    return made


def flipped(b: Builder, x: Value, axes: tuple[int, ...]) -> Term:
    """The elements along axes in the opposite order."""
    for axis in axes:
        x = sliced(b, x, axis, b.shape(x)[axis] - 1, b.shape(x)[axis], -1)
    return x


def split(b: Builder, x: Value, sections: int | tuple[int, ...], axis: int) -> Result:
    """As many equal parts along an axis, or parts of these extents."""
    whole = b.shape(x)[axis]
    if isinstance(sections, int):
        if sections < 1 or whole % sections:
            raise ShapeError(
                f"axis {axis} of {show_shape(b.shape(x))} has no {constants.shorten(str(sections))} equal parts",
                hint="split(x, [2, 3]) makes parts of extents 2 and 3; chunk(x, n) a smaller last part",
            )
        sections = (whole // sections,) * sections
    if sum(sections) != whole or min(sections, default=0) < 1:
        raise ShapeError(
            f"parts of extents {', '.join(map(str, sections))} are not axis {axis} of {show_shape(b.shape(x))}",
            hint=f"positive extents that add up to {whole}",
        )
    return tuple(sliced(b, x, axis, sum(sections[:i]), extent) for i, extent in enumerate(sections))


def chunk(b: Builder, x: Value, parts: int, axis: int) -> Result:
    """At most so many parts of one extent along an axis, the last one perhaps smaller."""
    whole = b.shape(x)[axis]
    if parts < 1:
        raise ShapeError(f"{constants.shorten(str(parts))} parts", hint="at least one")
    size = -(-whole // parts)
    return split(b, x, (*(size,) * (whole // size), *((whole % size,) if whole % size else ())), axis)


@dataclass(frozen=True, slots=True)
class Range:
    """start:stop:step as it is written, what is left out None."""

    start: int | None
    stop: int | None
    step: int | None


NEW_AXIS = None
"""None in an index: a new dimension of extent 1."""

Item = int | Range | tuple[int, ...] | None
"""One dimension's part of an index; of several places, each."""


def indexed(b: Builder, x: Value, items: Sequence[Item]) -> Term:
    """x[items]: one item per dimension, new ones between; integers take their dimension away."""
    shape: list[int] = []
    dim, own = 0, not isinstance(x, Scalar)
    for item in items:
        if item is None:
            shape.append(1)
            continue
        spans = _spans(item, dim, b.shape(x)[dim]) if isinstance(item, tuple) else [span_of(item, dim, b.shape(x)[dim])]
        parts = tuple(sliced(b, x, dim, span.start, len(span), span.step) for span in spans)
        x = b.tensor(concatenated(b, parts, None, dim), "an index")
        if not isinstance(item, int):
            shape.append(b.shape(x)[dim])
        dim += 1
    return shaped(b, x, (*shape, *(b.shape(x)[dim:] if own else ())))


def _spans(places: tuple[int, ...], dim: int, whole: int) -> list[range]:
    """Places, one after the other, in as few even steps as they come."""
    found: list[list[int]] = []
    for place in (span_of(place, dim, whole).start for place in places):
        run = found[-1] if found else [place]
        if place == run[-1] or (len(run) > 1 and place - run[-1] != run[1] - run[0]):
            found.append([])
        found[-1].append(place)
    steps = [run[1] - run[0] if run[1:] else 1 for run in found]
    return [range(run[0], run[-1] + step, step) for run, step in zip(found, steps, strict=True)]


def span_of(item: int | Range, dim: int, whole: int) -> range:
    """The elements of a dimension of this extent that its item names."""
    if isinstance(item, int):
        if not -whole <= item < whole:
            raise ShapeError(
                f"there is no element {constants.shorten(str(item))} of dimension {dim}, which has extent {whole}",
                hint=f"elements go from {-whole} to {whole - 1}",
            )
        return range(item % whole, item % whole + 1)
    span = range(*slice(item.start, item.stop, item.step).indices(whole))
    if not span:
        raise ShapeError(
            f"this part of dimension {dim}, which has extent {whole}, has no element",
            hint="a tensor has at least one element; a sum of none is 0: (sum(X[:j]) if j > 0 else 0)",
        )
    return span
