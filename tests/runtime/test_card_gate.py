"""The gate on a card, with NumPy's arrays for the card's: what it says is what the gate says of the same outputs."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage_nb.errors import LaunchError
from mirage_nb.interp.reference import evaluate
from mirage_nb.lang import parse
from mirage_nb.runtime.contest import card_gate, trial
from mirage_nb.runtime.contest.card_gate import CardGate
from mirage_nb.runtime.contest.trial import Gate, Trials, draw_into
from mirage_nb.verify.reals.float_gate import Picked, Reference, compare
from tests.stand_in_card import CUBIN

torch = pytest.importorskip("torch")

PROGRAM = parse("X: f16[8, 64]\nreturn softmax(X)").graph
Run = Callable[[Sequence[np.ndarray]], np.ndarray]


def softmax(inputs: Sequence[np.ndarray]) -> np.ndarray:
    (found,) = evaluate(PROGRAM, [a.astype(np.float64) for a in inputs])
    return found


def unsafe(inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Without its maximum, in f16."""
    with np.errstate(all="ignore"):
        raised = np.exp(inputs[0])
        return raised / raised.sum(-1, keepdims=True)


def greedy(inputs: Sequence[np.ndarray]) -> np.ndarray:
    found = softmax(inputs)
    inputs[0][3, 5] += 1
    return found


def sorting(inputs: Sequence[np.ndarray]) -> np.ndarray:
    found = softmax(inputs)
    inputs[0].reshape(-1).sort()
    return found


@pytest.fixture(params=["torch", "numpy"])
def gate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CardGate:
    monkeypatch.setattr(card_gate, "cupy", SimpleNamespace(asarray=np.array, asnumpy=np.asarray))
    monkeypatch.setattr(CardGate, "_seen", lambda self, array, dtype: torch.from_numpy(array))
    monkeypatch.setattr(CardGate, "_floats", lambda self, array: torch.from_numpy(np.array(array, np.float64)))
    made = CardGate(PROGRAM)
    if request.param == "numpy":
        made._torch = None
    for name in ("", "large logits", "wide range"):
        draw_into(tmp_path / (name or "random"), PROGRAM, 3, name)
    made.take([tmp_path / "random", tmp_path / "large logits"])
    made.take([tmp_path / name for name in ("random", "large logits", "wide range")])
    return made


def executable(run: Run) -> Any:
    return SimpleNamespace(ran=lambda inputs: [run(inputs).astype(np.float16)])


def test_a_safe_kernel_is_right_on_all_inputs_each_of_which_it_meets_once(gate: CardGate) -> None:
    met: list[int] = []
    outcome = gate.outcome(executable(lambda inputs: (met.append(1), softmax(inputs))[1]), 1.0)
    assert outcome.report.ok and outcome.safe and len(met) == 3
    assert outcome.hard.survived == ("large logits", "wide range")


def test_a_poor_kernel_is_told_by_hard_inputs(gate: CardGate) -> None:
    outcome = gate.outcome(executable(unsafe), 1.0)
    assert outcome.report.ok and "large logits" in outcome.hard.broken
    assert "output 0[" in outcome.hard.results[0].note


def test_a_wrong_kernel_meets_no_hard_inputs(gate: CardGate) -> None:
    outcome = gate.outcome(executable(lambda inputs: 1.01 * softmax(inputs)), 1.0)
    assert not outcome.report.ok and outcome.hard.results == ()


@pytest.mark.parametrize("run", [greedy, sorting])
def test_a_kernel_that_writes_to_its_inputs_is_refused(gate: CardGate, run: Run) -> None:
    with pytest.raises(LaunchError, match="its inputs have changed"):
        gate.outcome(executable(run), 1.0)
    assert gate.outcome(executable(softmax), 1.0).hard.survived, "the next one has inputs as they were drawn"


@pytest.mark.parametrize("shape", [(1,), (7,), (64,), (3, 65), (16, 16, 5), (64, 64), (300, 64)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8])
def test_sums_tell_what_was_moved_or_made_up_for(shape: tuple[int, ...], dtype: type) -> None:
    rng, weights = np.random.default_rng(7), card_gate.WEIGHTS[:64]
    array = rng.integers(-100, 100, shape).astype(dtype)
    (i, j), turned = rng.choice(array.size, 2, replace=array.size < 2), array.T.copy().reshape(shape)
    swapped, compensated = (array.copy() for _ in range(2))
    swapped.reshape(-1)[[i, j]] = array.reshape(-1)[[j, i]]
    words = compensated.reshape(-1).view(f"i{array.itemsize}")
    words[i] += 1
    words[j] -= 1
    for other in (array, swapped, compensated, turned):
        found = card_gate.summed(other, np, weights)
        assert found == card_gate.summed(torch.from_numpy(other), torch, torch.from_numpy(weights))
        assert (found == card_gate.summed(array, np, weights)) == np.array_equal(other, array)


