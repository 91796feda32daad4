"""What a session on a card begins while it still searches: the inputs that kernels are tried on, and the first times.

In: the passes of a session. Out: files of random and hard inputs with what is right for them, drawn by processes of
their own; processes for trials, with all that they need loaded, one of them before the others; and winners within
seconds: a library's kernels for the program's own operators, which need no trial; then the winner of an earlier
session, and what the search has found so far, compiled ahead of its turn by processes of their own, what promises most
first; in between the other ways that libraries have. Invariants: nothing of it outlives its session; once the passes
after the search begin, nothing more is timed here.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_nb.codegen import Emitted, Options, emit, variants
from mirage_nb.errors import MirageError, MissingPartError
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.contest.finalists import next_ones
from mirage_nb.runtime.contest.later import Job
from mirage_nb.runtime.contest.remembered import Remembered, remembered
from mirage_nb.runtime.contest.trial import (
    FIRST_SECONDS,
    HARD_ELEMENTS,
    RAN,
    Trials,
    draw_into,
    hard_names,
    placed,
    run_once,
    warm,
)
from mirage_nb.runtime.contest.without_gpu import is_generated
from mirage_nb.runtime.execution.compile import Cubin, compile_cubin, emit_and_compile, load_compiler
from mirage_nb.runtime.gpu import CardLost, Gpu
from mirage_nb.runtime.picked import picking
from mirage_nb.search.composition import UNSEARCHED
from mirage_nb.search.session.crew import Stopped, internal_error
from mirage_nb.search.session.progress import LIVE, Candidate
from mirage_nb.search.session.restored import verified_again
from mirage_nb.settings import read_settings
from mirage_nb.verify.verdict import Verdict

if TYPE_CHECKING:
    from mirage_nb.runtime.passes import Passes
    from mirage_nb.search.session.session import SearchSession

DRAW_SECONDS, DRAWN_ELEMENTS = 120.0, 2**28
"""What drawing one set of inputs may take; and the elements that what is right is computed of, about 0.1 us for each: a
session ends before there are more."""
DRAWERS = 4
"""Processes that draw side by side, at most."""
LOOK_SECONDS = 0.02
CHOOSE_SECONDS = 0.1
AHEAD, TRYING, PAIR, CHOSEN_FROM = 4, 8, 2, 64
"""Found kernels that are compiled at a time ahead of their turn on the card, and that are in their first runs; so many
of them are chosen together, from so many with the best estimates."""
FAST = 4
"""Of so many of the fastest, other ways to emit them are looked at while the search finds nothing new."""
HOPELESS = 8
"""What is estimated at so many times the fastest time so far is left to the passes after the search; what is estimated
slower than it has a turn while nothing else is compiled, as estimates err."""
RANDOM = "random"
LARGE = 2**30
"""Bytes of what lies between operators, beyond which these are not worth a try one by one."""
Making = Future[tuple[Emitted, Cubin]]
"""A kernel that is being compiled."""


class Inputs:
    """What kernels of a program are tried on: files in a folder, random inputs first, each drawn by itself. Raises
    MissingPartError where there can be no folder."""

    def __init__(self, program: KernelGraph, seed: int) -> None:
        self._program, self._seed = program, seed
        try:
            self._held = tempfile.TemporaryDirectory(prefix="mirage-nb-")
        except OSError as error:
            raise MissingPartError(f"no folder for temporary files: {error}", hint="name one in TMPDIR") from error
        self.folder = Path(self._held.name)
        self.names = ("", *hard_names(program, HARD_ELEMENTS))

    @property
    def there(self) -> tuple[Path, ...]:
        """The files that are drawn; nothing without the random inputs."""
        found = tuple(path for name in self.names if (path := self._file(name)).exists())
        return found if self._file("").exists() else ()

    @property
    def missing(self) -> list[tuple[Path, KernelGraph, int, str]]:
        """The arguments of `draw_into` for the others."""
        wanted = [(self._file(name), name) for name in self.names]
        return [(path, self._program, self._seed, name) for path, name in wanted if not path.exists()]

    def _file(self, name: str) -> Path:
        return self.folder / (name.replace(" ", "-") or RANDOM)


def _computed(program: KernelGraph) -> int:
    """Elements of all tensors of what is computed to know what is right for a program."""
    found = picking(program)
    return sum(t.elements for t in (program if found is None else found.program).types)


class Ahead:
    """What a search has found so far, compiled by `makers` ahead of its turn on the card: what promises most by what
    was measured of its like, and of every structure something; while nothing new is found, other ways to emit the
    fastest, but for those that were `entered`."""

    def __init__(self, search: SearchSession, makers: Trials, entered: Collection[tuple[str, str]]) -> None:
        self._search, self._makers, self._entered = search, makers, entered
        self._guard = threading.Lock()
        self._begun: set[str] = set()
        self._ways: dict[str, list[Options]] = {}
        self._making: dict[Making, Candidate] = {}
        self._recalled: tuple[Candidate, Future[Verdict], Making] | None = None

    def load(self) -> None:
        """Have a compiler loaded, which takes longer than most kernels."""
        self._makers.later(load_compiler)

    def begin(self) -> None:
        """Begin to compile what was found meanwhile, as long as there are processes for it."""
        if self._recalled is not None and self._recalled[1].done():
            self._take(*self._recalled)
            self._recalled = None
        if len(self._making) > AHEAD - PAIR:
            return
        for candidate, options in self._chosen():
            self._put(candidate, self._compiling(candidate, options))

    def recall(self, known: Remembered) -> None:
        """Begin with the winner of an earlier session, and verify it again."""
        search, candidate = self._search, known.candidate
        verifying = self._makers.later(verified_again, search.program, candidate)
        self._recalled = candidate, verifying, self._compiling(candidate, known.options)

    def _take(self, candidate: Candidate, verified: Future[Verdict], made: Making) -> None:
        """A stored winner is a candidate if it is right."""
        if not verified.cancelled() and verified.exception() is None and (verdict := verified.result()).accepted:
            self._search.offer([known := replace(candidate, verdict=verdict)])
            self._put(known, made)

    def _compiling(self, candidate: Candidate, options: Options | None = None) -> Making:
        self._begun.add(candidate.digest)
        return self._makers.later(emit_and_compile, candidate.graph, self._search.target, options)

    def _put(self, candidate: Candidate, made: Making) -> None:
        with self._guard:
            self._making[made] = candidate

    def next(self) -> tuple[Candidate, Making] | None:
        """Of what is ready, what was begun first."""
        with self._guard:
            made = next((made for made in self._making if made.done()), None)
            return (self._making.pop(made), made) if made is not None else None

    def _chosen(self) -> list[tuple[Candidate, Options | None]]:
        every = self._search.candidates()
        fastest = min((c.time_us for c in every if c.time_us is not None), default=math.inf)
        known = [c for c in every if not c.is_as_stored and is_generated(c.graph)]
        timed = [c for c in known if c.time_us is not None]
        waiting = [c for c in known if c.time_us is None and c.digest not in self._begun]
        if unsearched := [c for c in waiting if c.configuration in UNSEARCHED]:  # nobody is to be slower than these
            return [(candidate, None) for candidate in unsearched[:PAIR]]
        if promising := [c for c in waiting if c.estimate_us < fastest][:CHOSEN_FROM]:
            return [(candidate, None) for candidate in next_ones([*timed, *promising], PAIR)]
        others = [c for c in waiting if c.estimate_us < HOPELESS * fastest][:CHOSEN_FROM]
        if others and not self._making:
            return [(candidate, None) for candidate in next_ones([*timed, *others], 1)]
        for fast in timed[:FAST]:  # the fastest stand first
            left = self._left(fast)
            if left:
                chosen = [left.pop(0) for _ in range(min(PAIR, len(left)))]
                return [(fast, options) for options in chosen]
        return []

    def _left(self, candidate: Candidate) -> list[Options]:
        """The ways to emit it that had no turn."""
        if candidate.digest not in self._ways:
            found = variants(candidate.graph, self._search.target)
            self._ways[candidate.digest] = [way for way in found if (candidate.digest, str(way)) not in self._entered]
        return self._ways[candidate.digest]


@dataclass(frozen=True, slots=True)
class _Trying:
    """A kernel, and its first run in a process of its own."""

    candidate: Candidate
    emitted: Emitted
    cubin: Cubin
    job: Job


class Early:
    """The early work of one session, in threads of its own."""

    def __init__(self, passes: Passes, gpu: Gpu) -> None:
        self._passes, self._search, self._gpu = passes, passes.search, gpu
        self._closed = threading.Event()
        self._over = threading.Event()
        self._lanes: Trials | None = None
        self._meeting: Trials | None = None
        self._drawn = threading.Event()
        self._loading: Future[None] | None = None
        self._timed = threading.Event()
        self._can_time = threading.Event()
        self._can_time.set()

    def start(self) -> Early:
        """Begin, and return at once."""
        self._can_time.clear()
        for work in (self._load, self._draw, self._time):
            threading.Thread(target=work, name=f"mirage early {self._search.name}", daemon=True).start()
        return self

    def _load(self) -> None:
        """Load what times are taken with, which takes seconds in a process that has no PyTorch yet, and make buffers,
        beside the search and first runs."""
        try:
            with contextlib.suppress(Exception):  # it is told by who needs it
                importlib.import_module("mirage_nb.runtime.contest.race")
                with self._passes.turn(self._gpu, self._proceed):
                    if self._proceed():
                        self._passes.track(self._gpu)
        finally:
            self._can_time.set()

    def close(self) -> None:
        """End what is not done."""
        self._closed.set()
        if (lanes := self.lanes) is not None:
            lanes.terminate()
        if self._meeting is not None:
            self._meeting.terminate(wait=False)

    def timed(self, seconds: float) -> bool:
        """Begin nothing more, and wait so long for what was begun; whether it has ended."""
        self._over.set()
        return self._timed.wait(seconds)

    @property
    def lanes(self) -> Trials | None:
        """The processes for trials, for whoever comes first, who ends them."""
        taken, self._lanes = self._lanes, None
        return taken

    def drawn(self, until: float) -> None:
        """Wait for all inputs, in the second half of the time until the clock (`time.monotonic`) says so for the random
        ones alone: what is there can be run on then."""
        half = (time.monotonic() + until) / 2
        while not self._drawn.wait(LOOK_SECONDS) and (now := time.monotonic()) < until and self._proceed():
            if now > half and self._passes.inputs.there:
                return

    @property
    def placed(self) -> bool:
        """Whether kernels can meet all inputs at once: drawing them, and what a process loads, takes seconds. On a card
        that takes one process only none loads."""
        return self._drawn.is_set() and (self._loading is None or self._loading.done())

    def _proceed(self) -> bool:
        return not self._closed.is_set() and self._search.state in LIVE

    # -- inputs -----------------------------------------------------------------------------------

    def _draw(self) -> None:
        try:
            missing = self._passes.inputs.missing
            if _computed(self._search.program) > DRAWN_ELEMENTS:
                return
            self._place(())
            with Trials(self._proceed, max(1, min(DRAWERS, read_settings().workers // 4))) as trials:
                for number, future in trials.call_all(draw_into, missing, seconds=DRAW_SECONDS):
                    if (error := future.exception()) is not None:
                        self._search.tell(f"inputs that were not drawn: {missing[number][-1] or RANDOM}: {error}")
            self._place(self._passes.inputs.there)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001  # a thread may not print; the session says what happened
            self._search.tell(f"no inputs were drawn: {internal_error(error)}")
        finally:
            self._drawn.set()

    def _place(self, drawn: Sequence[Path]) -> None:
        """Have the process in which kernels meet inputs load what it needs, and lay these on the card."""
        from mirage_nb.runtime.execution.launch import exclusive

        if not exclusive() and self._proceed():
            self._meeting = self._passes.meeting()
            with contextlib.suppress(RuntimeError):  # it was shut down meanwhile
                self._loading = self._meeting.later(placed, self._search.program, self._passes.inputs.folder, drawn)

    # -- times ------------------------------------------------------------------------------------

    def _time(self) -> None:
        try:
            while (own := self._search.snapshot().baseline) is None:
                if not self._proceed():
                    return
                time.sleep(LOOK_SECONDS)
            self._time_all(own)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001  # as above; the passes that follow try all of it again
            self._search.tell(f"no early times: {error if isinstance(error, MirageError) else internal_error(error)}")
        finally:
            if not self._proceed():
                self.close()
            self._timed.set()

    def _time_all(self, own: Candidate) -> None:
        """Time the program's own operators in every way that libraries have, the first way before all else, as it waits
        for no compiler; and between these, as soon as it was tried, what the search has found so far, until that
        ends."""
        ways = self._ways(own)
        with Trials(self._proceed, max(1, min(AHEAD, read_settings().workers // 4)), kept=True) as makers:
            found = Ahead(self._search, makers, self._passes.entered)
            threading.Thread(target=self._compile, args=(found,), name="mirage ahead", daemon=True).start()
            self._time_ready(own, ways, found, self._warmed())

    def _time_ready(self, own: Candidate, ways: Iterator[tuple[Emitted, Cubin]], found: Ahead, lanes: Trials) -> None:
        """Whatever is ready first; nobody waits for a first run. What was tried until there was something to time with
        is timed, whatever the budget says."""
        ways = itertools.chain((*itertools.islice(ways, 1),), ways)  # the first is compiled meanwhile
        begun, more, trying = False, True, list[_Trying]()
        while self._proceed() and (more or not self._over.is_set()):
            can_time = self._can_time.is_set()
            idle = len(trying) < TRYING and not (self._over.is_set() and can_time)
            if can_time and not begun:
                more, begun = self._time_way(own, ways), True
            elif (ready := found.next() if idle else None) is not None:
                trying += self._trying(lanes, *ready)
            elif can_time and (ran := next((one for one in trying if one.job.ended), None)) is not None:
                trying.remove(ran)
                self._time_found(ran)
            elif can_time and more:
                more = self._time_way(own, ways)
            else:
                time.sleep(LOOK_SECONDS)
        for one in trying:  # the passes that follow may have them
            self._passes.entered.discard((one.candidate.digest, str(one.emitted.options)))

    def _compile(self, found: Ahead) -> None:
        """Keep kernels coming until the search ends, first of all the winner of an earlier session; none where no other
        process than this one can try them."""
        from mirage_nb.runtime.execution.launch import exclusive

        try:
            if exclusive():
                return
            known = remembered(self._search.program, self._search.target, self._gpu)
            if not self._over.is_set():
                found.load()
            if known is not None:
                found.recall(known)
            while self._proceed() and not self._over.is_set():
                found.begin()
                time.sleep(CHOOSE_SECONDS)
        except Exception as error:  # noqa: BLE001  # as above
            if self._proceed() and not self._over.is_set():
                self._search.tell(f"nothing is compiled ahead: {internal_error(error)}")

    def _ways(self, own: Candidate) -> Iterator[tuple[Emitted, Cubin]]:
        """The ways to run the program's own operators, compiled as they are asked for; one by one last, and only where
        nothing else runs if what lies between them is large."""
        target = self._search.target
        for options in sorted(variants(own.graph, target), key=lambda way: (way.library == 0, way.library)):
            emitted = emit(own.graph, target, options)
            if options.library == 0 and emitted.workspace_bytes > LARGE and own.digest in self._passes.winners:
                return
            with self._leaving_out(own):
                yield emitted, compile_cubin(emitted.source, target.arch)

    def _time_way(self, own: Candidate, ways: Iterator[tuple[Emitted, Cubin]]) -> bool:
        """Time the next way; whether there may be one more."""
        made = next(ways, None)
        if made is not None:
            with self._leaving_out(own):
                self._in_turn(own, *made)
        return made is not None

    @contextlib.contextmanager
    def _leaving_out(self, own: Candidate) -> Iterator[None]:
        """What goes wrong with one way is told."""
        try:
            yield
        except (Stopped, CardLost):
            raise
        except MirageError as error:
            self._search.tell(f"{own.digest[:8]}: a library's way is left out: {error}")

    def _trying(self, lanes: Trials, found: Candidate, made: Making) -> Iterator[_Trying]:
        """Begin the first run of a kernel that was compiled."""
        if made.cancelled() or made.exception() is not None:
            return  # the passes that follow have other ways to emit it, and say what is wrong
        emitted, cubin = made.result()
        self._passes.entered.add((found.digest, str(emitted.options)))

        def run() -> None:
            scale = self._passes.input_scale if self._can_time.is_set() else 1.0  # until it is known
            lanes.call(run_once, emitted, cubin, scale, seconds=FIRST_SECONDS)

        job = Job(run)
        threading.Thread(target=job.run, name="mirage first run", daemon=True).start()
        yield _Trying(found, emitted, cubin, job)

    def _time_found(self, ran: _Trying) -> None:
        try:
            if isinstance(ran.job.error, Stopped):  # the passes that follow have the processes
                return
            if ran.job.error is not None:
                raise ran.job.error
            self._in_turn(ran.candidate, ran.emitted, ran.cubin)
        except (Stopped, CardLost):
            raise
        except MirageError as error:
            self._passes.set_aside(ran.candidate, error)

    def _warmed(self) -> Trials:
        """Processes for trials, which load what they need meanwhile: one first, as all at once wait for the driver."""
        from mirage_nb.runtime.execution.launch import exclusive, lanes

        count = lanes(read_settings().workers)
        self._lanes = found = Trials(lambda: self._search.state in LIVE, count, kept=True)

        def others(first: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # they were shut down meanwhile
                for _ in range(count):
                    found.later(warm, self._search.program)

        if not exclusive():
            found.later(warm, self._search.program).add_done_callback(others)
        return found

    def _lap(self, found: Candidate, emitted: Emitted, cubin: Cubin) -> None:
        """Compare with float64 on the card, time, and show, if that is faster than the ways before."""
        if (track := self._passes.track(self._gpu)) is not None:
            ran = self._passes.on_gpu(found, emitted, cubin, self._gpu, lambda: RAN)
            self._passes.note([self._passes.timed_on(track, ran)])

    def _in_turn(self, own: Candidate, emitted: Emitted, cubin: Cubin) -> None:
        """`_lap`, once the card is ours. Raises Stopped where the session ends before."""
        with self._passes.turn(self._gpu, self._proceed):
            self._lap(own, emitted, cubin)
