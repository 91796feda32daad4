"""What emission makes of a kernel structure: which steps cost a pass over a tile, and which stay in registers.

In: a kernel structure, and many choices of `Sizes` at once. Out: its `Outline`, a `Part` per step, by the rules of
`tile.placement`, so that the cost model can look at thousands of sizes without planning one of them (paper section 6).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.axes import Prepared
from mirage_nb.search.saturation.values import DATA, GRID, LOOP, TILE, Type
from mirage_nb.search.sizes.layouts import stored
from mirage_nb.search.sizes.roles import Chain, Products, chain_of, products_of
from mirage_nb.search.sizes.sketched import Sketched, sketched
from mirage_nb.search.structure import KernelStructure, Step
from mirage_nb.tile.bodies import Body, find_body
from mirage_nb.tile.placement import Place, Placement, StepKind, place

Numbers = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]
Result = TypeVar("Result")


def common(numbers: Numbers, power: int) -> Numbers:
    """The greatest common divisors of whole numbers and a power of two."""
    whole = numbers.astype(np.int64)
    found: Numbers = np.minimum(whole & -whole, power).astype(np.float64)
    return found


def largest(numbers: Iterable[Numbers]) -> Numbers:
    """The largest of several numbers, for each choice."""
    return reduce(np.maximum, numbers)


WARPS = 8
"""Warps of a block that compute."""
KNOWN = 1024
"""Kernels whose parts are remembered: a program has few, at many sizes."""


@dataclass(slots=True)
class Sizes:
    """Sizes of one kernel, many choices at once: blocks along the split axes and the for-loop range.

    They are those of one program and one loop. `interface` holds the extents of parts that an earlier kernel left as
    dimensions, `tiles` the tile parts of axes that their other parts need not divide.
    """

    extents: tuple[int, ...]
    blocks: dict[int, Numbers]
    loop: Numbers
    interface: Mapping[tuple[int, int], int] = field(default_factory=dict)
    tiles: Mapping[int, Numbers] = field(default_factory=dict)
    _known: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, found: Callable[[], Result]) -> Result:
        """What `found` says, which is asked once for each key: all kernels that share these sizes share it, too."""
        if key not in self._known:
            self._known[key] = found()
        known: Result = self._known[key]
        return known

    def extent(self, kernel: KernelStructure, axis: int, code: int) -> Numbers:
        """How much of an axis a tile holds."""
        return self.once(("extent", axis, code & DATA), lambda: self._extent(kernel, axis, code & DATA))

    def _extent(self, kernel: KernelStructure, axis: int, code: int) -> Numbers:
        one = np.ones_like(self.loop)
        split = self.blocks.get(axis, one)
        looped = self.loop if kernel.loop == axis else one
        held = one
        if code & GRID:
            held = held * self.interface.get((axis, GRID), split) if not code & TILE else held * split
        if code & LOOP:
            held = held * self.interface.get((axis, LOOP), looped) if not code & TILE else held * looped
        if code & TILE:
            held = held * self.tiles.get(axis, self.extents[axis] / (split * looped))
        return held

    def whole(self, axis: int, code: int) -> int:
        """How much of an axis a tensor in device memory holds: all of it, or what earlier kernels left of its parts."""
        if code & TILE:
            return self.extents[axis]
        left = [self.interface.get((axis, part), 1) for part in (GRID, LOOP) if code & part]
        return math.prod(left)

    def elements(self, kernel: KernelStructure, step: Step) -> Numbers:
        """Elements of the tile of a step; those of one type have the same array."""
        key = data_of(step.type)
        return self.once(("elements", key), lambda: self._elements(kernel, key))

    def _elements(self, kernel: KernelStructure, key: Type) -> Numbers:
        held = np.ones_like(self.loop)
        for axis, code in enumerate(key):
            if code:
                held = held * self.extent(kernel, axis, code)
        return held

    def total_blocks(self) -> Numbers:
        """Blocks of the grid."""
        return self.once("blocks", lambda: reduce(np.multiply, self.blocks.values(), np.ones_like(self.loop)))


@lru_cache(maxsize=KNOWN)
def data_of(type_: Type) -> Type:
    """What of a type tells how large a tile is."""
    return tuple([code & DATA for code in type_])


class Part(enum.Enum):
    """What becomes of a step."""

    CONSTANT = "constant"
    STREAMED = "streamed"
    """An input tile that travels through the ring of the for-loop."""
    HELD = "held"
    """An input tile that is brought once, before the loop."""
    DIRECT = "direct"
    """An input tile that its one reader takes from device memory when it needs it."""
    INLINE = "inline"
    """Computed in the registers of its reader, or a view."""
    PRIVATE = "private"
    """Of a loop body that chains matmuls, and one of them goes into it: in fragments of one warp where sizes
    allow it, else a tile."""
    FOLDED = "folded"
    """Goes from registers into an accumulator, which warps may share by depth."""
    TILE = "tile"
    """Written to shared memory for everybody."""
    ACCUMULATOR = "accumulator"


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What is known of a kernel before its sizes; there is one of each kernel: it is found faster than what it holds.

    parts: one per step; varying: the steps that are computed anew in every iteration; innermost: the last axis of each.
    placed: where values live if the loop body does not stay with warps; body: the loop body, if it might; products,
    chain: what its loop multiplies, if it does nothing else.
    """

    known: Sketched
    parts: tuple[Part, ...]
    varying: tuple[bool, ...]
    innermost: tuple[int | None, ...]
    placed: Placement
    body: Body | None
    products: Products | None
    chain: Chain | None


