"""Figures for reports: pruning, roofline, ablation. Needs matplotlib.

In: `Counts`, or measured times in microseconds. Out: `matplotlib.figure.Figure`, made without
pyplot, so that nothing is shown or kept unless the caller does so. Colours follow Okabe and Ito; hatches, markers and
labels repeat them. Notebooks show them in the colours of their page (`mirage_nb.viz.figures`); saved ones are white.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from mirage_nb.search.saturation.events import Counts, Outcome
from mirage_nb.targets import Target
from mirage_nb.viz.figures import themed

INK, SOFT = "#1f2328", "#8f8f8f"
"""Of texts, and of lines that are not data."""
PALETTE = ("#0072b2", "#e69f00", "#56b4e9", "#cc79a7", "#009e73", "#d55e00", "#8f8f8f")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "--")
MARKERS = "osD^vP*"

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
    return _dressed(figure, title)


def _below(counts: Counts, depths: Sequence[int], outcome: Outcome) -> list[float]:
    """The share of the outcomes that are drawn below this one."""
    earlier = list(Outcome)[: list(Outcome).index(outcome)]
    return [_count(counts, depth, earlier) / _count(counts, depth, list(Outcome)) for depth in depths]


def _count(counts: Counts, depth: int, outcomes: Sequence[Outcome]) -> int:
    return sum(counts.get((depth, outcome), 0) for outcome in outcomes)


def ablation_figure(times: Mapping[str, Mapping[str, float]], whole: str, title: str = "") -> Figure:
    """How much slower each workload gets with one thing left out, one group per workload.

    Args:
        times: workload -> variant -> microseconds, all positive.
        whole: the variant that leaves nothing out.
        title: the figure's title.

    Raises:
        ValueError: a workload has no time of `whole`.
    """
    for workload, row in times.items():
        if whole not in row:
            raise ValueError(f"{workload}: needs a time of {whole}")
    shown = {w: {name: us / row[whole] for name, us in row.items() if name != whole} for w, row in times.items()}
    return _dressed(_grouped(shown, f"time / {whole}"), title)


def _grouped(shown: Mapping[str, Mapping[str, float]], label: str) -> Figure:
    """Bars by workload and system, with their numbers."""
    systems = list(dict.fromkeys(name for row in shown.values() for name in row))
    figure = Figure(figsize=(1.6 + 1.3 * max(1, len(shown)), 3.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(1, len(systems))
    for number, system in enumerate(systems):
        bars = [
            (group + (number - (len(systems) - 1) / 2) * width, row[system])
            for group, row in enumerate(shown.values())
            if system in row
        ]
        colour, hatch = PALETTE[number % len(PALETTE)], HATCHES[number % len(HATCHES)]
        places, heights = [x for x, _ in bars], [h for _, h in bars]
        drawn = axes.bar(places, heights, width, label=system, color=colour, hatch=hatch, edgecolor="#00000055")
        axes.bar_label(drawn, [f"{h:.2f}" for h in heights], fontsize=6.5, padding=2)  # neighbours may not touch
    axes.axhline(1.0, color=SOFT, linewidth=0.8)
    axes.set_xticks(range(len(shown)), list(shown))
    axes.set_ylabel(label)
    axes.margins(y=0.15)
    if systems:
        axes.legend(frameon=False, fontsize=8)
    return figure


@dataclass(frozen=True, slots=True)
class Point:
    """One kernel on a roofline: floating-point operations, bytes of device memory, microseconds."""

    name: str
    operations: float
    nbytes: float
    microseconds: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.nbytes

    @property
    def rate(self) -> float:
        """Teraflops per second."""
        return self.operations / self.microseconds / 1e6


def roofline_figure(points: Sequence[Point], target: Target, title: str = "") -> Figure:
    """Rates against intensity under the roofs of a target: tensor cores, scalar units, device memory.

    Raises:
        ValueError: a point without bytes, operations or time.
    """
    for point in points:
        if min(point.operations, point.nbytes, point.microseconds) <= 0:
            raise ValueError(f"{point.name}: operations, bytes and microseconds have to be positive")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    ridge = target.tensor_rate * 1e3 / target.device_bandwidth
    low = min([1.0, *(point.intensity / 2 for point in points)])
    high = max([4 * ridge, *(point.intensity * 2 for point in points)])
    for roof, name, style in ((target.tensor_rate, "tensor cores", "-"), (target.vector_rate, "scalar units", "--")):
        knee = roof * 1e3 / target.device_bandwidth
        start = max(low, min(knee, high))
        axes.plot([start, high], [roof, roof], style, color=SOFT)
        axes.text(high, roof * 1.08, name, ha="right", fontsize=8)
    slope = target.device_bandwidth / 1e3
    axes.plot([low, ridge], [low * slope, target.tensor_rate], "-", color=SOFT)
    middle = (low * ridge) ** 0.5
    axes.annotate(
        f"{target.device_bandwidth:g} GB/s", (middle, middle * slope), (-6, 3), textcoords="offset points",
        ha="right", va="bottom", fontsize=8,
    )  # fmt: skip
    for number, point in enumerate(points):
        marker = MARKERS[number % len(MARKERS)]
        colour = PALETTE[(number + number // len(MARKERS)) % len(PALETTE)]  # no pair comes twice in two rounds
        axes.plot([point.intensity], [point.rate], marker, color=colour, label=point.name, markersize=7)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="teraflops per second")
    if points:
        figure.legend(frameon=False, fontsize=8, loc="outside right center")  # beside the points, however many
    return _dressed(figure, title)


def _dressed(figure: Figure, title: str) -> Figure:
    """Title and colours of texts and frames."""
    if title:
        figure.suptitle(title)
    legends = [*figure.legends, *(found for axes in figure.axes if (found := axes.get_legend()) is not None)]
    texts = [text for legend in legends for text in legend.get_texts()]
    for axes in figure.axes:
        axes.tick_params(which="both", colors=INK)
        for spine in axes.spines.values():
            spine.set_color(SOFT)
        texts += [axes.xaxis.label, axes.yaxis.label, axes.title, *axes.texts]
    for text in (*texts, *figure.texts):  # the title is one of them
        text.set_color(INK)
    return themed(figure)
