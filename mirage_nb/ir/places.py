"""Numbers of places: values whose elements are 0, 1, ... in their order, which kernels know without reading them.

In: a kernel graph. Out: those values, and those of them that nobody has to store.
"""

from __future__ import annotations

from mirage_nb.ir.graph import KernelGraph
from mirage_nb.ir.ops import OpKind


def numbered(graph: KernelGraph) -> frozenset[int]:
    """The values whose elements are 0, 1, ... in row-major order."""
    found = {value for value, given in enumerate(graph.inputs) if given.places}
    for op, values in graph.definitions():
        if op.kind is OpKind.ARANGE or (op.kind is OpKind.RESHAPE and op.inputs[0] in found):
            found.add(values[0])
    return frozenset(found)


def counted(graph: KernelGraph) -> frozenset[int]:
    """Those that only graph-defined operators read: their kernels take the index of an element for what it is."""
    found = numbered(graph) - set(graph.outputs)
    for op, values in reversed([*graph.definitions()]):
        if op.body is None and not found.issuperset(values):
            found = found.difference(op.inputs)
    return found
