"""Running sums: products with a triangle said as such; the same numbers, each added once, by threads that hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.codegen import Options, emit
from mirage_nb.errors import TargetError
from mirage_nb.interp import reference
from mirage_nb.ir import BlockGraph, DType, KernelGraph, OpKind, RunningAttrs
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.runtime.execution.torch_program import TORCH
from mirage_nb.runtime.kernel.operators import OPERATORS as PLAIN
from mirage_nb.runtime.kernel.pytorch import BY_TORCH as TORCH_KERNELS
from mirage_nb.runtime.kernel.saved import plain_attrs
from mirage_nb.search.composition import RUNNING, library_and_fused
from mirage_nb.search.session.unsearched import judged
from mirage_nb.search.wordings.running import as_running, small
from mirage_nb.search.wordings.wide_rows import Longest, in_parts
from mirage_nb.targets import TARGETS
from mirage_nb.verify.proof import Proof, prove
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import VerdictKind
from tests.codegen.running import check
from tests.mugraphs import Block, one_kernel, tensor
from tests.shares import crossed, examples

H200 = TARGETS["h200"]
WAYS: dict[str, tuple[str, Any]] = {
    "rows": ("cumsum(X, axis=1)", lambda x: x.cumsum(1)),
    "columns": ("cumsum(X, axis=0)", lambda x: x.cumsum(0)),
    "from the end": ("flip(cumsum(flip(X, 1), axis=1), 1)", lambda x: x[:, ::-1].cumsum(1)[:, ::-1]),
    "columns from the end": ("cumsum(X[::-1], axis=0)[::-1]", lambda x: x[::-1].cumsum(0)[::-1]),
    "without itself": ("X @ triu(ones((C, C)), 1)", lambda x: x.cumsum(1) - x),
    "columns without themselves": ("tril(ones((R, R)), -1) @ X", lambda x: x.cumsum(0) - x),
    "columns by a product": ("triu(ones((R, R))) @ X", lambda x: x[::-1].cumsum(0)[::-1]),
}


def said(text: str, rows: int, columns: int, dtype: str = "f32") -> KernelGraph:
    """A program of X, of so many rows and columns."""
    text = text.replace("R,", f"{rows},").replace("R)", f"{rows})").replace("C,", f"{columns},")
    return parse(f"X: {dtype}[{rows}, {columns}]\nreturn {text.replace('C)', f'{columns})')}").graph


def operators(graph: KernelGraph) -> list[OpKind]:
    """What kernels there are, reshapes and numbers apart."""
    return [op.kind for op in graph.ops if op.kind not in (OpKind.RESHAPE, OpKind.ARANGE)]


@examples(40)
@given(st.sampled_from(sorted(WAYS)), st.integers(2, 40), st.integers(2, 40), st.integers(1, 40), st.integers(2, 20))
def test_they_are_what_numpy_says(way: str, rows: int, columns: int, longest: int, part: int) -> None:
    text, meant = WAYS[way]
    program = as_running(said(text, rows, columns))
    assert OpKind.RUNNING_SUM in operators(program)
    made = in_parts(program, Longest(row=longest, part=part, column=longest, column_part=part))
    x = np.random.default_rng(rows).standard_normal((rows, columns))
    for graph in (program, made):
        (found,) = reference.evaluate(graph, [x])
        np.testing.assert_allclose(found, meant(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", sorted(WAYS))
def test_one_kernel_is_found(way: str) -> None:
    found = library_and_fused(said(WAYS[way][0], 48, 40), H200, said_as=RUNNING)
    assert found is not None and operators(found.instance.graph) == [OpKind.GRAPH]
    assert judged(*found.small, 0).accepted
    check(found.instance.graph)


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        ("X: f32[6, 4096]\nreturn cumsum(X, axis=1)", 1),
        ("X: bf16[3, 1000]\nM: bf16[3, 1000]\nreturn cumsum(where(M > 0, exp(X), 0), axis=1)", 1),
        ("X: f16[4, 512]\np = softmax(X, axis=1)\nreturn cumsum(p, axis=1) - p, cumsum(p, axis=1) / 2", 1),
        ("X: f32[2, 3, 50]\nreturn cumsum(X, axis=1), sum(cumsum(X * X, axis=2), axis=2)", 2),
        ("X: f32[640, 24]\nreturn cumsum(X, axis=0)", 1),
        ("X: f32[4096, 8]\nreturn cumsum(X, axis=0)", 3),
        ("X: f16[1, 50000]\nreturn cumsum(X, axis=1)", 3),
    ],
)
def test_what_is_around_them_is_in_their_kernels(text: str, kernels: int) -> None:
    """They were a library's, and what stands around them kernels of its own."""
    found = library_and_fused(parse(text).graph, H200, said_as=RUNNING)
    assert found is not None and judged(*found.small, 0).accepted
    assert operators(found.instance.graph) == [OpKind.GRAPH] * kernels
    check(found.instance.graph)


