"""Rows that no block holds, folded in parts: the same program, one reading for mean and variance, and it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.codegen import emit
from mirage_nb.interp import reference
from mirage_nb.ir import BlockGraph, KernelGraph, Op, OpKind, ReshapeAttrs
from mirage_nb.lang import parse
from mirage_nb.search.composition import COLUMNS, CROSSED, DEEP, library_and_fused
from mirage_nb.search.session.unsearched import judged
from mirage_nb.search.sizes.looked import launched
from mirage_nb.search.wordings.deep import products
from mirage_nb.search.wordings.squares import about_own, of_more
from mirage_nb.search.wordings.wide_rows import Longest, in_parts
from mirage_nb.targets import TARGETS
from mirage_nb.tile.rules.held import holds
from mirage_nb.verify.trials import verify
from tests.codegen.running import check
from tests.shares import examples

H200 = TARGETS["h200"]
GROUP_NORM = """
X: bf16[1, 4, 32768]
g: bf16[2, 2, 1]
b: bf16[2, 2, 1]
x = reshape(X, 1, 2, 65536)
d = x - mean(x, axis=-1, keepdims=True)
y = reshape(d / sqrt(mean(d * d, axis=-1, keepdims=True) + 1e-5), 1, 2, 2, 32768)
return reshape(y * g + b, 1, 4, 32768)
"""
NORM_OF_BATCHES = """
X: f16[64, 8, 64, 64]
m = mean(X, axis=(0, 2, 3), keepdims=True)
return (X - m) / sqrt(mean((X - m) ** 2, axis=(0, 2, 3), keepdims=True) + 1e-5)
"""
MEANS_OF_MEANS = """
X: f16[64, 8, 4096]
d = X - mean(mean(X, axis=2), axis=0)[:, None]
return d / sqrt(mean(mean(d * d, axis=2), axis=0) + 1e-5)[:, None]
"""
BACKWARD = """
X: {0}[36, 3, 31, 33]
D: f32[36, 3, 31, 33]
M: f32[3]
R: f32[3]
G: {0}[3]
H = (X - M[:, None, None]) * R[:, None, None]
B = sum(D, axis=(0, 2, 3))
W = sum(D * H, axis=(0, 2, 3))
return G[:, None, None] * R[:, None, None] * (D - B[:, None, None] / 36828 - H * W[:, None, None] / 36828), W, B
"""
"""Of a batch norm."""
GAINS = """
X: {0}[{1}, 2048]
D: {0}[{1}, 2048]
G: {0}[2048]
R: f32[{1}]
H = X * R[:, None]
E = D * G
return (E - H * mean(E * H, axis=1, keepdims=True)) * R[:, None], sum(D * H, axis=0)
"""
"""Of an RMS norm and its gain."""
PROGRAMS = {
    "sum": "return sum(X * Y, axis=-1)",
    "max": "return max(X, axis=-1, keepdims=True) - Y",
    "softmax": "return softmax(X) * Y",
    "squares": "d = X - mean(X, axis=-1, keepdims=True)\nreturn mean(d * d, axis=-1), sum(X, axis=-1)",
    "of two rows": "d = X - mean(Y, axis=-1, keepdims=True)\nreturn sum(d * d, axis=-1)",
    "columns": "return sum(X, axis=0)",
    "far below": "return sum(exp(1000 * X - max(1000 * X, axis=1, keepdims=True)), axis=1)",
    "column maxima": "return softmax(X * Y, axis=0)",
    "squares of columns": "d = X - mean(X, axis=0)\nreturn mean(d * d, axis=0), Y - max(X, axis=0)",
    "both": "return sum(exp(X - max(Y, axis=0)), axis=1), sum(sum(X * Y, axis=0, keepdims=True), axis=1)",
}


def _values(program: KernelGraph) -> tuple[Any, ...]:
    rng = np.random.default_rng(3)
    return reference.evaluate(program, [rng.standard_normal(i.type.shape) for i in program.inputs])


@examples(30)
@given(st.sampled_from(sorted(PROGRAMS)), st.integers(1, 30), st.integers(1, 60), st.integers(1, 40), st.integers(1, 9),
       st.integers(2, 20))  # fmt: skip
def test_it_stays_the_program(name: str, rows: int, row: int, widest: int, tallest: int, part: int) -> None:
    program = parse(f"X: f32[{rows}, {row}]\nY: f32[{rows}, {row}]\n{PROGRAMS[name]}").graph
    made = in_parts(program, Longest(row=widest, part=part, column=tallest, column_part=part))
    assert made.output_types == program.output_types and made.output_names == program.output_names
    for found, right in zip(_values(made), _values(program), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-12)


def test_rows_that_fit_or_have_no_parts_stay_as_they_are() -> None:
    for extent, widest in ((64, 64), (61, 8)):
        program = parse(f"X: f32[4, {extent}]\nreturn softmax(X)").graph
        assert in_parts(program, Longest(row=widest)) is program


def test_a_misstated_variance_is_refuted() -> None:
    """The squares about the means of the parts, without how far these lie apart, are another program."""
    program = parse(f"X: f32[2, 16]\nY: f32[2, 16]\n{PROGRAMS['squares']}").graph
    made = in_parts(program, Longest(row=4, part=4))
    assert judged(program, made, 0).accepted
    ops = list(made.ops)
    (place,) = (i for i, op in enumerate(ops) if op.kind is OpKind.ADD)
    inside = ops[place].inputs[0]
    ops[place] = Op(OpKind.RESHAPE, (inside,), ReshapeAttrs(made.types[inside].shape))
    assert not judged(program, replace(made, ops=tuple(ops)), 0).accepted


@pytest.mark.parametrize("text", [GROUP_NORM, "X: f32[2, 65536]\nreturn softmax(X)"])
def test_kernels_of_rows_that_no_block_holds(text: str) -> None:
    program = parse(text).graph
    found = library_and_fused(program, H200)
    assert found is not None and judged(*found.small, 0).accepted
    computing = [op.kind for op in found.instance.graph.ops if op.kind is not OpKind.RESHAPE]
    assert set(computing) == {OpKind.GRAPH}
    if text is GROUP_NORM:
        assert len(computing) == 2  # the statistics of the parts; the rest
        check(found.instance.graph, scale=3.0)


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        ("X: bf16[4096, 40]\nY: bf16[4096, 40]\nreturn mean((X - Y)**2, axis=0)", 2),
        ("X: f32[8192, 8]\nreturn var(X, axis=0)", 5),
        ("X: f16[2, 256, 16]\nreturn logsumexp(X, axis=1)", 2),
        (NORM_OF_BATCHES, 3),
        (MEANS_OF_MEANS, 3),
        ("X: f32[640, 3, 5]\nY: f32[3, 5]\nreturn max(X, axis=0) * Y, X / sum(X * X, axis=0)", 4),
    ],
)
def test_kernels_of_columns_that_no_thread_holds(text: str, kernels: int) -> None:
    """Batch statistics and gradients of biases were one block for each of a few columns, or a library's sums of what
    was written out before: 190 us estimated where 62 are the floor."""
    program = parse(text).graph
    found = library_and_fused(program, H200, said_as=COLUMNS)
    assert found is not None and judged(*found.small, 0).accepted
    computing = [op.kind for op in found.instance.graph.ops if op.kind is not OpKind.RESHAPE]
    assert set(computing) == {OpKind.GRAPH} and len(computing) == kernels
    check(found.instance.graph, scale=1.0)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_what_no_block_folds_along_two_axes_is_folded_along_one_after_the_other(dtype: str) -> None:
    """The gradient of a batch norm was fourteen of a library's kernels: 79 us estimated, 14 as three."""
    program = parse(BACKWARD.format(dtype)).graph
    kinds = []
    for said_as in (None, COLUMNS):
        found = library_and_fused(program, H200, said_as=said_as)
        assert found is not None and judged(*found.small, 0).accepted
        kinds.append([op.kind for op in found.instance.graph.ops if op.kind is not OpKind.RESHAPE])
        check(found.instance.graph, scale=1.0)
    assert [{*each} for each in kinds] == [{OpKind.GRAPH}] * 2 and len(kinds[1]) == 3


