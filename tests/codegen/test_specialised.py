"""Products of many rows as tile programs: right on the CPU edition, eager and deferred, and free of races."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mirage_nb.codegen import Launch, emit
from mirage_nb.ir import DType, KernelGraph, OpKind
from mirage_nb.ir.text import parse_graph
from mirage_nb.optimize import default_options, plan, variants
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.targets import TARGETS, Target
from mirage_nb.tile.roles.validate import validate
from tests.codegen.mugraphs import linear, rmsnorm, scaled_linear, split_linear
from tests.codegen.running import TOLERANCE, WAYS, draw, errors, run

H200 = TARGETS["h200"]
FEW = replace(H200, multiprocessors=3)
"""Three blocks walk over all points: rings go on from one to the next."""

ITSELF = """mugraph 1
input %0 X {dtype}[128, 128]
%1 = Graph(%0) grid=[2, 2] loop=2 {{
  %0 = InIter arg=0 imap={rows} : {dtype}[64, 64]
  %1 = InIter arg=0 imap={columns} : {dtype}[64, 64]
  %2 = Transpose(%{turned}) perm=[1, 0] : {dtype}[64, 64]
  %3 = Matmul({factors}) : {dtype}[64, 64]
  %4 = Accum(%3) kind=sum : {dtype}[64, 64]
  OutSaver(%4) omap=[0, 1]
}}
output %1 O
"""
"""A matrix and itself, one of them turned."""
GATED_BY_ITSELF = """mugraph 1
input %0 X f16[128, 128]
input %1 W f16[128, 128]
%2 = Graph(%0, %1) grid=[2, 1] loop=2 {
  %0 = InIter arg=0 imap=[0, *] fmap=1 : f16[64, 64]
  %1 = InIter arg=1 imap=[*, 1] fmap=0 : f16[64, 128]
  %2 = InIter arg=0 imap=[0, 1] : f16[64, 128]
  %3 = Matmul(%0, %1) : f16[64, 128]
  %4 = Accum(%3) kind=sum : f16[64, 128]
  %5 = Accum(%2) kind=hold : f16[64, 128]
  %6 = Sigmoid(%4) : f16[64, 128]
  %7 = EwMul(%5, %6) : f16[64, 128]
  %8 = EwAdd(%5, %7) : f16[64, 128]
  OutSaver(%8) omap=[0, 1]
}
output %2 O
"""


def itself(*, right: bool, dtype: str = "f16") -> KernelGraph:
    """Rows of a matrix with its rows, or columns with its columns."""
    rows, columns = ("[0, *] fmap=1", "[*, 0] fmap=1") if right else ("[1, *] fmap=0", "[*, 1] fmap=0")
    factors, turned = ("%0, %2", 1) if right else ("%2, %1", 0)
    return parse_graph(ITSELF.format(dtype=dtype, rows=rows, columns=columns, factors=factors, turned=turned))


NAMED: dict[str, KernelGraph] = {
    "64 x 64 over every end": linear(150, 136, 104, 64, 64, residual=True),
    "64 x 48, rows that are no vectors": linear(70, 136, 83, 64, 48, turned=(False, True), residual=True),
    "128 x 128, rows that begin anywhere": linear(
        256, 128, 203, 128, 128, turned=(False, True), batch=2, activation=OpKind.RELU, dtype=DType.BF16
    ),
    "64 x 256, rows that begin at even elements": linear(70, 136, 330, 64, 256, turned=(False, True), residual=True),
    "64 x 256, bf16, left turned": linear(64, 128, 256, 64, 256, dtype=DType.BF16, turned=(True, False)),
    "128 x 64, gated": linear(256, 192, 64, 128, 64, gated=True, activation=OpKind.SILU),
    "128 x 256, right turned": linear(128, 128, 256, 128, 256, turned=(False, True)),
    "192 x 64, batch": linear(192, 128, 64, 192, 64, batch=4, residual=True),
    "256 x 80, both turned": linear(256, 128, 80, 256, 80, turned=(True, True)),
    "split": split_linear(),
    "floats of a byte, 64 x 64 over every end": scaled_linear(150, 256, 104, 64, 64, right=DType.E5M2),
    "bytes, 64 x 64 over every end": scaled_linear(130, 256, 208, 64, 64, left=DType.F16, right=DType.I8),
    "bytes, 128 x 128": scaled_linear(256, 128, 128, 128, 128, left=DType.BF16, right=DType.E4M3),
    "bytes, 96 x 64, gated, batch": scaled_linear(
        96, 128, 64, 96, 64, left=DType.F16, right=DType.U8, gated=True, batch=2, out=DType.F16
    ),
    "floats of a byte, 128 x 32, gated": scaled_linear(256, 384, 32, 128, 32, left=DType.E5M2, gated=True),
    "floats of a byte, 192 x 96, batch": scaled_linear(192, 128, 96, 192, 96, batch=3, out=DType.F16),
    "rows with each other": itself(right=True),
    "columns with each other, bf16": itself(right=False, dtype="bf16"),
    "gated by what is multiplied": parse_graph(GATED_BY_ITSELF),
}


def check(graph: KernelGraph, target: Target, *, checked: bool = False) -> None:
    """Specialised in its first kernel, and right."""
    emitted = emit(graph, target)
    assert "registers_claim" in emitted.source or "ring_full" in emitted.source
    inputs = draw(graph)
    for how in WAYS:
        outputs = run(emitted, inputs, checked=checked, **how)
        for error, type_ in zip(errors(graph, emitted, inputs, outputs), graph.output_types, strict=True):
            assert error < TOLERANCE[type_.dtype], how


@pytest.mark.parametrize("name", NAMED)
def test_named(name: str) -> None:
    assert plan(NAMED[name], FEW).kernels[0].program is not None  # type: ignore[union-attr]
    check(NAMED[name], FEW, checked=name in ("64 x 64 over every end", "128 x 64, gated"))


def test_what_is_added_is_on_its_way_while_warps_multiply() -> None:
    """Positions added to a linear layer took 2.1 us behind it, of 14.7."""
    source = emit(NAMED["64 x 64 over every end"], FEW).source
    touched, loop, read = (source.index(text) for text in ("touch(x", "for (int k = 0", "transpose_words<4, 1>(w_v"))
    assert touched < loop < read
    assert "touch(" not in emit(linear(64, 128, 256, 64, 256), FEW).source, "nothing is added"
    assert "touch(" not in emit(linear(512, 64, 512, 64, 64, residual=True), FEW).source, "64 points for three blocks"


@pytest.mark.parametrize("graph", [
    linear(4096, 4096, 4096, 128, 256, activation=OpKind.GELU, residual=True),
    linear(4096, 4096, 4096, 256, 128, activation=OpKind.GELU, residual=True),
    linear(512, 4096, 4096, 128, 128, activation=OpKind.SILU, gated=True, dtype=DType.BF16),
    linear(1000, 4096, 4992, 192, 192),
    linear(2048, 768, 50257, 256, 128, turned=(False, True)),
    scaled_linear(4096, 4096, 4224, 128, 192),
    scaled_linear(512, 4096, 4096, 128, 128, left=DType.BF16, right=DType.E5M2),
    scaled_linear(512, 4096, 4096, 256, 64, left=DType.F16, right=DType.I8),
    scaled_linear(512, 4096, 4096, 128, 96, left=DType.E5M2, gated=True),
])  # fmt: skip
def test_no_spills_and_no_warnings(graph: KernelGraph) -> None:
    emitted = emit(graph, H200)
    cubin = compile_cubin(emitted.source, "sm_90a")
    (usage,) = cubin.usage.values()
    assert usage.spill_store_bytes == usage.spill_load_bytes == usage.stack_bytes == 0
    assert "warning" not in cubin.log and "serialized" not in cubin.log, cubin.log


def test_in_chains_it_waits_for_the_launch_in_front() -> None:
    options = replace(default_options(H200), chained=True)
    graph = linear(128, 128, 128, 64, 64)
    emitted = emit(graph, H200, options)
    assert "grid_dependency_wait();" in emitted.source and emitted.launches[0].overlaps  # type: ignore[union-attr]


SCALED = """mugraph 1
input %0 X f16[128, 192]
input %1 W f16[96, 192]
%2 = Graph(%0) grid=[128] loop=1 {
  %0 = InIter arg=0 imap=[0]                             : f16[1, 192]
  %1 = Sqr(%0)                                           : f16[1, 192]
  %2 = Sum(%1) dim=1                                     : f16[1, 1]
  %3 = EwDiv(%0, %2)                                     : f16[1, 192]
  OutSaver(%3) omap=[0]
}
%3 = Graph(%2, %1) grid=[1, 2] loop=3 {
  %0 = InIter arg=0 imap=[*, 0] fmap=1                   : f16[64, 64]
  %1 = InIter arg=1 imap=[0, *] fmap=1                   : f16[96, 64]
  %2 = Transpose(%1) perm=[1, 0]                         : f16[64, 96]
  %3 = Matmul(%0, %2)                                    : f16[64, 96]
  %4 = Accum(%3) kind=sum                                : f16[64, 96]
  OutSaver(%4) omap=[1, 0]
}
output %3 O
"""


def test_behind_another_kernel_it_begins_with_what_that_one_does_not_write() -> None:
    """Weights are on their way to L2 while rows are still normalised; nothing else happens before the wait."""
    graph = parse_graph(SCALED)
    check(graph, FEW)
    assert not any(step.overlaps for step in emit(graph, H200).launches if isinstance(step, Launch)), "if asked for"
    emitted = emit(graph, H200, replace(default_options(H200), early="all"))
    assert {o.early for o in variants(graph, H200)} == {"some", "all"}, "here 'none' is the same as 'some'"
    assert [step.overlaps for step in emitted.launches if isinstance(step, Launch)] == [False, True]
    product = emitted.source.split('extern "C"')[2]
    ahead = product.split("grid_dependency_wait();")
    assert len(ahead) == 3, "each role waits"
    assert re.findall(r"tma_prefetch_2d\((\w+), k \* 64", product) == ["map_s1"] and "tma_prefetch_2d" in ahead[1]
    assert not any(word in ahead[0] for word in ("tma_load", "store", "wgmma"))
    assert "tma_load" not in ahead[1] and "for (int k = 0; k < 3; ++k)" in ahead[1]


def low_rank(first: str, second: str, product: str, rank: int = 16) -> KernelGraph:
    """X @ W.T + T @ C.T, whose second product is of held operands, said in this way."""
    return parse_graph(f"""mugraph 1
