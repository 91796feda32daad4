"""How the warps of a block share one product of tiles: one rule for the planner of a block and for the ranking.

In: extents, as numbers or as arrays of them, and the number of warps. Out: the same kind: which side stands on the 16
rows of mma.m16n8k16, and over how many warps batch, rows, columns and depth are split. Invariant: the split with the
least work per warp; depth is split only where the sum can wait until after the loop.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from mirage_nb.ir import BYTES, TensorType
from mirage_nb.tile.index import Index, Multi, broadcast_index, named, unravel

ROW_TILE, COLUMN_TILE, DEPTH_TILE = 16, 8, 16
ACCUMULATOR_REGISTERS = 128
"""f32 accumulators that one thread may hold for one product."""
PARTIAL_BYTES = 32768
"""Shared memory that the partial sums of one product may take after the loop."""
SUM_BYTES = 4
BESIDE = 32
"""Elements that lanes of a warp store side by side where they read across: the other lanes read side by side."""
PATCH_SIDES = range(1, 9)
"""Rows, and columns, of results that a thread folds at once."""
PATCH_WIDTH = 4
"""Elements of each that it takes at once, where they lie side by side."""
Extents = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """How a product is shared. `swapped`: its columns stand on the 16 rows; `split`: warps over (batch, rows, columns,
    depth) of the instruction's sides."""

    swapped: Any
    split: tuple[Any, Any, Any, Any]


def is_swapped(m: Any, n: Any) -> Any:
    """Whether n stands on the 16 rows and m on the 8 columns: the side that pads less, m where they pad alike."""
    straight = np.ceil(np.divide(m, ROW_TILE)) * ROW_TILE * np.ceil(np.divide(n, COLUMN_TILE)) * COLUMN_TILE
    turned = np.ceil(np.divide(n, ROW_TILE)) * ROW_TILE * np.ceil(np.divide(m, COLUMN_TILE)) * COLUMN_TILE
    return turned < straight


def share(batch: Any, m: Any, k: Any, n: Any, warps: int, *, deferred: bool, loop: Any) -> Shared:
    """A product [batch, m, k] @ [batch, k, n] on so many warps.

    `deferred`: it feeds a sum accumulator, so partial sums of different warps may wait for the end of the loop, which
    runs `loop` times.
    """
    swapped = is_swapped(m, n)
    sides = (batch, np.where(swapped, n, m), np.where(swapped, m, n), k)
    units = (1, ROW_TILE, COLUMN_TILE, DEPTH_TILE)
    tiles = [np.ceil(np.divide(side, unit)) for side, unit in zip(sides, units, strict=True)]
    splits = _splits(warps)
    if not deferred:
        splits = splits[:, splits[3] == 1]
    options = splits.reshape(4, -1, *(1,) * np.ndim(sum(tiles)))
    b, r, c, d = (np.ceil(tile / option) for tile, option in zip(tiles, options, strict=True))
    registers = 4 * b * r * c
    # Shared memory reads per depth tile: an A tile is twice a B tile; one mma costs about as much as a B tile.
    work = b * d * (2 * r + c + r * c)
    reduction = (options[3] - 1) * tiles[0] * tiles[1] * tiles[2] / loop / 4
    fits = (options[3] == 1) | (SUM_BYTES * options[3] * batch * m * n <= PARTIAL_BYTES)
    best = np.broadcast_to(fits, np.broadcast_shapes(np.shape(fits), registers.shape))
    for least in (np.maximum(0, registers - ACCUMULATOR_REGISTERS), work + reduction, registers):
        found = np.where(best, least, np.inf)
        best = best & (found == found.min(axis=0))
    chosen = best.argmax(axis=0)  # of equal ones the first: fewest warps over the batch, then over rows, ...
    return Shared(swapped, (splits[0][chosen], splits[1][chosen], splits[2][chosen], splits[3][chosen]))


def depth_split(batch: Any, m: Any, k: Any, n: Any, warps: int, loop: Any) -> npt.NDArray[np.float64]:
    """Over how many warps the depth of products is split whose sums can wait, for arrays of extents: one, where two
    sums would already take too much memory."""
    found = np.ones_like(loop, np.float64)
    small = 2 * SUM_BYTES * batch * m * n <= PARTIAL_BYTES
    if small.any():
        batch, m, k, n, loop = (extent[small] for extent in (batch, m, k, n, loop))
        found[small] = share(batch, m, k, n, warps, deferred=True, loop=loop).split[3]
    return found


@lru_cache(maxsize=16)
def _splits(warps: int) -> npt.NDArray[np.int64]:
    """All ways to split so many warps, or fewer, over the four sides, in order."""
    powers = [1 << p for p in range(warps.bit_length()) if warps % (1 << p) == 0]
    able = [split for split in product(powers, repeat=4) if np.prod(split) <= warps]
    return np.array(able, np.int64).T


