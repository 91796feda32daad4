"""Masks of places, seen tile by tile: which keys a block's rows need, and of which tiles a mask leaves elements out.

In: an `AttentionBlock`, and what the block graph does not say; of its mask, nodes over numbered places of rows and
keys, and how long tiles are. Out: the node, the axis of an operand, a `Span`, which says for every tile of rows how
many tiles of keys it needs, from the first one on, and how many of the last of these are masked at all; or `Ranges`,
which say it row by row where no line does. The planner asks it of one size of tiles, the ranking of many. Invariant:
what is left out is wholly masked, and has weights of zero, since nothing but the masked scores is raised; what is not
evaluated is wholly kept; the bounds of a mask over a tile come from the bounds of what it is computed of, and what is
not known is any finite number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import ApplyAttrs, ClampAttrs, ConstAttrs, InIterAttrs, OpKind, WhereAttrs, formula
from mirage_nb.ir.graph import reached
from mirage_nb.tile.rules.attention import KEYS, AttentionBlock
from mirage_nb.tile.rules.products import ROWS
from mirage_nb.tile.rules.written_out import Node, WrittenOut

Array = NDArray[np.float64]
Truths = NDArray[np.bool_]
Bounds = tuple[Array, Array]
"""The least and the largest value in every tile of rows and keys."""


UNKNOWN: Bounds = np.array(-np.inf), np.array(np.inf)
"""Of what nothing is known about."""
LISTED = 1024
"""Tiles of rows at most that are told one by one what they need."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tiles of keys that the tile r of rows needs: of the first slope * r + base of them the last `most`, or all. The
    last `masked` of these are masked, and the first `first` of `most`, if there are so many."""

    slope: int
    base: int
    masked: int
    most: int | None = None
    first: int = 0

    def read(self, rows: int) -> NDArray[np.int64]:
        """How many tiles of keys each of so many tiles of rows reads."""
        needed = self.slope * np.arange(rows) + self.base
        return needed if self.most is None else np.minimum(needed, self.most)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Tiles of keys that each tile of rows needs: those in front of `ends`, one behind the other. The last `masked` of
    them are masked, no less than one, the `plain` ones in front of these are not, and the first `far` of all are."""

    ends: tuple[int, ...]
    masked: tuple[int, ...]
    plain: tuple[int, ...]
    far: tuple[int, ...]

    def read(self, rows: int) -> NDArray[np.int64]:
        """How many tiles of keys each of so many tiles of rows reads."""
        counts: NDArray[np.int64] = np.array([self.masked, self.plain, self.far]).sum(axis=0)[:rows]
        return counts


Needed = Span | Ranges


def _add(x: Bounds, y: Bounds) -> Bounds:
    return x[0] + y[0], x[1] + y[1]


def _negate(x: Bounds) -> Bounds:
    return -x[1], -x[0]


def _subtract(x: Bounds, y: Bounds) -> Bounds:
    return _add(x, _negate(y))


def _multiply(x: Bounds, y: Bounds) -> Bounds:
    with np.errstate(invalid="ignore"):
        products = [np.nan_to_num(a * b, nan=0.0, posinf=np.inf, neginf=-np.inf) for a in x for b in y]
    return np.minimum.reduce(products), np.maximum.reduce(products)


def _magnitude(x: Bounds) -> Bounds:
    least = np.maximum(np.maximum(x[0], -x[1]), 0.0)
    return least, np.maximum(np.abs(x[0]), np.abs(x[1]))


def _truth(least: Truths, most: Truths) -> Bounds:
    """Of what is one where something holds, and zero elsewhere: where it surely does, and where it may."""
    return np.where(least, 1.0, 0.0), np.where(most, 1.0, 0.0)


def _equal(x: Bounds, y: Bounds) -> Bounds:
    one = (x[0] == x[1]) & (y[0] == y[1]) & (x[0] == y[0])
    return _truth(one, (x[0] <= y[1]) & (y[0] <= x[1]))


def _monotone(function: Callable[..., Array]) -> Callable[..., Bounds]:
    return lambda *operands: (function(*(x[0] for x in operands)), function(*(x[1] for x in operands)))