input %0 X bf16[128, 192]
input %1 W bf16[256, 192]
input %2 T bf16[128, {rank}]
input %3 C bf16[256, {rank}]
%4 = Graph(%0, %1, %2, %3) grid=[4, 2] loop=3 {{
  %0 = InIter arg=0 imap=[*, 0] fmap=1                   : bf16[64, 64]
  %1 = InIter arg=1 imap=[0, *] fmap=1                   : bf16[64, 64]
  %2 = InIter arg=2 imap=[*, 0]                          : bf16[64, {rank}]
  %3 = InIter arg=3 imap=[0, *]                          : bf16[64, {rank}]
  %4 = Transpose(%1) perm=[1, 0]                         : bf16[64, 64]
  %5 = Matmul(%0, %4)                                    : bf16[64, 64]
  %6 = Accum(%2) kind=hold                               : bf16[64, {rank}]
  %7 = Accum(%3) kind=hold                               : bf16[64, {rank}]
  %8 = Accum(%5) kind=sum                                : bf16[64, 64]
  %9 = Transpose({first}) perm=[1, 0]                    : bf16[{rank}, 64]
  %10 = Matmul({second}, %9)                             : bf16[64, 64]
{product}
}}
output %4 O
""")


LOW_RANK = {
    "as they stand": low_rank("%7", "%6", """  %11 = EwAdd(%8, %10)                                   : bf16[64, 64]
  OutSaver(%11) omap=[1, 0]"""),
    "activated": low_rank("%7", "%6", """  %11 = EwAdd(%10, %8)                                   : bf16[64, 64]
  %12 = SiLU(%11)                                        : bf16[64, 64]
  %13 = EwAdd(%11, %12)                                  : bf16[64, 64]
  OutSaver(%13) omap=[1, 0]"""),
    "turned, deep": low_rank("%6", "%7", """  %11 = Transpose(%10) perm=[1, 0]                       : bf16[64, 64]
  %12 = EwAdd(%11, %8)                                   : bf16[64, 64]
  OutSaver(%12) omap=[1, 0]""", 72),
}  # fmt: skip


@pytest.mark.parametrize("name", LOW_RANK)
def test_products_of_held_operands_are_added_behind_the_loop(name: str) -> None:
    """LoRA's second product: it was a kernel of its own, and the sum of both another one."""
    (kernel,) = plan(LOW_RANK[name], FEW).kernels
    assert kernel is not None and kernel.program is not None and len(kernel.program.pipelines) == 2
    assert validate(kernel.program, FEW) == ()
    check(LOW_RANK[name], FEW, checked=True)


