"""Tiles held in registers: rows shared by warps, columns that a thread has to itself or shares with others."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.ir import DimAttrs, DType, Input, KernelGraph, Op, OpKind, ReshapeAttrs, SliceAttrs, TransposeAttrs
from mirage_nb.optimize import plan
from mirage_nb.optimize.register_resident import Resident
from mirage_nb.runtime.execution.buffers import decode, encode
from mirage_nb.targets import TARGETS
from tests.codegen.mugraphs import ntrans, rmsnorm, split_safe_attention
from tests.codegen.running import TOLERANCE, draw, errors, run
from tests.mugraphs import Block, one_kernel, tensor
from tests.shares import crossed

H200 = TARGETS["h200"]


def held(graph: KernelGraph, options: Options, kernel: int = 0) -> Resident | None:
    """How the plan holds a kernel's tiles."""
    found = plan(graph, H200, options).kernels[kernel]
    assert found is not None
    return found.resident


def check(graph: KernelGraph, options: Options, scale: float = 1.0) -> None:
    """Right in two orders of warps, without a race or an access out of bounds."""
    emitted, inputs = emit(graph, H200, options), draw(graph, scale=scale)
    for order in ("reversed", 1):
        outputs = run(emitted, inputs, checked=True, order=order)
        for error, type_ in zip(errors(graph, emitted, inputs, outputs), graph.output_types, strict=True):
            assert error < TOLERANCE[type_.dtype], order


def softmax(shape: tuple[int, ...], rows_per_block: int, dtype: DType) -> KernelGraph:
    """softmax(X * G + R) along the rows, a gain per column and a bias per row; the row maxima are an output, too."""
    blocks = shape[-2] // rows_per_block
    b = Block((tensor(shape, dtype), tensor(shape[-1:], dtype), tensor((shape[-2], 1), dtype)), (blocks,))
    x, gain, bias = b.read(0, (len(shape) - 2,)), b.read(1, (None,)), b.read(2, (0,))
    y = b.op(OpKind.ADD, b.op(OpKind.MUL, x, gain), bias)
    last = DimAttrs(len(shape) - 1)
    top = b.op(OpKind.MAX, y, attrs=last)
    e = b.op(OpKind.EXP, b.op(OpKind.SUB, y, top))
    b.save(b.op(OpKind.DIV, e, b.op(OpKind.SUM, e, attrs=last)), (len(shape) - 2,))
    b.save(top, (len(shape) - 2,))
    return one_kernel("X G R", b)


def columns(shape: tuple[int, ...], dim: int, dtype: DType, weighted: bool) -> KernelGraph:
    """exp(X) / sum(exp(X)) along an axis that is not the last one, and the sum; or rescaled by a maximum per column."""
    top = tuple(extent if d <= dim else 1 for d, extent in enumerate(shape))
    b = Block((tensor(shape, dtype), tensor(top, dtype)), (1,))
    x, m = b.read(0, (None,)), b.read(1, (None,))
    attrs = DimAttrs(dim)
    if weighted:
        total = b.op(OpKind.RESCALED_SUM, x, m, attrs=attrs)
        b.save(b.op(OpKind.DIV, total, b.op(OpKind.RESCALED_SUM, b.op(OpKind.EXP, m), m, attrs=attrs)), (None,))
        return one_kernel("X M", b)
    e = b.op(OpKind.EXP, b.op(OpKind.ADD, x, m))
    total = b.op(OpKind.SUM, e, attrs=attrs)
    b.save(b.op(OpKind.DIV, e, total), (None,))
    b.save(total, (None,))
    return one_kernel("X M", b)


