"""superoptimize() from text to kernels that ran: results, tensors, steering, and everything that can fail."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mirage_nb import superoptimize
from mirage_nb.codegen import Emitted
from mirage_nb.errors import (
    CompileError,
    DTypeError,
    LaunchError,
    MirageError,
    MissingPartError,
    NoKernelError,
    OptionError,
    SearchError,
    ShapeError,
    TargetError,
)
from mirage_nb.interp import evaluate
from mirage_nb.ir import BlockGraph, InIterAttrs
from mirage_nb.ir.text import parse_graph
from mirage_nb.lang import parse
from mirage_nb.pipeline import Session
from mirage_nb.report import describe, emit_files, to_json
from mirage_nb.runtime import passes
from mirage_nb.runtime.contest import confirm, without_gpu
from mirage_nb.runtime.contest.final import verify_real
from mirage_nb.runtime.contest.winner import ALONE, Winner
from mirage_nb.runtime.execution.compile import load_compiler
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.search.composition import OWN_OPERATORS, UNSEARCHED
from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.session.pool import NURSERY, Workers
from mirage_nb.search.session.progress import State
from mirage_nb.search.session.session import SearchSession
from mirage_nb.verify.reals.float_gate import FloatReport
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.sessions import FOREVER, LONG, SOON, threads, until

ROOT = Path(__file__).resolve().parents[1]
SMALL = "X: f16[4, 64]\nW: f16[64, 96]\nY = rms_norm(X) @ W\nreturn Y"


def finished(text: str = SMALL, **options: Any) -> Session:
    session = superoptimize(text, effort="quick", **options)
    session.result(120)
    return session


@pytest.fixture(scope="module")
def session() -> Session:
    """One finished session for the tests that only look."""
    return finished(name="small")


def close(found: Any, exact: Any, tolerance: float = 5e-3) -> bool:
    return bool(np.abs(np.asarray(found, np.float64) - exact).max() <= tolerance * np.abs(exact).max())


def inputs() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape).astype(np.float16) for shape in ((4, 64), (64, 96)))  # type: ignore[return-value]


# -- results ----------------------------------------------------------------------------------------


def test_a_program_of_prime_sizes_gets_tiles_that_hang_over_its_ends() -> None:
    """Divisors alone would leave columns of one element, or all 211 of them in one block."""
    session = finished("X: f16[7, 257]\nW: f16[257, 211]\nY = rms_norm(X) @ W\nreturn Y")
    assert session.best is not None and session.best.report.ok
    blocks = [block for op in session.best.graph.ops if isinstance(block := op.body, BlockGraph)]
    reads = [(block, op.attrs) for block in blocks for op in block.ops if isinstance(op.attrs, InIterAttrs)]
    assert any(any(block.overhanging(attrs)) for block, attrs in reads)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((7, 257), (257, 211)))
    assert close(session(x, w), evaluate(session.program.graph, [x, w])[0])


def test_the_winner_was_verified_executed_and_is_what_runs(session: Session) -> None:
    snapshot, winner = session.snapshot(), session.best
    assert snapshot.state is State.FINISHED and snapshot.messages == () and session.stage == ""
    assert winner is not None and winner.candidate is snapshot.best
    assert winner.report.ok and winner.candidate.error == winner.report.relative_error
    assert winner.candidate.executed_on == "CPU edition" and winner.candidate.time_us is None
    program = session.program.graph
    assert winner.candidate.verdict.accepted
    assert "at the real shape" in winner.candidate.verdict.note
    assert verify(program, winner.graph, seed=99).accepted
    assert winner.source == session.source_of(winner.candidate) and "__global__" in winner.source
    assert [p.name for p in session.trace] == ["emit", "compile", "execute"]
    assert all(p.outcome == "ok" and p.seconds >= 0 for p in session.trace)


def test_it_is_called_like_the_program(session: Session) -> None:
    x, w = inputs()
    (exact,) = evaluate(session.program.graph, [x, w])
    found = session(x, w)
    assert isinstance(found, np.ndarray) and found.dtype == np.float16 and close(found, exact)
    assert np.array_equal(session(W=w, X=x), found) and np.array_equal(session(x, W=w), found)
    tensor = session(torch.from_numpy(x), torch.from_numpy(w))
    assert isinstance(tensor, torch.Tensor) and np.array_equal(tensor.numpy(), found)


def test_mistakes_in_calls(session: Session) -> None:
    x, w = inputs()
    for tensors, named in (((x,), {}), ((x, w, w), {}), ((x,), {"V": w}), ((x,), {"X": w}), ((), {"X": x})):
        with pytest.raises(LaunchError, match=r"the tensors X, W: (there is none for W|3 were|[VX] is not one)"):
            session(*tensors, **named)
    with pytest.raises(ShapeError, match="X has shape"):
        session(w, x)
    with pytest.raises(DTypeError, match="W has dtype"):
        session(x, torch.from_numpy(w).float())


def test_bf16_programs() -> None:
    session = finished(SMALL.replace("f16", "bf16"))
    assert session.best is not None
    x, w = (torch.from_numpy(a).to(torch.bfloat16) for a in inputs())
    (exact,) = evaluate(session.program.graph, [x.double().numpy(), w.double().numpy()])
    found = session(x, w)
    assert found.dtype == torch.bfloat16 and close(found.double().numpy(), exact, 3e-2)
    plain = session(x.float().numpy(), w.float().numpy())
    assert plain.dtype == np.float32 and np.array_equal(plain, found.float().numpy())


def test_several_outputs() -> None:
    session = finished("X: f16[8, 32]\nS = sum(X * X, axis=-1, keepdims=True)\nreturn X / sqrt(S), S", name="two")
    x = inputs()[0].reshape(8, 32)
    outputs = session(x)
    exact = evaluate(session.program.graph, [x])
    assert isinstance(outputs, tuple) and len(outputs) == 2
    assert all(close(found, want) for found, want in zip(outputs, exact, strict=True))


def test_a_program_that_overflows_by_itself_keeps_its_candidates() -> None:
    text = "X: f16[16, 64]\nreturn exp(20 * X / sqrt(mean(X * X, axis=-1, keepdims=True)))"
    session = finished(text)
    assert session.best.report.ok and session.snapshot().candidates


NOTHING = Verdict(VerdictKind.FIELD)


def test_equal_seeds_give_equal_winners() -> None:
    first, second = finished(seed=5), finished(seed=5)
    one, other = (
        [(replace(c, verdict=NOTHING), c.verdict.kind) for c in s.snapshot().candidates] for s in (first, second)
    )
    assert one == other, "all but what final verification drew afresh"
    assert first.best is not None and second.best is not None
    assert first.best.source == second.best.source and first.best.report == second.best.report


# -- what is handed out -----------------------------------------------------------------------------


def test_the_json_form(session: Session) -> None:
    data = json.loads(to_json(session))
    snapshot, winner = session.snapshot(), session.best
    assert winner is not None
    assert (data["program"], data["target"], data["state"]) == (SMALL, "h200", "finished")
    assert data["exhausted"] is True and data["cut"] == [] and data["seconds"] > 0
    assert data["counts"] == {o.value: snapshot.total(o) for o in Outcome}
    assert sum(n for _, _, n in data["counts_by_depth"]) == sum(data["counts"].values())
    assert data["best"] == winner.candidate.digest and data["baselines"] == []
    assert len(data["candidates"]) == len(snapshot.candidates)
    for row, candidate in zip(data["candidates"], snapshot.candidates, strict=True):
        assert parse_graph(row["mugraph"]) == candidate.graph
        assert row["time_us"] is None and row["estimate_us"] > 0
        assert row["verdict"]["kind"] in ("field", "proved") and "log2_bound" in row["verdict"]
        if candidate.configuration not in UNSEARCHED:
            assert row["kernels"] == 1 and row["verdict"]["trials"] >= 4
            assert set(row["verdict"]["sizes"]) == {"X", "W"}
    assert data["baseline"]["configuration"] == OWN_OPERATORS and data["no_kernel"] is None
    assert data["candidates"][0]["executed_on"] == "CPU edition"


def test_the_text_form(session: Session) -> None:
    text = describe(session)
    for part in ("small: finished", "space exhausted", "best muGraph", "on CPU edition", "cost model estimates"):
        assert part in text
    assert "trials at the real shape" in text


def test_emitted_files_can_be_verified_again(session: Session, tmp_path: Path) -> None:
    written = emit_files(session, tmp_path / "new" / "folder")
    assert {p.suffix for p in written} >= {".cu", ".mugraph"}
    (text,) = [p for p in written if p.suffix == ".mugraph"]
    assert verify(session.program.graph, parse_graph(text.read_text())).accepted
    with pytest.raises(MirageError, match="cannot be written"):
        emit_files(session, Path("/proc/nowhere"))


def test_any_candidate_can_be_built(session: Session) -> None:
    other = next(c for c in reversed(session.snapshot().candidates) if c.kernels == 1)
    assert "__global__" in session.source_of(other.digest[:12])
    winner = session.build(other.digest[:12])
    assert winner.candidate.digest == other.digest and winner.report.ok
    assert session.build(other) == winner and winner.candidate in session.snapshot().candidates
    assert {w.candidate.digest for w in session.winners} >= {other.digest}
    for digest, message in (("not a digest", "no candidate begins"), ("", "several candidates begin")):
        with pytest.raises(OptionError, match=message):
            session.build(digest)


def test_an_estimate_says_where_it_comes_from(session: Session) -> None:
    best = session.snapshot().candidates[0]
    text = session.estimate_of(best.digest[:12])
    kernels = [float(us) for us in re.findall(r"kernel \d+: ([0-9.]+) us", text)]
    assert sum(kernels) == pytest.approx(best.estimate_us, abs=0.01 * (1 + len(kernels)))
    assert "device memory" in text and "barriers" in text
    with pytest.raises(OptionError, match="no candidate begins"):
        session.estimate_of("not a digest")


# -- steering ---------------------------------------------------------------------------------------


def test_a_stopped_session_still_runs_its_best_candidate() -> None:
    session = superoptimize(LONG.replace("4096", "512"))
    assert until(lambda: session.snapshot().candidates)
    session.stop()
    assert session.snapshot().state is State.STOPPED
    snapshot = session.result(10)
    assert session.winners == () and snapshot.candidates
    rng = np.random.default_rng(0)
    tensors = [0.25 * rng.standard_normal(i.type.shape) for i in session.program.graph.inputs]
    with pytest.raises(DTypeError, match="has dtype float64, the program says f16"):
        session(*tensors)
    found = session(*tensors, cast=True)
    halves = [t.astype(np.float16) for t in tensors]
    assert close(found, evaluate(session.program.graph, halves)[0], 1e-2)
    assert session.best is not None


def test_stop_while_a_kernel_is_compiled_or_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    # The text of the kernel never reaches the compiler: the worker sleeps instead.
    monkeypatch.setattr(passes, "compile_cubin", time.sleep)
    monkeypatch.setattr(passes, "emit", lambda *graph: SimpleNamespace(source=FOREVER))
    monkeypatch.setattr(passes.Passes, "_executed", lambda self, c, e, call, u: call(time.sleep, e.source, seconds=999))
    session = superoptimize(SMALL, effort="quick")
    assert until(lambda: session.search._extra is not None and session.search._extra.processes)  # type: ignore[attr-defined]
    session.stop()
    assert session.wait(SOON)
    snapshot = session.snapshot()
    assert snapshot.state is State.STOPPED and snapshot.candidates and session.stage == ""


def test_what_ctrl_c_begins_nobody_would_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[SearchSession] = []
    start = SearchSession.start

    def interrupted(self: SearchSession, *arguments: Any) -> SearchSession:
        begun.append(start(self, *arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(SearchSession, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        superoptimize(LONG)
    assert begun[0].wait(30) and begun[0].snapshot().state is State.STOPPED


def test_pause_holds_the_later_passes() -> None:
    session = superoptimize(SMALL, effort="quick")
    session.pause()
    time.sleep(0.5)
    assert session.snapshot().state is State.PAUSED and session.winners == () and not session.wait(0)
    session.resume()
    assert session.result(120).state is State.FINISHED and session.best is not None


def test_no_card_is_touched_where_workers_are_forked(session: Session) -> None:
    """A process that is forked of one with a CUDA context cannot have one."""
    with Workers(1) as workers:
        workers.submit(load_compiler).exception(60)
    assert NURSERY._process is not None
    loaded = Path(f"/proc/{NURSERY._process.pid}/maps").read_text()
    assert "numpy" in loaded and not [name for name in ("cupy", "torch", "libcuda") if name in loaded]


def test_many_sessions_at_once() -> None:
    before = threads()
    sessions = [superoptimize(SMALL, effort="quick", seed=n) for n in range(3)]
    for session in sessions:
        assert session.result(120).state is State.FINISHED and session.best is not None
    assert until(lambda: threads() <= before)


# -- what can fail ----------------------------------------------------------------------------------


def test_without_a_compiler_the_programs_own_operators_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIRAGE_NB_CXX", "/nonexistent")
    session = finished()
    snapshot = session.snapshot()
    assert snapshot.state is State.FINISHED and session.best.candidate.configuration == OWN_OPERATORS
    assert [m for m in snapshot.messages if "no C++ compiler" in m]
    assert [m for m in snapshot.messages if "what runs is the program's own operators" in m]
    searched = next(c for c in snapshot.candidates if c.kernels == 1)
    assert "__global__" in session.source_of(searched)
    assert {p.suffix for p in emit_files(session, tmp_path)} == {".cu", ".mugraph"}
    (exact,) = evaluate(session.program.graph, [*inputs()])
    assert close(session(*inputs()), exact)
    with pytest.raises(MissingPartError):
        session.build(searched)


def test_without_nvrtc_kernels_still_run_on_the_cpu_edition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "compile_cubin", _no_nvrtc)
    session = finished()
    assert session.best is not None and session.best.cubin is None
    assert [m for m in session.snapshot().messages if "no cubin" in m and "NVRTC" in m]


def _no_nvrtc(source: str, arch: str) -> None:
    raise MissingPartError("NVRTC is not usable", hint="pip install it")


def _rejects(source: str, arch: str) -> None:
    raise CompileError("NVRTC rejects the kernel")


def _bug(*graph: object) -> None:
    raise ZeroDivisionError("a bug in one pass")


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [("compile_cubin", _rejects, "NVRTC rejects the kernel"), ("emit", _bug, "internal error: ZeroDivisionError")],
)
def test_a_pass_that_fails_loses_no_candidate(
    name: str, broken: object, message: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(session.snapshot().candidates)
    monkeypatch.setattr(passes, name, broken)
    monkeypatch.setattr(without_gpu, name, broken, raising=False)
    session = finished()
    snapshot = session.snapshot()
    assert snapshot.state is State.FINISHED and len(snapshot.candidates) == before
    assert [m for m in snapshot.messages if message in m]
    tried = [c for c in snapshot.candidates if c.note]
    assert len([c for c in tried if c.kernels == 1]) == without_gpu.FINALISTS
    assert all(message in c.note for c in tried)
    assert snapshot.candidates[-len(tried) :] == tuple(tried)  # what is known to fail ranks last
    with pytest.raises(MirageError, match=message):
        session.build(next(c for c in tried if c.kernels == 1))
    if name == "emit":
        with pytest.raises(NoKernelError, match=r"finished without a kernel: .*ZeroDivisionError"):
            _ = session.best
        assert "finished without a kernel" in describe(session) and session.winners == ()
    else:
        assert session.best.candidate.configuration == OWN_OPERATORS


def test_wrong_kernels_are_dropped_and_the_next_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CpuExecutable.check
    wrong: list[object] = []

    def check(self: CpuExecutable, sample: Any, tolerance: float = 1.0) -> FloatReport:
        if not wrong:
            wrong.append(self._emitted)
            return FloatReport(0.5, False, "output 0[0] is 1, the reference is 2")
        return real(self, sample, tolerance)

    monkeypatch.setattr(CpuExecutable, "check", check)
    monkeypatch.setattr(passes.Passes, "_executed", _in_this_process)
    session = finished()
    snapshot = session.snapshot()
    (message,) = snapshot.messages
    assert "wrong on CPU edition: output 0[0] is 1" in message
    assert session.best is not None and message[:8] not in {c.digest[:8] for c in snapshot.candidates}


def _in_this_process(self: passes.Passes, candidate: Any, emitted: Emitted, call: Any, until: float) -> Winner:
    """Executed where the test's changes hold."""
    outcome = passes.try_on_cpu(self.search.program, emitted, 0)
    return self.keep(Winner.judged(candidate, emitted, CpuExecutable(emitted), None, outcome, self.origin))


