"""What each axiom is for: a target and a part of it that only this axiom makes a part; and what the search finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_nb.algebra import QUICK, STANDARD, THOROUGH, AlgebraOptions, algebra_for, oracle_for
from mirage_nb.algebra.axioms import EQUATIONS, UNIT_AXIS, Sum, Symbol, Term, add, div, exp, mul, sqrt
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Budget, KernelStructure, Prepared, configurations, prepare, run_configuration
from tests.algebra.exhaustive import MIXES, SYMBOLS, survey
from tests.algebra.rewriting import Rewriter, SymbolAxes, build, subterms
from tests.shares import crossed

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
    "div_distributes": (add(div(X, l_), div(Y, l_)), div(add(X, Y), l_)),
    "mul_div": (mul(div(X, l_), W), mul(X, W)),  # the product before the division
    "div_div": (div(div(X, l_), r_), mul(l_, r_)),
    "sum_one": (Sum(UNIT_AXIS, exp(X)), Sum(UNIT_AXIS, X)),
    "sum_sum": (Sum(K, Sum(N, W)), Sum(K, W)),
    "sum_add": (add(Sum(K, X), Sum(K, Y)), Sum(K, add(X, Y))),
    "sum_mul": (Sum(K, mul(X, l_)), mul(Sum(K, X), l_)),
    "sum_div": (Sum(K, div(X, l_)), div(Sum(K, X), l_)),  # the division after the loop
    "exp_product": (mul(exp(X), exp(Y)), add(X, Y)),
    "sqrt_product": (mul(sqrt(X), sqrt(Y)), mul(X, Y)),
}
"""For each axiom a target, and a part of it."""
SWITCHABLE = [axiom.name for axiom in EQUATIONS if axiom.switchable]
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
    algebra = algebra_for(options)
    return oracle_for(algebra, [build(algebra, target, AXES)]).reaches(build(algebra, part, AXES))


@pytest.mark.parametrize("name", FOR)
def test_the_oracle_keeps_it(name: str) -> None:
    assert reaches(THOROUGH, *FOR[name])


@pytest.mark.parametrize("name", SWITCHABLE)
def test_the_oracle_cuts_it_when_the_axiom_is_off(name: str) -> None:
    assert not reaches(replace(THOROUGH, off=frozenset({name})), *FOR[name])


@crossed({
    "preset": [QUICK, STANDARD, THOROUGH],
    "name": SWITCHABLE,
})
def test_without_an_axiom_no_part_is_cut_that_the_others_make(name: str, preset: AlgebraOptions) -> None:
    options = replace(preset, off=preset.off | {name})
    for number, (mix, symbols) in enumerate((m, s) for m in MIXES.values() for s in SYMBOLS.values()):
        found = survey(options, symbols, mix, seed=number, targets=1, limit=100, pairs=0)
        assert not found.wrong, found.wrong[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHABLE)
def test_without_an_axiom_no_part_of_many_is_cut(name: str) -> None:
    options = replace(THOROUGH, off=frozenset({name}))
    for number, (mix, symbols) in enumerate((m, s) for m in MIXES.values() for s in SYMBOLS.values()):
        found = survey(options, symbols, mix, seed=1000 + number, targets=10, limit=400, pairs=0)
        assert not found.wrong, found.wrong[0]


def test_without_any_axiom_that_can_be_missed_no_part_is_cut() -> None:
    options = AlgebraOptions(off=frozenset(SWITCHABLE))
    for number, (mix, symbols) in enumerate((m, s) for m in MIXES.values() for s in SYMBOLS.values()):
        found = survey(options, symbols, mix, seed=number, targets=4, limit=100, pairs=0)
        assert not found.wrong, found.wrong[0]


LOST = {
    "add_associates": ("X + (Y + Z)", "EwAdd(EwAdd(X, Y), Z)"),
    "mul_associates": ("X * (Y * Z)", "EwMul(EwMul(X, Y), Z)"),
    "mul_distributes": ("(X + Y) * Z", "EwAdd(EwMul(X, Z), EwMul(Y, Z))"),
    "div_distributes": ("(X + Y) / Z", "EwAdd(EwDiv(X, Z), EwDiv(Y, Z))"),
    "mul_div": ("(X / Y) * Z", "EwDiv(EwMul(X, Z), Y)"),
    "div_div": ("(X / Y) / Z", "EwDiv(X, EwMul(Y, Z))"),
    "sum_add": ("sum(X + Y, axis=-1, keepdims=True)", "EwAdd(Sum(X), Sum(Y))"),
    "sum_mul": ("sum(X * m, axis=-1, keepdims=True)", "EwMul(Sum(X), m)"),
    "sum_div": ("sum(X / m, axis=-1, keepdims=True)", "EwDiv(Sum(X), m)"),
    "exp_product": ("exp(X + Y)", "EwMul(EwExp(X), EwExp(Y))"),
    "sqrt_product": ("sqrt(X * Y)", "EwMul(Sqrt(X), Sqrt(Y))"),
}
"""For each switchable axiom a program, and a muGraph of it that needs the axiom."""


def test_every_switchable_axiom_has_one_to_lose() -> None:
    assert list(LOST) == SWITCHABLE


@pytest.mark.parametrize("name", LOST)
def test_a_mugraph_is_lost_without_the_axiom(name: str) -> None:
    expression, lost = LOST[name]
    shapes = "X: f16[16, 64]\nY: f16[16, 64]\nZ: f16[16, 64]\nm: f16[16, 1]\n"
    graph = parse(f"{shapes}O = {expression}\nreturn O").graph
    every, fewer = found(graph, THOROUGH), found(graph, replace(THOROUGH, off=frozenset({name})))
    assert lost in every and lost not in fewer
    assert fewer < every and fewer, "the program itself is always found"


@pytest.mark.parametrize("name", SWITCHABLE)
def test_what_is_found_without_an_axiom_is_found_with_it(name: str) -> None:
    graph = parse("X: f16[16, 64]\nW: f16[64, 32]\nO = rms_norm(X) @ W\nreturn O").graph
    fewer = found(graph, replace(THOROUGH, off=frozenset({name})))
    assert fewer and fewer <= found(graph, THOROUGH)


def found(graph: KernelGraph, options: AlgebraOptions) -> set[str]:
    """Every muGraph of one kernel without a loop, as a term."""
    prepared = prepare(graph)
    effort = replace(EFFORTS["standard"], options=options, kernels=1, extra=4, structures=10_000)
    first = configurations(prepared, effort)[0]
    result = run_configuration(prepared, first, effort, Budget())
    assert result.saturated
    return {shown(structure.kernels[0], prepared) for structure in result.structures}


def shown(kernel: KernelStructure, prepared: Prepared) -> str:
    terms: list[str] = []
    for step in kernel.steps:
        if step.source is not None:
            terms.append(prepared.tensors[step.source.index].name)
        else:
            args = [terms[i] for i in step.reads]
            ordered = args if step.operator.label in ("EwDiv", "Matmul") else sorted(args)
            terms.append(f"{step.operator.label}({', '.join(ordered)})")
    return terms[kernel.outputs[0]]