def patch(rows: Any, columns: Any, results: Any, threads: int) -> tuple[Any, Any]:
    """How many rows and columns of the results of a fold a thread has at once, which reads each of them for all of the
    others: what reads least, all threads as many; 0 where one has a single result, or these are no whole ones."""
    each = np.divide(results, threads)
    least, sides = np.where(each > 1, np.inf, -np.inf), (np.zeros_like(each), np.zeros_like(each))
    for high in PATCH_SIDES:
        for wide in PATCH_SIDES:
            whole = np.equal(np.mod(rows, high), 0) & np.equal(np.mod(columns, wide), 0)
            better = whole & np.equal(high * wide, each) & (high + wide < least)
            least = np.where(better, high + wide, least)
            sides = np.where(better, high, sides[0]), np.where(better, wide, sides[1])
    return sides


@dataclass(frozen=True, slots=True)
class Tiling:
    """One Matmul [batch, m, k] @ [batch, k, n] on the warps of a block.

    `swapped`: the long side n stands on the 16 rows of the instruction and m on its 8 columns (the
    product is computed transposed). `rows` and `columns` are the extents on those two sides.
    `split` is the number of warps over (batch, rows, columns, depth).
    """

    batch: int
    rows: int
    columns: int
    depth: int
    swapped: bool
    split: tuple[int, int, int, int]

    @property
    def tiles(self) -> tuple[int, int, int, int]:
        """Instruction tiles over (batch, rows, columns, depth)."""
        return self.batch, -(-self.rows // ROW_TILE), -(-self.columns // COLUMN_TILE), -(-self.depth // DEPTH_TILE)

    @property
    def per_warp(self) -> tuple[int, int, int, int]:
        """Instruction tiles of one warp over (batch, rows, columns, depth)."""
        b, r, c, k = (-(-t // w) for t, w in zip(self.tiles, self.split, strict=True))
        return b, r, c, k

    @property
    def warps(self) -> int:
        """Warps that have a share."""
        return math.prod(self.split)

    @property
    def copies(self) -> int:
        """Partial sums that are added after the loop."""
        return self.split[3]


def tile_matmul(left: TensorType, right: TensorType, warps: int, *, deferred: bool, loop: int) -> Tiling:
    """The split with the least work per warp; the arguments are those of `share`."""
    batch = math.prod(np.broadcast_shapes(left.shape[:-2], right.shape[:-2]))
    return _tiling(batch, left.shape[-2], left.shape[-1], right.shape[-1], warps, deferred, loop)


@lru_cache(maxsize=4096)
def _tiling(batch: int, m: int, k: int, n: int, warps: int, deferred: bool, loop: int) -> Tiling:
    """Plans of one block ask for the same few again and again, whatever else they decide."""
    found = share(batch, m, k, n, warps, deferred=deferred, loop=loop)
    swapped = bool(found.swapped)
    rows, columns = (n, m) if swapped else (m, n)
    b, r, c, d = map(int, found.split)
    return Tiling(batch, rows, columns, k, swapped, (b, r, c, d))


@dataclass(frozen=True, slots=True)
class Vectors:
    """A tile as vectors of `width` elements along its last dimension; thread t has every T-th of them from t on."""

    shape: Extents
    width: int

    @property
    def counted(self) -> Extents:
        """The shape in vectors."""
        return (*self.shape[:-1], self.shape[-1] // self.width) if self.shape else ()

    @property
    def count(self) -> int:
        """Vectors in the tile."""
        return math.prod(self.counted)

    @property
    def dim(self) -> int | None:
        """The dimension along which vectors lie, None for single elements."""
        return len(self.shape) - 1 if self.width > 1 else None

    @property
    def coordinates(self) -> tuple[dict[str, Index], Multi]:
        """Names of the coordinates of vector `e`, with what they are, and its index; of a square, that of its vector
        `w`."""
        names: dict[str, Index] = {}
        found = []
        parts = unravel(named("e", self.count), self.counted)
        for dim, (part, extent) in enumerate(zip(parts, self.counted, strict=True)):
            if extent > 1 and part.terms != (("e", self.count, 1),):
                names[f"i{dim}"] = part
                part = named(f"i{dim}", extent)
            found.append(part)
        return names, (*found[:-1], *(part * self.width for part in found[-1:]))

    def slots(self, threads: int) -> int:
        """Vectors per thread, at most."""
        return -(-self.count // threads)

    def registers(self, threads: int) -> int:
        """Elements per thread, at most."""
        return self.slots(threads) * self.width


@dataclass(frozen=True, slots=True)
class Squares(Vectors):
    """The same as squares: `rows` such vectors behind each other along `across`, another dimension, for each thread.
    Threads side by side have squares side by side, a few in each of both directions."""

    across: int
    rows: int

    @property
    def counted(self) -> Extents:
        """The shape in squares."""
        inner = (*self.shape[:-1], self.shape[-1] // self.width)
        return tuple(extent // self.rows if dim == self.across else extent for dim, extent in enumerate(inner))

    @property
    def beside(self) -> int:
        """Squares side by side along the last dimension that threads side by side have."""
        count, most = self.counted[-1], BESIDE // self.width
        return count if count <= most else math.gcd(count, most)

    @property
    def coordinates(self) -> tuple[dict[str, Index], Multi]:
        """The same of a square: those of threads side by side are side by side, a few in each direction."""
        counted, last = self.counted, len(self.shape) - 1
        other = [dim for dim in range(last) if dim != self.across]
        extents = (*(counted[dim] for dim in other), counted[last] // self.beside, counted[self.across], self.beside)
        *outer, far, row, near = unravel(named("e", self.count), extents)
        parts = dict(zip(other, outer, strict=True))
        parts |= {self.across: row, last: far * self.beside + near}
        found = [named(f"i{dim}", counted[dim]) for dim in sorted(parts)]
        found[self.across] = found[self.across] * self.rows + named("w", self.rows)
        found[last] = found[last] * self.width
        return {f"i{dim}": parts[dim] for dim in sorted(parts) if counted[dim] > 1}, tuple(found)


@dataclass(frozen=True, slots=True)
class Patches(Vectors):
    """A tile as patches of elements, `own` along each dimension, as far apart as there are threads along it."""

    own: Extents

    @property
    def apart(self) -> Extents:
        """Threads along each dimension."""
        return _threads_along(self.shape, self.own)

    def slots(self, threads: int) -> int:
        """Elements per thread."""
        return math.prod(self.own)


def _threads_along(shape: Extents, own: Extents) -> Extents:
    return tuple(extent // part for extent, part in zip(shape, own, strict=True))


@dataclass(frozen=True, slots=True)
class Share:
    """How threads share a reduction of `shape` along `dim`.

    lanes: threads per result; slots: results per thread; width: consecutive elements per step. patch: how many results
    along each dimension a thread folds at once, as far apart as there are threads along it; none: one after the other.
    """

    shape: Extents
    dim: int
    width: int
    lanes: int
    slots: int
    whole_block: bool
    patch: Extents = ()

    @property
    def kept(self) -> Extents:
        """The shape of the results."""
        return (*self.shape[: self.dim], 1, *self.shape[self.dim + 1 :])

    @property
    def results(self) -> int:
        """Number of results."""
        return math.prod(self.kept)

    @property
    def apart(self) -> Extents:
        """Threads along each dimension of the results, where these are folded in patches."""
        return _threads_along(self.kept, self.patch)

    @property
    def steps(self) -> int:
        """Vectors along the reduced dimension."""
        return self.shape[self.dim] // self.width

    @property
    def vector_dim(self) -> int | None:
        """The dimension of the vectors."""
        return self.dim if self.width > 1 else None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a product as the instruction sees it: [batch, side, depth].

    transposed: the value's last dimension is `side`, not depth. along: "side" or "depth", which of them lies along
    16-byte chunks that ldmatrix takes; "": elements are gathered one by one. fours: of sixteen summed elements a lane
    has four that lie side by side, as ldmatrix brings those of one byte along the depth, and not two pairs; on both
    sides, or on none. Along the side such elements come in pairs, too: two tiles of eight take turns (`Twins`).
    """

    value: int
    batch: Extents
    extent: int
    depth: int
    transposed: bool
    along: str = ""
    fours: bool = False

    def index(self, shape: Extents, batch: Index, side: Index, depth: Index) -> Multi:
        """The index into the value, which has this shape."""
        lead = unravel(batch, self.batch)
        inner = (depth, side) if self.transposed else (side, depth)
        return broadcast_index((*lead, *inner), shape)


class Twins(enum.Enum):
    """Of which side of a product the even places are in one tile of eight, and the odd ones in the next."""

    NEITHER = ""
    ROWS = "rows"
    COLUMNS = "columns"


def twins(types: Sequence[TensorType], rows: Side | None, columns: Side) -> Twins:
    """The side that lies so: types of the values of a block; no rows: those that are in registers already."""
    for side, found in ((rows, Twins.ROWS), (columns, Twins.COLUMNS)):
        if side is not None and types[side.value].dtype in BYTES and side.along == "side":
            return found
    return Twins.NEITHER


@dataclass(frozen=True, slots=True)
class Cells:
    """Fragments of one warp: `rows` tiles of 16 rows by `columns` tiles of 8 columns; without columns one result for
    each row, the same in the four lanes that have it."""

    rows: int
    columns: int

    @property
    def form(self) -> Extents:
        """The extents of the registers of a thread."""
        return (1, self.rows, self.columns, 4) if self.columns else (self.rows, 2)
