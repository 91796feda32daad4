"""Blocks that are products with something elementwise behind them, seen as such.

In: a block graph. Out: a `ProductBlock`: its accumulated products, each a sum of `Factors`, and what the savers leave,
as nodes of the block with its chains written out.
Nothing is decided here but that the block is one: a for-loop over the summed axis in which nothing is computed but
products of two streamed operands (seen through transposes), sums of two, and held operands; after it elementwise
operators, sums and maxima over the columns of the tile, and products that are added to an accumulator (of low rank, as
in LoRA): of held operands, or of another accumulated product by a held one. Invariant: rows and columns of every
accumulator are the last two dimensions of a tile, all others are of extent 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirage_nb.ir import (
    BYTES,
    FLOAT8,
    FLOATS,
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
    TransposeAttrs,
)
from mirage_nb.ir.jumps import jumps
from mirage_nb.tile.rules.shared import CHUNK_BYTES, LINE_BYTES, PATTERN_ROWS
from mirage_nb.tile.rules.sketch import MATMULS, pairs
from mirage_nb.tile.rules.teams import low_columns, step
from mirage_nb.tile.rules.written_out import Node, WrittenOut, write_out

ROWS, COLUMNS, SUMMED, RANK = "m", "n", "k", "r"
"""The axes of a product; what a product behind the loop sums."""
OF_ROWS = frozenset({OpKind.SUM, OpKind.MAX})
"""What may be computed of all columns of a row."""
LEADING = ("b", "c", "d")
"""What grid dims are called that cut none of these."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A streamed operand, or a held one: its iterator, and the axis of each of its dimensions ("" for leading ones)."""

    attrs: InIterAttrs
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Factors:
    """One product."""

    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Added:
    """A product behind the loop. total: the accumulator that it is added to; left: a held operand, or the accumulator
    of a product of low rank; right: a held operand."""

    total: int
    left: Operand | int
    right: Operand

    @property
    def held(self) -> tuple[tuple[Operand, str], ...]:
        """The held operands, and the axis of each that is not summed."""
        right = (self.right, COLUMNS)
        return (right,) if isinstance(self.left, int) else ((self.left, ROWS), right)


@dataclass(frozen=True, slots=True)
class ProductBlock:
    """A block of products.

    dtype, other: the types of left and right operands. rows, columns: of the tile that the block makes; depth: of the
    summed axis, all iterations of a block. sums: value of each accumulator -> its products; `low`: of those that only
    products behind the loop read. held: value -> the iterator behind it, of operands that the loop does not change.
    added: value -> what is `Added`. Values are nodes.
    """

    block: BlockGraph
    written: WrittenOut
    dtype: DType
    other: DType
    rows: int
    columns: int
    depth: int
    sums: dict[int, tuple[Factors, ...]]
    low: dict[int, Factors]
    held: dict[int, InIterAttrs]
    added: dict[int, Added]

    @property
    def operands(self) -> set[Operand]:
        """All matrices."""
        found = {operand for f in (*self.factors, *self.low.values()) for operand in (f.left, f.right)}
        return found.union(operand for added in self.added.values() for operand, _ in added.held)

    @property
    def step(self) -> int:
        """Summed elements of a stage."""
        return step(min(self.dtype.size, self.other.size))

    @property
    def widened(self) -> bool:
        """Whether right operands are stored in bytes, and left ones are not."""
        return self.dtype in HALVES and self.other in BYTES

    @property
    def folded(self) -> bool:
        """Whether columns are folded behind the loop."""
        return any(node.kind in OF_ROWS for node in self.written.nodes)

    @property
    def factors(self) -> tuple[Factors, ...]:
        """The products of streamed operands that make rows and columns."""
        return tuple(factors for products in self.sums.values() for factors in products)

    def low_columns(self, rank: int) -> int:
        """Columns of accumulated products of low rank; 0 where there are none."""
        along = any(added.right.axes[-1] == RANK for added in self.added.values())
        return low_columns(rank, along=along) if self.low else 0

    @property
    def major(self) -> tuple[str, str] | None:
        """What runs along a line of left and right operands, "k" or their own axis "m"; None where no instructions
        take them: results of f32 and f64 would lie differently, elementwise functions are not those of f64, bytes are
        read with summed elements side by side, one product for every sum."""
        majors = {
            ("k" if f.left.axes[-1] == SUMMED else "m", "k" if f.right.axes[-1] == SUMMED else "m")
            for f in self.factors
        }
        if self.dtype not in HALVES and len(majors) > 1:
            return None
        if self.other in BYTES and (majors != {("k", "k")} or any(len(many) > 1 for many in self.sums.values())):
            return None
        computed = any(value not in self.sums for value, _ in self.written.saved)
        return None if self.dtype is DType.F64 and computed else min(majors)


