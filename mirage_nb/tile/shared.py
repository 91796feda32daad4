"""How tensors lie in shared memory: one set of rules for the planner of a block and for the ranking.

In: extents, as numbers (the planner) or as arrays of them (the ranking of thousands of sizes at once), and how a tensor
is written and read. Out: the same kind: bytes of the cheapest layout, in wavefronts first. Invariant: every copy of a
tensor begins on a line of all banks.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

LINE_BYTES = 128
"""All banks of shared memory once."""
SWIZZLES = (128, 64, 32)
"""Panel widths in bytes, best first."""
PATTERN_ROWS = 8
"""Rows after which a swizzle repeats itself."""
PATTERN_BYTES = LINE_BYTES * PATTERN_ROWS
BANK_BYTES, BANKS, CHUNK_BYTES = 4, 32, 16
WAVEFRONT_COST = 1024
"""Bytes break ties: an eighth of a wavefront for each kilobyte."""
FORBIDDEN = np.inf
"""Cost of a layout that a use cannot work with."""


class Use(enum.Enum):
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
    wide as a swizzle."""

    turned: bool = False
    pad: int = 0
    panels: bool = False


def forms(size: int, flat: bool, boxed: bool = False) -> tuple[Form, ...]:
    """Those worth considering for elements of `size` bytes. A 16-byte chunk stays whole under a swizzle: eight 16-bit
    elements, but not eight f32."""
    pads = (4, 8) if size == 4 else (8,)
    apart = () if flat else (*(Form(False, pad) for pad in pads), *(Form(True, pad) for pad in (0, *pads)))
    return (Form(), *apart, *([Form(panels=True)] if boxed or size == 2 else []))


def panel_bytes(last: Any, size: int) -> Any:
    """The widest swizzle whose panels a last extent fills, 0 if none does."""
    widest: Any = 0
    for width in reversed(SWIZZLES):
        widest = np.where(np.equal(np.mod(np.multiply(last, size), width), 0), width, widest)
    return widest


PREFETCH_BYTES = 32768
"""Largest tile that a block without a loop stages in shared memory only to have it early."""


def worth_having_early(looped: bool, nbytes: Any, last: Any, size: int) -> Any:
    """Whether a tile with one reader may be on its way long before it is read: beside a ring it travels with the ring,
    if its rows are panels."""
    return np.greater(panel_bytes(last, size), 0) if looped else np.less_equal(nbytes, PREFETCH_BYTES)


def pitched_elements(inner: Any, outer: Any, pad: int, size: int) -> Any:
    """Elements of `outer` runs of `inner` ones, with the pads behind them and up to a whole line."""
    unit = LINE_BYTES // size
    return -(-((inner + pad) * outer) // unit) * unit


def panel_elements(rows: Any, last: Any, fold: Any = 1) -> Any:
    """Elements of panels that hold so many rows, `fold` of them side by side, up to whole patterns."""
    return -(-(rows // fold) // PATTERN_ROWS) * PATTERN_ROWS * fold * last


def elements(form: Form, shape: Shape) -> Any:
    """Elements that a tensor takes."""
    if form.panels:
        return panel_elements(shape.lead * shape.rows, shape.last)
    inner, outer = (shape.rows, shape.last) if form.turned else (shape.last, shape.rows)
    return pitched_elements(inner, outer * shape.lead, form.pad, shape.size)


def in_row_order(form: Form, shape: Shape) -> Any:
    """Whether the last dimension is contiguous."""
    return np.equal(shape.rows + form.pad, 1) if form.turned else np.ones_like(shape.last, bool)


def cost(form: Form, shape: Shape, uses: Collection[Use]) -> Any:
    """Shared-memory wavefronts of one access by a warp, summed over the uses, and bytes; FORBIDDEN if one is
    impossible."""
    swizzle = panel_bytes(shape.last, shape.size) if form.panels else 0
    pitch = swizzle // shape.size if form.panels else (shape.rows if form.turned else shape.last) + form.pad
    chunks = np.equal(np.mod(shape.rows, 8) + np.mod(shape.last, 8), 0) & (not shape.flat)
    lines = Lines(1 if shape.flat else pitch, in_row_order(form, shape), swizzle, chunks, shape.flat)
    found = use_cost(uses, shape.size, lines, elements(form, shape) * shape.size)
    return np.where(np.greater(swizzle, 0), found, FORBIDDEN) if form.panels else found


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
    if np.any(lines.swizzle) and not lines.flat:
        for width in SWIZZLES:
            found = np.where(np.equal(lines.swizzle, width), _table(use, size, width)[place], found)
    if use is Use.FACTOR:
        astray = np.not_equal(np.mod(np.multiply(lines.pitch, size), CHUNK_BYTES), 0)
        found = np.where(lines.chunks & astray, FORBIDDEN, found)
    return found


@lru_cache(maxsize=64)
def _table(use: Use, size: int, swizzle: int) -> npt.NDArray[np.float64]:
    """Wavefronts by the elements between rows: those of a line, and those of longer ones by what is beyond it."""
    return np.array([passes(use, pitch, size, swizzle) for pitch in range(2 * LINE_BYTES // size)], np.float64)


def passes(use: Use, pitch: int, size: int, swizzle: int = 0) -> int:
    """Passes over the banks for one access by a warp to a fragment."""
    match use:
        case Use.FACTOR:
            places, width = [(row, 0) for row in range(8)], CHUNK_BYTES
        case Use.STRAIGHT:
            places, width = [(lane // 4, lane % 4 * 2) for lane in range(32)], BANK_BYTES
        case _:
            places, width = [(lane % 4 * 2, lane // 4) for lane in range(32)], BANK_BYTES
    words: dict[int, set[int]] = {}
    for row, column in places:
        offset = byte_offset(row, column, pitch, size, swizzle)
        for word in range(offset // BANK_BYTES, (offset + width - 1) // BANK_BYTES + 1):
            words.setdefault(word % BANKS, set()).add(word)
    return max(len(found) for found in words.values())


def byte_offset(row: int, column: int, pitch: int, size: int, swizzle: int) -> int:
    """Of an element of rows that begin `pitch` elements apart, counted along the contiguous dimension."""
    offset = (row * pitch + column) * size
    return offset ^ (offset >> 3) & (swizzle - 16) if swizzle else offset


@dataclass(frozen=True, slots=True)
class Laid:
    """The cheapest layout of a tensor: its cost, its bytes, whether it is one of panels."""

    cost: Any
    nbytes: Any
    swizzled: Any

    def where(self, able: Any, other: Laid) -> Laid:
        """The other one where that is so."""
        return Laid(
            np.where(able, other.cost, self.cost),
            np.where(able, other.nbytes, self.nbytes),
            np.where(able, other.swizzled, self.swizzled),
        )


def lay(shape: Shape, uses: Collection[Use]) -> Laid:
    """The cheapest layout of a tensor that is used so; of equal ones the first."""
    found = Laid(FORBIDDEN, 0, False)
    for form in forms(shape.size, shape.flat, Use.BOXES in uses):
        mine = Laid(cost(form, shape, uses), elements(form, shape) * shape.size, form.panels)
        found = found.where(np.less(mine.cost, found.cost), mine)
    return found
