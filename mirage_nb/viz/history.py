"""A search over time: how the counts of a session grew while somebody looked.

In: snapshots, as often as they come. Out: at most MOST moments, evenly apart, and an SVG of them with a logarithmic
scale. Invariant: the newest moment is always the last one, and memory is bounded however long a session runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.session.progress import Snapshot
from mirage_nb.viz import svg

MOST = 120
FIRST_GAP = 0.05
"""Seconds between the first moments; twice as long each time that every other one is dropped."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What had happened after `seconds`."""

    seconds: float
    kept: int
    merged: int
    pruned: int
    verified: int
    refuted: int
    outside_lax: int

    @classmethod
    def of(cls, snapshot: Snapshot) -> Moment:
        """The counts of a snapshot."""
        return cls(
            snapshot.seconds,
            snapshot.total(Outcome.KEPT),
            snapshot.total(Outcome.MERGED),
            sum(snapshot.total(outcome) for outcome in Outcome if outcome.name.startswith("PRUNED")),
            snapshot.verified,
            snapshot.refuted,
            snapshot.outside_lax,
        )


class History:
    """Moments of one session, thinned as they become many."""

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._gap = FIRST_GAP

    def add(self, snapshot: Snapshot) -> None:
        """Take a snapshot in; one that follows the last but one too closely replaces the last one."""
        moment = Moment.of(snapshot)
        if len(self._moments) > 1 and moment.seconds - self._moments[-2].seconds < self._gap:
            self._moments[-1] = moment
        else:
            self._moments.append(moment)
        if len(self._moments) > MOST:
            del self._moments[1:-1:2]
            self._gap *= 2

    @property
    def moments(self) -> tuple[Moment, ...]:
        """Oldest first."""
        return tuple(self._moments)


LINES = {
    "pruned": ("expression", "6 3"),
    "kept": ("kept", ""),
    "merged": ("merged", "2 2"),
    "verified": ("kernel", ""),
    "refuted": ("shift", "8 2 2 2"),
    "outside_lax": ("types", "4 4"),
}
"""Field of `Moment` -> CSS variable of its colour, dashes that repeat it."""

WIDTH, HEIGHT, LEFT, TOP, SIZE = 490.0, 150.0, 44.0, 10.0, 11.0
NAMES = 104.0

STYLE = "".join(
    f".mir .over-{name}{{fill:none;stroke:var(--mir-{colour});stroke-width:1.8;"
    f"{f'stroke-dasharray:{dashes};' if dashes else ''}}}"
    for name, (colour, dashes) in LINES.items()
)


def history_svg(moments: Sequence[Moment]) -> str:
    """One line per count; its name and last value stand at its end."""
    most = max((getattr(m, f.name) for m in moments for f in fields(Moment)[1:]), default=0)
    decades = max(1, math.ceil(math.log10(max(most, 10))))
    last = max((m.seconds for m in moments), default=0.0) or 1.0
    right = WIDTH - NAMES
    parts: list[str] = []
    for power in range(0, decades + 1, max(1, math.ceil(decades / 5))):
        y = _height(10.0**power, decades)
        parts.append(svg.element("path", d=f"M{LEFT:.1f} {y:.1f}H{right:.1f}", cls="over-grid"))
        parts.append(svg.label(_short(10**power), LEFT - 5.0, y, SIZE, cls="soft", anchor="end"))
    for share in (0.0, 0.5, 1.0):
        x = LEFT + share * (right - LEFT)
        anchor = "start" if share == 0.0 else "end" if share == 1.0 else "middle"
        parts.append(svg.label(f"{last * share:.3g} s", x, TOP + HEIGHT + 11.0, SIZE, cls="soft", anchor=anchor))
    ends = {}
    for name in LINES:
        points = [(LEFT + m.seconds / last * (right - LEFT), getattr(m, name)) for m in moments]
        seen = [(x, _height(count, decades)) for x, count in points if count > 0]
        if seen:
            d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in seen)
            words = svg.element("title", f"{_words(name)}: {points[-1][1]:,}")
            parts.append(svg.element("path", words, d=d, cls=f"over-{name}"))
            ends[name] = seen[-1][1]
    for name, y in _apart(ends).items():
        parts.append(svg.element("path", d=f"M{right + 2:.1f} {y:.1f}h12", cls=f"over-{name}"))
        parts.append(svg.label(f"{_words(name)} {_short(getattr(moments[-1], name))}", right + 17.0, y, SIZE))
    style = STYLE + ".mir .over-grid{fill:none;stroke:var(--mir-line);stroke-width:.7}"
    return svg.document(WIDTH, TOP + HEIGHT + 20.0, "counts over time, logarithmic", parts, style)


def _height(count: float, decades: int) -> float:
    return TOP + HEIGHT * (1.0 - math.log10(max(count, 1.0)) / decades)


def _apart(ends: dict[str, float]) -> dict[str, float]:
    """The places of the names: near the ends of their lines, a line of text apart, inside the picture."""
    gap = SIZE + 2.5
    placed: dict[str, float] = {}
    y = TOP - gap
    for name in sorted(ends, key=ends.__getitem__):
        y = max(y + gap, ends[name])
        placed[name] = y
    limit = TOP + HEIGHT
    for name in reversed(placed):
        placed[name] = limit = min(placed[name], limit)
        limit -= gap
    return placed


def _words(name: str) -> str:
    return name.replace("_lax", " LAX")


def _short(count: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)
