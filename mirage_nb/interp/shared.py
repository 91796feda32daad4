"""The field interpreter for many graphs of the same inputs: what two of them compute alike is computed once.

In: some field instances with inputs for each, then graph after graph. Out: their outputs, of all instances side by
side. A value is a number that stands for a stack of field tensors, one per instance, made when an output needs it;
equal operators on equal numbers give the equal number. The structures that a search finds share most of what they
compute, so the work for one more of them is one walk, and what is new in it. `StackAlgebra` is the field interpreter
for stacks of tensors, for one graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.arrays import Array, Move
from mirage_nb.interp.field import FieldAlgebra, FieldTensor
from mirage_nb.interp.instance import FieldStack
from mirage_nb.interp.run import run_kernel
from mirage_nb.ir import AccumKind, KernelGraph, OpKind
from mirage_nb.ir.ops import Attrs, Shape

MAX_VALUES = 20_000
MAX_BYTES = 2**24
"""Values, and bytes of their tensors in all instances, that are kept; then all are forgotten before the next graph."""


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


Make = Callable[[StackAlgebra, list[FieldTensor]], Sequence[FieldTensor]]
"""What makes values of others."""


@dataclass(frozen=True, slots=True)
class _Step:
    """How the values from number `first` on are made of others."""

    first: int
    operands: tuple[int, ...]
    make: Make


class SharedFields:
    """An algebra of numbers for values that are known; `inputs` are the named inputs of all instances."""

    def __init__(self, instances: FieldStack, inputs: Mapping[str, FieldTensor]) -> None:
        self._algebra = StackAlgebra(FieldAlgebra(instances))
        self._count = len(instances.instances)
        self._inputs = inputs
        self._forget()

    def _forget(self) -> None:
        self._known: dict[Hashable, tuple[int, ...]] = {}
        self._steps: list[_Step] = []  # of every value; those of an input are never asked for
        self._values: dict[int, FieldTensor] = {}
        self._bytes = 0

    def run(self, graph: KernelGraph) -> tuple[FieldTensor, ...]:
        """The outputs of a graph in all instances: tensors whose first dimension counts the instances.

        Raises as `field.evaluate`.
        """
        if len(self._steps) > MAX_VALUES or self._bytes > MAX_BYTES:
            self._forget()
        values = run_kernel(graph, [self._input(i.name) for i in graph.inputs], self)
        shapes = [(values[v], (self._count, *graph.types[v].shape)) for v in graph.outputs]
        return tuple(_broadcast(self._value(value), shape) for value, shape in shapes)

    def _value(self, wanted: int) -> FieldTensor:
        """A value; what it is made of comes first."""
        known, waiting = self._values, [wanted]
        while waiting:
            step = self._steps[waiting[-1]]
            missing = [v for v in step.operands if v not in known]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if step.first not in known:
                made = step.make(self._algebra, [known[v] for v in step.operands])
                known.update(enumerate(made, step.first))
                self._bytes += sum(part.nbytes for x in made for part in (x.p, x.q) if part is not None)
        return known[wanted]

    def _input(self, name: str) -> int:
        key = ("input", name)
        if key not in self._known:
            self._values[len(self._steps)] = self._inputs[name]
        return self._new(key, (), 1, lambda algebra, operands: ())[0]

    def apply(self, kind: OpKind, operands: Sequence[int], attrs: Attrs | None, batch: int) -> int:
        key = (kind, attrs, batch, *operands)
        return self._new(key, operands, 1, lambda algebra, xs: (algebra.apply(kind, xs, attrs, batch),))[0]

    def view(self, value: int, move: Move) -> int:
        return self._new((move, value), (value,), 1, lambda algebra, xs: (algebra.view(xs[0], move),))[0]

    def join(self, parts: Sequence[int], dim: int, batch: int) -> int:
        return self._new(("join", dim, batch, *parts), parts, 1, lambda algebra, xs: (algebra.join(xs, dim, batch),))[0]

    def fold(self, kind: AccumKind, state: tuple[int, ...], operands: Sequence[int], batch: int) -> tuple[int, ...]:
        held = len(state)
        return self._new(
            (kind, batch, state, *operands),
            (*state, *operands),
            len(operands),
            lambda algebra, xs: algebra.fold(kind, tuple(xs[:held]), xs[held:], batch),
        )

    def _new(self, key: Hashable, operands: Sequence[int], count: int, make: Make) -> tuple[int, ...]:
        """The numbers of a step's results, new ones if it is new."""
        found = self._known.get(key)
        if found is None:
            first = len(self._steps)
            self._steps += [_Step(first, tuple(operands), make)] * count
            found = self._known[key] = tuple(range(first, first + count))
        return found


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

    p, q, undefined = (
        None if part is None else taken(np.broadcast_to(part, x.shape)) for part in (x.p, x.q, x.undefined)
    )
    # The zeros beyond the end are maxima of nothing that was reduced: what they meet is a new element.
    return FieldTensor(p, q, undefined, None if x.sets is None or pads else taken(x.sets))


@functools.lru_cache(maxsize=4096)
def _places(move: Move, shape: Shape) -> tuple[NDArray[np.intp], bool]:
    """For every element after a move its number before it, in order; counted from 1 if there are others, which are
    0, beyond the end."""
    numbers = move(np.arange(1, 1 + functools.reduce(int.__mul__, shape, 1)).reshape(shape))
    pads = bool((numbers == 0).any())
    return (numbers if pads else numbers - 1), pads
