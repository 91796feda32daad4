"""What needs no search: the program's own operators, and library products with the rest fused."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from hypothesis import given

from mirage_nb.bench.programs import text
from mirage_nb.codegen import Launch, LibraryCall, default_options, emit
from mirage_nb.interp import reference
from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.ir.legality import check
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.predefined import matches
from mirage_nb.search.axes import prepare
from mirage_nb.search.composition import (
    LIBRARY_AND_FUSED,
    LIBRARY_KERNELS,
    OWN_OPERATORS,
    PRODUCTS_FUSED,
    library_and_fused,
    own_operators,
)
from mirage_nb.search.session.unsearched import unsearched
from mirage_nb.search.sizes.constants import FITTED
from mirage_nb.search.sizes.explained import explain_estimate
from mirage_nb.search.sizes.instantiate import drafts
from mirage_nb.search.sizes.library import library_us
from mirage_nb.search.sizes.looked import launched
from mirage_nb.search.structure import as_they_stand
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import VerdictKind
from tests.codegen.running import check as run_and_compare
from tests.search.programs import PROGRAMS, Builder, attention_safe, gated_mlp, ntrans, rmsnorm
from tests.shares import examples
from tests.strategies import programs

H200 = TARGETS["h200"]


@examples(25)
@given(programs())
def test_a_composition_computes_the_program(program: KernelGraph) -> None:
    found = library_and_fused(program, H200)
    if found is None:
        return
    check(found.instance.graph, H200)
    if not verify(*found.small).accepted:  # so that no session has it
        return
    arrays = [np.random.default_rng(1).uniform(0.5, 2.0, i.type.shape) for i in program.inputs]
    with np.errstate(all="ignore"):
        wanted = reference.evaluate(program, arrays)
        for made, right in zip(reference.evaluate(found.instance.graph, arrays), wanted, strict=True):
            np.testing.assert_allclose(made, right, rtol=1e-9)


def test_products_are_the_librarys_and_the_rest_is_fused() -> None:
    kernels = {"rmsnorm": 1, "gated_mlp": 1, "ntrans": 1, "attention_safe": 1, "qknorm": 3, "moe": 1}
    for name, generated in kernels.items():
        program = PROGRAMS[name]()
        found = library_and_fused(program, H200)
        assert found is not None
        kinds = [op.kind for op in found.instance.graph.ops]
        assert kinds.count(OpKind.GRAPH) == generated
        assert kinds.count(OpKind.MATMUL) == [op.kind for op in program.ops].count(OpKind.MATMUL)


def test_the_operators_of_a_program_as_one_kernel() -> None:
    prepared = prepare(ntrans())
    structure = as_they_stand(prepared)
    (draft,) = drafts(structure, prepared, H200, 1)
    assert [op.kind for op in draft.made().graph.ops].count(OpKind.GRAPH) == 1
    arrays = [np.random.default_rng(0).standard_normal(i.type.shape) for i in prepared.graph.inputs]
    found, right = (reference.evaluate(g, arrays)[0] for g in (draft.made().graph, prepared.graph))
    np.testing.assert_allclose(found, right, rtol=1e-9)


def test_what_no_block_can_hold_is_more_than_one_kernel() -> None:
    """The mean over rows is summed up behind the rows' own kernels."""
    text = "X: f16[64, 256]\nW: f16[256, 4096]\nL: i64[64]\nreturn F.cross_entropy(f32(X @ W), L)"
    composed = library_and_fused(parse(text).graph, H200)
    assert composed is not None
    launches = emit(composed.instance.graph, H200).launches
    assert sum(isinstance(launch, LibraryCall) for launch in launches) == 1 and len(launches) == 3


def test_rows_of_several_dimensions_are_one_of_the_kernel() -> None:
    """Groups of [16, 16] were summed dimension by dimension through shared memory: 2.3 us where PyTorch took 2.1."""
    found = library_and_fused(parse("X: f32[8, 16, 16, 16]\nreturn group_norm(X, 16)").graph, H200)
    assert found is not None and verify(*found.small).kind is VerdictKind.FIELD
    kinds = [op.kind for op in found.instance.graph.ops]
    assert kinds == [OpKind.RESHAPE, OpKind.GRAPH, OpKind.RESHAPE]
    (block,) = (op.body for op in found.instance.graph.ops if op.kind is OpKind.GRAPH)
    assert isinstance(block, BlockGraph) and block.types[0].shape == (1, 256)
    (kernel,) = (k for k in plan(found.instance.graph, H200, default_options(H200)).kernels if k is not None)
    assert kernel.resident is not None


