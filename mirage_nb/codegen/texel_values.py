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
from mirage_nb.ir import DType
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
