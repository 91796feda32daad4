"""Verification end to end: right graphs pass, wrong ones are refuted, and verdicts say what was checked."""

from __future__ import annotations

import functools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from mirage_nb.errors import GraphError, NamedSizeError, OptionError, VerificationError
from mirage_nb.interp import field, reference
from mirage_nb.interp.primes import PRIMES
from mirage_nb.ir import (
    AccumKind,
    ClampAttrs,
    DimAttrs,
    DType,
    Input,
    KernelGraph,
    OpKind,
    PowAttrs,
    ReshapeAttrs,
    Size,
    TensorType,
    TransposeAttrs,
)
from mirage_nb.lang import parse
from mirage_nb.verify.fields.indices import compared
from mirage_nb.verify.fields.lax import inspect
from mirage_nb.verify.trials import MAX_TRIALS, draw_trial, trial_seed, verify
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.mugraphs import (
    Case,
    Kernel,
    attention_safe,
    cases,
    flash_decoding,
    gated_mlp,
    gqa,
    lora,
    qknorm,
    qknorm_wrong,
    rms,
    rmsnorm,
    safe_program,
    safe_tile,
)
from tests.shares import examples
from tests.strategies import arrays_for, mugraphs, program_pairs

PRIME = PRIMES.draw(np.random.default_rng(0))[0]


@pytest.mark.parametrize("final", [False, True], ids=["search", "final"])
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_right_graphs_are_accepted(case: Case, final: bool) -> None:
    verdict = verify(case.program, case.candidate, final=final, seed=3)
    assert verdict.kind is VerdictKind.FIELD
    assert verdict.outputs == (0,)
    assert verdict.sizes == {i.name: i.type.shape for i in case.program.inputs}
    assert all(PRIMES.low <= p < PRIMES.high and p == 2 * q + 1 for p, q in verdict.primes)
    assert len(verdict.primes) == verdict.trials >= 4


@pytest.mark.parametrize(
    "case",
    [
        rmsnorm(16, 64, 96, 4, 8),
        qknorm(2, 16, 8, 64, (2, 4), 8),
        flash_decoding(2, 8, 8, 64, 4, 4),
        gated_mlp(8, 64, 32, 4, 8),
    ],
    ids=lambda case: case.name,
)
def test_right_graphs_are_accepted_at_larger_sizes(case: Case) -> None:
    assert verify(case.program, case.candidate).accepted


def ramp(graph: KernelGraph) -> dict[str, np.ndarray]:
    return {
        i.name: 0.01 * np.arange(i.type.elements).reshape(i.type.shape) + 0.1 * n for n, i in enumerate(graph.inputs)
    }


def test_the_graph_that_fooled_a_verifier_is_refuted() -> None:
    wrong = qknorm_wrong()
    inputs = ramp(wrong.program)
    left, right = (reference.evaluate(g, inputs)[0] for g in (wrong.program, wrong.candidate))
    np.testing.assert_allclose(left, right, rtol=1e-9)  # a ramp does not tell them apart
    for seed in range(20):
        verdict = verify(wrong.program, wrong.candidate, seed=seed)
        assert verdict.kind is VerdictKind.REFUTED and verdict.trials == 1


def test_a_witness_can_be_replayed() -> None:
    wrong = qknorm_wrong()
    witness = verify(wrong.program, wrong.candidate, seed=9).witness
    assert witness is not None
    trial = draw_trial(wrong.program, inspect(wrong.program), witness.seed)
    found = field.evaluate(wrong.candidate, trial.inputs, trial.instance)[witness.output]
    assert str(trial.expected[witness.output].p[witness.index]) == witness.expected
    assert str(found.p[witness.index]) == witness.found


@given(mugraphs())
@examples(12)  # a second each
def test_every_graph_equals_itself(graph: KernelGraph) -> None:
    verdict = verify(graph, graph)
    assert verdict.kind is not VerdictKind.REFUTED


