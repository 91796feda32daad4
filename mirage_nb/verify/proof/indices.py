"""Indices over the parts of a dimension: all forms that they have, and where they are inside of it.

In: the parts of a dimension. Out: its branches, one for each side of a concatenated axis. Tiles that hang over the end
of an axis have more elements than it: `inside` is 1 for those that are one of it, and 0 for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mirage_nb.verify.proof.axes import Dims, Parts, leaves
from mirage_nb.verify.proof.terms import OPENED, Digit, Kind, Term, Var, inside, mul, num, renamed

Index = tuple[tuple[Digit, ...], ...]
"""For every dimension its digits, one for each part, outermost first."""
FRESH = -1_000_000
"""Indices that are summed over have numbers below, until they are bound."""


ONE = num(1)


@dataclass(frozen=True, slots=True)
class Branch:
    """Indices, the digits that they are of a dimension, and what is 1 where this is an element of it, else 0."""

    indices: tuple[Var, ...] = ()
    digits: tuple[Digit, ...] = ()
    inside: Term = ONE


def branches(parts: Parts, number: Callable[[], int]) -> list[Branch]:
    """All forms that an index over these parts has: more than one only over concatenated axes."""
    found = [Branch()]
    for leaf in leaves(parts):
        if leaf.tiles is not None:
            inner = branches(leaf.tiles, number)
            made = [Branch(b.indices, (("T", b.digits),), mul(b.inside, inside(leaf.name, b.digits))) for b in inner]
        elif leaf.sides is not None:
            sides = [(side, b) for side, own in zip("LR", leaf.sides, strict=True) for b in branches(own, number)]
            made = [Branch(b.indices, ((side, b.digits),), b.inside) for side, b in sides]
        else:
            var = (leaf.name, number())
            made = [Branch((var,), (var,))]
        found = [_joined(one, other) for one in found for other in made]
    return found


def _joined(one: Branch, other: Branch) -> Branch:
    return Branch(one.indices + other.indices, one.digits + other.digits, mul(one.inside, other.inside))


def regrouped(index: Index, dims: Dims) -> Index:
    """The digits of all dimensions in a row, cut where these dimensions end."""
    digits = [digit for group in index for digit in group]
    found = []
    for parts in dims:
        count = len(leaves(parts))
        found.append(tuple(digits[:count]))
        del digits[:count]
    return tuple(found)


def factors(term: Term) -> tuple[Term, ...]:
    """The factors of a product; another term is its own."""
    return term.args if term.kind is Kind.MUL else (term,)


def for_all(term: Term) -> Term:
    """The term with its fresh indices called as those that something holds for all values of."""
    names: dict[Var, Var] = {}
    following: dict[str, int] = {}
    for var in sorted((var for var in term.free if var[1] < FRESH), key=lambda var: -var[1]):
        sort = var[0]
        number = following.get(sort, 1 + term.bound.get(sort, -1))
        names[var], following[sort] = (sort, OPENED - number), number + 1
    return renamed(term, names)