def rows_and_columns(rows: int, columns: int, dtype: DType) -> KernelGraph:
    """For parts of two rows of `rows` of X: what is left of X * G without its means along the rows, these means, and of
    the columns of X - R its sums and of their squares the largest; as a block holds one part."""
    shape = (2, rows, columns)
    b = Block((tensor(shape, dtype), tensor((columns,), dtype), tensor((2, rows), DType.F32)), (2,))
    x, g, r = b.read(0, (0,)), b.read(1, (None,)), b.reshape(b.read(2, (0,)), 1, rows, 1)
    y = b.op(OpKind.MUL, x, g)
    mean = b.op(OpKind.MUL, b.sum(y, 2), b.const(Fraction(1, columns)))
    away = b.op(OpKind.SUB, x, r)
    b.save(b.op(OpKind.SUB, y, mean), (0,))
    b.save(mean, (0,))
    b.save(b.sum(away, 1), (0,))
    b.save(b.max(b.op(OpKind.SQR, away), 1), (0,))
    return one_kernel("X G R", b)


CROSSED = [  # rows, columns, warps, a vector, how many of them
    (8, 2048, DType.F32, 16, 4, 1), (16, 1024, DType.F16, 8, 4, 1), (5, 96, DType.BF16, 3, 1, 1),
    (4, 128, DType.F16, 1, 4, 1), (6, 4096, DType.F32, 16, 4, 2), (3, 5120, DType.F16, 10, 8, 2),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "dtype", "warps", "width", "slots"), CROSSED)
def test_rows_are_shared_and_columns_are_not(
    rows: int, columns: int, dtype: DType, warps: int, width: int, slots: int
) -> None:
    graph = rows_and_columns(rows, columns, dtype)
    found = held(graph, Options())
    assert found is not None and found.layout.crossed
    assert (found.layout.warps, found.layout.width, found.layout.slots) == (warps, width, slots)
    check(graph, Options())
    source = emit(graph, H200, Options()).source
    assert source.count("team_sum") == (warps > 1) and "block_sync" not in source


@pytest.mark.parametrize(("warps", "rows_per_block"), [(8, 1), (8, 2), (8, 8), (4, 4), (16, 4), (1, 1)])
def test_warps_share_rows(warps: int, rows_per_block: int) -> None:
    graph, options = ntrans(16, 512, rows_per_block), Options(warps=warps)
    found = held(graph, options)
    assert found is not None and found.layout.rows and found.layout.lanes == 32 * warps // rows_per_block
    check(graph, options)


def normed(shape: tuple[int, ...], dtype: DType) -> KernelGraph:
    """X / sqrt(sum(X * X)) * G + R along the rows; G is a gain per column, R lies as X does."""
    b = Block((tensor(shape, dtype), tensor(shape[-1:], dtype), tensor(shape, dtype)), shape[:1])
    x, gain, r = b.read(0, (0,)), b.read(1, (None,)), b.read(2, (0,))
    y = b.op(OpKind.DIV, x, b.op(OpKind.SQRT, b.sum(b.op(OpKind.SQR, x), 1)))
    b.save(b.op(OpKind.ADD, b.op(OpKind.MUL, y, gain), r), (0,))
    return one_kernel("X G R", b)


@pytest.mark.parametrize(
    ("made", "width", "dtype", "warps", "anew", "behind"),
    [(softmax, 12288, DType.F32, 8, False, 0), (softmax, 16000, DType.F32, 16, False, 0),
     (softmax, 14003, DType.BF16, 16, False, 0), (softmax, 32000, DType.BF16, 16, False, 0),
     (normed, 8000, DType.F32, 8, False, 0), (normed, 20000, DType.F32, 8, False, 2),
     (normed, 30001, DType.F32, 16, False, 2), (normed, 90000, DType.F16, 16, True, 2)],
)  # fmt: skip
def test_more_warps_hold_longer_rows(
    made: Callable[..., KernelGraph], width: int, dtype: DType, warps: int, anew: bool, behind: int
) -> None:
    """Sixteen have room for rows of 200 KB; what no reduction needs is asked for behind them, and what is computed of
    elements of 16 bits is computed again."""
    graph = made((2, width), *([1] if made is softmax else []), dtype)
    found = held(graph, Options())
    assert found is not None and (found.layout.warps, found.computed_anew, len(found.behind)) == (warps, anew, behind)
    source = emit(graph, H200).source
    assert ("forget(" in source) == anew and f"__launch_bounds__({32 * warps}, {16 // warps})" in source
    check(graph, Options(), scale=0.3)


