"""Arithmetic modulo primes on arrays, exact: what field trials are made of.

In and out: uint64 arrays of residues, NumPy's or those of a library like it on a GPU; modulo one prime (`Modulus`),
or modulo several side by side (`Moduli`: one for each index of the first dimension). Products of residues stay below
2^62. Matrix products go through float64 BLAS: directly while a sum of products stays below 2^53, else with both sides
split into 16-bit limbs, of which three products are taken (Karatsuba).
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.undrawn import Undrawn

Residues = NDArray[np.uint64]
"""Residues; those of a large tensor that was drawn are uint32, which takes half the memory, and results are uint64."""

WORD = np.dtype(np.uint64)

EXACT, WORDS = 2**53, 2**64 - 1
"""Up to where floats, and words, count exactly."""
CACHED = 2**19
"""Elements that are converted to floats at once: as many as stay in the cache."""
CACHED_ELSEWHERE = 2**26
"""The same on a GPU, where memory is the limit."""
CUBE_ROOT = 2**21
"""Products of three residues of primes up to this are words."""
FEW, FEW_INVERSES = 40, 256
"""Elements up to which large powers, and inverses, are quicker one by one."""
REMEMBERED = 2**14
"""Roots and inverses modulo several primes that are known again."""
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
        modulo, square = self.modulo(x.ndim), self.mul(x, x)
        powers = [np.ones_like(square), x, square, self.mul(square, x)]
        rows = np.stack(powers) if len(exponents) > 1 else None
        cubes = max(self.values) <= CUBE_ROOT
        result = np.ones_like(square)
        for number, digits in enumerate(_digits(exponents)):
            factor = powers[digits[0]] if rows is None else rows[digits, range(len(digits))]
            if number == 0:
                np.copyto(result, factor)
                continue
            np.multiply(result, result, out=result)
            np.remainder(result, modulo, out=result)
            np.multiply(result, result, out=result)
            if not cubes:
                np.remainder(result, modulo, out=result)
            np.multiply(result, factor, out=result)
            np.remainder(result, modulo, out=result)
        return result

    def _each(self, x: Residues, operation: Callable[[int, int], int]) -> Residues:
        """The operation on every single number and its prime."""
        rows = x.reshape(len(self.values), -1).tolist()
        found = [[operation(n, prime) for n in row] for prime, row in zip(self.values, rows, strict=True)]
        return np.array(found, np.uint64).reshape(x.shape)

    def matmul(self, x: Residues, y: Residues) -> Residues:
        """x @ y, exact for any extents."""
        inner = x.shape[-1]
        limbs, exact = _whole, EXACT // (max(self.values) - 1) ** 2
        if exact < 64 and inner <= WORDS // (max(self.values) - 1) ** 2:
            return self.reduced(_there(x).astype(WORD, copy=False) @ _there(y))
        if exact < 64:
            limbs, exact = _halves, EXACT // 2**34  # sums of two limbs are multiplied
        if inner <= min(exact, 16):
            return self._joined(_products(limbs(x), limbs(y)))
        result = math.prod(x.shape[:-1]) * y.shape[-1]
        at_once = max(CACHED if isinstance(x, np.ndarray | Undrawn) else CACHED_ELSEWHERE, result)
        step = min(exact, max(16, at_once * inner // max(1, x.size + y.size)))
        found = None
        for start in range(0, inner, exact):
            total: Floats | None = None
            for at in range(start, min(start + exact, inner), step):
                rows = slice(at, min(at + step, start + exact))
                parts = _products(limbs(x[..., rows]), limbs(y[..., rows, :]))
                total = parts if total is None else [np.add(a, b, out=a) for a, b in zip(total, parts, strict=True)]
            assert total is not None
            joined = self._joined(total)
            found = joined if found is None else self.add(found, joined)
        assert found is not None
        return found

    def _joined(self, products: Floats) -> Residues:
        """The residues of what limbs of 16 bits, lowest first, stand for."""
        parts = [self.reduced(part.astype(np.int64).view(np.uint64)) for part in products]
        if len(parts) == 1:
            return parts[0]
        low, middle, high = parts
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


Floats = list[NDArray[np.float64]]


def _there(x: Any) -> Residues:
    return cast(Residues, x.drawn() if isinstance(x, Undrawn) else x)


def _floats(x: Residues) -> NDArray[np.float64]:
    x = _there(x)
    signed: type[np.signedinteger[Any]] = np.int64 if x.dtype == WORD else np.int32  # quicker to convert
    return x.view(signed).astype(np.float64)


def _whole(x: Residues) -> Floats:
    return [_floats(x)]


def _halves(x: Residues) -> Floats:
    """The low and the high 16 bits."""
    x = _there(x)
    return [_floats(x & LIMB_MASK), _floats(x >> LIMB)]


def _products(x: Floats, y: Floats) -> Floats:
    """The product of the limbs of both sides, lowest first; the caller keeps sums of products below 2^53."""
    if len(x) == 1:
        return [x[0] @ y[0]]
    (low_x, high_x), (low_y, high_y) = x, y
    low, high = low_x @ low_y, high_x @ high_y
    middle = (low_x + high_x) @ (low_y + high_y)
    middle -= low
    middle -= high
    return [low, middle, high]


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
        word = word + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word = word ^ (word >> np.uint64(31))
    return word.reshape(x.shape)
