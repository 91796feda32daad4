"""How tensors lie in shared memory: one set of rules for the planner of a block and for the ranking.

In: extents, as numbers (the planner) or as arrays of them (the ranking of thousands of sizes at once), and how a tensor
is written and read. Out: the same kind: bytes of the cheapest layout, in wavefronts first. Invariant: every copy of a
tensor begins on a line of all banks.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
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


def cost(form: Form, shape: Shape, uses: Sequence[Use]) -> Any:
    """Shared-memory wavefronts of one access by a warp, summed over the uses, and bytes; FORBIDDEN if one is
    impossible."""
    pitch: Any = 1 if shape.flat else (shape.rows if form.turned else shape.last) + form.pad
    swizzle: Any = 0
    if form.panels:
        swizzle = panel_bytes(shape.last, shape.size)
        pitch = 1 if shape.flat else np.floor_divide(swizzle, shape.size)
    ordered = in_row_order(form, shape)
    found: Any = elements(form, shape) * shape.size // 8
    if form.panels:
        found = np.where(np.greater(swizzle, 0), found, FORBIDDEN)
    for use in uses:
        match use:
            case Use.BOXES:
                each: Any = 0 if form.panels else FORBIDDEN
            case Use.COPY:
                each = FORBIDDEN if form.panels else np.where(ordered, 1, FORBIDDEN)
            case Use.VECTOR:
                each = np.where(ordered, 1, 8)
            case _:
                each = _wavefronts(use, shape, pitch, swizzle)
        found = found + WAVEFRONT_COST * each
    return found


def _wavefronts(use: Use, shape: Shape, pitch: Any, swizzle: Any) -> Any:
    """Of fragments, whose rows begin `pitch` elements apart."""
    line = LINE_BYTES // shape.size
    place = np.where(np.less(pitch, line), pitch, line + np.mod(pitch, line)).astype(np.int64)
    found: Any = 0.0
    for width in (0, *SWIZZLES):
        if np.any(np.equal(swizzle, width)):
            found = np.where(np.equal(swizzle, width), _table(use, shape.size, 0 if shape.flat else width)[place], found)
    if use is Use.FACTOR:
        chunks = np.equal(np.mod(shape.rows, 8) + np.mod(shape.last, 8), 0) & (not shape.flat)
        found = np.where(chunks & np.not_equal(np.mod(pitch * shape.size, CHUNK_BYTES), 0), FORBIDDEN, found)
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
    """The cheapest layouts of a tensor with its last dimension contiguous or not: their costs and bytes."""

    ordered: tuple[Any, Any]
    turned: tuple[Any, Any]

    def nbytes(self) -> Any:
        """Of the cheaper one; the first of them is tried first."""
        return np.where(self.ordered[0] <= self.turned[0], self.ordered[1], self.turned[1])


def lay(shape: Shape, uses: Sequence[Use]) -> Laid:
    """The cheapest layouts of a tensor that is used so."""
    found: dict[bool, tuple[Any, Any]] = {order: (FORBIDDEN, 0) for order in (True, False)}
    for form in forms(shape.size, shape.flat, Use.BOXES in uses):
        mine, nbytes, ordered = cost(form, shape, uses), elements(form, shape) * shape.size, in_row_order(form, shape)
        for order, (best, taken) in found.items():
            better = np.equal(ordered, order) & (mine < best)
            found[order] = (np.where(better, mine, best), np.where(better, nbytes, taken))
    return Laid(found[True], found[False])