NUMBER = ("",)
"""The axes of what has no dimensions, which says nothing against it."""


def distinct(operands: Collection[Operand], tensor: Callable[[InIterAttrs], Hashable]) -> bool:
    """Whether the dimensions of every tensor have one name each: none is two of these operands otherwise turned."""
    named = {(tensor(operand.attrs), operand.axes) for operand in operands}
    return len({read for read, _ in named}) == len(named)


def boxed(
    operand: Operand, tensor: Sequence[int], tile: Sequence[Any], over: Sequence[Any], step: int, size: int
) -> Any:
    """Whether boxes of the copy engine bring a tile, whose extents are numbers or arrays of them, in whole panels, with
    zeros where it hangs over the end: `over`, for every dimension. step: summed elements of a stage, each of `size`
    bytes."""
    panel = step if operand.axes[-1] in (SUMMED, RANK) else tile[-1]
    fits = np.equal(np.mod(np.multiply(panel, size), LINE_BYTES), 0) & (tensor[-1] * size % CHUNK_BYTES == 0)
    if math.prod(tensor[:-2]) > 1:
        for beyond in over[:-1]:
            fits = fits & ~np.asarray(beyond, bool)
        fits = fits & np.equal(np.mod(tile[-2], PATTERN_ROWS), 0)
    return fits


def find_product(block: BlockGraph, literal_args: frozenset[int]) -> ProductBlock | None:
    """The block as products, or None if it is more than that. literal_args: operands that are constants."""
    threads = (op.body.ops for op in block.ops if isinstance(op.body, ThreadGraph))
    if not block.has_loop or any(op.kind in MATMULS for ops in threads for op in ops):
        return None
    written = write_out(block)
    nodes = written.nodes
    sums: dict[int, tuple[Factors, ...]] = {}
    held: dict[int, InIterAttrs] = {}
    for value, node in enumerate(nodes):
        if not isinstance(node.attrs, AccumAttrs):
            continue
        source = nodes[node.inputs[0]].attrs
        if node.attrs.kind is AccumKind.SUM:
            found = _factors(block, nodes, node.inputs[0], literal_args)
            if not found:
                return None
            sums[value] = found
        elif node.attrs.kind is AccumKind.HOLD and isinstance(source, InIterAttrs) and source.fmap is None:
            held[value] = source
        else:
            return None
    every = (f for factors in sums.values() for f in factors)
    dtypes = {(block.args[f.left.attrs.arg].dtype, block.args[f.right.attrs.arg].dtype) for f in every}
    depths = {_depth(block, f) for factors in sums.values() for f in factors}
    if len(dtypes) != 1 or len(depths) != 1:
        return None
    dtype, other = dtypes.pop()
    matrices = {v: a for v, a in held.items() if a.arg not in literal_args and block.args[a.arg].dtype is dtype}
    added = _added(written, sums, matrices) if dtype in HALVES and other is dtype else {}
    low = {a.left: _of_rank(*sums.pop(a.left)) for a in added.values() if isinstance(a.left, int)}
    shapes = {nodes[v].shape[-2:] for v in sums}
    if len(shapes) != 1:
        return None
    ((rows, columns),) = shapes
    made = ProductBlock(block, written, dtype, other, rows, columns, depths.pop(), sums, low, held, added)
    plain = all(_plain(made, value, _axes(made, value)) for value, _ in written.saved)
    return made if plain and _beside(made) and not _compared(written.nodes) else None


def _compared(nodes: Sequence[Node]) -> bool:
    """Whether something jumps at what is folded. Who needs a value with columns computes it anew: such a value differs
    from the largest of its row, which it is, by a rounding."""
    folded = set[int]()
    for value, node in enumerate(nodes):
        if node.kind in OF_ROWS or not folded.isdisjoint(node.inputs):
            folded.add(value)
    return any(jumps(nodes[value]) for value in folded)


