"""The rewriting engine: exactly the steps that Table 2 allows."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from mirage_nb.algebra import Algebra
from mirage_nb.algebra.axioms import EQUATIONS, Hole, Sum, Symbol, add, div, exp, mul
from tests.algebra.exhaustive import MIXES, SYMBOLS, random_term
from tests.algebra.rewriting import Rewriter, build, fill, subterms, with_child

AXES = SYMBOLS["scalars"]
X, Y, Z, W = Symbol("x"), Symbol("y"), Symbol("z"), Symbol("w")
K = ("k", "t")


def closure(term, axes=AXES):
    rewrites, complete = Rewriter(EQUATIONS, axes).closure(term, 10_000)
    assert complete
    return set(rewrites)


def test_closure_of_a_sum_of_products() -> None:
    """xz + yz: 2 orders of the sum * 4 of the products; (x+y)z: 2 orders of the sum * 2 of the product."""
    found = closure(add(mul(X, Z), mul(Y, Z)))
    assert len(found) == 12
    assert mul(Z, add(Y, X)) in found


def test_closure_moves_sums_only_over_independent_factors() -> None:
    assert closure(Sum(K, mul(X, W))) == {
        Sum(K, mul(X, W)),
        Sum(K, mul(W, X)),
        mul(Sum(K, X), W),
        mul(W, Sum(K, X)),
    }
    assert closure(Sum(K, mul(X, Y))) == {Sum(K, mul(X, Y)), Sum(K, mul(Y, X))}


def test_closure_of_a_quotient() -> None:
    assert closure(div(mul(X, Y), Z)) == {
        term for a, b in ((X, Y), (Y, X)) for term in (div(mul(a, b), Z), mul(a, div(b, Z)), mul(div(b, Z), a))
    }


def test_closure_respects_its_limit() -> None:
    rewrites, complete = Rewriter(EQUATIONS, AXES).closure(mul(X, mul(Y, mul(Z, W))), 17)
    assert (len(rewrites), len(set(rewrites)), complete) == (17, 17, False)


def test_steps_go_back_and_keep_the_value(rng: Random, evaluator) -> None:
    rewriter, evaluate = Rewriter(EQUATIONS, AXES), evaluator(AXES, 2)
    seen = 0
    for _ in range(120):
        term = random_term(rng, 4, rewriter, MIXES["all"])
        with np.errstate(over="ignore", invalid="ignore"):
            value = evaluate(term)
            for new in rewriter.steps(term):
                seen += 1
                assert term in rewriter.steps(new)
                assert rewriter.free_axes(new) == rewriter.free_axes(term)
                assert np.allclose(evaluate(new), value, rtol=1e-9, atol=0, equal_nan=True)
    assert seen > 300


def test_subterms_are_each_listed_once() -> None:
    term = mul(add(X, Y), exp(add(X, Y)))
    assert subterms([term, term]) == [term, add(X, Y), exp(add(X, Y)), X, Y]


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="has no parts"):
        with_child(X, 0, Y)
    with pytest.raises(KeyError):
        fill(Hole("x"), {})
    with pytest.raises(TypeError, match="is not a term"):
        fill(Hole("x"), {"x": K})
    with pytest.raises(ValueError, match="pattern has no normal form"):
        build(Algebra(), mul(Hole("x"), X), AXES)
