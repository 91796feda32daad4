"""superoptimize(): the passes in reading order, from a tensor program to kernels that ran.

parse -> search -> verify at the real shape -> emit -> compile -> execute -> time. The search runs in the
background (`SearchSession`); when it ends, its supervising thread takes the finalists through the later
passes. A finalist that fails a pass is dropped with its reason; nothing is timed or handed out before
its output was compared with float64 on fresh random inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mirage_nb.codegen import Emitted, Options, emit, variants
from mirage_nb.errors import LaunchError, MirageError, OptionError, SearchError
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import TensorProgram, load, parse
from mirage_nb.runtime.buffers import Sample, draw_sample
from mirage_nb.runtime.compile import Cubin
from mirage_nb.runtime.execute import Executable, prepare_executable
from mirage_nb.runtime.gpu import Gpu, attached_gpu
from mirage_nb.search import EFFORTS, Budget
from mirage_nb.search.progress import Candidate, Snapshot, State
from mirage_nb.search.session import SearchSession
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target
from mirage_nb.verify.float_gate import FloatReport
from mirage_nb.verify.trials import verify

if TYPE_CHECKING:
    from mirage_nb.runtime.race import Lap

T = TypeVar("T")

FINALISTS_GPU = 12
"""How many candidates are compiled, checked and timed where a GPU is attached."""
FINALISTS_CPU = 4
"""Without a GPU: how many may be tried until one was executed correctly on the CPU edition."""
RETIMED = 4
"""The fastest of the first race run again, interleaved with PyTorch."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One traced pass over one candidate: its name, how long it took (seconds), and what came of it."""

    name: str
    candidate: str
    seconds: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Winner:
    """A candidate that went through every pass: what was emitted and compiled, and how its execution went."""

    candidate: Candidate
    emitted: Emitted
    executable: Executable
    cubin: Cubin | None
    report: FloatReport

    @property
    def source(self) -> str:
        """The CUDA source of its kernels."""
        return self.emitted.source

    @property
    def graph(self) -> KernelGraph:
        """Its muGraph."""
        return self.candidate.graph

    @property
    def label(self) -> str:
        """How a race names it: the muGraph and the way it was emitted."""
        return f"{self.candidate.digest[:8]} {self.emitted.options}"


