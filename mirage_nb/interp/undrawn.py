"""Inputs too large to hold: random residues that are drawn where they are read, block by block.

In: a key, a bound and a shape. Out: `Undrawn`, which stands for the array of them: the element at flat index i is a
function of the key and i (the generator splitmix64 at position i). It is moved as an array is, at no cost, and matrix
products draw the blocks that they are about to multiply; for everything else it becomes an array. So an input that
only products read takes no memory, whatever its size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from mirage_nb.ir.ops import Shape

AT_ONCE = 2**18
"""Elements that are drawn at once: as many as stay in the cache."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio."""


class Undrawn(NDArrayOperatorsMixin):
    """Uniform residues below `bound`, as an array of 32-bit words that is not there."""

    dtype = np.dtype(np.uint32)

    def __init__(self, key: int, bound: int, places: NDArray[np.bool_], start: int) -> None:
        self._key = key
        self._bound = bound
        self._places = places  # of memory that is never touched: its strides say which elements these are
        self._start = start

    @classmethod
    def of(cls, key: int, bound: int, shape: Shape) -> Undrawn:
        """All elements of a tensor."""
        places = np.empty(math.prod(shape), np.bool_).reshape(shape)
        return cls(key, bound, places, _address(places))

    @property
    def shape(self) -> Shape:
        """Extents."""
        return self._places.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._places.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._places.size

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return 0

    def __getitem__(self, key: Any) -> Any:
        found = self._places[key]
        if not isinstance(found, np.ndarray) or not np.may_share_memory(found, self._places):
            return self.drawn()[key]
        return self._moved(found)

    def transpose(self, *axes: Any) -> Undrawn:
        """With its dimensions in another order."""
        return self._moved(self._places.transpose(*axes))

    def reshape(self, *shape: Any) -> Any:
        """In another shape; where that takes a copy, an array."""
        found = self._places.reshape(*shape)
        return self._moved(found) if np.may_share_memory(found, self._places) else self.drawn().reshape(*shape)

    def _moved(self, places: NDArray[np.bool_]) -> Undrawn:
        return Undrawn(self._key, self._bound, places, self._start)

    def drawn(self) -> NDArray[np.uint32]:
        """The elements."""
        found = np.empty(self.shape, np.uint32)
        self._draw(self._places, found)
        return found

    def _draw(self, places: NDArray[np.bool_], into: NDArray[np.uint32]) -> None:
        if places.size > AT_ONCE:
            axis = int(np.argmax(places.shape))
            middle = places.shape[axis] // 2
            for part in (slice(None, middle), slice(middle, None)):
                index = (slice(None),) * axis + (part,)
                self._draw(places[index], into[index])
        elif places.size:
            at = np.full((1,) * places.ndim, _address(places) - self._start, np.int64)
            for axis, (extent, stride) in enumerate(zip(places.shape, places.strides, strict=True)):
                at = at + (np.arange(extent) * stride).reshape(-1, *(1,) * (places.ndim - axis - 1))
            into[...] = splitmix(at.view(np.uint64), self._key) % np.uint64(self._bound)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self.drawn() if dtype is None else self.drawn().astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*[x.drawn() if isinstance(x, Undrawn) else x for x in inputs], **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.drawn(), name)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def splitmix(places: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """The words at these places of the sequence that the generator splitmix64 makes of a key."""
    word = places * GOLDEN
    word += np.uint64(key)
    return scatter(word)


def scatter(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64, in place: every input bit reaches every output bit."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word ^= word >> np.uint64(shift)
        word *= np.uint64(factor)
    word ^= word >> np.uint64(31)
    return word