def test_an_input_under_two_aliases_is_as_long_under_both() -> None:
    """Tiles of one part hang over its first axis, and in the small instance of another one only one alias did."""
    found = library_and_fused(parse("X: f32[5, 17, 5]\nreturn cumsum(softsign(X / X), -2)").graph, H200)
    assert found is not None and found.instance.overhanging and verify(*found.small).accepted


def test_rotated_halves_stay_one_kernel() -> None:
    """Rows that are folded are one dimension with others only where halves of them are not rotated."""
    found = library_and_fused(parse(text("liger_rope")).graph, H200)
    assert found is not None and found.instance.cost.kernels == 1


def test_own_operators_are_the_program_and_verified_as_such() -> None:
    for make in (rmsnorm, gated_mlp, attention_safe):
        program = make()
        own, fused, *generated = unsearched(program, H200)
        assert own.graph == program and own.verdict.kind is VerdictKind.PROVED and own.configuration == OWN_OPERATORS
        assert own.estimate_us == own_operators(program, H200).cost.us
        assert fused.verdict.accepted and fused.small is not None
        assert [c.configuration for c in generated] == [PRODUCTS_FUSED] * (make is not attention_safe)
        whole = [match.output for match in matches(program)] == [*program.outputs]
        assert (fused.estimate_us > own.estimate_us) == whole == (make is attention_safe)


def test_more_kernels_of_a_library_and_the_rest_fused() -> None:
    """Rotated queries and keys share the numbers along an axis with the mask: these belong to no kernel alone."""
    text = """
    X: f32[4,64,64]
    K: f32[4,64,64]
    V: f32[4,64,64]
    n = arange(64)
    Q = X * cos(n)[:, None] + X * sin(n)
    S = where(n[:, None] >= n, Q @ K.T / 8, -inf)
    return relu(softmax(S) @ V) * 2
    """
    program = parse(dedent(text)).graph
    names = {c.configuration: c for c in unsearched(program, H200)}
    composed = names[LIBRARY_KERNELS]
    check(composed.graph, H200)
    assert composed.verdict.accepted and names[LIBRARY_AND_FUSED].digest != composed.digest
    called = [step.name for step in emit(composed.graph, H200).launches if isinstance(step, LibraryCall)]
    assert [name for name in called if name != "Arange"] == ["attention by efficient"]
    arrays = [np.random.default_rng(0).standard_normal(i.type.shape) for i in program.inputs]
    found, right = (reference.evaluate(graph, arrays)[0] for graph in (composed.graph, program))
    np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-12)


def test_one_logit_of_each_row_is_looked_up() -> None:
    """All of a row is read once, for its sum: what a loss needs besides is one element."""
    loss = "return log(sum(exp(X - max(X, 1, keepdims=True)), 1)) - sum(where(arange(32000) == Y[:, None], X, 0), 1)"
    program = parse(f"X: bf16[2048,32000]\nY: int[2048]\n{loss}").graph
    found = {c.configuration: c for c in unsearched(program, H200)}[LIBRARY_KERNELS]
    (looked,) = matches(found.graph, ["lookup"])
    floor = program.inputs[0].type.nbytes / (H200.device_bandwidth * 1e3)
    assert looked.attrs == {"apart": 1} and floor < found.estimate_us < 1.2 * floor


def test_a_library_takes_bytes_over_bandwidth_or_operations_over_rate() -> None:
    b = Builder.over(X=(4096, 4096), W=(4096, 4096), V=(16, 4096))
    b.matmul(0, 1)
    b.matmul(2, 1)
    program = b.done()
    large, small = (library_us(program, op, H200) for op in program.ops)
    launch = H200.start_us + H200.launch_us
    assert large - launch > 2 * 4096**3 / (H200.tensor_rate * 1e6)
    assert 33.5e6 / (H200.device_bandwidth * 1e3) < small - launch < 11.7  # which was measured


