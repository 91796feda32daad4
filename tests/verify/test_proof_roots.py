"""Roots of numbers: what constants are, and what is proved of norms and scales that are written with them."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_nb.interp.constants import root_of
from mirage_nb.interp.numbers import precision
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.lang.constants import Number
from mirage_nb.verify.proof import Proof, Unproved, check, prove

HEAD = "X: f32[4, 6]\nY: f32[4, 6]\nQ: f32[8, 96]\nK: f32[8, 96]\nreturn "
CENTERED = "(X - mean(X, axis=1, keepdims=True))"


def graph(body: str) -> KernelGraph:
    return parse(HEAD + body).graph


RIGHT = [
    ("X / sqrt(mean(X * X, axis=1, keepdims=True))", "X * sqrt(6) / norm(X, axis=1, keepdims=True)"),
    ("rms_norm(X, eps=0)", "X * 6 ** 0.5 / norm(X, axis=1, keepdims=True)"),
    ("X / sqrt(mean(X * X, axis=1, keepdims=True))", "2 * X / sqrt(4 * mean(X * X, axis=1, keepdims=True))"),
    ("std(X, axis=1, ddof=1)", "std(X, axis=1) * sqrt(6 / 5)"),
    (
        f"{CENTERED} / std(X, axis=1, ddof=1, keepdims=True)",
        f"{CENTERED} * 5 ** 0.5 / norm({CENTERED}, axis=1, keepdims=True)",
    ),
    ("sqrt(X * X / 3 + 1 / 3)", "sqrt(X * X + 1) / sqrt(3)"),
    ("sqrt(2 / 3 * exp(X))", "sqrt(6) / 3 * exp(X / 2)"),
    ("sqrt(1000003 * exp(X))", "sqrt(1000003) * exp(X / 2)"),
    ("sqrt(2036162 * exp(X))", "1009 * sqrt(2) * exp(X / 2)"),
    ("softmax(Q @ K.T / sqrt(96))", "softmax((Q * 96 ** -0.25) @ (K * 96 ** -0.25).T)"),
    ("softmax(Q @ K.T / sqrt(96))", "softmax(Q @ (K / 4).T / sqrt(6))"),
    ("X * 6 ** 0.125 * exp(Y) * 6 ** 0.375", "X * exp(Y) * sqrt(6)"),
    ("sqrt(maximum(X * X * exp(Y), 1e-12))", "maximum(sqrt(X * X) * exp(Y / 2), 1e-6)"),
]
WRONG = [
    ("X / sqrt(mean(X * X, axis=1, keepdims=True))", "X * sqrt(5) / norm(X, axis=1, keepdims=True)"),
    ("std(X, axis=1, ddof=1)", "std(X, axis=1) * sqrt(5 / 6)"),
    ("sqrt(8 * exp(X))", "2 * sqrt(3 * exp(X))"),
    ("softmax(Q @ K.T / sqrt(96))", "softmax((Q * 96 ** -0.25) @ (K * 96 ** -0.5).T)"),
    ("X * 6 ** 0.25 + Y", "X * 6 ** 0.125 + Y"),
    ("sqrt(maximum(X * X * exp(Y), 1e-12))", "maximum(sqrt(X * X) * exp(Y / 2), 1e-12)"),
    ("X * 6 ** 0.25 + Y", "X * 6 ** -0.25 + Y"),
]


@pytest.mark.parametrize(("program", "candidate"), RIGHT)
def test_norms_and_scales_by_roots_are_proved(program: str, candidate: str) -> None:
    pair = graph(program), graph(candidate)
    found = prove(*pair, these_sizes=True)
    assert isinstance(found, Proof)
    check(Proof.from_json(found.to_json()), *pair)


@pytest.mark.parametrize(("program", "candidate"), WRONG)
def test_by_other_roots_they_are_not(program: str, candidate: str) -> None:
    assert isinstance(prove(graph(program), graph(candidate), these_sizes=True), Unproved)


@pytest.mark.parametrize("bits", [10, 53, 300])
def test_a_constant_is_its_root_whatever_precision_balls_have(bits: int) -> None:
    numbers = [Number(1, Fraction(p, q), n) for p in (2, 6, 10**12 + 39) for q in (1, 3, 7) for n in (2, 3, 4, 19)]
    with precision(bits):
        for number in numbers:
            constant = number.attrs()
            assert root_of(constant) == (number.radicand, number.root)
            beside = Fraction(math.nextafter(float(constant.value), math.inf))
            assert root_of(replace(constant, value=beside)) is None
