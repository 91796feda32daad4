"""What goes wrong on a card: the candidate is reported and dropped, the session goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from mirage_nb import superoptimize
from mirage_nb.codegen import Emitted, emit
from mirage_nb.errors import LaunchError
from mirage_nb.runtime import passes
from mirage_nb.runtime.contest import heats, on_card
from mirage_nb.runtime.contest.trial import Trials, run_once
from mirage_nb.runtime.contest.without_gpu import is_generated
from mirage_nb.runtime.execution.compile import Cubin, compile_cubin
from mirage_nb.runtime.gpu import Gpu, attached_gpu
from mirage_nb.targets import DEFAULT_TARGET, find_target
from tests.codegen import mugraphs

pytestmark = pytest.mark.gpu

PROGRAM = "X: f16[8, 256]\nW: f16[256, 512]\nreturn rms_norm(X) @ W"
FAULT = "*(volatile int*)16 = 1; "
HANG = "for (const long long began = clock64(); clock64() - began >= 0;) { } "


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    pytest.importorskip("torch")
    found = attached_gpu()
    assert found is not None
    return found


def spoiled(emitted: Emitted, text: str) -> Emitted:
    """The same kernels, each with this at its beginning."""
    kernels = emitted.source.split('extern "C" __global__ void')
    made = [kernels[0], *(kernel.replace("{", "{ " + text, 1) for kernel in kernels[1:])]
    return replace(emitted, source='extern "C" __global__ void'.join(made))


class Saboteur:
    """Emits and compiles, but the first muGraphs that have kernels of ours each with the next mistake."""

    __name__ = "saboteur"

    def __init__(self, *mistakes: str) -> None:
        self.mistakes = mistakes
        self.hit: dict[str, str] = {}

    def __call__(self, graph: Any, target: Any, options: Any = None) -> tuple[Emitted, Cubin]:
        emitted, digest = emit(graph, target, options), graph.digest()
        if is_generated(graph) and digest not in self.hit and len(self.hit) < len(self.mistakes):
            self.hit[digest] = self.mistakes[len(self.hit)]
        emitted = spoiled(emitted, self.hit[digest]) if digest in self.hit else emitted
        return emitted, compile_cubin(emitted.source, target.arch)


def test_faults_hangs_and_errors_of_compilation_cost_one_candidate_each(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    saboteur = Saboteur(FAULT, HANG, "this is no C++; ")
    monkeypatch.setattr(passes.Passes, "begin", lambda self: None)  # nothing is timed before the saboteur comes
    monkeypatch.setattr(heats, "emit_and_compile", saboteur)
    monkeypatch.setattr(passes, "FIRST_SECONDS", 6.0)
    monkeypatch.setattr(on_card, "SESSION_SECONDS", 120.0)
    monkeypatch.setattr(on_card, "HEAT_SECONDS", 40.0)  # also where others use the cores
    monkeypatch.setattr(passes, "FINALISTS_GPU", 6)
    session = superoptimize(PROGRAM, effort="quick", name="sabotaged", executor=ThreadPoolExecutor(2))
    snapshot = session.result(180)
    notes = {mistake: next(c.note for c in snapshot.candidates if c.digest == d) for d, mistake in saboteur.hit.items()}
    assert "the kernel did not end" in notes[FAULT] and "llegal" in notes[FAULT]
    assert "took more than 6 s" in notes[HANG]
    assert len([note for note in notes.values() if note]) == 3 and len(set(notes.values())) == 3
    assert session.best is not None and session.best.candidate.digest not in saboteur.hit
    assert sum(c.time_us is not None for c in snapshot.candidates) >= 3
    assert [lap for lap in session.baselines if lap.timing is not None], "the card still works"


@pytest.fixture
def full_card(gpu: Gpu) -> Iterator[Any]:
    """A card whose memory is taken, but for a little: also what processes that are ending give back meanwhile."""
    import cupy

    held: list[Any] = []
    full = time.monotonic()
    while time.monotonic() - full < 2.0:
        free, _ = cupy.cuda.runtime.memGetInfo()
        left = next((left for left in (2**30, 2**26, 2**23) if free > left), None)
        if left is None:
            time.sleep(0.1)
        else:
            held.append(cupy.cuda.Memory(free - left))
            full = time.monotonic()
    yield held
    held.clear()


def test_full_memory_is_told(gpu: Gpu, full_card: Any) -> None:
    target = gpu.target() or find_target(DEFAULT_TARGET)
    emitted = emit(mugraphs.rmsnorm(8, 1024, 512, 16, 8), target)
    cubin = compile_cubin(emitted.source, target.arch)
    with Trials(lambda: True) as trials:
        with pytest.raises(LaunchError, match=r"(?i)memory"):
            trials.call(run_once, emitted, cubin, seconds=120)
        full_card.clear()
        assert trials.call(run_once, emitted, cubin, seconds=120).report.ok


def test_a_session_on_a_full_card_ends_and_says_why(gpu: Gpu, full_card: Any) -> None:
    session = superoptimize(PROGRAM, effort="quick", name="full")
    snapshot = session.result(180)
    assert snapshot.candidates and [m for m in snapshot.messages if "memory" in m.lower()]
    full_card.clear()
    session.build(snapshot.candidates[0])
    assert session.best is not None


HOG = """
import time, torch
x = torch.randn(4096, 4096, device="cuda")
began, told = time.monotonic(), False
while True:
    for _ in range(50):
        x = torch.tanh(x @ x)
    torch.cuda.synchronize()
    if not told and time.monotonic() - began > 2.0:  # the driver tells of the last second
        print("busy", flush=True)
        told = True
