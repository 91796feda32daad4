"""The tiles of a kernel at many sizes: what they hold, how they lie, what of them hangs over the end of an axis.

In: a kernel structure, many choices of `Sizes` at once. Out: `Tiles`, which every part of the cost model reads. Each
number is worked out once: steps of one type have tiles of one size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from mirage_nb.search.axes import Prepared
from mirage_nb.search.saturation.values import DATA, TILE
from mirage_nb.search.sizes.anatomy import (
    Anatomy,
    Numbers,
    Part,
    Sizes,
    Truths,
    anatomy,
    common,
    layout_of,
    row_fragments,
    saved_directly,
    warp_private,
)
from mirage_nb.search.sizes.rows import Boxes, Rows, boxes, rows
from mirage_nb.search.structure import KernelStructure, Step

ACCUMULATOR_BYTES, TILE_BYTES = 4, 2
VECTOR_BYTES = 16
"""The widest vector that a thread loads or stores."""
MATMUL_GRAIN = (16, 8, 16)
"""Rows, columns and depth of the smallest tensor instruction: smaller tiles are padded to it."""


@dataclass(slots=True)
class Tiles:
    """The tiles of one kernel. `width`: bytes of an element of the program; `elements`: of the tile of every step;
    `private`: where the loop body is warp-private, `direct`: where its results are saved from registers, too;
    `fragments`: how many of them lie below each other."""

    prepared: Prepared
    kernel: KernelStructure
    sizes: Sizes
    width: int
    made: Anatomy
    elements: list[Numbers]
    private: Truths
    direct: Truths
    fragments: Numbers
    _filled: dict[tuple[int, ...], Numbers] = field(default_factory=dict)
    _vectors: dict[tuple[int, int, int], Numbers] = field(default_factory=dict)

    @classmethod
    def of(cls, prepared: Prepared, kernel: KernelStructure, sizes: Sizes) -> Tiles:
        """The tiles of a kernel at these sizes."""
        made = anatomy(kernel)
        elements = [sizes.elements(kernel, step) for step in kernel.steps]
        private = warp_private(prepared, kernel, made, sizes, elements)
        direct = private & saved_directly(prepared, kernel, made, sizes) if private.any() else private
        width = max(i.type.dtype.size for i in prepared.graph.inputs)
        fragments = row_fragments(prepared, kernel, made, sizes) if private.any() else elements[0]
        return cls(prepared, kernel, sizes, width, made, elements, private, direct, fragments)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the kernel."""
        return self.kernel.steps

    @property
    def shape(self) -> tuple[int, ...]:
        """Of every array: one number per choice of sizes."""
        return self.sizes.loop.shape

    def bytes_of_element(self, index: int) -> int:
        """In device memory: partial results, which have a part of an axis, travel in f32."""
        partial = any(code & DATA and not code & TILE for code in self.steps[index].type)
        return ACCUMULATOR_BYTES if partial or self.made.wide[index] else self.width

    def nbytes(self, index: int) -> Numbers:
        """Bytes of the tile of a step in device memory."""
        return self.elements[index] * self.bytes_of_element(index)

    def filled(self, index: int) -> Numbers:
        """The share of all tiles of a step that lies inside its tensor: what hangs over its end is not moved."""
        key = tuple(axis for axis in self.sizes.tiles if self.steps[index].type[axis] & TILE)
        if key not in self._filled:
            share = np.ones(self.shape)
            for axis in key:
                share = share * np.minimum(1.0, self.sizes.extents[axis] / self._covered(axis))
            self._filled[key] = share
        return self._filled[key]

    def hanging(self, axis: int, code: int) -> Truths:
        """Where the last tile hangs over the end of an axis."""
        if axis in self.sizes.tiles and code & TILE:
            return self._covered(axis) > self.sizes.extents[axis]
        return np.zeros(self.shape, bool)

    def _covered(self, axis: int) -> Numbers:
        """How long the tiles make an axis."""
        parts = self.sizes.blocks.get(axis, 1.0) * (self.sizes.loop if self.kernel.loop == axis else 1.0)
        return parts * self.sizes.tiles[axis]

    def lying(self, index: int) -> Rows:
        """How an input tile lies in device memory."""
        return rows(*self._cut(index))

    def boxes(self, index: int) -> Boxes:
        """An input tile as bulk copies."""
        return boxes(*self._cut(index))

    def _cut(self, index: int) -> tuple[list[Numbers], list[int], int, list[Truths]]:
        """The extents of an input tile and of its tensor, bytes of an element, where the tile hangs over the end."""
        step = self.steps[index]
        assert step.source is not None
        one = np.ones(self.shape)
        layout = layout_of(self.prepared, self.kernel, index, step.source)
        extents = [one if a is None else self.sizes.extent(self.kernel, a, step.type[a]) for a in layout]
        tensor = [1 if a is None else self.sizes.extents[a] for a in layout]
        hanging = []
        if any(a in self.sizes.tiles for a in layout):
            nowhere = np.zeros(self.shape, bool)
            hanging = [nowhere if a is None else self.hanging(a, step.type[a]) for a in layout or (None,)]
        return extents or [one], tensor or [1], self.bytes_of_element(index), hanging

    def vector(self, index: int) -> Numbers:
        """Elements that a thread takes at a time: the widest vector of which the rows of a tile are a multiple."""
        axis = self._innermost(index)
        return np.ones(self.shape) if axis is None else self._common(index, axis, self._widest(index))

    def saved_vector(self, index: int) -> Numbers:
        """The same where a tile is saved: the rows of the tensor, too, have to be multiples of the vector."""
        axis = self._innermost(index)
        if axis is None or not self.steps[index].type[axis] & TILE:
            return self.vector(index)
        return self._common(index, axis, math.gcd(self._widest(index), self.sizes.extents[axis]))

    def _innermost(self, index: int) -> int | None:
        type_ = self.steps[index].type
        return next((axis for axis in reversed(range(len(type_))) if type_[axis] & DATA), None)

    def _widest(self, index: int) -> int:
        full = self.made.parts[index] is Part.ACCUMULATOR or self.bytes_of_element(index) == ACCUMULATOR_BYTES
        return VECTOR_BYTES // (ACCUMULATOR_BYTES if full else TILE_BYTES)

    def _common(self, index: int, axis: int, widest: int) -> Numbers:
        code = self.steps[index].type[axis]
        key = (axis, code & DATA, widest)
        if key not in self._vectors:
            extent = self.sizes.extent(self.kernel, axis, code)
            self._vectors[key] = common(extent, widest)
        return self._vectors[key]