def test_what_found_no_room_is_laid_there_once_there_is(
    gate: CardGate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It counted as lying there, and no kernel met it."""
    draw_into(tmp_path / "positive", PROGRAM, 3, "all positive")

    def full(array: object) -> None:
        raise MemoryError("the card is full")

    with monkeypatch.context() as patch, pytest.raises(LaunchError, match="full"):
        patch.setattr(card_gate.cupy, "asarray", full)
        gate.take([tmp_path / "positive"])
    gate.take([tmp_path / "positive"])
    assert "all positive" in gate.outcome(executable(softmax), 1.0).hard.survived


def test_a_fault_on_hard_inputs_ends_the_process_where_it_met_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was that of the notebook, and its card was lost."""
    (tmp_path / "kernels_that_meet.py").write_text(
        "import sys\nfrom types import SimpleNamespace\nfrom mirage_nb.errors import LaunchError\n"
        "from mirage_nb.runtime.contest.trial import RAN, ending\n"
        "sys.modules['mirage_nb.runtime.execution.launch'] = SimpleNamespace(usable=lambda: False)\n"
        "def meet(program, drawn, emitted, cubin, tolerance):\n"
        "    with ending():\n        if emitted:\n            raise LaunchError(emitted)\n        return RAN\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = "mirage_nb.runtime.execution.launch"
    monkeypatch.setitem(sys.modules, name, sys.modules[name])  # as it was, behind this
    import kernels_that_meet as kernels  # type: ignore[import-not-found]

    monkeypatch.setattr(trial, "meet_alone", kernels.meet)
    emitted: Any = "CUDA_ERROR: illegal address"
    with Trials(lambda: True) as trials:
        gate = Gate(PROGRAM, trials, ())
        with pytest.raises(LaunchError, match=r"the kernel did not end.*illegal address"):
            gate.outcome(emitted, CUBIN, 1.0)
        assert gate.outcome("", CUBIN, 1.0).report.ok, "the next one meets them in a fresh process"  # type: ignore[arg-type]


def spoiled(name: str, right: np.ndarray) -> np.ndarray:
    found = right.copy()
    match name:
        case "one element":
            found[2, 3] += 1.0
        case "not written":
            found[1, 1] = np.nan
        case "infinite":
            found[0, 0] = np.inf
        case "a common factor":
            found *= 1.004
        case "all a little":
            found += np.random.default_rng(0).standard_normal(found.shape) * 8e-4
    return found


@pytest.mark.parametrize("kinds", [False, True])
@pytest.mark.parametrize("name", ["", "one element", "not written", "infinite", "a common factor", "all a little"])
def test_pytorch_says_what_numpy_says(tmp_path: Path, name: str, kinds: bool) -> None:
    draw_into(tmp_path / "random", PROGRAM, 3)
    sample = pickle.loads((tmp_path / "random").read_bytes())
    known: Reference = sample.reference
    want, deviation = known.outputs[0].copy(), known.deviations[0].copy()
    want[4, 4], deviation[5, 5] = -np.inf, np.nan
    pick = Picked((8, 64), (8, 64), ((0, (0, 1, 2, 4, 5)),), (5, 64))
    got = spoiled(name, np.where(np.isfinite(want), want, -np.inf))
    for picks, rows in (((), slice(None)), ((pick,), list(pick.places[0][1]))):
        host = Reference((want[rows],), (deviation[rows],), known.dtypes, kinds, picks=picks)
        there = Reference(
            (torch.tensor(want[rows]),), (torch.tensor(deviation[rows]),), known.dtypes, kinds, picks=picks  # type: ignore[arg-type]
        )  # fmt: skip
        first, second = compare([got], host), compare([torch.tensor(got)], there, xp=torch)
        assert (first.ok, first.note) == (second.ok, second.note) and first.ok == (not name)
        assert second.relative_error == pytest.approx(first.relative_error)
        assert second.allowed == pytest.approx(first.allowed)
