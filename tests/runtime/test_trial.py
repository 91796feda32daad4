"""First runs of kernels: hard inputs tell poor kernels, and what a kernel does to its process stays there."""

from __future__ import annotations

import concurrent.futures as futures
import os
import pickle
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mirage_nb.codegen import Launch, LibraryCall, emit
from mirage_nb.errors import LaunchError
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.runtime.contest.trial import (
    GRACE_SECONDS,
    HARD_CPU,
    Hard,
    Trials,
    draw_hard,
    draw_into,
    hard_names,
    run_once,
    tried,
    try_on_cpu,
)
from mirage_nb.runtime.execution.buffers import Sample, draw_sample
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.search.composition import library_and_fused
from mirage_nb.search.session import crew
from mirage_nb.search.session.crew import Stopped
from mirage_nb.targets import find_target
from mirage_nb.verify.reals.float_gate import reference
from mirage_nb.verify.reals.hard_inputs import DRAWS
from tests.codegen import mugraphs
from tests.sessions import FOREVER, SOON

H200 = find_target("h200")


def draw(program: KernelGraph, seed: int, elements: int) -> tuple[Sample, list[Hard]]:
    """Random inputs of a program, and hard ones of about so many elements in all."""
    names = hard_names(program, elements)
    return draw_sample(program, seed), [hard for name in names for hard in draw_hard(program, seed, name)]


def test_a_safe_kernel_survives_hard_inputs() -> None:
    program = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph
    outcome = try_on_cpu(program, emit(mugraphs.rmsnorm(8, 64, 32, 16, 2), H200), 3)
    assert outcome.report.ok and outcome.safe and outcome.hard.ok
    # Squares of large numbers add up to more than f16 holds: nothing is asked of the kernel there.
    beyond = ("large norms", "large beside small inputs", "rows far from zero", "all close to one number")
    assert outcome.hard.survived == tuple(n for n in hard_names(program, 10**9)[:HARD_CPU] if n not in beyond)


def test_a_kernel_that_does_not_wait_for_its_tiles_is_told() -> None:
    """Where copies land at once, and warps take turns in order, nothing is missed."""
    program = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph
    emitted = emit(mugraphs.rmsnorm(8, 64, 32, 16, 2), H200)
    wait = next(line for line in emitted.source.splitlines() if line.strip().startswith("mbarrier_wait(full"))
    hasty = replace(emitted, source=emitted.source.replace(wait, ""))
    with pytest.raises(LaunchError, match="while a copy"):
        try_on_cpu(program, hasty, 3)


def test_softmax_without_its_maximum_is_told_by_large_logits() -> None:
    """Algebraically equal, right on tame inputs: what a subtracted maximum is for shows on large logits only."""
    unsafe = mugraphs.attention()
    q, k, v = (i.type.shape for i in unsafe.inputs)
    lines = [f"{n}: f16[{', '.join(map(str, s))}]" for n, s in zip("QKV", (q, k, v), strict=True)]
    safe = parse("\n".join([*lines, "return softmax(Q @ K) @ V"])).graph
    sample, hard = draw(safe, 3, 10**7)
    inputs = tuple((a * 0.25).astype(np.float16) for a in sample.inputs)
    tame = replace(sample, inputs=inputs, reference=reference(safe, dict(zip("QKV", inputs, strict=True))))
    emitted = emit(unsafe, H200)
    outcome = tried(CpuExecutable(emitted), emitted, tame, hard)
    assert outcome.report.ok and "large logits" in outcome.hard.broken
    report = next(r for r in outcome.hard.results if r.name == "large logits")
    assert "output 0[" in report.note


@pytest.mark.parametrize(("text", "wrong"), [
    ("where(isnan(X), 0, X) * 2", "X * 2"), ("nansum(X, axis=1) + Y", "sum(X, axis=1) + Y"),
    ("where(isinf(X), 1, X) * 2", "X * 2"), ("where(abs(X) < inf, X, 0) * 2", "X * 2"),
])  # fmt: skip
def test_what_asks_for_infinities_meets_them(text: str, wrong: str) -> None:
    """Over the real numbers there are none, so these are equal."""
    head = "X: f32[4, 8]\nY: f32[4]\nI: i64[4]\nA = take(X, I, axis=0)\n"
    program, other = (parse(f"{head}return {one}, A, Y * 2").graph for one in (text, wrong))
    names = hard_names(program, 10**9)
    spoiled = {"infinite element of X", "undefined element of X"}
    assert {name for name in names if "element of" in name} == spoiled
    assert not any("element of" in name for name in hard_names(other, 10**9))
    fused = library_and_fused(program, H200)
    assert fused is not None and spoiled <= {*try_on_cpu(program, emit(fused.instance.graph, H200), 3).hard.survived}
    outcome = try_on_cpu(program, emit(other, H200), 3)
    assert outcome.report.ok and any("element of X" in name for name in outcome.hard.broken)


