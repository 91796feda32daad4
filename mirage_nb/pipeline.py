"""superoptimize(): from the text of a tensor program to kernels that ran.

parse -> search -> the later passes (`mirage_nb.runtime.passes`). Everything after parsing happens in the background;
a `Session` is what the caller holds: it watches, steers, and runs the winner. A session that has a store is
kept there as it goes, and `resume` goes on with it after the interpreter that ran it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_nb.codegen import emit
from mirage_nb.errors import MirageError, NoKernelError, StoreError
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import TensorProgram
from mirage_nb.runtime import requested
from mirage_nb.runtime.contest.by_range import ByRange
from mirage_nb.runtime.contest.tuning import ready_to_tune, tune
from mirage_nb.runtime.contest.winner import Winner
from mirage_nb.runtime.contest.without_gpu import FINALISTS, meanwhile
from mirage_nb.runtime.execution.execute import ordered
from mirage_nb.runtime.gpu import Gpu, attached_gpu
from mirage_nb.runtime.kernel.saved import load_kernel
from mirage_nb.runtime.loading import load_ahead
from mirage_nb.runtime.passes import Pass, Passes, Timed
from mirage_nb.runtime.store import Header, Store, StoreCheckpoint, edition, find_store
from mirage_nb.search import Limits, Switches, prepare, switched
from mirage_nb.search.explain import explain
from mirage_nb.search.session.findings import Bounds
from mirage_nb.search.session.progress import LIVE, Candidate, Snapshot, State
from mirage_nb.search.session.session import SearchSession
from mirage_nb.search.session.submission import read_legal, submitted
from mirage_nb.search.sizes.explained import explain_estimate
from mirage_nb.targets import Target, find_target
from mirage_nb.typed import typed

if TYPE_CHECKING:
    from mirage_nb.runtime.contest.timing import Lap

NO_KERNEL = "extend() searches on, build(candidate) takes a candidate whatever it costs; doctor says what is missing"
NOT_YET = "result() waits for it; winners is empty until then"

__all__ = ["Limits", "Session", "Store", "Winner", "load_kernel", "resume", "superoptimize"]


@typed
class Session(ByRange):
    """A superoptimization: the search, and the passes that follow it; of any thread. Made by `superoptimize`.

    >>> session = superoptimize("X: f16[16, 64]\\nW: f16[64, 128]\\nreturn rms_norm(X) @ W", effort="quick")
    >>> session.result()          # wait for the end: the last snapshot, with all candidates, best first
    >>> session.best              # the winner: its muGraph, its CUDA source, and what its first run showed
    >>> session(X, W)             # run it on NumPy, CuPy or torch tensors, in input order or by name
    >>> session.at(8).best        # with `B: size(8, 64)` in the program: the winner for B from 1 to 8
    >>> session.extend(effort="standard")    # search on; nothing that is done is repeated
    >>> session.submit(text); session.explain(text); session.pin("3f2a"); session.build("3f2a")
    """

    def __init__(
        self,
        program: TensorProgram,
        search: SearchSession,
        gpu: Gpu | None,
        checkpoint: StoreCheckpoint | None = None,
        tolerance: float = 1.0,
    ) -> None:
        self.program, self.search = program, search
        self._passes = Passes(search, gpu, tolerance)
        self._checkpoint = checkpoint

    def start(self) -> Session:
        """Begin in the background and return at once."""
        self._began = True
        self.search.start(self._pass, partial(requested.reserve, self._passes.gpu), partial(meanwhile, self._passes))
        self._passes.begin()
        return self

    def _pass(self) -> None:
        try:
            self._passes.run()
        finally:
            self._begin_smaller()

    def __repr__(self) -> str:
        best = f", best {now.best.line}" if (now := self.snapshot()).best is not None else ""
        return f"<Session {self.name or 'without a name'} for {self.target.name}: {now.state.value}{best}>"

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.search.name

    @property
    def target(self) -> Target:
        """The GPU that it searches for."""
        return self.search.target

    @property
    def stored(self) -> tuple[str, Path] | None:
        """The name that it is stored under, and the store's file; None for a session that is not stored."""
        kept = self._checkpoint
        return (kept.name, kept.store.path) if kept is not None else None

    # -- watching and steering --------------------------------------------------------------------

    @property
    def stage(self) -> str:
        """What is being done, for a reader; empty in the end."""
        now = self.snapshot()
        if self._passes.stage or now.state not in LIVE:
            return self._passes.stage
        all_kept = 0 < now.configurations_kept == now.configurations_total
        return "verifying again what was stored" if all_kept and now.candidates[-1].is_as_stored else "searching"

    @property
    def trace(self) -> tuple[Pass, ...]:
        """The passes that were run after the search."""
        return self._passes.trace

    @property
    def timed(self) -> tuple[Timed, ...]:
        """Every timing on the card, in order."""
        return self._passes.timed

    @property
    def baselines(self) -> tuple[Lap, ...]:
        """How PyTorch fared beside the winners."""
        return self._passes.baselines

    @property
    def limits(self) -> Limits:
        """Grid dims, blocks, for-loop ranges and operators that kernels may have."""
        return self.search.bounds.searched.limits

    @property
    def switches(self) -> dict[str, bool]:
        """For every axiom and pruning whether it is in force."""
        return switched(self.search.bounds.searched)

    @property
    def input_scale(self) -> float:
        """Standard deviation of the random inputs that keeps the program's values inside their types' range."""
        return self._passes.input_scale

    def snapshot(self) -> Snapshot:
        """The state now: counts, candidates, messages."""
        return self.search.snapshot()

    def extend(
        self,
        *,
        effort: str | None = None,
        seconds: float | None = None,
        max_block_ops: int | None = None,
        max_values: int | None = None,
        configuration_seconds: float | None = None,
        axioms: Mapping[str, bool] | None = None,
        prunings: Mapping[str, bool] | None = None,
        limits: Limits | None = None,
        target: str | None = None,
    ) -> Session:
        """Go on with larger bounds, whether the session has ended, was stopped, or still runs; returns at once.

        Nothing that is done is repeated: a configuration stays as it is unless a bound is raised that kept something
        out of it. `snapshot().configurations_kept` counts those. One that a stop or a limit interrupted is begun again
        from its start. What is found joins what is there; the passes after the search run again. Without arguments a
        stopped session goes on as it was.

        Args:
            effort: a larger effort, `standard` or `exhaustive`. Its axioms differ: every configuration is
                explored again, and what the smaller effort found stays among the candidates.
            seconds: limit of the search from now on; default: as long again as at first, if that was limited.
            max_block_ops: largest number of block operators of a kernel.
            max_values: most values of a closure.
            configuration_seconds: what one configuration may take.
            axioms, prunings: names that are switched on or off from now on, see `superoptimize`.
            limits: grid dims, blocks, for-loop ranges and operators that are allowed from now on.
            target: another GPU. The session begins anew for it, within its bounds; what it found, and stored, for the
                one before is given up.

        Returns:
            The session itself, so that `session.extend(effort="exhaustive").result()` waits.

        Raises:
            OptionError: an unknown effort or name, or a bound that is lower than it was.
            SearchError: the session was not started, or its program could not be searched.
        """
        here = self.target
        wanted = here if target is None else requested.precise(target, None, here.precision, self.program.graph)
        self.search.extend(
            effort=effort,
            seconds=requested.seconds(seconds),
            max_block_ops=max_block_ops,
            max_values=max_values,
            configuration_seconds=requested.seconds(configuration_seconds),
            switches=Switches.of(axioms, prunings, limits),
        )
        if (kept := self._checkpoint) is not None:
            kept.header = replace(kept.header, bounds=self.search.bounds, seconds=self.search.seconds)
        if wanted != here:
            self._turn_to(wanted)
        return self

    def _turn_to(self, target: Target) -> None:
        """Begin anew for another GPU; the store is free when the search for the one before has written its end."""
        self.search.stop()
        if (kept := self._checkpoint) is not None:
            self.search.wait()
            self._checkpoint = kept.store.checkpoint(kept.name, replace(kept.header, target=target.name))
        self.search = self.search.again(target, self._checkpoint)
        self._passes = Passes(self.search, requested.runs(attached_gpu(), target), self._passes.tolerance)
        self.start()

    def pin(self, digest: str) -> None:
        """Keep a candidate among those that are shown and built, whatever its rank; undoes `exclude`.

        Args:
            digest: its digest, or the start of it.

        Raises:
            OptionError: no candidate begins like that, or several do.
        """
        self.search.mark(digest, True)

    def exclude(self, digest: str) -> None:
        """Leave a candidate out of the results and of what is built, until it is pinned. Arguments as for `pin`."""
        self.search.mark(digest, False)

    def include(self, digest: str) -> None:
        """Let a candidate stand where its rank puts it: undoes `pin` and `exclude`. Arguments as for `pin`."""
        self.search.mark(digest, None)

    def submit(self, text: str | KernelGraph) -> Candidate:
        """Add a muGraph of your own to the results: checked, verified here and now, pinned.

        The passes that are still to come build and time it with the others; afterwards `build(candidate)` does.

        Args:
            text: the muGraph, or its text (as `print_graph(muGraph)` writes it), JSON form, or a tensor program.

        Raises:
            FormatError, ProgramSizeError: the text is no muGraph; the message shows the place.
            GraphError: it breaks Definition 2.1, or does not fit the target.
            VerificationError: it has other inputs or outputs, it is refuted (with a witness), or nobody can tell.
        """
        candidate = submitted(self.program.graph, text, self.target)
        self.search.offer([candidate])
        self.search.mark(candidate.digest, True)
        return candidate

    def explain(self, text: str | KernelGraph) -> str:
        """Why the search finds a muGraph of this program or does not: which rule or bound leaves it out.

        Args:
            text: the muGraph as `submit` takes it, whose errors are raised, or the start of a digest. Nothing is added.
        """
        graph = self._chosen(text).graph if isinstance(text, str) and text.isalnum() else read_legal(text)
        prepared = prepare(self.program.graph, seed=self.search.seed)
        return explain(prepared, self.search.bounds.searched, graph)

    def estimate_of(self, candidate: Candidate | Winner | str) -> str:
        """Where the estimate of a candidate comes from, kernel by kernel: memory, copies, products, vector work,
        barriers. Given itself, its winner or the start of its digest. Raises OptionError where there is none."""
        return explain_estimate(self._chosen(candidate).graph, self.target)

    def tune(self, *, seconds: float | None = None, executor: Executor | None = None) -> None:
        """Compile, try and time more of what was found, in the background, the most promising first; returns at
        once. `stage` says how far it is, `stop()` ends it, `wait()` waits for its end; times show up in the
        candidates, and a message says what came of it. All cards of this machine that are like the session's take part.

        Args:
            seconds: how long it may take; default: two and a half minutes.
            executor: more of them, one for each worker, as of a Dask cluster. It stays the caller's.

        Raises:
            MissingPartError: there is no GPU that runs this session's target, or no PyTorch or NVRTC to time with.
            SearchError, OptionError: the session has not ended; seconds that are not positive.
        """
        limit = requested.seconds(seconds)
        ready_to_tune(self._passes)
        self.search.follow(lambda: tune(self._passes, limit, executor))

    # -- the winner -------------------------------------------------------------------------------

    @property
    def best(self) -> Winner:
        """The fastest candidate that was executed correctly. A session that was stopped before there was one builds its
        best candidate when it is first asked for, and says so.

        Raises:
            NoKernelError: nothing was executed yet, or nothing runs; says why, and what to do. `winners` is empty then.
        """
        if won := self.winners:
            return won[0]
        last = self.snapshot()
        if last.state is State.STOPPED:
            return self._built_late("built when it was asked for: the session was stopped before")
        if last.state in (State.FINISHED, State.FAILED):
            raise NoKernelError(f"{last.outcome}: {self.why_no_kernel}", hint=NO_KERNEL)
        raise NoKernelError(f"no kernel was executed yet: {self.stage or last.state.value}", hint=NOT_YET)

    @property
    def why_no_kernel(self) -> str:
        """In one line, why a session that has ended has no kernel; empty if it has one."""
        last = self.snapshot()
        if self.winners or last.state not in (State.FINISHED, State.STOPPED, State.FAILED):
            return ""
        excluded = ["what was executed is excluded; include(digest) undoes that"] if self._passes.winners else []
        reasons = ["no muGraph was verified", *last.messages, *last.why.splitlines()[:1], *excluded]
        return (self.search.failure or reasons[-1]).splitlines()[0]

    @property
    def winners(self) -> tuple[Winner, ...]:
        """Every candidate that was executed correctly, best first."""
        held = self._passes.winners
        candidates = self.snapshot().candidates
        return tuple(replace(held[c.digest], candidate=c) for c in candidates if c.digest in held)

    @property
    def ways(self) -> tuple[Winner, ...]:
        """Ways to emit winners that are close to the best and were tried on hard inputs, too, the fastest first."""
        return self._passes.ways.met

    def source_of(self, candidate: Candidate | Winner | str) -> str:
        """The CUDA source of a candidate, executed or not, given itself, its winner or the start of its digest.

        Raises OptionError where there is none, EmitError or TargetError where it cannot be emitted for this target.
        """
        winner = self._passes.winners.get((chosen := self._chosen(candidate)).digest)
        return winner.source if winner is not None else emit(chosen.graph, self.target).source

    def build(self, candidate: Candidate | Winner | str) -> Winner:
        """Take one candidate through emit, compile and execute now, in this thread, whatever the session does.

        Raises OptionError where there is no such candidate, and what a pass raises that fails.
        """
        return self._passes.build(self._chosen(candidate))

    def __call__(self, *tensors: Any, cast: bool = False, **named: Any) -> Any:
        """Run the winner on NumPy, CuPy or torch tensors, in input order or by name.

        Waits for the session; one that was stopped builds its best candidate first. A program that was read from a
        module brings that module's own tensors. Returns one array, or a tuple of them, of the kind that was passed in.

        Args:
            cast: round inputs of wider element types to those of the program; else they are refused.

        Raises:
            LaunchError: nothing was executed correctly, or the tensors are not as many as the inputs.
            ShapeError, DTypeError: a tensor does not fit its input.
        """
        given = ordered(self.program.graph.inputs, *self.program.given(tensors, named))
        self.wait()
        made = self._for(given)
        return (next(iter(made.winners), None) or made._built_late())(*given, cast=cast)

    def _chosen(self, candidate: Candidate | Winner | str) -> Candidate:
        chosen = candidate.candidate if isinstance(candidate, Winner) else candidate
        return chosen if isinstance(chosen, Candidate) else self.search.candidate(chosen)

    def _built_late(self, said: str = "") -> Winner:
        """The first of the best candidates that can be built, at last the program's own operators."""
        last = self.snapshot()
        why = ["nothing was verified before it was stopped; extend() goes on with it", *last.messages][-1]
        for candidate in filter(None, (*last.candidates[:FINALISTS], last.baseline)):
            try:
                built = self.build(candidate)
            except MirageError as error:
                why = str(error)
            else:
                if said:
                    self.search.tell(f"{built.candidate.digest[:8]}: {said}")
                return built
        raise NoKernelError("there is no kernel to run", hint=why)


