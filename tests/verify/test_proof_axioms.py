"""Every axiom holds: random instances of both sides have the same float64 value; wrong instances are no instances."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from mirage_nb.errors import ProofError
from mirage_nb.interp.reference import TABLE
from mirage_nb.ir import ClampAttrs, OpKind
from mirage_nb.verify.proof.axioms import (
    AXIOMS,
    PROPERTIES,
    PROPERTY_NAMES,
    Axiom,
    Has,
    Pattern,
    Positive,
    Without,
    axiom,
    has_property,
)
from mirage_nb.verify.proof.checker import equation
from mirage_nb.verify.proof.steps import Binding, Step
from mirage_nb.verify.proof.terms import Kind, Term, Var, add, bind, entry, exp, inv, mul, num, sqrt, sym, top
from tests.verify.term_values import FieldWorld, World

EXTENTS = {"i": 3, "j": 2, "k": 2}
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


def letters(pattern: Pattern) -> frozenset[str]:
    own = frozenset({pattern.head}) if len(pattern.head) == 1 else frozenset()
    return own.union(*map(letters, pattern.args))


def random_term(rng: np.random.Generator, name: str, indices: tuple[Var, ...]) -> Term:
    """An element of an input of its own, at all these indices, inside one operator or none."""
    x = entry(name, tuple((var,) for var in indices))
    return [x, add(x, num(2)), mul(x, x), exp(x), inv(x), sqrt(x)][rng.integers(6)]


def drawn(row: Axiom, rng: np.random.Generator) -> tuple[dict[str, Binding], dict[str, tuple[Var, ...]]]:
    """Bindings of all letters that satisfy the conditions."""
    bindings: dict[str, Binding] = {}
    shapes = {}
    for letter in sorted(letters(row.left) | letters(row.right)):
        if letter == "g":
            bindings[letter] = "f"
        elif letter.isupper():
            bindings[letter] = LISTS[letter]
        else:
            inside = {var for list_ in letters(row.left) & set("VW") for var in LISTS[list_]}
            apart = [c.indices for c in row.conditions if isinstance(c, Without) and c.term == letter]
            barred = {var for names in apart for var in LISTS[names]}
            shapes[letter] = (ROW, *sorted(inside - barred, reverse=True))
            wanted = any(isinstance(c, Positive) and c.term == letter for c in row.conditions)
            bindings[letter] = exp(entry(letter, ((ROW,),))) if wanted else random_term(rng, letter, shapes[letter])
            if wanted:
                shapes[letter] = (ROW,)
    return bindings, shapes


@pytest.mark.parametrize("row", AXIOMS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("seed", range(6))
def test_holds_in_numbers(row: Axiom, seed: int):
    rng = np.random.default_rng(seed)
    bindings, shapes = drawn(row, rng)
    left, right = equation(Step(row.name, tuple(sorted(bindings.items()))), KNOWN)
    assert left != right
    arrays = {letter: rng.uniform(0.3, 2, [EXTENTS[sort] for sort, _ in shape]) for letter, shape in shapes.items()}
    wanted = next((c.name for c in row.conditions if isinstance(c, Has)), "odd")
    functions = {
        "f": EXAMPLES[wanted],
        "SiLU": lambda x: x / (1 + np.exp(-x)),
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    }
    world = World(EXTENTS, arrays, functions=functions)
    indices = tuple(sorted(left.free | right.free))
    np.testing.assert_allclose(world.value(left, indices), world.value(right, indices), rtol=1e-9)


def kinds(term: Term) -> set[Kind]:
    return {term.kind}.union(*(kinds(arg) for arg in term.args))


def test_holds_in_the_fields():
    """Over Z_p with exponents over Z_q (p = 1019, q = 509), as in field trials, where an instance can be read there."""
    read = set()
    for row in AXIOMS.values():
        for seed in range(12):
            rng = np.random.default_rng(seed)
            bindings, shapes = drawn(row, rng)
            left, right = equation(Step(row.name, tuple(sorted(bindings.items()))), KNOWN)
            if (kinds(left) | kinds(right)) & {Kind.SQRT, Kind.MAX, Kind.TOP, Kind.RESCALED, Kind.FN}:
                continue
            extents = {letter: [EXTENTS[sort] for sort, _ in shape] for letter, shape in shapes.items()}
            arrays = {letter: rng.integers(1, 1000, extent) for letter, extent in extents.items()}
            world = FieldWorld(EXTENTS, arrays, exponents=FieldWorld(EXTENTS, arrays, modulus=509))
            indices = tuple(sorted(left.free | right.free))
            try:
                assert (world.value(left, indices) == world.value(right, indices)).all(), row.name
            except (AssertionError, ValueError) as error:
                if "second" in str(error) or "invertible" in str(error):
                    continue  # an exponential in an exponent, or a division by zero
                raise
            read.add(row.name)
    assert {"distribute", "sum_partition", "sum_product", "exp_add", "inv_exp", "inv_cancel"} <= read


@pytest.mark.parametrize("row", [r for r in AXIOMS.values() if r.conditions], ids=lambda row: row.name)
def test_conditions_are_needed(row: Axiom):
    """Without its condition an axiom would have false instances, and the checker takes none of them."""
    for condition in row.conditions:
        rng = np.random.default_rng(1)
        bindings, shapes = drawn(row, rng)
        known = KNOWN
        match condition:
            case Without(term, names):
                shapes[term] = (*shapes[term], *LISTS[names])
                bindings[term] = entry(term, tuple((var,) for var in shapes[term]))
            case Positive(term):
                bindings[term] = entry(term, tuple((var,) for var in shapes[term]))
            case Has():
                known = {"f": frozenset(PROPERTY_NAMES - {condition.name})}
        step = Step(row.name, tuple(sorted(bindings.items())))
        with pytest.raises(ProofError, match="condition"):
            equation(step, known)


@pytest.mark.parametrize("row", AXIOMS.values(), ids=lambda row: row.name)
def test_backwards_only_where_it_says_so(row: Axiom):
    bindings, _ = drawn(row, np.random.default_rng(0))
    step = Step(row.name, tuple(sorted(bindings.items())), backward=True)
    if row.reversible:
        assert not row.assumes
        left, right = equation(step, KNOWN)
        assert (right, left) == equation(dataclasses.replace(step, backward=False), KNOWN)
    else:
        with pytest.raises(ProofError, match="backwards"):
            equation(step, KNOWN)


def test_nothing_undefined_comes_in():
    """r == 0 * c + r for any c, also for 1/(x - x): c has to stand there already."""
    nowhere = inv(add(sym("x"), mul(num(-1), sym("x"))))
    for a, b in ((num(1), num(-1)), (num(0), num(0))):
        step = Step("distribute", (("a", a), ("b", b), ("c", nowhere), ("r", sym("r"))))
        with pytest.raises(ProofError, match="c does not occur"):
            equation(step, {})


def test_terms_have_one_form():
    a, b, x = sym("a"), sym("b"), entry("X", ((ROW,), (J,)))
    assert add(a, add(b, num(2)), num(-2)) == add(b, a)
    assert mul(a, mul(b, num(3)), num(2)) == mul(num(6), b, a)
    assert mul(num(0), inv(num(0))) == num(0) and inv(num(0)) != num(0)
    assert bind(Kind.SUM, (J,), x) == bind(Kind.SUM, (("j", -77),), entry("X", ((ROW,), (("j", -77),))))
    assert bind(Kind.SUM, (), x) == x


def test_the_largest_of_several_has_one_form():
    a, b, c = (entry(name, ((ROW,),)) for name in "abc")
    assert top(a, top(b, c)) == top(top(c, a), b, a) and top(a, a) == a
    assert top(a, b) != top(a, c) and top(a, b) != add(a, b)


def test_bound_indices_are_told_apart_by_what_they_do():
    """Two indices of one sort: the order of binding does not matter, their use does."""
    one, other = ("k", -1), ("k", -2)
    square = bind(Kind.SUM, (one, other), entry("X", ((one,), (other,))))
    turned = bind(Kind.SUM, (one, other), entry("X", ((other,), (one,))))
    diagonal = bind(Kind.SUM, (one,), entry("X", ((one,), (one,))))
    assert square == turned
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
def test_the_operators_have_the_properties_that_the_table_says(function: str):
    kind = next(kind for kind in OpKind if kind.value == function)
    attrs = ClampAttrs(Fraction(-1, 2), Fraction(1)) if kind is OpKind.CLAMP else None

    def f(x):
        return TABLE[kind]([np.asarray(x)], attrs, 0)

    x = np.sort(np.random.default_rng(0).normal(size=1000))
    held = {
        "idempotent": np.allclose(f(f(x)), f(x)),
        "monotone": bool(np.all(np.diff(f(x)) >= 0)),
        "homogeneous": np.allclose(f(3.7 * x), 3.7 * f(x)),
    }
    assert all(held[name] for name in PROPERTIES[function])
    assert {name for name, true in held.items() if true} == set(PROPERTIES[function])


def test_every_property_has_an_axiom_and_an_example():
    assert set(EXAMPLES) == PROPERTY_NAMES
    assert frozenset().union(*PROPERTIES.values()) <= PROPERTY_NAMES


def test_a_users_function_has_no_property_of_an_operator_of_that_name():
    assert has_property("ReLU", "monotone", {})
    assert not has_property("@ReLU(formula=tanh(x))", "monotone", {})
    assert has_property("@leak(formula=x)", "linear", {"leak": frozenset({"linear"})})
    assert not has_property("@leak(formula=x)", "odd", {"leak": frozenset({"linear"})})
