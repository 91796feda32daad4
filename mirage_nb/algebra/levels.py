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

from mirage_nb.algebra.atoms import AtomKind, AtomTable, Block, Expr, Factor, bits
from mirage_nb.algebra.normal_form import Algebra

SIZE_LIMIT = 1 << 12
"""Factors that the terms of all levels may have together."""

_PLACES = {AtomKind.EXP: "an exponent", AtomKind.ROOT: "a radicand", AtomKind.INVERSE: "a denominator"}


@dataclass(frozen=True, slots=True)
class Network:
    """A monomial opened: its factors, the axis of each bound variable, and how many factors touch it."""

    names: tuple[int, ...]
    factors: tuple[Factor, ...]
    touch: tuple[int, ...]
    places: dict[int, tuple[int, ...]]
    """For each atom the factors that are this atom."""
    order: tuple[int, ...]
    """The factors, each but the first ones behind one that it shares a variable with, rare atoms first."""
    bare: tuple[tuple[frozenset[int], frozenset[int]], ...]
    """Pairs (bare, proper) of places. Bare: a factor such as 1/(1/y) or 1/2, left over when x/(z/y) or
    x/(z + z) is split. No term is bare, so bare factors outside a part need a proper one beside them."""


@dataclass(frozen=True, slots=True)
class Level:
    """A polynomial inside a target.

    Attributes:
        expr: its number (with factored products it may be more expanded than a normal form).
        place: where in the target, for people: "the target", "an exponent of the target", ...
        terms: {monomial: coefficient}.
        total: the sum of the coefficients.
        exact: whether every monomial is one of a term. Not so for a product of denominators of which some,
            in another scope, were left out: then nothing follows from bare factors.
    """

    expr: Expr
    place: str
    terms: dict[int, int]
    total: int
    exact: bool


def network(algebra: Algebra, monomial: int) -> Network:
    """Open a monomial."""
    table = algebra.table
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
    bare = []
    kinds = [table.atoms[p].kind for p, _ in factors]
    additions = {i for i, kind in enumerate(kinds) if kind in (AtomKind.ADDITION, AtomKind.LATER)}
    for kind in (AtomKind.INVERSE, AtomKind.ROOT):
        if algebra.splits(kind):
            split = {i for i, found in enumerate(kinds) if found is kind}
            alone = {i for i in split if _is_bare(algebra, algebra.argument(factors[i][0]))}
            if alone:  # a kept addition may have proper factors of this kind inside
                bare.append((frozenset(alone), frozenset(split - alone | additions)))
    return Network(tuple(names), tuple(factors), tuple(touch), places, _connected(factors, places), tuple(bare))


def _connected(factors: Sequence[Factor], places: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    left, seen, order = {*range(len(factors))}, set[int](), list[int]()
    while left:
        following = min(left, key=lambda i: (seen.isdisjoint(factors[i][1]), len(places[factors[i][0]]), i))
        left.remove(following)
        seen.update(v for v in factors[following][1] if v >= 0)
        order.append(following)
    return tuple(order)


def _is_bare(algebra: Algebra, piece: Expr) -> bool:
    """Whether no term equals this piece: it is a number, or an inverse, or a sum or root of such."""
    terms = algebra.monomials(piece)
    if len(terms) > 1:
        return False
    return all(_is_bare_atom(algebra, p) for p in algebra.table.monomials[terms[0][0]].atoms)


def _is_bare_atom(algebra: Algebra, prime: int) -> bool:
    atom = algebra.table.atoms[prime]
    if isinstance(atom.payload, Block):
        return all(_is_bare_atom(algebra, p) for p, _ in atom.payload.factors)
    if atom.kind is AtomKind.ROOT and algebra.splits(AtomKind.ROOT):
        return _is_bare(algebra, algebra.argument(prime))
    return atom.kind is AtomKind.INVERSE


def find_levels(algebra: Algebra, targets: Iterable[Expr]) -> tuple[list[Level], bool]:
    """The levels of the targets, each once, targets first, and whether these are all: they may be too large."""
    todo = [(e, "the target", True) for e in targets]
    seen: set[tuple[Expr, bool]] = set()
    levels: list[Level] = []
    size = 0
    for e, place, exact in todo:  # grows while it is read
        if (e, exact) in seen:
            continue
        seen.add((e, exact))
        level = Level(e, place, dict(algebra.monomials(e)), algebra.total(e), exact)
        levels.append(level)
        size += sum(algebra.table.monomials[m].size for m in level.terms)
        if size > SIZE_LIMIT:
            return levels, False
        for m in level.terms:
            todo += _inside(algebra, network(algebra, m), level, m)
    return levels, True


def _inside(algebra: Algebra, net: Network, level: Level, monomial: int) -> Iterator[tuple[Expr, str, bool]]:
    """The levels one step inside a monomial: expression, place, exact."""
    arguments: dict[AtomKind, list[Factor]] = {}
    suffix = "" if level.place == "the target" else f" in {level.place}"
    for i, f in enumerate(net.factors):
        atom = algebra.table.atoms[f[0]]
        if atom.kind is AtomKind.FUNCTION and isinstance(atom.payload, tuple):
            name, argument = atom.payload
            yield argument, f"the argument of {name}{suffix}", level.exact
        elif atom.kind in _PLACES:
            arguments.setdefault(atom.kind, []).append(f)
        elif atom.kind is AtomKind.ADDITION and net.factors.index(f) == i:
            yield _multiplied_out(algebra, net, i, level.terms[monomial]), level.place, level.exact
    for kind, found in arguments.items():
        place = _PLACES[kind] + suffix
        if not algebra.splits(kind):
            for p, _ in found:
                yield algebra.argument(p), place, level.exact
            continue
        join = algebra.add if kind is AtomKind.EXP else algebra.mul
        for group in same_scope(algebra.table, found):
            whole = kind is AtomKind.EXP or len(group) == len(found)
            yield reduce(join, (algebra.argument(p) for p, _ in group)), place, level.exact and whole


def _multiplied_out(algebra: Algebra, net: Network, at: int, coefficient: int) -> Expr:
    """The monomial with the addition at one place multiplied out."""
    table = algebra.table
    prime, variables = net.factors[at]
    position = {a: i for i, a in enumerate(bits(table.atoms[prime].axes))}
    collected: dict[int, int] = {}

    def kept(p: int) -> int:
        """Another addition is multiplied later: it holds its variables open, but no part contains it."""
        atom = table.atoms[p]
        return table.intern(AtomKind.LATER, p, atom.axes) if atom.kind is AtomKind.ADDITION else p

    for m, c in algebra.monomials(algebra.argument(prime)):
        names = list(net.names)
        factors = [(kept(p), vs) for i, (p, vs) in enumerate(net.factors) if i != at]
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

    def agree(i: int, j: int) -> bool:
        return all(scopes[j].get(a, v) == v for a, v in scopes[i].items())

    friends = [{j for j in range(len(factors)) if j != i and agree(i, j)} for i in range(len(factors))]
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
