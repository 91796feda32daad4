"""The computation space of a product, coloured by the instructions that cover it.

In: a tessellation, a tile program, or the plan of a block. Out: an SVG with one panel for every stretch of the summed
axis and of the batch that is covered alike, rows down, columns across, and a legend with what each kind takes. Of a
tile program, a panel for each block's tile of results, in the parts of its roles; of others one for every product,
in the parts of its warps, padding included, or as the threads of a thread graph compute it. Invariant: areas of a panel
do not overlap and fill it, because the cover does; to scale, but nothing is drawn thinner than can be seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirage_nb.ir import DType, OpKind, ThreadGraph
from mirage_nb.optimize.plan import BlockPlan, Staged
from mirage_nb.tile.instructions.groups import ROWS
from mirage_nb.tile.instructions.table import Unit
from mirage_nb.tile.instructions.tessellation import Tessellation
from mirage_nb.tile.roles.program import Product, Program, flat
from mirage_nb.tile.rules.sharing import Tiling
from mirage_nb.tile.rules.sketch import pairs
from mirage_nb.viz import svg
from mirage_nb.viz.raster import png_bundle, with_png
from mirage_nb.viz.shapes import SMALL

LONGEST = 300.0
"""Pixels of a panel's longer side."""
LEAST, FINEST = 9.0, 4.0
"""Pixels: an area at least, and instructions that are drawn one by one."""
LEFT, TOP, GAP, LEGEND = 46.0, 38.0, 30.0, 20.0
COLOURS = {Unit.TENSOR: ("kernel", "merged", "thread"), Unit.PLAIN: ("loop", "canonical", "block")}
"""Of the kinds of each unit, in the order in which they appear."""
STYLE = "".join(
    f".mir .tx-{name}{{fill:var(--mir-{name});fill-opacity:.3;stroke:var(--mir-{name});stroke-width:1.2}}"
    f".mir .txl-{name}{{fill:none;stroke:var(--mir-{name});stroke-width:.6;stroke-opacity:.6}}"
    f".mir .txn-{name}{{paint-order:stroke;stroke-width:5;"
    f"stroke:color-mix(in srgb,var(--mir-{name}) 30%,var(--mir-ground))}}"
    for name in sorted({name for names in COLOURS.values() for name in names})
)
Span = tuple[int, int]
"""First element, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Area:
    """Rows and columns that one kind covers by instructions of `step` rows and columns. who: a role, or none."""

    kind: str
    unit: Unit
    rows: Span
    columns: Span
    step: tuple[int, int]
    who: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A plane of rows and columns, and what it is a plane of."""

    title: str
    rows: int
    columns: int
    areas: tuple[Area, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture for notebooks and pages, and what it says in words."""

    svg: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """The picture, and a PNG of it for those who trust nobody."""
        return {"text/html": with_png(self.svg, self.svg), "text/plain": self.text, **png_bundle(self.svg)}


def tessellation_drawing(found: Tessellation) -> Drawing:
    """A cover of a space m x n x k x batch."""
    panels, legend = tuple(_planes(found)), _legend(found)
    m, n, k, batch = found.space
    what = f"{m} x {n} x {k}" + (f" x {batch}" if batch > 1 else "")
    words = f"{what}: " + "; ".join(legend.values()) + f"; {found.cycles:,.1f} cycles"
    return Drawing(_document(panels, legend, f"a cover of {words}"), words)


def program_drawing(program: Program) -> Drawing:
    """The results of a block's turn, each in the parts of the roles that multiply."""
    return _of_rows(tuple(_tiles(program)))


def block_drawing(plan: BlockPlan) -> Drawing | None:
    """The products of a block that is no tile program; None if it has none."""
    panels = tuple(_products(plan))
    return _of_rows(panels) if panels else None


def _of_rows(panels: tuple[Panel, ...]) -> Drawing:
    """Panels whose kinds are rows of the instruction table."""
    legend: dict[str, str] = {}
    for area in (area for panel in panels for area in panel.areas):
        row = ROWS[area.kind]
        legend.setdefault(
            area.kind, f"{area.kind}: {row.unit.value} cores, {_cycles(row.cycles)} for {row.m} x {row.n} x {row.k}"
        )
    words = "; ".join(legend.values())
    return Drawing(_document(panels, legend, f"a block's tile by instruction: {words}"), words)


def _cycles(count: float) -> str:
    """A part of one as a fraction."""
    return f"{count:,.4g} cycles" if count >= 1 else f"1/{1 / count:,.4g} of a cycle"


def _planes(found: Tessellation) -> Iterator[Panel]:
    """Stretches of the summed axis and of the batch between the ends of regions."""
    m, n, k, batch = found.space
    ends = [sorted({0, e, *(x for r in found.regions for x in (r.at[a], r.at[a] + r.extents[a]))})
            for a, e in ((2, k), (3, batch))]  # fmt: skip
    for (b, b_end), (first, last) in itertools.product(itertools.pairwise(ends[1]), itertools.pairwise(ends[0])):
        areas = tuple(
            Area(r.kind.name, r.kind.unit, _span(r.at[0], r.extents[0]), _span(r.at[1], r.extents[1]),
                 (r.kind.extents[0], r.kind.extents[1]))
            for r in found.regions
            if r.at[2] <= first < r.at[2] + r.extents[2] and r.at[3] <= b < r.at[3] + r.extents[3]
        )  # fmt: skip
        parts = [f"k {first}:{last}"] + ([f"batch {b}:{b_end}"] if batch > 1 else [])
        yield Panel(", ".join(parts), m, n, areas)


def _span(first: int, extent: int) -> Span:
    return first, first + extent


def _legend(found: Tessellation) -> dict[str, str]:
    """For every kind: what it covers, and its cycles."""
    lines: dict[str, str] = {}
    for name in dict.fromkeys(region.kind.name for region in found.regions):
        regions = [region for region in found.regions if region.kind.name == name]
        kind, count = regions[0].kind, sum(region.instances for region in regions)
        size = " x ".join(map(str, kind.extents[:3]))
        lines[name] = f"{name} ({kind.unit.value} cores): {count:,} of {size}, {count * kind.cycles:,.1f} cycles"
    return lines


def _tiles(program: Program) -> Iterator[Panel]:
    """Every tile of results, and who multiplies which part of it by what."""
    found: dict[tuple[str, ...], list[Area]] = {}
    for role in program.roles:
        for product in (s for s in flat(program.statements(role.name)) if isinstance(s, Product)):
            row, result = ROWS[product.instruction], program.tile(product.result)
            one = row.texel.source
            areas = found.setdefault((*result.axes, product.left, product.right), [])
            for part in range(role.parts):
                starts = [i.const + sum(f * part for _, f in i.terms) for i in (product.row, product.column)]
                rows, columns = (_span(at, extent) for at, extent in zip(starts, result.shape, strict=True))
                step = (row.m, row.n) if one.extents[:2] == (1, 1) else (one.m, one.n)
                who = f"{role.name} {part}" if role.parts > 1 else role.name
                areas.append(Area(product.instruction, row.unit, rows, columns, step, who))
    for (*axes, left, right), drawn in found.items():
        areas = list(dict.fromkeys(drawn))
        extents = [max(getattr(area, side)[1] for area in areas) for side in ("rows", "columns")]
        title = f"{left} @ {right}: {extents[0]} x {extents[1]} along {axes[0]}, {axes[1]}"
        yield Panel(title, extents[0], extents[1], tuple(areas))


def _products(plan: BlockPlan) -> Iterator[Panel]:
    """Every product, by the instructions of its warps or of single threads."""
    for index, (op, values) in enumerate(plan.block.definitions()):
        if isinstance(op.body, ThreadGraph):
            types = op.body.types
            made = [(part.inputs, v) for part, (v,) in op.body.definitions() if part.kind is OpKind.MATMUL]
        else:
            types = plan.block.types
            made = [(pair, values[0]) for pair in pairs(op.kind, op.inputs)]
        for (left, right), value in made:
            (*_, m, n), dtype = types[value].shape, types[left].dtype
            tiling = (plan.staged or Staged()).tiling(index)
            areas = [Area(f"fma.m1n1k1.{DType.F32.value}", Unit.PLAIN, (0, m), (0, n), (1, 1), "threads")]
            if tiling is not None:
                areas = list(_warps(tiling, f"mma.m16n8k16.{dtype.value}"))
                m, n = (max(getattr(area, side)[1] for area in areas) for side in ("rows", "columns"))
            yield Panel(f"{types[left]} @ {types[right]}", m, n, tuple(areas))


def _warps(tiling: Tiling, kind: str) -> Iterator[Area]:
    """The results of the warps that share rows and columns of one matrix, as instructions pad them."""
    (_, down, across, _), (_, high, wide, _) = tiling.split, tiling.per_warp
    one = ROWS[kind]
    for row, column in itertools.product(range(down), range(across)):
        spans = _span(row * high * one.m, high * one.m), _span(column * wide * one.n, wide * one.n)
        step = (one.m, one.n)
        if tiling.swapped:
            spans, step = spans[::-1], step[::-1]
        yield Area(kind, one.unit, *spans, step, f"warps {row * across + column}")


def _document(panels: Sequence[Panel], legend: dict[str, str], summary: str) -> str:
    """Panels side by side, the legend below."""
    colours = _colours(panels)
    parts, x, height = list[str](), 0.0, 0.0
    for panel in panels:
        drawn, (wide, high) = _panel(panel, colours)
        parts.append(svg.move(x, 0.0, drawn))
        x, height = x + wide + GAP, max(height, high)
    width, y = x - GAP, height + 12.0
    for kind, words in legend.items():
        parts.append(svg.rect(LEFT, y, 14.0, 12.0, f"tx-{colours[kind]}", 2))
        parts.append(svg.label(words, LEFT + 22.0, y + 6.0, SMALL))
        width = max(width, LEFT + 26.0 + svg.text_width(words, SMALL))
        y += LEGEND
    return svg.document(width + 4.0, y + 4.0, summary, parts, STYLE)


def _colours(panels: Sequence[Panel]) -> dict[str, str]:
    """A colour for every kind; those of a unit go round where there are more kinds."""
    found: dict[str, str] = {}
    for unit, names in COLOURS.items():
        kinds = dict.fromkeys(a.kind for panel in panels for a in panel.areas if a.unit is unit)
        found |= dict(zip(kinds, itertools.cycle(names), strict=False))
    return found


def _panel(panel: Panel, colours: dict[str, str]) -> tuple[list[str], tuple[float, float]]:
    """One plane, and its size with all that is written beside it."""
    scale = LONGEST / max(panel.rows, panel.columns)
    down = _places([area.rows for area in panel.areas], panel.rows, scale)
    across = _places([area.columns for area in panel.areas], panel.columns, scale)
    wide, high = across[panel.columns], down[panel.rows]
    parts = [svg.label(panel.title, LEFT, 10.0, SMALL)]
    for area in panel.areas:
        x, y = LEFT + across[area.columns[0]], TOP + down[area.rows[0]]
        w, h = across[area.columns[1]] - across[area.columns[0]], down[area.rows[1]] - down[area.rows[0]]
        words = f"{area.kind}: rows {area.rows[0]}:{area.rows[1]}, columns {area.columns[0]}:{area.columns[1]}"
        title = svg.element("title", f"{area.who}, {words}" if area.who else words)
        colour = colours[area.kind]
        parts.append(
            svg.element("g", [title, svg.rect(x, y, w, h, f"tx-{colour}", 0), *_grid(area, (x, y, w, h), colour)])
        )
        name = area.who or area.kind
        if h >= SMALL + 3.0 and svg.text_width(name, SMALL) + 6.0 <= w:
            parts.append(svg.label(name, x + w / 2, y + h / 2, SMALL, cls=f"txn-{colour}", anchor="middle"))
    parts += _ticks(across, panel.columns, upright=False) + _ticks(down, panel.rows, upright=True)
    return parts, (LEFT + max(wide, svg.text_width(panel.title, SMALL)) + 4.0, TOP + high + 4.0)


def _places(spans: Sequence[Span], extent: int, scale: float) -> dict[int, float]:
    """Where the ends of spans are drawn: to scale, and apart from each other."""
    ends = sorted({0, extent, *(end for span in spans for end in span)})
    found = {0: 0.0}
    for before, end in itertools.pairwise(ends):
        found[end] = found[before] + max(LEAST, (end - before) * scale)
    return found


def _grid(area: Area, box: tuple[float, float, float, float], colour: str) -> list[str]:
    """The single instructions, where they are large enough to be seen."""
    x, y, w, h = box
    rows, columns = (
        (span[1] - span[0]) / step for span, step in zip((area.rows, area.columns), area.step, strict=True)
    )
    found = []
    if rows > 1 and h / rows >= FINEST:
        found += [f"M{x:.1f} {y + h * n / rows:.1f}h{w:.1f}" for n in range(1, round(rows))]
    if columns > 1 and w / columns >= FINEST:
        found += [f"M{x + w * n / columns:.1f} {y:.1f}v{h:.1f}" for n in range(1, round(columns))]
    return [svg.element("path", d="".join(found), cls=f"txl-{colour}")] if found else []


def _ticks(places: dict[int, float], extent: int, *, upright: bool) -> list[str]:
    """The numbers of rows or columns at the ends of areas, where there is room between them."""
    found, last = [], -100.0
    for end, at in sorted(places.items(), key=lambda place: (place[0] not in (0, extent), place[0])):
        room = SMALL + 2.0 if upright else svg.text_width(str(extent), SMALL) + 6.0
        if end not in (0, extent) and (at - last < room or places[extent] - at < room):
            continue
        last = at if end != extent else 0.0
        x, y = (LEFT - 6.0, TOP + at) if upright else (LEFT + at, TOP - 9.0)
        found.append(svg.label(str(end), x, y, SMALL, cls="soft", anchor="end" if upright else "middle"))
    return found