def test_a_few_blocks_take_as_long_as_one_of_them() -> None:
    """Neither bytes nor operations say what an idle card takes: 32 us were measured, and 22 of attention."""
    deep = parse("A: f32[64, 4096]\nB: f32[4096, 64]\nreturn A @ B").graph
    assert library_us(deep, deep.ops[0], H200) > 20
    lines = "".join(f"{name}: f16[32, {1 if name == 'Q' else 4096}, 128]\n" for name in "QKV")
    decode = parse(f"{lines}return softmax(Q @ K.T * 128 ** -0.5) @ V").graph
    (match,) = matches(decode)
    assert match.us(decode, H200) > 20


def test_the_estimates_of_what_needs_no_search_are_explained() -> None:
    program = rmsnorm()
    own, fused, _ = unsearched(program, H200)
    said = explain_estimate(own.graph, H200)
    assert len(said.splitlines()) == own.kernels and "us: Matmul by a library" in said
    said = explain_estimate(fused.graph, H200)
    assert "device memory" in said and "us: Matmul by a library" in said


def test_what_a_librarys_epilogue_adds_is_no_kernel_of_its_own() -> None:
    """One composition leaves the residual to the product, the other to the kernel behind it; what is the same is not
    there twice."""
    program = parse("X: f16[64,256]\nW: f16[256,256]\nR: f16[64,256]\nreturn silu(X @ W.T + R) * exp(R)").graph
    names = {c.configuration: c for c in unsearched(program, H200)}
    calls = [emit(names[which].graph, H200).launches for which in (LIBRARY_KERNELS, LIBRARY_AND_FUSED)]
    called = [[step.match for step in launches if isinstance(step, LibraryCall)] for launches in calls]
    assert [len(launches) for launches in calls] == [2, 2]
    assert [match.attrs["added"] for found in called for match in found if match is not None] == [1, 0]
    plain = parse("X: f16[64,256]\nW: f16[256,256]\nreturn silu(X @ W.T)").graph
    assert [c.configuration for c in unsearched(plain, H200)] == [OWN_OPERATORS, LIBRARY_AND_FUSED, PRODUCTS_FUSED]


def test_what_only_moves_elements_is_done_by_whoever_takes_less() -> None:
    """A cache and one more row: blocks do not cut that axis, and a kernel of ours took twice as long."""
    text = "K: f16[8,4095,128]\nR: f16[8,1,128]\nS: f16[8,1,128]\nreturn concat(K, R * S, axis=1)"
    found = library_and_fused(parse(text).graph, H200)
    assert found is not None
    kinds = [op.kind for op in found.instance.graph.ops if op.kind is not OpKind.RESHAPE]
    assert kinds == [OpKind.GRAPH, OpKind.CONCAT]


@pytest.mark.parametrize("line", [
    "L", "L / 4 - L", "exp(L) * L", "X + 0.1 * np.pad(X[:, 1:-1, 2:] - 4 * X[:, 1:-1, 1:-1], ((0, 0), (1, 1), (1, 1)))",
])  # fmt: skip
def test_zeros_around_two_of_three_dimensions_are_read_where_the_rest_lies(line: str) -> None:
    """Elements behind the innermost zeros do not lie one after the other: these dimensions stay two."""
    wide = "((0, 0), (1, 1), (1, 1))"
    text = f"X: f32[3, 10, 10]\nL = np.pad(X[:, 1:-1, 1:-1], {wide}) + np.pad(X[:, 2:, 1:-1], {wide})\nreturn {line}"
    made = library_and_fused(parse(text).graph, H200)
    assert made is not None and launched(made.instance.graph) == 1


def test_windows_of_windows_are_read_where_they_lie() -> None:
    """Of a reshaped image, they were copies: four kernels of a pooling layer, 38 us estimated where one takes 10."""
    text = "I: f16[33, 65]\nreturn avg_pool2d(reshape(I, 1, 1, 33, 65), 3, 1)"
    made = library_and_fused(parse(text).graph, H200)
    assert made is not None and launched(made.instance.graph) == 1
    run_and_compare(made.instance.graph)


