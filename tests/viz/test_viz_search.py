"""The bars of a search: they fill their rows and hide nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.search.saturation.events import Outcome
from mirage_nb.viz.search import BAR_WIDTH, COLOUR, SEEN, WIDTH, counts_svg
from tests.viz.svg_geometry import boxes, texts

COUNTS = st.dictionaries(st.tuples(st.integers(0, 25), st.sampled_from(Outcome)), st.integers(1, 10**9))


@given(COUNTS)
def test_bars_fill_their_row_and_hide_nothing(counts: dict[tuple[int, Outcome], int]) -> None:
    svg = counts_svg(counts)
    bars = [b for b in boxes(svg) if b.bottom - b.top > 10.5]
    assert len(bars) == len(counts)
    assert all(b.right - b.left >= SEEN - 0.11 for b in bars)
    for depth in {depth for depth, _ in counts}:
        tops = sorted({b.top for b in bars})
        row = [b for b in bars if b.top == tops[sorted({d for d, _ in counts}).index(depth)]]
        assert sum(b.right - b.left for b in row) == pytest.approx(BAR_WIDTH, abs=0.4)
        assert not any(a.overlaps(b) for i, a in enumerate(row) for b in row[i + 1 :])


@given(COUNTS)
def test_totals_are_said_in_numbers(counts: dict[tuple[int, Outcome], int]) -> None:
    shown = [t.text for t in texts(counts_svg(counts))]
    for outcome in Outcome:
        total = sum(n for (_, o), n in counts.items() if o is outcome)
        assert shown[shown.index(outcome.value) + 1] == f"{total:,}"


def test_text_stays_inside_for_large_numbers() -> None:
    counts = {(depth, outcome): 10**8 for depth in range(3) for outcome in Outcome}
    found = texts(counts_svg(counts))
    assert all(0 <= t.left and t.right <= WIDTH for t in found)
    assert [(a.text, b.text) for i, a in enumerate(found) for b in found[i + 1 :] if a.overlaps(b)] == []


def test_every_outcome_has_its_own_colour() -> None:
    assert set(COLOUR) == set(Outcome)
    assert len(set(COLOUR.values())) == len(Outcome)
    assert "no application yet" in counts_svg({})
