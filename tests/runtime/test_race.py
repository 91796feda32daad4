"""Races without a card: what is said of times that vary."""

from __future__ import annotations

import pytest

from mirage_nb.runtime.gpu import Gpu
from mirage_nb.runtime.timing import Timing

pytest.importorskip("cupy")
pytest.importorskip("torch")
CARD = Gpu("Some card", 90, 132, "13.0", 60 * 2**20)


def test_times_that_vary_are_doubted_when_most_of_them_do() -> None:
    from mirage_nb.runtime.race import Lap, doubt

    steady, noisy = (Lap(f"x{high}", 0.0, Timing("x", 10.0, 9.0, high, 9)) for high in (11.0, 30.0))
    untimed = Lap("y", None, None, "out of memory")
    assert doubt([steady, steady, noisy, untimed], CARD) is None and doubt([], CARD) is None
    assert "another program may be using the Some card" in (doubt([steady, noisy, noisy, untimed], CARD) or "")
