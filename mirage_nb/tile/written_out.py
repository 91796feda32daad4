"""A block graph with the chains of its thread graphs written out: one operator a node.

In: a block graph. Out: its nodes in order, and the node of every value. Invariant: a node reads earlier nodes only.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir import Attrs, BlockGraph, OpKind, OutSaverAttrs, ThreadGraph
from mirage_nb.ir.ops import Shape


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: the nodes that it reads, the shape of its result. late: it stands after the accumulators, or is
    one of them."""

    kind: OpKind
    attrs: Attrs | None
    inputs: tuple[int, ...]
    shape: Shape
    late: bool


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """nodes: in order. saved: for every output its node and how it is saved. uses: of every node, who reads it."""

    nodes: tuple[Node, ...]
    saved: tuple[tuple[int, OutSaverAttrs], ...]
    uses: tuple[tuple[int, ...], ...]


def write_out(block: BlockGraph) -> WrittenOut:
    """The nodes of a block graph."""
    nodes: list[Node] = []
    of: dict[int, int] = {}
    saved = []
    stages = block.stages()
    for index, (op, values) in enumerate(block.definitions()):
        late = stages[index] == 1
        inputs = tuple(of[v] for v in op.inputs)
        if isinstance(op.attrs, OutSaverAttrs):
            saved.append((inputs[0], op.attrs))
        elif isinstance(op.body, ThreadGraph):
            inner = dict(enumerate(inputs))
            for thread_op, made in op.body.definitions():
                read = tuple(inner[v] for v in thread_op.inputs)
                inner[made[0]] = len(nodes)
                nodes.append(Node(thread_op.kind, thread_op.attrs, read, op.body.types[made[0]].shape, late))
            of |= {value: inner[made] for value, made in zip(values, op.body.outputs, strict=True)}
        else:
            of[values[0]] = len(nodes)
            nodes.append(Node(op.kind, op.attrs, inputs, block.types[values[0]].shape, late))
    uses: list[list[int]] = [[] for _ in nodes]
    for reader, node in enumerate(nodes):
        for operand in node.inputs:
            uses[operand].append(reader)
    return WrittenOut(tuple(nodes), tuple(saved), tuple(tuple(readers) for readers in uses))
