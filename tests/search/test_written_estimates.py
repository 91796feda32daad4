"""A muGraph takes what the search says it takes, whoever wrote it: the way back from text to the cost model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given

from mirage_nb.bench.workloads import workload
from mirage_nb.codegen import emit
from mirage_nb.ir import DType, KernelGraph, OpKind, PadAttrs, SliceAttrs
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.ir.windows import Share, shares
from mirage_nb.ir.windows import views as windows_of
from mirage_nb.lang import parse
from mirage_nb.predefined import matches
from mirage_nb.search import EFFORTS, Instance, configurations, instances, prepare
from mirage_nb.search.composition import library_and_fused
from mirage_nb.search.session.submission import submitted
from mirage_nb.search.sizes.constants import FITTED
from mirage_nb.search.sizes.instantiate import sized
from mirage_nb.search.sizes.looked import launched
from mirage_nb.search.sizes.traffic import traffic
from mirage_nb.search.sizes.written import written_cost, written_kernels
from mirage_nb.targets import find_target
from tests.mugraphs import Kernel
from tests.search.explored import explored
from tests.shares import examples
from tests.strategies import mugraphs

H200 = find_target("h200")

PROGRAMS = {
    "norm before a product": "X: f16[16, 1024]\nG: f16[1024]\nW: f16[1024, 4096]\nreturn rms_norm(X, G) @ W",
    "softmax": "X: f16[64, 512]\nreturn softmax(X)",
    "odd extents": "X: f16[7, 1000]\nY: f16[1000, 131]\nreturn relu(X @ Y)",
    "centred norm": "X: f16[33, 768]\nD = X - mean(X, axis=-1, keepdims=True)\n"
    "return D / sqrt(mean(D * D, axis=-1, keepdims=True))",
    "low rank": "X: f16[16, 256]\nW: f16[256, 4096]\nA: f16[256, 16]\nB: f16[16, 4096]\nreturn X @ W + (X @ A) @ B",
    "two outputs, f32": "X: f32[64, 128]\nY: f32[128, 32]\nZ = X @ Y\nreturn Z, sum(Z, axis=0)",
    "elementwise": "X: f16[128, 512]\nB: f16[512]\nreturn gelu(X + B) * 2",
    "an input that meets itself": "X: f16[128, 64]\nreturn X @ transpose(X)",
    "heads": "X: f16[16, 512]\nreturn softmax(reshape(X, (16, 8, 64)))",
    "two products": "X: f16[64, 512]\nA: f16[512, 256]\nB: f16[256, 512]\nreturn relu(X @ A) @ B",
    "a persistent product": "X: f16[512, 4096]\nA: f16[4096, 4096]\nreturn gelu(X @ A)",
    "concatenation": "X: f16[16, 64]\nY: f16[16, 64]\nreturn exp(concat(X, Y, axis=1))",
    "stored transposed": "X: f16[8, 196, 512]\nreturn transpose(layer_norm(X), 0, 2, 1)",
    "stencil": "U: f32[130, 130]\nreturn U[:-2, 1:-1] + U[2:, 1:-1] + U[1:-1, :-2] + U[1:-1, 2:]",
    "operands of two types": "Q: f32[8, 64]\nK: f16[64, 256]\nU: f16[256, 64]\nreturn softmax(Q @ K) @ U",
    "attention": workload("attention_safe"),
    "gated": workload("gated_mlp"),
}
OF_MORE_KERNELS = ("softmax", "low rank", "heads", "an input that meets itself")
"""Whose partial results, aliases and views between kernels say most."""


def searched(text: str, effort_name: str) -> Iterator[Instance]:
    """The best instances of the first structures of every configuration."""
    prepared, effort = prepare(parse(text).graph), EFFORTS[effort_name]
    for configuration in configurations(prepared, effort):
        if effort_name != "quick" and configuration.kernels < 2:
            continue
        result = explored(prepared, configuration, effort)
        for structure in result.structures[:2]:
            yield from instances(structure, prepared, H200, 2)


@pytest.mark.parametrize(
    ("name", "effort"), [*((name, "quick") for name in PROGRAMS), *((name, "standard") for name in OF_MORE_KERNELS)]
)
def test_what_was_found_and_written_out_takes_the_same(name: str, effort: str) -> None:
    found = list(searched(PROGRAMS[name], effort))
    assert found
    for instance in found:
        cost = written_cost(parse_graph(print_graph(instance.graph)), H200)
        assert cost.us == pytest.approx(instance.cost.us, rel=1e-9), print_graph(instance.graph)
        assert (cost.blocks, cost.kernels) == (instance.cost.blocks, launched(instance.graph))
        assert cost.shared_memory == pytest.approx(instance.cost.shared_memory)
        assert cost.bytes_device == pytest.approx(instance.cost.bytes_device)


def test_a_worse_loop_ranks_worse() -> None:
    text = PROGRAMS["norm before a product"].replace("1024", "128").replace("4096", "256")
    program = parse(text).graph
    prepared, effort = prepare(program), EFFORTS["quick"]
    configuration = next(c for c in configurations(prepared, effort) if c.loop is not None)
    result = explored(prepared, configuration, effort)
    (best,) = instances(result.structures[0], prepared, H200, 1)
    (loop,) = (name for name in best.sizes if name.startswith("loop"))
    others = (sized(result.structures[0], prepared, H200, {**best.sizes, loop: n}) for n in (2, 4, 8, 16, 32, 64))
    known = {one.sizes[loop]: written_cost(one.graph, H200).us for one in others if one}
    assert submitted(program, print_graph(best.graph), H200).estimate_us == known[best.sizes[loop]]
    assert len(known) >= 4 and len(set(known.values())) == len(known)
    assert min(known, key=lambda n: known[n]) == best.sizes[loop]
    assert known[max(known)] > known[best.sizes[loop]] == pytest.approx(best.cost.us)


@examples(30)
@given(mugraphs())
def test_every_legal_mugraph_has_an_estimate(graph: KernelGraph) -> None:
    cost = written_cost(graph, H200)
    assert math.isfinite(cost.us) and cost.us > 0
    assert cost.kernels <= graph.kernel_count
    assert matches(graph) or cost.kernels == launched(graph)
    assert len(written_kernels(graph)) == graph.kernel_count


def test_one_element_of_an_axis_is_met_where_it_is_broadcast() -> None:
    """A tile [1] of rows as [1, 1] beside one of columns: its axis is that of the rows."""
    program = parse("X: f32[64, 256]\nreturn softmax(where(arange(64)[:, None] * 4 >= arange(256), X, -inf))").graph
    composed = library_and_fused(program, H200)
    assert composed is not None
    assert composed.instance.cost.us < written_cost(program, H200).us / 3


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [
        ("U: f32[2050, 2050]\nreturn U[:-2, 1:-1] + U[2:, 1:-1] + U[1:-1, :-2] + U[1:-1, 2:]", 33.6),
        ("X: f32[2048, 1024]\nY: f32[2048, 1024]\nreturn exp(stack([X, Y], axis=1))", 33.6),
        ("X: f32[2048, 2048]\nA, B = split(X, 2, axis=1)\nreturn A + exp(B)", 25.2),
    ],
)
def test_windows_of_one_tensor_take_its_bytes_once(text: str, megabytes: float) -> None:
    """Four windows of a tensor were four tensors from device memory, and zeros around a tensor were read."""
    found = library_and_fused(parse(text).graph, H200)
    assert found is not None and found.instance.cost.bytes_device == pytest.approx(megabytes * 1e6, rel=0.02)


def test_blocks_of_stencils_are_as_large_as_they_are_of_sums() -> None:
    """Windows that came from device memory each hid what else blocks take: those of a stencil had a fifth of that."""
    texts = (f"U: f32[2048, 2048]\nreturn {line}" for line in ("U[1:-1, 1:-1] * 2", "U[:-2, 1:-1] + U[2:, 1:-1]"))
    one, two = (library_and_fused(parse(text).graph, H200) for text in texts)
    assert one is not None and two is not None
    assert two.instance.cost.us < 1.1 * one.instance.cost.us and two.instance.cost.blocks < 2 * one.instance.cost.blocks


def test_windows_that_the_copy_engine_does_not_bring_are_copied_in_front_of_roles() -> None:
    """Where every other column is read, a kernel with roles needs them side by side: that is a kernel of its own."""
    costs, launches = [], []
    for part in ("X[:, 512:1536]", "X[:, ::2]"):
        graph = parse(f"X: f16[512, 2048]\nW: f16[1024, 1024]\nreturn {part} @ W").graph
        prepared, sizes = prepare(graph), {"grid a": 4, "grid c": 8, "loop b": 16}
        configuration = next(c for c in configurations(prepared, EFFORTS["quick"]) if c.loop is not None)
        structure = explored(prepared, configuration, EFFORTS["quick"]).structures[0]
        instance = sized(structure, prepared, H200, sizes)
        assert instance is not None and written_cost(instance.graph, H200).us == pytest.approx(instance.cost.us)
        costs.append(instance.cost.us)
        launches.append(len(emit(instance.graph, H200).launches))
    assert launches == [1, 2] and costs[1] > costs[0] + H200.start_us


def test_what_is_saved_is_as_wide_as_its_tensor() -> None:
    """Sums of columns travel between kernels in f32, and what is computed of them, in f32, is saved as halves."""
    graph = parse_graph("""mugraph 1