def test_columns_that_a_thread_holds_are_said_as_they_are() -> None:
    assert library_and_fused(parse("X: f32[64, 64]\nreturn softmax(X, axis=0)").graph, H200, said_as=COLUMNS) is None


@examples(20)
@given(
    st.sampled_from([NORM_OF_BATCHES.split("64]")[1].replace("2, 3)", "2)"), MEANS_OF_MEANS.split("4096]")[1]]),
    st.integers(2, 6), st.integers(2, 5), st.integers(2, 6),
)  # fmt: skip
def test_squares_about_a_mean_of_more(text: str, first: int, kept: int, last: int) -> None:
    program = parse(f"X: f32[{first}, {kept}, {last}]\n{text}").graph
    made = about_own(program)
    assert made is not program and of_more(program) and not of_more(made)
    for found, right in zip(_values(made), _values(program), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-12)


def test_sums_that_make_a_column_are_none_of_its_mean() -> None:
    """Batch statistics behind a product that was summed in parts were said otherwise without end."""
    assert not of_more(parse("X: f32[4, 6, 5]\nreturn var(sum(X, 0), 0)").graph)
    normed = "return (Y - mean(Y, 0)) / sqrt(var(Y, 0) + 1e-5)"
    program = parse(f"X: f32[64, 256]; W: f32[256, 64]\nY = X @ W\n{normed}").graph
    assert products(program) and library_and_fused(program, H200, said_as=DEEP) is not None