def gained(blocks: int) -> KernelGraph:
    """X / max(X * A) * G + G for a row of each block: A goes into the reduction, G does not."""
    b = Block((tensor((blocks, 64)), tensor((64,)), tensor((64,))), (blocks,))
    x, a, g = b.read(0, (0,)), b.read(1, (None,)), b.read(2, (None,))
    scaled = b.op(OpKind.DIV, x, b.op(OpKind.EXP, b.max(b.op(OpKind.MUL, x, a), 1)))
    b.save(b.op(OpKind.ADD, b.op(OpKind.MUL, scaled, g), g), (0,))
    return one_kernel("X A G", b)


def test_of_many_blocks_what_all_of_them_read_is_asked_for_behind_the_reductions() -> None:
    small, options = replace(H200, multiprocessors=2), Options(warps=2)
    few, many = (plan(gained(blocks), small, options).kernels[0] for blocks in (2, 3))
    assert few is not None and few.resident is not None and few.resident.behind == frozenset() and few.resident.together
    assert many is not None and many.resident is not None and many.resident.behind == {2} and not many.resident.together
    for blocks, order in ((3, "012"), (2, "201")):  # what the reduction needs comes last where blocks run side by side
        graph = gained(blocks)
        emitted, inputs = emit(graph, small, options), draw(graph)
        asked = "".join(re.findall(r"h(\d)\[0\] = load", emitted.source))
        assert asked == order, asked
        (error,) = errors(graph, emitted, inputs, run(emitted, inputs, checked=True, order="reversed"))
        assert error < TOLERANCE[DType.F16]


@crossed({
    "rows_per_block": [1, 2],
    "width": [1000, 100, 33, 2, 1032, 1792],
})
def test_rows_that_fill_no_warp(width: int, rows_per_block: int) -> None:
    graph, options = softmax((4, width), rows_per_block, DType.F16), Options(warps=2)
    assert held(graph, options) is not None
    check(graph, options, scale=3.0)


@crossed({
    "shape": [(4, 256), (1, 4, 64), (2, 2, 40)],
    "dtype": list(TOLERANCE),
})
def test_softmax_of_rows(dtype: DType, shape: tuple[int, ...]) -> None:
    graph, options = softmax(shape, 1 if len(shape) == 2 else 2, dtype), Options(warps=4)
    assert held(graph, options) is not None
    check(graph, options)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_rows_are_divided_by_denormals(dtype: DType) -> None:
    """The inverse of a number below 2^-128 is infinite in f32; sampling with a temperature has met one."""
    b = Block((tensor((4, 256), dtype), tensor((4, 1), dtype)), (4,))
    b.save(b.op(OpKind.DIV, b.read(0, (0,)), b.read(1, (0,))), (0,))
    graph = one_kernel("X t", b)
    emitted = emit(graph, H200, Options(warps=2))
    inputs = [encode(1e-39 * decode(a, dtype), dtype) for a in draw(graph)]
    (error,) = errors(graph, emitted, inputs, run(emitted, inputs))
    assert error < TOLERANCE[dtype]


@crossed({
    "dtype": [DType.F16, DType.F32],
    "shape, dim": [((16, 8, 64), 0), ((3, 5, 7), 1), ((64, 33), 0), ((2, 600), 0), ((1, 9, 8, 4), 1)],
    "weighted": [False, True],
})
def test_a_thread_has_a_column(shape: tuple[int, ...], dim: int, dtype: DType, weighted: bool) -> None:
    graph, options = columns(shape, dim, dtype, weighted), Options(warps=4)
    found = held(graph, options)
    assert found is not None and found.layout.lanes == 1 and found.layout.slots == shape[dim]
    check(graph, options, scale=3.0 if weighted else 1.0)


