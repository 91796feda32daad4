"""The layered layout on random graphs: nodes apart, edges clear of nodes."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.viz.layout import NODE_GAP, Edge, Layout, Node, _separate, longest_path, path, place


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], list[Edge]]:
    count = draw(st.integers(1, 12))
    pairs = [(s, t) for t in range(1, count) for s in draw(st.sets(st.integers(0, t - 1), max_size=3))]
    layers = longest_path(pairs, [0] * count)
    size, share = st.floats(10, 200), st.floats(0, 1)
    nodes = [Node(draw(size), draw(size), layer) for layer in layers]
    edges = [Edge(s, t, nodes[s].width * draw(share), nodes[t].width * draw(share)) for s, t in pairs]
    return nodes, edges


def overlapping(nodes: list[Node], drawn: Layout) -> list[tuple[int, int]]:
    found = []
    for i, (a, (ax, ay)) in enumerate(zip(nodes, drawn.corners, strict=True)):
        for j, (b, (bx, by)) in enumerate(zip(nodes, drawn.corners, strict=True)):
            if i < j and min(ax + a.width, bx + b.width) - max(ax, bx) > 1e-6:
                if min(ay + a.height, by + b.height) - max(ay, by) > 1e-6:
                    found.append((i, j))
    return found


@given(graphs())
def test_nodes_lie_apart_and_inside(graph: tuple[list[Node], list[Edge]]) -> None:
    nodes, edges = graph
    drawn = place(nodes, edges)
    assert overlapping(nodes, drawn) == []
    for node, (x, y) in zip(nodes, drawn.corners, strict=True):
        assert x >= -1e-6 and y >= -1e-6
        assert x + node.width <= drawn.width + 1e-6 and y + node.height <= drawn.height + 1e-6


@given(graphs())
def test_edges_dock_and_bend_only_between_layers(graph: tuple[list[Node], list[Edge]]) -> None:
    nodes, edges = graph
    drawn = place(nodes, edges)
    for edge, route in zip(edges, drawn.routes, strict=True):
        x, y = drawn.corners[edge.source]
        assert route[0] == (x + edge.source_at, y + nodes[edge.source].height)
        x, y = drawn.corners[edge.target]
        assert route[-1] == (x + edge.target_at, y)
        for (x1, y1), (x2, y2) in pairwise(route):
            assert y2 >= y1 - 1e-6
            inside = any(top <= y1 and y2 <= bottom for top, bottom in drawn.layers)
            assert x1 == x2 or not inside or y1 == y2


@given(graphs())
def test_edges_keep_clear_of_nodes(graph: tuple[list[Node], list[Edge]]) -> None:
    nodes, edges = graph
    drawn = place(nodes, edges)
    for edge, route in zip(edges, drawn.routes, strict=True):
        for (x1, y1), (_, y2) in pairwise(route):
            for number, (node, (x, y)) in enumerate(zip(nodes, drawn.corners, strict=True)):
                if number not in (edge.source, edge.target) and x < x1 < x + node.width:
                    top, bottom = drawn.layers[node.layer]
                    assert not (top <= y1 and y2 <= bottom and y1 < y + node.height and y2 > y)


def test_crossings_are_removed() -> None:
    nodes = [Node(20, 10, 0), Node(20, 10, 0), Node(20, 10, 1), Node(20, 10, 1)]
    drawn = place(nodes, [Edge(0, 3, 10, 10), Edge(1, 2, 10, 10)])
    (x0, _), (x1, _), (x2, _), (x3, _) = drawn.corners
    assert (x0 < x1) == (x3 < x2)
    assert x0 == x3 and x1 == x2


def test_a_long_edge_is_shared_by_the_readers_below() -> None:
    nodes = [Node(20, 10, 0), Node(20, 10, 1), Node(20, 10, 2), Node(20, 10, 2)]
    drawn = place(nodes, [Edge(0, 1, 10, 10), Edge(0, 2, 10, 5), Edge(0, 3, 10, 5), Edge(1, 2, 10, 15)])
    assert drawn.routes[1][:4] == drawn.routes[2][:4]


ROWS = st.lists(st.tuples(st.floats(-100, 100), st.floats(0.1, 5), st.floats(1, 50)), min_size=1, max_size=8)


@given(ROWS, st.integers())
def test_separation_is_the_closest_legal_one(rows: list[tuple[float, float, float]], seed: int) -> None:
    wanted, weights, spacing = (list(column) for column in zip(*rows, strict=True))

    def cost(xs: list[float]) -> float:
        return sum(w * (x - want) ** 2 for x, want, w in zip(xs, wanted, weights, strict=True))

    def legal(xs: list[float]) -> bool:
        return all(b - a >= s - 1e-6 for a, b, s in zip(xs, xs[1:], spacing, strict=False))

    found = _separate(wanted, weights, spacing)
    assert legal(found)
    source = random.Random(seed)
    for _ in range(50):
        other = [x + source.uniform(-5, 5) for x in found]
        if legal(other):
            assert cost(other) >= cost(found) - 1e-6


def test_path_is_straight_where_it_can_be() -> None:
    assert path([(1.0, 0.0), (1.0, 5.0), (9.0, 9.0)]) == "M1.0 0.0L1.0 5.0C1.0 7.0 9.0 7.0 9.0 9.0"
    assert NODE_GAP > 0
