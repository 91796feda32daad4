"""The primes of field trials: drawn afresh for every trial, from more than anybody can provide for.

In: a generator. Out: a pair (p, q) of primes with p = 2q + 1, both 3 modulo 4, so that q-th roots of unity exist modulo
p and square roots are powers (paper section 5, Table 3); uniform among all such pairs of a `Pool`. Trials draw from
`PRIMES`: arithmetic stays in machine words, and a number that is a multiple of all its primes has 25 million bits. A
graph may compute such a one: `verify.fields.heights`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

SIEVED = np.array([n for n in range(3, 90) if all(n % m for m in range(2, n))], np.uint32)[:, None]
"""What candidates are divided by first."""
WITNESSES = (2, 3, 5, 7)
"""Bases with which the test of Miller and Rabin is exact below 3,215,031,751 (Jaeschke 1993)."""
AT_ONCE = 256
"""Numbers that are sieved at once; one in eighty leads a pair."""


@dataclass(frozen=True)
class Pool:
    """All pairs (p, q) with p in [low, high), p = 2q + 1, p and q prime and 3 modulo 4; there is one at least.

    `known`: how many pairs there are, where counting them takes long.
    """

    name: str
    low: int
    high: int
    known: int = 0

    @cached_property
    def count(self) -> int:
        """Number of pairs."""
        return self.known or len(self.pairs)

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of a small pool, ascending."""
        numbers = np.arange(self._first, self.high, 8)
        return tuple((p, p // 2) for p in numbers[_unsieved(numbers)].tolist() if _leads(p))

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        """A pair, each with the same chance; it follows from the generator."""
        places = -(-(self.high - self._first) // 8)
        while True:
            numbers = self._first + 8 * rng.integers(0, places, AT_ONCE)
            for p in numbers[_unsieved(numbers)].tolist():
                if _leads(p):
                    return p, p // 2

    @property
    def _first(self) -> int:
        """The first number that is 7 modulo 8."""
        return self.low + (7 - self.low) % 8


PRIMES = Pool("31-bit primes", 2**30, 2**31, known=817_344)


def _unsieved(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which numbers, and their halves, have no small divisor; small ones are not looked at."""
    rest = numbers.astype(np.uint32) % SIEVED
    apart = ((rest != 0) & (rest != 1)) | (numbers <= 2 * SIEVED + 1)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = apart.all(axis=0)
    return found


def _leads(p: int) -> bool:
    """Whether p and (p - 1) / 2 are prime."""
    return is_prime(p // 2) and is_prime(p)


def is_prime(n: int) -> bool:
    """Whether an odd number below 3,215,031,751 is prime, for certain."""
    if n < 2 or n in WITNESSES:
        return n >= 2
    if n % 2 == 0:
        return False
    twos = (n - 1 & 1 - n).bit_length() - 1
    return all(_passes(n, base, (n - 1) >> twos, twos) for base in WITNESSES)


def _passes(n: int, base: int, odd: int, twos: int) -> bool:
    """Whether a number looks prime to a base."""
    power = pow(base, odd, n)
    if power in (1, n - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % n
        if power == n - 1:
            return True
    return False