def test_whoever_asks_for_rows_that_are_masked_wholly_meets_masks() -> None:
    head = "X: f32[4, 8]\nW: f32[8, 8]\nM: bool[4, 8]\nS = where(M, X @ W, -inf)\nreturn "
    for text in ("logsumexp(S, axis=1)", "where(S == -inf, 0, S)"):
        assert set(hard_names(parse(head + text).graph, 10**9)) == set(DRAWS) - {"normal"}


def test_a_first_run_waits_for_no_library() -> None:
    """One operator of a library's kept a process from five seconds of kernels, as it had to load PyTorch."""
    program = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn exp(X @ W) * 2").graph
    found = library_and_fused(program, H200)
    assert found is not None
    emitted = emit(found.instance.graph, H200)
    assert any(isinstance(step, LibraryCall) for step in emitted.launches)
    assert [type(step) for step in emitted.generated.launches] == [Launch]


def test_as_many_hard_inputs_as_elements_allow() -> None:
    program = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph
    elements = sum(t.elements for t in program.types)
    assert len(hard_names(program, 0)) == 1 and len(hard_names(program, 3 * elements)) == 3
    assert set(hard_names(program, 10**9)) == set(DRAWS) - {"normal"}


def test_what_happens_in_a_trial_stays_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernels_that_fail.py").write_text(
        "import os, time\nfrom mirage_nb.errors import LaunchError\n"
        "def fault(m):\n os.write(2, (m + '\\n').encode()); os._exit(3)\n"
        "def refuse():\n raise LaunchError('this card does not')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import kernels_that_fail as kernels  # type: ignore[import-not-found]

    with Trials(lambda: True) as trials:
        assert trials.call(pow, 2, 5, seconds=60) == 32
        with pytest.raises(LaunchError, match=r"the kernel did not end.*illegal address"):
            trials.call(kernels.fault, "CUDA_ERROR: illegal address", seconds=60)
        with pytest.raises(LaunchError, match="this card does not"):  # the next one has a fresh process
            trials.call(kernels.refuse, seconds=60)
        started = time.monotonic()
        with pytest.raises(LaunchError, match=r"took more than 0\.3 s"):
            trials.call(time.sleep, FOREVER, seconds=0.3)
        assert time.monotonic() - started < SOON
        assert trials.call(pow, 2, 6, seconds=60) == 64


def test_what_processes_are_forked_of_has_never_loaded_cupy() -> None:
    """A card that was looked at before a fork takes no work of what was forked."""
    with Trials(lambda: True) as trials, pytest.raises((LaunchError, AttributeError)):
        trials.call(run_once, None, None, seconds=60)
    with Trials(lambda: True) as trials:
        assert not trials.call(eval, "'cupy' in __import__('sys').modules", seconds=60)


