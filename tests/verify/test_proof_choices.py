"""A branch has a value where it is chosen: nothing more is known of it, and nothing more is asked."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

from mirage_nb.lang import parse
from mirage_nb.verify import Proof, check, prove, verify
from mirage_nb.verify.proof import with_proof
from mirage_nb.verify.proof.checker import equation
from mirage_nb.verify.proof.signs import is_bit, vanishes
from mirage_nb.verify.proof.steps import Step
from mirage_nb.verify.proof.terms import Kind, Term, Var, add, bind, entry, exp, fn, inv, mul, num, top
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.verify.term_values import World

HEAD = "X: f32[2, 4]\nY: f32[2, 4]\n"
ROW: Var = ("i", -1)
FUNCTIONS = {"Where": lambda c, x: np.where(c != 0, x, 0), "step": lambda x: np.where(x >= 0, 1.0, 0.0)}

HIDDEN = {
    "a root": ("where(X > 0, sqrt(X), 0) + Y", "where(X > 0, sqrt(X), 0) + Y + 0 * sqrt(X)"),
    "a quotient": ("where(X > 0, 1 / X, 0) + Y", "where(X > 0, 1 / X, 0) + Y * X / X"),
    "a logarithm": ("where(X > 0, log(X), 0) * Y", "where(X > 0, log(X), 0) * Y + 0 * log(X)"),
    "a power": ("where(X > 0, X ** 0.5, 0) + Y", "where(X > 0, X ** 0.5, 0) + Y + 0 * X ** 0.5"),
    "the other branch": ("where(X > 0, Y, sqrt(Y))", "where(X > 0, Y, sqrt(Y)) + 0 * sqrt(Y)"),
    "one in another": ("where(X > 0, where(Y > 0, sqrt(Y), 1), 2) * X",
                       "where(X > 0, where(Y > 0, sqrt(Y), 1), 2) * X + 0 * where(Y > 0, sqrt(Y), 1) * sqrt(Y)"),
    "another condition": ("where(X > 0, sqrt(X), 0) + Y", "where(Y > 0, sqrt(X), 0) + Y"),
    "a condition that is wider": ("where(X > 1, sqrt(X - 1), 0) + Y",
                                  "where(X > 1, sqrt(X - 1), 0) + 0 * where(X > 0, sqrt(X - 1), 0) + Y"),
    "read in the open too": ("where(X > 0, sqrt(Y), 0) + X", "where(X > 0, sqrt(Y), 0) + (sqrt(Y) - sqrt(Y)) + X"),
}  # fmt: skip


@pytest.mark.parametrize("how", HIDDEN)
def test_a_branch_says_nothing_of_points_where_it_is_not_chosen(how: str) -> None:
    program, candidate = (parse(f"{HEAD}return {text}").graph for text in HIDDEN[how])
    assert not isinstance(prove(program, candidate), Proof)
    assert verify(program, candidate).kind is VerdictKind.REFUTED


SAME = {
    **{
        f"{name} as {text}": (text, name)
        for name, texts in {
            "maximum(X, Y)": ("where(X >= Y, X, Y)", "where(X > Y, X, Y)", "where(X < Y, Y, X)", "where(X <= Y, Y, X)"),
            "minimum(X, Y)": ("where(X >= Y, Y, X)", "where(X > Y, Y, X)", "where(X < Y, X, Y)", "where(X <= Y, X, Y)"),
            "relu(X)": ("where(X > 0, X, 0)", "where(X < 0, 0, X)", "where(X >= 0, X, 0)"),
            "relu(maximum(X, Y))": ("maximum(relu(X), relu(Y))", "maximum(X, relu(Y))", "relu(Y + relu(X - Y))"),
            "relu(maximum(X[:, ::2], X[:, 1::2]))": ("maximum(relu(X[:, ::2]), relu(X[:, 1::2]))",),
            "abs(X)": ("where(X > 0, X, -X)", "where(X >= 0, X, -X)", "where(X < 0, -X, X)", "X * sign(X)"),
            "clamp(X, -1, 2)": (
                "maximum(where(X > 2, 2, X), -1)",
                "where(X > 2, 2, where(X < -1, -1, X))",
                "where(X < -1, -1, where(X > 2, 2, X))",
            ),
            "X + Y": ("where(X > Y, X, Y) + where(X > Y, Y, X)",),
            "relu(X) * relu(X)": ("X * relu(X)", "where(X > 0, X * X, 0)"),
            "X * X": ("abs(X) * abs(X)", "relu(X) * relu(X) + relu(-X) * relu(-X)"),
            "maximum(2 * X, 6 * Y + 4)": ("2 * maximum(X, 3 * Y + 2)", "2 * X + 2 * relu(3 * Y - X + 2)"),
            "exp(X) ** 0.5": ("exp(X / 2)", "sqrt(exp(X))"),
            "Y + 0 * X": ("where(X != Y, Y, X)", "where(X == X, Y, X)", "where(X > X, X, Y)"),
            "X * Y": ("X * abs(sign(Y)) * Y", "where(X > Y, X, Y) * where(X > Y, Y, X)"),
            "where(X > 3, abs(Y), relu(X))": ("maximum(where(X > 3, Y, X), where(X > 3, -Y, 0))",),
            "where(abs(X - Y) <= 2, X, 0)": (
                "where((X - Y <= 2) & (Y - X <= 2), X, 0)",
                "where(minimum(X - Y, Y - X) >= -2, X, 0)",
                "X * ((X > Y + 2) == 0) * (maximum(X, Y - 2) == X)",
            ),
            "(X > 0) & (Y > 0)": ("minimum(X, Y) > 0", "(X > 0) * (Y > 0)"),
            "(X >= 0) | (2 * Y >= 3)": ("maximum(2 * X, 2 * Y - 3) >= 0",),
            "min(X > 0, axis=1)": ("min(X, axis=1) > 0",),
            "max(X >= 0, axis=1)": ("max(X, axis=1) >= 0", "1 - min(X < 0, axis=1)"),
            "max(abs(X), axis=1) / 127": (
                "maximum(max(X, axis=1), -min(X, axis=1)) / 127",
                "max(abs(X) / 127, axis=1)",
                "maximum(max(X / 127, axis=1), max(X / -127, axis=1))",
            ),
            "max(leaky_relu(X), axis=1)": ("leaky_relu(max(X, axis=1))",),
            "max(abs(X) * Y * Y - Y, axis=1)": ("maximum(max(X * Y * Y - Y, axis=1), max(-Y * (X * Y + 1), axis=1))",),
            "sigmoid(X) * (1 - sigmoid(X))": ("exp(-X) / (1 + exp(-X)) ** 2", "sigmoid(X) * sigmoid(-X)"),
            "exp(where(X > 3, Y, X)) * 2": ("where(X > 3, 2 * exp(Y), 2 * exp(X))",),
        }.items()
        for text in texts
    },
    "itself": ("where(X > 0, sqrt(X), 0) + Y", "Y + where(X > 0, sqrt(X), 0)"),
    "what is needed anyway": ("where(Y > 0, sqrt(X), 0) + sqrt(X)", "sqrt(X) + where(Y > 0, sqrt(X), 0)"),
    "less is read": ("where(Y > 0, sqrt(X), 0) * 0 + sqrt(X) * Y", "Y * sqrt(X)"),
    "a quotient in both": ("where(X > 0, Y / X, 1) * 3", "3 * where(X > 0, Y / X, 1)"),
    "a root of what is chosen": ("sqrt(where(X > 0, exp(Y), 1)) * Y", "Y * sqrt(where(X > 0, exp(Y), 1))"),
}


@pytest.mark.parametrize("how", SAME)
def test_what_is_chosen_alike_is_proved(how: str) -> None:
    program, candidate = (parse(f"{HEAD}return {text}").graph for text in SAME[how])
    found = prove(program, candidate)
    assert isinstance(found, Proof)
    check(found, program, candidate)


def test_outputs_are_paired_in_order_unless_another_order_is_allowed() -> None:
    program = parse(f"{HEAD}return relu(X) * 3, relu(Y) * 3").graph
    turned = parse(f"{HEAD}return 3 * relu(Y), 3 * relu(X)").graph
    unknown = Verdict(VerdictKind.OUTSIDE_LAX)
    assert not with_proof(unknown, program, turned)[0].accepted
    lifted, _ = with_proof(unknown, program, turned, permuted=True)
    assert lifted.kind is VerdictKind.PROVED and lifted.outputs == (1, 0)


def drawn_term(rng: random.Random, depth: int, indices: tuple[Var, ...]) -> Term:
    """A term over rows i and these indices, with inverses, choices, sums and maxima."""
    if depth == 0:
        return rng.choice(
            [entry("A", ((ROW,), (rng.choice(indices),))), entry("B", ((ROW,),)), num(rng.choice((0, 1, 2)))]
        )
    kinds = ["mul", "mul", "add", "top", "inv", "Where", "step", "exp", "Sum", "Max", "bit", "bit"]
    below = partial(drawn_term, rng, depth - 1)
    match kind := rng.choice(kinds):
        case "mul" | "add" | "top":
            return {"mul": mul, "add": add, "top": top}[kind](below(indices), below(indices))
        case "Sum" | "Max":
            var = ("k", -10 - depth)
            return bind(Kind(kind), (var,), below((*indices, var)))
        case "Where":
            return fn("Where", below(indices), below(indices))
        case "bit":
            return fn("Where", below(indices), num(1))
    return {"inv": inv, "exp": exp, "step": lambda x: fn("step", x)}[kind](below(indices))


class Total(World):
    def _applied(self, kind: Kind, value: np.ndarray) -> np.ndarray:
        return np.where(value == 0, 0, 1 / np.where(value == 0, 1, value)) if kind is Kind.INV else np.exp(value)


@pytest.mark.parametrize("rounds", [pytest.param(6, marks=pytest.mark.slow), 1])
def test_what_vanishes_and_what_is_a_bit_by_its_form_does_so_in_numbers(rounds: int) -> None:
    """Random terms at arrays of small whole numbers, many of them 0."""
    rng, draws = random.Random(7), np.random.default_rng(7)
    worlds = [
        Total({"i": 6, "k": 2}, {"A": draws.choice(VALUES, (6, 2)), "B": draws.choice(VALUES, 6)}, functions=FUNCTIONS)
        for VALUES in [(-1.0, 0.0, 1.0, 2.0), (0.0, 0.0, 1.0)] * (2 * rounds)
    ]
    outer = (ROW, ("k", -2), ("k", -3))
    vanished = bits = 0
    for _ in range(100 * rounds):
        part = drawn_term(rng, rng.randint(1, 3), outer[1:])
        hull = bind(Kind.MAX, outer[1:2], rng.choice([part, exp(part), mul(fn("Where", part, num(1)), exp(part))]))
        where = rng.choice([part, hull, bind(Kind.SUM, outer[2:], hull) if hull.free >= {outer[2]} else hull])
        term = rng.choice(
            [mul(part, drawn_term(rng, 1, outer[1:])), bind(Kind.SUM, outer[2:], mul(part, part)), part, where]
        )
        if vanishes(term, where):
            vanished += 1
            for world in worlds:
                left, right = (world.value(x, outer) for x in (term, where))
                assert (left[right == 0] == 0).all(), f"{term} where {where} is 0"
        if is_bit(part):
            bits += 1
            assert all(np.isin(world.value(part, outer), (0, 1)).all() for world in worlds), str(part)
            whole = mul(hull, exp(top(part, where)), add(part, term))
            old, new, _ = equation(Step("by_cases", (("a", part), ("f", whole))), {})
            for world in worlds:
                with np.errstate(all="ignore"):
                    found = [world.value(x, outer) for x in (old, new)]
                real = np.isfinite(found[0]) & np.isfinite(found[1])
                np.testing.assert_allclose(found[1][real], found[0][real], rtol=1e-9)
    assert vanished > 15 * rounds and bits > 5 * rounds
