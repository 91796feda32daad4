"""The floating-point gate: what it lets through, what it stops, and hard inputs that tell safe from unsafe."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.errors import ShapeError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.verify.float_gate import DRAWS, TOLERANCES, compare, hard_inputs
from tests.mugraphs import attention_safe, gqa, rmsnorm

RNG = np.random.default_rng(0)
WANT = RNG.normal(size=(4, 8))


@pytest.mark.parametrize(("dtype", "held"), [(DType.F16, np.float16), (DType.F32, np.float32), (DType.F64, float)])
def test_rounding_passes(dtype: DType, held: type) -> None:
    report = compare([WANT.astype(held)], [WANT], dtype)
    assert report.ok and report.relative_error <= TOLERANCES[dtype] and report.note == ""


def test_an_error_is_named() -> None:
    got = WANT.copy()
    got[2, 3] += 1.0
    report = compare([WANT, got], [WANT, WANT], DType.F16)
    assert not report.ok and "output 1[2, 3]" in report.note
    assert report.relative_error == pytest.approx(1 / np.abs(WANT).max())
    assert compare([got], [WANT], DType.F16, tolerance=1.0).ok


def test_poison_is_never_right() -> None:
    got = WANT.copy()
    got[0, 1] = np.nan
    report = compare([got], [WANT], DType.F16)
    assert not report.ok and report.relative_error == np.inf and "not written" in report.note
    infinite = np.where(np.isnan(got), np.inf, got)
    assert "infinite" in compare([infinite], [WANT], DType.F32).note


def test_what_the_type_cannot_hold_has_to_overflow() -> None:
    want = np.array([1.0, 1e6, np.nan])
    assert compare([np.array([1.0, np.inf, np.nan])], [want], DType.F16).ok
    assert not compare([np.array([1.0, 7.0, np.nan])], [want], DType.F16).ok
    assert compare([np.array([1.0, 1e6, np.nan])], [want], DType.F32).ok
    assert compare([np.array([np.inf])], [np.array([1e6])], DType.F16).ok


def test_zero_references_and_empty_lists() -> None:
    assert compare([np.zeros(3)], [np.zeros(3)], DType.F16).ok
    assert not compare([np.ones(3)], [np.zeros(3)], DType.F16).ok
    assert compare([], [], DType.F16).ok


def test_shapes_have_to_fit() -> None:
    with pytest.raises(ShapeError, match=r"output 0 is \[4, 8\], not \[8, 4\]"):
        compare([WANT], [WANT.T], DType.F16)
    with pytest.raises(ShapeError, match="1 outputs for 2"):
        compare([WANT], [WANT, WANT], DType.F16)


def survives(program: KernelGraph, candidate: KernelGraph) -> dict[str, bool]:
    with np.errstate(all="ignore"):
        return {
            hard.name: compare(
                evaluate(candidate, hard.inputs, np.float32), evaluate(program, hard.inputs), DType.F16
            ).ok
            for hard in hard_inputs(program)
        }


def test_hard_inputs_tell_an_unsafe_softmax() -> None:
    """Algebraically the two are equal, and field trials accept both; float32 does not."""
    safe = attention_safe(d=16, s=32)
    assert all(survives(safe.program, safe.candidate).values())
    unsafe = unsafe_attention(16, 32)
    assert not survives(safe.program, unsafe)["large logits"]


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
    names = {hard.name for hard in hard_inputs(gqa(d=16, s=32).program)}
    assert "normal" in names and "large logits" not in names
    assert {hard.name for hard in hard_inputs(rmsnorm().program)} == set(DRAWS)


def test_hard_inputs_follow_from_the_seed_and_fit_every_type() -> None:
    program = rmsnorm().program
    one, same, other = (hard_inputs(program, seed) for seed in (1, 1, 2))
    for a, b, c in zip(one, same, other, strict=True):
        assert (a.inputs["X"] == b.inputs["X"]).all() and (a.inputs["X"] != c.inputs["X"]).any()
        assert all((x.astype(np.float16) == x).all() for x in a.inputs.values())
