"""superoptimize(): from the text of a tensor program to kernels that ran.

parse -> search -> the later passes (`mirage_nb.runtime.passes`). Everything after parsing happens in the background;
a `Session` is what the caller holds: it watches, steers, and runs the winner.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_nb.codegen import emit
from mirage_nb.errors import LaunchError, MirageError, OptionError
from mirage_nb.lang import TensorProgram, load, parse
from mirage_nb.runtime.gpu import Gpu, attached_gpu
from mirage_nb.runtime.passes import FINALISTS_CPU, Pass, Passes, Winner
from mirage_nb.search import EFFORTS, Budget
from mirage_nb.search.progress import Candidate, Snapshot, State
from mirage_nb.search.session import SearchSession
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target

if TYPE_CHECKING:
    from mirage_nb.runtime.race import Lap

__all__ = ["Session", "Winner", "superoptimize"]


class Session:
    """A superoptimization: the search, and the passes that follow it. Made by `superoptimize`.

    May be used from any thread.
    """

    def __init__(self, program: TensorProgram, search: SearchSession, gpu: Gpu | None) -> None:
        self.program = program
        self.search = search
        self._passes = Passes(search, gpu)

    def start(self) -> Session:
        """Begin in the background and return at once."""
        self.search.start(self._passes.run)
        return self

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.search.name

    @property
    def target(self) -> Target:
        """The GPU that it searches for."""
        return self.search.target

    # -- watching and steering --------------------------------------------------------------------

    @property
    def stage(self) -> str:
        """What is being done, for a reader; empty in the end."""
        searching = self.snapshot().state in (State.WAITING, State.RUNNING, State.PAUSED)
        return self._passes.stage or ("searching" if searching else "")

    @property
    def trace(self) -> tuple[Pass, ...]:
        """The passes that were run after the search."""
        return self._passes.trace

    @property
    def baselines(self) -> tuple[Lap, ...]:
        """How PyTorch fared beside the winners."""
        return self._passes.baselines

    @property
    def input_scale(self) -> float:
        """Standard deviation of the random inputs that keeps the program's values inside their types' range."""
        return self._passes.input_scale

    def snapshot(self) -> Snapshot:
        """The state now: counts, candidates, messages."""
        return self.search.snapshot()

    def stop(self) -> None:
        """End the search, or the passes that follow it; what was found stays."""
        self.search.stop()

    def pause(self) -> None:
        """Let the workers sleep; the passes that follow the search rest after the present one."""
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
        return next(iter(self.winners), None)

    @property
    def winners(self) -> tuple[Winner, ...]:
        """Every candidate that was executed correctly, best first."""
        held = self._passes.winners
        candidates = self.snapshot().candidates
        return tuple(replace(held[c.digest], candidate=c) for c in candidates if c.digest in held)

    def source_of(self, candidate: Candidate | str) -> str:
        """The CUDA source of a candidate, executed or not, given itself or the start of its digest.

        Raises:
            OptionError: there is no such candidate.
            EmitError, TargetError: it cannot be emitted for this target.
        """
        chosen = self._chosen(candidate)
        winner = self._passes.winners.get(chosen.digest)
        return winner.source if winner is not None else emit(chosen.graph, self.target).source

    def build(self, candidate: Candidate | str) -> Winner:
        """Take one candidate through emit, compile and execute now, in this thread, whatever the session does.

        Raises:
            OptionError: there is no such candidate.
            MirageError: a pass failed; the message says which and why.
        """
        return self._passes.build(self._chosen(candidate))

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """Run the winner on NumPy, CuPy or torch tensors, in input order or by name.

        Waits for the session; one that was stopped builds its best candidate first. Returns one array, or a
        tuple of them, of the kind that was passed in.

        Raises:
            LaunchError: nothing was executed correctly, or the tensors are not as many as the inputs.
            ShapeError, DTypeError: a tensor does not fit its input.
        """
        ordered = self._ordered(tensors, named)
        self.wait()
        return (self.best or self._built_late()).executable(*ordered)

    def _chosen(self, candidate: Candidate | str) -> Candidate:
        if isinstance(candidate, Candidate):
            return candidate
        found = [c for c in self.snapshot().candidates if c.digest.startswith(candidate)]
        if len(found) != 1:
            raise OptionError(
                f"{'several candidates begin' if found else 'no candidate begins'} with {candidate!r}",
                hint="give the start of one digest, as the list of candidates shows it",
            )
        return found[0]

    def _built_late(self) -> Winner:
        reasons = list(self.snapshot().messages)
        for candidate in self.snapshot().candidates[:FINALISTS_CPU]:
            try:
                return self.build(candidate)
            except MirageError as error:
                reasons.append(str(error))
        raise LaunchError("there is no kernel to run", hint=reasons[-1] if reasons else "no muGraph was verified")

    def _ordered(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        names = [i.name for i in self.program.graph.inputs]
        if len(tensors) + len(named) != len(names) or any(n not in names[len(tensors) :] for n in named):
            raise LaunchError(f"expected the tensors {', '.join(names)}", hint="pass them in this order, or by name")
        return (*tensors, *(named[n] for n in names[len(tensors) :]))

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
    search = SearchSession(
        parsed.graph,
        chosen,
        effort=effort,
        budget=_budget(effort, max_block_ops),
        seconds=_seconds(budget),
        name=name or parsed.name,
        executor=executor,
        seed=seed,
    )
    return Session(parsed, search, gpu if gpu is not None and gpu.runs(chosen) else None).start()


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
