"""One kernel: a block plan becomes a `__global__` function that calls the device library.

In: a block plan, the constants among its operands, a name. Out: CUDA C++ and the launch parameters.
Invariant: shared memory is read only after a barrier that follows the write (the plan's barriers), and an
asynchronous copy is read only after the wait that completes it and a barrier.
"""

from __future__ import annotations

import math
from fractions import Fraction

from mirage_nb.codegen import direct
from mirage_nb.codegen.dependence import Dependence
from mirage_nb.codegen.emitted import MapArg
from mirage_nb.codegen.fragments import Fragments
from mirage_nb.codegen.index import Index
from mirage_nb.codegen.maps import declare_accumulator, emit_accumulate, emit_finish_map, emit_map, emit_save, walk
from mirage_nb.codegen.matmul import emit_finish_matmul, emit_matmul, registers
from mirage_nb.codegen.reach import EXTENT, Reaches
from mirage_nb.codegen.reader import Scope
from mirage_nb.codegen.reduce import emit_finish_reduce, emit_reduce, share
from mirage_nb.codegen.register_resident import ResidentText
from mirage_nb.codegen.ring import AsyncRing, BulkRing, emit_load, loads
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.errors import EmitError
from mirage_nb.ir import AccumAttrs, InIterAttrs, OpKind, TensorType
from mirage_nb.ir.windows import Window
from mirage_nb.optimize.layout import Boxes
from mirage_nb.optimize.overlap import Overlap
from mirage_nb.optimize.plan import BlockPlan
from mirage_nb.optimize.register_resident import Resident
from mirage_nb.optimize.wide import right_leaves
from mirage_nb.tile.order import Phase
from mirage_nb.tile.placement import Place, Step, StepKind
from mirage_nb.tile.sketch import MATMULS


class KernelText:
    """Writes one kernel that is no tile program."""

    def __init__(
        self,
        name: str,
        plan: BlockPlan,
        literals: dict[int, Fraction],
        outputs: tuple[TensorType, ...],
        overlap: Overlap,
        reaches: Reaches,
        windows: dict[int, Window],
    ) -> None:
        self.name, self.plan, self.block, self.outputs = name, plan, plan.block, outputs
        self.scope = Scope(plan, literals, reaches, windows)
        self.out = Writer()
        self.dependence = Dependence(self.out, self.scope, overlap)
        body = ResidentText if isinstance(plan.strategy, Resident) else StagedText
        self.body: ResidentText | StagedText = body(self.out, self.scope, self.dependence, outputs)

    def text(self) -> str:
        """The whole function."""
        with self.out.block(self._signature()):
            self._names()
            if isinstance(self.body, StagedText):
                self.body.declare()
            self.dependence.begin()
            self.body.emit()
        return self.out.text()

    @property
    def _boxed(self) -> tuple[tuple[int, int, Boxes], ...]:
        """(value, operand, boxes) of every tile that the copy engine brings."""
        return self.body.ring.tensor_maps if isinstance(self.body, StagedText) else ()

    def params(self) -> tuple[int, ...]:
        """Operands that the kernel takes as pointers, in order."""
        boxed = {value for value, _, _ in self._boxed}
        read = {
            op.attrs.arg
            for op, values in self.block.definitions()
            if isinstance(op.attrs, InIterAttrs)
            and values[0] not in boxed
            and self.plan.places[values[0]] not in (Place.LITERAL, Place.COUNTED)
        }
        return tuple(sorted(read))

    def tensor_maps(self) -> dict[str, MapArg]:
        """The tensor maps that follow the pointers, in order, by their names here; values are operands. Raises
        EmitError where a size that is known at launch may leave boxes incomplete."""
        found = {}
        for value, arg, boxed in self._boxed:
            reach = self.scope.reaches.operands.get(arg)
            rows = reach.factor * math.prod(self.block.args[arg].shape[1:-1]) if reach is not None else 0
            if rows % boxed.fold:
                what = f"tensor maps join {boxed.fold} rows of an operand"
                raise EmitError(what, hint="without `bulk` there are none")
            found[f"map{value}"] = MapArg(arg, boxed.rows, boxed.columns, boxed.box, boxed.swizzle)
        return found

    def _signature(self) -> str:
        # What changes while the kernel waits is not promised to be constant.
        still = {i: "" if i in self.dependence.written else " __restrict__" for i in self.params()}
        inputs = [f"const {c_type(self.block.args[i].dtype)}*{word} x{i}" for i, word in still.items()]
        outputs = [f"{c_type(t.dtype)}* __restrict__ o{i}" for i, t in enumerate(self.outputs)]
        maps = [f"const __grid_constant__ TensorMap {name}" for name in self.tensor_maps()]
        size = [f"const int32_t {EXTENT}"] if self.scope.reaches else []
        head = f'extern "C" __global__ void __launch_bounds__({self.plan.options.threads}, 1)'
        return f"{head}\n{self.name}({', '.join([*inputs, *outputs, *maps, *size])})"

    def _names(self) -> None:
        out = self.out
        out.line("const int thread = thread_index(), warp = warp_index(), lane = lane_index();")
        for axis, extent in zip("xyz", self.block.grid, strict=False):
            if extent > 1:
                out.line(f"const int block_{axis} = (int)blockIdx.{axis};")


