"""Races without a card: what is said of times that vary."""

from __future__ import annotations

import pytest

from mirage_nb.runtime.contest.timing import Lap, Timing
from mirage_nb.runtime.gpu import Gpu

pytest.importorskip("cupy")
pytest.importorskip("torch")
CARD = Gpu("Some card", 90, 132, "13.0", 60 * 2**20)


def test_the_longer_of_both_times_counts() -> None:
    """A norm that starts early won back to back by 1.9 to 2.5 us, lost behind others by 2.8 to 2.4, and was chosen."""
    after, chain = Timing("x", 2.8, 2.7, 2.9, 9), Timing("x", 1.9, 1.8, 2.0, 9)
    assert Lap("x", 0.0, after, chain=chain).us == 2.8 and Lap("x", 0.0, chain, chain=after).us == 2.8
    assert Lap("x", 0.0, after).us == 2.8 and Lap("x", None, None, "out of memory").us is None


def test_times_that_vary_are_doubted_when_most_of_them_do() -> None:
    from mirage_nb.runtime.contest.race import DROWNED, doubt

    steady, noisy = (Lap(f"x{high}", 0.0, Timing("x", 10.0, 9.0, high, 9)) for high in (11.0, 30.0))
    untimed = Lap("y", None, None, "out of memory")
    assert doubt([steady, steady, noisy, untimed], CARD) is None and doubt([], CARD) is None
    assert "another program may be using the Some card" in (doubt([steady, noisy, noisy, untimed], CARD) or "")
    drowned = Lap("z", 0.0, None, DROWNED)
    assert doubt([drowned, drowned, steady], CARD) and doubt([drowned, steady, steady], CARD) is None