@pytest.mark.parametrize(
    "text",
    [
        "X: f32[16]\nreturn pad(X, 4, 4, axis=0)[:4] * 2 + 1",
        'X: f32[16, 16]\nP = F.pad(X, (1, 1, 1, 1), mode="replicate")\nreturn P[:-2, 1:-1] + P[2:, 1:-1]',
    ],
)
def test_windows_of_nothing_but_zeros_are_estimated(text: str) -> None:
    """Of no tensor they read a share: a session ended in a division by zero."""
    made = library_and_fused(parse(text).graph, H200)
    assert made is not None
    run_and_compare(made.instance.graph)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("extents", [(96, 32, 64), (1024, 512, 256), (7, 33, 63)])
def test_three_tensors_one_behind_another_are_one_kernel(dtype: str, extents: tuple[int, int, int]) -> None:
    """Parts that had more in common than all three were put together first, and stored: 16.8 us estimated, now 9.5."""
    x, y, z = extents
    text = f"X: {dtype}[5, {x}]\nY: {dtype}[5, {y}]\nZ: {dtype}[5, {z}]\nreturn concat([X, Y * 2, exp(Z)], axis=1)"
    made = library_and_fused(parse(text).graph, H200)
    assert made is not None and launched(made.instance.graph) == 1
    run_and_compare(made.instance.graph)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(
    ("line", "kernels"),
    [
        ("cumprod(X, axis=1)", 3),
        ("cumprod(X[0], axis=-2)", 3),
        ("cummax(X, axis=1)", 3),
        ("logcumsumexp(X, axis=1)", 3),
    ],
)
def test_what_runs_along_an_axis_is_a_kernel_for_eight_times_as_many_elements(
    line: str, kernels: int, dtype: str
) -> None:
    """A running product was a kernel and a copy for each element: 574 us estimated of rows of 64, now 2.8."""
    made = library_and_fused(parse(f"X: {dtype}[2, 70, 5]\nreturn {line}").graph, H200)
    assert made is not None and launched(made.instance.graph) == kernels
    run_and_compare(made.instance.graph)


@pytest.mark.parametrize("text", [
    "E: bf16[50257,768]\nP: bf16[1024,768]\nI: i64[8,1024]\nreturn layer_norm(E[I] + P)",
    "E: bf16[50257,768]\nI: i64[8192]\nreturn E[I] * (I != 0)[:, None]",
    "E: bf16[32000,4096]\nI: i64[512]\nx = E[I]\nreturn x, rms_norm(x)",
    "Q: bf16[64,32,128]\nC: bf16[4096,128]\nI: i64[64]\nreturn Q * C[I][:, None, :] + concat(-Q[:, :, 64:], "
    "Q[:, :, :64], axis=2) * C[I + 1][:, None, :]",
])  # fmt: skip
def test_what_is_looked_up_takes_the_bytes_that_are_found(text: str) -> None:
    """It was a kernel of its own, whose result another one read: 2.2 times as long as reading the rows once."""
    program = parse(text).graph
    best = min(unsearched(program, H200), key=lambda c: c.estimate_us)
    (launch,) = emit(best.graph, H200).launches
    assert isinstance(launch, Launch)
    rows, others = program.output_types[0].nbytes, sum(i.type.nbytes for i in program.inputs[1:])
    moved = rows + others + sum(t.nbytes for t in program.output_types)
    floor = H200.start_us + moved / (H200.device_bandwidth * 1e3)
    assert best.estimate_us < 1.15 * floor + FITTED.found_us


def test_small_tables_are_read_by_every_block() -> None:
    """Biases by relative positions: a row for each of 262,144 pairs was written, turned and read."""
    text = "S: f32[16,512,512]\nE: f32[32,16]\nI: i64[512,512]\nreturn softmax(S + transpose(E[I], 2, 0, 1))"
    program = parse(text).graph
    best = min(unsearched(program, H200), key=lambda c: c.estimate_us)
    (launch,) = emit(best.graph, H200).launches
    assert isinstance(launch, Launch) and launch.grid[1] == 16
    assert best.estimate_us < 1.7 * (H200.start_us + 2 * 2**24 / (H200.device_bandwidth * 1e3))
