"""Differences are told from sums, and what holds of them is known: the axioms beyond Table 2, tried on everything."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from mirage_nb.algebra import QUICK, STANDARD, THOROUGH, Algebra, AlgebraOptions, Oracle
from mirage_nb.algebra.axioms import (
    EQUATIONS,
    AdditionFree,
    Apply,
    Axiom,
    AxisHole,
    Hole,
    Sum,
    Symbol,
    Term,
    add,
    div,
    exp,
    mul,
    sqrt,
)
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Budget, configurations, prepare, run_configuration
from tests.algebra.exhaustive import SYMBOLS, survey
from tests.algebra.rewriting import build, fill
from tests.algebra.test_axioms import PRESETS, instances
from tests.shares import crossed

AXES = SYMBOLS["scalars"]
X, Y, Z, C = (Symbol(name) for name in ("x", "y", "z", "c"))


def sub(x: Term, y: Term) -> Apply:
    """The term x - y, where differences are told from sums."""
    return Apply("sub", (x, y))


_X, _Y, _Z, _I = Hole("x"), Hole("y"), Hole("z"), AxisHole("i")
DIFFERENCES: tuple[Axiom, ...] = (
    Axiom("sub_sub", sub(_X, sub(_Y, _Z)), add(sub(_X, _Y), _Z), says="x - (y - z) = (x - y) + z"),
    Axiom("sub_add", sub(_X, add(_Y, _Z)), sub(sub(_X, _Y), _Z), says="x - (y + z) = (x - y) - z"),
    Axiom("add_sub", add(_X, sub(_Y, _Z)), sub(add(_X, _Y), _Z), says="x + (y - z) = (x + y) - z"),
    Axiom(
        "mul_sub",
        mul(sub(_X, _Y), _Z),
        sub(mul(_X, _Z), mul(_Y, _Z)),
        factored_conditions=(AdditionFree(("z",)),),
        says="(x - y) * z = x * z - y * z",
    ),
    Axiom("div_sub", div(sub(_X, _Y), _Z), sub(div(_X, _Z), div(_Y, _Z)), says="(x - y) / z = x / z - y / z"),
    Axiom("sum_sub", Sum(_I, sub(_X, _Y)), sub(Sum(_I, _X), Sum(_I, _Y)), says="Σ (x - y) = Σ x - Σ y"),
)
"""What holds of differences beyond Table 2, which drops signs: the search tells x - y from x + y."""
MIX = ("sub", "sub", "add", "mul", "mul", "sum", "leaf")


@crossed({
    "axiom": DIFFERENCES,
    "preset": PRESETS,
})
def test_the_normal_form_validates_what_holds_of_differences(axiom: Axiom, preset: str, rng: Random) -> None:
    for binding in instances(axiom, PRESETS[preset], rng, 100):
        algebra = Algebra(PRESETS[preset])
        lhs, rhs = (build(algebra, fill(side, binding), AXES) for side in (axiom.lhs, axiom.rhs))
        assert lhs == rhs or algebra.is_vague(lhs) or algebra.is_vague(rhs), binding


@pytest.mark.parametrize("axiom", DIFFERENCES, ids=lambda a: a.name)
def test_it_is_true_of_real_numbers(axiom: Axiom, rng: Random, evaluator) -> None:
    evaluate = evaluator(AXES, 1)
    with np.errstate(over="ignore"):
        for binding in instances(axiom, THOROUGH, rng, 40):
            lhs, rhs = evaluate(fill(axiom.lhs, binding)), evaluate(fill(axiom.rhs, binding))
            assert np.allclose(lhs, rhs, rtol=1e-6, atol=1e-9), binding


WITHOUT_TWO = replace(THOROUGH, off=frozenset({"sum_div", "mul_div"}))


@pytest.mark.parametrize("options", [QUICK, STANDARD, THOROUGH, WITHOUT_TWO])
def test_no_part_of_a_program_with_differences_is_cut(options: AlgebraOptions) -> None:
    for number, symbols in enumerate(SYMBOLS.values()):
        found = survey(options, symbols, MIX, seed=number, targets=12, limit=250, pairs=0, more=DIFFERENCES)
        assert found.parts > 1000 and not found.wrong, found.wrong[0]


@pytest.mark.slow
def test_no_part_of_many_programs_with_differences_is_cut() -> None:
    for number, symbols in enumerate(SYMBOLS.values()):
        found = survey(THOROUGH, symbols, MIX, seed=100 + number, targets=100, limit=1000, pairs=0, more=DIFFERENCES)
        assert not found.wrong, found.wrong[0]


def form(term: Term) -> tuple[Algebra, int]:
    algebra = Algebra(THOROUGH)
    return algebra, build(algebra, term, AXES)


def test_a_difference_is_no_sum_and_no_other_difference() -> None:
    algebra, e = form(sub(X, Y))
    assert e not in {build(algebra, term, AXES) for term in (sub(Y, X), add(X, Y), add(Y, X))}


def test_denominators_and_roots_know_signs() -> None:
    algebra, e = form(div(Z, sub(X, C)))
    assert algebra.negate(e) == build(algebra, div(Z, sub(C, X)), AXES)
    squared = build(algebra, div(Z, mul(sub(X, C), sub(X, C))), AXES)
    assert squared == build(algebra, div(div(Z, sub(X, C)), sub(X, C)), AXES)
    assert squared == build(algebra, div(div(Z, sub(C, X)), sub(C, X)), AXES)
    assert build(algebra, sqrt(sub(X, C)), AXES) != build(algebra, sqrt(sub(C, X)), AXES)


def test_a_part_may_stand_with_either_sign() -> None:
    algebra, e = form(sub(Z, mul(C, sub(X, Y))))
    oracle = Oracle(algebra, [e])
    for part in (sub(X, Y), sub(Y, X), mul(C, sub(X, Y)), sub(Z, mul(C, X))):
        assert oracle.reaches(build(algebra, part, AXES))
    x, y = (algebra.symbol(name, AXES[name]) for name in "xy")
    assert not oracle.reaches(algebra.add(x, y))


@pytest.mark.parametrize(
    ("term", "shown"),
    [
        (sub(X, sub(Y, Z)), "x + z - y"),
        (exp(sub(X, Y)), "exp(x - y)"),
        (div(Z, sub(X, C)), "-z / (c - x)"),
        (sub(sub(X, X), X), "x - 2·x"),
    ],
)
def test_differences_are_shown_as_such(term: Term, shown: str) -> None:
    algebra, e = form(term)
    assert algebra.show(e) == shown


@pytest.mark.parametrize("text", ["X - (Y - Z)", "(X - Y) + Z"])
def test_the_search_knows_that_they_are_the_same(text: str) -> None:
    graph = parse(f"X: f16[16, 64]\nY: f16[16, 64]\nZ: f16[16, 64]\nB = Y + X\nO = ({text}) * B\nreturn O").graph
    prepared, standard = prepare(graph), EFFORTS["standard"]
    first = configurations(prepared, standard)[0]
    result = run_configuration(prepared, first, standard, Budget())
    smallest = [s for s in result.structures if s.operators == 4]
    subtractions = {sum(step.operator.label == "EwSub" for step in s.kernels[0].steps) for s in smallest}
    assert subtractions == {1, 2}, "one subtraction and an addition, or two subtractions"


def test_names_are_those_of_no_axiom_of_the_table() -> None:
    assert not {axiom.name for axiom in DIFFERENCES} & {axiom.name for axiom in EQUATIONS}
