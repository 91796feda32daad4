"""The error bound: degrees against finite differences, and the claimed chance against what really happens."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.errors import VerificationError
from mirage_nb.interp import field
from mirage_nb.interp.field import FieldInstance, FieldTensor
from mirage_nb.interp.primes import PRIMES, Pool
from mirage_nb.ir import OPS, KernelGraph, OpKind, Trait
from mirage_nb.verify.fields.bound import RULES, Side, forms, trial_bound
from mirage_nb.verify.fields.lax import inspect
from tests.mugraphs import Case, Kernel, attention_safe, cases, gated_mlp, gqa, lora
from tests.shares import examples
from tests.strategies import mugraphs, programs

TINY = Pool("tiny primes", 20, 400)
SMALL = Pool("21-bit primes", 2**20, 2**21)


def test_every_lax_operator_has_a_rule() -> None:
    plain = {kind for kind, spec in OPS.items() if Trait.LAX in spec.traits and Trait.STRUCTURAL not in spec.traits}
    assert set(RULES) == plain | {OpKind.POW, OpKind.MAX, OpKind.MAXIMUM, OpKind.RESCALED_SUM}


def rational(graph: KernelGraph) -> bool:
    report = inspect(graph)
    return report.bounded and not report.exponentials


def along_a_line(graph: KernelGraph, points: int, seed: int) -> list[FieldTensor]:
    """The outputs at a + t * b for t = 0, 1, ..., with a and b random; symbols stay as they are."""
    instance = FieldInstance.draw(seed)
    a, b = ([instance.random(f"{name} {i.name}", i.type.shape) for i in graph.inputs] for name in "ab")
    p = instance.p
    values = []
    for t in range(points):
        inputs = [FieldTensor(p.add(x.p, p.mul(y.p, np.full_like(y.p, t))), None) for x, y in zip(a, b, strict=True)]
        values.append(field.evaluate(graph, inputs, instance))
    return values


@given(programs(steps=6) | mugraphs())
@examples(150)
def test_quotients_have_at_most_the_stated_degrees(graph: KernelGraph) -> None:
    """A quotient of degrees m, n satisfies a linear relation of its first m + n + 2 samples."""
    if not rational(graph):
        return
    bounds = forms(graph)
    worst = max(f.top.degree + f.bottom.degree for f in bounds)
    if worst > 14:
        return
    samples = along_a_line(graph, int(worst) + 4, 3)
    for number, form in enumerate(bounds):
        values = [s[number] for s in samples]
        if all(v.defined.all() for v in values):
            for flat in range(min(3, values[0].p.size)):
                column = [int(v.p.reshape(-1)[flat]) for v in values]
                assert fits(column, int(form.top.degree), int(form.bottom.degree), FieldInstance.draw(3).p.value)


def fits(values: list[int], top: int, bottom: int, p: int) -> bool:
    """Whether N(t) = values[t] * D(t) has a solution with these degrees, D and N not both zero."""
    rows = [
        [pow(t, j, p) for j in range(top + 1)] + [-v * pow(t, j, p) % p for j in range(bottom + 1)]
        for t, v in enumerate(values)
    ]
    return rank(rows, p) < top + bottom + 2


def rank(rows: list[list[int]], p: int) -> int:
    found = 0
    rows = [row[:] for row in rows]
    for column in range(len(rows[0])):
        pivot = next((i for i in range(found, len(rows)) if rows[i][column] % p), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        inverse = pow(rows[found][column], -1, p)
        for i in range(found + 1, len(rows)):
            factor = rows[i][column] * inverse % p
            rows[i] = [(x - factor * y) % p for x, y in zip(rows[i], rows[found], strict=True)]
        found += 1
    return found


def test_the_relation_test_can_fail() -> None:
    p = PRIMES.draw(np.random.default_rng(0))[0]
    cubes = [t**3 % p for t in range(8)]
    assert fits(cubes, 3, 0, p) and not fits(cubes, 2, 0, p) and not fits(cubes, 2, 1, p)


POLYNOMIALS = {
    "product": (lambda k: k.op(OpKind.MATMUL, 0, 1), (2, 0, 1)),
    "quotient": (lambda k: k.op(OpKind.DIV, 0, k.op(OpKind.SQR, 1)), (1, 2, 1)),
    "sum over one denominator": (lambda k: k.sum(k.op(OpKind.DIV, 0, k.sum(1, 1)), 1), (1, 1, 2)),
    "sum over many denominators": (lambda k: k.sum(k.op(OpKind.DIV, 0, 1), 1), (2, 2, 2)),
}


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_degrees_by_hand(name: str) -> None:
    build, (top, bottom, coefficients) = POLYNOMIALS[name]
    k = Kernel(X=(2, 2), Y=(2, 2))
    (form,) = forms(k.returning(build(k)))
    assert (form.top.degree, form.bottom.degree) == (top, bottom)
    assert form.top.bits >= math.log2(coefficients)


def test_softmax_has_as_many_terms_as_keys() -> None:
    for graph in (gqa(s=8).program, gqa(s=8).candidate):
        (form,) = forms(graph)
        assert (2**form.top.terms, 2**form.bottom.terms) == (8, 8)
        assert form.top.inner >= 2


@st.composite
def wrong_pairs(draw: st.DrawFn) -> tuple[KernelGraph, KernelGraph]:
    """x * w against the same plus a factor that has many roots, so that trials often miss it."""
    roots = draw(st.integers(1, 4))
    k = Kernel(X=(1,), Y=(1,))
    product = k.op(OpKind.MUL, 0, 1)
    off = 0
    for root in range(roots):
        off = k.op(OpKind.MUL, off, k.op(OpKind.SUB, 1, k.const(root)))
    return k.returning(product), k.returning(k.op(OpKind.ADD, product, off))


@given(wrong_pairs())
@examples(8)
def test_wrong_graphs_pass_no_more_often_than_claimed(pair: tuple[KernelGraph, KernelGraph]) -> None:
    program, wrong = pair
    bound = trial_bound(program, wrong, TINY)
    assert bound is not None
    rounds = 1500
    missed = sum(agree(program, wrong, seed) for seed in range(rounds))
    claimed = 2**bound
    spread = 4 * math.sqrt(claimed * (1 - claimed) / rounds)
    assert 0 < missed / rounds <= claimed + spread


def agree(program: KernelGraph, candidate: KernelGraph, seed: int) -> bool:
    instance = FieldInstance.draw(seed, TINY)
    inputs = field.random_inputs(program, instance)
    a, b = (field.evaluate(g, inputs, instance)[0] for g in (program, candidate))
    return bool((a.p == b.p).all())


def test_wrong_exponentials_pass_no_more_often_than_claimed() -> None:
    pool = Pool("primes around 2^14", 2**14, 2**15)
    rows, trials = 2048, 60
    k, other_k = Kernel(X=(rows,), Y=(rows,)), Kernel(X=(rows,), Y=(rows,))
    program = k.returning(k.op(OpKind.EXP, 0))
    e = other_k.op(OpKind.EXP, other_k.op(OpKind.MUL, 0, other_k.const(2)))
    other = other_k.returning(other_k.op(OpKind.MUL, e, 1))
    bound = trial_bound(program, other, pool)
    assert bound is not None
    missed = 0
    for seed in range(trials):
        instance = FieldInstance.draw(seed, pool)
        inputs = field.random_inputs(program, instance)
        a, b = (field.evaluate(g, inputs, instance)[0] for g in (program, other))
        missed += int((a.p == b.p).sum())
    assert 0 < missed / (rows * trials) <= 2**bound


@pytest.mark.parametrize("pool", [SMALL, PRIMES], ids=lambda pool: pool.name)
def test_bounds_of_the_named_graphs(pool: Pool) -> None:
    low = math.log2(pool.low)
    (form,) = forms(lora().program)
    bound = trial_bound(lora().program, lora().candidate, pool)
    assert bound == pytest.approx(math.log2(form.top.degree) - low, abs=0.1)
    gated = trial_bound(gated_mlp().program, gated_mlp().candidate, pool)
    assert gated is not None and bound < gated < 0
    assert trial_bound(gqa().program, gqa().candidate, pool) is None


def test_large_coefficients_cost() -> None:
    def scaled(value: int) -> KernelGraph:
        k = Kernel(X=(1,))
        return k.returning(k.op(OpKind.MUL, 0, k.const(value)))

    bounds = [trial_bound(scaled(1), scaled(v), SMALL) for v in (2, 2**40, 2**4000)]
    assert bounds[0] < bounds[1] < bounds[2] < 0


def test_no_bound_is_claimed_beyond_the_theorem() -> None:
    k = Kernel(X=(2,))
    with pytest.raises(VerificationError, match="no bound"):
        forms(k.returning(k.op(OpKind.RELU, 0)))
    for case in cases():
        assert inspect(case.program).bounded == (case.name in ("gated_mlp", "lora", "gqa", "concat_free"))
    assert not inspect(attention_safe().candidate).bounded


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 4), min_size=2, max_size=2))
def test_products_and_sums_of_sides(pair: list[tuple[int, int, int, int]]) -> None:
    a, b = (Side(*map(float, side)) for side in pair)
    assert a.times(b).degree == a.degree + b.degree
    assert a.plus(b).bits >= max(a.bits, b.bits)
    assert a.power(2) == a.times(a)
    if a.inner or b.inner:
        assert 2 ** a.plus(b).terms == pytest.approx(2**a.terms + 2**b.terms)


def expanded(case: Case) -> set[int]:
    return {len(form.varies) for form in forms(case.candidate)}


def test_what_varies_is_known_after_a_block() -> None:
    assert all(expanded(case) for case in (lora(), gated_mlp()))
    for form in itertools.chain(forms(lora().candidate), forms(gqa().candidate)):
        assert all(isinstance(axis, int) for axis in form.varies | form.bottom_varies)
