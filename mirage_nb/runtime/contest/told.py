"""What a session is told of its winner in the end: whether it is a library's, and how exact its products of f32 are.

In: the winner, a session, a sample with its float64 reference. Out: sentences to the session. Kernels whose products
are computed as another precision are run on the same inputs as exact ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mirage_nb.codegen import Emitted, LibraryCall, emit
from mirage_nb.errors import MirageError
from mirage_nb.ir import OpKind
from mirage_nb.ir.graph import few
from mirage_nb.runtime.contest.trial import drawn
from mirage_nb.runtime.contest.winner import Winner
from mirage_nb.runtime.contest.without_gpu import is_generated
from mirage_nb.runtime.execution.buffers import Sample
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.execution.execute import CpuExecutable, Executable
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.search.composition import UNSEARCHED
from mirage_nb.search.session.session import SearchSession
from mirage_nb.targets import EXACT, PRECISIONS
from mirage_nb.tile.instructions.precision import has_few_digits

if TYPE_CHECKING:
    from mirage_nb.runtime.passes import Passes

LATE = "the budget was over before a found kernel was compiled and tried; extend(seconds=...) gives it more"
SUMMED = (
    "products of floats of one byte may be off by what tensor cores drop of their sums; "
    "f32(X) @ f32(W) has the digits of f32"
)


def who_won(search: SearchSession, best: Winner) -> None:
    """Where the best is a library's: that it is, so that nobody looks for a kernel in it."""
    candidate, what = best.candidate, best.candidate.configuration
    if what not in UNSEARCHED and is_generated(candidate.graph):
        return
    known = search.candidates()
    if candidate.time_us is None and any(c.estimate_us < candidate.estimate_us for c in known):
        search.tell(f"what runs is {what}: nothing that is estimated faster was executed and right")
        return
    found = [c for c in known if is_generated(c.graph)]
    if candidate.time_us is not None and search.left <= 0 and found and all(c.time_us is None for c in found):
        search.tell(f"what runs is {what}: {LATE}")
        return
    called = [step for step in best.emitted.launches if isinstance(step, LibraryCall)]
    names = ["matrix products" if x.match is None else x.name for x in called if x.match or x.op.kind is OpKind.MATMUL]
    won = f"the library won: {what}{f' ({few([*dict.fromkeys(names)])})' if names else ', a kernel each'}"
    how = "measured" if candidate.time_us is not None else "estimated"
    search.tell(f"{won if called else 'the operators as they stand, fused'}, {how} the fastest")


def off_by(passes: Passes, emitted: Emitted) -> float:
    """How many times the program's own rounding kernels may be off: more than a session says only where their products
    of f32 are those of the precision that its owner allows."""
    exact = emitted.options.precision == EXACT
    return passes.tolerance * (1.0 if exact else PRECISIONS[passes.search.target.precision])


def how_judged(passes: Passes) -> None:
    """Tell a session what its kernels may be off by beyond the rounding of its types."""
    search, types = passes.search, passes.search.program.types
    if (most := passes.tolerance * PRECISIONS[search.target.precision]) != 1:
        search.tell(f"kernels may be off by {most:g} times what the program's own rounding explains")
    if any(has_few_digits(op.kind, (types[v].dtype for v in op.inputs)) for op in search.program.ops):
        search.tell(SUMMED)


def how_precise(passes: Passes, best: Winner) -> None:
    """Tell a session whose products of f32 need not be exact how its best kernel computes them."""
    if passes.search.target.precision != EXACT:
        passes.search.tell(sentence(best, drawn(passes.search.program, passes.sample_seed), passes.gpu))


def sentence(winner: Winner, sample: Sample, gpu: Gpu | None) -> str:
    """What the winner's products are, its error, and that of its muGraph with exact products."""
    used = winner.emitted.options.precision
    if used == EXACT:
        return "products of f32 are exact: no kernel with others is the fastest"
    off = f"products of f32 are computed as {used}: off float64 by {winner.report.relative_error:.1e}"
    try:
        exact = _exact(winner, gpu).check(sample)
    except MirageError as error:
        return f"{off}; exact ones were not run: {error.message}"
    return f"{off}, exact ones by {exact.relative_error:.1e}"


def _exact(winner: Winner, gpu: Gpu | None) -> Executable:
    """The same muGraph with exact products."""
    target = replace(winner.origin.target, precision=EXACT)
    emitted = emit(winner.candidate.graph, target)
    if gpu is None:
        return CpuExecutable(emitted)
    from mirage_nb.runtime.execution.launch import GpuExecutable

    return GpuExecutable(emitted, compile_cubin(emitted.source, target.arch), gpu)
