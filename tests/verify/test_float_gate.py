"""The floating-point gate: what it lets through, what it stops, and hard inputs that tell safe from unsafe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from mirage_nb.errors import OptionError, ShapeError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import FLOATS, DimAttrs, DType, Input, KernelGraph, Op, OpKind, TensorType
from mirage_nb.lang import parse
from mirage_nb.verify.reals.conditioning import ROUNDING, SINGLE
from mirage_nb.verify.reals.float_gate import (
    GateReport,
    Reference,
    as_written,
    compare,
    gate,
    judge,
    reference,
    samples,
)
from mirage_nb.verify.reals.hard_inputs import DRAWS, sample_names
from mirage_nb.verify.reals.rounding import rounded
from tests.mugraphs import Case, Kernel, attention_safe, cases, gqa, rmsnorm

RNG = np.random.default_rng(0)
WANT = RNG.normal(size=(4, 8))


def right(*outputs: np.ndarray, dtype: DType = DType.F16) -> Reference:
    """What is right, moved by one rounding to the type."""
    moved = tuple(ROUNDING[dtype] * np.maximum(np.abs(out), 1e-6) for out in outputs)
    return Reference(outputs, tuple(np.where(np.isfinite(m), m, 0.0) for m in moved), (dtype,) * len(outputs))


@pytest.mark.parametrize(("dtype", "held"), [(DType.F16, np.float16), (DType.F32, np.float32), (DType.F64, float)])
def test_rounding_passes(dtype: DType, held: type) -> None:
    report = compare([WANT.astype(held)], right(WANT, dtype=dtype))
    assert report.ok and report.relative_error <= report.allowed and report.note == ""
    assert report.measured.endswith(f", at most {report.allowed:.1e}")


def test_an_error_is_named() -> None:
    got = WANT.copy()
    got[2, 3] += 1.0
    report = compare([WANT, got], right(WANT, WANT))
    assert not report.ok and "output 1[2, 3]" in report.note
    assert report.relative_error == pytest.approx(1 / np.abs(WANT).max())
    assert compare([WANT, got], right(WANT, WANT), tolerance=1e5).ok


def test_a_small_error_everywhere_is_too_much() -> None:
    """Half of what one element may be off by, on all of them."""
    moved = 0.5 * SINGLE * ROUNDING[DType.F16]
    one, all_ = WANT.copy(), WANT * (1 + moved)
    one[1, 1] *= 1 + moved
    assert compare([one], right(WANT)).ok
    report = compare([all_], right(WANT))
    assert not report.ok and "output 0 is off by 6.0 times what its rounding explains" in report.note
    assert compare([all_], right(WANT), tolerance=4.0).ok


def test_a_wrong_scale_is_told_where_every_element_may_be_off_by_more() -> None:
    want = np.tile(WANT, (100, 1))
    rough = replace(right(want), deviations=(0.01 * np.abs(want),))
    assert compare([want * (1 + 0.01 * RNG.standard_normal(want.shape))], rough).ok
    report = compare([want * 0.985], rough)
    assert not report.ok and "output 0 is too small throughout, by 1.50%" in report.note


def test_poison_is_never_right() -> None:
    got = WANT.copy()
    got[0, 1] = np.nan
    report = compare([got], right(WANT))
    assert not report.ok and report.relative_error == np.inf and "not written" in report.note
    infinite = np.where(np.isnan(got), np.inf, got)
    assert "is inf, the" in compare([infinite], right(WANT)).note


def test_what_the_type_cannot_hold_has_to_overflow() -> None:
    want = np.array([1.0, 1e6, np.nan])
    assert compare([np.array([1.0, np.inf, np.nan])], right(want)).ok
    assert not compare([np.array([1.0, 7.0, np.nan])], right(want)).ok
    assert compare([np.array([1.0, 1e6, np.nan])], right(want, dtype=DType.F32)).ok
    assert compare([np.array([np.inf])], right(np.array([1e6]))).ok


def test_what_kind_of_number_it_is_not_counts_under_masks() -> None:
    want = np.array([1.0, np.inf, -np.inf, np.nan])
    masked = replace(right(want), kinds=True)
    assert compare([want], masked).ok
    for place, wrong in ((1, np.nan), (1, -np.inf), (2, np.nan), (3, np.inf), (3, 0.0)):
        got = want.copy()
        got[place] = wrong
        assert not compare([got], masked).ok
        assert compare([got], right(want)).ok == (not np.isfinite(wrong))


def test_zero_references_and_empty_lists() -> None:
    assert compare([np.zeros(3)], right(np.zeros(3))).ok
    assert not compare([np.ones(3)], right(np.zeros(3))).ok
    assert compare([], right()).ok


def test_shapes_have_to_fit() -> None:
    with pytest.raises(ShapeError, match=r"output 0 is \[4, 8\], not \[8, 4\]"):
        compare([WANT], right(WANT.T))
    with pytest.raises(ShapeError, match="1 outputs for 2"):
        compare([WANT], right(WANT, WANT))


def in_float32(program: KernelGraph, candidate: KernelGraph, **chosen: tuple[str, ...]) -> GateReport:
    def run(inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        outputs = evaluate(candidate, inputs, np.float32)
        return tuple(rounded(out, t.dtype) for out, t in zip(outputs, candidate.output_types, strict=True))

    return gate(run, samples(program, **chosen))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_right_kernels_survive(case: Case) -> None:
    report = in_float32(case.program, case.candidate)
    assert report.ok and report.broken == () and len(report.survived) >= 12, str(report)


def test_hard_inputs_tell_an_unsafe_softmax() -> None:
    """Algebraically the two are equal, and field trials accept both; float32 does not."""
    safe = attention_safe(d=16, s=32)
    assert in_float32(safe.program, safe.candidate).ok
    report = in_float32(safe.program, unsafe_attention(16, 32))
    assert "large logits" in report.broken and "normal" in report.survived
    assert "broken by large logits: output 0[" in str(report)


def test_partial_sums_of_half_precision_break() -> None:
    """The squares of a row added in f16 overflow where the program, in f32, does not."""

    def squares(dtype: DType) -> KernelGraph:
        graph = KernelGraph.start(Input("X", TensorType((4, 64), dtype)))
        graph = graph.append(Op(OpKind.SQR, (0,))).append(Op(OpKind.SUM, (1,), DimAttrs(1)))
        return graph.append(Op(OpKind.SQRT, (2,))).returning((3,))

    single, half = squares(DType.F32), squares(DType.F16)
    report = gate(lambda inputs: as_written(half, inputs), samples(single, names=("large norms", "all positive")))
    errors = {result.name: result.error for result in report.results}
    assert errors["large norms"] == np.inf and errors["all positive"] < 5e-3
    assert "large norms" not in {sample.name for sample in samples(half)}


def test_numbers_that_are_scaled_before_they_are_multiplied_break() -> None:
    """Large numbers times small ones are neither; 64 times the large ones are more than f16 holds."""
    program = parse("X: f16[16, 16]\nW: f16[16, 16]\nreturn X @ W").graph

    def scaled(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [rounded(rounded(inputs["X"] * 64, DType.F16) @ inputs["W"] / 64, DType.F16)]

    with np.errstate(invalid="ignore"):
        assert gate(scaled, samples(program)).broken == ("large beside small inputs",)
    assert gate(lambda inputs: as_written(program, inputs), samples(program)).ok


def test_variances_of_one_pass_break() -> None:
    """The mean of squares less the square of the mean loses what is small beside the mean."""
    head = "X: f32[16, 64]\nM = mean(X, axis=1, keepdims=True)\nreturn (X - M) / sqrt(1e-5 + "
    once, twice = "mean(X * X, axis=1, keepdims=True) - M * M)", "mean((X - M) * (X - M), axis=1, keepdims=True))"
    unsafe, program = (parse(head + text).graph for text in (once, twice))
    broken = gate(lambda inputs: as_written(unsafe, inputs), samples(program)).broken
    assert broken == ("rows far from zero", "all close to one number")
    assert gate(lambda inputs: as_written(program, inputs), samples(program)).ok


def test_squares_of_differences_that_are_multiplied_out_break() -> None:
    head = "X: f32[16, 16]\nY: f32[16, 16]\nreturn "
    multiplied = "mean(X * X) - 2 * mean(X * Y) + mean(Y * Y)"
    program, unsafe = (parse(head + text).graph for text in ("mean((X - Y) ** 2)", multiplied))
    assert gate(lambda inputs: as_written(unsafe, inputs), samples(program)).broken == ("all close to one number",)


def unsafe_attention(d: int, s: int) -> KernelGraph:
    program = attention_safe(d=d, s=s).program
    subtract = next(i for i, op in enumerate(program.ops) if op.kind.value == "EwSub")
    value = program.input_count + subtract
    graph = KernelGraph.start(*program.inputs)
    for number, op in enumerate(program.ops):
        inputs = tuple(program.ops[subtract].inputs[0] if v == value and number > subtract else v for v in op.inputs)
        graph = graph.append(type(op)(op.kind, inputs, op.attrs))
    return graph.returning(program.outputs)


def test_a_program_is_not_asked_for_more_than_it_survives() -> None:
    unsafe = {sample.name for sample in samples(gqa(d=16, s=32).program)}
    assert "all negative" not in unsafe and "near-zero norms" in unsafe and "large logits" not in unsafe
    safe = {sample.name for sample in samples(attention_safe(d=16, s=32).program)}
    assert set(DRAWS) - {"large norms", "all close to one number"} <= safe, "whose products leave the range of f16"


def test_what_is_not_finite_stays_so_and_goes_no_further() -> None:
    k = Kernel(X=(4, 8), W=(8, 8))
    program = k.returning(k.op(OpKind.MATMUL, 0, 1))
    for sample in samples(program, names=("undefined element of X", "infinite element of W")):
        (want,) = sample.reference.outputs
        assert sample.reference.asked == want.size and 0 < (~np.isfinite(want)).sum() < want.size
        assert judge(sample, [want]).survived
        hidden = judge(sample, [np.where(np.isfinite(want), want, 0.0)])
        assert not hidden.survived and hidden.error == np.inf and "is 0" in hidden.note
        spread = want.copy()
        spread[np.isfinite(want)] = np.nan
        assert not judge(sample, [spread]).survived


def test_errors_are_relative_and_named() -> None:
    (sample,) = samples(rmsnorm().program, names=("normal",))
    (want,) = sample.reference.outputs
    off = want.copy()
    off[1, 2] += np.abs(want).max() / 10
    result = judge(sample, [off])
    assert not result.survived and result.error == pytest.approx(0.1) and "output 0[1, 2]" in result.note
    with pytest.raises(ShapeError):
        judge(sample, [want.T])


def test_samples_follow_from_the_seed_and_fit_every_type() -> None:
    program = rmsnorm().program
    one, same, other = (list(samples(program, seed)) for seed in (1, 1, 2))
    for a, b, c in zip(one[:5], same, other, strict=False):
        assert a.name == b.name and (a.inputs["X"] == b.inputs["X"]).all() and (a.inputs["X"] != c.inputs["X"]).any()
        assert all((x.astype(np.float16) == x).all() for x in a.inputs.values())
    assert {sample.name for sample in one} <= set(sample_names(program))
    with pytest.raises(OptionError, match="no hard inputs are named 'soft'"):
        samples(program, names=("soft",))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_keeps_what_the_type_holds(dtype: DType) -> None:
    values = np.array([1.0, -0.0, np.inf, np.nan, 2.0**-10, 65504.0, 1.0000001, 3e38])
    once = rounded(values, dtype)
    np.testing.assert_array_equal(rounded(once, dtype), once)
    assert once[0] == 1 and np.isinf(once[2]) and np.isnan(once[3]) and once[4] == 2.0**-10
    assert np.isinf(once[7]) == (dtype is DType.F16)


def test_denormals_and_zero_rows_are_what_they_say() -> None:
    program = rmsnorm(8, 8, 8).program
    found = {name: next(iter(samples(program, names=(name,))), None) for name in ("denormals", "zero rows")}
    assert found["denormals"] is None  # the program divides by the root of an underflow
    zero = found["zero rows"]
    assert zero is not None and 0 < zero.reference.asked < sum(out.size for out in zero.reference.outputs)


def test_at_the_end_of_the_range_a_permitted_error_may_overflow() -> None:
    largest = float(np.finfo(np.float16).max)
    want = right(np.array([largest, -largest, 1.0]))
    assert compare([np.array([np.inf, -largest, 1.0])], want).ok
    assert not compare([np.array([-np.inf, -largest, 1.0])], want).ok
    assert not compare([np.array([np.nan, -largest, 1.0])], want).ok
    assert not compare([np.array([largest, -largest, np.inf])], want).ok
    beyond = right(np.array([largest * 1.0001, largest]))
    assert compare([np.array([largest * 0.9999, largest])], beyond).ok
    assert not compare([np.array([largest * 0.9, largest])], beyond).ok


@pytest.mark.parametrize(("right", "wrong"), [
    ("where(X > Y, X, -inf)", "X"),
    ("where(X > Y, X, -inf)", "where(X > Y, X, -60000)"),
    ("where(X > Y, X, -inf)", "where(X > Y, X, inf)"),
    ("where(X @ Y.T > 0, 1, inf)", "where(X @ Y.T > 0, 1, 0 * X @ Y.T)"),
    ("log_softmax(where(X > 0, X, -inf))", "log_softmax(where(X > 0, X, -100))"),
])  # fmt: skip
def test_infinities_that_a_mask_puts_in_are_values(right: str, wrong: str) -> None:
    """Nothing was asked of them, and any number was right."""
    head = "X: f16[16, 32]\nY: f16[16, 32]\nZ = 0 * sum(X + Y)\nreturn Z + "
    program, other = (parse(head + body).graph for body in (right, wrong))
    inputs = dict(zip("XY", rounded(np.random.default_rng(0).standard_normal((2, 16, 32)), DType.F16), strict=True))
    wanted = reference(program, inputs)
    assert wanted.asked == sum(want.size for want in wanted.outputs)
    assert compare(as_written(program, inputs), wanted).ok and not compare(as_written(other, inputs), wanted).ok
    assert not compare([np.where(np.isinf(want), np.nan, want) for want in wanted.outputs], wanted).ok


def test_infinities_that_rounding_decides_about_or_makes_are_none() -> None:
    program = parse("X: f16[4, 3]\nW: f16[3, 1]\nreturn where(X @ W > 0, 1, inf), exp(300 * X)").graph
    x = np.array([[1, -1, 2.0**-24], [1, -1, -(2.0**-24)], [-1, -1, 0], [1, 1, 0]])
    inputs = {"X": x, "W": np.array([[3.0], [3], [1]])}
    assert np.isnan(reference(program, inputs).deviations[0])[:, 0].tolist() == [True, True, False, False]
    wide = reference(program, {**inputs, "X": 3 * x})  # beyond f64, too
    assert np.isinf(wide.outputs[1]).any() and np.isnan(wide.deviations[1])[x == 1].all() and not wide.kinds
