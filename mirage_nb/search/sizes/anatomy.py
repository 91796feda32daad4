"""What emission makes of a kernel structure: which steps cost a pass over a tile, and which stay in registers.

In: a kernel structure, and many choices of `Sizes` at once. Out: a `Part` per step, and where a body is that of one
warp. The rules are those of placement, said over axes instead of dimensions, so that the cost model can look at
thousands of sizes without planning one of them (paper section 6).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mirage_nb.ir import OPS, AccumKind, OpKind, Trait
from mirage_nb.search.axes import Layout, Prepared
from mirage_nb.search.saturation.semantics import BINARY, UNARY
from mirage_nb.search.saturation.values import BLOCK, BODY, DATA, GRID, ITER, LOOP, TILE, Type
from mirage_nb.search.sizes.layouts import fitted, joined, layouts, stored
from mirage_nb.search.structure import KernelStructure, Source, Step
from mirage_nb.tile.order import find_chains, groups

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

ELEMENTWISE = BINARY | UNARY
REDUCTIONS = frozenset({OpKind.SUM, OpKind.MAX, OpKind.RESCALED_SUM})
_FOLDS = {OpKind.MATMUL: AccumKind.SUM, OpKind.SUM: AccumKind.SUM, OpKind.MAX: AccumKind.MAX}


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


@dataclass(frozen=True, slots=True)
class Anatomy:
    """One part per step, and what would become of those that are private where sizes do not allow it (`apart`);
    `varying` says which steps are computed anew in every iteration, `wide` which of them are
    of f32: results of earlier kernels that no product takes as they are, and what is computed with them; `partial`:
    those that have a part of an axis; `innermost`: the last axis of each; `views`: those that pass on
    what is the same in every iteration; `turned`: see `_turned`;
    `early`: inputs that are staged only to be there early, where that is worth it;
    `passing`: concatenations whose parts go to device memory, iteration by iteration. `groups`: the steps as operators
    of the block, chains of elementwise ones together, in order; `together`: the operator that each step belongs to;
    `leaves`: what the threads that hold the result of a reduction compute from it at once and leave instead of it, else
    the step itself; `holder`: the other way round."""

    parts: tuple[Part, ...]
    apart: tuple[Part, ...]
    varying: tuple[bool, ...]
    wide: tuple[bool, ...]
    partial: tuple[bool, ...]
    innermost: tuple[int | None, ...]
    views: tuple[bool, ...]
    turned: frozenset[tuple[int, int]]
    early: frozenset[int]
    passing: frozenset[int]
    groups: tuple[tuple[int, ...], ...]
    together: tuple[tuple[int, ...], ...]
    leaves: tuple[int, ...]
    holder: tuple[int, ...]


@lru_cache(maxsize=KNOWN)
def anatomy(prepared: Prepared, kernel: KernelStructure) -> Anatomy:
    """The parts of a kernel structure."""
    steps = kernel.steps
    varying: list[bool] = []
    chained = False
    above: list[bool] = []
    for index, step in enumerate(steps):
        looped = step.operator.kind is not OpKind.ACCUM and kernel.loop is not None and step.stage == BODY
        varying.append(looped and (any(c & ITER for c in step.type) or any(varying[r] for r in step.reads)))
        multiplies = step.operator.kind is OpKind.MATMUL and varying[index]
        chained |= multiplies and any(above[r] for r in step.reads)
        above.append(varying[index] and (multiplies or any(above[r] for r in step.reads)))
    turned = _turned(prepared, kernel)
    together = _groups(kernel, varying, above, turned)
    block = _Block(kernel, varying, together, turned)
    apart = [block.part(i) for i in range(len(steps))]
    leaves, holder = list(range(len(steps))), list(range(len(steps)))
    for index in range(len(steps)):
        result = block.continued(index)
        if result is not None and apart[index] is Part.TILE is apart[result] and not (chained and above[index]):
            leaves[index], holder[result], apart[result] = result, index, Part.INLINE
    parts = [
        Part.PRIVATE if chained and above[i] and steps[i].operator.kind is not OpKind.ACCUM else part
        for i, part in enumerate(apart)
    ]
    partial = tuple(any(code & DATA and not code & TILE for code in step.type) for step in steps)
    inner = tuple(next(reversed(stored(step.type)), None) for step in steps)
    wide = _wide(kernel)
    views = tuple(_is_view(step, varying[step.reads[0]]) if step.reads else False for step in steps)
    early = frozenset(i for i in range(len(steps)) if steps[i].operator.kind is OpKind.IN_ITER and not block.shared(i))
    return Anatomy(
        tuple(parts), tuple(apart), tuple(varying), wide, partial, inner, views, turned, early, _passing(kernel),
        tuple(dict.fromkeys(together[i] for i in block.order)), tuple(together), tuple(leaves), tuple(holder),
    )  # fmt: skip


def _wide(kernel: KernelStructure) -> tuple[bool, ...]:
    steps = kernel.steps
    wide: list[bool] = []
    for index, step in enumerate(steps):
        if step.source is None:
            wide.append(any(wide[read] for read in step.reads))
            continue
        seen = {index}
        for later, other in enumerate(steps):
            if other.operator.kind is OpKind.ACCUM and not seen.isdisjoint(other.reads):
                seen.add(later)
        multiplied = any(s.operator.kind is OpKind.MATMUL and not seen.isdisjoint(s.reads) for s in steps)
        wide.append(step.source.kernel is not None and not multiplied)
    return tuple(wide)


def _passing(kernel: KernelStructure) -> frozenset[int]:
    """Concatenations that are saved as they are, without a dimension for the part of an axis, and not read."""
    steps = kernel.steps
    read = {read for step in steps for read in step.reads}
    return frozenset(
        index
        for index in kernel.outputs
        if steps[index].operator.accum is AccumKind.CONCAT and index not in read
        if not any(code & BLOCK and not code & DATA for code in steps[index].type)
    )


def _is_view(step: Step, of_varying: bool) -> bool:
    """Whether a step passes on what is the same in every iteration."""
    return step.operator.accum is AccumKind.HOLD and not of_varying


def _turned(prepared: Prepared, kernel: KernelStructure) -> frozenset[tuple[int, int]]:
    """The elementwise steps, and rescaled sums, that read another one through a view, which puts its dimensions in
    their order: (step, what it reads)."""
    known, found = layouts(prepared, kernel), set[tuple[int, int]]()
    for index, step in enumerate(kernel.steps):
        if len(step.reads) == 2 and (_elementwise(step) or step.operator.kind is OpKind.RESCALED_SUM):
            first, second = (known[read] for read in step.reads)
            wide = joined(first, second) if _elementwise(step) else first
            found |= {(index, read) for read in step.reads if fitted(known[read], wide) != known[read]}
    return frozenset(found)


def _groups(
    kernel: KernelStructure, varying: Sequence[bool], above: Sequence[bool], turned: Collection[tuple[int, int]]
) -> list[tuple[int, ...]]:
    """For every step the chain of elementwise operators that it belongs to, as thread graphs have them; else itself."""
    steps = kernel.steps
    stages: list[int | None] = []
    for step in steps:
        read = [stage for r in step.reads if (stage := stages[r]) is not None]
        match step.operator.kind:
            case OpKind.CONST:
                stages.append(None)
            case OpKind.IN_ITER:
                stages.append(int(kernel.loop is None))
            case OpKind.ACCUM:
                stages.append(1)
            case _:
                stages.append(max(read, default=None))
    place: list[int] = []  # of the steps among all operators, views in front of those that read through them
    reads: list[list[int]] = []
    for index, step in enumerate(steps):
        mine = [place[read] for read in step.reads]
        for number, source in enumerate(step.reads):
            if (index, source) in turned:
                reads.append([place[source]])
                mine[number] = len(reads) - 1
        place.append(len(reads))
        reads.append(mine)
    step_at = {at: index for index, at in enumerate(place)}
    able = [at in step_at and _elementwise(steps[step_at[at]]) for at in range(len(reads))]
    of_step = list(zip(stages, varying, above, strict=True))
    times = [of_step[step_at[at]] if at in step_at else None for at in range(len(reads))]
    found: list[tuple[int, ...]] = [(index,) for index in range(len(steps))]
    for chain in find_chains(able, reads, times):
        members = tuple(step_at[at] for at in chain)
        for member in members:
            found[member] = members
    return found


def _elementwise(step: Step) -> bool:
    return Trait.ELEMENTWISE in OPS[step.operator.kind].traits


class _Block:
    """What the rules of placement look things up in. `uses`: the operators that read a step, named by their first
    steps, and the savers, by negative numbers; `readers`: the same, seen through views; `order`: of the operators."""

    def __init__(
        self, kernel: KernelStructure, varying: Sequence[bool], together: Sequence[tuple[int, ...]],
        turned: Collection[tuple[int, int]],
    ) -> None:  # fmt: skip
        self.kernel, self.varying, self.together, self.turned = kernel, varying, together, turned
        steps = kernel.steps
        self.uses: list[set[int]] = [set() for _ in steps]
        for index, step in enumerate(steps):
            for read in step.reads:
                if together[read] != together[index]:
                    self.uses[read].add(together[index][0])
        for number, output in enumerate(kernel.outputs):
            self.uses[output].add(~number)
        self.readers: list[set[int]] = [set() for _ in steps]
        for index in reversed(range(len(steps))):
            for user in self.uses[index]:
                viewed = user >= 0 and _is_view(steps[user], varying[steps[user].reads[0]])
                self.readers[index] |= self.readers[user] if viewed else {user}
        chains = sorted({group for group in together if len(group) > 1})
        self.order = [members[0] for members in groups(chains, [step.reads for step in steps])]

    def kinds(self, users: Iterable[int]) -> list[OpKind]:
        """Of operators that read; savers have none."""
        return [self.kernel.steps[user].operator.kind for user in users if user >= 0]

    def shared(self, index: int) -> bool:
        """Whether a product reads a step, or several operators do."""
        return OpKind.MATMUL in self.kinds(self.readers[index]) or len(self.readers[index]) > 1

    def part(self, index: int) -> Part:
        """What becomes of a step."""
        kernel, operator = self.kernel, self.kernel.steps[index].operator
        match operator.kind:
            case OpKind.CONST:
                return Part.CONSTANT
            case OpKind.IN_ITER:
                if not (self.shared(index) or _worth_staging(kernel, self.varying[index])):
                    return Part.DIRECT
                return Part.STREAMED if self.varying[index] else Part.HELD
            case OpKind.ACCUM:
                return Part.INLINE if operator.accum is AccumKind.HOLD else Part.ACCUMULATOR
            case kind if kind in _FOLDS and self._folds(index, _FOLDS[kind]):
                return Part.FOLDED
            case kind if kind is OpKind.CONCAT or _elementwise(kernel.steps[index]):
                return Part.TILE if self.shared(index) else Part.INLINE
            case _:
                return Part.TILE

    def _folds(self, index: int, into: AccumKind) -> bool:
        """Whether an accumulator of that kind takes the result, and nothing else does."""
        return len(self.uses[index]) == 1 and [
            self.kernel.steps[user].operator.accum for user in self.uses[index] if user >= 0
        ] == [into]

    def continued(self, index: int) -> int | None:
        """The one elementwise result that the threads which hold that of a reduction compute from it at once: it has
        its shape, and nothing else goes into it."""
        steps, users = self.kernel.steps, self.uses[index]
        kinds = self.kinds(users)
        if steps[index].operator.kind not in REDUCTIONS or len(users) != 1 or not kinds:
            return None
        members = self.together[next(iter(users))]
        if not _elementwise(steps[members[0]]):
            return None
        leaving = [m for m in members if self.uses[m]]
        beside = {r for m in members for r in steps[m].reads} - {index, *members}
        straight = not any((m, index) in self.turned for m in members)
        alone = straight and len(leaving) == 1 and all(steps[r].operator.kind is OpKind.CONST for r in beside)
        return leaving[0] if alone and data_of(steps[leaving[0]].type) == data_of(steps[index].type) else None


def _worth_staging(kernel: KernelStructure, varying: bool) -> bool:
    """Whether an input with one reader is copied early: beside a ring, or where a reduction makes readers wait."""
    kinds = [step.operator.kind for step in kernel.steps]
    if kernel.loop is None:
        return OpKind.SUM in kinds or OpKind.MAX in kinds
    return varying and any(
        step.operator.kind is OpKind.MATMUL
        and any(kernel.steps[r].source is not None and any(c & ITER for c in kernel.steps[r].type) for r in step.reads)
        for step in kernel.steps
    )


def layout_of(prepared: Prepared, kernel: KernelStructure, index: int, source: Source) -> Layout:
    """The axes of the dimensions of an input; results of earlier kernels keep the order of the axes."""
    if source.kernel is None:
        return prepared.tensors[source.index].axes
    return stored(kernel.steps[index].type)
