"""What a session on a card loads ahead: where there may be one, and nothing of a card."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from mirage_nb.runtime import loading


@pytest.mark.parametrize("driver", [True, False])
def test_cupy_and_pytorch_are_loaded_where_a_driver_is(
    driver: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def broken(name: str) -> None:
        asked.append(name)
        raise OSError("a library is missing")

    monkeypatch.setattr(loading, "DRIVERS", (tmp_path / "none", tmp_path / ("" if driver else "too")))
    monkeypatch.setattr(loading.NURSERY, "begin", lambda: asked.append("nursery"))
    monkeypatch.setattr(importlib, "import_module", broken)
    thread = loading.load_ahead()
    if thread is not None:
        assert not thread.daemon, "an interpreter that ends waits for it"
        thread.join(10)
    assert asked == (["nursery", "cupy", "torch"] if driver else [])
