"""What the rules of the prover share: what they may look at, and how they take terms apart.

In: a term. Out: its parts, or a step. Invariant: nothing here is trusted; the checker looks at every step anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof.axioms import Properties
from mirage_nb.verify.proof.signs import NO_FACTS, Facts
from mirage_nb.verify.proof.steps import Binding, Step
from mirage_nb.verify.proof.terms import Kind, Term, Var, add, mul, num, opened, renamed

ONE, ZERO = num(1), num(0)


@dataclass(frozen=True, slots=True)
class Known:
    """What is said of functions, whether they are replaced by what they stand for, whether the larger of two is said by
    cases, and what holds of terms."""

    properties: Properties
    definitions: bool = False
    pieces: bool = False
    facts: Facts = NO_FACTS

    def holds(self, need: Need, term: Term) -> bool:
        """Whether the term is known to be what is needed."""
        return self.facts.holds(need, term)

    def nonnegative(self, term: Term) -> bool:
        return self.holds(Need.NONNEGATIVE, term)


Rule = Callable[[Known, Term], Step | tuple[Step, ...] | None]


def step(axiom: str, backward: bool = False, **bindings: Binding) -> Step:
    """The step; bindings by letter."""
    return Step(axiom, tuple(sorted(bindings.items())), backward)


def factors(term: Term) -> tuple[Term, ...]:
    """The factors of a product; another term is its own."""
    return term.args if term.kind is Kind.MUL else (term,)


def split(term: Term) -> tuple[Term, Term]:
    """The numeral in front of a product, and the rest."""
    numbers = [part for part in factors(term) if part.kind is Kind.NUM]
    return (numbers[0] if numbers else ONE), mul(*(part for part in factors(term) if part.kind is not Kind.NUM))


def leading(term: Term) -> Fraction:
    """The numeral in front of the summand of a sum that comes first; a numeral itself."""
    parts = [part for part in (term.args if term.kind is Kind.ADD else (term,)) if part.kind is not Kind.NUM]
    pairs = (split(part) for part in parts)
    return Fraction(min(pairs, key=lambda pair: pair[1].digest)[0].data if parts else term.data)


def taken_out(term: Term, common: Term, rest: Sequence[Term]) -> tuple[Step, ...]:
    """The steps that take a factor of all summands out of a sum; `rest`: what is left of each."""
    return tuple(
        step("distribute", True, a=add(*rest[:place]), b=part, c=common, r=add(*term.args[place + 1 :]))
        for place, part in enumerate(rest[1:], start=1)
    )


def without(terms: Sequence[Term], *places: int) -> list[Term]:
    """The terms at all other places."""
    return [term for place, term in enumerate(terms) if place not in places]


def opened_apart(binder: Term, taken: Iterable[Var]) -> tuple[tuple[Var, ...], tuple[Term, ...]]:
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
