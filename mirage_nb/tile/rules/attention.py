"""Blocks that chain two products over a for-loop of keys, seen as such: what attention is on a card.

In: a block graph. Out: an `AttentionBlock`: the product of held rows by streamed keys, what is computed of it row by
row, the product of that by streamed values, and the accumulators. Nothing is decided here but that the block is one.
Invariant: maxima that shift an exponential shift everything that is accumulated with it, so that a running maximum may
stand in their place; rows, keys and columns are each one dimension of a tile, all others are of extent 1.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from mirage_nb.ir import (
    HALVES,
    OPS,
    AccumAttrs,
    AccumKind,
    BlockGraph,
    ConstAttrs,
    DimAttrs,
    DType,
    InIterAttrs,
    OpKind,
    Trait,
    TransposeAttrs,
)
from mirage_nb.ir.graph import reached
from mirage_nb.ir.ops import Shape
from mirage_nb.tile.rules import teams
from mirage_nb.tile.rules.bodies import UNSHIFTED, Finder, Shift
from mirage_nb.tile.rules.products import COLUMNS, LEADING, ROWS, SUMMED, Operand, reshaped
from mirage_nb.tile.rules.shared import CHUNK_BYTES
from mirage_nb.tile.rules.sketch import MATMULS, Node, Sketch, sketch_of
from mirage_nb.tile.rules.thread_graph import flat
from mirage_nb.tile.rules.written_out import WrittenOut, write_out

KEYS = "j"
"""The axis that the for-loop runs over; the products' other axes are those of products (`tile.rules.products`)."""
SHARE = "z"
"""What a grid dim is called whose points share out the keys."""


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """A block of chained products.

    queries, keys, values: the operands; the first product sums along `SUMMED`, the second along `KEYS`. scores,
    weights: nodes, the first product and the left operand of the second. tops: maxima in whose place a running maximum
    stands; joined: the node that joins one of them, which no iteration changes. sums: accumulator -> the node whose
    rows it adds up; `results`: accumulators of the second product. late: sums over keys behind the loop, of
    accumulators that hold row sums already. largest: accumulators of these maxima.
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
    joined: Mapping[int, int]
    sums: dict[int, int]
    results: tuple[int, ...]
    late: frozenset[int]
    largest: frozenset[int]

    @property
    def bare(self) -> int | None:
        """The exponential whose numbers f16 has only where a running maximum holds them up, if one may: of what is
        added up nothing else is computed."""
        node = self.written.nodes[self.weights]
        if self.tops or self.dtype is not DType.F16:
            return None
        return self.weights if node.kind is OpKind.EXP and {*self.sums.values()} <= {self.weights} else None

    @property
    def is_quotient(self) -> bool:
        """Whether all that is saved is the result over the sums of its rows, whatever both are multiplied by."""
        nodes, totals = self.written.nodes, {*self.sums, *self.late}
        saved = (nodes[place] for place, _ in self.written.saved)
        return all(
            node.kind is OpKind.DIV and node.inputs[0] in self.results and node.inputs[1] in totals for node in saved
        )

    @property
    def is_held(self) -> bool:
        """Whether its type has the numbers of its exponentials."""
        return bool(self.tops) or self.dtype is not DType.F16 or self.bare is not None

    def ranked(self, top: int) -> int:
        """The node of whose rows a maximum is the largest, or which an exponential raises."""
        node = self.written.nodes[top]
        if top in self.joined:
            node = self.written.nodes[sum(node.inputs) - self.joined[top]]
        return node.inputs[0]

    @property
    def shared(self) -> int | None:
        """The last node that weights and sums both come from: computed once."""
        wanted = [self.weights, *self.sums.values()]
        common = set.intersection(*(self._behind(node) for node in wanted)) - {self.scores}
        return max(common, default=None) if len(wanted) > 1 else None

    def _behind(self, node: int) -> set[int]:
        """The matrices of rows and keys that a node is computed from, itself included, up to the scores."""
        nodes = self.written.nodes

        def is_matrix(place: int) -> bool:
            shape = nodes[place].shape
            return place not in self.tops and place >= self.scores and bool(shape) and shape[-1] != 1

        def operands(place: int) -> tuple[int, ...]:
            return nodes[place].inputs if is_matrix(place) and place != self.scores else ()

        return {place for place in reached([node], operands) if is_matrix(place)}

    def boxed(self, operand: Operand) -> bool:
        """Whether boxes of the copy engine bring the tile: rows behind each other, in whole panels; what hangs over the
        end are rows of the box."""
        tensor, tile = self.block.args[operand.attrs.arg], self.block.tile_shape(operand.attrs)
        long = [dim for dim, axis in enumerate(operand.axes) if axis]
        return (
            tensor.shape[-1] * tensor.dtype.size % CHUNK_BYTES == 0
            and long[-1] == len(tile) - 1
            and tile[-1] % teams.STEP == 0
            and all(
                not over or (dim == long[0] and operand.axes[dim] != SUMMED)
                for dim, over in enumerate(self.block.overhanging(operand.attrs))
            )
        )

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
    sketch = sketch_of(flat(block)[0])
    found = _Chained(sketch, scores, second)
    kept = _accumulated(written, second) if found.fits else None
    if kept is None or not _elementwise_behind(written, kept[2]):
        return None
    tops = tuple(sorted(found.shifts.intersection(found.status)))
    joined = {top: sum(nodes[top].inputs) - found.joined[top] for top in tops if top in found.joined}
    return AttentionBlock(block, written, types.pop(), queries, keys, values, scores, weights, tops, joined, *kept)


def _elementwise_behind(written: WrittenOut, late: frozenset[int]) -> bool:
    """Whether what is saved comes from accumulators, or sums of them, element by element."""
    nodes, ends = written.nodes, (OpKind.ACCUM, OpKind.CONST, OpKind.IN_ITER)
    found = reached(
        (place for place, _ in written.saved),
        lambda place: () if place in late or nodes[place].kind in ends else nodes[place].inputs,
    )
    kinds = {nodes[place].kind for place in found - late}.difference(ends, {OpKind.RESHAPE})
    return all(Trait.ELEMENTWISE in OPS[kind].traits for kind in kinds)


def _dims(operands: tuple[Operand, ...]) -> list[int]:
    return [operand.axes.index(KEYS) for operand in operands]


def counters_of(made: AttentionBlock) -> tuple[str, ...] | None:
    """A name for every grid dim: the axis that it cuts, `SHARE` for keys and values alike, or a letter; None where it
    cuts what is summed."""
    names, streamed = [], (made.keys, made.values)
    for g, extent in enumerate(made.block.grid):
        cut = {o.axes[dim] for o in (made.queries, made.keys, made.values) if (dim := o.attrs.imap[g]) is not None}
        cut.discard("")
        if cut == {KEYS} and all(o.attrs.imap[g] is not None for o in streamed):
            cut = {SHARE}
        if cut & {KEYS, SUMMED} or len(cut) > 1:
            return None
        names.append(cut.pop() if cut and extent > 1 else LEADING[g])
    return tuple(names) if len(set(names)) == len(names) else None


def lies_along(made: AttentionBlock, counters: tuple[str, ...], attrs: InIterAttrs, axes: tuple[str, ...]) -> bool:
    """Whether an operand beside the matrices has these axes: what blocks and iterations have of it are the same rows
    and keys, none beyond its end."""
    block = made.block
    if not axes or block.args[attrs.arg].dtype is DType.F64 or any(block.overhanging(attrs)):
        return False
    return all(_lies(made, counters, attrs, dim, axis) for dim, axis in enumerate(axes))


def axes_beside(made: AttentionBlock, counters: tuple[str, ...], attrs: InIterAttrs) -> tuple[str, ...] | None:
    """The axes that an operand beside the matrices may have; None where it has none."""
    every = range(len(made.block.tile_shape(attrs)))
    found = [[axis for axis in ("", KEYS, ROWS) if _lies(made, counters, attrs, dim, axis)] for dim in every]
    axes = tuple(names[0] for names in found if names)
    return axes if len(axes) == len(found) and lies_along(made, counters, attrs, axes) else None


def _lies(made: AttentionBlock, counters: tuple[str, ...], attrs: InIterAttrs, dim: int, axis: str) -> bool:
    """Whether a dimension of an operand is along this axis."""
    block, extent = made.block, made.block.tile_shape(attrs)[dim]
    cut = [counters[g] for g, d in enumerate(attrs.imap) if d == dim and block.grid[g] > 1]
    if attrs.fmap == dim and block.has_loop:
        return axis == KEYS and not cut and extent == made.step
    if axis == ROWS:
        return extent == made.rows and (cut == [ROWS] or (not cut and ROWS not in counters))
    return not axis and extent == 1 and ROWS not in cut


def ends_of(made: AttentionBlock, numbers: Mapping[int, Fraction]) -> dict[int, Fraction]:
    """The nodes that are one number in front of the end of an axis over which tiles hang, and that number: operands
    that are one number, which end there, and what is computed of them. numbers: of operands."""
    nodes, found, known = made.written.nodes, dict[int, Fraction](), dict[int, Fraction]()
    rules_of = {OpKind.ADD: operator.add, OpKind.SUB: operator.sub, OpKind.MUL: operator.mul}
    for place, node in enumerate(nodes):
        if isinstance(node.attrs, InIterAttrs):
            if node.attrs.arg in numbers and any(made.block.overhanging(node.attrs)):
                found[place] = numbers[node.attrs.arg]
        elif isinstance(node.attrs, ConstAttrs):
            known[place] = node.attrs.value
        elif not found.keys().isdisjoint(node.inputs):
            values = [found.get(v, known.get(v)) for v in node.inputs]
            if None not in values and node.kind in rules_of:
                found[place] = rules_of[node.kind](*values)
            elif node.kind in (OpKind.RESHAPE, OpKind.CAST):
                found[place] = found[node.inputs[0]]
    return found


def weights_are_f32(beside: Iterable[DType], stored: Iterable[DType]) -> bool:
    """Whether an operand beside the matrices makes weights of f32 of their scores, and what becomes of them is stored
    so: no instruction multiplies such weights."""
    return DType.F32 in beside and DType.F32 in stored


def beside(made: AttentionBlock, known: Collection[int]) -> tuple[InIterAttrs, ...]:
    """The operands that are read beside the matrices. known: those that are not read."""
    matrices = [o.attrs for o in (made.queries, made.keys, made.values)]
    attrs = (op.attrs for op in made.block.ops if isinstance(op.attrs, InIterAttrs))
    return tuple(a for a in attrs if a not in matrices and a.arg not in known)


def registers_beside(made: AttentionBlock, others: Iterable[InIterAttrs]) -> int:
    """Of a thread, for what an iteration reads beside the matrices."""
    found = 0
    for attrs in (one for one in others if one.fmap is not None):
        tile = made.block.tile_shape(attrs)
        rows = any(extent > 1 for dim, extent in enumerate(tile) if dim != attrs.fmap)
        found += int(teams.registers_beside(made.step, made.block.args[attrs.arg].dtype.size, rows))
    return found


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


class _Chained(Finder):
    """Follows what is computed between the products and into the accumulators."""

    def __init__(self, sketch: Sketch, scores: int, second: int) -> None:
        self.scores, self.second = scores, second
        super().__init__(sketch)

    def _accept(self, index: int, node: Node) -> bool:
        if not super()._accept(index, node):
            return False
        if not self.leaves.isdisjoint(node.makes):  # it comes from operands alone
            return Trait.REDUCTION not in OPS[node.kind].traits and node.kind not in MATMULS
        if node.accum is AccumKind.MAX:
            return self.shifts.issuperset(node.reads)
        if node.kind is OpKind.ACCUM:
            return True
        ranking = {*self.shifts, *self.joined.values()}
        return self.second not in node.reads and (node.kind is not OpKind.MAX or ranking.issuperset(node.makes))

    def _viewed(self, node: Node) -> bool:
        if node.kind is OpKind.RESHAPE:
            self.status[node.makes[0]] = self.status[node.reads[0]]
        return node.kind is OpKind.RESHAPE

    def _product(self, node: Node) -> bool:
        (left, _), (value,) = node.reads, node.makes
        found = self.status.get(left) if value == self.second else UNSHIFTED
        if found is not None:
            self.status[value] = found
        return found is not None and found[0] in (Shift.PLAIN, Shift.SCALED)


def _accumulated(
    written: WrittenOut, second: int
) -> tuple[dict[int, int], tuple[int, ...], frozenset[int], frozenset[int]] | None:
    """The `sums`, `results`, `late`, `largest` of an `AttentionBlock`; None where matrices of weights are kept, or no
    result."""
    sums, results, late, largest = dict[int, int](), list[int](), set[int](), set[int]()
    for place, node in enumerate(written.nodes):
        if node.kind is not OpKind.ACCUM:
            continue
        source = written.nodes[node.inputs[0]]
        if isinstance(node.attrs, AccumAttrs) and node.attrs.kind is AccumKind.MAX:
            largest.add(place)
        elif node.attrs == AccumAttrs(AccumKind.HOLD) and source.kind is OpKind.IN_ITER:
            continue
        elif node.inputs[0] == second:
            results.append(place)
        elif source.kind is OpKind.SUM:
            sums[place] = source.inputs[0]
        else:  # a matrix of weights: its rows are added up in the loop, if nothing else is done with it behind
            readers = [written.nodes[reader] for reader in written.uses[place]]
            rows = (r.kind is OpKind.SUM and isinstance(r.attrs, DimAttrs) and r.attrs.dim == len(node.shape) - 1
                    for r in readers)  # fmt: skip
            if not readers or source.shape[-1] == 1 or not all(rows):
                return None
            late.update(written.uses[place])
            sums[place] = node.inputs[0]
    return (sums, tuple(results), frozenset(late), frozenset(largest)) if results else None