def _beside(made: ProductBlock) -> bool:
    """Whether products of low rank come of rows that are there anyway, by matrices of which each point of the grid has
    all columns; then nothing else is added behind the loop."""
    lefts = {f.left for f in made.factors}
    cut = {f.right.axes[dim] for f in made.low.values() for dim in f.right.attrs.imap if dim is not None}
    alike = not made.low or all(isinstance(added.left, int) for added in made.added.values())
    return alike and cut <= {SUMMED} and all(f.left in lefts and len(f.right.axes) == 2 for f in made.low.values())


def _of_rank(factors: Factors) -> Factors:
    """The factors of a product whose columns another product sums."""
    axes = tuple(RANK if axis == COLUMNS else axis for axis in factors.right.axes)
    return replace(factors, right=replace(factors.right, axes=axes))


def _added(
    written: WrittenOut, sums: Mapping[int, Sequence[Factors]], held: Mapping[int, InIterAttrs]
) -> dict[int, Added]:
    """The products that are added to an accumulator behind the loop, where nothing else reads them or it."""
    found: dict[int, Added] = {}
    nodes, saved = written.nodes, {value for value, _ in written.saved}
    low = {v for v, factors in sums.items() if len(factors) == len(written.uses[v]) == 1 and v not in saved}
    for pair in (node.inputs for node in nodes if node.kind is OpKind.ADD):
        for total, other in (pair, pair[::-1]):
            alone = nodes[total].shape == nodes[other].shape and saved.isdisjoint(pair)
            alone = alone and all(len(written.uses[v]) == 1 for v in pair)
            if total in sums and alone and (factors := _behind_loop(nodes, other, held, low)) is not None:
                found[other] = Added(total, *factors)
    return found


def _behind_loop(
    nodes: Sequence[Node], value: int, held: Mapping[int, InIterAttrs], low: Container[int]
) -> tuple[Operand | int, Operand] | None:
    """The matrices whose product a value is, seen through a transpose of it: two held ones, or an accumulator and a
    held one."""
    product, turned = _behind(nodes, value)
    if nodes[product].kind is not OpKind.MATMUL:
        return None
    inputs = nodes[product].inputs[::-1] if turned else nodes[product].inputs
    found: list[Operand | int] = []
    for operand, axes in zip(inputs, ((ROWS, RANK), (RANK, COLUMNS)), strict=True):
        source, swapped = _behind(nodes, operand)
        if len(nodes[source].shape) != 2:
            return None
        if source in low and swapped == turned:
            found.append(source)
        elif source in held:
            found.append(Operand(held[source], axes[::-1] if swapped ^ turned else axes))
        else:
            return None
    left, right = found
    return None if isinstance(right, int) else (left, right)


def _behind(nodes: Sequence[Node], value: int) -> tuple[int, bool]:
    """What a value is seen through transposes of matrices, and whether that is its transpose."""
    swapped = False
    while isinstance(attrs := nodes[value].attrs, TransposeAttrs) and attrs.perm == (1, 0):
        value, swapped = nodes[value].inputs[0], not swapped
    return value, swapped


def _depth(block: BlockGraph, factors: Factors) -> int:
    """The summed extent of one block."""
    shape = block.tile_shape(factors.left.attrs)
    return shape[factors.left.axes.index(SUMMED)] * block.loop


def _factors(block: BlockGraph, nodes: Sequence[Node], value: int, literal_args: frozenset[int]) -> tuple[Factors, ...]:
    """The products that a value of the loop adds up; none if it is something else."""
    node = nodes[value]
    if node.kind is OpKind.ADD and all(nodes[v].kind in MATMULS for v in node.inputs):
        first, second = (_factors(block, nodes, v, literal_args) for v in node.inputs)
        same = nodes[node.inputs[0]].shape == nodes[node.inputs[1]].shape
        return (*first, *second) if first and second and same else ()
    if node.kind not in MATMULS:
        return ()
    found = []
    for left_value, right_value in pairs(node.kind, node.inputs):
        left = _streamed(block, nodes, left_value, (ROWS, SUMMED))
        right = _streamed(block, nodes, right_value, (SUMMED, COLUMNS))
        if left is None or right is None or {left.attrs.arg, right.attrs.arg} & literal_args:
            return ()
        types = [block.args[operand.attrs.arg].dtype for operand in (left, right)]
        alike = types[0] is types[1] and types[0] in FLOATS
        if not alike and not FLOAT8.issuperset(types) and not (types[0] in HALVES and types[1] in BYTES):
            return ()
        found.append(Factors(left, right))
    return tuple(found)


