"""What "equal" means, and where every operator is defined.

A candidate (the right side, a muGraph) is equal to a program (the left side) when it computes the program at every
real point where the program is defined: the same outputs, in order. A candidate may be defined on more, never on
less. Element by element: where one element of an output of the program has a value, that element of the candidate has
the same value, whatever becomes of the others. Values are real numbers and, where a choice says so (`where(m, x,
-inf)`), infinities: exp(-inf) is 0, a number beside an infinity is lost in it, an output that is infinite has to be the
same infinity. There is no value of 1 / 0, of infinity less infinity, of 0 times infinity, and of a root or logarithm
outside its domain (so log(0) is none). Nothing is said of rounding, which the float gate looks at.

In: an operator. Out: what has to hold of its operand, so that it has a value there. Invariant: every elementwise
operator of the table and every function of formulas has a row here; what has none has no domain, and no proof.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

from mirage_nb.ir import COMPARISONS, OpKind


class Need(enum.Enum):
    """What has to hold of a number; the value is how messages say it."""

    NONZERO = "different from 0"
    NONNEGATIVE = "at least 0"
    POSITIVE = "greater than 0"


TOTAL = frozenset({
    OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.SQR, OpKind.EXP, OpKind.SILU, OpKind.GELU, OpKind.SIGMOID, OpKind.RELU,
    OpKind.CLAMP, OpKind.MAXIMUM, OpKind.WHERE, OpKind.CAST, *COMPARISONS,
})  # fmt: skip
"""Elementwise operators that are defined everywhere. `POW` is asked of `power`, `APPLY` of its formula."""

NEEDS: Mapping[OpKind, Need] = MappingProxyType({OpKind.DIV: Need.NONZERO, OpKind.SQRT: Need.NONNEGATIVE})
"""What the last operand of an operator has to be."""

SCALAR_NEEDS: Mapping[str, Need | None] = MappingProxyType({
    "div": Need.NONZERO, "sqrt": Need.NONNEGATIVE, "log": Need.POSITIVE,
    **dict.fromkeys(("add", "sub", "mul", "neg", "exp", "expm1", "square", "tanh", "sigmoid", "erf", "sin", "cos",
                     "atan", "abs", "sign", "floor", "step", "minimum", "maximum")),
})  # fmt: skip
"""The same of the functions of formulas; `pow` is asked of `power`, log1p(x) of log(1 + x)."""


def power(exponent: Fraction) -> Need | None:
    """What the base of a power with this exponent has to be; None if it may be anything."""
    if exponent.denominator == 1:
        return Need.NONZERO if exponent < 0 else None
    return Need.POSITIVE if exponent < 0 else Need.NONNEGATIVE