class Session:
    """A superoptimization: the search, and the passes that follow it. Made by `superoptimize`."""

    def __init__(self, program: TensorProgram, name: str, target: Target, gpu: Gpu | None) -> None:
        self.program = program
        self.name = name
        self.target = target
        self.gpu = gpu
        self.stage = "searching"
        self.trace: tuple[Pass, ...] = ()
        self.baselines: tuple[Lap, ...] = ()
        self._winners: dict[str, Winner] = {}
        self._built: list[Winner] = []
        self._sample: Sample | None = None
        self._search: SearchSession | None = None

    # -- watching and steering --------------------------------------------------------------------

    @property
    def search(self) -> SearchSession:
        """The search behind this session."""
        if self._search is None:
            raise SearchError("the session was not started")
        return self._search

    def begin(self, search: SearchSession) -> Session:
        """Attach the search and start it."""
        self._search = search
        search.start()
        return self

    def snapshot(self) -> Snapshot:
        """The state now: counts, candidates, messages."""
        return self.search.snapshot()

    def stop(self) -> None:
        """End the search; what was found stays."""
        self.search.stop()

    def pause(self) -> None:
        """Let the workers sleep."""
        self.search.pause()

    def resume(self) -> None:
        """Go on after a pause."""
        self.search.resume()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until everything has ended, at most `timeout` seconds; returns whether it has."""
        return self.search.wait(timeout)

    def result(self, timeout: float | None = None) -> Snapshot:
        """Block until everything has ended; the last snapshot. Raises SearchError when late or failed."""
        return self.search.result(timeout)

    # -- the winner -------------------------------------------------------------------------------

    @property
    def best(self) -> Winner | None:
        """The fastest candidate that was executed correctly; None before that."""
        for candidate in self.snapshot().candidates:
            if candidate.digest in self._winners:
                return replace(self._winners[candidate.digest], candidate=candidate)
        return None

    @property
    def winners(self) -> tuple[Winner, ...]:
        """Every candidate that was executed correctly, best first."""
        order = {c.digest: n for n, c in enumerate(self.snapshot().candidates)}
        return tuple(sorted(self._winners.values(), key=lambda w: order.get(w.candidate.digest, len(order))))

    def build(self, digest: str) -> Winner:
        """Take one candidate through emit, compile and execute now.

        Raises:
            OptionError: no candidate has this digest.
            MirageError: a pass failed; the message says which and why.
        """
        chosen = next((c for c in self.snapshot().candidates if c.digest.startswith(digest)), None)
        if chosen is None:
            raise OptionError(f"no candidate {digest!r}")
        return self._winners.get(chosen.digest) or self._finalist(chosen)

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """Run the winner on NumPy, CuPy or torch tensors, in input order or by name.

        Waits for the search. Returns one array, or a tuple of them, of the kind that was passed in.

        Raises:
            LaunchError: nothing was executed correctly, or the tensors do not fit the inputs.
        """
        self.wait()
        winner = self.best
        if winner is None:
            raise LaunchError("there is no kernel to run", hint="see the session's messages")
        return winner.executable(*self._ordered(tensors, named))

    def _ordered(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        names = [i.name for i in self.program.graph.inputs]
        unknown = [n for n in named if n not in names[len(tensors) :]]
        if unknown or len(tensors) + len(named) != len(names):
            raise LaunchError(f"expected the tensors {', '.join(names)}", hint="pass them in this order, or by name")
        return (*tensors, *(named[n] for n in names[len(tensors) :]))

    # -- the passes after the search ----------------------------------------------------------------

    def finish(self, search: SearchSession) -> None:
        """Take the finalists through the later passes; called in the supervising thread."""
        candidates = search.snapshot().candidates
        if not candidates:
            search.tell("no muGraph was verified within these bounds")
            return
        limit = FINALISTS_GPU if self.gpu is not None else FINALISTS_CPU
        for candidate in candidates[:limit]:
            if search.snapshot().state is State.STOPPED:
                return
            try:
                self._finalist(candidate)
            except MirageError as error:
                search.drop(candidate.digest, f"{candidate.digest[:8]} dropped: {error}")
                continue
            if self.gpu is None:
                break
        if self.gpu is not None and self._built:
            self._time(self.gpu)
        self.stage = ""

    def _finalist(self, candidate: Candidate) -> Winner:
        """Verify at the real shape, then build every way to emit it (the default one without a GPU)."""
        verdict = self._traced("verify", candidate, lambda: verify(self.program.graph, candidate.graph, final=True))
        if not verdict.accepted:
            raise LaunchError(f"refuted at the real shape: {verdict}")
        candidate = replace(candidate, verdict=verdict)
        ways: tuple[Options | None, ...] = (None,)
        if self.gpu is not None:
            ways = variants(candidate.graph, self.target) or ways
        built, reasons = [], []
        for options in ways:
            try:
                built.append(self._build(candidate, options))
            except MirageError as error:
                reasons.append(str(error))
        if not built:
            raise LaunchError(reasons[0])
        for reason in reasons:
            self.search.tell(f"{candidate.digest[:8]}: one way to emit it was dropped: {reason}")
        self._built.extend(built)
        self._keep(built[0])
        return built[0]

    def _build(self, candidate: Candidate, options: Options | None) -> Winner:
        """Emit, compile, execute and compare with float64."""
        emitted = self._traced("emit", candidate, lambda: emit(candidate.graph, self.target, options))
        ready = self._traced("compile", candidate, lambda: prepare_executable(emitted, self.target, self.gpu))
        if self._sample is None:
            self._sample = draw_sample(self.program.graph, self.search.seed + 2)
        sample = self._sample
        report = self._traced("execute", candidate, lambda: ready.executable.check(sample))
        if not report.ok:
            raise LaunchError(f"wrong on {ready.executable.device}: {report.note}")
        known = replace(candidate, error=report.relative_error, executed_on=ready.executable.device)
        return Winner(known, emitted, ready.executable, ready.cubin, report)

    def _keep(self, winner: Winner) -> None:
        self._winners[winner.candidate.digest] = winner
        self.search.update(winner.candidate)

    def _time(self, gpu: Gpu) -> None:
        """Race everything that was built, then the fastest again beside PyTorch."""
        from mirage_nb.runtime.race import pytorch_peers, race

        self.stage = "timing"
        graph, scale = self.program.graph, self.input_scale
        entries: dict[str, Any] = {winner.label: winner.executable for winner in self._built}
        first = race(graph, entries, {}, gpu, scale=scale, repeats=12)
        timed = {lap.name: lap.timing.median_us for lap in first if lap.timing is not None}
        best = sorted(timed, key=timed.__getitem__)[:RETIMED]
        again = race(graph, {name: entries[name] for name in best}, pytorch_peers(graph), gpu, scale=scale)
        timed |= {lap.name: lap.timing.median_us for lap in again if lap.timing is not None}
        self.baselines = tuple(lap for lap in again if lap.name not in entries)
        for winner in sorted(self._built, key=lambda w: timed.get(w.label, float("inf")), reverse=True):
            if winner.label in timed:
                known = replace(winner.candidate, time_us=timed[winner.label])
                self._keep(replace(winner, candidate=known))

    @property
    def input_scale(self) -> float:
        """Standard deviation of the random inputs that keeps the outputs inside their type's range."""
        return self._sample.scale if self._sample is not None else 1.0

    def _traced(self, name: str, candidate: Candidate, run: Callable[[], T]) -> T:
        self.stage = f"{name} {candidate.digest[:8]}"
        started = time.monotonic()
        outcome = "failed"
        try:
            value = run()
            outcome = "ok"
            return value
        finally:
            done = Pass(name, candidate.digest, time.monotonic() - started, outcome)
            self.trace = (*self.trace, done)


