"""The graphs of a translation with every part of every axis small, so that both can be run at once.

In: a translation. Out: an extent for each part, and both graphs at these extents. Graphs that are small are what they
are. What stands in the graphs besides extents (operators, which dimension a grid dim splits, kinds of accumulators) is
kept; the graphs that come out are legal, and their tensors have the extents of their parts. A part whose name says its
extent keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_nb.errors import ProofError
from mirage_nb.ir import (
    ArangeAttrs,
    BlockGraph,
    InIterAttrs,
    Input,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    TensorType,
    ThreadGraph,
    legality,
)
from mirage_nb.ir.graph import G
from mirage_nb.ir.ops import Attrs, Shape
from mirage_nb.verify.fields.work import unrolled
from mirage_nb.verify.proof.axes import Dims, Part, Scope, leaves, plain_parts
from mirage_nb.verify.proof.terms import said_extent
from mirage_nb.verify.proof.translate import Translation

SMALL = 4096
"""Elements of all tensors of a graph that is run as it is, those inside in all blocks and iterations."""
MOST = 2**20
"""The same of a graph with small parts."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many values an index of each part takes, by the part's name. Of a covered part that has none, the last tile
    lacks an element."""

    parts: Mapping[str, int]

    def extent(self, parts: Iterable[Part]) -> int:
        """The extent of a dimension."""
        return math.prod(map(self._extent, leaves(parts)))

    def _extent(self, leaf: Part) -> int:
        if leaf.tiles is not None and leaf.name not in self.parts:
            return self.extent(leaf.tiles) - 1
        return self.parts[leaf.name] if leaf.sides is None else sum(map(self.extent, leaf.sides))

    def shape(self, dims: Dims) -> Shape:
        return tuple(map(self.extent, dims))


def shrunk(translation: Translation) -> tuple[Sizes, tuple[KernelGraph, KernelGraph]]:
    """The sizes, and both graphs at these. Raises ProofError for graphs that are not legal there."""
    graphs = translation.graphs
    parts = plain_parts(translation.scopes)
    if max(map(unrolled, graphs)) <= SMALL:
        return Sizes({name: part.size for name, part in parts.items()}), graphs
    # what is proved of one extent has to have a value there
    sizes = Sizes({
        name: part.size if said_extent(name) else min(part.size, 2 + place % 2)
        for place, (name, part) in enumerate(parts.items())
        if part.tiles is None
    })  # fmt: skip
    made = []
    for graph, scope in zip(graphs, translation.scopes, strict=True):
        if _elements(scope, sizes) > MOST:
            raise ProofError("tensors with so many parts of axes that they are large at the smallest sizes, too")
        smaller = _kernel(graph, scope, sizes)
        legality.check(smaller)
        made.append(smaller)
    return sizes, (made[0], made[1])


def hold_extents(translation: Translation) -> None:
    """Raise ProofError unless the graphs are what they are with the extents that their parts are said to have."""
    sizes = Sizes({name: part.size for name, part in plain_parts(translation.scopes).items()})
    for graph, scope in zip(translation.graphs, translation.scopes, strict=True):
        made = _kernel(graph, scope, sizes)
        if (made.ops, made.types) != (graph.ops, graph.types):
            raise ProofError("the extents of the parts of axes are not those of the graphs")


def _elements(scope: Scope, sizes: Sizes) -> int:
    """Elements of all tensors of a graph, and of those inside in all blocks and iterations."""
    inside = sum(
        _elements(inner, sizes) * math.prod(map(sizes.extent, (*inner.grid, inner.loop)))
        for inner in scope.inner.values()
    )
    return inside + sum(math.prod(sizes.shape(dims)) for dims in scope.dims)


def _kernel(graph: KernelGraph, scope: Scope, sizes: Sizes) -> KernelGraph:
    inputs = (
        Input(i.name, replace(i.type, shape=sizes.shape(dims)))
        for i, dims in zip(graph.inputs, scope.dims, strict=False)
    )
    return _filled(KernelGraph.start(*inputs), graph, scope, sizes).returning(graph.outputs, graph.output_names)


def _filled(made: G, graph: G, scope: Scope, sizes: Sizes) -> G:
    """What has operands of these sizes, with the operators of a graph."""
    for number, op in enumerate(graph.ops):
        body, held = op.body, tuple(made.types[v] for v in op.inputs)
        if isinstance(body, BlockGraph):
            inner = scope.inner[number]
            start = BlockGraph.start(held, tuple(map(sizes.extent, inner.grid)), sizes.extent(inner.loop))
            body = _filled(start, body, inner, sizes)
        elif isinstance(body, ThreadGraph):
            body = _filled(ThreadGraph.start(held), body, scope.inner[number], sizes).returning(body.outputs)
        made = made.append(Op(op.kind, op.inputs, _attrs(scope, number, op, sizes), body))
    _check(made.types, scope, sizes)
    return made


def _attrs(scope: Scope, number: int, op: Op, sizes: Sizes) -> Attrs | None:
    if isinstance(op.attrs, OutSaverAttrs) and op.attrs.shape is not None:
        savers = [place for place, other in enumerate(scope.graph.ops) if other.kind is OpKind.OUT_SAVER]
        return replace(op.attrs, shape=sizes.shape(scope.saved[savers.index(number)]))
    if not isinstance(op.attrs, RepeatAttrs | ReshapeAttrs | ArangeAttrs | InIterAttrs):
        return op.attrs
    result = sizes.shape(scope.dims[scope.defined.index((number, 0))])
    if isinstance(op.attrs, InIterAttrs):
        return replace(op.attrs, tile=result) if op.attrs.tile is not None else op.attrs
    if isinstance(op.attrs, ArangeAttrs):
        return replace(op.attrs, extent=result[0])
    if isinstance(op.attrs, ReshapeAttrs):
        return ReshapeAttrs(result)
    dim = op.attrs.dim
    return RepeatAttrs(dim, result[dim] // sizes.shape(scope.dims[op.inputs[0]])[dim])


def _check(types: Sequence[TensorType], scope: Scope, sizes: Sizes) -> None:
    if [t.shape for t in types] != [sizes.shape(dims) for dims in scope.dims]:
        raise ProofError("the graph has other parts of axes at other sizes")
