"""What one worker does with one configuration: saturate, extract, verify, instantiate.

A `Task` goes in, an `Explored` comes out; both are picklable, so any `concurrent.futures.Executor` can
carry them. While it works, the worker looks for flags and leaves its counts in the session's folder
(`Mailbox`): a killed worker loses nothing but its own configuration, whose counts are overwritten when
the work is done again. Where the folder cannot be reached (a cluster) the task still runs, unobserved.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirage_nb.ir import KernelGraph
from mirage_nb.search import (
    EFFORTS,
    Budget,
    Configuration,
    ConfigurationResult,
    Prepared,
    Structure,
    instances,
    prepare,
    run_configuration,
    tiny,
)
from mirage_nb.search.events import Counts, Outcome, Prefix
from mirage_nb.search.progress import Candidate
from mirage_nb.targets import Target
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

INSTANCES_PER_STRUCTURE = 4
CANDIDATES_PER_CONFIGURATION = 64
POLL_SECONDS = 0.02
REPORT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Mailbox:
    """A folder shared by the session and its workers: two flags, and one file of counts per configuration."""

    folder: Path

    @property
    def stop_flag(self) -> Path:
        """Exists once the session was stopped."""
        return self.folder / "stop"

    @property
    def pause_flag(self) -> Path:
        """Exists while the session is paused."""
        return self.folder / "pause"

    def counts_file(self, index: int) -> Path:
        """The latest counts of configuration `index`."""
        return self.folder / f"counts-{index}.json"

    def post(self, index: int, counts: Counts) -> None:
        """Leave counts for the session, whole or not at all."""
        rows = [[depth, outcome.name, number] for (depth, outcome), number in counts.items()]
        draft = self.counts_file(index).with_suffix(".draft")
        draft.write_text(json.dumps(rows))
        draft.replace(self.counts_file(index))

    def collect(self, index: int) -> Counts:
        """The counts last left for configuration `index`, or none."""
        try:
            rows = json.loads(self.counts_file(index).read_text())
        except FileNotFoundError:
            return {}
        return {(depth, Outcome[name]): number for depth, name, number in rows}


@dataclass(frozen=True, slots=True)
class Task:
    """One configuration of one program, with everything that a worker needs to explore it."""

    index: int
    program: KernelGraph
    configuration: Configuration
    effort: str
    budget: Budget
    target: Target
    seed: int
    deadline: float | None
    mailbox: Mailbox


@dataclass(frozen=True, slots=True)
class Explored:
    """What a worker found in one configuration; `cut` names what was left out and why."""

    index: int
    counts: Counts
    structures: int
    candidates: tuple[Candidate, ...]
    refuted: tuple[Verdict, ...]
    outside_lax: int
    prefixes: tuple[Prefix, ...]
    cut: tuple[str, ...]
    saturated: bool
    seconds: float


class Watch:
    """The worker's view of the session: stop, pause and deadline, looked up at most every few milliseconds."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._looked = 0.0
        self._posted = 0.0
        self._stop = False

    def stopped(self) -> bool:
        """Whether to give up; sleeps while the session is paused."""
        now = time.monotonic()
        if self._stop or now - self._looked < POLL_SECONDS:
            return self._stop
        self._looked = now
        box = self._task.mailbox
        while box.pause_flag.exists() and not box.stop_flag.exists():
            time.sleep(POLL_SECONDS)
        late = self._task.deadline is not None and time.time() > self._task.deadline
        self._stop = late or box.stop_flag.exists()
        return self._stop

    def report(self, counts: Counts) -> None:
        """Post the counts so far, a few times a second."""
        now = time.monotonic()
        if now - self._posted > REPORT_SECONDS and self._task.mailbox.folder.exists():
            self._posted = now
            self._task.mailbox.post(self._task.index, counts)


def ignore_interrupts() -> None:
    """Worker processes leave Ctrl-C to the session that supervises them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def explore(task: Task) -> Explored:
    """Work through one configuration; ends early, and says so, when stopped or late."""
    started = time.monotonic()
    watch = Watch(task)
    prepared = prepare(task.program, seed=task.seed)
    effort = EFFORTS[task.effort]
    result = run_configuration(prepared, task.configuration, effort, task.budget, watch.report, watch.stopped)
    tally = _Tally(task, prepared)
    for structure in result.structures:
        if watch.stopped():
            break
        tally.add(structure)
    return tally.close(result, time.monotonic() - started, cut_short=watch.stopped())


class _Tally:
    """Verified candidates of one configuration, and what became of the others."""

    def __init__(self, task: Task, prepared: Prepared) -> None:
        self._task = task
        self._prepared = prepared
        self._found: list[Candidate] = []
        self._refuted: list[Verdict] = []
        self._outside = 0

    def add(self, structure: Structure) -> None:
        """Verify a structure with fresh random elements on a small instance, then give it sizes."""
        program, small = tiny(self._prepared, structure)
        verdict = verify(program, small, seed=self._task.seed + 1)
        if verdict.kind is VerdictKind.REFUTED:
            self._refuted.append(verdict)
            return
        if not verdict.accepted:
            self._outside += 1
            return
        best = instances(structure, self._prepared, self._task.target, limit=INSTANCES_PER_STRUCTURE)
        for instance in best:
            self._found.append(
                Candidate(
                    digest=instance.graph.digest(),
                    graph=instance.graph,
                    configuration=str(self._task.configuration),
                    operators=structure.operators,
                    sizes=dict(instance.sizes),
                    verdict=verdict,
                    estimate_us=instance.cost.us,
                )
            )

    def close(self, result: ConfigurationResult, seconds: float, cut_short: bool) -> Explored:
        """Everything found, best estimates first."""
        ranked = sorted(self._found, key=lambda c: (c.estimate_us, c.operators, c.digest))
        cut = result.cut
        if cut_short and not any("stopped" in reason for reason in cut):
            cut = (*cut, f"{self._task.configuration}: stopped before every structure was verified")
        return Explored(
            index=self._task.index,
            counts=result.counts,
            structures=len(result.structures),
            candidates=tuple(ranked[:CANDIDATES_PER_CONFIGURATION]),
            refuted=tuple(self._refuted),
            outside_lax=self._outside,
            prefixes=tuple(result.prefixes),
            cut=cut,
            saturated=result.saturated and not cut_short,
            seconds=seconds,
        )


def merge_counts(parts: Mapping[int, Counts]) -> Counts:
    """The sum of the counts of several configurations."""
    total: dict[tuple[int, Outcome], int] = {}
    for counts in parts.values():
        for key, number in counts.items():
            total[key] = total.get(key, 0) + number
    return total
