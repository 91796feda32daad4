"""Decompositions taken back: what PyTorch spells out in several operators, as the one operator that it was.

In: the operands of an operator that is about to be added. Out: its term, or that of the function whose last step it
is. Invariant: what is recognised computes the same over the reals; what was spelled out on the way and nobody else
reads is dropped with the rest that no output needs.

Norms need nothing here: `lang.lowering` gives them one form however they are written.
"""

from __future__ import annotations

import math
from fractions import Fraction

from mirage_nb.ir.ops import OpKind
from mirage_nb.lang import lowering
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.constants import Number

CLOSE = 1e-6
"""Constants of PyTorch's decompositions are rounded: so near is the same."""


def multiply(b: Builder, x: Term, y: Term) -> Term:
    """x * y, or the activation that it completes."""
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Number) and not isinstance(other, Number):
            if (found := _scaled_fall(b, one, other)) is not None:
                return found
        elif not isinstance(one, Number) and not isinstance(other, Number):
            if (found := _silu(b, one, other) or _gelu(b, one, other)) is not None:
                return found
    return lowering.multiply(b, *_wide_first(b, x, y))


def divide(b: Builder, x: Term, y: Term) -> Term:
    """x / y, or the activation that it completes: x / (1 + exp(-x)), 1 / (1 + exp(-x))."""
    if not isinstance(y, Number) and (inner := _one_plus_exp_minus(b, y)) is not None:
        if x == lowering.ONE:
            return b.emit(OpKind.SIGMOID, inner)
        if x == inner:
            return b.emit(OpKind.SILU, inner)
    if x == lowering.ONE and isinstance(y, int) and (op := b.definition(y)) is not None and op.kind is OpKind.DIV:
        above, below = map(Value, op.inputs)
        if b.number(above) == lowering.ONE:
            return below
    return lowering.divide(b, x, y)


def _wide_first(b: Builder, x: Term, y: Term) -> tuple[Term, Term]:
    """A gain stands behind what it scales, as in a cell."""
    if not isinstance(x, Number) and not isinstance(y, Number) and len(b.shape(x)) < len(b.shape(y)):
        return y, x
    return x, y


def _scaled_fall(b: Builder, factor: Number, fall: Value) -> Term | None:
    """c * x - max(c * x) for c * (x - max(x)), which some versions of PyTorch make of the softmax of c * x."""
    op = b.definition(fall)
    if op is None or op.kind is not OpKind.SUB or factor.nearest <= 0:
        return None
    x, top = map(Value, op.inputs)
    highest = b.definition(top)
    if highest is None or highest.kind is not OpKind.MAX or highest.inputs[0] != x:
        return None
    scaled = b.tensor(lowering.multiply(b, x, factor), "softmax")
    return lowering.subtract(b, scaled, b.emit(OpKind.MAX, scaled, attrs=highest.attrs))


def _silu(b: Builder, x: Value, gate: Value) -> Term | None:
    """x * sigmoid(x)."""
    op = b.definition(gate)
    return b.emit(OpKind.SILU, x) if op is not None and op.kind is OpKind.SIGMOID and op.inputs[0] == x else None


def _gelu(b: Builder, half: Value, bell: Value) -> Term | None:
    """x / 2 * (1 + erf(x / sqrt(2)))."""
    x = _scaled(b, half, 0.5)
    if x is None or (inner := _plus(b, bell, 1.0)) is None or (op := b.definition(inner)) is None:
        return None
    if _is_erf(b, inner) and _scaled(b, Value(op.inputs[0]), math.sqrt(0.5)) == x:
        return b.emit(OpKind.GELU, x)
    return None


def _is_erf(b: Builder, value: Value) -> bool:
    op = b.definition(value)
    return op is not None and getattr(op.attrs, "formula", "") == "erf(x)"


def _one_plus_exp_minus(b: Builder, value: Value) -> Value | None:
    """x for 1 + exp(-x)."""
    raised = _plus(b, value, 1.0)
    op = None if raised is None else b.definition(raised)
    return _scaled(b, Value(op.inputs[0]), -1.0) if op is not None and op.kind is OpKind.EXP else None


def _scaled(b: Builder, value: Value, factor: float) -> Value | None:
    """x for x * factor."""
    return _beside(b, value, OpKind.MUL, factor)


def _plus(b: Builder, value: Value, summand: float) -> Value | None:
    """x for x + summand."""
    return _beside(b, value, OpKind.ADD, summand)


def _beside(b: Builder, value: Value, kind: OpKind, wanted: float) -> Value | None:
    """x where a value is x and a number close to the wanted one."""
    op = b.definition(value)
    if op is None or op.kind is not kind:
        return None
    for place, other in ((1, 0), (0, 1)):
        held = b.number(Value(op.inputs[place]))
        if held is not None and abs(held.attrs().value - Fraction(wanted)) <= CLOSE:
            return Value(op.inputs[other])
    return None
