"""Emitted attention on the CPU edition: products that chain, norms beside them, sums that divide them."""

from __future__ import annotations

import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.optimize.plan import Staged
from mirage_nb.runtime.execution.buffers import decode, encode
from mirage_nb.targets import TARGETS
from mirage_nb.tile.rules.order import Phase
from mirage_nb.tile.rules.placement import StepKind
from mirage_nb.verify.reals.float_gate import judge, samples
from tests.codegen.mugraphs import attention, normed_attention, safe_attention, split_attention, split_safe_attention
from tests.codegen.running import check, draw, errors, run
from tests.mugraphs import Block, one_kernel, tensor
from tests.shares import crossed

H200 = TARGETS["h200"]


def staged(graph: KernelGraph, options: Options) -> Staged:
    """The steps of the first kernel."""
    kernel = plan(graph, H200, options).kernels[0]
    assert kernel is not None and kernel.staged is not None
    return kernel.staged


@crossed({
    "bulk": [False, True],
    "rows, warps, key_warps": [(8, 4, 4), (16, 4, 4), (64, 4, 1), (40, 4, 2), (32, 8, 4)],
})
def test_warp_private_attention(rows: int, warps: int, key_warps: int, bulk: bool) -> None:
    """Warps share rows, keys or both; rows do not have to fill tiles."""
    graph = split_safe_attention(rows=rows, keys=512, splits=2, loop=2)
    options = Options(warps=warps, stages=2, bulk=bulk)
    emitted = emit(graph, H200, options)
    block = staged(graph, options)
    assert block.region is not None and block.region.key_warps == key_warps
    assert emitted.source.count("warp_max<4>") == 1
    # Scores far apart: without the running maximum the exponentials overflow or vanish.
    check(graph, options, scale=3.0)


@pytest.mark.parametrize("bulk", [False, True])
def test_a_query_alone_is_copied_in_chunks_and_held(bulk: bool) -> None:
    """As several are: not read element by element in every iteration."""
    graph, options = split_safe_attention(rows=1, keys=512, splits=2, loop=2), Options(warps=4, stages=2, bulk=bulk)
    source = emit(graph, H200, options).source
    assert "cp_async<16>(t0 +" in source and "uint32_t held" in source and "row_side" not in source
    check(graph, options, scale=3.0)


@crossed({
    "bulk": [False, True],
    "rows": [32, 64, 40],
})
def test_results_go_from_registers_to_device_memory(rows: int, bulk: bool) -> None:
    """One warp has all keys of its rows: no shared tile of an accumulator, no barrier after the loop."""
    graph = attention(rows=rows, keys=128, row_blocks=1)
    options = Options(warps=2, stages=2, bulk=bulk)
    block = staged(graph, options)
    assert block.region is not None and block.region.direct
    assert [step.kind for step in block.steps if step.phase is Phase.AFTER] == [StepKind.SAVE]
    check(graph, options, scale=0.3)
    check(split_safe_attention(rows=rows), options)


@crossed({
    "safe": [False, True],
    "rows, warps, keys, d": [(64, 4, 256, 64), (40, 4, 128, 64), (128, 8, 256, 128)],
})
def test_products_by_groups_of_warps(rows: int, warps: int, keys: int, d: int, safe: bool) -> None:
    """Keys along the rows of their tile or along its columns, one panel or two; rows that fill no group."""
    make = safe_attention if safe else attention
    graph = make(heads=1, rows=rows, keys=keys, d=d, row_blocks=1)
    options = Options(warps=warps, stages=2, bulk=True, wide=True)
    block = plan(graph, H200, options).kernels[0]
    assert block is not None
    wide = rows > 16 * (warps - 1)
    assert block.options.wide == wide
    source = emit(graph, H200, options).source
    assert source.count("wgmma_m64k16") == (2 if wide else 0)
    # The assembler gives the rows of both products the same registers, so none may live over the loop.
    assert not wide or "uint32_t held" not in source
    # Arrivals overtake loads of a slot, which are fenced, but not products, which are waited for.
    assert source.count("fence_proxy_async") == (0 if wide else 1)
    check(graph, options, scale=0.3)


UNSAFE = """
Q: f16[2, 64, 64]
K: f16[2, 64, 256]
V: f16[2, 256, 64]
E = exp(Q @ K)
O = (E / sum(E, axis=-1, keepdims=True)) @ V
return O
"""


