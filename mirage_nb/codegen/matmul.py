"""Matrix multiplications of a block: mma.m16n8k16 fragments, or scalar products for other element types.

In: a MATMUL step and its tiling. Out: statements that add the product to registers `a<value>`, and those
that bring the registers to shared memory. Invariant: pieces beyond the extents are read from addresses that
exist (rows, columns) or as zeros (depth), and are never stored.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from mirage_nb.codegen.index import Index, named, unravel
from mirage_nb.codegen.maps import Walk, each, each_slot
from mirage_nb.codegen.reader import Reader, Scope, locate, view
from mirage_nb.codegen.thread_values import Multi, broadcast_index
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.ir import HALVES
from mirage_nb.optimize.tiling import Tiling
from mirage_nb.tile.placement import Place, Step
from mirage_nb.tile.sharing import COLUMN_TILE, DEPTH_TILE, ROW_TILE
from mirage_nb.tile.sketch import pairs

UNROLL_LIMIT = 8
"""Depth tiles that are unrolled; more of them stay a loop."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of the product as the instruction sees it: [batch, side, depth].

    transposed: the value's last dimension is `side`, not depth.
    """

    value: int
    batch: tuple[int, ...]
    extent: int
    depth: int
    transposed: bool

    def index(self, scope: Scope, batch: Index, side: Index, depth: Index) -> Multi:
        """The index into the value."""
        lead = unravel(batch, self.batch)
        inner = (depth, side) if self.transposed else (side, depth)
        shape = scope.shape(self.value)
        return broadcast_index((*lead, *inner), shape)


def sides(scope: Scope, tiling: Tiling, left: int, right: int) -> tuple[Operand, Operand]:
    """The operand on the 16 rows and the one on the 8 columns of the instruction."""
    batch = np.broadcast_shapes(scope.shape(left)[:-2], scope.shape(right)[:-2])
    depth = scope.shape(left)[-1]
    first = Operand(left, batch, scope.shape(left)[-2], depth, transposed=False)
    second = Operand(right, batch, scope.shape(right)[-1], depth, transposed=True)
    return (second, first) if tiling.swapped else (first, second)


def registers(scope: Scope, op: int) -> int:
    """f32 registers of a Matmul's accumulator, as a flat count for scalar products."""
    tiling = scope.staged.tiling(op)
    if tiling is None:
        shape = scope.shape(scope.first[op])
        return Walk(shape, 1).slots(scope.threads)
    b, r, c, _ = tiling.per_warp
    return b * r * c * 4


def emit_matmul(out: Writer, scope: Scope, step: Step) -> None:
    """One Matmul or ConcatMatmul: into accumulator registers, or through them into its shared tile."""
    op = scope.block.ops[step.op]
    tiling = scope.staged.tiling(step.op)
    if tiling is None:
        _scalar(out, scope, step)
        return
    value = scope.first[step.accum] if step.accum is not None else scope.first[step.op]
    with out.block():
        warp_place(out, tiling)
        if step.accum is None:
            b, r, c, _ = tiling.per_warp
            out.line(f"float a{value}[{b}][{r}][{c}][4] = {{}};")
        for number, (left, right) in enumerate(pairs(op.kind, op.inputs)):
            rows, columns = sides(scope, tiling, left, right)
            emit_product(out, scope, tiling, rows, columns, f"a{value}", number)
        if step.value is not None:
            store_fragments(out, scope, tiling, step.value, value)


def warp_place(out: Writer, tiling: Tiling) -> None:
    """Name this warp's place in the split."""
    inner = 1
    for name, count in zip(("warp_k", "warp_c", "warp_r", "warp_b"), reversed(tiling.split), strict=True):
        if count > 1:
            out.line(f"const int {name} = warp{f' / {inner}' if inner > 1 else ''} % {count};")
        inner *= count


def _used_warps(tiling: Tiling) -> int:
    b, r, c, k = tiling.split
    return b * r * c * k