def superoptimize(
    program: str | Path | TensorProgram,
    *,
    name: str = "",
    target: str | None = None,
    effort: str = "standard",
    budget: float | None = None,
    max_block_ops: int | None = None,
    sizes: Mapping[str, int] | None = None,
    executor: Executor | None = None,
    seed: int = 0,
) -> Session:
    """Search for the best muGraph of a tensor program, in the background.

    Args:
        program: the text of a program, the path of a `.mirage` file, or a parsed program.
        name: what to call the session.
        target: name of a GPU in `mirage_nb.targets`; default: the attached one, else the H200.
        effort: `quick`, `standard` or `exhaustive`.
        budget: seconds of search; default: no limit but the effort's.
        max_block_ops: largest number of block operators; default: the effort's.
        sizes: integer constants of the program to override.
        executor: where to run the workers; default: spawned processes.
        seed: of all random elements.

    Returns:
        A session at once; `session.result()` blocks.

    Raises:
        MirageError: the program, the target or an option is wrong.
    """
    parsed = _parsed(program, name, sizes)
    gpu = attached_gpu()
    chosen = find_target(target) if target is not None else _default_target(gpu)
    session = Session(parsed, name or parsed.name, chosen, gpu if gpu is not None and gpu.runs(chosen) else None)
    search = SearchSession(
        parsed.graph,
        chosen,
        effort=effort,
        budget=_budget(effort, max_block_ops),
        seconds=_seconds(budget),
        name=session.name,
        executor=executor,
        finish=session.finish,
        seed=seed,
    )
    return session.begin(search)


def _parsed(program: str | Path | TensorProgram, name: str, sizes: Mapping[str, int] | None) -> TensorProgram:
    match program:
        case TensorProgram():
            if sizes:
                raise OptionError("sizes belong to a text or a file, not to a parsed program")
            return program
        case Path():
            return load(program, sizes=sizes)
        case _:
            return parse(program, name=name, sizes=sizes)


def _default_target(gpu: Gpu | None) -> Target:
    attached = gpu.target() if gpu is not None else None
    return attached if attached is not None else find_target(DEFAULT_TARGET)


def _seconds(budget: float | None) -> float | None:
    if budget is not None and not 0 < budget < float("inf"):
        raise OptionError(f"a budget of {budget:g} seconds", hint="give a positive number")
    return budget


def _budget(effort: str, max_block_ops: int | None) -> Budget:
    if effort not in EFFORTS:
        raise OptionError(f"unknown effort {effort!r}", hint=f"one of {', '.join(EFFORTS)}")
    if max_block_ops is None:
        return EFFORTS[effort].budget
    if max_block_ops < 1:
        raise OptionError(f"at most {max_block_ops} block operators", hint="give 1 or more")
    return replace(EFFORTS[effort].budget, max_block_ops=max_block_ops)
