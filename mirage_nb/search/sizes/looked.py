"""What the generated kernels of a muGraph look up themselves.

In: a muGraph, what a library computes of it. Out: for values, where their elements stand; what is launched. Invariant:
kernels that hold their tiles in registers look up, as planners have it (`tile.rules.held`).
"""

from __future__ import annotations

from collections.abc import Collection

from mirage_nb.ir import BlockGraph, KernelGraph, Op, OpKind
from mirage_nb.ir.lookups import Lookup
from mirage_nb.ir.places import counted, numbered
from mirage_nb.ir.windows import windows
from mirage_nb.predefined import LOOKUP, Match, matches, needed
from mirage_nb.predefined.lookups import lookups
from mirage_nb.tile.rules.held import held
from mirage_nb.tile.rules.sketch import sketch_of


def looked_up_by_kernels(graph: KernelGraph, library: Collection[Match]) -> dict[int, Lookup]:
    """The values that are looked up where they are read."""
    literals, places = graph.uniform(), numbered(graph)

    def able(op: Op) -> bool:
        if not isinstance(op.body, BlockGraph):
            return False
        numbers, counted = ([arg for arg, v in enumerate(op.inputs) if v in known] for known in (literals, places))
        return held(op.body, sketch_of(op.body, numbers, counted)) is not None

    return lookups(graph, library, able)


def launched(graph: KernelGraph) -> int:
    """Number of kernels launched: of the operators that compute, those whose values are needed, and not read where
    others lie, looked up or counted."""
    found = matches(graph, [LOOKUP])
    nowhere = graph.uniform().keys() | windows(graph).keys() | counted(graph)
    nowhere |= looked_up_by_kernels(graph, found).keys()
    computed = needed(graph, found) - nowhere
    return sum(op.kind is not OpKind.RESHAPE and values[0] in computed for op, values in graph.definitions())
