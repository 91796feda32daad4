"""The picture of a search: how many applications were kept, merged or pruned, by depth and reason.

In: `Counts` of a snapshot. Out: an SVG with one stacked bar per depth; the bars show shares, because the
counts of neighbouring depths differ by orders of magnitude, and the number of applications stands behind
each. A share that is too small to see is drawn two pixels wide, never left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from mirage_nb.search.saturation.events import Counts, Outcome
from mirage_nb.viz import svg

COLOUR: Mapping[Outcome, str] = {
    Outcome.KEPT: "kept",
    Outcome.MERGED: "merged",
    Outcome.PRUNED_TYPE: "types",
    Outcome.PRUNED_EXPRESSION: "expression",
    Outcome.PRUNED_CANONICAL: "canonical",
    Outcome.PRUNED_SHIFT: "shift",
}
"""The CSS variable --mir-NAME that colours an outcome."""

WIDTH, ROW, BAR_LEFT, BAR_WIDTH = 520.0, 17.0, 30.0, 390.0
SIZE = 11.0
SEEN = 2.0

STYLE = "".join(f".mir .{name}{{fill:var(--mir-{name})}}" for name in COLOUR.values())


def counts_svg(counts: Counts) -> str:
    """Stacked bars by depth with a legend that carries the totals."""
    depths = sorted({depth for depth, _ in counts})
    parts = _legend(counts)
    top = ROW * ((len(Outcome) + 1) // 2) + 24.0
    parts.append(svg.label("depth", 0.0, top - 9.0, SIZE, cls="soft"))
    parts.append(svg.label("applications", WIDTH, top - 9.0, SIZE, cls="soft", anchor="end"))
    for row, depth in enumerate(depths):
        parts += _bar({o: counts.get((depth, o), 0) for o in Outcome}, depth, top + row * ROW)
    if not depths:
        parts.append(svg.label("no application yet", BAR_LEFT, top + ROW / 2, SIZE, cls="soft"))
    height = top + max(1, len(depths)) * ROW + 4.0
    total = sum(counts.values())
    return svg.document(WIDTH, height, f"{total:,} operator applications by depth and outcome", parts, STYLE)


def _legend(counts: Counts) -> list[str]:
    parts = []
    for number, outcome in enumerate(Outcome):
        x = (number % 2) * (WIDTH / 2 + 6.0)
        y = number // 2 * ROW
        total = sum(count for (_, found), count in counts.items() if found is outcome)
        parts.append(svg.rect(x, y + 3.0, 10.0, 10.0, COLOUR[outcome], 2))
        parts.append(svg.label(outcome.value, x + 15.0, y + 8.0, SIZE))
        parts.append(svg.label(f"{total:,}", x + WIDTH / 2 - 8.0, y + 8.0, SIZE, anchor="end"))
    return parts


def _bar(row: Mapping[Outcome, int], depth: int, y: float) -> list[str]:
    parts = [svg.label(str(depth), BAR_LEFT - 8.0, y + ROW / 2, SIZE, anchor="end")]
    total = sum(row.values())
    x = BAR_LEFT
    for outcome, width in _widths(row, total).items():
        hover = svg.element("title", f"depth {depth}, {outcome.value}: {row[outcome]:,}")
        parts.append(svg.element("rect", hover, x=x, y=y + 2.0, width=width, height=ROW - 4.0, cls=COLOUR[outcome]))
        x += width
    parts.append(svg.label(f"{total:,}", WIDTH, y + ROW / 2, SIZE, anchor="end"))
    return parts


def _widths(row: Mapping[Outcome, int], total: int) -> dict[Outcome, float]:
    """Pixels per outcome; those below SEEN are raised to it at the cost of the wider ones."""
    wide = {outcome: BAR_WIDTH * count / total for outcome, count in row.items() if count}
    small = {outcome for outcome, width in wide.items() if width < SEEN}
    left = BAR_WIDTH - SEEN * len(small)
    rest = sum(width for outcome, width in wide.items() if outcome not in small)
    return {o: SEEN if o in small else width * left / rest for o, width in wide.items()}
