"""Primes of trials: drawn from all there are, and prime for certain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mirage_nb.interp.primes import PRIMES, Pool


def by_division(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def test_every_pair_is_drawn_alike() -> None:
    pool, rng = Pool("few", 100, 3000), np.random.default_rng(1)
    brute = [(p, p // 2) for p in range(100, 3000) if p % 8 == 7 and by_division(p) and by_division(p // 2)]
    assert list(pool.pairs) == brute and pool.count == len(brute)
    drawn = [pool.draw(rng) for _ in range(200 * len(brute))]
    often = [drawn.count(pair) for pair in brute]
    assert sum(often) == len(drawn) and min(often) > 130 and max(often) < 280


def test_pairs_of_trials_are_of_31_bits_and_rarely_met_again() -> None:
    rng = np.random.default_rng(2)
    drawn = [PRIMES.draw(rng) for _ in range(100)]
    for p, q in drawn:
        assert p.bit_length() == 31 and p == 2 * q + 1 and p % 4 == q % 4 == 3
        assert by_division(p) and by_division(q)
    assert len(set(drawn)) > 98


@pytest.mark.slow
def test_as_many_pairs_as_is_said() -> None:
    """A sieve over all of them."""
    root = math.isqrt(PRIMES.high) + 1
    divisors = [n for n in range(3, root, 2) if by_division(n)]
    count, step = 0, 2**27
    for low in range(PRIMES.low, PRIMES.high, step):
        first = low + 7
        keep = np.ones(step // 8, bool)
        for prime in divisors:
            eighth = pow(8, -1, prime)
            keep[-first * eighth % prime :: prime] = False
            keep[(1 - first) * eighth % prime :: prime] = False
        count += int(keep.sum())
    assert count == PRIMES.count
