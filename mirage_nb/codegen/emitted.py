"""What `emit` hands out: one source, and the launches that run a muGraph in order.

Tensors are named by their value number in the kernel graph. Invariant: a launch reads inputs, outputs or
temporaries that earlier entries wrote, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir import KernelGraph, Op, TensorType
from mirage_nb.ir.graph import few
from mirage_nb.optimize import Options


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A pointer to value `value` in device memory, 16-byte aligned."""

    value: int


@dataclass(frozen=True, slots=True)
class MapArg:
    """A tensor map over `value` seen as a row-major matrix [rows, columns]; boxes of `box` (rows, columns)."""

    value: int
    rows: int
    columns: int
    box: tuple[int, int]
    swizzle: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One generated kernel.

    grid: blocks (x, y, z); threads per block; shared_bytes of dynamic shared memory; args in order;
    op: index of the graph-defined operator in the kernel graph. overlaps: the kernel may start while the
    launch in front of it still runs, because it waits for the end of that launch itself (sm_90 and later);
    launched in the ordinary way it is right, too.
    """

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    args: tuple[TensorArg | MapArg, ...]
    op: int
    overlaps: bool = False

    def __repr__(self) -> str:
        return f"<Launch of {self.kernel}: {self.grid} blocks of {self.threads} threads, {len(self.args)} arguments>"


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A pre-defined operator between generated kernels: `output` = op(`inputs`), all value numbers."""

    op: Op
    inputs: tuple[int, ...]
    output: int
    index: int


@dataclass(frozen=True, slots=True)
class Temporary:
    """A tensor in device memory that lives between launches: `offset` bytes into the workspace."""

    value: int
    type: TensorType
    offset: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """CUDA C++ for a muGraph and how to run it.

    graph: the planned muGraph (chains fused; inputs, outputs and value numbers of the kernel graph are
    those of the graph that was emitted). aliases: (view, original) value pairs that share memory; for whoever follows
    them in order, one of the two is an input, an output, a temporary, or known from an earlier pair.
    """

    graph: KernelGraph
    options: Options
    source: str
    launches: tuple[Launch | LibraryCall, ...]
    temporaries: tuple[Temporary, ...]
    workspace_bytes: int
    aliases: tuple[tuple[int, int], ...]

    def __repr__(self) -> str:
        steps = few([step.kernel if isinstance(step, Launch) else step.op.kind.value for step in self.launches])
        return f"<Emitted {steps}: {self.source.count(chr(10))} lines of CUDA, {str(self.options)[:80]}>"
