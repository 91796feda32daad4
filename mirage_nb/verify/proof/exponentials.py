"""The rules of the prover for exponentials: in products, sums, quotients and logarithms.

In: a term whose parts are in normal form. Out: the next steps, or None. A sum in an exponent is a product of
exponentials; of 1 + exp(x) and 1 + exp(-x), inverted or in a logarithm, one is kept, beside neither
exponential; a sum of two exponentials has one in front. So tanh, sigmoid, softplus and their relatives have one form.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof.known import ONE, ZERO, Known, factors, leading, split, step, taken_out, without
from mirage_nb.verify.proof.steps import Step
from mirage_nb.verify.proof.terms import Kind, Term, add, exp, fn, inv, mul, neg, num, top


def exponentials(known: Known, term: Term) -> Step | None:
    """Two exponentials of multiples of one term become one."""
    seen: dict[Term, int] = {}
    for place, part in enumerate(term.args):
        if part.kind is not Kind.EXP:
            continue
        base = split(part.args[0])[1]
        if base in seen:
            other = seen[base]
            a, b = term.args[other].args[0], part.args[0]
            return step("exp_add", True, a=a, b=b, r=mul(*without(term.args, place, other)))
        seen[base] = place
    return None


def exponential(known: Known, term: Term) -> Step | tuple[Step, ...] | None:
    (inside,) = term.args
    if inside.kind is Kind.FN and inside.data == "log" and known.holds(Need.POSITIVE, inside.args[0]):
        return step("exp_log", a=inside.args[0])
    number, rest = split(inside)
    if number == num(-1) and rest.kind is Kind.FN and rest.data == "log" and known.holds(Need.POSITIVE, rest.args[0]):
        return step("log_inverse", True, a=rest.args[0]), step("exp_log", a=inv(rest.args[0]))
    if inside.kind is not Kind.ADD:
        return None
    return step("exp_add", a=inside.args[0], b=add(*inside.args[1:]), r=ONE)


def exponents(term: Term) -> tuple[Term, ...]:
    """The exponents of a product of exponentials; none if there is another factor."""
    parts = factors(term)
    return tuple(part.args[0] for part in parts) if all(part.kind is Kind.EXP for part in parts) else ()


def as_one(exponents: Sequence[Term], rest: Term = ONE) -> tuple[Step, ...]:
    """The steps that make one exponential of these, beside the rest of a product."""
    return tuple(
        step("exp_add", True, a=add(*exponents[:n]), b=exponents[n], r=mul(*map(exp, exponents[n + 1 :]), rest))
        for n in range(1, len(exponents))
    )


def _besideas_one(term: Term) -> tuple[Term, ...]:
    """The exponents of exp(x) in 1 + exp(x)."""
    if term.kind is Kind.ADD and len(term.args) == 2 and ONE in term.args:
        return exponents(*without(term.args, term.args.index(ONE)))
    return ()


def _less_one(term: Term) -> tuple[Term, ...]:
    """The exponents of exp(x) in 1 - 1 / (1 + exp(x))."""
    if term.kind is Kind.ADD and len(term.args) == 2 and ONE in term.args:
        number, rest = split(*without(term.args, term.args.index(ONE)))
        return _besideas_one(rest.args[0]) if number == num(-1) and rest.kind is Kind.INV else ()
    return ()


def _two(term: Term) -> tuple[tuple[Term, tuple[Term, ...]], ...]:
    """The numeral and the exponents of each of two exponentials that are added."""
    if term.kind is not Kind.ADD or len(term.args) != 2:
        return ()
    pairs = tuple((number, exponents(rest)) for number, rest in map(split, term.args))
    return pairs if all(exponents for _, exponents in pairs) else ()


def inverse(known: Known, term: Term) -> tuple[Step, ...] | None:
    """One over a sum of two exponentials has one of them in front; of 1 / (1 + exp(x)) and 1 / (1 + exp(-x)) one is
    kept."""
    (inside,) = term.args
    both, found = _two(inside), _besideas_one(inside)
    if both:
        (c, left), (d, right) = both
        return (*as_one(left, c), *as_one(right, d), step("inv_exps", a=add(*left), b=add(*right), c=c, d=d))
    if found and leading(add(*found)) > 0:
        return (*as_one(found), step("logistic", a=add(*found)))
    return None


def logistics(known: Known, term: Term) -> tuple[Step, ...] | None:
    """exp(x) / (1 + exp(x)), and exp(-x) / (1 + exp(x))."""
    for place, part in enumerate(term.args):
        found = _besideas_one(part.args[0]) if part.kind is Kind.INV else ()
        for axiom, signed in (("logistic_over", found), ("logistic_beside", tuple(map(neg, found)))):
            places = [term.args.index(e) for e in map(exp, signed) if e in term.args]
            if found and len(places) == len(found):
                inside, outside = add(*found), add(*signed)
                rest = mul(*without(term.args, place, *places))
                turned = [neg(x) for x in outside.args] if axiom == "logistic_beside" and len(found) > 1 else []
                made = (*as_one(found), *as_one(signed, mul(rest, inv(add(ONE, exp(inside))))))
                return (*made, *taken_out(outside, num(-1), turned), step(axiom, a=inside, r=rest))
    return None


def logarithm(known: Known, term: Term) -> Step | tuple[Step, ...] | None:
    """The logarithm of an exponential, a quotient, a root, a product, and a sum with exponentials."""
    if term.data != "log":
        return None
    (inside,) = term.args
    if inside.kind is Kind.EXP:
        return step("log_exp", a=inside.args[0])
    if inside.kind is Kind.INV:
        return step("log_inverse", a=inside.args[0])
    if inside.kind is Kind.SQRT:
        return step("log_sqrt", a=inside.args[0])
    if inside.kind is Kind.MUL and all(known.holds(Need.POSITIVE, part) for part in inside.args):
        return step("log_product", a=inside.args[0], b=mul(*inside.args[1:]))
    return _of_sum(known, inside) if inside.kind is Kind.ADD else None


def _of_sum(known: Known, inside: Term) -> tuple[Step, ...] | None:
    """The steps that take an exponential out of a sum in a logarithm, or make exp(-|x|) or exp(x) in it exp(-x)."""
    every = [list(factors(part)) for part in inside.args]
    common = next((part for part in every[0] if part.kind is Kind.EXP and all(part in one for one in every)), None)
    rest = [mul(*without(one, one.index(common))) for one in every] if common is not None else []
    if common is not None and known.holds(Need.POSITIVE, add(*rest)):
        return (*taken_out(inside, common, rest), step("log_product", a=common, b=add(*rest)))
    both, found, less = _two(inside), _besideas_one(inside), _less_one(inside)
    if less:  # 1 - 1 / (1 + exp(x)) is 1 / (1 + exp(-x))
        back = neg(add(*less))
        return (*as_one(less), step("logistic", True, a=back), step("log_inverse", a=add(ONE, exp(back))))
    if both and all(number == ONE for number, _ in both):
        (_, left), (_, right) = both
        return (*as_one(left), *as_one(right), step("log_exps", a=add(*left), b=add(*right)))
    for place, part in enumerate(found):
        others, (scale, largest) = without(found, place), split(part)
        large = next((x for x in largest.args if x != ZERO), ZERO)
        c = num(scale.data / -2)
        if largest == top(large, ZERO) and c.data > 0 and others and add(*others) == mul(c, large):
            return (*as_one((*others, part)), step("log_largest", a=large, c=c))
    if found and leading(add(*found)) > 0:
        return (*as_one(found), step("log_turned", a=add(*found)))
    return None


def larger(known: Known, term: Term) -> tuple[Step, ...] | None:
    """The larger one of exp(x) and 1."""
    found = exponents(*without(term.args, term.args.index(ONE))) if len(term.args) == 2 and ONE in term.args else ()
    return (*as_one(found), step("largest_one", a=add(*found))) if found else None


def stepped_exponentials(known: Known, term: Term) -> Step | None:
    """step(x) * (exp(x) - 1), and the same of step(-x), is a sum of exponentials of x and max(x, 0)."""
    for place, part in enumerate(term.args):
        for power in (factor.args[0] for factor in factors(part) if factor.kind is Kind.EXP):
            for axiom, inside in (("step_exp", power), ("step_exp_turned", neg(power))):
                chosen = fn("step", inside)
                parts = list(factors(part))
                if chosen not in parts:
                    continue
                rest = mul(*without(parts, parts.index(chosen), parts.index(exp(power))))
                twin = neg(mul(chosen, rest))
                if twin in term.args:
                    others = add(*without(term.args, place, term.args.index(twin)))
                    return step(axiom, a=power, r=rest, s=others)
    return None
