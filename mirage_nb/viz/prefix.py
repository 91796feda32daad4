"""The picture of one prefix: the applications that lead to it, and what became of the last one.

In: a sampled `Prefix` and the sample that it belongs to. Out: SVG. The sample is bounded, so a parent may
be missing; it is drawn as `…`. At most MOST ancestors are drawn, the nearest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mirage_nb.search.saturation.events import Prefix
from mirage_nb.viz import layout, svg
from mirage_nb.viz.search import COLOUR, STYLE
from mirage_nb.viz.shapes import Chip, Shape, operator, pill, tip
from mirage_nb.viz.text import expression_text

MOST = 40
PAD = 8.0

_STYLE = (
    STYLE
    + "".join(
        f".mir .pill.{name},.mir .op.{name}{{stroke:var(--mir-{name});stroke-width:2}}" for name in COLOUR.values()
    )
    + ".mir .op.sure{fill:var(--mir-ground)}"
    + ".mir .unknown{fill:none;stroke:var(--mir-soft);stroke-dasharray:3 2}"
)


def prefix_svg(prefix: Prefix, sample: Iterable[Prefix]) -> str:
    """The derivation of `prefix` as a graph, inputs on top."""
    known = {p.identity: p for p in sample}
    found = ancestors(prefix, known)
    ranks = _ranks(found)
    order = sorted(found, key=lambda identity: (ranks[identity], identity))
    number = {identity: index for index, identity in enumerate(order)}
    shapes = [_node(known.get(i) if i != prefix.identity else prefix, i == prefix.identity) for i in order]
    pairs = [(number[p], number[i]) for i in order for p in found[i] if p in number]
    layers = layout.longest_path(pairs, [0] * len(shapes))
    edges = [
        layout.Edge(s, t, shapes[s].width / 2, shapes[t].width / 2 + 6.0 * _side(k, pairs))
        for k, (s, t) in enumerate(pairs)
    ]
    nodes = [layout.Node(s.width, s.height, layer) for s, layer in zip(shapes, layers, strict=True)]
    placed = layout.place(nodes, edges)
    parts = [svg.element("path", d=layout.path(route), cls="edge") for route in placed.routes]
    parts += [tip(*route[-1]) for route in placed.routes]
    parts += [svg.move(*at, shape.parts) for shape, at in zip(shapes, placed.corners, strict=True)]
    width, height = placed.width + 2 * PAD, placed.height + 2 * PAD
    summary = f"prefix {prefix.identity}: {prefix.operator}, {prefix.outcome.value}"
    return svg.document(width, height, summary, (svg.move(PAD, PAD, parts),), _STYLE)


def ancestors(prefix: Prefix, known: Mapping[int, Prefix]) -> dict[int, tuple[int, ...]]:
    """The identities from which `prefix` follows, itself included, with the parents of each."""
    found: dict[int, tuple[int, ...]] = {}
    waiting = [prefix.identity]
    while waiting and len(found) < MOST:
        identity = waiting.pop(0)
        if identity in found:
            continue
        own = prefix if identity == prefix.identity else known.get(identity)
        found[identity] = own.parents if own is not None else ()
        waiting += found[identity]
    return found


def _ranks(found: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """Longest way up to an ancestor without parents; a parent has a smaller rank than its children."""
    ranks = dict.fromkeys(found, 0)
    for _ in found:
        for node, parents in found.items():
            ranks[node] = max([ranks[node], *(ranks[p] + 1 for p in parents if p in found)])
    return ranks


def _side(index: int, pairs: list[tuple[int, int]]) -> float:
    """-1 to 1: where among the operands of its target an edge enters."""
    same = [k for k, (_, target) in enumerate(pairs) if target == pairs[index][1]]
    return 0.0 if len(same) == 1 else 2.0 * same.index(index) / (len(same) - 1) - 1.0


def _node(prefix: Prefix | None, last: bool) -> Shape:
    if prefix is None:
        return pill("…", "unknown", "not in the sample")
    label = pill(prefix.type, COLOUR[prefix.outcome], f"{prefix.stage}: {expression_text(prefix.expression)}")
    cls = f"op sure {COLOUR[prefix.outcome]}" if last else "op"
    return operator(prefix.operator, [label], [Chip(prefix.stage)] if last and prefix.stage else [], cls=cls)
