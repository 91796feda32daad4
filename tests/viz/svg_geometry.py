"""Reads the geometry of a picture back from its SVG: boxes and texts in absolute coordinates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from mirage_nb.viz.svg import text_width


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float
    cls: str = ""
    text: str = ""

    def overlaps(self, other: Box) -> bool:
        return (
            min(self.right, other.right) - max(self.left, other.left) > 0.11
            and min(self.bottom, other.bottom) - max(self.top, other.top) > 0.11
        )

    def holds(self, other: Box) -> bool:
        return (
            self.left <= other.left + 0.11
            and self.top <= other.top + 0.11
            and self.right >= other.right - 0.11
            and self.bottom >= other.bottom - 0.11
        )

    @property
    def classes(self) -> set[str]:
        return set(self.cls.split())


Placed = tuple[str, ElementTree.Element, float, float]


def elements(svg: str) -> Iterator[Placed]:
    """Every element with its name and offset."""

    def walk(node: ElementTree.Element, x: float, y: float) -> Iterator[Placed]:
        moved = re.fullmatch(r"translate\((\S+) (\S+)\)", node.get("transform", ""))
        if moved:
            x, y = x + float(moved[1]), y + float(moved[2])
        yield node.tag.partition("}")[2], node, x, y
        for child in node:
            yield from walk(child, x, y)

    yield from walk(ElementTree.fromstring(svg), 0.0, 0.0)


def boxes(svg: str) -> list[Box]:
    found = []
    for name, node, x, y in elements(svg):
        if name == "rect":
            left, top = x + float(node.get("x", 0)), y + float(node.get("y", 0))
            width, height = float(node.get("width", 0)), float(node.get("height", 0))
            found.append(Box(left, top, left + width, top + height, node.get("class", "")))
    return found


def texts(svg: str) -> list[Box]:
    """The boxes of all texts, by the upper bound of their width."""
    found = []
    for name, node, x, y in elements(svg):
        if name == "text":
            size, text = float(node.get("font-size", 0)), node.text or ""
            width = text_width(text, size)
            before = {"start": 0.0, "middle": width / 2, "end": width}[node.get("text-anchor", "")]
            left = x + float(node.get("x", 0)) - before
            base = y + float(node.get("y", 0))
            top, bottom = base - 0.8 * size, base + 0.25 * size
            found.append(Box(left, top, left + width, bottom, node.get("class", ""), text))
    return found


def edge_points(svg: str) -> list[list[tuple[float, float]]]:
    """The end points of the parts of every edge."""
    found = []
    for name, node, x, y in elements(svg):
        if name == "path" and node.get("class") == "edge":
            points = []
            for part in re.findall(r"[MLC][^MLC]*", node.get("d", "")):
                numbers = [float(n) for n in part[1:].split()]
                points.append((x + numbers[-2], y + numbers[-1]))
            found.append(points)
    return found
