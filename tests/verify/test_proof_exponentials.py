"""What is made of exponentials has one form however it is written, and nothing that only looks like it has."""

from __future__ import annotations

import pytest

from mirage_nb.lang import parse
from mirage_nb.verify.proof import Proof, check, prove

HEAD = "X: f32[3, 4]\nY: f32[3, 4]\nE = exp(X)\nS = where(X > 0, X, 0)\nreturn "
SAME = {
    "tanh(X)": ("(E - exp(-X)) / (E + exp(-X))", "(exp(2 * X) - 1) / (exp(2 * X) + 1)", "sinh(X) / cosh(X)"),
    "silu(X)": ("X * E / (1 + E)", "X * E * exp(Y) / (exp(Y) + exp(X + Y))"),
    "sigmoid(X + Y)": ("exp(X + Y) / (1 + exp(Y + X))", "exp(X) / (exp(-Y) + exp(X))"),
    "X * sigmoid(1.702 * X + Y)": ("X / (1 + exp(-1.702 * X) * exp(-Y))", "X * (1 - sigmoid(-Y - 1.702 * X))"),
    "gelu_tanh(X)": ("X * sigmoid(1.5957691216057308 * (X + 0.044715 * X * X * X))",),
    "softplus(X)": ("log(1 + E)", "log1p(E)", "X - logsigmoid(X)"),
    "logsigmoid(X)": ("log(sigmoid(X))", "-log(1 + exp(-X))", "log(1 - sigmoid(-X))", "X + log(1 - sigmoid(X))"),
    "softplus(2 * X) / 2": ("relu(X) + log1p(exp(-abs(2 * X))) / 2", "relu(X) + log1p(exp(-2 * abs(X))) * 0.5"),
    "maximum(X, 0) - X * Y + log1p(exp(-abs(X)))": (
        "-(Y * log(sigmoid(X)) + (1 - Y) * log(1 - sigmoid(X)))", "(1 - Y) * X + log(1 + exp(-X))",
    ),
    "logaddexp(X, Y)": ("log(E + exp(Y))", "Y + softplus(X - Y)", "maximum(X, Y) + log1p(exp(-abs(X - Y)))"),
    "softmax(X)": ("exp(X - logsumexp(X, 1)[:, None])", "exp(X - log(sum(E, axis=1, keepdims=True)))"),
    "mish(X)": ("X * tanh(log(1 + E))",),
    "elu(X)": (
        "where(X > 0, X, expm1(X))", "where(X < 0, E - 1, X)", "S + minimum(E - 1, 0)", "relu(X) - relu(1 - E)"
    ),
    "selu(X)": ("1.0507009873554805 * where(X > 0, X, 1.6732632423543772 * (E - 1))",),
    "gelu(X)": ("0.5 * X * (1 + erf(X / sqrt(2)))", "X * (1 - 0.5 * erfc(X * sqrt(0.5)))"),
    "abs(X * Y)": ("abs(X) * abs(Y)", "abs(-Y) * abs(X)"),
    "abs(2 * X * Y * E)": ("2 * abs(Y) * E * abs(X)",),
}  # fmt: skip
WRONG = {
    "tanh(X)": ("(E - exp(-X)) / (E + exp(X))", "(exp(2 * X) - 1) / (exp(X) + 1)", "(E - exp(-Y)) / (E + exp(-X))"),
    "silu(X)": ("X * E / (2 + E)", "X * E / (1 + exp(-X))"),
    "softplus(X)": ("log(2 + E)", "log(1 + exp(-X))", "X + log(1 + E)", "maximum(X, 0) + log1p(exp(-2 * abs(X)))"),
    "logsigmoid(X)": ("log(1 - sigmoid(X))", "log(2 - sigmoid(-X))", "X - log(1 - sigmoid(X))"),
    "softplus(2 * X) / 2": ("relu(X) + log1p(exp(-abs(X))) / 2", "relu(X) + log1p(exp(-2 * abs(X)))",
                            "relu(2 * X) + log1p(exp(-abs(2 * X))) / 2", "relu(X) + log1p(exp(-3 * abs(X))) / 2"),
    "logaddexp(X, Y)": ("log(E + exp(X))", "X + softplus(X - Y)", "maximum(X, Y) + log1p(exp(-abs(X)))"),
    "elu(X)": ("where(Y > 0, X, E - 1)", "where(X > 0, X, E)", "where(X > 0, E - 1, X)", "S + maximum(E - 1, 0)",
               "where(X > 1, X, E - 1)", "S + minimum(exp(Y) - 1, 0)"),
    "gelu(X)": ("0.5 * X * (1 + erf(X / sqrt(3)))", "0.5 * X * (1 + erf(X * sqrt(2)))",
                "0.5 * X * (1 + erf(X * 0.7071067811865476))"),
    "abs(X * Y)": ("abs(X) * Y", "abs(X) * abs(X)", "relu(X) * relu(Y)", "abs(X) * abs(Y) * 2"),
    "softmax(X)": ("exp(X + logsumexp(X, 1)[:, None])", "exp(X - logsumexp(Y, 1)[:, None])"),
    "log(E + exp(Y)) + log(X)": ("log(X * E + X * exp(Y))",),
}  # fmt: skip


@pytest.mark.parametrize("left", SAME)
def test_all_forms_are_one(left: str) -> None:
    program = parse(HEAD + left).graph
    for right in SAME[left]:
        candidate = parse(HEAD + right).graph
        found = prove(program, candidate)
        assert isinstance(found, Proof), right
        check(found, program, candidate)


@pytest.mark.parametrize("left", WRONG)
def test_what_only_looks_like_it_has_no_proof(left: str) -> None:
    program = parse(HEAD + left).graph
    for right in WRONG[left]:
        assert not isinstance(prove(program, parse(HEAD + right).graph), Proof), right