def test_masked_rows_in_parts_are_what_they_were() -> None:
    """A part of minus infinities counts nothing beside others, and a row of them is no number."""
    program = parse("X: f32[4, 60]\nreturn softmax(X), logsumexp(X, axis=0)").graph
    made = in_parts(program, Longest(row=4, part=4, column=1, column_part=2))
    values = np.random.default_rng(0).standard_normal((4, 60))
    values[0, :17], values[1, 30:], values[2, :], values[:2, 20] = -np.inf, -np.inf, -np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        for found, right in zip(reference.evaluate(made, [values]), reference.evaluate(program, [values]), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-9)


def test_a_mask_of_places_is_part_of_the_kernel() -> None:
    """Rows and columns were numbered by one tensor, so that no block could have some of the rows alone: the masked
    scores were written and read again."""
    program = parse("S: f16[2, 64, 512]\nreturn softmax(where(arange(64)[:, None] * 8 >= arange(512), S, -inf))").graph
    same = parse("S: f16[2, 256, 256]\ni = arange(256)\nreturn softmax(where(i[:, None] >= i, S, -inf))").graph
    for given_ in (program, same):
        found = library_and_fused(given_, H200)
        assert found is not None and judged(*found.small, 0).accepted
        (kernel,) = [op for op in found.instance.graph.ops if isinstance(op.body, BlockGraph)]
        assert "shared" not in emit(found.instance.graph, H200).source and len(kernel.body.savers) == 1
        check(found.instance.graph, scale=3.0)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_numbers_of_places_in_parts_of_a_row_are_not_read(dtype: str) -> None:
    """Losses of many classes had a kernel that wrote the numbers of these, 3 us of 18.5 estimated."""
    program = parse(f"X: {dtype}[2, 50258]\nT: int[2]\nreturn cross_entropy(X, T)").graph
    found = library_and_fused(program, H200, said_as=COLUMNS)
    assert found is not None and judged(*found.small, 0).accepted and launched(found.instance.graph) == 2
    check(found.instance.graph, scale=1.0)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_gradients_of_rows_and_gains_read_everything_once(dtype: str) -> None:
    """A block holds whole rows in registers and leaves a part of the sums of columns, which a second kernel adds up."""
    program, smaller = (parse(GAINS.format(dtype, rows)).graph for rows in (4096, 128))
    found = library_and_fused(program, H200, said_as=CROSSED)
    assert found is not None
    first, second = (op.body for op in found.instance.graph.ops if isinstance(op.body, BlockGraph))
    assert holds(first) and len(first.savers) == 2 and 256 <= first.grid[0] <= 1024
    assert sum(t.nbytes for t in second.args) <= program.inputs[0].type.nbytes / 4
    apart, small = (library_and_fused(p, H200, said_as=w) for p, w in ((program, COLUMNS), (smaller, CROSSED)))
    assert apart is not None and found.instance.cost.us < 0.8 * apart.instance.cost.us
    assert small is not None and judged(*small.small, 0).accepted
    check(small.instance.graph)


@pytest.mark.parametrize("result", ["mean((X - {}) ** 2, axis=0)", "log(sum(exp(X - {}), axis=0)) + max(X, axis=0)"])
@pytest.mark.parametrize("fold", ["{}(X, 0)", "{}(X, axis=0, keepdims=True)", "{}(X, axis=0).reshape(1, 1, 40)[0]"])
def test_columns_are_read_once_however_what_lies_beside_them_is_shaped(result: str, fold: str) -> None:
    """Variances about a mean that has lost its dimension read columns twice: 36.7 us of 65,536 x 256, now 21.5."""
    named = fold.format("mean" if "mean" in result else "max")
    program = parse(f"X: f32[8192, 40]\nreturn {result.format(named)}").graph
    found = library_and_fused(program, H200, said_as=COLUMNS)
    assert found is not None and verify(*found.small).accepted
    graph = found.instance.graph
    views = {values[0] for op, values in graph.definitions() if op.kind is OpKind.RESHAPE and op.inputs == (0,)}
    assert sum(not {0, *views}.isdisjoint(op.inputs) for op in graph.ops if op.body is not None) == 1
    check(graph)
