"""The field interpreter for many graphs of the same inputs: what two of them compute alike is computed once.

In: some field instances with inputs for each, then graph after graph. Out: their outputs in every instance. A
value is a number that stands for one field tensor per instance; equal operators on equal numbers give the equal
number. The structures that a search finds share most of what they compute, so the work for one more of them is
that for what is new in it, and one walk for all instances.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import numpy as np

from mirage_nb.interp.arrays import Move
from mirage_nb.interp.field import FieldAlgebra, FieldInstance, FieldTensor
from mirage_nb.interp.run import run_kernel
from mirage_nb.ir import AccumKind, KernelGraph, OpKind
from mirage_nb.ir.ops import Attrs

MAX_VALUES = 20_000
"""Tensors per instance that are kept; then all but the inputs are forgotten."""

Tensors = tuple[FieldTensor, ...]


class SharedFields:
    """An algebra of numbers for values that are known; `inputs[i]` are the named inputs of instance i."""

    def __init__(self, instances: Sequence[FieldInstance], inputs: Sequence[dict[str, FieldTensor]]) -> None:
        self._algebras = [FieldAlgebra(instance) for instance in instances]
        self._inputs = inputs
        self._values: list[Tensors] = []
        self._known: dict[Hashable, tuple[int, ...]] = {}

    def evaluate(self, graph: KernelGraph) -> list[Tensors]:
        """The outputs of a graph in every instance, in the order of its outputs. Raises as `field.evaluate`."""
        if len(self._values) > MAX_VALUES:
            self._values, self._known = [], {}
        given = [self._input(i.name) for i in graph.inputs]
        values = run_kernel(graph, given, self)
        return [
            tuple(x.moved(partial(np.broadcast_to, shape=graph.types[v].shape)) for x in self._values[values[v]])
            for v in graph.outputs
        ]

    def _input(self, name: str) -> int:
        return self._one(("input", name), lambda n: self._inputs[n][name])

    def apply(self, kind: OpKind, operands: Sequence[int], attrs: Attrs | None, batch: int) -> int:
        return self._one(
            (kind, attrs, batch, *operands),
            lambda n: self._algebras[n].apply(kind, [self._values[v][n] for v in operands], attrs, batch),
        )

    def view(self, value: int, move: Move) -> int:
        return self._one((move, value), lambda n: self._algebras[n].view(self._values[value][n], move))

    def join(self, parts: Sequence[int], dim: int, batch: int) -> int:
        return self._one(
            ("join", dim, batch, *parts),
            lambda n: self._algebras[n].join([self._values[v][n] for v in parts], dim, batch),
        )

    def fold(self, kind: AccumKind, state: tuple[int, ...], operands: Sequence[int], batch: int) -> tuple[int, ...]:
        return self._several(
            (kind, batch, state, *operands),
            lambda n: self._algebras[n].fold(
                kind, tuple(self._values[v][n] for v in state), [self._values[v][n] for v in operands], batch
            ),
        )

    def _one(self, key: Hashable, make: Callable[[int], FieldTensor]) -> int:
        return self._several(key, lambda n: (make(n),))[0]

    def _several(self, key: Hashable, make: Callable[[int], Sequence[FieldTensor]]) -> tuple[int, ...]:
        found = self._known.get(key)
        if found is None:
            made = [make(n) for n in range(len(self._algebras))]
            first = len(self._values)
            self._values.extend(zip(*made, strict=True))
            found = self._known[key] = tuple(range(first, len(self._values)))
        return found
