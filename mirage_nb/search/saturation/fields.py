"""Finite-field arithmetic on small NumPy arrays: what the closure computes its values with.

In: int64 arrays of residues modulo two primes, P for arithmetic and Q for exponents, where Q divides P - 1.
Out: arrays of the same kind. Elements and the root of unity are drawn from a seed, so equal seeds give
equal arrays on every machine. A square root is x^((P+1)/4), a multiplicative map because P = 3 mod 4;
functions outside the theory are random functions of their argument (paper section 5).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from mirage_nb.interp.undrawn import GOLDEN, scatter

Array = npt.NDArray[np.int64]

P = 1072159483
"""Prime, above 2^29: products of two residues stay below 2^62. 3 mod 8, so that root(-x) = -root(x) differs."""
Q = 65003
"""Prime, 3 mod 8 as well, divides P - 1: exponents live modulo Q."""


def fingerprint(array: Array) -> bytes:
    """Eight bytes that identify an array, the same in every run."""
    return hashlib.blake2b(array.tobytes() + bytes(array.shape), digest_size=8).digest()


def inverse(array: Array, prime: int) -> Array | None:
    """Elementwise inverse, or None when an element has none."""
    return inverse_or_zero(array, prime) if array.all() else None


def inverse_or_zero(array: Array, prime: int) -> Array:
    """Elementwise inverse; zero stays zero.

    Right for exponents only: Q is small enough for a zero by chance, which may hide that two values are
    equal but never makes unequal ones equal modulo P.
    """
    flat = (int(x) for x in array.ravel())
    return np.fromiter((pow(x, -1, prime) if x else 0 for x in flat), np.int64, array.size).reshape(array.shape)


def root(array: Array, prime: int) -> Array:
    """The multiplicative map x -> x^((prime+1)/4): a square root of every square."""
    power = (prime + 1) // 4
    return np.array([pow(int(x), power, prime) for x in array.ravel()], np.int64).reshape(array.shape)


class Field:
    """Random elements and the exponential of one trial."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._powers = _powers(self._root_of_unity())

    def _root_of_unity(self) -> int:
        while True:
            candidate = pow(int(self._rng.integers(2, P)), (P - 1) // Q, P)
            if candidate != 1:
                return candidate

    def draw(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Random non-zero elements modulo P and modulo Q."""
        return self._rng.integers(1, P, shape, dtype=np.int64), self._rng.integers(1, Q, shape, dtype=np.int64)

    def drawn_for(self, key: bytes, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Random elements that depend on `key` and the seed alone: an uninterpreted value."""
        rng = np.random.default_rng([self._seed, int.from_bytes(key, "little")])
        return rng.integers(1, P, shape, dtype=np.int64), rng.integers(1, Q, shape, dtype=np.int64)

    def exp(self, exponent: Array) -> Array:
        """The root of unity to the power `exponent` (residues modulo Q), modulo P."""
        return self._powers[exponent]

    def uninterpreted(self, name: str, p: Array, q: Array | None) -> tuple[Array, Array]:
        """A random function of every element, the same for equal names."""
        salt = np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))
        word = p.astype(np.uint64) * np.uint64(Q) + salt + np.uint64(self._seed)
        if q is not None:
            word = word + q.astype(np.uint64)
        second, first = scatter(word ^ GOLDEN), scatter(word)
        return (first % np.uint64(P)).astype(np.int64), (second % np.uint64(Q)).astype(np.int64)


def _powers(base: int) -> Array:
    """base^0 .. base^(Q-1) modulo P, by doubling."""
    table = np.ones(Q, np.int64)
    filled = 1
    while filled < Q:
        step = pow(base, filled, P)
        count = min(filled, Q - filled)
        table[filled : filled + count] = table[:count] * step % P
        filled += count
    return table
