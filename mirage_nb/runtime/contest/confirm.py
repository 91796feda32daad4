"""The last verification of a session's winners, by workers, while others are compiled and timed.

In: winners. Out: their candidates with stricter verdicts; one that is refuted is dropped. Invariant: what takes long,
trials at the real shape, keeps nothing else waiting: it comes last, and where there was no time for it that is told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from mirage_nb.errors import MirageError
from mirage_nb.runtime.contest.final import at_real_shape, verify_final, verify_real
from mirage_nb.runtime.contest.winner import Winner, WrongResult
from mirage_nb.search.composition import OWN_OPERATORS
from mirage_nb.verify.verdict import Verdict, VerdictKind

if TYPE_CHECKING:
    from mirage_nb.runtime.passes import Passes

CONFIRM_SECONDS, REAL_SECONDS = 20.0, 20.0
"""What final verification may take, beyond which the verdict of the search stands, and trials at the real shape."""
MOMENT_SECONDS = 3.0
CONFIRM_ELEMENTS = 2**26
"""Elements of all tensors of a program that is also tried at its real shape: a trial takes about 20 bytes for each."""

Coming = Iterator[tuple[int, Future[Verdict]]]


class Confirmation:
    """The last verification of one session's winners; trials at the real shape last until the clock (`time.monotonic`)
    says `ends`, or for a moment."""

    def __init__(self, passes: Passes, ends: float = math.inf) -> None:
        self._passes, self._search, self._ends = passes, passes.search, ends
        self._begun: set[str] = set()
        self._coming: list[tuple[Sequence[Winner], Coming]] = []
        self._real: list[tuple[Sequence[Winner], Coming]] = []

    def begin(self, winners: Sequence[Winner]) -> None:
        """Begin to verify those that are not being verified and need it, which the program itself does not; at their
        real shape only where time is not limited."""
        found = [winner for winner in winners if winner.candidate.configuration != OWN_OPERATORS]
        fresh = [winner for winner in found if winner.label not in self._begun]
        if not fresh:
            return
        self._begun.update(winner.label for winner in fresh)
        given, made_of, target = self._search.program, self._search.made_of, self._search.target
        pairs = [(given, w.candidate, made_of(w.candidate.digest), w.emitted.programs, target) for w in fresh]
        self._coming.append((fresh, self._called(verify_final, pairs, CONFIRM_SECONDS)))
        if self._search.left == math.inf:
            self._begin_real(fresh)

    def _begin_real(self, winners: Sequence[Winner]) -> None:
        begun = {w.candidate.digest for fresh, _ in self._real for w in fresh}
        found = {w.candidate.digest: w for w in winners if w.candidate.small is not None}
        fresh = [winner for digest, winner in found.items() if digest not in begun]
        elements = sum(t.elements for t in self._search.program.types)
        if fresh and elements > CONFIRM_ELEMENTS:
            self._search.tell(f"field trials at smaller shapes only: this one has {elements:,} elements")
        elif fresh:
            pairs = [(self._search.program, winner.candidate.graph) for winner in fresh]
            ends = max(self._ends, time.monotonic() + MOMENT_SECONDS)
            self._real.append((fresh, self._called(verify_real, pairs, REAL_SECONDS, ends)))

    def _called(
        self, function: Callable[..., Verdict], pairs: Sequence[tuple[Any, ...]], seconds: float, ends: float = math.inf
    ) -> Coming:
        until = min(ends, time.monotonic() + max(0.0, self._search.left))
        return self._search.call_all(function, pairs, seconds=self._passes.allowed(seconds), until=until)

    def learn(self, winners: Sequence[Winner]) -> bool:
        """Verify these, too, wait for all verdicts, and take them over; False when a muGraph was refuted, which is
        dropped."""
        self._passes.stage = "verifying the finalists"
        self.begin(winners)
        right = [self._learned(winner, verdict) for winner, verdict in self._ended(self._coming)]
        held = self._passes.winners
        self._begin_real([w for w in winners if w.candidate.digest in held and w.candidate.verdict.accepted])
        for winner, real in self._ended(self._real):
            if (known := self._passes.winners.get(winner.candidate.digest)) is not None:
                right.append(self._learned(winner, at_real_shape(known.candidate.verdict, real)))
        return all(right)

    def _ended(self, coming: list[tuple[Sequence[Winner], Coming]]) -> Iterator[tuple[Winner, Verdict]]:
        """What came of each, as it ends; what failed, or had no time, is told."""
        for winners, verdicts in coming:
            for number, future in verdicts:
                try:
                    verdict = future.result()
                except (MirageError, MemoryError) as error:
                    what = "final verification" if coming is self._coming else "trials at the real shape"
                    self._search.tell(f"{winners[number].candidate.digest[:8]}: no {what}: {error}")
                else:
                    yield winners[number], verdict
        coming.clear()

    def _learned(self, winner: Winner, verdict: Verdict) -> bool:
        candidate = winner.candidate
        if verdict.kind is VerdictKind.REFUTED:
            self._passes.set_aside(candidate, WrongResult(f"refuted in the final verification: {verdict}"))
            return False
        if verdict.accepted:
            self._passes.learn(candidate.digest, verdict)
        else:
            self._search.tell(f"{candidate.digest[:8]}: no final verification: {verdict}")
        return True
