"""The rules of the prover for the largest of several: what ReLU, clamps, absolute values and roots of squares become.

In: a term whose parts are in normal form, and what is known of signs. Out: the next step, or None. The smallest of
several is -max(-a, -b, ...). The normal form is a largest of smallest; of two, one of which is no numeral, it is
max(a - b, 0) + b, and of max(a, 0) and max(-a, 0) + a one is kept, so that |x| is 2 max(x, 0) - x.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof.known import ZERO, Known, Rule, factors, leading, split, step, taken_out, without
from mirage_nb.verify.proof.steps import Step
from mirage_nb.verify.proof.terms import Kind, Term, add, mul, neg, num, top


def _known(known: Known, term: Term) -> Step | None:
    """What is never larger than another one is left out: it is less by a summand that is not negative."""
    for place, large in enumerate(term.args):
        for other, small in enumerate(term.args):
            difference = _difference(large, small) if place != other else None
            if difference is not None and known.nonnegative(difference):
                rest = without(term.args, place, other)
                return step("largest_known", a=small, c=difference, b=top(*rest) if rest else large)
    return None


def _difference(large: Term, small: Term) -> Term | None:
    """What is added to one term to make another; None unless the summands of the one are among those of the other."""
    if small.kind is Kind.NUM:
        if large.kind is Kind.NUM:
            return num(large.data - small.data)
        return add(large, num(-small.data))
    rest = Counter(_summands(large))
    rest.subtract(_summands(small))
    return add(*rest.elements()) if min(rest.values()) >= 0 else None


def _summands(term: Term) -> tuple[Term, ...]:
    return term.args if term.kind is Kind.ADD else (term,)


def opposed(known: Known, term: Term) -> Step | None:
    """x less the larger one of x and a numeral is the smaller one less the numeral, and the larger one of x and a
    numeral less that of x and a larger numeral is x between them, less the larger numeral."""
    limited = [(place, *found) for place, part in enumerate(term.args) for found in _limited(part)]
    for place, scale, large, number in limited:
        twin = mul(num(-1), scale, large)
        if twin in term.args and number != ZERO:
            rest = add(*without(term.args, place, term.args.index(twin)))
            return step("largest_opposed", a=large, b=number, c=neg(scale), r=rest)
        for other, its_scale, its_large, its_number in limited:
            if (its_scale, its_large) == (neg(scale), large) and its_number.data > number.data:
                rest, difference = add(*without(term.args, place, other)), num(its_number.data - number.data)
                return step("largest_between", a=large, b=number, c=scale, d=difference, r=rest)
    return None


def _limited(part: Term) -> Iterator[tuple[Term, Term, Term]]:
    """A product of a scale and the larger one of a term and a numeral: these three."""
    for place, factor in enumerate(factors(part)):
        if factor.kind is Kind.TOP and len(factor.args) == 2 and any(arg.kind is Kind.NUM for arg in factor.args):
            number, large = sorted(factor.args, key=lambda arg: arg.kind is not Kind.NUM)
            yield mul(*without(factors(part), place)), large, number


def _absorbed(known: Known, term: Term) -> Step | None:
    """The smallest of several is never larger than one of them."""
    for place, least in enumerate(term.args):
        for part in _lower(least):
            for other, large in enumerate(term.args):
                difference = _difference(large, neg(part)) if place != other else None
                if difference is not None and known.nonnegative(difference):
                    rest = without(term.args, place, other)
                    others = top(*without(_lower(least), _lower(least).index(part)))
                    more = top(*rest) if rest else large
                    return step("largest_absorbs", a=neg(part), c=difference, b=others, d=more)
    return None


def _lower(term: Term) -> tuple[Term, ...]:
    """The parts of t in -max(t, ...)."""
    if term.kind is Kind.MUL and len(term.args) == 2:
        number, rest = split(term)
        if number.data == -1 and rest.kind is Kind.TOP:
            return rest.args
    return ()


def _joined(known: Known, term: Term) -> Step | None:
    """The larger one of two, which is max(a - b, 0) + b, in one of several: all of these stand side by side."""
    for place, part in enumerate(term.args):
        summands = _summands(part)
        for number, inner in enumerate(summands if len(summands) > 1 else ()):
            if inner.kind is Kind.TOP and len(inner.args) == 2 and ZERO in inner.args:
                (large,) = without(inner.args, inner.args.index(ZERO))
                others = top(*without(term.args, place))
                return step("largest_joined", a=large, b=add(*without(summands, number)), c=others)
    return None


def _shared(known: Known, term: Term) -> Step | None:
    """What both of two have in common, a summand or a factor that is not negative, leaves them."""
    if len(term.args) != 2:
        return None
    for kind, axiom, joined in ((Kind.ADD, "largest_shift", add), (Kind.MUL, "largest_scale", mul)):
        left, right = (list(part.args if part.kind is kind else (part,)) for part in term.args)
        for part in left:
            if part in right and part.kind is not Kind.NUM and (kind is Kind.ADD or known.nonnegative(part)):
                left.remove(part)
                right.remove(part)
                return step(axiom, a=joined(*left), b=joined(*right), c=part)
    return None


def _numerals(known: Known, term: Term) -> Step | tuple[Step, ...] | None:
    """max(2 x + 2 y + 2, 6) is 2 max(x + y, 2) + 2: beside a numeral stands a term without one, with 1 in front."""
    numbers = [part for part in term.args if part.kind is Kind.NUM]
    if len(term.args) != 2 or len(numbers) != 1:
        return None
    (large,) = without(term.args, term.args.index(numbers[0]))
    constant = sum(part.data for part in _summands(large) if part.kind is Kind.NUM)
    if constant:
        rest = add(*(part for part in _summands(large) if part.kind is not Kind.NUM))
        return step("largest_shift", a=rest, b=num(numbers[0].data - constant), c=num(constant))
    factor = abs(leading(large))
    if factor != 1:
        parts = [mul(num(1 / factor), part) for part in _summands(large)]
        scaled = step("largest_scale", a=add(*parts), b=num(numbers[0].data / factor), c=num(factor))
        return (*taken_out(large, num(factor), parts), scaled)
    return None


def _apart(known: Known, term: Term) -> Step | None:
    """Of two terms their difference is compared with 0, whichever way round; but for maxima of different terms, which
    are apart."""
    if len(term.args) != 2 or any(map(_lower, term.args)):
        return None
    if any(part.kind is Kind.MAX for part in term.args) and len({split(part)[1] for part in term.args}) > 1:
        return None
    small, large = sorted(term.args, key=lambda part: part.kind is not Kind.NUM)
    if small.kind is not Kind.NUM:
        return step("largest_difference", a=large, b=small)
    if small == ZERO and leading(large) < 0:
        return step("largest_turned", a=large)
    return None


def _scaled(known: Known, term: Term) -> Step | None:
    """The numeral that both of two maxima are multiplied by stands in front."""
    scales = {abs(split(part)[0].data) for part in term.args}
    if len(term.args) != 2 or len(scales) != 1 or not scales.isdisjoint((0, 1)):
        return None
    (scale,) = scales
    a, b = (mul(num(1 / scale), part) for part in term.args)
    return step("largest_scale", a=a, b=b, c=num(scale))


def _product(known: Known, term: Term) -> Step | None:
    """max(x y, 0) is made of max(x, 0) and max(y, 0), where |x| may be."""
    large = [part for part in term.args if part != ZERO]
    if not known.definitions or len(term.args) != 2 or len(large) != 1 or large[0].kind is not Kind.MUL:
        return None
    parts = [part for part in large[0].args if part.kind is not Kind.NUM]
    if not 2 <= len(parts) <= MOST_FACTORS:
        return None
    return step("largest_product", a=parts[0], b=mul(*without(large[0].args, large[0].args.index(parts[0]))))


MOST_FACTORS = 3
"""Of a product of which the larger one of it and 0 is taken apart: each makes it four times as large."""


def _functions(known: Known, term: Term) -> Step | None:
    """The largest exponential, or root, is that of the largest."""
    kinds = {part.kind for part in term.args}
    if len(term.args) == 2 and kinds in ({Kind.EXP}, {Kind.SQRT}):
        return step(f"{kinds.pop().value}_largest", True, a=term.args[0].args[0], b=term.args[1].args[0])
    return None


def as_largest(known: Known, need: Need, term: Term) -> tuple[Step, ...]:
    """2 max(x, 0) - x, which is |x|, is max(x, 0) + max(-x, 0), where what is needed of a sum follows from that."""
    inside = term.args[0] if term.kind is Kind.INV else term
    for place, part in enumerate(inside.args if inside.kind is Kind.ADD else ()):
        for scale, large, number in _limited(part):
            for other, twin in enumerate(inside.args):
                less = -_times(twin, large) if scale.kind is Kind.NUM and number == ZERO else 0
                if 0 < less <= scale.data:
                    largest, rest = top(large, ZERO), add(*without(inside.args, place, other))
                    more = mul(num(scale.data - less), largest)
                    made = add(mul(num(less), top(neg(large), ZERO)), more, rest)
                    apart = step("distribute", a=num(less), b=num(scale.data - less), c=largest, r=add(twin, rest))
                    turned = step("largest_opposed", a=large, b=ZERO, c=num(-less), r=add(more, rest))
                    if known.holds(need, made):
                        return (apart, turned) if less < scale.data else (turned,)
    return ()


def _times(term: Term, other: Term) -> Fraction:
    """How many times another term a term is, if so; else 0."""
    (number, rest), (its_number, its_rest) = split(term), split(other)
    return Fraction(number.data) / its_number.data if rest == its_rest else Fraction(0)


def squared(known: Known, term: Term) -> Step | None:
    """Of max(x, 0) and x, which are the same or have the product 0, a product has the former once."""
    for place, part in enumerate(term.args):
        if part.kind is Kind.TOP and len(part.args) == 2 and ZERO in part.args and part in term.args[:place]:
            (large,) = without(part.args, part.args.index(ZERO))
            return step("largest_square", a=large, r=mul(*without(term.args, place, term.args.index(part))))
    return None


def least(known: Known, term: Term) -> Step | None:
    """The smallest of largest is the largest of smallest."""
    number, rest = split(term)
    if number.data >= 0:
        return None
    for part in rest.args if rest.kind is Kind.MUL else (rest,):
        for place, arg in enumerate(part.args if part.kind is Kind.TOP else ()):
            inner = _lower(arg)
            if inner:
                others = without(part.args, place)
                return step("largest_of_least", a=inner[0], b=top(*inner[1:]), c=top(*others))
    return None


TOPS: tuple[Rule, ...] = (_known, _absorbed, _joined, _functions, _shared, _apart, _scaled, _numerals, _product)
