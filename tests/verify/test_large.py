"""Trials at real shapes: what memory they take, and devices that compute wrongly, fail, or run out of memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mirage_nb.errors import VerificationError
from mirage_nb.interp import instance
from mirage_nb.interp.instance import Device
from mirage_nb.ir import DimAttrs, KernelGraph, OpKind
from mirage_nb.verify.fields import large, work
from mirage_nb.verify.fields.drawn import is_small, known_program
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.elsewhere import BOTH_WAYS, Elsewhere
from tests.mugraphs import Kernel


@functools.cache
def program() -> KernelGraph:
    k = Kernel(X=(4, 256), W=(256, 256), V=(256, 8))
    e = k.op(OpKind.EXP, k.op(OpKind.MATMUL, 0, 1))
    return k.returning(k.op(OpKind.DIV, k.op(OpKind.MATMUL, e, 2), k.sum(e, 1)))


@functools.cache
def fused(wrong: bool = False) -> KernelGraph:
    """One kernel that loops over the columns of W; a wrong one sums what it multiplies."""
    k = Kernel(X=(4, 256), W=(256, 256), V=(256, 8))
    b = k.block((0, 1, 2), (2,), loop=4)
    x, w, v = b.read(0, (0,)), b.read(1, (None,), 1), b.read(2, (None,), 0)
    product = b.op(OpKind.MATMUL, x, w)
    e = b.op(OpKind.EXP, product)
    total = b.accum(b.op(OpKind.SUM, product if wrong else e, attrs=DimAttrs(1)))
    b.save(b.op(OpKind.DIV, b.accum(b.op(OpKind.MATMUL, e, v)), total), (0,))
    return k.returning(k.launch((0, 1, 2), b))


class Counting:
    """How often arrays came to a device, and that its memory was given back."""

    def __init__(self, back: Callable[[Any], np.ndarray] = BOTH_WAYS[1]) -> None:
        self.came = 0
        self.released = 0
        self.device = Device("stand-in", self.to, back, self.release)

    def to(self, array: np.ndarray) -> Any:
        self.came += 1
        return Elsewhere(np.asarray(array))

    def release(self) -> None:
        self.released += 1


def on(device: Device, candidate: KernelGraph, **options: Any) -> Verdict:
    return verify(program(), candidate, device=device, progress=lambda done, wanted: None, **{"seed": 0, **options})


def test_a_device_that_computes_right_gives_the_same_verdict() -> None:
    assert not is_small(program())
    for candidate in (fused(), fused(wrong=True)):
        counting = Counting()
        for seed in range(3):
            assert on(counting.device, candidate, seed=seed) == verify(program(), candidate, seed=seed)
        assert counting.came >= 3 and counting.released >= 3
    assert verify(program(), fused()).accepted
    assert verify(program(), fused(wrong=True)).kind is VerdictKind.REFUTED


@pytest.mark.parametrize("seed", range(4))
def test_the_first_trial_and_a_later_one_are_computed_here_too(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    evaluated = large._evaluated

    def noting(graphs: Any, inputs: Any, where: Any) -> Any:
        seen.append(where.device is instance.CPU)
        return evaluated(graphs, inputs, where)

    monkeypatch.setattr(large, "_evaluated", noting)
    assert on(Counting().device, fused(), seed=seed).accepted
    assert seen[:2] == [False, True]
    assert seen.count(False) == 4 and seen.count(True) == 2


def off_by_one(array: Any) -> np.ndarray:
    held = array.held.copy()
    if held.dtype != bool:
        held.reshape(-1)[-1] += 1
    return held


def zeros(array: Any) -> np.ndarray:
    return np.zeros_like(array.held)


def raising(array: Any) -> np.ndarray:
    raise RuntimeError("an illegal memory access was encountered")


def exhausted(array: Any) -> np.ndarray:
    raise MemoryError("out of device memory")


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
@pytest.mark.parametrize(
    ("back", "why"),
    [
        (off_by_one, "the stand-in computed other values than the CPU"),
        (zeros, "the stand-in computed other values than the CPU"),
        (raising, r"the stand-in failed \(RuntimeError: an illegal memory access"),
        (exhausted, r"the stand-in failed \(MemoryError: out of device memory"),
    ],
)
def test_a_device_that_is_not_right_changes_no_verdict(
    back: Callable[[Any], np.ndarray], why: str, wrong: bool
) -> None:
    counting = Counting(back)
    expected = verify(program(), fused(wrong), seed=0)
    found = on(counting.device, fused(wrong))
    assert (found.kind, found.primes, found.witness) == (expected.kind, expected.primes, expected.witness)
    assert found.note.startswith(expected.note + "; on the CPU, as ")
    assert re.search(why, found.note)
    assert counting.released


def test_a_device_that_goes_wrong_later_refutes_nothing() -> None:
    """Trials that are not compared as such are when they would refute."""
    for trial in range(4):
        calls = 0

        def late(array: Any, trial: int = trial) -> np.ndarray:
            nonlocal calls
            calls += 1  # two graphs of one output in each trial
            return off_by_one(array) if calls == 2 * trial + 1 else np.asarray(array.held)

        found = on(Counting(late).device, fused())
        assert found.accepted and "computed other values" in found.note


def test_a_device_that_makes_all_graphs_equal_accepts_nothing() -> None:
    first: list[np.ndarray] = []

    def stuck(array: Any) -> np.ndarray:
        first.append(array.held)
        return first[0]

    assert on(Counting(stuck).device, fused(wrong=True)).kind is VerdictKind.REFUTED


def test_a_device_that_cannot_even_tidy_up() -> None:
    def lost() -> None:
        raise RuntimeError("the card is lost")

    device = Device("stand-in", *BOTH_WAYS, lost)
    found = on(device, fused())
    assert found.accepted and "the card is lost" in found.note


def test_mistakes_in_graphs_are_told_as_on_the_cpu() -> None:
    other = Kernel(X=(4, 256), W=(256, 256), V=(256, 9))
    with pytest.raises(VerificationError, match="input V is"):
        on(Counting().device, other.returning(0))


def test_verdicts_are_of_the_device_that_was_asked() -> None:
    broken = Counting(raising)
    assert "failed" in verify(program(), fused(), seed=9, device=broken.device).note
    assert "failed" not in verify(program(), fused(), seed=9).note


def test_memory_that_is_held_at_once() -> None:
    k = Kernel(X=(64, 64))
    x = k.op(OpKind.SQR, k.op(OpKind.SQR, k.op(OpKind.SQR, 0)))
    assert work.held_bytes(k.returning(x)) == 3 * 8 * 64 * 64
    assert work.held_bytes(k.returning(1, x)) == 4 * 8 * 64 * 64
    assert work.held_bytes(k.returning(0)) == 3 * 8 * 64 * 64


def test_inputs_that_only_products_read_may_be_larger_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    known_program.cache_clear()  # what is known was looked at on a machine with more
    monkeypatch.setattr(work, "_memory", lambda: 2**19)
    with pytest.raises(VerificationError, match="do not fit into memory"):
        verify(program(), fused(), seed=3)
    for module in (instance, work):
        monkeypatch.setattr(module, "UNDRAWN", 2**16)
    monkeypatch.setattr(work, "_memory", lambda: 2**17)
    assert verify(program(), fused(), seed=3).accepted
    assert verify(program(), fused(wrong=True), seed=3).kind is VerdictKind.REFUTED
