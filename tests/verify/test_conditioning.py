"""What rounding does to a program, foretold: about as much as it then does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.lang import parse
from mirage_nb.tile.instructions.precision import few_summed
from mirage_nb.verify.reals.conditioning import ROUNDING, analyse
from mirage_nb.verify.reals.float_gate import as_written, compare, reference
from mirage_nb.verify.reals.hard_inputs import finite_names, hard_inputs
from mirage_nb.verify.reals.rounding import rounded
from tests.shares import examples
from tests.strategies import arrays_for, programs

PROGRAMS = {
    "product": "X: {t}[16, 512]\nW: {t}[512, 32]\nreturn X @ W",
    "chain": "X: {t}[16, 64]\nW: {t}[64, 64]\nV: {t}[64, 16]\nreturn (X @ W) @ V",
    "norm": "X: {t}[32, 256]\nreturn X / sqrt(mean(X * X, axis=-1, keepdims=True))",
    "softmax": "X: {t}[32, 256]\nreturn softmax(4 * X)",
    "quotient": "X: {t}[32, 64]\nY: {t}[32, 64]\nreturn silu(X) / (1 + square(Y))",
    "sum of many": "X: {t}[8, 4096]\nreturn sum(X, axis=-1)",
    "cancelling": "X: {t}[32, 64]\nY: {t}[32, 64]\nreturn (X * 64 + Y) - X * 64",
    "views": "X: {t}[8, 32, 4]\nreturn concat(transpose(exp(X), 0, 2, 1), X.T, axis=1)",
}


def drawn(graph: KernelGraph, seed: int = 0) -> dict[str, np.ndarray]:
    return {
        n: rounded(a, t.type.dtype) for (n, a), t in zip(arrays_for(graph, seed).items(), graph.inputs, strict=True)
    }


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_much_as_it_does(name: str, dtype: str) -> None:
    graph = parse(PROGRAMS[name].format(t=dtype)).graph
    inputs = drawn(graph)
    found = analyse(graph, inputs)
    np.testing.assert_array_equal(found.outputs[0], evaluate(graph, inputs)[0])
    (written,) = as_written(graph, inputs)
    moved, deviation = np.abs(written - found.outputs[0]), found.deviations[0]
    assert (moved <= 8 * deviation).all()
    assert 0.1 < np.sqrt(np.mean(moved**2) / np.mean(deviation**2)) < 2.0


@examples(40)
@given(programs(), st.integers(0, 3))
def test_no_program_is_off_by_more_than_foretold(graph: KernelGraph, seed: int) -> None:
    inputs = drawn(graph, seed)
    found = analyse(graph, inputs)
    rows = zip(found.outputs, found.deviations, as_written(graph, inputs), graph.output_types, strict=True)
    for want, deviation, written, type_ in rows:
        known = np.isfinite(want) & np.isfinite(deviation) & np.isfinite(written)
        off = np.abs(written[known] - want[known])
        assert (off <= 30 * deviation[known] + 4 * ROUNDING[type_.dtype] * np.abs(want[known])).all()


FEW = "X: f8e4m3[24, 2048]\nW: {right}[16, 2048]\ns: f32[16]\nreturn {out}((X @ W.T) * s)"


@pytest.mark.parametrize("out", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("right", ["f8e4m3", "f8e5m2"])
def test_floats_of_a_byte_are_summed_with_few_digits(right: str, out: str) -> None:
    """Chunk by chunk, as tensor cores sum them: on all hard inputs that is within what the program's types explain."""
    graph = parse(FEW.format(right=right, out=out)).graph
    for name in finite_names(graph):
        inputs = hard_inputs(graph, name, 0)
        made = few_summed(inputs["X"].astype(float), inputs["W"].T.astype(float)) * inputs["s"]
        report = compare([rounded(made, graph.output_types[0].dtype)], reference(graph, inputs))
        assert report.ok, (name, report.note)


