"""Which kernels of a muGraph may start while the one in front still runs (programmatic dependent launch).

In: a kernel graph, a target. Out: an `Overlap` per operator. Invariant: a kernel that starts early touches
nothing that an earlier launch writes, and writes nothing at all, before it has waited for that launch's end;
none of it comes by the copy engine, for which this wait is not known to hold. Every kernel waits, so what has
ended in front of one kernel has ended in front of all later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.targets import Target

DEPENDENT_LAUNCH = 90
"""Compute capability from which on a kernel can wait for the one in front by itself."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """One operator's place in the row of launches.

    behind: it may start while the launch in front runs. ahead: the launch after it may start while it runs.
    written: its operands that an earlier launch writes.
    """

    behind: bool = False
    ahead: bool = False
    written: frozenset[int] = frozenset()


def overlaps(graph: KernelGraph, target: Target, bulk: Sequence[frozenset[int]]) -> tuple[Overlap, ...]:
    """Per operator of `graph`; two graph-defined operators in a row overlap, where the target can.

    bulk: per operator, its operands that the copy engine brings.
    """
    uniform = graph.uniform()
    launched = [
        i
        for i, (op, values) in enumerate(graph.definitions())
        if op.kind is not OpKind.RESHAPE and values[0] not in uniform
    ]
    pairs = [
        (a, b)
        for a, b in pairwise(launched)
        if target.capability >= DEPENDENT_LAUNCH and graph.ops[a].kind is graph.ops[b].kind is OpKind.GRAPH
    ]
    ahead, behind = {a for a, _ in pairs}, {b for _, b in pairs}
    made: set[int] = set()
    for op, values in graph.definitions():
        if values[0] in uniform or (op.kind is OpKind.RESHAPE and op.inputs[0] not in made):
            continue
        made.update(values)
    written = [frozenset(k for k, v in enumerate(op.inputs) if v in made) for op in graph.ops]
    return tuple(
        Overlap(i in behind and not own & bulk[i], i in ahead, own) for i, own in enumerate(written)
    )
