"""Warp-private loop bodies as text: statements on fragments in registers.

In: a statement of a staged program with a region. Out: lines of CUDA. A matrix value v is `f<v>[1][row tile][column
tile][4]`, in the accumulator layout of mma.m16n8k16; a column of row results is `f<v>[row tile][2]`, the same in the
four lanes of a row. Invariant: two neighbouring lanes exchange their halves of two column tiles, so that each stores
four elements and a quad whole sectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirage_nb.codegen.matmul import clamped
from mirage_nb.codegen.reader import Reader, Text
from mirage_nb.codegen.writer import c_type, extents
from mirage_nb.ir import OutSaverAttrs
from mirage_nb.optimize.access import Leaf, locate, output_leaf
from mirage_nb.tile.index import Index, Multi, named
from mirage_nb.tile.rules.bodies import Region
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.rules.sharing import COLUMN_TILE, ROW_TILE, Cells
from mirage_nb.tile.staged.program import (
    Change,
    Evaluate,
    How,
    Largest,
    LeaveRows,
    Pack,
    SaveRows,
    SumPacked,
    fragment,
)

WIDTH = 4
"""Elements that a lane stores at once."""


class FragmentText(Text):
    """Writes statements of a region."""

    @property
    def region(self) -> Region:
        """How warps share the body."""
        assert self.program.region is not None
        return self.program.region

    def place(self) -> None:
        """This warp's place in the region."""
        region = self.region
        for name, expression, count in (
            ("warp_k", f"warp % {region.key_warps}", region.key_warps),
            ("warp_r", f"warp / {region.key_warps} % {region.row_warps}", region.row_warps),
        ):
            if count > 1:
                self.out.line(f"const int {name} = {expression};")

    # -- cell by cell

    @contextmanager
    def _cells(self, cells: Cells) -> Iterator[tuple[str, str]]:
        """Loops over the registers of a value; yields the index of the cell and that of its row result."""
        out = self.out
        with out.unrolled("r", cells.rows) as r:
            if not cells.columns:
                with out.unrolled("h", 2) as h:
                    yield f"[{r}][{h}]", f"[{r}][{h}]"
                return
            with out.unrolled("c", cells.columns) as c, out.unrolled("i", 4) as i:
                yield f"[0][{r}][{c}][{i}]", f"[{r}][{i} / 2]"

    def change(self, change: Change) -> None:
        """Registers, cell by cell."""
        out, result, by, rows = self.out, change.result, change.by, change.cells.rows
        match change.how:
            case How.LOWEST:
                out.line(f"float {result}[{rows}][2];")
                out.line("MIRAGE_UNROLL")
                out.line(f"for (int r = 0; r < {rows}; ++r) {result}[r][0] = {result}[r][1] = NEGATIVE_INFINITY;")
                return
            case How.SETTLE:
                with out.unrolled("r", rows) as r:
                    whole = f"lane % 4 == 0 ? {by}[{r}]"
                    out.lines([f"{result}[{r}][{h}] = {whole}[{2 * h}] : 0.0f;" for h in (0, 1)])
                return
            case _:
                pass
        with self._cells(change.cells) as (cell, half):
            match change.how:
                case How.SUM:
                    out.line(f"{result}{cell} += {by}{cell};")
                case How.LARGEST:
                    out.line(f"{result}{cell} = maximum({result}{cell}, {by}{cell});")
                case How.FADE:
                    out.line(f"{result}{cell} *= {by}{half};")
                case How.ALONG:
                    out.line(f"{result}{half} += {by}{cell};")
                case How.ACROSS:
                    out.line(f"{result}{cell} = warp_sum<4>({result}{cell});")
                case How.SPOIL:
                    out.line(f"{result}{cell} += {by}{half} - {by}{half};")

    def _registers(self, cell: str, half: str) -> dict[int, str]:
        """How register values are read at a cell."""
        found = {}
        for value, place in enumerate(self.program.places):
            if place is not Place.REGISTER:
                continue
            if self.scope.shape(value)[-1] > 1:
                found[value] = fragment(value) + cell
            else:
                found[value] = (f"shift{value}" if value in self.region.shifts else fragment(value)) + half
        return found

    def evaluate(self, evaluate: Evaluate) -> None:
        """An elementwise value."""
        value, cells = evaluate.value, evaluate.cells
        name = fragment(value)
        self.out.line(f"float {name}{extents(cells.form)};")
        with self._cells(cells) as (cell, half):
            reader = Reader(self.scope, 1, self._registers(cell, half))
            reader.bound.pop(value)
            result = reader.compute(value, self._index(value, cells.columns), None)
            if evaluate.rounded:
                result = f"to_float(from_float<{c_type(self.scope.block.types[value].dtype)}>({result}))"
            self.out.lines([*reader.loads, *reader.body, f"{name}{cell} = {result};"])

    def _index(self, value: int, tiles: int) -> Multi:
        """The coordinates of a cell, for operands that are read from memory."""
        region, shape = self.region, self.scope.shape(value)
        row = self._row("r" if region.row_tiles > 1 else "0", "i" if tiles else "2 * h")
        column = Index()
        if tiles:
            warp = named("warp_k", region.key_warps) * tiles if value in region.keyed else Index()
            column = (warp + named("c" if tiles > 1 else "0", tiles)) * COLUMN_TILE + named(
                "mma_d_column(lane, i)", COLUMN_TILE
            )
        return (*(Index(),) * (len(shape) - 2), clamped(row, region.rows), column)

    # -- rows

    def pack(self, pack: Pack) -> None:
        """Rows of a product."""
        out, rows, share, element = self.out, pack.cells.rows, pack.cells.columns // 2, c_type(pack.dtype)
        out.line(f"uint32_t {pack.result}[{share}][{rows}][4];")
        with out.unrolled("k", share) as k, out.unrolled("r", rows) as r, out.unrolled("i", 4) as i:
            # Two neighbouring 8-column tiles of an accumulator are one 16-deep tile of an operand.
            cell = f"{pack.source}[0][{r}][2 * {k} + {i} / 2]"
            packed = f"pack2<{element}>({cell}[{i} % 2 * 2], {cell}[{i} % 2 * 2 + 1])"
            out.line(f"{pack.result}[{k}][{r}][{i}] = {packed};")

    def sum_packed(self, total: SumPacked) -> None:
        """Sums of rows as the products see them: times a column of ones, by the tensor cores. All four lanes of a
        row get the whole sum; one of them keeps it, the others are left with nothing, as with parts of sums."""
        out, element, target = self.out, c_type(total.dtype), total.result
        with out.block():
            out.line(f"const uint32_t one = pack2<{element}>(1.0f, 1.0f);")
            out.line("const uint32_t ones[2] = {one, one};")
            with out.unrolled("r", total.cells.rows) as r:
                sums = f"sum_{target}[{r}]" if total.kept else "sum"
                if not total.kept:
                    out.line("float sum[4] = {};")
                with out.unrolled("k", total.cells.columns // 2) as k:
                    out.line(f"mma_m16n8k16<{element}>({sums}, {total.packed}[{k}][{r}], ones);")
                if not total.kept:
                    out.lines([f"{target}[{r}][{h}] += lane % 4 == 0 ? sum[{2 * h}] : 0.0f;" for h in (0, 1)])

    def largest(self, largest: Largest) -> None:
        """Maxima of rows."""
        out, value, rows, running = self.out, largest.value, largest.cells.rows, largest.running
        made = (f"fade{value}", f"shift{value}") if running else (fragment(value),)
        out.lines([f"float {name}[{rows}][2];" for name in made])
        with out.unrolled("r", rows) as r, out.unrolled("h", 2) as h:
            out.line(f"float high = {f'top{value}[{r}][{h}]' if running else 'NEGATIVE_INFINITY'};")
            if largest.cells.columns:
                with out.unrolled("c", largest.cells.columns) as c:
                    pair = f"{largest.source}[0][{r}][{c}]"
                    out.line(f"high = maximum(high, maximum({pair}[2 * {h}], {pair}[2 * {h} + 1]));")
                out.line("high = warp_max<4>(high);")
            else:
                out.line(f"high = maximum(high, {largest.source}[{r}][{h}]);")
            if running:
                out.line(f"shift{value}[{r}][{h}] = maximum(high, LOWEST_FLOAT);")
                out.line(f"fade{value}[{r}][{h}] = fast_exp(top{value}[{r}][{h}] - shift{value}[{r}][{h}]);")
                out.line(f"top{value}[{r}][{h}] = high;")
            else:
                out.line(f"{fragment(value)}[{r}][{h}] = high;")

    def publish(self, arrays: tuple[str, ...]) -> None:
        """Maxima of rows, for the other warps to see."""
        idle = self.region.warps < self.program.warps
        shown = f"warp < {self.region.warps} && lane % 4 == 0" if idle else "lane % 4 == 0"
        self.out.line("// the warps that share rows agree on their maxima")
        for array in arrays:
            with self._rows() as (r, h, row):
                at = f"{array}_all[warp_k * {self.region.padded_rows} + {row}]"
                self.out.line(f"if ({shown}) {at} = {array}[{r}][{h}];")

    def agree(self, array: str, last: str) -> None:
        """The largest maximum of all warps, and how far this warp's lay below."""
        out = self.out
        if last:
            out.line(f"float {last}[{self.region.row_tiles}][2];")
        with self._rows() as (r, h, row):
            out.line(f"float high = {array}[{r}][{h}];")
            at = f"{array}_all[k * {self.region.padded_rows} + {row}]"
            out.line("MIRAGE_UNROLL")
            out.line(f"for (int k = 0; k < {self.region.key_warps}; ++k) high = maximum(high, {at});")
            if last:
                out.line(f"{last}[{r}][{h}] = fast_exp({array}[{r}][{h}] - high);")
            out.line(f"{array}[{r}][{h}] = high;")

    @contextmanager
    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """Loops over the two rows of every row tile; yields tile, half and the row's number in the block."""
        with self.out.unrolled("r", self.region.row_tiles) as r, self.out.unrolled("h", 2) as h:
            yield r, h, self._row(r).bare

    def _row(self, tile: str, register: str = "2 * h") -> Index:
        """The row in the block of a register of one of the warp's row tiles."""
        tiles = self.region.row_tiles
        first = (named("warp_r", self.region.row_warps) * tiles + named(tile, tiles)) * ROW_TILE
        return first + named(f"mma_d_row(lane, {register})", ROW_TILE)

    # -- to memory

    def leave(self, leave: LeaveRows) -> None:
        """Results of rows in their tile."""
        out, region, value = self.out, self.region, leave.value
        with self._rows() as (r, h, row):
            found = f"{leave.source}[{r}][{h}]"
            out.line(f"const float result = {f'warp_sum<4>({found})' if leave.summed else found};")
            out.line(f"const int row = {row};")
            index = (*(Index(),) * (len(self.scope.shape(value)) - 2), named("row", region.rows), Index())
            leaf = locate(self.scope, value, index, None)
            checks = ["lane % 4 == 0"]
            if region.padded_rows > region.rows:
                checks.append(f"row < {region.rows}")
            copy = ""
            if leaf.copies > 1:
                copy = f"warp_k * {leaf.copy_elements} + "
            elif region.key_warps > 1:
                checks.append("warp_k == 0")
            out.line(f"if ({' && '.join(checks)}) {leaf.pointer}[{copy}{leaf.offset}] = result;")

    def save(self, save: SaveRows) -> None:
        """From registers to device memory."""
        out, scope, region, type_ = self.out, self.scope, self.region, self.program.outputs[save.output]
        attrs, (saved,) = scope.block.ops[save.saver].attrs, scope.block.ops[save.saver].inputs
        assert isinstance(attrs, OutSaverAttrs)
        shape, columns, output = scope.shape(saved), scope.shape(saved)[-1], f"o{save.output}"
        tiles = columns // COLUMN_TILE if columns > 1 else 0
        lead = (Index(),) * (len(shape) - 2)
        checks = [f"warp < {region.warps}"] if region.warps < self.program.warps else []
        target = c_type(type_.dtype)

        def leaf(row: Index, column: Index, width: int) -> Leaf:
            return output_leaf(scope, attrs, output, (*lead, row, column), shape, type_, width)

        with out.unrolled("r", region.row_tiles) as r, out.unrolled("h", 2) as h:
            out.line(f"const int row = {self._row(r).bare};")
            row = named("row", region.rows)
            if region.padded_rows > region.rows:
                checks = [*checks, f"row < {region.rows}"]
            within = clamped(named("row", region.padded_rows), region.rows)
            if not tiles:
                result = self._saved(save, saved, (*lead, within, Index()), "", f"[{r}][{h}]")
                at = leaf(row, Index(), 1)
                guard = " && ".join([*checks, "lane % 4 == 0", *at.inside])
                out.line(f"if ({guard}) {at.pointer}[{at.offset}] = from_float<{target}>({result});")
                return
            with out.unrolled("c", tiles // 2) as c:
                out.line("float z[2][2];")
                with out.unrolled("p", 2) as p, out.unrolled("e", 2) as e:
                    column = (named(c, tiles // 2) * 2 + named(p, 2)) * COLUMN_TILE
                    column = column + named("mma_d_column(lane, e)", 8)
                    cell = f"[0][{r}][2 * {c} + {p}][2 * {h} + {e}]"
                    result = self._saved(save, saved, (*lead, within, column), cell, f"[{r}][{h}]")
                    out.line(f"z[{p}][{e}] = {result};")
                out.line("const bool odd = lane % 2 != 0;  // takes the right tile, its neighbour the left one")
                out.line("const float low = shuffle_xor(odd ? z[0][0] : z[1][0], 1);")
                out.line("const float high = shuffle_xor(odd ? z[0][1] : z[1][1], 1);")
                out.line(f"Vec<float, {WIDTH}> y;")
                out.line("y[0] = odd ? low : z[0][0], y[1] = odd ? high : z[0][1];")
                out.line("y[2] = odd ? z[1][0] : low, y[3] = odd ? z[1][1] : high;")
                pair = (named(c, tiles // 2) * 2 + named("lane % 2", 2)) * COLUMN_TILE
                at = leaf(row, pair + named("lane % 4 / 2", 2) * WIDTH, WIDTH)
                vector = [*checks, *at.inside] if at.whole else checks
                with out.block(f"if ({' && '.join(vector)})" if vector else ""):
                    if at.whole:
                        out.line(f"store({at.pointer} + {at.offset}, from_floats<{target}>(y));")
                    else:
                        with out.unrolled("v", WIDTH):
                            when = f"if ({at.each_inside}) " if at.each_inside else ""
                            out.line(f"{when}{at.pointer}[{at.element}] = from_float<{target}>(y[v]);")

    def _saved(self, save: SaveRows, value: int, index: Multi, cell: str, half: str) -> str:
        """A C expression for `value` at one register of the fragments."""
        wide = {v: self.scope.shape(v)[-1] > 1 for v, _ in save.bound}
        reader = Reader(self.scope, 1, {v: name + (cell if wide[v] else half) for v, name in save.bound})
        result = reader.read(value, index, None)
        self.out.lines([*reader.loads, *reader.body])
        return result
