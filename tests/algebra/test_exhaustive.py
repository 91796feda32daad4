"""Theorem 1, tried: no part of any rewrite of a target is cut, and hardly anything else is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from random import Random

import pytest

from mirage_nb.algebra import QUICK, STANDARD, THOROUGH, AlgebraOptions, levels, matching
from mirage_nb.algebra.atoms import AtomTable, bits
from mirage_nb.algebra.axioms import Apply, Sum, Symbol, Term, add, div, exp, mul, sqrt
from mirage_nb.algebra.normal_form import Algebra
from tests.algebra.exhaustive import MIXES, SYMBOLS, Survey, examine, survey
from tests.algebra.rewriting import Rewriter, SymbolAxes

PRESETS = {"quick": QUICK, "standard": STANDARD, "thorough": THOROUGH}
every_preset = pytest.mark.parametrize("options", PRESETS.values(), ids=PRESETS)

KEPT_PER_THOUSAND = {"quick": 5.0, "standard": 1.0, "thorough": 1.0}
"""How many of a thousand non-parts, all one operator away from a part, may be kept."""


def total(found: Iterable[Survey]) -> Survey:
    out = Survey()
    for s in found:
        out.targets += s.targets
        out.parts += s.parts
        out.complete += s.complete
        out.asked += s.asked
        out.kept += s.kept
        out.wrong += s.wrong
    return out


def surveys(options: AlgebraOptions, seed: int, targets: int, *, depth: int = 4, limit: int = 1000) -> Iterator[Survey]:
    """One survey for each mix of operators and set of symbols."""
    for i, (mix, symbols) in enumerate((m, s) for m in MIXES.values() for s in SYMBOLS.values()):
        yield survey(options, symbols, mix, seed=seed + i, targets=targets, depth=depth, limit=limit)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_part_is_cut_and_few_others_are_kept(preset: str) -> None:
    found = total(surveys(PRESETS[preset], seed=1, targets=3))
    assert found.wrong == []
    assert found.parts > 25_000 and found.asked > 5_000 and found.complete > 15
    assert found.kept / found.asked * 1000 < KEPT_PER_THOUSAND[preset]


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seed", (100, 200))
def test_no_part_is_cut_in_a_million(preset: str, seed: int) -> None:
    found = total(surveys(PRESETS[preset], seed=seed, targets=40, limit=1500))
    deeper = total(surveys(PRESETS[preset], seed=seed + 50, targets=20, depth=5, limit=1500))
    assert found.wrong == [] and deeper.wrong == []
    assert found.parts + deeper.parts > 500_000
    assert found.kept / found.asked * 1000 < KEPT_PER_THOUSAND[preset]


# ---- programs: two parts per summed axis keep the number of rewrites small enough to visit many

K1, K2, J1, M, N, D = ("k", "l"), ("k", "t"), ("j", "t"), ("m",), ("n",), ("d", "t")
PROGRAM_AXES: SymbolAxes = {
    "X": frozenset({M, K1, K2}),
    "W": frozenset({N, K1, K2}),
    "W2": frozenset({N, K1, K2}),
    "Q": frozenset({M, D}),
    "K": frozenset({J1, D}),
    "V": frozenset({N, J1}),
    "H": frozenset({M, K2}),
    "A": frozenset({M, K2}),
    "Y": frozenset({M, K2}),
    "c": frozenset(),
}
X, W, W2, Q, K, V, H, A, Y, C = (Symbol(name) for name in ("X", "W", "W2", "Q", "K", "V", "H", "A", "Y", "c"))


def over_k(body: Term) -> Term:
    return Sum(K1, Sum(K2, body))


def norm(axis: object, x: Term) -> Term:
    return sqrt(mul(C, Sum(axis, mul(x, x))))


def softmax(score: Term) -> Term:
    weight = exp(score)
    return Sum(J1, mul(div(weight, Sum(J1, weight)), V))


SCORE = Sum(D, mul(Q, K))
PROGRAMS: dict[str, Term] = {
    "rmsnorm": over_k(mul(div(X, sqrt(mul(C, over_k(mul(X, X))))), W)),
    "gated_mlp": mul(Apply("silu", (over_k(mul(X, W)),)), over_k(mul(X, W2))),
    "attention": softmax(SCORE),
    "attention_safe": softmax(add(mul(C, SCORE), Apply("max", (mul(C, SCORE),)))),
    "qknorm": softmax(Sum(D, mul(div(Q, norm(D, Q)), div(K, norm(D, K))))),
    "ntrans": div(add(Y, mul(A, add(div(H, norm(K2, H)), Y))), norm(K2, add(Y, mul(A, add(div(H, norm(K2, H)), Y))))),
}


@every_preset
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_keep_all_parts(options: AlgebraOptions, name: str) -> None:
    rewriter = Rewriter(options.equations(), PROGRAM_AXES, factored=options.products == "factored")
    found = Survey()
    examine(options, rewriter, PROGRAMS[name], found, Random(1), limit=1200, pairs=20)
    assert found.wrong == []
    assert found.parts > 80


# ---- mutants: these surveys can fail


def only_plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over-strict: a part may not stand inside a sum."""
    monkeypatch.setattr(matching.Matcher, "completes", lambda *_: False)


