"""Thread graphs by rules: what passes between operators stays in registers (paper section 4.2).

In: a muGraph. Out: the same muGraph in which every chain of elementwise operators of one stage of a block graph is one
FUSED operator with a thread graph. A second rule, which the search asks for, takes products in (`with_products`): of a
few summed elements, each thread computes its own results by multiply-adds, without a pass through shared memory,
and goes on with them. Thread graphs that were there are found again by these rules; whatever else they have is written
out. Invariant: every value that is read outside its chain is an output of the chain, so the two graphs compute the same
tensors.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mirage_nb.ir import BlockGraph, DType, KernelGraph, Op, OpKind, ThreadGraph
from mirage_nb.ir.rewrite import Rewrite, over_blocks
from mirage_nb.tile.rules.order import Reads, find_chains, groups
from mirage_nb.tile.rules.sketch import Sketch, sketch_of

MOST_DEPTH, TENSOR_DEPTH = 64, 16
"""Summed elements of a product that a thread computes by itself, and of one that tensor cores could compute: what one
of their instructions sums, padding included."""
Products = frozenset[tuple[int, int]]
"""Products of a muGraph: which of its graph-defined operators, and which product of that one's block graph. Views
between these are not counted: muGraphs of one structure may have others at other sizes."""


def fuse(graph: KernelGraph) -> KernelGraph:
    """`graph` with every chain of elementwise operators in its block graphs turned into a FUSED operator."""
    return over_blocks(graph, fuse_block)


def shallow(graph: KernelGraph) -> Products:
    """The products of a muGraph that threads can compute by themselves."""
    found = set[tuple[int, int]]()
    for number, (_, body) in enumerate(_defined(graph)):
        sketch = sketch_of(body)
        able = enumerate(_is_shallow(body, sketch, index) for index in _products(body))
        found |= {(number, product) for product, shallow in able if shallow}
    return frozenset(found)


def with_products(graph: KernelGraph, products: Products) -> KernelGraph:
    """`graph` with its chains, and these products, in thread graphs."""
    ops = list(graph.ops)
    defined = _defined(graph)
    for number in {number for number, _ in products}:
        place, body = defined[number]
        every = _products(body)
        heads = {every[product] for block, product in products if block == number}
        ops[place] = replace(ops[place], body=_fused(body, heads))
    return replace(graph, ops=tuple(ops))


def _defined(graph: KernelGraph) -> list[tuple[int, BlockGraph]]:
    """The graph-defined operators: the place of each, and its block graph."""
    return [(place, op.body) for place, op in enumerate(graph.ops) if isinstance(op.body, BlockGraph)]


def fuse_block(block: BlockGraph) -> BlockGraph:
    """One block graph with its chains fused; savers keep their order, so the outputs do too.

    A chain takes the constants that it reads inside; one that only chains read leaves the block graph.
    """
    return _fused(*flat(block))


def flat(block: BlockGraph) -> tuple[BlockGraph, frozenset[int]]:
    """A block graph with its thread graphs written out; the products in these that threads compute."""
    if not any(isinstance(op.body, ThreadGraph) for op in block.ops):
        return block, frozenset()
    made, products = _flat(block)
    sketch = sketch_of(made)
    return made, frozenset(index for index in products if _is_shallow(made, sketch, index))


def _fused(block: BlockGraph, heads: Collection[int]) -> BlockGraph:
    """A block graph without thread graphs with its chains fused, these products in them."""
    sketch = sketch_of(block)
    building = _Rebuild(block, sketch.reads)
    chains = find_chains(sketch.chaining, sketch.reads, sketch.times, heads)
    for members in groups(chains, sketch.reads):
        building.place(members, fused=len(members) > 1 or members[0] in heads)
    return building.graph


def _products(block: BlockGraph) -> list[int]:
    return [index for index, op in enumerate(block.ops) if op.kind is OpKind.MATMUL]


def _is_shallow(block: BlockGraph, sketch: Sketch, index: int) -> bool:
    """Whether threads can compute a product: few summed elements, nothing that waits in an accumulator's registers, no
    f64, which they would round."""
    op, readers = block.ops[index], sketch.uses[sketch.nodes[index].makes[0]]
    types = [block.types[value] for value in op.inputs]
    accumulated = any(sketch.nodes[reader].accum is not None for reader in readers)
    most = TENSOR_DEPTH if sketch.on_tensor_cores(sketch.nodes[index]) else MOST_DEPTH
    return types[0].shape[-1] <= most and not accumulated and all(t.dtype is not DType.F64 for t in types)


def _flat(block: BlockGraph) -> tuple[BlockGraph, set[int]]:
    """With the operators of thread graphs in the block graph itself; the products among these."""
    result, products = Rewrite(BlockGraph.start(block.args, block.grid, block.loop)), set[int]()
    for op, values in block.definitions():
        if isinstance(op.body, ThreadGraph):
            inner = Rewrite(result.graph, dict(enumerate(result.places(op.inputs))))
            for part, made in op.body.definitions():
                products |= {len(inner.graph.ops)} if part.kind is OpKind.MATMUL else set()
                inner.copy(part, made)
            result.graph = inner.graph
            result.held.update(zip(values, inner.places(op.body.outputs), strict=True))
        else:
            result.copy(op, values)
    return result.graph, products


class _Rebuild(Rewrite[BlockGraph]):
    """Copies a block graph in dependency order, chain by chain."""

    def __init__(self, block: BlockGraph, reads: Reads) -> None:
        super().__init__(BlockGraph.start(block.args, block.grid, block.loop))
        self.block, self.reads = block, reads
        self._values = [values for _, values in block.definitions()]

    def place(self, members: tuple[int, ...], *, fused: bool) -> None:
        """Append an operator or a chain, whose operands are there; constants, before the first operator that reads
        them by itself."""
        if fused:
            self._place_chain(members)
        elif self.block.ops[members[0]].kind is not OpKind.CONST:
            for read in self.reads[members[0]]:
                if self._values[read][0] not in self.held:
                    self.copy(self.block.ops[read], self._values[read])
            self.copy(self.block.ops[members[0]], self._values[members[0]])

    def _place_chain(self, members: tuple[int, ...]) -> None:
        made = {self._values[m][0] for m in members}
        sources = {self._values[r][0]: self.block.ops[r] for m in members for r in self.reads[m]}
        read = dict.fromkeys(v for m in members for v in self.block.ops[m].inputs if v not in made)
        consts = [v for v in read if sources[v].kind is OpKind.CONST]
        operands = [v for v in read if v not in consts]
        thread = Rewrite(ThreadGraph.start(tuple(self.block.types[v] for v in operands)))
        thread.held = {v: i for i, v in enumerate(operands)}
        for value in consts:
            thread.copy(sources[value], (value,))
        for member in members:
            thread.copy(self.block.ops[member], self._values[member])
        uses = self.block.uses()
        leaving = [v for v in sorted(made) if any(reader not in members for reader in uses[v])]
        body = thread.graph.returning(thread.places(leaving))
        self.copy(Op(OpKind.FUSED, tuple(operands), body=body), leaving)
