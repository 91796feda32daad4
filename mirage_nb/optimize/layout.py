"""Layouts of shared tensors: the order of dimensions, padding, or the 128-byte swizzle (paper section 6).

In: the shared tensors of a block graph with the ways in which each is written and read. Out: one
`SharedLayout` each. Invariant: a layout is injective on the tensor's indices, and every hard demand
(16-byte rows for ldmatrix and asynchronous copies) holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mirage_nb.ir import BlockGraph, DType
from mirage_nb.optimize.placement import Placement, Place, StepKind
from mirage_nb.optimize.tiling import Tiling

PANEL_BYTES = 128
"""Width of a swizzled panel."""


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """Where the elements of a shared tensor lie.

    strides: elements per step of each dimension, before swizzling. swizzled: the last dimension is cut
    into panels of 128 bytes, each panel holds all rows, and 16-byte chunks are permuted by the row.
    elements: allocated per copy.
    """

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...]
    elements: int
    swizzled: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes per copy."""
        return self.elements * self.dtype.size

    @property
    def panel(self) -> int:
        """Elements across a swizzled panel."""
        return PANEL_BYTES // self.dtype.size

    @property
    def panel_rows(self) -> int:
        """Rows of a swizzled panel: every dimension but the last, up to a whole 1024-byte pattern."""
        return -(-math.prod(self.shape[:-1]) // 8) * 8


def pitched(shape: tuple[int, ...], dtype: DType, order: tuple[int, ...] | None = None, pad: int = 0) -> SharedLayout:
    """Dimensions nested in `order` (outermost first; default row-major), `pad` elements behind each row."""
    order = tuple(range(len(shape))) if order is None else order
    strides = [0] * len(shape)
    step = 1
    for position, dim in enumerate(reversed(order)):
        strides[dim] = step
        step = step * shape[dim] + (pad if position == 0 else 0)
    # Copies of the tensor follow each other; each begins on a 128-byte line.
    unit = PANEL_BYTES // dtype.size
    return SharedLayout(shape, dtype, tuple(strides), -(-step // unit) * unit)


def swizzled(shape: tuple[int, ...], dtype: DType) -> SharedLayout:
    """Panels of 128 bytes with swizzled chunks; the last extent must fill whole panels."""
    width = PANEL_BYTES // dtype.size
    assert shape[-1] % width == 0
    strides = tuple(s // shape[-1] * width for s in pitched(shape, dtype).strides[:-1])
    rows = -(-math.prod(shape[:-1]) // 8) * 8
    return SharedLayout(shape, dtype, (*strides, 1), rows * shape[-1], swizzled=True)


def choose_layouts(
    block: BlockGraph, placement: Placement, tilings: Mapping[int, Tiling]
) -> dict[int, SharedLayout]:
    """A layout for every shared value, in order of definition."""
    turned = {s.accum: tilings[s.op].swapped for s in placement.steps if s.accum is not None and s.op in tilings}
    finishing = {s.value: turned[s.op] for s in placement.steps if s.kind is StepKind.FINISH and s.op in turned}
    found = {}
    for value, where in enumerate(placement.places):
        if where is not Place.SHARED:
            continue
        shape, dtype = block.types[value].shape, placement.stored[value]
        pad = 0
        if value in finishing:
            pad = 4 if finishing[value] else 8
        elif dtype.size == 2 and len(shape) > 1 and shape[-1] % 8 == 0:
            pad = 8
        found[value] = pitched(shape, dtype, pad=pad)
    return found
