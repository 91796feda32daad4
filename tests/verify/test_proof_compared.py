"""What is compared depends on no positive factor, and exponentials are compared by their exponents; whole numbers in
floors; logarithms of products and roots."""

from __future__ import annotations

import pytest

from mirage_nb.lang import parse
from mirage_nb.verify import Proof, check, prove, verify
from mirage_nb.verify.verdict import VerdictKind

HEAD = "X: f32[4, 6]\nY: f32[4, 6]\nZ: f32[4, 6]\nu: f32[4]\nreturn "
SAME = {
    "the largest of a softmax": ("argmax(softmax(X), axis=1)", "argmax(X, axis=1)"),
    "the largest exponential": ("argmax(exp(X), axis=1)", "argmax(X, axis=1)"),
    "the largest share": ("argmax(X / (u[:, None] * u[:, None] + 1), axis=1)", "argmax(X, axis=1)"),
    "a mask of the largest": (
        "where(softmax(X) == max(softmax(X), axis=1, keepdims=True), Y, 0)",
        "where(X == max(X, axis=1, keepdims=True), Y, 0)",
    ),
    "ranks": ("sum(softmax(X)[:, :, None] >= softmax(X)[:, None, :], axis=2)",
              "sum(X[:, :, None] >= X[:, None, :], axis=2)"),
    "an exponential and 1": ("where(exp(X) > 1, X, 0)", "relu(X)"),
    "1 and an exponential": ("where(exp(X) <= 1, X, 0)", "minimum(X, 0)"),
    "exponentials of sums": ("where(exp(X) * exp(Y) >= exp(Z), X, 0)", "where(X + Y >= Z, X, 0)"),
    "a positive factor": ("where(sqrt(Y * Y + 1) * X > sqrt(Y * Y + 1) * Z, X, Z)", "maximum(X, Z)"),
    "a whole number": ("floor(X + 2)", "floor(X) + 2"),
    "a whole number and a half": ("floor(X - 2.5)", "floor(X + 0.5) - 3"),
    "what is left": ("(X + 6) % 3", "X % 3"),
    "a product of sums": ("log((X * X + 1) * (Y * Y + 2))", "log(X * X + 1) + log(Y * Y + 2)"),
    "products of sums over an axis": (
        "log((sum(X * X, axis=1) + 1) * (sum(Y * Y, axis=1) + 1))",
        "log(sum(X * X, axis=1) + 1) + log(sum(Y * Y, axis=1) + 1)",
    ),
    "a power of a sum": ("log((X * X + 1) ** 3)", "3 * log(X * X + 1)"),
    "a root": ("log(sqrt(X * X + 1))", "0.5 * log(X * X + 1)"),
}  # fmt: skip
OTHER = {
    "a factor that may be negative": ("where(Y * X > Y * Z, X, Z)", "maximum(X, Z)"),
    "a factor that may be 0": ("where(Y * Y * X >= Y * Y * Z, X, Z)", "maximum(X, Z)"),
    "another share": ("argmax(X / (Y * Y + 1), axis=1)", "argmax(X, axis=1)"),
    "exponentials of opposites": ("argmax(exp(-X), axis=1)", "argmax(X, axis=1)"),
    "two exponentials": ("where(2 * exp(X) > exp(Y), X, Y)", "maximum(X, Y)"),
    "an exponential and 2": ("where(exp(X) > 2, X, 0)", "relu(X)"),
    "equal exponentials": ("where(exp(X) >= 1, Y, 0)", "where(X > 0, Y, 0)"),
    "a half": ("floor(X + 0.5)", "floor(X) + 0.5"),
    "what is no number": ("floor(X + Y)", "floor(X) + Y"),
    "a product of both signs": ("log(X * Y) + Z", "log(X) + log(Y) + Z"),
}


@pytest.mark.parametrize("how", SAME)
def test_both_are_one(how: str) -> None:
    left, right = (parse(f"{HEAD}{text}").graph for text in SAME[how])
    for pair in ((left, right), (right, left)):
        proof = prove(*pair)
        assert isinstance(proof, Proof), proof
        assert check(proof, *pair) is None


@pytest.mark.parametrize("how", OTHER)
def test_others_are_not(how: str) -> None:
    pair = [parse(f"{HEAD}{text}").graph for text in OTHER[how]]
    assert not isinstance(prove(*pair), Proof)
    assert verify(*pair).kind is not VerdictKind.FIELD
