"""How far kernels are off whose products of f32 are computed as another precision, beside exact ones.

In: winners, a session, a sample with its float64 reference. Out: a sentence to the session. Both are run on the same
inputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mirage_nb.codegen import emit
from mirage_nb.errors import MirageError
from mirage_nb.runtime.contest.trial import drawn
from mirage_nb.runtime.contest.winner import Winner
from mirage_nb.runtime.execution.buffers import Sample
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.execution.execute import CpuExecutable, Executable
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.targets import EXACT

if TYPE_CHECKING:
    from mirage_nb.runtime.passes import Passes


def how_precise(passes: Passes) -> None:
    """Tell a session whose products of f32 need not be exact how its best kernel computes them."""
    best = min(passes.winners.values(), key=lambda w: w.candidate.rank, default=None)
    if best is not None and passes.search.target.precision != EXACT:
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
