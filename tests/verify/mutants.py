"""Single-site mutations of muGraphs: what a search gone wrong, or a slip of the hand, would produce.

`mutants(graph)` yields (description, graph) for every change of one place: an operator swapped for another
of the same arity, operands swapped or replaced, imap, fmap or omap entries changed, another reduced
dimension, another kind of accumulator, another loop range, another constant. Only graphs that can still be
built are yielded; the ones that break Definition 2.1 are for the caller to drop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from mirage_nb.errors import GraphError, ShapeError
from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    ApplyAttrs,
    BlockGraph,
    ClampAttrs,
    ConstAttrs,
    DimAttrs,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    ThreadGraph,
    TransposeAttrs,
)
from mirage_nb.ir.legality import check

Graph = KernelGraph | BlockGraph | ThreadGraph
Mutation = tuple[str, Op]

UNARY = (OpKind.EXP, OpKind.SQR, OpKind.SQRT, OpKind.SILU, OpKind.SIGMOID)
BINARY = (OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV, OpKind.MATMUL)
REDUCTIONS = (OpKind.SUM, OpKind.MAX)
FAMILIES = (UNARY, BINARY, REDUCTIONS)



def is_legal(graph: KernelGraph) -> bool:
    """Whether `legality.check` passes."""
    try:
        check(graph)
    except GraphError:
        return False
    return True


def mutants(graph: KernelGraph) -> Iterator[tuple[str, KernelGraph]]:
    """Every single-site mutant with the same output types."""
    for description, mutant in _of_graph(graph):
        assert isinstance(mutant, KernelGraph)
        if mutant.output_types == graph.output_types:
            yield description, mutant


def _of_graph(graph: Graph) -> Iterator[tuple[str, Graph]]:
    for number, op in enumerate(graph.ops):
        for description, changed in _of_op(graph, number, op):
            ops = (*graph.ops[:number], changed, *graph.ops[number + 1 :])
            mutant = _rebuilt(graph, ops)
            if mutant is not None:
                yield f"{number} {op.kind.value}: {description}", mutant
    if isinstance(graph, BlockGraph):
        for loop in {graph.loop * 2, graph.loop // 2, graph.loop + 1, 1} - {0, graph.loop}:
            mutant = _rebuilt(replace(graph, loop=loop), graph.ops)
            if mutant is not None:
                yield f"loop {loop}", mutant
        for grid in {(*graph.grid[:i], g * 2, *graph.grid[i + 1 :]) for i, g in enumerate(graph.grid)}:
            mutant = _rebuilt(replace(graph, grid=grid), graph.ops)
            if mutant is not None:
                yield f"grid {grid}", mutant


def _rebuilt(graph: Graph, ops: tuple[Op, ...]) -> Graph | None:
    """The graph with these operators and all types anew, or None where they do not fit."""
    start: Graph
    match graph:
        case KernelGraph():
            start = KernelGraph.start(*graph.inputs)
        case BlockGraph():
            start = BlockGraph.start(graph.args, graph.grid, graph.loop)
        case ThreadGraph():
            start = ThreadGraph.start(graph.inputs)
    try:
        for op in ops:
            start = start.append(op)
    except (GraphError, ShapeError):
        return None
    if isinstance(graph, KernelGraph) and isinstance(start, KernelGraph):
        return start.returning(graph.outputs, graph.output_names)
    if isinstance(graph, ThreadGraph) and isinstance(start, ThreadGraph):
        return start.returning(graph.outputs)
    return start


def _of_op(graph: Graph, number: int, op: Op) -> Iterator[Mutation]:
    if op.body is not None:
        for description, body in _of_graph(op.body):
            yield description, replace(op, body=body)
        return
    for family in FAMILIES:
        if op.kind in family:
            for kind in family:
                if kind is not op.kind:
                    yield f"becomes {kind.value}", replace(op, kind=kind)
    if op.kind in UNARY:
        yield "left out", Op(OpKind.CLAMP, op.inputs, ClampAttrs(None, None))
    yield from _operands(graph, number, op)
    yield from _attributes(graph, op)


def _operands(graph: Graph, number: int, op: Op) -> Iterator[Mutation]:
    for i, value in enumerate(op.inputs):
        for j in range(i):
            if op.inputs[j] != value:
                swapped = list(op.inputs)
                swapped[i], swapped[j] = swapped[j], swapped[i]
                yield f"operands {i} and {j} swapped", replace(op, inputs=tuple(swapped))
        for other in range(len(graph.types)):
            if other != value and graph.types[other].shape == graph.types[value].shape:
                inputs = (*op.inputs[:i], other, *op.inputs[i + 1 :])
                yield f"operand {i} is %{other}", replace(op, inputs=inputs)


def _attributes(graph: Graph, op: Op) -> Iterator[Mutation]:
    match op.attrs:
        case InIterAttrs(arg, imap, fmap) if isinstance(graph, BlockGraph):
            dims = [None, *range(len(graph.args[arg].shape))]
            for g, old in enumerate(imap):
                for dim in dims:
                    if dim != old:
                        changed = (*imap[:g], dim, *imap[g + 1 :])
                        yield f"imap {changed}", replace(op, attrs=InIterAttrs(arg, changed, fmap))
            for dim in dims:
                if dim != fmap:
                    yield f"fmap {dim}", replace(op, attrs=InIterAttrs(arg, imap, dim))
            for other in range(len(graph.args)):
                if other != arg:
                    yield f"operand {other}", replace(op, attrs=InIterAttrs(other, imap, fmap))
        case OutSaverAttrs(omap):
            rank = len(graph.types[op.inputs[0]].shape)
            for g, old in enumerate(omap):
                for dim in range(rank):
                    if dim != old:
                        yield f"omap[{g}] {dim}", replace(op, attrs=OutSaverAttrs((*omap[:g], dim, *omap[g + 1 :])))
            if len(omap) > 1:
                yield "omap reversed", replace(op, attrs=OutSaverAttrs(tuple(reversed(omap))))
        case AccumAttrs(kind, _) if kind is not AccumKind.RESCALE:
            for other_kind in (AccumKind.SUM, AccumKind.MAX, AccumKind.HOLD):
                if other_kind is not kind:
                    yield f"accumulates {other_kind.value}", replace(op, attrs=AccumAttrs(other_kind))
        case AccumAttrs():
            yield "plain sum", replace(op, inputs=op.inputs[:1], attrs=AccumAttrs(AccumKind.SUM))
        case DimAttrs(dim):
            for other in range(len(graph.types[op.inputs[0]].shape)):
                if other != dim:
                    yield f"dimension {other}", replace(op, attrs=DimAttrs(other))
        case ConstAttrs(value, symbol):
            for changed_value in (value * 2, value + 1, value / 3, -value, Fraction(0), value + Fraction(1, 2**20)):
                yield f"constant {changed_value}", replace(op, attrs=ConstAttrs(changed_value, symbol))
        case ApplyAttrs(name, formula):
            yield "another formula", replace(op, attrs=ApplyAttrs(name, f"{formula} + 1"))
        case TransposeAttrs(perm):
            yield "not transposed", replace(op, attrs=TransposeAttrs(tuple(range(len(perm)))))
