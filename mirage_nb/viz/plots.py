"""Figures for reports: pruning, speed-ups, roofline, time to first and best, ablation. Needs matplotlib.

In: `Counts`, measured times in microseconds, or seconds of searches. Out: `matplotlib.figure.Figure`, made without
pyplot, so that nothing is shown or kept unless the caller does so. Colours follow Okabe and Ito; hatches, markers and
labels repeat them. Notebooks show them in the colours of their page (`mirage_nb.viz.figures`); saved ones are white, or
have the ground of the `Theme` that they were made with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirage_nb.search.saturation.events import Counts, Outcome
from mirage_nb.targets import Target
from mirage_nb.viz.figures import themed


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of the ground, of texts, and of lines that are not data."""

    ground: str
    ink: str
    soft: str


LIGHT = Theme("#ffffff", "#1f2328", "#8f8f8f")
DARK = Theme("#16181c", "#e6e6e6", "#8f8f8f")

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


def pruning_figure(counts: Counts, title: str = "", theme: Theme = LIGHT) -> Figure:
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
    return _dressed(figure, title, theme)


def _below(counts: Counts, depths: Sequence[int], outcome: Outcome) -> list[float]:
    """The share of the outcomes that are drawn below this one."""
    earlier = list(Outcome)[: list(Outcome).index(outcome)]
    return [_count(counts, depth, earlier) / _count(counts, depth, list(Outcome)) for depth in depths]


def _count(counts: Counts, depth: int, outcomes: Sequence[Outcome]) -> int:
    return sum(counts.get((depth, outcome), 0) for outcome in outcomes)


def speedup_figure(
    times: Mapping[str, Mapping[str, float]], ours: str, title: str = "", theme: Theme = LIGHT
) -> Figure:
    """Grouped bars of the speed relative to the fastest other system, one group per workload.

    Args:
        times: workload -> system -> microseconds, all positive.
        ours: the system whose bar carries its speed-up.
        title: the figure's title.
        theme: its colours.

    Raises:
        ValueError: a workload has no time of `ours`, or no other system.
    """
    for workload, row in times.items():
        if ours not in row or len(row) < 2:
            raise ValueError(f"{workload}: needs a time of {ours} and of another system")
    shown = {w: {system: _fastest(row, ours) / us for system, us in row.items()} for w, row in times.items()}
    figure = _grouped(shown, ours, "speed / fastest other system", labelled=(ours,))
    return _dressed(figure, title, theme)


def _fastest(row: Mapping[str, float], ours: str) -> float:
    return min(time for system, time in row.items() if system != ours)


def ablation_figure(
    times: Mapping[str, Mapping[str, float]], whole: str, title: str = "", theme: Theme = LIGHT
) -> Figure:
    """How much slower each workload gets with one thing left out, one group per workload.

    Args:
        times: workload -> variant -> microseconds, all positive.
        whole: the variant that leaves nothing out.
        title: the figure's title.
        theme: its colours.

    Raises:
        ValueError: a workload has no time of `whole`.
    """
    for workload, row in times.items():
        if whole not in row:
            raise ValueError(f"{workload}: needs a time of {whole}")
    shown = {w: {name: us / row[whole] for name, us in row.items() if name != whole} for w, row in times.items()}
    variants = tuple(dict.fromkeys(name for row in shown.values() for name in row))
    return _dressed(_grouped(shown, "", f"time / {whole}", labelled=variants), title, theme)


def _grouped(shown: Mapping[str, Mapping[str, float]], first: str, label: str, labelled: Sequence[str]) -> Figure:
    """Bars by workload and system; those of `first` stand first, those of `labelled` carry their numbers."""
    systems = sorted(dict.fromkeys(name for row in shown.values() for name in row), key=lambda name: name != first)
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
        if system in labelled:
            form, size = ("{:.2f}×", 8.0) if len(labelled) == 1 else ("{:.2f}", 6.5)  # neighbours may not touch
            axes.bar_label(drawn, [form.format(h) for h in heights], fontsize=size, padding=2)
    axes.axhline(1.0, color=LIGHT.soft, linewidth=0.8)
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


def roofline_figure(points: Sequence[Point], target: Target, title: str = "", theme: Theme = LIGHT) -> Figure:
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
        axes.plot([start, high], [roof, roof], style, color=LIGHT.soft)
        axes.text(high, roof * 1.08, name, ha="right", fontsize=8)
    slope = target.device_bandwidth / 1e3
    axes.plot([low, ridge], [low * slope, target.tensor_rate], "-", color=LIGHT.soft)
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
    return _dressed(figure, title, theme)


def first_and_best_figure(
    searches: Mapping[str, tuple[float, float, float]], title: str = "", theme: Theme = LIGHT
) -> Figure:
    """When the first verified muGraph was there, when the best one, and when the search ended.

    Args:
        searches: name -> seconds until the first one, until the best one, until the end.
        title: the figure's title.
        theme: its colours.

    Raises:
        ValueError: seconds that do not grow in this order.
    """
    for name, (first, best, end) in searches.items():
        if not 0 <= first <= best <= end:
            raise ValueError(f"{name}: seconds to first, best and end are {first:g}, {best:g}, {end:g}")
    figure = Figure(figsize=(6.4, 1.5 + 0.36 * max(1, len(searches))), layout="constrained")
    axes = figure.subplots()
    rows = range(len(searches))
    times = [tuple(max(t, 1e-3) for t in row) for row in searches.values()]
    for row, (first, _, end) in zip(rows, times, strict=True):
        axes.plot([first, end], [row, row], "-", color=LIGHT.soft, linewidth=1.2)
    for column, (name, marker, colour) in enumerate(
        (("first", "o", PALETTE[4]), ("best", "D", PALETTE[0]), ("end", "|", PALETTE[5]))
    ):
        axes.plot([t[column] for t in times], rows, marker, color=colour, label=name, markersize=7, linestyle="")
    axes.set_yticks(rows, list(searches))
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="seconds")
    axes.margins(y=0.1 if len(searches) > 1 else 0.5)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8, ncols=3)
    return _dressed(figure, title, theme)


def _dressed(figure: Figure, title: str, theme: Theme) -> Figure:
    """Title and colours: ground, texts and frames in those of the theme."""
    if title:
        figure.suptitle(title)
    figure.set_facecolor(theme.ground)
    for axes in figure.axes:
        _dress_axes(axes, theme)
    legends = [*figure.legends, *(found for axes in figure.axes if (found := axes.get_legend()) is not None)]
    texts = [text for legend in legends for text in legend.get_texts()]
    texts += figure.texts  # the title is one of them
    for text in texts:
        text.set_color(theme.ink)
    return themed(figure)


def _dress_axes(axes: Axes, theme: Theme) -> None:
    axes.set_facecolor(theme.ground)
    axes.tick_params(which="both", colors=theme.ink)
    for spine in axes.spines.values():
        spine.set_color(theme.soft)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title, *axes.texts):
        text.set_color(theme.ink)