def test_a_refutation_at_the_real_shape_takes_the_winner_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def call_all(self: Any, function: Any, arguments: Any, *, seconds: float, until: float = 0.0) -> Any:
        for number, _ in enumerate(arguments):
            kind = VerdictKind.REFUTED if function is verify_real and "verify_real" not in asked else VerdictKind.FIELD
            asked.append(function.__name__)
            yield number, SimpleNamespace(result=lambda kind=kind: Verdict(kind, note="so it is"))

    monkeypatch.setattr(passes.Passes, "_executed", _in_this_process)
    monkeypatch.setattr("mirage_nb.search.session.session.SearchSession.call_all", call_all)
    session = finished()
    assert sorted(asked) == ["verify_final"] * 2 + ["verify_real"] * 2
    (message,) = session.snapshot().messages
    assert "refuted in the final verification" in message
    assert session.best is not None and session.best.candidate.verdict.note.startswith("so it is")
    assert len(session.winners) == 1 and message[:8] != session.best.candidate.digest[:8]


def test_what_is_too_long_for_the_cpu_edition_is_left_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_gpu, "ESTIMATE_US", 0.001)
    session = finished()
    assert session.best.candidate.configuration == OWN_OPERATORS
    assert any("too long for the CPU edition" in message for message in session.snapshot().messages)
    monkeypatch.setattr(without_gpu, "NUMPY_OPERATIONS", 1.0)
    session = finished()
    assert "too large for NumPy" in str(session.snapshot().messages) and session.trace == ()
    assert session.best.candidate.executed_on == ALONE and session(*inputs()).shape == (4, 96)


