"""How input tiles lie in device memory, and how they come from there.

In: the extents of a tile and of the tensor that it is cut from, many at once. Out: `Rows`. A tile comes by bulk
copies, by copies of 4 to 16 bytes that run by themselves, or through registers, where threads wait. The rules are
those of `optimize.layout` and `codegen.ring` (paper section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mirage_nb.search.sizes.anatomy import WARPS, Numbers, Truths, common
from mirage_nb.tile.shared import CHUNK_BYTES, LINE_BYTES

SECTOR_BYTES = 32
"""What device memory and caches move at a time; what they find at a time is a line."""
COPIED_BYTES = 4
"""The least that a thread copies past its registers, from and to multiples of so many bytes."""
ANYWHERE_BYTES = 2
"""Elements of so many bytes are read in vectors that begin anywhere."""
VECTORS_AT_ONCE, ELEMENTS_AT_ONCE = 2, 8
"""What a thread asks for before it waits, of what passes through its registers."""


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
