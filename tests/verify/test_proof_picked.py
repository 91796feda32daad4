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
