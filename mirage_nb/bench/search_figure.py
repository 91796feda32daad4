"""The figure of `bench search`: time by number of operators, and what each pruning is worth.

In: a record of `bench search`. Out: a `matplotlib.figure.Figure`, made without pyplot. Colours follow Okabe and
Ito; markers and line styles repeat them.
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirage_nb.bench.enumeration import Method

STYLES: dict[tuple[str, bool], tuple[str, str]] = {
    ("closure", True): ("#0072b2", "o"),
    ("closure", False): ("#56b4e9", "s"),
    ("Algorithm 1", True): ("#d55e00", "^"),
    ("Algorithm 1", False): ("#e69f00", "v"),
}
"""Colour and marker of a method; one worker is drawn with a full line, two with a dashed one."""
GREY = "#8f8f8f"


def draw(record: dict[str, Any], published: dict[str, dict[int, float]] | None = None) -> Figure:
    """Two panels, 9 by 4.4 inches.

    Args:
        record: as `bench search --record` writes it.
        published: seconds by operators of other systems, drawn in grey.
    """
    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.1))
    _table5(left, record, published or {})
    _prunings(right, record)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(f"{record['processor']}, {record['cores']} cores, {record['date']}", fontsize=8)
    return figure


def _table5(axes: Axes, record: dict[str, Any], published: dict[str, dict[int, float]]) -> None:
    series: dict[Method, list[tuple[int, float | None]]] = {}
    for row in record["table5"]:
        series.setdefault(Method(**row["method"]), []).append((row["operators"], row["seconds"]))
    for number, (name, times) in enumerate(published.items()):
        axes.plot(
            list(times), list(times.values()), linestyle=(0, (1, 1 + number)), color=GREY, linewidth=1.2,
            label=f"{name} (published)",
        )  # fmt: skip
    for method, points in series.items():
        colour, marker = STYLES[method.algorithm, method.pruned]
        line = "-" if method.workers == 1 else "--"
        done = [(n, s) for n, s in points if s is not None]
        over = [n for n, s in points if s is None]
        axes.plot(
            [n for n, _ in done] + over,
            [s for _, s in done] + [record["limit_s"]] * len(over),
            linestyle=line, color=colour, marker=marker, markersize=4, linewidth=1.2, label=str(method),
        )  # fmt: skip
        axes.plot(over, [record["limit_s"] * 1.35] * len(over), linestyle="none", marker="$\\uparrow$", color=colour)
    axes.set(xlabel="block operators, at most", ylabel="seconds", yscale="log")
    axes.set_title(f"{record['program']}; arrows: over {record['limit_s']:g} s", fontsize=9)
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.5)


def _prunings(axes: Axes, record: dict[str, Any]) -> None:
    rows = record["prunings"]
    names = list(dict.fromkeys(row["pruning"] for row in rows))
    base = {row["workload"]: row["kept"] for row in rows if row["pruning"] == names[0]}
    shown = names[1:]
    for capped, marker, colour, label in (
        (False, "o", "#0072b2", "saturated"),
        (True, ">", "#d55e00", "cap hit: at least"),
    ):
        points = [
            (row["kept"] / base[row["workload"]], shown.index(row["pruning"]))
            for row in rows
            if row["pruning"] in shown and row["capped"] is capped
        ]
        axes.scatter(
            [x for x, _ in points], [y for _, y in points], marker=marker, s=22, color=colour, alpha=0.75, label=label,
            linewidths=0,
        )  # fmt: skip
    axes.axvline(1.0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(shown)), shown, fontsize=8)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="values kept, relative to all prunings on")
    axes.set_title(f"one point for each of {len(base)} workloads", fontsize=9)
    axes.grid(visible=True, axis="x", color="#dddddd", linewidth=0.5)
    axes.legend(fontsize=8, frameon=False, loc="center right")
