"""Factoring: products come apart into the factors they were made of."""

from __future__ import annotations

import math
from collections import Counter
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.algebra.polynomial import factor
from tests.shares import examples

A, B, C, D = VARIABLES = (2, 3, 5, 7)
monomials = st.lists(st.sampled_from(VARIABLES), max_size=2).map(math.prod)
polynomials = st.dictionaries(monomials, st.integers(1, 3), min_size=1, max_size=3)


def primitive(p):
    common, integer = math.gcd(*p), math.gcd(*p.values())
    return {m // common: c // integer for m, c in p.items()}


def canonical(factors):
    return sorted(sorted(f.items()) for f in factors)


def multiply(p, q):
    out = Counter()
    for m, c in p.items():
        for n, d in q.items():
            out[m * n] += c * d
    return {m: c for m, c in out.items() if c}


def product(factors):
    return reduce(multiply, factors, {1: 1})


@examples(300)
@given(polynomials, polynomials)
def test_factors_of_a_product_are_the_factors_of_both(p, q) -> None:
    p, q = primitive(p), primitive(q)
    left, right, both = (factor(f, VARIABLES) if len(f) > 1 else [] for f in (p, q, multiply(p, q)))
    assert canonical(both) == canonical(left + right)
    assert product(both) == multiply(p, q)


@pytest.mark.parametrize(
    "factors",
    [
        [{A: 1, B: 1}, {C: 1, D: 1}],  # the content of each variable
        [{A: 1, B: 1}, {A: 1, B: 1}],  # a repeated factor
        [{A: 1, B: 1}, {A: 1, B: 2}],  # the quadratic formula
        [{A: 1, B: 1}, {A: 1, B: 1}, {A: 1, B: 3}],
        [{A * A: 1, B * B: 1}],  # irreducible over the integers
        [{A * A: 1, A * B: 1, B * B: 1}],
        [{A: 1, B: 1, C: 1}, {A: 1, B: 1, D: 1}],
        [{A: 1, B: 1}, {A * A: 1, A * B: -1, B * B: 1}],  # cubic in every variable
        [{A**3: 1, B**3: 2}],
    ],
)
def test_known_factorizations(factors) -> None:
    assert canonical(factor(product(factors), VARIABLES)) == canonical(factors)


@examples(150)
@given(polynomials, polynomials)
def test_agrees_with_an_independent_factorization(p, q) -> None:
    sympy = pytest.importorskip("sympy")
    symbols = dict(zip(VARIABLES, sympy.symbols("a b c d"), strict=True))

    def convert(poly):
        total = sympy.Integer(0)
        for m, c in poly.items():
            term = sympy.Integer(c)
            for prime, symbol in symbols.items():
                while m % prime == 0:
                    m //= prime
                    term *= symbol
            total += term
        return total

    whole = primitive(multiply(p, q))
    if len(whole) == 1:
        return
    expected = [f for f, n in sympy.factor_list(convert(whole))[1] for _ in range(n)]
    found = factor(whole, VARIABLES)
    assert len(found) == len(expected) and product(found) == whole
