"""Wrong candidates that were made to pass: each is refused, by every way in, with a reason that is true."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from mirage_nb.bench.verification.attacks import BOTH, NONE
from mirage_nb.bench.verification.attacks import ON_BOTH_LINES as HEAD
from mirage_nb.interp.primes import PRIMES
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.verify import verify_and_prove
from mirage_nb.verify.fields.drawn import trial_seed
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.mugraphs import Kernel


def graph(text: str, head: str = HEAD) -> KernelGraph:
    return parse(head + text).graph


def refused(left: KernelGraph, right: KernelGraph) -> list[Verdict]:
    found = [verify(left, right), verify(left, right, final=True), verify_and_prove(left, right)[0]]
    assert {verdict.kind for verdict in found} == {VerdictKind.REFUTED}, found
    return found


@pytest.mark.parametrize("name", BOTH)
def test_refused(name: str) -> None:
    left, right = map(graph, BOTH[name])
    for verdict in refused(left, right):
        assert verdict.witness is not None and verdict.witness.expected != verdict.witness.found


def test_an_unused_input_turns_nothing_off() -> None:
    head = "X: f32[8]\nZ: f32[16777217]\n"
    assert verify(graph("return 2*X", head), graph("return 2*X*relu(X)/relu(X)", head)).kind is VerdictKind.REFUTED


def test_a_large_input_that_is_used_turns_nothing_off() -> None:
    head = "X: f32[8]\nZ: f32[2097153]\n"
    left = graph("return 2*X, sum(Z, axis=0, keepdims=True)", head)
    right = graph(NONE + "return X + sqrt(X*X) + 0*sqrt(S) + 0*sqrt(S*X), sum(Z, axis=0, keepdims=True)", head)
    assert verify(left, right).kind is VerdictKind.REFUTED


def test_copies_in_another_order() -> None:
    head = "X: f32[2, 2]\nZ: f32[2, 2, 2, 2]\n"
    text = "reshape(repeat(reshape(X, 4), 4, axis=0), 2, 2, 2, 2) + Z", "reshape(X, 1, 2, 2, 1) + Z"
    refused(*(graph(f"return {body}", head) for body in text))
    refused(*(graph(f"return relu({body} - 8)", head) for body in text))


def fitted(primes: list[int], exact: bool) -> KernelGraph:
    """3 X, and X times about one thousandth of something that is zero modulo all these primes."""
    product = 1
    for prime in primes:
        product *= prime
    k = Kernel(X=(4, 4))
    off = k.op(OpKind.MUL, 0, k.const(Fraction(product, 2 ** (product.bit_length() + 10))))
    tripled = k.op(OpKind.MUL, 0, k.const(3))
    other = off if exact else k.op(OpKind.MUL, off, k.op(OpKind.RELU, 0))
    return k.returning(k.op(OpKind.ADD, tripled, other))


@pytest.mark.parametrize("exact", [True, False])
def test_constants_that_are_zero_modulo_primes_that_were_seen(exact: bool) -> None:
    """Of all seeds that somebody may try, and of the verdict before."""
    plain = Kernel(X=(4, 4))
    program = plain.returning(plain.op(OpKind.MUL, 0, plain.const(3)))
    seen = verify(program, program).primes
    drawn = [PRIMES.draw(np.random.default_rng([trial_seed(seed, n), 0])) for seed in range(4) for n in range(8)]
    candidate = fitted([prime for pair in (*seen, *drawn) for prime in pair], exact)
    for options in ({}, {"final": True}, {"seed": 0}, {"seed": 3, "final": True}):
        assert verify(program, candidate, **options).kind is VerdictKind.REFUTED


def test_primes_are_not_met_again() -> None:
    program = graph("return X*Y")
    drawn = [verify(program, program).primes for _ in range(6)]
    assert len({pair for primes in drawn for pair in primes}) == sum(map(len, drawn))
    assert verify(program, program, seed=5) == verify(program, program, seed=5)


def test_what_has_no_value_anywhere_is_not_taken_for_equal() -> None:
    left, right = graph("return Y*(X-X)/(X-X)"), graph("return X*(X-X)/(X-X)")
    assert verify(left, right).kind is VerdictKind.UNDECIDED


@pytest.mark.parametrize(
    ("factor", "columns"),
    [
        ("1 / (COUNT - COLUMNS)", 8),
        ("1 / (COUNT - COLUMNS)", 1024),
        ("1 / (COUNT - COLUMNS)", 300_000),
        ("log(COUNT - COLUMNS - 2)", 8),
        ("log(COUNT - COLUMNS - 2)", 1024),
    ],
)
def test_nor_is_what_has_none_at_its_own_sizes(factor: str, columns: int) -> None:
    """Elements of the widest one depend on too much to be computed exactly."""
    factor = factor.replace("COUNT", "sum(0*X + 1, axis=1, keepdims=True)").replace("COLUMNS", str(columns))
    pair = [graph(f"return {body}", f"X: f32[2, {columns}]\n") for body in (f"X * 2 * {factor}", f"2 * ({factor} * X)")]
    verdict, proof = verify_and_prove(*pair)
    assert (verdict.kind, proof) == (VerdictKind.UNDECIDED, None)
    assert "at these sizes output 0 of the program has a value at none of the points" in verdict.note
    assert columns > 1024 or "the program has a value over the reals at none of" in verdict.note


def test_a_candidate_may_be_defined_on_more() -> None:
    assert verify(graph("return sqrt(X)*sqrt(X)*Y"), graph("return X*Y")).accepted
    assert verify(graph("return 2*Y*relu(X)/relu(X)"), graph("return 2*Y")).accepted


def test_roots_that_exist_by_chance_prove_nothing() -> None:
    """Right over the reals; in the field, the product may have a root where the factors have none."""
    left = graph("return sqrt((X*X+1)*(Y*Y+1))")
    verdict = verify(left, graph("return sqrt(X*X+1)*sqrt(Y*Y+1)"))
    assert verdict.kind is VerdictKind.UNDECIDED and "prove nothing" in verdict.note


@pytest.mark.parametrize("shape", ["[300, 300]", "[4, 8]"])
def test_rounding_is_the_same_at_every_size(shape: str) -> None:
    head = f"X: f32{shape}\n"
    plain, shifted = graph("return relu(X)", head), graph("return relu((X+1e18)-1e18)", head)
    assert verify(plain, shifted).accepted and verify(shifted, plain).accepted


def test_outputs_stand_in_order_and_under_their_names() -> None:
    turned = graph("P = X*Y\nQ = X+Y\nreturn Q, P")
    program = graph("P = X*Y\nQ = X+Y\nreturn P, Q")
    verdict = verify(program, turned)
    assert verdict.kind is VerdictKind.REFUTED and "P is output 0 of the program and output 1" in verdict.note
    renamed = graph("P = X+Y\nQ = X*Y\nreturn Q, P")
    assert verify(program, renamed).kind is VerdictKind.REFUTED
    allowed = verify(program, turned, permuted=True)
    assert allowed.accepted and allowed.outputs == (1, 0) and "as allowed" in allowed.note
    assert verify(program, graph("A = X*Y\nB = X+Y\nreturn A, B")).accepted


def test_constants_beyond_all_floats() -> None:
    k = Kernel(X=(4,))
    huge = k.returning(k.op(OpKind.RELU, k.op(OpKind.MUL, 0, k.const(Fraction(10**400)))))
    k = Kernel(X=(4,))
    larger = k.returning(k.op(OpKind.RELU, k.op(OpKind.MUL, 0, k.const(Fraction(10**400 + 1)))))
    assert verify(huge, huge).accepted
    assert verify(huge, larger).kind is VerdictKind.REFUTED


def test_exponentials_of_nothing_but_constants() -> None:
    k = Kernel(X=(4,))
    made = k.returning(k.op(OpKind.MUL, 0, k.op(OpKind.EXP, k.const(2))))
    assert verify(made, made, final=True).accepted