@typed
def superoptimize(
    program: str | Path | TensorProgram,
    *,
    name: str = "",
    target: str | None = None,
    effort: str = "standard",
    budget: float | None = None,
    max_block_ops: int | None = None,
    sizes: Mapping[str, int | range] | None = None,
    executor: Executor | None = None,
    seed: int = 0,
    store: Store | str | Path | bool | None = None,
    fresh: bool = False,
    axioms: Mapping[str, bool] | None = None,
    prunings: Mapping[str, bool] | None = None,
    limits: Limits | None = None,
    tolerance: float = 1.0,
    precision: str = "f32",
) -> Session:
    """Search for the best muGraph of a tensor program, in the background.

    Args:
        program: the text of a program, the path of a `.mirage` file, or what `parse` or `from_torch` made.
        name: what to call the session.
        target: name of a GPU in `mirage_nb.targets`; default: the attached one, else the H200.
        effort: `quick`, `standard` or `exhaustive`.
        budget: seconds for everything, of all lives of a stored session; default: no limit but the effort's.
        max_block_ops: largest number of block operators; default: the effort's.
        sizes: integer constants of the program to override; a range, as range(1, 65), is known at launch.
        executor: where to run the workers, anything with the concurrent.futures interface, as a Dask cluster's
            `Client.get_executor()`; default: spawned processes. It stays the caller's.
        seed: of all random elements; equal seeds give equal results on any number of workers.
        store: where to keep the session as it goes: a file, a `Store`, or True for the user's own file.
            Configurations that the store has of the same search under the same name are not searched again.
            Default: the file in MIRAGE_NB_STORE if that is set, else nothing is written.
        fresh: forget first what the store has under this name.
        axioms: axioms of `mirage_nb.search.AXIOMS` that are on or off, other than the effort has them, such as
            `{"sum_div": False}`. Without an axiom muGraphs that need it are not found; all are verified in any case.
        prunings: the same of `mirage_nb.search.PRUNINGS`.
        limits: what every graph-defined kernel has to keep to, as `Limits(blocks=(1, 264), without={"Accum concat"})`.
        tolerance: how far kernels may be off: times what the program's own rounding explains (`reals.float_gate`).
        precision: of products of f32: `f32` exactly, `3xtf32` (infinities become NaN) or `tf32`; errors are told.

    Returns:
        A session at once; `session.result()` blocks.

    Raises:
        MirageError: the program, the target or an option is wrong.
    """
    load_ahead()
    parsed, gpu = requested.parsed(program, name, sizes), attached_gpu()
    chosen = requested.precise(target, gpu, precision, parsed.graph)
    bounds = Bounds(effort, requested.budget(effort, max_block_ops), Switches.of(axioms, prunings, limits))
    limit, kept = requested.seconds(budget), find_store(store)
    session: Session | None = None
    for part in parsed.ranges:
        title = (name or parsed.name) + ("" if part is parsed else f" {part.called}")
        header = Header(
            graph=part.graph, target=chosen.name, seed=requested.seed(seed), bounds=bounds, text=part.text, title=title,
            sizes=part.sizes, seconds=limit, edition=edition(), tolerance=requested.tolerance(tolerance),
        )  # fmt: skip
        checkpoint = kept.checkpoint(title or header.graph.digest()[:12], header) if kept is not None else None
        session = _session(part, header, chosen, gpu, executor, checkpoint, fresh, session)
    assert session is not None
    return _begun(session)


