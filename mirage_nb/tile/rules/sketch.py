"""A block without its extents: what the rules look at that say what becomes of a value, whoever asks.

In: the operators of a block with what they read and make. Out: a `Sketch`, which the planner makes of a block graph and
the ranking of a structure over axes; when operators run, and which of them are anew in every iteration. Invariant: an
operator reads what is made before it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property

from mirage_nb.ir import (
    BYTES,
    HALVES,
    OPS,
    AccumAttrs,
    AccumKind,
    BlockGraph,
    DimAttrs,
    DType,
    InIterAttrs,
    OpKind,
    ThreadGraph,
    Trait,
)
from mirage_nb.ir.dtypes import multiplied_as

MATMULS = frozenset({OpKind.MATMUL, OpKind.CONCAT_MATMUL})
REDUCTIONS = frozenset({OpKind.SUM, OpKind.MAX, OpKind.RESCALED_SUM})
FOLDS = REDUCTIONS | {OpKind.RUNNING_SUM}
"""What threads that share a row or a column compute together."""
VIEWS = frozenset({OpKind.RESHAPE, OpKind.TRANSPOSE})
ELEMENTWISE = frozenset({OpKind.FUSED, *(kind for kind in OpKind if Trait.ELEMENTWISE in OPS[kind].traits)})

Chain = tuple[tuple[OpKind, tuple[int, ...]], ...]
"""Operators of a thread graph, with what they read: what goes into it, and behind that what they make."""


def pairs(kind: OpKind, operands: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The (left, right) operands of the products of a Matmul or ConcatMatmul; none of another operator."""
    if kind is OpKind.CONCAT_MATMUL:
        w, x, y, z = operands
        return ((w, y), (x, z))
    return ((operands[0], operands[1]),) if kind is OpKind.MATMUL else ()


