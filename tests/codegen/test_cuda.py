"""Emitted kernels, executed on the CPU edition, agree with the float64 reference."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mirage_nb.codegen import Launch, LibraryCall, Options, TensorArg, emit, emit_plan
from mirage_nb.errors import EmitError, TargetError
from mirage_nb.ir import (
    OPS,
    AccumKind,
    ApplyAttrs,
    Attrs,
    CastAttrs,
    ClampAttrs,
    ConstAttrs,
    DimAttrs,
    DType,
    Input,
    KernelGraph,
    Op,
    OpKind,
    PowAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    WhereAttrs,
)
from mirage_nb.lang import parse
from mirage_nb.optimize import BlockPlan, plan
from mirage_nb.targets import TARGETS
from tests.codegen.mugraphs import (
    attention,
    chain,
    gated_mlp,
    lora,
    lora_concat,
    ntrans,
    rmsnorm,
    rmsnorm_gain,
    safe_attention,
    split_attention,
    split_safe_attention,
)
from tests.codegen.running import TOLERANCE, check, run
from tests.mugraphs import Block, one_kernel, tensor
from tests.shares import crossed

H200 = TARGETS["h200"]
F32 = DType.F32
BULK = Options(warps=4, stages=3, bulk=True)

NAMED = {
    "rmsnorm": rmsnorm(),
    "rmsnorm_gain": rmsnorm_gain(),
    "gated_mlp": gated_mlp(),
    "gated_mlp_bf16": gated_mlp(dtype=DType.BF16),
    "gated_mlp_f32": gated_mlp(dtype=DType.F32),
    "lora": lora(),
    "lora_concat": lora_concat(),
    "attention": attention(),
    "safe_attention": safe_attention(),
    "split_attention": split_attention(),
    "split_safe_attention": split_safe_attention(),
    "ntrans": ntrans(),
    "chain": chain(),
}


@crossed({
    "name": NAMED,
    "bulk": [False, True],
})
def test_named_mugraphs(name: str, bulk: bool) -> None:
    check(NAMED[name], BULK if bulk else None)


def test_a_shift_that_is_not_undone_keeps_its_value() -> None:
    """The maximum of one iteration is an output here: the running maximum must not stand in for it."""
    b = Block((tensor((16, 64)), tensor((64, 64)), tensor((64, 64))), (1,), 2)
    q, k, v = b.read(0, (None,)), b.read(1, (None,), 0), b.read(2, (None,), 0)
    scores = b.op(OpKind.MATMUL, q, b.transpose(k, 1, 0))
    top = b.op(OpKind.MAX, scores, attrs=DimAttrs(1))
    e = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top))
    out = b.accum(b.op(OpKind.MATMUL, e, v), top, kind=AccumKind.RESCALE)
    b.save(b.op(OpKind.ADD, out, b.accum(top)), (None,))
    check(one_kernel("Q K V", b), Options(warps=2))


def test_partial_results_travel_in_f32() -> None:
    emitted = emit(NAMED["split_safe_attention"], H200)
    assert {t.type.dtype for t in emitted.temporaries} == {F32}
    assert emitted.graph.output_types == NAMED["split_safe_attention"].output_types


def test_one_warp_and_a_deep_ring() -> None:
    """Every depth and count is looked at in `tests/tile/test_staged.py`."""
    check(rmsnorm_gain(m=5, columns=32, loop=8), Options(warps=1, stages=4))


@crossed({
    "dtype": [DType.F16, DType.F32],
    "m, k, n, columns, loop": [
    (7, 100, 130, 65, 2),
    (7, 100, 130, 13, 5),
    (1, 16, 8, 8, 1),
    (17, 48, 24, 24, 3),
    (33, 20, 3, 1, 4),
    (1, 1, 1, 1, 1),
],
})
def test_extents_that_fill_no_instruction_tile(m: int, k: int, n: int, columns: int, loop: int, dtype: DType) -> None:
    check(rmsnorm(m, k, n, columns, loop, dtype))


def elementwise(
    kind: OpKind, attrs: Attrs | None, shape: tuple[int, ...], dtype: DType
) -> KernelGraph:
    """One operator on positive numbers (X * X + 1/2), a row broadcast as second operand."""
    binary = OPS[kind].arity == 2
    b = Block((tensor(shape, dtype), tensor(shape[-1:], dtype)), (1,))
    x, row = b.read(0, (None,)), b.read(1, (None,))
    positive = b.op(OpKind.ADD, b.op(OpKind.SQR, x), b.const(Fraction(1, 2)))
    other = b.op(OpKind.ADD, b.op(OpKind.SQR, row), b.const(1))
    if kind is OpKind.WHERE:
        result = b.op(kind, b.op(OpKind.RELU, b.op(OpKind.SUB, positive, other)), positive, attrs=attrs)
    else:
        result = b.op(kind, positive, other) if binary else b.op(kind, b.op(OpKind.SUB, positive, other), attrs=attrs)
    if kind in (OpKind.SQRT, OpKind.POW):
        result = b.op(kind, positive, attrs=attrs)
    b.save(b.op(OpKind.ADD, result, other), (None,))
    return one_kernel("X R", b)


FORMULAS = (
    "x * tanh(log(1 + exp(x)))", "minimum(abs(x), 3/4) - maximum(-x, sin(x)) / 3", "erf(x) + cos(x) * sigmoid(-x)",
    "sqrt(square(x) + 1) ** -0.5".replace("-0.5", "(-1/2)"), "-x ** 3",
    "log1p(expm1(x) + 2) * sign(x)", "floor(x * 3) + step(x)",
    "atan(x * 4) - x",
)  # fmt: skip

ATTRIBUTES: list[tuple[OpKind, Attrs | None]] = [
    *((k, None) for k in (OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV, OpKind.EXP, OpKind.SQR, OpKind.SQRT)),
    *((k, None) for k in (OpKind.MAXIMUM, OpKind.GREATER, OpKind.GREATER_EQUAL, OpKind.EQUAL)),
    *((OpKind.WHERE, WhereAttrs(Fraction(other))) for other in (0, "-7/2")),
    *((OpKind.CAST, CastAttrs(dtype)) for dtype in (DType.F16, DType.BF16)),
    *((k, None) for k in (OpKind.SILU, OpKind.GELU, OpKind.SIGMOID, OpKind.RELU)),
    (OpKind.CLAMP, ClampAttrs(Fraction(-1, 2), Fraction(1, 4))),
    (OpKind.CLAMP, ClampAttrs(None, Fraction(0))),
    (OpKind.CLAMP, ClampAttrs(Fraction(0), None)),
    *((OpKind.POW, PowAttrs(Fraction(p))) for p in (3, 2, 1, -1)),
    *((OpKind.APPLY, ApplyAttrs("f", text)) for text in FORMULAS),
    *((OpKind.POW, PowAttrs(Fraction(p, 2))) for p in (1, -1, 5)),
]


@pytest.mark.parametrize(("kind", "attrs"), ATTRIBUTES)
def test_every_elementwise_operator(kind: OpKind, attrs: Attrs | None) -> None:
    check(elementwise(kind, attrs, (3, 40), F32))


@pytest.mark.parametrize("text", ["relu(X)", "clamp(X, -1, 1)", "max(X, axis=-1, keepdims=True)"])
def test_what_is_undefined_stays_so(text: str) -> None:
    """Maxima and minima are NaN where one of their operands is, as in PyTorch and NumPy."""
    (op,) = parse(f"X: f32[2, 16]\nreturn {text}\n", name="undefined").graph.ops
    b = Block((tensor((2, 16), F32),), (1,))
    b.save(b.op(op.kind, b.read(0, (None,)), attrs=op.attrs), (None,))
    graph = one_kernel("X", b)
    values = np.zeros((2, 16), np.float32)
    values[1, 3] = np.nan
    (found,) = run(emit(graph, H200), [values])
    assert np.isnan(found[1]).any() and not np.isnan(found[0]).any()


@crossed({
    "dtype": list(TOLERANCE),
    "shape": [(5,), (2, 3, 8), (1, 1), (3, 1, 33)],
})
def test_elementwise_shapes_and_types(shape: tuple[int, ...], dtype: DType) -> None:
    check(elementwise(OpKind.MUL, None, shape, dtype))


@crossed({
    "shape": [(3, 5, 7), (1, 2, 2048), (1024, 1, 2), (40, 16, 32)],
    "dim": [0, 1, 2],
    "kind": [OpKind.SUM, OpKind.MAX],
})
def test_reductions(kind: OpKind, dim: int, shape: tuple[int, ...]) -> None:
    b = Block((tensor(shape, F32),), (1,))
    x = b.op(OpKind.EXP, b.read(0, (None,)))
    b.save(b.op(kind, x, attrs=DimAttrs(dim)), (None,))
    check(one_kernel("X", b))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("wide", [True, False])
def test_rescaled_sum(dim: int, wide: bool) -> None:
    shape = (24, 40)
    top = shape if wide else tuple(e if d == dim else 1 for d, e in enumerate(shape))
    b = Block((tensor(shape, F32), tensor(top, F32)), (1,))
    x, m = b.read(0, (None,)), b.read(1, (None,))
    b.save(b.op(OpKind.RESCALED_SUM, x, m, attrs=DimAttrs(dim)), (None,))
    check(one_kernel("X M", b), scale=4.0)


@crossed({
    "source": ["tile", "reduced", "product", "shared"],
    "kind": [AccumKind.SUM, AccumKind.MAX],
})
def test_accumulators(kind: AccumKind, source: str) -> None:
    """Every way in which an accumulator gets its operand."""
    b = Block((tensor((12, 64), F32), tensor((64, 24), F32)), (1,), 4)
    x, w = b.read(0, (None,), 1), b.read(1, (None,), 0)
    match source:
        case "tile":
            value = b.op(OpKind.EXP, x)
        case "reduced":
            value = b.op(OpKind.SUM if kind is AccumKind.SUM else OpKind.MAX, x, attrs=DimAttrs(1))
        case "product":
            value = b.op(OpKind.MATMUL, x, w)
        case _:
            total = b.sum(x, 1)
            value = b.op(OpKind.MUL, total, total)
            b.save(b.accum(total), (None,))
    b.save(b.accum(value, kind=kind), (None,))
    check(one_kernel("X W", b))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("after", [True, False])
def test_concat_accumulator(dim: int, after: bool) -> None:
    """Straight to device memory, or kept for an operator after the loop."""
    b = Block((tensor((24, 40), F32),), (2,), 3)
    x = b.read(0, (0,), None)
    y = b.read(0, (0,), 0)
    kept = b.accum(b.op(OpKind.EXP, y), kind=AccumKind.CONCAT, dim=dim)
    if after:
        kept = b.op(OpKind.SQR, b.op(OpKind.MUL, kept, b.sum(b.accum(b.sum(x, 0), kind=AccumKind.HOLD), 1)))
    b.save(kept, (0,))
    check(one_kernel("X", b))


def test_hold_of_a_value_computed_in_the_loop() -> None:
    b = Block((tensor((8, 32), F32), tensor((16, 32), F32)), (1,), 4)
    x, y = b.read(0, (None,)), b.read(1, (None,), 0)
    held = b.accum(b.sum(b.op(OpKind.EXP, x), 1), kind=AccumKind.HOLD)
    total = b.accum(b.sum(y, 0))
    b.save(b.op(OpKind.ADD, held, total), (None,))
    check(one_kernel("X Y", b))


@pytest.mark.parametrize("wide", [True, False])
def test_rescale_accumulator(wide: bool) -> None:
    b = Block((tensor((8, 96), F32), tensor((8, 96), F32)), (1,), 4)
    x, m = b.read(0, (None,), 1), b.read(1, (None,), 1)
    if not wide:
        m = b.op(OpKind.MAX, m, attrs=DimAttrs(1))
    b.save(b.accum(x, m, kind=AccumKind.RESCALE), (None,))
    check(one_kernel("X M", b), scale=4.0)


def test_repeat_concat_reshape_transpose() -> None:
    b = Block((tensor((4, 6, 8), F32), tensor((6, 4, 16), F32)), (1,))
    x, y = b.read(0, (None,)), b.read(1, (None,))
    turned = b.transpose(y, 1, 0, 2)
    doubled = b.op(OpKind.REPEAT, x, attrs=RepeatAttrs(2, 2))
    joined = b.op(OpKind.CONCAT, doubled, turned, attrs=DimAttrs(1))
    flat = b.reshape(joined, 4, 192)
    b.save(b.op(OpKind.ADD, flat, b.op(OpKind.REPEAT, b.sum(flat, 0), attrs=RepeatAttrs(0, 4))), (None,))
    b.save(b.transpose(joined, 2, 0, 1), (None,))
    check(one_kernel("X Y", b))


@pytest.mark.parametrize(("shape", "dim", "over"), [((64,), 0, 0), ((64,), 0, 1), ((2, 16), 0, 1), ((2, 16), 1, 1)])
def test_concat_of_what_lies_in_device_memory(shape: tuple[int, ...], dim: int, over: int) -> None:
    """Which side an element comes from is a choice inside its address; tiles hang over ends by `over`."""
    b = Block((tensor(shape), tensor(shape)), (1,))
    tile = tuple(extent + over for extent in shape)
    x, y = (b.read(arg, (None,), None, tile) for arg in (0, 1))
    joined = b.op(OpKind.CONCAT, x, y, attrs=DimAttrs(dim))
    b.save(b.op(OpKind.SUB, b.op(OpKind.EXP, joined), b.const(1)), (None,))
    check(one_kernel("X Y", b))


@crossed({
    "after": [True, False],
    "shape": [(3, 32, 32, 48), (2, 4, 64, 40), (1, 5, 30, 7)],
    "turned": [(False, False), (True, False), (False, True), (True, True)],
})
def test_matmul_of_views_and_batches(turned: tuple[bool, bool], shape: tuple[int, ...], after: bool) -> None:
    """Batched products with either operand transposed, in the loop or without one; the right one broadcast."""
    batch, m, k, n = shape
    left, right = (batch, k, m) if turned[0] else (batch, m, k), (n, k) if turned[1] else (k, n)
    b = Block((tensor(left), tensor(right)), (1,), 1 if after else 2)
    fmap = (None, None) if after else (1 if turned[0] else 2, 1 if turned[1] else 0)
    x, y = b.read(0, (None,), fmap[0]), b.read(1, (None,), fmap[1])
    if turned[0]:
        x = b.transpose(x, 0, 2, 1)
    if turned[1]:
        y = b.transpose(y, 1, 0)
    product = b.op(OpKind.MATMUL, x, y)
    b.save(product if after else b.accum(product), (None,))
    check(one_kernel("X Y", b), Options(warps=8))


@crossed({
    "m, tile": [(2, 32), (24, 48), (40, 16)],
    "columns": [8, 16, 24, 48, 80, 96, 192],
})
def test_products_of_swizzled_tiles(columns: int, m: int, tile: int) -> None:
    """Panels of every width, several of them, and extents that do not fill the last instruction tile."""
    check(rmsnorm(m, 3 * tile, 2 * columns, columns, 3), BULK)


def test_product_that_leaves_the_loop_divided() -> None:
    """A product that is stored in every iteration, and a norm that is computed once before the loop."""
    b = Block((tensor((2, 128)), tensor((128, 96))), (2,), 4)
    x, whole, w = b.read(0, (None,), 1), b.read(0, (None,)), b.read(1, (1,), 0)
    norm = b.op(OpKind.SQRT, b.sum(b.op(OpKind.SQR, whole), 1))
    b.save(b.accum(b.op(OpKind.DIV, b.op(OpKind.MATMUL, x, w), norm)), (1,))
    for options in (BULK, Options(warps=8)):
        check(one_kernel("X W", b), options)


@crossed({
    "turned": [False, True],
    "dtype": list(TOLERANCE),
})
def test_swizzled_tiles_read_element_by_element(dtype: DType, turned: bool) -> None:
    """Tiles that bulk copies bring are swizzled: vectors along a row, across rows, and reductions both ways."""
    b = Block((tensor((64, 128), dtype), tensor((64, 64), dtype)), (2,), 4)
    x, y = b.read(0, (1,), 0), b.read(1, (None,), 0)
    seen = b.transpose(x, 1, 0) if turned else x
    other = b.transpose(y, 1, 0) if turned else y
    b.save(b.accum(b.op(OpKind.MUL, seen, other)), (0 if turned else 1,))
    b.save(b.accum(b.sum(b.op(OpKind.SQR, seen), 0)), (0,))
    b.save(b.accum(b.sum(seen, 1)), (0,))
    graph = one_kernel("X Y", b)
    assert "tma_load_2d" in emit(graph, H200, BULK).source
    check(graph, BULK)


def test_product_of_computed_factors_and_of_an_accumulator() -> None:
    b = Block((tensor((16, 64)), tensor((64, 32)), tensor((32, 16))), (1,), 2)
    x, y, z = b.read(0, (None,), 1), b.read(1, (None,), 0), b.read(2, (None,))
    first = b.accum(b.op(OpKind.MATMUL, b.op(OpKind.SILU, x), y))
    second = b.op(OpKind.MATMUL, first, b.op(OpKind.EXP, b.accum(z, kind=AccumKind.HOLD)))
    b.save(second, (None,))
    check(one_kernel("X Y Z", b))


def test_constant_operand_of_the_kernel_graph() -> None:
    b = Block((tensor((4, 8)), tensor((), F32)), (2,))
    b.save(b.op(OpKind.MUL, b.read(0, (0,)), b.read(1, (None,))), (0,))
    graph = KernelGraph.start(Input("X", tensor((4, 8))))
    graph = graph.append(Op(OpKind.CONST, attrs=ConstAttrs(Fraction(3, 2))))
    graph = graph.append(Op(OpKind.GRAPH, (0, 1), body=b.graph)).returning((2,))
    emitted = emit(graph, H200)
    assert len(emitted.launches[0].args) == 2
    check(graph)


def test_several_grid_dims_on_one_data_dim() -> None:
    """x is the outermost; the loop runs inside the grid's part."""
    b = Block((tensor((48, 8), F32),), (2, 3), 4)
    x = b.read(0, (0, 0), 0)
    b.save(b.accum(b.op(OpKind.EXP, x), kind=AccumKind.CONCAT, dim=0), (0, 0))
    check(one_kernel("X", b))


