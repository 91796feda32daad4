"""How tensors lie in shared memory: one set of rules for the planner of a block and for the ranking.

In: extents, as numbers (the planner) or as arrays of them (the ranking of thousands of sizes at once), and how a tensor
is written and read. Out: the same kind: bytes of the cheapest layout, in wavefronts first. Invariant: every copy of a
tensor begins on a line of all banks.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mirage_nb.ir import DType
from mirage_nb.ir.dtypes import Word

LINE_BYTES = 128
"""All banks of shared memory once."""
SWIZZLES = (128, 64, 32)
"""Panel widths in bytes, best first."""
PATTERN_ROWS = 8
"""Rows after which a swizzle repeats itself."""
PATTERN_BYTES = LINE_BYTES * PATTERN_ROWS
BANK_BYTES, BANKS = 4, 32
CHUNK_BYTES = 16
"""What a swizzle leaves together; rows of operands of the copy engine begin on multiples of so many bytes."""
WAVEFRONT_COST = 1024
"""Bytes break ties: an eighth of a wavefront for each kilobyte."""
FORBIDDEN = np.inf
"""Cost of a layout that a use cannot work with."""


class Use(Word):
    """A way in which threads of a block touch a shared tensor."""

    COPY = "copy"
    """Written by asynchronous copies of 16 bytes along the last dimension."""
    BOXES = "boxes"
    """Written by bulk tensor copies, which swizzle."""
    FACTOR = "factor"
    """Read by ldmatrix: eight rows of 16 bytes at once."""
    VECTOR = "vector"
    """Read or written in vectors along the last dimension."""
    STRAIGHT = "straight"
    """Written from mma accumulators, rows on the 16 side."""
    TURNED = "turned"
    """Written from mma accumulators, columns on the 16 side."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor as `lead` matrices of rows x last elements of `size` bytes; `flat`: of one dimension, or of none."""

    lead: Any
    rows: Any
    last: Any
    size: int
    flat: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """A way to lay out a tensor: rows or, `turned`, columns in one run, `pad` elements behind each; or in `panels` as
    wide as a swizzle. Numbers, or a column of several ways."""

    turned: Any = False
    pad: Any = 0
    panels: Any = False


@lru_cache(maxsize=16)
def forms(size: int, flat: bool, boxed: bool = False) -> tuple[Form, ...]:
    """Those worth considering for elements of `size` bytes. A 16-byte chunk stays whole under a swizzle: eight 16-bit
    elements, but not eight f32."""
    pads = (4, 8) if size == 4 else (8,)
    apart = () if flat else (*(Form(False, pad) for pad in pads), *(Form(True, pad) for pad in (0, *pads)))
    return (Form(), *apart, *([Form(panels=True)] if boxed or size == 2 else []))


@lru_cache(maxsize=16)
def _together(size: int, flat: bool) -> Form:
    """All of them, in order."""
    columns = [[getattr(form, name) for form in forms(size, flat)] for name in ("turned", "pad", "panels")]
    return Form(*(np.array(column)[:, None] for column in columns))


def panel_bytes(last: Any, size: int) -> Any:
    """The widest swizzle whose panels a last extent fills, 0 if none does."""
    run = np.multiply(last, size).astype(np.int64)
    divides = np.minimum(run & -run, SWIZZLES[0])  # the greatest power of two
    return np.where(divides >= SWIZZLES[-1], divides, 0)


PREFETCH_BYTES = 32768
"""Largest tile that a block without a loop stages in shared memory only to have it early."""


def worth_having_early(looped: bool, nbytes: Any, last: Any, size: int) -> Any:
    """Whether a tile with one reader may be on its way long before it is read: beside a ring it travels with the ring,
    if its rows are panels."""
    return np.greater(panel_bytes(last, size), 0) if looped else np.less_equal(nbytes, PREFETCH_BYTES)


