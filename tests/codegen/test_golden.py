"""The emitted text itself: readable, the same in every run, and accepted by NVRTC for both kinds of target.

A refactoring leaves the golden files alone; a meant change is written with --update-golden and read.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from mirage_nb.codegen import Launch, MapArg, Options, emit
from mirage_nb.codegen.operators import CUDA
from mirage_nb.ir import OPS, BlockGraph, KernelGraph, OpKind, Trait
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.targets import TARGETS
from tests.codegen import mugraphs
from tests.shares import some

GOLDEN: dict[str, tuple[KernelGraph, str, Options | None]] = {
    "rmsnorm_bulk": (mugraphs.rmsnorm(2, 4096, 6144, 64, 16), "h200", None),
    "rmsnorm_async": (mugraphs.rmsnorm(2, 4096, 6144, 64, 16), "a100", None),
    "rmsnorm_gain": (mugraphs.rmsnorm_gain(16, 1024, 4096, 64, 8), "h200", None),
    "gated_mlp": (mugraphs.gated_mlp(8, 4096, 4096, 32, 16), "h200", None),
    "lora": (mugraphs.lora(16, 256, 16, 4096, 64, 4), "a100", None),
    "attention_split": (mugraphs.split_safe_attention(2, 256, 4096, 64, 4, 16, 4, 64), "h200", None),
    "ntrans": (mugraphs.ntrans(8, 4096), "h200", None),
    "linear": (mugraphs.linear(4096, 4096, 11000, 128, 256, residual=True), "h200", None),
    "odd": (mugraphs.rmsnorm(7, 100, 130, 65, 2), "a100", Options(warps=4)),
}
FULL: dict[str, KernelGraph] = {
    # Extents that fill no tile are gathered element by element; they may cost what they cost. Products of many rows are
    # for warpgroups (see test_specialised).
    **{name: graph for name, (graph, _, _) in GOLDEN.items() if name not in ("odd", "linear")},
    "gated_mlp_wide": mugraphs.gated_mlp(64, 4096, 4096, 64, 64),
    "attention": mugraphs.attention(2, 256, 4096, 64, 4, 64),
    "decode": mugraphs.split_safe_attention(2, 8, 8192, 128, 1, 32, 4, 8),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    graph, target, options = GOLDEN[name]
    golden(f"{name}.cu", emit(graph, TARGETS[target], options).source)


@pytest.mark.parametrize(
    ("name", "target"),
    [pair for at, name in enumerate(FULL) for pair in some([(name, "a100"), (name, "h200")], at, 2)],
)
def test_full_sizes_compile_without_spills(name: str, target: str) -> None:
    chosen = TARGETS[target]
    emitted = emit(FULL[name], chosen)
    cubin = compile_cubin(emitted.source, chosen.arch)
    for usage in cubin.usage.values():
        assert usage.spill_store_bytes == usage.spill_load_bytes == 0
        assert usage.registers <= 168


def test_no_assembly_and_no_other_header() -> None:
    for name, (graph, target, options) in GOLDEN.items():
        source = emit(graph, TARGETS[target], options).source
        assert re.findall(r"#include.*", source) == ['#include "mirage_device.cuh"'], name
        assert "asm" not in source


def test_comments_name_the_values_of_the_mugraph() -> None:
    emitted = emit(mugraphs.rmsnorm(), TARGETS["h200"])
    block = emitted.graph.ops[0].body
    assert isinstance(block, BlockGraph)
    (product,) = (values[0] for op, values in block.definitions() if op.kind is OpKind.MATMUL)
    saved = block.savers[0].inputs[0]
    for comment in ("// %0 = operand 0", f"// %{product} = Matmul(%0, %1): f16[2, 64]", f"// output 0 = %{saved}"):
        assert comment in emitted.source


def test_every_elementwise_operator_has_a_row() -> None:
    assert set(CUDA) == {kind for kind in OpKind if Trait.ELEMENTWISE in OPS[kind].traits}


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("name", ["split_attention", "split_safe_attention", "chain"])
def test_a_kernel_that_starts_early_waits_before_it_reads_or_writes(name: str, bulk: bool) -> None:
    graph = {
        "split_attention": mugraphs.split_attention,
        "split_safe_attention": mugraphs.split_safe_attention,
        "chain": mugraphs.chain,
    }[name]()
    emitted = emit(graph, TARGETS["h200"], Options(warps=4, stages=2, bulk=bulk))
    texts = emitted.source.split('extern "C"')[1:]
    launches = [step for step in emitted.launches if isinstance(step, Launch)]
    assert [step.overlaps for step in launches] == [
        number > 0 and not any(isinstance(a, MapArg) and a.value >= len(graph.inputs) for a in step.args)
        for number, step in enumerate(launches)
    ]  # what streams the other one's results does not start early
    assert name == "chain" or launches[1].overlaps
    for number, (text, launch) in enumerate(zip(texts, launches, strict=True)):
        behind = launches[number + 1 : number + 2]  # of the last one it may be a kernel of another muGraph
        assert ("grid_dependency_launch();" in text) == (not behind or behind[0].overlaps)
        if not launch.overlaps:
            assert "grid_dependency_wait" not in text
            continue
        early, waited = text.split("grid_dependency_wait();")[0].split("{", 1)[1], "grid_dependency_wait();" in text
        assert waited and "o0" not in early and "o1" not in early
        made = [i for i, v in enumerate(emitted.graph.ops[launch.op].inputs) if v >= len(graph.inputs)]
        assert made
        for arg in made:
            assert not re.search(rf"\b(x{arg} \+|x{arg}\[|tma_load_2d.*map{arg},)", early)
            assert f"__restrict__ x{arg}," not in text  # may change while the kernel waits


def test_no_overlap_before_sm_90() -> None:
    emitted = emit(mugraphs.split_safe_attention(), TARGETS["a100"])
    assert "grid_dependency" not in emitted.source
    assert not any(step.overlaps for step in emitted.launches if isinstance(step, Launch))
