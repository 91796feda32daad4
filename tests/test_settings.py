"""What the environment says, and what it may fail to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_nb.errors import OptionError
from mirage_nb.settings import read_settings


def test_a_user_without_a_home_folder_names_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(OptionError, match=r"no home folder(?s:.*)MIRAGE_NB_HOME"):
        read_settings({})
    found = read_settings({"MIRAGE_NB_HOME": str(tmp_path)})
    assert found.home == tmp_path and found.store == tmp_path / "sessions.sqlite"
