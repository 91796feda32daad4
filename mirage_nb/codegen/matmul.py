"""Matrix multiplications of a block: mma.m16n8k16 fragments, or scalar products for other element types.

In: a statement of a staged program. Out: lines that add products to registers, load operands into them, bring them to
shared memory. Invariant: pieces beyond the extents are read from addresses that exist (rows, columns) or as zeros
(depth), and are never stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import reduce

from mirage_nb.codegen.maps import corner, each, each_slot, in_patch
from mirage_nb.codegen.reader import Reader, Text
from mirage_nb.codegen.writer import c_type
from mirage_nb.ir import BYTES
from mirage_nb.ir.dtypes import multiplied_as
from mirage_nb.optimize.access import locate, trace
from mirage_nb.tile.index import Index, Multi, broadcast_index, named, unravel
from mirage_nb.tile.rules.sharing import COLUMN_TILE, DEPTH_TILE, ROW_TILE, Patches, Side, Tiling, Twins
from mirage_nb.tile.staged.program import Dot, Load, Multiply, MultiplyPacked, MultiplyPanels, Unload

CHUNK = 4
"""Summed elements that a thread takes of both operands of a product at once."""
UNROLL_LIMIT = 8
"""Depth tiles that are unrolled; more of them stay a loop."""


class ProductText(Text):
    """Writes products."""

    def place(self, tiling: Tiling | None) -> None:
        """Name this warp's place in a split."""
        inner = 1
        for name, count in zip(_SPLIT, reversed(tiling.split if tiling is not None else ()), strict=False):
            if count > 1:
                self.out.line(f"const int {name} = warp{f' / {inner}' if inner > 1 else ''} % {count};")
            inner *= count

    def dot(self, dot: Dot) -> None:
        """Each thread computes whole elements."""
        if isinstance(dot.vectors, Patches):
            self._dots(dot, dot.vectors)
            return
        if dot.result:
            with each_slot(self.out, self.scope, dot.vectors) as (index, s):
                self._dot(dot.pairs, {f"{dot.result}[{s}]": index})
            return
        with each(self.out, self.scope, dot.vectors) as index:
            self.out.line("float sum = 0.0f;")
            self._dot(dot.pairs, {"sum": index})
            leaf, target = locate(self.scope, dot.value, index, None), c_type(self.program.stored[dot.value])
            self.out.line(f"{leaf.pointer}[{leaf.offset}] = from_float<{target}>(sum);")

    def _dots(self, dot: Dot, patch: Patches) -> None:
        """A thread's patch of elements at once: rows and columns are read once for all of these."""
        with self.out.block():
            begin, name = corner(self.out, patch.apart, self.program.threads), dot.result or "sums"
            slots = patch.slots(self.program.threads)
            if not dot.result:
                self.out.line(f"float {name}[{slots}] = {{}};")
            places = [in_patch(begin, patch.apart, patch.own, Index(const=s)) for s in range(slots)]
            self._dot(dot.pairs, {f"{name}[{s}]": place for s, place in enumerate(places)})
            if not dot.result:
                with self.out.unrolled("s", slots) as s:
                    at = in_patch(begin, patch.apart, patch.own, named(s, slots))
                    leaf, target = locate(self.scope, dot.value, at, None), c_type(self.program.stored[dot.value])
                    self.out.line(f"{leaf.pointer}[{leaf.offset}] = from_float<{target}>({name}[{s}]);")

    def _dot(self, pairs: tuple[tuple[int, int], ...], targets: Mapping[str, Multi]) -> None:
        """To each target the products at its index: what lies side by side along the depth is loaded together."""
        scope = self.scope
        for left, right in pairs:
            shapes, depth = (scope.shape(left), scope.shape(right)), scope.shape(left)[-1]
            width = CHUNK if depth % CHUNK == 0 else 1
            with self.out.block(f"for (int k = 0; k < {depth // width}; ++k)"):
                reader, sums = Reader(scope, width), []
                k = named("k", depth // width) * width
                dims = (len(shapes[0]) - 1, len(shapes[1]) - 2) if width > 1 else (None, None)
                for target, index in targets.items():
                    a = reader.read(left, broadcast_index((*index[:-1], k), shapes[0]), dims[0])
                    b = reader.read(right, broadcast_index((*index[:-2], k, index[-1]), shapes[1]), dims[1])
                    sums.append(f"{target} += {a} * {b};")
                self.out.lines(reader.loads)
                with self.out.unrolled("v", width) if width > 1 else nullcontext():
                    self.out.lines([*reader.body, *sums])

    def _element(self, *sides: Side) -> str:
        """What is multiplied; sides that are stored in bytes are widened to it."""
        return c_type(reduce(multiplied_as, (self.scope.block.types[side.value].dtype for side in sides)))

    # -- products

    def multiply(self, product: Multiply) -> None:
        """Operands from shared memory, rows perhaps from registers."""
        out, tiling, rows, columns = self.out, product.tiling, product.rows, product.columns
        b, r, c, _ = tiling.per_warp
        depth = -(-rows.depth // DEPTH_TILE)
        share = -(-depth // tiling.split[3])
        used, element = tiling.warps, self._element(rows, columns)
        if not product.held:
            self._gatherer(rows, f"row_side{product.number}")
        self._gatherer(columns, f"column_side{product.number}")
        side = f"{product.held}[k]" if product.held else "p"
        some = out.block(f"if (warp < {used})") if used < self.program.warps else nullcontext()
        with some, out.unrolled("k", share, UNROLL_LIMIT, always=True):
            depth_tile = named("warp_k", tiling.split[3]) * share + named("k", share)
            if share * tiling.split[3] > depth:
                out.line(f"if ({depth_tile.bare} >= {depth}) continue;")
                depth_tile = Index(((f"({depth_tile.bare})", depth, 1),))
            with out.unrolled("b", b) as at_b:
                if not product.held:
                    out.line(f"uint32_t p[{r}][4];")
                out.line(f"uint32_t q[{c}][2];")
                batch = clamped(named("warp_b", tiling.split[0]) * b + named("b", b), tiling.batch)
                if not product.held:
                    at = depth_tile * DEPTH_TILE
                    self._rows(tiling, rows, batch, at, f"row_side{product.number}", "p", element)
                gather = f"column_side{product.number}"
                self._columns(tiling, columns, batch, depth_tile * DEPTH_TILE, gather, element)
                with out.unrolled("r", r) as at_r, out.unrolled("c", c) as at_c:
                    sums = f"{product.result}[{at_b}][{at_r}][{at_c}]"
                    out.line(f"mma_m16n8k16<{element}>({sums}, {side}[{at_r}], q[{at_c}]);")

    def multiply_packed(self, product: MultiplyPacked) -> None:
        """Rows that this warp has computed."""
        out, tiling, columns, share = self.out, product.tiling, product.columns, product.depth
        _, r, c, _ = tiling.per_warp
        element = self._element(columns)
        self._gatherer(columns, "column_side")
        with out.unrolled("k", share) as k:
            depth = (named("warp_k", tiling.split[3]) * share + named(k, share)) * DEPTH_TILE
            out.line(f"uint32_t q[{c}][2];")
            self._columns(tiling, columns, Index(), depth, "column_side", element)
            with out.unrolled("r", r) as at_r, out.unrolled("c", c) as at_c:
                sums = f"{product.result}[0][{at_r}][{at_c}]"
                out.line(f"mma_m16n8k16<{element}>({sums}, {product.packed}[{k}][{at_r}], q[{at_c}]);")

    def multiply_panels(self, product: MultiplyPanels) -> None:
        """Columns where the copy engine has left them."""
        out, layout = self.out, self.program.buffer(product.leaf).layout
        extent, packed, element = product.columns.extent, product.packed, self._element(product.columns)
        panel = layout.panel_rows * layout.panel
        if product.columns.along == "side":
            order, step = "MN", "k * 1024"  # sixteen lines of a panel
        else:
            order, step = "K", f"k / 4 * {panel} + k % 4 * {DEPTH_TILE}"
        out.line(f"auto& sums = reinterpret_cast<float (&)[{extent // 2}]>({product.result}[0][0]);")
        out.line(f"wgmma_fence(sums, {packed});")
        with out.unrolled("k", product.depth) as k:
            place = step.replace("k", k)
            tile = f"wgmma_descriptor<Major::{order}>(t{product.leaf} + {place}, {panel * layout.dtype.size})"
            out.line(f"wgmma_m64k16<{extent}, {element}, Major::{order}>(sums, {packed}[{k}][0], {tile});")
        out.line("wgmma_commit();")
        out.line(f"wgmma_wait<0>(sums, {packed});")

    # -- operands

    def load(self, load: Load) -> None:
        """Rows in registers."""
        remark = f";  // the rows of %{load.rows.value}" if load.kept else ";"
        self.out.line(f"uint32_t {load.result}[{load.depth}][{load.tiling.per_warp[1]}][4]{remark}")
        self._gatherer(load.rows, "row_side")
        with self.out.unrolled("k", load.depth) as k:
            at = named(k, load.depth) * DEPTH_TILE
            self._rows(load.tiling, load.rows, Index(), at, "row_side", f"{load.result}[{k}]", self._element(load.rows))

    def _address(self, operand: Side, batch: Index, side: Index, depth: Index) -> str:
        scope = self.scope
        leaf, index = trace(scope, operand.value, operand.index(scope.shape(operand.value), batch, side, depth))
        found = locate(scope, leaf, index, None)
        return f"{found.pointer} + {found.offset}"

    def _rows(
        self, tiling: Tiling, operand: Side, batch: Index, depth: Index, gather: str, target: str, element: str
    ) -> None:
        """The 16-row fragments of a depth tile into registers `target[row tile][4]`."""
        out, r = self.out, tiling.per_warp[1]
        tile = (named("warp_r", tiling.split[1]) * r + named("r", r)) * ROW_TILE
        with out.unrolled("r", r) as at_r:
            if not operand.along:
                place = "mma_fours_a_k" if operand.fours else "mma_a_k"
                with out.unrolled("i", 4):
                    out.line(f"const int row = {tile.bare} + mma_a_row(lane, i);")
                    out.line(f"const int depth = {depth.bare} + {place}(lane, i);")
                    self._gathered(operand, batch, gather, f"{target}[{at_r}][i]", "row", element)
            elif self._in_bytes(operand):
                self._load_bytes(operand, batch, tile, depth, "row_bytes")
                for half in (0, 1):
                    places = (half, half + 2) if operand.fours else (2 * half, 2 * half + 1)
                    targets = [f"{target}[{at_r}][{place}]" for place in places]
                    self._widened(operand, f"row_bytes[{half}]", targets, element)
            elif operand.fours:
                for half in (0, 1):
                    row = clamped(tile + (8 * half) + named("lane / 4", 8), operand.extent)
                    self._four(operand, batch, row, depth, f"{target}[{at_r}]", (half, half + 2))
            elif operand.along == "depth":
                row = clamped(tile + named("lane % 16", 16), operand.extent)
                at = self._address(operand, batch, row, depth + named("lane / 16", 2) * 8)
                out.line(f"ldmatrix_x4({target}[{at_r}], {at});")
            else:
                row = _clamped_chunk(tile + named("lane / 8 % 2", 2) * 8, operand.extent)
                at = self._address(operand, batch, row, depth + named("lane % 8", 8) + named("lane / 16", 2) * 8)
                out.line(f"ldmatrix_x4_trans({target}[{at_r}], {at});")

    def _columns(self, tiling: Tiling, operand: Side, batch: Index, depth: Index, gather: str, element: str) -> None:
        """Fragments `q` of the operand on the 8 side, for all column tiles of the warp."""
        out, c = self.out, tiling.per_warp[2]
        base = named("warp_c", tiling.split[2]) * (c * COLUMN_TILE)
        if not operand.along:
            place = "mma_fours_b_k" if operand.fours else "mma_b_k"
            with out.unrolled("c", c) as at_c, out.unrolled("i", 2):
                out.line(f"const int column = {(base + named('c', c) * COLUMN_TILE).bare} + mma_b_column(lane);")
                out.line(f"const int depth = {depth.bare} + {place}(lane, i);")
                self._gathered(operand, batch, gather, f"q[{at_c}][i]", "column", element)
            return
        if self._in_bytes(operand):
            pairs = -(-c // 2)
            with out.unrolled("c", pairs) as at_c:
                self._load_bytes(operand, batch, base + named("c", pairs) * (2 * COLUMN_TILE), depth, "column_bytes")
                for half in range(min(c, 2)):
                    when = f"if (2 * {at_c} + {half} < {c}) " if half and c % 2 else ""
                    tiles = (f"q[2 * {at_c}]", f"q[2 * {at_c} + 1]")
                    targets = [f"{q}[{half}]" for q in tiles]
                    if operand.fours:
                        targets = [f"{tiles[half]}[0]", f"{tiles[half]}[1]"]
                    self._widened(operand, f"column_bytes[{half}]", targets, element, when)
            return
        if operand.fours:
            with out.unrolled("c", c) as at_c:
                column = clamped(base + named("c", c) * COLUMN_TILE + named("lane / 4", 8), operand.extent)
                self._four(operand, batch, column, depth, f"q[{at_c}]", (0, 1))
            return
        trans = "" if operand.along == "depth" else "_trans"
        if c > 1:
            with out.unrolled("c", c // 2) as at_c:
                tile = base + named("c", c // 2) * (2 * COLUMN_TILE) + named("lane / 16", 2) * 8
                out.line("uint32_t both[4];")
                out.line(f"ldmatrix_x4{trans}(both, {self._column_address(operand, batch, tile, depth)});")
                out.line(f"q[2 * {at_c}][0] = both[0], q[2 * {at_c}][1] = both[1];")
                out.line(f"q[2 * {at_c} + 1][0] = both[2], q[2 * {at_c} + 1][1] = both[3];")
        if c % 2:
            at = self._column_address(operand, batch, base + (c - 1) * COLUMN_TILE, depth)
            out.line(f"ldmatrix_x2{trans}(q[{c - 1}], {at});")

    def _in_bytes(self, operand: Side) -> bool:
        return self.scope.block.types[operand.value].dtype in BYTES

    def _load_bytes(self, operand: Side, batch: Index, tile: Index, depth: Index, name: str) -> None:
        """Of 16 elements of a side that is stored in bytes, 16 summed ones each, a lane's two words."""
        lane = named("lane % 16", 16)
        if operand.along == "depth":
            trans, side = "", clamped(tile + lane, operand.extent)
        else:
            trans, side, depth = "_trans", _clamped_chunk(tile, operand.extent, 16), depth + lane
        self.out.line(f"uint32_t {name}[2];")
        self.out.line(f"ldmatrix_x2{trans}({name}, {self._address(operand, batch, side, depth)});")

    def _widened(self, operand: Side, word: str, targets: Sequence[str], element: str, when: str = "") -> None:
        """Four elements of one byte into two registers: the first two, or the even ones, and the others."""
        stored = c_type(self.scope.block.types[operand.value].dtype)
        split = "widen_bytes" if operand.fours else "widen_twins"
        self.out.line(f"{when}{split}<{stored}, {element}>({word}, {', '.join(targets)});")

    def _four(
        self, operand: Side, batch: Index, side: Index, depth: Index, target: str, places: tuple[int, int]
    ) -> None:
        """Four elements of two bytes, side by side, into two registers."""
        at, (low, high) = self._address(operand, batch, side, depth + named("lane % 4", 4) * 4), places
        self.out.line(f"load_four({at}, {target}[{low}], {target}[{high}]);")

    def _column_address(self, operand: Side, batch: Index, tile: Index, depth: Index) -> str:
        half = named("lane / 8 % 2", 2) * 8
        if operand.along == "depth":
            column = clamped(tile + named("lane % 8", 8), operand.extent)
            return self._address(operand, batch, column, depth + half)
        column = _clamped_chunk(tile, operand.extent)
        return self._address(operand, batch, column, depth + named("lane % 8", 8) + half)

    def _gathered(self, operand: Side, batch: Index, gather: str, target: str, side: str, element: str) -> None:
        """Two neighbours along depth from anywhere, zeros beyond the extents."""
        self.out.line(f"const bool inside = {side} < {operand.extent};")
        first, second = (
            f"inside && depth{offset} < {operand.depth} ? {gather}({batch.bare}, {side}, depth{offset}) : 0.0f"
            for offset in ("", " + 1")
        )
        self.out.line(f"{target} = pack2<{element}>({first}, {second});")

    def _gatherer(self, operand: Side, name: str) -> None:
        """A function that reads one element of an operand that ldmatrix cannot take."""
        if operand.along:
            return
        reader = Reader(self.scope)
        batch = named("batch", math.prod(operand.batch))
        shape = self.scope.shape(operand.value)
        index = operand.index(shape, batch, named("side", operand.extent), named("depth", operand.depth))
        result = reader.read(operand.value, index, None)
        with self.out.block(f"const auto {name} = [&](int batch, int side, int depth) -> float", tail="};"):
            self.out.lines([*reader.loads, *reader.body, f"return {result};"])

    # -- results

    def unload(self, unload: Unload) -> None:
        """Each depth share to its own copy."""
        out, tiling, value = self.out, unload.tiling, unload.value
        b, r, c, _ = tiling.per_warp
        target = c_type(self.program.stored[value])
        with (
            out.block(f"if (warp < {tiling.warps})" if tiling.warps < self.program.warps else ""),
            out.unrolled("b", b) as at_b,
            out.unrolled("r", r) as at_r,
            out.unrolled("c", c) as at_c,
            out.unrolled("i", 4) as at_i,
        ):
            batch, batch_checks = self._coordinate("batch", _share(tiling, 0, at_b), "", 1, tiling.batch)
            rows, inside = _share(tiling, 1, at_r) * ROW_TILE, "mma_d_row"
            if unload.twins is Twins.ROWS:
                inside = "mma_twin_row"
            row, row_checks = self._coordinate("row", rows, f"{inside}(lane, {at_i})", ROW_TILE, tiling.rows)
            columns, inside, reach = _share(tiling, 2, at_c), f"mma_d_column(lane, {at_i})", COLUMN_TILE
            if unload.twins is Twins.COLUMNS:
                columns, inside, reach = columns // 2 * 16 + columns % 2, f"2 * {inside}", 2 * COLUMN_TILE - 1
            else:
                columns = columns * COLUMN_TILE
            column, column_checks = self._coordinate("column", columns, inside, reach, tiling.columns)
            inner = (column, row) if tiling.swapped else (row, column)
            leaf = locate(self.scope, value, (*unravel(batch, self.scope.shape(value)[:-2]), *inner), None)
            copy = f"warp_k * {leaf.copy_elements} + " if leaf.copies > 1 else ""
            checks = [*batch_checks, *row_checks, *column_checks]
            when = f"if ({' && '.join(checks)}) " if checks else ""
            register = f"{unload.source}[{at_b}][{at_r}][{at_c}][{at_i}]"
            out.line(f"{when}{leaf.pointer}[{copy}{leaf.offset}] = from_float<{target}>({register});")

    def _coordinate(self, name: str, tile: Index, inside: str, reach: int, extent: int) -> tuple[Index, list[str]]:
        """Name a coordinate of the product; conditions under which it exists."""
        expression = tile + named(inside, reach)
        if reach == 1 and expression.limit < extent:
            return expression, []
        self.out.line(f"const int {name} = {expression.bare};")
        return named(name, extent), [f"{name} < {extent}"] if expression.limit >= extent else []


_SPLIT = ("warp_k", "warp_c", "warp_r", "warp_b")
"""A warp's place along depth, columns, rows, batch."""


def clamped(index: Index, extent: int) -> Index:
    """The index, or the last one that exists."""
    if index.limit < extent:
        return index
    return Index(((f"({index} < {extent} ? {index} : {extent - 1})", extent, 1),))


def _clamped_chunk(index: Index, extent: int, chunk: int = 8) -> Index:
    """As `clamped`, for the first of a chunk; both are multiples of it."""
    return clamped(index // chunk, extent // chunk) * chunk


def _share(tiling: Tiling, axis: int, local: str) -> Index:
    """The tile along `axis` (batch, rows, columns) that a warp's local tile is."""
    warp = ("warp_b", "warp_r", "warp_c")[axis]
    count = tiling.per_warp[axis]
    return named(warp, tiling.split[axis]) * count + named(local, count)
