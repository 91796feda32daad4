"""One kernel: a block plan becomes a `__global__` function that calls the device library.

In: a block plan, the constants among its operands, a name. Out: CUDA C++ and the launch parameters.
Invariant: shared memory is read only after a barrier that follows the write (the plan's barriers), and an
asynchronous copy is read only after the wait that completes it and a barrier.
"""

from __future__ import annotations

from fractions import Fraction

from mirage_nb.codegen.index import Index, named
from mirage_nb.codegen.maps import (
    Walk,
    declare_accumulator,
    each,
    emit_accumulate,
    emit_finish_map,
    emit_map,
    emit_save,
    walk,
)
from mirage_nb.codegen.matmul import emit_finish_matmul, emit_matmul, registers
from mirage_nb.codegen.reader import Scope, device_offset, locate
from mirage_nb.codegen.reduce import emit_finish_reduce, emit_reduce, share
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.errors import EmitError
from mirage_nb.ir import AccumAttrs, AccumKind, InIterAttrs, OpKind
from mirage_nb.optimize.placement import MATMULS, Phase, Place, Step, StepKind
from mirage_nb.optimize.plan import BlockPlan

INDEX_LIMIT = 2**31
"""Element offsets are 32-bit."""


class KernelText:
    """Writes one kernel."""

    def __init__(self, name: str, plan: BlockPlan, literals: dict[int, Fraction]) -> None:
        self.name = name
        self.plan = plan
        self.block = plan.block
        self.scope = Scope(plan, literals)
        self.out = Writer()
        self.outputs = self.block.output_types
        self.slots = max((plan.buffer(s.value).copies for s in plan.ring if s.value is not None), default=0)
        self.awaited = True
        for shape in (*self.block.args, *self.outputs):
            if shape.elements >= INDEX_LIMIT:
                raise EmitError(f"a tensor of {shape} has more than 2^31 elements", hint="split it over several calls")

    def text(self) -> str:
        """The whole function."""
        out = self.out
        with out.block(f"{self._signature()}"):
            self._names()
            self._start()
            for step in self._phase(Phase.BEFORE):
                self._step(step)
            self._accumulators()
            if self._phase(Phase.LOOP):
                self._loop()
            for step in self._phase(Phase.AFTER):
                self._step(step)
        return out.text()

    def params(self) -> tuple[int, ...]:
        """Operands that the kernel takes as pointers, in order."""
        read = {op.attrs.arg for op in self.block.ops if isinstance(op.attrs, InIterAttrs)}
        return tuple(sorted(read - set(self.scope.literals)))

    def _signature(self) -> str:
        inputs = [f"const {c_type(self.block.args[i].dtype)}* __restrict__ x{i}" for i in self.params()]
        outputs = [f"{c_type(t.dtype)}* __restrict__ o{i}" for i, t in enumerate(self.outputs)]
        head = f'extern "C" __global__ void __launch_bounds__({self.plan.options.threads})'
        return f"{head}\n{self.name}({', '.join([*inputs, *outputs])})"

    def _names(self) -> None:
        out = self.out
        out.line("const int thread = thread_index(), warp = warp_index(), lane = lane_index();")
        for axis, extent in zip("xyz", self.block.grid, strict=False):
            if extent > 1:
                out.line(f"const int block_{axis} = (int)blockIdx.{axis};")
        if self.plan.buffers:
            out.line("MIRAGE_DYNAMIC_SHARED(shared);")
        ring = {s.value for s in self.plan.ring}
        for buffer in self.plan.buffers:
            element = c_type(buffer.layout.dtype)
            stem = "ring" if buffer.value in ring else "t"
            what = f"{buffer.copies} x " if buffer.copies > 1 else ""
            out.line(
                f"{element}* const {stem}{buffer.value} = reinterpret_cast<{element}*>(shared + {buffer.offset});"
                f"  // {what}{self.block.types[buffer.value]}, %{buffer.value}"
            )
        if any(s.kind is StepKind.REDUCE and share(self.scope, s.op).whole_block for s in self.plan.steps):
            out.line(f"MIRAGE_SHARED(float, scratch, {self.plan.options.warps});")

    def _phase(self, phase: Phase) -> list[Step]:
        steps = [s for s in self.plan.steps if s.phase is phase]
        return steps if phase is Phase.LOOP else [s for s in steps if s.kind is not StepKind.LOAD]

    def _start(self) -> None:
        """Issue the loads that happen once, then fill the ring."""
        out = self.out
        early = [s for s in self.plan.steps if s.kind is StepKind.LOAD and s.phase is Phase.BEFORE]
        for step in early:
            self._load(step, Index(), "t")
        if early:
            out.line("cp_async_commit();")
            self.awaited = False
        if self.slots:
            with out.block(f"for (int f = 0; f < {self.slots - 1}; ++f)"):
                self._fill(named("f", self.slots - 1), "f")
                out.line("cp_async_commit();")

    def _fill(self, iteration: Index, slot: str) -> None:
        for step in self.plan.ring:
            assert step.value is not None
            elements = self.plan.buffer(step.value).layout.elements
            element = c_type(self.plan.stored[step.value])
            self.out.line(f"{element}* const fill{step.value} = ring{step.value} + {slot} * {elements};")
            self._load(step, iteration, "fill")

    def _load(self, step: Step, iteration: Index, stem: str) -> None:
        """Copy one tile from device memory, 16, 8 or 4 bytes at a time if alignment allows, else by element."""
        op = self.block.ops[step.op]
        assert step.value is not None and isinstance(op.attrs, InIterAttrs)
        shape = self.scope.shape(step.value)
        size = self.plan.stored[step.value].size
        layout = self.plan.buffer(step.value).layout
        for nbytes in (16, 8, 4):
            width = nbytes // size
            walked = Walk(shape, width)
            if not shape or shape[-1] % width or layout.strides[-1] != 1:
                continue
            source = device_offset(self.block, op.attrs, walked.index()[1], iteration)
            rows = all(s % width == 0 for s in layout.strides[:-1])
            if source.multiple_of(width) and rows and (nbytes == 16 or not layout.swizzled):
                break
        else:
            nbytes, walked = 0, Walk(shape, 1)
        self.out.line(f"// %{step.value} = {describe_load(self.block, op.attrs)}")
        with each(self.out, self.scope, walked) as index:
            leaf = locate(self.scope, step.value, index, None)
            pointer = f"{stem}{step.value}"
            source = device_offset(self.block, op.attrs, index, iteration)
            if nbytes:
                self.out.line(f"cp_async<{nbytes}>({pointer} + {leaf.offset}, x{op.attrs.arg} + {source.bare});")
            else:
                self.out.line(f"{pointer}[{leaf.offset}] = x{op.attrs.arg}[{source.bare}];")

    def _sync(self, pending: int = 0) -> None:
        if not self.awaited:
            self.out.line(f"cp_async_wait<{pending}>();")
            self.awaited = True
        self.out.line("block_sync();")

    def _accumulators(self) -> None:
        out = self.out
        done = set()
        for step in self.plan.steps:
            if step.accum is None or step.accum in done:
                continue
            done.add(step.accum)
            attrs = self.block.ops[step.accum].attrs
            assert isinstance(attrs, AccumAttrs)
            name = f"a{self.scope.first[step.accum]}"
            tiling = self.plan.tiling(step.op)
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
        out, plan = self.out, self.plan
        if not self.awaited and not self.slots:
            out.line("cp_async_wait<0>();")
        self.awaited = True
        with out.block(f"for (int i = 0; i < {self.block.loop}; ++i)"):
            if self.slots:
                out.line(f"cp_async_wait<{self.slots - 2}>();")
            if plan.loop_barrier:
                out.line("block_sync();")
            if self.slots:
                ahead = self.slots - 1
                with out.block(f"if (i + {ahead} < {self.block.loop})"):
                    iteration = named("i", self.block.loop - ahead) + ahead
                    self._fill(iteration, f"(i + {ahead}) % {self.slots}")
                out.line("cp_async_commit();")
            for step in plan.ring:
                assert step.value is not None
                element = c_type(plan.stored[step.value])
                elements = plan.buffer(step.value).layout.elements
                out.line(
                    f"const {element}* const t{step.value} = ring{step.value} + i % {self.slots} * {elements};"
                )
            for step in self._phase(Phase.LOOP):
                if step.kind is not StepKind.LOAD:
                    self._step(step)

    def _step(self, step: Step) -> None:
        out, scope = self.out, self.scope
        if self.plan.steps.index(step) in self.plan.barriers:
            self._sync(max(0, self.slots - 1) if step.phase is Phase.BEFORE else 0)
        out.line(f"// {self._comment(step)}")
        match step.kind:
            case StepKind.MAP if step.accum is not None:
                emit_accumulate(out, scope, step)
            case StepKind.MAP:
                emit_map(out, scope, step)
            case StepKind.REDUCE:
                emit_reduce(out, scope, step)
            case StepKind.MATMUL:
                emit_matmul(out, scope, step)
            case StepKind.FINISH:
                self._finish(step)
            case StepKind.SAVE:
                number = self.block.savers.index(self.block.ops[step.op])
                emit_save(out, scope, step, f"o{number}", self.outputs[number])
            case StepKind.LOAD:
                raise AssertionError("loads are issued by the ring")

    def _finish(self, step: Step) -> None:
        source = next(s for s in self.plan.steps if s.accum == step.op)
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
        tiling = self.plan.tiling(step.op)
        if tiling is not None:
            b, r, c, k = tiling.split
            text += f", warps {b} x {r} x {c} x {k} (batch x rows x columns x depth)"
            text += ", transposed" if tiling.swapped else ""
        elif op.kind in MATMULS:
            text += ", scalar"
        if step.accum is not None:
            text += f", into %{self.scope.first[step.accum]}"
        return text


def describe_load(block: object, attrs: InIterAttrs) -> str:
    """`x0, grid (1, None), loop 0` for a comment."""
    imap = ", ".join("-" if d is None else str(d) for d in attrs.imap)
    return f"operand {attrs.arg}, imap ({imap}), fmap {'-' if attrs.fmap is None else attrs.fmap}"
