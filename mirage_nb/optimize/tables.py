"""Where the elements of operands stand that kernels look up.

In: a block, its operands that are looked up, or windows of what is. Out: `Table`s, and where vectors of such operands
lie. Invariant: nothing is read where a number names no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from mirage_nb.ir import BlockGraph, DType, InIterAttrs
from mirage_nb.ir.lookups import Lookup
from mirage_nb.ir.windows import Window, row_major
from mirage_nb.optimize.access import Conditions, Leaf, Scope, device_start, masked
from mirage_nb.tile.index import Index, Multi, named
from mirage_nb.tile.resident.program import Find, Numbers, Table


def tensors_of(looked: Mapping[int, Lookup]) -> dict[int, DType]:
    """The values of which the numbers are made by which operands are looked up, in order, with their types."""
    pairs = (zip(looked[arg].numbers, looked[arg].stored, strict=True) for arg in sorted(looked))
    return dict(pair for several in pairs for pair in several)


def numbers_of(looked: Mapping[int, Lookup]) -> tuple[Numbers, ...]:
    """How these are made, each way once."""
    place = {value: n for n, value in enumerate(tensors_of(looked))}
    return tuple(dict.fromkeys(_made(looked[arg], place) for arg in sorted(looked)))


def _made(lookup: Lookup, place: Mapping[int, int]) -> Numbers:
    return Numbers(tuple(place[value] for value in lookup.numbers), lookup.formula, lookup.seen)


def tables_of(
    block: BlockGraph, looked: Mapping[int, Lookup], windows: Mapping[int, Window]
) -> tuple[Table, ...]:  # fmt: skip
    """What the operands of a block are looked up in."""
    found, numbers, place = [], numbers_of(looked), {value: n for n, value in enumerate(tensors_of(looked))}
    for op, values in block.definitions():
        if not isinstance(attrs := op.attrs, InIterAttrs) or attrs.arg not in looked:
            continue
        lookup, window = looked[attrs.arg], windows.get(attrs.arg)
        dense = row_major(block.args[attrs.arg].shape)
        offset, strides = (0, dense) if window is None else (window.offset, window.strides)
        found.append(Table(values[0], numbers.index(_made(lookup, place)), lookup.found, offset, strides))
    return tuple(found)


def line_leaves(
    scope: Scope, table: Table, numbers: Numbers, index: Multi, dim: int | None, width: int
) -> list[Leaf]:  # fmt: skip
    """The elements that make the numbers of the lines of `width` elements along `dim` of the tile of an operand, the
    first at `index`."""

    def place(n: int, element: Index) -> Index:
        return [*numbers.places(table.line(element))][n][1]

    pointers = [f"n{tensor}" for tensor in numbers.tensors]
    return [_leaf(scope, table, name, index, dim, width, partial(place, n)) for n, name in enumerate(pointers)]


def table_leaf(scope: Scope, table: Table, find: Find, slot: Index, index: Multi, dim: int | None, width: int) -> Leaf:
    """The same elements in their table, in the rows that were found in this slot."""
    own = width if find.each else 1
    rows = [f"f{table.value}[{at.bare}]" for at in (slot * own, slot * own + named("v", own))]

    def place(row: str) -> Leaf:
        arg, at = scope.reads[table.value].arg, named(row, table.found.rows)
        return _leaf(scope, table, f"x{arg}", index, dim, width, lambda element: table.place(element, at))

    whole, other = map(place, rows)
    known, each_known = (Conditions((f"{row} >= 0",)) for row in rows)
    inside, each_inside = Conditions((*whole.inside, *known)), Conditions((*other.each_inside, *each_known))
    return replace(whole, element=other.element, inside=inside, each_inside=each_inside)


def _leaf(
    scope: Scope, table: Table, pointer: str, index: Multi, dim: int | None, width: int, place: Callable[[Index], Index]
) -> Leaf:
    """What is at a place that follows from which element of what is looked up an element is."""
    block, attrs = scope.block, scope.reads[table.value]
    shape = block.args[attrs.arg].shape
    at = tuple(first + part for first, part in zip(device_start(block, attrs, Index()), index, strict=True))
    moved = tuple(part + named("v", width) if d == dim else part for d, part in enumerate(at))
    first, each = (place(table.element(i)) for i in (at, moved))
    whole = dim is not None and table.whole(dim, width)
    leaf = Leaf(pointer, first.bare, each.bare, whole, dim is not None)
    return masked(leaf, at, shape, block.overhanging(attrs), dim, width)


def is_whole(scope: Scope, table: Table, index: Multi, dim: int | None, width: int) -> bool:
    """Whether a vector lies within a row, before the end of its tensor."""
    return _leaf(scope, table, "", index, dim, width, table.line).whole
