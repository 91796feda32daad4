"""What a trial of a graph takes, before anything of it is computed.

In: a legal kernel graph. Out: nothing, or a VerificationError. Interpreters take one iteration of a for-loop after the
other, and all blocks of a grid side by side, so a few lines of text can ask for more steps, or for more memory, than
there are. Counting takes time in proportion to the text.

Memory. Inputs below `UNDRAWN` elements are held whole, at 4 bytes for each element and field part (8 for small ones);
of larger ones, products draw the blocks that they multiply. Other tensors in device memory take 8 bytes for each
element and part from where they are made to where they are read last. What takes more than the machine has is refused
before anything is drawn.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mirage_nb.errors import VerificationError
from mirage_nb.interp.instance import LARGE_TENSOR, UNDRAWN
from mirage_nb.ir import AccumAttrs, AccumKind, BlockGraph, InIterAttrs, KernelGraph, OpKind
from mirage_nb.ir.graph import Graph, Op

TOO_LARGE = "the field values of these graphs do not fit into memory"
SMALLER = "verify them with smaller extents, and prove them for all sizes"
MAX_STEPS = 200_000
"""Operators applied one after the other in one trial, iterations counted: some 10 us each, at least."""
LITTLE, LITTLE_STEPS = 2**16, 2**12
"""Elements and steps up to which nothing is counted closely: were every one a sum over all others, it would not be more
than `MAX_ELEMENTS`."""
AT_ONCE = 3
"""How often the values of a graph are there at once at most: those of the other graph, and what an operator takes on
its way."""
MAX_ELEMENTS = 2**34
"""Elements computed in one trial: some 10 ns each."""
PRODUCTS = 32
"""Multiplications of a product that take as long as one element of anything else."""


@dataclass(frozen=True, slots=True)
class Work:
    """One evaluation of a graph: operators applied, elements computed, and bytes of the largest tensor that all blocks
    have side by side; `held_bytes` has tensors in device memory."""

    steps: int
    elements: int
    largest: int


def work(graph: KernelGraph) -> Work:
    """What evaluating a graph once takes."""
    parts: list[Work] = []
    for op, values in graph.definitions():
        if isinstance(op.body, BlockGraph):
            parts += _in_block(op.body)
        else:
            parts.append(replace(_one(graph, op, values, 1), largest=0))
    return Work(sum(p.steps for p in parts), sum(p.elements for p in parts), max((p.largest for p in parts), default=0))


def _in_block(block: BlockGraph) -> Iterator[Work]:
    """Operators of the loop body and accumulators are applied in every iteration, the others once. What all blocks
    along a grid dimension have alike is computed once."""
    varies: dict[int, frozenset[int]] = {}
    for (op, values), stage in zip(block.definitions(), block.stages(), strict=True):
        spread = frozenset[int]().union(*(varies[v] for v in op.inputs))
        if isinstance(op.attrs, InIterAttrs):
            spread = frozenset(number for number, dim in enumerate(op.attrs.imap) if dim is not None)
        varies |= dict.fromkeys(values, spread)
        found = _one(block, op, values, math.prod(block.grid[number] for number in spread))
        times = block.loop if stage == 0 or op.kind is OpKind.ACCUM else 1
        computed = 1 if _is_kept(op) else times
        yield Work(times * found.steps, computed * found.elements, found.largest)
        if op.kind is OpKind.OUT_SAVER:  # all blocks have one, whatever they have alike
            yield Work(0, 0, 8 * math.prod(block.grid) * block.types[op.inputs[0]].elements)


def _is_kept(op: Op) -> bool:
    """Whether an accumulator keeps the tiles that it is given as they are."""
    return isinstance(op.attrs, AccumAttrs) and (op.attrs.dim is not None or op.attrs.kind is AccumKind.HOLD)


def _one(graph: Graph, op: Op, values: Sequence[int], blocks: int) -> Work:
    """One application of an operator in so many different blocks."""
    if op.kind is OpKind.IN_ITER:  # a view
        return Work(1, 0, 0)
    sizes = [blocks * graph.types[v].elements for v in values]
    return Work(1, sum(sizes) * _factor(graph, op) // PRODUCTS, 8 * max(sizes, default=0))


def _factor(graph: Graph, op: Op) -> int:
    """What one element of the result takes, in multiplications of a product."""
    if op.kind in (OpKind.MATMUL, OpKind.CONCAT_MATMUL):
        return PRODUCTS + sum(graph.types[v].shape[-1] for v in op.inputs[: len(op.inputs) // 2])
    return PRODUCTS


def _is_little(graph: KernelGraph) -> bool:
    """Whether it is plain that a graph takes little, as the small instances of a search do: counted as if all blocks
    and iterations computed all of their tensors."""
    steps = len(graph.ops) + sum(op.body.loop * len(op.body.ops) for op in graph.ops if isinstance(op.body, BlockGraph))
    return unrolled(graph) < LITTLE and steps < LITTLE_STEPS


def unrolled(graph: KernelGraph) -> int:
    """Elements of all tensors of a graph, those inside in all blocks and iterations."""
    blocks = [op.body for op in graph.ops if isinstance(op.body, BlockGraph)]
    inside = sum(math.prod((*block.grid, block.loop)) * sum(t.elements for t in block.types) for block in blocks)
    return inside + sum(t.elements for t in graph.types)


def check_work(graph: KernelGraph) -> None:
    """Raise VerificationError where a trial takes longer, or more memory, than there is."""
    if _is_little(graph):
        return
    found = work(graph)
    needed, there = AT_ONCE * (found.largest + held_bytes(graph)), _memory()
    if needed > there:
        sizes = f"about {needed / 2**30:.0f} GiB, and this machine has {there / 2**30:.0f}"
        raise VerificationError(f"{TOO_LARGE}: {sizes}", hint=SMALLER)
    if found.steps > MAX_STEPS:
        what = f"{found.steps:,} steps, iterations counted; at most {MAX_STEPS:,}"
        raise VerificationError(f"a trial of this graph takes {what}", hint="shorten its for-loops")
    if found.elements > MAX_ELEMENTS:
        what = f"{found.elements:,} elements to compute; at most {MAX_ELEMENTS:,}"
        raise VerificationError(f"a trial of this graph has {what}", hint=SMALLER)


def held_bytes(graph: KernelGraph) -> int:
    """The most that one field part of a kernel graph's tensors takes at once; operands of a kernel with its results."""
    last = {v: index for index, op in enumerate(graph.ops) for v in op.inputs}
    size = [8 * t.elements for t in graph.types]
    for value, given in enumerate(graph.inputs):
        elements = given.type.elements
        size[value] = 0 if elements >= UNDRAWN else (4 if elements >= LARGE_TENSOR else 8) * elements
    held = most = sum(size[: graph.input_count])
    for index, (op, results) in enumerate(graph.definitions()):
        held += sum(size[v] for v in results)
        most = max(most, held)
        gone = {v for v in op.inputs if last[v] == index and v >= graph.input_count}
        gone |= {v for v in results if v not in last}
        held -= sum(size[v] for v in gone if v not in graph.outputs)
    return most


@functools.cache
def _memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
