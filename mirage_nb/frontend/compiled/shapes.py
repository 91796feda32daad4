"""The shapes that a region's program computes in: those in which people write it in a cell.

In: the program of a piece of a graph. Out: the same computation on inputs and outputs of other shapes, each with its
elements in the same order. A model adds and drops axes of extent 1 and joins heads as its layers take them; kernels
pass over such a view only where they reload what it shows. Invariant: equal regions are one program, wherever views
stand in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirage_nb.ir import DimAttrs, Input, KernelGraph, Op, OpKind, ReshapeAttrs, TransposeAttrs
from mirage_nb.ir.ops import OPS, Shape, Trait
from mirage_nb.ir.rewrite import Rewrite

Axis = tuple[int, int]
"""A value, and one of its dimensions."""


def keeps_order(op: Op, shape: Shape) -> bool:
    """Whether an operator shows a tensor of a shape in another one, with its elements in the same order."""
    if op.kind is OpKind.TRANSPOSE:
        assert isinstance(op.attrs, TransposeAttrs)
        moved = [dim for dim in op.attrs.perm if shape[dim] > 1]
        return moved == sorted(moved)
    return op.kind is OpKind.RESHAPE


def as_computed(graph: KernelGraph) -> KernelGraph:
    """The program with its inputs in the shape in which they are read, and without axes of extent 1 that only views
    and operators of single elements or other axes know."""
    return _as_read(_slim(graph))


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


def _slim(graph: KernelGraph) -> KernelGraph:
    """Without those axes."""
    kept = _kept(graph)
    shapes = [tuple(e for d, e in enumerate(t.shape) if (v, d) in kept) for v, t in enumerate(graph.types)]
    inputs = (replace(i, type=replace(i.type, shape=shapes[v])) for v, i in enumerate(graph.inputs))
    made = Rewrite(KernelGraph.start(*inputs))
    for op, (value, *_) in graph.definitions():
        first = op.inputs[0] if op.inputs else value
        if op.kind is OpKind.RESHAPE and shapes[value] == shapes[first]:
            made.held[value] = made.held[first]
            continue
        attrs = op.attrs
        if op.kind is OpKind.RESHAPE:
            attrs = ReshapeAttrs(shapes[value])
        elif isinstance(attrs, DimAttrs):
            attrs = DimAttrs(sum((first, d) in kept for d in range(attrs.dim)))
        made.copy(replace(op, attrs=attrs), (value,))
    return made.graph.returning(made.places(graph.outputs))


def _kept(graph: KernelGraph) -> set[Axis]:
    """The axes that stay: those that an operator needs, and those that are one with them."""
    beside: dict[Axis, list[Axis]] = {(v, d): [] for v, t in enumerate(graph.types) for d in range(len(t.shape))}
    needed = [(v, d) for v, d in beside if graph.types[v].shape[d] > 1 or d + 1 == len(graph.types[v].shape)]
    for op, (value, *_) in graph.definitions():
        traits = OPS[op.kind].traits
        if isinstance(op.attrs, DimAttrs):
            needed.append((value, op.attrs.dim))
        if not traits & {Trait.ELEMENTWISE, Trait.REDUCTION} and op.kind is not OpKind.RESHAPE:
            needed += [axis for axis in beside if axis[0] in (value, *op.inputs)]
        for source in op.inputs:
            for one, other in _alike(graph, op, source, value):
                beside[one].append(other)
                beside[other].append(one)
    kept = set(needed)
    while needed:
        fresh = [axis for axis in beside[needed.pop()] if axis not in kept]
        kept.update(fresh)
        needed += fresh
    return kept


def _alike(graph: KernelGraph, op: Op, source: int, value: int) -> Iterator[tuple[Axis, Axis]]:
    """Pairs of axes of an operand and of the result that go or stay together: counted from the last; of views, those
    of extent 1 in front of the same longer axis."""
    shape, wanted = graph.types[source].shape, graph.types[value].shape
    one, other = len(shape) - 1, len(wanted) - 1
    while one >= 0 and other >= 0:
        if op.kind is OpKind.RESHAPE and (shape[one] == 1) != (wanted[other] == 1):
            one, other = one - (shape[one] == 1), other - (wanted[other] == 1)
            continue
        yield (source, one), (value, other)
        one, other = one - 1, other - 1


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