def emit_product(
    out: Writer, scope: Scope, tiling: Tiling, rows: Operand, columns: Operand, target: str, number: int, held: str = ""
) -> None:
    """target += rows @ columns, over this warp's share of the tiles.

    held: registers [depth tile][row tile][4] that have the row side already.
    """
    b, r, c, _ = tiling.per_warp
    depth = -(-rows.depth // DEPTH_TILE)
    share = -(-depth // tiling.split[3])
    used = _used_warps(tiling)
    element = c_type(scope.block.types[rows.value].dtype)
    if not held:
        gather_lambda(out, scope, rows, f"row_side{number}")
    gather_lambda(out, scope, columns, f"column_side{number}")
    side = f"{held}[k]" if held else "p"
    some = out.block(f"if (warp < {used})") if used < scope.plan.options.warps else nullcontext()
    with some, out.unrolled("k", share, UNROLL_LIMIT, always=True):
        depth_tile = named("warp_k", tiling.split[3]) * share + named("k", share)
        if share * tiling.split[3] > depth:
            out.line(f"if ({depth_tile.bare} >= {depth}) continue;")
            depth_tile = Index(((f"({depth_tile.bare})", depth, 1),))
        with out.unrolled("b", b) as at_b:
            if not held:
                out.line(f"uint32_t p[{r}][4];")
            out.line(f"uint32_t q[{c}][2];")
            batch = clamped(named("warp_b", tiling.split[0]) * b + named("b", b), tiling.batch)
            if not held:
                load_rows(out, scope, tiling, rows, batch, depth_tile * DEPTH_TILE, f"row_side{number}", "p")
            load_columns(out, scope, tiling, columns, batch, depth_tile * DEPTH_TILE, f"column_side{number}", element)
            with out.unrolled("r", r) as at_r, out.unrolled("c", c) as at_c:
                out.line(f"mma_m16n8k16<{element}>({target}[{at_b}][{at_r}][{at_c}], {side}[{at_r}], q[{at_c}]);")


def clamped(index: Index, extent: int) -> Index:
    """The index, or the last one that exists."""
    if index.limit < extent:
        return index
    return Index(((f"({index} < {extent} ? {index} : {extent - 1})", extent, 1),))


def trace(scope: Scope, value: int, index: Multi) -> tuple[int, Multi]:
    """The leaf behind a chain of views, and the index into it."""
    while scope.plan.places[value] is Place.VIEW:
        value, index, _ = view(scope, scope.ops[value], index, None)
    return value, index


def contiguous_side(scope: Scope, operand: Operand) -> str | None:
    """'side' or 'depth': what lies along 16-byte chunks for ldmatrix; None: it has to be gathered."""
    if operand.depth % DEPTH_TILE:
        return None
    rank = len(scope.shape(operand.value))
    probe = operand.index(scope, Index(), named("SIDE", operand.extent), named("DEPTH", operand.depth))
    leaf, index = trace(scope, operand.value, probe)
    if scope.plan.places[leaf] is not Place.SHARED or rank < 2:
        return None
    layout = scope.staged.buffer(leaf).layout
    inner = [
        d
        for d, (stride, extent) in enumerate(zip(layout.strides, layout.shape, strict=True))
        if stride == 1 and extent > 1
    ]
    others = [s for d, s in enumerate(layout.strides) if d not in inner]
    if layout.dtype not in HALVES or len(inner) != 1 or any(s % 8 for s in others):
        return None
    position = index[inner[0]]
    elsewhere = [part for d, part in enumerate(index) if d != inner[0]]
    for name, extent, label in (("SIDE", operand.extent, "side"), ("DEPTH", operand.depth, "depth")):
        alone = position == named(name, extent) and extent == layout.shape[inner[0]]
        if alone and extent % 8 == 0 and not any(name in str(part) for part in elsewhere):
            return label
    return None


def _address(scope: Scope, operand: Operand, batch: Index, side: Index, depth: Index) -> str:
    leaf, index = trace(scope, operand.value, operand.index(scope, batch, side, depth))
    found = locate(scope, leaf, index, None)
    return f"{found.pointer} + {found.offset}"


def load_rows(
    out: Writer, scope: Scope, tiling: Tiling, operand: Operand, batch: Index, depth: Index, gather: str, target: str
) -> None:
    """The 16-row fragments of a depth tile into registers `target[row tile][4]`."""
    element = c_type(scope.block.types[operand.value].dtype)
    r = tiling.per_warp[1]
    tile = (named("warp_r", tiling.split[1]) * r + named("r", r)) * ROW_TILE
    along = contiguous_side(scope, operand)
    with out.unrolled("r", r) as at_r:
        if along is None:
            with out.unrolled("i", 4):
                out.line(f"const int row = {tile.bare} + mma_a_row(lane, i);")
                out.line(f"const int depth = {depth.bare} + mma_a_k(lane, i);")
                _gathered(out, operand, batch, gather, element, f"{target}[{at_r}][i]", "row")
        elif along == "depth":
            row = clamped(tile + named("lane % 16", 16), operand.extent)
            at = _address(scope, operand, batch, row, depth + named("lane / 16", 2) * 8)
            out.line(f"ldmatrix_x4({target}[{at_r}], {at});")
        else:
            row = _clamped_chunk(tile + named("lane / 8 % 2", 2) * 8, operand.extent)
            at = _address(scope, operand, batch, row, depth + named("lane % 8", 8) + named("lane / 16", 2) * 8)
            out.line(f"ldmatrix_x4_trans({target}[{at_r}], {at});")


def load_columns(
    out: Writer, scope: Scope, tiling: Tiling, operand: Operand, batch: Index, depth: Index, gather: str, element: str
) -> None:
    """Fragments `q` of the operand on the 8 side, for all column tiles of the warp."""
    c = tiling.per_warp[2]
    base = named("warp_c", tiling.split[2]) * (c * COLUMN_TILE)
    along = contiguous_side(scope, operand)
    if along is None:
        with out.unrolled("c", c) as at_c, out.unrolled("i", 2):
            out.line(f"const int column = {(base + named('c', c) * COLUMN_TILE).bare} + mma_b_column(lane);")
            out.line(f"const int depth = {depth.bare} + mma_b_k(lane, i);")
            _gathered(out, operand, batch, gather, element, f"q[{at_c}][i]", "column")
        return
    trans = "" if along == "depth" else "_trans"
    if c > 1:
        with out.unrolled("c", c // 2) as at_c:
            tile = base + named("c", c // 2) * (2 * COLUMN_TILE) + named("lane / 16", 2) * 8
            at = _column_address(scope, operand, batch, tile, depth, along)
            out.line("uint32_t both[4];")
            out.line(f"ldmatrix_x4{trans}(both, {at});")
            out.line(f"q[2 * {at_c}][0] = both[0], q[2 * {at_c}][1] = both[1];")
            out.line(f"q[2 * {at_c} + 1][0] = both[2], q[2 * {at_c} + 1][1] = both[3];")
    if c % 2:
        at = _column_address(scope, operand, batch, base + (c - 1) * COLUMN_TILE, depth, along)
        out.line(f"ldmatrix_x2{trans}(q[{c - 1}], {at});")


def _column_address(scope: Scope, operand: Operand, batch: Index, tile: Index, depth: Index, along: str) -> str:
    half = named("lane / 8 % 2", 2) * 8
    if along == "depth":
        column = clamped(tile + named("lane % 8", 8), operand.extent)
        return _address(scope, operand, batch, column, depth + half)
    column = _clamped_chunk(tile, operand.extent)
    return _address(scope, operand, batch, column, depth + named("lane % 8", 8) + half)


def _clamped_chunk(index: Index, extent: int) -> Index:
    """As `clamped`, for the first of eight; both are multiples of eight."""
    return clamped(index // 8, extent // 8) * 8


def _gathered(out: Writer, operand: Operand, batch: Index, gather: str, element: str, target: str, side: str) -> None:
    """Two neighbours along depth from anywhere, zeros beyond the extents."""
    out.line(f"const bool inside = {side} < {operand.extent};")
    first, second = (
        f"inside && depth{offset} < {operand.depth} ? {gather}({batch.bare}, {side}, depth{offset}) : 0.0f"
        for offset in ("", " + 1")
    )
    out.line(f"{target} = pack2<{element}>({first}, {second});")


def gather_lambda(out: Writer, scope: Scope, operand: Operand, name: str) -> None:
    """A function that reads one element of an operand that ldmatrix cannot take."""
    if contiguous_side(scope, operand) is not None:
        return
    reader = Reader(scope)
    batch = named("batch", math.prod(operand.batch))
    index = operand.index(scope, batch, named("side", operand.extent), named("depth", operand.depth))
    result = reader.read(operand.value, index, None)
    with out.block(f"const auto {name} = [&](int batch, int side, int depth) -> float", tail="};"):
        out.lines([*reader.loads, *reader.body, f"return {result};"])


def store_fragments(out: Writer, scope: Scope, tiling: Tiling, value: int, source: int) -> None:
    """Fragments in registers `a<source>` go to the shared tile of `value`, each depth share to its own copy."""
    b, r, c, _ = tiling.per_warp
    shape = scope.shape(value)
    target = c_type(scope.plan.stored[value])
    guard = f"if (warp < {_used_warps(tiling)})" if _used_warps(tiling) < scope.plan.options.warps else ""
    with (
        out.block(guard),
        out.unrolled("b", b) as at_b,
        out.unrolled("r", r) as at_r,
        out.unrolled("c", c) as at_c,
        out.unrolled("i", 4) as at_i,
    ):
        batch, batch_checks = _coordinate(out, "batch", _share(tiling, 0, at_b), "", 1, tiling.batch)
        rows = _share(tiling, 1, at_r) * ROW_TILE
        row, row_checks = _coordinate(out, "row", rows, f"mma_d_row(lane, {at_i})", ROW_TILE, tiling.rows)
        columns = _share(tiling, 2, at_c) * COLUMN_TILE
        inside = f"mma_d_column(lane, {at_i})"
        column, column_checks = _coordinate(out, "column", columns, inside, COLUMN_TILE, tiling.columns)
        inner = (column, row) if tiling.swapped else (row, column)
        leaf = locate(scope, value, (*unravel(batch, shape[:-2]), *inner), None)
        copy = f"warp_k * {leaf.copy_elements} + " if leaf.copies > 1 else ""
        checks = [*batch_checks, *row_checks, *column_checks]
        when = f"if ({' && '.join(checks)}) " if checks else ""
        register = f"a{source}[{at_b}][{at_r}][{at_c}][{at_i}]"
        out.line(f"{when}{leaf.pointer}[{copy}{leaf.offset}] = from_float<{target}>({register});")


def _share(tiling: Tiling, axis: int, local: str) -> Index:
    """The tile along `axis` (batch, rows, columns) that a warp's local tile is."""
    warp = ("warp_b", "warp_r", "warp_c")[axis]
    count = tiling.per_warp[axis]
    return named(warp, tiling.split[axis]) * count + named(local, count)


def _coordinate(out: Writer, name: str, tile: Index, inside: str, reach: int, extent: int) -> tuple[Index, list[str]]:
    """Name a coordinate of the product; conditions under which it exists."""
    expression = tile + named(inside, reach)
    if reach == 1 and expression.limit < extent:
        return expression, []
    out.line(f"const int {name} = {expression.bare};")
    return named(name, extent), [f"{name} < {extent}"] if expression.limit >= extent else []


def emit_finish_matmul(out: Writer, scope: Scope, step: Step, source: int) -> None:
    """The accumulator of Matmul `source` goes to its shared tile."""
    assert step.value is not None
    tiling = scope.staged.tiling(source)
    if tiling is not None:
        with out.block():
            warp_place(out, tiling)
            store_fragments(out, scope, tiling, step.value, step.value)
        return
    walked = Walk(scope.shape(step.value), 1)
    with each_slot(out, scope, walked) as (index, s):
        leaf = locate(scope, step.value, index, None)
        out.line(f"{leaf.pointer}[{leaf.offset}] = a{step.value}[{s}];")


def _scalar(out: Writer, scope: Scope, step: Step) -> None:
    """Each thread computes whole elements of the product."""
    result = scope.first[step.op]
    walked = Walk(scope.shape(result), 1)
    if step.accum is not None:
        with each_slot(out, scope, walked) as (index, s):
            _dot(out, scope, step.op, index, f"a{scope.first[step.accum]}[{s}]")
        return
    with each(out, scope, walked) as index:
        out.line("float sum = 0.0f;")
        _dot(out, scope, step.op, index, "sum")
        leaf = locate(scope, result, index, None)
        out.line(f"{leaf.pointer}[{leaf.offset}] = from_float<{c_type(scope.plan.stored[result])}>(sum);")


def _dot(out: Writer, scope: Scope, op: int, index: Multi, target: str) -> None:
    """target += the products at `index`."""
    product = scope.block.ops[op]
    for left, right in pairs(product.kind, product.inputs):
        depth = scope.shape(left)[-1]
        with out.block(f"for (int k = 0; k < {depth}; ++k)"):
            reader = Reader(scope)
            k = named("k", depth)
            a = reader.read(left, broadcast_index((*index[:-1], k), scope.shape(left)), None)
            b = reader.read(right, broadcast_index((*index[:-2], k, index[-1]), scope.shape(right)), None)
            out.lines([*reader.loads, *reader.body, f"{target} += {a} * {b};"])