@given(program_pairs())
@examples(200)
def test_what_the_reals_tell_apart_is_never_accepted(pair: tuple[KernelGraph, KernelGraph]) -> None:
    a, b = pair
    inputs = {name: np.abs(array) + 0.5 for name, array in arrays_for(a, 5).items()}
    (left,), (right,) = reference.evaluate(a, inputs), reference.evaluate(b, inputs)
    if left.shape == right.shape and not np.allclose(left, right, rtol=1e-6, equal_nan=True):
        assert not verify(a, b).accepted


def two_outputs(order: tuple[int, int], repeat: bool = False) -> KernelGraph:
    k = Kernel(X=(4, 4), Y=(4, 4))
    made = (k.op(OpKind.MATMUL, 0, 1), k.op(OpKind.ADD, 0, 1))
    return k.returning(made[order[0]], made[order[0] if repeat else order[1]])


def test_outputs_are_matched_in_any_order_if_that_is_allowed() -> None:
    turned = verify(two_outputs((0, 1)), two_outputs((1, 0)), permuted=True)
    assert turned.outputs == (1, 0) and "another order, as allowed" in turned.note
    assert verify(two_outputs((0, 1)), two_outputs((1, 0))).kind is VerdictKind.REFUTED
    assert verify(two_outputs((0, 1)), two_outputs((0, 1))).outputs == (0, 1)
    k = Kernel(X=(4, 4), Y=(4, 4))
    product = k.op(OpKind.MATMUL, 0, 1)
    doubled = k.graph.returning((product, product))
    assert verify(doubled, doubled).accepted
    verdict = verify(two_outputs((0, 1)), doubled)
    assert verdict.kind is VerdictKind.REFUTED
    assert verdict.witness is not None and verdict.witness.output == 1


def test_other_output_types_are_refuted() -> None:
    k = Kernel(X=(4, 2))
    turned = k.op(OpKind.TRANSPOSE, 0, attrs=TransposeAttrs((1, 0)))
    verdict = verify(k.returning(k.op(OpKind.SQR, 0)), k.returning(k.op(OpKind.SQR, turned)))
    assert verdict.kind is VerdictKind.REFUTED and "types" in verdict.note
    one, two = k.returning(0), k.graph.returning((0, 0))
    assert verify(one, two).kind is VerdictKind.REFUTED


def pair(build_a: object, build_b: object, **shapes: tuple[int, ...]) -> Verdict:
    graphs = []
    for build in (build_a, build_b):
        k = Kernel(**shapes)
        graphs.append(k.returning(build(k)))
    return verify(*graphs)


def test_a_maximum_is_any_shift() -> None:
    """Accepted: no shift at all, and the maximum of another tensor; the float gate judges their safety."""
    safe = attention_safe()
    unsafe = Kernel(Q=(2, 4, 4), K=(2, 8, 4), V=(2, 8, 4))
    kt = unsafe.op(OpKind.TRANSPOSE, 1, attrs=TransposeAttrs((0, 2, 1)))
    scores = unsafe.op(OpKind.MUL, unsafe.op(OpKind.MATMUL, 0, kt), unsafe.const(Fraction(4**-0.5), "4**-0.5"))
    e = unsafe.op(OpKind.EXP, scores)
    o = unsafe.op(OpKind.MATMUL, unsafe.op(OpKind.DIV, e, unsafe.sum(e, 2)), 2)
    verdict = verify(safe.program, unsafe.returning(o))
    assert verdict.accepted and "float gate" in verdict.note
    other = safe_program(2, 4, 4, 8)
    shifted = other.op(OpKind.EXP, other.op(OpKind.SUB, 6, other.max(0, 2)))
    o = other.op(OpKind.MATMUL, other.op(OpKind.DIV, shifted, other.sum(shifted, 2)), 2)
    assert verify(safe.program, other.returning(o)).accepted


def test_two_shifts_that_do_not_cancel_are_refuted() -> None:
    """The numerator is rescaled by the running maximum, the denominator is not."""
    k = Kernel(Q=(2, 4, 4), K=(2, 8, 4), V=(2, 8, 4))
    b = k.block((0, 1, 2), (2, 2), 2)
    e, m, v = safe_tile(b, 4, b.read(0, (0, 1)), b.read(1, (0, None), 1), b.read(2, (0, None), 1))
    top = b.accum(b.op(OpKind.MATMUL, e, v), m, kind=AccumKind.RESCALE)
    b.save(b.op(OpKind.DIV, top, b.accum(b.sum(e, 2))), (0, 1))
    verdict = verify(attention_safe().program, k.returning(k.launch((0, 1, 2), b)))
    assert verdict.kind is VerdictKind.REFUTED


