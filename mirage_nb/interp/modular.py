"""Arithmetic modulo primes on arrays, exact: what field trials are made of.

In and out: uint64 arrays of residues, NumPy's or those of a library like it on a GPU; modulo one prime (`Modulus`),
or modulo several side by side (`Moduli`: one for each index of the first dimension). Products of residues stay below
2^62. Matrix products go through float64 BLAS: directly while a sum of products stays below 2^53, else with both sides
split into 16-bit limbs. Pools hold the pairs (p, q) that trials draw from: p = 2q + 1, both 3 modulo 4, so that q-th
roots of unity exist modulo p and square roots are powers (paper section 5, Table 3).
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Residues = NDArray[np.uint64]

EXACT = 2**53
CACHED = 2**19
"""Elements that are converted to floats at once: as many as stay in the cache."""
FEW = 96
"""Elements up to which large powers are quicker one by one."""
MOST_DIMS = 65
"""More dimensions than any array has."""
LIMB = np.uint64(16)
LIMB_MASK = np.uint64(2**16 - 1)


class Arithmetic(ABC):
    """Arithmetic modulo primes below 2^31 that are 3 modulo 4; operands have as many dimensions as each other."""

    __slots__ = ()

    @property
    @abstractmethod
    def values(self) -> tuple[int, ...]:
        """The primes."""

    @abstractmethod
    def modulo(self, dims: int) -> Any:
        """What arrays with so many dimensions are divided by."""

    @abstractmethod
    def residues(self, number: int, dims: int) -> Residues:
        """The residue of any integer, for every prime, with so many dimensions."""

    def reduced(self, x: Residues) -> Residues:
        """The residues of any words."""
        result: Residues = x % self.modulo(x.ndim)
        return result

    def add(self, x: Residues, y: Residues) -> Residues:
        """x + y."""
        return self.reduced(x + y)

    def sub(self, x: Residues, y: Residues) -> Residues:
        """x - y."""
        return self.reduced(x + (self.modulo(y.ndim) - y))

    def mul(self, x: Residues, y: Residues) -> Residues:
        """x * y."""
        return self.reduced(x * y)

    def sum(self, x: Residues, axis: int) -> Residues:
        """Sum along an axis that is kept; fewer than 2^33 terms."""
        return self.reduced(x.sum(axis=axis, keepdims=True, dtype=np.uint64))

    def power(self, x: Residues, exponent: int) -> Residues:
        """x ** exponent for exponent >= 0."""
        return self._power(x, (exponent,) * len(self.values))

    def inverse(self, x: Residues) -> Residues:
        """1 / x; 0 where x is 0, which the caller has to mark as undefined."""
        if 0 < x.size < FEW and isinstance(x, np.ndarray):
            return self._each(x, lambda number, prime: pow(number, -1, prime) if number else 0)
        return self._power(x, tuple(value - 2 for value in self.values))

    def root(self, x: Residues) -> Residues:
        """The square root that is itself a square; meaningless, and to be marked, where x is no square."""
        return self._power(x, tuple((value + 1) // 4 for value in self.values))

    def _power(self, x: Residues, exponents: tuple[int, ...]) -> Residues:
        """x to the power that belongs to each prime."""
        if 0 < x.size < FEW and max(exponents) > FEW and isinstance(x, np.ndarray):
            at = dict(zip(self.values, exponents, strict=True))
            return self._each(x, lambda number, prime: pow(number, at[prime], prime))
        result, square = np.ones_like(x), x
        bits = max(exponents).bit_length()
        for bit in range(bits):
            wanted = [exponent >> bit & 1 for exponent in exponents]
            if all(wanted):
                result = self.mul(result, square)
            elif any(wanted):
                mask = np.array(wanted, bool).reshape(-1, *(1,) * (x.ndim - 1))
                result = np.where(mask, self.mul(result, square), result)
            if bit + 1 < bits:
                square = self.mul(square, square)
        return result

    def _each(self, x: Residues, operation: Callable[[int, int], int]) -> Residues:
        """The operation on every single number and its prime."""
        rows = x.reshape(len(self.values), -1).tolist()
        found = [[operation(n, prime) for n in row] for prime, row in zip(self.values, rows, strict=True)]
        return np.array(found, np.uint64).reshape(x.shape)

    def matmul(self, x: Residues, y: Residues) -> Residues:
        """x @ y, exact for any extents."""
        inner = x.shape[-1]
        multiply, span = self._narrow, EXACT // (max(self.values) - 1) ** 2
        if span < 64:
            multiply, span = self._wide, EXACT // 2**33
        if inner <= 16:
            return multiply(x, y)
        result = math.prod(x.shape[:-1]) * y.shape[-1]
        span = min(span, max(16, max(CACHED, result) * inner // max(1, x.size + y.size)))
        parts = (multiply(x[..., at : at + span], y[..., at : at + span, :]) for at in range(0, inner, span))
        return functools.reduce(self.add, parts)

    def _narrow(self, x: Residues, y: Residues) -> Residues:
        return self.reduced(_product(_floats(x), _floats(y)))

    def _wide(self, x: Residues, y: Residues) -> Residues:
        low_x, high_x, low_y, high_y = (_floats(part) for side in (x, y) for part in (side & LIMB_MASK, side >> LIMB))
        high = self.reduced(_product(high_x, high_y))
        middle = self.reduced(_product(high_x, low_y) + _product(low_x, high_y))
        low = self.reduced(_product(low_x, low_y))
        return self.reduced((high << np.uint64(32)) + (middle << LIMB) + low)


@dataclass(frozen=True, slots=True)
class Modulus(Arithmetic):
    """Arithmetic modulo one prime."""

    value: int
    _m: np.uint64 = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_m", np.uint64(self.value))

    @property
    def values(self) -> tuple[int, ...]:
        """The prime."""
        return (self.value,)

    def of(self, number: int) -> np.uint64:
        """The residue of any integer."""
        return np.uint64(number % self.value)

    def modulo(self, dims: int) -> Any:
        """The prime."""
        return self._m

    def residues(self, number: int, dims: int) -> Residues:
        """The residue of any integer."""
        return np.full((1,) * dims, self.of(number), np.uint64)


@dataclass(frozen=True, slots=True)
class Moduli(Arithmetic):
    """Arithmetic modulo several primes at once, one for each index of the first dimension of every array."""

    primes: tuple[int, ...]
    _by_dims: tuple[Residues, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        column = np.array(self.primes, np.uint64)
        shaped = tuple(column.reshape(-1, *(1,) * max(0, dims - 1)) for dims in range(MOST_DIMS))
        object.__setattr__(self, "_by_dims", shaped)

    @property
    def values(self) -> tuple[int, ...]:
        """The primes."""
        return self.primes

    def modulo(self, dims: int) -> Any:
        """The primes, as a column."""
        return self._by_dims[dims]

    def residues(self, number: int, dims: int) -> Residues:
        """The residues of any integer, as a column."""
        return np.array([number % value for value in self.values], np.uint64).reshape(-1, *(1,) * (dims - 1))


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


def mix(x: Residues, key: int | Residues) -> Residues:
    """A keyed permutation of 64-bit words that scatters them (the finaliser of splitmix64, twice); several keys are
    those of the first dimension."""
    keys = np.uint64(key & (2**64 - 1)) if isinstance(key, int) else key[:, None]
    word: Residues = x.reshape(1 if isinstance(key, int) else len(key), -1) ^ keys
    for _ in range(2):
        word = word + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word = word ^ (word >> np.uint64(31))
    return word.reshape(x.shape)
