"""Numbers so large, and powers so high, that fields may see a zero in them where the reals see none.

In: a graph. Out: whether its numbers are believed to be 0 where all fields say so. What is a multiple of every prime
that trials draw from is 0 in all of them: the product of all whole numbers of 31 bits, which takes a second to compute.
So is x ** n - 1 for an n that counts the elements of a field. Either takes bits of coefficients, or a degree, that no
program comes near that somebody wants computed. Polynomials are in the inputs and in what functions outside of LAX make
of them; what is added up along an axis counts as if it had one denominator: products are what makes numbers large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from mirage_nb.interp.arrays import Move
from mirage_nb.interp.run import run_kernel
from mirage_nb.ir import AccumKind, ArangeAttrs, ConstAttrs, KernelGraph, OpKind, PowAttrs, WhereAttrs
from mirage_nb.ir.ops import Attrs
from mirage_nb.verify.fields.lax import OPAQUE

MOST_BITS, MOST_DEGREE = 2.0**20, 2.0**30
"""What trials are believed about. All primes of the pool together have 25 million bits, and few have two of any four
trials in common; three residual layers have 5,000 bits and degree 100."""
TERMS = 31.0
"""Bits that a sum along an axis adds at most."""


class Side(NamedTuple):
    """A polynomial: its degree, and the bits of its coefficients."""

    degree: float = 0.0
    bits: float = 0.0

    def times(self, other: Side) -> Side:
        """The product."""
        return Side(self.degree + other.degree, self.bits + other.bits)

    def plus(self, other: Side, bits: float = 1.0) -> Side:
        """The sum, or the sum of so many bits of such."""
        return Side(max(self.degree, other.degree), max(self.bits, other.bits) + bits)


class Height(NamedTuple):
    """A quotient of polynomials."""

    top: Side
    bottom: Side = Side()

    @property
    def believed(self) -> bool:
        """Whether it is no zero in most fields unless it is one."""
        return all(side.bits <= MOST_BITS and side.degree <= MOST_DEGREE for side in self)


VARIABLE, ONE = Height(Side(degree=1)), Height(Side())
VARIABLES = frozenset({OpKind.EXP, OpKind.SIGMOID, OpKind.MAX, OpKind.MAXIMUM, *OPAQUE})
"""What they make is no polynomial of what they are given: it stands for itself."""


def is_believed(graph: KernelGraph, *, roots: bool = True) -> bool:
    """Whether what is 0 in the fields that trials draw is so for no other reason than that. Without `roots` these
    are any functions there, and what they make stands for itself."""
    algebra = _Heights(roots)
    run_kernel(graph, [VARIABLE] * len(graph.inputs), algebra)
    return algebra.believed


def _product(a: Height, b: Height) -> Height:
    return Height(a.top.times(b.top), a.bottom.times(b.bottom))


def _sum(a: Height, b: Height) -> Height:
    if a.bottom == b.bottom == Side():
        return Height(a.top.plus(b.top))
    return Height(a.top.times(b.bottom).plus(b.top.times(a.bottom)), a.bottom.times(b.bottom))


def _quotient(a: Height, b: Height) -> Height:
    return _product(a, Height(b.bottom, b.top))


def _either(values: Sequence[Height]) -> Height:
    top, bottom = values[0]
    for other in values[1:]:
        top, bottom = top.plus(other.top, 0), bottom.plus(other.bottom, 0)
    return Height(top, bottom)


def _along(x: Height) -> Height:
    """The sum of any number of such."""
    return Height(x.top.plus(x.top, TERMS), x.bottom)


def _number(value: Fraction) -> Height:
    sides = (Side(bits=math.log2(max(1, abs(number)))) for number in (value.numerator, value.denominator))
    return Height(*sides)


def _power(x: Height, exponent: Fraction) -> Height:
    raised = Height(*(Side(*(abs(exponent.numerator) * part for part in side)) for side in x))
    return _quotient(ONE, raised) if exponent < 0 else raised


@dataclass
class _Heights:
    """The algebra whose values are heights; `believed`: whether all were so far."""

    roots: bool
    believed: bool = True

    def apply(self, kind: OpKind, operands: Sequence[Height], attrs: Attrs | None, batch: int) -> Height:
        made = self._made(kind, operands, attrs)
        self.believed &= made.believed
        return made

    def _made(self, kind: OpKind, xs: Sequence[Height], attrs: Attrs | None) -> Height:
        match kind, attrs:
            case OpKind.SQRT, _ if not self.roots:
                return VARIABLE
            case _, PowAttrs(exponent) if exponent.denominator > 1 and not self.roots:
                return _power(VARIABLE, exponent)
            case _, ConstAttrs(value, symbol):
                return VARIABLE if symbol else _number(value)
            case _, ArangeAttrs(extent=extent):
                return _number(Fraction(extent))
            case _, WhereAttrs(other=other):
                return _sum(_product(VARIABLE, xs[1]), _product(VARIABLE, _number(other)))
            case _, PowAttrs(exponent):
                return _power(xs[0], exponent)
            case ((OpKind.MUL | OpKind.SILU), _):
                return _product(xs[0], xs[-1] if kind is OpKind.MUL else VARIABLE)
            case OpKind.SQR, _:
                return _product(xs[0], xs[0])
            case OpKind.DIV, _:
                return _quotient(*xs)
            case ((OpKind.ADD | OpKind.SUB), _):
                return _sum(*xs)
            case ((OpKind.SUM | OpKind.RUNNING_SUM), _):
                return _along(xs[0])
            case OpKind.MATMUL, _:
                return _along(_product(*xs))
            case OpKind.CONCAT_MATMUL, _:
                return _sum(_along(_product(xs[0], xs[2])), _along(_product(xs[1], xs[3])))
            case OpKind.RESCALED_SUM, _:
                return _along(_product(xs[0], VARIABLE))
        return VARIABLE if kind in VARIABLES else _either(xs)

    def view(self, value: Height, move: Move) -> Height:
        return value

    def join(self, parts: Sequence[Height], dim: int, batch: int) -> Height:
        return _either(parts)

    def fold(
        self, kind: AccumKind, state: tuple[Height, ...], operands: Sequence[Height], batch: int
    ) -> tuple[Height, ...]:
        """What every iteration makes is as high."""
        x, *rest = operands
        if kind in (AccumKind.SUM, AccumKind.RESCALE):
            x = _along(_product(x, VARIABLE) if rest else x)
        made = (x, *rest)
        return tuple(_either(pair) for pair in zip(state, made, strict=True)) if state else made
