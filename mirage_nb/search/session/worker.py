"""What one worker does with one configuration: saturate, extract, verify, instantiate.

A `Task` goes in, an `Explored` comes out; both are picklable, so any `concurrent.futures.Executor` can
carry them. On the way the worker posts what it has (`Findings`, as JSON) and looks for two flags in the session's
folder (`Channel`). Where the folder cannot be reached (a cluster) the task still runs, unobserved.
Invariant: a task gives the same findings wherever and however often it runs to its end.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mirage_nb.ir import KernelGraph
from mirage_nb.search import Configuration, Prepared, Structure, prepare, run_configuration, tiny
from mirage_nb.search.pieces.assemble import drafts, hanging_over
from mirage_nb.search.saturation.events import Counts
from mirage_nb.search.session.channel import Channel, Moment
from mirage_nb.search.session.findings import Bounds, Explored, Findings
from mirage_nb.search.session.progress import Candidate, Rejected
from mirage_nb.search.sizes.instantiate import poor_axes
from mirage_nb.search.space import of_piece
from mirage_nb.targets import Target
from mirage_nb.verify.proof import decided
from mirage_nb.verify.trials import screen
from mirage_nb.verify.verdict import Verdict, VerdictKind

INSTANCES_PER_STRUCTURE, INSTANCES = 6, 24
"""Of every structure at least so many, and of few of them, so many in all: of what is computed element by element there
is one structure, and its sizes decide."""
KEPT_INSTANCES = 64
"""Candidates that one configuration hands over in the end, best estimates first."""
KEPT_REJECTED = 8
"""muGraphs that one configuration hands over as refuted, and as many as outside LAX."""
STREAMED_INSTANCES = 8
"""The same while it is still at work: posts are small."""
POLL_SECONDS = 0.02
POST_SECONDS = 0.2


Rewritten = Callable[[KernelGraph], KernelGraph] | None


@dataclass(frozen=True, slots=True)
class Task:
    """One configuration of one program, with everything that a worker needs to explore it."""

    index: int
    program: KernelGraph
    configuration: Configuration
    bounds: Bounds
    target: Target
    seed: int
    deadline: Moment | None
    channel: Channel

    @property
    def seconds(self) -> float:
        """How long it may compute: the budget for exploring, and as much for verifying what was found."""
        return 2 * self.bounds.budget.seconds


class Watch:
    """The worker's view of its session: stop, pause and deadline, looked up every few milliseconds at most."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._looked = 0.0
        self._stop = False
        self._deadline = task.deadline
        self._observed = task.channel.folder.exists()

    def stopped(self) -> bool:
        """Whether to give up; sleeps while the session is paused."""
        now = time.monotonic()
        if self._stop or now - self._looked < POLL_SECONDS:
            return self._stop
        self._looked = now
        channel = self._task.channel
        while channel.pause_flag.exists() and not channel.stop_flag.exists():
            time.sleep(POLL_SECONDS)
        if self._is_late():
            self._deadline = channel.deadline(self._deadline)
        orphaned = self._observed and not channel.folder.exists()
        self._stop = self._is_late() or orphaned or channel.stop_flag.exists()
        return self._stop

    def _is_late(self) -> bool:
        return self._deadline is not None and self._deadline.is_past


def explore(task: Task, post: Callable[[Findings], None] | None = None) -> Explored:
    """Work through one configuration; ends early, and says so, when stopped or late.

    Args:
        post: takes the findings so far, a few times a second; default: the task's channel.
    """
    return _Exploration(task, post or partial(task.channel.post, task.index, written={})).run()