def test_thread_graph_whose_middle_is_read_elsewhere() -> None:
    b = Block((tensor((8, 32), F32),), (1,))
    x = b.read(0, (None,))
    middle = b.op(OpKind.EXP, b.op(OpKind.ADD, x, x))
    ratio = b.op(OpKind.DIV, b.op(OpKind.SQRT, middle), b.sum(middle, 1))
    b.save(ratio, (None,))
    b.save(middle, (None,))
    check(one_kernel("X", b))


def test_f64_is_refused() -> None:
    with pytest.raises(EmitError, match="f64"):
        emit(gated_mlp(dtype=DType.F64), H200)


def test_block_that_does_not_fit() -> None:
    with pytest.raises(TargetError, match="shared memory"):
        emit(rmsnorm(m=2, k=8192, n=128, columns=128, loop=1), H200)


def test_a_launch_has_what_its_program_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory beyond that of the launch is somebody else's, and warps that are not there set up no barriers."""
    options = Options(warps=4, bulk=True)
    planned = plan(rmsnorm(), H200, options)
    (block,) = planned.kernels
    assert block is not None
    less = replace(block, shared_bytes=block.shared_bytes - 1024)
    with pytest.raises(EmitError, match="bytes of shared memory, 160 and"):
        emit_plan(replace(planned, kernels=(less,)), H200, options)
    monkeypatch.setattr(BlockPlan, "threads", 128)
    with pytest.raises(EmitError, match="160 threads and"):
        emit_plan(planned, H200, options)