def test_large_programs_say_that_smaller_shapes_were_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirm, "CONFIRM_ELEMENTS", 100)
    session = finished()
    assert session.best is not None
    assert [m for m in session.snapshot().messages if "smaller shapes only" in m]
    assert "real shape" not in session.best.candidate.verdict.note


SLOW = """
import time

def verify_real(program, graph):
    time.sleep(60)
"""


def test_verification_at_the_real_shape_may_not_take_forever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(confirm, "verify_real", importlib.import_module("slow").verify_real)
    monkeypatch.setattr(confirm, "REAL_SECONDS", 0.3)
    session = finished()
    assert session.best is not None
    (message,) = session.snapshot().messages
    assert "no trials at the real shape: it took more than 0.3 s" in message


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"effort": "heroic"}, OptionError, "effort"),
        ({"target": "abacus"}, TargetError, "abacus"),
        ({"budget": -1.0}, OptionError, "budget"),
        ({"budget": float("nan")}, OptionError, "budget"),
        ({"max_block_ops": 0}, OptionError, "block operators"),
        ({"sizes": {"Z": 3}}, MirageError, "Z"),
    ],
)
def test_mistakes_in_options(arguments: dict[str, Any], kind: type[MirageError], message: str) -> None:
    with pytest.raises(kind, match=message):
        superoptimize(SMALL, **arguments)
    with pytest.raises(OptionError, match="sizes"):
        superoptimize(parse(SMALL), sizes={"B": 2})
    with pytest.raises(MirageError, match="cannot be read"):
        superoptimize(Path("/nonexistent.mirage"))


def test_a_result_that_is_late_is_an_error() -> None:
    session = superoptimize(LONG)
    with pytest.raises(SearchError, match="not finished"):
        session.result(0.01)
    session.stop()
    assert session.wait(10)


def test_a_time_limit_still_ends_in_a_winner() -> None:
    session = superoptimize(LONG.replace("4096", "512"), budget=1.0)
    snapshot = session.result(120)
    assert snapshot.state is State.FINISHED and snapshot.cut and not snapshot.exhausted
    assert session.best is not None


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "import mirage_nb\n"
        f"session = mirage_nb.superoptimize({SMALL!r}, effort='quick')\n"
        "print(session.result(100).state.value, session.best is not None, session.snapshot().messages)\n"
    )
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr) == ("finished True ()\n", "")