_SCALARS: Mapping[str, Callable[..., Any]] = {
    "add": _add, "sub": _subtract, "mul": _multiply, "neg": _negate, "floor": _monotone(np.floor),
    "step": _monotone(lambda x: np.where(x >= 0, 1.0, 0.0)), "minimum": _monotone(np.minimum),
    "maximum": _monotone(np.maximum), "abs": _magnitude, "square": lambda x: _multiply(_magnitude(x), _magnitude(x)),
    "sign": _monotone(np.sign),
}  # fmt: skip
_OPERATORS: Mapping[OpKind, Callable[..., Bounds]] = {
    OpKind.ADD: _add, OpKind.SUB: _subtract, OpKind.MUL: _multiply, OpKind.MAXIMUM: _monotone(np.maximum),
    OpKind.RESHAPE: lambda x: x, OpKind.CAST: lambda x: x, OpKind.SQR: _SCALARS["square"], OpKind.EQUAL: _equal,
    OpKind.RELU: _monotone(lambda x: np.maximum(x, 0.0)),
    OpKind.GREATER: lambda x, y: _truth(x[0] > y[1], x[1] > y[0]),
    OpKind.GREATER_EQUAL: lambda x, y: _truth(x[0] >= y[1], x[1] >= y[0]),
}  # fmt: skip


def bounds_of(written: WrittenOut, node: int, leaf: Callable[[int], Bounds]) -> Bounds:
    """The bounds of a node in every tile. leaf: those of what is read."""
    found: dict[int, Bounds] = {}

    def bounds(place: int) -> Bounds:
        if place not in found:
            made = written.nodes[place]
            read = made.kind is OpKind.IN_ITER
            found[place] = leaf(place) if read else _computed(made, [bounds(operand) for operand in made.inputs])
        return found[place]

    return bounds(node)


def _computed(made: Node, operands: Sequence[Bounds]) -> Bounds:
    """The bounds of a node, from those of its operands."""
    if isinstance(made.attrs, ConstAttrs):
        return _constant(made.attrs.value)
    if isinstance(made.attrs, ApplyAttrs):
        try:
            found: Bounds = formula.fold(formula.read(made.attrs.formula), operands[0], _constant, _SCALARS)
        except KeyError:  # a primitive of which nothing is known
            return UNKNOWN
        return found
    if isinstance(made.attrs, ClampAttrs):
        low, high = (None if end is None else float(end) for end in (made.attrs.low, made.attrs.high))
        return _monotone(lambda x: np.clip(x, low, high))(*operands)
    rule = _OPERATORS.get(made.kind)
    return rule(*operands) if rule is not None else UNKNOWN


def _constant(value: Fraction) -> Bounds:
    return np.array(float(value)), np.array(float(value))


def places(tiles: int, length: int, *, rows: bool) -> Bounds:
    """The places along rows or keys, of so many tiles of this length."""
    first = np.arange(tiles, dtype=np.float64) * length
    first = first[:, None] if rows else first[None, :]
    return first, first + length - 1


def span_of(bounds: Bounds, rows: int, keys: int) -> Needed:
    """What a mask over tiles of rows and keys needs: all of it where that is not known, or some rows need nothing."""
    low, high = (np.broadcast_to(side, (rows, keys)) for side in bounds)
    needed, masked = ~((low == 0) & (high == 0)), ~((low > 0) | (high < 0))
    if not needed.any(axis=1).all():
        return Span(0, keys, keys)
    ends = keys - np.argmax(needed[:, ::-1], axis=1)
    counts = ends - np.argmax(needed, axis=1)
    slope = int(ends[1] - ends[0]) if rows > 1 else 0
    if slope < 0 or (ends != ends[0] + slope * np.arange(rows)).any():
        return _ranges(masked, ends, counts)
    reach = int(counts.max())
    back = ends[:, None] - 1 - np.arange(reach)  # the tiles of every row, the last one in front
    asked = (np.take_along_axis(masked, np.maximum(back, 0), axis=1) & (back >= 0)).any(axis=0)
    last, least = int(np.argmin([*asked, False])), int(ends.min())
    if reach == ends.max() and last <= least and not asked[last:].any():
        line = Span(slope, int(ends[0]), last)
    else:
        last = min(last, least)
        line = Span(slope, int(ends[0]), last, reach, reach - last - int(np.argmax([*asked[last:], True])))
    return line if line.read(rows).sum() == counts.sum() else _ranges(masked, ends, counts)


