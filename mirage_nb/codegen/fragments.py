"""Warp-private loop bodies: one operator after the other on fragments in registers.

In: the FRAGMENT steps of a block plan with a region. Out: statements in which each warp computes its rows
(and its part of the key axis). A matrix value v is `f<v>[1][row tile][column tile][4]`, in the accumulator
layout of mma.m16n8k16; a column of row results is `f<v>[row tile][2]`, the same in the four lanes of a row.
Invariant: no shared memory is written before the loop is over; partial row sums of an accumulator are added
over the four lanes then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirage_nb.codegen.index import Index, named
from mirage_nb.codegen.matmul import (
    Operand,
    clamped,
    contiguous_side,
    emit_product,
    gather_lambda,
    load_columns,
    load_rows,
    sides,
    store_fragments,
    warp_place,
)
from mirage_nb.codegen.reader import Reader, Scope, behind_views, locate
from mirage_nb.codegen.thread_values import Multi
from mirage_nb.codegen.writer import TYPES, Writer, c_type
from mirage_nb.ir import AccumAttrs, AccumKind, OpKind
from mirage_nb.optimize.tiling import Region, Tiling
from mirage_nb.tile.order import Phase
from mirage_nb.tile.placement import Place, Step
from mirage_nb.tile.sharing import COLUMN_TILE, DEPTH_TILE, ROW_TILE

HELD_REGISTERS = 32
"""Registers that operands of the whole loop may take."""


def fragment(value: int) -> str:
    """The name of a value's registers; that of %16 would be a type's."""
    name = f"f{value}"
    return f"{name}_" if name in TYPES else name


class Fragments:
    """Writes the body of one kernel's region."""

    def __init__(self, out: Writer, scope: Scope, region: Region) -> None:
        self.out, self.scope, self.region = out, scope, region
        self.accumulator = {
            op.inputs[0]: index
            for index, op in enumerate(scope.block.ops)
            if index in region.ops and isinstance(op.attrs, AccumAttrs)
        }
        self.held: dict[int, str] = {}
        self.packed: set[int] = set()
        self.operands = frozenset(
            op.inputs[0]
            for index, op in enumerate(scope.block.ops)
            if index in region.ops and op.kind is OpKind.MATMUL and scope.plan.places[op.inputs[0]] is Place.REGISTER
        )
        uses = scope.block.uses()
        self.folded = {
            v: index for v, index in self.accumulator.items()
            if len(uses[v]) == 1 and scope.ops[v].kind in (OpKind.MATMUL, OpKind.SUM)
            and self._kind(index) is not AccumKind.MAX
        }  # fmt: skip
        self.sums = {
            v: f"a{scope.first[index]}" for v, index in self.folded.items()
            if scope.ops[v].kind is OpKind.SUM and scope.ops[v].inputs[0] in self.operands
            and self._kind(index) is AccumKind.SUM
        }  # fmt: skip

    def _kind(self, accum: int) -> AccumKind:
        attrs = self.scope.block.ops[accum].attrs
        assert isinstance(attrs, AccumAttrs)
        return attrs.kind

    def columns(self, value: int) -> int:
        """8-column tiles of a matrix that this warp holds, 0 for a column of row results."""
        columns = self.scope.shape(value)[-1]
        return self.region.column_tiles(value, columns) if columns > 1 else 0

    def _form(self, value: int) -> str:
        """The array extents of a value's registers."""
        tiles = self.columns(value)
        return f"[1][{self.region.row_tiles}][{tiles}][4]" if tiles else f"[{self.region.row_tiles}][2]"

    def declare(self) -> None:
        """This warp's place, accumulators, running maxima."""
        out, region = self.out, self.region
        for name, expression, count in (
            ("warp_k", f"warp % {region.key_warps}", region.key_warps),
            ("warp_r", f"warp / {region.key_warps} % {region.row_warps}", region.row_warps),
        ):
            if count > 1:
                out.line(f"const int {name} = {expression};")
        for shift in sorted(region.shifts):
            self._fill(f"top{shift}", "NEGATIVE_INFINITY")
        for index in region.ops:
            op = self.scope.block.ops[index]
            if not isinstance(op.attrs, AccumAttrs) or self.is_shift(index):
                continue
            value = self.scope.first[index]
            if op.attrs.kind is AccumKind.MAX:
                self._fill(f"a{value}", "NEGATIVE_INFINITY")
            else:
                out.line(f"float a{value}{self._form(value)} = {{}};")
        for target in self.sums.values():
            out.line(f"float sum_{target}[{region.row_tiles}][4] = {{}};")

    def hoist(self) -> None:
        """Row sides that no iteration changes are loaded into registers once, before the loop.

        Not for warpgroups: the assembler gives the rows of two products the same registers, whatever lives on.
        """
        if self.scope.plan.options.wide:
            return
        anew = {s.value for s in self.scope.staged.steps if s.phase is Phase.LOOP}
        for index in self.region.ops:
            op, tiling = self.scope.block.ops[index], self.scope.staged.tiling(index)
            if op.kind is not OpKind.MATMUL or tiling is None:
                continue
            left, right = op.inputs
            rows, _ = sides(self.scope, tiling, left, right)
            tiles, depth = self.region.row_tiles, rows.depth // DEPTH_TILE
            streamed = self.scope.plan.places[left] is Place.REGISTER or behind_views(self.scope, left) in anew
            name = f"held{left}"
            if streamed or contiguous_side(self.scope, rows) is None or 4 * tiles * depth > HELD_REGISTERS:
                continue
            if name not in self.held.values():
                self.out.line(f"uint32_t {name}[{depth}][{tiles}][4];  // the rows of %{left}")
                with self.out.unrolled("k", depth) as k:
                    at = named(k, depth) * DEPTH_TILE
                    load_rows(self.out, self.scope, tiling, rows, Index(), at, "", f"{name}[{k}]")
            self.held[index] = name

    def is_shift(self, accum: int) -> bool:
        """A max accumulator of a running maximum: the running maximum is its value."""
        return self.scope.block.ops[accum].inputs[0] in self.region.shifts and self._kind(accum) is AccumKind.MAX

    def _fill(self, array: str, start: str) -> None:
        rows = self.region.row_tiles
        self.out.line(f"float {array}[{rows}][2];")
        self.out.line("MIRAGE_UNROLL")
        self.out.line(f"for (int r = 0; r < {rows}; ++r) {array}[r][0] = {array}[r][1] = {start};")

    def emit(self, step: Step) -> None:
        """One operator of the body."""
        op = self.scope.block.ops[step.op]
        if op.kind is OpKind.MATMUL:
            self._matmul(step.op)
        elif op.kind in (OpKind.SUM, OpKind.MAX):
            self._reduce(step.op)
        elif isinstance(op.attrs, AccumAttrs):
            if op.inputs[0] not in self.folded and not self.is_shift(step.op):
                self._accumulate(step.op)
        else:
            for value in self.scope.values(step.op):
                self._elementwise(value)

    # Products

    def _matmul(self, index: int) -> None:
        out, scope = self.out, self.scope
        op, value = scope.block.ops[index], scope.first[index]
        target, tiling = fragment(value), scope.staged.tiling(index)
        assert tiling is not None
        if value in self.folded:
            target = f"a{scope.first[self.folded[value]]}"
            self._fade(self.folded[value])
        else:
            out.line(f"float {target}{self._form(value)} = {{}};")
        left, right = op.inputs
        rows, columns = sides(scope, tiling, left, right)
        if left in self.operands:
            self._pack(left)
        with out.block():
            warp_place(out, tiling)
            if scope.plan.options.wide:
                self._wide(index, tiling, rows, columns, target)
                return
            if scope.plan.places[left] is not Place.REGISTER:
                held = f"held{left}" if index in self.held else ""
                emit_product(out, scope, tiling, rows, columns, target, 0, held)
                return
            element = c_type(scope.block.types[left].dtype)
            gather_lambda(out, scope, columns, "column_side")
            share = self.columns(left) // 2
            with out.unrolled("k", share) as k:
                depth = (named("warp_k", tiling.split[3]) * share + named(k, share)) * DEPTH_TILE
                out.line(f"uint32_t q[{tiling.per_warp[2]}][2];")
                load_columns(out, scope, tiling, columns, Index(), depth, "column_side", element)
                with out.unrolled("r", self.region.row_tiles) as r, out.unrolled("c", tiling.per_warp[2]) as c:
                    out.line(f"mma_m16n8k16<{element}>({target}[0][{r}][{c}], p{left}[{k}][{r}], q[{c}]);")

    def _pack(self, value: int) -> None:
        """A matrix in registers as the rows of a product, `p<value>[depth tile][row tile][4]`; written once."""
        if value in self.packed:
            return
        self.packed.add(value)
        out, rows, element = self.out, self.region.row_tiles, c_type(self.scope.block.types[value].dtype)
        share = self.columns(value) // 2
        out.line(f"uint32_t p{value}[{share}][{rows}][4];")
        with out.unrolled("k", share) as k, out.unrolled("r", rows) as r, out.unrolled("i", 4) as i:
            # Two neighbouring 8-column tiles of an accumulator are one 16-deep tile of an operand.
            cell = f"{fragment(value)}[0][{r}][2 * {k} + {i} / 2]"
            out.line(f"p{value}[{k}][{r}][{i}] = pack2<{element}>({cell}[{i} % 2 * 2], {cell}[{i} % 2 * 2 + 1]);")

    def _wide(self, index: int, tiling: Tiling, rows: Operand, columns: Operand, target: str) -> None:
        """A product by groups of four warps: rows from registers, columns where the copy engine has left them."""
        out, scope = self.out, self.scope
        element = c_type(scope.block.types[rows.value].dtype)
        count = rows.depth // DEPTH_TILE
        source = f"p{rows.value}"
        if scope.plan.places[rows.value] is not Place.REGISTER:
            out.line(f"uint32_t {source}[{count}][1][4];")
            gather_lambda(out, scope, rows, "row_side")
            with out.unrolled("k", count) as k:
                at = named(k, count) * DEPTH_TILE
                load_rows(out, scope, tiling, rows, Index(), at, "row_side", f"{source}[{k}]")
        leaf = behind_views(scope, columns.value)
        layout = scope.staged.buffer(leaf).layout
        panel = layout.panel_rows * layout.panel
        if contiguous_side(scope, columns) == "side":
            order, step = "MN", "k * 1024"  # sixteen lines of a panel
        else:
            order, step = "K", f"k / 4 * {panel} + k % 4 * {DEPTH_TILE}"
        out.line(f"auto& sums = reinterpret_cast<float (&)[{columns.extent // 2}]>({target}[0][0]);")
        out.line(f"wgmma_fence(sums, {source});")
        with out.unrolled("k", count) as k:
            place = step.replace("k", k)
            tile = f"wgmma_descriptor<Major::{order}>(t{leaf} + {place}, {panel * layout.dtype.size})"
            out.line(f"wgmma_m64k16<{columns.extent}, {element}, Major::{order}>(sums, {source}[{k}][0], {tile});")
        out.line("wgmma_commit();")
        out.line(f"wgmma_wait<0>(sums, {source});")

    def _fade(self, accum: int) -> None:
        """What a rescaled accumulator holds shrinks by the rise of its running maximum."""
        if self._kind(accum) is not AccumKind.RESCALE:
            return
        op, value = self.scope.block.ops[accum], self.scope.first[accum]
        with self._cells(value) as (cell, half):
            self.out.line(f"a{value}{cell} *= fade{op.inputs[1]}{half};")

    # Element by element

    @contextmanager
    def _cells(self, value: int) -> Iterator[tuple[str, str]]:
        """Loops over the registers of a value; yields the index of the cell and that of its row result."""
        out, columns = self.out, self.columns(value)
        with out.unrolled("r", self.region.row_tiles) as r:
            if not columns:
                with out.unrolled("h", 2) as h:
                    yield f"[{r}][{h}]", f"[{r}][{h}]"
                return
            with out.unrolled("c", columns) as c, out.unrolled("i", 4) as i:
                yield f"[0][{r}][{c}][{i}]", f"[{r}][{i} / 2]"

    def _bound(self, half: str, cell: str) -> dict[int, str]:
        """How register values are read at a cell."""
        found = {}
        for value, place in enumerate(self.scope.plan.places):
            if place is not Place.REGISTER:
                continue
            if self.scope.shape(value)[-1] > 1:
                found[value] = fragment(value) + cell
            else:
                found[value] = (f"shift{value}" if value in self.region.shifts else fragment(value)) + half
        return found

    def _elementwise(self, value: int) -> None:
        if self.scope.plan.places[value] is not Place.REGISTER:
            return
        self.out.line(f"float {fragment(value)}{self._form(value)};")
        with self._cells(value) as (cell, half):
            reader = Reader(self.scope, 1, self._bound(half, cell))
            reader.bound.pop(value)
            result = reader.compute(value, self._index(value), None)
            if self._rounds(value):
                result = f"to_float(from_float<{c_type(self.scope.block.types[value].dtype)}>({result}))"
            self.out.lines([*reader.loads, *reader.body, f"{fragment(value)}{cell} = {result};"])

    def _rounds(self, value: int) -> bool:
        """Whether a product reads a value rounded to its type, and others have to read the same: what is summed
        beside a product divides it later."""
        if value not in self.operands:
            return False
        readers = {self.scope.block.ops[i].kind for i in self.scope.block.uses()[value]}
        return not readers <= {OpKind.MATMUL, OpKind.SUM}

    def _index(self, value: int) -> Multi:
        """The coordinates of a cell, for operands that are read from memory."""
        region, shape = self.region, self.scope.shape(value)
        tiles = self.columns(value)
        row = self.row("r" if region.row_tiles > 1 else "0", "i" if tiles else "2 * h")
        column = Index()
        if tiles:
            warp = named("warp_k", region.key_warps) * tiles if value in region.keyed else Index()
            column = (warp + named("c" if tiles > 1 else "0", tiles)) * COLUMN_TILE + named(
                "mma_d_column(lane, i)", COLUMN_TILE
            )
        return (*(Index(),) * (len(shape) - 2), clamped(row, region.rows), column)

    def _accumulate(self, index: int) -> None:
        op, value = self.scope.block.ops[index], self.scope.first[index]
        self._fade(index)
        with self._cells(value) as (cell, half):
            source = self._bound(half, cell)[op.inputs[0]]
            target = f"a{value}{cell}"
            largest = self._kind(index) is AccumKind.MAX
            self.out.line(f"{target} = maximum({target}, {source});" if largest else f"{target} += {source};")

    # Reductions over columns

    def _reduce(self, index: int) -> None:
        out, scope = self.out, self.scope
        op, value = scope.block.ops[index], scope.first[index]
        (source,) = op.inputs
        if op.kind is OpKind.MAX:
            self._maximum(value, source)
            return
        target = fragment(value)
        if value in self.folded:
            target = f"a{scope.first[self.folded[value]]}"
            self._fade(self.folded[value])
        else:
            out.line(f"float {target}{self._form(value)} = {{}};")
        if source in self.operands:
            self._pack(source)
            self._sum_operand(source, target)
        else:
            with self._cells(source) as (cell, half):
                out.line(f"{target}{half} += {fragment(source)}{cell};")
        if value not in self.folded:
            with self._cells(value) as (cell, _):
                out.line(f"{target}{cell} = warp_sum<4>({target}{cell});")

    def _sum_operand(self, source: int, target: str) -> None:
        """Sums of rows as the products see them: times a column of ones, by the tensor cores. All four lanes of a
        row get the whole sum; one of them keeps it, the others are left with nothing, as with parts of sums."""
        out, element = self.out, c_type(self.scope.block.types[source].dtype)
        with out.block():
            out.line(f"const uint32_t one = pack2<{element}>(1.0f, 1.0f);")
            out.line("const uint32_t ones[2] = {one, one};")
            with out.unrolled("r", self.region.row_tiles) as r:
                kept = target in self.sums.values()
                sum_ = f"sum_{target}[{r}]" if kept else "sum"
                if not kept:
                    out.line("float sum[4] = {};")
                with out.unrolled("k", self.columns(source) // 2) as k:
                    out.line(f"mma_m16n8k16<{element}>({sum_}, p{source}[{k}][{r}], ones);")
                if not kept:
                    out.lines([f"{target}[{r}][{h}] += lane % 4 == 0 ? sum[{2 * h}] : 0.0f;" for h in (0, 1)])

    def settle(self) -> None:
        """After the loop: sums that were left in the accumulators of the tensor cores; no number in rows of which
        nothing but minus infinity was seen, unless warps that share them are still to agree on that."""
        for target in self.sums.values():
            with self.out.unrolled("r", self.region.row_tiles) as r:
                whole = f"lane % 4 == 0 ? sum_{target}[{r}]"
                self.out.lines([f"{target}[{r}][{h}] = {whole}[{2 * h}] : 0.0f;" for h in (0, 1)])
        for index in self.region.ops if self.region.key_warps == 1 else ():
            op, value = self.scope.block.ops[index], self.scope.first[index]
            if isinstance(op.attrs, AccumAttrs) and op.attrs.kind is AccumKind.RESCALE:
                top = f"top{op.inputs[1]}"
                with self._cells(value) as (cell, half):
                    self.out.line(f"a{value}{cell} += {top}{half} - {top}{half};")

    def _maximum(self, value: int, source: int) -> None:
        out, rows = self.out, self.region.row_tiles
        running = value in self.region.shifts
        made = (f"fade{value}", f"shift{value}") if running else (fragment(value),)
        out.lines([f"float {name}[{rows}][2];" for name in made])
        with out.unrolled("r", rows) as r, out.unrolled("h", 2) as h:
            out.line(f"float high = {f'top{value}[{r}][{h}]' if running else 'NEGATIVE_INFINITY'};")
            with out.unrolled("c", self.columns(source)) as c:
                pair = f"{fragment(source)}[0][{r}][{c}]"
                out.line(f"high = maximum(high, maximum({pair}[2 * {h}], {pair}[2 * {h} + 1]));")
            out.line("high = warp_max<4>(high);")
            if running:
                out.line(f"shift{value}[{r}][{h}] = maximum(high, LOWEST_FLOAT);")
                out.line(f"fade{value}[{r}][{h}] = fast_exp(top{value}[{r}][{h}] - shift{value}[{r}][{h}]);")
                out.line(f"top{value}[{r}][{h}] = high;")
            else:
                out.line(f"{fragment(value)}[{r}][{h}] = high;")

    # After the loop

    def exchanged(self) -> tuple[str, ...]:
        """Row maxima that the key warps have to agree on, by their register names."""
        if self.region.key_warps == 1:
            return ()
        maxima = [
            f"a{self.scope.first[i]}"
            for i in self.region.ops
            if self.scope.block.ops[i].kind is OpKind.ACCUM and self._kind(i) is AccumKind.MAX and not self.is_shift(i)
        ]
        return (*(f"top{v}" for v in sorted(self.region.shifts)), *maxima)

    def publish(self) -> None:
        """Every warp that works shows its maxima."""
        idle = self.region.warps < self.scope.plan.options.warps
        shown = f"warp < {self.region.warps} && lane % 4 == 0" if idle else "lane % 4 == 0"
        for array in self.exchanged():
            with self._rows() as (r, h, row):
                at = f"{array}_all[warp_k * {self.region.padded_rows} + {row}]"
                self.out.line(f"if ({shown}) {at} = {array}[{r}][{h}];")

    def agree(self) -> None:
        """Every warp takes the largest maximum and shrinks its rescaled accumulators accordingly."""
        out = self.out
        for array in self.exchanged():
            shift = int(array.removeprefix("top")) if array.startswith("top") else None
            if shift is not None:
                out.line(f"float last{shift}[{self.region.row_tiles}][2];")
            with self._rows() as (r, h, row):
                out.line(f"float high = {array}[{r}][{h}];")
                at = f"{array}_all[k * {self.region.padded_rows} + {row}]"
                out.line("MIRAGE_UNROLL")
                out.line(f"for (int k = 0; k < {self.region.key_warps}; ++k) high = maximum(high, {at});")
                if shift is not None:
                    out.line(f"last{shift}[{r}][{h}] = fast_exp({array}[{r}][{h}] - high);")
                out.line(f"{array}[{r}][{h}] = high;")
            for index in self.region.ops if shift is not None else ():
                op, value = self.scope.block.ops[index], self.scope.first[index]
                if op.kind is OpKind.ACCUM and op.inputs[1:] == (shift,):
                    with self._cells(value) as (cell, half):
                        out.line(f"a{value}{cell} *= last{shift}{half};")

    @contextmanager
    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """Loops over the two rows of every row tile; yields tile, half and the row's number in the block."""
        with self.out.unrolled("r", self.region.row_tiles) as r, self.out.unrolled("h", 2) as h:
            yield r, h, self.row(r).bare

    def row(self, tile: str, register: str = "2 * h") -> Index:
        """The row in the block of a register of one of the warp's row tiles."""
        tiles = self.region.row_tiles
        first = (named("warp_r", self.region.row_warps) * tiles + named(tile, tiles)) * ROW_TILE
        return first + named(f"mma_d_row(lane, {register})", ROW_TILE)

    def finish(self, step: Step) -> None:
        """An accumulator goes to its shared tile."""
        assert step.value is not None
        out, scope, region = self.out, self.scope, self.region
        with out.block(f"if (warp < {region.warps})" if region.warps < scope.plan.options.warps else ""):
            tiling = scope.staged.tiling(step.op)
            if tiling is not None:
                warp_place(out, tiling)
                store_fragments(out, scope, tiling, step.value, step.value)
                return
            op = scope.block.ops[step.op]
            summed = op.inputs[0] in self.folded
            source = f"top{op.inputs[0]}" if self.is_shift(step.op) else f"a{step.value}"
            with self._rows() as (r, h, row):
                value = f"{source}[{r}][{h}]"
                out.line(f"const float result = {f'warp_sum<4>({value})' if summed else value};")
                out.line(f"const int row = {row};")
                index = (*(Index(),) * (len(scope.shape(step.value)) - 2), named("row", region.rows), Index())
                leaf = locate(scope, step.value, index, None)
                checks = ["lane % 4 == 0"]
                if region.padded_rows > region.rows:
                    checks.append(f"row < {region.rows}")
                copy = ""
                if leaf.copies > 1:
                    copy = f"warp_k * {leaf.copy_elements} + "
                elif region.key_warps > 1:
                    checks.append("warp_k == 0")
                out.line(f"if ({' && '.join(checks)}) {leaf.pointer}[{copy}{leaf.offset}] = result;")
