"""What stands behind the products: elementwise operators on accumulators as they lie in registers, then stores.

In: the values and stores of a tile program, in order; where results lie as a texel says, the row of the products. Out:
statements that compute them for two neighbouring columns at a time, or for as many as a thread holds side by side. Four
lanes that hold eight columns of a row each pass words among themselves, so that each loads and stores 16 bytes of it,
where the tensor's rows allow it; of rows that begin anywhere the eight lanes of a column do, so that a warp stores one
after another. Invariant: a lane takes part in every exchange; only loads and stores ask whether an element exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial

from mirage_nb.codegen.operators import CUDA, number
from mirage_nb.codegen.roles.access import ROW, TOGETHER, Access, Part, loaded
from mirage_nb.codegen.roles.reads import each_row, load_pairs
from mirage_nb.codegen.texel_product import run_of, thread_text
from mirage_nb.codegen.writer import Writer, c_index, c_type, stored_type
from mirage_nb.ir import DType
from mirage_nb.optimize.reach import Reach
from mirage_nb.tile.instructions.table import InstructionTile, Place
from mirage_nb.tile.roles.program import Count, Index, Map, Number, Program, Read, Store, Tile, Until
from mirage_nb.tile.rules.sharing import COLUMN_TILE
from mirage_nb.tile.rules.teams import HEIGHT

LINES = 8
"""Rows of a fragment."""
Said = Number | Until | Count | Read | Map | Store


class ValueText:
    """Writes them. `ends`: of global tensors that end where a size does, which is known at launch; `rows`: values with
    rows only that are in registers already."""

    def __init__(
        self, out: Writer, program: Program, statements: tuple[Said, ...], ends: dict[str, Reach],
        rows: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.out, self.program, self.statements, self.ends, self.of_rows = out, program, statements, ends, rows
        self.stores = [s for s in statements if isinstance(s, Store)]
        self.reads = [s for s in statements if isinstance(s, Read)]
        self.registers = {t.name: t for t in program.tiles if t.place is Place.REGISTER}
        whole = next(t for t in self.registers.values() if t.name in self._read() and len(t.shape) > 1)
        self.rows, self.columns = whole.shape
        self.row_axis, self.column_axis = whole.axes
        self.group = self._together()
        self.sweeps = self.group * COLUMN_TILE == ROW

    def _together(self) -> int:
        """How many fragments side by side are one step: those of whole rows, where these begin anywhere."""
        group = TOGETHER if self.columns % (TOGETHER * COLUMN_TILE) == 0 else 2
        part = self._part_of(group)
        stored = [part.access(store.target, store.at) for store in self.stores]
        wide = any(access.wide for access in (*stored, *(part.access(read.source, read.at) for read in self.reads)))
        return ROW // COLUMN_TILE if any(access.rows for access in stored) and not wide else group

    def _read(self) -> set[str]:
        """The names that are computed with, or stored."""
        found = {s.value for s in self.stores}
        return found.union(*(s.operands for s in self.statements if isinstance(s, Map)))

    def emit(self) -> None:
        """All of them."""
        out = self.out
        for read in self.reads:
            if not self._varies(read, self.row_axis) and not self._varies(read, self.column_axis):
                self._scalar(read)
        steps = partial(out.unrolled, "j", self.columns // COLUMN_TILE // self.group)
        if not self.sweeps:
            with each_row(out, self.rows // HEIGHT) as (i, h):
                self._rows(i, h)
                with steps() as j:
                    self._group(i, h, j)
            return
        with steps() as j:
            for read in self.reads:
                if self._is_kept(read):
                    self._kept(read, j)
            with each_row(out, self.rows // HEIGHT) as (i, h):
                self._rows(i, h)
                self._group(i, h, j)

    def _rows(self, i: str, h: str) -> None:
        """A lane's row, and what is read of it once."""
        by_row = [read for read in self.reads if self._varies(read, self.row_axis)]
        stored = (self._access(store.target, store.at) for store in self.stores)
        if by_row or self._counts(self.row_axis) or not all(map(self._in_rows, stored)):
            self.out.line(f"const int row = {self._row(i, h, 'lane / 4')};")
        for read in by_row:
            if not self._varies(read, self.column_axis):
                self._scalar(read)

    def _kept(self, read: Read, j: str) -> None:
        """The elements of a lane's columns, for all of its rows."""
        tile, to = self.program.tile(read.source), f"c_{read.name}"
        access = partial(self._access, read.source, read.at)
        self.out.line(f"Vec<{stored_type(tile.dtype)}, 2> {to}[{self.group}];")
        load_pairs(
            self.out, to, ("q", self.group), partial(self._fragment, j), access,
            lambda column: f"{tile.name}[{access(column).offset}]",
        )  # fmt: skip

    def _row(self, i: str, h: str, r: str) -> str:
        base = f"{HEIGHT} * {i} + " if self.rows > HEIGHT else ""
        return f"{base}16 * (warp % 4) + {r} + 8 * {h}"

    def _fragment(self, j: str, q: str) -> str:
        """Where a fragment begins."""
        return f"{COLUMN_TILE * self.group} * {j} + {COLUMN_TILE} * {q}"

    def _group(self, i: str, h: str, j: str) -> None:
        """Fragments side by side."""
        out = self.out
        first = f"{COLUMN_TILE * self.group} * {j}"
        matrices = [r for r in self.reads if self._varies(r, self.row_axis) and self._varies(r, self.column_axis)]
        moved: dict[Read | Store, Access] = {read: self._access(read.source, read.at) for read in matrices}
        moved |= {store: self._access(store.target, store.at) for store in self.stores}
        if any(access.wide for access in moved.values()):
            out.line(f"const int wide = {first} + {COLUMN_TILE} * (lane % 4);  // the column that this lane moves")
        for read in matrices:
            if moved[read].wide:
                access = self._access(read.source, read.at, "wide")
                out.line(f"alignas(16) uint32_t w_{read.name}[4] = {{}};")
                with self._when(access.inside):
                    out.line(f"load_words(w_{read.name}, {access.tile.name} + {access.offset});")
                out.line(f"transpose_words<4, 1>(w_{read.name});")
        in_words = [s for s in self.stores if moved[s].wide or self._in_rows(moved[s])]
        for store in in_words:
            out.line(f"alignas(16) uint32_t w_{store.target}[{self.group}];")
        narrow = len(in_words) < len(self.stores)
        narrow |= self._counts(self.column_axis)
        here = [r for r in self.reads if self._varies(r, self.column_axis) and not self._is_kept(r)]
        narrow |= any(not (r in matrices and moved[r].wide) for r in here)
        with out.unrolled("q", self.group) as q:
            if narrow:
                out.line(f"const int column = {self._fragment(j, q)} + 2 * (lane % 4);")
            for read in self.reads:
                if self._is_kept(read):
                    out.line(f"const auto {read.name} = to_floats(c_{read.name}[{q}]);")
                elif read in here:
                    self._pair(read, q, read in matrices and moved[read].wide)
            for store in self.stores:
                out.line(f"float y_{store.target}[2];")
            with out.unrolled("e", 2) as e:
                place, row = f"[{i}][4 * ({self.group} * {j} + {q}) + 2 * {h} + {e}]", f"[{i}][{h}]"
                where = {name: place if len(tile.shape) > 1 else row for name, tile in self.registers.items()}
                self._elements(where | dict.fromkeys(self.of_rows, row), e)
            for store in self.stores:
                element = c_type(self.program.tile(store.target).dtype)
                if store in in_words:
                    y = f"y_{store.target}"
                    out.line(f"w_{store.target}[{q}] = pack2<{element}>({y}[0], {y}[1]);")
                else:
                    self._store_pair(store)
        for store in in_words:
            if self._in_rows(moved[store]):
                self._store_rows(store, i, h, first)
                continue
            access = self._access(store.target, store.at, "wide")
            out.line(f"transpose_words<4, 1>(w_{store.target});")
            with self._when(access.inside):
                out.line(f"store_words({access.tile.name} + {access.offset}, w_{store.target});")

    def _elements(self, where: Mapping[str, str], e: str) -> None:
        """One column: every value once. `where`: the element of every register tile."""
        out = self.out
        text = {name: f"{name}{place}" for name, place in where.items()}
        for statement in self.statements:
            match statement:
                case Number(name, value) | Until(name, value):  # nothing is stored beyond an end
                    text[name] = number(value)
                case Count(name, axis, at):
                    place = "row" if axis == self.row_axis else f"column + {e}"
                    text[name] = f"float({c_index(at)} + {place})"
                case Read(name):
                    text[name] = f"{name}[{e}]" if self._varies(statement, self.column_axis) else name
                case Map(name, kind, attrs, operands):
                    out.line(f"const float {name} = {CUDA[kind]([text[o] for o in operands], attrs)};")
                    text[name] = name
                case Store(value, target):
                    out.line(f"y_{target}[{e}] = {text[value]};")

    def _varies(self, read: Read, axis: str) -> bool:
        return axis in self.program.tile(read.source).axes

    def _is_kept(self, read: Read) -> bool:
        """Whether it is read once for all rows."""
        return self.sweeps and self._varies(read, self.column_axis) and not self._varies(read, self.row_axis)

    def _counts(self, axis: str) -> bool:
        """Whether places along an axis are computed with."""
        counts = (s for s in self.statements if isinstance(s, Count) and s.axis == axis)
        return any(count.name in self._read() for count in counts)

    def _scalar(self, read: Read) -> None:
        self.out.line(f"const float {read.name} = {loaded(self._access(read.source, read.at, '0'))};")

    def _pair(self, read: Read, q: str, wide: bool) -> None:
        """Two neighbours of a row."""
        out, access = self.out, self._access(read.source, read.at)
        if not wide:
            self._side_by_side(read, 2, access.paired)
            return
        out.line(f"const float2 p_{read.name} = unpack2<{c_type(access.tile.dtype)}>(w_{read.name}[{q}]);")
        out.line(f"const float {read.name}[2] = {{p_{read.name}.x, p_{read.name}.y}};")

    def _side_by_side(self, read: Read, length: int, vector: bool) -> None:
        """A value of so many neighbouring columns, which may be one vector in memory."""
        out, access = self.out, self._access(read.source, read.at)
        if vector:
            text = access.vector(f"{access.tile.name} + {access.offset}", length)
            out.line(f"const auto {read.name} = to_floats({text});")
            return
        out.line(f"float {read.name}[{length}];")
        with out.unrolled("e", length) as e:
            out.line(f"{read.name}[{e}] = {loaded(self._access(read.source, read.at, f'column + {e}'))};")

    def _store_pair(self, store: Store) -> None:
        out, access = self.out, self._access(store.target, store.at)
        if not access.paired:
            self._store_each(store, 2)
            return
        out.line(f"Vec<float, 2> z_{store.target};")
        out.line(f"z_{store.target}[0] = y_{store.target}[0], z_{store.target}[1] = y_{store.target}[1];")
        with self._when(access.inside):
            at = f"{access.tile.name} + {access.offset}"
            out.line(f"store({at}, from_floats<{c_type(access.tile.dtype)}>(z_{store.target}));")

    def _in_rows(self, access: Access) -> bool:
        return access.rows and self.sweeps

    def _store_rows(self, store: Store, i: str, h: str, first: str) -> None:
        """The eight rows of a warp's fragments, one after another."""
        out, words = self.out, f"w_{store.target}"
        access, left = self._access(store.target, store.at, "start"), self._part.left(store.target, store.at, "start")
        out.line(f"transpose_words<8, 4>({words});")
        out.line(f"const int start = {first};")
        with out.unrolled("r", LINES) as r:
            out.line(f"const int row = {self._row(i, h, r)};")
            with self._when(access.row_inside):
                out.line(f"store_row({access.tile.name} + {access.offset}, {words}[{r}], {left});")

    def _store_each(self, store: Store, length: int) -> None:
        """So many neighbouring columns, one by one."""
        out, element = self.out, stored_type(self.program.tile(store.target).dtype)
        with out.unrolled("e", length) as e:
            access, y = self._access(store.target, store.at, f"column + {e}"), f"y_{store.target}[{e}]"
            with self._when(access.inside):
                rounded = y if element == "double" else f"from_float<{element}>({y})"
                out.line(f"{access.tile.name}[{access.offset}] = {rounded};")

    def _access(self, name: str, at: tuple[Index, ...], column: str = "column") -> Access:
        """The element of a global tensor at `row` and `column` of this part's tile."""
        return self._part.access(name, at, column)

    @cached_property
    def _part(self) -> Part:
        return self._part_of(self.group)

    def _part_of(self, group: int) -> Part:
        return Part(self.program, self.ends, (self.row_axis, self.column_axis), (self.rows, self.columns), group)

    @contextmanager
    def _when(self, condition: str) -> Iterator[None]:
        with self.out.block(f"if ({condition})" if condition else ""):
            yield