def pitched_elements(inner: Any, outer: Any, pad: int, size: int) -> Any:
    """Elements of `outer` runs of `inner` ones, with the pads behind them and up to a whole line."""
    unit = LINE_BYTES // size
    return np.ceil(np.divide((inner + pad) * outer, unit)) * unit


def panel_elements(rows: Any, last: Any, fold: Any = 1) -> Any:
    """Elements of panels that hold so many rows, `fold` of them side by side, up to whole patterns."""
    return np.ceil(np.floor(np.divide(rows, fold)) / PATTERN_ROWS) * PATTERN_ROWS * fold * last


def elements(form: Form, shape: Shape) -> Any:
    """Elements that a tensor takes."""
    inner, outer = np.where(form.turned, shape.rows, shape.last), np.where(form.turned, shape.last, shape.rows)
    plain = pitched_elements(inner, outer * shape.lead, form.pad, shape.size)
    return np.where(form.panels, panel_elements(shape.lead * shape.rows, shape.last), plain)


def cost(form: Form, shape: Shape, uses: Collection[Use], nbytes: Any) -> Any:
    """Shared-memory wavefronts of one access by a warp, summed over the uses, and bytes; FORBIDDEN if one is
    impossible."""
    swizzle = np.where(form.panels, panel_bytes(shape.last, shape.size), 0)
    pitch = np.where(form.turned, shape.rows, shape.last) + form.pad
    pitch = np.where(form.panels, swizzle // shape.size, between_rows(pitch, shape.rows))
    ordered = np.where(form.turned, np.equal(shape.rows + form.pad, 1), True)
    chunks = np.equal(np.mod(shape.rows, 8) + np.mod(shape.last, 8), 0) & (not shape.flat)
    lines = Lines(1 if shape.flat else pitch, ordered, swizzle, chunks, shape.flat)
    found = use_cost(uses, shape.size, lines, nbytes)
    return np.where(form.panels & np.equal(swizzle, 0), FORBIDDEN, found)


def between_rows(pitch: Any, rows: Any) -> Any:
    """Elements between the rows of a fragment, which are one and the same where a matrix has but one."""
    return np.where(np.equal(rows, 1), 0, pitch)


@dataclass(frozen=True, slots=True)
class Lines:
    """A layout as far as its cost goes: elements between rows, or columns; whether the last dimension is contiguous;
    the swizzle in bytes; whether rows and columns are whole chunks; whether it is that of one dimension."""

    pitch: Any
    ordered: Any
    swizzle: Any
    chunks: Any
    flat: bool


def use_cost(uses: Collection[Use], size: int, lines: Lines, nbytes: Any) -> Any:
    """The cost of a layout of `nbytes` bytes for these uses; FORBIDDEN if one is impossible."""
    found = nbytes // 8
    boxed = np.greater(lines.swizzle, 0)
    for use in uses:
        match use:
            case Use.BOXES:
                each: Any = np.where(boxed, 0, FORBIDDEN)
            case Use.COPY:
                each = np.where(lines.ordered & ~boxed, 1, FORBIDDEN)
            case Use.VECTOR:
                each = np.where(lines.ordered, 1, 8)
            case _:
                each = _wavefronts(use, size, lines)
        found = found + WAVEFRONT_COST * each
    return found


def _wavefronts(use: Use, size: int, lines: Lines) -> Any:
    """Of fragments."""
    unit = LINE_BYTES // size
    place = np.where(np.less(lines.pitch, unit), lines.pitch, unit + np.mod(lines.pitch, unit)).astype(np.int64)
    found: Any = _table(use, size, 0)[place]
    if not lines.flat and np.any(lines.swizzle):
        for width in SWIZZLES:
            found = np.where(np.equal(lines.swizzle, width), _table(use, size, width)[place], found)
    if use is Use.FACTOR:
        astray = np.not_equal(np.mod(np.multiply(lines.pitch, size), CHUNK_BYTES), 0)
        found = np.where(lines.chunks & astray, FORBIDDEN, found)
    return found


@lru_cache(maxsize=64)
def _table(use: Use, size: int, swizzle: int) -> npt.NDArray[np.float64]:
    """Wavefronts by the elements between rows: those of a line, and those of longer ones by what is beyond it."""
    return wavefronts(use, np.arange(2 * LINE_BYTES // size), size, swizzle)


def wavefronts(use: Use, pitches: npt.NDArray[np.int64], size: int, swizzle: int = 0) -> npt.NDArray[np.float64]:
    """Passes over the banks for one access by a warp to a fragment whose rows begin so many elements apart."""
    lane = np.arange(32)
    rows, columns, width = lane // 4, lane % 4 * 2, BANK_BYTES
    if use is Use.FACTOR:
        rows, columns, width = np.arange(8), np.zeros(8, np.int64), CHUNK_BYTES
    elif use is Use.TURNED:
        rows, columns = columns, rows
    offsets = byte_offset(rows, columns, pitches[:, None], size, swizzle)
    last = (offsets + width - 1) // BANK_BYTES
    spans = np.minimum(offsets[..., None] // BANK_BYTES + np.arange(width // BANK_BYTES + 1), last[..., None])
    words = np.sort(spans.reshape(len(pitches), -1), axis=1)
    new = np.diff(words, axis=1, prepend=-1) > 0
    counts = np.zeros((len(pitches), BANKS))
    np.add.at(counts, (np.nonzero(new)[0], words[new] % BANKS), 1.0)
    most: npt.NDArray[np.float64] = counts.max(axis=1)
    return most


def byte_offset(row: Any, column: Any, pitch: Any, size: int, swizzle: int) -> Any:
    """Of an element of rows that begin `pitch` elements apart, counted along the contiguous dimension."""
    offset = (row * pitch + column) * size
    return offset ^ (offset >> 3) & (swizzle - 16) if swizzle else offset


@dataclass(frozen=True, slots=True)
class Laid:
    """The cheapest layout of a tensor: its bytes, whether it is one of panels."""

    nbytes: Any
    swizzled: Any

    def where(self, able: Any, other: Laid) -> Laid:
        """The other one where that is so."""
        return Laid(np.where(able, other.nbytes, self.nbytes), np.where(able, other.swizzled, self.swizzled))


def lay(shape: Shape, uses: Collection[Use]) -> Laid:
    """The cheapest layout of a tensor that is used so, for arrays of extents; of equal ones the first."""
    every = _together(shape.size, shape.flat)
    nbytes = elements(every, shape) * shape.size
    costs = cost(every, shape, uses, nbytes)
    chosen = costs.argmin(axis=0)
    place = (chosen, np.arange(costs.shape[1]))
    return Laid(np.broadcast_to(nbytes, costs.shape)[place], every.panels[chosen, 0])


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """Where the elements of a shared tensor lie.

    strides: elements per step of each dimension, before swizzling. elements: allocated per copy.
    swizzle: 0, or 128, 64, 32: the last dimension is cut into panels of that many bytes, each panel holds
    all rows, and 16-byte chunks are permuted by the row. fold: so many rows of the tensor side by side are one
    row of the only panel.
    """

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...]
    elements: int
    swizzle: int = 0
    fold: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes per copy."""
        return self.elements * self.dtype.size

    @property
    def panel(self) -> int:
        """Elements across a swizzled panel."""
        return self.swizzle // self.dtype.size

    @property
    def panel_rows(self) -> int:
        """Rows of a swizzled panel: every dimension but the last, up to a whole pattern of eight."""
        return int(panel_elements(math.prod(self.shape[:-1]) // self.fold, 1))


@dataclass(frozen=True, slots=True)
class Buffer:
    """A shared tensor: its layout, how many copies of it there are, and where the first one begins.

    copies: ring slots of a streamed input, or partial sums of an accumulator.
    """

    value: int
    layout: SharedLayout
    copies: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return self.layout.nbytes * self.copies