def test_a_maximum_over_most_of_the_row_is_another_one() -> None:
    """Numerator and denominator shifted by maxima that differ in one of 64 elements."""

    def program(k: Kernel) -> int:
        e = k.op(OpKind.EXP, k.op(OpKind.SUB, 0, k.max(0, 1)))
        return k.op(OpKind.DIV, e, k.sum(e, 1))

    def wrong(k: Kernel) -> int:
        e = k.op(OpKind.EXP, k.op(OpKind.SUB, 0, k.max(0, 1)))
        f = k.op(OpKind.EXP, k.op(OpKind.SUB, 0, k.max(k.op(OpKind.MUL, 0, 1), 1)))
        return k.op(OpKind.DIV, e, k.sum(f, 1))

    assert pair(program, wrong, X=(2, 64), M=(2, 64)).kind is VerdictKind.REFUTED
    assert pair(program, program, X=(2, 64), M=(2, 64)).accepted


def test_maxima_of_scaled_values_are_not_refuted() -> None:
    """max(2x) is 2 max(x), which the field does not see; float64 keeps it from being called wrong."""
    verdict = pair(
        lambda k: k.max(k.op(OpKind.MUL, 0, k.const(2)), 1),
        lambda k: k.op(OpKind.MUL, k.max(0, 1), k.const(2)),
        X=(2, 4),
    )
    assert verdict.kind is VerdictKind.UNDECIDED and "maxima" in verdict.note
    verdict = pair(lambda k: k.max(0, 1), lambda k: k.op(OpKind.MUL, k.max(0, 1), k.const(2)), X=(2, 4))
    assert verdict.kind is VerdictKind.REFUTED


def test_the_root_of_a_square_is_not_the_number() -> None:
    root_of_square = lambda k: k.op(OpKind.SQRT, k.op(OpKind.SQR, 0))  # noqa: E731 (three uses, one line)
    assert pair(root_of_square, lambda k: k.op(OpKind.MUL, 0, k.const(1)), X=(64,)).kind is VerdictKind.REFUTED
    assert pair(root_of_square, root_of_square, X=(64,)).accepted

    def of_positive(k: Kernel) -> int:
        return k.op(OpKind.ADD, k.op(OpKind.SQR, 0), k.const(1))

    verdict = pair(lambda k: k.op(OpKind.SQRT, k.op(OpKind.SQR, of_positive(k))), of_positive, X=(64,))
    assert verdict.kind is VerdictKind.UNDECIDED and "square roots" in verdict.note


def test_norms_behind_a_softmax() -> None:
    def program(k: Kernel) -> int:
        e = k.op(OpKind.EXP, k.op(OpKind.MATMUL, 0, 1))
        return rms(k, k.op(OpKind.MATMUL, k.op(OpKind.DIV, e, k.sum(e, 1)), 2), 1, 4)

    def other(k: Kernel) -> int:
        e = k.op(OpKind.EXP, k.op(OpKind.MATMUL, 0, 1))
        return rms(k, k.op(OpKind.DIV, k.op(OpKind.MATMUL, e, 2), k.sum(e, 1)), 1, 4)

    assert pair(program, other, Q=(16, 4), K=(4, 8), V=(8, 4)).accepted


def test_roots_that_never_exist_together() -> None:
    """Twelve roots of the same inputs: single elements are left out of trials until all were compared."""

    def program(k: Kernel, first: int = 0) -> int:
        total = k.sum(0, 0)
        parts = [k.op(OpKind.SQRT, k.op(OpKind.ADD, total, k.const(n))) for n in range(first, first + 12)]
        return functools.reduce(lambda x, y: k.op(OpKind.CONCAT, x, y, attrs=DimAttrs(0)), parts)

    verdict = pair(program, program, X=(4,))
    assert verdict.accepted and verdict.trials > 4
    assert pair(program, lambda k: program(k, 1), X=(4,)).kind is VerdictKind.REFUTED


