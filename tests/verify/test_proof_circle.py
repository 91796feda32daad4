"""Proofs with sines and cosines: sums of angles, multiples, and rotations."""

from __future__ import annotations

import pytest

from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.verify import check, verify_and_prove
from mirage_nb.verify.verdict import VerdictKind

TURNED = "square(X * cos(A) - Y * sin(A)) + square(X * sin(A) + Y * cos(A))"


def graph(text: str) -> KernelGraph:
    return parse(f"X: f32[4, 6]\nY: f32[4, 6]\nA: f32[4, 6]\nreturn 2 * ({text})").graph


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("sin(X) ** 2", "1 - cos(X) ** 2"),
        ("sin(4 * X)", "4 * sin(X) * cos(X) * cos(2 * X)"),
        ("cos(X - Y)", "cos(Y) * cos(X) + sin(X) * sin(Y)"),
        ("sin(X - Y)", "-sin(Y - X)"),
        ("sin(X) * cos(Y)", "(sin(X + Y) + sin(X - Y)) / 2"),
        ("sin(X + Y + A)", "sin(X) * cos(Y + A) + cos(X) * sin(A + Y)"),
        (TURNED, "X * X + Y * Y"),
        (f"sum({TURNED}, axis=1)", "sum(X * X, axis=1) + sum(Y * Y, axis=1)"),
    ],
)
def test_what_holds_of_angles_is_proved(left: str, right: str):
    pair = graph(left), graph(right)
    verdict, proof = verify_and_prove(*pair)
    assert verdict.kind is VerdictKind.PROVED and proof is not None and not proof.extents
    check(proof, *pair)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("sin(X) ** 2", "1 + cos(X) ** 2"),
        ("cos(2 * X)", "1 - sin(X) ** 2"),
        ("cos(X + Y)", "cos(X) * cos(Y) + sin(X) * sin(Y)"),
        (TURNED.replace("-", "+"), "X * X + Y * Y"),
    ],
)
def test_what_does_not_is_refuted(left: str, right: str):
    assert verify_and_prove(graph(left), graph(right))[0].kind is VerdictKind.REFUTED
