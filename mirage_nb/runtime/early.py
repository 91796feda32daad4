"""What a session on a card begins while it still searches: the inputs that kernels are tried on, and the first times.

In: the passes of a session. Out: files of random and hard inputs with what is right for them, drawn by processes of
their own; processes for trials, with all that they need loaded; and winners within seconds: first kernels of libraries
alone, which need no trial, the program's own operators in every way that a library has; then what the search has found
so far, best estimate first. Invariants: nothing of it outlives its session; once the passes after the search begin,
nothing more is timed here.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_nb.codegen import Emitted, emit, variants
from mirage_nb.errors import LaunchError, MirageError
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.compile import Cubin, compile_cubin
from mirage_nb.runtime.gpu import TURN, Gpu
from mirage_nb.runtime.heats import SLOW
from mirage_nb.runtime.trial import HARD_ELEMENTS, Outcome, Trials, draw_into, hard_names, run_once, warm
from mirage_nb.runtime.winner import Winner
from mirage_nb.runtime.without_gpu import is_generated
from mirage_nb.search.session.crew import Stopped, internal_error
from mirage_nb.search.session.progress import Candidate, State
from mirage_nb.settings import read_settings
from mirage_nb.verify.float_gate import FloatReport

if TYPE_CHECKING:
    from mirage_nb.runtime.passes import Passes

DRAW_SECONDS = 120.0
"""What drawing one set of inputs may take."""
FIRST_SECONDS = 30.0
"""What the first run of a kernel may take."""
DRAWERS = 4
"""Processes that draw side by side, at most."""
LOOK_SECONDS = 0.02
RANDOM = "random"
LARGE = 2**30
"""Bytes of what lies between operators, beyond which these are not worth a try one by one."""
LIVE = frozenset({State.WAITING, State.RUNNING, State.PAUSED})


class Inputs:
    """What kernels of a program are tried on: files in a folder, random inputs first, each drawn by itself."""

    def __init__(self, program: KernelGraph, seed: int, folder: Path) -> None:
        self._program, self._seed, self._folder = program, seed, folder
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
        return self._folder / (name.replace(" ", "-") or RANDOM)


class Early:
    """The early work of one session, in two threads of its own."""

    def __init__(self, passes: Passes, gpu: Gpu) -> None:
        self._passes, self._search, self._gpu = passes, passes.search, gpu
        self._closed = threading.Event()
        self._over = threading.Event()
        self._lanes: Trials | None = None
        self._drawn = threading.Event()
        self._timed = threading.Event()
        self._entered: set[str] = set()

    def start(self) -> Early:
        """Begin, and return at once."""
        for work in (self._draw, self._time):
            threading.Thread(target=work, name=f"mirage early {self._search.name}", daemon=True).start()
        return self

    def close(self) -> None:
        """End what is not done."""
        self._closed.set()
        if (lanes := self.lanes) is not None:
            lanes.terminate()

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
        """Wait for all inputs, or until the clock (`time.monotonic`) says so."""
        while not self._drawn.wait(LOOK_SECONDS) and time.monotonic() < until and self._proceed():
            pass

    def _proceed(self) -> bool:
        return not self._closed.is_set() and self._search.state in LIVE

    # -- inputs -----------------------------------------------------------------------------------

    def _draw(self) -> None:
        try:
            missing = self._passes.inputs.missing
            with Trials(self._proceed, max(1, min(DRAWERS, read_settings().workers // 4))) as trials:
                for number, future in trials.call_all(draw_into, missing, seconds=DRAW_SECONDS):
                    if (error := future.exception()) is not None:
                        self._search.tell(f"inputs that were not drawn: {missing[number][-1] or RANDOM}: {error}")
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001  # a thread may not print; the session says what happened
            self._search.tell(f"no inputs were drawn: {internal_error(error)}")
        finally:
            self._drawn.set()

    # -- times ------------------------------------------------------------------------------------

    def _time(self) -> None:
        try:
            while (own := self._search.snapshot().baseline) is None:
                if not self._proceed():
                    return
                time.sleep(LOOK_SECONDS)
            lanes = self._warmed()
            self._time_library(own)
            self._time_found(lanes)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001  # as above; the passes that follow try all of it again
            self._search.tell(f"no early times: {error if isinstance(error, MirageError) else internal_error(error)}")
        finally:
            if not self._proceed():
                self.close()
            self._timed.set()

    def _time_library(self, own: Candidate) -> None:
        """Time the program's own operators in every way that libraries have; one by one last, and only where nothing
        else runs if what lies between them is large."""
        found = sorted(variants(own.graph, self._search.target), key=lambda way: (way.library == 0, way.library))
        for options in found:
            emitted = emit(own.graph, self._search.target, options)
            large = options.library == 0 and emitted.workspace_bytes > LARGE and own.digest in self._passes.winners
            if not self._proceed() or large:
                return
            cubin = compile_cubin(emitted.source, self._search.target.arch)
            if not self._turn():
                return
            try:
                self._lap(own, emitted, cubin)
            except MirageError as error:
                self._search.tell(f"{own.digest[:8]}: a library's way is left out: {error}")
            finally:
                TURN.give()

    def _warmed(self) -> Trials:
        """Processes for trials, which load what they need meanwhile."""
        from mirage_nb.runtime.launch import lanes

        count = lanes(read_settings().workers)
        self._lanes = found = Trials(lambda: self._search.state in LIVE, count)
        for _ in range(count):
            found.begin(warm)
        return found

    def _time_found(self, lanes: Trials) -> None:
        """Time what the search has found so far, best estimate first, until it ends."""
        while not self._over.is_set() and self._proceed():
            waiting = (c for c in self._search.candidates() if c.digest not in self._entered and not c.is_as_stored)
            found = next((c for c in waiting if c.time_us is None and not c.note and is_generated(c.graph)), None)
            if found is None:
                time.sleep(LOOK_SECONDS)
                continue
            self._entered.add(found.digest)
            try:
                emitted = emit(found.graph, self._search.target)
                cubin = compile_cubin(emitted.source, self._search.target.arch)
                self._passes.entered.add((found.digest, str(emitted.options)))
                scale = self._passes.input_scale
                lanes.call(run_once, emitted, cubin, scale, seconds=FIRST_SECONDS)
                if not self._turn():
                    return
                try:
                    self._lap(found, emitted, cubin)
                finally:
                    TURN.give()
            except Stopped:
                raise
            except MirageError as error:
                self._passes.set_aside(found, error)

    def _lap(self, own: Candidate, emitted: Emitted, cubin: Cubin) -> None:
        """Compare with float64 on the card, time, and show, if that is faster than the ways before."""
        track = self._passes.track(self._gpu)
        if track is None:
            return
        from mirage_nb.runtime.launch import GpuExecutable

        executable = GpuExecutable(emitted, cubin, self._gpu)
        times = [t.us for t in self._passes.timed]
        label = f"{own.digest[:8]} {emitted.options}"
        lap = track.lap(label, executable, SLOW * min(times, default=math.inf))
        if lap.timing is None:
            raise LaunchError(lap.note)
        outcome = Outcome(FloatReport(lap.error or 0.0, True), True)
        winner = Winner.judged(own, emitted, executable, cubin, outcome, self._passes.origin)
        self._passes.note_time(own.digest, lap.timing.median_us)
        self._passes.note([replace(winner, candidate=replace(winner.candidate, time_us=lap.timing.median_us))])

    def _turn(self) -> bool:
        """Wait for the card; whether it is ours now."""
        while not TURN.take(LOOK_SECONDS):
            if not self._proceed():
                return False
        return True
