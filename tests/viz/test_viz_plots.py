"""The numbers behind the matplotlib figures."""

from __future__ import annotations

from collections import defaultdict

import pytest

pytest.importorskip("matplotlib")

from mirage_nb.search.events import Outcome
from mirage_nb.viz.plots import COLOUR, pruning_figure, speedup_figure
from tests.browser.fake_session import snapshot


def test_shares_add_up_at_every_depth() -> None:
    figure = pruning_figure(snapshot().counts)
    tops: dict[float, float] = defaultdict(float)
    for bar in figure.axes[1].patches:
        tops[bar.get_x()] = max(tops[bar.get_x()], bar.get_y() + bar.get_height())
    assert len(tops) == len({depth for depth, _ in snapshot().counts})
    assert list(tops.values()) == pytest.approx([1.0] * len(tops))
    assert set(COLOUR) == set(Outcome)


def test_no_counts_make_an_empty_figure() -> None:
    assert len(pruning_figure({}).axes[1].patches) == 0


def test_bars_are_relative_to_the_fastest_other_system() -> None:
    figure = speedup_figure({"a": {"ours": 5.0, "x": 10.0, "y": 20.0}, "b": {"ours": 8.0, "x": 4.0}}, "ours")
    heights = sorted(bar.get_height() for bar in figure.axes[0].patches)
    assert heights == pytest.approx([0.5, 0.5, 1.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="a: needs"):
        speedup_figure({"a": {"ours": 1.0}}, "ours")
