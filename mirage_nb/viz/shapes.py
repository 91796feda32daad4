"""The nodes of all graph pictures: an operator's box with chips and result labels, and the label of a tensor.

In: texts and CSS classes. Out: `Shape`s, that is SVG with its size and the places where edges dock.
Invariant: all text lies within its box, for every monospaced font of the usual width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from mirage_nb.viz import svg

NAME, SMALL = 12.0, 11.0
LINE, PILL = 24.0, 17.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A drawn node: its size, its SVG, and the x offsets where operands enter and results leave.

    For an operator without a body `enters` is the one number by which its operands spread from its middle.
    """

    width: float
    height: float
    parts: tuple[str, ...]
    enters: tuple[float, ...] = ()
    leaves: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Chip:
    """A small tag: text and CSS class ("" is plain text)."""

    text: str
    cls: str = ""

    @property
    def width(self) -> float:
        """Pixels."""
        return svg.text_width(self.text, SMALL) + (10.0 if self.cls else 2.0)


def operator(
    caption: str, results: Sequence[Shape], chips: Sequence[Chip] = (), least: float = 0.0, cls: str = "op"
) -> Shape:
    """An operator's box with the labels of its results beneath; at least `least` wide with its margins."""
    chip_width = sum(chip.width + 4.0 for chip in chips) - 4.0 if chips else 0.0
    inside = max(svg.text_width(caption, NAME), chip_width, 30.0) + 16.0
    width = max(inside, least, *(result.width for result in results), 0.0)
    height = LINE + (PILL + 3.0 if chips else 0.0)
    parts = [
        svg.element("title", escape(caption)),
        svg.rect((width - inside) / 2, 0.0, inside, height, cls, 5),
        svg.label(caption, width / 2, LINE / 2, NAME, anchor="middle"),
    ]
    x = (width - chip_width) / 2
    middle = LINE - 1.0 + (PILL - 1.0) / 2
    for chip in chips:
        if chip.cls:
            parts.append(svg.rect(x, LINE - 1.0, chip.width, PILL - 1.0, f"chip {chip.cls}", 7))
        cls = "" if chip.cls else "soft"
        parts.append(svg.label(chip.text, x + chip.width / 2, middle, SMALL, cls=cls, anchor="middle"))
        x += chip.width + 4.0
    for result in results:
        parts.append(svg.move((width - result.width) / 2, height, result.parts))
        height += PILL
    return Shape(width, height, tuple(parts), (inside / 2 - 4.0,), (width / 2,))


def pill(text: str, cls: str, hover: str = "") -> Shape:
    """A label with round ends."""
    width = svg.text_width(text, SMALL) + 12.0
    parts = (
        svg.element("title", escape(hover or text)),
        svg.rect(0.0, 0.0, width, PILL, f"pill {cls}", 8),
        svg.label(text, width / 2, PILL / 2, SMALL, anchor="middle"),
    )
    return Shape(width, PILL, parts, (), (width / 2,))


def tagged(shape: Shape, what: str, name: str) -> Shape:
    """The shape as a group that a page can find: `data-what="name"`."""
    return replace(shape, parts=(f"<g data-{what}='{escape(name)}'>", *shape.parts, "</g>"))


def tip(x: float, y: float) -> str:
    """An arrowhead that ends at (x, y) from above."""
    return svg.element("path", d=f"M{x:.1f} {y:.1f}l-3.5 -6h7z", cls="tip")
