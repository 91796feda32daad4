"""The rules of the prover: for a term whose parts are in normal form, the next step towards its own.

In: a term under free indices. Out: a `Step` that rewrites it, or None. The normal form is a sum of products, each a
numeral times atoms; sums over indices stand around products that cannot be taken apart, no factor of an exponential,
a quotient or a root that can leave it is left in it. Which rules there are decides what is proved, never what is
true: the checker looks at every step anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mirage_nb.verify.proof.axioms import Properties, has_property
from mirage_nb.verify.proof.steps import Binding, Step
from mirage_nb.verify.proof.terms import Kind, Term, Var, add, inv, mul, num, opened, positive, renamed, top

ONE, ZERO = num(1), num(0)


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules. `definitions`: whether SiLU and sigmoid are replaced by what they stand for."""

    properties: Properties
    definitions: bool = False

    def step(self, term: Term) -> Step | None:
        """The first rule that applies."""
        for rule in RULES.get(term.kind, ()):
            found = rule(self, term)
            if found is not None:
                return found
        return None


def _step(axiom: str, backward: bool = False, **bindings: Binding) -> Step:
    return Step(axiom, tuple(sorted(bindings.items())), backward)


def _factors(term: Term) -> tuple[Term, ...]:
    return term.args if term.kind is Kind.MUL else (term,)


def _split(term: Term) -> tuple[Term, Term]:
    """The numeral in front of a product, and the rest."""
    numbers = [part for part in _factors(term) if part.kind is Kind.NUM]
    return (numbers[0] if numbers else ONE), mul(*(part for part in _factors(term) if part.kind is not Kind.NUM))


def _without(terms: Sequence[Term], *places: int) -> list[Term]:
    return [term for place, term in enumerate(terms) if place not in places]


def _collect(rules: Rules, term: Term) -> Step | None:
    """2 * x + 3 * x + r becomes 5 * x + r."""
    seen: dict[Term, int] = {}
    for place, part in enumerate(term.args):
        rest = _split(part)[1]
        if part.kind is Kind.NUM:
            continue
        if rest in seen:
            other = seen[rest]
            a, b = _split(term.args[other])[0], _split(part)[0]
            return _step("distribute", True, a=a, b=b, c=rest, r=add(*_without(term.args, place, other)))
        seen[rest] = place
    return None


def _distribute(rules: Rules, term: Term) -> Step | None:
    for place, part in enumerate(term.args):
        if part.kind is Kind.ADD:
            rest = mul(*_without(term.args, place))
            return _step("distribute", a=part.args[0], b=add(*part.args[1:]), c=rest, r=ZERO)
    return None


def _exponentials(rules: Rules, term: Term) -> Step | None:
    """Two exponentials of multiples of one term become one."""
    seen: dict[Term, int] = {}
    for place, part in enumerate(term.args):
        if part.kind is not Kind.EXP:
            continue
        base = _split(part.args[0])[1]
        if base in seen:
            other = seen[base]
            a, b = term.args[other].args[0], part.args[0]
            return _step("exp_add", True, a=a, b=b, r=mul(*_without(term.args, place, other)))
        seen[base] = place
    return None


def _cancel(rules: Rules, term: Term) -> Step | None:
    """a * 1/a, and the pairs that a square root has."""
    places: dict[Term, int] = {}
    for place, part in enumerate(term.args):
        twin = places.get(part)
        root = part.args[0] if part.kind is Kind.INV else part
        if twin is not None and root.kind is Kind.SQRT:
            axiom = "sqrt_square" if root is part else "sqrt_inverse_square"
            return _step(axiom, a=root.args[0], r=mul(*_without(term.args, place, twin)))
        places[part] = place
    for part, place in places.items():
        if part.kind is Kind.INV and part.args[0] in places:
            rest = mul(*_without(term.args, place, places[part.args[0]]))
            return _step("inv_cancel", a=part.args[0], r=rest)
        if part.kind is Kind.SQRT and inv(part.args[0]) in places:
            rest = mul(*_without(term.args, place, places[inv(part.args[0])]))
            return _step("sqrt_quotient", a=part.args[0], r=rest)
    return None


