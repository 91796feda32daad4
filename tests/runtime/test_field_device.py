"""Where field values of large programs are computed: the CPU wherever a GPU does not answer."""

from __future__ import annotations

import pytest

from mirage_nb.interp.instance import CPU
from mirage_nb.runtime import field_device as module
from mirage_nb.runtime.field_device import field_device


def test_no_gpu_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "attached_gpu", lambda: None)
    assert field_device() is CPU


def test_a_driver_that_fails_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(module, "attached_gpu", broken)
    assert field_device() is CPU
