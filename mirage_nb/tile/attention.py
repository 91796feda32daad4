"""Blocks that chain two products over a for-loop of keys, seen as such: what attention is on a card.

In: a block graph. Out: an `AttentionBlock`: the product of held rows by streamed keys, what is computed of it row by
row, the product of that by streamed values, and the accumulators. Nothing is decided here but that the block is one.
Invariant: maxima that shift an exponential shift everything that is accumulated with it, so that a running maximum may
stand in their place; rows, keys and columns are each one dimension of a tile, all others are of extent 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir import (
    HALVES,
    OPS,
    AccumAttrs,
    AccumKind,
    BlockGraph,
    DimAttrs,
    DType,
    InIterAttrs,
    OpKind,
    Trait,
    TransposeAttrs,
)
from mirage_nb.ir.ops import Shape
from mirage_nb.tile.bodies import UNSHIFTED, Shift, Status, shifted
from mirage_nb.tile.products import COLUMNS, ROWS, SUMMED, Operand, reshaped
from mirage_nb.tile.sketch import MATMULS
from mirage_nb.tile.written_out import Node, WrittenOut, write_out

KEYS = "j"
"""The axis that the for-loop runs over; the products' other axes are those of products (`tile.products`)."""


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """A block of chained products.

    queries, keys, values: the operands; the first product sums along `SUMMED`, the second along `KEYS`. scores,
    weights: nodes, the first product and the left operand of the second. tops: maxima in whose place a running maximum
    stands. sums: accumulator -> the node whose rows it adds up; `results`: accumulators of the second product. late:
    sums over keys behind the loop, of accumulators that hold row sums already.
    """

    block: BlockGraph
    written: WrittenOut
    dtype: DType
    queries: Operand
    keys: Operand
    values: Operand
    scores: int
    weights: int
    tops: tuple[int, ...]
    sums: dict[int, int]
    results: tuple[int, ...]
    late: frozenset[int]

    def extent(self, operand: Operand, axis: str) -> int:
        """Of a tile along an axis."""
        return self.block.tile_shape(operand.attrs)[operand.axes.index(axis)]

    @property
    def rows(self) -> int:
        """Of the block's tile."""
        return self.extent(self.queries, ROWS)

    @property
    def step(self) -> int:
        """Keys of an iteration."""
        return self.extent(self.keys, KEYS)

    @property
    def depth(self) -> int:
        """Summed elements of the first product."""
        return self.extent(self.queries, SUMMED)

    @property
    def columns(self) -> int:
        """Of the result."""
        return self.extent(self.values, COLUMNS)


def find_attention(block: BlockGraph, literal_args: frozenset[int]) -> AttentionBlock | None:
    """The block as chained products, or None if it is something else. literal_args: operands that are constants."""
    if not block.has_loop:
        return None
    written = write_out(block)
    nodes = written.nodes
    products = [i for i, node in enumerate(nodes) if node.kind is OpKind.MATMUL]
    if len(products) != 2 or any(nodes[i].late for i in products):
        return None
    scores, second = products
    weights = nodes[second].inputs[0]
    queries = _operand(block, written, nodes[scores].inputs[0], (ROWS, SUMMED))
    keys = _operand(block, written, nodes[scores].inputs[1], (SUMMED, KEYS))
    values = _operand(block, written, nodes[second].inputs[1], (KEYS, COLUMNS))
    if queries is None or keys is None or values is None:
        return None
    if {o.attrs.arg for o in (queries, keys, values)} & literal_args:
        return None
    types = {block.args[o.attrs.arg].dtype for o in (queries, keys, values)}
    looped = [o.attrs.fmap for o in (queries, keys, values)]
    if len(types) > 1 or not types <= HALVES or looped != [None, *_dims((keys, values))]:
        return None
    read = _Body(written, scores, second)
    if not read.fits or not read.results:
        return None
    return AttentionBlock(
        block, written, types.pop(), queries, keys, values, scores, weights, tuple(read.tops), read.sums,
        tuple(read.results), frozenset(read.late),
    )  # fmt: skip


def _dims(operands: tuple[Operand, ...]) -> list[int]:
    return [operand.axes.index(KEYS) for operand in operands]


def matrix_axes(shape: Shape, axes: tuple[str, str]) -> tuple[str, ...] | None:
    """The axes of a matrix's dimensions: its last one, and the long one of those before; None if several are long."""
    long = [dim for dim, extent in enumerate(shape[:-1]) if extent > 1]
    if len(shape) < 2 or len(long) > 1:
        return None
    row = long[0] if long else len(shape) - 2
    return (*(axes[0] if dim == row else "" for dim in range(len(shape) - 1)), axes[1])


