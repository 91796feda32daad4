"""Copies of tiles from device memory as text: cp.async by all threads, bulk tensor copies by the loader.

In: statements of a staged program. Out: lines of CUDA. Invariant: a tile of the ring goes to the stage of the iteration
whose loop, or refill, the statement stands in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from mirage_nb.codegen.maps import coordinates, each
from mirage_nb.codegen.reader import Text
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.ir import InIterAttrs
from mirage_nb.optimize.access import Scope, device_start, locate, operand_leaf
from mirage_nb.optimize.reach import EXTENT
from mirage_nb.tile.index import Index, Multi, linear, named
from mirage_nb.tile.staged.program import Bring, Carry, Fill, StagedProgram


class CopyText(Text):
    """Writes copies. iteration: whose tiles; slot: the stage that they go to, in words and as an index."""

    def __init__(self, out: Writer, scope: Scope, program: StagedProgram) -> None:
        super().__init__(out, scope, program)
        self.iteration, self.slot, self.stage = Index(), "", Index()

    @contextmanager
    def looped(self, counter: str, count: int) -> Iterator[None]:
        """Inside a loop: of the iteration that it counts."""
        self.iteration = self.stage = named(counter, count)
        self.slot = counter
        yield
        self.iteration, self.slot = Index(), ""

    @contextmanager
    def refilled(self, ahead: int, count: int) -> Iterator[None]:
        """Inside a refill: of an iteration to come."""
        before = self.iteration, self.slot
        self.iteration = named("iteration", count - ahead) + ahead
        self.slot = f"(iteration + {ahead}) % {self.program.stages}"
        yield
        self.iteration, self.slot = before

    def acquire(self) -> None:
        """Wait for an empty stage."""
        counter, stages = self.slot, self.program.stages
        self.slot, self.stage = "slot", named("slot", stages)
        self.out.line(f"const int slot = {counter} % {stages};")
        self.out.line(f"mbarrier_wait(empty + slot, ({counter} / {stages} + 1) % 2);")

    def _described(self, value: int) -> InIterAttrs:
        """Which part of which operand a copy brings, also as a comment in muGraph terms."""
        attrs = self.scope.reads[value]
        imap = ", ".join("-" if d is None else str(d) for d in attrs.imap)
        fmap = "-" if attrs.fmap is None else attrs.fmap
        what = f"imap ({imap}), fmap {fmap}: {self.scope.block.types[value]}"
        self.out.line(f"// %{value} = operand {attrs.arg}, {what}")
        return attrs

    def fill(self, statement: Fill | Carry) -> None:
        """By all threads."""
        value, pointer = statement.value, f"t{statement.value}"
        if value in self.program.streamed:
            layout, pointer = self.program.buffer(value).layout, f"fill{value}"
            target = f"{c_type(layout.dtype)}* const {pointer}"
            self.out.line(f"{target} = ring{value} + {self.slot} * {layout.elements};")
        attrs = self._described(value)
        if isinstance(statement, Carry):
            self._carry(statement, attrs, pointer)
            return
        nbytes = statement.vectors.width * self.scope.plan.stored[value].size
        with each(self.out, self.scope, statement.vectors) as index:
            leaf = locate(self.scope, value, index, None)
            source = operand_leaf(self.scope, attrs, index, self.iteration, None, 1)
            valid = f", {source.inside} ? {nbytes} : 0" if source.inside else ""
            where = f"{pointer} + {leaf.offset}"
            self.out.line(f"cp_async<{nbytes}>({where}, {source.pointer} + {source.offset}{valid});")

    def _carry(self, carry: Carry, attrs: InIterAttrs, pointer: str) -> None:
        """Some are on their way before a thread stores the first."""
        out, threads, count, batch = self.out, self.program.threads, carry.vectors.count, carry.batch
        element, width = c_type(self.program.buffer(carry.value).layout.dtype), carry.vectors.width
        partly = count % (batch * threads) > 0
        with out.block(f"for (int first = thread; first < {count}; first += {batch * threads})"):
            out.line(f"{f'Vec<{element}, {width}>' if width > 1 else element} held[{batch}];")
            for storing in (False, True):
                with out.unrolled("u", batch) as u, out.block() if batch == 1 else nullcontext():
                    out.line(f"const int e = first{f' + {u} * {threads}' if batch > 1 else ''};")
                    with out.block(f"if (e < {count})") if partly and batch > 1 else nullcontext():
                        index = coordinates(out, carry.vectors)
                        if storing:
                            offset = locate(self.scope, carry.value, index, None).offset
                            stored = f"store({pointer} + {offset}, held[{u}]);"
                            out.line(stored if width > 1 else f"{pointer}[{offset}] = held[{u}];")
                            continue
                        out.line(f"held[{u}] = {self._brought(attrs, index, element, width)};")

    def _brought(self, attrs: InIterAttrs, index: Multi, element: str, width: int) -> str:
        """An element of an operand, or a vector that may begin anywhere and ends where its rows do, or its memory."""
        scope, iteration = self.scope, self.iteration
        source = operand_leaf(scope, attrs, index, iteration, None, 1)
        operand = scope.block.args[attrs.arg]
        brought, zero = f"{source.pointer}[{source.offset}]", f"from_float<{element}>(0.0f)"
        if width > 1:
            ends = ""
            if scope.block.overhanging(attrs)[-1]:
                column = device_start(scope.block, attrs, iteration)[-1] + index[-1]
                ends = f", {operand.shape[-1]} - {column}"
            reach = scope.reaches.operands.get(attrs.arg)
            window = scope.windows.get(attrs.arg)
            elements = operand.elements if window is None else window.elements
            last = str(elements)
            if reach is not None:
                last = f"{EXTENT} * {elements * reach.factor // operand.shape[reach.dim]}"
            brought = f"load_anywhere<{width}>({source.pointer}, {source.offset}, {last}{ends})"
            zero = f"Vec<{element}, {width}>{{}}"
        return f"{source.inside} ? {brought} : {zero}" if source.inside else brought

    def bring(self, bring: Bring) -> None:
        """By the copy engine, box by box."""
        out, bulk, value = self.out, bring.bulk, bring.value
        attrs, layout = self._described(value), self.program.buffer(value).layout
        operand = self.scope.block.args[attrs.arg].shape
        start = device_start(self.scope.block, attrs, self.iteration)
        row, column = linear(start[:-1], operand[:-1]) // bulk.fold, start[-1]
        height, width = bulk.box
        load = "tma_load_2d_once" if bring.once else "tma_load_2d"
        with out.unrolled("p", bulk.across) as p, out.unrolled("d", bulk.down) as d:
            target = self.stage * layout.elements + named(p, bulk.across) * (layout.panel_rows * width)
            target = target + named(d, bulk.down) * (height * width)
            across = column + named(p, bulk.across) * width
            down = row + named(d, bulk.down) * height
            at = f"ring{value} + {target.bare}"
            out.line(f"{load}({at}, map{value}, full + {self.stage.bare}, {across.bare}, {down.bare});")
