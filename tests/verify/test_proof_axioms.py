"""Every axiom holds, by Z3 over all reals or in numbers; whatever else one could have written, numbers refute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import z3

from mirage_nb.errors import ProofError
from mirage_nb.interp import reference
from mirage_nb.interp.reference import TABLE
from mirage_nb.ir import ApplyAttrs, ClampAttrs, OpKind
from mirage_nb.verify.proof.axioms import (
    AXIOMS,
    PROPERTIES,
    PROPERTY_NAMES,
    Axiom,
    Bit,
    Has,
    Is,
    Pattern,
    Same,
    Vanishes,
    Whole,
    Without,
    axiom,
    has_property,
)
from mirage_nb.verify.proof.checker import equation
from mirage_nb.verify.proof.functions import DEFINITIONS, SCALARS, unfolded
from mirage_nb.verify.proof.steps import Binding, Step
from mirage_nb.verify.proof.terms import Kind, add, bind, entry, inv, mul, num, sym, top
from tests.verify.axiom_models import in_z3, letters, mutants, uses, wrong
from tests.verify.term_values import World

ROW, J, K = ("i", -1), ("j", -2), ("k", -3)
LISTS = {"V": (J,), "W": (K,)}
EXAMPLES: dict[str, Callable[..., np.ndarray]] = {
    "odd": lambda x: x**3,
    "even": lambda x: x**2,
    "idempotent": lambda x: np.maximum(x, 0.5),
    "linear": lambda x: -3 * x,
    "homogeneous": lambda x: np.maximum(x, 0),
    "monotone": lambda x: np.tanh(x),
    "multiplicative": lambda x: x**3,
}
"""For each property a function that has it."""
KNOWN = {"f": frozenset(PROPERTY_NAMES)}
LOOKS = ("definition", "choice", "by_cases", "bit_beside", "step_at")
EQUATIONS = [row for row in AXIOMS.values() if row.name not in LOOKS]
"""All but those that look a function up, or a place in a term."""


def example(row: Axiom) -> Callable[..., np.ndarray] | None:
    return next((EXAMPLES[c.name] for c in row.conditions if isinstance(c, Has)), None)


@pytest.mark.parametrize("row", EQUATIONS, ids=lambda row: row.name)
def test_holds_in_numbers_and_nothing_like_it_does(row: Axiom):
    """At special and random points where its conditions hold; with a condition left out, or one place of its right side
    changed, there are points at which it is wrong."""
    function = example(row)
    assert not any(wrong(row, seed, function) for seed in range(3))
    for description, other in mutants(row):
        assert any(wrong(other, seed, function) for seed in range(3)), description


@pytest.mark.parametrize("row", [row for row in EQUATIONS if in_z3(row) is not None], ids=lambda row: row.name)
def test_holds_for_all_reals(row: Axiom):
    """Z3 finds no point at which both sides differ, each part of an axis having two indices."""
    solver = z3.Solver()
    solver.set("timeout", 20_000)
    solver.add(in_z3(row))
    assert solver.check() == z3.unsat


def test_most_axioms_are_held_against_z3():
    assert sum(in_z3(row) is not None for row in EQUATIONS) >= 30


def test_definitions_are_what_the_reference_computes():
    x = np.concatenate([np.linspace(-3, 3, 25), [1e-9, 20.0, -20.0]])
    clamps = [ClampAttrs(Fraction(-1, 2), Fraction(7, 3)), ClampAttrs(None, Fraction(1)), ClampAttrs(Fraction(0), None)]
    names = ["Clamp(low=-1/2, high=7/3)", "Clamp(high=1)", "Clamp(low=0)"]
    formula = (
        "log(1 + exp(x)) * tanh(x) - abs(x) ** 2 / (1 + minimum(x, 2) ** 2)"
        " + sin(cos(erf(x))) + sqrt(exp(x)) - log1p(x * x) + expm1(-x)"
    )
    cases = [
        *[(name, OpKind(name), None) for name in DEFINITIONS if name not in ("tanh", "sign")],
        *[(name, OpKind.CLAMP, attrs) for name, attrs in zip(names, clamps, strict=True)],
        ("@f(formula=x)(formula=2 * x)", OpKind.APPLY, ApplyAttrs("f(formula=x)", "2 * x")),
        (f"@f(formula={formula})", OpKind.APPLY, ApplyAttrs("f", formula)),
    ]
    for name, kind, attrs in cases:
        world = World({"i": len(x)}, {"X": x}, functions=reference.SCALARS)
        found = world.value(unfolded(name, entry("X", ((ROW,),))), (ROW,))
        np.testing.assert_allclose(found, TABLE[kind]([x], attrs, 0), rtol=1e-9, atol=1e-12, err_msg=name)
    world = World({"i": len(x)}, {"X": x}, functions=reference.SCALARS)
    np.testing.assert_allclose(world.value(unfolded("tanh", entry("X", ((ROW,),))), (ROW,)), np.tanh(x), atol=1e-12)
    assert set(SCALARS) | {"pow", "log1p"} == set(reference.SCALARS)
    for name, other in (("Where", 0), ("Where(other=-7/3)", -7 / 3)):
        world = World({"i": len(x)}, {"X": x, "Y": np.cos(x)}, functions={"Where": lambda c, y: np.where(c != 0, y, 0)})
        condition, y = (mul(entry(name, ((ROW,),)), entry("X", ((ROW,),))) for name in "XY")
        found = world.value(unfolded(name, condition, y), (ROW,))
        np.testing.assert_allclose(found, np.where(x != 0, x * np.cos(x), other), err_msg=name)
    with pytest.raises(ProofError):
        unfolded("Where(other=1/0)", sym("x"), sym("x"))
    for name in ("Matmul", "@f", "@f(formula=x +)", "Clamp(low=1/0)", "@f(formula=1)"):
        with pytest.raises(ProofError):
            unfolded(name, sym("x"))


def drawn(row: Axiom) -> dict[str, Binding]:
    """Bindings of all letters that satisfy the conditions."""
    bindings: dict[str, Binding] = {}
    same = any(isinstance(c, Same) for c in row.conditions)
    for letter in letters(row):
        if letter == "g":
            bindings[letter] = "f"
        elif letter.isupper():
            bindings[letter] = ((J, K) if letter == "V" else (K, J)) if same else LISTS[letter]
        else:
            indices = (ROW, *(var for var, may in zip((J, K), uses(row)[letter], strict=True) if may))
            wanted = {c.need for c in row.conditions if isinstance(c, Is) and c.term == letter}
            bindings[letter] = num(3) if wanted else entry(letter, tuple((var,) for var in indices))
            for condition in row.conditions:
                if isinstance(condition, Bit | Vanishes | Whole) and condition.term == letter:
                    bindings[letter] = num(0)
    return bindings


@pytest.mark.parametrize("row", [r for r in EQUATIONS if r.conditions], ids=lambda row: row.name)
def test_conditions_are_tested(row: Axiom):
    """The checker takes no instance that does not meet a condition, or says what has to be known."""
    assert equation(Step(row.name, tuple(sorted(drawn(row).items()))), KNOWN)[2] == ()
    for condition in row.conditions:
        bindings, known = drawn(row), KNOWN
        match condition:
            case Without(term, names):
                bindings[term] = entry(term, tuple((var,) for var in (ROW, *LISTS[names])))
            case Is(term, _) | Bit(term) | Vanishes(term) | Whole(term):
                bindings[term] = entry(term, ((ROW,),))
            case Same():
                bindings["W"] = (J, ("k", -4))
            case Has():
                known = {"f": frozenset(PROPERTY_NAMES - {condition.name})}
        step = Step(row.name, tuple(sorted(bindings.items())))
        if isinstance(condition, Is):
            assert equation(step, known)[2] == ((condition.need, bindings[condition.term]),)
        else:
            with pytest.raises(ProofError, match="condition"):
                equation(step, known)


def test_backwards_is_the_same_equation():
    for row in EQUATIONS:
        step = Step(row.name, tuple(sorted(drawn(row).items())))
        left, right, needs = equation(step, KNOWN)
        assert equation(dataclasses.replace(step, backward=True), KNOWN) == (right, left, needs)


def test_terms_have_one_form():
    a, b, x = sym("a"), sym("b"), entry("X", ((ROW,), (J,)))
    assert add(a, add(b, num(2)), num(-2)) == add(b, a)
    assert mul(a, mul(b, num(3)), num(2)) == mul(num(6), b, a)
    assert mul(num(0), inv(num(0))) == num(0) and inv(num(0)) != num(0)  # though 1/0 is 0: that takes no step
    assert bind(Kind.SUM, (J,), x) == bind(Kind.SUM, (("j", -77),), entry("X", ((ROW,), (("j", -77),))))
    assert bind(Kind.SUM, (), x) == x


def test_the_largest_of_several_has_one_form():
    a, b, c = (entry(name, ((ROW,),)) for name in "abc")
    assert top(a, top(b, c)) == top(top(c, a), b, a) and top(a, a) == a
    assert top(a, b) != top(a, c) and top(a, b) != add(a, b)


def test_bound_indices_are_told_apart_by_what_they_do():
    """Two indices of one sort: their names do not matter, their use and their order do; the order takes a step."""
    one, other = ("k", -1), ("k", -2)
    square = bind(Kind.SUM, (one, other), entry("X", ((one,), (other,))))
    turned = bind(Kind.SUM, (one, other), entry("X", ((other,), (one,))))
    diagonal = bind(Kind.SUM, (one,), entry("X", ((one,), (one,))))
    assert square == bind(Kind.SUM, (other, one), entry("X", ((other,), (one,)))) and square != turned
    given = {"V": (one, other), "W": (other, one), "f": entry("X", ((one,), (other,)))}
    assert equation(Step("sum_order", tuple(sorted(given.items()))), {})[:2] == (square, turned)
    assert square != diagonal
    x, y, z = entry("X", ((one,), (other,))), entry("Y", ((one,),)), entry("Y", ((other,),))
    nested = bind(Kind.SUM, (one,), mul(y, bind(Kind.SUM, (other,), x)))
    swapped = bind(Kind.SUM, (other,), mul(z, bind(Kind.SUM, (one,), x)))
    assert nested != swapped


def test_patterns_are_read():
    row = axiom("x", "exp(-a) * b == b + 1")
    assert row.left.head == Kind.MUL and row.left.args[1] == Pattern("b")
    with pytest.raises(ValueError, match="no pattern"):
        axiom("x", "a - b == a")


@pytest.mark.parametrize("function", PROPERTIES)
def test_functions_have_the_properties_that_the_table_says(function: str):
    """All that the table says; of operators, it says all that holds."""
    attrs = ClampAttrs(Fraction(-1, 2), Fraction(1)) if function == "Clamp" else None

    def f(x):
        if function in reference.SCALARS:
            return np.asarray(reference.SCALARS[function](np.asarray(x)))
        return TABLE[OpKind(function)]([np.asarray(x)], attrs, 0)

    x = np.sort(np.random.default_rng(0).normal(size=1000))
    held = {
        "idempotent": np.allclose(f(f(x)), f(x)),
        "monotone": bool(np.all(np.diff(f(x)) >= 0)),
        "homogeneous": np.allclose(f(3.7 * x), 3.7 * f(x)),
        "odd": np.allclose(f(-x), -f(x)),
        "even": np.allclose(f(-x), f(x)),
    }
    assert {name for name, true in held.items() if true} == set(PROPERTIES[function])


def test_every_property_has_an_axiom_and_an_example():
    assert set(EXAMPLES) == PROPERTY_NAMES
    assert frozenset().union(*PROPERTIES.values()) <= PROPERTY_NAMES


def test_a_users_property_counts_of_functions_that_are_defined_everywhere():
    said = {"f": frozenset({"multiplicative"})}
    assert has_property("@f(formula=x * x * x)", "multiplicative", said)
    assert has_property("@f(formula=x / (1 + exp(x)))", "multiplicative", said)
    for partial in ("sqrt(x)", "1 / x", "x ** (-1)", "x ** (1/3)", "log(x)", "x / (1 + x)"):
        assert not has_property(f"@f(formula={partial})", "multiplicative", said)


def test_a_users_function_has_no_property_of_an_operator_of_that_name():
    assert has_property("ReLU", "monotone", {})
    assert not has_property("@ReLU(formula=tanh(x))", "monotone", {})
    assert has_property("@leak(formula=x)", "linear", {"leak": frozenset({"linear"})})
    assert not has_property("@leak(formula=x)", "odd", {"leak": frozenset({"linear"})})
