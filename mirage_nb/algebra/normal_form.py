"""Abstract expressions in normal form: equal numbers mean equal under the axioms in force.

In: symbols with the axes they depend on, and the operators of Table 1. Out: expressions as small integers
(interned), their free axes, and their text. An expression is a polynomial with natural coefficients over
the monomials of `atoms`; exponentials, denominators (and roots, with `sqrt_product`) are split into their
smallest factors, so that every one of them can be scoped on its own:

    exp(a + b) -> exp(a) exp(b)        x / (y z) -> x (1/y) (1/z)        sqrt(x y) -> sqrt(x) sqrt(y)

Invariant: every operation is a function of normal forms and validates every axiom that the options keep
(side conditions included), so rewriting a term never changes its number. Section 4.3, Tables 1 and 2.

What would have too many factors to be written out (x squared fifty times) is an atom of its own, which is vague.

With factored products, an expression of two terms or more is (integer) * (common monomial) * (addition),
and a product of two additions keeps both as ADDITION atoms instead of multiplying them out. A monomial
therefore never has exactly one of them at its top.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import gcd

from mirage_nb.algebra.atoms import AtomKind, AtomTable, Expr, SubAxis, bits
from mirage_nb.algebra.options import STANDARD, AlgebraOptions
from mirage_nb.algebra.polynomial import Polynomial, factor
from mirage_nb.algebra.text import show, show_terms

Terms = tuple[tuple[int, int], ...]
"""(monomial, coefficient) pairs, ascending."""

SIZE_LIMIT = 1 << 10
"""Factors of an expression, those of all its terms together, and the greatest number of times that it has a term."""


class Algebra:
    """The expressions of one search. Not shared between threads; may be pickled.

    Args:
        options: the axioms in force.
    """

    def __init__(self, options: AlgebraOptions = STANDARD) -> None:
        self.options = options
        self.table = AtomTable()
        self._split_exp = "exp_product" not in options.off
        self._split_sqrt = "sqrt_product" not in options.off
        self._split_inverse = "div_div" not in options.off
        self._factored = options.products == "factored"
        self._expressions: dict[Terms, Expr] = {}
        self._terms: list[Terms] = []
        self._axes: list[int] = []
        self._sizes: list[int] = []
        self._symbols: dict[str, Expr] = {}
        self._sums: dict[tuple[Expr, int], Expr] = {}
        self._products: dict[tuple[Expr, Expr], Expr] = {}
        self._additions: dict[tuple[Expr, Expr], Expr] = {}
        self._inverses: dict[Expr, Expr] = {}
        self._pieces: dict[Expr, tuple[Expr, ...]] = {}
        self._vague: dict[Expr, bool] = {}
        self.texts: dict[tuple[Expr, int], tuple[str, int]] = {}
        self.minus = self.table.minus
        self._minus = self.single(self.minus)

    def __len__(self) -> int:
        return len(self._terms)

    # ---- leaves
    def symbol(self, name: str, axes: Iterable[SubAxis] = ()) -> Expr:
        """An input tensor that depends on `axes`.

        Raises:
            ValueError: the name stands for a symbol with other axes.
        """
        mask = self.table.mask(axes)
        known = self._symbols.get(name)
        if known is None:
            prime = self.table.intern(AtomKind.SYMBOL, name, mask)
            known = self._symbols[name] = self.single(prime)
        elif self._axes[known] != mask:
            raise ValueError(f"symbol {name!r} already depends on {sorted(map(str, self.free_axes(known)))}")
        return known

    def constant(self, key: Hashable) -> Expr:
        """A scalar that no input determines: a number, or a name such as "1/k" or "eps"."""
        return self.single(self.table.intern(AtomKind.CONSTANT, key, 0))

    # ---- operators
    def add(self, a: Expr, b: Expr) -> Expr:
        """a + b, and a - b: the abstraction drops the sign."""
        key = (a, b) if a < b else (b, a)
        out = self._additions.get(key)
        if out is None:
            collected = dict(self._terms[a])
            for m, c in self._terms[b]:
                collected[m] = collected.get(m, 0) + c
            is_large = self._sizes[a] + self._sizes[b] > SIZE_LIMIT or max(collected.values()) > SIZE_LIMIT
            out = self._additions[key] = self._large("sum", *key) if is_large else self.collect(collected)
        return out

    def negate(self, e: Expr) -> Expr:
        """-e: every term times -1, which is a constant whose square is one. Terms never cancel."""
        return self.mul(e, self._minus)

    def mul(self, a: Expr, b: Expr) -> Expr:
        """a * b."""
        key = (a, b) if a < b else (b, a)
        out = self._products.get(key)
        if out is None:
            out = self._products[key] = self._large("product", *key) if self._is_large(a, b) else self._multiply(a, b)
        return out

    def div(self, a: Expr, b: Expr) -> Expr:
        """a / b."""
        return self.mul(a, self.inverse(b))

    def exp(self, e: Expr) -> Expr:
        """exp(e)."""
        if not self._split_exp:
            return self._wrap(AtomKind.EXP, e)
        if self.total(e) > SIZE_LIMIT:
            return self._large("exp", e)
        primes: list[int] = []
        for m, c in self._terms[e]:
            primes += [self._atom(AtomKind.EXP, self.single(m))] * c
        return self.single(self.table.product(primes))

    def sqrt(self, e: Expr) -> Expr:
        """The square root of e."""
        if not self._split_sqrt:
            return self._wrap(AtomKind.ROOT, e)
        return self.single(self.table.product(self._atom(AtomKind.ROOT, p) for p in self.pieces(e)))

    def function(self, name: str, e: Expr) -> Expr:
        """An opaque unary function of e. It depends on every free axis of e, also where it reduces one."""
        mask = self._axes[e]
        return self.single(self.table.intern(AtomKind.FUNCTION, (name, e), mask, self.is_vague(e)))

    def sum(self, axes: Iterable[SubAxis], e: Expr) -> Expr:
        """The sum of e over some axes; over an axis that e does not depend on: times its extent."""
        mask = self.table.mask(axes)
        if not mask:
            return e
        key = (e, mask)
        out = self._sums.get(key)
        if out is None:
            collected: dict[int, int] = {}
            for m, c in self._terms[e]:
                total = self.table.sum(mask, m)
                collected[total] = collected.get(total, 0) + c
            out = self._sums[key] = self.collect(collected)
        return out

    def inverse(self, e: Expr) -> Expr:
        """1 / e. Not an expression of Table 1 by itself: a / e is a times this."""
        out = self._inverses.get(e)
        if out is None:
            pieces = self.pieces(e) if self._split_inverse else (e,)
            primes = [self.minus if p == self._minus else self._atom(AtomKind.INVERSE, p) for p in pieces]
            out = self._inverses[e] = self.single(self.table.product(primes))
        return out

    # ---- reading
    def free_axes(self, e: Expr) -> frozenset[SubAxis]:
        """The axes that e depends on."""
        names = self.table.axis_names
        return frozenset(names[i] for i in bits(self._axes[e]))

    def show(self, e: Expr) -> str:
        """The normal form as text, such as `Σk X·W / √(1/k·(Σk X²))`."""
        return show(self, e)

    def terms(self, e: Expr) -> tuple[tuple[int, str], ...]:
        """The summands of the normal form: coefficient and text of each."""
        return show_terms(self, e)

    def monomials(self, e: Expr) -> Terms:
        """The terms of the normal form: (monomial, coefficient) pairs."""
        return self._terms[e]

    def is_vague(self, e: Expr) -> bool:
        """Whether the normal form of e may not be canonical (see `Atom.vague`)."""
        if not self.table.any_vague:
            return False
        out = self._vague.get(e)
        if out is None:
            atoms, monomials = self.table.atoms, self.table.monomials
            out = any(atoms[p].vague for m, _ in self._terms[e] for p in monomials[m].atoms)
            self._vague[e] = out
        return out

    # ---- building blocks, also for the oracle
    def single(self, monomial: int, coefficient: int = 1) -> Expr:
        """The expression of one term."""
        return self._intern(((monomial, coefficient),))

    def collect(self, terms: dict[int, int]) -> Expr:
        """The expression of some terms, {monomial: coefficient}."""
        return self._intern(tuple(sorted(terms.items())))

    def splits(self, kind: AtomKind) -> bool:
        """Whether atoms of this kind were split into their smallest factors."""
        split = {AtomKind.INVERSE: self._split_inverse, AtomKind.EXP: self._split_exp, AtomKind.ROOT: self._split_sqrt}
        return split[kind]

    def argument(self, prime: int) -> Expr:
        """The expression inside an exponential, root, inverse or addition atom."""
        payload = self.table.atoms[prime].payload
        if not isinstance(payload, int):
            raise TypeError(f"an atom of kind {self.table.atoms[prime].kind.value} has no argument")
        return payload

    def _intern(self, terms: Terms) -> Expr:
        e = self._expressions.get(terms)
        if e is None:
            e = self._expressions[terms] = len(self._terms)
            self._terms.append(terms)
            mask = size = 0
            for m, _ in terms:
                mask |= self.table.monomials[m].axes
                size += self.table.monomials[m].size
            self._axes.append(mask)
            self._sizes.append(size)
        return e

    def _atom(self, kind: AtomKind, e: Expr) -> int:
        return self.table.intern(kind, e, self._axes[e], self.is_vague(e))

    def _wrap(self, kind: AtomKind, e: Expr) -> Expr:
        return self.single(self._atom(kind, e))

    def _large(self, operator: str, *operands: Expr) -> Expr:
        """An expression that is not written out."""
        mask = 0
        for e in operands:
            mask |= self._axes[e]
        return self.single(self.table.intern(AtomKind.LARGE, (operator, operands), mask, vague=True))

    def _is_large(self, a: Expr, b: Expr) -> bool:
        """Whether the product of two expressions has too many factors, or too often one term."""
        first, second = self._terms[a], self._terms[b]
        if max(c for _, c in first) * max(c for _, c in second) > SIZE_LIMIT:
            return True
        if self.keeps_additions(a) and self.keeps_additions(b):
            return self._sizes[a] + self._sizes[b] > SIZE_LIMIT
        return len(second) * self._sizes[a] + len(first) * self._sizes[b] > SIZE_LIMIT

    def _multiply(self, left: Expr, right: Expr) -> Expr:
        a, b, multiply = self._terms[left], self._terms[right], self.table.multiply
        if len(a) == 1 and len(b) == 1:
            return self.single(multiply(a[0][0], b[0][0]), a[0][1] * b[0][1])
        if self._factored and self._has_addition(a) and self._has_addition(b):
            (k, m, primitive), (j, n, other) = self._split(a), self._split(b)
            additions = self.table.product(primitive + other)
            return self.single(multiply(multiply(m, n), additions), k * j)
        collected: dict[int, int] = {}
        for m, c in a:
            for n, d in b:
                out = multiply(m, n)
                collected[out] = collected.get(out, 0) + c * d
        return self.collect(collected)

    def _has_addition(self, terms: Terms) -> bool:
        return len(terms) > 1 or self.table.monomials[terms[0][0]].additive

    def keeps_additions(self, e: Expr) -> bool:
        """Whether the product of e with another such expression stays a product of additions."""
        return self._factored and self._has_addition(self._terms[e])

    def total(self, e: Expr) -> int:
        """The sum of the coefficients of e."""
        return sum(c for _, c in self._terms[e])

    def as_product(self, e: Expr) -> int | None:
        """The monomial of e as a factor of a product that stays factored; None if it never was one."""
        terms = self._terms[e]
        if len(terms) == 1:
            return terms[0][0]
        _, common, rest = self._content(terms)
        addition = self._expressions.get(tuple(sorted(rest.items())))
        prime = None if addition is None else self.table.find(AtomKind.ADDITION, addition)
        return None if prime is None else self.table.multiply(common, prime)

    def _split(self, terms: Terms) -> tuple[int, int, tuple[int, ...]]:
        """Terms as (integer, common monomial, additions): with several terms there is one addition."""
        if len(terms) == 1:
            return terms[0][1], terms[0][0], ()
        integer, common, rest = self._content(terms)
        addition = self.collect(rest)
        return integer, common, (self._atom(AtomKind.ADDITION, addition),)

    def _content(self, terms: Terms) -> tuple[int, int, dict[int, int]]:
        """The common integer and monomial (without additions) of some terms, and what is left of them."""
        table = self.table
        integer = gcd(*(c for _, c in terms))
        shared = gcd(*(m for m, _ in terms))
        remaining, atoms = shared, []
        for p in table.monomials[terms[0][0]].atoms:
            if remaining % p == 0:
                remaining //= p
                if not table.atoms[p].additive:
                    atoms.append(p)
        common = table.product(atoms)
        return integer, common, {table.quotient(m, common): c // integer for m, c in terms}

    def pieces(self, e: Expr) -> tuple[Expr, ...]:
        """The smallest factors of e: primes, atoms and irreducible sums, with multiplicity."""
        out = self._pieces.get(e)
        if out is None:
            terms = self._terms[e]
            common, integer, rest = *terms[0], {1: 1}
            if len(terms) > 1:
                integer, common, rest = self._content(terms)
            found = [self.single(1, p) for p in _prime_factors(integer)]
            found += [self._piece(p) for p in self.table.monomials[common].atoms]
            out = self._pieces[e] = tuple(found + self._sums_in(rest))
        return out

    def _piece(self, prime: int) -> Expr:
        addition = self.table.atoms[prime].kind is AtomKind.ADDITION
        return self.argument(prime) if addition else self.single(prime)

    def _sums_in(self, rest: dict[int, int]) -> list[Expr]:
        """The irreducible factors of a polynomial without content."""
        if rest == {1: 1}:
            return []
        whole = self.collect(rest)
        if self._factored:
            return [whole]
        monomials, minus = self.table.monomials, self.minus
        variables = tuple(sorted({p for m in rest for p in monomials[m].atoms} - {minus}))
        signed: dict[int, int] = {}
        for m, c in rest.items():
            bare, c = (m, c) if m % minus else (m // minus, -c)
            signed[bare] = signed.get(bare, 0) + c
        differs = any(c < 0 for c in signed.values())
        turned = signed[max(signed)] < 0
        cancels = len(signed) < len(rest)
        factors = [] if cancels else factor({m: -c for m, c in signed.items()} if turned else signed, variables)
        if cancels or (not differs and any(c < 0 for f in factors for c in f.values())):
            self._vague[whole] = True
            self.table.any_vague = True
            return [whole]
        found = [self._with_signs({self._known(m, variables): c for m, c in f.items()}) for f in factors]
        return [self._minus, *found] if turned else found

    def _with_signs(self, terms: Polynomial) -> Expr:
        """The expression of a polynomial with integer coefficients."""
        multiply, minus = self.table.multiply, self.minus
        return self.collect({m if c > 0 else multiply(m, minus): abs(c) for m, c in terms.items()})

    def _known(self, monomial: int, variables: tuple[int, ...]) -> int:
        """Register a monomial that was computed by integer arithmetic."""
        atoms, remaining = [], monomial
        for p in variables:
            while remaining % p == 0:
                remaining //= p
                atoms.append(p)
        return self.table.product(atoms)


def _prime_factors(n: int) -> list[int]:
    out, p = [], 2
    while n > 1:
        while n % p == 0:
            n //= p
            out.append(p)
        p += 1
    return out
