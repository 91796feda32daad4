"""Layouts: injective, within what copies and ldmatrix demand, and the cheapest."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.errors import GraphError
from mirage_nb.ir import BlockGraph, DType, InIterAttrs, TensorType
from mirage_nb.optimize.layout import ORDER_COST, Demand, candidates, cost, lay_out, swizzled
from mirage_nb.tile.rules.boxes import bulk_of
from mirage_nb.tile.rules.shared import FORBIDDEN, SharedLayout, Use, byte_offset
from tests.shares import examples


@st.composite
def demands(draw: st.DrawFn, value: int = 0) -> Demand:
    shape = (draw(st.sampled_from([1, 2, 8, 16])), draw(st.sampled_from([1, 8, 32, 64, 96])))
    dtype = draw(st.sampled_from([DType.F16, DType.F32]))
    options = [Use.COPY, Use.VECTOR, Use.STRAIGHT, Use.TURNED] + ([Use.FACTOR] if dtype.size == 2 else [])
    return Demand(value, shape, dtype, tuple(draw(st.lists(st.sampled_from(options), unique=True, max_size=3))))


def byte_of(layout: SharedLayout, row: int, column: int) -> int:
    return byte_offset(row, column, max(layout.strides[-2:]), layout.dtype.size, layout.swizzle)


def offset(layout: SharedLayout, row: int, column: int) -> int:
    if not layout.swizzle:
        return row * layout.strides[0] + column * layout.strides[1]
    panel, inside = divmod(column, layout.panel)
    return panel * layout.panel_rows * layout.panel + byte_of(layout, row, inside) // layout.dtype.size


@given(demands())
def test_every_candidate_is_injective_and_fits(demand: Demand) -> None:
    for layout in candidates(demand):
        used = [offset(layout, *at) for at in product(*map(range, demand.shape))]
        assert len(set(used)) == len(used)
        assert max(used) < layout.elements
        assert layout.nbytes % 128 == 0


def total(found: dict[int, SharedLayout], given_: list[Demand], pairs: list[tuple[int, int]]) -> int:
    alike = (
        (found[a].strides[-1] == 1) == (found[b].strides[-1] == 1)
        if (pairs and (a := pairs[0][0], b := pairs[0][1]))
        else True
    )
    return sum(cost(d, found[d.value]) for d in given_) + (0 if alike else 1024 * ORDER_COST)


@examples(25)
@given(demands(0), demands(1))
def test_the_program_finds_what_trying_everything_finds(first: Demand, second: Demand) -> None:
    pairs = [(0, 1)]
    allowed = [[x for x in candidates(d) if cost(d, x) != FORBIDDEN] for d in (first, second)]
    if not all(allowed):
        with pytest.raises(GraphError):
            lay_out([first, second], pairs)
        return
    found = lay_out([first, second], pairs)
    best = min(total({0: a, 1: b}, [first, second], pairs) for a in allowed[0] for b in allowed[1])
    assert total(found, [first, second], pairs) == best


def test_factors_of_matmuls_are_free_of_bank_conflicts() -> None:
    for shape in ((64, 64), (16, 32), (8, 128), (24, 40)):
        (layout,) = lay_out([Demand(0, shape, DType.F16, (Use.COPY, Use.FACTOR))], []).values()
        rows = [byte_of(layout, row, 0) for row in range(8)]
        assert len({r // 16 % 8 for r in rows}) == 8


@pytest.mark.parametrize("shape", [(1, 128), (4, 1, 64), (8, 1, 128)])
def test_a_row_alone_has_the_strides_of_rows_and_needs_no_pad(shape: tuple[int, ...]) -> None:
    """Whose strides are those of columns is copied, and read, element by element."""
    demand = Demand(0, shape, DType.BF16, (Use.COPY, Use.FACTOR))
    found = lay_out([demand], [])[0]
    assert found.strides[-2:] == (*shape[-1:], 1)
    assert found.elements == max(math.prod(shape), 64)


def test_bulk_copies_ask_for_the_swizzle() -> None:
    (layout,) = lay_out([Demand(0, (64, 32), DType.F16, (Use.BOXES, Use.FACTOR))], []).values()
    assert layout.swizzle == 64


def test_contradictory_demands_are_named() -> None:
    with pytest.raises(GraphError, match="boxes"):
        lay_out([Demand(0, (64, 64), DType.F16, (Use.BOXES, Use.COPY))], [])


@pytest.mark.parametrize(("rows", "columns"), [(64, 16), (32, 32), (96, 8), (8, 16)])
def test_short_rows_lie_side_by_side_in_a_line(rows: int, columns: int) -> None:
    """A tile of whole short rows is one piece of memory: it travels in lines of 128 bytes, swizzled as such."""
    block = BlockGraph.start((TensorType((4 * rows, columns), DType.F16),), (2,), 2)
    boxed = bulk_of(block, InIterAttrs(0, (0,), 0))
    assert boxed is not None
    assert (boxed.fold, boxed.box, boxed.swizzle) == (64 // columns, (rows * columns // 64, 64), 128)
    assert (boxed.rows, boxed.columns) == (4 * rows * columns // 64, 64)
    layout = swizzled((rows, columns), DType.F16, boxed.fold)
    used = {offset_in_lines(layout, row, column) for row, column in product(range(rows), range(columns))}
    assert len(used) == rows * columns and max(used) < layout.elements
    # What ldmatrix reads at once, eight rows of 16 bytes, meets every bank once.
    assert cost(Demand(0, (rows, columns), DType.F16, (Use.FACTOR,)), layout) < 2 * 1024


def offset_in_lines(layout: SharedLayout, row: int, column: int) -> int:
    """Where the copy engine puts an element, said over bytes of the tile as it lies in device memory."""
    byte = (row * layout.shape[-1] + column) * layout.dtype.size
    line, inside = divmod(byte, 128)
    return (line * 128 + (inside ^ (line % 8 * 16))) // layout.dtype.size


def test_short_rows_of_part_of_a_tensor_stay_apart() -> None:
    block = BlockGraph.start((TensorType((64, 32), DType.F16),), (2,), 2)
    boxed = bulk_of(block, InIterAttrs(0, (1,), 0))
    assert boxed is not None and boxed.fold == 1 and boxed.swizzle == 32
