"""How input tiles lie in device memory, and how they come from there.

In: the extents of a tile and of the tensor that it is cut from, many at once. Out: `Rows`. A tile comes by bulk
copies, by copies of 4 to 16 bytes that run by themselves, or through registers, where threads wait. The rules are
those of `optimize.transfer` and `codegen.ring` (paper section 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from mirage_nb.search.sizes.anatomy import WARPS, Numbers, Truths, common

SECTOR_BYTES, LINE_BYTES = 32, 128
"""What device memory and caches move at a time, and what they find at a time."""
PANELS = (128, 64, 32)
"""Bytes that one row of a bulk copy may have, widest first."""
BOX_ROWS = 256
"""Rows that one bulk copy may bring."""
CHUNK_BYTES = 16
"""What a swizzle leaves together, and the widest vector of a thread."""
COPIED_BYTES = 4
"""The least that a thread copies past its registers, from and to multiples of so many bytes."""
ANYWHERE_BYTES = 2
"""Elements of so many bytes are read in vectors that begin anywhere."""
VECTORS_AT_ONCE, ELEMENTS_AT_ONCE = 2, 8
"""What a thread asks for before it waits, of what passes through its registers."""
PATTERN_ROWS = 8
"""Rows of a swizzle pattern: tiles that are copied in bulk are padded to it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """How an input tile lies in device memory. `width` is its contiguous run and `last` its last dimension, in bytes;
    `count` is the number of runs, `lines` the extent of all dimensions but the last; `element`: bytes of one.
    `anywhere`: vectors of it begin anywhere, so that no copy runs by itself. `touches`: lines and sectors that the
    runs touch. `waits`: how often every thread waits for what it asked for, `vectors`: how many it brings in all; zeros
    where copies run by themselves.
    """

    width: Numbers
    count: Numbers
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
    return Rows(run, count, last, lines, width, anywhere, touches, *_through_registers(last, lines, width, anywhere))


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


@dataclass(frozen=True, slots=True)
class Boxes:
    """A tile of a ring as bulk copies: `panels` rows of up to 128 bytes, 0 where the copy engine cannot take it.
    `boxed`: its bytes in shared memory, in patterns of rows."""

    panels: Numbers
    boxed: Numbers


def boxes(extents: Sequence[Numbers], tensor: Sequence[int], width: int, hanging: Sequence[Truths] = ()) -> Boxes:
    """The bulk copies of a tile; the arguments are those of `rows`.

    Rows of a tensor over whose end tiles hang begin on 16 bytes. The engine writes zeros behind the end of a matrix,
    but not behind one of several. Short rows that lie behind each other are one of a line.
    """
    last, height = extents[-1] * width, extents[-2] if len(extents) > 1 else np.ones_like(extents[-1])
    outer = reduce(np.multiply, extents[:-2]) if len(extents) > 2 else None
    panel = common(last, PANELS[0])
    whole = tensor[-1] * width
    if whole % CHUNK_BYTES == 0 and LINE_BYTES % whole == 0:
        fold = LINE_BYTES // whole
        if (tensor[-2] if len(tensor) > 1 else 1) % fold == 0:
            folded = np.where((last == whole) & (common(height, fold) == fold), fold, 1.0)
            height, last = height / folded, last * folded
            panel = common(last, PANELS[0])
    fits: Truths = panel >= PANELS[-1]
    if (height > BOX_ROWS).any():
        down = np.ceil(height / BOX_ROWS)
        fits = fits & (height % down == 0) & ((down == 1) | (height / down % PATTERN_ROWS == 0))
    panels = height * last / panel
    if outer is not None:
        fits, height = fits & (outer == 1), height * outer
    ends = [*(math.prod(tensor[:-2]) == 1 for _ in tensor[:-1]), whole % CHUNK_BYTES == 0]
    for taken, over in zip(ends, hanging, strict=bool(hanging)):
        if not taken:
            fits = fits & ~over
    boxed = np.ceil(height / PATTERN_ROWS) * PATTERN_ROWS * last
    return Boxes(np.where(fits, panels, 0.0), boxed)
