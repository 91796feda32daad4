"""The oracle: can an expression still become a part of a target?

In: an algebra and the target expressions. Out: yes or no per expression (memoised), cheap filters for
pairs, and a reason in words. The answer is yes whenever some term that equals a target under the axioms in
force has a part equal to the expression (Theorem 1 of the paper); the tests try this against exhaustive
rewriting. It is no for nearly everything else; what the normal form cannot decide counts as yes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from mirage_nb.algebra.levels import Level, Network, find_levels, network
from mirage_nb.algebra.matching import completes
from mirage_nb.algebra.normal_form import Algebra, Expr, Terms

MUL, ADD, DIV_AB, DIV_BA = 1, 2, 4, 8


class Oracle:
    """Decides for one set of targets.

    Args:
        algebra: the algebra of all expressions that will be asked about.
        targets: the expressions of the program's outputs.

    Attributes:
        levels: the polynomials inside the targets that a part can be a summand of.
        undecided: whether a target has no canonical normal form; then nothing is cut.
        queries: how many questions were asked; misses: how many of them were new.
    """

    def __init__(self, algebra: Algebra, targets: Iterable[Expr]) -> None:
        self.algebra = algebra
        self.levels: list[Level] = find_levels(algebra, targets)
        self.undecided = any(algebra.is_vague(level.expr) for level in self.levels)
        self.queries = 0
        self.misses = 0
        self._networks: dict[int, Network] = {}
        self._slots: dict[int, list[tuple[int, int]]] = {}
        for i, level in enumerate(self.levels):
            for m in level.terms:
                self._slots.setdefault(algebra.table.monomials[m].flat, []).append((i, m))
        self._flats = sorted(self._slots)
        self._where: dict[Expr, int] = {}
        self._shared: dict[Expr, tuple[int, int]] = {}
        self._pairs: dict[tuple[Expr, Expr], int] = {}

    # ---- one expression
    def reaches(self, e: Expr) -> bool:
        """Whether e can still become a part of some target."""
        self.queries += 1
        return self.where(e) != 0

    def where(self, e: Expr) -> int:
        """The levels that e can become a part of, as a bit mask of positions in `levels`."""
        found = self._where.get(e)
        if found is None:
            self.misses += 1
            found = self._where[e] = self._search(e)
        return found

    def _search(self, e: Expr) -> int:
        if self.undecided or self.algebra.is_vague(e):
            return (1 << len(self.levels)) - 1
        terms = self._ordered(self.algebra.monomials(e))
        monomials = self.algebra.table.monomials
        flats = [monomials[m].flat for m, _ in terms]
        total = self.algebra.total(e)
        found = 0
        for flat in self._flats:
            if flat % flats[0]:
                continue
            rest = flat // flats[0]
            if any(rest * f not in self._slots for f in flats):
                continue
            for i, m in self._slots[flat]:
                if not found >> i & 1 and total <= self.levels[i].total and self._fits(terms, m, i):
                    found |= 1 << i
        return found

    def _ordered(self, terms: Terms) -> Terms:
        """The term that tells most about scope comes first."""
        if len(terms) == 1:
            return terms
        monomials = self.algebra.table.monomials
        first = max(terms, key=lambda t: (monomials[t[0]].axes.bit_count(), monomials[t[0]].flat))
        return (first, *(t for t in terms if t is not first))

    def _fits(self, terms: Terms, whole: int, position: int) -> bool:
        level = self.levels[position]
        if whole % terms[0][0] == 0 and not self._open(whole).bare:
            rest = whole // terms[0][0]
            if all(level.terms.get(rest * m, 0) >= c for m, c in terms):
                return True
        return completes(self.algebra.table, self._open, terms, whole, level)

    def _open(self, monomial: int) -> Network:
        net = self._networks.get(monomial)
        if net is None:
            net = self._networks[monomial] = network(self.algebra, monomial)
        return net

    # ---- pairs
    def pair(self, a: Expr, b: Expr) -> int:
        """Which results of a and b can reach a target: MUL | ADD | DIV_AB (a / b) | DIV_BA (b / a).

        MUL is also the filter for a matmul, because a part of a part is a part.
        """
        known = self._pairs.get((a, b))
        if known is None:
            known = self._pairs[a, b] = self._pair(a, b)
        return known

    def pairs(self, a: Expr, others: Iterable[Expr]) -> list[int]:
        """`pair(a, b)` for many b."""
        return [self.pair(a, b) for b in others]

    def _pair(self, a: Expr, b: Expr) -> int:
        algebra, flags = self.algebra, 0
        if self._product_may_fit(a, b) and self.reaches(algebra.mul(a, b)):
            flags |= MUL
        if self._levels_shared(a, b) and self.reaches(algebra.add(a, b)):
            flags |= ADD
        if self._quotient_may_fit(a, b) and self.reaches(algebra.div(a, b)):
            flags |= DIV_AB
        if self._quotient_may_fit(b, a) and self.reaches(algebra.div(b, a)):
            flags |= DIV_BA
        return flags

    def _product_may_fit(self, a: Expr, b: Expr) -> bool:
        if self.algebra.keeps_product(a, b):
            m, n = self.algebra.as_product(a), self.algebra.as_product(b)
            if m is None or n is None:
                return self._undecided(a, b)
            monomials = self.algebra.table.monomials
            fits = self._divides(monomials[m].flat * monomials[n].flat)
        else:
            (flat_a, slots_a), (flat_b, slots_b) = self._content(a), self._content(b)
            fits = bool(slots_a & slots_b) and self._divides(flat_a * flat_b)
        return fits or self._undecided(a, b)

    def _quotient_may_fit(self, a: Expr, b: Expr) -> bool:
        inverse = self.algebra.inverse(b)
        if not self.where(inverse):
            return False
        (flat_a, slots_a), (flat_b, slots_b) = self._content(a), self._content(inverse)
        fits = bool(slots_a & slots_b) and self._divides(flat_a * flat_b)
        return fits or self._undecided(a, b)

    def _levels_shared(self, a: Expr, b: Expr) -> bool:
        shared = self.where(a) & self.where(b)
        if not shared:
            return False
        total = self.algebra.total(a) + self.algebra.total(b)
        return any(shared >> i & 1 and total <= level.total for i, level in enumerate(self.levels))

    def _divides(self, flat: int) -> bool:
        return any(whole % flat == 0 for whole in self._flats)

    def _undecided(self, a: Expr, b: Expr) -> bool:
        return self.undecided or self.algebra.is_vague(a) or self.algebra.is_vague(b)

    def _content(self, e: Expr) -> tuple[int, int]:
        """What the flats of all terms of e have in common, and which flats of the target it divides."""
        found = self._shared.get(e)
        if found is None:
            monomials = self.algebra.table.monomials
            flat = gcd(*(monomials[m].flat for m, _ in self.algebra.monomials(e)))
            slots = sum(1 << i for i, whole in enumerate(self._flats) if whole % flat == 0)
            found = self._shared[e] = flat, slots
        return found
