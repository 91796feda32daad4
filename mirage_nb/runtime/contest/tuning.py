"""Tuning: more of what the search found is compiled, tried and timed, in the order in which it promises most.

In: a session whose passes are done, on a machine with a GPU, and seconds. Out: candidates with times, winners.
The order is the cost model's, corrected by what was measured: an estimate is multiplied by what muGraphs of the
same structure took, as a median, of what was estimated for them (or of the same configuration, or of all). The best
structures get more instances than the search gave them, found by workers meanwhile; when everything near the best is
timed, tuning looks further (`REACH`). One that takes clearly longer than the best is timed for a few replays only; the
fastest are timed again in one race beside PyTorch. Invariants: nothing is timed that was not tried before; before its
time is over, tuning ends only when nothing is left that may come near the best.
"""

from __future__ import annotations

import concurrent.futures as futures
import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_nb.errors import MirageError, MissingPartError
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.contest.confirm import Confirmation
from mirage_nb.runtime.contest.finalists import next_ones, structure_of
from mirage_nb.runtime.contest.heats import Heats, Job
from mirage_nb.runtime.contest.on_card import OnCard, met
from mirage_nb.runtime.contest.other_cards import Course, OtherCards
from mirage_nb.runtime.contest.trial import POLL_SECONDS
from mirage_nb.runtime.gpu import CardLost, Gpu
from mirage_nb.runtime.passes import Passes
from mirage_nb.search import Assembly, configurations, instances, prepare, run_configuration, tiny
from mirage_nb.search.session.crew import Stopped
from mirage_nb.search.session.findings import Bounds
from mirage_nb.search.session.pool import Workers
from mirage_nb.search.session.progress import LIVE, Candidate
from mirage_nb.search.sizes.instantiate import overhangs
from mirage_nb.settings import read_settings
from mirage_nb.targets import Target

SECONDS = 150.0
"""What tuning takes when nothing else is said."""
FINAL_SECONDS = 30.0
"""Kept for trials on hard inputs, the last race, and the verification of its fastest at the real shape."""
BATCH = 32
"""Ways to emit that are compiled side by side before the order is looked at again."""
FAR = 3.0
"""What is expected to take this many times as long as the best is not timed."""
TRIED_SECONDS = 15.0
"""Of these, what trials on hard inputs may take."""
INSTANCES_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Reach:
    """How far tuning looks: the `count` fastest muGraphs within the factor `near` of the best are emitted in every
    way, and the best `structures` structures get up to `instances` instances."""

    near: float
    count: int
    structures: int
    instances: int


REACH = (Reach(1.15, 6, 4, 48), Reach(1.3, 12, 8, 96), Reach(1.6, 24, 16, 192))
"""One after the other, when everything within the one before was timed."""


def ready_to_tune(passes: Passes) -> Gpu:
    """The card that a session can be tuned on. Raises MissingPartError: no GPU for its target, or no PyTorch."""
    if passes.gpu is None:
        what = f"tuning times kernels, and there is no GPU here that runs those for the {passes.search.target.name}"
        raise MissingPartError(what, hint="muGraphs are ranked by estimate here; see `python -m mirage_nb doctor`")
    if importlib.util.find_spec("torch") is None:
        raise MissingPartError("timing needs PyTorch", hint="pip install 'mirage-nb[torch]'")
    return passes.gpu


def tune(passes: Passes, seconds: float | None = None, lent: futures.Executor | None = None) -> None:
    """Tune a session; called in its supervising thread, on all cards of its kind that this machine has, and those that
    the workers of an executor have, one each. What came of it is told as a message.

    Raises:
        MissingPartError: no GPU, no NVRTC or no PyTorch.
        Stopped: the session was stopped; what was measured is kept.
    """
    _Tuning(passes, ready_to_tune(passes), SECONDS if seconds is None else seconds, lent).run()