@crossed({
    "dtype": [DType.F16, DType.F32],
    "shape, dim, lanes": [
        ((512, 8), 0, (128, 64)), ((1, 100, 32), 1, (24, 16)), ((37, 2, 64), 0, (8, 4)), ((2, 60, 48), 1, (8, 4)),
        ((33, 64), 0, (8, 8)),
    ],
    "weighted": [False, True],
})
def test_threads_share_a_column(
    shape: tuple[int, ...], dim: int, lanes: tuple[int, int], dtype: DType, weighted: bool
) -> None:
    graph, options = columns(shape, dim, dtype, weighted), Options(warps=4)
    found = held(graph, options)
    assert found is not None and found.layout.lanes == lanes[dtype is DType.F32]
    check(graph, options, scale=3.0 if weighted else 1.0)


def windows(shape: tuple[int, ...], dims: tuple[int, ...], dtype: DType) -> KernelGraph:
    """e = exp(X + Y); e / sum(sum(e)^2) and max(max(e)), one of `dims` after the other; Y does not vary along the
    first."""
    beside = tuple(1 if d == dims[0] else extent for d, extent in enumerate(shape))
    b = Block((tensor(shape, dtype), tensor(beside, dtype)), (1,))
    e = b.op(OpKind.EXP, b.op(OpKind.ADD, b.read(0, (None,)), b.read(1, (None,))))
    top = total = e
    for dim in dims:
        top = b.max(top, dim)
        total = b.op(OpKind.SQR, b.sum(total, dim))
    b.save(b.op(OpKind.DIV, e, total), (None,))
    b.save(top, (None,))
    return one_kernel("X Y", b)


@crossed({
    "dtype": [DType.F16, DType.F32],
    "shape, dims": [
        ((4, 3, 2, 16, 2), (2, 4)), ((2, 5, 3, 7), (2, 1)), ((3, 2, 8), (1, 2)), ((99, 4), (1,)),
        ((2, 6, 2, 40), (0, 2)),
    ],
})
def test_a_thread_has_a_window(shape: tuple[int, ...], dims: tuple[int, ...], dtype: DType) -> None:
    """Pools went through shared memory, with a barrier for each of their axes."""
    graph, options = windows(shape, dims, dtype), Options(warps=4)
    found = held(graph, options)
    assert found is not None and not found.layout.rows and found.layout.dims == tuple(sorted(dims))
    source = emit(graph, H200, options).source
    assert "shared" not in source
    at_once = shape[-1] if len(shape) - 1 in dims and shape[-1] in (2, 4, 8) else found.layout.width
    assert f"load_once<{at_once}>(x0" in source
    check(graph, options, scale=0.3)


@pytest.mark.parametrize(
    ("elements", "dtype", "width", "threads"),
    [(8192, DType.F32, 4, 256), (1200, DType.F32, 4, 160), (1024, DType.F32, 4, 256), (512, DType.F32, 2, 256),
     (256, DType.F32, 2, 128), (96, DType.F32, 2, 64), (8192, DType.F16, 8, 256), (33, DType.F16, 1, 64),
     (2 * 33, DType.BF16, 2, 64)],
)  # fmt: skip
def test_where_nothing_is_reduced_blocks_have_the_threads_that_they_need(
    elements: int, dtype: DType, width: int, threads: int
) -> None:
    b = Block((tensor((3, elements), dtype), tensor((elements,), dtype)), (3,))
    b.save(b.op(OpKind.SILU, b.op(OpKind.ADD, b.read(0, (0,)), b.read(1, (None,)))), (0,))
    graph = one_kernel("X B", b)
    if elements > 4 * 256 * width:
        assert held(graph, Options()) is None
    else:
        found = held(graph, Options())
        assert found is not None and found.layout.width == width and not found.layout.dims
        assert emit(graph, H200, Options()).launches[0].threads == threads
    check(graph, Options())