class StagedText:
    """Writes the body of a kernel whose tiles pass through shared memory."""

    def __init__(self, out: Writer, scope: Scope, dependence: Dependence, outputs: tuple[TensorType, ...]) -> None:
        self.out, self.scope, self.dependence, self.outputs = out, scope, dependence, outputs
        self.options, self.block, self.staged = scope.plan.options, scope.block, scope.staged
        region = self.staged.region
        ring = BulkRing if self.options.bulk else AsyncRing
        self.ring: BulkRing | AsyncRing = ring(out, scope, dependence)
        self.fragments = Fragments(out, scope, region) if region else None
        self.wide_tiles = right_leaves(scope.block, region) if self.options.wide and region else frozenset[int]()
        self.awaited = True
        self.looped = False

    def declare(self) -> None:
        """Name what lies in shared memory."""
        out = self.out
        if self.staged.buffers:
            out.line("MIRAGE_DYNAMIC_SHARED(shared);")
        ring = {s.value for s in self.ring.steps}
        for buffer in self.staged.buffers:
            element = c_type(buffer.layout.dtype)
            stem = "ring" if buffer.value in ring else "t"
            what = f"{buffer.copies} x " if buffer.copies > 1 else ""
            out.line(
                f"{element}* const {stem}{buffer.value} = reinterpret_cast<{element}*>(shared + {buffer.offset});"
                f"  // {what}{self.block.types[buffer.value]}, %{buffer.value}"
            )
        if self.fragments is not None:
            for array in self.fragments.exchanged():
                count = self.fragments.region.key_warps * self.fragments.region.padded_rows
                out.line(f"MIRAGE_SHARED(float, {array}_all, {count});")
        if any(s.kind is StepKind.REDUCE and share(self.scope, s.op).whole_block for s in self.staged.steps):
            out.line(f"MIRAGE_SHARED(float, scratch, {self.options.warps});")

    def emit(self) -> None:
        """The statements."""
        out = self.out
        self._start()
        for step in self._phase(Phase.BEFORE):
            self._step(step)
        self._accumulators()
        if self._phase(Phase.LOOP):
            self._loop()
        if self.fragments is not None:
            self.fragments.settle()
        if self.fragments is not None and self.fragments.exchanged():
            out.line("// the warps that share rows agree on their maxima")
            self.fragments.publish()
            self._sync()
            self.fragments.agree()
        if self.staged.region is not None and self.staged.region.direct and self.fragments is not None:
            direct.close(self.fragments)
        for step in self._phase(Phase.AFTER):
            self._step(step)

    def _phase(self, phase: Phase) -> list[Step]:
        return [s for s in self.staged.steps if s.phase is phase and s.kind is not StepKind.LOAD]

    def _start(self) -> None:
        """Issue the loads that happen once, then start the ring; a producer warp goes ahead of both."""
        early = loads(self.scope, Phase.BEFORE)
        if self.options.bulk:
            self.ring.begin()
        for step in sorted(early, key=self.dependence.late):
            self.dependence.before([step])
            emit_load(self.out, self.scope, step, Index(), "t")
        if early:
            self.out.line("cp_async_commit();")
            self.awaited = False
        if not self.options.bulk:
            self.ring.begin()
        self.ring.ready()

    def _sync(self) -> None:
        """A barrier of all threads that compute; the first one also completes the early loads."""
        if not self.awaited:
            newer = 0 if self.options.bulk or not self.ring.slots or self.looped else self.ring.slots - 1
            self.out.line(f"cp_async_wait<{newer}>();")
            self.awaited = True
        self.out.line(f"barrier_sync(1, {self.scope.threads});" if self.options.bulk else "block_sync();")

    def _accumulators(self) -> None:
        out = self.out
        if self.fragments is not None:
            self.fragments.declare()
            return
        done = set()
        for step in self.staged.steps:
            if step.accum is None or step.accum in done:
                continue
            done.add(step.accum)
            attrs = self.block.ops[step.accum].attrs
            assert isinstance(attrs, AccumAttrs)
            name = f"a{self.scope.first[step.accum]}"
            tiling = self.staged.tiling(step.op)
            if tiling is not None:
                b, r, c, _ = tiling.per_warp
                out.line(f"float {name}[{b}][{r}][{c}][4] = {{}};")
                continue
            if step.kind is StepKind.MATMUL:
                count = registers(self.scope, step.op)
            elif step.kind is StepKind.REDUCE:
                count = share(self.scope, step.op).slots
            else:
                walked = walk(self.scope, self.block.ops[step.accum].inputs[0])
                count = walked.slots(self.scope.threads) * walked.width
            declare_accumulator(out, name, attrs.kind, count)

    def _loop(self) -> None:
        out, plan, ring = self.out, self.staged, self.ring
        self.dependence.before(self._phase(Phase.LOOP))
        if plan.entry_barrier and (self.options.bulk or not ring.slots or self.fragments is not None):
            self._sync()
        if self.fragments is not None:
            self.fragments.hoist()
        # A ring of cp.async waits for everything older than itself, and has a barrier in every iteration.
        self.awaited = self.awaited or (bool(ring.slots) and not self.options.bulk)
        self.looped = True
        with out.block(f"for (int iteration = 0; iteration < {self.block.loop}; ++iteration)"):
            ring.enter(plan.loop_barrier)
            for step in ring.steps:
                assert step.value is not None
                layout = plan.buffer(step.value).layout
                slot = f"ring{step.value} + iteration % {ring.slots} * {layout.elements}"
                out.line(f"const {c_type(layout.dtype)}* const t{step.value} = {slot};")
            for step in self._phase(Phase.LOOP):
                self._step(step)
            ring.leave()

    def _step(self, step: Step) -> None:
        out, scope = self.out, self.scope
        if self.staged.steps.index(step) in self.staged.barriers:
            self._sync()
        self.dependence.before([step])
        out.line(f"// {self._comment(step)}")
        match step.kind:
            case StepKind.MAP if step.accum is not None:
                emit_accumulate(out, scope, step)
            case StepKind.MAP:
                emit_map(out, scope, step)
                if step.value in self.wide_tiles:
                    out.line("fence_proxy_async();")
            case StepKind.REDUCE:
                emit_reduce(out, scope, step)
            case StepKind.MATMUL:
                emit_matmul(out, scope, step)
            case StepKind.FRAGMENT:
                assert self.fragments is not None
                self.fragments.emit(step)
            case StepKind.FINISH:
                self._finish(step)
            case StepKind.SAVE:
                number = self.block.savers.index(self.block.ops[step.op])
                if self.fragments is not None and self.fragments.region.direct:
                    direct.save(self.fragments, step, f"o{number}", self.outputs[number])
                else:
                    emit_save(out, scope, step, f"o{number}", self.outputs[number])
            case StepKind.LOAD:
                raise AssertionError("loads are issued by the ring, or before everything else")

    def _finish(self, step: Step) -> None:
        if self.fragments is not None:
            self.fragments.finish(step)
            return
        source = next(s for s in self.staged.steps if s.accum == step.op)
        match source.kind:
            case StepKind.MATMUL:
                emit_finish_matmul(self.out, self.scope, step, source.op)
            case StepKind.REDUCE:
                emit_finish_reduce(self.out, self.scope, step, source.op)
            case _:
                emit_finish_map(self.out, self.scope, step)

    def _comment(self, step: Step) -> str:
        """What the step computes, in muGraph terms."""
        op = self.block.ops[step.op]
        operands = ", ".join(f"%{v}" for v in op.inputs)
        if step.kind is StepKind.SAVE:
            return f"output {self.block.savers.index(op)} = {operands}"
        if isinstance(op.attrs, AccumAttrs):
            what = f"{op.attrs.kind.value} accumulator"
            found = f"%{self.scope.first[step.op]}"
            return f"{found} = {what} of {operands}" + (" (to shared memory)" if step.kind is StepKind.FINISH else "")
        value = step.value if step.value is not None else self.scope.first[step.op]
        text = f"%{value} = {op.kind.value}({operands}): {self.block.types[value]}"
        if op.kind is OpKind.FUSED and op.body is not None:
            text += f" [{', '.join(inner.kind.value for inner in op.body.ops if inner.kind is not OpKind.CONST)}]"
        tiling = self.staged.tiling(step.op)
        if tiling is not None:
            b, r, c, k = tiling.split
            text += f", warps {b} x {r} x {c} x {k} (batch x rows x columns x depth)"
            text += ", transposed" if tiling.swapped else ""
        elif op.kind in MATMULS:
            text += ", scalar"
        if step.accum is not None:
            text += f", into %{self.scope.first[step.accum]}"
        return text
