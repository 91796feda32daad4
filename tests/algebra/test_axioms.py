"""Every axiom by its name: true of real numbers, validated by the normal form, honoured by the oracle."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from mirage_nb.algebra import QUICK, STANDARD, THOROUGH, Algebra, AlgebraOptions, Oracle
from mirage_nb.algebra.axioms import EQUATIONS, PARTS, Axiom, AxisHole, Hole, Symbol, add, exp, mul, sqrt
from mirage_nb.errors import OptionError
from tests.algebra.exhaustive import MIXES, SYMBOLS, random_term
from tests.algebra.rewriting import Binding, Rewriter, build, children, fill
from tests.shares import crossed

PRESETS = {"quick": QUICK, "standard": STANDARD, "thorough": THOROUGH}
AXES = SYMBOLS["scalars"]
X, Y, Z, W = Symbol("x"), Symbol("y"), Symbol("z"), Symbol("w")


def holes(axiom: Axiom) -> tuple[set[str], set[str]]:
    """The names of the term holes and of the axis holes of an axiom."""
    terms: set[str] = set()
    axes: set[str] = set()
    todo = [axiom.lhs, axiom.rhs]
    while todo:
        term = todo.pop()
        if isinstance(term, Hole):
            terms.add(term.name)
        axis = getattr(term, "axis", None)
        if isinstance(axis, AxisHole):
            axes.add(axis.name)
        todo += children(term)
    return terms, axes


def instances(axiom: Axiom, options: AlgebraOptions, rng: Random, count: int) -> list[Binding]:
    """Random fillings of an axiom for which its side conditions hold."""
    rewriter = Rewriter((), AXES, factored=options.products == "factored")
    terms, axes = holes(axiom)
    every_axis = sorted(frozenset().union(*AXES.values()), key=str)
    found: list[Binding] = []
    while len(found) < count:
        binding: Binding = {name: random_term(rng, 2, rewriter, MIXES["all"]) for name in sorted(terms)}
        binding |= {name: rng.choice(every_axis) for name in sorted(axes)}
        if rewriter.holds(axiom, binding):
            found.append(binding)
    return found


@crossed({
    "axiom": EQUATIONS,
    "preset": PRESETS,
})
def test_normal_form_validates_the_equations_in_force(axiom: Axiom, preset: str, rng: Random) -> None:
    options = PRESETS[preset]
    if axiom not in options.equations():
        assert axiom.name in options.off
        return
    for binding in instances(axiom, options, rng, 150):
        algebra = Algebra(options)
        lhs, rhs = fill(axiom.lhs, binding), fill(axiom.rhs, binding)
        assert build(algebra, lhs, AXES) == build(algebra, rhs, AXES), (lhs, rhs)


@pytest.mark.parametrize("axiom", EQUATIONS, ids=lambda a: a.name)
def test_equation_is_true_of_real_numbers(axiom: Axiom, rng: Random, evaluator) -> None:
    evaluate = evaluator(AXES, 1)
    with np.errstate(over="ignore"):
        for binding in instances(axiom, THOROUGH, rng, 60):
            lhs, rhs = evaluate(fill(axiom.lhs, binding)), evaluate(fill(axiom.rhs, binding))
            assert np.allclose(lhs, rhs, rtol=1e-9, atol=0), binding


@crossed({
    "axiom": PARTS,
    "preset": PRESETS,
})
def test_oracle_keeps_what_a_sub_calls_a_part(axiom: Axiom, preset: str, rng: Random) -> None:
    for binding in instances(axiom, PRESETS[preset], rng, 60):
        algebra = Algebra(PRESETS[preset])
        whole = build(algebra, fill(axiom.rhs, binding), AXES)
        part = build(algebra, fill(axiom.lhs, binding), AXES)
        assert Oracle(algebra, [whole]).reaches(part), binding


def test_side_condition_matters(evaluator) -> None:
    """sum(k, x*y) = sum(k, x)*y is false where y depends on k, and the normal form tells them apart."""
    axiom = next(a for a in EQUATIONS if a.name == "sum_mul")
    binding: Binding = {"x": X, "y": Y, "i": ("k", "t")}
    assert not Rewriter((), AXES).holds(axiom, binding)
    lhs, rhs = fill(axiom.lhs, binding), fill(axiom.rhs, binding)
    assert not np.allclose(evaluator(AXES, 1)(lhs), evaluator(AXES, 1)(rhs))
    algebra = Algebra(THOROUGH)
    assert build(algebra, lhs, AXES) != build(algebra, rhs, AXES)


@pytest.mark.parametrize("name", ["exp_product", "sqrt_product"])
def test_switched_off_axiom_is_not_applied(name: str) -> None:
    lhs, rhs = {
        "exp_product": (mul(exp(X), exp(Y)), exp(add(X, Y))),
        "sqrt_product": (mul(sqrt(X), sqrt(Y)), sqrt(mul(X, Y))),
    }[name]
    on, off = Algebra(THOROUGH), Algebra(AlgebraOptions(off=frozenset({name})))
    assert build(on, lhs, AXES) == build(on, rhs, AXES)
    assert build(off, lhs, AXES) != build(off, rhs, AXES)
    assert not Oracle(off, [build(off, rhs, AXES)]).reaches(build(off, lhs.args[0], AXES))


def test_factored_products_restrict_distribution() -> None:
    product = mul(add(X, Y), add(Z, W))
    expanded = add(add(mul(X, Z), mul(Y, Z)), add(mul(X, W), mul(Y, W)))
    for options, equal in ((STANDARD, True), (QUICK, False)):
        algebra = Algebra(options)
        assert (build(algebra, product, AXES) == build(algebra, expanded, AXES)) is equal


def test_effort_of_an_axiom_says_where_it_is_off_or_restricted() -> None:
    quick = {axiom.name for axiom in EQUATIONS if axiom.effort != "quick"}
    assert quick == set(QUICK.off) | {axiom.name for axiom in EQUATIONS if axiom.factored_conditions}
    assert {axiom.name for axiom in EQUATIONS if axiom.effort == "thorough"} == set(STANDARD.off)
    assert THOROUGH.limits() == ()
    assert QUICK.limits() == ("sqrt_product off", "mul_distributes restricted", "sum_mul restricted")


def test_names_are_unique() -> None:
    names = [axiom.name for axiom in EQUATIONS + PARTS]
    assert len(set(names)) == len(names)


def test_unknown_axiom_and_fixed_axiom_are_refused() -> None:
    with pytest.raises(OptionError, match="is not an axiom"):
        AlgebraOptions(off=frozenset({"sqrt_of_product"}))
    with pytest.raises(OptionError, match=r"cannot be switched off: operands have no order[\s\S]*exp_product, mul_"):
        AlgebraOptions(off=frozenset({"add_commutes"}))
    with pytest.raises(OptionError, match="'expanded' or 'factored'"):
        AlgebraOptions(products="both")