def test_results_of_splits_are_combined_without_a_barrier() -> None:
    graph = split_safe_attention(2, 256, 4096, 64, 4, 16, 4, 64)
    text = emit(graph, H200).source.split("kernel1(")[1]
    assert "sync" not in text and "shared" not in text
    assert text.count("load_once<4>") == 1 and "load<" not in text


def test_threads_without_a_vector_are_none() -> None:
    """Seven warps have two vectors each where the eighth would have had none."""
    graph = softmax((2, 1792), 1, DType.F16)
    found = held(graph, Options(warps=8))
    assert found is not None and (found.layout.warps, found.layout.slots) == (7, 2)
    assert not found.layout.ragged(found.layout.tile)
    assert emit(graph, H200, Options(warps=8)).launches[0].threads == 7 * 32


def test_what_waits_for_no_reduction_is_stored_before_it() -> None:
    b = Block((tensor((4, 256), DType.F16), tensor((4, 256), DType.F16)), (4,))
    s = b.op(OpKind.ADD, b.read(0, (0,)), b.read(1, (0,)))
    b.save(b.op(OpKind.DIV, s, b.op(OpKind.SUM, b.op(OpKind.SQR, s), attrs=DimAttrs(1))), (0,))
    b.save(s, (0,))
    graph = one_kernel("X R", b)
    for chained in (False, True):
        source = emit(graph, H200, Options(chained=chained)).source
        places = [source.index(text) for text in ("output 1", "team_sum<", "output 0")]
        assert places == sorted(places)
        assert not chained or source.index("grid_dependency_wait") < places[0]
    check(graph, Options())


def test_a_reduction_of_a_row_costs_one_barrier() -> None:
    source = emit(ntrans(8, 4096), H200).source
    assert source.count("team_sum<8>") == 2 and "block_sync" not in source and "t0" not in source


@pytest.mark.parametrize(
    "graph",
    [
        rmsnorm(),  # a loop
        ntrans(8, 65536),  # rows that fit in no registers
        ntrans(9, 512, 3),  # rows that warps cannot share evenly
        columns((1024, 50), 0, DType.F32, weighted=False),  # columns that fit in no registers
    ],
)
def test_what_is_not_held(graph: KernelGraph) -> None:
    assert held(graph, Options(warps=8)) is None


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize(("rows", "length", "lanes"), [(2, 512, 64), (64, 8, 1)])
def test_results_of_rows_may_lie_along_a_line(rows: int, length: int, lanes: int, folded: bool) -> None:
    """A residual behind the product of one row lies as the result does: its elements are those of the tile's rows.
    Where threads have whole ones, short as they are, they read it by the column."""
    b = Block((tensor((4 * rows, length), DType.BF16), tensor((1, 4 * rows)), tensor((1, length), DType.BF16)), (4,))
    w, r, x = b.read(0, (0,)), b.read(1, (1,)), b.read(2, (None,))
    total = b.op(OpKind.SQRT, b.op(OpKind.SQR, b.sum(b.op(OpKind.MUL, w, x), 1)))
    line = b.op(OpKind.RESHAPE, total, attrs=ReshapeAttrs((1, rows)))
    y = b.op(OpKind.ADD, b.op(OpKind.EXP, line), r)
    b.save(b.op(OpKind.MUL, y, b.sum(line, 1) if folded else r), (1,))
    graph = one_kernel("W R X", b)
    found = held(graph, Options(warps=4))
    assert (found is None) if folded else (found is not None and found.layout.lanes == lanes)
    check(graph, Options(warps=4), scale=0.1)


@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 1)])
def test_the_result_of_a_line_may_have_more_dimensions(shape: tuple[int, ...]) -> None:
    b = Block((tensor((64,)), tensor((1,))), (1,))
    total = b.sum(b.op(OpKind.MUL, b.read(0, (None,)), b.read(1, (None,))), 0)
    b.save(b.op(OpKind.EXP, b.op(OpKind.RESHAPE, total, attrs=ReshapeAttrs(shape))), (None,))
    graph = one_kernel("X W", b)
    assert held(graph, Options(warps=1)) is not None
    check(graph, Options(warps=1), scale=0.1)


