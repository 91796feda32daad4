"""Factoring small polynomials over the integers into irreducibles.

In: a polynomial as a dict {monomial: coefficient}, where a monomial is a product of primes and every
prime is a variable. Out: its irreducible factors, which are unique (Z[x, y, ...] has unique
factorization): that is what makes denominators and roots canonical, so that 1/((a+b)c) and 1/(ac+bc)
get one normal form and a sum can still be moved over the factors that do not depend on its axis.

The order of the integers is an admissible monomial order (m < n implies m*k < n*k), so exact division is
plain long division. Polynomials of degree three or more in every variable, square-free and without a
common content are not decided: `factor` says so with None.
"""

from __future__ import annotations

from math import gcd as integer_gcd
from math import isqrt

Polynomial = dict[int, int]
ONE: Polynomial = {1: 1}


def multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    """The product a * b."""
    out: Polynomial = {}
    for m, c in a.items():
        for n, d in b.items():
            out[m * n] = out.get(m * n, 0) + c * d
    return {m: c for m, c in out.items() if c}


def subtract(a: Polynomial, b: Polynomial) -> Polynomial:
    """The difference a - b."""
    out = dict(a)
    for m, c in b.items():
        out[m] = out.get(m, 0) - c
    return {m: c for m, c in out.items() if c}


def divide(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """The exact quotient a / b, or None when b does not divide a. `b` is not zero."""
    lead, lead_coefficient = max(b.items())
    rest, quotient = dict(a), {}
    while rest:
        m = max(rest)
        if m % lead or rest[m] % lead_coefficient:
            return None
        q, c = m // lead, rest[m] // lead_coefficient
        quotient[q] = c
        for n, d in b.items():
            value = rest.get(q * n, 0) - c * d
            if value:
                rest[q * n] = value
            else:
                del rest[q * n]
    return quotient


def _exact(a: Polynomial, b: Polynomial) -> Polynomial:
    quotient = divide(a, b)
    if quotient is None:
        raise ArithmeticError("a divisor that was computed as one does not divide")
    return quotient


def degree(a: Polynomial, x: int) -> int:
    """The degree of a in the variable x."""
    return max(_valuation(m, x) for m in a)


def _valuation(m: int, x: int) -> int:
    k = 0
    while m % x == 0:
        m //= x
        k += 1
    return k


def coefficients(a: Polynomial, x: int) -> dict[int, Polynomial]:
    """The coefficients of a as a polynomial in x, by degree."""
    out: dict[int, Polynomial] = {}
    for m, c in a.items():
        k = _valuation(m, x)
        out.setdefault(k, {})[m // x**k] = c
    return out


def _variables(a: Polynomial, candidates: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x for x in candidates if any(m % x == 0 for m in a))


def gcd(a: Polynomial, b: Polynomial, variables: tuple[int, ...]) -> Polynomial:
    """The greatest common divisor of two non-zero polynomials, with a positive leading coefficient."""
    if len(a) == 1 or len(b) == 1:
        return {integer_gcd(*a, *b): integer_gcd(*a.values(), *b.values())}
    in_a, in_b = _variables(a, variables), _variables(b, variables)
    for x in in_a:
        if x not in in_b:
            return gcd(content(a, x, variables), b, variables)
    for x in in_b:
        if x not in in_a:
            return gcd(a, content(b, x, variables), variables)
    x = min(in_a, key=lambda v: min(degree(a, v), degree(b, v)))
    content_a, content_b = content(a, x, variables), content(b, x, variables)
    common = gcd(content_a, content_b, variables)
    a, b = _exact(a, content_a), _exact(b, content_b)
    if degree(a, x) < degree(b, x):
        a, b = b, a
    while degree(b, x):  # Euclid on primitive remainders
        r = _pseudo_remainder(a, b, x)
        if not r:
            return _positive(multiply(common, b))
        a, b = b, _exact(r, content(r, x, variables))
    return _positive(common)


def content(a: Polynomial, x: int, variables: tuple[int, ...]) -> Polynomial:
    """The greatest common divisor of the coefficients of a as a polynomial in x."""
    parts = sorted(coefficients(a, x).values(), key=len)
    common = _positive(parts[0])
    for part in parts[1:]:
        if common == ONE:
            break
        common = gcd(common, part, variables)
    return common


def _pseudo_remainder(a: Polynomial, b: Polynomial, x: int) -> Polynomial:
    k = degree(b, x)
    lead_b = coefficients(b, x)[k]
    while a and degree(a, x) >= k:
        d = degree(a, x)
        shifted = {m * x ** (d - k): c for m, c in coefficients(a, x)[d].items()}
        a = subtract(multiply(lead_b, a), multiply(shifted, b))
    return a


def _positive(a: Polynomial) -> Polynomial:
    return a if a[max(a)] > 0 else {m: -c for m, c in a.items()}


def square_root(a: Polynomial) -> Polynomial | None:
    """The polynomial whose square is `a` (positive leading coefficient), or None."""
    if not a:
        return {}
    lead, c = max(a.items())
    if c < 0 or isqrt(c) ** 2 != c or isqrt(lead) ** 2 != lead:
        return None
    top, top_coefficient = isqrt(lead), isqrt(c)
    root = {top: top_coefficient}
    rest = subtract(a, multiply(root, root))
    previous = top
    while rest:
        m, c = max(rest.items())
        if m % top or c % (2 * top_coefficient) or m // top >= previous:
            return None
        previous = m // top
        root[previous] = c // (2 * top_coefficient)
        rest = subtract(a, multiply(root, root))
    return root


def factor(a: Polynomial, variables: tuple[int, ...]) -> list[Polynomial] | None:
    """The irreducible factors of a polynomial, with multiplicity, leading coefficients positive.

    Args:
        a: two terms or more, no common integer and no common variable (`{1: 1}` gives an empty list).
        variables: the primes that occur in it.

    Returns:
        The factors, or None when the polynomial is beyond the cases that are decided.
    """
    if a == ONE:
        return []
    variables = _variables(a, variables)
    x = min(variables, key=lambda v: degree(a, v))
    d = degree(a, x)
    if d == 1 and sum(m % x == 0 for m in a) == 1:
        return [a]  # x*m + rest: the only possible content is a common variable, and there is none
    common = content(a, x, variables)
    if common != ONE:
        return _factor_both(common, _exact(a, common), variables)
    if d == 1:
        return [a]
    derivative = {m // x: c * _valuation(m, x) for m, c in a.items() if m % x == 0}
    common = gcd(a, derivative, variables)
    if common != ONE:
        return _factor_both(common, _exact(a, common), variables)
    if d > 2:
        return None
    parts = coefficients(a, x)
    linear = parts.get(1, {})
    root = square_root(subtract(multiply(linear, linear), multiply({1: 4}, multiply(parts[2], parts[0]))))
    if root is None:
        return [a]
    half = subtract(linear, root)
    half.update({m * x: 2 * c for m, c in parts[2].items()})
    half = _positive(_exact(half, content(half, x, variables)))
    return _factor_both(half, _exact(a, half), variables)


def _factor_both(a: Polynomial, b: Polynomial, variables: tuple[int, ...]) -> list[Polynomial] | None:
    left = factor(a, variables)
    right = None if left is None else factor(b, variables)
    return None if left is None or right is None else left + right
