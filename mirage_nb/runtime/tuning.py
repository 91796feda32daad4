"""Tuning: more of what the search found is compiled, tried and timed, in the order in which it promises most.

In: a session whose passes are done, on a machine with a GPU, and seconds. Out: candidates with times, winners.
The order is the cost model's, corrected by what was measured: an estimate is multiplied by what muGraphs of the
same structure took, as a median, of what was estimated for them (or of the same configuration, or of all). The best
structures get more instances than the search gave them. One that takes clearly longer than the best is timed for a
few replays only; the fastest are timed again in one race beside PyTorch. Nothing is timed that was not tried before.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mirage_nb.errors import MirageError, MissingPartError
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.runtime.heats import Heats, Job
from mirage_nb.runtime.passes import Passes
from mirage_nb.runtime.trial import Trials
from mirage_nb.search import EFFORTS, configurations, instances, prepare, run_configuration, tiny
from mirage_nb.search.session.crew import Stopped
from mirage_nb.search.session.progress import Candidate
from mirage_nb.targets import Target

SECONDS = 150.0
"""What tuning takes when nothing else is said."""
FINAL_SECONDS = 12.0
"""Kept for the last race and for the verification of its fastest."""
BATCH = 32
"""Ways to emit that are compiled side by side before the order is looked at again."""
NEAR = 1.15
"""A muGraph within this factor of the best is worth other ways to emit it."""
FINALISTS = 6
PROMISING = 4
"""How many of the best structures get more instances."""
INSTANCES = 48
INSTANCES_SECONDS = 60.0


def structure_of(candidate: Candidate) -> str:
    """What the instances of one structure share: their small instance; without one the muGraph itself."""
    return candidate.small[1].digest() if candidate.small is not None else candidate.digest


def calibrated(candidates: Sequence[Candidate]) -> Callable[[Candidate], float]:
    """The estimate in microseconds, corrected by the times of candidates that are like it."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for candidate in candidates:
        if candidate.time_us is not None:
            for key in _likeness(candidate):
                ratios.setdefault(key, []).append(math.log(candidate.time_us / candidate.estimate_us))
    factors = {key: math.exp(statistics.median(found)) for key, found in ratios.items()}

    def corrected(candidate: Candidate) -> float:
        factor = next((factors[key] for key in _likeness(candidate) if key in factors), 1.0)
        return candidate.estimate_us * factor

    return corrected


def _likeness(candidate: Candidate) -> tuple[tuple[str, str], ...]:
    """From most to least alike."""
    return ("structure", structure_of(candidate)), ("configuration", candidate.configuration), ("any", "")


