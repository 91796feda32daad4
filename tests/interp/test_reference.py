"""The float64 reference against a slow oracle, plain NumPy, and its own errors."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from mirage_nb.errors import GraphError, ShapeError
from mirage_nb.interp import arrays, field, reference
from mirage_nb.interp.run import COMPOSED, STRUCTURE
from mirage_nb.ir import (
    OPS,
    AccumKind,
    ClampAttrs,
    DimAttrs,
    Op,
    OpKind,
    PowAttrs,
    RepeatAttrs,
)
from tests.interp import naive
from tests.mugraphs import Case, Kernel, cases, gqa, rmsnorm
from tests.shares import examples
from tests.strategies import arrays_for, mugraphs, programs


@pytest.mark.parametrize("table", [reference.TABLE, field.TABLE], ids=["reference", "field"])
def test_every_operator_has_one_row(table: dict[OpKind, object]) -> None:
    assert set(table) | STRUCTURE | COMPOSED == set(OPS)
    assert not set(table) & (STRUCTURE | COMPOSED)


@given(mugraphs())
@examples(150)
def test_blocks_and_iterations_as_the_slow_oracle_runs_them(graph: object) -> None:
    inputs = arrays_for(graph, 1)
    with np.errstate(all="ignore"):
        expected = naive.evaluate(graph, inputs)
    for want, got in zip(expected, reference.evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@given(mugraphs(overhang=True))
@examples(150)
def test_beyond_the_end_reads_are_zero_and_writes_are_dropped(graph: object) -> None:
    inputs = arrays_for(graph, 1)
    with np.errstate(all="ignore"):
        expected = naive.evaluate(graph, inputs)
    for want, got in zip(expected, reference.evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_a_split_that_pads_leaves_further_dimensions_alone() -> None:
    split = arrays.Split((0,), 1, (2,), 2, (2, 3))
    array = np.arange(3 * 5 * 4.0).reshape(3, 5, 4)
    padded = np.zeros((4, 6, 4))
    padded[:3, :5] = array
    np.testing.assert_array_equal(split(array), padded.reshape(2, 2, 2, 3, 4).transpose(0, 2, 1, 3, 4))


@given(programs() | mugraphs() | mugraphs(overhang=True))
@examples(100)
def test_outputs_have_the_types_of_the_graph(graph: object) -> None:
    outputs = reference.evaluate(graph, arrays_for(graph, 2))
    assert [o.shape for o in outputs] == [t.shape for t in graph.output_types]
    assert all(o.dtype == np.float64 for o in outputs)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_hand_built_mugraphs_equal_their_programs(case: Case) -> None:
    inputs = arrays_for(case.program, 3)
    for want, got in zip(
        reference.evaluate(case.program, inputs), reference.evaluate(case.candidate, inputs), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-11)
    with np.errstate(all="ignore"):
        slow = naive.evaluate(case.candidate, inputs)
    np.testing.assert_allclose(reference.evaluate(case.candidate, inputs)[0], slow[0], rtol=1e-11)


def test_rmsnorm_is_what_numpy_says() -> None:
    inputs = arrays_for(rmsnorm().program, 4)
    x, w = inputs["X"], inputs["W"]
    expected = (x / np.sqrt((x * x).mean(-1, keepdims=True))) @ w
    np.testing.assert_allclose(reference.evaluate(rmsnorm().candidate, inputs)[0], expected, rtol=1e-12)


UNARY = {
    OpKind.EXP: np.exp,
    OpKind.SQR: lambda x: x * x,
    OpKind.SQRT: np.sqrt,
    OpKind.SILU: lambda x: x / (1 + np.exp(-x)),
    OpKind.SIGMOID: lambda x: 1 / (1 + np.exp(-x)),
    OpKind.RELU: lambda x: np.where(x > 0, x, 0),
}


@pytest.mark.parametrize("kind", UNARY, ids=lambda kind: kind.value)
def test_unary_operators(kind: OpKind) -> None:
    k = Kernel(X=(3, 4))
    x = np.linspace(0.1, 3, 12).reshape(3, 4) - (0 if kind is OpKind.SQRT else 1.5)
    np.testing.assert_allclose(reference.evaluate(k.returning(k.op(kind, 0)), [x])[0], UNARY[kind](x))


def test_gelu_clamp_pow_repeat_concat() -> None:
    k = Kernel(X=(2,))
    outs = (
        k.op(OpKind.GELU, 0),
        k.op(OpKind.CLAMP, 0, attrs=ClampAttrs(Fraction(-1), None)),
        k.op(OpKind.POW, 0, attrs=PowAttrs(Fraction(3))),
        k.op(OpKind.REPEAT, 0, attrs=RepeatAttrs(0, 2)),
        k.op(OpKind.CONCAT, 0, 0, attrs=DimAttrs(0)),
    )
    gelu, clamp, power, repeat, concat = reference.evaluate(k.returning(*outs), [np.array([-2.0, 1.0])])
    np.testing.assert_allclose(gelu, [-0.04550026389635842, 0.8413447460685429])
    assert clamp.tolist() == [-1, 1]
    assert power.tolist() == [-8, 1]
    assert repeat.tolist() == concat.tolist() == [-2, 1, -2, 1]


def test_rescaled_sum_combines_partial_sums() -> None:
    k = Kernel(X=(3, 2), M=(3, 1))
    x, m = np.arange(6.0).reshape(3, 2), np.array([[700.0], [1.0], [701.0]])
    got = reference.evaluate(k.returning(k.op(OpKind.RESCALED_SUM, 0, 1, attrs=DimAttrs(0))), [x, m])[0]
    np.testing.assert_allclose(got, (x * np.exp(m - 701)).sum(0, keepdims=True))


def test_rescale_accumulator_survives_large_maxima() -> None:
    k = Kernel(X=(4, 2), M=(4, 1))
    b = k.block((0, 1), (1,), 4)
    b.save(b.accum(b.read(0, (None,), 0), b.read(1, (None,), 0), kind=AccumKind.RESCALE), (None,))
    graph = k.returning(k.launch((0, 1), b))
    x, m = np.ones((4, 2)), np.array([[900.0], [-900.0], [901.0], [900.0]])
    np.testing.assert_allclose(reference.evaluate(graph, [x, m])[0], np.full((1, 2), 1 + 2 * np.exp(-1.0)))


def test_a_grid_splits_before_the_loop_and_x_is_outermost() -> None:
    k = Kernel(X=(12,))
    b = k.block((0,), (2, 3), 2)
    b.save(b.accum(b.read(0, (0, 0), 0)), (0, 0))
    graph = k.returning(k.launch((0,), b))
    x = np.arange(12.0)
    assert reference.evaluate(graph, [x])[0].tolist() == [1, 5, 9, 13, 17, 21]


def test_partial_sums_leave_through_a_new_dimension() -> None:
    k = Kernel(X=(2, 8))
    b = k.block((0,), (4,))
    b.save(b.sum(b.read(0, (1,)), 1), (1,))
    graph = k.returning(k.launch((0,), b))
    x = np.arange(16.0).reshape(2, 8)
    assert reference.evaluate(graph, [x])[0].tolist() == x.reshape(2, 4, 2).sum(-1).tolist()


def test_place_counts_writes() -> None:
    with pytest.raises(GraphError, match="exactly once"):
        arrays.Place((None,), (2,))(np.zeros((2, 3)))


def test_hold_refuses_what_changes() -> None:
    k = Kernel(X=(4,))
    b = k.block((0,), (1,), 2)
    b.save(b.accum(b.read(0, (None,), 0), kind=AccumKind.HOLD), (None,))
    with pytest.raises(GraphError, match="hold"):
        reference.evaluate(k.returning(k.launch((0,), b)), [np.arange(4.0)])


def test_a_loop_value_read_after_the_loop_is_refused() -> None:
    k = Kernel(X=(4,))
    b = k.block((0,), (1,), 2)
    x = b.read(0, (None,), 0)
    b.save(b.op(OpKind.ADD, b.accum(x), x), (None,))
    with pytest.raises(GraphError, match="loop body"):
        reference.evaluate(k.returning(k.launch((0,), b)), [np.arange(4.0)])


def test_precision_is_a_choice() -> None:
    program = gqa().program
    inputs = {name: 30 * a for name, a in arrays_for(program, 5).items()}
    assert np.isfinite(reference.evaluate(program, {n: a / 10 for n, a in inputs.items()})[0]).all()
    assert not np.isfinite(reference.evaluate(program, inputs, np.float32)[0]).all()


@given(programs() | mugraphs())
@examples(50)
def test_every_operator_keeps_the_precision(graph: object) -> None:
    assert all(out.dtype == np.float32 for out in reference.evaluate(graph, arrays_for(graph, 8), np.float32))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"X": np.zeros((2, 8))}, "no array for input W"),
        ({"X": np.zeros((2, 8)), "W": np.zeros((8, 8)), "Y": np.zeros(1)}, "no input Y"),
        ({"X": np.zeros((2, 8)), "W": np.zeros((8, 9))}, r"W has shape \[8, 9\], not \[8, 8\]"),
        ([np.zeros((2, 8))], "1 arrays for 2 inputs"),
    ],
)
def test_wrong_inputs_are_named(inputs: object, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        reference.evaluate(rmsnorm().program, inputs)


def test_dead_operator_does_not_disturb() -> None:
    k = Kernel(X=(2, 2))
    first = k.op(OpKind.EXP, 0)
    k.graph = k.graph.append(Op(OpKind.SQRT, (0,)))
    assert reference.evaluate(k.returning(first), [np.zeros((2, 2))])[0].tolist() == [[1, 1], [1, 1]]
