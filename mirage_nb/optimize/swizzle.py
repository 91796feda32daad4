"""The geometry of shared tensors: strides, padding, and the swizzles of the bulk copy engine.

In: a shape and an element type. Out: a `SharedLayout`. Invariant: a layout is injective on the tensor's
indices, and copies of a tensor begin on 128-byte lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_nb.ir import DType
from mirage_nb.ir.windows import row_major
from mirage_nb.tile.shared import LINE_BYTES, SWIZZLES, panel_elements, pitched_elements


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


def pitched(shape: tuple[int, ...], dtype: DType, order: tuple[int, ...] | None = None, pad: int = 0) -> SharedLayout:
    """Dimensions nested in `order` (outermost first; default row-major), `pad` elements behind each row."""
    order = tuple(range(len(shape))) if order is None else order
    strides = [0] * len(shape)
    step = 1
    for position, dim in enumerate(reversed(order)):
        strides[dim] = step
        step = step * shape[dim] + (pad if position == 0 else 0)
    inner = shape[order[-1]] if order else 1
    outer = math.prod(shape) // inner if inner else 0
    return SharedLayout(shape, dtype, tuple(strides), int(pitched_elements(inner, outer, pad, dtype.size)))


def panel_bytes(shape: tuple[int, ...], dtype: DType) -> int:
    """The widest swizzle whose panels the last extent fills, 0 if none does."""
    return next((b for b in SWIZZLES if shape and shape[-1] * dtype.size % b == 0), 0)


def swizzled(shape: tuple[int, ...], dtype: DType, fold: int = 1) -> SharedLayout:
    """Panels with swizzled chunks; the last extent must fill whole panels, or `fold` rows of it one panel."""
    swizzle = LINE_BYTES if fold > 1 else panel_bytes(shape, dtype)
    assert swizzle and (fold == 1 or fold * shape[-1] * dtype.size == swizzle)
    width = swizzle // dtype.size // fold
    strides = tuple(s // shape[-1] * width for s in row_major(shape)[:-1])
    elements = int(panel_elements(math.prod(shape[:-1]), shape[-1], fold))
    return SharedLayout(shape, dtype, (*strides, 1), elements, swizzle, fold)

