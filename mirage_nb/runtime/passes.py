"""The passes after the search: from verified candidates to kernels that ran.

In: a search that found candidates. Out: `Winner`s, and what every pass took. emit -> compile -> execute ->
time -> verify at the real shape; the search's workers do what takes long, and first runs on a GPU are a process's
of their own. Invariants: no time is kept of what was not compared with float64 on random inputs of the card; a winner
was run on hard inputs, too, or it is said that there was no time for that; a finalist that computes something else is
dropped, one that a pass merely cannot take, or that is numerically poor, stays a candidate and says why.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mirage_nb.codegen import Emitted, default_options, emit
from mirage_nb.errors import CompileError, LaunchError, MirageError, MissingPartError, SearchError
from mirage_nb.runtime.contest.early import Early, Inputs
from mirage_nb.runtime.contest.finalists import unique, varied
from mirage_nb.runtime.contest.heats import COMPILE_SECONDS, told
from mirage_nb.runtime.contest.on_card import OnCard
from mirage_nb.runtime.contest.told import how_judged, how_precise, off_by, who_won
from mirage_nb.runtime.contest.trial import (
    FIRST_SECONDS,
    RAN,
    Gate,
    Outcome,
    Trials,
    draw_into,
    drawn,
    run_once,
    try_on_cpu,
)
from mirage_nb.runtime.contest.ways import SLOW, Ways
from mirage_nb.runtime.contest.winner import ALONE, Origin, Winner, WrongResult
from mirage_nb.runtime.contest.without_gpu import WithoutGpu, here, is_generated
from mirage_nb.runtime.execution.artifacts import distrusted
from mirage_nb.runtime.execution.compile import Cubin, compile_cubin
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.runtime.gpu import TURN, Gpu, busy_percent
from mirage_nb.search.composition import OWN_OPERATORS, UNSEARCHED
from mirage_nb.search.session.crew import Stopped
from mirage_nb.search.session.progress import Candidate
from mirage_nb.search.session.session import SearchSession
from mirage_nb.settings import read_settings
from mirage_nb.verify.verdict import Verdict

if TYPE_CHECKING:
    from mirage_nb.runtime.contest.race import Track
    from mirage_nb.runtime.contest.timing import Lap
    from mirage_nb.runtime.execution.launch import GpuExecutable

T = TypeVar("T")
Entry = tuple[Candidate, Emitted, Cubin]
Outcomes = Iterator[tuple[int, Callable[[], Outcome]]]

FINALISTS_GPU = 40
"""How many candidates are compiled, checked and timed where a GPU is attached."""
RUN_SECONDS = 6.0
"""What a first run has in any case; one that does not end takes no more than half of what a step has left."""
TURN_SECONDS = 0.05
BUSY_PERCENT = 20
"""A card that is busier than this with others' work is no place to time on."""
QUIET_SECONDS = 1.5
"""What the driver says of a card's last moment is not about what ended before that."""
AT_LEAST_SECONDS = 15.0
"""What it may take beyond a budget to have something that runs."""
EXECUTE_SECONDS = 180.0
DRAW_SECONDS = 300.0
"""Drawing the inputs that kernels are tried on."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One timing on the card: seconds since the session's passes were made, the muGraph, microseconds."""

    at: float
    candidate: str
    us: float


@dataclass(frozen=True, slots=True)
class Pass:
    """One traced pass over one candidate: its name, how long it took (seconds), and what came of it."""

    name: str
    candidate: str
    seconds: float
    outcome: str


