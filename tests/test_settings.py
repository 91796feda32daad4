"""What the environment says, and what it may fail to say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirage_nb.errors import OptionError
from mirage_nb.settings import multiply_by_one_thread, read_settings


def test_a_user_without_a_home_folder_names_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(OptionError, match=r"no home folder(?s:.*)MIRAGE_NB_HOME"):
        read_settings({})
    found = read_settings({"MIRAGE_NB_HOME": str(tmp_path)})
    assert found.home == tmp_path and found.store == tmp_path / "sessions.sqlite"


def test_products_are_made_by_one_thread_unless_somebody_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    multiply_by_one_thread()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    multiply_by_one_thread()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
