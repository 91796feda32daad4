"""Structures: muGraphs over axes, with sizes still symbolic. Plain picklable data.

A kernel structure is a list of steps in definition order; a step is an operator on earlier steps with the
type of its result. Kernels read tensors of the program or results of earlier kernels (paper section 2).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.axes import Prepared
from mirage_nb.search.pieces.piece import HEAVY
from mirage_nb.search.saturation.values import BODY, GRID, ITER, POST, TILE, Operator, Type


@dataclass(frozen=True, slots=True)
class Source:
    """What an input iterator reads: tensor `index` of the program, or output `index` of kernel `kernel`."""

    index: int
    kernel: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of a block graph. `source` is set for input iterators only. threads: a product that stands in a
    thread graph, as rules put it there (`tile.rules.thread_graph`)."""

    operator: Operator
    reads: tuple[int, ...]
    type: Type
    stage: int
    source: Source | None = None
    threads: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class KernelStructure:
    """One graph-defined operator: its steps, the steps that it saves, and the roles of the axes.

    `grid`: reduced axes split over the grid. `free`: free axes split over the grid. `loop`: the axis of the
    for-loop, or None.
    """

    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    grid: tuple[int, ...]
    loop: int | None
    free: tuple[int, ...] = ()

    @property
    def operators(self) -> int:
        """Operators without iterators, constants and savers."""
        return sum(not step.operator.is_leaf for step in self.steps)


@dataclass(frozen=True, slots=True)
class Structure:
    """A muGraph without sizes: its kernels in launch order.

    `outputs` says for every output of the program which kernel's which output it is.
    """

    kernels: tuple[KernelStructure, ...]
    outputs: tuple[Source, ...]

    @property
    def operators(self) -> int:
        """Operators of all kernels, without iterators, constants and savers."""
        return sum(kernel.operators for kernel in self.kernels)

    def digest(self) -> str:
        """Equal structures have equal digests, in every run."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


def as_they_stand(prepared: Prepared) -> Structure:
    """One kernel without a loop that does what the program says, all of its operators in their order."""
    steps = []
    for (operator, args), axes in zip(prepared.program, prepared.spans, strict=True):
        source = Source(operator.leaf) if operator.kind is OpKind.IN_ITER else None
        steps.append(Step(operator, args, prepared.type_of(axes), POST, source))
    kernel = KernelStructure(tuple(steps), prepared.outputs, (), None)
    return Structure((kernel,), tuple(Source(number, 0) for number in range(len(prepared.outputs))))


def looped(prepared: Prepared) -> Structure | None:
    """One kernel that does what the program says, with a loop over the longest axis that products fold: what has that
    axis stands in the loop, with what it needs, everything else behind it. None where that is no such program: another
    operator than a product or a sum folds the axis, or something in the loop waits for a result of it."""
    folded = {o.axis for o, _ in prepared.program if o.kind in HEAVY}
    if not folded:
        return None
    return _Looped(prepared, max(folded, key=lambda axis: (prepared.axes[axis].extent, -axis))).structure()


class _Looped:
    """The work on one program. body, post: the steps of its values in the loop and behind it."""

    def __init__(self, prepared: Prepared, loop: int) -> None:
        self.prepared, self.loop, self.spans = prepared, loop, prepared.spans
        self.steps: list[Step] = []
        self.body: dict[int, int] = {}
        self.post: dict[int, int] = {}

    def structure(self) -> Structure | None:
        outputs = self.prepared.outputs
        for value, (operator, args) in enumerate(self.prepared.program):
            inside = self.loop in self.spans[value].union(*(self.spans[a] for a in args))
            if inside and not self._in_loop(value, operator, args):
                return None
        if any(self.loop in self.spans[value] for value in outputs):
            return None
        kernel = KernelStructure((), tuple(map(self._behind, outputs)), (), self.loop)
        return Structure(
            (replace(kernel, steps=tuple(self.steps)),), tuple(Source(number, 0) for number in range(len(outputs)))
        )

    def _add(self, operator: Operator, reads: tuple[int, ...], value: int, stage: int, code: int = 0) -> int:
        source = Source(operator.leaf) if operator.kind is OpKind.IN_ITER else None
        type_ = list(self.prepared.type_of(self.spans[value]))
        if stage == BODY and (code or type_[self.loop]):
            type_[self.loop] = code or GRID | TILE | ITER
        self.steps.append(Step(operator, reads, tuple(type_), stage, source))
        return len(self.steps) - 1

    def _in_loop(self, value: int, operator: Operator, args: tuple[int, ...]) -> bool:
        """Put what has the axis, or folds it, into the loop; whether it can stand there."""
        if not all(map(self._before, args)):
            return False
        reads = tuple(self.body[a] for a in args)
        if self.loop in self.spans[value]:
            self.body[value] = self._add(operator, reads, value, BODY)
            return True
        if operator.kind not in (OpKind.MATMUL, OpKind.SUM):
            return False
        part = self._add(operator, reads, value, BODY, ITER)
        self.post[value] = self._add(Operator(OpKind.ACCUM, self.loop, AccumKind.SUM), (part,), value, POST)
        return True

    def _before(self, value: int) -> bool:
        """Put what has not the axis into the loop, if it waits for nothing that folds it."""
        if value not in self.body and value not in self.post:
            operator, args = self.prepared.program[value]
            if all(map(self._before, args)):
                self.body[value] = self._add(operator, tuple(self.body[a] for a in args), value, BODY)
        return value in self.body

    def _behind(self, value: int) -> int:
        """What stands behind the loop: inputs are held."""
        if value not in self.post:
            operator, args = self.prepared.program[value]
            if operator.kind is OpKind.IN_ITER:
                self._before(value)
                hold = Operator(OpKind.ACCUM, self.loop, AccumKind.HOLD)
                self.post[value] = self._add(hold, (self.body[value],), value, POST)
            else:
                reads = tuple(map(self._behind, args))
                self.post[value] = self._add(operator, reads, value, POST)
        return self.post[value]
