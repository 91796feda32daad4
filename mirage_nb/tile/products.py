"""Blocks that are products with something elementwise behind them, seen as such.

In: a block graph. Out: a `ProductBlock`: its accumulated products, each a sum of `Factors`, and what the savers leave.
Nothing is decided here but that the block is one: a for-loop over the summed axis in which nothing is computed but
products of two streamed operands (seen through transposes), sums of those, and held operands; after it elementwise
operators only, and products of held operands that are added to an accumulator (of low rank, as in LoRA). Invariant:
rows and columns of every accumulator are the last two dimensions of a tile, all others are of extent 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_nb.ir import (
    HALVES,
    OPS,
    AccumAttrs,
    AccumKind,
    BlockGraph,
    DType,
    InIterAttrs,
    Op,
    OpKind,
    OutSaverAttrs,
    ThreadGraph,
    Trait,
    TransposeAttrs,
)
from mirage_nb.tile.rules import CHUNK_BYTES, PATTERN_ROWS
from mirage_nb.tile.shared import LINE_BYTES
from mirage_nb.tile.sketch import MATMULS, pairs

ROWS, COLUMNS, SUMMED, RANK = "m", "n", "k", "r"
"""The axes of a product; what a product of held operands sums."""


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
class ProductBlock:
    """A block of products.

    rows, columns: of the tile that the block makes; depth: of the summed axis, all iterations of a block. sums: value
    of each accumulator -> its products. held: value -> the iterator behind it, of operands that the loop does not
    change. added: product of held operands -> the accumulator that it is added to, its factors. defined: value -> its
    operator and which of the operator's results it is. saved: for every output its value.
    """

    block: BlockGraph
    dtype: DType
    rows: int
    columns: int
    depth: int
    sums: dict[int, tuple[Factors, ...]]
    held: dict[int, InIterAttrs]
    added: dict[int, tuple[int, Factors]]
    defined: dict[int, tuple[Op, int]]
    saved: tuple[tuple[int, OutSaverAttrs], ...]

    @property
    def factors(self) -> tuple[Factors, ...]:
        """All products of streamed operands."""
        return tuple(factors for products in self.sums.values() for factors in products)

    @property
    def major(self) -> tuple[str, str] | None:
        """What runs along a line of left and right operands, "k" or their own axis "m"; None where no instructions
        take them: results of f32 and f64 would lie differently, and elementwise functions are not those of f64."""
        majors = {
            ("k" if f.left.axes[-1] == SUMMED else "m", "k" if f.right.axes[-1] == SUMMED else "m")
            for f in self.factors
        }
        if self.dtype not in HALVES and len(majors) > 1:
            return None
        computed = any(value not in self.sums for value, _ in self.saved)
        return None if self.dtype is DType.F64 and computed else min(majors)


def boxed(operand: Operand, tensor: Sequence[int], tile: Sequence[Any], over: Sequence[Any], step: int) -> Any:
    """Whether boxes of the copy engine bring a tile, whose extents are numbers or arrays of them, in whole panels, with
    zeros where it hangs over the end: `over`, for every dimension. step: summed elements of a line."""
    size = LINE_BYTES // step
    panel = step if operand.axes[-1] in (SUMMED, RANK) else tile[-1]
    fits = np.equal(np.mod(np.multiply(panel, size), LINE_BYTES), 0) & (tensor[-1] * size % CHUNK_BYTES == 0)
    if math.prod(tensor[:-2]) > 1:
        for beyond in over[:-1]:
            fits = fits & ~np.asarray(beyond, bool)
        fits = fits & np.equal(np.mod(tile[-2], PATTERN_ROWS), 0)
    return fits


def find_product(block: BlockGraph, literal_args: frozenset[int]) -> ProductBlock | None:
    """The block as products, or None if it is more than that. literal_args: operands that are constants."""
    if not block.has_loop:
        return None
    defined = {v: (op, i) for op, values in block.definitions() for i, v in enumerate(values)}
    sums: dict[int, tuple[Factors, ...]] = {}
    held: dict[int, InIterAttrs] = {}
    for value, (op, _) in defined.items():
        if not isinstance(op.attrs, AccumAttrs):
            continue
        source = defined[op.inputs[0]][0]
        if op.attrs.kind is AccumKind.SUM:
            found = _factors(block, defined, op.inputs[0], literal_args)
            if not found:
                return None
            sums[value] = found
        elif op.attrs.kind is AccumKind.HOLD and isinstance(source.attrs, InIterAttrs) and source.attrs.fmap is None:
            held[value] = source.attrs
        else:
            return None
    saved = tuple((op.inputs[0], op.attrs) for op in block.savers if isinstance(op.attrs, OutSaverAttrs))
    shapes = {block.types[v].shape[-2:] for v in sums}
    dtypes = {block.args[f.left.attrs.arg].dtype for factors in sums.values() for f in factors}
    depths = {_depth(block, f) for factors in sums.values() for f in factors}
    if len(shapes) != 1 or len(dtypes) != 1 or len(depths) != 1:
        return None
    ((rows, columns),) = shapes
    dtype = dtypes.pop()
    matrices = {v: a for v, a in held.items() if a.arg not in literal_args and block.args[a.arg].dtype is dtype}
    added = _added(block, defined, sums, matrices if dtype in HALVES else {})
    made = ProductBlock(block, dtype, rows, columns, depths.pop(), sums, held, added, defined, saved)
    return made if all(_plain(made, value, _axes(made, value)) for value, _ in saved) else None


def _added(
    block: BlockGraph, defined: dict[int, tuple[Op, int]], sums: Mapping[int, object], held: Mapping[int, InIterAttrs]
) -> dict[int, tuple[int, Factors]]:
    """The products of held operands that are added to an accumulator, where nothing else reads them or it."""
    found: dict[int, tuple[int, Factors]] = {}
    readers = Counter(v for op in block.ops for v in op.inputs)
    for pair in _additions(block):
        for total, other in (pair, pair[::-1]):
            alone = readers[total] == readers[other] == 1 and block.types[total].shape == block.types[other].shape
            if total in sums and alone and (factors := _held_factors(block, defined, other, held)) is not None:
                found[other] = (total, factors)
    return found


def _additions(block: BlockGraph) -> Iterator[tuple[int, ...]]:
    """Pairs of values that are added, by an operator or inside of a chain that reads each of them once."""
    for op in block.ops:
        if op.kind is OpKind.ADD:
            yield op.inputs
        elif isinstance(op.body, ThreadGraph):
            reads = Counter(v for inner in op.body.ops for v in inner.inputs)
            for inner in op.body.ops:
                if inner.kind is OpKind.ADD and all(v < op.body.input_count and reads[v] == 1 for v in inner.inputs):
                    yield tuple(op.inputs[v] for v in inner.inputs)


def _held_factors(
    block: BlockGraph, defined: dict[int, tuple[Op, int]], value: int, held: Mapping[int, InIterAttrs]
) -> Factors | None:
    """The two held matrices whose product a value is, seen through a transpose of it."""
    op, turned = defined[value][0], False
    while isinstance(op.attrs, TransposeAttrs) and op.attrs.perm == (1, 0):
        op, turned = defined[op.inputs[0]][0], not turned
    if op.kind is not OpKind.MATMUL:
        return None
    left, right = (_held(block, defined, v, held) for v in (op.inputs[::-1] if turned else op.inputs))
    if left is None or right is None:
        return None
    (left_attrs, first), (right_attrs, second) = left, right
    swap = first ^ turned, second ^ turned
    axes = ((ROWS, RANK), (RANK, COLUMNS))
    operands = (left_attrs, right_attrs)
    return Factors(*(Operand(a, x[::-1] if s else x) for a, x, s in zip(operands, axes, swap, strict=True)))


def _held(
    block: BlockGraph, defined: dict[int, tuple[Op, int]], value: int, held: Mapping[int, InIterAttrs]
) -> tuple[InIterAttrs, bool] | None:
    """The iterator of a held matrix behind a value, and whether that is its transpose."""
    swapped = False
    while isinstance(attrs := defined[value][0].attrs, TransposeAttrs) and attrs.perm == (1, 0):
        value, swapped = defined[value][0].inputs[0], not swapped
    return (held[value], swapped) if value in held and len(block.types[value].shape) == 2 else None


def _depth(block: BlockGraph, factors: Factors) -> int:
    """The summed extent of one block."""
    shape = block.tile_shape(factors.left.attrs)
    return shape[factors.left.axes.index(SUMMED)] * block.loop


def _factors(
    block: BlockGraph, defined: dict[int, tuple[Op, int]], value: int, literal_args: frozenset[int]
) -> tuple[Factors, ...]:
    """The products that a value of the loop adds up; none if it is something else."""
    op = defined[value][0]
    if op.kind is OpKind.ADD:
        first, second = (_factors(block, defined, v, literal_args) for v in op.inputs)
        same = block.types[op.inputs[0]].shape == block.types[op.inputs[1]].shape
        return (*first, *second) if first and second and same else ()
    if op.kind not in MATMULS:
        return ()
    found = []
    for left_value, right_value in pairs(op.kind, op.inputs):
        left = _streamed(block, defined, left_value, (ROWS, SUMMED))
        right = _streamed(block, defined, right_value, (SUMMED, COLUMNS))
        if left is None or right is None or {left.attrs.arg, right.attrs.arg} & literal_args:
            return ()
        types = {block.args[operand.attrs.arg].dtype for operand in (left, right)}
        if len(types) > 1 or not types <= {DType.F16, DType.BF16, DType.F32, DType.F64}:
            return ()
        found.append(Factors(left, right))
    return tuple(found)


def _streamed(
    block: BlockGraph, defined: dict[int, tuple[Op, int]], value: int, axes: tuple[str, str]
) -> Operand | None:
    """The matrix with these axes behind a value, if the loop cuts it along the summed axis only."""
    op = defined[value][0]
    while isinstance(op.attrs, TransposeAttrs):
        rank = len(op.attrs.perm)
        if op.attrs.perm != (*range(rank - 2), rank - 1, rank - 2):
            return None
        axes = axes[::-1]
        op = defined[op.inputs[0]][0]
    if not isinstance(op.attrs, InIterAttrs):
        return None
    tile = block.tile_shape(op.attrs)
    named = (*("",) * (len(tile) - 2), *axes)
    if len(tile) < 2 or math.prod(tile[:-2]) != 1 or (block.loop > 1 and op.attrs.fmap != named.index(SUMMED)):
        return None
    return Operand(op.attrs, named)


def _axes(made: ProductBlock, value: int) -> tuple[str, ...]:
    """What the dimensions of a saved value are: its two that are not of extent 1, in this order."""
    shape = made.block.types[value].shape
    long = [extent for extent in shape if extent > 1]
    if long != [made.rows, made.columns]:
        return ()
    names = iter((ROWS, COLUMNS))
    return tuple(next(names) if extent > 1 else "" for extent in shape)


def _plain(made: ProductBlock, value: int, axes: tuple[str, ...]) -> bool:
    """Whether a value with these axes comes from accumulators and held operands through elementwise operators."""
    if not axes:
        return False
    op = made.defined[value][0]
    if value in made.sums or value in made.added:
        return tuple(a for a in axes if a) == (ROWS, COLUMNS)
    if value in made.held or op.kind is OpKind.CONST:
        return True
    if op.kind is OpKind.RESHAPE:
        inside = reshaped(axes, made.block.types[value].shape, made.block.types[op.inputs[0]].shape)
        return inside is not None and _plain(made, op.inputs[0], inside)
    inner = op.body.ops if isinstance(op.body, ThreadGraph) else (op,)
    if all(o.kind is OpKind.CONST or Trait.ELEMENTWISE in OPS[o.kind].traits for o in inner):
        return all(_plain(made, v, broadcast_axes(axes, made.block.types[v].shape)) for v in op.inputs)
    return False


def reshaped(axes: tuple[str, ...], shape: tuple[int, ...], source: tuple[int, ...]) -> tuple[str, ...] | None:
    """The axes of what is reshaped, where nothing but dimensions of extent 1 come and go; else None."""
    if [e for e in shape if e > 1] != [e for e in source if e > 1]:
        return None
    long = iter([axis for axis, extent in zip(axes, shape, strict=True) if extent > 1])
    return tuple(next(long) if extent > 1 else "" for extent in source)


def broadcast_axes(axes: tuple[str, ...], shape: tuple[int, ...]) -> tuple[str, ...]:
    """The axes of an operand of `shape` that is broadcast to a result with these axes."""
    if not shape:
        return ("",)  # a number has no axes, which says nothing against it
    tail = axes[len(axes) - len(shape) :]
    return tuple(axis if extent > 1 else "" for axis, extent in zip(tail, shape, strict=True))
