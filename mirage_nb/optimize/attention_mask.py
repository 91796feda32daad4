"""The mask of an attention block: which node it is, what numbers places for it, which keys rows need.

In: an `AttentionBlock`, what the block graph does not say, the names of its grid dims. Out: the node, the axis of an
operand, a `Span`. Invariant: keys outside the span have weights of zero, since nothing but the masked scores is raised.
"""

from __future__ import annotations

from mirage_nb.ir import InIterAttrs, OpKind, WhereAttrs
from mirage_nb.optimize.mask import Bounds, Span, bounds_of, places, span_of
from mirage_nb.optimize.product_program import Given
from mirage_nb.tile.attention import KEYS, AttentionBlock
from mirage_nb.tile.products import ROWS


def places_of(made: AttentionBlock, given: Given, counters: tuple[str, ...], attrs: InIterAttrs) -> str:
    """The axis whose places an operand numbers; "" if it does not."""
    long = [dim for dim, extent in enumerate(made.block.tile_shape(attrs)) if extent > 1]
    if attrs.arg not in given.places or len(long) != 1 or any(made.block.overhanging(attrs)):
        return ""
    cut = [counters[g] for g, dim in enumerate(attrs.imap) if dim == long[0] and made.block.grid[g] > 1]
    if attrs.fmap == long[0]:
        return "" if cut else KEYS
    extent = made.block.tile_shape(attrs)[long[0]]
    return ROWS if extent == made.rows and (cut == [ROWS] or (not cut and ROWS not in counters)) else ""


def mask_of(made: AttentionBlock) -> int | None:
    """The node that leaves scores out by minus infinity, where all exponentials are of what it chooses."""
    nodes = made.written.nodes
    choices = [i for i, node in enumerate(nodes) if isinstance(node.attrs, WhereAttrs) and not node.late]
    chosen = [i for i in choices if (attrs := nodes[i].attrs) and isinstance(attrs, WhereAttrs) and attrs.infinite < 0]
    if len(chosen) != 1 or len(made.tops) != 1 or nodes[made.tops[0]].inputs != (chosen[0],):
        return None
    for node in nodes:
        if node.kind is OpKind.EXP and not node.late and made.tops[0] in nodes[node.inputs[0]].inputs:
            if nodes[node.inputs[0]].inputs[0] != chosen[0]:
                return None
    return chosen[0]


def span_needed(made: AttentionBlock, given: Given, counters: tuple[str, ...]) -> Span:
    """The keys that rows need."""
    mask = mask_of(made)
    rows = made.block.grid[counters.index(ROWS)] if ROWS in counters else 1
    if mask is None:
        return Span(0, made.block.loop, 0)

    def leaf(node: int) -> Bounds | None:
        attrs = made.written.nodes[node].attrs
        assert isinstance(attrs, InIterAttrs)
        axis = places_of(made, given, counters, attrs)
        if axis == ROWS:
            return places(rows, made.rows, rows=True)
        return places(made.block.loop, made.step, rows=False) if axis == KEYS else None

    return span_of(bounds_of(made.written, made.written.nodes[mask].inputs[0], leaf), rows, made.block.loop)
