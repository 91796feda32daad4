"""Evaluation for many graphs of the same inputs: what two of them compute alike is computed once.

In: graph after graph, then algebras with inputs. Out: plans, and the values of the graphs. A `Recorder` walks a graph
without values: it notes the steps that make its outputs, and equal operators on equal values are the same step, in all
graphs. So a plan is made once for a graph, whatever it is run on; a run makes the values of those steps that have none
yet. The structures that a search finds share most of what they compute with each other and with their program: the
work for one more of them is what is new in it. `StackAlgebra` is the field interpreter for stacks of tensors.

Threads may share all of it: a step that two of them make at once is made twice, which changes no value.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.arrays import Array, Move
from mirage_nb.interp.field import FieldAlgebra, FieldTensor
from mirage_nb.interp.instance import FieldStack
from mirage_nb.interp.run import Algebra, run_kernel
from mirage_nb.ir import AccumKind, KernelGraph, OpKind
from mirage_nb.ir.ops import Attrs, Shape

MAX_STEPS = 20_000
"""Steps that are known again; then all are forgotten before the next graph."""
MAX_VALUES, MAX_BYTES = 20_000, 2**24
"""Values, and bytes of their elements, that are kept; then all are forgotten before the next plan is run."""

T = TypeVar("T")

Make = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""What an algebra makes of operands."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What makes values of others; steps have numbers above those that make their operands."""

    number: int
    operands: tuple[Recorded, ...]
    make: Make


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One value that a step makes."""

    step: Step
    place: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """How the outputs of a graph are made: its inputs by name, the steps in order, the outputs and their shapes."""

    inputs: tuple[tuple[str, Step], ...]
    steps: tuple[Step, ...]
    outputs: tuple[Recorded, ...]
    shapes: tuple[Shape, ...]


class Recorder:
    """The algebra without values."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Recorded, ...]] = {}
        self._count = itertools.count()

    def plan(self, graph: KernelGraph) -> Plan:
        """How to evaluate a graph. Raises GraphError where its walk does."""
        if len(self._known) > MAX_STEPS:
            self._known = {}
        given = [self._new(("input", i.name), (), 1, _is_given)[0] for i in graph.inputs]
        values = run_kernel(graph, given, self)
        outputs = tuple(values[v] for v in graph.outputs)
        inputs = tuple((i.name, value.step) for i, value in zip(graph.inputs, given, strict=True))
        leaves = {step for _, step in inputs}
        steps, waiting = set(leaves), [value.step for value in outputs]
        while waiting:
            step = waiting.pop()
            if step not in steps:
                steps.add(step)
                waiting += [value.step for value in step.operands]
        ordered = tuple(sorted(steps - leaves, key=lambda step: step.number))
        return Plan(inputs, ordered, outputs, tuple(graph.types[v].shape for v in graph.outputs))

    def apply(self, kind: OpKind, operands: Sequence[Recorded], attrs: Attrs | None, batch: int) -> Recorded:
        key = (kind, attrs, batch, *operands)
        return self._new(key, operands, 1, lambda algebra, xs: (algebra.apply(kind, xs, attrs, batch),))[0]

    def view(self, value: Recorded, move: Move) -> Recorded:
        return self._new((move, value), (value,), 1, lambda algebra, xs: (algebra.view(xs[0], move),))[0]

    def join(self, parts: Sequence[Recorded], dim: int, batch: int) -> Recorded:
        return self._new(("join", dim, batch, *parts), parts, 1, lambda algebra, xs: (algebra.join(xs, dim, batch),))[0]

    def fold(
        self, kind: AccumKind, state: tuple[Recorded, ...], operands: Sequence[Recorded], batch: int
    ) -> tuple[Recorded, ...]:
        held = len(state)
        return self._new(
            (kind, batch, state, *operands),
            (*state, *operands),
            len(operands),
            lambda algebra, xs: algebra.fold(kind, tuple(xs[:held]), xs[held:], batch),
        )

    def _new(self, key: Hashable, operands: Sequence[Recorded], count: int, make: Make) -> tuple[Recorded, ...]:
        """The results of a step, a new one if it is new."""
        found = self._known.get(key)
        if found is None:
            step = Step(next(self._count), tuple(operands), make)
            found = self._known.setdefault(key, tuple(Recorded(step, place) for place in range(count)))
        return found


