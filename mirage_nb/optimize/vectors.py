"""How the threads of a block share tiles: vectors of elementwise steps, lanes of reductions, copies, sides of products.

In: the scope of a planned block, a value or an operator of it. Out: `Vectors`, a `Share`, a copy, a `Side`. Invariant:
one index reaches all elements of a vector, of every value that is read for it; what the engine of the threads copies at
once is aligned at both ends.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mirage_nb.ir import BYTES, HALVES, DimAttrs, InIterAttrs, OpKind, RepeatAttrs, ReshapeAttrs
from mirage_nb.optimize.access import Scope, operand_leaf, trace
from mirage_nb.tile.index import Index, dims_behind, named, reshaped_dim
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.rules.shared import CHUNK_BYTES
from mirage_nb.tile.rules.sharing import DEPTH_TILE, PATCH_WIDTH, Patches, Share, Side, Squares, Tiling, Vectors, patch
from mirage_nb.tile.rules.squares import across, square
from mirage_nb.tile.staged.program import Carry, Fill

VECTOR = 8
"""Elements that a thread takes at once, where the tile allows it."""
BLOCK_RESULTS = 4
"""Up to this many long reductions are done one after the other by the whole block."""
BATCH = 8
"""Elements that a thread asks for at once where no copy of several is possible."""


def vectors(scope: Scope, value: int, *, computed: bool = False, whole: int = VECTOR) -> Vectors:
    """The widest vectors that the value's views allow and that still leave work for all threads.

    `computed`: the step computes `value` itself; otherwise it reads it. `whole`: elements of the rows that they go to:
    vectors of such that begin anywhere are stored one by one, by threads that lie far apart.
    """
    shape = scope.shape(value)
    for width in (VECTOR, 4, 2) if shape else ():
        enough = math.prod(shape) // width >= scope.threads or width == 2
        if math.gcd(shape[-1], whole) % width or not enough:
            continue
        if vectorizes(scope, value, len(shape) - 1, width, computed=computed):
            return Vectors(shape, width)
    return Vectors(shape, 1)


def stored(scope: Scope, value: int, whole: int) -> Vectors:
    """Those of a value that is saved where so many elements lie behind each other: of one that lies across what it is
    computed of, squares."""
    lies, shape = across(scope.block, scope.plan.places, value), scope.shape(value)
    if lies is None:
        return vectors(scope, value, whole=whole)
    dim, leaf = lies
    run = shape[dim]
    if scope.plan.places[leaf] is Place.DEVICE:
        run = math.gcd(run, scope.block.args[scope.reads[leaf].arg].shape[-1])
    size = max(scope.block.types[value].dtype.size, scope.plan.stored[leaf].size)
    found = square(math.gcd(shape[-1], whole), run, math.prod(shape), scope.threads, size)
    width, rows = map(int, found)
    able = rows > 1 and (width == 1 or vectorizes(scope, value, len(shape) - 1, width))
    return Squares(shape, width, dim, rows) if able else vectors(scope, value, whole=whole)


def vectorizes(scope: Scope, value: int, dim: int | None, width: int, *, computed: bool = False) -> bool:
    """Whether `width` consecutive elements along `dim` can be read with one index."""
    found = {(value, dim)}
    waiting = _vector_operands(scope, value, dim, width, computed=computed)
    while waiting:
        operand = waiting.pop()
        if operand not in found:
            found.add(operand)
            behind = _vector_operands(scope, *operand, width)
            waiting = None if behind is None else waiting + behind
    return waiting is not None


def _vector_operands(
    scope: Scope, value: int, dim: int | None, width: int, *, computed: bool = False
) -> list[tuple[int, int | None]] | None:
    """The operands that have to be read so, and the vector dimension of each, for a value to be; None if it cannot."""
    place = scope.plan.places[value]
    if dim is None or place in (Place.LITERAL, Place.COUNTED, Place.DEVICE):
        return []
    if place is Place.SHARED and not computed:
        layout = scope.buffers[value].layout
        return [] if not layout.swizzle or width * layout.dtype.size <= CHUNK_BYTES else None
    op, shape = scope.ops[value], scope.shape(value)
    match op.attrs:
        case ReshapeAttrs() if reshaped_dim(shape, source := scope.shape(op.inputs[0]), dim) is None:
            fits = dim == len(shape) - 1 and bool(source) and source[-1] % width == 0 == shape[-1] % width
            return [(op.inputs[0], len(source) - 1)] if fits else None
        case RepeatAttrs(along) | DimAttrs(along) if op.kind in (OpKind.REPEAT, OpKind.CONCAT) and along == dim:
            whole = all(scope.shape(v)[dim] % width == 0 for v in op.inputs)
            return [(v, dim) for v in op.inputs] if whole else None
        case _:
            return list(dims_behind(scope.block, op, scope.results[value], dim))


def share(scope: Scope, op_index: int) -> Share:
    """Split a reduction over the threads of the block."""
    op = scope.block.ops[op_index]
    assert isinstance(op.attrs, DimAttrs)
    shape, dim, threads = scope.shape(op.inputs[0]), op.attrs.dim, scope.threads
    extent, width = shape[dim], 1
    results = math.prod(shape) // extent
    if sides := _patch(scope, op.inputs, shape, dim):
        able = extent % PATCH_WIDTH == 0 and vectorizes(scope, op.inputs[0], dim, PATCH_WIDTH)
        return Share(shape, dim, PATCH_WIDTH if able else 1, 1, results // threads, False, sides)
    if dim == len(shape) - 1:
        fitting = (w for w in (8, 4, 2) if extent % w == 0 and vectorizes(scope, op.inputs[0], dim, w))
        width = next(fitting, 1)
    steps = extent // width
    if results <= BLOCK_RESULTS and steps >= threads // 2:
        return Share(shape, dim, width, threads, results, True)
    lanes = 1
    while lanes < 32 and lanes * 2 <= steps and results * lanes < threads:
        lanes *= 2
    return Share(shape, dim, width, lanes, -(-results * lanes // threads), False)


def multiplied(scope: Scope, value: int) -> Vectors:
    """The elements of a product of each thread that computes whole ones: patches, where all have as many."""
    *lead, rows, columns = shape = scope.shape(value)
    high, wide = map(int, patch(rows, columns, math.prod(shape), scope.threads))
    return Patches(shape, 1, (*(1 for _ in lead), high, wide)) if high else Vectors(shape, 1)


def _patch(scope: Scope, operands: tuple[int, ...], shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """The results along each dimension that a thread folds at once, where it reads smaller values alone for them."""
    kept = [d for d in range(len(shape)) if d != dim]
    if len(operands) > 1 or len(kept) < 2 or operands[0] not in scope.staged.outer:
        return ()
    *_, rows, columns = kept
    results = math.prod(shape[d] for d in kept)
    high, wide = map(int, patch(shape[rows], shape[columns], results, scope.threads))
    return tuple(high if d == rows else wide if d == columns else 1 for d in range(len(shape))) if high else ()


# -- copies by all threads


def copied(scope: Scope, value: int, iteration: Index) -> Fill | Carry:
    """How all threads copy a tile from device memory: 16, 8 or 4 bytes at a time if alignment allows, else through
    registers, single elements or vectors that begin anywhere."""
    attrs, layout, shape = scope.reads[value], scope.buffers[value].layout, scope.shape(value)
    if width := _copy_width(scope, value, attrs, iteration):
        return Fill(value, Vectors(shape, width))
    window, found = scope.windows.get(attrs.arg), Vectors(shape, 1)
    if (
        layout.dtype.size == 2
        and layout.strides[-1] == 1
        and (window is None or (window.strides[-1] == 1 and window.inside[-1] is None))
        and not any(s % VECTOR for s in (layout.shape[-1], *layout.strides[:-1]))
    ):
        found = Vectors(layout.shape, VECTOR)
    return Carry(value, found, min(BATCH // (4 if found.width > 1 else 1), found.slots(scope.threads)))


def _copy_width(scope: Scope, value: int, attrs: InIterAttrs, iteration: Index) -> int:
    """Elements per asynchronous copy, 0 if none is possible."""
    layout = scope.buffers[value].layout
    shape, size = layout.shape, layout.dtype.size
    if not shape or layout.strides[-1] != 1:
        return 0
    for nbytes in (16, 8, 4):
        width = nbytes // size
        if not width or shape[-1] % width or any(s % width for s in layout.strides[:-1]):
            continue
        counted = Vectors(shape, width).counted
        *outer, last = (named(f"i{d}", extent) for d, extent in enumerate(counted))
        if operand_leaf(scope, attrs, (*outer, last * width), iteration, len(shape) - 1, width).whole:
            return width
    return 0


# -- sides of products


def sides(scope: Scope, tiling: Tiling, left: int, right: int, *, alone: bool = True) -> tuple[Side, Side]:
    """The operand on the 16 rows and the one on the 8 columns of the instruction. alone: no other product goes into the
    same registers."""
    batch = np.broadcast_shapes(scope.shape(left)[:-2], scope.shape(right)[:-2])
    depth = scope.shape(left)[-1]
    first = _laid(scope, Side(left, batch, scope.shape(left)[-2], depth, transposed=False))
    second = _laid(scope, Side(right, batch, scope.shape(right)[-1], depth, transposed=True))
    rows, columns = (second, first) if tiling.swapped else (first, second)
    if any(_in_bytes(scope, side) and side.along == "depth" for side in (rows, columns)):
        return _in_fours(rows), _in_fours(columns)
    if rows.along and columns.along and _in_bytes(scope, rows) and _in_bytes(scope, columns):
        rows = replace(rows, along="")  # results lie otherwise along one of them only
    able = alone and (tiling.per_warp[2] % 2 == 0 or not _in_bytes(scope, columns))
    if not able:
        rows, columns = (replace(s, along="") if _in_bytes(scope, s) else s for s in (rows, columns))
    return rows, columns


def _in_bytes(scope: Scope, side: Side) -> bool:
    return scope.block.types[side.value].dtype in BYTES


def _in_fours(side: Side) -> Side:
    return replace(side, fours=True, along=side.along if side.along == "depth" else "")


def _laid(scope: Scope, side: Side) -> Side:
    """What of it lies along 16-byte chunks for ldmatrix."""
    shape = scope.shape(side.value)
    if side.depth % DEPTH_TILE or len(shape) < 2:
        return side
    probe = side.index(shape, Index(), named("SIDE", side.extent), named("DEPTH", side.depth))
    leaf, index = trace(scope, side.value, probe)
    if scope.plan.places[leaf] is not Place.SHARED:
        return side
    layout = scope.buffers[leaf].layout
    lying = list(zip(layout.strides, layout.shape, strict=True))
    inner = [d for d, (stride, extent) in enumerate(lying) if stride == 1 and extent > 1]
    others = [s for d, s in enumerate(layout.strides) if d not in inner]
    chunk = CHUNK_BYTES // layout.dtype.size
    if layout.dtype not in HALVES | BYTES or len(inner) != 1 or any(s % chunk for s in others):
        return side
    position = index[inner[0]]
    elsewhere = [part for d, part in enumerate(index) if d != inner[0]]
    for name, extent, along in (("SIDE", side.extent, "side"), ("DEPTH", side.depth, "depth")):
        alone = position == named(name, extent) and extent == layout.shape[inner[0]]
        if alone and extent % chunk == 0 and not any(name in str(part) for part in elsewhere):
            return replace(side, along=along)
    return side
