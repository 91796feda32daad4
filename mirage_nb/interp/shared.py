"""The field interpreter for many graphs of the same inputs: what two of them compute alike is computed once.

In: some field instances with inputs for each, then graph after graph. Out: their outputs, instance by instance. A
value is a number that stands for one field tensor per instance, made when it is asked for; equal operators on
equal numbers give the equal number. The structures that a search finds share most of what they compute, so the
work for one more of them is one walk, and what is new in it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from mirage_nb.interp.arrays import Move
from mirage_nb.interp.field import FieldAlgebra, FieldInstance, FieldTensor
from mirage_nb.interp.run import run_kernel
from mirage_nb.ir import AccumKind, KernelGraph, OpKind
from mirage_nb.ir.ops import Attrs

MAX_VALUES = 20_000
MAX_BYTES = 2**24
"""Values, and bytes of their tensors in all instances, that are kept; then all are forgotten before the next graph."""

Make = Callable[[FieldAlgebra, list[FieldTensor]], Sequence[FieldTensor]]


@dataclass(frozen=True, slots=True)
class _Step:
    """How the values from number `first` on are made of others."""

    first: int
    operands: tuple[int, ...]
    make: Make


class SharedFields:
    """An algebra of numbers for values that are known; `inputs[n]` are the named inputs of instance n."""

    def __init__(self, instances: Sequence[FieldInstance], inputs: Sequence[dict[str, FieldTensor]]) -> None:
        self._algebras = [FieldAlgebra(instance) for instance in instances]
        self._inputs = inputs
        self._forget()

    def _forget(self) -> None:
        self._known: dict[Hashable, tuple[int, ...]] = {}
        self._steps: list[_Step] = []  # of every value; those of an input are never asked for
        self._values: list[dict[int, FieldTensor]] = [{} for _ in self._algebras]
        self._bytes = 0

    def run(self, graph: KernelGraph) -> Callable[[int], tuple[FieldTensor, ...]]:
        """The outputs of a graph in an instance that is named by its number, to be asked for before the next graph
        is run. Raises as `field.evaluate`, here or then."""
        if len(self._steps) > MAX_VALUES or self._bytes > MAX_BYTES:
            self._forget()
        values = run_kernel(graph, [self._input(i.name) for i in graph.inputs], self)
        shapes = [(values[v], graph.types[v].shape) for v in graph.outputs]
        return lambda n: tuple(
            self._value(n, value).moved(partial(np.broadcast_to, shape=shape)) for value, shape in shapes
        )

    def _value(self, n: int, wanted: int) -> FieldTensor:
        """A value in an instance; what it is made of comes first."""
        known, waiting = self._values[n], [wanted]
        while waiting:
            step = self._steps[waiting[-1]]
            missing = [v for v in step.operands if v not in known]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if step.first not in known:
                made = step.make(self._algebras[n], [known[v] for v in step.operands])
                known.update(enumerate(made, step.first))
                self._bytes += sum(part.nbytes for x in made for part in (x.p, x.q) if part is not None)
        return known[wanted]

    def _input(self, name: str) -> int:
        key = ("input", name)
        if key not in self._known:
            for n, inputs in enumerate(self._inputs):
                self._values[n][len(self._steps)] = inputs[name]
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
