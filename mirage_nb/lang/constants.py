"""Exact constants: rationals and their roots.

In: decimal text and constant arithmetic of a program. Out: `Number`, and the `ConstAttrs` of a scalar in a graph. What
is neither a rational nor a root, as a logarithm, is the double next to it.
Invariant: equal values are equal objects, so that `8`, `64**0.5` and `2 * 4` share one operator; nothing is
computed whose result would pass the stated limits.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from mirage_nb.errors import MirageError, ProgramSizeError, ProgramSyntaxError, ShapeError
from mirage_nb.ir.ops import ConstAttrs
from mirage_nb.lang.limits import MAX_BITS, MAX_CONST, MAX_ROOT, MIN_CONST_BITS

_REAL = "constants are finite real numbers"


@dataclass(frozen=True, slots=True)
class Number:
    """sign * radicand ** (1 / root): root is 1 for rationals and as small as it can be, sign is 1 or -1."""

    sign: int
    radicand: Fraction
    root: int = 1

    @classmethod
    def of(cls, value: Fraction | int) -> Number:
        """The rational number `value`. Raises ProgramSizeError beyond the limits."""
        value = value if isinstance(value, Fraction) else Fraction(value)
        if _bits(value) > MAX_BITS:
            raise too_large()
        return cls(-1 if value < 0 else 1, abs(value))

    @property
    def rational(self) -> Fraction | None:
        """The exact value, or None for an irrational root."""
        return (self.radicand if self.sign > 0 else -self.radicand) if self.root == 1 else None

    @property
    def nearest(self) -> Fraction:
        """The exact value of a rational, of a root the double next to it."""
        return self.sign * (self.radicand if self.root == 1 else _nearest(self.radicand, self.root))

    @property
    def integer(self) -> int | None:
        """The exact value, or None if it is not an integer."""
        value = self.rational
        return value.numerator if value is not None and value.denominator == 1 else None

    def __str__(self) -> str:
        if self.root == 1:
            return str(self.sign * self.radicand)
        numerator, denominator = self.radicand.numerator, self.radicand.denominator
        sign = "-" if self.sign < 0 else ""
        if numerator == 1:
            return f"{sign}{denominator}^(-1/{self.root})"
        base = str(numerator) if denominator == 1 else f"({self.radicand})"
        return f"{sign}{base}^(1/{self.root})"

    def attrs(self) -> ConstAttrs:
        """The constant as an operator's attributes: exact, or a symbol with its nearest double.

        Raises:
            ProgramSizeError: the magnitude is not that of a normal f32 number.
        """
        smallest = Fraction(1, 2**MIN_CONST_BITS)
        if self.radicand and not smallest**self.root <= self.radicand <= Fraction(MAX_CONST) ** self.root:
            raise ProgramSizeError(
                f"the constant {shorten(str(self))} does not fit f32", hint="magnitudes go from 1.2e-38 to 3.4e38"
            )
        if self.root == 1:
            return ConstAttrs(self.sign * self.radicand)
        return ConstAttrs(self.sign * _nearest(self.radicand, self.root), str(self))


def shorten(text: str) -> str:
    """At most 40 characters of `text`."""
    return text if len(text) <= 40 else f"{text[:18]}...{text[-18:]}"


def too_large() -> MirageError:
    """The error for a constant beyond the limit on bits."""
    return ProgramSizeError(
        f"a constant needs more than {MAX_BITS} bits", hint="sizes and factors are ordinary numbers"
    )


@functools.lru_cache(4096)
def literal(text: str) -> Number:
    """The exact value of a literal of a few digits, such as `4_096`, `1e-5`, `.5` or `0xFF`."""
    if text[:2].lower() in ("0x", "0b", "0o"):
        return Number.of(int(text, 0))
    mantissa, _, exponent = text.replace("_", "").lower().partition("e")
    if abs(int(exponent or "0")) > MAX_BITS:  # before the power of ten is computed
        raise too_large()
    return Number.of(Fraction(mantissa) * Fraction(10) ** int(exponent or "0"))


def add(x: Number, y: Number) -> Number:
    """x + y; of two roots, of which none is a rational multiple of the other, the doubles next to them."""
    if not x.radicand or not y.radicand:
        return y if not x.radicand else x
    if x.rational is not None and y.rational is not None:
        return Number.of(x.rational + y.rational)
    ratio = divide(x, y).rational
    return multiply(Number.of(ratio + 1), y) if ratio is not None else Number.of(x.nearest + y.nearest)


def negate(x: Number) -> Number:
    """-x."""
    return Number(-x.sign if x.radicand else 1, x.radicand, x.root)


def subtract(x: Number, y: Number) -> Number:
    """x - y."""
    return add(x, negate(y))


def compared(kind: type[ast.cmpop], x: Number, y: Number) -> bool:
    """Whether two constants compare so."""
    if x == y:
        return kind in (ast.Eq, ast.GtE, ast.LtE)
    above = larger(x, y) == x
    return kind is ast.NotEq or (above if kind in (ast.Gt, ast.GtE) else not above and kind in (ast.Lt, ast.LtE))


def larger(x: Number, y: Number) -> Number:
    """The larger of two."""
    if x.sign != y.sign:
        return x if x.sign > 0 else y
    root = math.lcm(x.root, y.root)
    if root > MAX_ROOT:
        return x if x.nearest > y.nearest else y
    _check_power(x.radicand, root // x.root)
    _check_power(y.radicand, root // y.root)
    above = x.radicand ** (root // x.root) > y.radicand ** (root // y.root)
    return x if above == (x.sign > 0) else y


def multiply(x: Number, y: Number) -> Number:
    """x * y."""
    root = math.lcm(x.root, y.root)
    bits = max(_bits(v.radicand) * (root // v.root) for v in (x, y))
    if root > MAX_ROOT or (root > 1 and bits > MAX_BITS):
        return Number.of(Fraction(float(x.nearest) * float(y.nearest)))
    radicand = x.radicand ** (root // x.root) * y.radicand ** (root // y.root)
    return _rooted(x.sign * y.sign, radicand, root)


def divide(x: Number, y: Number) -> Number:
    """x / y. Raises ShapeError for y = 0."""
    if not y.radicand:
        raise ShapeError("a constant is divided by zero", hint="write another number")
    return multiply(x, Number(y.sign, 1 / y.radicand, y.root))


def floor_divide(x: Number, y: Number) -> Number:
    """x // y for rationals."""
    quotient = divide(x, y).rational
    if quotient is None:
        raise ProgramSyntaxError("// divides rational numbers", hint="use / for roots")
    return Number.of(quotient.numerator // quotient.denominator)


def remainder(x: Number, y: Number) -> Number:
    """x - x // y * y."""
    return subtract(x, multiply(floor_divide(x, y), y))


def function_of(name: str, function: Callable[[float], float], x: object) -> Number:
    """The double next to a function of a constant.

    Raises:
        ProgramSyntaxError: this is no constant.
        ShapeError: the function has no finite value there.
    """
    if not isinstance(x, Number):
        raise ProgramSyntaxError(f"{name} takes a constant", hint="constants are defined as NAME = 16")
    try:
        return Number.of(Fraction(function(float(x.nearest))))
    except (ValueError, OverflowError):
        raise ShapeError(f"{name} of {shorten(str(x))} is no number", hint=_REAL) from None


def power(x: Number, y: Number) -> Number:
    """x ** y for a rational y.

    Raises:
        ProgramSizeError: the result is beyond the limits; it is not computed.
        ShapeError: zero to a negative power, or a root of a negative number.
    """
    exponent = y.rational
    if exponent is None:
        raise ProgramSyntaxError(f"the exponent {shorten(str(y))} is irrational", hint="exponents are rational")
    if not x.radicand:
        if exponent < 0:
            raise ShapeError("zero to a negative power divides by zero", hint=_REAL)
        return Number.of(0 if exponent else 1)
    if x.sign < 0 and exponent.denominator != 1:
        message = f"{shorten(str(x))} has no real root of order {shorten(str(exponent.denominator))}"
        raise ShapeError(message, hint=_REAL)
    sign = x.sign if exponent.numerator % 2 else 1
    if x.radicand == 1:
        return Number(sign, x.radicand)
    _check_power(x.radicand, exponent.numerator)
    if x.root * exponent.denominator > MAX_ROOT:
        return function_of("**", lambda base: sign * abs(base) ** float(exponent), x)
    return _rooted(sign, x.radicand**exponent.numerator, x.root * exponent.denominator)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _check_power(base: Fraction, exponent: int) -> None:
    """Refuse base ** exponent before it is computed."""
    bits = _bits(base)
    if bits > 1 and (bits - 1) * abs(exponent) > MAX_BITS * MAX_ROOT:
        raise too_large()


def _rooted(sign: int, radicand: Fraction, root: int) -> Number:
    """sign * radicand ** (1/root) with the smallest root."""
    if not radicand:
        return Number.of(0)
    for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61) if root > 1 else ():
        while root % prime == 0:
            numerator = _exact_root(radicand.numerator, prime)
            denominator = _exact_root(radicand.denominator, prime)
            if numerator is None or denominator is None:
                break
            radicand, root = Fraction(numerator, denominator), root // prime
    if _bits(radicand) > MAX_BITS:
        raise too_large()
    return Number(sign, radicand, root)


def _floor_root(value: int, root: int) -> int:
    """The largest r with r ** root <= value."""
    from flint import fmpz  # not before it is needed

    return int(fmpz(value).root(root))


def _exact_root(value: int, root: int) -> int | None:
    found = _floor_root(value, root)
    return found if found**root == value else None


def _nearest(radicand: Fraction, root: int) -> Fraction:
    """The double nearest to radicand ** (1/root), as a fraction."""
    size = radicand.numerator.bit_length() - radicand.denominator.bit_length()
    shift = max(0, 80 - size // root)
    scaled = (radicand.numerator << (root * shift)) // radicand.denominator
    return Fraction(float(Fraction(_floor_root(scaled, root), 1 << shift)))
