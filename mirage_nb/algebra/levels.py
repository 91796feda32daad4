"""The levels of a target: every polynomial that a part of it can be a summand or a factor of.

In: the target expressions. Out: a list of `Level`s: the targets themselves, and inside each of them the
arguments of opaque functions, the exponents, the denominators, the radicands. Exponentials were split by
the normal form, so an exponent is put together again from those that can stand in one scope (no axis name
bound twice); the same for denominators and for roots. With factored products, each addition is also
multiplied out one at a time, because x (a + b) (c + d) has the parts x a and x a + x b.

Invariant: if a term that equals a target has a part e, then some level contains e times a monomial, summed
over some axes, as a summand. Theorem 1 of the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from mirage_nb.algebra.atoms import AtomKind, AtomTable, Factor, bits
from mirage_nb.algebra.normal_form import Algebra, Expr

_PLACES = {AtomKind.EXP: "an exponent", AtomKind.ROOT: "a radicand", AtomKind.INVERSE: "a denominator"}


@dataclass(frozen=True, slots=True)
class Network:
    """A monomial opened: its factors, the axis of each bound variable, and how many factors touch it."""

    names: tuple[int, ...]
    factors: tuple[Factor, ...]
    touch: tuple[int, ...]
    places: dict[int, tuple[int, ...]]
    """For each atom the factors that are this atom."""


@dataclass(frozen=True, slots=True)
class Level:
    """A polynomial inside a target.

    Attributes:
        expr: its number (with factored products it may be more expanded than a normal form).
        place: where in the target, for people: "the target", "an exponent of the target", ...
        terms: {monomial: coefficient}.
        total: the sum of the coefficients.
    """

    expr: Expr
    place: str
    terms: dict[int, int]
    total: int


def network(table: AtomTable, monomial: int) -> Network:
    """Open a monomial."""
    names: list[int] = []
    factors: list[Factor] = []
    table.open(table.monomials[monomial].atoms, names, factors)
    touch = [0] * len(names)
    places: dict[int, tuple[int, ...]] = {}
    for i, (p, vs) in enumerate(factors):
        places[p] = (*places.get(p, ()), i)
        for v in vs:
            if v >= 0:
                touch[v] += 1
    return Network(tuple(names), tuple(factors), tuple(touch), places)


def find_levels(algebra: Algebra, targets: Iterable[Expr]) -> list[Level]:
    """All levels of the targets, each once, targets first."""
    todo = [(e, "the target") for e in targets]
    seen: set[Expr] = set()
    levels: list[Level] = []
    for e, place in todo:  # grows while it is read
        if e in seen:
            continue
        seen.add(e)
        terms = dict(algebra.monomials(e))
        levels.append(Level(e, place, terms, sum(terms.values())))
        for m, c in terms.items():
            todo += _inside(algebra, network(algebra.table, m), c, place)
    return levels


def _inside(algebra: Algebra, net: Network, coefficient: int, place: str) -> Iterator[tuple[Expr, str]]:
    """The levels one step inside a monomial."""
    arguments: dict[AtomKind, list[Factor]] = {}
    for i, f in enumerate(net.factors):
        atom = algebra.table.atoms[f[0]]
        if atom.kind is AtomKind.FUNCTION and isinstance(atom.payload, tuple):
            name, argument = atom.payload
            yield argument, f"the argument of {name} in {place}"
        elif atom.kind in _PLACES:
            arguments.setdefault(atom.kind, []).append(f)
        elif atom.kind is AtomKind.ADDITION and net.factors.index(f) == i:
            yield _multiplied_out(algebra, net, i, coefficient), place
    for kind, found in arguments.items():
        where = _PLACES[kind] if place == "the target" else f"{_PLACES[kind]} in {place}"
        if not algebra.splits(kind):
            for p, _ in found:
                yield algebra.argument(p), where
            continue
        join = algebra.add if kind is AtomKind.EXP else algebra.mul
        for group in same_scope(algebra.table, found):
            yield reduce(join, (algebra.argument(p) for p, _ in group)), where


def _multiplied_out(algebra: Algebra, net: Network, at: int, coefficient: int) -> Expr:
    """The monomial with the addition at one place multiplied out."""
    table = algebra.table
    prime, variables = net.factors[at]
    position = {a: i for i, a in enumerate(bits(table.atoms[prime].axes))}
    collected: dict[int, int] = {}
    for m, c in algebra.monomials(algebra.argument(prime)):
        names = list(net.names)
        factors = [f for i, f in enumerate(net.factors) if i != at]
        opened: list[Factor] = []
        table.open(table.monomials[m].atoms, names, opened)
        for p, vs in opened:
            factors.append((p, tuple(v if v >= 0 else variables[position[-1 - v]] for v in vs)))
        out = table.close(names, factors)
        collected[out] = collected.get(out, 0) + c * coefficient
    return algebra.collect(collected)


def same_scope(table: AtomTable, factors: Sequence[Factor]) -> list[list[Factor]]:
    """The largest sets of factors in which no axis stands for two variables (maximal cliques)."""
    scopes = [dict(zip(bits(table.atoms[p].axes), vs, strict=True)) for p, vs in factors]
    friends = [
        {j for j, other in enumerate(scopes) if j != i and all(other.get(a, v) == v for a, v in scope.items())}
        for i, scope in enumerate(scopes)
    ]
    found: list[list[Factor]] = []

    def extend(chosen: list[int], open_: set[int], closed: set[int]) -> None:
        if not open_ and not closed:
            found.append([factors[i] for i in chosen])
        pivot = max(open_ | closed, key=lambda i: len(friends[i]), default=None)
        for i in sorted(open_ if pivot is None else open_ - friends[pivot]):
            extend([*chosen, i], open_ & friends[i], closed & friends[i])
            open_ = open_ - {i}
            closed = closed | {i}

    extend([], set(range(len(factors))), set())
    return found
