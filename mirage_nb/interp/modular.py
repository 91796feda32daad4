"""Arithmetic modulo primes on arrays, exact: what field trials are made of.

In and out: uint64 arrays of residues, NumPy's or those of a library like it on a GPU; modulo one prime (`Modulus`),
or modulo several side by side (`Moduli`: one for each index of the first dimension). Products of residues stay below
2^62. Matrix products are those of `products`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirage_nb.interp.products import WORD as WORD
from mirage_nb.interp.products import Residues as Residues
from mirage_nb.interp.products import product
from mirage_nb.interp.undrawn import GOLDEN, scatter

CUBE_ROOT = 2**21
"""Products of three residues of primes up to this are words."""
FEW, FEW_INVERSES = 40, 256
"""Elements up to which large powers, and inverses, are quicker one by one."""
MANY = 2**10
"""Elements from which on a quotient is quicker than a remainder."""
REMEMBERED = 2**14
"""Roots and inverses modulo several primes that are known again."""


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
        return self.reduced((x if x.dtype == WORD else x.astype(WORD)) * y)

    def sum(self, x: Residues, axis: int) -> Residues:
        """Sum along an axis that is kept; fewer than 2^33 terms."""
        return self.reduced(x.sum(axis=axis, keepdims=True, dtype=np.uint64))

    def power(self, x: Residues, exponent: int) -> Residues:
        """x ** exponent for exponent >= 0."""
        return self._power(x, (exponent,) * len(self.values))

    def inverse(self, x: Residues) -> Residues:
        """1 / x; 0 where x is 0, which the caller has to mark as undefined."""
        if 0 < x.size < FEW_INVERSES and type(x) is np.ndarray:
            rows = x.reshape(len(self.values), -1).tolist()
            found = [_inverses(row, prime) for prime, row in zip(self.values, rows, strict=True)]
            return np.array(found, np.uint64).reshape(x.shape)
        return self._power(x, tuple(value - 2 for value in self.values))

    def root(self, x: Residues) -> Residues:
        """The square root that is itself a square; meaningless, and to be marked, where x is no square."""
        return self._power(x, tuple((value + 1) // 4 for value in self.values))

    def _power(self, x: Residues, exponents: tuple[int, ...]) -> Residues:
        """x to the power that belongs to each prime."""
        if 0 < x.size < FEW and max(exponents) > FEW and type(x) is np.ndarray:
            at = dict(zip(self.values, exponents, strict=True))
            return self._each(x, lambda number, prime: pow(number, at[prime], prime))
        square = self.mul(x, x)
        powers = [np.ones_like(square), x, square, self.mul(square, x)]
        rows = np.stack(powers) if len(exponents) > 1 else None
        cubes = max(self.values) <= CUBE_ROOT
        result = np.ones_like(square)
        for number, digits in enumerate(_digits(exponents)):
            factor = powers[digits[0]] if rows is None else rows[digits, range(len(digits))]
            if number == 0:
                np.copyto(result, factor)
                continue
            result = self.reduced(result * result)
            result = result * result
            if not cubes:
                result = self.reduced(result)
            result = self.reduced(result * factor)
        return result

    def _each(self, x: Residues, operation: Callable[[int, int], int]) -> Residues:
        """The operation on every single number and its prime."""
        rows = x.reshape(len(self.values), -1).tolist()
        found = [[operation(n, prime) for n in row] for prime, row in zip(self.values, rows, strict=True)]
        return np.array(found, np.uint64).reshape(x.shape)

    def matmul(self, x: Residues, y: Residues) -> Residues:
        """x @ y, exact for any extents."""
        return product(x, y, self)


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

    def reduced(self, x: Residues) -> Residues:
        """The residues of any words; NumPy has vector instructions for quotients by one number, none for remainders."""
        result: Residues = x % self._m if x.size < MANY else x - x // self._m * self._m
        return result

    def of(self, number: int) -> np.uint64:
        """The residue of any integer."""
        return np.uint64(number % self.value)

    def modulo(self, dims: int) -> Any:
        """The prime."""
        return self._m

    def residues(self, number: int, dims: int) -> Residues:
        """The residue of any integer."""
        return np.full((1,) * dims, self.of(number), np.uint64)


class _Columns(dict[int, Residues]):
    """A column of words with any number of dimensions."""

    def __init__(self, column: Residues) -> None:
        self._column = column

    def __missing__(self, dims: int) -> Residues:
        self[dims] = found = self._column.reshape(-1, *(1,) * (dims - 1))
        return found


class _Memory:
    """A function of residues that takes long, one for each index of the first dimension: what it was asked for before
    is looked up. A candidate takes the roots and inverses of its program, in another order."""

    def __init__(self, count: int) -> None:
        self._rows = _Columns(np.arange(count, dtype=np.uint64) << np.uint64(32))
        self._table: tuple[Residues, Residues] | None = None

    def __call__(self, x: Residues, function: Callable[[Residues], Residues]) -> Residues:
        keys = (x | self._rows[x.ndim]).reshape(-1)
        table = self._table
        if table is not None:
            known, values = table
            places = known.searchsorted(keys)
            if (known.take(places, mode="clip") == keys).all():
                return values.take(places).reshape(x.shape)
        found = function(x)
        if 0 < x.size <= REMEMBERED:
            self._learn(keys, found.reshape(-1))
        return found

    def _learn(self, keys: Residues, values: Residues) -> None:
        table = self._table
        if table is not None and len(table[0]) + len(keys) <= REMEMBERED:
            keys, values = np.concatenate([table[0], keys]), np.concatenate([table[1], values])
        order = keys.argsort(kind="stable")
        self._table = keys[order], values[order]


@dataclass(frozen=True, slots=True)
class Moduli(Arithmetic):
    """Arithmetic modulo several primes at once, one for each index of the first dimension of every array."""

    primes: tuple[int, ...]
    _columns: _Columns = field(init=False, repr=False, compare=False)
    _inverses: _Memory = field(init=False, repr=False, compare=False)
    _roots: _Memory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_columns", _Columns(np.array(self.primes, np.uint64)))
        object.__setattr__(self, "_inverses", _Memory(len(self.primes)))
        object.__setattr__(self, "_roots", _Memory(len(self.primes)))

    @property
    def values(self) -> tuple[int, ...]:
        """The primes."""
        return self.primes

    def modulo(self, dims: int) -> Any:
        """The primes, as a column."""
        return self._columns[dims]

    def inverse(self, x: Residues) -> Residues:
        """1 / x; 0 where x is 0."""
        return self._inverses(x, functools.partial(Arithmetic.inverse, self))

    def root(self, x: Residues) -> Residues:
        """The square root that is itself a square; meaningless where x is no square."""
        return self._roots(x, functools.partial(Arithmetic.root, self))

    def residues(self, number: int, dims: int) -> Residues:
        """The residues of any integer, as a column."""
        return np.array([number % value for value in self.values], np.uint64).reshape(-1, *(1,) * (dims - 1))


def _inverses(numbers: list[int], prime: int) -> list[int]:
    """The inverses, 0 of 0: one of the product of all, from which those of all follow."""
    products, product = [], 1
    for number in numbers:
        products.append(product)
        product = product * (number or 1) % prime
    inverse, found = pow(product, -1, prime), []
    for number, before in zip(reversed(numbers), reversed(products), strict=True):
        found.append(inverse * before % prime if number else 0)
        inverse = inverse * (number or 1) % prime
    return found[::-1]


@functools.lru_cache(maxsize=64)
def _digits(exponents: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Two bits at a time of all exponents side by side, highest first."""
    shifts = range((max(exponents).bit_length() + 1) // 2 * 2 - 2, -1, -2)
    return tuple(tuple(exponent >> shift & 3 for exponent in exponents) for shift in shifts)


def mix(x: Residues, key: int | Residues) -> Residues:
    """A keyed permutation of 64-bit words that scatters them (the finaliser of splitmix64, twice); several keys are
    those of the first dimension."""
    keys = np.uint64(key & (2**64 - 1)) if isinstance(key, int) else key[:, None]
    word: Residues = x.reshape(1 if isinstance(key, int) else len(key), -1) ^ keys
    for _ in range(2):
        word = scatter(word + GOLDEN)
    return word.reshape(x.shape)