def low_inside(rows: int, rank: int, *, turned: bool = False, gated: bool = False, dtype: str = "f16") -> KernelGraph:
    """X @ W + (X @ A) @ C in one kernel; turned: A and C are transposed matrices; gated: times the same of others."""
    a, c = ((f"{rank}, 192", f"256, {rank}") if turned else (f"192, {rank}", f"{rank}, 256"))
    streamed, held = ("[*, *] fmap=1", "[0, *]") if turned else ("[*, *] fmap=0", "[1, *]")
    lines = ["InIter arg=0 imap=[*, 0] fmap=1"]
    totals = []
    for branch in range(1 + gated):
        w, low, high = (3 * branch + number for number in (1, 2, 3))
        begin = len(lines)
        maps = ("[1, *] fmap=0", streamed, held)
        lines += [f"InIter arg={arg} imap={at}" for arg, at in zip((w, low, high), maps, strict=True)]
        first, second = f"%{begin + 1}", f"%{begin + 3}"
        lines += [f"Accum(%{begin + 2}) kind=hold"]
        if turned:
            lines += [f"Transpose({first}) perm=[1, 0]", f"Transpose({second}) perm=[1, 0]"]
            first, second = f"%{begin + 4}", f"%{begin + 5}"
        n = len(lines)
        lines += [f"Matmul(%0, %{begin})", f"Matmul(%0, {first})", f"Accum(%{n}) kind=sum", f"Accum(%{n + 1}) kind=sum"]
        lines += [f"Matmul(%{n + 3}, {second})", f"EwAdd(%{n + 2}, %{n + 4})"]
        totals.append(len(lines) - 1)
    if gated:
        lines += [f"SiLU(%{totals[0]})", f"EwMul(%{len(lines)}, %{totals[1]})"]
    body = "\n".join(f"  %{n} = {line}" for n, line in enumerate(lines))
    types = [f"{2 * rows}, 192", *["192, 256", a, c] * (1 + gated)]
    inputs = "\n".join(f"input %{n} I{n} {dtype}[{shape}]" for n, shape in enumerate(types))
    named = ", ".join(f"%{n}" for n in range(len(types)))
    return parse_graph(f"""mugraph 1
{inputs}
%{len(types)} = Graph({named}) grid=[4, 2] loop=3 {{
{body}
  OutSaver(%{len(lines) - 1}) omap=[1, 0]
}}
output %{len(types)} O
""")