def _streamed(block: BlockGraph, nodes: Sequence[Node], value: int, axes: tuple[str, str]) -> Operand | None:
    """The matrix with these axes behind a value, if the loop cuts it along the summed axis only."""
    node = nodes[value]
    while isinstance(node.attrs, TransposeAttrs):
        rank = len(node.attrs.perm)
        if node.attrs.perm != (*range(rank - 2), rank - 1, rank - 2):
            return None
        axes = axes[::-1]
        node = nodes[node.inputs[0]]
    if not isinstance(node.attrs, InIterAttrs):
        return None
    tile = block.tile_shape(node.attrs)
    named = (*("",) * (len(tile) - 2), *axes)
    if len(tile) < 2 or math.prod(tile[:-2]) != 1 or (block.loop > 1 and node.attrs.fmap != named.index(SUMMED)):
        return None
    return Operand(node.attrs, named)


def _axes(made: ProductBlock, value: int) -> tuple[str, ...]:
    """What the dimensions of a saved value are: its two that are not of extent 1, in this order, or its rows alone."""
    shape = made.written.nodes[value].shape
    long = [extent for extent in shape if extent > 1]
    if long != [made.rows, made.columns] and not (made.folded and long == [made.rows]):
        return ()
    names = iter((ROWS, COLUMNS))
    return tuple(next(names) if extent > 1 else "" for extent in shape)


def _plain(made: ProductBlock, value: int, axes: tuple[str, ...]) -> bool:
    """Whether a value with these axes comes from accumulators and held operands through elementwise operators and folds
    of columns; of such a fold, if it has none."""
    nodes, seen, waiting = made.written.nodes, set[tuple[int, tuple[str, ...]]](), [(value, axes)]
    whole = COLUMNS in axes
    while waiting:
        value, axes = place = waiting.pop()
        node = nodes[value]
        if place in seen or ((value in made.held or node.kind is OpKind.CONST) and axes):
            continue
        seen.add(place)
        if value in made.sums or value in made.added:
            if tuple(a for a in axes if a) != (ROWS, COLUMNS):
                return False
        elif axes and node.kind is OpKind.RESHAPE:
            waiting.append((node.inputs[0], reshaped(axes, node.shape, nodes[node.inputs[0]].shape) or ()))
        elif axes and Trait.ELEMENTWISE in OPS[node.kind].traits:
            waiting += [(v, broadcast_axes(axes, nodes[v].shape)) for v in node.inputs]
        elif axes and node.kind in OF_ROWS and _multiplied(made, node.inputs[0], dim_of(node)):
            waiting.append((node.inputs[0], unfolded(axes, dim_of(node))))
            whole = True
        else:
            return False
    return whole


def _multiplied(made: ProductBlock, value: int, dim: int) -> bool:
    """Whether a value is computed of accumulators and has all of their columns along a dimension."""
    nodes, found = made.written.nodes, {*made.sums}
    for number, node in enumerate(nodes):
        if not found.isdisjoint(node.inputs):
            found.add(number)
    return value in found and nodes[value].shape[dim] == made.columns


def dim_of(node: Node) -> int:
    """The dimension that a node folds."""
    assert isinstance(node.attrs, DimAttrs)
    return node.attrs.dim


def unfolded(axes: tuple[str, ...], dim: int) -> tuple[str, ...]:
    """The axes of what is folded over columns along a dimension to a result with these; none where it has no rows."""
    inside = (*axes[:dim], COLUMNS, *axes[dim + 1 :])
    return inside if not axes[dim] and {*inside} >= {ROWS, COLUMNS} and COLUMNS not in axes else ()


def reshaped(axes: tuple[str, ...], shape: tuple[int, ...], source: tuple[int, ...]) -> tuple[str, ...] | None:
    """The axes of what is reshaped, where nothing but dimensions of extent 1 come and go; else None."""
    if [e for e in shape if e > 1] != [e for e in source if e > 1]:
        return None
    long = iter([axis for axis, extent in zip(axes, shape, strict=axes != NUMBER) if extent > 1])
    return tuple(next(long) if extent > 1 else "" for extent in source) or NUMBER


def broadcast_axes(axes: tuple[str, ...], shape: tuple[int, ...]) -> tuple[str, ...]:
    """The axes of an operand of `shape` that is broadcast to a result with these axes."""
    if not shape:
        return NUMBER
    tail = axes[len(axes) - len(shape) :]
    return tuple(axis if extent > 1 else "" for axis, extent in zip(tail, shape, strict=True))