def _ranges(masked: Truths, ends: NDArray[np.int64], counts: NDArray[np.int64]) -> Needed:
    """The tiles that each tile of rows needs by itself; all of them where there are too many to tell."""
    rows, keys = masked.shape
    if rows > LISTED:
        return Span(0, keys, keys)
    parts = []
    for asked, end, count in zip(masked, ends.tolist(), counts.tolist(), strict=True):
        back = asked[end - count : end][::-1]
        last = max(1, int(np.argmin([*back, False])))
        plain = int(np.argmax([*back[last:], True]))
        parts.append((end, last, plain, count - last - plain))
    return Ranges(*zip(*parts, strict=True))


def places_of(made: AttentionBlock, numbered: Collection[int], counters: Sequence[str], attrs: InIterAttrs) -> str:
    """The axis whose places an operand numbers, if it is one of those; "" if it does not. Those beyond its end are left
    out of what is summed, or dropped, whatever numbers they have."""
    long = [dim for dim, extent in enumerate(made.block.tile_shape(attrs)) if extent > 1]
    lined = sum(extent > 1 for extent in made.block.args[attrs.arg].shape) == 1
    if not lined or attrs.arg not in numbered or len(long) != 1:
        return ""
    cut = [counters[g] for g, dim in enumerate(attrs.imap) if dim == long[0] and made.block.grid[g] > 1]
    if attrs.fmap == long[0]:
        return "" if cut else KEYS
    extent = made.block.tile_shape(attrs)[long[0]]
    return ROWS if extent == made.rows and (cut == [ROWS] or (not cut and ROWS not in counters)) else ""


def masks_of(made: AttentionBlock) -> tuple[int, ...]:
    """The nodes that leave scores out by minus infinity, the last one first, each but that one what the one in front of
    it chooses from; where all exponentials are of what they choose, else none."""
    nodes = made.written.nodes
    every = {i for i, node in enumerate(nodes) if isinstance(node.attrs, WhereAttrs) and node.attrs.infinite < 0}
    chain: list[int] = []
    head = made.ranked(made.tops[0]) if len(made.tops) == 1 else -1
    place = head
    while place in every or (place >= 0 and nodes[place].kind is OpKind.ADD):
        if place in every:
            chain.append(place)
            place = nodes[place].inputs[1]
        else:  # what is left out stays so
            place = next((v for v in nodes[place].inputs if made.scores in reached([v], lambda n: nodes[n].inputs)), -1)
    if not chain or any(not nodes[i].late for i in every.difference(chain)):
        return ()
    for node in nodes:
        if node.kind is OpKind.EXP and not node.late and made.tops[0] in nodes[node.inputs[0]].inputs:
            if nodes[node.inputs[0]].inputs[0] != head:
                return ()
    return tuple(chain)


def span_needed(
    made: AttentionBlock, axis_of: Callable[[InIterAttrs], str], rows: tuple[int, int], keys: tuple[int, int]
) -> Needed:
    """The keys that rows need. axis_of: the axis whose places an operand numbers; rows, keys: how many tiles there are
    of each, and how long they are."""
    masks = masks_of(made)
    if not masks:
        return Span(0, keys[0], 0)
    numbers = {ROWS: places(*rows, rows=True), KEYS: places(*keys, rows=False)}

    def leaf(node: int) -> Bounds:
        attrs = made.written.nodes[node].attrs
        assert isinstance(attrs, InIterAttrs)
        return numbers.get(axis_of(attrs), UNKNOWN)

    every = (bounds_of(made.written, made.written.nodes[mask].inputs[0], leaf) for mask in masks)
    return span_of(reduce(_multiply, every), rows[0], keys[0])
