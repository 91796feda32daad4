"""What the constants of a graph are as real numbers: rationals, and roots of rationals to any number of bits.

In: the attributes of a constant. Out: a rational, or a ball of the precision at hand. A root stands in the symbol of a
constant, as `2^(-1/2)`, beside the double that is next to it; any other symbol is a name for its value.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

from flint import arb, fmpq

from mirage_nb.ir import ConstAttrs

ROOT = re.compile(r"(-?)(?:([1-9][0-9]*)|\(([1-9][0-9]*)/([1-9][0-9]*)\))\^\((-?)1/([1-9][0-9]?)\)")


def rational(value: Fraction) -> Any:
    """The number that a fraction is."""
    return fmpq(value.numerator, value.denominator)


def constant(attrs: ConstAttrs) -> Any:
    """The number that a constant stands for."""
    found = root_of(attrs)
    return rational(attrs.value) if found is None else _ball(*found)


def root_of(attrs: ConstAttrs) -> tuple[Fraction, int] | None:
    """A number, and which root of it a constant is, less than 0 for that of its inverse; None for a constant that is
    none. A root of less than 0 is one less than 0."""
    found = ROOT.fullmatch(attrs.symbol) if attrs.symbol else None
    if found is None:
        return None
    sign, whole, top, bottom, below, degree = found.groups()
    number = Fraction(int(whole or top), int(bottom or 1)) * (-1 if sign else 1)
    root = number, -int(degree) if below else int(degree)
    return root if _is_nearest(attrs.value, *root) else None


def _is_nearest(value: Fraction, number: Fraction, degree: int) -> bool:
    """Whether a number is the double next to a root, whatever the precision of balls is just now."""
    if (value < 0) != (number < 0) or Fraction(float(value)) != value:
        return False
    ends = ((abs(value) + Fraction(math.nextafter(float(abs(value)), end))) / 2 for end in (0.0, math.inf))
    below, above = (end ** abs(degree) for end in ends)
    return below <= (abs(number) if degree > 0 else 1 / abs(number)) <= above


def _ball(number: Fraction, degree: int) -> Any:
    made = arb(rational(abs(number))).root(abs(degree))
    return (-1 if number < 0 else 1) * (1 / made if degree < 0 else made)