input %0 X f16[4096, 1024]
%1 = Graph(%0) grid=[128] loop=1 {
  %0 = InIter arg=0 imap=[1] : f16[4096, 8]
  %1 = Sum(%0) dim=0 : f16[1, 8]
  OutSaver(%1) omap=[1]
}
%2 = Graph(%0, %1) grid=[256] loop=1 {
  %0 = InIter arg=0 imap=[0] : f16[16, 1024]
  %1 = InIter arg=1 imap=[*] : f16[1, 1024]
  %2 = EwMul(%0, %1) : f16[16, 1024]
  OutSaver(%2) omap=[0]
}
output %2 O
""")
    (_, sums), (_, saving) = written_kernels(graph)
    assert sums is not None and saving is not None
    moved = traffic(saving, saving.sizes.total_blocks(), np.zeros(1, bool), H200, FITTED)
    assert moved.device == 2 * 4096 * 1024 * 2 + 1024 * 4


def test_windows_are_estimated_as_what_they_reach_together() -> None:
    """Blocks of 128 images, one row and eight columns were estimated as blocks of rows of one image: pooling took 27.5
    us where 11.3 were estimated."""
    shape, tiles = (1024, 56, 56), {(8, 56, 7): (128, 1, 8), (1024, 56, 1): (1, 1, 56), (1024, 2, 1): (1, 28, 56)}
    us: dict[tuple[int, ...], float] = {}
    for grid in tiles:
        kernel = Kernel(DType.F32, X=shape)
        value = kernel["X"]
        for dim in (1, 2):
            value = kernel.op(OpKind.PAD, value, attrs=PadAttrs(dim, 1, 1))
        rows = [kernel.op(OpKind.SLICE, value, attrs=SliceAttrs(1, i, 56)) for i in range(3)]
        windows = [kernel.op(OpKind.SLICE, row, attrs=SliceAttrs(2, j, 56)) for row in rows for j in range(3)]
        block = kernel.block((*windows,), grid)
        total = block.read(0, (0, 1, 2))
        for arg in range(1, 9):
            total = block.op(OpKind.ADD, total, block.read(arg, (0, 1, 2)))
        block.save(total, (0, 1, 2))
        us[tiles[grid]] = written_cost(kernel.returning(kernel.launch((*windows,), block)), H200).us
    assert us[128, 1, 8] > 2 * us[1, 28, 56] and us[1, 1, 56] > 2 * us[1, 28, 56]


def test_what_lies_beside_windows_is_known_in_fewer_dimensions() -> None:
    share = Share(0.25, (0, 2, 0, 1))
    assert share.coalesced((2, 6, 4, 8), (2, 24, 8)).beside == (0, 8, 1)
    assert share.coalesced((2, 6, 4, 8), (2, 6, 4, 8)) == share
    assert Share(0.25).coalesced((2, 3), (6,)).beside == ()


def test_windows_that_overlap_reach_as_far_as_all_of_them() -> None:
    kernel = Kernel(DType.F32, X=(12, 20))
    halves = [kernel.op(OpKind.SLICE, kernel["X"], attrs=SliceAttrs(1, n, 10)) for n in (0, 10)]
    shifted = [kernel.op(OpKind.SLICE, kernel["X"], attrs=SliceAttrs(1, n, 16)) for n in (4, 1, 0)]
    turned = [kernel.op(OpKind.SLICE, kernel["X"], attrs=SliceAttrs(1, n, 16, -1)) for n in (19, 18)]
    seen, roots = windows_of(kernel.graph), range(len(kernel.graph.types))
    assert {s.beside for s in shares(kernel.graph, halves, seen, roots)} == {()}
    assert {s.beside for s in shares(kernel.graph, shifted, seen, roots)} == {(0, 4)}
    assert {s.beside for s in shares(kernel.graph, turned, seen, roots)} == {(0, 1)}
    assert sum(s.part for s in shares(kernel.graph, shifted, seen, roots)) == pytest.approx(3 * 240 / (3 * 192))
