"""Counts over time: bounded, newest last, and the names at the ends of lines do not overlap."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.search.session.progress import State
from mirage_nb.viz.history import HEIGHT, MOST, TOP, History, Moment, history_svg
from tests.browser.fake_session import snapshot
from tests.viz.svg_geometry import texts


def test_memory_is_bounded_and_the_newest_moment_is_last() -> None:
    history, shown = History(), snapshot(0.5, State.RUNNING)
    for number in range(20_000):
        history.add(replace(shown, seconds=number * 0.1, verified=number))
        assert len(history.moments) <= MOST
    moments = history.moments
    assert moments[0].seconds == 0.0 and moments[-1].verified == 19_999
    gaps = [b.seconds - a.seconds for a, b in pairwise(moments)]
    assert all(gap > 0 for gap in gaps)
    assert max(gaps[1:]) <= 4 * min(gaps[1:-1]), "evenly apart"


counts = st.integers(0, 10**9)
moments = st.lists(
    st.builds(Moment, st.floats(0, 1e4), counts, counts, counts, counts, counts, counts), min_size=0, max_size=20
).map(lambda found: sorted(found, key=lambda m: m.seconds))


@given(moments)
def test_names_lie_apart_and_inside(found: list[Moment]) -> None:
    names = [t for t in texts(history_svg(found)) if t.text.split(" ")[0] in ("pruned", "kept", "merged", "verified")]
    for a, b in pairwise(sorted(names, key=lambda t: t.top)):
        assert not a.overlaps(b)
    assert all(TOP - 12 <= t.top and t.bottom <= TOP + HEIGHT + 8 for t in names)
