"""What moves elements, written once for all number systems: alignment, tiles, placement, views.

In: NumPy arrays of any element type. Every array of a block graph carries `batch` leading dimensions, one
per grid dimension, of that dimension's extent or of extent 1 when all blocks hold the same tile; arrays of
a kernel graph have `batch` 0. Out: arrays in the same convention. Nothing here computes, so floats, field
elements and masks take the same way (paper section 2, imap, fmap, omap).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import GraphError
from mirage_nb.ir import ConstAttrs, DimAttrs, InIterAttrs, RepeatAttrs, ReshapeAttrs, TransposeAttrs
from mirage_nb.ir.ops import Attrs, Shape

Array = NDArray[Any]


def align(array: Array, rank: int, batch: int) -> Array:
    """`array` with a tile of `rank` dimensions: extents of 1 are put between grid and tile dimensions."""
    missing = rank + batch - array.ndim
    if missing <= 0:
        return array
    return array.reshape(*array.shape[:batch], *(1,) * missing, *array.shape[batch:])


def tile_rank(arrays: Sequence[Array], batch: int) -> int:
    """The largest number of tile dimensions among the arrays."""
    return max(array.ndim for array in arrays) - batch


def split(array: Array, attrs: InIterAttrs, grid: tuple[int, ...], loop: int) -> Array:
    """All tiles of a kernel operand at once: shape (*grid or 1, loop or 1, *tile), a view.

    A dimension that several grid dimensions and the loop divide is divided by the grid first, in grid
    order, then by the loop; what is left is the tile.
    """
    factors: list[int] = []
    role_at: dict[int, int] = {}
    tile_at: list[int] = []
    roles = [*zip(attrs.imap, grid, strict=True), (attrs.fmap, loop)]
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


def iteration(tiles: Array, index: int, batch: int) -> Array:
    """The tiles of loop iteration `index`; replicated tiles are the same in all iterations."""
    at = index if tiles.shape[batch] > 1 else 0
    return tiles[(slice(None),) * batch + (at,)]


def place(tiles: Array, omap: tuple[int | None, ...], grid: tuple[int, ...]) -> Array:
    """The device tensor that the blocks write together; every element is written exactly once.

    Raises:
        GraphError: two blocks write one element, or an element is left out.
    """
    batch = len(grid)
    tile: Shape = tiles.shape[batch:]
    shape = list(tile)
    for extent, dim in zip(grid, omap, strict=True):
        if dim is not None:
            shape[dim] *= extent
    blocks = np.broadcast_to(tiles, (*grid, *tile))
    saved = np.empty(shape, tiles.dtype)
    writes = np.zeros(shape, np.uint8)
    for block in np.ndindex(*grid):
        at = _region(block, omap, grid, tile)
        saved[at] = blocks[block]
        writes[at] += 1
    if not (writes == 1).all():
        raise GraphError(f"omap {omap}: the blocks do not write every element exactly once")
    return saved


def _region(
    block: tuple[int, ...], omap: tuple[int | None, ...], grid: tuple[int, ...], tile: Shape
) -> tuple[slice, ...]:
    """Where the tile of `block` goes; of several grid dims on one data dim the first is outermost."""
    position = [0] * len(tile)
    for index, extent, dim in zip(block, grid, omap, strict=True):
        if dim is not None:
            position[dim] = position[dim] * extent + index
    return tuple(slice(at * size, (at + 1) * size) for at, size in zip(position, tile, strict=True))


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


def reduced_axis(attrs: Attrs | None, batch: int) -> int:
    """The array axis of a reduction's dimension."""
    assert isinstance(attrs, DimAttrs)
    return batch + attrs.dim


def scalar(attrs: Attrs | None) -> ConstAttrs:
    """The attributes of a constant."""
    assert isinstance(attrs, ConstAttrs)
    return attrs


def count(shape: Shape) -> int:
    """Number of elements."""
    return math.prod(shape)
