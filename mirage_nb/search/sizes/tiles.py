"""The tiles of a block at many sizes: what they hold, how they lie, what of them hangs over the end of an axis.

In: the outline of a block, many choices of `Sizes` at once. Out: `Tiles`, which every part of the cost model reads.
Each number is worked out once: tiles whose extents are called alike have one size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest

import numpy as np

from mirage_nb.search.axes import Prepared
from mirage_nb.search.saturation.values import TILE
from mirage_nb.search.sizes.anatomy import (
    WARPS,
    Along,
    Extent,
    Fixed,
    Mask,
    Moved,
    Numbers,
    Outline,
    Part,
    Sizes,
    Truths,
    common,
)
from mirage_nb.search.sizes.representative import outline
from mirage_nb.search.sizes.rows import Rows, rows
from mirage_nb.search.structure import KernelStructure
from mirage_nb.tile.bodies import split
from mirage_nb.tile.boxes import Boxes, boxes
from mirage_nb.tile.register_resident import VECTOR_BYTES
from mirage_nb.tile.shared import worth_having_early
from mirage_nb.tile.sharing import ROW_TILE, SUM_BYTES

TILE_BYTES = 2


@dataclass(frozen=True, slots=True)
class Private:
    """Where a loop body stays with warps; where its results are saved from registers, too; how many fragments lie below
    each other; into how many partial sums warps split its keys."""

    able: Truths
    direct: Truths
    fragments: Numbers
    keys: Numbers


@dataclass(slots=True)
class Tiles:
    """The tiles of one kernel. `elements`: of the tile of every value."""

    outline: Outline
    sizes: Sizes
    elements: list[Numbers] = field(default_factory=list)
    _bodies: dict[int, Private] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.elements = [self.product(extents) for extents in self.outline.extents]

    @classmethod
    def of(cls, prepared: Prepared, kernel: KernelStructure, sizes: Sizes) -> Tiles:
        """The tiles of a kernel at these sizes."""
        return cls(outline(prepared, kernel), sizes)

    def private_on(self, warps: int) -> Private:
        """The body of its loop on so many warps, where that stays with them."""
        if warps not in self._bodies:
            self._bodies[warps] = self._private(warps)
        return self._bodies[warps]

    def _private(self, warps: int) -> Private:
        body = self.outline.body
        if body is None:
            nowhere, one = np.zeros(self.shape, bool), np.ones(self.shape)
            return Private(nowhere, nowhere, one, one)
        found = split(body, self.extents, warps)
        direct = found.able & (found.key_warps == 1) & body.plain
        return Private(found.able, direct, np.ceil(found.rows / ROW_TILE), found.key_warps)

    @property
    def body(self) -> Private:
        """The same on as many as there are."""
        return self.private_on(WARPS)

    @property
    def private(self) -> Truths:
        """Where the loop body stays with warps."""
        return self.body.able

    @property
    def chained(self) -> bool:
        """Whether there are such sizes."""
        return bool(self.body.able.any())

    @property
    def shape(self) -> tuple[int, ...]:
        """Of every array: one number per choice of sizes."""
        return self.sizes.loop.shape

    def extent(self, name: Extent) -> Numbers:
        """What an extent is."""
        if name is None:
            return self.sizes.once("one", lambda: np.ones(self.shape))
        return self.sizes.once(("extent", name), lambda: name.extent(self.sizes))

    def extents(self, value: int) -> list[Numbers]:
        """The extents of a value."""
        return [self.extent(name) for name in self.outline.extents[value]]

    def product(self, extents: tuple[Extent, ...]) -> Numbers:
        """Elements of a tile with these extents."""
        return self.sizes.once(
            ("elements", extents), lambda: reduce(np.multiply, map(self.extent, extents), self.extent(None))
        )

    def nbytes(self, moved: Moved) -> Numbers:
        """Bytes of a tile in device memory."""
        return self.product(moved.extents) * moved.width

    def filled(self, moved: Moved) -> Numbers | float:
        """The share of all tiles that lies inside their tensor: what hangs over its end is not moved."""
        share: Numbers | float = 1.0
        for name in moved.extents:
            covered = None if name is None else name.covered(self.sizes)
            if name is not None and covered is not None:
                share = share * np.minimum(1.0, name.whole(self.sizes) / covered)
        return share

    def hanging(self, name: Extent) -> Truths:
        """Where the last tile hangs over the end of an axis."""
        covered = None if name is None else name.covered(self.sizes)
        if name is None or covered is None:
            return self.sizes.once("nowhere", lambda: np.zeros(self.shape, bool))
        found: Truths = covered > name.whole(self.sizes)
        return found

    def masks(self) -> Iterator[tuple[Mask, Truths]]:
        """The masks of what is folded, and where there are any."""
        yield from ((mask, np.ones(self.shape, bool)) for mask in self.outline.masks(None))
        for axis in self.sizes.tiles:
            over = self.hanging(Along(axis, TILE, axis == self.outline.loop))
            if over.any():
                yield from ((mask, over) for mask in self.outline.masks(axis))

    def staged(self, value: int) -> Truths:
        """Where an input that is to be staged is: not if it would only be there early, and that is not worth it."""
        if value not in self.outline.placed.early:
            return np.ones(self.shape, bool)
        moved = self.outline.reads[value]
        last = self.extent(moved.extents[-1] if moved.extents else None)
        found: Truths = worth_having_early(self.outline.flat.looped, self.nbytes(moved), last, moved.width)
        return found

    def lying(self, moved: Moved) -> Rows:
        """How a tile that is read or saved lies in device memory."""
        return self.sizes.once(("rows", moved.extents, moved.width), lambda: rows(*self.cut(moved)))

    def runs(self) -> Numbers:
        """Contiguous runs of device memory that a block reads and writes."""
        known = self.outline
        counts = [self.lying(read).count * (self.sizes.loop if read.streamed else 1.0) for read in known.reads.values()]
        return sum((*counts, *(self.lying(saved).count for _, saved in known.saves)), start=np.zeros(self.shape))

    def boxes(self, value: int) -> Boxes:
        """An input tile as bulk copies."""
        moved = self.outline.reads[value]
        return self.sizes.once(("boxes", moved.extents, moved.width), lambda: boxes(*self.cut(moved)))

    def cut(self, moved: Moved) -> tuple[list[Numbers], list[int], int, list[Truths]]:
        """The extents of an input tile and of its tensor, bytes of an element, where the tile hangs over the end."""
        names = moved.extents or (None,)
        tensor = [1 if name is None else name.whole(self.sizes) for name in names]
        return [*map(self.extent, names)], tensor, moved.width, [*map(self.hanging, names)]

    def rounds(self, value: int, *, saved: Moved | None = None) -> Numbers:
        """How often all threads take a vector each of a tile: the widest of which the rows of the tile are multiples;
        where it is saved, those of the tensor, too."""
        known = self.outline
        full = known.parts[value] is Part.ACCUMULATOR or known.block.types[value].dtype.size >= SUM_BYTES
        widest = VECTOR_BYTES // (SUM_BYTES if full else TILE_BYTES)
        names = known.extents[value]
        last = next((name for name in reversed(names if saved is None else saved.extents) if name is not None), None)
        if saved is not None and (isinstance(last, Fixed) or (last is not None and last.code & TILE)):
            widest = math.gcd(widest, last.whole(self.sizes))

        def found() -> Numbers:
            return self.product(names) / (32 * WARPS * common(self.extent(last), widest))

        return self.sizes.once(("rounds", names, widest), found)


def sides(
    tiles: Tiles, left: tuple[Extent, ...], right: tuple[Extent, ...]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Batch, rows, summed elements and columns of a product of values with these extents."""
    (*lead, m, k), (*other, _, n) = map(tiles.extent, left), map(tiles.extent, right)
    one = tiles.extent(None)
    pairs = zip_longest(lead[::-1], other[::-1], fillvalue=one)
    return reduce(np.multiply, (np.maximum(a, b) for a, b in pairs), one), m, k, n
