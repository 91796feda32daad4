"""The rules of the prover for what compares and rounds: steps of the largest of several, of what is multiplied, and of
exponentials; whole numbers beside what is rounded.

In: a term whose parts are in normal form. Out: the next steps, or None. What is on which side of 0 depends on no factor
that is positive, and exponentials are compared as their exponents are.
"""

from __future__ import annotations

import math

from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof.exponentials import as_one, exponents
from mirage_nb.verify.proof.known import (
    ONE,
    ZERO,
    Known,
    factors,
    leading,
    opened_apart,
    split,
    step,
    taken_out,
    without,
)
from mirage_nb.verify.proof.steps import Step
from mirage_nb.verify.proof.terms import Kind, Term, add, mul, num, top


def step_of_largest(known: Known, term: Term) -> Step | None:
    """step of what has the larger of two in it, or a maximum, is the larger or smaller of steps."""
    parts = _stepped(term)
    for place, part in enumerate(parts):
        number, largest = split(part)
        c, d, adds = add(*without(parts, place)), num(abs(number.data)), number.data > 0
        if largest.kind is Kind.TOP:
            a, b = largest.args[0], top(*largest.args[1:])
            return step("step_of_largest" if adds else "step_of_least", a=a, b=b, c=c, d=d)
        if largest.kind is Kind.MAX:
            indices, (body,) = opened_apart(largest, term.free)
            return step("step_of_maximum" if adds else "step_of_minimum", V=indices, f=body, c=c, d=d)
    return None


def step_of_multiple(known: Known, term: Term) -> tuple[Step, ...] | None:
    """A positive numeral in front of what a step is of, or of its first summand, is none."""
    parts = _stepped(term)
    scale = abs(leading(term.args[0])) if parts else 1
    return None if scale in (0, 1) else _scaled(term, num(scale), [mul(num(1 / scale), part) for part in parts])


def step_of_common(known: Known, term: Term) -> tuple[Step, ...] | None:
    """A positive factor of all summands of what a step is of is none, either."""
    first, *others = every = [list(factors(part)) for part in _stepped(term)] or [[]]
    for factor in first:
        if all(factor in one for one in others) and factor.kind is not Kind.NUM and known.holds(Need.POSITIVE, factor):
            return _scaled(term, factor, [mul(*without(one, one.index(factor))) for one in every])
    return None


def _scaled(term: Term, scale: Term, parts: list[Term]) -> tuple[Step, ...]:
    """The steps that leave a positive factor of what a step is of out; `parts`: its summands without that."""
    apart = taken_out(term.args[0], scale, parts) if len(parts) > 1 else ()
    return (*apart, step("step_scale", a=add(*parts), c=scale))


def step_of_exponentials(known: Known, term: Term) -> tuple[Step, ...] | None:
    """An exponential is at least another one, or 1, where its exponent is at least the other one, or 0."""
    pairs = [split(part) for part in _stepped(term)]
    by_sign = {number.data: rest for number, rest in pairs}
    if len(pairs) != 2 or by_sign.keys() != {1, -1}:
        return None
    large, small = (() if by_sign[sign] == ONE else exponents(by_sign[sign]) for sign in (1, -1))
    if any(by_sign[sign] != ONE and not found for sign, found in ((1, large), (-1, small))):
        return None
    joined = (*as_one(large), *as_one(small, num(-1)))
    return (*joined, step("step_exponentials", a=add(*large) if large else ZERO, b=add(*small) if small else ZERO))


def _stepped(term: Term) -> tuple[Term, ...]:
    """The summands of what a step is of."""
    if term.data != "step" or len(term.args) != 1:
        return ()
    (inside,) = term.args
    return inside.args if inside.kind is Kind.ADD else (inside,)


def floor_of_sum(known: Known, term: Term) -> Step | None:
    """A whole number leaves what is rounded down."""
    if term.data != "floor" or len(term.args) != 1 or term.args[0].kind is not Kind.ADD:
        return None
    number = sum(part.data for part in term.args[0].args if part.kind is Kind.NUM)
    whole = math.floor(number)
    return step("floor_whole", a=add(term.args[0], num(-whole)), n=num(whole)) if whole else None
