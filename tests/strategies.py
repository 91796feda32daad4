"""Hypothesis strategies for tensor programs and muGraphs, shared by the tests of all rooms.

`programs()` draws kernel graphs of pre-defined operators, `mugraphs()` kernel graphs with graph-defined
operators that are legal by construction. Extents are 1 to 4, so that brute force is cheap and broadcasting,
replication and empty splits all occur.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from mirage_nb.errors import GraphError, ShapeError
from mirage_nb.ir import (
    OPS,
    AccumAttrs,
    AccumKind,
    ApplyAttrs,
    BlockGraph,
    ClampAttrs,
    ConstAttrs,
    DimAttrs,
    DType,
    InIterAttrs,
    Input,
    KernelGraph,
    Level,
    Op,
    OpKind,
    OutSaverAttrs,
    PowAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    TensorType,
    ThreadGraph,
    Trait,
    TransposeAttrs,
)
from mirage_nb.ir.ops import Attrs, Shape

EXTENTS = st.sampled_from((1, 2, 2, 4, 3))
SHAPES = st.lists(EXTENTS, min_size=1, max_size=3).map(tuple)
FRACTIONS = st.fractions(min_value=-4, max_value=4, max_denominator=1000)
PLAIN = tuple(kind for kind, spec in OPS.items() if Trait.STRUCTURAL not in spec.traits)
MAX_ELEMENTS = 512

Graph = KernelGraph | BlockGraph | ThreadGraph


@st.composite
def attributes(draw: st.DrawFn, kind: OpKind, shape: Shape) -> Attrs | None:
    """Attributes that fit an operator on a first operand of this shape, most of the time."""
    dims = st.integers(0, max(0, len(shape) - 1))
    match kind:
        case OpKind.CONST:
            return ConstAttrs(draw(FRACTIONS), draw(st.sampled_from(("", "", "eps", "128**-0.5"))))
        case OpKind.SUM | OpKind.MAX | OpKind.RESCALED_SUM | OpKind.CONCAT:
            return DimAttrs(draw(dims))
        case OpKind.REPEAT:
            return RepeatAttrs(draw(dims), draw(st.integers(1, 3)))
        case OpKind.RESHAPE:
            return ReshapeAttrs(draw(st.sampled_from(_regroupings(shape))))
        case OpKind.TRANSPOSE:
            return TransposeAttrs(tuple(draw(st.permutations(range(len(shape))))))
        case OpKind.APPLY:
            return ApplyAttrs("f", draw(st.sampled_from(["tanh(x)", "x * abs(x) - 1/3", "log(1 + exp(x))"])))
        case OpKind.CLAMP:
            low = draw(st.none() | FRACTIONS)
            return ClampAttrs(low, draw(st.none() | st.just((low or Fraction(0)) + 1)))
        case OpKind.POW:
            return PowAttrs(draw(st.sampled_from([Fraction(n, d) for n in (-3, -1, 2, 3) for d in (1, 2, 3)])))
    return None


def _regroupings(shape: Shape) -> list[Shape]:
    flat = int(np.prod(shape))
    return [shape, (flat,), (1, *shape), (*shape, 1), tuple(reversed(shape))]


@st.composite
def grown(draw: st.DrawFn, graph: Graph, level: Level, steps: int, first: int = 0) -> Graph:
    """`graph` with up to `steps` more operators, on values from `first` on, that fit."""
    kinds = [kind for kind in PLAIN if level in OPS[kind].levels]
    for _ in range(steps):
        kind = draw(st.sampled_from(kinds))
        arity = OPS[kind].arity or 0
        values = range(first, len(graph.types))
        if arity and not values:
            continue
        operands = tuple(draw(st.sampled_from(values)) for _ in range(arity))
        shape = graph.types[operands[0]].shape if operands else ()
        try:
            longer = graph.append(Op(kind, operands, draw(attributes(kind, shape))))
        except (ShapeError, GraphError):
            continue
        if longer.types[-1].elements <= MAX_ELEMENTS:
            graph = longer
    return graph


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Input, ...]:
    """One to three named inputs, often of one shape, so that operators fit."""
    shapes = draw(st.lists(SHAPES, min_size=1, max_size=2))
    names = ("X", "W", "gain_1")[: draw(st.integers(1, 3))]
    dtypes = st.sampled_from((DType.F16, DType.F16, DType.BF16, DType.F32))
    return tuple(Input(name, TensorType(draw(st.sampled_from(shapes)), draw(dtypes))) for name in names)


@st.composite
def programs(draw: st.DrawFn, steps: int = 8) -> KernelGraph:
    """Tensor programs: pre-defined operators only, one to three outputs."""
    graph = draw(grown(KernelGraph.start(*draw(inputs())), Level.KERNEL, steps))
    assert isinstance(graph, KernelGraph)
    return graph.returning(draw(_some_values(len(graph.types))))


@st.composite
def program_pairs(draw: st.DrawFn, steps: int = 5) -> tuple[KernelGraph, KernelGraph]:
    """Two programs of the same inputs with one output each, of the same shape more often than not."""
    start = KernelGraph.start(*draw(inputs()))
    first, second = (draw(grown(start, Level.KERNEL, steps)) for _ in range(2))
    assert isinstance(first, KernelGraph) and isinstance(second, KernelGraph)
    wanted = first.types[-1]
    fits = [v for v, t in enumerate(second.types) if t == wanted] or [len(second.types) - 1]
    return first.returning((len(first.types) - 1,)), second.returning((fits[-1],))


def _some_values(count: int) -> st.SearchStrategy[tuple[int, ...]]:
    latest = st.integers(max(0, count - 3), count - 1)
    return st.lists(latest, min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def mugraphs(draw: st.DrawFn, kernels: int = 2, *, overhang: bool = False) -> KernelGraph:
    """Legal muGraphs: one or two graph-defined operators, with pre-defined ones around them.

    overhang: tiles may hang over the ends of tensors.
    """
    graph = draw(grown(KernelGraph.start(*draw(inputs())), Level.KERNEL, 2))
    assert isinstance(graph, KernelGraph)
    for _ in range(draw(st.integers(1, kernels))):
        args = tuple(draw(st.lists(st.integers(0, len(graph.types) - 1), min_size=1, max_size=3)))
        body = draw(blocks(tuple(graph.types[v] for v in args), overhang=overhang))
        graph = graph.append(Op(OpKind.GRAPH, args, body=body))
    return graph.returning(draw(_some_values(len(graph.types))))


@st.composite
def blocks(draw: st.DrawFn, args: tuple[TensorType, ...], *, overhang: bool = False) -> BlockGraph:
    """Legal block graphs over these operands."""
    grid = tuple(draw(st.lists(st.sampled_from((1, 2, 2, 3)), min_size=1, max_size=3)))
    looped = draw(st.booleans())
    graph = BlockGraph.start(args, grid, draw(st.integers(1, 4)) if looped else 1)
    for arg, operand in enumerate(args):
        reads = _overhanging_iterators if overhang else _iterators
        graph = graph.append(Op(OpKind.IN_ITER, attrs=draw(reads(arg, operand.shape, graph))))
    graph = draw(_grown_block(graph, 4))
    if looped:
        graph = draw(_grown_block(draw(_accumulated(graph)), 3))
    return draw(_saved(graph, overhang))


@st.composite
def _iterators(draw: st.DrawFn, arg: int, shape: Shape, graph: BlockGraph) -> InIterAttrs:
    rest = list(shape)
    chosen: list[int | None] = []
    for extent in (*graph.grid, graph.loop):
        fits = [dim for dim, size in enumerate(rest) if size % extent == 0]
        dim = draw(st.none() | st.sampled_from(fits)) if fits else None
        if dim is not None:
            rest[dim] //= extent
        chosen.append(dim)
    return InIterAttrs(arg, tuple(chosen[:-1]), chosen[-1])


@st.composite
def _overhanging_iterators(draw: st.DrawFn, arg: int, shape: Shape, graph: BlockGraph) -> InIterAttrs:
    """Any dims for grid and loop that leave every part an element; tiles as long as they may be."""
    parts = [1] * len(shape)
    chosen: list[int | None] = []
    for extent in (*graph.grid, graph.loop):
        fits = [dim for dim in range(len(shape)) if _tiles_of(shape[dim], parts[dim] * extent)]
        dim = draw(st.none() | st.sampled_from(fits)) if fits else None
        if dim is not None:
            parts[dim] *= extent
        chosen.append(dim)
    tile = tuple(draw(st.sampled_from(_tiles_of(n, count))) for n, count in zip(shape, parts, strict=True))
    return InIterAttrs(arg, tuple(chosen[:-1]), chosen[-1], tile)


def _tiles_of(extent: int, parts: int) -> list[int]:
    """Some tiles of which so many cover an extent, each with an element of it."""
    least = -(-extent // parts)
    return [size for size in range(least, least + 3) if (parts - 1) * size < extent]


@st.composite
def _grown_block(draw: st.DrawFn, graph: BlockGraph, steps: int) -> BlockGraph:
    """More operators of one stage, now and then a fused chain over the latest value."""
    first = max((i for i, stage in enumerate(_value_stages(graph)) if stage == 0), default=-1) + 1
    accumulated = any(op.kind is OpKind.ACCUM for op in graph.ops)
    grown_graph = draw(grown(graph, Level.BLOCK, steps, first if accumulated else 0))
    assert isinstance(grown_graph, BlockGraph)
    if draw(st.booleans()):
        operand = len(grown_graph.types) - 1
        thread = draw(threads((grown_graph.types[operand],)))
        grown_graph = grown_graph.append(Op(OpKind.FUSED, (operand,), body=thread))
    return grown_graph


@st.composite
def threads(draw: st.DrawFn, held: tuple[TensorType, ...]) -> ThreadGraph:
    """Chains of one or more operators in registers, ending in one output that uses all of them."""
    graph = ThreadGraph.start(held)
    for kind in draw(st.lists(st.sampled_from((OpKind.SQR, OpKind.EXP, OpKind.SILU)), min_size=1, max_size=3)):
        graph = graph.append(Op(kind, (len(graph.types) - 1,)))
    return graph.returning((len(graph.types) - 1,))


def _value_stages(graph: BlockGraph) -> list[int | None]:
    stages = graph.stages()
    return [stage for stage, (_, values) in zip(stages, graph.definitions(), strict=True) for _ in values]


@st.composite
def _accumulated(draw: st.DrawFn, graph: BlockGraph) -> BlockGraph:
    """Every value of the loop body that nothing reads gets an accumulator."""
    graph = _without_dead_constants(graph)
    body = [value for value, readers in enumerate(graph.uses()) if not readers]
    for value in body:
        shape = graph.types[value].shape
        varies = _varies(graph)[value]
        kinds = [AccumKind.SUM, AccumKind.MAX] + ([AccumKind.CONCAT] if shape else [])
        kind = draw(st.sampled_from(kinds if varies else [*kinds, AccumKind.HOLD]))
        dim = draw(st.integers(0, len(shape) - 1)) if kind is AccumKind.CONCAT else None
        graph = graph.append(Op(OpKind.ACCUM, (value,), AccumAttrs(kind, dim)))
    return graph


def _without_dead_constants(graph: BlockGraph) -> BlockGraph:
    """The graph without values that follow from constants alone."""
    kept = BlockGraph.start(graph.args, graph.grid, graph.loop)
    renamed: dict[int, int] = {}
    stages = _value_stages(graph)
    read = {v for op, values in graph.definitions() if any(stages[r] is not None for r in values) for v in op.inputs}
    for op, values in graph.definitions():
        needed = any(v in read or stages[v] is not None for v in values)
        if needed and all(v in renamed for v in op.inputs):
            start = len(kept.types)
            kept = kept.append(replace(op, inputs=tuple(renamed[v] for v in op.inputs)))
            renamed.update({v: start + i for i, v in enumerate(values)})
    return kept


def _varies(graph: BlockGraph) -> list[bool]:
    found: list[bool] = []
    for op, values in graph.definitions():
        own = isinstance(op.attrs, InIterAttrs) and op.attrs.fmap is not None
        found += [own or any(found[v] for v in op.inputs)] * len(values)
    return found


@st.composite
def _saved(draw: st.DrawFn, graph: BlockGraph, overhang: bool) -> BlockGraph:
    """Every value that nothing reads is saved, through a view with room for the whole grid."""
    graph = _without_dead_constants(graph)
    for value in [v for v, readers in enumerate(graph.uses()) if not readers]:
        shape = graph.types[value].shape
        omap: list[int | None] = []
        for extent in graph.grid:
            choices = st.integers(0, len(shape)) if shape else st.just(0)
            omap.append(draw(choices if extent > 1 else st.none() | choices))
        padded = graph.append(Op(OpKind.RESHAPE, (value,), ReshapeAttrs((1, *shape))))
        attrs = OutSaverAttrs(tuple(omap))
        saver = Op(OpKind.OUT_SAVER, (len(padded.types) - 1,), attrs)
        if overhang:
            whole = replace(padded, ops=(saver,)).output_types[0].shape
            ends = zip(whole, (1, *shape), strict=True)
            cut = tuple(draw(st.integers(max(1, end - size + 1), end)) for end, size in ends)
            saver = replace(saver, attrs=replace(attrs, shape=cut))
        graph = padded.append(saver)
    return graph


def arrays_for(graph: KernelGraph, seed: int) -> dict[str, NDArray[np.float64]]:
    """Standard normal inputs."""
    rng = np.random.default_rng(seed)
    return {i.name: rng.normal(size=i.type.shape) for i in graph.inputs}