def test_nested_norms() -> None:
    def program(k: Kernel) -> int:
        inner = k.op(OpKind.ADD, rms(k, 0, 1, 8), 1)
        return rms(k, k.op(OpKind.ADD, 1, k.op(OpKind.MUL, 2, inner)), 1, 8)

    assert pair(program, program, H=(64, 8), X=(64, 8), A=(64, 8)).accepted


def test_operators_outside_lax_are_uninterpreted_functions() -> None:
    for kind, attrs in (
        (OpKind.RELU, None),
        (OpKind.GELU, None),
        (OpKind.CLAMP, ClampAttrs(Fraction(0), None)),
        (OpKind.POW, PowAttrs(Fraction(1, 3))),
    ):

        def plain(k: Kernel, kind: OpKind = kind, attrs: object = attrs) -> int:
            return k.op(OpKind.MATMUL, k.op(kind, k.op(OpKind.ADD, 0, 1), attrs=attrs), 0)

        def swapped(k: Kernel, kind: OpKind = kind, attrs: object = attrs) -> int:
            return k.op(OpKind.MATMUL, k.op(kind, k.op(OpKind.ADD, 1, 0), attrs=attrs), 0)

        def wrong(k: Kernel, kind: OpKind = kind, attrs: object = attrs) -> int:
            return k.op(OpKind.MATMUL, k.op(kind, k.op(OpKind.SUB, 1, 0), attrs=attrs), 0)

        verdict = pair(plain, swapped, X=(4, 4), Y=(4, 4))
        assert verdict.accepted and "uninterpreted" in verdict.note and verdict.log2_bound is None
        assert pair(plain, wrong, X=(4, 4), Y=(4, 4)).kind is VerdictKind.REFUTED


def test_what_only_the_meaning_of_relu_shows_is_outside_lax() -> None:
    verdict = pair(lambda k: k.op(OpKind.RELU, k.op(OpKind.RELU, 0)), lambda k: k.op(OpKind.RELU, 0), X=(4,))
    assert verdict.kind is VerdictKind.OUTSIDE_LAX and "ReLU" in verdict.note


def test_a_second_exponential_is_outside_lax() -> None:
    twice = lambda k: k.op(OpKind.EXP, k.op(OpKind.EXP, 0))  # noqa: E731 (two uses, one line)
    verdict = pair(twice, twice, X=(4,))
    assert verdict.kind is VerdictKind.OUTSIDE_LAX and "operator 0 (EwExp) enters" in verdict.note
    assert pair(twice, lambda k: k.op(OpKind.EXP, 0), X=(4,)).kind is VerdictKind.REFUTED


def test_a_candidate_that_is_undefined_everywhere_is_refuted() -> None:
    verdict = pair(
        lambda k: k.op(OpKind.MUL, 0, 1),
        lambda k: k.op(OpKind.DIV, 0, k.op(OpKind.SUB, 1, 1)),
        X=(4,),
        Y=(4,),
    )
    assert verdict.kind is VerdictKind.REFUTED


def test_x_over_x_is_one_where_it_is_defined() -> None:
    verdict = pair(
        lambda k: k.op(OpKind.DIV, 0, 0), lambda k: k.op(OpKind.POW, 0, attrs=PowAttrs(Fraction(0))), X=(64,)
    )
    assert verdict.accepted


def test_symbols_are_unknown_numbers() -> None:
    def scaled(value: Fraction, symbol: str) -> object:
        return lambda k: k.op(OpKind.MUL, 0, k.const(value, symbol))

    half = Fraction(1, 2)
    assert pair(scaled(half, "s"), scaled(half, "s"), X=(4,)).accepted
    assert pair(scaled(half, "s"), scaled(half, "t"), X=(4,)).kind is VerdictKind.UNDECIDED
    assert pair(scaled(half, "s"), scaled(Fraction(1, 3), "s"), X=(4,)).kind is VerdictKind.REFUTED


