"""What moves elements, written once for all number systems: alignment, tiles, placement, views.

In: NumPy arrays of any element type. Every array of a block graph carries `batch` leading dimensions, one
per grid dimension, of that dimension's extent or of extent 1 when all blocks hold the same tile; arrays of
a kernel graph have `batch` 0. Out: arrays in the same convention. Nothing here computes, so floats, field
elements and masks take the same way (paper section 2, imap, fmap, omap).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import GraphError
from mirage_nb.ir import (
    ArangeAttrs,
    ConstAttrs,
    DimAttrs,
    PadAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    RunningAttrs,
    SliceAttrs,
    TransposeAttrs,
)
from mirage_nb.ir.ops import Attrs, Shape

Array = NDArray[Any]


def align(array: Array, rank: int, batch: int) -> Array:
    """`array` with a tile of `rank` dimensions: extents of 1 are put between grid and tile dimensions."""
    missing = rank + batch - array.ndim
    if missing <= 0:
        return array
    return array.reshape(*array.shape[:batch], *(1,) * missing, *array.shape[batch:])


def one_view(a: Array, b: Array) -> bool:
    """Whether two arrays are the same view of the same memory, as replicated tiles are in all iterations."""
    if a is b:
        return True
    if a.base is None or a.base is not b.base or (a.shape, a.strides) != (b.shape, b.strides):
        return False
    name = "__array_interface__" if isinstance(a, np.ndarray) else "__cuda_array_interface__"
    return bool(getattr(a, name)["data"] == getattr(b, name)["data"])


def tile_rank(arrays: Sequence[Array], batch: int) -> int:
    """The largest number of tile dimensions among the arrays."""
    return max(array.ndim for array in arrays) - batch


def aligned(arrays: Sequence[Array], batch: int) -> list[Array]:
    """All of them with the largest number of tile dimensions."""
    rank = tile_rank(arrays, batch)
    return [align(array, rank, batch) for array in arrays]


@dataclass(frozen=True, slots=True)
class Split:
    """All tiles of a kernel operand at once: shape (*grid or 1, loop or 1, *tile), a view.

    A dimension that several grid dimensions and the loop divide is divided by the grid first, in grid
    order, then by the loop; what is left is the tile. A given `tile` may hang over the end: zeros stand there.
    """

    imap: tuple[int | None, ...]
    fmap: int | None
    grid: tuple[int, ...]
    loop: int
    tile: Shape | None = None

    def pads(self, shape: Shape) -> bool:
        """Whether tiles hang over the end of an array of this shape."""
        return self._covered(shape) != shape

    def _covered(self, shape: Shape) -> Shape:
        if self.tile is None:
            return shape
        roles = [*zip(self.imap, self.grid, strict=True), (self.fmap, self.loop)]
        covered = (size * math.prod(parts for to, parts in roles if to == dim) for dim, size in enumerate(self.tile))
        return (*covered, *shape[len(self.tile) :])

    def __call__(self, array: Array) -> Array:
        covered = self._covered(array.shape)
        if covered != array.shape:
            array = np.pad(array, [(0, whole - held) for whole, held in zip(covered, array.shape, strict=True)])
        factors: list[int] = []
        role_at: dict[int, int] = {}
        tile_at: list[int] = []
        roles = [*zip(self.imap, self.grid, strict=True), (self.fmap, self.loop)]
        for dim, extent in enumerate(array.shape):
            rest = extent
            for role, (target, parts) in enumerate(roles):
                if target == dim:
                    role_at[role] = len(factors)
                    factors.append(parts)
                    rest //= parts
            tile_at.append(len(factors))
            factors.append(rest)
        shown = array.reshape(factors)
        order = [role_at[role] for role in range(len(roles)) if role in role_at] + tile_at
        moved = shown.transpose(order)
        lead = [roles[role][1] if role in role_at else 1 for role in range(len(roles))]
        return moved.reshape(*lead, *moved.shape[len(role_at) :])


@dataclass(frozen=True, slots=True)
class Iteration:
    """The tiles of one loop iteration; replicated tiles are the same in all iterations."""

    index: int
    batch: int

    def __call__(self, tiles: Array) -> Array:
        at = self.index if tiles.shape[self.batch] > 1 else 0
        return tiles[(slice(None),) * self.batch + (at,)]


@dataclass(frozen=True, slots=True)
class Place:
    """The device tensor that the blocks write together; of several grid dims on one data dim the first is
    outermost. Every element is written exactly once; what lies beyond a given `shape` is dropped.

    Raises:
        GraphError: blocks of a grid dim that no data dim is split by write the same elements.
    """

    omap: tuple[int | None, ...]
    grid: tuple[int, ...]
    shape: Shape | None = None

    def __call__(self, tiles: Array) -> Array:
        batch = len(self.grid)
        if any(dim is None and extent > 1 for extent, dim in zip(self.grid, self.omap, strict=True)):
            raise GraphError(f"omap {self.omap}: the blocks do not write every element exactly once")
        tile: Shape = tiles.shape[batch:]
        order = [g for g, dim in enumerate(self.omap) if dim is None]
        shape = list(tile)
        for data, extent in enumerate(tile):
            split_by = [g for g, dim in enumerate(self.omap) if dim == data]
            order += [*split_by, batch + data]
            shape[data] = extent * math.prod(self.grid[g] for g in split_by)
        blocks = np.broadcast_to(tiles, (*self.grid, *tile))
        whole = blocks.transpose(order).reshape(shape)
        kept = shape if self.shape is None else self.shape
        found = whole[tuple(slice(extent) for extent in kept)]
        return found if found.flags.c_contiguous else found.copy()


Move = Callable[[Array], Array]
"""What moves elements: one of the above, or a function."""


def reshape(array: Array, attrs: Attrs | None, batch: int) -> Array:
    """Row-major reshape of the tile."""
    assert isinstance(attrs, ReshapeAttrs)
    return array.reshape((*array.shape[:batch], *attrs.shape))


def transpose(array: Array, attrs: Attrs | None, batch: int) -> Array:
    """Permuted tile dimensions."""
    assert isinstance(attrs, TransposeAttrs)
    return array.transpose((*range(batch), *(batch + i for i in attrs.perm)))


def repeat(array: Array, attrs: Attrs | None, batch: int) -> Array:
    """Whole copies of the tile behind each other."""
    assert isinstance(attrs, RepeatAttrs)
    return np.concatenate([array] * attrs.times, axis=batch + attrs.dim)


def concat(arrays: Sequence[Array], dim: int, batch: int) -> Array:
    """Tiles behind each other along `dim`."""
    grid = np.broadcast_shapes(*(array.shape[:batch] for array in arrays))
    full = [np.broadcast_to(array, (*grid, *array.shape[batch:])) for array in arrays]
    return np.concatenate(full, axis=batch + dim)


def sliced(array: Array, attrs: Attrs | None, batch: int) -> Array:
    """Elements of one tile dimension in equal steps."""
    assert isinstance(attrs, SliceAttrs)
    stop = attrs.start + attrs.extent * attrs.step
    part = slice(attrs.start, None if stop < 0 else stop, attrs.step)
    return array[(slice(None),) * (batch + attrs.dim) + (part,)]


def padded(array: Array, attrs: Attrs | None, batch: int) -> Array:
    """Zeros before and after the elements of one tile dimension."""
    assert isinstance(attrs, PadAttrs)
    edges = [(0, 0)] * array.ndim
    edges[batch + attrs.dim] = (attrs.before, attrs.after)
    return np.pad(array, edges)


def counted(attrs: Attrs | None, batch: int) -> Array:
    """0, 1, ... along a tile dimension."""
    assert isinstance(attrs, ArangeAttrs)
    return np.arange(attrs.extent).reshape((1,) * batch + (-1,))


def reduced_axis(attrs: Attrs | None, batch: int) -> int:
    """The array axis of a reduction's dimension."""
    assert isinstance(attrs, DimAttrs)
    return batch + attrs.dim


def _summed(x: Array, axis: int) -> Array:
    """The sums up to each element, of marks whether there is one."""
    return np.logical_or.accumulate(x, axis) if x.dtype == bool else x.cumsum(axis)


def running(
    x: Array, attrs: Attrs | None, batch: int, add: Callable[[Array, int], Array] = _summed, nothing: Any = 0
) -> Array:
    """Running sums along a tile dimension; add: the sums up to each element along an axis, `nothing` the empty one."""
    assert isinstance(attrs, RunningAttrs)
    axis = batch + attrs.dim
    found = add(np.flip(x, axis) if attrs.backward else x, axis)
    if attrs.exclusive:
        found = np.roll(found, 1, axis)
        np.moveaxis(found, axis, 0)[0] = nothing
    return np.flip(found, axis) if attrs.backward else found


def scalar(attrs: Attrs | None) -> ConstAttrs:
    """The attributes of a constant."""
    assert isinstance(attrs, ConstAttrs)
    return attrs