@pytest.mark.parametrize(("shape", "to", "dim"), [
    ((64,), (64, 1), 0), ((64, 8), (8, 8, 8), 0), ((64, 8), (64, 8, 1), 1), ((8, 64), (8, 8, 8), 2),
])  # fmt: skip
def test_what_is_reshaped_is_reduced_at_once(shape: tuple[int, ...], to: tuple[int, ...], dim: int) -> None:
    """With nothing between the two, the planner ended with an error."""
    b = Block((tensor(shape),), (1,))
    x = b.op(OpKind.RESHAPE, b.read(0, (None,)), attrs=ReshapeAttrs(to))
    b.save(b.op(OpKind.SUB, x, b.op(OpKind.SUM, x, attrs=DimAttrs(dim))), (None,))
    check(one_kernel("X", b), Options(warps=4))


@pytest.mark.parametrize(("columns", "able"), [(64, True), (40, False)])
def test_reductions_along_two_axes_are_held_where_warps_fill_a_row(columns: int, able: bool) -> None:
    b = Block((tensor((8, columns)),), (1,))
    b.save(b.sum(b.sum(b.read(0, (None,)), 1), 0), (None,))
    graph = one_kernel("X", b)
    assert (held(graph, Options(warps=8)) is not None) is able
    check(graph, Options(warps=8))


def test_what_is_not_saved_where_it_stands_is_not_held() -> None:
    """A result of one row that every row of the tile would save."""
    b = Block((tensor((4, 64)), tensor((1, 64))), (1,))
    x, row = b.read(0, (None,)), b.read(1, (None,))
    b.save(b.op(OpKind.DIV, x, b.sum(x, 1)), (None,))
    b.save(b.op(OpKind.MUL, row, b.const(Fraction(2))), (None,))
    graph = one_kernel("X R", b)
    assert held(graph, Options(warps=4)) is None
    check(graph, Options(warps=4))


@pytest.mark.parametrize(
    ("rows", "summed", "load"),
    [(64, False, "load_once"), (1024, False, "load"), (64, True, "load_once"), (1024, True, "load_once")],
)
def test_what_is_read_once_goes_past_l1_where_that_pays(rows: int, summed: bool, load: str) -> None:
    """Little of it, or much beside which little is written; what all blocks read stays where it is."""
    b = Block((tensor((rows, 1024), DType.F32), tensor((1024,), DType.F32)), (rows,))
    product = b.op(OpKind.MUL, b.read(0, (0,)), b.read(1, (None,)))
    b.save(b.sum(product, 1) if summed else product, (0,))
    source = emit(one_kernel("X Y", b), H200).source
    assert f"= {load}<4>(x0" in source and "load_once<4>(x1" not in source