def test_sums_of_few_digits_that_go_on_are_off_by_more() -> None:
    """What keeps few digits of all elements, not of 128, is found; and few digits where a program widens first."""
    graph = parse(FEW.format(right="f8e5m2", out="f32")).graph
    wide = parse(FEW.format(right="f8e5m2", out="f32").replace("X @ W.T", "f32(X) @ f32(W).T")).graph
    inputs = hard_inputs(graph, "one large element per column", 0)
    a, b = inputs["X"].astype(float), inputs["W"].T.astype(float)
    made = few_summed(a, b) * inputs["s"]
    assert compare([made], reference(graph, inputs)).ok and not compare([made], reference(wide, inputs)).ok
    assert not compare([few_summed(a, b, 2048) * inputs["s"]], reference(graph, inputs)).ok


def test_sums_of_few_terms_drop_less() -> None:
    """What may be dropped of a sum follows from its terms, not from those that a chunk has room for."""
    x = np.random.default_rng(0).integers(1, 15, (1, 128)) / 8
    found = []
    for terms in (4, 32, 128):
        graph = parse(f"X: f8e4m3[1, {terms}]\nW: f8e4m3[1, {terms}]\nreturn X @ W.T").graph
        inputs = {"X": 60 * x[:, :terms], "W": x[:, :terms] / 7}
        found.append(analyse(graph, inputs).deviations[0].item() / np.sum(inputs["X"] * inputs["W"]))
    assert found == sorted(found) and found[0] < found[-1] / 3


def test_what_is_beyond_a_type_is_known_no_more() -> None:
    graph = parse("X: f16[4]\nY: f16[4]\nreturn 1 / (X * X), X + Y").graph
    found = analyse(graph, {"X": np.array([1.0, 10, 300, -300]), "Y": np.zeros(4)})
    assert np.isfinite(found.deviations[0]).tolist() == [True, True, False, False]
    assert np.isfinite(found.deviations[1]).all() and found.fullest == pytest.approx(90000 / 65504)


def test_what_rounding_may_lead_beyond_a_type_is_known_no_more() -> None:
    """A product of 65,484 may be infinite once it is rounded, and so what is made of it: five of 262,144 elements of a
    layer norm with a linear layer behind it set all kernels aside."""
    graph = parse("X: f16[3]\nW: f16[3]\nB: f16[3]\nreturn X * W + B").graph
    inputs = {"X": np.array([255.875, 250, 10]), "W": np.array([255.875, 250, 10]), "B": np.full(3, -10000.0)}
    assert np.isfinite(analyse(graph, inputs).deviations[0]).tolist() == [False, True, True]


def test_numbers_that_a_type_has_are_exact() -> None:
    """So that what compares them does not waver: a mask of places is no matter of rounding."""
    graph = parse("X: f32[4]\nreturn step(2 * X - 4) * X").graph
    found = analyse(graph, {"X": np.arange(4.0)})
    assert found.outputs[0].tolist() == [0, 0, 2, 3] and (found.deviations[0] < 1e-6).all()


@examples(60)
@given(st.lists(st.integers(-40, 40), min_size=2, max_size=40), st.integers(-8, 8), st.integers(0, 2**20), st.data())
def test_sums_that_count_as_exact_are_so_in_any_order(
    numbers: list[int], exponent: int, large: int, data: st.DataObject
) -> None:
    values = np.ldexp(np.array([*numbers, large], np.float32), exponent)
    graph = parse(f"X: f32[{len(values)}]\nreturn sum(X)").graph
    (deviation,) = analyse(graph, {"X": values}).deviations
    left = [np.float32(v) for v in values]
    while len(left) > 1:  # any two at a time
        one = left.pop(data.draw(st.integers(0, len(left) - 1)))
        left.append(left.pop(data.draw(st.integers(0, len(left) - 1))) + one)
    assert deviation > 0 or float(left[0]) == values.astype(np.float64).sum()