def _is_given(algebra: Any, operands: Sequence[Any]) -> Sequence[Any]:
    raise AssertionError("an input is given, not made")


class Values(Generic[T]):
    """The values of steps in one algebra, on named inputs."""

    def __init__(self, algebra: Algebra[T], inputs: Mapping[str, T]) -> None:
        self._algebra = algebra
        self._inputs = inputs
        self._forget()

    def _forget(self) -> None:
        self._made: dict[Step, Sequence[T]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._made)

    def run(self, plan: Plan) -> list[T]:
        """The outputs of a planned graph, which may be smaller than their shapes say, as constants are.

        Raises GraphError where an evaluation does.
        """
        if len(self._made) > MAX_VALUES or self._bytes > MAX_BYTES:
            self._forget()
        made = self._made
        for name, step in plan.inputs:
            made[step] = (self._inputs[name],)
        for step in plan.steps:
            if step not in made:
                found = step.make(self._algebra, [made[value.step][value.place] for value in step.operands])
                made[step] = found
                self._bytes += sum(map(_bytes, found))
        return [made[value.step][value.place] for value in plan.outputs]


def _bytes(value: Any) -> int:
    if isinstance(value, FieldTensor):
        return (0 if value.p is None else value.p.nbytes) + (0 if value.q is None else value.q.nbytes)
    return int(value.nbytes)


@dataclass(frozen=True, slots=True)
class StackAlgebra:
    """The algebra of one instance for all instances of a stack: their dimension is before all others."""

    of_stack: FieldAlgebra

    def apply(self, kind: OpKind, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
        return self.of_stack.apply(kind, operands, attrs, batch + 1)

    def view(self, value: FieldTensor, move: Move) -> FieldTensor:
        return _moved(value, move)

    def join(self, parts: Sequence[FieldTensor], dim: int, batch: int) -> FieldTensor:
        return self.of_stack.join(parts, dim, batch + 1)

    def fold(
        self, kind: AccumKind, state: tuple[FieldTensor, ...], operands: Sequence[FieldTensor], batch: int
    ) -> tuple[FieldTensor, ...]:
        return self.of_stack.fold(kind, state, operands, batch + 1)


class SharedFields:
    """The field values of planned graphs in all instances of a stack; `inputs` are those of all instances."""

    def __init__(self, instances: FieldStack, inputs: Mapping[str, FieldTensor]) -> None:
        self._count = len(instances.instances)
        self._values = Values(StackAlgebra(FieldAlgebra(instances)), inputs)

    def __len__(self) -> int:
        return len(self._values)

    def run(self, plan: Plan) -> tuple[FieldTensor, ...]:
        """The outputs of a graph in all instances: tensors whose first dimension counts the instances.

        Raises GraphError as `field.evaluate`.
        """
        shapes = [(self._count, *shape) for shape in plan.shapes]
        return tuple(_broadcast(x, shape) for x, shape in zip(self._values.run(plan), shapes, strict=True))


def _broadcast(x: FieldTensor, shape: Shape) -> FieldTensor:
    return x if x.shape == shape else x.moved(functools.partial(np.broadcast_to, shape=shape))


def _moved(x: FieldTensor, move: Move) -> FieldTensor:
    """The elements of every instance moved, by their places: what a move does to them it does to their numbers."""
    places, pads = _places(move, x.shape[1:])

    def taken(part: Array) -> Array:
        rows = part.reshape(len(part), -1)
        if pads:
            rows = np.concatenate([np.zeros((len(rows), 1), rows.dtype), rows], axis=1)
        return rows.take(places, axis=1)

    # The zeros beyond the end are maxima of nothing that was reduced: what they meet is a new element.
    return FieldTensor(
        None if x.p is None else taken(x.p),
        None if x.q is None else taken(x.q),
        None if x.undefined is None else taken(np.broadcast_to(x.undefined, x.shape)),
        None if x.sets is None or pads else taken(x.sets),
    )


@functools.lru_cache(maxsize=4096)
def _places(move: Move, shape: Shape) -> tuple[NDArray[np.intp], bool]:
    """For every element after a move its number before it, in order; counted from 1 if there are others, which are
    0, beyond the end."""
    numbers = move(np.arange(1, 1 + functools.reduce(int.__mul__, shape, 1)).reshape(shape))
    pads = bool((numbers == 0).any())
    return (numbers if pads else numbers - 1), pads
