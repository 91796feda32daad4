"""The shapes that a region's program computes in: those in which people write it in a cell.

In: the program of a piece of a graph. Out: the same computation on inputs and outputs of other shapes, each with its
elements in the same order. A model adds and drops axes of extent 1 and joins heads as its layers take them; kernels
pass over such a view only where they reload what it shows. Invariant: equal regions are one program, wherever views
stand in them.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_nb.ir import Input, KernelGraph, Op, OpKind, TransposeAttrs
from mirage_nb.ir.ops import OPS, Shape, Trait
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.search.wordings.coalesced import coalesced


def keeps_order(op: Op, shape: Shape) -> bool:
    """Whether an operator shows a tensor of a shape in another one, with its elements in the same order."""
    if op.kind is OpKind.TRANSPOSE:
        assert isinstance(op.attrs, TransposeAttrs)
        moved = [dim for dim in op.attrs.perm if shape[dim] > 1]
        return moved == sorted(moved)
    return op.kind is OpKind.RESHAPE


def as_computed(graph: KernelGraph) -> KernelGraph:
    """The program in as few dimensions as say it, with its inputs in the shape in which they are read."""
    return _as_read(coalesced(graph))


def as_priced(graph: KernelGraph) -> KernelGraph:
    """A piece of a program for estimates: as it is computed, where what a kernel finds is read. What depends on no
    input, as a mask of places, is the same in every call; what pads an input is looked at where that lies."""
    graph = as_computed(graph)
    found: set[int] = set()  # and constants, which are no tensors
    lying = {*range(graph.input_count)}
    for op, (value, *_) in graph.definitions():
        if found.issuperset(op.inputs) or (op.kind is OpKind.PAD and lying.issuperset(op.inputs)):
            found.add(value)
        elif Trait.VIEW in OPS[op.kind].traits and lying.issuperset(op.inputs):
            lying.add(value)
    constants = {value for op, (value, *_) in graph.definitions() if op.kind is OpKind.CONST}
    read = {v for op, (value, *_) in graph.definitions() if value not in found for v in op.inputs}
    held = sorted((found - constants) & read)
    if not held or not found.isdisjoint(graph.outputs):
        return graph
    inputs = (*graph.inputs, *(Input(f"held{n}", graph.types[value]) for n, value in enumerate(held)))
    places = {value: value for value in range(graph.input_count)}
    made = Rewrite(KernelGraph.start(*inputs), places | {v: graph.input_count + n for n, v in enumerate(held)})
    for op, values in graph.definitions():
        if values[0] not in found or values[0] in constants:
            made.copy(op, values)
    return made.returning(graph)


def _as_read(graph: KernelGraph) -> KernelGraph:
    """The program with its inputs in the shape in which they are read: heads that a view joins are one dimension, which
    a kernel cuts as it likes."""
    shown = {value: value for value in range(graph.input_count)}  # the input that a value is, its elements in order
    read: dict[int, set[Shape]] = {}
    for op, (value, *_) in graph.definitions():
        first = op.inputs[0] if op.inputs else value
        if first in shown and keeps_order(op, graph.types[first].shape) and value not in graph.outputs:
            shown[value] = shown[first]
            continue
        for operand in op.inputs:
            if operand in shown:
                read.setdefault(shown[operand], set()).add(graph.types[operand].shape)
    alike = {value: shape for value, (shape, *others) in read.items() if not others}
    inputs = (replace(i, type=replace(i.type, shape=alike.get(v, i.type.shape))) for v, i in enumerate(graph.inputs))
    made = Rewrite(KernelGraph.start(*inputs))
    for op, (value, *_) in graph.definitions():
        if (own := shown.get(value, value)) in alike:
            made.held[value] = own
        else:
            made.copy(op, (value,))
    return made.graph.returning(made.places(graph.outputs))
