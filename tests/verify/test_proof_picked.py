"""Proofs about graphs that pick from their inputs by number: slices and paddings are tensors with names."""

from __future__ import annotations

import pytest

from mirage_nb.lang import parse
from mirage_nb.verify import Proof, prove

PAIRS = [
    ("X: f32[8, 4]\nreturn X[2:] * 2", "X: f32[8, 4]\nreturn X[2:] + X[2:]", True),
    ("X: f32[800, 400]\nreturn exp(X[2:] * 2)", "X: f32[800, 400]\nreturn square(exp(X[2:]))", True),
    ("X: f32[8, 4]\nreturn X[2:] * 2", "X: f32[8, 4]\nreturn X[1:-1] + X[2:]", False),
    ("X: f32[8, 4]\nreturn X[2:] * 2", "X: f32[8, 4]\nreturn X[2:] + X[::-1][2:]", False),
    ("X: f32[4, 4]\nreturn X * arange(4) * 2", "X: f32[4, 4]\nreturn (X + X) * arange(4)", True),
]


@pytest.mark.parametrize(("left", "right", "equal"), PAIRS)
def test_slices_and_counted_axes(left: str, right: str, equal: bool) -> None:
    found = prove(parse(left).graph, parse(right).graph)
    assert isinstance(found, Proof) == equal, str(found)


ATTENTION = "Q: f32[64, 8]\nK: f32[{}, 8]\nV: f32[{}, 8]\nreturn softmax({} + where({}, 0, -inf)) @ V"
ALIBI = "(Q @ K.T - {} * (arange(64)[:, None] - arange(64)))"
ROPE = "X: f32[64, 64]\na = arange(64)[:, None] * exp(arange(64) * {})\nreturn X * cos(a) / (1 + exp(X * sin(a))){}"
ONE_HOT = "I: i32[64, 3]\nX: f32[64, 128]\nreturn sum(where(I[:, :, None] == arange(128), X[:, None] / sum(exp(X)), 0))"
CAUSAL = "arange(64)[:, None] >= arange(64)"


def _attention(mask: str, scores: str = "Q @ K.T", keys: int = 64) -> str:
    return ATTENTION.format(keys, keys, scores, mask)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (_attention(CAUSAL), _attention(CAUSAL, "Q @ (K * 2).T / 2"), True),
        (_attention(CAUSAL), _attention(CAUSAL.replace(">=", ">")), False),
        (_attention(f"({CAUSAL}) * (arange(64)[:, None] - arange(64) < 9)"),) * 2 + (True,),
        (_attention(CAUSAL, ALIBI.format("0.5")), _attention(CAUSAL, ALIBI.format("0.5").replace("Q", "1 * Q")), True),
        (_attention("arange(64)[:, None] + 32 >= arange(96)", keys=96),) * 2 + (True,),
        (_attention("arange(96)[32:, None] >= arange(96)", keys=96),) * 2 + (True,),
        (ROPE.format("-0.1", ""), ROPE.format("-0.1", " * 2 / 2"), True),
        (ONE_HOT,) * 2 + (True,),
        ("X: f32[16, 512]\nreturn softmax(X / (1 + arange(8192).reshape(16, 512)))",) * 2 + (True,),
        ("X: f32[128, 64]\nreturn X * sqrt(-1 - arange(128)[:, None])",) * 2 + (False,),
    ],
)
def test_counted_axes_shrink_with_what_they_meet(left: str, right: str, equal: bool) -> None:
    """Graphs that are too large to be run as they are, and that have no value everywhere: what their program is worth
    is seen at small extents of their axes, the counted ones among them."""
    found = prove(parse(left).graph, parse(right).graph)
    assert isinstance(found, Proof) == equal, str(found)
