"""Cards beside the session's own: kernels are tried and timed there, too, while others are timed here.

In: kernels that were compiled. Out: their laps. Invariants: what runs on such a card runs in a process that is there
for that; no other session of this interpreter times on it meanwhile; it is a card of the session's kind, on which what
is fastest takes as long as here, or nothing that was timed there counts. What wins is raced on the session's own card.
"""

from __future__ import annotations

import concurrent.futures as futures
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from mirage_nb.codegen import Emitted
from mirage_nb.errors import LaunchError, MirageError
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.contest.timing import Lap
from mirage_nb.runtime.contest.trial import Trials, ending, own_gpu
from mirage_nb.runtime.contest.ways import HASTY_US
from mirage_nb.runtime.execution.compile import Cubin
from mirage_nb.runtime.gpu import Gpu, others_like
from mirage_nb.search.session.crew import internal_error
from mirage_nb.settings import VISIBLE_DEVICES

LAPS_SECONDS = 120.0
"""What the laps of some kernels may take, with all that a process loads for the first ones."""
ALIKE = 0.1
"""Cards of one kind differ by a smaller share, or by less than short timings do, if nobody else uses them."""
WAITING, LENT_WAITING = 2, 8
"""So many lots of kernels are given to a card, one to be timed while another one waits for it; and to cards that are
lent, of which nobody here knows how many there are."""
FAILURES = 2
"""One behind the other, after which a card is left alone."""
Found = Lap | MirageError
"""What came of a kernel."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A kernel for another card: its name there, and whether it is the program's own operators."""

    name: str
    emitted: Emitted
    cubin: Cubin
    own: bool = False


@dataclass(frozen=True, slots=True)
class Course:
    """What kernels are timed on: a program, the scale of its random inputs, and a card of this kind."""

    program: KernelGraph
    scale: float
    gpu: Gpu


def laps(course: Course, entrants: Sequence[Entrant], limit_us: float) -> list[Found]:
    """What comes of kernels on the card of this process, which ends with its context. Raises LaunchError where that is
    of another kind, or has no room."""
    from mirage_nb.runtime.contest.race import Track
    from mirage_nb.runtime.execution.launch import GpuExecutable

    gpu, found = own_gpu(), list[Found]()
    if not gpu.is_like(course.gpu):
        raise LaunchError(f"it is a card of another kind, {gpu.name}")
    with ending():
        track = Track(course.program, gpu, course.scale)
    for one in entrants:
        try:
            with ending():
                lap = track.lap(one.name, GpuExecutable(one.emitted, one.cubin, gpu), limit_us, one.own)
            found.append(lap if lap.us is not None else LaunchError(lap.note))
        except MirageError as error:
            found.append(error)
    return found


def laps_apart(*given: object) -> list[Found]:
    """The same for somebody on another machine: in a process of its own, which waits for the next ones."""
    with Trials(lambda: True, kept=True) as trials:
        return trials.call(laps, *given, seconds=LAPS_SECONDS)


class _Taken:
    """The cards that sessions of this interpreter time on beside their own, so that no two do at a time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: set[str] = set()

    def take(self, card: str) -> bool:
        """Whether it was free, and is the caller's now."""
        with self._guard:
            free = card not in self._held
            self._held.add(card)
            return free

    def give(self, card: str) -> None:
        with self._guard:
            self._held.discard(card)


TAKEN = _Taken()


@dataclass(eq=False)
class _Card:
    """Where lots of kernels are given to, `most` at a time. failures: one behind the other."""

    name: str
    submit: Callable[..., futures.Future[list[Found]]]
    close: Callable[[], None]
    most: int = WAITING
    waiting: set[futures.Future[list[Found]]] = field(default_factory=set)
    failures: int = 0


class OtherCards:
    """The other cards of one session: those like its own on this machine, and those behind an executor that is `lent`,
    each of whose workers has one. `tell` says what becomes of them."""

    def __init__(
        self, course: Course, proceed: Callable[[], bool], tell: Callable[[str], None], lent: futures.Executor | None
    ) -> None:
        self._course, self._tell = course, tell
        self._lots: dict[futures.Future[list[Found]], tuple[_Card, Sequence[int], float]] = {}
        self._cards = [_here(card, proceed) for card in others_like(course.gpu) if TAKEN.take(card)]
        if self._cards:
            tell(f"kernels are timed on {len(self._cards)} more {course.gpu.name} of this machine, too")
        if lent is not None:
            self._cards.append(_Card("a lent card", partial(lent.submit, laps_apart), lambda: None, LENT_WAITING))

    def __enter__(self) -> OtherCards:
        return self

    def __exit__(self, *error: object) -> None:
        for card in self._cards:
            card.close()

    @property
    def have_room(self) -> bool:
        """Whether there is one for more kernels."""
        return any(len(card.waiting) < card.most for card in self._cards)

    def put(self, lot: Mapping[int, Entrant], best: Entrant, best_us: float, limit_us: float) -> bool:
        """Have these kernels, by their numbers, timed on a card that has room; False where it takes none. They are
        timed beside the best one, which took `best_us` on the session's own card."""
        card = min(self._cards, key=lambda card: len(card.waiting) - card.most)
        try:
            future = card.submit(self._course, [best, *lot.values()], limit_us)
        except RuntimeError as error:  # it takes no more work
            self._leave(card, str(error))
            return False
        card.waiting.add(future)
        future.add_done_callback(card.waiting.discard)
        self._lots[future] = card, tuple(lot), best_us
        return True

    def back(self) -> Iterator[tuple[int, Found | None]]:
        """What has come back: the number of a kernel, and what came of it; None where that is to be seen here."""
        for future in [future for future in self._lots if future.done()]:
            card, numbers, best_us = self._lots.pop(future)
            try:
                best, *found = future.result()
                if isinstance(best, MirageError):
                    raise best
                there_us = best.us or math.inf
                if abs(there_us - best_us) > max(ALIKE * best_us, HASTY_US):
                    raise LaunchError(f"what takes {best_us:.2f} us here takes {there_us:.2f} us there")
                card.failures = 0
                yield from zip(numbers, found, strict=True)
            except Exception as error:  # noqa: BLE001  # whatever goes wrong there, the kernels are timed here
                card.failures += 1
                if card.failures >= FAILURES:
                    self._leave(card, str(error) if isinstance(error, MirageError) else internal_error(error))
                yield from ((number, None) for number in numbers)

    def forget(self) -> None:
        """Nobody asks what comes of the kernels that were given away."""
        self._lots.clear()

    def _leave(self, card: _Card, why: str) -> None:
        if card in self._cards:
            self._tell(f"nothing more is timed on {card.name}: {why}")
            self._cards.remove(card)
            card.close()


def _here(card: str, proceed: Callable[[], bool]) -> _Card:
    """A card of this machine: one lot after the other, in a process that sees no other card."""
    trials = Trials(proceed, kept=True, environment={VISIBLE_DEVICES: card})
    lots = futures.ThreadPoolExecutor(1, "mirage other card")

    def close() -> None:
        trials.terminate(wait=False)
        lots.shutdown(wait=False, cancel_futures=True)
        TAKEN.give(card)

    return _Card(f"card {card}", partial(lots.submit, partial(trials.call, laps, seconds=LAPS_SECONDS)), close)
