"""The normal form: equal numbers for equal terms, and only for terms of equal value."""

from __future__ import annotations

import pickle
from random import Random

import numpy as np
import pytest

from mirage_nb.algebra import QUICK, STANDARD, THOROUGH, Algebra, AlgebraOptions
from mirage_nb.algebra.axioms import Symbol, Term
from tests.algebra.exhaustive import MIXES, SYMBOLS, random_term
from tests.algebra.rewriting import Rewriter, build
from tests.algebra.specimens import SPECIMENS, matmul, parts, rms, tensor

PRESETS = {"quick": QUICK, "standard": STANDARD, "thorough": THOROUGH}
every_preset = pytest.mark.parametrize("options", PRESETS.values(), ids=PRESETS)


@every_preset
@pytest.mark.parametrize("mix", MIXES)
def test_equal_normal_forms_have_equal_values(options: AlgebraOptions, mix: str, rng: Random, evaluator) -> None:
    """Many small random terms: those that share a number must agree as functions."""
    axes = SYMBOLS["crossed"]
    rewriter, algebra, known = Rewriter((), axes), Algebra(options), {}
    evaluate = evaluator(axes, 3)
    by_number: dict[int, list[Term]] = {}
    for _ in range(3000):
        term = random_term(rng, 3, rewriter, MIXES[mix])
        by_number.setdefault(build(algebra, term, axes, known), []).append(term)
    compared = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for terms in by_number.values():
            first, *others = dict.fromkeys(terms)
            value = evaluate(first)
            for other in others[:5]:
                compared += 1
                assert np.allclose(evaluate(other), value, rtol=1e-9, atol=0, equal_nan=True), (first, other)
    assert compared > 40


@every_preset
def test_free_axes_are_those_of_the_term(options: AlgebraOptions, rng: Random) -> None:
    axes = SYMBOLS["scalars"]
    rewriter, algebra, known = Rewriter((), axes), Algebra(options), {}
    for _ in range(500):
        term = random_term(rng, 4, rewriter, MIXES["all"])
        assert algebra.free_axes(build(algebra, term, axes, known)) == rewriter.free_axes(term)


def test_symbols_keep_their_axes() -> None:
    algebra = Algebra()
    x = algebra.symbol("X", "mk")
    assert algebra.symbol("X", ["k", "m"]) == x
    with pytest.raises(ValueError, match=r"'X' already depends on \['k', 'm'\]"):
        algebra.symbol("X", "m")


def test_symbol_constant_and_function_of_one_name_differ() -> None:
    algebra = Algebra()
    x = algebra.symbol("x")
    assert len({x, algebra.constant("x"), algebra.function("x", x), algebra.exp(x), algebra.sqrt(x)}) == 5


def test_a_function_is_like_no_other_expression_and_has_the_axes_of_its_operand() -> None:
    algebra = Algebra()
    s = algebra.symbol("S", "j")
    m = algebra.function("max", s)
    assert algebra.free_axes(m) == {"j"}
    others = {s, algebra.add(m, m), algebra.add(m, s), algebra.mul(m, m), algebra.function("silu", s)}
    assert len(others) == 5 and m not in others


def test_sum_over_nothing_and_over_an_absent_axis() -> None:
    algebra = Algebra()
    x, y = algebra.symbol("X", "m"), algebra.symbol("Y", "k")
    assert algebra.sum((), x) == x
    extent = algebra.sum("k", x)
    assert extent != x and algebra.free_axes(extent) == {"m"}
    # sum_k (x + y) = |k| x + sum_k y, whichever way it is reached
    assert algebra.sum("k", algebra.add(x, y)) == algebra.add(extent, algebra.sum("k", y))
    assert algebra.sum("kl", x) == algebra.sum("l", algebra.sum("k", x))