class Passes:
    """The later passes of one session, and what they made. May be used from any thread.

    `stage` says what is being done, for a reader; `trace` which passes were run; `baselines` how PyTorch
    fared in the last race; `entered` which muGraphs were entered into heats, and how they were emitted; `timed` every
    timing that counted, in order; `ways` how what is fast was emitted; `gate` where kernels meet random and hard
    inputs, once these are drawn; `tried` the labels of winners that did; `made` when all began.
    `tolerance`: how many times the program's own rounding kernels may be off, 1 for what that explains.
    """

    def __init__(self, search: SearchSession, gpu: Gpu | None, tolerance: float = 1.0) -> None:
        self.search = search
        self.gpu, self.stage = gpu, ""
        self.tolerance = tolerance
        self.trace: tuple[Pass, ...] = ()
        self.baselines: tuple[Lap, ...] = ()
        self.entered: set[tuple[str, str]] = set()
        self.timed, self.tried, self.ways = tuple[Timed, ...](), set[str](), Ways()
        self.made = time.monotonic()
        self._guard = threading.Lock()
        self._winners: dict[str, Winner] = {}
        self._scale: float | None = None
        self._track: Track | None = None
        self.gate: Gate | None = None
        self._meeting: Trials | None = None
        self._withdrawn: set[str] = set()
        self._early: Early | None = None
        self._doubted = self._begun = False

    @property
    def winners(self) -> dict[str, Winner]:
        """Every candidate that was executed correctly, by digest."""
        with self._guard:
            return dict(self._winners)

    @property
    def ranked(self) -> list[Winner]:
        """The winners, best first."""
        return sorted(self.winners.values(), key=lambda winner: winner.candidate.rank)

    @property
    def best_us(self) -> float:
        """The shortest time of a winner."""
        return min((w.candidate.time_us or math.inf for w in self.winners.values()), default=math.inf)

    def build(self, candidate: Candidate) -> Winner:
        """Emit, compile and execute one candidate in this thread, unless that is done. Raises MirageError."""
        if (done := self.winners.get(candidate.digest)) is not None and done.candidate.executed_on != ALONE:
            return done
        try:
            return self.built(candidate, here)
        except WrongResult as error:
            self.set_aside(candidate, error)
            raise
        finally:
            self.stage = ""

    def run(self) -> None:
        """Take the finalists of the search through all passes; called in its supervising thread.

        Raises:
            MissingPartError: nothing can be executed on this machine.
        """
        self.begin()
        snapshot = self.search.snapshot()
        candidates, chosen = snapshot.candidates, [c for c in snapshot.candidates if c.digest in snapshot.pinned]
        how_judged(self)
        for why in distrusted(read_settings().home):
            self.search.tell(why)
        try:
            if not candidates:
                self.search.tell("no muGraph was verified within these bounds")
                return
            if self.gpu is not None:
                plain = [c for c in candidates if c.configuration in UNSEARCHED]
                if OnCard(self, self.gpu).run(unique((*plain, *chosen, *varied(candidates, FINALISTS_GPU)))):
                    self._at_least(snapshot.baseline)
                    return
            (without := WithoutGpu(self, snapshot.baseline)).run(chosen, candidates)
            without.at_least()
        except MissingPartError as error:
            self.search.tell(f"no kernel was executed: {error}")
        finally:
            self.stage = ""
            self.end()
            for best in self.ranked[:1]:
                who_won(self.search, best)
                how_precise(self, best)

    def begin(self) -> None:
        """What can begin before anything is found: see `early`. Once, whoever comes first."""
        with self._guard:
            if self.gpu is not None and not self._begun:
                self._begun = True
                self._early = Early(self, self.gpu).start()

    def early_times(self) -> None:
        """Wait for what was begun early to be timed: until the budget is over, or there is a first time."""
        while self._early is not None and not self._early.timed(TURN_SECONDS):
            if self.search.left < (0 if self.winners else -AT_LEAST_SECONDS):
                return
            if not self.search.proceed():
                raise Stopped("the session was stopped")

    def end(self) -> None:
        """Nothing of these passes is left on the card, or in processes."""
        with self._guard:
            early, self._early, meeting, self._meeting = self._early, None, self._meeting, None
        if early is not None:
            early.close()
        if meeting is not None:
            meeting.terminate(wait=False)
        self._track = self.gate = None

    def _at_least(self, baseline: Candidate | None) -> None:
        """Whatever the budget, every way that libraries have for the program's own operators is timed, as nothing is a
        winner that is slower; where nothing came through, or was right, these run, timed or not."""
        if baseline is None or not self.search.proceed():
            return
        try:
            if self._early is not None:
                self._early.timed(AT_LEAST_SECONDS)
            if not self.winners:
                self.built(baseline, here, AT_LEAST_SECONDS)
        except MirageError as error:
            self.set_aside(baseline, error)

    def allowed(self, seconds: float) -> float:
        """Seconds that a step may take which may take so many, and no more than the session has left."""
        return max(0.0, min(seconds, self.search.left))

    def built(self, candidate: Candidate, call: Call, seconds: float = math.inf) -> Winner:
        """Emit the default way, compile, execute and compare with float64; what only libraries compute by their kernels
        for several operators first, and where these fail one by one. Trials end after so many seconds."""
        failed: MirageError | None = None
        target = self.search.target
        for library in (None,) if is_generated(candidate.graph) else (None, 0):
            options = default_options(target) if library is None else replace(default_options(target), library=library)
            try:
                emitted = self._traced("emit", candidate, partial(emit, candidate.graph, target, options))
                return self._executed(candidate, emitted, call, time.monotonic() + seconds)
            except Exception as error:  # noqa: BLE001  # whatever goes wrong with one candidate is told like a mistake
                failed = told(error)
                if isinstance(failed, (MissingPartError, Stopped)):
                    break
        assert failed is not None
        raise failed

    def _executed(self, candidate: Candidate, emitted: Emitted, call: Call, until: float = math.inf) -> Winner:
        late = self.gpu is None and self.search.left < math.inf  # what runs comes before what does not
        cubin = None if late else self.cubin_of(candidate, emitted, call)
        if self.gpu is not None and cubin is not None:
            with Trials(lambda: True) as trials:  # called for by the user, whatever became of the session
                ((_, outcome),) = self.first_runs([(candidate, emitted, cubin)], trials, until)
                ran = self.on_gpu(candidate, emitted, cubin, self.gpu, outcome)
                return self.keep(self.gated(ran, self.new_gate(trials, trials, until)))
        left = until - time.monotonic()
        trying = (try_on_cpu, self.search.program, emitted, self.sample_seed, off_by(self, emitted), left)
        outcome = self._traced("execute", candidate, lambda: call(*trying, seconds=self.allowed(EXECUTE_SECONDS)))
        self._scale = outcome.scale
        return self.keep(Winner.judged(candidate, emitted, CpuExecutable(emitted), cubin, outcome, self.origin))

    def cubin_of(self, candidate: Candidate, emitted: Emitted, call: Call) -> Cubin | None:
        """Its cubin, if kernels are generated and there is something to compile them. Raises CompileError."""
        compiling, limit = (compile_cubin, emitted.source, self.search.target.arch), self.allowed(COMPILE_SECONDS)
        try:
            if self.gpu is not None or is_generated(candidate.graph):
                return cast(Cubin, self._traced("compile", candidate, partial(call, *compiling, seconds=limit)))
        except MissingPartError as error:
            self.search.tell(f"no cubin: {error}")
        return None

    def track(self, gpu: Gpu) -> Track | None:
        """Buffers to time on; None, and a message, where there is nothing to time with. Asked for by whoever has the
        card."""
        try:
            from mirage_nb.runtime.contest.race import Track

            if self._track is None:
                self._track = Track(self.search.program, gpu)
                self._scale = self._track.scale
        except ImportError as error:
            self.search.tell(f"nothing was timed, PyTorch is missing: {error}")
        except LaunchError as error:
            self.search.tell(f"nothing was timed: {error}")
        return self._track

    def trials(self) -> Trials:
        """Processes for first runs on the card."""
        from mirage_nb.runtime.execution.launch import lanes

        if self._early is not None and (warmed := self._early.lanes) is not None:
            return warmed
        return Trials(self.search.proceed, lanes(read_settings().workers), kept=True)

    @functools.cached_property
    def inputs(self) -> Inputs:
        """What kernels are tried on, for as long as these passes are kept."""
        return Inputs(self.search.program, self.sample_seed)

    def first_runs(self, entries: Sequence[Entry], trials: Trials, until: float = math.inf) -> Outcomes:
        """One run of each kernel, in processes of their own, to see that it ends; none where the card takes one process
        only. Yields the number of an entry, and what returns its outcome or raises, until the clock says so."""
        from mirage_nb.runtime.execution.launch import exclusive

        if exclusive():
            yield from ((number, lambda: RAN) for number in range(len(entries)))
            return
        arguments = [(emitted, cubin, self.input_scale) for _, emitted, cubin in entries]
        seconds = min(FIRST_SECONDS, max(RUN_SECONDS, (until - time.monotonic()) / 2))
        for number, future in trials.call_all(run_once, arguments, seconds=seconds, until=until):
            yield number, future.result

    def meeting(self) -> Trials:
        """The process in which kernels meet random and hard inputs; until these passes end."""
        with self._guard:
            if self._meeting is None or self._meeting.ended:
                self._meeting = Trials(self.search.proceed, kept=True)
            return self._meeting

    @property
    def can_meet(self) -> bool:
        """Whether kernels can meet random and hard inputs without a wait."""
        return not self.inputs.missing and (self._early is None or self._early.placed)

    def make_gate(self, trials: Trials, until: float = math.inf) -> None:
        """Have a `gate`, for the supervising thread. Arguments and errors as of `new_gate`."""
        self.gate = self.new_gate(trials, self.meeting(), until)

    def new_gate(self, trials: Trials, meeting: Trials, until: float = math.inf) -> Gate:
        """What kernels are tried on, laid on the card by a process, once it is drawn, which `trials` do where nobody
        did. Raises LaunchError where nothing is drawn when the clock (`time.monotonic`) says so."""
        from mirage_nb.runtime.execution.launch import exclusive

        if self._early is not None:
            self._early.drawn(until)
        elif missing := self.inputs.missing:
            for _ in trials.call_all(draw_into, missing, seconds=DRAW_SECONDS, until=until):
                pass
        if not (drawn := self.inputs.there):
            raise LaunchError("no inputs were drawn in time to try it on")
        if left := (asked := len(self.inputs.names)) - len(drawn):
            self.search.tell(f"{left} of {asked} kinds of inputs were not drawn in time to try kernels on them")
        alone = exclusive() or (self.gate is not None and self.gate.alone)  # a process that refused is asked once
        return Gate(self.search.program, meeting, drawn, alone).ready(self.search.tell, until)

    def gated(self, winner: Winner, gate: Gate | None = None) -> Winner:
        """A winner with what random and hard inputs showed of it, at this gate or that of these passes. Raises as
        `Winner.judged`, and CardLost."""
        there = gate or self.gate
        assert there is not None and winner.cubin is not None
        trying = partial(there.outcome, winner.emitted, winner.cubin, off_by(self, winner.emitted))
        return winner.shown(self._traced("execute", winner.candidate, trying, lambda found: found.seconds))

    @contextlib.contextmanager
    def turn(self, gpu: Gpu, proceed: Callable[[], bool] | None = None) -> Iterator[None]:
        """While this lasts nothing else of this interpreter times on the card. Says so, once, when it is busy all the
        same. `proceed`: whether to wait for it; default: as long as the search does.

        Raises:
            Stopped: there was no reason to wait any longer.
        """
        busy = busy_percent() if TURN.quiet_seconds > QUIET_SECONDS and not self._doubted else None
        if busy is not None and busy > BUSY_PERCENT:
            self._doubted = True
            what = f"the {gpu.name} is {busy} % busy before anything is timed"
            self.search.tell(f"{what}: another program may be using it, and times are doubtful")
        while not TURN.take(TURN_SECONDS):
            if not (proceed or self.search.proceed)():
                raise Stopped("the session was stopped")
        try:
            yield
        finally:
            TURN.give()

    def on_gpu(
        self, candidate: Candidate, emitted: Emitted, cubin: Cubin, gpu: Gpu, outcome: Callable[[], Outcome]
    ) -> Winner:
        """A candidate with what its first runs showed. Raises what they raised, or what `Winner.judged` does."""
        from mirage_nb.runtime.execution.launch import GpuExecutable

        shown = self._traced("execute", candidate, outcome, lambda found: found.seconds)
        return Winner.judged(candidate, emitted, GpuExecutable(emitted, cubin, gpu), cubin, shown, self.origin)

    def timed_on(self, track: Track, winner: Winner) -> Winner:
        """A kernel that ran with the time that it takes, which is noted, briefly timed where others are faster;
        compared with float64 on random inputs of the card before. Raises LaunchError."""
        running = cast("GpuExecutable", winner.executable)
        return self.timed_as(winner, track.lap(winner.label, running, SLOW * self.best_us, winner.is_own))

    def timed_as(self, winner: Winner, lap: Lap) -> Winner:
        """The same of a lap that was run before."""
        if lap.us is None or (timed := winner.as_in(lap)) is None:
            raise LaunchError(lap.note)
        with self._guard:
            self.timed = (*self.timed, Timed(time.monotonic() - self.made, winner.candidate.digest, lap.us))
        return timed.compared(lap.error or 0.0)

    # -- what is known ------------------------------------------------------------------------------

    def is_withdrawn(self, winner: Winner) -> bool:
        """Whether it is no winner any more: of a muGraph no way is, of the program's own operators others may be."""
        return not self._withdrawn.isdisjoint((winner.candidate.digest, winner.label))

    def note(self, winners: Iterable[Winner]) -> None:
        """Keep what is faster than it was before, for everybody to see."""
        found = [winner for winner in winners if not self.is_withdrawn(winner)]
        self.search.offer([winner.candidate for winner in found])  # the search may have better ones meanwhile
        known = {c.digest: c.pace for c in self.search.candidates()}
        for winner in found:
            took, before = winner.candidate.pace, known.get(winner.candidate.digest)
            if winner.candidate.digest in known and took is not None and (before is None or took < before):
                self.keep(winner)
        self.ways.add(found)

    def withdraw(self, winner: Winner, error: MirageError) -> None:
        """What was timed is no winner: it is wrong or poor. For the program's own operators the next way to run them
        stands in."""
        own = winner.candidate.configuration == OWN_OPERATORS
        with self._guard:
            self._withdrawn.add(winner.label if own else winner.candidate.digest)
            self._winners.pop(winner.candidate.digest, None)
        if (other := self.ways.without(winner)) is not None:
            self.search.tell(f"{winner.candidate.digest[:8]}: a library's way is left out: {error}")
            self.keep(other)
            return
        self.search.update(untimed := winner.candidate.unmeasured())
        self.set_aside(untimed, error)

    def keep(self, winner: Winner) -> Winner:
        """Note a winner, in place of an earlier one of its candidate."""
        with self._guard:
            self._winners[winner.candidate.digest] = winner
        self.ways.learn(winner)
        self.search.update(winner.candidate)
        return winner

    def learn(self, digest: str, verdict: Verdict) -> None:
        """What final verification says of a winner."""
        with self._guard:
            if (winner := self._winners.get(digest)) is None:  # withdrawn meanwhile
                return
            winner = replace(winner, candidate=replace(winner.candidate, verdict=verdict))
        self.keep(winner)

    def set_aside(self, candidate: Candidate, error: Exception) -> None:
        """A wrong candidate is dropped; one that a pass could not take stays, and says why it did not run."""
        why = f"{candidate.digest[:8]}: {error}"
        if isinstance(error, WrongResult):
            with self._guard:
                self._winners.pop(candidate.digest, None)
            self.search.drop(candidate.digest, why)
            return
        self.search.tell(why)
        with self._guard:
            if isinstance(error, CompileError):  # it ran before it was compiled for the card
                self._winners.pop(candidate.digest, None)
            ran = candidate.digest in self._winners
        if not ran:
            self.search.update(replace(candidate, note=str(error).splitlines()[0]))

    @property
    def sample_seed(self) -> int:
        """Of the inputs that every finalist is tried on."""
        return self.search.seed + 2

    @property
    def input_scale(self) -> float:
        """Standard deviation of the random inputs that keeps the program's values inside their types' range."""
        return self._scale if self._scale is not None else drawn(self.search.program, self.sample_seed).scale

    @property
    def origin(self) -> Origin:
        """What winners are made for."""
        return Origin(self.search.name, self.search.program, self.search.target, self.input_scale)

    def _traced(
        self, name: str, candidate: Candidate, run: Callable[[], T], took: Callable[[T], float] | None = None
    ) -> T:
        """Run a pass and note it; `took` says from its value how long it took elsewhere."""
        self.stage = f"{name} {candidate.digest[:8]}"
        started, seconds = time.monotonic(), None
        outcome = "failed"
        try:
            value = run()
            outcome = "ok"
            seconds = took(value) if took is not None else None
            return value
        except Stopped:
            raise
        except SearchError as error:  # of a process or the clock, which do not know what was asked for
            raise SearchError(f"not {name}d: {error.message}") from error
        finally:
            done = Pass(name, candidate.digest, time.monotonic() - started if seconds is None else seconds, outcome)
            with self._guard:
                self.trace = (*self.trace, done)


Call = Callable[..., Any]
"""`call(function, *args, seconds=limit)`: a function of a pass, called here or by a worker."""
