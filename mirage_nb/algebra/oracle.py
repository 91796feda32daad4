"""The oracle: can an expression still become a part of a target?

In: an algebra and the target expressions. Out: yes or no per expression (memoised), cheap filters for
pairs, and a reason in words. The answer is yes whenever some term that equals a target under the axioms in
force has a part equal to the expression (Theorem 1 of the paper); the tests try this against exhaustive
rewriting. It is no for nearly everything else; what the normal form cannot decide counts as yes.

Questions are answered in two stages: divisibility of flats (integers that ignore scope), then matching.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from math import gcd, prod

from mirage_nb.algebra.atoms import AtomKind, Expr
from mirage_nb.algebra.levels import Level, find_levels
from mirage_nb.algebra.matching import Matcher
from mirage_nb.algebra.normal_form import Algebra, Terms
from mirage_nb.algebra.text import show, show_monomial

MUL, ADD, DIV_AB, DIV_BA = 1, 2, 4, 8
_EVERYWHERE = -1  # as a bit mask: every bit is set


@dataclass(frozen=True, slots=True)
class _Profile:
    """What the filters for pairs need to know of an expression.

    Attributes:
        flat: what the flats of its terms have in common; slots: the largest flats of the target that this
            divides (bit mask).
        places: see `Oracle.places`.
        total: the sum of its coefficients.
        divisor: flat of its inverse, if that still reaches the target; divisor_slots likewise, or 0.
        factor: its flat as a factor that keeps additions, if it has an addition; 0 if it is no such factor
            of the target. None without an addition, or when products are multiplied out.
    """

    flat: int
    slots: int
    places: int
    total: int
    divisor: int
    divisor_slots: int
    factor: int | None


class Oracle:
    """Decides for one set of targets.

    Args:
        algebra: the algebra of all expressions that will be asked about.
        targets: the expressions of the program's outputs.

    Attributes:
        levels: the polynomials inside the targets that a part can be a summand of.
        undecided: whether a target has no canonical normal form, or too many levels; then nothing is cut.
    """

    def __init__(self, algebra: Algebra, targets: Iterable[Expr]) -> None:
        self.algebra = algebra
        self.levels: list[Level]
        self.levels, are_all = find_levels(algebra, targets)
        self.undecided = not are_all or any(algebra.is_vague(level.expr) for level in self.levels)
        self._matcher = Matcher(algebra)
        self._slots: dict[int, list[tuple[int, int]]] = {}
        for i, level in enumerate(self.levels):
            for m in level.terms:
                self._slots.setdefault(algebra.table.monomials[m].flat, []).append((i, m))
        self._flats = sorted(self._slots)
        self._largest = [f for f in self._flats if all(f == other or other % f for other in self._flats)]
        self._greatest_total = max(level.total for level in self.levels)
        self._contexts: dict[tuple[int, int], int] = {}
        self._places: dict[Expr, int] = {}
        self._profiles: dict[Expr, _Profile] = {}
        minus = algebra.minus
        self._signed = any(not flat % minus for flat in self._flats)
        self._opened: tuple[int, int] | tuple[()] = ()

    # ---- one expression
    def reaches(self, e: Expr) -> bool:
        """Whether e can still become a part of some target."""
        return self.places(e) != 0

    def places(self, e: Expr) -> int:
        """Where e can become a part: a bit mask of pairs (level, flat of the cofactor); 0 for nowhere."""
        found = self._places.get(e)
        if found is None:
            found = self._search(e)
            if self._signed:  # e may be negated later
                found |= self._search(self.algebra.negate(e))
            self._places[e] = found
        return found

    def _search(self, e: Expr) -> int:
        if self.undecided or self.algebra.is_vague(e):
            return _EVERYWHERE
        terms = self.algebra.monomials(e)
        monomials = self.algebra.table.monomials
        if len(terms) > 1:
            terms = self._most_telling_first(terms)
        first, others = monomials[terms[0][0]].flat, [monomials[m].flat for m, _ in terms[1:]]
        found, slots, contexts = 0, self._slots, self._contexts
        total = 0
        for flat in self._flats:
            if flat % first:
                continue
            cofactor = flat // first
            if others and not all(cofactor * f in slots for f in others):
                continue
            total = total or self.algebra.total(e)
            for i, m in slots[flat]:
                level = self.levels[i]
                bit = contexts.setdefault((i, cofactor), len(contexts))
                if not found >> bit & 1 and total <= level.total and self._fits(terms, m, level):
                    found |= 1 << bit
        return found

    def reaches_level(self, e: Expr, chosen: Container[int]) -> bool:
        """Whether e can become a summand of one of these levels, given by their numbers."""
        places = self.places(e)
        return places == _EVERYWHERE or any(
            places >> bit & 1 and level in chosen for (level, _), bit in self._contexts.items()
        )

    def cofactors(self, e: Expr) -> frozenset[int] | None:
        """The flats of what e has to be multiplied with, summed and divided by to become summands of the target or of
        a level inside; None where that is not decided."""
        places = self.places(e)
        if places == _EVERYWHERE:
            return None
        return frozenset(cofactor for (_, cofactor), bit in self._contexts.items() if places >> bit & 1)

    def has(self, flat: int, *, inverse: bool) -> bool:
        """Whether an inverse is among the atoms of a cofactor, or anything but inverses and axes."""
        if not self._opened:
            atoms = self.algebra.table.atoms
            found = {p for at in self._slots.values() for _, m in at for p in self._matcher.open(m).places}
            inverses = {p for p in found if atoms[p].kind is AtomKind.INVERSE}
            self._opened = prod(found - inverses), prod(inverses)
        return gcd(flat, self._opened[inverse]) > 1

    def _most_telling_first(self, terms: Terms) -> Terms:
        """The term with most axes first: it says most about scope."""
        monomials = self.algebra.table.monomials
        first = max(terms, key=lambda t: (monomials[t[0]].axes.bit_count(), monomials[t[0]].flat))
        return (first, *(t for t in terms if t is not first))

    def _fits(self, terms: Terms, whole: int, level: Level) -> bool:
        first = terms[0][0]
        if whole % first == 0 and not self._matcher.open(whole).bare:
            cofactor = whole // first
            if all(level.terms.get(cofactor * m, 0) >= c for m, c in terms):
                return True
        return self._matcher.completes(terms, whole, level)

    def explain(self, e: Expr) -> str:
        """Why e is kept or cut, in one or two lines."""
        algebra, text = self.algebra, show(self.algebra, e)
        if self.undecided:
            return f"{text}\n  kept: a denominator or root of the target is not decided, so nothing is cut"
        if algebra.is_vague(e):
            return f"{text}\n  kept: it has a denominator or root that is not decided"
        places = self.places(e)
        if places:
            found = {i for (i, _), bit in self._contexts.items() if places >> bit & 1}
            level = self.levels[min(found)]
            same = e == level.expr
            return f"{text}\n  kept: {'it is' if same else 'a part of'} {level.place}" + (
                "" if same else f", {show(algebra, level.expr)}"
            )
        return f"{text}\n  cut: {self._why_cut(e)}"

    def _why_cut(self, e: Expr) -> str:
        algebra, table = self.algebra, self.algebra.table
        terms = algebra.monomials(e)
        for m, _ in terms:
            flat = table.monomials[m].flat
            if any(whole % flat == 0 for whole in self._flats):
                continue
            missing = min((flat // gcd(flat, whole) for whole in self._flats), default=flat)
            alone = show_monomial(algebra, m)
            places = self._matcher.open(m).places
            powers = [p ** len(at) for p, at in places.items()]
            together = any(not w % prod(powers) for w in self._flats)
            if not together and all(any(not w % power for w in self._flats) for power in powers):
                factors = " and ".join(show_monomial(algebra, p) for p in sorted(places))
                return f"the target has {factors}, but never as factors of one part"
            unknown = [show_monomial(algebra, p) for p in sorted(places) if missing % p == 0]
            more = f": {', '.join(unknown)} too many" if unknown else ": it sums over too many axes"
            return f"no part of the target has all factors of {alone}{more}"
        if len(terms) > 1 and all(self.reaches(algebra.single(m, c)) for m, c in terms):
            return "its summands fit one by one, but not together in one place"
        return "the factors occur, but a summed axis is still needed by other factors of the target"

    def parts(self) -> int:
        """How many sums are parts of the level that has most: each term any number of times up to its coefficient."""
        return max(prod(c + 1 for c in level.terms.values()) for level in self.levels)

    # ---- pairs
    def pair(self, a: Expr, b: Expr) -> int:
        """Which results of a and b can reach a target: MUL | ADD | DIV_AB (a / b) | DIV_BA (b / a).

        MUL is also the filter for a matmul, because a part of a part is a part.
        """
        algebra, divides, flags = self.algebra, self._divides, 0
        p = self._profiles.get(a) or self._profile(a)
        q = self._profiles.get(b) or self._profile(b)
        if self._product_may_fit(p, q) and self.places(algebra.mul(a, b)):
            flags |= MUL
        if p.places & q.places and self.adds(a, b):
            flags |= ADD
        if p.slots & q.divisor_slots and divides(p.flat * q.divisor) and self.places(algebra.div(a, b)):
            flags |= DIV_AB
        if q.slots & p.divisor_slots and divides(q.flat * p.divisor) and self.places(algebra.div(b, a)):
            flags |= DIV_BA
        return flags

    def adds(self, a: Expr, b: Expr) -> bool:
        """Whether the sum of a and b can reach a target."""
        p = self._profiles.get(a) or self._profile(a)
        q = self._profiles.get(b) or self._profile(b)
        near = p.places & q.places and p.total + q.total <= self._greatest_total
        return bool(near and self.places(self.algebra.add(a, b)))

    def _product_may_fit(self, p: _Profile, q: _Profile) -> bool:
        if p.factor is not None and q.factor is not None:
            return p.factor != 0 != q.factor and self._divides(p.factor * q.factor)
        if not p.slots & q.slots or p.total * q.total > self._greatest_total:
            return False
        return self._divides(p.flat * q.flat)

    def _divides(self, flat: int) -> bool:
        for whole in self._largest:
            if whole % flat == 0:
                return True
        return False

    def _profile(self, e: Expr) -> _Profile:
        algebra = self.algebra
        if self.undecided or algebra.is_vague(e):
            profile = _Profile(1, _EVERYWHERE, _EVERYWHERE, 0, 1, _EVERYWHERE, None)
        else:
            flat = self._common_flat(e)
            inverse = algebra.inverse(e)
            places = self.places(inverse)
            divisor = 1 if places == _EVERYWHERE else self._common_flat(inverse)
            factor = None
            if algebra.keeps_additions(e):
                monomial = algebra.as_product(e)
                factor = 0 if monomial is None else algebra.table.monomials[monomial].flat
            profile = _Profile(
                flat=flat,
                slots=self._slots_of(flat),
                places=self.places(e),
                total=algebra.total(e),
                divisor=divisor,
                divisor_slots=self._slots_of(divisor) if places else 0,
                factor=factor,
            )
        self._profiles[e] = profile
        return profile

    def _common_flat(self, e: Expr) -> int:
        """What the flats of all terms have in common; no sign, for a negation may take it away."""
        monomials = self.algebra.table.monomials
        common = gcd(*(monomials[m].flat for m, _ in self.algebra.monomials(e)))
        while not common % self.algebra.minus:
            common //= self.algebra.minus
        return common

    def _slots_of(self, flat: int) -> int:
        return sum(1 << i for i, whole in enumerate(self._largest) if whole % flat == 0)
