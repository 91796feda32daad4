"""The tiles of a kernel at many sizes: what they hold, how they lie, what of them hangs over the end of an axis.

In: a kernel structure, many choices of `Sizes` at once. Out: `Tiles`, which every part of the cost model reads. Each
number is worked out once: steps of one type have tiles of one size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from mirage_nb.search.axes import Layout, Prepared
from mirage_nb.search.saturation.values import TILE, Type
from mirage_nb.search.sizes.anatomy import (
    WARPS,
    Numbers,
    Outline,
    Part,
    Sizes,
    Truths,
    common,
    data_of,
    outline,
)
from mirage_nb.search.sizes.bodies import Private, private
from mirage_nb.search.sizes.layouts import layout_of
from mirage_nb.search.sizes.rows import Rows, rows
from mirage_nb.search.structure import KernelStructure, Step
from mirage_nb.tile.boxes import Boxes, boxes
from mirage_nb.tile.held import VECTOR_BYTES
from mirage_nb.tile.shared import worth_having_early

ACCUMULATOR_BYTES, TILE_BYTES = 4, 2
MATMUL_GRAIN = (16, 8, 16)
"""Rows, columns and depth of the smallest tensor instruction: smaller tiles are padded to it."""


@dataclass(slots=True)
class Tiles:
    """The tiles of one kernel. `width`: bytes of an element of the program; `elements`: of the tile of every step."""

    prepared: Prepared
    kernel: KernelStructure
    sizes: Sizes
    width: int
    outline: Outline
    elements: list[Numbers]
    _bodies: dict[int, Private] = field(default_factory=dict)

    @classmethod
    def of(cls, prepared: Prepared, kernel: KernelStructure, sizes: Sizes) -> Tiles:
        """The tiles of a kernel at these sizes."""
        known = outline(prepared, kernel)
        elements = [sizes.elements(kernel, step) for step in kernel.steps]
        width = max(i.type.dtype.size for i in prepared.graph.inputs)
        return cls(prepared, kernel, sizes, width, known, elements)

    def private_on(self, warps: int) -> Private:
        """The body of its loop on so many warps, where that stays with them."""
        if warps not in self._bodies:
            self._bodies[warps] = private(self.outline.body, self.extents, self.shape, warps)
        return self._bodies[warps]

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
    def floats(self) -> bool:
        """Whether every input of the program is f32 or wider."""
        return min(i.type.dtype.size for i in self.prepared.graph.inputs) > 2

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the kernel."""
        return self.kernel.steps

    @property
    def shape(self) -> tuple[int, ...]:
        """Of every array: one number per choice of sizes."""
        return self.sizes.loop.shape

    def layout(self, index: int) -> Layout:
        """The axes of the dimensions of an input."""
        source = self.steps[index].source
        assert source is not None
        return layout_of(self.prepared, self.kernel, index, source)

    def bytes_of_element(self, index: int) -> int:
        """In device memory: inputs as they are, partial results, which have a part of an axis, in f32."""
        source, inputs = self.steps[index].source, self.prepared.graph.inputs
        if source is not None and source.kernel is None:
            number = self.prepared.tensors[source.index].input  # of a written muGraph it may be a value between kernels
            return inputs[number].type.dtype.size if 0 <= number < len(inputs) else self.width
        known = self.outline.known
        return ACCUMULATOR_BYTES if known.partial[index] or known.wide[index] else self.width

    def extents(self, value: int) -> list[Numbers]:
        """The extents of a value of the sketch."""
        known = self.outline.known
        return [
            np.ones(self.shape) if axis is None else self.sizes.extent(self.kernel, axis, known.types[value][axis])
            for axis in known.layouts[value]
        ]

    def nbytes(self, index: int) -> Numbers:
        """Bytes of the tile of a step in device memory."""
        return self.elements[index] * self.bytes_of_element(index)

    def filled(self, index: int) -> Numbers | float:
        """The share of all tiles of a step that lies inside its tensor: what hangs over its end is not moved."""
        share: Numbers | float = 1.0
        for axis in self.sizes.tiles:
            if self.steps[index].type[axis] & TILE:
                share = share * np.minimum(1.0, self.sizes.extents[axis] / self._covered(axis))
        return share

    def hanging(self, axis: int, code: int) -> Truths:
        """Where the last tile hangs over the end of an axis."""
        if axis in self.sizes.tiles and code & TILE:
            return self._covered(axis) > self.sizes.extents[axis]
        return np.zeros(self.shape, bool)

    def _covered(self, axis: int) -> Numbers:
        """How long the tiles make an axis."""
        parts = self.sizes.blocks.get(axis, 1.0) * (self.sizes.loop if self.kernel.loop == axis else 1.0)
        return parts * self.sizes.tiles[axis]

    def staged(self, index: int) -> Truths:
        """Where an input that is to be staged is: not if it would only be there early, and that is not worth it."""
        if index not in self.outline.placed.early:
            return np.ones(self.shape, bool)
        extents, *_, size, _ = self._extents(index)
        found: Truths = worth_having_early(self.kernel.loop is not None, self.nbytes(index), extents[-1], size)
        return found

    def lying(self, index: int) -> Rows:
        """How an input tile lies in device memory."""
        return self.sizes.once(("rows", *self._cut(index)), lambda: rows(*self._extents(index)))

    def boxes(self, index: int) -> Boxes:
        """An input tile as bulk copies."""

        def found() -> Boxes:
            extents, tensor, width, hanging = self._extents(index)
            return boxes(extents, tensor, width, hanging or [False] * len(extents))

        return self.sizes.once(("boxes", *self._cut(index)), found)

    def _cut(self, index: int) -> tuple[Layout, Type, int]:
        """What tells how an input tile is cut from its tensor: axes of dimensions, its type, bytes of an element."""
        return self.layout(index), data_of(self.steps[index].type), self.bytes_of_element(index)

    def _extents(self, index: int) -> tuple[list[Numbers], list[int], int, list[Truths]]:
        """The extents of an input tile and of its tensor, bytes of an element, where the tile hangs over the end."""
        layout, type_, width = self._cut(index)
        one = np.ones(self.shape)
        extents = [one if a is None else self.sizes.extent(self.kernel, a, type_[a]) for a in layout]
        tensor = [1 if a is None else self.sizes.whole(a, type_[a]) for a in layout]
        hanging = []
        if any(a in self.sizes.tiles for a in layout):
            nowhere = np.zeros(self.shape, bool)
            hanging = [nowhere if a is None else self.hanging(a, type_[a]) for a in layout]
        return extents or [one], tensor or [1], width, hanging

    def rounds(self, index: int, *, saved: bool = False) -> Numbers:
        """How often all threads take a vector each of a tile: the widest of which the rows of the tile are multiples;
        where it is saved, those of the tensor, too."""
        axis = self.outline.innermost[index]
        full = self.outline.parts[index] is Part.ACCUMULATOR or self.bytes_of_element(index) == ACCUMULATOR_BYTES
        widest = VECTOR_BYTES // (ACCUMULATOR_BYTES if full else TILE_BYTES)
        type_ = self.steps[index].type
        if saved and axis is not None and type_[axis] & TILE:
            widest = math.gcd(widest, self.sizes.extents[axis])

        def found() -> Numbers:
            vector = 1.0 if axis is None else common(self.sizes.extent(self.kernel, axis, type_[axis]), widest)
            return self.elements[index] / (32 * WARPS * vector)

        return self.sizes.once(("rounds", data_of(type_), widest), found)
