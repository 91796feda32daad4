"""Whatever stands in a file of a megabyte, reading and checking it takes seconds and megabytes."""

from __future__ import annotations

import pytest

from mirage_nb.bench.verification.hostile import HOSTILE_FILES, MEGABYTE, taken, tried
from tests.clock import cpu_limit

SECONDS, MEGABYTES = 2.0, 200


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_hostile_files_are_soon_done_with(name: str) -> None:
    text = HOSTILE_FILES[name]()
    assert len(text) <= 1.1 * MEGABYTE
    with cpu_limit(SECONDS):
        assert len(tried(text)) < 600


def test_they_fit_into_little_memory() -> None:
    """Those that took most when nothing was counted; all of them with `-m slow`."""
    assert taken("different sets of indices")[1] < MEGABYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_all_of_them_fit_into_little_memory(name: str) -> None:
    assert taken(name)[1] < MEGABYTES