def _inverse(rules: Rules, term: Term) -> Step | None:
    (inside,) = term.args
    match inside.kind:
        case Kind.EXP:
            return _step("inv_exp", a=inside.args[0])
        case Kind.INV:
            return _step("inv_inv", a=inside.args[0])
        case Kind.MUL:
            return _step("inv_product", a=inside.args[0], b=mul(*inside.args[1:]))
        case Kind.ADD if len(inside.args) == 2:
            left, right = (list(_factors(part)) for part in inside.args)
            common = next((part for part in left if part in right), None)
            if common is not None:
                left.remove(common)
                right.remove(common)
                return _step("inv_common", a=mul(*left), b=mul(*right), c=common)
    return None


def _exponential(rules: Rules, term: Term) -> Step | None:
    (inside,) = term.args
    if inside.kind is not Kind.ADD:
        return None
    return _step("exp_add", a=inside.args[0], b=add(*inside.args[1:]), r=ONE)


def _root(rules: Rules, term: Term) -> Step | None:
    (inside,) = term.args
    factors = _factors(inside)
    known = [part for part in factors if positive(part)]
    if not known or len(factors) == 1:
        return None
    c = next((part for part in known if len(known) == len(factors)), None) or mul(*known)
    rest = list(factors)
    for part in _factors(c):
        rest.remove(part)
    return _step("sqrt_scale", a=mul(*rest), c=c) if rest else None


def _sum_of_sum(rules: Rules, term: Term) -> Step | None:
    """Sums over parts of an axis, and of products with sums, become one sum."""
    indices, (body,) = opened(term)
    factors = _factors(body)
    for place, part in enumerate(factors):
        if part.kind is Kind.SUM and not part.free.isdisjoint(indices):
            inner, (inside,) = _apart(part, [*indices, *body.free])
            return _step("sum_partition", V=indices, W=inner, a=mul(*_without(factors, place)), f=inside)
    return None


def _apart(binder: Term, taken: Iterable[Var]) -> tuple[tuple[Var, ...], tuple[Term, ...]]:
    """A binder opened with indices that are not taken."""
    used = set(taken)
    indices, args = opened(binder)
    names: dict[Var, Var] = {}
    for sort, number in indices:
        free = number
        while (sort, free) in used:
            free -= 1
        names[sort, number] = (sort, free)
        used.add((sort, free))
    # In two moves: a new name may be an old name of another index.
    away = {var: (var[0], var[1] - AWAY) for var in indices}
    back = {away[var]: names[var] for var in indices}
    return tuple(names.values()), tuple(renamed(renamed(arg, away), back) for arg in args)


AWAY = 10_000_000


def _sum_of_terms(rules: Rules, term: Term) -> Step | None:
    indices, (body,) = opened(term)
    if body.kind is not Kind.ADD:
        return None
    return _step("sum_add", V=indices, a=body.args[0], b=add(*body.args[1:]))


def _sum_of_product(rules: Rules, term: Term) -> Step | None:
    """Factors that share no index are summed apart; an index that none uses counts."""
    indices, (body,) = opened(term)
    unused = tuple(var for var in indices if var not in body.free)
    used = tuple(var for var in indices if var in body.free)
    if unused:
        return _step("sum_replica", V=unused, W=used, f=body)
    factors = list(_factors(body))
    first = _connected(factors, indices)
    if len(first) == len(factors):
        return None
    rest = [part for place, part in enumerate(factors) if place not in first]
    chosen = [factors[place] for place in sorted(first)]
    theirs = tuple(var for var in indices if any(var in part.free for part in chosen))
    others = tuple(var for var in indices if var not in theirs)
    return _step("sum_product", V=theirs, W=others, f=mul(*chosen), h=mul(*rest))


def _connected(factors: Sequence[Term], indices: Sequence[Var]) -> set[int]:
    """The places of the factors without indices, if any, else of those that hang together with the first."""
    loose = {place for place, part in enumerate(factors) if part.free.isdisjoint(indices)}
    if loose:
        return loose
    found, reached = {0}, factors[0].free.intersection(indices)
    while True:
        more = {place for place, part in enumerate(factors) if not part.free.isdisjoint(reached)} - found
        if not more:
            return found
        found |= more
        reached |= frozenset().union(*(factors[place].free.intersection(indices) for place in more))


