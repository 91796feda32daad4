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

AT_ONCE = 256
"""Numbers that are drawn at once; one in eighty leads a pair."""


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
        return tuple((p, p // 2) for p in range(self._first, self.high, 8) if _leads(p))

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        """A pair, each with the same chance; it follows from the generator."""
        places = -(-(self.high - self._first) // 8)
        while True:
            for p in (self._first + 8 * rng.integers(0, places, AT_ONCE)).tolist():
                if _leads(p):
                    return p, p // 2

    @property
    def _first(self) -> int:
        """The first number that is 7 modulo 8."""
        return self.low + (7 - self.low) % 8


PRIMES = Pool("31-bit primes", 2**30, 2**31, known=817_344)


def _leads(p: int) -> bool:
    """Whether p and (p - 1) / 2 are prime."""
    from flint import fmpz  # not before it is needed

    return bool(fmpz(p // 2).is_prime() and fmpz(p).is_prime())
