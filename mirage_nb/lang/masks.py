"""Comparisons and what is made of them: masks, choices between elements, numbers along an axis.

In: terms. Out: terms; a mask is a tensor of ones and zeros. Invariant: comparisons mean what IEEE 754 makes of them. Of
numbers that are finite, as places and constants are, one is a step of a difference, so that `i >= j` and `i - j >= 0`
are one operator; of others, whose difference may be none, it is an operator of its own (`COMPARED`).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

from mirage_nb.errors import DTypeError, ProgramSyntaxError, ShapeError
from mirage_nb.ir.dtypes import LARGEST, DType, promote
from mirage_nb.ir.ops import (
    EXACT,
    OPS,
    ArangeAttrs,
    DimAttrs,
    OpKind,
    PadAttrs,
    RunningAttrs,
    Shape,
    Trait,
    WhereAttrs,
)
from mirage_nb.lang import constants
from mirage_nb.lang.builder import COMPARISON, Builder, Infinity, Result, Scalar, Term, Value, is_tensor
from mirage_nb.lang.constants import Number
from mirage_nb.lang.limits import MAX_ELEMENTS
from mirage_nb.lang.lowering import (
    COMPARED,
    ONE,
    STEPS,
    ZERO,
    add,
    cast,
    denominator,
    formula_of,
    is_mask,
    is_whole,
    multiply,
    product,
    remainder,
    scale,
    subtract,
)
from mirage_nb.lang.ranges import bounds, may_be_infinite, raised
from mirage_nb.lang.views import concatenated, reshaped, sliced, stacked, transpose

Choice = Term | Infinity
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.LtE: ast.GtE, ast.Lt: ast.Gt}
_MIRRORED = _SWAPPED | {other: kind for kind, other in _SWAPPED.items()}
_STEP = {kind: formula_of(COMPARISON, text) for kind, text in STEPS.items()}


def comparison(kind: type[ast.cmpop]) -> Callable[[Builder, Choice, Choice], Term]:
    """The function that is 1 where two terms compare so, and 0 elsewhere."""

    def lower(b: Builder, x: Choice, y: Choice) -> Term:
        if isinstance(x, Infinity):
            return _beside_infinity(b, _MIRRORED.get(kind, kind), y, x)
        if isinstance(y, Infinity):
            return _beside_infinity(b, kind, x, y)
        if isinstance(x, Number) and isinstance(y, Number):
            return Number.of(constants.compared(kind, x, y))
        if isinstance(y, Number) and not isinstance(x, Number) and is_mask(b, x):
            held = [constants.compared(kind, Number.of(element), y) for element in (0, 1)]
            if held[0] != held[1]:
                return x if held[1] else opposite(b, x)
        wanted = _SWAPPED.get(kind, kind)
        if wanted is not kind or (wanted in (ast.Eq, ast.NotEq) and _stands_behind(x, y)):
            x, y = y, x
        finite = [isinstance(side, Number) or denominator(b, side) is not None for side in (x, y)]
        if all(finite) or (any(finite) and wanted is not ast.Gt):  # of no number, `1 - step(-x)` is 1
            difference = b.tensor(subtract(b, x, y), "a comparison")
            return _STEP[wanted](b, b.unrounded.get(difference, difference))
        made = b.emit(COMPARED[ast.Eq if wanted is ast.NotEq else wanted], b.value(x), b.value(y))
        return opposite(b, made) if wanted is ast.NotEq else made

    return lower


def _beside_infinity(b: Builder, kind: type[ast.cmpop], x: Choice, infinity: Infinity) -> Term:
    """A comparison with an infinity, which is beyond the largest number of the type."""
    if not isinstance(x, int):  # numbers lie between the two
        place = Number.of(x.sign) if isinstance(x, Infinity) else ZERO
        return Number.of(constants.compared(kind, place, Number.of(infinity.sign)))
    edge = Number.of(infinity.sign * LARGEST[b.dtype(x)])
    beyond, within = (ast.Gt, ast.LtE) if infinity.sign > 0 else (ast.Lt, ast.GtE)
    if kind is beyond:
        return b.emit(OpKind.GREATER, x, x)
    if kind is within:
        return b.emit(OpKind.EQUAL, x, x)
    if kind in (ast.Lt, ast.Gt):
        return comparison(within)(b, x, edge)
    reached = b.tensor(comparison(beyond)(b, x, edge), "a comparison")
    return opposite(b, reached) if kind is ast.NotEq else reached


def _stands_behind(x: Term, y: Term) -> bool:
    """Which of two terms comes second where both orders mean the same: a number, or the later tensor."""
    return isinstance(y, int) and (isinstance(x, Number) or x > y)


def _mask(b: Builder, x: Term, what: str) -> Value:
    """The term as a mask that the graph shows to be one: an input is such by its type, which nobody sees there, so that
    it is what chooses between 1 and 0."""
    if isinstance(x, Number) or not is_mask(b, x):
        hint = "masks are comparisons: (X > 0) & (X < Y)"
        raise ProgramSyntaxError(f"{what} takes masks", hint=f"{hint}; a power is written **" if what == "^" else hint)
    return b.emit(OpKind.WHERE, x, b.value(ONE), attrs=WhereAttrs()) if _is_given(b, x) else x


def _is_given(b: Builder, mask: Value) -> bool:
    """Whether a mask is an input, or part of one."""
    while (op := b.definition(mask)) is not None and Trait.VIEW in OPS[op.kind].traits:
        mask = Value(op.inputs[0])
    return mask in b.masks


def both(b: Builder, x: Term, y: Term) -> Term:
    """x & y: the product of two masks; of whole numbers and 2 ** n - 1, their last n bits."""
    last = y.integer if isinstance(y, Number) else None
    if last is not None and last >= 0 and last & (last + 1) == 0 and is_whole(b, x) and not is_mask(b, x):
        return remainder(b, x, Number.of(last + 1))
    one, other = _mask(b, x, "&"), _mask(b, y, "&")
    return one if one == other else multiply(b, one, other)


def shifted(by: Callable[[Builder, Term, Term], Term]) -> Callable[[Builder, Term, Term], Term]:
    """x << n and x >> n of whole numbers: what `by` makes of x and 2 ** n."""

    def lower(b: Builder, x: Term, n: Term) -> Term:
        held = n.integer if isinstance(n, Number) else None
        ends = (held, held) if held is not None else bounds(b, n) if isinstance(n, int) and is_whole(b, n) else None
        if ends is None or not 0 <= ends[0] <= ends[1] <= MAX_SHIFT or not is_whole(b, x):
            hint = f"x is an input of whole numbers, or floor(x); n a constant, or an arange, from 0 to {MAX_SHIFT}"
            raise ProgramSyntaxError("shifts are of whole numbers by known ones", hint=hint)
        return by(b, x, raised(b, Number.of(2), n))

    return lower


MAX_SHIFT = 24
"""Beyond it f32 holds no whole numbers."""


def either(b: Builder, x: Term, y: Term) -> Term:
    """x | y: the maximum of two masks."""
    one, other = _mask(b, x, "|"), _mask(b, y, "|")
    return one if one == other else b.emit(OpKind.MAXIMUM, one, other)


def differing(b: Builder, x: Term, y: Term) -> Term:
    """x ^ y: where one of two masks is, and not the other."""
    return comparison(ast.NotEq)(b, _mask(b, x, "^"), _mask(b, y, "^"))


def opposite(b: Builder, x: Term) -> Term:
    """~x: one less the mask; a mask that was turned so turns back."""
    mask = _mask(b, x, "~")
    op = b.definition(mask)
    if op is not None and op.kind is OpKind.SUB:
        return Value(op.inputs[1])
    return subtract(b, ONE, mask)


def where(b: Builder, condition: Value, x: Choice, y: Choice) -> Term:
    """x where the condition holds (is not 0), else y."""
    mask = condition if is_mask(b, condition) else b.tensor(comparison(ast.NotEq)(b, condition, ZERO), "where")
    if (numbers := _same_everywhere(b, mask, x, y)) is not None:
        dtype, (x, y) = numbers
        return cast(dtype)(b, where(b, mask, x, y))
    if (x, y) in ((ONE, ZERO), (ZERO, ONE)):
        return mask if x == ONE else opposite(b, mask)
    if not isinstance(x, int):
        if not isinstance(y, int):
            return _constants(b, mask, x, y)
        x, y, mask = y, x, b.tensor(opposite(b, mask), "where")
    if isinstance(y, int):
        other = b.tensor(opposite(b, mask), "where")
        chosen = (b.emit(OpKind.WHERE, m, v, attrs=WhereAttrs()) for m, v in ((mask, x), (other, y)))
        return add(b, *chosen)
    if isinstance(y, Infinity):
        return b.emit(OpKind.WHERE, mask, x, attrs=WhereAttrs(infinite=y.sign))
    return b.emit(OpKind.WHERE, mask, x, attrs=WhereAttrs(y.attrs().value))


def added(b: Builder, x: Term, y: Term) -> Term:
    """x + y; beside what a mask leaves out by an infinity the sum is left out: x + where(m, v, -inf) is
    where(m, x + v, -inf)."""
    if not isinstance(x, Number) and not isinstance(y, Number):
        for one, other in ((x, y), (y, x)):
            if (found := _left_out(b, one)) is not None:
                mask, inner, infinity = found
                dtype = b.meeting((x, y)) or promote(b.dtype(x), b.dtype(y))
                made = cast(dtype)(b, added(b, other, inner))
                return where(b, mask, made, infinity)
    return add(b, x, y)


def subtracted(b: Builder, x: Term, y: Term) -> Term:
    """x - y; of a mask of a number and an infinity, the infinity stays."""
    if isinstance(x, Number) or isinstance(y, Number):
        return subtract(b, x, y)
    if (b.meeting((x, y)) or promote(b.dtype(x), b.dtype(y))) is b.dtype(y):
        mask, inner, infinity = _left_out(b, x) or (x, x, None)
        if infinity is not None and isinstance(inner, Number):
            return where(b, mask, subtract(b, inner, y), infinity)
    return subtract(b, x, y)


_LAID_OUT = (OpKind.ADD, OpKind.CAST, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT, OpKind.SLICE)
"""What leaves a mask what it is, elsewhere in memory, or adds a number to what stands where it is."""


def _left_out(b: Builder, x: Value) -> tuple[Value, Term, Infinity] | None:
    """The mask, what stands where it is, and the infinity elsewhere, of a tensor that is made so."""
    op = b.definition(x)
    if op is not None and isinstance(op.attrs, WhereAttrs) and op.attrs.infinite:
        mask, held = map(Value, op.inputs)
        return mask, ONE if held in (mask, b.one(mask)) else held, Infinity(op.attrs.infinite)
    if op is None or op.kind not in _LAID_OUT:
        return None
    mask, inner, infinity = _left_out(b, Value(op.inputs[0])) or (x, x, None)
    if infinity is None or not isinstance(inner, Number):
        return None
    if op.kind is OpKind.ADD:
        number = b.number(Value(op.inputs[1]))
        return None if number is None else (mask, constants.add(inner, number), infinity)
    return mask if op.kind is OpKind.CAST else b.emit(op.kind, mask, attrs=op.attrs), inner, infinity


def _same_everywhere(b: Builder, mask: Value, *choices: Choice) -> tuple[DType, list[Number | Infinity]] | None:
    """What choices are at all of their elements, and the type of those that are tensors, if all of them are such and
    none is wider than the mask."""
    dtypes: set[DType] = set()
    numbers: list[Number | Infinity] = []
    for choice in choices:
        held: Choice | None = choice
        if isinstance(choice, int):
            pairs = zip(b.shape(choice)[::-1], b.shape(mask)[::-1], strict=False)
            fits = len(b.shape(choice)) <= len(b.shape(mask)) and all(own in (1, whole) for own, whole in pairs)
            held = b.filled(choice) if fits else None
            dtypes.add(b.dtype(choice))
        if held is None or isinstance(held, int):
            return None
        numbers.append(held)
    return (dtypes.pop(), numbers) if len(dtypes) == 1 else None


def _constants(b: Builder, mask: Value, x: Number | Infinity, y: Number | Infinity) -> Term:
    """One of two constants: beside an infinity the mask itself, which is 1, and the constant less 1."""
    if isinstance(x, Infinity):
        if isinstance(y, Infinity):
            raise ProgramSyntaxError("where chooses between two infinities", hint="one of them may be inf or -inf")
        x, y, mask = y, x, b.tensor(opposite(b, mask), "where")
    if isinstance(y, Infinity):
        edge = b.emit(OpKind.WHERE, mask, mask, attrs=WhereAttrs(infinite=y.sign))
        return add(b, edge, constants.subtract(x, ONE))
    return add(b, scale(b, mask, constants.subtract(x, y)), y)


def arange(b: Builder, start: int | Number, stop: int | Number | None = None, step: int | Number = 1) -> Term:
    """start, start + step, ... up to but without stop; arange(n) counts from 0."""
    first, last, by = map(_rational, (0, start, step) if stop is None else (start, stop, step))
    if by == 0:
        raise ShapeError("an arange that never ends", hint="its step is not 0")
    count = math.ceil((float(last) - float(first)) / float(by))  # as NumPy and PyTorch do, in doubles
    if count < 1:
        raise ShapeError("this arange has no element", hint="arange(n) has the numbers 0 to n - 1")
    if max(abs(first), abs(first + (count - 1) * by), Fraction(count)) > EXACT[DType.F32]:
        raise ShapeError("f32 does not hold these numbers", hint=f"magnitudes up to {EXACT[DType.F32]:,}")
    counted = b.emit(OpKind.ARANGE, attrs=ArangeAttrs(count))
    return add(b, scale(b, counted, Number.of(by)), Number.of(first))


def _rational(number: int | Number) -> Fraction:
    found = number.rational if isinstance(number, Number) else Fraction(number)
    if found is None:
        raise ShapeError("an arange of roots", hint="its numbers are rational; n ** 0.5 * arange(4) is one of them")
    return found


def pad(b: Builder, x: Value, before: int, after: int, axis: int) -> Term:
    """Zeros before and after the elements of an axis."""
    if min(before, after) < 0:
        raise ShapeError(f"pad: {before} zeros before and {after} after", hint="x[:, 1:-1] leaves elements out")
    return x if before == after == 0 else b.emit(OpKind.PAD, x, attrs=PadAttrs(axis, before, after))


def cumsum(b: Builder, x: Value, axis: int) -> Term:
    """Sums over all elements up to each one: a product with a triangle of ones, where that is a tensor."""
    rank, shape = len(b.shape(x)), b.shape(x)
    if shape[axis] ** 2 > MAX_ELEMENTS:
        return b.emit(OpKind.RUNNING_SUM, x, attrs=RunningAttrs(axis))
    numbers = b.tensor(arange(b, shape[axis], None, 1), "cumsum")
    below = comparison(ast.LtE)(b, reshaped(b, numbers, (shape[axis], 1)), numbers)
    triangle = b.tensor(cast(b.dtype(x))(b, below), "cumsum")
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    turned = b.tensor(transpose(b, x, tuple(order)), "cumsum")
    rows = reshaped(b, turned, (1, *shape)) if rank == 1 else turned
    summed = product(b, rows, triangle)
    return transpose(b, reshaped(b, summed, b.shape(turned)), tuple(order))


def rope(b: Builder, x: Value, cos: Value, sin: Value) -> Term:
    """x * cos + turned(x) * sin, where turned(x) is minus the second half of the last axis, then the first."""
    if not all(b.shape(v) for v in (x, cos, sin)):
        raise ShapeError("rope: a scalar has no halves", hint="the last axis is even; cos and sin have it, too")
    extent = b.shape(x)[-1]
    widths = {b.shape(angles)[-1] for angles in (cos, sin)}
    if extent % 2 or len(widths) > 1 or not widths <= {extent, extent // 2}:
        raise ShapeError(
            f"rope: the last axis has extent {extent}, those of cos and sin {' and '.join(map(str, sorted(widths)))}",
            hint="the last axis is even; cos and sin are as long, or half as long",
        )

    def halves(v: Value) -> list[Value]:
        last, half = len(b.shape(v)) - 1, extent // 2
        return [sliced(b, v, last, at, half) if b.shape(v)[-1] == extent else v for at in (0, half)]

    (x1, x2), (c1, c2), (s1, s2) = map(halves, (x, cos, sin))
    first = b.tensor(subtract(b, multiply(b, x1, c1), multiply(b, x2, s1)), "rope")
    second = b.tensor(add(b, multiply(b, x2, c2), multiply(b, x1, s2)), "rope")
    return concatenated(b, (first, second), None, len(b.shape(first)) - 1)


def one_hot(b: Builder, x: Value, classes: int) -> Term:
    """1 where an index is the number of its place along a new last axis, else 0."""
    numbers = b.tensor(arange(b, classes, None, 1), "one_hot")
    return comparison(ast.Eq)(b, reshaped(b, x, (*b.shape(x), 1)), numbers)


TERMS = 4
"""Entries of a table in one formula, which has a largest length."""


def is_table(found: Result) -> bool:
    """Whether these are numbers, or rows of them."""
    return isinstance(found, tuple) and all(isinstance(one, Number) or is_table(one) for one in found)


def _entry(b: Builder, entry: Result) -> Result:
    """What stands beside tensors in [ ]: numbers have no dimensions."""
    held = table(b, (entry,) if isinstance(entry, Number) else entry)
    return Value(Scalar(held)) if isinstance(entry, Number) and is_tensor(held) else held


def _holds_tensors(found: Result) -> bool:
    return is_tensor(found) or (isinstance(found, tuple) and any(map(_holds_tensors, found)))


def table(b: Builder, entries: Result) -> Result:
    """Numbers in [ ], or in rows of them, as a tensor: functions of the place that are 0 at all others. Tensors of one
    shape, and numbers beside such that have no dimensions, are stacked, as NumPy does."""
    if not isinstance(entries, tuple):
        return entries
    if _holds_tensors(entries):
        return stacked(b, tuple(_entry(b, entry) for entry in entries), 0)
    shape: list[int] = []
    flat = entries
    while flat and all(isinstance(entry, tuple) for entry in flat):
        rows = [entry for entry in flat if isinstance(entry, tuple)]
        if len({len(row) for row in rows}) > 1:
            raise ShapeError("rows of a tensor differ in length", hint="write [[1, 2], [3, 4]]")
        shape, flat = [*shape, len(flat) // math.prod(shape)], tuple(entry for row in rows for entry in row)
    shape = [*shape, len(flat) // math.prod(shape)]
    if not flat or not all(isinstance(entry, Number) and entry.rational is not None for entry in flat):
        raise ProgramSyntaxError("a tensor is made of rational numbers, or of tensors", hint="write [[1, 2], [3, 4]]")
    exact = [entry.rational for entry in flat if isinstance(entry, Number)]
    steps = {(after or 0) - (before or 0) for before, after in pairwise(exact)}
    if len(steps) == 1 and (step := steps.pop()):
        numbers = arange(b, Number.of(exact[0] or 0), Number.of((exact[-1] or 0) + step), Number.of(step))
        return reshaped(b, b.tensor(numbers, "a tensor"), tuple(shape))
    filled = [(at, n) for at, n in enumerate(flat) if isinstance(n, Number) and n != ZERO]
    terms = [f"({n.rational}) * (step(x - {at}) * step({at} - x))" for at, n in filled] or ["0 * x"]
    places = arange(b, len(flat), None, 1)
    made: Term = ZERO
    for first in range(0, len(terms), TERMS):
        made = add(b, made, formula_of("table", " + ".join(terms[first : first + TERMS]))(b, places))
    held = b.tensor(made, "a tensor")
    if all(n.denominator == 1 for n in exact if n is not None):
        b.whole.add(held)
    return reshaped(b, held, tuple(shape))


def diagonal(b: Builder, extent: int) -> Value:
    """Ones where row and column of a square matrix are the same."""
    return b.tensor(one_hot(b, b.tensor(arange(b, extent, None, 1), "a diagonal"), extent), "a diagonal")


def below_zero(b: Builder, x: Value) -> Value:
    """Where a tensor is negative."""
    return b.tensor(comparison(ast.Lt)(b, x, ZERO), "a comparison")


def from_zero(b: Builder, index: Value, extent: int) -> Value:
    """Places counted from 0, where an index of the program's own making may count from the end; inputs count from 0."""
    within = bounds(b, index)
    if within is None or within[0] >= 0:
        return index
    return b.tensor(add(b, index, scale(b, below_zero(b, index), Number.of(extent))), "an index")


