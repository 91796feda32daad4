"""Numbers of one field, one by one: they are what the field interpreter says, and what no field changes stays."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_nb.interp import numbers
from mirage_nb.interp.field import FieldInstance, evaluate, random_inputs
from mirage_nb.interp.nodes import Index
from mirage_nb.interp.numbers import MINUS, OPEN, PLUS, UNDEFINED, ZERO, Hole, fmpq, folded, over
from mirage_nb.interp.residues import Field
from mirage_nb.interp.slices import Slice
from mirage_nb.lang import parse

HEAD = "X: f32[2, 4]\nY: f32[2, 4]\nreturn "
LAX = (
    "X * Y - X / 3", "X / sqrt(mean(X * X, axis=1, keepdims=True) + 0.25)", "silu(X) * Y",
    "sigmoid(X + Y)", "X @ transpose(Y)", "concat(X[:, 1:], Y[:, :2], axis=1) ** 2", "exp(X - Y) / exp(2 * X)",
    "(X * X) ** 1.5", "X[:, ::-1] - Y",
)  # fmt: skip


def field(seed: int = 3, bias: int = 4) -> Field:
    return Field.of(FieldInstance.draw(seed), exponents=True, bias=bias)


@pytest.mark.parametrize("text", LAX)
def test_residues_are_those_of_the_field_interpreter(text: str) -> None:
    graph = parse(HEAD + text).graph
    instance = FieldInstance.draw(11)
    inputs = dict(zip("XY", random_inputs(graph, instance), strict=True))
    system = field(11)

    def draw(name: str, at: Index) -> NDArray[np.object_]:
        p, q = inputs[name].p, inputs[name].q
        assert p is not None and q is not None
        return system.listed(p.reshape(-1)[at], q.reshape(-1)[at])

    (expected,) = evaluate(graph, inputs, instance)
    (found,) = Slice(graph, [np.arange(graph.output_types[0].elements)]).moment(draw, system).outputs
    assert expected.p is not None
    pairs = zip(found, expected.p.reshape(-1).tolist(), expected.defined.reshape(-1).tolist(), strict=True)
    assert all(x[0] == p if there else x is OPEN for x, p, there in pairs)


def test_sums_and_products_of_rows_are_those_of_their_elements_one_by_one() -> None:
    system, rng = field(), np.random.default_rng(0)
    residues = list(system.point("X", np.arange(8)))
    kinds = [*residues, (residues[0][0], None), fmpq(0), fmpq(2, 3), PLUS, OPEN, UNDEFINED]
    for within in (8, 9, 11, 12, 14):  # residues alone, and with more and more of the others
        x, y = (np.array([None] * 150, object) for _ in range(2))
        x[:], y[:] = ([kinds[i] for i in rng.integers(within, size=150)] for _ in range(2))
        x, y = x.reshape(50, 3), y.reshape(50, 3)
        assert list(system.folded(system.add, x)) == list(folded(system.add, x))
        assert list(system.product(x, y)) == list(folded(system.add, over(system.multiply, x, y)))


def test_a_softmax_is_one_whatever_stands_for_its_maximum() -> None:
    safe, plain = (
        Slice(parse(HEAD + text).graph, [np.arange(8)])
        for text in ("softmax(X) * Y", "exp(X) / sum(exp(X), axis=1, keepdims=True) * Y")
    )
    system = field()
    assert np.array_equal(*(one.moment(system.point, system).outputs[0] for one in (safe, plain)))


def test_conditions_hold_as_often_as_they_are_asked_to() -> None:
    chosen = Slice(parse(HEAD + "where(X >= 1e30, Y, 0)").graph, [np.arange(8)])
    counts = []
    for bias in (0, 4, 8):
        system = field(5, bias)
        counts.append(sum(x is not ZERO and x != 0 for x in chosen.moment(system.point, system).outputs[0]))
    assert counts[0] == 0 < counts[1] < counts[2] == 8


def test_what_no_field_changes() -> None:
    system = field()
    (x,) = system.point("X", np.array([0]))
    add, times = system.add, system.multiply
    assert add(MINUS, -MINUS) is UNDEFINED and times(ZERO, MINUS) is UNDEFINED
    assert add(x, MINUS) == MINUS and times(x, MINUS) is OPEN and times(fmpq(2), MINUS) == MINUS
    assert system.scalar("exp")(MINUS) == 0 and system.scalar("div")(x, ZERO) is UNDEFINED
    assert system.scalar("maximum")(x, MINUS) == x and isinstance(system.scalar("sqrt")(fmpq(-1)), Hole)
    assert system.scalar("step")(fmpq(-1)) == 0 and system.scalar("floor")(fmpq(7, 2)) == 3


def test_the_same_functions_are_known_as_for_the_reals() -> None:
    system = field()
    for name in numbers.SCALARS:
        assert system.scalar(name) is not None
    for kind in numbers.ELEMENTWISE:
        assert system.elementwise(kind, None) is not None
