"""Exact elements of outputs: they are what the reference says, and say what they do not know."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
from flint import arb
from hypothesis import given

from mirage_nb.interp import nodes, numbers, reference, run, slices
from mirage_nb.interp.numbers import Hole, fmpq
from mirage_nb.ir import OPS, KernelGraph, OpKind, Trait, formula
from mirage_nb.lang import parse
from mirage_nb.verify.reals.exact import look
from mirage_nb.verify.verdict import Outcome
from tests.shares import examples
from tests.strategies import arrays_for, mugraphs, programs


def drawn(inputs: Mapping[str, np.ndarray]) -> slices.Draw:
    def draw(name: str, at: nodes.Index) -> np.ndarray:
        found = np.empty(len(at), object)
        found[:] = [fmpq(*x.as_integer_ratio()) for x in inputs[name].reshape(-1)[at].tolist()]
        return found

    return draw


def floats(x: object) -> float:
    return float(x.p) / float(x.q) if isinstance(x, fmpq) else float(x.mid())


@given(mugraphs() | mugraphs(overhang=True) | programs())
@examples(60)
def test_elements_are_those_of_the_reference(graph: KernelGraph) -> None:
    inputs = {name: np.round(64 * array) / 64 for name, array in arrays_for(graph, 3).items()}
    wanted = [np.arange(t.elements) for t in graph.output_types]
    try:
        found = slices.Slice(graph, wanted, 50_000)
    except nodes.TooMuch:
        return
    with numbers.precision(128):
        values = found.compute(drawn(inputs))
    for array, exact in zip(reference.evaluate(graph, inputs), values, strict=True):
        for x, y in zip(array.reshape(-1), exact, strict=True):
            if not isinstance(y, Hole) and np.isfinite(x):
                assert abs(x - floats(y)) <= 1e-6 * max(1, abs(x))


def test_every_operator_is_known() -> None:
    known = {*numbers.ELEMENTWISE, *nodes.RULES, *run.COMPOSED, OpKind.POW, OpKind.CLAMP, OpKind.APPLY}
    known.add(OpKind.WHERE)
    assert known == {kind for kind, spec in OPS.items() if Trait.STRUCTURAL not in spec.traits}
    assert set(numbers.SCALARS) | {"pow", "log1p"} == formula.PRIMITIVES


def test_a_few_elements_of_a_large_graph_take_what_they_depend_on() -> None:
    graph = parse("X: f16[2048, 64]\nW: f16[64, 4096]\nreturn X @ W").graph
    one = slices.Slice(graph, [np.array([0, 4096 * 2047 + 4095])])
    assert sum(len(taken.at) for taken in one.taken) == 4 * 64 + 2
    with pytest.raises(nodes.TooMuch):
        slices.Slice(graph, [np.arange(4096 * 2048)])


def hole(text: str, x: float, bits: int = 128, wary: bool = True) -> object:
    graph = parse(f"X: f32[1]\nY = {text}\nreturn Y").graph
    with numbers.precision(bits, wary=wary):
        ((found,),) = slices.Slice(graph, [np.array([0])]).compute(drawn({"X": np.array([x])}))
    return found


@pytest.mark.parametrize(
    ("text", "x"),
    [
        ("1 / (X - X)", 1.5), ("X / (sqrt(X) * sqrt(X) - X)", 4.0), ("sqrt(X)", -1.0), ("log(X)", 0.0),
        ("relu(X) / relu(X)", -3.0), ("X ** -1", 0.0), ("X ** 0.5", -2.0), ("X ** 0.3", -2.0), ("log1p(X)", -1.0),
    ],
)  # fmt: skip
def test_what_has_no_value(text: str, x: float) -> None:
    assert hole(text, x) is Hole.UNDEFINED


def test_what_cannot_be_told() -> None:
    """1 / 3 in balls has no exact zero to divide by; a term of 2^-700 is seen with more bits."""
    assert hole("1 / (sqrt(X) * sqrt(X) - X)", 2.0) is Hole.OPEN
    small = "exp(X * 480) + exp(-X) * exp(X * -480)"
    assert hole(small, 1.0) is Hole.OPEN
    assert isinstance(hole(small, 1.0, wary=False), arb) and isinstance(hole(small, 1.0, 2048), arb)


NUMBERS = (
    numbers.PLUS, numbers.MINUS, arb(2), arb(-3), arb(0), arb("1 +/- 2"), arb("0 +/- 1e-5"), fmpq(2), fmpq(-1, 3),
    fmpq(0), fmpq(1, 2**numbers.LONG_BITS - 1), numbers.OPEN, numbers.UNDEFINED,
)  # fmt: skip


@pytest.mark.parametrize("operation", numbers.PLAIN)
@pytest.mark.parametrize("wary", [False, True])
def test_elements_at_once_are_what_each_is_alone(operation: numbers.Operation, wary: bool) -> None:
    with numbers.precision(64, wary=wary):
        for given_ in itertools.product(NUMBERS, repeat=numbers.PLAIN[operation].nin):
            (found,), alone = numbers.over(operation, *(np.array([x], object) for x in given_)), operation(*given_)
            assert (type(found), str(found)) == (type(alone), str(alone)), given_


def test_a_long_sum_is_given_up_soon() -> None:
    class Watched(list[numbers.Number]):
        def __getitem__(self, part: slice) -> list[numbers.Number]:  # type: ignore[override]  # slices alone
            self.read = part.stop
            return super().__getitem__(part)

    row = Watched(fmpq(1, 2**900 + number) for number in range(1000))
    assert numbers._summed(row) is None and row.read < 100
    assert numbers._summed([fmpq(1, 3)] * 100) == fmpq(100, 3)


def test_numbers_stay_exact() -> None:
    assert hole("sqrt(X * X) / 3 + abs(X) ** 3 - maximum(X, 0)", -1.5) == fmpq(31, 8)
    assert hole("1e30 + X - 1e30", 0.25) == fmpq(1, 4)


@pytest.mark.parametrize("exponent", [1, 2, 3, 8, 2**17])
def test_a_ball_around_zero_has_whole_powers(exponent: int) -> None:
    """Their own powers go by the logarithm: a muGraph with one would differ from itself."""
    with numbers.precision(128):
        for ball in (arb(0, "0.5"), arb("0.25", "0.5"), arb(0)):
            found = numbers.power(Fraction(exponent), ball)
            for x in (ball.lower(), ball.mid(), ball.upper()):
                assert found.is_finite() and found.overlaps(x**exponent)
            assert exponent % 2 or found >= 0 or found.overlaps(arb(0))
        graph = parse("X: f16[4]\nY = gelu(X)\nreturn pow(Y, 2)").graph
        assert look(graph, graph, 1).outcome is Outcome.AGREE
