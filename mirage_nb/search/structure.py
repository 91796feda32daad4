"""Structures: muGraphs over axes, with sizes still symbolic. Plain picklable data.

A kernel structure is a list of steps in definition order; a step is an operator on earlier steps with the
type of its result. Kernels read tensors of the program or results of earlier kernels (paper section 2).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from mirage_nb.ir import OpKind
from mirage_nb.search.axes import Prepared
from mirage_nb.search.saturation.values import POST, Operator, Type


@dataclass(frozen=True, slots=True)
class Source:
    """What an input iterator reads: tensor `index` of the program, or output `index` of kernel `kernel`."""

    index: int
    kernel: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of a block graph. `source` is set for input iterators only. threads: a product that stands in a
    thread graph, as rules put it there (`tile.thread_graph`)."""

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
