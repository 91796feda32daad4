"""Between which numbers the elements of a tensor are, where that follows from how it is made: of indices and exponents.

In: a tensor of a program under construction. Out: bounds, or nothing. Invariant: no element is outside of its bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, floor, inf, ulp

from mirage_nb.ir.dtypes import COUNTS
from mirage_nb.ir.graph import Op
from mirage_nb.ir.ops import OPS, ApplyAttrs, ArangeAttrs, ClampAttrs, OpKind, Trait, WhereAttrs
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.constants import Number
from mirage_nb.lang.lowering import (
    COMPARED,
    FLOOR,
    HALF,
    LOG,
    ONE,
    STEPS,
    add,
    floor_divide,
    formula_at,
    is_whole,
    multiply,
    power,
    remainder,
    scale,
    subtract,
)

Bounds = tuple[float, float]
MAX_PLACES = 4096
"""Of a formula that is computed at each of its places."""


def bounds(b: Builder, x: Value, least: float = 0) -> Bounds | None:
    """The smallest and the largest number that x may hold, if its inputs of whole numbers hold none below `least`, of
    one byte those of their types; None where values of other inputs decide."""
    known: dict[int, Bounds] = {}
    for value in b.needed([Value(int(x))]):
        found = (0, 1) if value in b.masks else _held(b, value, least) if value in b.whole else None
        op = b.definition(value)
        if op is not None:
            number = b.number(value)
            found = _of(b, op, known) if number is None else (float(number.nearest), float(number.nearest))
        if found is not None and found != (-inf, inf):
            known[value] = found
    return known.get(int(x))


def _held(b: Builder, whole: Value, least: float) -> Bounds:
    numbers = COUNTS.get(b.dtype(whole))
    return (least, inf) if numbers is None else (numbers[0], numbers[-1])


PASSING = frozenset({
    OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV, OpKind.MAX, OpKind.MAXIMUM, OpKind.SUM, OpKind.WHERE, OpKind.CONCAT,
    OpKind.PAD, OpKind.CAST,
})  # fmt: skip
"""Operators that may be infinite where what they read is."""


def may_be_infinite(b: Builder, x: Value) -> bool:
    """Whether x may hold the infinities of a mask: ones times zeros of it would be no numbers."""
    front = [x]
    seen = {x}
    for value in front:
        op = b.definition(value)
        if value in b.infinite or (op is not None and isinstance(op.attrs, WhereAttrs) and op.attrs.infinite):
            return True
        if op is not None and (op.kind in PASSING or Trait.VIEW in OPS[op.kind].traits):
            fresh = {Value(v) for v in op.inputs} - seen
            seen |= fresh
            front += fresh
    return False


def _of(b: Builder, op: Op, known: Mapping[int, Bounds]) -> Bounds | None:
    """The bounds of what an operator makes."""
    if isinstance(op.attrs, ArangeAttrs):
        return 0, op.attrs.extent - 1
    if isinstance(op.attrs, ApplyAttrs) and (held := _formula(b, op, op.attrs.formula)) is not None:
        return held
    if not op.inputs:
        return None
    given = [known.get(v, (-inf, inf)) for v in op.inputs]
    lows, highs = zip(*given, strict=True)
    match op.attrs:
        case ApplyAttrs(formula="floor(x)"):
            return _rounded(lows[0]), _rounded(highs[0])
        case ApplyAttrs(formula="sign(x) * floor(abs(x))"):
            return _cut(lows[0]), _cut(highs[0])
        case ApplyAttrs(formula="abs(x)"):
            return max(0, lows[0], -highs[0]), max(-lows[0], highs[0])
        case ClampAttrs(low, high):
            ends = (-inf if low is None else float(low)), (inf if high is None else float(high))
            return min(max(lows[0], ends[0]), ends[1]), min(max(highs[0], ends[0]), ends[1])
        case WhereAttrs() as where:
            return min(lows[1], where.value), max(highs[1], where.value)
    match op.kind:
        case kind if kind in COMPARED.values():
            return 0, 1
        case OpKind.ADD:
            return lows[0] + lows[1], highs[0] + highs[1]
        case OpKind.SUB:
            rest = _remainder(b, op)
            return (0, rest) if rest else (lows[0] - highs[1], highs[0] - lows[1])
        case OpKind.MUL | OpKind.SQR | OpKind.DIV:
            if op.kind is OpKind.DIV and lows[1] <= 0:
                return None
            others = [1 / y for y in given[1]] if op.kind is OpKind.DIV else given[-1]
            corners = [_times(x, y) for x in given[0] for y in others]
            least = ulp(0.0) if min(lows) > 0 else 0 if op.kind is OpKind.SQR else -inf
            return max(least, min(corners)), max(corners)
        case OpKind.EXP:  # it is positive, as the next is
            return max(_exp(lows[0]), ulp(0.0)), _exp(highs[0])
        case OpKind.SIGMOID:
            return max(1 / (1 + _exp(-lows[0])), ulp(0.0)), 1 / (1 + _exp(-highs[0]))
        case OpKind.MAXIMUM | OpKind.RELU:
            return max(0, lows[0]) if op.kind is OpKind.RELU else max(lows), max(0, *highs)
        case OpKind.CONCAT:
            return min(lows), max(highs)
        case OpKind.MAX:
            return lows[0], highs[0]
        case OpKind.SUM:  # the more, where none is negative
            return (lows[0], inf) if lows[0] >= 0 else None
        case OpKind.PAD:
            return min(0, lows[0]), max(0, highs[0])
    return (lows[0], highs[0]) if op.kind is OpKind.CAST or Trait.VIEW in OPS[op.kind].traits else None


def _formula(b: Builder, op: Op, text: str) -> Bounds | None:
    """The bounds of a comparison, or of a formula of places."""
    if text in STEPS.values():
        return 0, 1
    places = b.definition(Value(op.inputs[0]))
    if places is None or not isinstance(places.attrs, ArangeAttrs) or places.attrs.extent > MAX_PLACES:
        return None
    made = [formula_at(text, Number.of(place)).nearest for place in range(places.attrs.extent)]
    return float(min(made)), float(max(made))


def _remainder(b: Builder, op: Op) -> float:
    """The largest that x - floor(x / y) * y may be, with a constant y, else 0."""
    product = b.definition(Value(op.inputs[1]))
    by = b.number(Value(product.inputs[1])) if product is not None and product.kind is OpKind.MUL else None
    if product is None or by is None or by.sign < 0:
        return 0
    if floor_divide(b, x := Value(op.inputs[0]), by) != product.inputs[0]:
        return 0
    return float(by.nearest) - (1 if by.integer is not None and is_whole(b, x) else 0)


def _exp(x: float) -> float:
    return inf if x > 709 else exp(x)


def _times(x: float, y: float) -> float:
    return 0 if 0 in (x, y) else x * y


def _rounded(x: float) -> float:
    return x if x in (inf, -inf) else floor(x)


def _cut(x: float) -> float:
    """Without what is behind the point."""
    return -_rounded(-x) if x < 0 else _rounded(x)


def raised(b: Builder, x: Term, exponent: Term) -> Term:
    """x ** exponent; a whole number to the power of a whole tensor is whole, so that digits are exact."""
    if not isinstance(x, Number) and not isinstance(exponent, Number):
        within = bounds(b, x, -inf)
        if within is not None and within[0] > 0:
            return b.emit(OpKind.EXP, b.tensor(multiply(b, exponent, LOG(b, x)), "**"))
    base = x.integer if isinstance(x, Number) else None
    if base is not None and base < 0 and not isinstance(exponent, Number) and is_whole(b, exponent):  # of either sign
        sign = subtract(b, ONE, scale(b, remainder(b, exponent, Number.of(2)), Number.of(2)))
        return sign if base == -1 else multiply(b, raised(b, Number.of(-base), exponent), sign)
    made = power(b, x, exponent)
    if isinstance(exponent, Number) or isinstance(made, Number) or base is None or not is_whole(b, exponent):
        return made
    within = bounds(b, exponent)
    return made if within is None or within[0] < 0 else FLOOR(b, add(b, made, HALF))