@pytest.mark.parametrize("form", ["V", "E"])
def test_norms_of_values_do_not_cost_bits_of_the_weights(form: str) -> None:
    lines = UNSAFE.replace("64, 64]", "32, 64]").replace("Q @ K", "rms_norm(Q) @ K").replace("@ V", "@ rms_norm(V)")
    program = parse(lines, name="qknorm").graph
    graph = normed_attention(form)
    assert tuple(i.type for i in graph.inputs) == tuple(i.type for i in program.inputs)
    emitted = emit(graph, H200, Options(4, 2, True))
    for sample in samples(program, names=("constant rows", "near-zero norms")):
        stored = [encode(sample.inputs[i.name], i.type.dtype) for i in graph.inputs]
        outputs = [decode(a, t.dtype) for a, t in zip(run(emitted, stored), graph.output_types, strict=True)]
        report = judge(sample, outputs)
        assert report.survived, (sample.name, report.note)


@crossed({
    "form": ["one kernel", "sums after the loop", "two kernels"],
    "options": [Options(4, 2), Options(8, 2, True), Options(4, 2, True, True)],
}, ids=str)
def test_rows_are_summed_as_their_products_see_them(form: str, options: Options) -> None:
    """Exponentials that the type of a tile holds with few bits: what is left out of a product has to be left out
    of the sum that divides it."""
    program = parse(UNSAFE, name="attention").graph
    one = attention(2, 64, 256, 64, 1, 2, late=form == "sums after the loop")
    graph = split_attention(2, 64, 256, 64, 2, 2) if form == "two kernels" else one
    assert tuple(i.type for i in graph.inputs) == tuple(i.type for i in program.inputs)
    emitted = emit(graph, H200, options)
    for sample in samples(program, names=("constant rows", "near-zero norms", "infinite element of K")):
        stored = [encode(sample.inputs[i.name], i.type.dtype) for i in graph.inputs]
        outputs = [decode(a, t.dtype) for a, t in zip(run(emitted, stored), graph.output_types, strict=True)]
        report = judge(sample, outputs)
        assert report.survived, (sample.name, report.note)


@pytest.mark.parametrize("form", ["V", "E"])
def test_groups_of_warps_multiply_by_tiles_that_warps_compute(form: str) -> None:
    graph, options = normed_attention(form, rows=64, heads=1), Options(4, 2, bulk=True, wide=True)
    source = emit(graph, H200, options).source
    assert source.count("wgmma_m64k16") == 2
    assert source.count("fence_proxy_async") == 2  # behind the computed tile, and behind what was read of a slot
    check(graph, options, scale=0.2)


@crossed({
    "form": ["V", "E", "K"],
    "bulk": [False, True],
})
def test_norms_of_streamed_tiles_beside_warp_private_products(form: str, bulk: bool) -> None:
    """All warps compute the norms of a tile together, once; what is the same in every iteration, before the loop."""
    graph = normed_attention(form)
    options = Options(warps=4, stages=2, bulk=bulk)
    block = staged(graph, options)
    assert block.region is not None and block.region.key_warps == 2
    reductions = [step.phase for step in block.steps if step.kind is StepKind.REDUCE]
    assert reductions == [Phase.BEFORE, Phase.LOOP]
    emitted, inputs = emit(graph, H200, options), draw(graph, scale=0.2)
    for seed in (3, 4):  # races between warps included
        assert max(errors(graph, emitted, inputs, run(emitted, inputs, checked=True, deferred=True, order=seed))) < 1e-3
    check(graph, options, scale=0.2)


def test_registers_never_have_the_name_of_a_type() -> None:
    """f16 is one: the exponentials are %16 here, and a product takes them."""
    masks = [tensor((16, 64))] * 12
    b = Block((tensor((16, 32)), tensor((32, 64)), tensor((64, 32)), *masks), (1,), 2)
    q, k, v = b.read(0, (None,)), b.read(1, (None,), 1), b.read(2, (None,), 0)
    added = [b.read(arg, (None,), 1) for arg in range(3, 15)]
    scores = b.op(OpKind.MATMUL, q, k)
    for mask in added:
        scores = b.op(OpKind.ADD, scores, mask)
    e = b.op(OpKind.EXP, scores)
    b.save(b.op(OpKind.DIV, b.accum(b.op(OpKind.MATMUL, e, v)), b.accum(b.sum(e, 1))), (None,))
    graph = one_kernel("Q K V " + " ".join(f"M{n}" for n in range(12)), b)
    assert "float f16_[1]" in emit(graph, H200, Options(warps=2)).source
    check(graph, Options(warps=2), scale=0.2)


@pytest.mark.parametrize("order", ["forward", "reversed", 1])
def test_warps_without_work_show_no_maxima(order: str | int) -> None:
    """64 keys are work for four warps of eight."""
    graph = split_safe_attention(rows=16, keys=256, splits=2, loop=2)
    options = Options(warps=8, stages=2)
    region = staged(graph, options).region
    assert region is not None and region.warps == 4
    emitted, inputs = emit(graph, H200, options), draw(graph, scale=0.3)
    assert max(errors(graph, emitted, inputs, run(emitted, inputs, order=order))) < 1e-3
