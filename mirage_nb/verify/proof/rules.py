"""The rules of the prover: for a term whose parts are in normal form, the next step towards its own.

In: a term under free indices. Out: the steps that rewrite it, or none. The normal form is a sum of products, each a
numeral times atoms; sums over indices stand around products that cannot be taken apart, no factor of an exponential,
a quotient or a root that can leave it is left in it. Which rules there are decides what is proved, never what is
true: the checker looks at every step anew. Maxima of two are in `lattice`, choices in
`choices`, exponentials in `exponentials`, angles in `circle`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof.axioms import has_property
from mirage_nb.verify.proof.choices import bits, choice, ends, known_step, of_bits, stepped, steps
from mirage_nb.verify.proof.circle import angles, circle
from mirage_nb.verify.proof.compared import (
    floor_of_sum,
    step_of_common,
    step_of_exponentials,
    step_of_largest,
    step_of_multiple,
)
from mirage_nb.verify.proof.exponentials import (
    as_one,
    exponential,
    exponentials,
    inverse,
    larger,
    logarithm,
    logistics,
    stepped_exponentials,
)
from mirage_nb.verify.proof.functions import is_defined
from mirage_nb.verify.proof.known import (
    ONE,
    ZERO,
    Known,
    Rule,
    factors,
    leading,
    opened_apart,
    split,
    step,
    taken_out,
    without,
)
from mirage_nb.verify.proof.lattice import TOPS, least, opposed, squared
from mirage_nb.verify.proof.pieces import apart, at_threshold, bounded, by_cases, turned
from mirage_nb.verify.proof.signs import is_end, listed, vanishes
from mirage_nb.verify.proof.steps import Binding, Step
from mirage_nb.verify.proof.terms import Kind, Term, Var, add, fn, inv, mul, neg, num, opened, top


def _collect(known: Known, term: Term) -> Step | None:
    """2 * x + 3 * x + r becomes 5 * x + r."""
    seen: dict[Term, int] = {}
    for place, part in enumerate(term.args):
        rest = split(part)[1]
        if part.kind is Kind.NUM:
            continue
        if rest in seen:
            other = seen[rest]
            a, b = split(term.args[other])[0], split(part)[0]
            return step("distribute", True, a=a, b=b, c=rest, r=add(*without(term.args, place, other)))
        seen[rest] = place
    return None


def _distribute(known: Known, term: Term) -> Step | None:
    for place, part in enumerate(term.args):
        if part.kind is Kind.ADD:
            rest = mul(*without(term.args, place))
            return step("distribute", a=part.args[0], b=add(*part.args[1:]), c=rest, r=ZERO)
    return None


def _cancel(known: Known, term: Term) -> Step | None:
    """a * 1/a, and the pairs that a square root has."""
    places: dict[Term, int] = {}
    for place, part in enumerate(term.args):
        twin = places.get(part)
        root = part.args[0] if part.kind is Kind.INV else part
        if twin is not None and root.kind is Kind.SQRT and known.nonnegative(root.args[0]):
            axiom = "sqrt_square" if root is part else "sqrt_inverse_square"
            return step(axiom, a=root.args[0], r=mul(*without(term.args, place, twin)))
        places[part] = place
    for part, place in places.items():
        if part.kind is Kind.INV and part.args[0] in places and known.holds(Need.NONZERO, part.args[0]):
            rest = mul(*without(term.args, place, places[part.args[0]]))
            return step("inv_cancel", a=part.args[0], r=rest)
        if part.kind is Kind.INV and part.args[0].kind is Kind.SQRT and part.args[0].args[0] in places:
            inside = part.args[0].args[0]
            return step("root_quotient", a=inside, r=mul(*without(term.args, place, places[inside])))
        if part.kind is Kind.SQRT and part.args[0].kind is not Kind.NUM and inv(part.args[0]) in places:
            rest = mul(*without(term.args, place, places[inv(part.args[0])]))
            return step("sqrt_quotient", a=part.args[0], r=rest)
    return None


def _absorbed(known: Known, term: Term) -> Step | None:
    """a * 1/a * b, where b is 0 if a is."""
    for part in term.args:
        if part.kind is Kind.INV and part.args[0] in term.args:
            rest = mul(*without(term.args, term.args.index(part), term.args.index(part.args[0])))
            if vanishes(rest, part.args[0]):
                return step("inv_absorbed", a=part.args[0], b=rest)
    return None


def _inverse(known: Known, term: Term) -> Step | tuple[Step, ...] | None:
    (inside,) = term.args
    match inside.kind:
        case Kind.EXP:
            return step("inv_exp", a=inside.args[0])
        case Kind.INV:
            return step("inv_inv", a=inside.args[0])
        case Kind.MUL:
            return step("inv_product", a=inside.args[0], b=mul(*inside.args[1:]))
        case Kind.SQRT if inside.args[0].kind is Kind.NUM:
            return step("sqrt_quotient", True, a=inside.args[0], r=ONE)
        case Kind.ADD if len(inside.args) > 2:
            return _common(inside)
        case Kind.ADD:
            left, right = (list(factors(part)) for part in inside.args)
            common = next((part for part in left if part in right), None)
            if common is not None:
                left.remove(common)
                right.remove(common)
                return step("inv_common", a=mul(*left), b=mul(*right), c=common)
            number = leading(inside)
            if number != 1:
                a, b = (mul(num(1 / number), part) for part in inside.args)
                return step("inv_common", a=a, b=b, c=num(number))
    return None


def _common(inside: Term) -> tuple[Step, ...] | None:
    """The steps that take a factor of all summands out of one over their sum."""
    every = [list(factors(part)) for part in inside.args]
    common = next((part for part in every[0] if part.kind is not Kind.NUM and all(part in one for one in every)), None)
    if common is None:
        return None
    rest = [mul(*without(one, one.index(common))) for one in every]
    return (*taken_out(inside, common, rest), step("inv_product", a=common, b=add(*rest)))


def next_steps(known: Known, term: Term) -> tuple[Step, ...]:
    """The steps of the first rule that applies."""
    rules = PIECES if known.pieces else RULES
    return next((found for rule in rules.get(term.kind, ()) if (found := _several(rule(known, term)))), ())


def steps_before(known: Known, term: Term) -> tuple[Step, ...]:
    """The steps that are to be done before the parts of a term are looked at."""
    if term.kind is Kind.SQRT and _squared(term.args[0]):
        return _several(_root(known, term))
    if term.kind is Kind.INV and _squared(term.args[0]):
        return _several(_inverse(known, term))
    if term.kind is Kind.MUL and (found := ends(known, term)) is not None:
        return _several(found)
    if term.kind is Kind.MUL and any(f.kind is Kind.INV and f.args[0].kind is Kind.ADD for f in term.args):
        return _several(_cancel(known, term))
    if term.kind is Kind.FN and len(term.args) == 1 and _times_sum(term.args[0]):
        return _several(_definition(known, term) or logarithm(known, term))
    return ()


def _several(found: Step | tuple[Step, ...] | None) -> tuple[Step, ...]:
    return found if isinstance(found, tuple) else () if found is None else (found,)


def _squared(term: Term) -> bool:
    """Whether a product with a sum, which would be multiplied out, has a factor twice."""
    return _times_sum(term) and len(set(term.args)) < len(term.args)


def _times_sum(term: Term) -> bool:
    """Whether a term is a product with a sum."""
    return term.kind is Kind.MUL and any(factor.kind is Kind.ADD for factor in term.args)


def _root(known: Known, term: Term) -> Step | tuple[Step, ...] | None:
    (inside,) = term.args
    if inside.kind is Kind.ADD and (scale := abs(leading(inside))) not in (0, 1):
        shares = [mul(num(1 / scale), part) for part in inside.args]
        taken = taken_out(inside, num(scale), shares)
        return (*taken, step("sqrt_scale", a=add(*shares), c=num(scale)))
    if is_end(inside):
        return step("bit_root", a=inside)
    if inside.kind is Kind.TOP:
        return step("sqrt_largest", a=inside.args[0], b=top(*inside.args[1:]))
    if inside.kind in (Kind.INV, Kind.EXP):
        return step("sqrt_inverse" if inside.kind is Kind.INV else "sqrt_exp", a=inside.args[0])
    if inside.kind is Kind.NUM:
        return _root_of_numeral(inside.data)
    if inside.kind is Kind.FN and inside.data == "Pow" and known.nonnegative(inside.args[0]):
        return step("root_pow", a=inside.args[0], b=inside.args[1])
    parts = factors(inside)
    pairs = [factor for factor, count in Counter(parts).items() for _ in range(count // 2)]
    if pairs and len(parts) == 2 * len(pairs):
        return step("sqrt_of_square", a=mul(*pairs))
    rest = list(parts)
    for factor in [*pairs, *pairs]:
        rest.remove(factor)
    certain = [factor for factor in rest if known.nonnegative(factor)]
    if len(parts) == 1 or not (pairs or certain):
        return None
    if pairs and len(certain) == len(rest):
        return step("sqrt_scale", a=mul(*rest), c=mul(*pairs, *pairs))
    if len(certain) == len(rest):
        return step("sqrt_scale", a=mul(*certain[1:]), c=certain[0])
    others = [factor for factor in rest if factor not in certain]
    return step("sqrt_scale", a=mul(*others), c=mul(*pairs, *pairs, *certain))


def _root_of_numeral(value: Fraction) -> Step | None:
    """Roots of primes are left, times a numeral: the root of 2/3 is a third of those of 2 and of 3."""
    top, bottom = (math.isqrt(abs(n)) for n in value.as_integer_ratio())
    root = Fraction(top, bottom)
    if value < 0 or root * root == value:
        return step("sqrt_of_square", a=num(root)) if value >= 0 else None
    if value.denominator > 1:
        return step("sqrt_scale", a=num(value * value.denominator**2), c=num(Fraction(1, value.denominator**2)))
    most = min(MOST_PRIME, math.isqrt(value.numerator)) + 1
    prime = next((n for n in range(2, most) if value.numerator % n == 0), value.numerator)
    factor = prime * prime if value.numerator % (prime * prime) == 0 else prime
    return step("sqrt_scale", a=num(value / factor), c=num(factor)) if factor != value else None


MOST_PRIME = 1000
"""Of a numeral whose root is taken; larger ones stay together."""


def _sum_of_sum(known: Known, term: Term) -> Step | None:
    """Sums over parts of an axis, and of products with sums, become one sum."""
    indices, (body,) = opened(term)
    parts = factors(body)
    for place, part in enumerate(parts):
        if part.kind is Kind.SUM and not part.free.isdisjoint(indices):
            inner, (inside,) = opened_apart(part, [*indices, *body.free])
            return step("sum_partition", V=indices, W=inner, a=mul(*without(parts, place)), f=inside)
    return None


def _sum_of_terms(known: Known, term: Term) -> Step | None:
    indices, (body,) = opened(term)
    if body.kind is not Kind.ADD:
        return None
    return step("sum_add", V=indices, a=body.args[0], b=add(*body.args[1:]))


def _sum_of_product(known: Known, term: Term) -> Step | None:
    """Factors that share no index are summed apart; an index that none uses counts."""
    indices, (body,) = opened(term)
    unused = tuple(var for var in indices if var not in body.free)
    used = tuple(var for var in indices if var in body.free)
    if unused:
        return step("sum_replica", V=unused, W=used, f=body)
    parts = list(factors(body))
    first = _connected(parts, indices)
    if len(first) == len(parts):
        return None
    rest = [part for place, part in enumerate(parts) if place not in first]
    chosen = [parts[place] for place in sorted(first)]
    theirs = tuple(var for var in indices if any(var in part.free for part in chosen))
    others = tuple(var for var in indices if var not in theirs)
    return step("sum_product", V=theirs, W=others, f=mul(*chosen), h=mul(*rest))


def _connected(parts: Sequence[Term], indices: Sequence[Var]) -> set[int]:
    """The places of the factors without indices, if any, else of those that hang together with the first."""
    loose = {place for place, part in enumerate(parts) if part.free.isdisjoint(indices)}
    if loose:
        return loose
    found, reached = {0}, parts[0].free.intersection(indices)
    while True:
        more = {place for place, part in enumerate(parts) if not part.free.isdisjoint(reached)} - found
        if not more:
            return found
        found |= more
        reached |= frozenset().union(*(parts[place].free.intersection(indices) for place in more))


def _maximum(known: Known, term: Term) -> Step | tuple[Step, ...] | None:
    indices, (body,) = opened(term)
    unused = tuple(var for var in indices if var not in body.free)
    if unused:
        return step("max_replica", V=unused, W=tuple(var for var in indices if var in body.free), f=body)
    if body.kind is Kind.MAX:
        inner, (inside,) = opened_apart(body, [*indices, *body.free])
        return step("max_partition", V=indices, W=inner, f=inside)
    if body.kind is Kind.TOP:
        return step("max_apart", V=indices, a=body.args[0], b=top(*body.args[1:]))
    loose = [part for part in body.args if part.free.isdisjoint(indices)]
    bound = [part for part in body.args if part not in loose]
    if body.kind is Kind.ADD and loose:
        return step("max_shift", V=indices, a=add(*bound), c=add(*loose))
    if body.kind is Kind.ADD:
        return _largest_beside(known, indices, body)
    scales = [part for part in loose if known.nonnegative(part)]
    if body.kind is Kind.MUL and scales:
        others = [part for part in body.args if part not in scales]
        return step("max_scale", V=indices, a=mul(*others), c=mul(*scales))
    number, rest = split(body)
    if body.kind is Kind.MUL and number.data < 0 and number.data != -1:
        return step("max_scale", V=indices, a=neg(rest), c=num(-number.data))
    if body.kind is Kind.EXP or body.kind is Kind.SQRT:
        return step(f"{body.kind.value}_max", True, V=indices, f=body.args[0])
    return None


def _largest_beside(known: Known, indices: tuple[Var, ...], body: Term) -> tuple[Step, ...] | None:
    """The maximum of a sum with one larger of two in it is the larger one of two maxima, as that of |x| is."""
    tops = [(part, factor) for part in body.args for factor in factors(part) if factor.kind is Kind.TOP]
    if len(tops) != 1:
        return None
    ((part, largest),) = tops
    scale = mul(*without(factors(part), factors(part).index(largest)))
    if not known.nonnegative(scale):
        return None
    rest = add(*without(body.args, body.args.index(part)))
    a, b = largest.args[0], top(*largest.args[1:])
    large, other = mul(scale, a), mul(scale, b)
    scaled = (step("largest_scale", True, a=a, b=b, c=scale),) if scale != ONE else ()
    apart = step("max_apart", V=indices, a=add(large, rest), b=add(other, rest))
    return (*scaled, step("largest_shift", True, a=large, b=other, c=rest), apart)


def _rescaled(known: Known, term: Term) -> Step | None:
    indices, (inside, top) = opened(term)
    return step("rescaled_sum", V=indices, a=inside, m=top)


def _within(known: Known, term: Term) -> Step | None:
    indices, (inside, bit) = opened(term)
    return step("within_nonnegative" if known.nonnegative(inside) else "within_max", V=indices, a=inside, b=bit)


def _largest_exponential(known: Known, term: Term) -> tuple[Step, ...] | None:
    """The logarithm of the largest exponential within an axis, of what is not negative."""
    if term.data != "log" or term.args[0].kind is not Kind.MAX:
        return None
    indices, (body,) = opened(term.args[0])
    powers = [part for part in factors(body) if part.kind is Kind.EXP]
    bits = [part for part in factors(body) if is_end(part)]
    large, bit = add(*(part.args[0] for part in powers)), mul(*bits)
    if not bits or len(powers) + len(bits) < len(factors(body)) or not known.nonnegative(large):
        return None
    joined = as_one([part.args[0] for part in powers], bit)
    within = step("within_max", True, V=indices, a=large, b=bit)
    return (*joined, within, step("within_nonnegative", V=indices, a=large, b=bit))


def _order(known: Known, term: Term) -> Step | None:
    """Indices over one part of an axis are listed by what they do."""
    indices, args = opened(term)
    if len({sort for sort, _ in indices}) == len(indices):
        return None
    body = args[0] if len(args) == 1 else fn("", *args)
    order = listed(body, indices)
    if order == indices:
        return None
    letters: dict[Kind, dict[str, Binding]] = {
        Kind.SUM: {"f": args[0]}, Kind.MAX: {"f": args[0]}, Kind.RESCALED: {"a": args[0], "m": args[-1]}
    }  # fmt: skip
    return step(f"{term.kind.value.lower()}_order", False, V=indices, W=order, **letters[term.kind])


def _definition(known: Known, term: Term) -> Step | None:
    if known.definitions and len(term.args) == 1 and is_defined(term.data):
        return step("definition", g=term.data, a=term.args[0])
    return None


def _power(known: Known, term: Term) -> Step | None:
    """Powers of powers, roots and products, where the base is known not to be negative."""
    if term.data != "Pow" or term.args[1].kind is not Kind.NUM:
        return None
    base, exponent = term.args
    if exponent.data == 1:
        return step("pow_one", a=base)
    if exponent.data == Fraction(1, 2):
        return step("pow_half", a=base)
    inner = base.args[0] if base.args else base
    if exponent.data < 0:
        return step("pow_negative", a=base, b=num(-exponent.data))
    if base.kind is Kind.INV:
        return step("pow_inverse", a=inner, b=exponent)
    if base.kind is Kind.SQRT and known.nonnegative(inner):
        return step("pow_root", a=inner, b=exponent)
    if base.kind is Kind.FN and base.data == "Pow" and known.nonnegative(inner):
        return step("pow_pow", a=inner, b=base.args[1], c=exponent)
    if exponent.data > 1:
        return step("pow_whole", a=base, b=num(exponent.data - 1))
    certain = [part for part in factors(base) if known.nonnegative(part)]
    if base.kind is Kind.MUL and certain:
        return step("pow_product", a=certain[0], b=mul(*without(base.args, base.args.index(certain[0]))), c=exponent)
    return None


def _powers(known: Known, term: Term) -> Step | None:
    """Two powers of one base become one."""
    seen: dict[Term, int] = {}
    for place, part in enumerate(term.args):
        if part.kind is Kind.FN and part.data == "Pow" and known.nonnegative(part.args[0]):
            base, exponent = part.args
            if base in seen:
                rest = mul(*without(term.args, place, seen[base]))
                return step("pow_sum", a=base, b=term.args[seen[base]].args[1], c=exponent, r=rest)
            seen[base] = place
    return None


def _turned(known: Known, term: Term, parity: str) -> tuple[Step, ...] | None:
    """g(-x) for an odd or even function: a minus leaves it, also that of a sum."""
    g, (inside,) = term.data, term.args
    if leading(inside) >= 0:
        return None
    if inside.kind is not Kind.ADD:
        return (step(parity, g=g, a=mul(num(-1), inside)),)
    opposite = [mul(num(-1), part) for part in inside.args]
    apart = step("distribute", True, a=opposite[0], b=add(*opposite[1:]), c=num(-1), r=ZERO)
    if len(opposite) > 2:
        return None
    return apart, step(parity, g=g, a=add(*opposite))


def _property(known: Known, term: Term) -> Step | tuple[Step, ...] | None:
    """What is known of a function is used to bring it inwards; a linear one is a factor g(1)."""
    if len(term.args) != 1:
        return None
    g, (inside,) = term.data, term.args

    def has(name: str) -> bool:
        return has_property(g, name, known.properties)

    if inside.kind is Kind.FN and inside.data == g and len(inside.args) == 1 and has("idempotent"):
        return step("idempotent", g=g, a=inside.args[0])
    turned = _turned(known, term, "odd" if has("odd") else "even") if has("odd") or has("even") else None
    if turned is not None:
        return turned
    if inside.kind is Kind.MAX and has("monotone"):
        indices, (body,) = opened(inside)
        return step("monotone", g=g, V=indices, f=body)
    if inside.kind is Kind.TOP and has("monotone"):
        return step("monotone_largest", g=g, a=inside.args[0], b=top(*inside.args[1:]))
    if has("linear"):
        return step("linear", g=g, c=inside, a=ONE) if inside != ONE else None
    scale = [part for part in factors(inside) if known.holds(Need.POSITIVE, part)]
    if inside.kind is Kind.MUL and scale and has("homogeneous"):
        return step("homogeneous", g=g, c=mul(*scale), a=mul(*(p for p in inside.args if p not in scale)))
    if has("multiplicative"):
        if inside.kind is Kind.MUL:
            return step("multiplicative", g=g, a=inside.args[0], b=mul(*inside.args[1:]))
        if inside.kind is Kind.INV:
            return step("multiplicative_inverse", g=g, a=inside.args[0])
    return None


RULES: dict[Kind, tuple[Rule, ...]] = {
    Kind.ADD: (_collect, stepped, stepped_exponentials, opposed),
    Kind.MUL: (_cancel, _absorbed, squared, circle, exponentials, logistics, bits, _powers, steps, least, _distribute),
    Kind.INV: (_inverse, inverse, of_bits),
    Kind.EXP: (exponential, of_bits),
    Kind.SQRT: (_root, of_bits),
    Kind.SUM: (_order, _sum_of_terms, _sum_of_sum, _sum_of_product),
    Kind.MAX: (_order, _maximum),
    Kind.TOP: (*TOPS, larger, of_bits),
    Kind.RESCALED: (_rescaled,),
    Kind.WITHIN: (_within,),
    Kind.FN: (
        _power, logarithm, _largest_exponential, angles, _definition, choice, known_step, step_of_largest,
        step_of_multiple, step_of_common, step_of_exponentials, floor_of_sum, _property,
    ),
}  # fmt: skip
BRANCHED = (Kind.INV, Kind.EXP, Kind.SQRT, Kind.FN)
PIECES: dict[Kind, tuple[Rule, ...]] = RULES | {
    Kind.ADD: (_collect, turned),
    Kind.MUL: (_cancel, _absorbed, circle, exponentials, logistics, bits, _powers, bounded, at_threshold, _distribute,
               turned),
    Kind.TOP: (apart,),
    **{kind: tuple(r for r in (*RULES[kind], by_cases) if r is not of_bits) for kind in BRANCHED},
}  # fmt: skip
"""The rules where maxima are choices: those for maxima have no place here."""
