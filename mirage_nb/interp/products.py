"""Products of matrices of residues, exact, for any extents: what trials of large graphs spend their time on.

In: two arrays of residues below primes of at most 31 bits, with as many dimensions as each other. Out: the residues of
their matrix product.

Few terms are added as words. Else products go through float64 BLAS, which counts exactly up to 2^53: the smaller side
is cut into limbs that stand below each other as rows, so one product takes all of them, and the larger side is read as
it is, once, part by part so that it stays in the cache. Sums of limbs are reduced before they could reach 2^53.

Blocks of a grid multiply tiles side by side, and often all those of a row or column read the same one. So what only
one side counts in its leading dimensions becomes rows or columns of one larger product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.undrawn import Undrawn
from mirage_nb.ir.ops import Shape

if TYPE_CHECKING:
    from mirage_nb.interp.modular import Arithmetic

Residues = NDArray[np.uint64]
"""Residues; those of a large tensor that was drawn are uint32, which takes half the memory, and results are uint64."""
Floats = NDArray[np.float64]

WORD = np.dtype(np.uint64)
WORDS = 2**64 - 1
EXACT_BITS = 53
"""Floats count exactly up to two to this power."""
FEW = 2**15
"""Multiplications up to which words are quicker than floats."""
SHORT = 8
"""Terms that are multiplied as words where they add up to one."""
FEW_TERMS = 2**16
"""Terms up to which halves of 16 bits times residues add up to words."""
LONG = 512
"""Terms between reductions that are enough: fewer limbs then do."""
CACHED = 2**19
"""Elements that are converted to floats at once: as many as stay in the cache."""
CACHED_ELSEWHERE = 2**26
"""The same on a GPU, where memory is the limit."""
ROWS, RESULT = 256, 2**22
"""Rows of a result that are made at once at least, and elements of it as a rule."""


def product(x: Residues, y: Residues, primes: Arithmetic) -> Residues:
    """x @ y."""
    inner, largest = x.shape[-1], max(primes.values) - 1
    if inner <= min(SHORT, WORDS // largest**2):
        return primes.reduced(words(x) @ words(y))
    first = 1 if len(primes.values) > 1 else 0  # the dimension that counts primes stays one of its own
    fold = _Fold.of(x, y, first)
    left, right = fold.left(x), fold.right(y)
    if math.prod(fold.shape) * inner <= FEW and inner < FEW_TERMS:
        return fold.unfolded(_by_halves(left, right, primes))
    if left.size <= right.size:
        return fold.unfolded(_by_limbs(left, right, primes))
    return fold.unfolded(_turned(_by_limbs(_turned(right), _turned(left), primes)))


def words(x: Any) -> Residues:
    """Residues as words of 64 bits."""
    return cast(Residues, _there(x).astype(WORD, copy=False))


def _there(x: Any) -> Any:
    return x.drawn() if isinstance(x, Undrawn) else x


def _turned(x: Any) -> Any:
    return x.transpose(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)


@dataclass(frozen=True, slots=True)
class _Fold:
    """Leading dimensions that only the left side counts, and those that only the right side counts; `shape` is that of
    the product, (leading dimensions, rows, columns)."""

    of_left: tuple[int, ...]
    of_right: tuple[int, ...]
    shape: Shape

    @classmethod
    def of(cls, x: Any, y: Any, first: int) -> _Fold:
        """Of these operands; dimensions before `first` are left alone."""
        lead = range(first, x.ndim - 2)
        shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
        if isinstance(x, Undrawn) or isinstance(y, Undrawn):  # moving them might draw them
            return cls((), (), shape)
        left = tuple(i for i in lead if x.shape[i] > 1 == y.shape[i])
        right = tuple(i for i in lead if y.shape[i] > 1 == x.shape[i])
        return cls(left, right, shape)

    def left(self, x: Any) -> Any:
        """The left side with more rows."""
        if not self.of_left:
            return x
        kept = [i for i in range(x.ndim - 2) if i not in self.of_left]
        lead = [1 if i in self.of_left else x.shape[i] for i in range(x.ndim - 2)]
        return x.transpose(*kept, *self.of_left, x.ndim - 2, x.ndim - 1).reshape(*lead, -1, x.shape[-1])

    def right(self, y: Any) -> Any:
        """The right side with more columns."""
        if not self.of_right:
            return y
        kept = [i for i in range(y.ndim - 2) if i not in self.of_right]
        lead = [1 if i in self.of_right else y.shape[i] for i in range(y.ndim - 2)]
        return y.transpose(*kept, y.ndim - 2, *self.of_right, y.ndim - 1).reshape(*lead, y.shape[-2], -1)

    def unfolded(self, found: Residues) -> Residues:
        """The product with its dimensions in place."""
        if not self.of_left and not self.of_right:
            return found
        rows, columns = len(self.shape) - 2, len(self.shape) - 1
        kept = [i for i in range(rows) if i not in self.of_left and i not in self.of_right]
        order = [*kept, *self.of_left, rows, *self.of_right, columns]
        apart = found.reshape([self.shape[i] for i in order])
        return apart.transpose([order.index(i) for i in range(len(self.shape))])


def _by_halves(x: Residues, y: Residues, primes: Arithmetic) -> Residues:
    """x @ y in words, for fewer than `FEW_TERMS` terms."""
    x, y = words(x), words(y)
    high = primes.reduced((x >> np.uint64(16)) @ y)
    return primes.reduced((high << np.uint64(16)) + (x & np.uint64(2**16 - 1)) @ y)


@dataclass(frozen=True, slots=True)
class _Limbs:
    """How residues are cut: into so many limbs of so many bits, the highest of which has the rest, and how many
    products of a limb and a residue add up exactly."""

    count: int
    bits: int
    terms: int

    @classmethod
    def of(cls, bits: int, inner: int) -> _Limbs:
        """As few as leave long enough sums. Sums stay that far below 2^53 that a multiple of the prime beside them
        does too."""
        for count in range(1, bits):
            low = bits // count
            exponent = EXACT_BITS - bits - (bits - low * (count - 1))
            if exponent >= 0 and 2**exponent >= min(inner, LONG):
                return cls(count, low, 2**exponent)
        raise AssertionError(f"residues of {bits} bits")

    def cut(self, x: Residues) -> Floats:
        """The limbs of all rows, lowest first, as rows."""
        mask = x.dtype.type(2**self.bits - 1)
        parts = [(x >> x.dtype.type(self.bits * n)) & mask for n in range(self.count - 1)]
        return np.concatenate([*map(_floats, parts), _floats(x >> x.dtype.type(self.bits * (self.count - 1)))], axis=-2)

    def joined(self, sums: Floats, primes: Arithmetic) -> Residues:
        """The residues of what sums of limbs stand for."""
        modulo = primes.modulo(sums.ndim).astype(np.float64)
        small = sums - np.rint(sums * (1 / modulo)) * modulo  # at most half a prime, and exact
        rows = sums.shape[-2] // self.count
        scale = float(2**self.bits)
        found: Floats = small[..., -rows:, :]
        for n in range(self.count - 2, -1, -1):
            if n < self.count - 2:
                found = found - np.rint(found * (1 / modulo)) * modulo
            found = found * scale + small[..., n * rows : (n + 1) * rows, :]
        found = found + modulo * scale
        return primes.reduced(found.astype(np.int64).view(np.uint64))


def _floats(x: Residues) -> Floats:
    signed: type[np.signedinteger[Any]] = np.int64 if x.dtype == WORD else np.int32  # quicker to convert
    return x.view(signed).astype(np.float64, order="C")


def _by_limbs(x: Any, y: Any, primes: Arithmetic) -> Residues:
    """x @ y, for x the smaller side; of many matrices side by side a few at once, as many as stay in the cache."""
    both = [i for i in range(x.ndim - 2) if 1 < x.shape[i] == y.shape[i]] if len(primes.values) == 1 else []
    if both and x.size + y.size > _at_once(x):
        count, lead = x.shape[both[0]], (slice(None),) * both[0]
        step = max(1, count * _at_once(x) // (x.size + y.size))
        parts = [(*lead, slice(at, at + step)) for at in range(0, count, step)]
        return np.concatenate([_few_by_limbs(x[at], y[at], primes) for at in parts], axis=both[0])
    return _few_by_limbs(x, y, primes)


def _few_by_limbs(x: Any, y: Any, primes: Arithmetic) -> Residues:
    limbs = _Limbs.of((max(primes.values) - 1).bit_length(), x.shape[-1])
    rows = max(ROWS, RESULT // (limbs.count * math.prod(y.shape) // y.shape[-2] or 1))
    starts = range(0, x.shape[-2], rows)
    found = [_block(x[..., at : at + rows, :], y, limbs, primes) for at in starts]
    return found[0] if len(found) == 1 else np.concatenate(found, axis=-2)


def _block(x: Any, y: Any, limbs: _Limbs, primes: Arithmetic) -> Residues:
    """Some rows of x @ y."""
    found: Residues | None = None
    for group in _groups(x, y, limbs.terms):
        sums: Floats | None = None
        for at in group:
            part = limbs.cut(_there(x[..., at])) @ _floats(_there(y[..., at, :]))
            sums = part if sums is None else np.add(sums, part, out=sums)
        assert sums is not None
        joined = limbs.joined(sums, primes)
        found = joined if found is None else primes.reduced(found + joined)
    assert found is not None
    return found


def _groups(x: Any, y: Any, terms: int) -> Iterator[Sequence[slice]]:
    """The terms of a product in parts that stay in the cache, and of these as many as add up exactly."""
    inner = x.shape[-1]
    step = min(terms, max(16, _at_once(x) * inner // (x.size + y.size)))
    for start in range(0, inner, terms):
        end = min(start + terms, inner)
        yield [slice(at, min(at + step, end)) for at in range(start, end, step)]


def _at_once(x: Any) -> int:
    """Elements that are converted at once, where these are."""
    return CACHED if isinstance(x, np.ndarray | Undrawn) else CACHED_ELSEWHERE
