"""Figures for reports: pruning by depth, and times against baselines. Needs matplotlib.

In: `Counts`, or measured times in microseconds. Out: `matplotlib.figure.Figure`, made without pyplot, so that
nothing is shown or kept unless the caller does so. Colours follow Okabe and Ito; hatches repeat them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirage_nb.search.events import Counts, Outcome

COLOUR: Mapping[Outcome, tuple[str, str]] = {
    Outcome.KEPT: ("#009e73", ""),
    Outcome.MERGED: ("#56b4e9", "//"),
    Outcome.PRUNED_TYPE: ("#8f8f8f", "\\\\"),
    Outcome.PRUNED_EXPRESSION: ("#d55e00", ""),
    Outcome.PRUNED_CANONICAL: ("#e69f00", "xx"),
    Outcome.PRUNED_SHIFT: ("#cc79a7", ".."),
}
"""Face colour and hatch."""


def pruning_figure(counts: Counts, title: str = "") -> Figure:
    """Two panels over the depth: applications on a logarithmic scale, and their shares by outcome."""
    depths = sorted({depth for depth, _ in counts})
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for outcome, (colour, hatch) in COLOUR.items():
        numbers = [counts.get((depth, outcome), 0) for depth in depths]
        seen = [(d, n) for d, n in zip(depths, numbers, strict=True) if n]
        left.plot([d for d, _ in seen], [n for _, n in seen], "o-", color=colour, label=outcome.value)
        totals = [_count(counts, depth, list(Outcome)) for depth in depths]
        shares = [n / total for n, total in zip(numbers, totals, strict=True)]
        right.bar(depths, shares, bottom=_below(counts, depths, outcome), color=colour, hatch=hatch)
    left.set(xlabel="depth (operators)", ylabel="applications", yscale="log" if depths else "linear")
    right.set(xlabel="depth (operators)", ylabel="share", ylim=(0.0, 1.0))
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False)
    if title:
        figure.suptitle(title)
    return figure


def _below(counts: Counts, depths: Sequence[int], outcome: Outcome) -> list[float]:
    """The share of the outcomes that are drawn below this one."""
    earlier = list(Outcome)[: list(Outcome).index(outcome)]
    return [_count(counts, depth, earlier) / _count(counts, depth, list(Outcome)) for depth in depths]


def _count(counts: Counts, depth: int, outcomes: Sequence[Outcome]) -> int:
    return sum(counts.get((depth, outcome), 0) for outcome in outcomes)


def speedup_figure(times: Mapping[str, Mapping[str, float]], ours: str, title: str = "") -> Figure:
    """Grouped bars of the speed relative to the fastest other system, one group per workload.

    Args:
        times: workload -> system -> microseconds, all positive.
        ours: the system whose bar carries its speed-up.
        title: the figure's title.

    Raises:
        ValueError: a workload has no time of `ours`, or no other system.
    """
    for workload, row in times.items():
        if ours not in row or len(row) < 2:
            raise ValueError(f"{workload}: needs a time of {ours} and of another system")
    systems = list(dict.fromkeys(system for row in times.values() for system in row))
    figure = Figure(figsize=(1.6 + 1.3 * len(times), 3.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(systems)
    palette = ("#0072b2", "#e69f00", "#56b4e9", "#cc79a7", "#8f8f8f", "#f0e442")
    for number, system in enumerate(sorted(systems, key=lambda s: s != ours)):
        bars = [
            (group + (number - (len(systems) - 1) / 2) * width, _fastest(row, ours) / row[system])
            for group, row in enumerate(times.values())
            if system in row
        ]
        places, heights = [x for x, _ in bars], [h for _, h in bars]
        drawn = axes.bar(places, heights, width, label=system, color=palette[number % len(palette)])
        if system == ours:
            axes.bar_label(drawn, [f"{h:.2f}×" for h in heights], fontsize=8, padding=2)
    _finish(axes, list(times), title)
    return figure


def _fastest(row: Mapping[str, float], ours: str) -> float:
    return min(time for system, time in row.items() if system != ours)


def _finish(axes: Axes, groups: Sequence[str], title: str) -> None:
    axes.axhline(1.0, color="#8f8f8f", linewidth=0.8)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel("speed / fastest other system")
    axes.margins(y=0.15)
    axes.legend(frameon=False, fontsize=8)
    if title:
        axes.set_title(title)
