"""The figure of `bench kernels`, in the form of the paper's Figure 7. Needs matplotlib.

In: rows of a record. Out: a `matplotlib.figure.Figure`, made without pyplot: one panel per batch size, one group of
bars per workload, speed relative to ours; above our bar stands the speed-up over the best peer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirage_nb.bench.kernels import OURS

SYSTEMS: Mapping[str, tuple[str, str]] = {
    "eager": ("#8f8f8f", ""),
    "torch.compile": ("#e69f00", ""),
    "torch.compile max-autotune": ("#f0e442", "//"),
    "best attention kernel": ("#56b4e9", ""),
    OURS: ("#0072b2", ""),
}
"""Face colour (Okabe and Ito) and hatch, in the order of the bars. All kernels of PyTorch for attention are one."""


def bars(row: Mapping[str, Any]) -> dict[str, float]:
    """Microseconds by system; several attention kernels count as their best."""
    found: dict[str, float] = {}
    for name, us in row["peers"].items():
        system = name if name in SYSTEMS else "best attention kernel"
        found[system] = min(us, found.get(system, us))
    if row["ours_us"]:
        found[OURS] = row["ours_us"]
    return found


def kernels_figure(rows: Sequence[Mapping[str, Any]], title: str = "") -> Figure:
    """Panels of bars. Workloads without a time of ours are drawn relative to their best peer."""
    batches = sorted({row["B"] for row in rows})
    widest = max((sum(row["B"] == batch for row in rows) for batch in batches), default=1)
    figure = Figure(figsize=(2.2 + 1.05 * widest, 1.0 + 2.7 * max(1, len(batches))), layout="constrained")
    panels = figure.subplots(max(1, len(batches)), 1, squeeze=False)
    for (axes,), batch in zip(panels, batches, strict=False):
        _panel(axes, [row for row in rows if row["B"] == batch])
        axes.set_ylabel(f"B = {batch}\nspeed / ours")
    handles = {label: h for (axes,) in panels for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(SYSTEMS), frameon=False)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _panel(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    width = 0.84 / len(SYSTEMS)
    for number, (system, (colour, hatch)) in enumerate(SYSTEMS.items()):
        shift = (number - (len(SYSTEMS) - 1) / 2) * width
        times = [bars(row) for row in rows]
        drawn = [(n, _unit(t) / t[system]) for n, t in enumerate(times) if system in t]
        if not drawn:
            continue
        places, heights = [n + shift for n, _ in drawn], [h for _, h in drawn]
        made = axes.bar(places, heights, width, label=system, color=colour, hatch=hatch)
        if system == OURS:
            labels = [f"{min(u for s, u in times[n].items() if s != OURS) / times[n][OURS]:.2f}×"
                      if len(times[n]) > 1 else "" for n, _ in drawn]  # fmt: skip
            axes.bar_label(made, labels, fontsize=8, padding=2)
    for place, row in enumerate(rows):
        if OURS not in bars(row):
            axes.text(place + 2 * width, 0.02, "not timed", rotation=90, ha="center", fontsize=8)
    axes.axhline(1.0, color="#8f8f8f", linewidth=0.8)
    axes.set_xticks(range(len(rows)), [row["workload"] for row in rows], rotation=12)
    axes.margins(y=0.15)


def _unit(times: Mapping[str, float]) -> float:
    return times.get(OURS, min(times.values()))
