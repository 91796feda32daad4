"""Factoring polynomials over the integers into irreducibles.

In: a polynomial as a dict {monomial: coefficient}, where a monomial is a product of primes and every
prime is a variable. Out: its irreducible factors, which are unique (Z[x, y, ...] has unique
factorization): that is what makes denominators and roots canonical, so that 1/((a+b)c) and 1/(ac+bc)
get one normal form and a sum can still be moved over the factors that do not depend on its axis.
FLINT finds them.
"""

from __future__ import annotations

import math

Polynomial = dict[int, int]


def factor(a: Polynomial, variables: tuple[int, ...]) -> list[Polynomial]:
    """The irreducible factors of a polynomial, with multiplicity, the coefficients of their largest monomials positive.

    Args:
        a: no common integer and no common variable, the coefficient of its largest monomial positive.
        variables: the primes that may occur in it.
    """
    if any(sum(m % x == 0 for m in a) == 1 and all(m % x**2 for m in a) for x in variables):
        return [a]  # x*m + rest: a factor without x would be one of m, which is a common variable
    from flint import fmpz_mpoly_ctx  # not before it is needed

    context = fmpz_mpoly_ctx.get(tuple(f"x{x}" for x in variables))
    terms = {tuple(_valuation(m, x) for x in variables): c for m, c in a.items()}
    found = []
    for part, times in context.from_dict(terms).factor()[1]:
        read = {math.prod(map(pow, variables, powers)): int(c) for powers, c in part.to_dict().items()}
        sign = 1 if read[max(read)] > 0 else -1
        found += [{m: sign * c for m, c in read.items()}] * times
    return found


def _valuation(m: int, x: int) -> int:
    k = 0
    while m % x == 0:
        m //= x
        k += 1
    return k
