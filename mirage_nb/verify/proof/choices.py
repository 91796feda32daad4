"""The rules of the prover for choices: what becomes of `Where` and `step`.

In: a term whose parts are in normal form. Out: the next steps, or None. Where(a, b) becomes Where(a, 1) * b, and
Where(a, 1) is a if that is 0 or 1, as comparisons are: so choices become polynomials in steps, each of which is there
once, and step(x) * x is max(x, 0).
"""

from __future__ import annotations

from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof.known import ONE, ZERO, Known, factors, split, step, without
from mirage_nb.verify.proof.signs import is_bit, is_end
from mirage_nb.verify.proof.steps import Step
from mirage_nb.verify.proof.terms import Kind, Term, add, mul, neg, num, top

MAX_NODES = 200
"""Of a term that is looked at for both values of what is 0 or 1."""


def known_step(known: Known, term: Term) -> Step | None:
    """step(x) of an x of which the sign is known."""
    if term.data != "step" or len(term.args) != 1:
        return None
    (inside,) = term.args
    if known.nonnegative(inside):
        return step("step_known", a=inside)
    return step("step_below", a=neg(inside)) if known.holds(Need.POSITIVE, neg(inside)) else None


def of_bits(known: Known, term: Term) -> Step | None:
    """A function of what has a factor that is 0 or 1: the one or the other. A choice, unless it is taken apart, is one
    of the exponential only."""
    for arg in term.args if term.nodes <= MAX_NODES else ():
        for part in arg.args if arg.kind is Kind.ADD else (arg,):
            for factor in factors(part):
                if factor.kind is Kind.FN and is_bit(factor) and (known.definitions or split(arg)[1] == factor):
                    return step("by_cases", a=factor, f=term)
    return None


def choice(known: Known, term: Term) -> Step | None:
    """Where(a, b) is Where(a, 1) * b, and Where(a, 1) is a if that is 0 or 1."""
    if not term.data.startswith("Where") or len(term.args) != 2:
        return None
    condition, chosen = term.args
    if (term.data, chosen) == ("Where", ONE):
        return step("choice_of_bit", a=condition) if is_bit(condition) else None
    if term.data == "Where" or known.definitions:
        return step("choice", g=term.data, a=condition, b=chosen)
    return None


def bits(known: Known, term: Term) -> Step | None:
    """Of what is 0 or 1 a square is itself."""
    for place, part in enumerate(term.args):
        other = term.args.index(part)
        if other < place and is_bit(part):
            return step("bit_square", a=part, r=mul(*without(term.args, place, other)))
    return None


def ends(known: Known, term: Term) -> Step | None:
    """Beside what tells elements inside an axis from others, all are inside."""
    for place, part in enumerate(term.args):
        if is_end(part):
            for other, factor in enumerate(term.args):
                if factor != part and _has(factor, part):
                    return step("bit_beside", a=part, f=factor, r=mul(*without(term.args, place, other)))
    return None


def _has(term: Term, part: Term) -> bool:
    """Whether a term occurs in another one."""
    return part.free <= term.free and (term == part or any(_has(arg, part) for arg in term.args))


def steps(known: Known, term: Term) -> Step | None:
    """step(x) * x is max(x, 0), which step(x) leaves alone and step(-x) makes 0."""
    for place, part in enumerate(term.args):
        if part.kind is Kind.FN and part.data == "step":
            rest = divided(mul(*without(term.args, place)), part.args[0])
            if rest is not None:
                return step("step_largest", a=part.args[0], r=rest)
            for other, largest in enumerate(term.args):
                found = _beside(part.args[0], largest, mul(*without(term.args, place, other)))
                if found is not None:
                    return found
    return None


def _beside(inside: Term, largest: Term, rest: Term) -> Step | None:
    """step(x) beside max(x, 0), max(-x, 0), or the smaller one of x and a numeral that is not negative."""
    if largest == top(inside, ZERO):
        return step("step_beside", a=inside, r=rest)
    parts = inside.args if inside.kind is Kind.ADD else (inside, ZERO)
    a, c = (neg(part) for part in parts) if len(parts) == 2 else (ZERO, ZERO)
    if largest == top(add(a, c), ZERO):
        return step("step_opposed", a=a, c=c, r=rest)
    numbers = [part for part in largest.args if part.kind is Kind.NUM] if largest.kind is Kind.TOP else []
    if len(numbers) == 1 and len(largest.args) == 2:
        (large,) = (part for part in largest.args if part not in numbers)
        shift = sum(part.data for part in parts if part.kind is Kind.NUM)
        least = num(shift - numbers[0].data)
        if least.data >= 0 and large.kind is not Kind.ADD and inside == add(neg(large), num(shift)):
            return step("step_least", a=neg(large), c=num(shift), d=least, r=rest)
    return None


def divided(term: Term, by: Term) -> Term | None:
    """What is left of a product without all factors of another one, but for numerals; None if one is missing."""
    number, rest = split(by)
    left = list(factors(term))
    for factor in factors(rest):
        if factor not in left:
            return None
        left.remove(factor)
    return mul(*left, num(1 / number.data))


def stepped(known: Known, term: Term) -> tuple[Step, ...] | None:
    """step(x + y) * x + step(x + y) * y is max(x + y, 0)."""
    for part in term.args:
        for factor in factors(part):
            if factor.kind is Kind.FN and factor.data == "step" and factor.args[0].kind is Kind.ADD:
                found = _joined(term, divided(part, factor), factor)
                if found:
                    return found
    return None


def _joined(term: Term, product: Term | None, factor: Term) -> tuple[Step, ...]:
    """The steps that join a sum of step(x + y) * x * r and the like."""
    inside = factor.args[0]
    for summand in inside.args:
        rest = None if product is None else divided(product, summand)
        parts = [] if rest is None else [mul(factor, other, rest) for other in inside.args]
        if rest is not None and all(part in term.args for part in parts):
            left, common, made = [part for part in term.args if part not in parts], mul(factor, rest), list[Step]()
            for place in range(1, len(parts)):
                a, b = add(*inside.args[:place]), inside.args[place]
                made.append(step("distribute", True, a=a, b=b, c=common, r=add(*left, *parts[place + 1 :])))
            return (*made, step("step_largest", a=inside, r=rest))
    return ()
