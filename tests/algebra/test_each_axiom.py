"""What each axiom is for: a target and a part of it that only this axiom makes a part; and what the search finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_nb.algebra import THOROUGH, Algebra, AlgebraOptions, Oracle
from mirage_nb.algebra.axioms import EQUATIONS, UNIT_AXIS, Sum, Symbol, Term, add, div, exp, mul, sqrt
from mirage_nb.algebra.rewriting import Rewriter, SymbolAxes, build, subterms
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Budget, configurations, prepare, run_configuration

M, K, N, R = ("m",), ("k",), ("n",), ("r",)
AXES: SymbolAxes = {
    "X": frozenset({M, K}),
    "Y": frozenset({M, K}),
    "G": frozenset({M, K}),
    "W": frozenset({K, N}),
    "A": frozenset({K, R}),
    "C": frozenset({R, N}),
    "l": frozenset({M}),
    "r": frozenset({M}),
}
X, Y, G, W, A, C, l_, r_ = (Symbol(name) for name in AXES)

FOR: dict[str, tuple[Term, Term]] = {
    "add_commutes": (add(add(X, Y), G), add(X, G)),
    "mul_commutes": (mul(mul(X, Y), G), mul(X, G)),
    "add_associates": (add(add(X, Y), G), add(Y, G)),
    "mul_associates": (mul(mul(X, Y), G), mul(Y, G)),
    "mul_distributes": (add(mul(X, W), mul(Y, W)), add(X, Y)),
    "div_distributes": (add(div(X, l_), div(Y, l_)), add(X, Y)),
    "mul_div": (mul(div(X, l_), W), mul(X, W)),  # the product before the division
    "div_div": (div(div(X, l_), r_), mul(l_, r_)),
    "sum_one": (Sum(UNIT_AXIS, exp(X)), Sum(UNIT_AXIS, X)),
    "sum_sum": (Sum(K, Sum(N, W)), Sum(K, W)),
    "sum_add": (add(Sum(K, X), Sum(K, Y)), add(X, Y)),
    "sum_mul": (Sum(R, mul(Sum(K, mul(X, A)), C)), mul(A, C)),  # low rank: the weights are multiplied first
    "sum_div": (Sum(K, div(X, l_)), Sum(K, X)),  # the division after the loop
    "exp_product": (mul(exp(X), exp(Y)), add(X, Y)),
    "sqrt_product": (mul(sqrt(X), sqrt(Y)), mul(X, Y)),
}
"""For each axiom a target, and a part of it."""
LIMIT = 20_000


def parts(target: Term, without: str = "") -> set[Term]:
    """All parts of all rewrites, without one axiom."""
    rewriter = Rewriter(tuple(axiom for axiom in EQUATIONS if axiom.name != without), AXES)
    rewrites, complete = rewriter.closure(target, LIMIT)
    assert complete
    return set(subterms(rewrites))


def test_every_axiom_has_an_example() -> None:
    assert list(FOR) == [axiom.name for axiom in EQUATIONS]


@pytest.mark.parametrize("name", [name for name in FOR if name != "sum_one"])
def test_only_this_axiom_makes_it_a_part(name: str) -> None:
    target, part = FOR[name]
    assert part in parts(target)
    assert part not in parts(target, without=name)


def reaches(options: AlgebraOptions, target: Term, part: Term) -> bool:
    algebra = Algebra(options)
    return Oracle(algebra, [build(algebra, target, AXES)]).reaches(build(algebra, part, AXES))


@pytest.mark.parametrize("name", FOR)
def test_the_oracle_keeps_it(name: str) -> None:
    assert reaches(THOROUGH, *FOR[name])


@pytest.mark.parametrize("name", [axiom.name for axiom in EQUATIONS if axiom.switchable])
def test_the_oracle_cuts_it_when_the_axiom_is_off(name: str) -> None:
    assert not reaches(replace(THOROUGH, off=frozenset({name})), *FOR[name])


SEARCHED = {
    "exp_product": ("exp(X + Y) @ W", ["EwExp", "EwExp", "EwMul", "Matmul"]),
    "sqrt_product": ("(X / (sqrt(X * X) * sqrt(Y * Y))) @ W", ["EwDiv", "EwMul", "Matmul", "Sqr", "Sqr", "Sqrt"]),
}
"""For each switchable axiom a program, and the operators of a muGraph that it makes possible."""


@pytest.mark.parametrize("name", SEARCHED)
def test_switching_an_axiom_off_changes_what_the_search_finds(name: str) -> None:
    expression, operators = SEARCHED[name]
    graph = parse(f"X: f16[16, 64]\nY: f16[16, 64]\nW: f16[64, 32]\nO = {expression}\nreturn O").graph
    assert operators in found(graph, THOROUGH)
    assert operators not in found(graph, replace(THOROUGH, off=frozenset({name})))


def found(graph: KernelGraph, options: AlgebraOptions) -> list[list[str]]:
    """The operators of every muGraph of one kernel without a loop."""
    prepared = prepare(graph)
    effort = replace(EFFORTS["standard"], options=options, kernels=1, extra=2, structures=10_000)
    first = configurations(prepared, effort)[0]
    result = run_configuration(prepared, first, effort, Budget(), lambda counts: None, lambda: False)
    assert result.saturated
    kernels = [structure.kernels[0] for structure in result.structures]
    return [sorted(step.operator.label for step in k.steps if not step.operator.is_leaf) for k in kernels]