@lru_cache(maxsize=KNOWN)
def outline(prepared: Prepared, kernel: KernelStructure) -> Outline:
    """The outline of a kernel."""
    known = sketched(prepared, kernel)
    placed = place(known.sketch)
    varying = tuple(bool(time[1]) for time in known.times)
    inner = tuple(next(reversed(stored(step.type)), None) for step in kernel.steps)
    return Outline(
        known, _parts(known, placed, varying), varying, inner, placed, find_body(known.sketch), products_of(kernel),
        chain_of(kernel),
    )  # fmt: skip


def _parts(known: Sketched, placed: Placement, varying: Sequence[bool]) -> tuple[Part, ...]:
    steps, above = known.kernel.steps, [bool(time[2]) for time in known.times]
    # A product in the loop that reads what another one goes into.
    products = [step for index, step in enumerate(steps) if step.operator.kind is OpKind.MATMUL and varying[index]]
    chained = any(above[read] for step in products for read in step.reads)
    parts: list[Part] = []
    for index, step in enumerate(steps):
        private = chained and above[index] and step.operator.kind is not OpKind.ACCUM
        parts.append(Part.PRIVATE if private else _part(step, placed.places[index], varying[index]))
    for done in placed.steps:
        if done.kind is StepKind.REDUCE and done.value is not None and parts[done.value] is Part.TILE:
            # What the threads that hold the result of a reduction compute from it at once is a part of the reduction.
            parts[done.value] = Part.INLINE
            parts[known.sketch.nodes[done.op].makes[0]] = Part.TILE
    return tuple(parts)


def _part(step: Step, where: Place, varying: bool) -> Part:
    """What becomes of a step that lives there."""
    match step.operator.kind, where:
        case OpKind.CONST, _:
            return Part.CONSTANT
        case OpKind.IN_ITER, Place.DEVICE:
            return Part.DIRECT
        case OpKind.IN_ITER, _:
            return Part.STREAMED if varying else Part.HELD
        case OpKind.ACCUM, _:
            return Part.INLINE if step.operator.accum is AccumKind.HOLD else Part.ACCUMULATOR
        case _, Place.NONE:
            return Part.FOLDED
        case _, Place.SHARED:
            return Part.TILE
        case _:
            return Part.INLINE
