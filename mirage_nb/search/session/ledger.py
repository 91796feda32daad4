"""What a session knows, without the threads: findings by configuration, candidates, and what a user said of them.

In: findings and ends of configurations, in any order and as often as they come. Out: snapshots. Invariants: a
configuration is counted once; a candidate is there once, as the first configuration has it; findings never
shrink while a configuration is explored again. One who shares a ledger between threads holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mirage_nb.errors import OptionError
from mirage_nb.ir import OpKind
from mirage_nb.search.explain import Tally
from mirage_nb.search.saturation.events import Prefix, merge_counts
from mirage_nb.search.session.findings import Bounds, Explored, Findings
from mirage_nb.search.session.progress import Candidate, Rejected, Snapshot, State, by_estimate
from mirage_nb.search.space import Configuration
from mirage_nb.verify.verdict import Verdict

T = TypeVar("T")

KEPT_CANDIDATES = 200
TOGETHER = 5
"""Configurations left out for one reason that are told in one sentence."""
KEPT_PREFIXES = 2000
KEPT_REASONS = 4
KEPT_REJECTED = 100


@dataclass(frozen=True, slots=True)
class Facts:
    """What a session knows beside its configurations, to be kept with them.

    `known`: candidates as the later passes know them; `dropped`: digests of wrong ones, and why they are;
    `excluded`, `pinned`: what the user said; `offered`: muGraphs that no configuration
    found, the user's own among them.
    """

    seconds: float = 0.0
    first_seconds: float | None = None
    known: tuple[Candidate, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    offered: tuple[Candidate, ...] = ()

    def __repr__(self) -> str:
        return f"<Facts: {len(self.known)} known, {len(self.dropped)} dropped, {len(self.pinned)} pinned>"


@dataclass(slots=True)
class _Held:
    """What is known of one configuration. `earlier`: candidates that smaller bounds had."""

    bounds: Bounds
    findings: Findings = field(default_factory=Findings)
    prefixes: tuple[Prefix, ...] = ()
    cut: tuple[str, ...] = ()
    end: Explored | None = None
    earlier: tuple[Candidate, ...] = ()


class Ledger:
    """The knowledge of one session."""

    def __init__(self) -> None:
        self.bounds: Bounds | None = None
        self.kept = 0
        self.why = ""
        self._agenda: tuple[Configuration, ...] = ()
        self._held: dict[Configuration, _Held] = {}
        self._left_out: dict[Configuration | None, tuple[str, ...]] = {}
        self._known: dict[str, Candidate] = {}
        self._offered: dict[str, Candidate] = {}
        self._judged: dict[str, Verdict] = {}
        self._unsearched: tuple[Candidate, ...] = ()
        self._wholes: tuple[Candidate, ...] = ()
        self._dropped: dict[str, str] = {}
        self._excluded: set[str] = set()
        self._pinned: set[str] = set()
        self._messages: list[str] = []

    # -- configurations -----------------------------------------------------------------------------

    def open(self, agenda: Sequence[Configuration], bounds: Bounds) -> tuple[Configuration, ...]:
        """Begin a search of these configurations within these bounds; returns those that are not done yet."""
        self._agenda, self.bounds = tuple(agenda), bounds
        self._left_out.clear()
        self.why = ""
        self.kept = len(self._agenda) - len(self.missing)
        return self.missing

    @property
    def has_whole(self) -> bool:
        """Whether the program itself was ever searched, not only pieces of it."""
        return not all(c.piece for c in self._held)

    @property
    def missing(self) -> tuple[Configuration, ...]:
        """The configurations that are not done yet."""
        return tuple(c for c in self._agenda if not self.is_done(c))

    def is_done(self, configuration: Configuration) -> bool:
        """Whether it was explored to its end, within bounds that find what the present ones would."""
        held = self._held.get(configuration)
        if held is None or held.end is None or self.bounds is None:
            return False
        return held.end.holds_within(self.bounds)

    def note(self, configuration: Configuration, bounds: Bounds, findings: Findings) -> bool:
        """Findings of a configuration that is not at its end; fewer than are known say nothing. Whether they do."""
        held = self._held.setdefault(configuration, _Held(bounds))
        if findings.extent < held.findings.extent or (held.bounds == bounds and held.end is not None):
            return False
        self._renew(held, bounds)
        held.findings = findings
        return True

    def take(self, found: Explored) -> None:
        """The end of a configuration, early or not."""
        held = self._held.setdefault(found.configuration, _Held(found.bounds))
        if found.unfinished:
            if self.note(found.configuration, found.bounds, found.findings):
                held.prefixes, held.cut = found.prefixes, found.cut
            return
        self._renew(held, found.bounds)
        held.findings, held.prefixes, held.cut, held.end = found.findings, found.prefixes, found.cut, found

    def _renew(self, held: _Held, bounds: Bounds) -> None:
        """What other bounds found becomes history."""
        if held.bounds != bounds:
            held.earlier = (*held.earlier, *held.findings.candidates)
            held.bounds, held.end = bounds, None

    def leave_out(self, configuration: Configuration | None, why: str) -> None:
        """Name what was not searched; reasons of the session as a whole have no configuration."""
        self._left_out[configuration] = (*self._left_out.get(configuration, ()), why)

    def tally(self) -> Tally | None:
        """What the search came to, if it accepted no muGraph with generated kernels; None if it did."""
        aside = {candidate.digest for candidate in self._unsearched}
        candidates = [c for c in (*self._candidates(), *self._of_pieces()) if c.digest not in aside]
        if any(op.kind is OpKind.GRAPH for candidate in candidates for op in candidate.graph.ops):
            return None
        held = [self._held[c] for c in self._agenda if c in self._held]
        reached: set[str] = set()
        for one in held:
            reached |= one.end.reached if one.end is not None else set()
        return Tally(
            structures=sum(one.findings.structures for one in held),
            refuted=sum(one.findings.refuted for one in held),
            undecided=sum(one.findings.outside_lax for one in held),
            unfit=sum(one.findings.unfit for one in held),
            reasons=tuple(dict.fromkeys(one.why for one in self._rejected(held)))[:KEPT_REASONS],
            reached=frozenset(reached),
            left=len(self.missing),
        )

    # -- candidates ---------------------------------------------------------------------------------

    def update(self, candidate: Candidate) -> None:
        """Replace a candidate by a version that knows more."""
        self._known[candidate.digest] = candidate

    def offer(self, candidate: Candidate) -> None:
        """Add a verified muGraph that no configuration found, unless it is known."""
        if candidate.digest not in self.all:
            self._offered[candidate.digest] = candidate
        elif not candidate.is_as_stored:
            self.judge(candidate.digest, candidate.verdict)

    def judge(self, digest: str, verdict: Verdict) -> None:
        """What this session found of a candidate that was as stored."""
        self._judged[digest] = verdict

    @property
    def unjudged(self) -> tuple[Candidate, ...]:
        """The candidates that are as stored, and that nobody has looked at, best first, with their small pairs."""
        first = {c.digest: c for c in reversed([*self._all()])}
        left = [c for c in self.ranked() if c.is_as_stored and c.digest not in self._judged]
        return tuple(replace(c, small=first[c.digest].small) for c in left)

    def _as_known(self, candidate: Candidate) -> Candidate:
        """A candidate with all that is known of it; a small pair stands for a muGraph only if that was verified."""
        known = self._known.get(candidate.digest, candidate)
        if not known.is_as_stored:
            return known
        verdict = self._judged.get(candidate.digest, known.verdict)
        return replace(known, verdict=verdict, small=candidate.small if verdict.accepted else None)

    def know_unsearched(self, candidates: Sequence[Candidate]) -> None:
        """Candidates that nobody has to search, the program's own operators first; they are dropped once they have a
        verdict that is not accepted."""
        self._unsearched = ()
        found = self.all
        self._unsearched = tuple(candidates)
        for candidate in candidates:  # of what was found as well, the search says what it is
            if candidate.digest not in found:
                self.judge(candidate.digest, candidate.verdict)
            if not candidate.verdict.accepted:
                self.drop(candidate.digest, f"{candidate.digest[:8]}: {candidate.verdict}")

    def know_wholes(self, candidates: Sequence[Candidate]) -> None:
        """muGraphs that are made from what was found for the pieces of the program, in place of earlier ones."""
        self._wholes = tuple(candidates)

    def of_piece(self, piece: str) -> list[Candidate]:
        """The candidates of a piece, best estimate first."""
        found = (c for held in self._held_of(piece) for c in held.findings.candidates)
        return by_estimate(found)

    def _of_pieces(self) -> Iterator[Candidate]:
        for configuration, held in self._held.items():
            if configuration.piece:
                yield from held.findings.candidates

    def _held_of(self, piece: str) -> Iterator[_Held]:
        return (held for configuration, held in self._held.items() if configuration.piece == piece)

    def drop(self, digest: str, why: str) -> None:
        """Take a wrong candidate out for good."""
        self._dropped[digest] = why
        self.tell(why)

    def mark(self, digest: str, pinned: bool | None) -> None:
        """Keep a candidate among those that are shown and built, whatever its rank, or leave it out; None: let it stand
        where its rank puts it."""
        for marked, here in ((self._pinned, pinned is True), (self._excluded, pinned is False)):
            (marked.add if here else marked.discard)(digest)

    def tell(self, message: str) -> None:
        """Add a line to what the user is told; once."""
        if message not in self._messages:
            self._messages.append(message)

    @property
    def all(self) -> dict[str, Candidate]:
        """All candidates by their digests, excluded ones too, as they are known now."""
        first = {c.digest: c for c in reversed([*self._all()]) if c.digest not in self._dropped}
        return {digest: self._as_known(candidate) for digest, candidate in first.items()}

    def find(self, start: str) -> Candidate:
        """The candidate, excluded or not, whose digest begins like that. Raises OptionError unless there is one."""
        found = [candidate for digest, candidate in self.all.items() if digest.startswith(start)]
        if len(found) != 1:
            raise OptionError(
                f"{'several candidates begin' if found else 'no candidate begins'} with {start!r}",
                hint="give the start of one digest, as the list of candidates shows it",
            )
        return found[0]

    def _all(self) -> Iterator[Candidate]:
        """In the order of configurations; then what smaller bounds found, what was made from pieces, what was offered,
        what needs no search, and what was timed: workers hand over the best that they have, and it may not be among
        them any more. What was found for a piece computes no program of its own."""
        held = [self._held[c] for c in self._in_order() if not c.piece]
        for one in held:
            yield from one.findings.candidates
        for one in held:
            yield from one.earlier
        yield from self._wholes
        yield from self._offered.values()
        yield from self._unsearched
        yield from (candidate for candidate in self._known.values() if candidate.time_us is not None)

    def _candidates(self) -> Iterator[Candidate]:
        """Each once, from the first configuration that has it, as it is known now."""
        seen = {*self._dropped, *self._excluded}
        for candidate in self._all():
            if candidate.digest not in seen:
                seen.add(candidate.digest)
                yield self._as_known(candidate)

    # -- what is handed out ---------------------------------------------------------------------------

    def ranked(self) -> list[Candidate]:
        """All candidates, best first."""
        return sorted(self._candidates(), key=lambda c: c.rank)

    def facts(self, seconds: float, first_seconds: float | None) -> Facts:
        """What is to be kept beside the configurations."""
        return Facts(
            seconds=seconds,
            first_seconds=first_seconds,
            known=tuple(self._as_known(self._known[digest]) for digest in sorted(self._known)),
            dropped=dict(self._dropped),
            excluded=tuple(sorted(self._excluded)),
            pinned=tuple(sorted(self._pinned)),
            offered=tuple(map(self._as_known, self._offered.values())),
        )

    def restore(self, facts: Facts) -> None:
        """Take over what was kept. Times were measured before: they belong to that card, and to that day."""
        for digest, why in facts.dropped.items():
            self.drop(digest, why)
        self._excluded.update(facts.excluded)
        self._pinned.update(facts.pinned)
        self._offered.update((c.digest, c) for c in facts.offered)
        for candidate in facts.known:
            if (before := candidate.as_timed) is not None:
                self._known[candidate.digest] = candidate.unmeasured(before=before)

    def snapshot(self, name: str, state: State, seconds: float, first_seconds: float | None) -> Snapshot:
        """The state now."""
        held = self._ordered()
        done = sum(map(self.is_done, self._agenda))
        cut = self._cut(seconds)
        ranked = self.ranked()
        pinned = [c for c in ranked[KEPT_CANDIDATES:] if c.digest in self._pinned]
        return Snapshot(
            name=name,
            state=state,
            seconds=seconds,
            first_seconds=first_seconds,
            configurations_done=done,
            configurations_total=len(self._agenda),
            configurations_kept=self.kept,
            counts=merge_counts(one.findings.counts for one in held),
            structures=sum(one.findings.structures for one in held),
            verified=sum(one.findings.verified for one in held),
            refuted=sum(one.findings.refuted for one in held),
            outside_lax=sum(one.findings.outside_lax for one in held),
            candidates=(*ranked[:KEPT_CANDIDATES], *pinned),
            baseline=next((self._as_known(c) for c in self._unsearched), None),
            pinned=frozenset(self._pinned),
            prefixes=_sample([one.prefixes for one in held if one.prefixes], KEPT_PREFIXES),
            cut=cut,
            rejected=self._rejected(held),
            why=self.why,
            messages=tuple(self._messages),
            exhausted=bool(self._agenda) and done == len(self._agenda) and not cut,
        )

    def _ordered(self) -> list[_Held]:
        """In the order of the search; those that it has no more come last."""
        return [self._held[c] for c in self._in_order()]

    def _in_order(self) -> list[Configuration]:
        order = {c: place for place, c in enumerate(self._agenda)}
        return sorted(self._held, key=lambda c: order.get(c, len(order)))

    def _rejected(self, held: Sequence[_Held]) -> tuple[Rejected, ...]:
        """What was wrong when it ran, then a sample of what the verifier did not accept; each once."""
        found: dict[str, Rejected] = {}
        for candidate in self._all() if self._dropped else ():
            why = self._dropped.get(candidate.digest)
            if why is not None:
                found[candidate.digest] = Rejected(
                    digest=candidate.digest,
                    graph=candidate.graph,
                    configuration=candidate.configuration,
                    operators=candidate.operators,
                    verdict=self._as_known(candidate).verdict,
                    why=why,
                )
        for one in _sample([one.findings.rejected for one in held if one.findings.rejected], KEPT_REJECTED):
            found.setdefault(one.digest, one)
        return tuple(found.values())[:KEPT_REJECTED]

    def _cut(self, seconds: float) -> tuple[str, ...]:
        """What was not searched, in the order of configurations; then those that were left out, many of them in one
        sentence, and the session's own reasons."""
        found: list[str] = []
        alike: dict[str, list[Configuration]] = {}
        for configuration in self._agenda:
            held = self._held.get(configuration)
            found.extend(held.cut if held is not None else ())
            for why in self._left_out.get(configuration, ()):
                alike.setdefault(why.removeprefix(f"{configuration}: "), []).append(configuration)
        done = len(self._agenda) - len(self.missing)
        for reason, left in alike.items():
            if len(left) < TOGETHER:
                found.extend(f"{configuration}: {reason}" for configuration in left)
                continue
            pace = f"; at the pace of the {done} before some {seconds / done * len(left):,.0f} s more" if done else ""
            found.append(f"{len(left)} of {len(self._agenda)} configurations, from {left[0]} on: {reason}{pace}")
        return tuple(dict.fromkeys([*found, *self._left_out.get(None, ())]))


def _sample(parts: Sequence[tuple[T, ...]], most: int) -> tuple[T, ...]:
    """The first ones of every part, about `most` in all."""
    share = max(1, most // len(parts)) if parts else 0
    return tuple(one for part in parts for one in part[:share])
