"""Parts of tensors: what is drawn for a block and an iteration is what splitting the tensor gives."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.ir import BlockGraph, KernelGraph
from mirage_nb.ir.text import parse_graph
from mirage_nb.viz.axes import axis_names
from mirage_nb.viz.tiles import Access, accesses, tiles_html
from tests.viz.mugraph_samples import SAMPLES, rmsnorm_fused, split_attention


def split_part(
    whole: np.ndarray, access: Access, grid: Sequence[int], loop: int, block: Sequence[int], iteration: int
) -> np.ndarray:
    """The same by cutting an array: the grid first, x outermost, then the for-loop."""
    for splits, number, dim in zip(grid, block, access.dims, strict=True):
        if dim is not None:
            whole = np.split(whole, splits, axis=dim)[number]
    return whole if access.loop_dim is None else np.split(whole, loop, axis=access.loop_dim)[iteration]


@st.composite
def shared_tensors(draw: st.DrawFn) -> tuple[Access, tuple[int, ...], int]:
    rank = draw(st.integers(1, 3))
    grid = tuple(draw(st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=3)))
    dims = tuple(draw(st.lists(st.none() | st.integers(0, rank - 1), min_size=len(grid), max_size=len(grid))))
    loop, loop_dim = draw(st.sampled_from((1, 3))), draw(st.none() | st.integers(0, rank - 1))
    shape = [draw(st.integers(1, 2)) for _ in range(rank)]
    for extent, dim in [*zip(grid, dims, strict=True), (loop, loop_dim)]:
        if dim is not None:
            shape[dim] *= extent
    return Access("X", "0.0", "reads", tuple(shape), ("",) * rank, dims, loop_dim), grid, loop


@given(shared_tensors(), st.data())
def test_a_part_is_what_cutting_the_tensor_gives(
    drawn: tuple[Access, tuple[int, ...], int], data: st.DataObject
) -> None:
    access, grid, loop = drawn
    block = [data.draw(st.integers(0, extent - 1)) for extent in grid]
    iteration = data.draw(st.integers(0, loop - 1))
    whole = np.arange(np.prod(access.shape)).reshape(access.shape)
    spans = access.part(grid, loop, block, iteration)
    found = whole[tuple(slice(start, start + size) for start, size in spans)]
    assert (found == split_part(whole, access, grid, loop, block, iteration)).all()


def overhanging() -> KernelGraph:
    """Three blocks of four rows, and tiles of eight columns, over [9, 13]."""
    return parse_graph(
        """mugraph 1
input %0 X f16[9, 13]
%1 = Graph(%0) grid=[3] loop=2 {
  %0 = InIter arg=0 imap=[0] fmap=1 tile=[4, 8]
  %1 = Accum(%0) kind=concat dim=1
  OutSaver(%1) omap=[0] shape=[9, 13]
}
output %1 O
"""
    )


def test_parts_end_where_the_tensor_does() -> None:
    (op,) = overhanging().ops
    assert isinstance(op.body, BlockGraph)
    read, written = accesses(0, op.body, ["X", "O"], [("", "")] * 2)
    assert read.part((3,), 2, [2], 1) == ((8, 1), (8, 5))
    assert read.part((3,), 2, [1], 0) == ((4, 4), (0, 8))
    assert written.part((3,), 2, [2], None) == ((8, 1), (0, 13))
    assert read.ends(2, 1) == [8 / 13]
    assert "data-covered='12 16'" in tiles_html(op.body, [read])


@pytest.mark.parametrize("make", [rmsnorm_fused, split_attention, overhanging])
def test_savers_write_every_element_once(make: object) -> None:
    graph = make()  # type: ignore[operator]
    op = graph.ops[0]
    names = [f"t{v}" for v in range(len(graph.types))]
    axes = [("",) * len(t.shape) for t in graph.types]
    for access in accesses(0, op.body, names, axes):
        if access.verb != "writes":
            continue
        counts = np.zeros(access.shape, int)
        for block in itertools.product(*map(range, op.body.grid)):
            spans = access.part(op.body.grid, op.body.loop, block, None)
            counts[tuple(slice(start, start + size) for start, size in spans)] += 1
        assert (counts == 1).all()


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
def test_drawn_parts_lie_within_their_boxes(make: object) -> None:
    graph = make()  # type: ignore[operator]
    names = axis_names(graph)
    for number, (op, results) in enumerate(graph.definitions()):
        if not isinstance(op.body, BlockGraph):
            continue
        values = (*op.inputs, *results)
        axes = [names.of((), v) for v in values]
        html = tiles_html(op.body, accesses(number, op.body, [f"<{v}>" for v in values], axes))
        assert "<0>" not in html and "&lt;" in html
        parts = re.findall(r"<rect x='?\"?([\d.]+)\"? y=\"([\d.]+)\" width=\"([\d.]+)\" height=\"([\d.]+)\" "
                           r"class=\"mir-\w+-part\" data-box=\"([\d. ]+)\"", html)  # fmt: skip
        assert len(parts) >= len(op.body.savers)
        for *part, box in parts:
            x, y, width, height = map(float, part)
            left, top, wide, tall = map(float, box.split())
            assert left - 0.1 <= x and x + width <= left + wide + 2.1
            assert top - 0.1 <= y and y + height <= top + tall + 2.1
