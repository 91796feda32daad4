"""What the constants of a graph are as real numbers: rationals, and roots of rationals to any number of bits.

In: the attributes of a constant. Out: a rational, or a ball of the precision at hand. A root stands in the symbol of a
constant, as `2^(-1/2)`, beside the double that is next to it; any other symbol is a name for its value.
"""

from __future__ import annotations

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
    root = _root(attrs.symbol) if attrs.symbol else None
    return root if root is not None and float(root.mid()) == attrs.value else rational(attrs.value)


def _root(symbol: str) -> Any | None:
    """The root that a symbol says, if it does."""
    found = ROOT.fullmatch(symbol)
    if found is None:
        return None
    sign, whole, top, bottom, below, degree = found.groups()
    made = arb(fmpq(int(whole or top), int(bottom or 1))).root(int(degree))
    return (-1 if sign else 1) * (1 / made if below else made)