def test_a_tiny_change_of_a_constant_is_refuted() -> None:
    scaled = [
        lambda k, value=value: k.op(OpKind.MUL, 0, k.const(value)) for value in (Fraction(1), 1 + Fraction(1, 10**18))
    ]
    verdict = pair(*scaled, X=(4,))
    assert verdict.kind is VerdictKind.REFUTED and verdict.witness is not None


@pytest.mark.parametrize("prime", [PRIME, PRIME // 2, 2**31 - 1])
def test_a_constant_that_is_zero_modulo_a_prime_does_not_fool(prime: int) -> None:
    verdict = pair(lambda k: k.op(OpKind.MUL, 0, k.const(0)), lambda k: k.op(OpKind.MUL, 0, k.const(prime)), X=(4,))
    assert verdict.kind is VerdictKind.REFUTED


def test_partial_sums_must_be_added() -> None:
    k = Kernel(X=(4, 8))
    b = k.block((0,), (2,))
    b.save(b.op(OpKind.RESHAPE, b.sum(b.read(0, (1,)), 1), attrs=ReshapeAttrs((1, 4, 1))), (0,))
    partial = k.launch((0,), b)
    half = k.block((partial,), (1,))
    half.save(half.sum(half.read(0, (None,)), 0), (None,))
    added = k.returning(k.launch((partial,), half))
    program = Kernel(X=(4, 8))
    total = program.op(OpKind.RESHAPE, program.sum(0, 1), attrs=ReshapeAttrs((1, 4, 1)))
    assert verify(program.returning(total), added).accepted


def test_verdicts_are_repeatable_and_kept() -> None:
    case = lora()
    first = verify(case.program, case.candidate, seed=5)
    assert verify(case.program, case.candidate, seed=5) is first
    other = verify(case.program, case.candidate, seed=6)
    assert other.accepted and other.primes != first.primes
    assert trial_seed(5, 0) != trial_seed(6, 0) != trial_seed(6, 1)


def test_bounds_are_claimed_where_theorems_hold() -> None:
    small = verify(lora().program, lora().candidate)
    final = verify(lora().program, lora().candidate, final=True)
    assert small.log2_bound is not None and final.log2_bound is not None
    assert max(final.log2_bound, small.log2_bound) < -64
    gated = gated_mlp()
    assert verify(gated.program, gated.candidate, final=True).log2_bound <= -64
    for case in (gqa(), attention_safe()):
        verdict = verify(case.program, case.candidate)
        assert verdict.log2_bound is None and "no error bound" in verdict.note


def test_other_inputs_are_an_error() -> None:
    a, b = Kernel(X=(2,)), Kernel(X=(3,))
    with pytest.raises(VerificationError, match=r"input X is f16\[2\] in the program and f16\[3\]"):
        verify(a.returning(0), b.returning(0))
    with pytest.raises(VerificationError, match="missing"):
        verify(a.returning(0), Kernel(X=(2,), Y=(2,)).returning(0))
    t = Input("X", TensorType((2,), DType.F32))
    with pytest.raises(VerificationError):
        verify(a.returning(0), KernelGraph.start(t).returning((0,)))


def test_inputs_may_stand_in_another_order() -> None:
    a, b = Kernel(X=(2, 2), Y=(2, 2)), Kernel(Y=(2, 2), X=(2, 2))
    a_product, b_product = a.op(OpKind.MATMUL, 0, 1), b.op(OpKind.MATMUL, 1, 0)
    assert verify(a.returning(a_product), b.returning(b_product)).accepted


def test_chains_of_roots_are_equal_as_terms() -> None:
    """Few trials have eight roots at once, and what they make is no number that fields are believed about."""
    head, eps = "X: f32[2, 4]\nW: f32[4, 4]\nH = X * 1\n", "mean(H * H, axis=1, keepdims=True) + 1e-5"
    layer, other, wrong, selects = (
        f"H = H + {line}\n"
        for line in (
            f"(H / sqrt({eps})) @ W",
            f"(H @ W) / sqrt({eps})",
            "(H @ W) / sqrt(mean(H * H, axis=1, keepdims=True) + 2e-5)",
            f"(H @ W) * sqrt({eps}) / sqrt(({eps}) * ({eps}))",
        )
    )
    program, right, *rest = (
        parse(head + layer * 7 + last + "return H * 1").graph for last in (layer, other, wrong, selects)
    )
    verdict = verify(program, right, seed=1)
    assert verdict.kind is VerdictKind.FIELD and verdict.log2_bound is None and "the square root as an" in verdict.note
    assert [verify(program, graph, seed=1).accepted for graph in rest] == [False, False]


def test_illegal_graphs_and_options_are_errors() -> None:
    case = rmsnorm()
    with pytest.raises(GraphError):
        verify(case.program, replace(case.candidate, types=case.candidate.types[:-1]))
    for bad in ({"trials": 0}, {"trials": MAX_TRIALS + 1}, {"seed": -1}):
        with pytest.raises(OptionError):
            verify(case.program, case.candidate, **bad)


def test_progress_is_told_after_every_trial() -> None:
    case, told = rmsnorm(), []
    verdict = verify(case.program, case.candidate, seed=77, progress=lambda done, wanted: told.append((done, wanted)))
    assert told == [(n + 1, 4) for n in range(verdict.trials)]


def test_functions_of_the_program_are_named_and_uninterpreted() -> None:
    def graph(body: str, text: str) -> KernelGraph:
        return parse(f"def bump(x): return {body}\nX: f16[4, 4]\nW: f16[4, 4]\nY = {text}\nreturn Y").graph

    bump = "x * tanh(x)"
    verdict = verify(graph(bump, "bump(X) @ W + X @ W"), graph(bump, "(bump(X) + X) @ W"), final=True)
    assert verdict.accepted and verdict.log2_bound is None
    assert "bump as an uninterpreted function: equal whatever function stands in its place" in verdict.note
    assert verify(graph(bump, "bump(X)"), graph("x * tanh(x) + 1", "bump(X)")).kind is VerdictKind.REFUTED
    even = verify(graph("x * x", "bump(X)"), graph("x * x", "bump(X * -1)"))
    assert even.kind is VerdictKind.OUTSIDE_LAX and not even.accepted


def test_what_does_not_fit_into_memory_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    k = Kernel(X=(2**20, 2**19))
    graph = k.returning(k.op(OpKind.SQR, 0))
    with pytest.raises(VerificationError, match=r"do not fit into memory: about 12288 GiB"):
        verify(graph, graph)

    def exhausted(*_: object) -> None:
        raise MemoryError

    case = rmsnorm()
    monkeypatch.setattr("mirage_nb.verify.trials._run", exhausted)
    with pytest.raises(VerificationError, match="do not fit into memory"):
        verify(case.program, case.candidate, seed=2**40)


def test_a_size_is_the_same_in_both_graphs_and_nothing_is_summed_along_it() -> None:
    program = parse("B: size(1, 8)\nX: f32[B, 6]\nreturn X * 2").graph
    (given,) = program.inputs
    assert verify(program, replace(program, inputs=(replace(given, dims=()),))).accepted
    for size in (None, Size("B", 1, 4), Size("B", 8, 8)):
        with pytest.raises(VerificationError, match="input X is"):
            verify(program, replace(program, inputs=(replace(given, size=size),)))
    summed = parse("X: f32[8, 6]\nreturn X * 2 + X[:1] * 0 * (sum(X * 0 + 1, axis=0, keepdims=True) - 8)").graph
    with pytest.raises(NamedSizeError):
        verify(program, replace(summed, inputs=program.inputs))


def test_inputs_that_are_only_compared_are_numbers_of_places_too() -> None:
    """Of other real numbers hardly two are equal: a diagonal would be zeros, and what it divides by, too."""
    head = "C: f32[6, 6]\nn: i64[6]\nm: i64[6]\ns = sqrt(sum(where(n[:, None] == m, C, 0), 1))\nreturn "
    lines = "C / (s[:, None] * s)", "C / s[:, None] / s", "C / (s[:, None] * s[:, None])"
    program, right, wrong = (parse(head + line).graph for line in lines)
    assert compared(program) == {"n", "m"}
    assert verify(program, right, seed=0).accepted
    assert verify(program, wrong, seed=0).kind is VerdictKind.REFUTED
