"""Vectors of windows that begin between aligned ones: which of these have their elements.

In: the scope of a planned block, an operand, the place of a vector. Out: the aligned vectors around it, and where in
them its elements are. Vectors that windows of one tensor have in common are said alike, so that whoever reads them does
so once. Invariant: an aligned vector lies within the tensor wherever its conditions hold, and where they do not, all
of the elements in it that somebody reads are zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mirage_nb.ir import InIterAttrs
from mirage_nb.ir.ops import Shape
from mirage_nb.ir.windows import Window
from mirage_nb.optimize.access import Conditions, Leaf, Scope, device_start, masked, strided
from mirage_nb.tile.index import Index, Multi
from mirage_nb.tile.rules.register_resident import VECTOR_BYTES

MOST_STEP = 4
"""Places from one element to the next, of those that are taken from aligned vectors."""


@dataclass(frozen=True, slots=True)
class Around:
    """Elements that lie a constant number of places behind aligned vectors, side by side or a few places apart: such
    vectors, `width` elements each, and for each element its vector and its place there."""

    vectors: tuple[Leaf, ...]
    width: int
    places: tuple[tuple[int, int], ...]


def around(scope: Scope, attrs: InIterAttrs, index: Multi, dim: int | None, width: int) -> Around | None:
    """The aligned vectors in which `width` elements of a window lie, the first at `index` of the tile; None where there
    are none, or a part of one would lie beyond the tensor, or hold elements that are read as zeros beside others."""
    block, window = scope.block, scope.windows.get(attrs.arg)
    if window is None or dim is None or attrs.arg in scope.reaches.operands:
        return None
    type_, step = block.args[attrs.arg], window.strides[dim]
    at = tuple(first + part for first, part in zip(device_start(block, attrs, Index()), index, strict=True))
    leaf = strided(f"x{_first_of(scope, attrs.arg)}", at, window.strides, dim, width, window.offset)
    leaf = masked(leaf, at, type_.shape, block.overhanging(attrs), dim, width)
    offset = sum((part * stride for part, stride in zip(at, window.strides, strict=True)), Index(const=window.offset))
    unit = math.gcd(VECTOR_BYTES // type_.dtype.size, *(factor for _, _, factor in offset.terms))
    aligned = unit > 1 and at[dim].multiple_of(width) and leaf.each_inside == leaf.inside
    if not aligned or not 0 < abs(step) <= MOST_STEP:
        return None
    asked = [c for d, p in enumerate(window.inside) if d != dim and p is not None for c in _within(at[d], p)]
    shift = offset.const % unit
    places = [divmod(shift + step * v, unit) for v in range(width)]
    vectors: dict[int, Leaf] = {}
    for number in dict.fromkeys(number for number, _ in places):
        behind = number * unit - shift
        first, *more = (v for v, (other, _) in enumerate(places) if other == number)
        held = _starts(window, at, type_.shape, dim, width, first, more)
        if held is None or not _lies(window, at, type_.shape, {dim: held}, behind, unit):
            return None
        begin, every = (offset + behind).bare, dict.fromkeys((*leaf.inside, *asked, *_within(at[dim], held)))
        vectors[number] = Leaf(leaf.pointer, begin, begin, True, True, inside=Conditions(every))
    order = [*vectors]
    return Around((*vectors.values(),), unit, tuple((order.index(number), place) for number, place in places))


def _first_of(scope: Scope, arg: int) -> int:
    """The first operand that is a window of the same tensor."""
    base = scope.windows[arg].base
    return min(other for other, window in scope.windows.items() if window.base == base)


def _starts(window: Window, at: Multi, shape: Shape, dim: int, width: int, first: int, more: list[int]) -> range | None:
    """Where vectors along `dim` begin whose elements `first` and `more`, which are in one aligned vector, are no zeros;
    None where it is not for the first of them to say that."""
    inside = window.inside[dim]
    held = range(shape[dim]) if inside is None else inside
    if any(0 < end < shape[dim] and end % width in more for end in (held.start, held.stop)):
        return None
    low, high = -((first - held.start) // width) * width, (held.stop - 1 - first) // width * width
    most = min(at[dim].limit, shape[dim] - width) // width * width
    return range(max(low, 0), min(high, most) + width, width)


def _within(part: Index, places: range) -> list[str]:
    """What has to hold for an index to be one of these places, as far as that is not known of it."""
    first = [f"{places.start} <= {part.bare}"] if part.const < places.start else []
    return [*first, *([f"{part.bare} < {places.stop}"] if part.limit >= places.stop else [])]


def _lies(window: Window, at: Multi, shape: Shape, known: Mapping[int, range], behind: int, unit: int) -> bool:
    """Whether `unit` elements from so many behind an element of a window on lie in its tensor, wherever that element is
    read: at `at`, in places that are `known` along a dimension."""
    first = last = window.offset + behind
    for d, (part, stride, extent, inside) in enumerate(zip(at, window.strides, shape, window.inside, strict=True)):
        places = known.get(d, range(extent) if inside is None else inside)
        low, high = max(places.start, part.const), min(part.limit, places[-1]) if places else -1
        if low > high:
            return True  # nowhere
        first, last = first + min(low * stride, high * stride), last + max(low * stride, high * stride)
    return 0 <= first and last + unit <= window.elements
