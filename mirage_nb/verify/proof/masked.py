"""Numbers that may be minus infinity, as masks put in: a shift and the logarithm of a weight.

In: an operator, and operands of which some are `Masked`. Out: what it makes of them. A masked number is shift +
log(weight), so minus infinity where its weight is 0; a weight is never negative. What is made of masked numbers by
exponentials is a real number again: exp(shift) * weight, so 0 for minus infinity. Invariant: shift and weight of a
result are what they should be wherever no operand is plus infinity or undefined; whoever asks sees to the rest, that a
number by which another one is less is not minus infinity. Terms and residues share these rules, and tests hold them
against float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, Protocol, TypeVar

from mirage_nb.errors import ProofError
from mirage_nb.ir import OpKind, WhereAttrs
from mirage_nb.ir.ops import Attrs
from mirage_nb.verify.proof import terms
from mirage_nb.verify.proof.terms import Term

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Masked(Generic[T]):
    """A number that may be minus infinity."""

    shift: T
    weight: T


class Numbers(Protocol[T]):
    """What shifts and weights are made by."""

    def number(self, value: int) -> T:
        """0 or 1."""

    def add(self, a: T, b: T) -> T:
        """a + b."""

    def mul(self, a: T, b: T) -> T:
        """a * b."""

    def neg(self, a: T) -> T:
        """-a."""

    def inv(self, a: T) -> T:
        """One over it, and 0 for 0."""

    def exp(self, a: T) -> T:
        """e to it; 1 for 0."""

    def larger(self, a: T, b: T) -> T:
        """The maximum."""

    def chosen(self, condition: T, value: T, other: Fraction) -> T:
        """The value where the condition is not 0, else the other one."""


def real(value: T | Masked[T]) -> T:
    """A value that is a real number. Raises ProofError for another one."""
    if isinstance(value, Masked):
        raise ProofError("a sum, a product, a function or an output may be minus infinity, which is no real number")
    return value


def with_weight(value: T | Masked[T], numbers: Numbers[T]) -> Masked[T]:
    """A number that may be minus infinity, or may not."""
    return value if isinstance(value, Masked) else Masked(value, numbers.number(1))


def raised(value: T | Masked[T], numbers: Numbers[T]) -> T:
    """The exponential."""
    if isinstance(value, Masked):
        return numbers.mul(numbers.exp(value.shift), value.weight)
    return numbers.exp(value)


def logarithm(weight: T, numbers: Numbers[T]) -> Masked[T]:
    """Of what is not negative."""
    return Masked(numbers.number(0), weight)


def of_masked(
    kind: OpKind, attrs: Attrs | None, operands: Sequence[T | Masked[T]], numbers: Numbers[T]
) -> T | Masked[T]:
    """An elementwise operator on operands some of which may be minus infinity, or whose result may be.

    Raises ProofError for operators that are not known there."""
    if isinstance(attrs, WhereAttrs) and attrs.infinite <= 0:
        condition, value = real(operands[0]), with_weight(operands[1], numbers)
        if attrs.infinite:
            weight = numbers.chosen(condition, numbers.number(1), Fraction(0))
            return Masked(value.shift, numbers.mul(weight, value.weight))
        shift = numbers.chosen(condition, value.shift, attrs.other)
        return Masked(shift, numbers.chosen(condition, value.weight, Fraction(1)))
    match kind:
        case OpKind.CAST:
            return operands[0]
        case OpKind.EXP:
            return raised(operands[0], numbers)
        case OpKind.MAXIMUM:
            return logarithm(numbers.larger(*(raised(x, numbers) for x in operands)), numbers)
        case OpKind.MUL | OpKind.DIV if not isinstance(operands[-1], Masked):  # by what is positive, see `translate`
            a, by = with_weight(operands[0], numbers), real(operands[1])
            return Masked(numbers.mul(a.shift, by if kind is OpKind.MUL else numbers.inv(by)), a.weight)
        case OpKind.ADD | OpKind.SUB:
            a, b = (with_weight(x, numbers) for x in operands)
            if kind is OpKind.SUB:
                b = Masked(numbers.neg(b.shift), numbers.inv(b.weight))
            return Masked(numbers.add(a.shift, b.shift), numbers.mul(a.weight, b.weight))
    raise ProofError(f"{kind.value} of what may be minus infinity")


class Terms:
    """Shifts and weights that are terms."""

    number = staticmethod(terms.num)
    add = staticmethod(terms.add)
    mul = staticmethod(terms.mul)
    neg = staticmethod(terms.neg)
    inv = staticmethod(terms.inv)
    exp = staticmethod(terms.exp)
    larger = staticmethod(terms.top)

    def chosen(self, condition: Term, value: Term, other: Fraction) -> Term:
        """A choice by its name."""
        return terms.fn(f"Where(other={other})" if other else "Where", condition, value)


TERMS: Numbers[Term] = Terms()