def test_the_sum_of_equal_numbers_may_be_off_although_its_type_has_it() -> None:
    """128 times a number is one that f32 has, three times it is not: every right kernel of layer_norm was off by 6.7
    times what was foretold for constant rows."""
    graph = parse("X: f32[64, 128]\nreturn layer_norm(X, eps=1e-5)").graph
    rows = np.random.default_rng(0).standard_normal((64, 1)).astype(np.float32)
    found = analyse(graph, {"X": np.broadcast_to(rows, (64, 128))})
    part = np.zeros((64, 1), np.float32)
    for _ in range(8):  # of a thread; those of 16 threads, and so on, are exact again
        part = part + rows
    off = np.abs(part / 8 - rows) / np.sqrt(1e-5)
    assert 1e-5 < off.max() and (off <= 4 * found.deviations[0]).all()


@pytest.mark.parametrize("depth", [64, 192, 1024, 4096])
@pytest.mark.parametrize("spread", [0.0, 0.25, 30.0, 1e9])
def test_terms_of_products_may_be_added_one_after_the_other(depth: int, spread: float) -> None:
    """Kernels of deep products in f32 were off by five times what was foretold where rows are constant, or all numbers
    close to each other; a factor that is off by one thousandth is still told."""
    rng = np.random.default_rng(depth)
    middle = 0.0 if spread > 100 else 96 * (1 + rng.random((2, 16, 1)))
    x, w = np.float32(middle + min(spread, 1e2) * rng.standard_normal((2, 16, depth)))
    graph = parse(f"X: f32[16, {depth}]\nW: f32[16, {depth}]\nreturn X @ W.T").graph
    wanted = reference(graph, {"X": x, "W": w})
    terms = x.T[:, :, None] * w.T[:, None]
    total, part, parts = np.zeros((3, 16, 16), np.float32)
    for number, term in enumerate(terms, 1):
        total, part = total + term, part + term
        if number % 32 == 0:
            parts, part = parts + part, np.zeros_like(part)
    assert compare([total], wanted).ok and compare([parts], wanted).ok
    assert not compare([total * 1.001], wanted).ok
    off = np.median(np.abs(total - wanted.outputs[0]) / wanted.deviations[0])
    assert off > 0.01, "no more is allowed than that is"


def test_a_sum_that_cancels_within_an_operator_loses_a_share_of_one() -> None:
    graph = parse("X: f32[64]\nreturn gelu(clamp(X, -2, 2))").graph
    inputs = {"X": np.linspace(-40, -30, 64).astype(np.float32)}  # all of it is the value at -2, exactly
    found = analyse(graph, inputs)
    share = found.deviations[0] / np.abs(found.outputs[0])
    assert (share > 5 * ROUNDING[DType.F32]).all() and (share < 50 * ROUNDING[DType.F32]).all()


@pytest.mark.parametrize(
    "quotient", ["mean(E, axis=1) / std(E, axis=1)", "var(E, axis=1) ** (-1 / 3)", "f(std(E, axis=1))"]
)
def test_of_a_quotient_by_what_rounding_makes_of_zero_nothing_is_known(quotient: str) -> None:
    """Elements of a row are equal, and what a sum leaves of their differences may be zero or not, as it comes."""
    graph = parse(f"X: f32[64, 50]\nE = X - 0.01\ndef f(x): return (1 + x) / x\nreturn {quotient}").graph
    rows = np.random.default_rng(0).standard_normal((64, 1)).astype(np.float32) / 3
    found = analyse(graph, {"X": np.broadcast_to(rows, (64, 50))})
    finite = np.isfinite(found.outputs[0])
    assert finite.any() and np.isinf(found.deviations[0][finite]).all()


