"""What stands behind products whose results lie as a texel says: elementwise operators, then stores.

In: the values and stores of a role, in order, and the row of its products. Out: statements that compute them for as
many neighbouring columns at a time as a thread holds side by side. Invariant: as in `tile_values`, only loads and
stores ask whether an element exists.
"""

from __future__ import annotations

from contextlib import ExitStack

from mirage_nb.codegen.reach import Reach
from mirage_nb.codegen.texel_product import run_of, thread_text
from mirage_nb.codegen.tile_values import ValueText
from mirage_nb.codegen.writer import Writer, stored_type
from mirage_nb.tile.instructions import InstructionTile
from mirage_nb.tile.program import Index, Map, Number, Program, Read, Store, Tile


class TexelValueText(ValueText):
    """Writes them; `held`: the accumulators of the role."""

    def __init__(
        self,
        out: Writer,
        program: Program,
        statements: tuple[Number | Read | Map | Store, ...],
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
                    self._side_by_side(read)
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

    def _side_by_side(self, read: Read) -> None:
        """A value of every column of the run."""
        out, length = self.out, self.run.length
        access = self._access(read.source, read.at)
        if self._vector(read.source, read.at):
            at = f"{access.tile.name} + {access.offset}"
            loaded = f"load_inside<{length}>({at}, {access.inside})" if access.inside else f"load<{length}>({at})"
            out.line(f"const auto {read.name} = to_floats({loaded});")
            return
        out.line(f"float {read.name}[{length}];")
        with out.unrolled("e", length) as e:
            single = self._access(read.source, read.at, f"column + {e}")
            value = f"to_float({access.tile.name}[{single.offset}])"
            out.line(f"{read.name}[{e}] = {f'{single.inside} ? {value} : 0.0f' if single.inside else value};")

    def _place(self, e: str) -> str:
        """Where an element of the run lies in registers."""
        base, place = self.texel.source.result.count, self.run.number(e)
        return f"[({place}) / {base}][({place}) % {base}]" if base > 1 else f"[{place}][0]"

    def _store_run(self, store: Store) -> None:
        out, access, length = self.out, self._access(store.target, store.at), self.run.length
        element = stored_type(self.program.tile(store.target).dtype)
        y, single = f"y_{store.target}", f"y_{store.target}[{{}}]"
        if element != "double":
            y, single = f"from_floats<{element}>({y})", f"from_float<{element}>({single})"
        if self._vector(store.target, store.at):
            with self._when(access.inside):
                out.line(f"store({access.tile.name} + {access.offset}, {y});")
            return
        with out.unrolled("e", length) as e:
            place = self._access(store.target, store.at, f"column + {e}")
            with self._when(place.inside):
                out.line(f"{access.tile.name}[{place.offset}] = {single.format(e)};")