def one_factor_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over-strict: exponents and denominators are not put together again."""
    monkeypatch.setattr(levels, "same_scope", lambda _, factors: [[f] for f in factors])


def no_free_choice_of_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over-strict: axes that the first term does not have are never summed later."""
    original = matching._environments

    def strict(first, whole, scope, axes):
        yield from list(original(first, whole, scope, axes))[:1]

    monkeypatch.setattr(matching, "_environments", strict)


def sums_take_all_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong normal form: factors that do not depend on the axis of a sum stay inside."""

    def sum_of_all(self, mask, m):
        names, factors = list(bits(mask)), []
        variable = {-1 - a: v for v, a in enumerate(names)}
        self.open(self.monomials[m].atoms, names, factors)
        bound = [(p, tuple(variable.get(v, v) for v in vs)) for p, vs in factors]
        return self._block(names, list(range(len(names))), bound)

    monkeypatch.setattr(AtomTable, "sum", sum_of_all)


def roots_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong normal form for the axioms in force: sqrt(x) sqrt(y) is not sqrt(x y)."""
    monkeypatch.setattr(Algebra, "pieces", lambda self, e: (e,))


@pytest.mark.parametrize(
    "mutate",
    [
        only_plain_products,
        one_factor_at_a_time,
        no_free_choice_of_axes,
        sums_take_all_in,
        roots_stay_apart,
    ],
    ids=lambda f: f.__name__,
)
def test_wrong_cuts_are_caught(mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    tried = (s for seed in range(1, 200, 20) for s in surveys(THOROUGH, seed, targets=4, limit=300))
    assert any(found.wrong for found in tried)


def scope_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too lax: what a part has summed may still occur in factors outside of it."""
    original = levels.network

    def touched_once(algebra, monomial):
        net = original(algebra, monomial)
        return replace(net, touch=tuple(min(n, 1) for n in net.touch))

    monkeypatch.setattr(matching, "network", touched_once)
    monkeypatch.setattr(matching._Rest, "renamed", lambda self, v: self._number.get(v, v))


def everything_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too lax: divisibility of flats decides."""
    monkeypatch.setattr(matching.Matcher, "completes", lambda *_: True)


@pytest.mark.parametrize("mutate", [scope_is_ignored, everything_fits], ids=lambda f: f.__name__)
def test_wrong_keeps_are_caught(mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    found = total(surveys(STANDARD, seed=1, targets=3))
    assert found.wrong == []
    assert found.kept / found.asked * 1000 > KEPT_PER_THOUSAND["standard"]