@pytest.mark.parametrize(("right", "wrong"), [
    ("where(sum(X * Y, 1, keepdims=True) > 0, X, Y)", "Y"),
    ("where((S > 0.5) & (S < 2), S, 0)", "S"),
    ("where((S < -1) | (S > 1), 0, S)", "0 * S"),
    ("sum(S > 0, 1)", "sum(S > 1, 1)"),
    ("where(sum(S > 3, 1, keepdims=True) > 0, S, 0)", "S"),
    ("argmax(S, 1)", "argmax(S, 1) * 0 + 16"),
    ("where(S >= max(S, 1)[:, None], S, 0)", "0 * S"),
    ("where(S == min(S, 1, keepdims=True), S, 0)", "0 * S"),
    ("where(S == max(S), S, 0)", "0 * S"),
    ("where(S.T == max(S, 1), S.T, 0)", "0 * S"),
    ("where(S - max(S, 1, keepdims=True) >= 0, S, 0)", "0 * S"),
    ("where(S >= max(where(S == M, -inf, S), 1, keepdims=True), S, 0)", "where(S == M, S, 0)"),
    ("sign(S)", "where(S > 1, 1, -1)"),
])  # fmt: skip
def test_masks_of_what_was_rounded_are_held(right: str, wrong: str) -> None:
    """Whatever was chosen where they are 0 was allowed: a number that is not quite 0 is another choice."""
    head = "X: f16[16, 64]\nY: f16[16, 64]\nS = X @ Y.T / 8\nM = max(S, 1, keepdims=True)\nreturn "
    program, other = (parse(f"{head}{body} + 0 * (sum(X) + sum(Y))").graph for body in (right, wrong))
    inputs = dict(zip("XY", rounded(np.random.default_rng(0).standard_normal((2, 16, 64)), DType.F16), strict=True))
    wanted = reference(program, inputs)
    assert compare(as_written(program, inputs), wanted).ok
    assert not compare(as_written(other, inputs), wanted).ok
    assert np.mean(np.asarray(wanted.deviations[0]) < 0.1) > 0.9


def test_what_lies_at_an_edge_may_be_on_either_side() -> None:
    """By as much as one element may be off; of two that are about the largest either may be."""
    text = "X: f16[4, 3]\nW: f16[3, 2]\nS = X @ W\nreturn where(S > 0, 1, 0), where(S == max(S, 1)[:, None], 1, 0)"
    x = np.array([[1.0, -1, 0.0], [1, -1, 2.0**-24], [1, -1, 1], [1, -1, -1]])
    inputs = {"X": x, "W": np.array([[3.0, 3], [3, 3], [1, 2]])}
    deviations = reference(parse(text).graph, inputs).deviations
    assert (deviations[0][1] >= 1).all() and (deviations[0][2:] < 0.01).all()
    assert (deviations[1][1] >= 1).all() and (deviations[1][2:] < 0.01).all()


@pytest.mark.parametrize("scaled", [
    "where(N > 0, N ** -0.5, 0)", "where(N ** -0.5 == inf, 0, N ** -0.5)", "where(N == 0, 0, 1 / N)",
    "where(N > 0, sqrt(1 / N), 0)",
])  # fmt: skip
def test_of_what_is_not_chosen_nothing_need_be_known(scaled: str) -> None:
    """A node without edges, divided by the root of their number, is infinite until the zero is chosen; in a sum with
    it no neighbour was asked for."""
    text = f"X: f32[6, 4]\nA: f32[6, 6]\nE = f32(A > 0)\nN = sum(E, 1)\nD = {scaled}\nreturn D[:, None] * E * D @ X"
    numbers = np.random.default_rng(0).standard_normal
    edges = np.where(np.arange(6)[:, None] == 3, -1, numbers((6, 6)))
    inputs = {"X": rounded(numbers((6, 4)), DType.F32), "A": rounded(edges, DType.F32)}
    found = reference(parse(text).graph, inputs)
    assert found.asked == 24 and np.isfinite(found.outputs[0]).all() and np.max(found.deviations[0]) < 1e-4
