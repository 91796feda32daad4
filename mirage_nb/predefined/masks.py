"""Masks that a program says by numbers along its axes, as what kernels know: causal, or a window of keys.

In: the condition of a `Where` over scores [..., queries, keys]. Out: a `Band`, or None for any other mask.
A condition is read as inequalities a i + b j + c >= 0 of the row i and the column j.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from mirage_nb.ir import OpKind
from mirage_nb.predefined.reading import Reading

STEP, ABOVE = "step(x)", "1 - step(-x)"
"""The formulas of x >= 0 and of x > 0 (`lang.masks`)."""


@dataclass(frozen=True, slots=True)
class Band:
    """Key j is seen by query i where j <= i, and, with a window, i - j <= window."""

    window: int | None = None


@dataclass(frozen=True, slots=True)
class Affine:
    """row * i + column * j + constant."""

    row: Fraction
    column: Fraction
    constant: Fraction

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        """The sum, or the difference."""
        return Affine(
            self.row + sign * other.row, self.column + sign * other.column, self.constant + sign * other.constant
        )

    def times(self, factor: Fraction) -> Affine:
        """A multiple."""
        return Affine(factor * self.row, factor * self.column, factor * self.constant)


ONE = Affine(Fraction(0), Fraction(0), Fraction(1))


def band(reading: Reading, condition: int) -> Band | None:
    """The mask that a condition is, if kernels know it."""
    found = _Conditions(reading).inequalities(condition)
    if found is None or any(a.row != -a.column or a.row == 0 for a in found):
        return None
    below = [a.constant / a.row for a in found if a.row > 0]  # i - j + c >= 0
    above = [a.constant / -a.row for a in found if a.row < 0]  # c - (i - j) >= 0
    if len(below) != 1 or below[0] != 0 or len(above) > 1 or any(c < 0 or c.denominator != 1 for c in above):
        return None
    return Band(int(above[0]) if above else None)


@dataclass(frozen=True, slots=True)
class Triangle:
    """A matrix that is 1 from its diagonal on to the right, or to the left, with or without the diagonal, and else 0:
    rows times it are their running sums."""

    left: bool = False
    strict: bool = False


def triangle(reading: Reading, matrix: int) -> Triangle | None:
    """The triangle that a matrix is, if it is one."""
    cast = reading.op(matrix, OpKind.CAST)  # every type has 0 and 1
    found = _Conditions(reading).inequalities(matrix if cast is None else cast.inputs[0])
    for made in (Triangle(left, strict) for left in (False, True) for strict in (False, True)):
        slope = Fraction(1 if made.left else -1)
        if found == frozenset({Affine(slope, -slope, Fraction(-1 if made.strict else 0))}):
            return made
    return None


class _Conditions:
    """What the values of one graph say of row and column; each is read once, however often it is used."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._inequalities = cache(self._read_inequalities)
        self._affine = cache(self._read_affine)

    def inequalities(self, value: int) -> frozenset[Affine] | None:
        """The inequalities that all have to hold where a mask is 1."""
        return self._inequalities(value)

    def _read_inequalities(self, value: int) -> frozenset[Affine] | None:
        reading = self._reading
        for text in (STEP, ABOVE):
            if (inner := reading.formula(value, text)) is not None:
                found = self._affine(inner)
                if found is None:
                    return None
                return frozenset({found if text == STEP else found.plus(ONE, -1)})
        less = reading.op(value, OpKind.SUB)
        if less is not None and reading.number(less.inputs[0]) == 1:
            turned = self._inequalities(less.inputs[1])
            if turned is None or len(turned) != 1:
                return None
            return frozenset(a.times(Fraction(-1)).plus(ONE, -1) for a in turned)
        op = reading.op(value, OpKind.MUL)
        if op is None:
            return None
        first, second = (self._inequalities(v) for v in op.inputs)
        return first | second if first is not None and second is not None else None

    def _read_affine(self, value: int) -> Affine | None:
        """A value as a function of the row and the column; whole numbers only, so that > 0 is >= 1."""
        reading = self._reading
        number = reading.number(value)
        if number is not None:
            return ONE.times(number) if number.denominator == 1 else None
        source = reading.reshaped(value)
        if reading.op(source, OpKind.ARANGE) is not None:
            return _numbered(reading.shape(value), reading.shape(source)[0])
        if (scaled := reading.scaled(value)) is not None and scaled[1].denominator == 1:
            inner = self._affine(scaled[0])
            return inner.times(scaled[1]) if inner is not None else None
        op = reading.op(value, OpKind.ADD, OpKind.SUB)
        if op is None:
            return None
        left, right = (self._affine(v) for v in op.inputs)
        return left.plus(right, 1 if op.kind is OpKind.ADD else -1) if left is not None and right is not None else None


def _numbered(shape: tuple[int, ...], extent: int) -> Affine | None:
    """The numbers 0, 1, ... of that extent, as they lie in a shape."""
    if extent == 1:  # no dimension: what is broadcast from it counts nothing
        return ONE.times(Fraction(0))
    for place, (row, column) in ((-1, (0, 1)), (-2, (1, 0))):
        lined = tuple(extent if dim == len(shape) + place else 1 for dim in range(len(shape)))
        if len(shape) >= -place and shape == lined:
            return Affine(Fraction(row), Fraction(column), Fraction(0))
    return None
