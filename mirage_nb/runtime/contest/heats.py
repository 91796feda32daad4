"""Heats: ways to emit candidates, emitted and compiled side by side, tried, and timed one after the other.

In: candidates, each with a way to emit it. Out: for every muGraph the fastest way that was right, and what kept the
others out. Invariants: nothing is timed that was not tried; nothing else of ours uses the card while one is timed; no
way is entered twice; whatever goes wrong with one way, the others go on.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from mirage_nb.codegen import Emitted, Options, default_options, variants
from mirage_nb.errors import LaunchError, MirageError, MissingPartError
from mirage_nb.runtime.contest.other_cards import Entrant, OtherCards
from mirage_nb.runtime.contest.trial import POLL_SECONDS, RAN, Trials
from mirage_nb.runtime.contest.ways import SLOW
from mirage_nb.runtime.contest.winner import PoorResult, Winner, WrongResult, is_own, label_of
from mirage_nb.runtime.contest.without_gpu import is_generated
from mirage_nb.runtime.execution.compile import Cubin, emit_and_compile
from mirage_nb.runtime.gpu import CardLost, Gpu
from mirage_nb.search.session.crew import Stopped, internal_error
from mirage_nb.search.session.progress import Candidate

if TYPE_CHECKING:
    from mirage_nb.runtime.contest.race import Track
    from mirage_nb.runtime.execution.launch import GpuExecutable
    from mirage_nb.runtime.passes import Passes

COMPILE_SECONDS = 120.0
GRACE_SECONDS = 0.5
"""What was tried in time is timed for so long beyond it: that takes some hundredths of a second each."""
TOGETHER = 4
"""So many kernels are tried and timed at a time, while others are compiled."""

Job = tuple[Candidate, Options | None]
"""A muGraph and a way to emit it; None: the default one, or the first that fits the target."""

Made = tuple[Emitted, Cubin]


def told(error: Exception) -> MirageError:
    """Any failure of a pass as one that can be told to a user."""
    return error if isinstance(error, MirageError) else LaunchError(internal_error(error))


class Heats:
    """The heats of one session on one card; where there is nothing to time with, kernels are tried only."""

    def __init__(self, passes: Passes, gpu: Gpu, trials: Trials, others: OtherCards | None = None) -> None:
        self._passes, self._gpu, self._trials, self._others = passes, gpu, trials, others
        self._away: dict[int, Made] = {}
        self._here_us: dict[str, float] = {}
        self._entered = passes.entered
        self._failed: dict[str, list[MirageError]] = {}
        self.timed = 0

    @property
    def entered(self) -> int:
        """How many ways were entered, or known."""
        return len(self._entered)

    def ways(self, candidates: Sequence[Candidate], near: float, count: int, until: float = math.inf) -> list[Job]:
        """The ways to emit that were not entered yet: of the fastest `count` muGraphs within the factor `near` of
        the best, and of those whose only way failed without being wrong; of as many as can be looked at until the clock
        (`time.monotonic`) says so."""
        limit = near * self._passes.best_us
        close = [w.candidate for w in self._passes.ranked if (w.candidate.time_us or math.inf) <= limit < math.inf]
        jobs: list[Job] = []
        for candidate in (*close[:count], *(c for c in candidates if self._may_do_better(c))):
            if time.monotonic() > until:
                break
            if not is_generated(candidate.graph):
                continue
            try:
                found = variants(candidate.graph, self._passes.search.target)
            except Exception as error:  # noqa: BLE001  # one candidate must not lose the others
                self._failed.setdefault(candidate.digest, []).append(told(error))
                continue
            jobs += [(candidate, options) for options in found if (candidate.digest, str(options)) not in self._entered]
        return jobs

    def _may_do_better(self, candidate: Candidate) -> bool:
        errors = self._failed.get(candidate.digest, ())
        final = any(isinstance(e, (WrongResult, PoorResult)) for e in errors)
        return len(errors) == 1 and not final and candidate.digest not in self._passes.winners

    def run(self, jobs: Sequence[Job], said: str, until: float = math.inf) -> None:
        """Enter jobs until the clock (`time.monotonic`) says `until`: compiled and tried side by side, then timed one
        after the other while the card has nothing else to do.

        Args:
            said: what is being done, for a reader.

        Raises:
            MissingPartError: nothing can be compiled.
            CardLost: nothing can be timed any more.
            Stopped: the session was stopped.
        """
        entered: list[Job] = []
        for job in jobs if time.monotonic() < until else ():
            if (key := self._key(job)) not in self._entered:
                self._entered.add(key)
                entered.append(job)
        untimed = dict(enumerate(entered))
        try:
            for compiled in self._compiled(untimed, said, until):
                if time.monotonic() > until:
                    return
                if not self._sent(untimed, compiled):
                    self._in_turn(untimed, compiled, said, until, len(entered))
                self._receive(untimed, said, until, len(entered))
            while self._away and time.monotonic() < until:
                self._receive(untimed, said, until, len(entered))
                time.sleep(POLL_SECONDS)
        finally:  # what there was no time for may be entered again
            self._away.clear()
            if self._others is not None:
                self._others.forget()
            self._entered.difference_update(map(self._key, untimed.values()))

    def _sent(self, untimed: Mapping[int, Job], compiled: dict[int, Made]) -> bool:
        """Give kernels to another card, if there is one that has room for them."""
        if self._others is None or not self._others.have_room or self.track is None:
            return False
        best = next(iter(self._passes.ranked), None)
        if best is None or best.cubin is None:
            return False
        if best.label not in self._here_us:  # as short a timing as there
            with self._passes.turn(self._gpu):
                lap = self.track.lap(best.label, cast("GpuExecutable", best.executable), math.inf, best.is_own)
            self._here_us[best.label] = lap.us or math.inf
        lot = {number: self._entrant(untimed[number][0], *made) for number, made in compiled.items()}
        fastest = Entrant(best.label, best.emitted, best.cubin, best.is_own)
        taken = self._others.put(lot, fastest, self._here_us[best.label], SLOW * self._passes.best_us)
        self._away |= compiled if taken else {}
        return taken

    def _entrant(self, candidate: Candidate, emitted: Emitted, cubin: Cubin) -> Entrant:
        own = is_own(candidate.graph, emitted, self._passes.search.program)
        return Entrant(label_of(candidate, emitted), emitted, cubin, own)

    def _receive(self, untimed: dict[int, Job], said: str, until: float, count: int) -> None:
        """Note what other cards say; what they could not is tried and timed here."""
        here: dict[int, Made] = {}
        for number, lap in self._others.back() if self._others is not None else ():
            made = self._away.pop(number)
            if lap is None:
                here[number] = made
                continue
            with self._noting(untimed, number):
                if isinstance(lap, MirageError):
                    raise lap
                ran = self._passes.on_gpu(untimed[number][0], *made, self._gpu, lambda: RAN)
                self._passes.note([self._passes.timed_as(ran, lap)])
                self.timed += 1
            untimed.pop(number, None)
        if here:
            self._in_turn(untimed, here, said, until, count)

    def _in_turn(self, untimed: dict[int, Job], compiled: dict[int, Made], said: str, until: float, count: int) -> None:
        self._say(said, "waiting for the card")
        with self._passes.turn(self._gpu):
            self._take(untimed, compiled, said, until, count)

    def _key(self, job: Job) -> tuple[str, str]:
        candidate, options = job
        return candidate.digest, str(options or default_options(self._passes.search.target))

    def _take(self, untimed: dict[int, Job], compiled: dict[int, Made], said: str, until: float, count: int) -> None:
        winners = self._tried(untimed, compiled, said, until)
        for number in sorted(winners):
            if time.monotonic() > until + GRACE_SECONDS:
                return
            self._say(said, f"{count - len(untimed)} of {count} kernels timed or left out")
            if not self._passes.search.proceed():
                raise Stopped("the session was stopped")
            with self._noting(untimed, number):
                self._time(winners[number])
            untimed.pop(number, None)

    def _compiled(self, untimed: dict[int, Job], said: str, until: float) -> Iterator[dict[int, Made]]:
        """What workers emit and compile, as it comes, so many together."""
        count, compiled, target = len(untimed), 0, self._passes.search.target
        wanted = [(candidate.graph, target, options) for candidate, options in untimed.values()]
        coming = self._passes.search.call_all(emit_and_compile, wanted, seconds=COMPILE_SECONDS, until=until)
        found: dict[int, Made] = {}
        for number, future in coming:
            with self._noting(untimed, number, until):
                found[number] = future.result()
                self._entered.add(self._key((untimed[number][0], found[number][0].options)))
                compiled += 1
            self._say(said, f"{compiled} of {count} kernels compiled")
            if len(found) == TOGETHER:
                yield found
                found = {}
            if time.monotonic() > until:
                break
        if found:
            yield found

    def _tried(self, untimed: dict[int, Job], compiled: dict[int, Made], said: str, until: float) -> dict[int, Winner]:
        """Those that ran, and where there is nothing to time with were right on random and hard inputs."""
        order = [*compiled]
        trying = [(untimed[number][0], *compiled[number]) for number in order]
        found: dict[int, Winner] = {}
        self._say(said, f"0 of {len(order)} kernels were tried")
        for place, outcome in self._passes.first_runs(trying, self._trials, until):
            with self._noting(untimed, order[place], until):
                ran = self._passes.on_gpu(*trying[place], self._gpu, outcome)
                if self.track is None:
                    self._passes.make_gate(self._trials, until)
                    ran = self._passes.gated(ran)
                found[order[place]] = ran
            self._say(said, f"{len(found)} of {len(order)} kernels were tried")
            if time.monotonic() > until:
                break
        return found

    def _say(self, said: str, what: str) -> None:
        best = f", best {self._passes.best_us:.2f} us" if self._passes.best_us < math.inf else ""
        self._passes.stage = f"{said}: {what}{best}"

    @contextlib.contextmanager
    def _noting(self, untimed: dict[int, Job], number: int, until: float = math.inf) -> Iterator[None]:
        """Whatever goes wrong with one way to emit, the others go on; what had no time may be entered again."""
        try:
            yield
        except (MissingPartError, Stopped):
            raise
        except Exception as error:  # as above
            if time.monotonic() > until and not isinstance(error, CardLost):
                return
            candidate, _ = untimed.pop(number)
            self._failed.setdefault(candidate.digest, []).append(told(error))
            if isinstance(error, CardLost):
                raise

    @functools.cached_property
    def track(self) -> Track | None:
        """What kernels are timed on; None where there is nothing to time with. Asked for in a turn on the card."""
        return self._passes.track(self._gpu)

    def _time(self, winner: Winner) -> None:
        if self.track is None:
            self._passes.keep(winner)
            return
        self._passes.note([self._passes.timed_on(self.track, winner)])
        self.timed += 1

    def settle(self, candidates: Sequence[Candidate]) -> None:
        """Tell what failed: a muGraph without any way that was right is set aside."""
        for candidate in candidates:
            errors = self._failed.pop(candidate.digest, [])
            if candidate.digest in self._passes.winners:
                for reason in errors:
                    self._passes.search.tell(f"{candidate.digest[:8]}: one way to emit it is left out: {reason}")
            elif errors:
                wrong = (e for e in errors if isinstance(e, WrongResult))
                self._passes.set_aside(candidate, next(wrong, errors[0]))
