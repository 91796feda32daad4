"""Layered drawing of small directed graphs (the method of Sugiyama, Tagawa and Toda).

In: nodes with a size and a layer, edges with the places where they leave and enter. Out: node positions and
edge routes, all coordinates in pixels from the top left corner. Invariants: nodes of one layer do not
overlap; an edge runs vertically through a layer and bends only between layers, so no edge crosses a node.

Long edges are split by dummy nodes, shared by edges of one source; the order inside the layers is found by
barycentre sweeps that keep the order with the fewest crossings; the x coordinates minimise the bends of the
edges layer by layer, each layer exactly, as an isotonic regression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

DUMMY_WIDTH = 6.0
NODE_GAP = 18.0
LAYER_GAP = 30.0
SWEEPS = 12


@dataclass(frozen=True, slots=True)
class Node:
    """Width and height in pixels; layer counted from 0 at the top."""

    width: float
    height: float
    layer: int


@dataclass(frozen=True, slots=True)
class Edge:
    """From the bottom of `source` to the top of `target`; the offsets are counted from their left sides."""

    source: int
    target: int
    source_at: float
    target_at: float


Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Layout:
    """Left top corners of the nodes, routes of the edges (from top to bottom), size of the whole."""

    corners: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    layers: tuple[tuple[float, float], ...]
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class _Link:
    """Part of an edge between neighbouring layers."""

    upper: int
    lower: int
    upper_at: float
    lower_at: float
    weight: float


def longest_path(edges: Iterable[tuple[int, int]], at_least: Sequence[int]) -> list[int]:
    """The smallest layers, not below `at_least`, in which every edge leads downwards.

    Edges go from smaller to larger node numbers.
    """
    layers = list(at_least)
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layers[target] = max(layers[target], layers[source] + 1)
    return layers


def place(nodes: Sequence[Node], edges: Sequence[Edge]) -> Layout:
    """Lay the graph out. Every edge must lead to a layer below that of its source."""
    layers, links, chains = _split(nodes, edges)
    widths = [node.width for node in nodes] + [DUMMY_WIDTH] * (sum(map(len, layers)) - len(nodes))
    _order(layers, links, widths)
    left = _columns(layers, links, widths)
    bounds = _rows(nodes, len(layers))
    corners = tuple(
        (left[i], bounds[node.layer][0] + (bounds[node.layer][1] - bounds[node.layer][0] - node.height) / 2)
        for i, node in enumerate(nodes)
    )
    routes = []
    for edge, chain in zip(edges, chains, strict=True):
        x, y = corners[edge.source]
        x += edge.source_at
        route = [(x, y + nodes[edge.source].height), (x, bounds[nodes[edge.source].layer][1])]
        for step, dummy in enumerate(chain, start=nodes[edge.source].layer + 1):
            middle = left[dummy] + DUMMY_WIDTH / 2
            route += [(middle, bounds[step][0]), (middle, bounds[step][1])]
        x, y = corners[edge.target]
        x += edge.target_at
        route += [(x, bounds[nodes[edge.target].layer][0]), (x, y)]
        routes.append(tuple(route))
    width = max((left[i] + node.width for i, node in enumerate(nodes)), default=0.0)
    width = max([width, *(x for route in routes for x, _ in route)])
    return Layout(corners, tuple(routes), tuple(bounds), width, bounds[-1][1] if bounds else 0.0)


def path(route: Sequence[Point]) -> str:
    """The route as an SVG path: straight inside layers, curved with vertical ends between them."""
    parts = [f"M{route[0][0]:.1f} {route[0][1]:.1f}"]
    for (x1, y1), (x2, y2) in pairwise(route):
        if abs(x1 - x2) < 0.5:
            parts.append(f"L{x2:.1f} {y2:.1f}")
        else:
            middle = (y1 + y2) / 2
            parts.append(f"C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}")
    return "".join(parts)


def _split(nodes: Sequence[Node], edges: Sequence[Edge]) -> tuple[list[list[int]], list[_Link], list[tuple[int, ...]]]:
    """Layers with dummy nodes, links between neighbouring layers, and the dummies of every edge."""
    layers: list[list[int]] = [[] for _ in range(max((n.layer for n in nodes), default=-1) + 1)]
    for index, node in enumerate(nodes):
        layers[node.layer].append(index)
    known: dict[tuple[int, float, int], int] = {}
    links: list[_Link] = []
    chains: list[tuple[int, ...]] = []
    count = len(nodes)
    for edge in edges:
        upper, upper_at, weight = edge.source, edge.source_at, 1.0
        chain = []
        for layer in range(nodes[edge.source].layer + 1, nodes[edge.target].layer):
            key = (edge.source, edge.source_at, layer)
            if key not in known:
                known[key] = count
                layers[layer].append(count)
                links.append(_Link(upper, count, upper_at, DUMMY_WIDTH / 2, weight))
                count += 1
            upper, upper_at, weight = known[key], DUMMY_WIDTH / 2, 6.0
            chain.append(upper)
        links.append(_Link(upper, edge.target, upper_at, edge.target_at, 2.0 if chain else 1.0))
        chains.append(tuple(chain))
    return layers, links, chains


def _neighbours(count: int, links: Sequence[_Link]) -> tuple[list[list[_Link]], list[list[_Link]]]:
    above: list[list[_Link]] = [[] for _ in range(count)]
    below: list[list[_Link]] = [[] for _ in range(count)]
    for link in links:
        above[link.lower].append(link)
        below[link.upper].append(link)
    return above, below


def _order(layers: list[list[int]], links: Sequence[_Link], widths: Sequence[float]) -> None:
    """Reorder every layer in place: barycentre sweeps and exchanges of neighbours, fewest crossings kept."""
    above, below = _neighbours(len(widths), links)
    best, fewest = [list(layer) for layer in layers], _crossings(layers, below, widths)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for index in range(1, len(layers)) if downwards else range(len(layers) - 2, -1, -1):
            fixed = layers[index - 1 if downwards else index + 1]
            place_of = {node: position for position, node in enumerate(fixed)}
            target: dict[int, float] = {}
            for position, node in enumerate(layers[index]):
                near = (
                    [place_of[k.upper] + k.upper_at / widths[k.upper] for k in above[node]]
                    if downwards
                    else [place_of[k.lower] + k.lower_at / widths[k.lower] for k in below[node]]
                )
                target[node] = sum(near) / len(near) if near else float(position)
            layers[index].sort(key=target.__getitem__)
        _exchange(layers, below, widths)
        crossings = _crossings(layers, below, widths)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
        if fewest == 0:
            break
    for layer, found in zip(layers, best, strict=True):
        layer[:] = found


def _exchange(layers: list[list[int]], below: list[list[_Link]], widths: Sequence[float]) -> None:
    for index, layer in enumerate(layers):
        near = layers[max(0, index - 1) : index + 2]
        for i in range(len(layer) - 1):
            before = _crossings(near, below, widths)
            layer[i], layer[i + 1] = layer[i + 1], layer[i]
            if _crossings(near, below, widths) >= before:
                layer[i], layer[i + 1] = layer[i + 1], layer[i]


def _crossings(layers: Sequence[Sequence[int]], below: list[list[_Link]], widths: Sequence[float]) -> int:
    """Number of pairs of links that cross between the given layers, which follow each other."""
    total = 0
    for upper, lower in pairwise(layers):
        place_of = {node: position for position, node in enumerate(lower)}
        ends = [
            (i + link.upper_at / widths[node], place_of[link.lower] + link.lower_at / widths[link.lower])
            for i, node in enumerate(upper)
            for link in below[node]
        ]
        total += sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for i, a in enumerate(ends) for b in ends[i + 1 :])
    return total


def _columns(layers: Sequence[Sequence[int]], links: Sequence[_Link], widths: Sequence[float]) -> list[float]:
    """The left side of every node, the smallest one at 0."""
    above, below = _neighbours(len(widths), links)
    left = [0.0] * len(widths)
    for layer in layers:
        x = 0.0
        for node in layer:
            left[node] = x
            x += widths[node] + NODE_GAP
    for sweep in range(6 * SWEEPS):
        straight = sweep >= 3 * SWEEPS  # squares first, then reweighted to lengths: few bends instead of many
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted, weights = [], []
            for node in layer:
                pulls = [(left[k.upper] + k.upper_at - k.lower_at, k.weight) for k in above[node]]
                pulls += [(left[k.lower] + k.lower_at - k.upper_at, k.weight) for k in below[node]]
                if straight:
                    pulls = [(x, w / (abs(x - left[node]) + 10.0)) for x, w in pulls]
                weight = sum(w for _, w in pulls)
                wanted.append(sum(x * w for x, w in pulls) / weight if weight else left[node])
                weights.append(weight or 0.1)
            spacing = [widths[node] + NODE_GAP for node in layer]
            for node, x in zip(layer, _separate(wanted, weights, spacing), strict=True):
                left[node] = x
    least = min(left, default=0.0)
    return [x - least for x in left]


def _separate(wanted: Sequence[float], weights: Sequence[float], spacing: Sequence[float]) -> list[float]:
    """The positions closest to `wanted` (weighted squares) in which i+1 is at least spacing[i] behind i."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, members: pool adjacent violators
    offset, offsets = 0.0, []
    for want, weight, space in zip(wanted, weights, spacing, strict=True):
        offsets.append(offset)
        mean, total, members = want - offset, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, heavy, more = blocks.pop()
            mean = (mean * total + other * heavy) / (total + heavy)
            total, members = total + heavy, members + more
        blocks.append((mean, total, members))
        offset += space
    means = [mean for mean, _, members in blocks for _ in range(members)]
    return [mean + shift for mean, shift in zip(means, offsets, strict=True)]


def _rows(nodes: Sequence[Node], count: int) -> list[tuple[float, float]]:
    """Top and bottom of every layer."""
    bounds, y = [], 0.0
    for layer in range(count):
        height = max((node.height for node in nodes if node.layer == layer), default=0.0)
        bounds.append((y, y + height))
        y += height + LAYER_GAP
    return bounds