"""


def test_another_program_on_the_card_is_noticed(gpu: Gpu) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "busy\n"
        session = superoptimize(PROGRAM, effort="quick", name="beside")
        snapshot = session.result(180)
    finally:
        other.kill()
        other.wait()
    assert [m for m in snapshot.messages if "another program may be using" in m]
    assert session.best is not None


LOST = """
import sys, time
import cupy
from mirage_nb import superoptimize
from mirage_nb.runtime import passes
from mirage_nb.runtime.contest import race
passes.FINALISTS_GPU = 6
passes.Passes.begin = lambda self: None
timed, laps = race.Track.lap, []
def lap(self, name, executable, limit_us, own=False):
    laps.append(name)
    if len(laps) == 3:
        cupy.RawKernel('extern "C" __global__ void wild() { *(volatile int*)16 = 1; }', "wild")((1,), (1,), ())
    return timed(self, name, executable, limit_us)
race.Track.lap = lap
session = superoptimize(%r, effort="quick", name="lost")
snapshot = session.result(170)
print(len(laps), sum(c.time_us is not None for c in snapshot.candidates), session.best is not None)
print([m for m in snapshot.messages if "is lost to this process" in m])
"""


def test_a_lost_card_ends_the_timing_and_not_the_session(gpu: Gpu) -> None:
    done = subprocess.run([sys.executable, "-c", LOST % PROGRAM], capture_output=True, text=True, timeout=200)
    counts, said = done.stdout.splitlines()[-2:]
    laps, timed, best = counts.split()
    assert (laps, timed, best) == ("3", "2", "True"), done.stdout + done.stderr
    assert "illegal" in said.lower() or "fault" in said.lower(), said


def test_a_stop_ends_what_hangs(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heats, "emit_and_compile", Saboteur(*[HANG] * 40))
    monkeypatch.setattr(passes.Passes, "begin", lambda self: None)
    session = superoptimize(PROGRAM, effort="quick", name="stopped", executor=ThreadPoolExecutor(2))
    while "tried" not in session.stage and not session.wait(0):
        time.sleep(0.05)
    threading.Timer(2.0, session.stop).start()
    started = time.monotonic()
    assert session.wait(30) and time.monotonic() - started < 15
