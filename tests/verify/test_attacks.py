"""Attempts to have a wrong muGraph accepted, or a right one refuted."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from mirage_nb.bench.verification.attacks import ATTACKS, BY_ROOTS
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.verify import verify_and_prove
from mirage_nb.verify.fields.lax import inspect
from mirage_nb.verify.trials import draw_trial, verify
from mirage_nb.verify.verdict import VerdictKind
from tests.mugraphs import Kernel


def program(body: str) -> KernelGraph:
    return parse(f"X: f16[4, 6]\nY: f16[4, 6]\n{body}").graph


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        "S = sqrt(-(X * X) - 1)\nreturn Y + S - S",
        "S = sqrt(-(X * X) - 1)\nreturn Y * S / S",
        "return Y * relu(X) / relu(X)",
        "D = 2 * max(X, axis=1, keepdims=True) - max(X * 2, axis=1, keepdims=True)\nreturn Y * D / D",
        "symbols",
    ],
)
def test_values_that_only_the_field_has_are_refuted(body: str, final: bool) -> None:
    """Equal wherever there is a value, which in reals is nowhere, or not where the program has one."""
    if body == "symbols":
        k = Kernel(X=(4, 6), Y=(4, 6))
        zero = k.op(OpKind.SUB, k.const(Fraction(1, 8), "a"), k.const(Fraction(1, 8), "b"))
        mugraph = k.returning(k.op(OpKind.DIV, k.op(OpKind.MUL, 1, zero), zero))
    else:
        mugraph = program(body)
    verdict = verify(program("return 2 * Y - Y"), mugraph, final=final)
    assert verdict.kind is VerdictKind.REFUTED
    assert verdict.witness is not None and verdict.witness.found == "undefined"


def test_a_root_of_factors_is_not_that_of_a_product() -> None:
    """Both may be negative; the other way round nothing is lost, which a proof says: fields have signs of their own."""
    product, factors = program("return sqrt(X * Y)"), program("return sqrt(X) * sqrt(Y)")
    assert verify(product, factors).kind is VerdictKind.REFUTED
    assert verify(factors, product).kind is VerdictKind.UNDECIDED
    assert verify_and_prove(factors, product)[0].accepted


def test_a_root_of_a_square_is_not_what_was_squared_by_chance() -> None:
    """In a field it is, half of the time; over the reals it is for whatever is drawn."""
    head = "X: f32[1]\nreturn "
    pair = [parse(head + text).graph for text in ("X + 1e30", "sqrt((X + 1e30) * (X + 1e30))")]
    for final in (False, True):
        assert not any(verify(*pair, seed=seed, final=final).accepted for seed in range(40))


@pytest.mark.parametrize("name", [*BY_ROOTS, "folded 2^64 times"])
def test_what_only_a_field_shows_is_not_taken_for_equal(name: str) -> None:
    """Roots that a field has, their signs, and maxima that are counted as often as a word has values."""
    pair = [parse(text).graph for text in ATTACKS[name]]
    assert not verify(*pair).accepted and not verify(*pair, final=True).accepted


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("rms_norm(relu(X))", "relu(X) / sqrt(mean(relu(X) * relu(X), axis=1, keepdims=True))"),
        ("X / sqrt(Y)", "X * sqrt(1 / Y)"),
    ],
)
def test_roots_of_right_graphs_are_no_hindrance(left: str, right: str) -> None:
    assert verify_and_prove(program(f"return {left}"), program(f"return {right}"))[0].accepted


def test_rounding_refutes_nothing() -> None:
    left, right = program("return relu(2 * X) + Y"), "return 2 * relu((X + 10000000000) - 10000000000) + Y"
    assert verify(left, program(right)).kind is VerdictKind.OUTSIDE_LAX
    assert verify(left, program(right.replace("2 * relu", "3 * relu"))).kind is VerdictKind.REFUTED


def test_many_outputs_are_paired_by_their_values_too() -> None:
    left = program("return " + ", ".join(f"relu(2 * X) + {i} * Y" for i in range(1, 8)))
    right = "return " + ", ".join(f"2 * relu(X) + {i} * Y" for i in range(7, 0, -1))
    assert verify(left, program(right), permuted=True).kind is VerdictKind.OUTSIDE_LAX
    assert verify(left, program(right.replace("7 * Y", "8 * Y")), permuted=True).kind is VerdictKind.REFUTED
    assert verify(left, program(right)).kind is VerdictKind.REFUTED


@pytest.mark.parametrize("name", ["symbol eps = 1/2", "eps = 1/2", "symbol"])
def test_inputs_of_any_name_are_not_what_else_is_drawn(name: str) -> None:
    other = Kernel(**{name: (1, 1), "Y": (3, 3)})
    left = other.returning(other.op(OpKind.ADD, 0, 1))
    other = Kernel(**{name: (1, 1), "Y": (3, 3)})
    right = other.returning(other.op(OpKind.ADD, 1, other.const(Fraction(1, 2), "eps")))
    assert verify(left, right).kind is VerdictKind.REFUTED


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("suffix", ["again 0", "again 1", "sample 0", "instead 0"])
def test_elements_drawn_again_are_not_those_of_an_input_of_that_name(suffix: str, final: bool) -> None:
    """Of X, what has no root is drawn again; the other input may not be what comes then."""
    graphs = []
    for wrong in (False, True):
        k = Kernel(**{"X": (8, 2), f"X {suffix}": (8, 2)})
        root = k.op(OpKind.SQRT, 0)
        graphs.append(k.returning(k.op(OpKind.MUL, root, 1 if wrong else 0)))
    assert verify(*graphs, final=final).kind is VerdictKind.REFUTED
    drawn = draw_trial(graphs[0], inspect(graphs[0]), 5).inputs
    assert not np.any(drawn["X"].p == drawn[f"X {suffix}"].p)
