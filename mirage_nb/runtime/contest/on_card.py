"""Finalists on a card, best estimate in front, each shown when it is timed; the fastest are then tried on hard inputs,
and verified at the real shape while others are timed.

In: the passes of a session that found candidates. Out: winners. Invariants: nothing is timed that did not run in a
process of its own before; no time is kept of what was wrong on random inputs of this card; a winner that breaks on hard
inputs is withdrawn, and that is told; the best one meets them whatever the budget, if they are drawn. No winner is
slower than the program's own operators by a library's kernels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mirage_nb.errors import LaunchError, MissingPartError
from mirage_nb.runtime.contest.confirm import Confirmation
from mirage_nb.runtime.contest.finalists import unique
from mirage_nb.runtime.contest.heats import COMPILE_SECONDS, Heats, told
from mirage_nb.runtime.contest.remembered import remember
from mirage_nb.runtime.contest.timing import MOST_ROUNDS, ROUNDS, rounds_in
from mirage_nb.runtime.contest.trial import Trials
from mirage_nb.runtime.contest.ways import CLOSE, hasty_us
from mirage_nb.runtime.contest.winner import Winner
from mirage_nb.runtime.contest.without_gpu import is_generated
from mirage_nb.runtime.execution.compile import load_compiler
from mirage_nb.runtime.gpu import CardLost, Gpu
from mirage_nb.search.composition import OWN_OPERATORS
from mirage_nb.search.session.crew import Stopped
from mirage_nb.search.session.progress import Candidate
from mirage_nb.settings import read_settings

if TYPE_CHECKING:
    from mirage_nb.runtime.passes import Passes

SESSION_SECONDS, LEAST_SECONDS = 40.0, 15.0
"""Without a limit a session ends about then, or so long after its search, if that took longer."""
STEP_SECONDS = 4.0
"""What a step has in any case where there is no limit."""
HEAT_SHARE, WAYS_SHARE, VERIFY_SHARE = 0.6, 0.45, 0.4
"""Of what is left, what is kept: by the heats of the finalists for all that follows, by other ways to emit the best for
trials on hard inputs, and by these for final verification."""
LOOKED_SHARE = 0.2
"""Of what is left, what it may take to see which other ways there are."""
HEAT_SECONDS, WAYS_SECONDS, TRIED_SECONDS = 12.0, 12.0, 8.0
"""What these may take at most; tuning takes more."""
NEAR, RICHER = 1.5, 12
"""At most so many muGraphs within this factor of the best are emitted in every other way, too."""
SOON, TRIED = 4, 16
"""So many of the fastest are verified while other ways to emit them are compiled; so many are tried on hard inputs."""
UNTRIED = "there was no time to try them on hard inputs"
CONFIRMED = 4
"""How many of the fastest are verified at the real shape."""
RACE_SECONDS = 10.0
"""A race beside PyTorch needs so many of a limited time; half of what is left is not spent on it."""
RACED = 24
"""So many of them are timed once more, in turns."""
SETTLED, SETTLE_SECONDS, FEWEST = 12, 1.5, 8
"""Where there is no time for PyTorch, so many that are close to the best are raced alone for so long, if that is enough
for so many turns."""


def until(left: float, share: float, most: float = math.inf) -> float:
    """The moment of the clock (`time.monotonic`) at which only this share of what is left now is left, or so many
    seconds have passed."""
    return time.monotonic() + min(most, (1 - share) * left)


class _Refused(LaunchError):
    """The card takes no work from this process."""


class OnCard:
    """The finalists of one session on its card."""

    def __init__(self, passes: Passes, gpu: Gpu) -> None:
        self._passes, self._search, self._gpu = passes, passes.search, gpu
        now, left = time.monotonic(), self._search.left
        self._ends = now + left if left < math.inf else max(now + LEAST_SECONDS, passes.made + SESSION_SECONDS)
        self._kept = RACE_SECONDS if self._ends - now >= 2 * RACE_SECONDS else 0.0

    @property
    def left(self) -> float:
        """Seconds until everything is to be over, but for a race beside PyTorch."""
        left = self._ends - time.monotonic() - self._kept
        return left if self._search.left < math.inf else max(left, STEP_SECONDS)

    def run(self, finalists: Sequence[Candidate]) -> bool:
        """Heats of the finalists, other ways to emit the best of them, trials on hard inputs, a race beside PyTorch,
        and verification at the real shape; False without NVRTC, or where the card takes no work."""
        confirmation = Confirmation(self._passes, self._ends)
        loading = [()] * read_settings().workers  # meanwhile, and nobody waits for it
        self._search.call_all(load_compiler, loading, seconds=COMPILE_SECONDS)
        try:
            self._passes.early_times()
            with self._trials() as trials:
                heats = Heats(self._passes, self._gpu, trials)
                known = unique((*(winner.candidate for winner in self._passes.ranked), *finalists))
                try:
                    untimed = [(c, None) for c in finalists if c.digest not in self._passes.winners]
                    heats.run(untimed, "finalists", until(self.left, HEAT_SHARE, HEAT_SECONDS))
                    if not heats.timed:  # the card's driver was slow to take the processes
                        heats.run(untimed, "finalists", until(self.left, VERIFY_SHARE, HEAT_SECONDS))
                    confirmation.begin(self._passes.ranked[:SOON])
                    self._ways(heats, known, trials)
                    met(self._passes, self._gpu, trials, until(self.left, VERIFY_SHARE, TRIED_SECONDS))
                except CardLost as error:
                    self._search.tell(str(error))
                heats.settle(known)
                trials.terminate(wait=False)
                self.finish(confirmation)
        except (MissingPartError, _Refused) as error:
            self._search.tell(f"not executed on the {self._gpu.name}: {error}")
            return False
        return True

    def _trials(self) -> Trials:
        """Processes for first runs. Raises _Refused, and then nobody asks the card again, where it takes none."""
        try:
            return self._passes.trials()
        except LaunchError as error:
            self._passes.gpu = None
            raise _Refused(error.message, hint="end the program that holds it, and begin anew") from error

    def _ways(self, heats: Heats, known: Sequence[Candidate], trials: Trials) -> None:
        """Other ways to emit the best, but for those that break on hard inputs, if they need not wait for these."""
        ended = until(self.left, WAYS_SHARE, WAYS_SECONDS)
        if self._passes.can_meet:
            met(self._passes, self._gpu, trials, ended)
        looked = until(self.left, 1 - LOOKED_SHARE)
        heats.run(heats.ways(known, NEAR, RICHER, looked), "other ways to emit the best", ended)

    def finish(self, confirmation: Confirmation) -> None:
        """Race the best winners that were tried, beside PyTorch where there is time for that, and verify the fastest at
        the real shape; some of that may have begun. What was timed meanwhile is tried, too, if it is faster."""
        self._try(TRIED)
        best = self._passes.ranked
        shown = [w for w in best if w.label in self._passes.tried or w.candidate.configuration == OWN_OPERATORS]
        if best and best[0] not in shown:
            self._search.tell(f"kernels were compared with float64 on random inputs only: {UNTRIED}")
            shown = best
        elif left := len(best) - len(shown):
            self._search.tell(f"{left} kernels that are slower than the winner were not tried on hard inputs")
        if best and self._search.proceed():
            if self._search.left < RACE_SECONDS:
                self._search.tell("not timed beside PyTorch: the budget is over")
            try:
                self._race({winner.candidate.digest: winner for winner in shown})
                self._try(1)
            except LaunchError as error:
                self._search.tell(f"not timed: {error}")
        self._meet_ways()
        confirmation.learn(self._passes.ranked[:CONFIRMED])
        self._remember()

    def _meet_ways(self) -> None:
        """Try ways that are close to the best on hard inputs, too, as far as there is time: in a model another one may
        be the fastest, as what is bound by weights may read them before the kernel in front has ended, or not."""
        ended = until(self.left, VERIFY_SHARE, TRIED_SECONDS)
        close = self._passes.ways.of_both_kinds({w.candidate.digest: w for w in self._passes.ranked})[:TRIED]
        right = {way.label for way in close if way.label in self._passes.tried}
        fresh = [w for w in close if w.label not in right] if self._search.program.is_weight_bound else []
        for way in fresh:
            if self._passes.gate is None or time.monotonic() > ended or not self._search.proceed():
                break
            self._passes.stage = "hard inputs"
            try:
                with self._passes.turn(self._gpu):
                    self._passes.gated(way)
                right.add(way.label)
            except Stopped:
                raise
            except Exception as error:  # noqa: BLE001  # as with the winners, but that nothing is withdrawn
                self._search.tell(f"{way.candidate.digest[:8]}: one way to emit it is left out: {told(error)}")
                if isinstance(error, CardLost):
                    break
        self._passes.ways.met = tuple(way for way in close if way.label in right)

    def _race(self, shown: Mapping[str, Winner]) -> None:
        """Time the fastest of these winners once more, by digest, in all ways that are close: the least of many short
        timings flatters."""
        beside = self._search.left >= RACE_SECONDS
        near = self._passes.ways.near(shown, NEAR if beside else CLOSE)[: RACED if beside else SETTLED]
        before = {winner.label: winner.candidate.time_us or math.inf for winner in near}
        seconds = math.inf if beside else min(SETTLE_SECONDS, self._search.left / 2)
        rounds = int(min(ROUNDS if beside else MOST_ROUNDS, rounds_in(seconds, before.values())))
        worth = beside or (len(near) > 1 and rounds >= FEWEST)
        raced = self._raced(near, rounds, beside) if worth else []
        for winner in sorted(raced, key=lambda winner: winner.candidate.rank, reverse=True):
            self._passes.keep(winner)  # of the ways of one muGraph the fastest is kept last
        self._correct(raced, before)

    def _correct(self, raced: Sequence[Winner], before: Mapping[str, float]) -> None:
        """What was not raced takes as much longer as what was of its kind; where nothing was, what it may at most."""
        after = {winner.label: winner.candidate.time_us or math.inf for winner in raced}
        for winner in self._passes.ranked:
            if winner.label in after or (took := winner.candidate.time_us) is None:
                continue
            chained = winner.emitted.options.chained
            like = [one.label for one in raced if one.emitted.options.chained is chained]
            growth = min(after[label] for label in like) / min(before[label] for label in like) if like else 1.0
            us = growth * took if like else took + hasty_us(winner)
            if us > took:
                self._passes.keep(winner.timed(us, winner.candidate.chain_us))

    def _try(self, most: int) -> None:
        try:
            try_fastest(self._passes, self._gpu, most)
        except CardLost as error:
            self._search.tell(str(error))

    def _remember(self) -> None:
        """Keep the fastest for the next session of this program, if it was tried on hard inputs and is no library's,
        which comes first in any case."""
        for best in self._passes.ranked[:1]:
            if best.label in self._passes.tried and is_generated(best.candidate.graph):
                remember(best, self._search.target, self._gpu)

    def _raced(self, winners: Sequence[Winner], rounds: int, beside: bool) -> list[Winner]:
        """Winners with their times in one race, in turns, `beside` PyTorch; none without it. Raises LaunchError."""
        try:
            from mirage_nb.runtime.contest.race import doubt, pytorch_peers
        except ImportError:  # it was told
            return []

        self._passes.stage = "timing"
        entries: dict[str, Any] = {winner.label: winner.executable for winner in winners}
        with self._passes.turn(self._gpu):
            if (track := self._passes.track(self._gpu)) is None:
                return []
            laps = track.race(entries, pytorch_peers(self._search.program) if beside else {}, rounds)
        if beside:
            self._passes.baselines = tuple(lap for lap in laps if lap.name not in entries)
        doubtful = doubt(laps, self._gpu)
        if doubtful is not None:
            self._search.tell(doubtful)
        by_label = {lap.name: lap for lap in laps}
        return [timed for winner in winners if (timed := winner.as_in(by_label[winner.label])) is not None]


def met(passes: Passes, gpu: Gpu, trials: Trials, ended: float) -> None:
    """Have the fastest winners meet random and hard inputs, unless none are drawn when the clock (`time.monotonic`)
    says `ended`. Raises CardLost."""
    try:
        passes.make_gate(trials, ended)
    except LaunchError:
        return
    try_fastest(passes, gpu, TRIED)


def try_fastest(passes: Passes, gpu: Gpu, most: int) -> None:
    """Try the fastest winners on random and hard inputs, if there are some, until so many that are left were tried;
    withdraw those that break, for which the next ones step in. Raises CardLost."""
    while passes.gate is not None and passes.search.proceed():
        winner = next((w for w in passes.ranked[:most] if w.label not in passes.tried), None)
        if winner is None:
            return
        passes.stage = "hard inputs"
        with passes.turn(gpu):
            passes.tried.add(winner.label)
            try:
                passes.keep(passes.gated(winner))
            except Stopped:
                raise
            except Exception as error:  # whatever goes wrong with one of them, the others go on
                passes.withdraw(winner, told(error))
                if isinstance(error, CardLost):
                    raise