def _operand(block: BlockGraph, written: WrittenOut, node: int, axes: tuple[str, str]) -> Operand | None:
    """The operand of a product behind transposes and reshapes."""
    found = written.nodes[node]
    named = matrix_axes(found.shape, axes)
    while named is not None and not isinstance(found.attrs, InIterAttrs):
        if isinstance(found.attrs, TransposeAttrs):
            source = dict(zip(found.attrs.perm, named, strict=True))
            named = tuple(source[dim] for dim in range(len(named)))
        elif found.kind is OpKind.RESHAPE:
            named = reshaped(named, found.shape, written.nodes[found.inputs[0]].shape)
        else:
            return None
        found = written.nodes[found.inputs[0]]
    if named is None or not isinstance(found.attrs, InIterAttrs):
        return None
    return Operand(found.attrs, named) if set(axes) <= set(named) else None


class _Body:
    """Follows what is computed between the products and into the accumulators."""

    def __init__(self, written: WrittenOut, scores: int, second: int) -> None:
        self.written, self.scores, self.second = written, scores, second
        self.status: dict[int, Status] = {}
        self.tops: list[int] = []
        self.sums: dict[int, int] = {}
        self.results: list[int] = []
        self.late: set[int] = set()
        shifts = [n.attrs for n in written.nodes]
        self.shifts = {
            node.inputs[1]
            for node, attrs in zip(written.nodes, shifts, strict=True)
            if isinstance(attrs, AccumAttrs) and attrs.kind is AccumKind.RESCALE
        }
        self.fits = all(self._accept(place, node) for place, node in enumerate(written.nodes))

    def _accept(self, place: int, node: Node) -> bool:
        if isinstance(node.attrs, AccumAttrs):
            return self._accumulator(place, node, node.attrs)
        if node.late:
            return True  # the planner of what stands behind the loop looks at it
        found = [self.status.get(read, UNSHIFTED) for read in node.inputs]
        if place == self.second:
            self.status[place] = found[0]
            return node.inputs[0] in self.status and found[0][0] in (Shift.PLAIN, Shift.SCALED)
        if place == self.scores:
            self.status[place] = UNSHIFTED
            return True
        if not any(read in self.status for read in node.inputs):  # it comes from operands alone
            return Trait.REDUCTION not in OPS[node.kind].traits and node.kind not in MATMULS
        if self.second in node.inputs:
            return False
        if node.kind in (OpKind.SUM, OpKind.MAX):
            return self._reduction(place, node, found[0])
        if node.kind is OpKind.RESHAPE:
            self.status[place] = found[0]
            return True
        if Trait.ELEMENTWISE not in OPS[node.kind].traits:
            return False
        status = shifted(node.kind, list(found))
        if status is not None:
            self.status[place] = status
        return status is not None

    def _reduction(self, place: int, node: Node, found: Status) -> bool:
        """Along keys, of something not shifted; row sums of what is shifted are shifted."""
        shape = self.written.nodes[node.inputs[0]].shape
        if not isinstance(node.attrs, DimAttrs) or node.attrs.dim != len(shape) - 1:
            return False
        if node.kind is OpKind.SUM:
            self.status[place] = found
            return found[0] in (Shift.PLAIN, Shift.SCALED)
        if place not in self.shifts:
            return False
        self.tops.append(place)
        self.status[place] = (Shift.TOP, place)
        return found[0] is Shift.PLAIN

    def _accumulator(self, place: int, node: Node, attrs: AccumAttrs) -> bool:
        found = [self.status.get(read) for read in node.inputs]
        wanted: list[list[Status | None]] = [[UNSHIFTED]]
        if attrs.kind is AccumKind.RESCALE:
            wanted = [[(Shift.SCALED, node.inputs[1]), (Shift.TOP, node.inputs[1])]]
        elif attrs.kind is not AccumKind.SUM:
            return False
        if found not in wanted:
            return False
        source = node.inputs[0]
        if source == self.second:
            self.results.append(place)
            return True
        made = self.written.nodes[source]
        if made.kind is OpKind.SUM and made.inputs[0] in self.status:
            self.sums[place] = made.inputs[0]
            return True
        # A matrix of weights: its rows are added up in the loop, if nothing else is done with it behind.
        readers = self.written.uses[place]
        for reader in readers:
            late = self.written.nodes[reader]
            last = isinstance(late.attrs, DimAttrs) and late.attrs.dim == len(node.shape) - 1
            if late.kind is not OpKind.SUM or not last:
                return False
        self.late.update(readers)
        self.sums[place] = source
        return bool(readers) and made.shape[-1] > 1
