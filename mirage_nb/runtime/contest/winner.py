"""A candidate that ran: what was emitted and compiled for it, how it fared, and the ways to take it along.

In: the outcome of its first runs. Out: a `Winner`: callable, prepared calls, a file of its own, an operator of
PyTorch. Invariant: there is no Winner whose output was not compared with float64, in full or `ALONE`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mirage_nb.codegen import Emitted
from mirage_nb.errors import LaunchError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import Lines, print_graph
from mirage_nb.runtime.contest.timing import Lap
from mirage_nb.runtime.contest.trial import Outcome
from mirage_nb.runtime.execution.compile import Cubin
from mirage_nb.runtime.execution.execute import (
    CpuExecutable,
    Executable,
    Prepared,
    as_declared,
    ordered,
    whole_declared,
)
from mirage_nb.runtime.execution.torch_operator import torch_operator
from mirage_nb.runtime.kernel.plan import Plan
from mirage_nb.runtime.kernel.saved import lower, write_file
from mirage_nb.search.session.progress import Candidate
from mirage_nb.targets import EXACT, Target
from mirage_nb.typed import typed
from mirage_nb.verify.reals.float_gate import FloatReport

ALONE = "CPU edition, operator by operator at smaller extents"
"""Where the program's own operators were executed, if there was no time for more."""
NOTHING = "the program has no value, or overflows, in its own types"
"""Why nothing was compared."""


class WrongResult(LaunchError):
    """A kernel whose output is not the program's."""


class PoorResult(LaunchError):
    """A kernel that is right on random inputs, and loses on hard ones what the program keeps."""


def is_own(graph: KernelGraph, emitted: Emitted, program: KernelGraph) -> bool:
    """Whether a muGraph is the program itself, emitted operator by operator."""
    return graph == program and not emitted.options.library


