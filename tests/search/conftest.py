"""Fixtures of the tests of sessions: where they begin, where they write, and that they end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage_nb.search.session import session as module
from mirage_nb.search.session.session import SearchSession


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of our own for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many cores there are, the supervising thread explores first."""
    monkeypatch.setattr(module, "WIDE", 1000)


@pytest.fixture
def no_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is left to workers."""
    monkeypatch.setattr(module, "HEAD_START_SECONDS", -1.0)


@pytest.fixture
def sessions() -> Iterator[list[SearchSession]]:
    """Sessions to be ended with the test."""
    found: list[SearchSession] = []
    yield found
    for session in found:
        session.stop()
        assert session.wait(20)