def _maximum(rules: Rules, term: Term) -> Step | None:
    indices, (body,) = opened(term)
    unused = tuple(var for var in indices if var not in body.free)
    if unused:
        return _step("max_replica", V=unused, W=tuple(var for var in indices if var in body.free), f=body)
    if body.kind is Kind.MAX:
        inner, (inside,) = _apart(body, [*indices, *body.free])
        return _step("max_partition", V=indices, W=inner, f=inside)
    if body.kind is Kind.TOP:
        return _step("max_apart", V=indices, a=body.args[0], b=top(*body.args[1:]))
    loose = [part for part in body.args if part.free.isdisjoint(indices)]
    bound = [part for part in body.args if part not in loose]
    if body.kind is Kind.ADD and loose:
        return _step("max_shift", V=indices, a=add(*bound), c=add(*loose))
    scales = [part for part in loose if positive(part)]
    if body.kind is Kind.MUL and scales:
        rest = [part for part in body.args if part not in scales]
        return _step("max_scale", V=indices, a=mul(*rest), c=mul(*scales))
    return None


def _largest(rules: Rules, term: Term) -> Step | None:
    """What both of two have in common, a summand or a factor that is positive, leaves them."""
    if len(term.args) != 2:
        return None
    for kind, axiom, joined in ((Kind.ADD, "largest_shift", add), (Kind.MUL, "largest_scale", mul)):
        left, right = (list(part.args if part.kind is kind else (part,)) for part in term.args)
        for part in left:
            if part in right and part.kind is not Kind.NUM and (kind is Kind.ADD or positive(part)):
                left.remove(part)
                right.remove(part)
                return _step(axiom, a=joined(*left), b=joined(*right), c=part)
    return None


def _rescaled(rules: Rules, term: Term) -> Step | None:
    indices, (inside, top) = opened(term)
    return _step("rescaled_sum", V=indices, a=inside, m=top)


def _definition(rules: Rules, term: Term) -> Step | None:
    axiom = {"SiLU": "silu_definition", "Sigmoid": "sigmoid_definition"}.get(term.data)
    return _step(axiom, a=term.args[0]) if axiom and rules.definitions else None


def _property(rules: Rules, term: Term) -> Step | None:
    """What is known of a function is used to bring it inwards; a linear one is a factor g(1)."""
    if len(term.args) != 1:
        return None
    g, (inside,) = term.data, term.args
    number, rest = _split(inside)

    def has(name: str) -> bool:
        return has_property(g, name, rules.properties)

    if inside.kind is Kind.FN and inside.data == g and len(inside.args) == 1 and has("idempotent"):
        return _step("idempotent", g=g, a=inside.args[0])
    if number.data < 0 and rest != ONE and (has("odd") or has("even")):
        return _step("odd" if has("odd") else "even", g=g, a=mul(num(-number.data), rest))
    if inside.kind is Kind.MAX and has("monotone"):
        indices, (body,) = opened(inside)
        return _step("monotone", g=g, V=indices, f=body)
    if inside.kind is Kind.TOP and has("monotone"):
        return _step("monotone_largest", g=g, a=inside.args[0], b=top(*inside.args[1:]))
    if has("linear"):
        return _step("linear", g=g, c=inside, a=ONE) if inside != ONE else None
    scale = [part for part in _factors(inside) if positive(part)]
    if inside.kind is Kind.MUL and scale and has("homogeneous"):
        return _step("homogeneous", g=g, c=mul(*scale), a=mul(*(p for p in inside.args if p not in scale)))
    if has("multiplicative"):
        if inside.kind is Kind.MUL:
            return _step("multiplicative", g=g, a=inside.args[0], b=mul(*inside.args[1:]))
        if inside.kind is Kind.INV:
            return _step("multiplicative_inverse", g=g, a=inside.args[0])
    return None


RULES: dict[Kind, tuple[Callable[[Rules, Term], Step | None], ...]] = {
    Kind.ADD: (_collect,),
    Kind.MUL: (_cancel, _exponentials, _distribute),
    Kind.INV: (_inverse,),
    Kind.EXP: (_exponential,),
    Kind.SQRT: (_root,),
    Kind.SUM: (_sum_of_terms, _sum_of_sum, _sum_of_product),
    Kind.MAX: (_maximum,),
    Kind.TOP: (_largest,),
    Kind.RESCALED: (_rescaled,),
    Kind.FN: (_definition, _property),
}
