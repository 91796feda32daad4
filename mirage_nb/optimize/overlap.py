"""Which kernels of a muGraph may start while the one in front still runs (programmatic dependent launch).

In: a kernel graph, a target, options. Out: an `Overlap` per operator. Invariant: a kernel that starts early
touches nothing that an earlier launch writes, and writes nothing at all, before it has waited for that launch's
end. Every kernel waits, so what has ended in front of one kernel has ended in front of all later ones. The last one
lets what is launched behind the muGraph start, if that waits by itself; in a chain the first kernel waits for the
launch in front of the muGraph, which may write any of its inputs but settled ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.optimize.options import DEPENDENT_LAUNCH, Options
from mirage_nb.targets import Target

RESERVED = 2048
"""Bytes of shared memory that a block takes besides what it asks for: the system's, and small static arrays."""
ALIGNMENT = 128
"""Shared memory is given out in so many bytes."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """One operator's place in the row of launches.

    behind: it may start while the launch in front runs. ahead: the launch after it may start while it runs.
    trusting: while it reads settled inputs, also what is launched in front of the muGraph may still run. written: its
    operands that an earlier launch writes. again: those that another one reads, too. least_shared: bytes of dynamic
    shared memory that a kernel with shared tensors asks for at least.
    """

    behind: bool = False
    ahead: bool = False
    trusting: bool = False
    written: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()
    least_shared: int = 0

    @property
    def late(self) -> frozenset[int]:
        """The operands that it may read only behind the end of the launch in front."""
        return self.written if self.behind else frozenset()


def overlaps(
    graph: KernelGraph,
    target: Target,
    bulk: Sequence[frozenset[int]],
    options: Options,
    elsewhere: Mapping[int, Sequence[int]],
    left_out: Container[int] = (),
    programs: Container[int] = (),
) -> tuple[Overlap, ...]:
    """Per operator of `graph`; two graph-defined operators in a row overlap, where the target can.

    bulk: per operator, its operands that the copy engine brings; elsewhere: values that are read where others lie, by
    these; left_out: operators that nobody launches; programs: those whose blocks are tile programs.
    """
    uniform = graph.uniform()
    launched = [
        i
        for i, (op, values) in enumerate(graph.definitions())
        if op.kind is not OpKind.RESHAPE and values[0] not in uniform and i not in left_out
    ]
    able = target.capability >= DEPENDENT_LAUNCH
    generated = {i for i in launched if able and graph.ops[i].kind is OpKind.GRAPH}
    pairs = [(a, b) for a, b in pairwise(launched) if {a, b} <= generated and options.early != "none"]
    behind = {b for _, b in pairs} | (generated.intersection(launched[:1]) if options.chained else set())
    made: set[int] = set()
    for op, values in graph.definitions():
        if values[0] in uniform or (values[0] in elsewhere and made.isdisjoint(elsewhere[values[0]])):
            continue
        if op.kind is OpKind.RESHAPE and op.inputs[0] not in made:
            continue
        made.update(values)
    lies = _origins(graph, elsewhere)
    readers = Counter(v for i in launched for v in frozenset().union(*(lies[v] for v in graph.ops[i].inputs)))
    own = [frozenset(k for k, v in enumerate(op.inputs) if v in made) for op in graph.ops]
    # What streams tensors that are still being written has little to do early, and its blocks would pile up where
    # there is room: 41 us became 45 on an H200. Those of tile programs do not, and win or lose; so do those that
    # stream others, too.
    ready = {i for i in behind if i in programs or bulk[i] - own[i]} if options.early == "all" else set()
    starts = {i for i in behind if not own[i] & bulk[i]} | ready
    # Behind the last one may stand a kernel of another muGraph that reads settled inputs; everybody else waits anyway.
    ahead = {a for a, b in pairs if b in starts} | generated.intersection(launched[-1:])
    settled = {v for v, known in enumerate(graph.inputs) if known.settled}
    found = []
    for i, op in enumerate(graph.ops):
        again = frozenset(k for k, v in enumerate(op.inputs) if any(readers[base] > 1 for base in lies[v]))
        late = {k for k, v in enumerate(op.inputs) if not settled.issuperset(lies[v])}
        written = own[i] | late if options.chained else own[i]
        trusting = options.chained and i in launched[:1] and len(written) < len(op.inputs)
        shared_out = i in starts and options.spread
        least = _share(op.body, target) if shared_out and isinstance(op.body, BlockGraph) else 0
        found.append(Overlap(i in starts, i in ahead, trusting, written, again, least))
    return tuple(found)


def _origins(graph: KernelGraph, elsewhere: Mapping[int, Sequence[int]]) -> list[frozenset[int]]:
    """For every value those in whose memory it lies."""
    lies = [frozenset([value]) for value in range(len(graph.types))]
    for op, values in graph.definitions():
        if values[0] in elsewhere:
            lies[values[0]] = frozenset().union(*(lies[base] for base in elsewhere[values[0]]))
        elif op.kind is OpKind.RESHAPE:
            lies[values[0]] = lies[op.inputs[0]]
    return lies


def _share(block: BlockGraph, target: Target) -> int:
    """The fewest bytes with which no multiprocessor takes more than its share of the blocks.

    Blocks that start early go where there is room beside the kernel in front: several to one multiprocessor.
    """
    share = math.ceil(math.prod(block.grid) / target.multiprocessors)
    least = target.shared_per_multiprocessor // (share + 1) - RESERVED + ALIGNMENT
    return min(least // ALIGNMENT * ALIGNMENT, target.shared_per_block - RESERVED) if least > 0 else 0
