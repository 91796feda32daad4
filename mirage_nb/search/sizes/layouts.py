"""The order of the dimensions of every tile in a block, as axes.

In: the layouts of what is read. Out: that of what an operator makes, and in which its operands have to be viewed:
`concrete` puts the views in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from mirage_nb.errors import GraphError
from mirage_nb.search.axes import Layout, broadcast_layouts
from mirage_nb.search.saturation.values import DATA, GRID, Type

KNOWN = 1024
"""Kernels whose layouts are remembered."""


def _axes(layout: Layout) -> set[int]:
    return {axis for axis in layout if axis is not None}


def _trimmed(layout: list[int | None]) -> list[int | None]:
    """Without leading dimensions of extent 1."""
    while layout and layout[0] is None:
        layout = layout[1:]
    return layout


def joined(first: Layout, second: Layout) -> Layout:
    """The layout to which two operands of an elementwise operator are broadcast."""
    if _axes(first) == _axes(second) and 0 < len(first) < len(second):  # what is loaded is seen as what is computed
        return second
    if _axes(first) >= _axes(second) and (first or not second):  # a tensor never loses its last dimension:
        return first  # it would take the type of a constant
    return second if _axes(second) >= _axes(first) else tuple(sorted(_axes(first) | _axes(second)))


def lies_in(layout: Layout, wide: Layout) -> bool:
    """Whether a value broadcasts to a layout as it is."""
    shift = len(wide) - len(layout)
    return shift >= 0 and all(a in (None, wide[i + shift]) for i, a in enumerate(layout))


def line_up(first: Layout, second: Layout) -> bool:
    """Whether two layouts have one axis in every dimension, counted from the last, or none."""
    return all(None in pair or pair[0] == pair[1] for pair in zip(reversed(first), reversed(second), strict=False))


def past_one(order: Sequence[int], wanted: Sequence[int], short: Mapping[int, Any]) -> Any:
    """Whether axes come into another order by a reshape: past one of one element, and none else is. short: which axes
    are, as truths or as arrays of them."""
    alone = [a for a in order if [b for b in order if b != a] == [b for b in wanted if b != a]]
    moved = reduce(np.logical_or, (short[a] for a in alone), np.False_)
    return np.equal(sum(np.asarray(short[a], int) for a in order), 1) & moved


def broadcast_layout(first: Layout, second: Layout) -> Layout:
    """The layout of what two operands that line up are broadcast to."""
    if not line_up(first, second):
        raise GraphError("tiles whose dimensions do not line up")
    return broadcast_layouts(first, second)


def _multiplies(left: Layout, right: Layout, axis: int) -> bool:
    """Whether left @ right, as they lie, folds `axis` and nothing else."""
    if len(left) < 2 or len(right) < 2 or left[-1] != axis or right[-2] != axis:
        return False
    row, column = left[-2], right[-1]
    if (row is not None and row in right) or (column is not None and column in left):
        return False
    lead, other = left[:-2][::-1], right[:-2][::-1]
    lined = all(a is None or b is None or a == b for a, b in zip(lead, other, strict=False))
    joined = [a if a is not None else b for a, b in zip(lead, other, strict=False)]
    joined += [*lead[len(other) :], *other[len(lead) :]]
    axes = [a for a in joined if a is not None]
    return lined and len(set(axes)) == len(axes)


def _to_multiply(left: Layout, right: Layout, axis: int) -> tuple[Layout, Layout]:
    """The layouts in which left @ right folds `axis`; as they are where that is possible."""
    if _multiplies(left, right, axis):
        return left, right
    own = [a for a in left if a is not None and a != axis and a not in right]
    other = [a for a in right if a is not None and a != axis and a not in left]
    row, column = own[-1] if own else None, other[-1] if other else None
    lead = [a for a in left if a is not None and a not in (axis, row)]
    lead += [a for a in right if a is not None and a not in (axis, column) and a not in lead]
    of_left = [a if a in left else None for a in lead]
    of_right = [a if a in right else None for a in lead]
    return (*_trimmed(of_left), row, axis), (*_trimmed(of_right), axis, column)


def multiplied(first: Layout, second: Layout, axis: int) -> tuple[bool, Layout, Layout]:
    """How a product folds an axis with the fewest views: whether its operands are exchanged, and their layouts then."""
    left, right = _to_multiply(first, second, axis)
    other, another = _to_multiply(second, first, axis)
    if (other != second) + (another != first) < (left != first) + (right != second):
        return True, other, another
    return False, left, right


def of_product(left: Layout, right: Layout) -> Layout:
    """The layout of left @ right."""
    return (*broadcast_layout(left[:-2], right[:-2]), left[-2], right[-1])


def fitted(layout: Layout, wide: Layout) -> Layout:
    """The layout in which a tile broadcasts to `wide`, whose axes contain its own."""
    return layout if lies_in(layout, wide) else tuple(_trimmed([a if a in layout else None for a in wide]))


def folded(layout: Layout, axis: int) -> Layout:
    """What is left along a dimension that is folded."""
    return tuple(None if a == axis else a for a in layout)


def concatenated(layout: Layout, axis: int) -> Layout:
    """The layout of what all iterations leave behind each other along an axis."""
    if axis in layout:
        return layout
    layout = layout if None in layout else (None, *layout)
    spare = max(i for i, a in enumerate(layout) if a is None)
    return (*layout[:spare], axis, *layout[spare + 1 :])


def leading(layout: Layout, axis: int | None) -> Layout:
    """The layout in which one tile after the other is joined along `axis`."""
    return (axis, *(a for a in layout if a is not None and a != axis))


@lru_cache(maxsize=KNOWN)
def stored(type_: Type) -> tuple[int, ...]:
    """The axes of a result in device memory: what the blocks left of those that they split leads, see `concrete`."""
    axes = [axis for axis, code in enumerate(type_) if code & DATA]
    return tuple(sorted(axes, key=lambda axis: type_[axis] & DATA != GRID))


def permutation(layout: Layout, wanted: Layout) -> tuple[int, ...]:
    """The order of the dimensions of `layout` that gives the axes of `wanted`."""
    spare = [i for i, axis in enumerate(layout) if axis is None]
    if len(layout) == len(wanted):
        return tuple(spare.pop(0) if axis is None else layout.index(axis) for axis in wanted)
    return (*spare, *(layout.index(axis) for axis in wanted if axis is not None))
