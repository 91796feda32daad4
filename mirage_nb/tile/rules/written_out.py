"""A block graph with the chains of its thread graphs written out: one operator a node.

In: a block graph. Out: its nodes in order, and the node of every value. Invariant: a node reads earlier nodes only.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir import Attrs, BlockGraph, OpKind, OutSaverAttrs
from mirage_nb.ir.ops import Shape
from mirage_nb.tile.rules.thread_graph import flat


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
    made, _ = flat(block)
    every = list(zip(made.definitions(), made.stages(), strict=True))
    nodes = [
        Node(op.kind, op.attrs, op.inputs, made.types[value].shape, stage == 1)
        for (op, values), stage in every
        for value in values
    ]
    uses: list[list[int]] = [[] for _ in nodes]
    for reader, node in enumerate(nodes):
        for operand in node.inputs:
            uses[operand].append(reader)
    saved = tuple((op.inputs[0], op.attrs) for (op, _), _ in every if isinstance(op.attrs, OutSaverAttrs))
    return WrittenOut(tuple(nodes), saved, tuple(map(tuple, uses)))