def next_ones(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The `count` candidates without a time or a note that promise most: every other one from a structure that had
    no turn yet."""
    corrected = calibrated(candidates)
    waiting = [c for c in candidates if c.time_us is None and not c.note]
    waiting.sort(key=lambda c: (corrected(c), c.digest))
    known = {structure_of(c) for c in candidates if c.time_us is not None or c.note}
    chosen: dict[str, Candidate] = {}
    fresh = (c for c in waiting if structure_of(c) not in known)
    ranked = iter(waiting)
    while len(chosen) < count:
        source = fresh if len(chosen) % 2 else ranked
        found = next((c for c in source if c.digest not in chosen), None) or next(
            (c for c in waiting if c.digest not in chosen), None
        )
        if found is None:
            break
        chosen[found.digest] = found
        if len(chosen) % 2 == 0:
            known.add(structure_of(found))
    return list(chosen.values())


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a tuning did, for a reader."""

    timed: int
    before_us: float | None
    after_us: float | None
    seconds: float

    def __str__(self) -> str:
        before = f"{self.before_us:.2f} us before, " if self.before_us is not None else ""
        after = f"{self.after_us:.2f} us now" if self.after_us is not None else "nothing was timed"
        return f"tuned for {self.seconds:.0f} s, {self.timed} kernels timed: {before}{after}"


def ready_to_tune(passes: Passes) -> Gpu:
    """The card that a session can be tuned on. Raises MissingPartError: no GPU for its target, or no PyTorch."""
    if passes.gpu is None:
        what = f"tuning times kernels, and there is no GPU here that runs those for the {passes.search.target.name}"
        raise MissingPartError(what, hint="on this machine muGraphs are ranked by estimate; see `mirage_nb doctor`")
    if importlib.util.find_spec("torch") is None:
        raise MissingPartError("timing needs PyTorch", hint="pip install 'mirage-nb[torch]'")
    return passes.gpu


def tune(passes: Passes, seconds: float | None = None) -> None:
    """Tune a session; called in its supervising thread. What came of it is told as a message.

    Raises:
        MissingPartError: no GPU, no NVRTC or no PyTorch.
        Stopped: the session was stopped; what was measured is kept.
    """
    _Tuning(passes, ready_to_tune(passes), SECONDS if seconds is None else seconds).run()


class _Tuning:
    """One tuning."""

    def __init__(self, passes: Passes, gpu: Gpu, seconds: float) -> None:
        self._passes, self._search, self._gpu = passes, passes.search, gpu
        self._started = time.monotonic()
        self._until = self._started + max(seconds - FINAL_SECONDS, 0.5 * seconds)
        self._enriched: set[str] = set()
        self._timed = 0

    def run(self) -> None:
        before = self._best_us()
        try:
            self._heats()
        finally:
            self._passes.stage = ""
            took = time.monotonic() - self._started
            self._search.tell(str(Tuned(self._timed, before, self._best_us(), took)))

    def _heats(self) -> None:
        track = self._passes.track(self._gpu)
        if track is None:
            return
        with Trials(self._search.proceed) as trials:
            heats = Heats(self._passes, self._gpu, trials, track)
            heats.know(self._passes.winners.values())
            entered = -1
            try:
                while time.monotonic() < self._until and heats.entered > entered:
                    self._enrich()
                    entered, candidates = heats.entered, self._search.snapshot().candidates
                    jobs = self._jobs(heats, candidates)
                    heats.run(jobs, f"tuning, {max(0.0, self._until - time.monotonic()):.0f} s left", self._until)
                    heats.settle(candidates)
                    self._note(heats)
            finally:
                self._note(heats)
        earlier = [w for w in self._passes.winners.values() if w.candidate.time_us is not None]
        self._passes.finish(sorted(earlier, key=lambda w: w.candidate.rank)[:FINALISTS], self._gpu)

    def _jobs(self, heats: Heats, candidates: Sequence[Candidate]) -> list[Job]:
        """The next batch: other ways to emit what is near the best, and the candidates that promise most."""
        ways = heats.ways(candidates, NEAR, FINALISTS)[: BATCH // 2]
        return [*ways, *((candidate, None) for candidate in next_ones(candidates, BATCH - len(ways)))]

    def _note(self, heats: Heats) -> None:
        """Keep what is faster than it was before."""
        self._timed = heats.timed
        known = {c.digest: c.time_us for c in self._search.snapshot().candidates}
        for winner in heats.winners:
            took, before = heats.us(winner.candidate.digest), known.get(winner.candidate.digest)
            if winner.candidate.digest in known and (before is None or took < before):
                self._passes.keep(replace(winner, candidate=replace(winner.candidate, time_us=took)))

    def _enrich(self) -> None:
        """More instances of the structures whose members are the fastest, found by the workers."""
        timed = sorted((c for c in self._search.snapshot().candidates if c.time_us is not None), key=lambda c: c.rank)
        chosen: dict[str, Candidate] = {}
        for candidate in timed:
            if len(chosen) < PROMISING and candidate.small is not None:
                chosen.setdefault(structure_of(candidate), candidate)
        fresh = [c for key, c in chosen.items() if key not in self._enriched]
        if not fresh:
            return
        self._enriched |= {structure_of(c) for c in fresh}
        self._passes.stage = "tuning: more instances of the fastest muGraphs"
        work = [(self._search.program, self._search.effort, self._search.target, self._search.seed, c) for c in fresh]
        for _, future in self._search.call_all(more_instances, work, seconds=INSTANCES_SECONDS):
            try:
                self._search.offer(future.result())
            except Stopped:
                raise
            except MirageError as error:
                self._search.tell(f"no more instances of one muGraph: {error}")

    def _best_us(self) -> float | None:
        return min((c.time_us for c in self._search.snapshot().candidates if c.time_us is not None), default=None)


def more_instances(
    program: KernelGraph, effort: str, target: Target, seed: int, like: Candidate
) -> tuple[Candidate, ...]:
    """Instances of the structure of `like` that the search did not hand over, best estimate first; they share its
    verdict, because they share the small instance that was verified. Runs its configuration again."""
    prepared = prepare(program, seed=seed)
    wanted = structure_of(like)
    level = EFFORTS[effort]
    found: list[Candidate] = []
    for configuration in configurations(prepared, level):
        if str(configuration) != like.configuration:
            continue
        result = run_configuration(prepared, configuration, level, level.budget, lambda counts: None, lambda: False)
        for structure in result.structures:
            if tiny(prepared, structure)[1].digest() == wanted:
                made = instances(structure, prepared, target, limit=INSTANCES)
                found += [
                    replace(
                        like, digest=i.graph.digest(), graph=i.graph, sizes=dict(i.sizes), estimate_us=i.cost.us,
                        time_us=None, error=None, executed_on="", note="",
                    )
                    for i in made
                ]  # fmt: skip
    return tuple(found)
