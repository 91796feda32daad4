"""One kernel: a block plan becomes a `__global__` function that calls the device library.

In: a block plan, the constants among its operands, a name. Out: CUDA C++ and the launch parameters. Invariant: the
statements of the block's program, staged or resident, are printed, and nothing else.
"""

from __future__ import annotations

import math
from fractions import Fraction

from mirage_nb.codegen.emitted import MapArg
from mirage_nb.codegen.register_resident import ResidentText
from mirage_nb.codegen.staged import StagedText
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.errors import EmitError
from mirage_nb.ir import TensorType
from mirage_nb.ir.lookups import Lookup
from mirage_nb.ir.windows import Window
from mirage_nb.optimize.access import Scope
from mirage_nb.optimize.overlap import Overlap
from mirage_nb.optimize.plan import BlockPlan
from mirage_nb.optimize.reach import EXTENT, Reaches
from mirage_nb.optimize.resident_program import resident_program
from mirage_nb.optimize.staged_program import staged_program
from mirage_nb.optimize.tables import numbers_of, tables_of, tensors_of
from mirage_nb.tile.resident.program import Numbers, ResidentProgram, Table
from mirage_nb.tile.roles.program import flat
from mirage_nb.tile.rules.boxes import Bulk
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.staged.program import Bring, StagedProgram


class KernelText:
    """Writes one kernel that is no tile program. operands: whose memory its operands read, or are looked up in; what
    reads the same memory has one pointer, so that compilers see which loads are the same."""

    def __init__(
        self,
        name: str,
        plan: BlockPlan,
        literals: dict[int, Fraction],
        outputs: tuple[TensorType, ...],
        overlap: Overlap,
        reaches: Reaches,
        windows: dict[int, Window],
        lookups: dict[int, Lookup],
        operands: tuple[int, ...],
    ) -> None:
        self.name, self.plan, self.block, self.outputs, self.overlap = name, plan, plan.block, outputs, overlap
        self.scope, self.operands = Scope(plan, literals, reaches, windows, lookups), operands
        self.out = Writer()
        made = staged_program if plan.staged is not None else resident_program
        self.program: StagedProgram | ResidentProgram = made(self.scope, overlap, outputs)

    def text(self) -> str:
        """The whole function."""
        out = self.out
        with out.block(self._signature()):
            self._names()
            text: StagedText | ResidentText
            if isinstance(self.program, ResidentProgram):
                text = ResidentText(out, self.scope, self.program)
            else:
                text = StagedText(out, self.scope, self.program)
                text.declare()
            if self.overlap.ahead:  # the next kernel may come as soon as every block has begun: it waits for itself
                out.line("grid_dependency_launch();")
            text.emit()
        return out.text()

    @property
    def _boxed(self) -> tuple[tuple[int, int, Bulk], ...]:
        """(value, operand, boxes) of every tile that the copy engine brings."""
        program = self.program
        if isinstance(program, ResidentProgram):
            return ()
        brought = {s.value: s for s in flat(program.loader) if isinstance(s, Bring)}
        return tuple((v, self.scope.reads[v].arg, brought[v].bulk) for v in (program.streamed if brought else ()))

    def params(self) -> tuple[int, ...]:
        """Operands that the kernel takes as pointers, in order."""
        return tuple(dict.fromkeys(self._pointers().values()))

    @property
    def lookups(self) -> tuple[tuple[Table, ...], tuple[Numbers, ...]]:
        """What operands are looked up in, and by which numbers."""
        looked = self.scope.lookups
        return tables_of(self.block, looked, self.scope.windows), numbers_of(looked)

    def _pointers(self) -> dict[int, int]:
        """For every operand that is read through a pointer, the first one that is so in the same memory."""
        boxed = {value for value, _, _ in self._boxed}
        known = (v for v, place in enumerate(self.plan.places) if place in (Place.LITERAL, Place.COUNTED))
        read = {self.scope.reads[value].arg for value in self.scope.reads.keys() - boxed.union(known)}
        first: dict[int, int] = {}
        return {arg: first.setdefault(self.operands[arg], arg) for arg in sorted(read)}

    def tensor_maps(self) -> dict[str, MapArg]:
        """The tensor maps that follow the pointers, in order, by their names here; values are operands. Raises
        EmitError where a size that is known at launch may leave boxes incomplete."""
        found = {}
        for value, arg, boxed in self._boxed:
            reach, shape = self.scope.reaches.operands.get(arg), self.block.args[arg].shape
            rows = reach.factor * math.prod(shape[1:-1]) if reach is not None else 0
            if rows % boxed.fold or (reach is not None and len(shape) == 1):
                what = f"tensor maps join {boxed.fold} rows of an operand"
                raise EmitError(what, hint="without `bulk` there are none")
            found[f"map{value}"] = MapArg(arg, boxed.rows, boxed.columns, boxed.box, boxed.swizzle)
        return found

    def _signature(self) -> str:
        # What changes while the kernel waits is not promised to be constant.
        still = {i: "" if i in self.overlap.late else " __restrict__" for i in self.params()}
        inputs = [f"const {c_type(self.block.args[i].dtype)}*{word} x{i}" for i, word in still.items()]
        looked = self.scope.lookups
        late = {value for i in self.overlap.late if i in looked for value in looked[i].numbers}
        for n, (value, dtype) in enumerate(tensors_of(looked).items()):
            inputs.append(f"const {c_type(dtype)}*{'' if value in late else ' __restrict__'} n{n}")
        outputs = [f"{c_type(t.dtype)}* __restrict__ o{i}" for i, t in enumerate(self.outputs)]
        maps = [f"const __grid_constant__ TensorMap {name}" for name in self.tensor_maps()]
        size = [f"const int32_t {EXTENT}"] if self.scope.reaches else []
        threads = self.plan.options.threads
        blocks = self.program.layout.blocks if isinstance(self.program, ResidentProgram) else 1
        head = f'extern "C" __global__ void __launch_bounds__({threads}, {blocks})'
        return f"{head}\n{self.name}({', '.join([*inputs, *outputs, *maps, *size])})"

    def _names(self) -> None:
        out = self.out
        out.line("const int thread = thread_index(), warp = warp_index(), lane = lane_index();")
        for arg, first in self._pointers().items():
            if arg != first:
                out.line(f"const {c_type(self.block.args[arg].dtype)}* const x{arg} = x{first};")
        for axis, extent in zip("xyz", self.block.grid, strict=False):
            if extent > 1:
                out.line(f"const int block_{axis} = (int)blockIdx.{axis};")