class _Exploration:
    """The work on one configuration."""

    def __init__(self, task: Task, post: Callable[[Findings], None]) -> None:
        self._task = task
        self._post = post
        self._watch = Watch(task)
        self._started = time.thread_time()
        self._posted = 0.0
        self._counts: Counts = {}
        self._structures = 0
        self._verified = 0
        self._refuted = 0
        self._outside = 0
        self._unfit = 0
        self._best: list[Candidate] = []
        self._rejected: list[Rejected] = []

    def run(self) -> Explored:
        task = self._task
        prepared = prepare(task.program, seed=task.seed)
        effort, budget = task.bounds.searched, task.bounds.budget
        if task.configuration.piece and not task.configuration.alone:
            effort, budget = of_piece(effort, budget)
        result = run_configuration(prepared, task.configuration, effort, budget, self._report, self._watch.stopped)
        self._counts, self._structures = result.counts, len(result.structures)
        looked_at, began = 0, time.thread_time()
        for structure in result.structures:
            if self._watch.stopped() or time.thread_time() - self._started > task.seconds:
                break
            self._verify(prepared, structure)
            looked_at += 1
            self._tell(first=looked_at == 1)
        cut, reached = result.cut, result.reached
        if looked_at < self._structures:
            told = f"{looked_at:,} of {self._structures:,} muGraphs were verified in time"
            left = (time.thread_time() - began) / looked_at * (self._structures - looked_at) if looked_at else 0
            cut = (*cut, f"{task.configuration}: {told}{f'; the others take some {left:,.0f} s' if left else ''}")
            reached = reached | {"seconds"}
        return Explored(
            configuration=task.configuration,
            bounds=task.bounds,
            findings=self._findings(KEPT_INSTANCES),
            prefixes=result.prefixes,
            cut=cut,
            reached=reached,
            unfinished=self._watch.stopped(),
        )

    def _verify(self, prepared: Prepared, structure: Structure) -> None:
        """Verify a structure with fresh random elements on a small instance, then give it sizes.

        Where tiles hang over the ends of axes, a small instance of which the same is true is verified too.
        """
        judged = functools.cache(partial(self._judged, prepared, structure))
        verdict, program, small = judged(frozenset())
        if verdict.kind is VerdictKind.REFUTED:
            self._refuted += 1
            self._reject(structure, small, verdict, self._refuted)
            return
        if not verdict.accepted:
            self._outside += 1
            self._reject(structure, small, verdict, self._outside)
            return
        over = hanging_over(structure, prepared)
        poor, reduced = (poor_axes(over), over.reduced) if over is not None else (frozenset(), ())
        overhang = frozenset(a for a in poor if a not in reduced or judged(frozenset({a}))[0].accepted)
        most = max(INSTANCES_PER_STRUCTURE, INSTANCES // self._structures)
        target, limits = self._task.target, self._task.bounds.searched.limits
        fits = False
        worst = self._best[-1] if len(self._best) == KEPT_INSTANCES else None
        for draft in drafts(structure, prepared, target, most, overhang if poor else None, limits):
            verdict, program, small = judged(draft.overhanging, draft.rewritten)
            if not verdict.accepted:
                continue
            self._verified += 1
            fits = True
            if worst and (draft.cost.us, structure.operators) > (worst.estimate_us, worst.operators):
                continue
            where = str(self._task.configuration)
            self._best.append(Candidate.of(draft.made(), where, structure.operators, verdict, (program, small)))
        self._unfit += not fits
        self._best.sort(key=lambda candidate: candidate.rank)
        del self._best[KEPT_INSTANCES:]

    def _judged(
        self, prepared: Prepared, structure: Structure, overhanging: frozenset[int], rewritten: Rewritten = None
    ) -> tuple[Verdict, KernelGraph, KernelGraph]:
        """What is to be said of a structure, or of what it is rewritten to: the verdict on its small instance, and the
        pair that it is about."""
        program, small = tiny(prepared, structure, overhanging)
        small = rewritten(small) if rewritten is not None else small
        return decided(screen(program, small, seed=self._task.seed + 1), program, small), program, small

    def _reject(self, structure: Structure, small: KernelGraph, verdict: Verdict, number: int) -> None:
        """Keep the first few, with what spoke against them."""
        if number <= KEPT_REJECTED:
            where = str(self._task.configuration)
            why = verdict.note or verdict.kind.value
            self._rejected.append(Rejected(small.digest(), small, where, structure.operators, verdict, why))

    def _report(self, counts: Counts) -> None:
        self._counts = counts
        self._tell()

    def _tell(self, *, first: bool = False) -> None:
        """Post the findings, a few times a second and when there is something to see for the first time."""
        now = time.monotonic()
        if first or now - self._posted > POST_SECONDS:
            self._posted = now
            self._post(self._findings(STREAMED_INSTANCES))

    def _findings(self, kept: int) -> Findings:
        return Findings(
            counts=dict(self._counts),
            structures=self._structures,
            verified=self._verified,
            refuted=self._refuted,
            outside_lax=self._outside,
            candidates=tuple(self._best[:kept]),
            rejected=tuple(self._rejected),
            unfit=self._unfit,
        )
