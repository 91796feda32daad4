"""One home folder for all tests of this room: what the CPU edition compiles once serves them all."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that lives as long as the test run."""
    return tmp_path_factory.mktemp("mirage_nb_home")


@pytest.fixture(autouse=True)
def mirage_home(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the fresh home per test: kernels are keyed by their text, so nothing leaks between tests."""
    monkeypatch.setenv("MIRAGE_NB_HOME", str(shared_home))
    return shared_home
