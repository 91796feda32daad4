"""The shared fixtures do what rooms rely on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import LONG, SECONDS, function_of, known_seconds

ROOT = SECONDS.parents[1]
Golden = Callable[[str, str], None]


def test_every_test_has_a_home_of_its_own(mirage_home: Path, built: Path) -> None:
    assert os.environ["MIRAGE_NB_HOME"] == str(mirage_home)
    assert sorted(p.resolve() for p in mirage_home.iterdir()) == sorted(p.resolve() for p in built.iterdir())
    assert not mirage_home.is_relative_to(Path.home() / ".cache")


@pytest.fixture(scope="module")
def home_of_the_module() -> str:
    return os.environ["MIRAGE_NB_HOME"]


def test_longer_fixtures_have_a_home_too(home_of_the_module: str, shared_home: Path) -> None:
    assert home_of_the_module == str(shared_home)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Stands in for the command-line option."""
    return bool(getattr(request, "param", False))


@pytest.mark.parametrize("update_golden", [True], indirect=True)
def test_golden_writes_on_demand(golden: Golden, tmp_path: Path) -> None:
    golden(str(tmp_path / "deep" / "kernel.cu"), "a\n")
    assert (tmp_path / "deep" / "kernel.cu").read_text() == "a\n"


def test_golden_compares(golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text("a\nb\n")
    golden(str(path), "a\nb\n")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-b.*\+c.*--update-golden"):
        golden(str(path), "a\nc\n")
    assert path.read_text() == "a\nb\n"


def test_golden_wants_the_file(golden: Golden, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="is missing"):
        golden(str(tmp_path / "none.cu"), "")


def test_what_the_fast_group_leaves_out() -> None:
    slow = known_seconds()
    assert slow and min(slow.values()) >= LONG and {function_of(name) for name in slow} == set(slow)
    assert [name for name in slow if not (ROOT / name.partition("::")[0]).exists()] == []
