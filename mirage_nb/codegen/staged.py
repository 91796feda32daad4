"""The printer of staged programs: every statement as it stands, through the device library.

In: a staged program, the scope in which its values are read. Out: the body of a `__global__` function. It decides
nothing.
"""

from __future__ import annotations

from typing import assert_never

from mirage_nb.codegen.copies import CopyText
from mirage_nb.codegen.fragments import FragmentText
from mirage_nb.codegen.maps import TileText
from mirage_nb.codegen.matmul import ProductText
from mirage_nb.codegen.reduce import ReductionText
from mirage_nb.codegen.writer import Writer, c_type, extents
from mirage_nb.ir import AccumAttrs, BlockGraph, OpKind
from mirage_nb.optimize.access import Scope
from mirage_nb.tile.rules.placement import StepKind
from mirage_nb.tile.rules.sketch import MATMULS
from mirage_nb.tile.staged import program as staged
from mirage_nb.tile.staged.program import Signal, StagedProgram

READY = 2
"""The named barrier behind which the mbarriers exist; the warps that compute share the first one."""


class StagedText:
    """Writes the body of one kernel."""

    def __init__(self, out: Writer, scope: Scope, program: StagedProgram) -> None:
        self.out, self.scope, self.program = out, scope, program
        self.copies = CopyText(out, scope, program)
        self.tiles = TileText(out, scope, program)
        self.products = ProductText(out, scope, program)
        self.fragments = FragmentText(out, scope, program)
        self.reductions = ReductionText(out, scope, program)
        self.everybody = f"barrier_sync(1, {program.threads});" if program.loader else "block_sync();"

    def declare(self) -> None:
        """Name what lies in shared memory."""
        out = self.out
        if self.program.buffers:
            out.line("MIRAGE_DYNAMIC_SHARED(shared);")
        for buffer in self.program.buffers:
            element = c_type(buffer.layout.dtype)
            stem = "ring" if buffer.value in self.program.streamed else "t"
            what = f"{buffer.copies} x " if buffer.copies > 1 else ""
            out.line(
                f"{element}* const {stem}{buffer.value} = reinterpret_cast<{element}*>(shared + {buffer.offset});"
                f"  // {what}{self.scope.block.types[buffer.value]}, %{buffer.value}"
            )
        for name, count in self.program.scratch:
            out.line(f"MIRAGE_SHARED(float, {name}, {count});")

    def emit(self) -> None:
        """The statements."""
        if self.program.loader:
            self._loader()
        self._body(self.program.code)

    def _loader(self) -> None:
        """The producer warp goes its own way: it sets up the mbarriers and goes on at once."""
        out, program = self.out, self.program
        out.line(f"MIRAGE_SHARED(uint64_t, full, {program.stages});")
        out.line(f"MIRAGE_SHARED(uint64_t, empty, {program.stages});")
        with out.block(f"if (warp == {program.warps})"):
            out.line("// the producer warp: one lane streams tiles as slots become empty")
            with out.block("if (lane == 0)"):
                for value in program.streamed:
                    out.line(f"tma_prefetch_map(map{value});")
                with out.block(f"for (int s = 0; s < {program.stages}; ++s)"):
                    out.line("mbarrier_init(full + s, 1);")
                    out.line(f"mbarrier_init(empty + s, {program.warps});")
                out.line("fence_mbarrier_init();")
            out.line("warp_sync();")
            out.line(f"barrier_arrive({READY}, {self.scope.plan.options.threads});")
            with out.block("if (lane == 0)"):
                if program.loader[1:2] == (Signal.DEPEND,):
                    out.line("// what nothing in front writes comes first, as much as the ring holds")
                self._body(program.loader)
            out.line("return;")

    def _body(self, statements: tuple[staged.Statement, ...]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: staged.Statement) -> None:
        out, copies, products, fragments = self.out, self.copies, self.products, self.fragments
        match statement:
            case staged.Signal():
                self._signal(statement)
            case staged.Landed(newer):
                out.line(f"cp_async_wait<{newer}>();")
            case staged.Loop(counter, count, body, first):
                head = f"for (int {counter} = {first}; {counter} < {count}; ++{counter})"
                with out.block(head), copies.looped(counter, count):
                    self._body(body)
            case staged.Refill(ahead, count, body):
                with out.block(f"if (iteration + {ahead} < {count})"), copies.refilled(ahead, count):
                    self._body(body)
            case staged.Task(body=body):
                out.line(f"// {comment(self.scope.block, statement)}")
                self._body(body)
            case staged.Warps(count, tiling, body):
                with out.block(f"if (warp < {count})" if count else ""):
                    products.place(tiling)
                    self._body(body)
            case staged.Announce(nbytes):
                out.line(f"mbarrier_arrive_expect_tx(full + {copies.slot}, {nbytes});")
            case staged.Bring():
                copies.bring(statement)
            case staged.Fill() | staged.Carry():
                copies.fill(statement)
            case staged.Start(result, kind, count):
                self.tiles.start(result, kind, count)
            case staged.Compute():
                self.tiles.compute(statement)
            case staged.Move():
                self.tiles.move(statement)
            case staged.Save():
                self.tiles.save(statement)
            case staged.Add():
                self.tiles.add(statement)
            case staged.Leave():
                self.tiles.leave(statement)
            case staged.Partial() | staged.Reduce() | staged.Total():
                self.reductions.write(statement)
            case staged.Zeros(result, form):
                out.line(f"float {result}{extents(form)} = {{}};")
            case staged.Dot():
                products.dot(statement)
            case staged.Multiply():
                products.multiply(statement)
            case staged.MultiplyPacked():
                products.multiply_packed(statement)
            case staged.MultiplyPanels():
                products.multiply_panels(statement)
            case staged.Load():
                products.load(statement)
            case staged.Unload():
                products.unload(statement)
            case staged.Pack():
                fragments.pack(statement)
            case staged.Evaluate():
                fragments.evaluate(statement)
            case staged.Change():
                fragments.change(statement)
            case staged.SumPacked():
                fragments.sum_packed(statement)
            case staged.Largest():
                fragments.largest(statement)
            case staged.Publish(results):
                fragments.publish(results)
            case staged.Agree(result, last):
                fragments.agree(result, last)
            case staged.LeaveRows():
                fragments.leave(statement)
            case staged.SaveRows():
                fragments.save(statement)
            case _:
                assert_never(statement)

    def _signal(self, signal: Signal) -> None:
        out, program = self.out, self.program
        match signal:
            case Signal.DEPEND:
                out.line("grid_dependency_wait();")
            case Signal.COMMIT:
                out.line("cp_async_commit();")
            case Signal.BARRIER:
                out.line(self.everybody)
            case Signal.READY:
                out.line(f"barrier_sync({READY}, {self.scope.plan.options.threads});")
            case Signal.FENCE:
                out.line("fence_proxy_async();")
            case Signal.ACQUIRE:
                self.copies.acquire()
            case Signal.AWAIT:
                out.line(f"mbarrier_wait(full + iteration % {program.stages}, iteration / {program.stages} % 2);")
            case Signal.RELEASE:
                out.line("warp_sync();")
                out.line(f"if (lane == 0) mbarrier_arrive(empty + iteration % {program.stages});")
            case Signal.PLACE:
                self.fragments.place()
            case Signal.CURRENT:
                for value in program.streamed:
                    layout = program.buffer(value).layout
                    slot = f"ring{value} + iteration % {program.stages} * {layout.elements}"
                    out.line(f"const {c_type(layout.dtype)}* const t{value} = {slot};")
            case _:
                assert_never(signal)