class Clock:
    """That of calls: as many seconds as it is told have passed, and a little whenever somebody looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(crew, "time", self)

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now


def test_many_trials_side_by_side_and_each_dies_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernels_by_number.py").write_text(
        "import os, time\nfrom pathlib import Path\ndef run(n, begun):\n if n == 1: os._exit(3)\n"
        f" if n == 2: Path(begun).touch(); time.sleep({FOREVER})\n return 10 * n\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import kernels_by_number as kernels  # type: ignore[import-not-found]

    clock, found, begun = Clock(monkeypatch), dict[int, futures.Future[int]](), tmp_path / "begun"

    def proceed() -> bool:
        clock.now += 0.5 * (len(found) == 4 and begun.exists())  # what is left lasts
        return True

    with Trials(proceed, 2) as trials:
        for number, done in trials.call_all(kernels.run, [(n, begun) for n in range(5)], seconds=2.0):
            found[number] = done
        assert [found[n].result() for n in (0, 3, 4)] == [0, 30, 40]
        for number, message in ((1, "the kernel did not end"), (2, "took more than 2 s")):
            with pytest.raises(LaunchError, match=message):
                found[number].result()


def test_the_end_of_time_ends_no_process_that_is_nearly_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The processes for trials were ended with the time for other ways to emit, and there was none left to start new
    ones for hard inputs: nothing that had been timed was a winner."""
    (tmp_path / "kernels_that_last.py").write_text(
        "import time\nfrom pathlib import Path\ndef run(begun, seconds):\n Path(begun).touch(); time.sleep(seconds)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import kernels_that_last as kernels  # type: ignore[import-not-found]

    clock, begun, ends = Clock(monkeypatch), tmp_path / "begun", [1000.0 + FOREVER]

    def proceed() -> bool:
        clock.now = ends[0] if begun.exists() else clock.now
        return True

    with Trials(proceed) as trials:
        process = trials.call(os.getpid, seconds=60)
        ends[0] = clock.now + FOREVER + GRACE_SECONDS / 2
        calls = [(begun, 0.3), (begun, FOREVER)]
        found = dict(trials.call_all(kernels.run, calls, seconds=2 * FOREVER, until=clock.now + FOREVER))
        assert found[0].result() is None
        with pytest.raises(LaunchError, match="there was no time left"):
            found[1].result()
        begun.unlink()
        assert trials.call(os.getpid, seconds=60) == process
        ends[0] = clock.now + FOREVER + 2 * GRACE_SECONDS
        with pytest.raises(LaunchError, match="there was no time left"):
            trials.call(kernels.run, begun, FOREVER, seconds=2 * FOREVER, until=clock.now + FOREVER)
        begun.unlink()
        assert trials.call(os.getpid, seconds=60) != process, "what does not end is ended"


def test_a_kernel_that_nobody_waits_for_is_in_the_way_of_no_other_one() -> None:
    with Trials(lambda: True) as trials:
        calls = trials.call_all(time.sleep, [(0.0,), (60,)], seconds=60)
        assert next(calls)[0] == 0
        time.sleep(0.2)  # the other one has begun
        del calls
        found = dict(trials.call_all(os.getpid, [()], seconds=60, until=time.monotonic() + 30))
        assert found[0].result() != os.getpid()


def test_inputs_are_drawn_by_processes(tmp_path: Path) -> None:
    program = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph
    with Trials(lambda: True) as trials:
        trials.call(draw_into, tmp_path / "drawn", program, 5, seconds=60)
        trials.call(draw_into, tmp_path / "hard", program, 5, "wide range", seconds=60)
    sample, hard = (pickle.loads((tmp_path / name).read_bytes()) for name in ("drawn", "hard"))
    again, _ = draw(program, 5, 10**5)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "drawn", tmp_path / "hard"]
    assert [known.name for _, known in hard] == ["wide range"]
    assert all(np.array_equal(x, y) for x, y in zip(sample.inputs, again.inputs, strict=True))


def test_a_stop_ends_a_trial() -> None:
    going = [True, True, True]
    with Trials(lambda: bool(going) and going.pop()) as trials, pytest.raises(Stopped):
        trials.call(time.sleep, 60, seconds=60)


def test_who_ends_the_processes_blames_no_kernel() -> None:
    """A kernel whose first run was cut short by the end of the budget was said to have ended its process."""
    with Trials(lambda: True) as trials:
        threading.Timer(0.3, trials.terminate).start()
        with pytest.raises(Stopped):
            trials.call(time.sleep, 60, seconds=60)


def test_inputs_are_drawn_anew_from_the_seed() -> None:
    program = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph
    (a, hard_a), (b, hard_b), (c, _) = (draw(program, seed, 10**5) for seed in (1, 1, 2))
    assert np.array_equal(a.inputs[0], b.inputs[0]) and not np.array_equal(a.inputs[0], c.inputs[0])
    assert [h.name for _, h in hard_a] == [h.name for _, h in hard_b] and len(hard_a) > 3
    for (stored, sample), (again, _) in zip(hard_a, hard_b, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(stored, again, strict=True))
        assert stored[0].dtype == np.float16 and sample.reference.outputs[0].shape == (8, 32)
