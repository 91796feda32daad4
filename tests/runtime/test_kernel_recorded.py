"""Kernels that were recorded are told to write elsewhere: which words of their arguments change, and when not."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.runtime import kernel_recorded
from mirage_nb.runtime.kernel_plan import KernelError
from mirage_nb.runtime.kernel_recorded import Recorded, redirected

OLD, NEW, NBYTES = 0x7F00_0000_0000, 0x7F11_0000_0200, 4096


@given(st.lists(st.integers(0, 2**64 - 1), max_size=16), st.integers(0, NBYTES - 1), st.integers(0, 15))
def test_addresses_within_the_tensor_move_and_nothing_else(words: list[int], inside: int, at: int) -> None:
    elsewhere = [word for word in words if not OLD <= word < OLD + NBYTES]
    elsewhere.insert(at, OLD + inside)
    found, count = redirected(struct.pack(f"<{len(elsewhere)}Q", *elsewhere), OLD, NBYTES, NEW)
    elsewhere[elsewhere.index(OLD + inside)] = NEW + inside
    assert count == 1 and found == struct.pack(f"<{len(elsewhere)}Q", *elsewhere)


def test_the_ends_of_the_tensor() -> None:
    words = [OLD - 1, OLD, OLD + NBYTES - 1, OLD + NBYTES]
    found, count = redirected(struct.pack("<4Q", *words), OLD, NBYTES, NEW)
    assert count == 2 and struct.unpack("<4Q", found) == (OLD - 1, NEW, NEW + NBYTES - 1, OLD + NBYTES)


def test_short_arguments_and_odd_ends_stay() -> None:
    data = struct.pack("<Q", OLD) + struct.pack("<I", 7)
    assert redirected(data, OLD, NBYTES, NEW) == (struct.pack("<Q", NEW) + struct.pack("<I", 7), 1)
    assert redirected(struct.pack("<I", 7), OLD, NBYTES, NEW) == (struct.pack("<I", 7), 0)


class Refusing(Recorded):
    """A driver that takes nothing into a capture."""

    def _captured(self) -> Any:
        raise KernelError("not captured: CUDA error 900")


@pytest.mark.parametrize("captured", [True, False])
def test_what_cannot_be_recorded_is_copied(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside of a capture that comes first nothing is tried: the next call may record."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(kernel_recorded, "is_captured", lambda stream: captured)
    names = {**vars(torch), "cuda": SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=0))}
    x, result = torch.randn(4, 8), torch.empty(4, 8)
    call = Refusing(SimpleNamespace(**names), lambda: x.exp(), result)
    for _ in range(2):
        x.add_(1)
        call()
        assert torch.equal(result, x.exp()) and call.copies is not captured