def comment(block: BlockGraph, task: staged.Task) -> str:
    """What a step computes, in muGraph terms."""
    step, first = task.step, [values[0] if values else -1 for _, values in block.definitions()]
    op = block.ops[step.op]
    operands = ", ".join(f"%{v}" for v in op.inputs)
    if step.kind is StepKind.SAVE:
        return f"output {block.savers.index(op)} = {operands}"
    if isinstance(op.attrs, AccumAttrs):
        what = f"{op.attrs.kind.value} accumulator"
        found = f"%{first[step.op]}"
        return f"{found} = {what} of {operands}" + (" (to shared memory)" if step.kind is StepKind.FINISH else "")
    value = step.value if step.value is not None else first[step.op]
    text = f"%{value} = {op.kind.value}({operands}): {block.types[value]}"
    if op.kind is OpKind.FUSED and op.body is not None:
        text += f" [{', '.join(inner.kind.value for inner in op.body.ops if inner.kind is not OpKind.CONST)}]"
    if task.tiling is not None:
        b, r, c, k = task.tiling.split
        text += f", warps {b} x {r} x {c} x {k} (batch x rows x columns x depth)"
        text += ", transposed" if task.tiling.swapped else ""
    elif op.kind in MATMULS:
        text += ", scalar"
    if step.accum is not None:
        text += f", into %{first[step.accum]}"
    return text
