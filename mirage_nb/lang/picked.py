"""The elements that a mask takes, X[X > 0]: how many they are depends on values, so no tensor has their extents.

In: a tensor and a mask of its leading dimensions, and what is done with their elements. Out: another such pair where
each element is computed by itself, and tensors of sums, means and limits. Invariant: whatever else is done to the
elements is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

from mirage_nb.errors import ProgramSyntaxError, ShapeError
from mirage_nb.ir.ops import OPS, OpKind, Trait, show_shape
from mirage_nb.lang.builder import Builder, Infinity, Nothing, Picked, Result, Term, Value, is_tensor
from mirage_nb.lang.constants import Number
from mirage_nb.lang.lowering import ZERO, cast, divide, scale
from mirage_nb.lang.masks import where
from mirage_nb.lang.reductions import minimum, reduction
from mirage_nb.lang.views import reshaped

FOLDS = ("sum", "mean", "max", "min")


def picked(b: Builder, x: Value, mask: Value) -> Picked:
    """x[mask]."""
    if (own := b.shape(mask)) != (whole := b.shape(x))[: len(own)]:
        raise ShapeError(f"a mask {show_shape(own)} of {show_shape(whole)}", hint="the first extents are the same")
    return Picked(x, mask)


def wholes(b: Builder, given: Iterable[Result]) -> tuple[list[Result], Value]:
    """What stands behind several operands, picked ones among them, and the mask of these."""
    operands = [*given]
    first = next(one for one in operands if isinstance(one, Picked))
    rank = len(b.shape(first.whole))
    trailing = rank - len(b.shape(first.mask))
    for one in operands:
        apart = isinstance(one, Picked) and (one.mask, len(b.shape(one.whole))) != (first.mask, rank)
        if apart or (is_tensor(one) and prod(b.shape(one)) > 1 and len(b.shape(one)) > trailing):
            raise ProgramSyntaxError(
                "elements that a mask takes meet others", hint="X[m] * Y[m] have the same mask; X * Y * m has zeros"
            )
    return [one.whole if isinstance(one, Picked) else one for one in operands], first.mask


def each(b: Builder, made: Result, operands: Collection[Result], mask: Value) -> Picked:
    """What was made of operands, of each element by itself."""
    pending = [made]
    while pending:
        value = pending.pop()
        if not is_tensor(value):
            raise b.unknown_extent()
        op = b.definition(value)
        if value not in operands and op is not None:
            if Trait.ELEMENTWISE not in OPS[op.kind].traits and op.kind is not OpKind.CONST:
                raise b.unknown_extent()
            pending += b.operands(value)
    assert is_tensor(made)
    return Picked(made, mask)


def folded(b: Builder, name: str, x: Picked, axis: Result) -> Term:
    """Their sum, mean, maximum or minimum: over their own axis, 0, or over all where none is given."""
    shape, rank = b.shape(x.whole), len(b.shape(x.mask))
    leading = isinstance(axis, Number) and axis.integer in (0, rank - len(shape) - 1)
    if not leading and axis != Nothing():
        raise b.unknown_extent()
    axes = tuple(range(rank if leading else len(shape)))
    mask = reshaped(b, x.mask, (*shape[:rank], *(1 for _ in shape[rank:])))
    if name in ("max", "min"):
        limit = Infinity(-1 if name == "max" else 1)
        kept = b.tensor(where(b, mask, x.whole, limit), name)
        return reduction(OpKind.MAX)(b, kept, axes, False) if name == "max" else minimum(b, kept, axes, False)
    total = reduction(OpKind.SUM)(b, b.tensor(where(b, mask, x.whole, ZERO), name), axes, False)
    if name == "sum":
        return total
    count = b.tensor(reduction(OpKind.SUM)(b, x.mask, tuple(range(rank)), False), name)
    return cast(b.dtype(x.whole))(b, divide(b, total, scale(b, count, Number.of(1 if leading else prod(shape[rank:])))))
