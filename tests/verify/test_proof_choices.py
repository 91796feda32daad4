"""A branch has a value where it is chosen: nothing more is known of it, and nothing more is asked."""

from __future__ import annotations

import pytest

from mirage_nb.lang import parse
from mirage_nb.verify import Proof, check, prove, verify
from mirage_nb.verify.proof import with_proof
from mirage_nb.verify.verdict import Verdict, VerdictKind

HEAD = "X: f32[2, 4]\nY: f32[2, 4]\n"

HIDDEN = {
    "a root": ("where(X > 0, sqrt(X), 0) + Y", "where(X > 0, sqrt(X), 0) + Y + 0 * sqrt(X)"),
    "a quotient": ("where(X > 0, 1 / X, 0) + Y", "where(X > 0, 1 / X, 0) + Y * X / X"),
    "a logarithm": ("where(X > 0, log(X), 0) * Y", "where(X > 0, log(X), 0) * Y + 0 * log(X)"),
    "a power": ("where(X > 0, X ** 0.5, 0) + Y", "where(X > 0, X ** 0.5, 0) + Y + 0 * X ** 0.5"),
    "the other branch": ("where(X > 0, Y, sqrt(Y))", "where(X > 0, Y, sqrt(Y)) + 0 * sqrt(Y)"),
    "one in another": ("where(X > 0, where(Y > 0, sqrt(Y), 1), 2) * X",
                       "where(X > 0, where(Y > 0, sqrt(Y), 1), 2) * X + 0 * where(Y > 0, sqrt(Y), 1) * sqrt(Y)"),
    "another condition": ("where(X > 0, sqrt(X), 0) + Y", "where(Y > 0, sqrt(X), 0) + Y"),
    "a condition that is wider": ("where(X > 1, sqrt(X - 1), 0) + Y",
                                  "where(X > 1, sqrt(X - 1), 0) + 0 * where(X > 0, sqrt(X - 1), 0) + Y"),
    "read in the open too": ("where(X > 0, sqrt(Y), 0) + X", "where(X > 0, sqrt(Y), 0) + (sqrt(Y) - sqrt(Y)) + X"),
}  # fmt: skip


@pytest.mark.parametrize("how", HIDDEN)
def test_a_branch_says_nothing_of_points_where_it_is_not_chosen(how: str) -> None:
    program, candidate = (parse(f"{HEAD}return {text}").graph for text in HIDDEN[how])
    assert not isinstance(prove(program, candidate), Proof)
    assert verify(program, candidate).kind is VerdictKind.REFUTED


SAME = {
    "itself": ("where(X > 0, sqrt(X), 0) + Y", "Y + where(X > 0, sqrt(X), 0)"),
    "what is needed anyway": ("where(Y > 0, sqrt(X), 0) + sqrt(X)", "sqrt(X) + where(Y > 0, sqrt(X), 0)"),
    "less is read": ("where(Y > 0, sqrt(X), 0) * 0 + sqrt(X) * Y", "Y * sqrt(X)"),
    "a quotient in both": ("where(X > 0, Y / X, 1) * 3", "3 * where(X > 0, Y / X, 1)"),
    "a root of what is chosen": ("sqrt(where(X > 0, exp(Y), 1)) * Y", "Y * sqrt(where(X > 0, exp(Y), 1))"),
}


@pytest.mark.parametrize("how", SAME)
def test_what_is_chosen_alike_is_proved(how: str) -> None:
    program, candidate = (parse(f"{HEAD}return {text}").graph for text in SAME[how])
    found = prove(program, candidate)
    assert isinstance(found, Proof)
    check(found, program, candidate)


def test_outputs_are_paired_in_order_unless_another_order_is_allowed() -> None:
    program = parse(f"{HEAD}return relu(X) * 3, relu(Y) * 3").graph
    turned = parse(f"{HEAD}return 3 * relu(Y), 3 * relu(X)").graph
    unknown = Verdict(VerdictKind.OUTSIDE_LAX)
    assert not with_proof(unknown, program, turned)[0].accepted
    lifted, _ = with_proof(unknown, program, turned, permuted=True)
    assert lifted.kind is VerdictKind.PROVED and lifted.outputs == (1, 0)
