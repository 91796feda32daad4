"""The state of a session as plain frozen data: candidates and snapshots. A view needs nothing else."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mirage_nb.ir import KernelGraph
from mirage_nb.search.saturation.events import Counts, Outcome, Prefix
from mirage_nb.search.sizes.looked import launched
from mirage_nb.verify.verdict import Verdict, VerdictKind

if TYPE_CHECKING:
    from mirage_nb.search.sizes.drafts import Instance


class State(enum.Enum):
    """Life of a session."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"


LIVE = frozenset({State.WAITING, State.RUNNING, State.PAUSED})
"""The states of a session that has not ended."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A time that a store has, measured in an earlier life of the session: microseconds, and the card's name."""

    us: float
    on: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A muGraph that is no candidate, or no more: refuted, beyond what can be verified, or wrong when it ran.

    `verdict` says how far it came, with a witness where the verifier found one; `why` says in words what spoke
    against it. The graph is that of the verdict: at small sizes, or what was executed.
    """

    digest: str
    graph: KernelGraph
    configuration: str
    operators: int
    verdict: Verdict
    why: str

    def __repr__(self) -> str:
        return f"<Rejected {self.digest[:8]}: {self.verdict.kind.value}, {self.why[:120]}>"


CHAIN_SHARE = 0.1
"""So much does a time back to back count beside the longer one: ten ways to compute a SELU took 1.9 us behind a foreign
kernel on an H200, each 0.1 more or less in the next race; back to back they differ by more than they vary. What starts
early wins 0.7 us back to back and loses 0.2 otherwise, and is not to win by that."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One verified muGraph, instantiated for the target.

    >>> candidate = session.snapshot().candidates[0]
    >>> candidate.digest[:8], candidate.kernels, candidate.estimate_us, candidate.verdict
    >>> session.build(candidate)             # emit, compile and run it now; or by its digest's first letters

    `estimate_us` comes from the cost model; `time_us` is a measured median or None, the longer of two where calls were
    timed behind other kernels and back to back; `chain_us` is the one back to back, if it was taken; `error` is the
    relative error of the executed kernel against float64, or None before it ran; `executed_on` says
    where ("CPU edition" or the card's name); `note` says what kept it from being executed, if something did;
    `small` is the pair of program and muGraph at small sizes that field trials were made on; `before` is the
    time that a stored session had measured.
    """

    digest: str
    graph: KernelGraph
    configuration: str
    operators: int
    sizes: Mapping[str, int]
    verdict: Verdict
    estimate_us: float
    time_us: float | None = None
    chain_us: float | None = None
    error: float | None = None
    executed_on: str = ""
    note: str = ""
    small: tuple[KernelGraph, KernelGraph] | None = None
    before: Timed | None = None

    @classmethod
    def of(
        cls,
        instance: Instance,
        configuration: str,
        operators: int,
        verdict: Verdict,
        small: tuple[KernelGraph, KernelGraph] | None = None,
    ) -> Candidate:
        """An instance that was verified."""
        graph, sizes, us = instance.graph, dict(instance.sizes), instance.cost.us
        return cls(graph.digest(), graph, configuration, operators, sizes, verdict, us, small=small)

    def unmeasured(self, **known: Any) -> Candidate:
        """The same as if it had never been executed; `known`: what else is known of it."""
        return replace(self, time_us=None, chain_us=None, error=None, executed_on="", note="", **known)

    @property
    def pace(self) -> float | None:
        """What measured ones are ranked by, microseconds: the time, and a share of the time back to back."""
        if self.time_us is None:
            return None
        return self.time_us + CHAIN_SHARE * (self.chain_us if self.chain_us is not None else self.time_us)

    @property
    def as_timed(self) -> Timed | None:
        """Its time, or the one of an earlier life of the session."""
        return self.before if self.time_us is None else Timed(self.time_us, self.executed_on)

    @property
    def is_as_stored(self) -> bool:
        """Whether nothing but a file says that it is right."""
        return self.verdict.kind is VerdictKind.STORED

    @property
    def rank(self) -> tuple[bool, bool, float, bool, float, bool, bool, float, int, str]:
        """Candidates in this order are best first: measured, measured before, executed, not yet tried, tried in
        vain; what is as stored comes after all that this session has verified."""
        return (
            self.is_as_stored,
            self.pace is None,
            self.pace or 0.0,
            self.before is None,
            self.before.us if self.before is not None else 0.0,
            not self.executed_on,
            bool(self.note),
            self.estimate_us,
            self.operators,
            self.digest,
        )

    @property
    def kinds(self) -> frozenset[str]:
        """What its kernels compute with: muGraphs that differ in that differ in what they keep of large numbers."""
        bodies = [op.body for op in self.graph.ops if op.body is not None]
        inner = {op.kind.value for body in bodies for op in body.ops}
        return frozenset(inner | {op.kind.value for op in self.graph.ops})

    @property
    def kernels(self) -> int:
        """Number of kernels that it launches."""
        return launched(self.graph)

    @property
    def line(self) -> str:
        """What it is, how long it takes, and how sure that is, in a few words."""
        if self.time_us is not None:
            took = f"{self.time_us:.2f} us"
        elif self.before is not None:
            took = f"{self.before.us:.2f} us as stored"
        else:
            took = f"{self.estimate_us:.2f} us estimated"
        ran = f", ran on {self.executed_on}" if self.executed_on else ""
        count = f"{self.kernels} kernel{'s' * (self.kernels != 1)}"
        return f"{self.digest[:8]}: {count}, {took}{ran}, {self.verdict.kind.value}"

    def __repr__(self) -> str:
        return f"<Candidate {self.line}>"


def by_estimate(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each once, best estimate first."""
    return sorted({c.digest: c for c in candidates}.values(), key=lambda c: (c.estimate_us, c.operators, c.digest))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a session at one moment; cheap to take, safe to keep.

    >>> now = session.snapshot()
    >>> now.state, now.configurations_done, now.configurations_total, now.messages
    >>> now.best, now.candidates             # the one to run; the best of those that were verified, best first
    >>> now.exhausted, now.cut               # whether everything was searched, and if not, what was not

    `structures` counts muGraphs without sizes, `verified` their instances; `candidates` are the best of
    those, best first. `first_seconds`: when the first one was there. `cut`: what was not searched.
    `configurations_kept`: those of `configurations_done` that were not explored again, because an earlier
    round or the store had them; `pinned`: digests that the user pinned; `rejected`: a sample of what
    was refuted or outside LAX, and everything that was wrong when it ran; `why`: after a search that accepted no
    muGraph with generated kernels, what stood in the way; `baseline`: the program's own operators, each a kernel of a
    library, which everything else is compared with.
    """

    name: str
    state: State
    seconds: float
    first_seconds: float | None
    configurations_done: int
    configurations_total: int
    counts: Counts
    structures: int
    verified: int
    refuted: int
    outside_lax: int
    candidates: tuple[Candidate, ...]
    prefixes: tuple[Prefix, ...]
    cut: tuple[str, ...]
    messages: tuple[str, ...]
    exhausted: bool = False
    configurations_kept: int = 0
    pinned: frozenset[str] = frozenset()
    rejected: tuple[Rejected, ...] = ()
    why: str = ""
    baseline: Candidate | None = None

    def __repr__(self) -> str:
        best = f", best {self.best.line}" if self.best is not None else ""
        done = f"{self.configurations_done} of {self.configurations_total} configurations"
        name = self.name or "without a name"
        return f"<Snapshot {name}: {self.state.value}, {done}, {len(self.candidates)} muGraphs{best}>"

    def total(self, outcome: Outcome) -> int:
        """Number of events with this outcome, over all depths."""
        return sum(n for (_, o), n in self.counts.items() if o is outcome)

    @property
    def outcome(self) -> str:
        """The state in words: a session that has ended and executed nothing has no kernel."""
        ended = self.state in (State.FINISHED, State.STOPPED)
        without = ended and not any(candidate.executed_on for candidate in self.candidates)
        return f"{self.state.value} without a kernel" if without else self.state.value

    @property
    def best(self) -> Candidate | None:
        """The candidate to run: fastest measured, else best estimate among those that were executed, else of all; none
        that is as stored."""
        verified = (candidate for candidate in self.candidates if not candidate.is_as_stored)
        return min(verified, key=lambda candidate: candidate.rank, default=None)