def test_same_text_in_every_run() -> None:
    assert emit(lora(), H200).source == emit(lora(), H200).source


def test_pre_defined_operators_stay_library_calls() -> None:
    """A program half of which was turned into a kernel: calls in order, views as aliases, one temporary."""
    b = Block((tensor((4, 32)),), (2,))
    b.save(b.op(OpKind.EXP, b.read(0, (0,))), (0,))
    graph = KernelGraph.start(Input("X", tensor((8, 16))), Input("W", tensor((16, 16))))
    graph = graph.append(Op(OpKind.MATMUL, (0, 1)))
    graph = graph.append(Op(OpKind.RESHAPE, (2,), ReshapeAttrs((4, 32))))
    graph = graph.append(Op(OpKind.GRAPH, (3,), body=b.graph)).returning((4,))
    emitted = emit(graph, H200)
    call, launch = emitted.launches
    assert isinstance(call, LibraryCall) and (call.inputs, call.output) == ((0, 1), 2)
    assert isinstance(launch, Launch) and launch.args == (TensorArg(3), TensorArg(4))
    assert emitted.aliases == ((3, 2),)
    assert [t.value for t in emitted.temporaries] == [2]


@pytest.mark.parametrize("staged", [True, False])
def test_norms_without_a_loop(staged: bool) -> None:
    """Tiles that no registers hold are asked for at the start, beyond shared memory read where they are needed."""
    graph = ntrans(9, 4096, 3) if staged else ntrans(2, 65536)
    source = emit(graph, H200).source
    assert source.count("cp_async<16>") == (3 if staged else 1)
    check(graph)
