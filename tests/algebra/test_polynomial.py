"""Factoring: products come apart into the factors they were made of."""

from __future__ import annotations

from math import gcd as integer_gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.algebra.polynomial import divide, factor, gcd, multiply, square_root, subtract
from tests.shares import examples

A, B, C, D = VARIABLES = (2, 3, 5, 7)
monomials = st.lists(st.sampled_from(VARIABLES), max_size=2).map(lambda ps: eval_product(ps))
polynomials = st.dictionaries(monomials, st.integers(1, 3), min_size=1, max_size=3)


def eval_product(primes):
    out = 1
    for p in primes:
        out *= p
    return out


def primitive(p):
    common, integer = integer_gcd(*p), integer_gcd(*p.values())
    return {m // common: c // integer for m, c in p.items()}


def canonical(factors):
    return sorted(sorted(f.items()) for f in factors)


def product(factors):
    out = {1: 1}
    for f in factors:
        out = multiply(out, f)
    return out


@given(polynomials, polynomials)
def test_division_undoes_multiplication(p, q) -> None:
    assert divide(multiply(p, q), q) == p


@given(polynomials, polynomials)
def test_inexact_division_is_refused(p, q) -> None:
    quotient = divide(p, q)
    assert quotient is None or multiply(quotient, q) == p


@given(polynomials, polynomials, polynomials)
def test_gcd_divides_and_contains_the_common_factor(p, q, r) -> None:
    a, b = multiply(p, r), multiply(q, r)
    common = gcd(a, b, VARIABLES)
    assert divide(a, common) is not None and divide(b, common) is not None
    assert divide(common, r) is not None


@given(polynomials)
def test_square_root_undoes_squaring(p) -> None:
    assert square_root(multiply(p, p)) == p


def test_square_root_of_no_square() -> None:
    assert square_root({A * A: 1, A * B: 1, B * B: 1}) is None
    assert square_root({A: 1}) is None
    assert square_root({1: -1}) is None
    assert square_root({}) == {}


@examples(300)
@given(polynomials, polynomials)
def test_factors_of_a_product_are_the_factors_of_both(p, q) -> None:
    p, q = primitive(p), primitive(q)
    left, right, both = (factor(f, VARIABLES) if len(f) > 1 else [] for f in (p, q, multiply(p, q)))
    if left is not None and right is not None and both is not None:
        assert canonical(both) == canonical(left + right)
        assert product(both) == multiply(p, q)


@pytest.mark.parametrize(
    ("factors", "count"),
    [
        ([{A: 1, B: 1}, {C: 1, D: 1}], 2),  # the content of each variable
        ([{A: 1, B: 1}, {A: 1, B: 1}], 2),  # a repeated factor
        ([{A: 1, B: 1}, {A: 1, B: 2}], 2),  # the quadratic formula
        ([{A: 1, B: 1}, {A: 1, B: 1}, {A: 1, B: 3}], 3),
        ([{A * A: 1, B * B: 1}], 1),  # irreducible over the integers
        ([{A * A: 1, A * B: 1, B * B: 1}], 1),
        ([{A: 1, B: 1, C: 1}, {A: 1, B: 1, D: 1}], 2),
    ],
)
def test_known_factorizations(factors, count) -> None:
    found = factor(product(factors), VARIABLES)
    assert found is not None and len(found) == count
    assert product(found) == product(factors)


def test_cubic_in_every_variable_is_not_decided() -> None:
    assert factor({A**3: 1, B**3: 1}, VARIABLES) is None


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
    found = factor(whole, VARIABLES)
    if found is not None:
        expected = [f for f, n in sympy.factor_list(convert(whole))[1] for _ in range(n)]
        assert len(found) == len(expected)
        assert subtract(product(found), whole) == {}