class _Tuning:
    """One tuning."""

    def __init__(self, passes: Passes, gpu: Gpu, seconds: float, lent: futures.Executor | None) -> None:
        self._passes, self._search, self._gpu, self._lent = passes, passes.search, gpu, lent
        self._started = time.monotonic()
        self._until = self._started + max(seconds - FINAL_SECONDS, 0.5 * seconds)
        self._reach = iter(REACH)
        self._now = next(self._reach)
        self._enriched: dict[str, int] = {}
        self._coming: list[futures.Future[tuple[Candidate, ...]]] = []
        self._timed = 0
        self._complete = False

    def run(self) -> None:
        known = self._times()
        try:
            self._heats()
        finally:
            self._passes.end()
            self._passes.stage = ""
            self._tell(known)

    def _tell(self, known: Mapping[str, float]) -> None:
        """What it did, to one who knows these times."""
        times = self._times()
        # What was best is told as the last race timed it, beside what is best: clocks change.
        us = times.get(min(known, key=lambda digest: known[digest], default=""))
        before = f"{us:.2f} us before, " if us is not None else ""
        after = f"{min(times.values()):.2f} us now" if times else "nothing was timed"
        end = f"; nothing is left within {FAR:g} times of it" if self._complete and times else ""
        took = f"tuned for {time.monotonic() - self._started:.0f} s, {self._timed} kernels timed"
        self._search.tell(f"{took}: {before}{after}{end}")

    def _heats(self) -> None:
        workers = Workers(max(1, read_settings().workers // 4))
        try:
            with self._passes.trials() as trials, self._others() as others:
                heats = Heats(self._passes, self._gpu, trials, others)
                with self._passes.turn(self._gpu):
                    if heats.track is None:
                        return
                try:
                    while time.monotonic() < self._until and not self._complete:
                        self._batch(heats, workers)
                except CardLost as error:
                    self._search.tell(str(error))
                finally:
                    self._timed = heats.timed
                met(self._passes, self._gpu, trials, self._until + TRIED_SECONDS)
        finally:
            workers.terminate()
        OnCard(self._passes, self._gpu).finish(Confirmation(self._passes))

    def _others(self) -> OtherCards:
        search = self._search
        course = Course(search.program, self._passes.input_scale, self._gpu)
        return OtherCards(course, lambda: search.state in LIVE, search.tell, self._lent)  # in threads of their own

    def _batch(self, heats: Heats, workers: Workers) -> None:
        """Time the next ones; where there are none, wait for instances that are being found, or look further."""
        self._enrich(workers)
        left = max(0.0, self._until - time.monotonic())
        candidates, entered = self._search.candidates(), heats.entered
        heats.run(self._jobs(heats, candidates), f"tuning, {left:.0f} s left", self._until)
        heats.settle(candidates)
        self._timed = heats.timed
        if heats.entered > entered:
            return
        if self._coming:
            self._passes.stage = "tuning: more instances of the fastest muGraphs"
            self._wait(left)
        elif (further := next(self._reach, None)) is not None:
            self._now = further
        else:
            self._complete = time.monotonic() < self._until

    def _jobs(self, heats: Heats, candidates: Sequence[Candidate]) -> list[Job]:
        """The next batch: other ways to emit what is near the best, and the candidates that promise most."""
        ways = heats.ways(candidates, self._now.near, self._now.count)[: BATCH // 2]
        ones = next_ones(candidates, BATCH - len(ways), FAR * self._passes.best_us)
        return [*ways, *((candidate, None) for candidate in ones)]

    def _enrich(self, workers: Workers) -> None:
        """Take in the instances that workers found; have them find more of the structures whose members are the
        fastest, those of one configuration together."""
        for future in [f for f in self._coming if f.done()]:
            self._coming.remove(future)
            try:
                self._search.offer(future.result())
            except (MirageError, futures.BrokenExecutor) as error:
                self._search.tell(f"no more instances of some muGraphs: {error}")
        timed = (c for c in self._search.candidates() if c.time_us is not None and c.small is not None)
        best: dict[str, Candidate] = {}
        for candidate in timed:
            if len(best) < self._now.structures:
                best.setdefault(structure_of(candidate), candidate)
        fresh: dict[str, list[Candidate]] = {}
        for key, candidate in best.items():
            if self._enriched.get(key, 0) < self._now.instances:
                self._enriched[key] = self._now.instances
                fresh.setdefault(candidate.configuration, []).append(candidate)
        known = self._search.program, self._search.bounds, self._search.target, self._search.seed
        for like in fresh.values():
            self._coming.append(workers.submit(more_instances, *known, tuple(like), self._now.instances))

    def _wait(self, seconds: float) -> None:
        """Until some instances are there, or none will be in time."""
        until = time.monotonic() + min(seconds, INSTANCES_SECONDS)
        while not futures.wait(self._coming, POLL_SECONDS, futures.FIRST_COMPLETED).done:
            if not self._search.proceed():
                raise Stopped("the session was stopped")
            if time.monotonic() > until:
                self._coming.clear()
                return

    def _times(self) -> dict[str, float]:
        """Microseconds of every candidate with a time, by digest."""
        return {c.digest: c.time_us for c in self._search.candidates() if c.time_us is not None}


def more_instances(
    program: KernelGraph, bounds: Bounds, target: Target, seed: int, likes: Sequence[Candidate], limit: int
) -> tuple[Candidate, ...]:
    """Up to `limit` instances of each of the structures of `likes`, candidates of one configuration, that the search
    may not have handed over, best estimate first. They share its verdict, because they share the small instance that
    was verified, tiles that hang over included. Runs the configuration again."""
    prepared = prepare(program, seed=seed)
    wanted = {structure_of(like): like for like in likes}
    found: list[Candidate] = []
    for configuration in configurations(prepared, bounds.searched):
        if str(configuration) != likes[0].configuration:
            continue
        result = run_configuration(prepared, configuration, bounds.searched, bounds.budget)
        for structure in result.structures:
            for overhang in (frozenset[int](),) if isinstance(structure, Assembly) else overhangs(prepared):
                like = wanted.get(tiny(prepared, structure, overhang)[1].digest())
                if like is None:
                    continue
                found += [
                    Candidate.of(i, like.configuration, like.operators, like.verdict, like.small)
                    for i in instances(structure, prepared, target, limit, overhang, bounds.searched.limits)
                    if i.overhanging == overhang
                ]
    return tuple(found)
