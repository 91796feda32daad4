"""Writing into parts of tensors: what `x[:, ::2] = y` makes of x.

In: a tensor, one item per dimension as in an index, what is written. Out: the tensor with that part replaced.
Invariant: nothing is changed in place; parts that are overwritten later are read by nobody.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

from mirage_nb.errors import ShapeError
from mirage_nb.lang.builder import Builder, Infinity, Term, Value
from mirage_nb.lang.constants import Number
from mirage_nb.lang.lowering import ZERO, cast, multiply, remainder, subtract
from mirage_nb.lang.masks import arange, comparison, pad, where
from mirage_nb.lang.views import Item, Range, concatenated, expand, reshaped, sliced, span_of

Spans = tuple[range, ...]
"""The elements that are written, for each dimension."""


def written(b: Builder, x: Value, items: Sequence[Item], new: Term | Infinity) -> Term:
    """x with `new` in the place of x[items]."""
    spans: list[range] = []
    for dim, extent in enumerate(b.shape(x)):
        item = items[dim] if dim < len(items) else Range(None, None, None)
        if item is None:
            raise ShapeError("a new axis is written to", hint="write into the tensor itself")
        if isinstance(item, tuple):
            raise ShapeError("a list of places is written to", hint="write to a slice, or to one place after the other")
        spans.append(span_of(item, dim, extent))
    if isinstance(new, Number | Infinity):
        return where(b, _inside(b, x, tuple(spans)), new, x)
    kept = tuple(len(span) for dim, span in enumerate(spans) if dim >= len(items) or isinstance(items[dim], Range))
    shape = b.shape(new)
    while len(shape) > len(kept) and shape[0] == 1:
        shape = shape[1:]
    part = b.tensor(cast(b.dtype(x))(b, reshaped(b, new, shape)), "what is written")
    if kept:
        part = b.tensor(expand(b, part, kept), "what is written")
    elif math.prod(shape) != 1:
        raise ShapeError(f"{math.prod(shape)} elements are written to one", hint="x[i, :] = y writes a row")
    return _put(b, x, tuple(spans), reshaped(b, part, tuple(map(len, spans))), 0)


def _put(b: Builder, x: Value, spans: Spans, part: Value, dim: int) -> Value:
    """x with the part in these spans of the dimensions from `dim` on."""
    if dim == len(spans):
        return part
    span = spans[dim]
    if span.step < 0:
        span, part = span[::-1], sliced(b, part, dim, len(span) - 1, len(span), -1)
    held = sliced(b, x, dim, span.start, len(span), span.step)
    return _joined(b, x, dim, span, _put(b, held, spans, part, dim + 1))


def _joined(b: Builder, x: Value, dim: int, span: range, part: Value) -> Value:
    """x with the part in this span of one dimension: behind what stands before it, or, of every so many elements, one
    in blocks of so many."""
    whole, count, step = b.shape(x)[dim], len(span), span.step if len(span) > 1 else 1
    if step == 1:
        stop = span.start + count
        before = [sliced(b, x, dim, 0, span.start)] if span.start else []
        if b.filled(x) == ZERO:
            return b.tensor(pad(b, part, span.start, whole - stop, dim), "what is written")
        behind = [sliced(b, x, dim, stop, whole - stop)] if stop < whole else []
        return b.tensor(concatenated(b, (*before, part, *behind), None, dim), "what is written")
    firsts = (span.start - span.start % step, span.start)
    first = next((first for first in firsts if first + count * step <= whole), None)
    if first is None:  # the last block is not whole
        head = _joined(b, x, dim, span[:-1], sliced(b, part, dim, 0, count - 1))
        return _joined(b, head, dim, span[-1:], sliced(b, part, dim, count - 1, 1))
    lead, rest = b.shape(part)[:dim], b.shape(part)[dim + 1 :]
    blocks = reshaped(b, sliced(b, x, dim, first, count * step), (*lead, count, step, *rest))
    column = range(span.start - first, span.start - first + 1)
    made = _joined(b, blocks, dim + 1, column, reshaped(b, part, (*lead, count, 1, *rest)))
    return _joined(b, x, dim, range(first, first + count * step), reshaped(b, made, (*lead, count * step, *rest)))


def _inside(b: Builder, x: Value, spans: Spans) -> Value:
    """A mask of the elements of x in these spans."""
    shape = b.shape(x)
    masks: list[Value] = []
    for dim, span in enumerate(spans):
        places = b.tensor(arange(b, shape[dim], None, 1), "a part")
        first, last, step = min(span), max(span), abs(span.step)
        held: list[Term] = []
        if first > 0:
            held.append(comparison(ast.GtE)(b, places, Number.of(first)))
        if last < shape[dim] - 1:
            held.append(comparison(ast.LtE)(b, places, Number.of(last)))
        if len(span) > 1 and step > 1:
            apart = remainder(b, subtract(b, places, Number.of(first)), Number.of(step))
            held.append(comparison(ast.Eq)(b, apart, ZERO))
        spread = (shape[dim], *(1 for _ in shape[dim + 1 :]))
        masks += [reshaped(b, b.tensor(mask, "a part"), spread) for mask in held]
    if not masks:  # all of them
        masks = [b.tensor(comparison(ast.GtE)(b, b.tensor(arange(b, shape[-1], None, 1), "a part"), ZERO), "a part")]
    made, *rest = masks
    for mask in rest:
        made = b.tensor(multiply(b, made, mask), "a part")
    return made