@typed
def resume(name: str, *, store: Store | str | Path | bool | None = None, executor: Executor | None = None) -> Session:
    """Go on with a stored session, in the background: what it had done is there, the rest is searched.

    It ends with the same result set as a session that nobody interrupted. Wrong candidates that were found out, pinned,
    excluded and submitted ones are taken over; times are measured again. A session that had ended has its candidates at
    once; only the passes after the search run again, for which seconds of a budget are kept; `extend` gives it more.

    Args:
        name: the name that it was stored under; `Store(path).names()` lists them.
        store: a file or a `Store`; default: the file in MIRAGE_NB_STORE, else the user's own.
        executor: where to run the workers; default: spawned processes.

    Raises:
        StoreError: there is no such session, or the store cannot be read; the hint says what to do.
    """
    if (kept := find_store(True if store is None else store)) is None:
        raise StoreError("there is no store", hint="name a file, or set MIRAGE_NB_STORE to one")
    load_ahead()
    header = replace(kept.load(name).header, edition=edition())
    gpu, chosen = attached_gpu(), find_target(header.target)
    checkpoint = kept.checkpoint(name, header)
    return _begun(_session(requested.written(header), header, chosen, gpu, executor, checkpoint, fresh=False))


def _session(
    program: TensorProgram, header: Header, target: Target, gpu: Gpu | None, executor: Executor | None,
    checkpoint: StoreCheckpoint | None, fresh: bool, smaller: Session | None = None,
) -> Session:  # fmt: skip
    search = SearchSession(
        program.graph, target,
        effort=header.bounds.effort, budget=header.bounds.budget, switches=header.bounds.switches,
        seconds=header.seconds, name=header.title, seed=header.seed, executor=executor, checkpoint=checkpoint,
    )  # fmt: skip
    if checkpoint is not None:
        checkpoint.tell = search.tell
        if fresh:
            checkpoint.forget(search.tell)
    allowed = requested.tolerance(header.tolerance)
    made = Session(program, search, requested.runs(gpu, target), checkpoint, allowed)
    made.smaller = smaller
    return made


def _begun(session: Session) -> Session:
    try:
        return session.start()
    except BaseException:  # Ctrl-C: nobody would hold it
        session.stop()
        raise