@every_preset
def test_division_commutes_with_the_matmul(options: AlgebraOptions) -> None:
    algebra = Algebra(options)
    x, w = tensor(algebra, "X", "m", "k"), tensor(algebra, "W", "n", "k")
    squares = matmul(algebra, "k", x, x)
    root = algebra.sqrt(algebra.mul(squares, algebra.constant("1/k")))
    after = algebra.div(matmul(algebra, "k", x, w), root)
    assert after == matmul(algebra, "k", rms(algebra, "k", x), w)


@every_preset
def test_attention_in_parts_is_attention(options: AlgebraOptions) -> None:
    """Partial sums over loop and grid, division at the end."""
    algebra = Algebra(options)
    specimen = SPECIMENS["attention"](algebra)
    q, k, v = specimen.leaves
    weight = algebra.exp(matmul(algebra, "d", q, k))
    (grid, loop, tile) = parts("j")
    top, bottom = algebra.sum([tile], algebra.mul(weight, v)), algebra.sum([tile], weight)
    for part in (loop, grid):
        top, bottom = algebra.sum([part], top), algebra.sum([part], bottom)
    assert algebra.div(top, bottom) == specimen.target


@every_preset
def test_denominators_of_two_scopes(options: AlgebraOptions) -> None:
    """x / (y z) summed over an axis of y: z comes out, also when it was merged with y before."""
    algebra = Algebra(options)
    x, y, z = algebra.symbol("x", "jk"), algebra.symbol("y", "k"), algebra.symbol("z", "j")
    merged = algebra.sum("k", algebra.div(x, algebra.mul(y, z)))
    assert merged == algebra.div(algebra.sum("k", algebra.div(x, y)), z)


def test_expanded_denominator_is_factored_before_it_is_scoped() -> None:
    algebra = Algebra(STANDARD)
    a, b, c, d = (algebra.symbol(n, axes) for n, axes in (("a", "k"), ("b", "k"), ("c", ""), ("d", "")))
    x, left, right = algebra.symbol("x", "k"), algebra.add(a, b), algebra.add(c, d)
    expanded = algebra.mul(left, right)
    assert len(algebra.terms(expanded)) == 4
    assert algebra.sum("k", algebra.div(x, expanded)) == algebra.div(algebra.sum("k", algebra.div(x, left)), right)


def test_sum_stays_inside_a_root_and_a_function() -> None:
    algebra = Algebra(THOROUGH)
    x = algebra.symbol("x", "k")
    for wrap in (algebra.sqrt, algebra.exp, lambda e: algebra.function("silu", e)):
        assert wrap(algebra.sum("k", x)) != algebra.sum("k", wrap(x))


def test_factored_products_stay_small() -> None:
    sizes = {}
    for name, options in (("expanded", STANDARD), ("factored", QUICK)):
        algebra = Algebra(options)
        total = algebra.symbol("a0")
        for i in range(1, 5):
            total = algebra.add(total, algebra.symbol(f"a{i}"))
        power = total
        for _ in range(3):
            power = algebra.mul(power, total)
        sizes[name] = len(algebra.terms(power))
    assert sizes == {"expanded": 70, "factored": 1}


@every_preset
def test_pickled_algebra_goes_on(options: AlgebraOptions) -> None:
    algebra = Algebra(options)
    specimen = SPECIMENS["qknorm"](algebra)
    copy = pickle.loads(pickle.dumps(algebra))
    assert SPECIMENS["qknorm"](copy) == specimen
    assert copy.exp(specimen.target) == algebra.exp(specimen.target)


def test_numbers_do_not_depend_on_hashes() -> None:
    """Two algebras that are asked the same questions give the same numbers."""
    axes = SYMBOLS["few"]
    rewriter = Rewriter((), axes)
    first, second = Algebra(), Algebra()
    rng = Random(5)
    for _ in range(200):
        term = random_term(rng, 4, rewriter, MIXES["all"])
        assert build(first, term, axes) == build(second, term, axes)
    assert len(first) == len(second)
    assert isinstance(build(first, Symbol("x"), axes), int)