@pytest.mark.parametrize("way", sorted(WAYS))
def test_every_form_of_the_operator(way: str) -> None:
    torch = pytest.importorskip("torch")
    text, meant = WAYS[way]
    program = said(text, 4, 6)
    graph, x = as_running(program), np.random.default_rng(0).standard_normal((4, 6))
    assert parse_graph(print_graph(graph)) == graph
    (op,) = (op for op in graph.ops if op.kind is OpKind.RUNNING_SUM)
    attrs, given, made = plain_attrs(op.attrs), torch.tensor(x), torch.empty(4, 6, dtype=torch.float64)
    TORCH_KERNELS["RunningSum"](torch, attrs, [given], made)()
    for found in (PLAIN["RunningSum"](np, attrs, x), TORCH[op.kind](torch, op.attrs, (given,)), made):
        np.testing.assert_allclose(found, meant(x), atol=1e-12)
    first, second = small(program, 0)
    verdict = verify(first, second, final=True)
    assert verdict.kind is VerdictKind.FIELD and verdict.log2_bound is not None and verdict.log2_bound < -64
    assert isinstance(prove(first, second, seconds=5.0, these_sizes=True), Proof)


def test_columns_that_threads_share_are_one_kernel() -> None:
    """In parts they are read twice, by three kernels."""
    program = parse("X: f16[8, 512, 24]\nY: f16[8, 512, 24]\nreturn cumsum(X * Y, axis=1) + Y").graph
    found = library_and_fused(program, H200, said_as=RUNNING)
    assert found is not None and operators(found.instance.graph) == [OpKind.GRAPH]
    assert judged(*found.small, 0).accepted
    check(found.instance.graph)


def test_programs_without_them_are_not_said_so() -> None:
    assert library_and_fused(parse("X: f32[2, 65536]\nreturn softmax(X)").graph, H200, said_as=RUNNING) is None


def test_other_matrices_are_no_running_sums() -> None:
    for text in ("X @ tril(ones((C, C)), 1)", "X @ triu(ones((C, C)), -1)", "X @ (2 * triu(ones((C, C))))", "X @ X"):
        program = said(text, 8, 8)
        assert as_running(program) is program


def test_the_other_end_is_refuted() -> None:
    program = said("cumsum(X, axis=1)", 2, 6)
    wrong = as_running(said("flip(cumsum(flip(X, 1), axis=1), 1)", 2, 6))
    assert judged(program, wrong, 0).kind is VerdictKind.REFUTED


@examples(25)
@given(
    st.lists(st.sampled_from([1, 2, 3, 5, 8, 33, 64, 100, 256, 600]), min_size=2, max_size=3),
    st.integers(0, 2), st.booleans(), st.booleans(), st.sampled_from(list(DType)[:3]), st.sampled_from([1, 3, 4, 8]),
)  # fmt: skip
def test_threads_that_hold_them(
    shape: list[int], dim: int, backward: bool, exclusive: bool, dtype: DType, warps: int
) -> None:
    b = Block((tensor(tuple(shape), dtype),), (1,))
    x = b.op(OpKind.SQR, b.read(0, (None,)))
    b.save(b.op(OpKind.RUNNING_SUM, x, attrs=RunningAttrs(dim % len(shape), backward, exclusive)), (None,))
    graph, options = one_kernel("X", b), Options(warps=warps)
    if exclusive and shape[dim % len(shape)] == 1:
        return  # nothing but zeros: no error is relative to them
    try:
        plan(graph, H200, options)
    except TargetError:
        return  # more than the threads of one block hold
    check(graph, options)


@crossed({
    "exclusive": [False, True],
    "backward": [False, True],
    "shape": [(600, 8), (1024, 16), (100, 16), (2, 256, 16), (1, 333, 4)],
})
def test_threads_that_share_columns(shape: tuple[int, ...], backward: bool, exclusive: bool) -> None:
    b = Block((tensor(shape, DType.F32), tensor(shape[-1:], DType.F32)), (1,))
    attrs = RunningAttrs(len(shape) - 2, backward, exclusive)
    x = b.op(OpKind.RUNNING_SUM, b.read(0, (None,)), attrs=attrs)
    b.save(b.op(OpKind.MUL, x, b.read(1, (None,))), (None,))
    graph = one_kernel("X Y", b)
    assert "run_shared_columns" in emit(graph, H200, Options(warps=8)).source
    check(graph, Options(warps=8))


def test_a_row_that_threads_cannot_hold_is_refused() -> None:
    b = Block((tensor((1, 2**17), DType.F32),), (1,))
    b.save(b.op(OpKind.RUNNING_SUM, b.read(0, (None,)), attrs=RunningAttrs(1)), (None,))
    assert isinstance(one_kernel("X", b).ops[0].body, BlockGraph)
    with pytest.raises(TargetError, match="running sum"):
        plan(one_kernel("X", b), H200)
