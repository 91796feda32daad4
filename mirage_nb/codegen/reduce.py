"""Reductions of a tile along one dimension: sums, maxima, rescaled sums, alone or feeding an accumulator.

In: a statement of a staged program. Out: lines in which a group of lanes (or the whole block) shares one result.
Invariant: warp collectives are reached by all lanes of every warp, also where results do not fill them;
a reduction that feeds an accumulator keeps one partial result per thread until the loop is over.
"""

from __future__ import annotations

from mirage_nb.codegen.maps import corner, emit_fold, fold, in_patch
from mirage_nb.codegen.reader import Reader, Text
from mirage_nb.codegen.writer import c_type
from mirage_nb.ir import AccumKind
from mirage_nb.optimize.access import locate
from mirage_nb.tile.index import Index, Multi, named, unravel
from mirage_nb.tile.rules.sharing import Extents, Share
from mirage_nb.tile.staged.program import Partial, Reduce, Total


class ReductionText(Text):
    """Writes reductions."""

    def write(self, statement: Partial | Reduce | Total) -> None:
        """One of them."""
        shared = statement.share
        if shared.patch and not isinstance(statement, Total):
            self._patches(statement)
            return
        with self.out.unrolled("s", shared.slots) as s, self.out.block():
            match statement:
                case Partial(result, kind, operands):
                    self._folded(shared, kind, operands, f"{result}[{s}]", s)
                case Reduce(_, _, kind, operands):
                    self.out.line(f"float result = {_start(kind)};")
                    at = self._folded(shared, kind, operands, "result", s)
                    self._combine(shared, kind)
                    self._leave(statement, at, "result")
                case Total(value, source, kind):
                    self.out.line(f"float result = {source}[{s}];")
                    at = self._result(shared, s)
                    self._combine(shared, kind)
                    self._store(value, shared, at, "result")

    def _patches(self, statement: Partial | Reduce) -> None:
        """This thread's patch of results, at once: what is read or computed for several of them is so once."""
        shared, scope = statement.share, self.scope
        with self.out.block():
            begin = corner(self.out, shared.apart, self.program.threads)
            name = statement.result if isinstance(statement, Partial) else "results"
            if isinstance(statement, Reduce):
                self.out.line(f"float {name}[{shared.slots}];")
                with self.out.unrolled("s", shared.slots) as s:
                    self.out.line(f"{name}[{s}] = {_start(statement.kind)};")
            with self.out.block(f"for (int k = 0; k < {shared.steps}; ++k)"):
                reader, folds, k = Reader(scope, shared.width), list[str](), named("k", shared.steps) * shared.width
                for place in range(shared.slots):
                    at = in_patch(begin, shared.apart, shared.patch, Index(const=place))
                    at = (*at[: shared.dim], k, *at[shared.dim + 1 :])
                    value = reader.read(statement.operands[0], at, shared.vector_dim)
                    folds += fold(statement.kind, f"{name}[{place}]", "", value, "")
                self.out.lines(reader.loads)
                with self.out.unrolled("v", shared.width):
                    self.out.lines([*reader.body, *folds])
            if isinstance(statement, Reduce):
                with self.out.unrolled("s", shared.slots) as s:
                    at = in_patch(begin, shared.apart, shared.patch, named(s, shared.slots))
                    self._leave(statement, at, f"{name}[{s}]")

    def _leave(self, reduce: Reduce, at: Multi, result: str) -> None:
        """A result, or what an elementwise operator makes of it, by who has it, goes to its tile."""
        if reduce.value != reduce.made:
            reader = Reader(self.scope, 1, {reduce.made: result})
            result = reader.compute(reduce.value, at, None)
            self.out.lines([*reader.loads, *reader.body])
        self._store(reduce.value, reduce.share, at, result)

    def _folded(self, shared: Share, kind: AccumKind, operands: Extents, target: str, slot: str) -> Multi:
        """This thread's elements of a result in a register."""
        if kind is AccumKind.RESCALE:
            self.out.line("float top = NEGATIVE_INFINITY;")
        at = self._result(shared, slot)
        guard = "" if shared.results % self._groups(shared) == 0 else f"if (o < {shared.results}) "
        with self.out.block(f"{guard}for (int k = {_lane(shared)}; k < {shared.steps}; k += {shared.lanes})"):
            index = (*at[: shared.dim], named("k", shared.steps) * shared.width, *at[shared.dim + 1 :])
            reader = Reader(self.scope, shared.width)
            emit_fold(self.out, reader, operands, kind, (target, "top"), index, shared.vector_dim)
        return at

    def _groups(self, shared: Share) -> int:
        return 1 if shared.whole_block else self.program.threads // shared.lanes

    def _result(self, shared: Share, slot: str) -> Multi:
        """Name the result of this slot; lanes beyond the last one work on a result that exists and drop it."""
        if shared.whole_block:
            return unravel(named(slot, shared.results), shared.kept)
        if shared.patch:
            begin = corner(self.out, shared.apart, self.program.threads)
            return in_patch(begin, shared.apart, shared.patch, named(slot, shared.slots))
        groups = self._groups(shared)
        lane = f"thread / {shared.lanes}" if shared.lanes > 1 else "thread"
        self.out.line(f"const int o = {(named(lane, groups) + named(slot, shared.slots) * groups).bare};")
        return unravel(named("o", shared.results), shared.kept)

    def _combine(self, shared: Share, kind: AccumKind) -> None:
        """Partial results of a group of lanes become one."""
        if shared.lanes == 1:
            return
        if kind is AccumKind.RESCALE:
            self.out.line(f"const float highest = {self._collective(shared, 'max', 'top')};")
            self.out.line("result = rescaled(result, top, highest);")
        name = "max" if kind is AccumKind.MAX else "sum"
        self.out.line(f"result = {self._collective(shared, name, 'result')};")

    def _collective(self, shared: Share, name: str, value: str) -> str:
        if not shared.whole_block:
            return f"warp_{name}<{shared.lanes}>({value})"
        if self.program.loader:
            return f"group_{name}({value}, scratch, 0, {self.program.warps}, 1)"
        return f"block_{name}({value}, scratch)"

    def _store(self, value: int, shared: Share, at: Multi, result: str) -> None:
        leaf = locate(self.scope, value, at, None)
        conditions = []
        if shared.lanes > 1:
            conditions.append(f"{_lane(shared)} == 0")
        if not shared.whole_block and shared.results % self._groups(shared):
            conditions.append(f"o < {shared.results}")
        guard = f"if ({' && '.join(conditions)}) " if conditions else ""
        target = c_type(self.program.stored[value])
        self.out.line(f"{guard}{leaf.pointer}[{leaf.offset}] = from_float<{target}>({result});")


def _start(kind: AccumKind) -> str:
    """What nothing has been folded into yet."""
    return "NEGATIVE_INFINITY" if kind is AccumKind.MAX else "0.0f"


def _lane(shared: Share) -> str:
    if shared.whole_block:
        return "thread"
    return f"thread % {shared.lanes}" if shared.lanes > 1 else "0"
