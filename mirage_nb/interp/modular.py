"""Arithmetic modulo primes on NumPy arrays, exact: what field trials are made of.

In and out: uint64 arrays of residues. Products of residues stay below 2^62. Matrix products go through
float64 BLAS: directly while a sum of products stays below 2^53, else with both sides split into 16-bit
limbs. Pools hold the pairs (p, q) that trials draw from: p = 2q + 1, both 3 modulo 4, so that q-th roots
of unity exist modulo p and square roots are powers (paper section 5, Table 3).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Residues = NDArray[np.uint64]

EXACT = 2**53
CACHED = 2**19
"""Elements that are converted to floats at once: as many as stay in the cache."""
FEW = 48
"""Elements up to which large powers are quicker one by one."""
LIMB = np.uint64(16)
LIMB_MASK = np.uint64(2**16 - 1)


@dataclass(frozen=True, slots=True)
class Modulus:
    """Arithmetic modulo a prime below 2^31 that is 3 modulo 4."""

    value: int
    _m: np.uint64 = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_m", np.uint64(self.value))

    def of(self, number: int) -> np.uint64:
        """The residue of any integer."""
        return np.uint64(number % self.value)

    def add(self, x: Residues, y: Residues) -> Residues:
        """x + y."""
        return (x + y) % self._m

    def sub(self, x: Residues, y: Residues) -> Residues:
        """x - y."""
        return (x + (self._m - y)) % self._m

    def mul(self, x: Residues, y: Residues) -> Residues:
        """x * y."""
        return (x * y) % self._m

    def sum(self, x: Residues, axis: int) -> Residues:
        """Sum along an axis that is kept; fewer than 2^33 terms."""
        total: Residues = x.sum(axis=axis, keepdims=True, dtype=np.uint64) % self._m
        return total

    def power(self, x: Residues, exponent: int) -> Residues:
        """x ** exponent for exponent >= 0."""
        if x.size < FEW and exponent > FEW:
            found = [pow(number, exponent, self.value) for number in x.reshape(-1).tolist()]
            return np.array(found, np.uint64).reshape(x.shape)
        result = np.ones_like(x)
        square = x
        while exponent:
            if exponent & 1:
                result = self.mul(result, square)
            exponent >>= 1
            if exponent:
                square = self.mul(square, square)
        return result

    def inverse(self, x: Residues) -> Residues:
        """1 / x; 0 where x is 0, which the caller has to mark as undefined."""
        return self.power(x, self.value - 2)

    def root(self, x: Residues) -> Residues:
        """The square root that is itself a square; meaningless, and to be marked, where x is no square."""
        return self.power(x, (self.value + 1) // 4)

    def matmul(self, x: Residues, y: Residues) -> Residues:
        """x @ y, exact for any extents."""
        inner = x.shape[-1]
        multiply, span = self._narrow, EXACT // (self.value - 1) ** 2
        if span < 64:
            multiply, span = self._wide, EXACT // 2**33
        result = math.prod(x.shape[:-1]) * y.shape[-1]
        span = min(span, max(16, max(CACHED, result) * inner // max(1, x.size + y.size)))
        parts = (multiply(x[..., at : at + span], y[..., at : at + span, :]) for at in range(0, inner, span))
        return functools.reduce(self.add, parts)

    def _narrow(self, x: Residues, y: Residues) -> Residues:
        product: Residues = _product(_floats(x), _floats(y)) % self._m
        return product

    def _wide(self, x: Residues, y: Residues) -> Residues:
        low_x, high_x, low_y, high_y = (_floats(part) for side in (x, y) for part in (side & LIMB_MASK, side >> LIMB))
        high = _product(high_x, high_y) % self._m
        middle = (_product(high_x, low_y) + _product(low_x, high_y)) % self._m
        low = _product(low_x, low_y) % self._m
        total: Residues = (high * self.of(2**32) + middle * np.uint64(2**16) + low) % self._m
        return total


def _floats(x: Residues) -> NDArray[np.float64]:
    return x.view(np.int64).astype(np.float64)


def _product(x: NDArray[np.float64], y: NDArray[np.float64]) -> Residues:
    """x @ y of whole numbers; the caller keeps the sums of products below 2^53."""
    product: Residues = (x @ y).astype(np.int64).view(np.uint64)
    return product


@dataclass(frozen=True, slots=True)
class Pool:
    """All pairs (p, q) with p in [low, high), p = 2q + 1, p and q prime and 3 modulo 4."""

    name: str
    low: int
    high: int

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs, ascending."""
        return _pairs(self.low, self.high)


SMALL = Pool("21-bit primes", 2**20, 2**21)
LARGE = Pool("31-bit primes", 2**31 - 2**22, 2**31)


@functools.cache
def _pairs(low: int, high: int) -> tuple[tuple[int, int], ...]:
    first = low + (7 - low) % 8  # p = 2q + 1 with q = 3 modulo 4
    keep = np.ones((high - first + 7) // 8, bool)
    for prime in _primes(math.isqrt(high) + 1)[1:]:
        eighth = pow(8, -1, prime)
        keep[-first * eighth % prime :: prime] = False  # prime divides p
        keep[(1 - first) * eighth % prime :: prime] = False  # prime divides q
    return tuple((first + 8 * int(i), (first + 8 * int(i)) // 2) for i in np.flatnonzero(keep))


def _primes(limit: int) -> list[int]:
    """All primes below `limit`."""
    sieve = np.ones(limit, bool)
    sieve[:2] = False
    for n in range(2, math.isqrt(limit) + 1):
        if sieve[n]:
            sieve[n * n :: n] = False
    return [int(n) for n in np.flatnonzero(sieve)]


def mix(x: Residues, key: int) -> Residues:
    """A keyed permutation of 64-bit words that scatters them (the finaliser of splitmix64, twice)."""
    word = x.reshape(-1) ^ np.uint64(key & (2**64 - 1))
    for _ in range(2):
        word = word + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word = word ^ (word >> np.uint64(31))
    return word.reshape(x.shape)