def of_places(function: Callable[..., Term], index: int = 1) -> Callable[..., Term]:
    """A function whose argument at this place has to hold whole numbers."""

    def lower(b: Builder, *given: object) -> Term:
        found = given[index]
        if isinstance(found, int) and not is_whole(b, Value(found)):
            hint = "declare it as I: i64[8]; floor(x) and round(x) are whole numbers"
            raise DTypeError(f"an index holds whole numbers, this is {b.dtype(Value(found)).value}", hint=hint)
        return function(b, *given)

    return lower


def take(b: Builder, x: Value, index: Value, axis: int) -> Term:
    """The elements of an axis that an index names: a product with ones at their places; sums, where infinities are."""
    shape, extent = b.shape(x), b.shape(x)[axis]
    index = from_zero(b, index, extent)
    ones = b.tensor(one_hot(b, index, extent), "take")
    order = (axis, *(d for d in range(len(shape)) if d != axis))
    rows = reshaped(b, b.tensor(transpose(b, x, order), "take"), (extent, math.prod(shape) // extent))
    flat = math.prod(b.shape(index)), extent
    if may_be_infinite(b, x):
        chosen = b.tensor(where(b, reshaped(b, ones, (*flat, 1)), rows, ZERO), "take")
        made = b.emit(OpKind.SUM, chosen, attrs=DimAttrs(1)) if extent > 1 else chosen
    else:
        made = product(b, reshaped(b, b.tensor(cast(b.dtype(x))(b, ones), "take"), flat), rows)
    made = reshaped(b, made, (*b.shape(index), *shape[:axis], *shape[axis + 1 :]))
    count = len(b.shape(index))
    moved = (*range(count, count + axis), *range(count), *range(count + axis, count + len(shape) - 1))
    return transpose(b, made, moved)


def place_of(b: Builder, indices: Sequence[Value], extents: Shape) -> Value:
    """Places of axes of these extents, counted from their ends where they are negative, as places of one axis that has
    the elements of all of them in order."""
    *first, place = (from_zero(b, index, extent) for index, extent in zip(indices, extents, strict=True))
    stride = extents[-1]
    for index, extent in zip(first[::-1], extents[-2::-1], strict=True):
        place = b.tensor(add(b, place, scale(b, index, Number.of(stride))), "an index")
        stride *= extent
    return place