LOW_INSIDE = {
    "as it stands": low_inside(64, 16),
    "turned, an odd rank": low_inside(64, 8, turned=True, dtype="bf16"),
    "two groups, gated": low_inside(128, 24, gated=True),
}


@pytest.mark.parametrize("name", LOW_INSIDE)
def test_products_of_low_rank_stay_in_registers(name: str) -> None:
    """LoRA's first product is accumulated beside the other, and the second takes it from there."""
    (kernel,) = plan(LOW_INSIDE[name], FEW).kernels
    assert kernel is not None and kernel.program is not None and validate(kernel.program, FEW) == ()
    check(LOW_INSIDE[name], FEW, checked=True)


@pytest.mark.parametrize("graph", [low_inside(64, 72), low_inside(128, 64, gated=True)])
def test_products_of_a_rank_that_is_not_low_pass_through_shared_memory(graph: KernelGraph) -> None:
    (kernel,) = plan(graph, FEW).kernels
    assert kernel is not None and kernel.program is None


@pytest.mark.parametrize(("graph", "target"), [
    (rmsnorm(64, 256, 128, 64, 4), H200),  # something else in the loop
    (linear(128, 128, 128, 64, 64), TARGETS["a100"]),  # no warpgroups
    (linear(128, 128, 128, 32, 64), H200),  # few rows
    (linear(128, 96, 128, 64, 64, step=32), H200),  # short steps
    (linear(128, 128, 128, 64, 96, dtype=DType.F32), H200),  # no instructions for 96 columns of f32
    (linear(192, 128, 256, 192, 256), H200),  # one instruction needs more registers than threads begin with
])  # fmt: skip
def test_other_blocks_are_emitted_as_before(graph: KernelGraph, target: Target) -> None:
    assert all(kernel is None or kernel.program is None for kernel in plan(graph, target).kernels)
    emit(graph, target)


