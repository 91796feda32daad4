"""The numbers behind the matplotlib figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from mirage_nb.search.saturation.events import Outcome
from mirage_nb.targets import find_target
from mirage_nb.viz.plots import COLOUR, INK, PALETTE, Point, ablation_figure, pruning_figure, roofline_figure
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


H200 = find_target("h200")
TIMES = {"gqa": {"whole": 5.0, "no layouts": 7.5, "no schedule": 6.0}, "lora": {"whole": 2.0, "no layouts": 2.0}}
POINTS = (Point("gqa", 4e8, 4e6, 8.0), Point("lora", 1e6, 1e6, 3.0))


FIGURES: dict[str, Callable[[], Figure]] = {
    "pruning": lambda: pruning_figure(snapshot().counts, "pruning"),
    "ablation": lambda: ablation_figure(TIMES, "whole", "ablation"),
    "roofline": lambda: roofline_figure(POINTS, H200, "roofline"),
}


def all_figures() -> dict[str, Figure]:
    return {name: draw() for name, draw in FIGURES.items()}


def test_ablations_are_relative_to_the_whole() -> None:
    heights = sorted(bar.get_height() for bar in ablation_figure(TIMES, "whole").axes[0].patches)
    assert heights == pytest.approx([1.0, 1.2, 1.5])
    with pytest.raises(ValueError, match="gqa: needs a time of all"):
        ablation_figure(TIMES, "all")


def test_rooflines_show_rates_below_their_roofs() -> None:
    figure = roofline_figure(POINTS, H200)
    drawn = {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in figure.axes[0].lines}
    assert drawn["gqa"] == pytest.approx((100.0, 50.0))
    assert drawn["lora"] == pytest.approx((1.0, 1 / 3))
    with pytest.raises(ValueError, match="empty"):
        roofline_figure([Point("empty", 0.0, 1.0, 1.0)], H200)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    a, b = sorted((luminance(one), luminance(other)))
    return (b + 0.05) / (a + 0.05)


def test_texts_stand_out_from_the_ground() -> None:
    assert contrast("#ffffff", INK) > 7
    assert all(contrast("#ffffff", colour) > 2 for colour in PALETTE)
    for name, figure in all_figures().items():
        figure.canvas.draw()
        for text in figure.findobj(Text):
            if text.get_text().strip() and text.get_visible():
                assert to_hex(text.get_color()) == INK, (name, text.get_text())
