"""What pre-defined operators take: kernels of a library, one launch after the other.

In: an operator of a kernel graph, a target. Out: microseconds. A product is one launch at the rate that libraries
reach; everything else is one that moves its operands and its result through device memory (`runtime.kernel.library`).
Numbers of places, parts of tensors and what is looked up, where only generated kernels read it, take nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mirage_nb.ir import KernelGraph, Op, OpKind
from mirage_nb.ir.places import counted
from mirage_nb.ir.windows import windows
from mirage_nb.predefined import matches, needed
from mirage_nb.predefined.rows import PLAIN_SHARE, PRODUCT_PASSES, product_us, unaligned
from mirage_nb.search.sizes.cost import Cost
from mirage_nb.search.sizes.looked import looked_up_by_kernels
from mirage_nb.targets import Target

LIBRARY_SHARE = 0.8
"""Of the tensor rate, what a pre-defined matmul reaches."""
PRODUCTS = frozenset({OpKind.MATMUL, OpKind.CONCAT_MATMUL})


@dataclass(frozen=True, slots=True)
class LibraryStep:
    """One kernel of a library: what it is called, microseconds, the values that it reads and writes."""

    name: str
    us: float
    values: tuple[int, ...]

    def cost(self, graph: KernelGraph) -> Cost:
        """What it takes, in a graph."""
        return Cost(self.us, sum(graph.types[v].nbytes for v in self.values), 0.0, 0.0, 1, 1)


def library_steps(graph: KernelGraph, target: Target) -> Iterator[LibraryStep]:
    """The kernels of a library that compute a graph of pre-defined operators, and those beside graph-defined ones."""
    chosen = matches(graph)
    nowhere = counted(graph) | windows(graph).keys() | looked_up_by_kernels(graph, chosen).keys()
    computed, whole = needed(graph, chosen) - nowhere, {m.output: m for m in chosen if m.output not in nowhere}
    for op, values in graph.definitions():
        if (match := whole.get(values[0])) is not None:
            yield LibraryStep(match.row, match.us(graph, target), (*match.inputs, match.output))
        elif values[0] in computed and op.body is None and (us := library_us(graph, op, target)):
            yield LibraryStep(op.kind.value, us, (*op.inputs, *values))


def library_us(graph: KernelGraph, op: Op, target: Target) -> float:
    """Microseconds of one pre-defined operator of a graph; none for what only renames elements or is a constant."""
    if op.kind in (OpKind.RESHAPE, OpKind.CONST):
        return 0.0
    (result,) = graph.results(op)
    operands = [graph.types[v] for v in op.inputs]
    moved = (sum(t.nbytes for t in operands) + result.nbytes) / (target.device_bandwidth * 1e3)
    launch = target.start_us + target.launch_us
    if op.kind not in PRODUCTS:
        return launch + moved
    share = PLAIN_SHARE.get(result.dtype)
    rate = 1e6 * (target.tensor_rate * LIBRARY_SHARE if share is None else target.vector_rate * share)
    depth = sum(t.shape[-1] for t in operands[: len(operands) // 2])
    *lead, rows, columns = result.shape
    longest = product_us((rows, columns), depth, math.prod(lead), rate / LIBRARY_SHARE, target)
    busy = unaligned(result.dtype, depth, columns) * 2.0 * result.elements * depth / rate
    return launch + max(busy, moved * PRODUCT_PASSES, longest)