class TexelValueText(ValueText):
    """Writes them; `held`: the accumulators of the role."""

    def __init__(
        self,
        out: Writer,
        program: Program,
        statements: tuple[Said, ...],
        held: tuple[Tile, ...],
        row: InstructionTile,
        ends: dict[str, Reach],
    ) -> None:
        super().__init__(out, program, statements, ends)
        self.rows, self.columns = held[0].shape
        self.row_axis, self.column_axis = held[0].axes
        self.registers = {tile.name: tile for tile in held}
        self.texel = row.texel
        self.type = stored_type(row.sums)
        self.run = run_of(row.texel.result, "j", row.sums)

    def emit(self) -> None:
        """All of them, a run of columns at a time."""
        out, result, run = self.out, self.texel.result, self.run
        for read in self.reads:
            if not self._varies(read, self.row_axis) and not self._varies(read, self.column_axis):
                self._scalar(read)
        out.line(f"const int thread_row = {thread_text(result, 'i')}, thread_column = {thread_text(result, 'j')};")
        with ExitStack() as stack:
            for variable, count, _, _ in run.loops:
                stack.enter_context(out.unrolled(variable, count))
            out.line(f"const int row = {run.at('i', 'thread_row')}, column = {run.at('j', 'thread_column')};")
            for read in self.reads:
                if self._varies(read, self.row_axis) and not self._varies(read, self.column_axis):
                    self._scalar(read)
                elif self._varies(read, self.column_axis):
                    self._side_by_side(read, run.length, self._vector(read.source, read.at))
            for store in self.stores:
                out.line(f"Vec<{self.type}, {run.length}> y_{store.target};")
            with out.unrolled("e", run.length) as e:
                self._elements(dict.fromkeys(self.registers, self._place(e)), e)
            for store in self.stores:
                self._store_run(store)

    def _vector(self, name: str, at: tuple[Index, ...]) -> bool:
        """Whether the run is one vector in memory."""
        tile, length = self.program.tile(name), self.run.length
        starts = all(n % length == 0 for n in (at[-1].const, *(factor for _, factor in at[-1].terms)))
        return starts and tile.axes[-1] == self.column_axis and tile.shape[-1] % length == 0

    def _place(self, e: str) -> str:
        """Where an element of the run lies in registers."""
        base, place = self.texel.source.result.count, self.run.number(e)
        return f"[({place}) / {base}][({place}) % {base}]" if base > 1 else f"[{place}][0]"

    def _store_run(self, store: Store) -> None:
        access, y = self._access(store.target, store.at), f"y_{store.target}"
        element = access.tile.dtype
        if not self._vector(store.target, store.at):
            self._store_each(store, self.run.length)
            return
        rounded = y if element is DType.F64 else f"from_floats<{stored_type(element)}>({y})"
        with self._when(access.inside):
            self.out.line(f"store({access.tile.name} + {access.offset}, {rounded});")
