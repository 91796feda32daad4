"""Whether a polynomial, times a monomial and summed over some axes, is among the summands of a level.

In: opened monomials (`Network`s) of the part and of the level. Out: yes or no. The matching is exact about
scope: a free axis of the part stands for one variable of the level, and a variable that the part has
already summed may not occur in any factor outside of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

from mirage_nb.algebra.atoms import AtomTable, Factor, bits
from mirage_nb.algebra.levels import Level, Network

Scope = dict[int, int]
"""For each variable of the part (free axis a: -1 - a) the variable of the whole."""


def embeddings(part: Network, whole: Network, exact: bool) -> Iterator[tuple[Scope, list[int]]]:
    """The ways to find `part` as factors of `whole`: the scope, and the places of the factors used.

    With `exact`, what is left over must be able to come from terms (see `Network.bare`).

    The yielded objects change when the iteration goes on.
    """
    if not _extents_fit(part, whole):
        return
    order = sorted(part.factors, key=lambda f: len(whole.places.get(f[0], ())))
    scope: Scope = {}
    used: list[int] = []

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
            new = _bind(part, whole, scope, vs, ws)
            if new is not None:
                used.append(j)
                yield from place(i + 1)
                used.pop()
                for v in new:
                    del scope[v]

    yield from place(0)


def _bind(
    part: Network, whole: Network, scope: Scope, vs: tuple[int, ...], ws: tuple[int, ...]
) -> list[int] | None:
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


def _extents_fit(part: Network, whole: Network) -> bool:
    return 0 not in part.touch or _extents(part) <= _extents(whole)


def completes(
    table: AtomTable,
    open_monomial: Callable[[int], Network],
    terms: tuple[tuple[int, int], ...],
    whole: int,
    level: Level,
) -> bool:
    """Whether all `terms` fit into `level` with one cofactor, the first of them into the monomial `whole`."""
    first, net = open_monomial(terms[0][0]), open_monomial(whole)
    if len(terms) == 1:
        return level.terms[whole] >= terms[0][1] and any(True for _ in embeddings(first, net, level.exact))
    axes = 0
    for m, _ in terms:
        axes |= table.monomials[m].axes
    for scope, used in embeddings(first, net, level.exact):
        for env, closed in _environments(first, net, scope, axes):
            if _all_found(table, open_monomial, terms, net, used, env, closed, level.terms):
                return True
    return False


def _environments(
    first: Network, whole: Network, scope: Scope, axes: int
) -> Iterator[tuple[Scope, frozenset[int]]]:
    """The meanings of the part's free axes, and the variables that its first term has summed."""
    closed = {w for v, w in scope.items() if v >= 0}
    extents = _extents(first)
    for w, touch in enumerate(whole.touch):
        if touch == 0 and extents[whole.names[w]]:
            extents[whole.names[w]] -= 1
            closed.add(w)
    env = {v: w for v, w in scope.items() if v < 0}
    unbound = [a for a in bits(axes) if -1 - a not in env]
    options = [[-1 - a, *(w for w, name in enumerate(whole.names) if name == a and w not in closed)] for a in unbound]
    for chosen in product(*options):
        yield env | {-1 - a: w for a, w in zip(unbound, chosen, strict=True)}, frozenset(closed)


def _all_found(
    table: AtomTable,
    open_monomial: Callable[[int], Network],
    terms: tuple[tuple[int, int], ...],
    whole: Network,
    used: list[int],
    env: Scope,
    closed: frozenset[int],
    level: dict[int, int],
) -> bool:
    """Whether each term, put in the place of the first one, gives a summand of the level."""
    kept = [w for w in range(len(whole.names)) if w not in closed]
    number = {w: i for i, w in enumerate(kept)}
    cofactor: list[Factor] = [
        (p, tuple(w if w < 0 else number[w] for w in ws))
        for j, (p, ws) in enumerate(whole.factors)
        if j not in used
    ]
    inner = {v: (w if w < 0 else number[w]) for v, w in env.items()}
    needed: Counter[int] = Counter()
    for m, c in terms:
        term = open_monomial(m)
        shift = len(kept)
        factors = [(p, tuple(v + shift if v >= 0 else inner[v] for v in vs)) for p, vs in term.factors]
        names = [whole.names[w] for w in kept] + list(term.names)
        out = table.close(names, cofactor + factors)
        needed[out] += c
        if needed[out] > level.get(out, 0):
            return False
    return True
