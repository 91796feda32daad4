"""Whether a polynomial, times a monomial and summed over some axes, is among the summands of a level.

In: opened monomials (`Network`s) of the part and of the level. Out: yes or no. The matching is exact about
scope: a free axis of the part stands for one variable of the level, and a variable that the part has
already summed may not occur in any factor outside of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, product

from mirage_nb.algebra.atoms import Factor, bits
from mirage_nb.algebra.levels import Level, Network, network
from mirage_nb.algebra.normal_form import Algebra, Terms

MAX_STEPS = 20_000
"""Factors that are tried in the place of others for one question; those of programs are answered in some dozens."""

Scope = dict[int, int]
"""For each variable of the part (free axis a: -1 - a) the variable of the whole."""


class _Undecided(Exception):
    """There are too many ways to look through."""


def embeddings(part: Network, whole: Network, exact: bool) -> Iterator[tuple[Scope, list[int]]]:
    """The ways to find `part` as factors of `whole`: the scope, and the places of the factors used.

    With `exact`, what is left over must be able to come from terms (see `Network.bare`).

    The yielded objects change when the iteration goes on.
    """
    if 0 in part.touch and not _extents(part) <= _extents(whole):
        return
    order = [part.factors[i] for i in part.order]
    scope: Scope = {}
    used: list[int] = []
    steps = count()

    def place(i: int) -> Iterator[tuple[Scope, list[int]]]:
        if i == len(order):
            if not exact or not whole.bare or _leaves_a_term(whole, set(used)):
                yield scope, used
            return
        p, vs = order[i]
        tried: set[tuple[int, ...]] = set()
        for j in whole.places.get(p, ()):
            ws = whole.factors[j][1]
            if j in used or ws in tried:
                continue
            tried.add(ws)
            if next(steps) > MAX_STEPS:
                raise _Undecided
            new = _bind(part, whole, scope, vs, ws)
            if new is not None:
                used.append(j)
                yield from place(i + 1)
                used.pop()
                for v in new:
                    del scope[v]

    yield from place(0)


def _bind(part: Network, whole: Network, scope: Scope, vs: tuple[int, ...], ws: tuple[int, ...]) -> list[int] | None:
    """Let the variables of one factor stand for those of another; the new ones, or None if impossible."""
    new: list[int] = []
    for v, w in zip(vs, ws, strict=True):
        known = scope.get(v)
        if known is None and (v < 0 or (w >= 0 and part.touch[v] == whole.touch[w])):
            scope[v] = w
            new.append(v)
        elif known != w:
            for v in new:
                del scope[v]
            return None
    return new


def _leaves_a_term(whole: Network, used: set[int]) -> bool:
    """Whether no bare factor is left over without a proper one of its kind."""
    return all(bare <= used or not proper <= used for bare, proper in whole.bare)


def _extents(net: Network) -> Counter[int]:
    return Counter(a for a, n in zip(net.names, net.touch, strict=True) if n == 0)


def _environments(first: Network, whole: Network, scope: Scope, axes: int) -> Iterator[tuple[Scope, frozenset[int]]]:
    """The meanings of the part's free axes, and the variables that its first term has summed."""
    closed = {w for v, w in scope.items() if v >= 0}
    extents = _extents(first)
    for w, touch in enumerate(whole.touch):
        if touch == 0 and extents[whole.names[w]]:
            extents[whole.names[w]] -= 1
            closed.add(w)
    env = {v: w for v, w in scope.items() if v < 0}
    unbound = [a for a in bits(axes) if -1 - a not in env]
    summed = {a: [w for w, name in enumerate(whole.names) if name == a and w not in closed] for a in unbound}
    options = [[-1 - a, *summed[a]] for a in unbound]
    for chosen in product(*options):
        yield env | {-1 - a: w for a, w in zip(unbound, chosen, strict=True)}, frozenset(closed)


class Matcher:
    """Matches the monomials of one algebra, and remembers them opened."""

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra
        self._networks: dict[int, Network] = {}

    def open(self, monomial: int) -> Network:
        """A monomial opened."""
        net = self._networks.get(monomial)
        if net is None:
            net = self._networks[monomial] = network(self._algebra, monomial)
        return net

    def completes(self, terms: Terms, whole: int, level: Level) -> bool:
        """Whether all `terms` fit into the level with one cofactor, the first of them into `whole`; also where there
        are too many ways to look through."""
        try:
            return self._completes(terms, whole, level)
        except _Undecided:
            return True

    def _completes(self, terms: Terms, whole: int, level: Level) -> bool:
        first, net = self.open(terms[0][0]), self.open(whole)
        if len(terms) == 1:
            enough = level.terms[whole] >= terms[0][1]
            return enough and any(True for _ in embeddings(first, net, level.exact))
        axes = 0
        for m, _ in terms:
            axes |= self._algebra.table.monomials[m].axes
        for scope, used in embeddings(first, net, level.exact):
            for env, closed in _environments(first, net, scope, axes):
                if self._all_found(terms, _Rest(net, used, closed), env, level.terms):
                    return True
        return False

    def _all_found(self, terms: Terms, rest: _Rest, env: Scope, level: dict[int, int]) -> bool:
        """Whether each term, put in the place of the first one, gives a summand of the level."""
        inner = {v: rest.renamed(w) for v, w in env.items()}
        shift = len(rest.names)
        needed: Counter[int] = Counter()
        for m, c in terms:
            term = self.open(m)
            factors = [(p, tuple(v + shift if v >= 0 else inner[v] for v in vs)) for p, vs in term.factors]
            out = self._algebra.table.close([*rest.names, *term.names], rest.factors + factors)
            needed[out] += c
            if needed[out] > level.get(out, 0):
                return False
        return True


class _Rest:
    """What is left of a network without some factors and without the variables that they have summed."""

    def __init__(self, whole: Network, used: list[int], closed: frozenset[int]) -> None:
        kept = [w for w in range(len(whole.names)) if w not in closed]
        self._number = {w: i for i, w in enumerate(kept)}
        self.names = [whole.names[w] for w in kept]
        left = (f for j, f in enumerate(whole.factors) if j not in used)
        self.factors: list[Factor] = [(p, tuple(self.renamed(w) for w in ws)) for p, ws in left]

    def renamed(self, variable: int) -> int:
        """The number of a variable of the whole network in this one."""
        return variable if variable < 0 else self._number[variable]
