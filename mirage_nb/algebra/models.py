"""Models in which one axiom of Table 2 fails and the others hold: what makes axioms switchable one by one.

In: expressions of an algebra in which every axiom holds, whose terms carry marks. Out: the marked result of an
operator. A mark is a constant that an operator multiplies into terms of its result where the axiom would be needed to
give them another form; so two terms that only this axiom makes equal differ in their marks. Marks live in sums,
products, dividends and arguments of opaque functions; denominators, exponents and radicands have none, and there the
oracle goes by plain expressions. Invariant: every other axiom holds for marked expressions, and no part is cut that
some rewriting without the axiom has. Section 4.3 of the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from mirage_nb.algebra.atoms import AtomKind, Block, Expr, SubAxis
from mirage_nb.algebra.levels import network
from mirage_nb.algebra.normal_form import Algebra
from mirage_nb.algebra.oracle import Oracle
from mirage_nb.algebra.polynomial import factor


class Model:
    """The operators of Table 1 on marked expressions; here none of them marks anything.

    Args:
        algebra: of the expressions, in which every axiom holds that is not switched off otherwise.
    """

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.table = algebra.table
        self.mark = self.table.intern(AtomKind.CONSTANT, ("mark", type(self).__name__), 0)

    def add(self, a: Expr, b: Expr) -> Expr:
        """a + b."""
        return self.algebra.add(a, b)

    def mul(self, a: Expr, b: Expr) -> Expr:
        """a * b; a term has the mark at most once. A product of additions that stays one has it as a whole."""
        algebra, left, right = self.algebra, self.as_factor(a), self.as_factor(b)
        if algebra.keeps_additions(a) and algebra.keeps_additions(b):
            left, right = (self.marked(e) if self._is_marked(e) else e for e in (left, right))
        return self._each(algebra.mul(left, right), self._once)

    def div(self, a: Expr, below: Expr) -> Expr:
        """a / below, where `below` has no marks."""
        return self.algebra.div(self.as_dividend(a), below)

    def sum(self, axes: Iterable[SubAxis], a: Expr) -> Expr:
        """The sum of a over some axes."""
        return self.algebra.sum(axes, a)

    def as_factor(self, e: Expr) -> Expr:
        """What becomes of an expression when it is multiplied."""
        return e

    def as_dividend(self, e: Expr) -> Expr:
        """What becomes of an expression when it is divided."""
        return e

    def reaches(self, oracle: Oracle, e: Expr) -> bool:
        """Whether e can become a part of what `oracle` was made for."""
        raise NotImplementedError

    def found(self, oracle: Oracle, e: Expr, fits: Callable[[int], bool]) -> bool:
        """Whether e is a part with a cofactor of which `fits` is true."""
        cofactors = oracle.cofactors(e)
        return cofactors is None or any(fits(cofactor) for cofactor in cofactors)

    def multiplied(self, oracle: Oracle, cofactor: int) -> bool:
        """Whether there is something in a cofactor but marks, inverses and axes."""
        return oracle.has(self._without_mark(cofactor), inverse=False)

    def divided(self, oracle: Oracle, cofactor: int) -> bool:
        """Whether there is an inverse in a cofactor."""
        return oracle.has(cofactor, inverse=True)

    # ---- marks
    def marked(self, e: Expr) -> Expr:
        """The expression with the mark on every term."""
        return self._each(e, self._with)

    def bare(self, e: Expr) -> Expr:
        """The expression without the mark."""
        return self._each(e, self._without)

    def _each(self, e: Expr, change: Callable[[int], int]) -> Expr:
        collected: dict[int, int] = {}
        for m, c in self.algebra.monomials(e):
            out = change(m)
            collected[out] = collected.get(out, 0) + c
        return self.algebra.collect(collected)

    def _with(self, m: int) -> int:
        return self.table.multiply(m, self.mark) if m % self.mark else m

    def _without(self, m: int) -> int:
        while not m % self.mark:
            m = self.table.quotient(m, self.mark)
        return m

    def _without_mark(self, flat: int) -> int:
        while not flat % self.mark:
            flat //= self.mark
        return flat

    def _once(self, m: int) -> int:
        while not m % self.mark**2:
            m = self.table.quotient(m, self.mark)
        return m

    def _is_marked(self, e: Expr) -> bool:
        return any(not m % self.mark for m, _ in self.algebra.monomials(e))

    def _is_single(self, e: Expr) -> bool:
        return len(self.algebra.monomials(e)) == 1

    def _kinds(self, m: int) -> set[AtomKind]:
        """Of the factors of a monomial, those under its sums as well."""
        return {self.table.atoms[p].kind for p, _ in network(self.algebra, m).factors}


class AddAssociates(Model):
    """Every addition marks its terms: they know in how many they are."""

    def add(self, a: Expr, b: Expr) -> Expr:
        """a + b, marked once more."""
        return self.algebra.mul(self.algebra.add(a, b), self.algebra.single(self.mark))

    def mul(self, a: Expr, b: Expr) -> Expr:
        """a * b with the marks of both."""
        return self.algebra.mul(a, b)

    def reaches(self, oracle: Oracle, e: Expr) -> bool:
        """Whether e is a part; the number of marks counts."""
        return oracle.reaches(e)


class MulAssociates(Model):
    """Every product of two terms has a mark that names both, whatever they are summed over and divided by."""

    def mul(self, a: Expr, b: Expr) -> Expr:
        """a * b, each term marked by the two that it comes from."""
        algebra, table = self.algebra, self.table
        if algebra.keeps_additions(a) and algebra.keeps_additions(b):
            return algebra.mul(a, b)
        collected: dict[int, int] = {}
        for m, c in algebra.monomials(a):
            for n, d in algebra.monomials(b):
                left, right = sorted((self._name(m), self._name(n)))
                both = table.multiply(m, n)
                if left and right:
                    both = table.multiply(both, table.intern(AtomKind.CONSTANT, ("mark", left, right), 0))
                collected[both] = collected.get(both, 0) + c * d
        return algebra.collect(collected)

    def reaches(self, oracle: Oracle, e: Expr) -> bool:
        """Whether e is a part; the terms of an addition get different marks from one factor, so they say nothing."""
        return not self._is_single(e) or oracle.reaches(e)

    def _name(self, m: int) -> tuple[int, ...]:
        """The factors of a monomial that products are told apart by, without those that other axioms join."""
        joined = {kind for kind in (AtomKind.EXP, AtomKind.ROOT) if self.algebra.splits(kind)} | {AtomKind.INVERSE}
        atoms = self.table.atoms
        found = (p for p, _ in network(self.algebra, m).factors if atoms[p].kind not in joined)
        return tuple(sorted(p for p in found if not _is_mark(atoms[p].payload)))


class _ByProducts(Model):
    """Marks are made by products alone: parts that are multiplied get them as factors, all others have none to get."""

    def reaches(self, oracle: Oracle, e: Expr) -> bool:
        """Whether e can become a part of what `oracle` was made for."""
        multiplied = partial(self.multiplied, oracle)
        if self.found(oracle, e, lambda cofactor: bool(cofactor % self.mark) and not multiplied(cofactor)):
            return True
        return any(self.found(oracle, form, multiplied) for form in (self.as_factor(e), self.marked(e)))


class MulDistributes(_ByProducts):
    """An addition is marked when it is multiplied; a sum of products is not."""

    def as_factor(self, e: Expr) -> Expr:
        """Marked, if it is an addition."""
        return self.marked(e) if self.algebra.total(e) > 1 else e


class _ByQuotients(Model):
    """Marks are made by quotients alone, and products have none: `mul_div` brings them to what is marked otherwise."""

    def as_factor(self, e: Expr) -> Expr:
        """Without marks."""
        return self.bare(e)

    def reaches(self, oracle: Oracle, e: Expr) -> bool:
        """Whether e can become a part of what `oracle` was made for: as it is, or multiplied."""
        divided, multiplied = partial(self.divided, oracle), partial(self.multiplied, oracle)
        return self.found(oracle, e, lambda cofactor: bool(cofactor % self.mark) or divided(cofactor)) or self.found(
            oracle, self.bare(e), multiplied
        )


class DivDistributes(_ByQuotients):
    """An addition is marked when it is divided, unless it is a product: then `mul_div` and `mul_distributes` divide its
    terms as well. Products have no marks for the same reason."""

    def as_dividend(self, e: Expr) -> Expr:
        """Marked, if it is an addition without a factor."""
        flats: dict[int, int] = {}
        atoms = self.table.atoms
        variables: set[int] = set()
        for m, c in self.algebra.monomials(e):
            flat = 1
            for p, _ in network(self.algebra, m).factors:
                if atoms[p].kind is not AtomKind.INVERSE and p != self.mark:
                    flat *= p
                    variables.add(p)
            flats[flat] = flats.get(flat, 0) + c
        if len(flats) < 2 or any(all(not m % p for m in flats) for p in variables):
            return e
        return self._each(e, self._with) if len(factor(flats, tuple(sorted(variables)))) == 1 else e

    def reaches(self, oracle: Oracle, e: Expr) -> bool:
        """Whether e can become a part, divided as a whole as well."""
        return super().reaches(oracle, e) or self.found(oracle, self.marked(e), partial(self.divided, oracle))


class MulDiv(_ByProducts):
    """A quotient is marked when it is multiplied; a product that is divided is not."""

    def as_factor(self, e: Expr) -> Expr:
        """Its quotients marked."""
        return self._each(e, lambda m: self._with(m) if AtomKind.INVERSE in self._kinds(m) else m)


class SumMul(_ByProducts):
    """A sum over an axis is marked when it is multiplied; a product that is summed is not."""

    def as_factor(self, e: Expr) -> Expr:
        """Its sums marked."""
        return self._each(e, lambda m: self._with(m) if self._is_sum(m) else m)

    def _is_sum(self, m: int) -> bool:
        return any(isinstance(self.table.atoms[p].payload, Block) for p in self.table.monomials[m].atoms)


class SumAdd(Model):
    """The sum over an axis of an addition is marked, if what is summed differs from term to term."""

    def sum(self, axes: Iterable[SubAxis], a: Expr) -> Expr:
        """The sum, marked if it is one of several different things."""
        axes = tuple(axes)
        mask, atoms = self.table.mask(axes), self.table.atoms
        found = (self.table.monomials[m].atoms for m, _ in self.algebra.monomials(a))
        summed = {tuple(p for p in primes if atoms[p].axes & mask) for primes in found}
        whole = self.algebra.sum(axes, a)
        return self.marked(whole) if len(summed) > 1 else whole

    def reaches(self, oracle: Oracle, e: Expr) -> bool:
        """Whether e can become a part of what `oracle` was made for; no mark comes without a sum."""
        return self.found(oracle, e, lambda cofactor: cofactor == 1 or self._without_mark(cofactor) > 1) or self.found(
            oracle, self.marked(e), lambda cofactor: self._without_mark(cofactor) > 1
        )


class SumDiv(_ByQuotients):
    """A sum over an axis is marked when it is divided, unless it has other factors: then `mul_div` and `sum_mul` bring
    the division under the sum as well. Products have no marks for the same reason."""

    def as_dividend(self, e: Expr) -> Expr:
        """Its lone sums marked."""
        return self._each(e, lambda m: self._with(m) if self._is_lone_sum(m) else m)

    def reaches(self, oracle: Oracle, e: Expr) -> bool:
        """Whether e can become a part of what `oracle` was made for. Of several terms some may get other factors in
        sums that are still to come, so their marks say nothing."""
        return not self._is_single(e) or super().reaches(oracle, e)

    def _is_lone_sum(self, m: int) -> bool:
        atoms = [self.table.atoms[p] for p in self.table.monomials[m].atoms if p != self.mark]
        above = [a.payload for a in atoms if a.kind is not AtomKind.INVERSE and a.payload is not None]
        sums = [payload for payload in above if isinstance(payload, Block)]
        return len(above) == len(sums) and sum(bool(block.factors) for block in sums) == 1


def _is_mark(payload: object) -> bool:
    return isinstance(payload, tuple) and payload[:1] == ("mark",)


MODELS: dict[str, type[Model]] = {
    "add_associates": AddAssociates,
    "mul_associates": MulAssociates,
    "mul_distributes": MulDistributes,
    "div_distributes": DivDistributes,
    "mul_div": MulDiv,
    "sum_add": SumAdd,
    "sum_mul": SumMul,
    "sum_div": SumDiv,
}
"""For axioms that the normal form itself honours: the model in which just this one fails."""