def test_variants_say_whether_warps_have_roles() -> None:
    """Where a kernel can be planned so, it is also tried without; elsewhere no option speaks of it."""
    assert {o.specialised for o in variants(linear(256, 256, 256, 64, 64), H200)} == {True, False}
    assert {o.specialised for o in variants(rmsnorm(), H200)} == {False}


def beside(tensor: str, *lines: str) -> KernelGraph:
    """X @ W.T, %6 of a kernel, and what these lines make of it and of B, a tensor of this shape."""
    product = (
        "%2 = InIter arg=1 imap=[*] fmap=1", "%3 = InIter arg=2 imap=[0] fmap=1", "%4 = Transpose(%3) perm=[1, 0]",
        "%5 = Matmul(%2, %4)", "%6 = Accum(%5) kind=sum",
    )  # fmt: skip
    reads, rest = lines[:2], lines[2:]
    inside = "\n".join((*reads, *product, *rest, f"OutSaver(%{6 + len(rest)}) omap=[1]"))
    heads = f"mugraph 1\ninput %0 X f16[64, 64]\ninput %1 W f16[64, 64]\ninput %2 B {tensor}\n"
    return parse_graph(f"{heads}%3 = Graph(%2, %0, %1) grid=[2] loop=1 {{\n{inside}\n}}\noutput %3 O\n")


def test_one_vector_is_read_along_rows_and_along_columns() -> None:
    graph = beside(
        "f16[64]", "%0 = InIter arg=0 imap=[*]", "%1 = InIter arg=0 imap=[0]", "%7 = Accum(%0) kind=hold",
        "%8 = Accum(%1) kind=hold", "%9 = Reshape(%7) shape=[64, 1]", "%10 = EwAdd(%9, %6)", "%11 = EwMul(%10, %8)",
    )  # fmt: skip
    check(graph, H200)


def test_a_number_beside_a_product_is_read_however_it_is_shaped() -> None:
    """As the length of all rows is: it has no dimensions, and the product has two."""
    graph = beside(
        "f16[1, 1]", "%0 = InIter arg=0 imap=[*]", "%1 = InIter arg=0 imap=[*]", "%7 = Accum(%0) kind=hold",
        "%8 = Accum(%1) kind=hold", "%9 = Reshape(%7) shape=[]", "%10 = EwAdd(%9, %6)", "%11 = EwMul(%10, %8)",
    )  # fmt: skip
    check(graph, H200)
