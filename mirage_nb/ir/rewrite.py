"""Graphs that are written from others, one operator after the other.

In: a graph to begin with, operators of another one. Out: a new graph. Invariant: `held` says where the new graph has
what the other one's operators read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Generic, TypeVar

from mirage_nb.ir.graph import BlockGraph, Input, KernelGraph, Op, ThreadGraph

G = TypeVar("G", KernelGraph, BlockGraph, ThreadGraph)


class Rewrite(Generic[G]):
    """A graph that is being written. held: by values of the graph that is read, values here; default: inputs."""

    def __init__(self, graph: G, held: Mapping[int, int] | None = None) -> None:
        self.graph: G = graph
        self.held = {value: value for value in range(graph.input_count)} if held is None else dict(held)

    def add(self, op: Op) -> int:
        """Append an operator on values that are here; the first value that it makes. Raises as `append`."""
        first = len(self.graph.types)
        self.graph = self.graph.append(op)
        return first

    def copy(self, op: Op, values: Iterable[int]) -> int:
        """Append an operator of the graph that is read, where it makes these values; the first one here."""
        first = self.add(Op(op.kind, self.places(op.inputs), op.attrs, op.body))
        self.held.update(zip(values, count(first)))
        return first

    def places(self, values: Iterable[int]) -> tuple[int, ...]:
        """Where values of the graph that is read are here."""
        return tuple(self.held[value] for value in values)

    def returning(self: Rewrite[KernelGraph], graph: KernelGraph) -> KernelGraph:
        """What was written, with the outputs of the graph that is read."""
        return self.graph.returning(self.places(graph.outputs), graph.output_names)


def alone(graph: KernelGraph, op: Op) -> KernelGraph:
    """An operator of a graph as a program of its own, whose inputs are its operands."""
    inputs = [Input(f"x{n}", graph.types[value]) for n, value in enumerate(op.inputs)]
    made = KernelGraph.start(*inputs).append(replace(op, inputs=tuple(range(len(inputs)))))
    return made.returning((len(inputs),))


def saying(
    program: KernelGraph, otherwise: Collection[int], say: Callable[[Rewrite[KernelGraph], int, Op], int]
) -> KernelGraph:
    """A program in which these values are made otherwise: `say` appends what makes one, and returns where it is; the
    program itself where there are none."""
    if not otherwise:
        return program
    made = Rewrite(KernelGraph.start(*program.inputs))
    for op, (value, *_) in program.definitions():
        if value in otherwise:
            made.held[value] = say(made, value, op)
        else:
            made.copy(op, (value,))
    return made.returning(program)


def over_blocks(graph: KernelGraph, said: Callable[[BlockGraph], BlockGraph]) -> KernelGraph:
    """A muGraph whose block graphs are said otherwise."""
    ops = (replace(op, body=said(op.body)) if isinstance(op.body, BlockGraph) else op for op in graph.ops)
    return replace(graph, ops=tuple(ops))
