"""What `emit` hands out: one source, and the launches that run a muGraph in order.

Tensors are named by their value number in the kernel graph. Invariant: a launch reads inputs, outputs or
temporaries that earlier entries wrote, and nothing else. A size that is known at launch changes launches and types
of tensors (`Emitted.at`), never the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mirage_nb.ir import KernelGraph, Op, Size, TensorType
from mirage_nb.ir.graph import few
from mirage_nb.ir.sizes import Cut, extent_of, resized, size_of
from mirage_nb.optimize import Options
from mirage_nb.predefined import Match
from mirage_nb.tile.planned import Planned

KEPT = 64
"""Extents of a size whose launches are kept ready."""


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A pointer to value `value` in device memory, 16-byte aligned."""

    value: int


@dataclass(frozen=True, slots=True)
class MapArg:
    """A tensor map over `value` seen as a row-major matrix [rows, columns], or as so many `matrices`, if there are any,
    whose boxes end where theirs does; boxes of `box` (rows, columns). `first` and `pitch`: elements in front of it, and
    from one row to the next (0: as many as it has columns)."""

    value: int
    rows: int
    columns: int
    box: tuple[int, int]
    swizzle: int
    first: int = 0
    pitch: int = 0
    matrices: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One generated kernel.

    grid: blocks (x, y, z); threads per block; shared_bytes of dynamic shared memory; args in order;
    op: index of the graph-defined operator in the kernel graph. overlaps: the kernel may start while the
    launch in front of it still runs, because it waits for the end of that launch itself (sm_90 and later);
    launched in the ordinary way it is right, too. trusting: it may only where that launch began after all writes of
    settled inputs had ended. sized: the size's extent follows the arguments; cut: how the grid follows from it.
    """

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    args: tuple[TensorArg | MapArg, ...]
    op: int
    overlaps: bool = False
    trusting: bool = False
    sized: bool = False
    cut: Cut | None = None

    def __repr__(self) -> str:
        return f"<Launch of {self.kernel}: {self.grid} blocks of {self.threads} threads, {len(self.args)} arguments>"


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A pre-defined operator between generated kernels: `output` = op(`inputs`), all value numbers.

    match: the library kernel that computes it together with operators in front of it, launched the way `by`.
    """

    op: Op
    inputs: tuple[int, ...]
    output: int
    index: int
    match: Match | None = None
    by: str = ""

    @property
    def name(self) -> str:
        """What is called, for a reader."""
        return f"{self.match.row} by {self.by}" if self.match is not None else self.op.kind.value


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
    them in order, one of the two is an input, an output, a temporary, or known from an earlier pair. extent: of the
    size that is known at launch, once it is. programs: of its generated kernels, as they were planned.
    """

    graph: KernelGraph
    options: Options
    source: str
    launches: tuple[Launch | LibraryCall, ...]
    temporaries: tuple[Temporary, ...]
    workspace_bytes: int
    aliases: tuple[tuple[int, int], ...]
    extent: int | None = None
    programs: tuple[Planned, ...] = ()

    @property
    def size(self) -> Size | None:
        """The size that is known at launch, where that has not happened yet."""
        return size_of(self.graph)

    @property
    def generated(self) -> Emitted:
        """The same without a library's kernels; what these write nobody has written then."""
        return replace(self, launches=tuple(step for step in self.launches if isinstance(step, Launch)))

    def at(self, extent: int) -> Emitted:
        """The same kernels, launched for an extent of the size, which is in its range."""
        graph = resized(self.graph, extent)

        def launch(step: Launch) -> Launch:
            grid = list(step.grid)
            if step.cut is not None:
                grid[step.cut.axis] = step.cut.blocks(extent)
            args = tuple(self._mapped(a, graph) if isinstance(a, MapArg) else a for a in step.args)
            return replace(step, grid=(grid[0], grid[1], grid[2]), args=args)

        launches = tuple(
            launch(s) if isinstance(s, Launch) else replace(s, op=graph.ops[s.index]) for s in self.launches
        )
        temporaries = tuple(replace(t, type=graph.types[t.value]) for t in self.temporaries)
        return replace(self, graph=graph, launches=launches, temporaries=temporaries, extent=extent)

    def _mapped(self, arg: MapArg, graph: KernelGraph) -> MapArg:
        """A tensor map over as many rows, or matrices, as the tensor has."""
        whole, part = self.graph.types[arg.value].elements, graph.types[arg.value].elements
        if arg.matrices:
            return replace(arg, matrices=arg.matrices * part // whole)
        return replace(arg, rows=arg.rows * part // whole)

    def __repr__(self) -> str:
        steps = few([step.kernel if isinstance(step, Launch) else step.name for step in self.launches])
        return f"<Emitted {steps}: {self.source.count(chr(10))} lines of CUDA, {str(self.options)[:80]}>"


class Fitting:
    """What was emitted, for the shapes of inputs: a call finds it. Those of the last extents are kept."""

    def __init__(self, emitted: Emitted) -> None:
        self._emitted = emitted
        self._at = lru_cache(maxsize=KEPT)(emitted.at)
        self._sized = emitted.size is not None

    def __call__(self, shapes: Iterable[Sequence[int]]) -> Emitted:
        """Raises ShapeError where a size that is known at launch is out of its range; nothing else is looked at."""
        extent = extent_of(self._emitted.graph.inputs, shapes) if self._sized else None
        return self._emitted if extent is None else self._at(extent)
