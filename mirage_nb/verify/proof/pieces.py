"""The rules of the prover for what is said by cases: polynomials between thresholds, one for each piece.

In: a term whose parts are in normal form, and whose constants are numerals. Out: the next steps, or None. Here nothing
is a maximum: max(a, b) is b + step(a - b) * (a - b). Of step(x) and step(-x) the former is kept, and their product,
which is 1 where x is 0; beside that the first summand of x is what it is there. Of two thresholds on one side of a term
the farther one is enough, and on the far sides of each other they leave nothing. So what is the same between all
thresholds, and at each, has one form.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from mirage_nb.verify.proof.choices import MAX_NODES, divided
from mirage_nb.verify.proof.known import ONE, ZERO, Known, factors, leading, split, step, taken_out, without
from mirage_nb.verify.proof.steps import Step
from mirage_nb.verify.proof.terms import Kind, Term, add, fn, given, mul, neg, num, replaced, top


def apart(known: Known, term: Term) -> Step:
    """The larger of two is one of them and, where the other one is larger, their difference."""
    large, *others = sorted(term.args, key=lambda part: part.kind is Kind.NUM)
    if others == [ZERO]:
        return step("step_largest", True, a=large, r=ONE)
    return step("largest_difference", a=large, b=top(*others))


def by_cases(known: Known, term: Term) -> Step | None:
    """A function of what has steps in it: first those of step(-x), which else would be made of step(x) again."""
    parts = (part for arg in term.args for part in (arg.args if arg.kind is Kind.ADD else (arg,)))
    steps = [factor for part in parts for factor in factors(part) if _is_step(factor)]
    if not steps or term.nodes > MAX_NODES:
        return None
    return step("by_cases", a=min(steps, key=lambda bit: leading(bit.args[0]) >= 0), f=term)


def turned(known: Known, term: Term) -> tuple[Step, ...] | None:
    """step(-x) is 1 - step(x), but for where x is 0."""
    adds = term.kind is Kind.ADD
    for place, part in enumerate(term.args if adds else (term,)):
        parts = () if adds and part.kind is Kind.MUL else factors(part)
        for other, factor in enumerate(parts):
            if _is_step(factor) and leading(factor.args[0]) < 0:
                twin = _Twin.of(factor.args[0])
                if fn("step", twin.opposite) not in parts:
                    r, s = mul(*without(parts, other)), add(*without(term.args, place)) if adds else ZERO
                    return (*twin.taken, step("step_turned", a=twin.opposite, r=twin.within(r), s=twin.within(s)))
    return None


def bounded(known: Known, term: Term) -> Step | tuple[Step, ...] | None:
    """Of step(x) and step(x + 1) the former is enough; step(x) and step(-x - 1) are nowhere both 1."""
    steps = [place for place, part in enumerate(term.args) if _is_step(part)]
    for place in steps:
        for other in steps:
            inside, outside = term.args[place].args[0], term.args[other].args[0]
            rest = mul(*without(term.args, place, other))
            more = _beyond(outside, inside) if place != other else None
            if more is not None and more >= 0:
                return step("step_above", a=inside, c=num(more), r=rest)
            twin = _Twin.of(outside)
            more = _beyond(twin.opposite, inside)
            if more is not None and more > 0:
                return (*twin.taken, step("step_opposite", a=inside, c=num(more), r=twin.within(rest)))
    return None


def at_threshold(known: Known, term: Term) -> tuple[Step, ...] | None:
    """Beside step(x) * step(-x) the first summand of x is the others, negated."""
    for place, part in enumerate(term.args):
        twin = _Twin.of(part.args[0]) if _is_step(part) and leading(part.args[0]) < 0 else None
        if twin is None or fn("step", twin.opposite) not in term.args:
            continue
        rest = mul(*without(term.args, place, term.args.index(fn("step", twin.opposite))))
        parts = twin.opposite.args if twin.opposite.kind is Kind.ADD else (twin.opposite,)
        first = min((one for one in parts if one.kind is not Kind.NUM), key=lambda one: split(one)[1].digest)
        others, f = add(*without(parts, parts.index(first))), twin.within(rest)
        if given(f, first, neg(others)) != f:
            return (*twin.taken, step("step_at", a=first, c=others, f=f))
        left = divided(f, first)
        if left is not None:
            return (*twin.taken, step("step_at_product", a=first, c=others, r=left))
    return None


@dataclass(frozen=True, slots=True)
class _Twin:
    """A term as minus another one: the steps that write it so, what it then is, and the other one."""

    taken: tuple[Step, ...]
    term: Term
    written: Term
    opposite: Term

    @classmethod
    def of(cls, term: Term) -> _Twin:
        if term.kind is not Kind.ADD:
            return cls((), term, term, neg(term))
        parts = [neg(part) for part in term.args]
        opposite = add(*parts)
        return cls(taken_out(term, num(-1), parts), term, neg(opposite), opposite)

    def within(self, other: Term) -> Term:
        """Another term after these steps."""
        return replaced(other, self.term, self.written)


def _is_step(term: Term) -> bool:
    return term.kind is Kind.FN and term.data == "step" and len(term.args) == 1


def _beyond(term: Term, other: Term) -> Fraction | None:
    """The numeral by which a term is more than another one; None where they differ otherwise."""
    (shift, rest), (its_shift, its_rest) = map(_shifted, (term, other))
    return shift - its_shift if rest == its_rest else None


def _shifted(term: Term) -> tuple[Fraction, Counter[Term]]:
    """The numeral in a sum, and its other summands."""
    parts = term.args if term.kind is Kind.ADD else (term,)
    return sum((Fraction(p.data) for p in parts if p.kind is Kind.NUM), Fraction(0)), Counter(
        part for part in parts if part.kind is not Kind.NUM
    )
