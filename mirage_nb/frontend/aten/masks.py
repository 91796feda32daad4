"""ATen's comparisons and choices: masks of ones and zeros, as the language has them.

In: an `At` and the arguments of a node. Out: a term. Invariant: a truth value that PyTorch computes is a mask here;
one that it is given, or hands out, has no term, since programs have no such tensors.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from typing import Any

from mirage_nb.frontend.aten.borrowed import borrowed
from mirage_nb.frontend.aten.terms import At, Held, Left, Result, Row, Undefined, elementwise, number, padded
from mirage_nb.ir.ops import OpKind, Shape
from mirage_nb.lang import lowering, masks, reductions, views
from mirage_nb.lang.builder import Builder, Infinity, Term, Value
from mirage_nb.lang.constants import Number


def _compared(kind: type[ast.cmpop]) -> Row:
    def row(at: At, x: Any, y: Any) -> Term:
        one, other = at.choice(x), at.choice(y)
        if isinstance(one, Infinity) or isinstance(other, Infinity):
            return masks.comparison(kind)(at.b, one, other)
        return masks.comparison(kind)(at.b, *elementwise(at, one, other))

    return row


def _truth(at: At, x: Any) -> Term:
    """A mask, or 1 or 0 where all of a tensor is the same."""
    if not isinstance(x, Held) or not x.logical:
        raise Left("a logical operator on what is no mask")
    term = at.term(x)
    if not isinstance(term, Number) and not lowering.is_mask(at.b, term):
        raise Left("a logical operator on what is no mask")
    return term


def _asked_truth(at: At, x: Any) -> Held:
    """What is not 0, also of what is no mask."""
    logical = isinstance(x, Held) and x.logical
    return x if logical else Held(masks.comparison(ast.NotEq)(at.b, at.term(x), lowering.ZERO), logical=True)


def _of_any(row: Row) -> Row:
    """A logical operator on whatever there is."""
    return lambda at, *given: row(at, *(_asked_truth(at, one) for one in given))


def _both(at: At, x: Any, y: Any) -> Term:
    return _and(at, _truth(at, x), _truth(at, y))


def _either(at: At, x: Any, y: Any) -> Term:
    return _joined(at, _truth(at, x), _truth(at, y), masks.either, lowering.ONE)


def _differing(at: At, x: Any, y: Any) -> Term:
    return masks.comparison(ast.NotEq)(at.b, _truth(at, x), _truth(at, y))


def _and(at: At, x: Term, y: Term) -> Term:
    return _joined(at, x, y, masks.both, lowering.ZERO)


def _joined(at: At, x: Term, y: Term, lower: Callable[..., Term], deciding: Number) -> Term:
    """Two masks; of one that is the same everywhere it is known what it does to the other."""
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Number):
            return one if one == deciding else other
    return lower(at.b, x, y)


def _bit(row: Row) -> Row:
    """A mask and one truth value for all."""
    return lambda at, x, y: row(at, x, Held(number(int(y)), logical=isinstance(y, bool)))


def _opposite(at: At, x: Any) -> Term:
    mask = _truth(at, x)
    return lowering.subtract(at.b, lowering.ONE, mask) if isinstance(mask, Number) else masks.opposite(at.b, mask)


def _where(at: At, condition: Any, x: Any, y: Any) -> Result:
    mask = _truth(at, condition)
    undefined = x != x if isinstance(x, float) else isinstance(x, Held) and isinstance(x.term, Undefined)
    if undefined and (asked := _no_number(at.b, mask)) is not None:
        return _chosen(at, mask, asked, at.choice(y))
    return _chosen(at, mask, at.choice(x), at.choice(y))


def _no_number(b: Builder, mask: Term) -> Value | None:
    """x for a mask that says where x is no number, which it is there itself."""
    op = b.definition(mask) if isinstance(mask, int) else None
    inner = b.definition(Value(op.inputs[1])) if op is not None and op.kind is OpKind.SUB else None
    alike = inner is not None and inner.kind is OpKind.EQUAL and inner.inputs[0] == inner.inputs[1]
    return Value(inner.inputs[0]) if inner is not None and alike else None


def _quantified(every: bool) -> Row:
    """Whether all elements along axes, or any of them, are not 0."""

    def row(at: At, x: Any, axes: Any = None, keepdim: bool = False) -> Term:
        b, term = at.b, at.term(x)
        mask = term if at.logical(x) is not None else masks.comparison(ast.NotEq)(b, term, lowering.ZERO)
        if isinstance(mask, Number):
            return mask
        asked = b.tensor(masks.opposite(b, mask), "all") if every else mask
        found = views.reshaped(b, reductions.folded(b, OpKind.MAX, asked, at.axes(mask, axes)), at.shape)
        return masks.opposite(b, found) if every else found

    return row


def _chosen(at: At, mask: Term, one: masks.Choice, other: masks.Choice) -> Result:
    """Between two constants a mask is computed with, in the type of the result: its own may not hold them."""
    if isinstance(mask, Number):
        picked = one if mask == lowering.ONE else other
        return picked if isinstance(picked, Infinity) else _typed(at, picked)
    if at.dtype is not None and not isinstance(one, int) and not isinstance(other, int):
        mask = at.b.tensor(lowering.cast(at.dtype)(at.b, mask), "where")
    return _typed(at, masks.where(at.b, mask, one, other))


def _filled(at: At, x: Any, condition: Any, value: Any) -> Result:
    return _chosen(at, _truth(at, condition), at.choice(value), at.tensor(x))


def _typed(at: At, x: Term) -> Term:
    return x if at.dtype is None else lowering.cast(at.dtype)(at.b, x)


def _arange(at: At, start: int, stop: int | None = None, step: int = 1, **_: Any) -> Term:
    """Whole numbers; PyTorch counts them in integers, programs in single precision, which holds them."""
    if not all(isinstance(n, int) for n in (start, 0 if stop is None else stop, step)):
        raise Left("a range of fractions")
    return masks.arange(at.b, start, stop, step)


def triangle(b: Builder, rows: int, columns: int, diagonal: int, kind: type[ast.cmpop]) -> Value:
    """The mask of a matrix that holds where row + diagonal compares so with column."""
    row = b.tensor(masks.arange(b, diagonal, diagonal + rows, 1), "triangle")
    column = masks.arange(b, 0, columns, 1)
    return b.tensor(masks.comparison(kind)(b, views.reshaped(b, row, (rows, 1)), column), "triangle")


def _cut(kind: type[ast.cmpop]) -> Row:
    """tril and triu: zeros elsewhere."""

    def row(at: At, x: Any, diagonal: int = 0) -> Result:
        *_, rows, columns = at.shape
        kept = triangle(at.b, rows, columns, diagonal, kind)
        return _and(at, kept, _truth(at, x)) if at.truth else _chosen(at, kept, at.choice(x), number(0))

    return row


def put(at: At, x: Any, indices: Sequence[Any], value: Any, accumulate: bool = False) -> Result:
    """One number for all elements under a mask."""
    mask = at.logical(indices[0]) if len(indices) == 1 else None
    if mask is None or at.b.shape(mask) != at.shape or accumulate or math.prod(_filled_shape(at, value)) != 1:
        raise Left("a write at places that are no mask of all elements, or of several values")
    return _chosen(at, mask, at.choice(value), at.choice(x))


def _filled_shape(at: At, value: Any) -> Shape:
    """The shape of a tensor, which may be the same number everywhere."""
    return at.b.shape(at.tensor(value)) if isinstance(value.term, int) else value.filled.shape


def _diagonal_scatter(at: At, x: Any, source: Any, offset: int = 0, one: int = 0, other: int = 1) -> Result:
    """The diagonal along the last two axes, written from a tensor along one of them."""
    *lead, rows, columns = at.shape
    if (one % len(at.shape), other % len(at.shape)) != (len(lead), len(lead) + 1):
        raise Left("a diagonal that is not along the last two axes")
    mask, new = triangle(at.b, rows, columns, offset, ast.Eq), at.choice(source)
    if isinstance(new, int):
        extent, count = (rows, at.b.shape(new)[-1]) if offset >= 0 else (columns, at.b.shape(new)[-1])
        new = padded(at.b, new, len(lead), (0, extent - count))
        new = views.reshaped(at.b, new, (*lead, *((rows, 1) if offset >= 0 else (1, columns))))
    return _chosen(at, mask, new, at.choice(x))


COMPARISONS = {"gt": ast.Gt, "ge": ast.GtE, "lt": ast.Lt, "le": ast.LtE, "eq": ast.Eq, "ne": ast.NotEq}

BITS = {"and": _both, "or": _either, "xor": _differing}

ROWS: dict[str, Row] = {
    **{f"aten.{name}.{kind}": _compared(c) for name, c in COMPARISONS.items() for kind in ("Tensor", "Scalar")},
    **{f"aten.{name}.default": borrowed(name) for name in ("isnan", "isinf", "isfinite")},
    **{f"aten.logical_{name}.default": _of_any(row) for name, row in BITS.items()},
    **{f"aten.bitwise_{name}.Tensor": row for name, row in BITS.items()},
    "aten.logical_not.default": _of_any(_opposite),
    "aten.bitwise_not.default": _opposite,
    **{f"aten.{name}.{k}": _quantified(name == "all") for name in ("any", "all") for k in ("default", "dim", "dims")},
    **{f"aten.bitwise_{name}.Scalar": _bit(row) for name, row in BITS.items()},
    "aten.where.self": _where,
    "aten.where.ScalarOther": _where,
    "aten.where.ScalarSelf": _where,
    "aten.masked_fill.Scalar": _filled,
    "aten.arange.default": _arange,
    "aten.arange.start": _arange,
    "aten.arange.start_step": _arange,
    "prims.iota.default": lambda at, n, *, start=0, step=1, **_: masks.arange(at.b, start, start + n * step, step),
    "aten.index_put.default": put,
    "aten.diagonal_scatter.default": _diagonal_scatter,
    "aten.tril.default": _cut(ast.GtE),
    "aten.triu.default": _cut(ast.LtE),
}
