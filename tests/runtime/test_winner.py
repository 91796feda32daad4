"""Winners: what first runs may show, and the ways to take one along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_nb.codegen import emit
from mirage_nb.errors import DTypeError, LaunchError, ShapeError
from mirage_nb.lang import parse
from mirage_nb.runtime.contest.trial import Outcome
from mirage_nb.runtime.contest.winner import Origin, PoorResult, Winner, WrongResult
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.runtime.kernel.plan import Launch
from mirage_nb.runtime.kernel.saved import load_kernel
from mirage_nb.search.session.progress import Candidate
from mirage_nb.targets import find_target
from mirage_nb.verify.reals.float_gate import FloatReport, GateReport, SampleReport
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.codegen import mugraphs

H200 = find_target("h200")
PROGRAM = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph
GRAPH = mugraphs.rmsnorm(8, 64, 32, 16, 2)
CANDIDATE = Candidate(GRAPH.digest(), GRAPH, "one kernel", 7, {}, Verdict(VerdictKind.FIELD, trials=2), 3.0)
RIGHT = Outcome(FloatReport(1e-4, True), True)


def judged(outcome: Outcome) -> Winner:
    emitted = emit(GRAPH, H200)
    return Winner.judged(
        CANDIDATE, emitted, CpuExecutable(emitted), None, outcome, Origin("my norm", PROGRAM, H200, 0.5)
    )


@pytest.fixture(scope="module")
def winner(tmp_path_factory: pytest.TempPathFactory) -> Winner:
    return judged(RIGHT)


@pytest.fixture
def arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((8, 64)).astype(np.float16), rng.standard_normal((64, 32)).astype(np.float16)


def test_only_what_is_right_and_robust_wins() -> None:
    lost = SampleReport("zero rows", False, float("inf"), "output 0[1] is nan, the reference is 0")
    wrong = FloatReport(0.3, False, "output 0[0] is 1, the reference is 2")
    cases: list[tuple[Outcome, type[LaunchError], str]] = [
        (Outcome(wrong, True), WrongResult, r"wrong on CPU edition: output 0\[0\] is 1"),
        (Outcome(wrong, False), LaunchError, "not checked: the program has no value, or overflows, in its own types"),
        (Outcome(FloatReport(0.0, True), False), LaunchError, "in its own types$"),  # no element was compared
        (Outcome(RIGHT.report, True, GateReport((lost,))), PoorResult, "numerically poor: zero rows: output 0"),
    ]
    for outcome, kind, message in cases:
        with pytest.raises(kind, match=message) as found:
            judged(outcome)
        assert type(found.value) is kind
    assert judged(RIGHT).candidate.executed_on == "CPU edition"


def test_saved_and_loaded(winner: Winner, arrays: tuple[Any, Any], tmp_path: Path) -> None:
    kernel = load_kernel(winner.save(tmp_path / "norm.py"))
    assert kernel.plan.about["name"] == "my norm" and "relative error 1.0e-04" in kernel.plan.about["checked"]
    assert kernel.plan.scale == 0.5 and kernel.plan.arch == "sm_90a" and kernel.plan.cubin == b""
    assert [s.kernel for s in kernel.plan.steps if isinstance(s, Launch)] == ["kernel0"]
    exact = kernel.reference(*arrays)
    assert np.abs(winner(*arrays).astype(np.float64) - exact).max() < 5e-3 * np.abs(exact).max()


def test_prepared(winner: Winner, arrays: tuple[Any, Any]) -> None:
    x, w = arrays
    call = winner.prepare(x, w)
    first = call().copy()
    assert np.array_equal(first, winner(x, w))
    wide = x.astype(np.float32)
    with pytest.raises(DTypeError, match="float32, the program says f16"):
        winner(wide, w)
    for found in (winner(wide, w, cast=True), winner.prepare(wide, w, cast=True)()):
        assert np.array_equal(found, first)
    x *= 2  # read anew by every call; a norm does not see it
    x[0, 0] = 0
    assert np.array_equal(call(), winner(x, w)) and call() is call.outputs[0] and not np.array_equal(call(), first)
    with pytest.raises(ShapeError, match="X has shape"):
        winner.prepare(x[:4], w)
    with pytest.raises(LaunchError, match="expected the tensors"):
        winner.prepare(x)


def test_as_an_operator_of_torch(winner: Winner, arrays: tuple[Any, Any]) -> None:
    torch = pytest.importorskip("torch")
    operator = winner.torch_operator()
    tensors = [torch.from_numpy(a) for a in arrays]
    assert np.array_equal(operator(*tensors).numpy(), winner(*arrays))
    assert hasattr(torch.ops.mirage_nb, f"op_my_norm_{GRAPH.digest()[:8]}")
    named = winner.torch_operator("elsewhere::norm")
    assert torch.equal(torch.ops.elsewhere.norm(*tensors), named(*tensors))
