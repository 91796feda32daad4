"""The tiles of a block at many sizes: what they hold, how they lie, what of them hangs over the end of an axis.

In: the outline of a block, many choices of `Sizes` at once. Out: `Tiles`, which every part of the cost model reads.
Each number is worked out once: tiles whose extents are called alike have one size. How input tiles lie in device memory
and come from there, `Rows`, follows from the rules of `optimize.layout` and `optimize.vectors` (paper section 6): by
bulk copies, by copies of 4 to 16 bytes that run by themselves, or through registers, where threads wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from mirage_nb.search.structure import KernelStructure
from mirage_nb.targets import SECTOR_BYTES
from mirage_nb.tile.rules.bodies import split
from mirage_nb.tile.rules.boxes import Boxes, boxes
from mirage_nb.tile.rules.register_resident import VECTOR_BYTES
from mirage_nb.tile.rules.shared import CHUNK_BYTES, LINE_BYTES, worth_having_early
from mirage_nb.tile.rules.sharing import ROW_TILE, SUM_BYTES
from mirage_nb.tile.rules.squares import square

COPIED_BYTES = 4
"""The least that a thread copies past its registers, from and to multiples of so many bytes."""
ANYWHERE_BYTES = 2
"""Elements of so many bytes are read in vectors that begin anywhere."""
VECTORS_AT_ONCE, ELEMENTS_AT_ONCE = 2, 8
"""What a thread asks for before it waits, of what passes through its registers."""


@dataclass(frozen=True, slots=True)
class Rows:
    """How an input tile lies in device memory. `width` is its contiguous run and `last` its last dimension, in bytes;
    `count` is the number of runs, which begin at multiples of `step` bytes, `lines` the extent of all dimensions but
    the last; `element`: bytes of one. `anywhere`: vectors of it begin anywhere, so that no copy runs by itself.
    `touches`: lines and sectors that the runs touch. `waits`: how often every thread waits for what it asked for,
    `vectors`: how many it brings in all; zeros where copies run by themselves.
    """

    width: Numbers
    count: Numbers
    step: Numbers
    last: Numbers
    lines: Numbers
    element: int
    anywhere: Truths
    touches: Numbers
    waits: Numbers
    vectors: Numbers


def rows(extents: Sequence[Numbers], tensor: Sequence[int], width: int, hanging: Sequence[Truths] = ()) -> Rows:
    """The rows of a tile of `extents`, cut from one of extents `tensor` with elements of `width` bytes.

    hanging: for each dimension where the last tile hangs over the end of the tensor; default: nowhere.
    """
    run = last = extents[-1] * width
    open_: Truths = extents[-1] == tensor[-1]
    elements = extents[-1]
    for extent, full in zip(reversed(extents[:-1]), reversed(tensor[:-1]), strict=True):
        run = np.where(open_, run * extent, run)
        open_ = open_ & (extent == full)
        elements = elements * extent
    anywhere: Truths = common(last, COPIED_BYTES) < COPIED_BYTES
    if hanging and tensor[-1] * width % COPIED_BYTES:
        anywhere = anywhere | hanging[-1]
    count = elements * width / run
    touches = touched(run, count, LINE_BYTES) + touched(run, count, SECTOR_BYTES)
    lines = elements / extents[-1]
    pitch = np.gcd(last.astype(np.int64), tensor[-1] * width)
    step = np.where(extents[-1] == tensor[-1], run, pitch)
    through = _through_registers(last, lines, width, anywhere)
    return Rows(run, count, step, last, lines, width, anywhere, touches, *through)


def _through_registers(last: Numbers, lines: Numbers, width: int, anywhere: Truths) -> tuple[Numbers, Numbers]:
    """Elements that begin anywhere go through registers: vectors of 16 bytes where the rows of the tile are whole ones,
    shifted into place, else one by one."""
    if not anywhere.any():
        return np.zeros_like(last), np.zeros_like(last)
    chunks = (common(last, CHUNK_BYTES) == CHUNK_BYTES) & (width == ANYWHERE_BYTES)
    vectors = last * lines / np.where(chunks, CHUNK_BYTES, width)
    each = np.where(anywhere, np.ceil(vectors / (32 * WARPS)), 0.0)
    return np.ceil(each / np.where(chunks, VECTORS_AT_ONCE, ELEMENTS_AT_ONCE)), each


def touched(run: Numbers, count: Numbers, unit: int) -> Numbers:
    """Units of so many bytes that `count` runs touch: each begins anywhere its width allows, on average."""
    return count * (run + unit - common(run, unit)) / unit


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
        """Where an input that is to be staged is: not if it would only be there early, and that is not worth it, or
        only be read many times, and is not."""
        placed = self.outline.placed
        if value not in placed.early | placed.lone:
            return np.ones(self.shape, bool)
        found: Truths = np.zeros(self.shape, bool)
        if value in placed.early:
            moved = self.outline.reads[value]
            last = self.extent(moved.extents[-1] if moved.extents else None)
            found = found | worth_having_early(self.outline.flat.looped, self.nbytes(moved), last, moved.width)
        for whole, sources in placed.outer.items():
            if value in placed.lone and value in sources:
                found = found | self.repeats(whole)
        return found

    def repeats(self, whole: int) -> Truths:
        """Where all values that are folded as this one is computed of them are read for many results."""
        smaller = (self.elements[v] < self.elements[whole] for v in self.outline.placed.outer[whole])
        return reduce(np.logical_and, smaller)

    def lying(self, moved: Moved) -> Rows:
        """How a tile that is read or saved lies in device memory."""
        return self.sizes.once(("rows", moved.extents, moved.width), lambda: rows(*self.cut(moved)))

    def reached(self, moved: Moved) -> Numbers:
        """Bytes that a block brings for an input tile: its part of what the windows of its tensor reach there together,
        in whole sectors, and no more than it has."""
        part, beside = moved.share.part, moved.share.beside
        if len(beside) != len(moved.extents) or not any(beside):
            return self.nbytes(moved) * part

        def found() -> Numbers:
            extents, tensor, width, _ = self.cut(moved)
            wide = [np.minimum(n + more, whole) for n, more, whole in zip(extents, beside, tensor, strict=True)]
            lying = rows(wide, tensor, width)
            nbytes = touched(lying.width, lying.count, SECTOR_BYTES) * SECTOR_BYTES
            return np.minimum(nbytes * part, self.nbytes(moved))

        return self.sizes.once(("reached", moved.extents, moved.width, moved.share), found)

    def runs(self) -> Numbers:
        """Contiguous runs of device memory that a block reads and writes."""
        known = self.outline
        counts = [self.lying(read).count * (self.sizes.loop if read.streamed else 1.0) for read in known.reads.values()]
        return sum((*counts, *(self.lying(saved).count for _, saved in known.saves)), start=np.zeros(self.shape))

    def boxes(self, value: int) -> Boxes:
        """An input tile as bulk copies."""
        moved = self.outline.reads[value]
        found = self.sizes.once(("boxes", moved.extents, moved.width), lambda: boxes(*self.cut(moved)))
        return found if moved.boxed is not False else replace(found, fits=np.zeros(self.shape, bool))

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

    def square(self, value: int, saved: Moved) -> tuple[Numbers, Numbers]:
        """The sides of the squares of threads, of a saved value that lies across what it is computed of; of one element
        along its last dimension it does not."""
        dim, leaf = self.outline.across[value]
        last, along = (self._in_tensors(saved.extents[place]) for place in (-1, dim))
        if self.outline.parts[leaf] is not Part.DIRECT:
            along = self.extent(saved.extents[dim])
        size = max(self.outline.block.types[value].dtype.size, self.outline.placed.stored[leaf].size)
        width, rows = square(last, along, self.product(saved.extents), 32 * WARPS, size)
        lies = self.extent(saved.extents[-1]) > 1
        return np.where(lies, width, 1), np.where(lies, rows, 1)

    def _in_tensors(self, name: Extent) -> Numbers:
        """Elements of an axis of whose multiples runs are, in a tile and in tensors that have all of it."""
        tile = self.extent(name)
        found: Numbers = tile if name is None else np.gcd(tile.astype(np.int64), name.whole(self.sizes)).astype(float)
        return found


def sides(
    tiles: Tiles, left: tuple[Extent, ...], right: tuple[Extent, ...]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Batch, rows, summed elements and columns of a product of values with these extents."""
    (*lead, m, k), (*other, _, n) = map(tiles.extent, left), map(tiles.extent, right)
    one = tiles.extent(None)
    pairs = zip_longest(lead[::-1], other[::-1], fillvalue=one)
    return reduce(np.multiply, (np.maximum(a, b) for a, b in pairs), one), m, k, n
