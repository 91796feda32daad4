"""Functions that are given by cases are proved equal however the cases are said, and never to others."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest

from mirage_nb.errors import MirageError
from mirage_nb.interp import evaluate
from mirage_nb.lang import parse
from mirage_nb.verify import Proof, check, prove
from mirage_nb.verify.proof.checker import equation
from mirage_nb.verify.proof.steps import Step
from mirage_nb.verify.proof.terms import Kind, Var, add, bind, entry, exp, fn, mul, neg, num, top
from tests.verify.term_values import World

HEAD = "X: f32[2, 4]\nY: f32[2, 4]\nreturn 0 * Y + "
HUBER = "where(abs(X) <= 1, X * X / 2, abs(X) - 0.5)"
SAME = {
    HUBER: (
        "where(abs(X) < 1, X * X / 2, abs(X) - 0.5)",
        "minimum(abs(X), 1) * (abs(X) - minimum(abs(X), 1) / 2)",
        "(X * X - relu(abs(X) - 1) ** 2) / 2",
        "where(abs(X) <= 1, X * X / 2, where(X > 0, X - 0.5, -X - 0.5))",
        "clamp(X, -1, 1) * (X - clamp(X, -1, 1) / 2)",
    ),
    "F.smooth_l1_loss(X, Y, reduction='none', beta=0.5)": (
        "where(abs(X - Y) < 0.5, (X - Y) ** 2, abs(X - Y) - 0.25)",
    ),
    "relu(1 - X * Y) ** 2": ("where(X * Y < 1, (1 - X * Y) ** 2, 0)", "maximum(0, 1 - X * Y) * relu(1 - X * Y)"),
    "where(X * Y >= -1, relu(1 - X * Y) ** 2, -4 * X * Y)": ("where(X * Y > -1, relu(1 - X * Y) ** 2, -4 * X * Y)",),
    "X / (1 + abs(X))": ("where(X >= 0, X / (1 + X), X / (1 - X))", "where(X > 0, X / (1 + X), X / (1 - X))"),
    "F.celu(X, 2)": ("where(X > 0, X, 2 * (exp(X / 2) - 1))", "relu(X) + minimum(0, 2 * (exp(X / 2) - 1))"),
    "where(X >= 1, 0, where(X <= 0, 0.5 - X, (1 - X) ** 2 / 2))": (
        "where(X > 1, 0, where(X < 0, 0.5 - X, (1 - X) ** 2 / 2))",
    ),
    "hardswish(X)": ("where(X <= -3, 0, where(X >= 3, X, X * (X + 3) / 6))",),
    "hardsigmoid(X)": ("where(X <= -3, 0, where(X >= 3, 1, X / 6 + 0.5))",),
    "F.softshrink(X, 0.5)": (
        "relu(X - 0.5) - relu(-X - 0.5)",
        "sign(X) * relu(abs(X) - 0.5)",
        "X - clamp(X, -0.5, 0.5)",
    ),
    "where(abs(X) <= 1, 1 - (1 - X * X) ** 3, 1)": ("where(abs(X) < 1, 1 - (1 - X * X) ** 3, 1)",),
    "where(X <= 0, 0, where(X >= 1, 1, X * X * (3 - 2 * X)))": (
        "clamp(X, 0, 1) ** 2 * (3 - 2 * clamp(X, 0, 1))",
    ),
}  # fmt: skip
"""Expressions, and others that are the same."""
APART = {
    HUBER: (
        "where(abs(X) <= 1.5, X * X / 2, abs(X) - 0.5)",
        "where(abs(X) <= 1, X * X / 2, abs(X) - 0.25)",
        "where((abs(X) <= 1) & (X != 0.5), X * X / 2, abs(X) - 0.5)",
    ),
    "where(abs(X) < 1, X * X, 2)": ("where(abs(X) <= 1, X * X, 2)", "where((abs(X) < 1) | (X == 1), X * X, 2)"),
    "relu(1 - X) ** 2": ("where(X < 1.001, (1 - X) ** 2, 0)", "where(X != 2, relu(1 - X) ** 2, 1)"),
    "X / (1 + abs(X))": ("where(X >= 0, X / (1 + X), X / (1 + X))", "where(X >= -1, X / (1 + X), X / (1 - X))"),
    "F.celu(X, 2)": ("where(X > 0, X, 2 * (exp(X) - 1))", "where(X != 0, F.celu(X, 2), 1)"),
}
"""Expressions, and others that are not."""


def pairs(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(text, other) for text, others in table.items() for other in others]


@pytest.mark.parametrize(("text", "other"), [*pairs(SAME), *(pair[::-1] for pair in pairs(SAME))])
def test_what_is_the_same_in_every_case_is_proved(text: str, other: str) -> None:
    program, candidate = (parse(HEAD + one).graph for one in (text, other))
    found = prove(program, candidate)
    assert isinstance(found, Proof)
    check(found, program, candidate)


@pytest.mark.parametrize(("text", "other"), [*pairs(APART), *(pair[::-1] for pair in pairs(APART))])
def test_what_differs_in_one_case_is_not(text: str, other: str) -> None:
    """Also where the case is one number."""
    program, candidate = (parse(HEAD + one).graph for one in (text, other))
    assert not isinstance(prove(program, candidate), Proof)


def drawn(rng: random.Random, depth: int) -> str:
    """An expression of X and Y with thresholds at whole numbers and halves."""
    atom = rng.choice(["X", "Y", "X - Y", "X + Y - 1"])
    if depth == 0:
        return atom
    one, two = (drawn(rng, depth - 1) for _ in range(2))
    condition = f"{atom} {rng.choice(['>', '>=', '<', '<=', '==', '!='])} {rng.choice(['0', '1', '-0.5'])}"
    return rng.choice([
        f"relu({one})", f"abs({one})", f"clamp({one}, -1, 0.5)", f"maximum({one}, {two})", f"({one} + {two})",
        f"({one}) * ({two})", f"where({condition}, {one}, {two})",
    ])  # fmt: skip


CHANGES = [
    (">=", ">"), ("<=", "<"), (" > ", " >= "), ("==", ">="), ("relu", "abs"), ("0.5", "1"), ("-1", "0"), ("X", "Y"),
    ("relu(", "maximum(0, "), ("X - Y", "-(Y - X)"), ("clamp(", "0.5 - relu(0.5 - "), (", -1, 0.5)", ", -1, 1)"),
    ("abs(", "1 * maximum(0, "),
]  # fmt: skip
"""What is said in one place otherwise, or in other words."""


@pytest.mark.parametrize("rounds", [pytest.param(8, marks=pytest.mark.slow), 1])
def test_random_pieces_are_proved_only_where_they_are_the_same(rounds: int) -> None:
    """At every threshold and between them."""
    rng, proved, apart = random.Random(rounds), 0, 0
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(-12, 13) / 4, np.arange(-12, 13) / 4))
    head = f"X: f64[{x.size}]\nY: f64[{x.size}]\nreturn 0 * (X + Y) + "
    while apart < 20 * rounds:
        text, (old, new) = drawn(rng, rng.choice((1, 2, 2))), rng.choice(CHANGES)
        at = rng.choice([place for place in range(len(text)) if text.startswith(old, place)] or [-1])
        with contextlib.suppress(MirageError):  # two limits became three
            other = text[:at] + new + text[at + len(old) :] if at >= 0 else f"{text} + where(X == Y, X - Y, 0)"
            program, candidate = (parse(head + one).graph for one in (text, other))
            found = isinstance(prove(program, candidate, seconds=2), Proof)
            (left,), (right,) = (evaluate(graph, [x, y]) for graph in (program, candidate))
            same = np.allclose(left, right, rtol=0, atol=1e-12)
            assert same or not found, (text, other)
            proved += found
            apart += not same
    assert proved >= 10 * rounds


def test_beside_a_threshold_a_term_is_what_it_is_there() -> None:
    """`step_at` for terms with binders, by brute force; what a binder binds is another element."""
    rng = np.random.default_rng(0)
    k, other = ("k", -1), ("k", -2)
    x, its, y = entry("X", ((k,),)), entry("X", ((other,),)), entry("Y", ((k,),))
    choose = {"step": lambda value: np.where(value >= 0, 1.0, 0.0)}
    terms = [exp(mul(x, y)), top(x, num(0)), fn("step", add(x, y)), bind(Kind.SUM, (other,), mul(its, exp(x), its))]
    for a, c in ((x, num(-1)), (x, neg(y)), (mul(num(2), x), y), (its, num(1))):
        for term in terms:
            old, new, _ = equation(Step("step_at", (("a", a), ("c", c), ("f", term))), {})
            for _ in range(20):
                arrays = {name: rng.integers(-1, 2, 4).astype(float) for name in "XY"}
                world = World({"k": 4}, arrays, functions=choose)
                free: tuple[Var, ...] = (k, other)
                np.testing.assert_allclose(world.value(old, free), world.value(new, free))