def rope(order: tuple[int, ...], along: int, split: int = 64, summed: bool = False) -> KernelGraph:
    """(A * C - B * S, A * S + B * C), one behind the other along a new dimension that lies where `order` says; of rows
    in pieces of `split`; or only what each row of A sums to, and what B does."""
    b = Block((tensor((6, 4, 64)), tensor((6, 4, 64)), tensor((4, 64)), tensor((4, 64))), (6,))
    x, y, c, s = b.read(0, (0,)), b.read(1, (0,)), b.read(2, (None,)), b.read(3, (None,))

    def product(one: int, other: int) -> int:
        return b.op(OpKind.MUL, one, other)

    parts = [b.op(OpKind.SUB, product(x, c), product(y, s)), b.op(OpKind.ADD, product(x, s), product(y, c))]
    lies = (1, 1, 4, 64 // split, split)
    if summed:
        parts, lies = [b.sum(part, 2) for part in parts], (1, 1, 4, 1, 1)
    parts = [b.op(OpKind.RESHAPE, part, attrs=ReshapeAttrs(lies)) for part in parts]
    joined = b.op(OpKind.CONCAT, *parts, attrs=DimAttrs(along))
    b.save(b.op(OpKind.TRANSPOSE, joined, attrs=TransposeAttrs(order)), (order.index(1),))
    return one_kernel("X Y C S", b)


@crossed({
    "summed": [False, True],
    "order, along, split, stores": [((1, 2, 0, 3, 4), 0, 64, "store("), ((1, 2, 3, 4, 0), 0, 64, "Vec<float, 4> y"),
     ((0, 1, 2, 4, 3), 4, 64, "= from_float<f16>"), ((1, 2, 0, 3, 4), 3, 4, "= from_float<f16>"),
     ((0, 1, 2, 3, 4), 4, 64, "store(")],
})
def test_results_that_are_concatenated_are_saved_from_registers(
    order: tuple[int, ...], along: int, split: int, stores: str, summed: bool
) -> None:
    """Halves of a rope went through shared memory, with a barrier."""
    graph, options = rope(order, along, split, summed), Options(warps=4)
    assert held(graph, options) is not None
    source = emit(graph, H200, options).source
    assert "MIRAGE_DYNAMIC_SHARED" not in source and (summed or stores in source)
    check(graph, options)


@pytest.mark.parametrize(("first", "step", "runs"), [(0, 2, 1), (1, 2, 1), (3, 4, 0), (0, 3, 0), (2, 2, 0)])
def test_elements_that_are_a_few_apart_are_loaded_with_what_lies_between(first: int, step: int, runs: int) -> None:
    """Pairs of a rope were loaded element by element: 305 us where vectors take 96, on an H100."""
    graph = KernelGraph.start(Input("X", tensor((6, 4, 128 * step // 2))))
    graph = graph.append(Op(OpKind.SLICE, (0,), SliceAttrs(2, first, 64 if first < 2 else 60, step)))
    b = Block(graph.types[1:], (6,))
    b.save(b.op(OpKind.EXP, b.read(0, (0,))), (0,))
    graph = graph.append(Op(OpKind.GRAPH, (1,), body=b.graph)).returning((2,))
    source = emit(graph, H200, Options(warps=4)).source
    assert source.count("= load<4>(x0") == runs
    check(graph, Options(warps=4))


def test_what_is_broadcast_before_it_is_reshaped_lies_as_no_view() -> None:
    """An outer product, seen with a dimension more: neither of its operands has all of its elements."""
    b = Block((tensor((4, 1)), tensor((1, 96)), tensor((96, 16))), (2,))
    product = b.op(OpKind.MUL, b.read(0, (0,)), b.read(1, (None,)))
    outer = b.op(OpKind.RESHAPE, product, attrs=ReshapeAttrs((2, 96, 1)))
    weighted = b.op(OpKind.MUL, outer, b.read(2, (None,)))
    b.save(b.op(OpKind.SUM, weighted, attrs=DimAttrs(1)), (0,))
    check(one_kernel("X W U", b), Options(warps=4))


@pytest.mark.parametrize(("tile", "whole"), [
    ((64, 1), (64, 32)), ((32, 2), (32, 64)), ((16, 4), (512, 4)), ((64,), (2048,)), ((1, 64), (32, 64)),
])  # fmt: skip
def test_rows_that_are_saved_as_columns(tile: tuple[int, ...], whole: tuple[int, ...]) -> None:
    """A row becomes a column of a tensor, or a few, or lies in one piece all the same: so do vectors of it, or not."""
    b = Block((tensor((32, 64)),), (32,))
    made = b.reshape(b.op(OpKind.EXP, b.read(0, (0,))), *tile)
    b.save(made, (next(d for d, (own, all_) in enumerate(zip(tile, whole, strict=True)) if own != all_),))
    check(one_kernel("X", b), Options(4), 0.3)