@dataclass(frozen=True, slots=True)
class Node:
    """An operator: the values that it reads and makes.

    literal: a number that stands in the source; numbered: an iterator over the numbers of places; streamed: one over
    tiles of the loop. along: the dimension that it folds, counted from the last one. chain: of a thread graph, whose
    results `leaving` are.
    """

    kind: OpKind
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    accum: AccumKind | None = None
    literal: bool = False
    numbered: bool = False
    streamed: bool = False
    along: int = 0
    chain: Chain = ()
    leaving: tuple[int, ...] = ()

    @property
    def elementwise(self) -> bool:
        """Whether it computes element by element."""
        return self.kind in ELEMENTWISE and not self.factors

    @property
    def factors(self) -> frozenset[int]:
        """The values that a thread graph multiplies: a thread reads many elements of them for one result."""
        return frozenset(self.reads[v] for kind, read in self.chain if kind in MATMULS for v in read)

    def reads_for(self, made: Collection[int]) -> Iterator[int]:
        """The values that some of what it makes is computed from."""
        if not self.chain:
            yield from self.reads
            return
        wanted = {place for place, value in zip(self.leaving, self.makes, strict=True) if value in made}
        for place in reversed(range(len(self.chain))):
            if len(self.reads) + place in wanted:
                wanted.update(self.chain[place][1])
        yield from (value for place, value in enumerate(self.reads) if place in wanted)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The operands of its products."""
        return pairs(self.kind, self.reads)


@dataclass(frozen=True, slots=True)
class Value:
    """A value: its element type; `shape`: equal for equal shapes; `size`: greater, the more elements it has; `long`:
    for every dimension whether it may have several."""

    dtype: DType
    shape: Hashable
    size: int
    long: tuple[bool, ...]


@dataclass(frozen=True)
class Sketch:
    """The operators of a block in order, and their values; whether it has a loop, and that more than one iteration."""

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    looped: bool
    repeated: bool

    @cached_property
    def defined(self) -> dict[int, int]:
        """The operator that makes a value."""
        return {value: index for index, node in enumerate(self.nodes) for value in node.makes}

    @cached_property
    def shifts(self) -> frozenset[int]:
        """The values by which sums are rescaled: a running maximum may stand in their place."""
        return frozenset(node.reads[1] for node in self.nodes if node.accum is AccumKind.RESCALE)

    @cached_property
    def chaining(self) -> list[bool]:
        """The operators that thread graphs may have; what makes a shift stands by itself, as running maxima do."""
        return [node.elementwise and self.shifts.isdisjoint(node.makes) for node in self.nodes]

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """The operators that read a value, savers among them."""
        found: list[list[int]] = [[] for _ in self.values]
        for index, node in enumerate(self.nodes):
            for value in node.reads:
                found[value].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def reads(self) -> list[list[int]]:
        """The operators that an operator reads."""
        return [[self.defined[value] for value in node.reads] for node in self.nodes]

    @cached_property
    def stages(self) -> tuple[int | None, ...]:
        """0 in the loop, 1 behind it or where there is none, None for constants; as `BlockGraph.stages` has them."""
        found: list[int | None] = []
        for node, read in zip(self.nodes, self.reads, strict=True):
            match node.kind:
                case OpKind.CONST:
                    found.append(None)
                case OpKind.IN_ITER:
                    found.append(0 if self.looped else 1)
                case OpKind.ACCUM:
                    found.append(1)
                case _:
                    known = [stage for index in read if (stage := found[index]) is not None]
                    found.append(max(known, default=None))
        return tuple(found)

    @cached_property
    def invariant(self) -> tuple[bool, ...]:
        """The operators that make the same in every iteration."""
        found: list[bool] = []
        for node, read in zip(self.nodes, self.reads, strict=True):
            anew = node.kind is OpKind.ACCUM or (node.streamed and self.repeated)
            found.append(not anew and all(found[index] for index in read))
        return tuple(found)

    @cached_property
    def times(self) -> tuple[tuple[int | None, bool, bool], ...]:
        """When an operator runs: its stage, and in the loop whether it is anew in every iteration and whether a product
        goes into it. What is computed once, or once for all warps, keeps out of the chains of the others."""
        found: list[tuple[int | None, bool, bool]] = []
        for node, stage, read in zip(self.nodes, self.stages, self.reads, strict=True):
            anew = stage == 0 and self.repeated and (node.streamed or any(found[index][1] for index in read))
            product = anew and (node.kind in MATMULS or any(found[index][2] for index in read))
            found.append((stage, anew, product))
        return tuple(found)

    def on_tensor_cores(self, node: Node) -> bool:
        """Whether tensor cores compute its products: all operands are f16, or all bf16, or such and bytes, or floats
        of one byte; bytes are widened where they are loaded."""
        types = {multiplied_as(*(self.values[value].dtype for value in pair)) for pair in node.pairs}
        return len(types) == 1 and types <= HALVES

    def on_bytes(self, node: Node) -> bool:
        """Whether an operand of its products is stored in bytes."""
        return any(self.values[value].dtype in BYTES for pair in node.pairs for value in pair)

    def is_view(self, index: int) -> bool:
        """Whether an operator passes on what it reads, in another shape or for all iterations."""
        node = self.nodes[index]
        return node.kind in VIEWS or (node.accum is AccumKind.HOLD and self.invariant[self.defined[node.reads[0]]])


def sketch_of(block: BlockGraph, literal_args: Collection[int] = (), numbered: Collection[int] = ()) -> Sketch:
    """The sketch of a block graph. literal_args: operands that are one number; numbered: those whose elements are the
    numbers of their places."""
    nodes = []
    for op, makes in block.definitions():
        attrs, along, chain, leaving = op.attrs, 0, list[tuple[OpKind, tuple[int, ...]]](), tuple[int, ...]()
        if isinstance(op.body, ThreadGraph):
            chain = [(inner.kind, inner.inputs) for inner in op.body.ops]
            leaving = op.body.outputs
        if isinstance(attrs, DimAttrs):
            along = attrs.dim - len(block.types[op.inputs[0]].shape)
        accum = attrs.kind if isinstance(attrs, AccumAttrs) else None
        read = attrs if isinstance(attrs, InIterAttrs) else None
        literal = op.kind is OpKind.CONST or (read is not None and read.arg in literal_args)
        streamed = read is not None and read.fmap is not None
        counted = read is not None and read.arg in numbered
        nodes.append(Node(op.kind, op.inputs, makes, accum, literal, counted, streamed, along, tuple(chain), leaving))
    values = (Value(t.dtype, t.shape, t.elements, tuple(extent > 1 for extent in t.shape)) for t in block.types)
    return Sketch(tuple(nodes), tuple(values), block.has_loop, block.loop > 1)
