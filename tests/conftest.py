"""Fixtures shared by all rooms: an isolated home folder, golden files, one Hypothesis profile."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadline, and none for drawing examples: shared machines pause for longer than that takes. A failure prints how to
# replay it.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files from what is emitted")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the C++ compiler made in this session: seconds of work, kept by the digest of its sources."""
    return tmp_path_factory.mktemp("built")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cells of the notebooks, which nbval collects, belong to the group `notebook`."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker("notebook")


@pytest.fixture(scope="session", autouse=True)
def shared_home(tmp_path_factory: pytest.TempPathFactory, built: Path) -> Iterator[Path]:
    """The home of fixtures that outlive one test; never the user's."""
    home = tmp_path_factory.mktemp("mirage_nb_shared")
    (home / "cpu").symlink_to(built)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_NB_HOME", str(home))
        yield home


@pytest.fixture(autouse=True)
def mirage_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, built: Path
) -> Path:
    """A fresh MIRAGE_NB_HOME for every test: none reads what another one, or a user, left behind."""
    home = tmp_path_factory.mktemp("mirage_nb_home")
    (home / "cpu").symlink_to(built)
    monkeypatch.setenv("MIRAGE_NB_HOME", str(home))
    return home


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether `--update-golden` was given."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def golden(request: pytest.FixtureRequest, update_golden: bool) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` equals the file `golden/name` beside the test; --update-golden writes."""
    folder = request.path.parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / name
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), (
            f"{path} is missing; write it with --update-golden and read it before you commit"
        )
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            old, new = expected.splitlines(), text.splitlines()
            diff = difflib.unified_diff(old, new, str(path), "emitted", lineterm="")
            pytest.fail("\n".join([*diff, "if the change is meant: --update-golden"]), pytrace=False)

    return check