def label_of(candidate: Candidate, emitted: Emitted) -> str:
    """A muGraph and the way it was emitted."""
    return f"{candidate.digest[:8]} {emitted.options}"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a winner was made for: the session's name, the program, the target, and the scale of random inputs."""

    name: str
    program: KernelGraph
    target: Target
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Winner:
    """A candidate that went through every pass: what was emitted and compiled, and how its execution went.

    >>> winner = session.best
    >>> winner.graph, winner.source          # its muGraph and its CUDA
    >>> winner.candidate.verdict             # how sure it is that it computes the program
    >>> winner(X, W)                         # run it; `prepare(X, W)` makes a call ready for loops and CUDA graphs
    >>> winner.save("fused.py")              # one file that needs CuPy and nothing of this package
    >>> winner.torch_operator()              # an operator of PyTorch, also under torch.compile
    """

    candidate: Candidate
    emitted: Emitted
    executable: Executable
    cubin: Cubin | None
    report: FloatReport
    origin: Origin

    @classmethod
    def judged(
        cls,
        candidate: Candidate,
        emitted: Emitted,
        executable: Executable,
        cubin: Cubin | None,
        outcome: Outcome,
        origin: Origin,
    ) -> Winner:
        """The candidate with what its first runs showed. The program's own operators are what the program is in its own
        types, however far that is from real numbers, where each is a kernel of its own.

        Raises:
            WrongResult: it is wrong.
            PoorResult: it breaks on hard inputs.
            LaunchError: it overflows, or there is no element to compare, for so does the program, which shows nothing.
        """
        report = outcome.report
        blind = not outcome.safe and not report.allowed
        alone = is_own(candidate.graph, emitted, origin.program)
        own = alone and (math.isfinite(report.relative_error) or not outcome.safe)
        if own:
            report = replace(report, ok=True)
        if not outcome.safe and not own and (blind or not report.ok):
            where = f" ({report.note})" if report.note else ""
            raise LaunchError(f"not checked: {NOTHING}{where}")
        if not report.ok:
            raise WrongResult(f"wrong on {executable.device}: {report.note}")
        if not outcome.hard.ok and not own:
            first = next(r for r in outcome.hard.results if not r.survived)
            raise PoorResult(f"numerically poor: {first.name}: {first.note}")
        error = report.relative_error if math.isfinite(report.relative_error) and not blind else None
        known = replace(candidate, error=error, executed_on=executable.device, note="")
        return cls(known, emitted, executable, cubin, report, origin)

    def shown(self, outcome: Outcome) -> Winner:
        """The same with what its runs showed. Raises as `judged` does."""
        return Winner.judged(self.candidate, self.emitted, self.executable, self.cubin, outcome, self.origin)

    def timed(self, us: float | None, chain_us: float | None = None) -> Winner:
        """The same with the microseconds that it took, and took back to back."""
        return replace(self, candidate=replace(self.candidate, time_us=us, chain_us=chain_us))

    def as_in(self, lap: Lap) -> Winner | None:
        """The same with the times of a lap; None if it was not timed."""
        if lap.us is None:
            return None
        return self.timed(lap.us, lap.chain.median_us if lap.chain is not None else None)

    def compared(self, error: float) -> Winner:
        """The same with the relative error that a comparison with float64 on random inputs of the card showed."""
        report = replace(self.report, relative_error=error)
        return replace(self, candidate=replace(self.candidate, error=error), report=report)

    def __repr__(self) -> str:
        how = f", {self.precision}" if self.precision != EXACT else ""
        off = f"not compared with float64: {NOTHING}"
        if self.candidate.error is not None:
            off = f"relative error {self.report.relative_error:.1e}"
        return f"<Winner {self.candidate.line}, {off}{how}>"

    @property
    def is_own(self) -> bool:
        """Whether it is the program's own operators, each a kernel of its own: what the program is in its own types."""
        return is_own(self.candidate.graph, self.emitted, self.origin.program)

    @property
    def precision(self) -> str:
        """How its products of f32 are computed: f32 exactly, or as a composition of TF32's."""
        return self.emitted.options.precision

    @property
    def source(self) -> str:
        """The CUDA source of its kernels."""
        return Lines(self.emitted.source)

    @property
    def graph(self) -> KernelGraph:
        """Its muGraph as it was emitted: the candidate's, with thread graphs for chains of elementwise operators."""
        return self.emitted.graph

    @property
    def label(self) -> str:
        """How a race names it: the muGraph and the way it was emitted."""
        return label_of(self.candidate, self.emitted)

    def __call__(self, *tensors: Any, cast: bool = False, **named: Any) -> Any:
        """Run on tensors, as the session does; whole numbers are converted to the program's types."""
        given = ordered(self.origin.program.inputs, tensors, named)
        declared = as_declared if cast else whole_declared
        return self.executable(*declared(given, self.origin.program.inputs))

    @typed
    def prepare(self, *tensors: Any, cast: bool = False, **named: Any) -> Prepared:
        """Make a call on these tensors ready, for loops and CUDA graphs.

        The returned function enqueues the kernels on the current stream of the tensors' library (torch or CuPy)
        and returns the outputs, the same tensors every time; it allocates, copies and waits for nothing. Prepared
        calls belong to one thread at a time. On the CPU edition it runs the kernels. With `cast`, inputs of other
        element types than the program's are rounded now, once: the call reads what they were.

        Raises:
            LaunchError, ShapeError, DTypeError: as a call does.
        """
        given = ordered(self.origin.program.inputs, tensors, named)
        return self.executable.prepare(*(as_declared(given, self.origin.program.inputs) if cast else given))

    def plan(self) -> Plan:
        """Kernels, launches and program as plain data. Raises FormatError when they have no such form."""
        candidate, origin = self.candidate, self.origin
        timed = f"{candidate.time_us:.2f} us" if candidate.time_us is not None else "not timed"
        about = {
            "name": origin.name,
            "program": print_graph(origin.program),
            "muGraph": print_graph(self.graph),
            "verdict": str(candidate.verdict),
            "checked": f"on {candidate.executed_on}, relative error {self.report.measured} against float64",
            "time": f"{timed}, {origin.target.name}",
            "emitted": str(self.emitted.options),
            **({"made for": str(self.emitted.size)} if self.emitted.size is not None else {}),
        }
        arch, cubin = (self.cubin.arch, self.cubin.data) if self.cubin is not None else (origin.target.arch, b"")
        return lower(
            self.emitted, origin.program, arch=arch, cubin=cubin, about=about, scale=origin.scale,
            tolerance=min(1.0, self.report.allowed) or 5e-3,
        )  # fmt: skip

    @typed
    def save(self, path: str | Path) -> Path:
        """Write one Python file that runs without this package, with CuPy and NumPy alone; returns its path.

        `python FILE` compares it with NumPy in float64; `from FILE import run, KERNEL` uses it;
        `mirage_nb.load_kernel(FILE)` reads it as data.

        Raises:
            StoreError: the file cannot be written.
            FormatError: the muGraph or its program has no plain form.
        """
        return write_file(self.plan(), path)

    @typed
    def torch_operator(self, name: str = "") -> Any:
        """An operator of PyTorch, also for torch.compile; CPU tensors run on the CPU edition.

        Args:
            name: `name` or `namespace::name`; default: the session's name and the start of the digest.

        Raises:
            OptionError: a name that torch does not take.
            MissingPartError: torch is not installed.
        """
        stem = re.sub(r"\W+", "_", self.origin.name, flags=re.ASCII).strip("_") or "program"
        chosen = name or f"op_{stem}_{self.candidate.digest[:8]}"
        return torch_operator(
            self.origin.program, chosen, on_cpu=partial(_on_cpu, self.emitted), on_cuda=self.executable
        )


def _on_cpu(emitted: Emitted, *tensors: Any) -> Any:
    """By the CPU edition, built at the first call and kept by the cache of shared objects."""
    return CpuExecutable(emitted)(*tensors)
