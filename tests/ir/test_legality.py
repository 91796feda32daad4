"""Definition 2.1: what is legal passes, and every way to break it is named with its place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from mirage_nb.errors import FormatError, GraphError
from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    DimAttrs,
    DType,
    InIterAttrs,
    Input,
    KernelGraph,
    MemSpace,
    Op,
    OpKind,
    ReshapeAttrs,
    TensorType,
    ThreadGraph,
)
from mirage_nb.ir.legality import check, peak_shared_bytes
from mirage_nb.ir.text import parse_graph
from mirage_nb.targets import TARGETS
from tests.mugraphs import Block, Case, Kernel, cases, gqa, rmsnorm, rmsnorm_fig3
from tests.shares import examples
from tests.strategies import mugraphs, programs

H200 = TARGETS["h200"]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_hand_built_graphs_are_legal(case: Case) -> None:
    check(case.program, H200)
    check(case.candidate, H200)


@given(programs() | mugraphs() | mugraphs(overhang=True))
@examples(150)
def test_drawn_graphs_are_legal(graph: KernelGraph) -> None:
    check(graph)


def looped(loop: int = 2, grid: tuple[int, ...] = (2,)) -> tuple[Kernel, Block]:
    k = Kernel(X=(4, 8), W=(8, 4))
    return k, k.block((0, 1), grid, loop)


def built(k: Kernel, b: Block) -> KernelGraph:
    return k.returning(k.launch((0, 1), b))


def correct() -> tuple[Kernel, Block, int]:
    k, b = looped()
    product = b.accum(b.op(OpKind.MATMUL, b.read(0, (0,), 1), b.read(1, (None,), 0)))
    return k, b, product


def test_the_correct_one_passes() -> None:
    k, b, product = correct()
    b.save(product, (0,))
    check(built(k, b))


def no_saver() -> KernelGraph:
    k, b, _ = correct()
    return KernelGraph.start(*k.graph.inputs).append(Op(OpKind.GRAPH, (0, 1), body=b.graph)).returning((0,))


def unread_operand() -> KernelGraph:
    k, b = looped()
    b.save(b.accum(b.read(0, (0,), 1)), (0,))
    return built(k, b)


def unused_value() -> KernelGraph:
    k, b, product = correct()
    b.op(OpKind.SQR, product)
    b.save(product, (0,))
    return built(k, b)


def unused_constant() -> KernelGraph:
    k, b, product = correct()
    b.const(1)
    b.save(product, (0,))
    return built(k, b)


def saved_from_the_loop() -> KernelGraph:
    k, b = looped()
    b.save(b.op(OpKind.MATMUL, b.read(0, (0,), 1), b.read(1, (None,), 0)), (0,))
    return built(k, b)


def saved_constant() -> KernelGraph:
    k, b, product = correct()
    b.save(product, (0,))
    one = b.op(OpKind.RESHAPE, b.const(1), attrs=ReshapeAttrs((1,)))
    b.save(one, (0,))
    return built(k, b)


def read_after_the_loop() -> KernelGraph:
    k, b = looped()
    x, w = b.read(0, (0,), 1), b.read(1, (None,), 0)
    total = b.accum(b.op(OpKind.MATMUL, x, w))
    b.save(b.op(OpKind.ADD, x, total), (0,))
    return built(k, b)


def accumulated_twice() -> KernelGraph:
    k, b, product = correct()
    b.save(b.accum(product), (0,))
    return built(k, b)


def accumulated_constant() -> KernelGraph:
    k, b, product = correct()
    b.save(b.op(OpKind.ADD, product, b.accum(b.const(1))), (0,))
    return built(k, b)


def held_but_changing() -> KernelGraph:
    k, b = looped()
    x = b.accum(b.read(0, (0,), 1), kind=AccumKind.HOLD)
    b.save(b.op(OpKind.MATMUL, x, b.accum(b.read(1, (None,), 0), kind=AccumKind.HOLD)), (0,))
    return built(k, b)


def wrong_type() -> KernelGraph:
    graph = rmsnorm().program
    return replace(graph, types=(*graph.types[:-1], TensorType((2, 9), DType.F16)))


def missing_type() -> KernelGraph:
    graph = rmsnorm().program
    return replace(graph, types=graph.types[:-1], outputs=(2,))


def undefined_value() -> KernelGraph:
    graph = rmsnorm().program
    return replace(graph, ops=(Op(OpKind.SQR, (40,)), *graph.ops[1:]))


def wrong_attributes() -> KernelGraph:
    graph = rmsnorm().program
    return replace(graph, ops=(Op(OpKind.SQR, (0,), DimAttrs(0)), *graph.ops[1:]))


def misplaced_body() -> KernelGraph:
    graph = rmsnorm().program
    body = rmsnorm().candidate.ops[0].body
    return replace(graph, ops=(Op(OpKind.SQR, (0,), None, body), *graph.ops[1:]))


def no_body() -> KernelGraph:
    graph = rmsnorm().candidate
    return replace(graph, ops=(Op(OpKind.GRAPH, (0, 1)),))


def in_block(change: dict[str, object]) -> KernelGraph:
    graph = rmsnorm().candidate
    body = graph.ops[0].body
    assert isinstance(body, BlockGraph)
    return replace(graph, ops=(replace(graph.ops[0], body=replace(body, **change)),))


def in_thread(change: dict[str, object]) -> KernelGraph:
    graph = rmsnorm_fig3().candidate
    body = graph.ops[0].body
    assert isinstance(body, BlockGraph)
    at = next(i for i, op in enumerate(body.ops) if op.kind is OpKind.FUSED)
    thread = body.ops[at].body
    assert isinstance(thread, ThreadGraph)
    ops = (*body.ops[:at], replace(body.ops[at], body=replace(thread, **change)), *body.ops[at + 1 :])
    return replace(graph, ops=(replace(graph.ops[0], body=replace(body, ops=ops)),))


def without_outputs() -> KernelGraph:
    return replace(rmsnorm().program, outputs=(), output_names=())


def twice_named() -> KernelGraph:
    return rmsnorm().program.returning((0, 1), ("O", "O"))


def same_input_name() -> KernelGraph:
    t = TensorType((2,), DType.F16)
    return KernelGraph.start(Input("X", t), Input("X", t)).returning((0,))


def shared_input() -> KernelGraph:
    return KernelGraph.start(Input("X", TensorType((2,), DType.F16, MemSpace.SHARED))).returning((0,))


BROKEN = [
    (no_saver, "no output saver"),
    (unread_operand, "operand 1 is read by no input iterator"),
    (unused_value, r"operator 4 \(Sqr\): nothing reads its result %4"),
    (unused_constant, r"\(Const\): nothing reads"),
    (saved_from_the_loop, r"operator 0 \(Graph\), operator 3 \(OutSaver\): saves a value of the loop body"),
    (saved_constant, "saves a constant"),
    (read_after_the_loop, r"\(EwAdd\): reads a value of the loop body after the loop"),
    (accumulated_twice, "accumulates what is not of the loop body: an accumulated value"),
    (accumulated_constant, "accumulates what is not of the loop body: a constant"),
    (held_but_changing, "holds a value that changes"),
    (wrong_type, "another result type"),
    (missing_type, "another result type"),
    (undefined_value, r"operator 0 \(Sqr\): reads a value that is not defined"),
    (wrong_attributes, "instead of none"),
    (misplaced_body, "a body belongs to"),
    (no_body, "needs a block graph"),
    (lambda: in_block({"grid": (0,)}), "grid dims"),
    (lambda: in_block({"grid": (2, 1)}), "does not cover"),
    (lambda: in_block({"loop": 0}), "for-loop range"),
    (lambda: in_block({"loop": 3}), "not divisible by 3"),
    (lambda: in_block({"args": (TensorType((2, 8), DType.F16),)}), "operand 1 of 1"),
    (lambda: in_thread({"outputs": ()}), "has operators and outputs"),
    (lambda: in_thread({"outputs": (0,)}), "nothing reads its result"),
    (lambda: in_thread({"outputs": (99,)}), "each a value of the graph"),
    (lambda: in_thread({"ops": ()}), "types for|has operators"),
    (without_outputs, "at least one"),
    (twice_named, "do not name"),
    (same_input_name, "distinct"),
    (shared_input, "device memory"),
]


@pytest.mark.parametrize(("make", "message"), BROKEN, ids=[message[:40] for _, message in BROKEN])
def test_what_breaks_the_definition_is_named(make: object, message: str) -> None:
    graph = make()
    with pytest.raises(GraphError, match=message):
        check(graph)


def test_an_omap_has_to_cover_the_grid() -> None:
    _, b, product = correct()
    with pytest.raises(GraphError, match="not of extent 1"):
        b.save(product, (None,))


def test_shared_memory_is_counted_by_live_intervals() -> None:
    k = Kernel(X=(64, 64))
    b = k.block((0,), (1,))
    x = b.read(0, (None,))
    for _ in range(5):
        x = b.op(OpKind.MATMUL, x, x)  # operand and result alive, nothing else
    b.save(b.op(OpKind.RESHAPE, x, attrs=ReshapeAttrs((4096,))), (None,))
    assert peak_shared_bytes(b.graph) == 2 * 64 * 64 * 2


@pytest.mark.parametrize(("twice", "tiles"), [(False, 1), (True, 2)])
def test_what_one_elementwise_operator_makes_for_another_takes_no_shared_memory(twice: bool, tiles: int) -> None:
    """It is in registers; what two of them read is not."""
    k = Kernel(X=(64, 64))
    b = k.block((0,), (1,))
    x = b.read(0, (None,))
    first = b.op(OpKind.SQR, x)
    flat = b.op(OpKind.EXP, b.op(OpKind.RESHAPE, first, attrs=ReshapeAttrs((4096,))))
    if twice:
        flat = b.op(OpKind.ADD, flat, b.op(OpKind.RESHAPE, first, attrs=ReshapeAttrs((4096,))))
    b.save(flat, (None,))
    assert peak_shared_bytes(b.graph) == tiles * 64 * 64 * 2


def test_accumulators_live_through_the_loop() -> None:
    k = Kernel(X=(8, 64))
    b = k.block((0,), (1,), 8)
    total = b.accum(b.op(OpKind.SQR, b.read(0, (None,), 0)))
    b.save(total, (None,))
    assert peak_shared_bytes(b.graph) == 3 * 64 * 2


def test_memory_limits_name_the_memory() -> None:
    wide = gqa(1, 4096, 64, 4096, (1, 1), 1).candidate
    check(wide)
    with pytest.raises(GraphError, match="bytes of shared memory"):
        check(wide, H200)
    with pytest.raises(GraphError, match="bytes of device memory"):
        check(rmsnorm().program, replace(H200, device_memory=100))
    with pytest.raises(GraphError, match="bytes of register memory"):
        check(rmsnorm_fig3().candidate, replace(H200, registers_per_multiprocessor=4))


def test_rescale_and_concat_are_legal_only_as_built() -> None:
    _, b = looped()
    x = b.read(0, (0,), 1)
    with pytest.raises(GraphError, match="takes 2 operand"):
        b.accum(x, kind=AccumKind.RESCALE)
    with pytest.raises(GraphError, match="belongs to the concat"):
        b.op(OpKind.ACCUM, x, attrs=AccumAttrs(AccumKind.SUM, 1))


HANGING = """mugraph 1
input %0 X f16[9, 5]
%1 = Graph(%0) grid=[3] loop=1 {{
  %0 = InIter arg=0 imap=[0] fmap=* tile={tile}
  %1 = Sqr(%0)
  OutSaver(%1) omap=[0] shape={shape}
}}
output %1 O
"""


@pytest.mark.parametrize("tile", ["[3, 5]", "[4, 5]", "[4, 8]"])
def test_tiles_may_hang_over_an_end_that_all_of_them_reach(tile: str) -> None:
    graph = parse_graph(HANGING.format(tile=tile, shape="[9, 5]"))
    check(graph)
    (op,) = graph.ops
    assert isinstance(op.body, BlockGraph) and isinstance(attrs := op.body.ops[0].attrs, InIterAttrs)
    assert op.body.overhanging(attrs) == (tile != "[3, 5]", tile == "[4, 8]")
    assert graph.output_types[0].shape == (9, 5)


@pytest.mark.parametrize(
    ("tile", "shape"),
    [
        ("[2, 5]", "[6, 5]"),  # does not cover the operand
        ("[5, 5]", "[9, 5]"),  # the last block has nothing
        ("[4, 4]", "[9, 4]"),
        ("[4]", "[9, 5]"),
        ("[0, 5]", "[9, 5]"),
        ("[4, 5]", "[13, 5]"),  # more than the blocks have
        ("[4, 5]", "[8, 5]"),  # the last block writes nothing
        ("[4, 5]", "[9]"),
    ],
)
def test_tiles_that_miss_the_end_are_refused(tile: str, shape: str) -> None:
    with pytest.raises(FormatError, match="cover"):
        parse_graph(HANGING.format(tile=tile, shape=shape))


def test_parts_that_do_not_divide_evenly_need_a_tile() -> None:
    with pytest.raises(FormatError, match="not divisible") as caught:
        parse_graph(HANGING.replace(" tile={tile}", "").replace("[3]", "[2]").format(shape="[9, 5]"))
    assert "tile=" in caught.value.hint
