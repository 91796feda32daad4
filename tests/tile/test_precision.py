"""f32 products of shorter pieces: within their stated bound, on random and on hard inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage_nb.tile.precision import COMPOSITIONS, Composition, bound, composed, pieces, rounded, toward_zero

Array = np.ndarray[Any, Any]
CASES = 1000


def hard(rng: np.random.Generator, shape: tuple[int, ...], kind: int) -> Array:
    """Normal numbers; of one sign; of many magnitudes; just beside what a piece can hold; whole numbers; powers."""
    normal = rng.standard_normal(shape)
    values = (
        normal,
        np.abs(normal),
        normal * 2.0 ** rng.integers(-6, 7, shape),
        np.sign(normal) * (1 + 2.0 ** -rng.integers(8, 13, shape)) * (1 - 2.0**-23),
        rng.integers(-(2**12), 2**12, shape),
        np.sign(normal) * 2.0 ** rng.integers(-5, 5, shape),
    )[kind % 6]
    return np.asarray(values, np.float32)


def held(values: Array, composition: Composition) -> Array:
    """What lies in the range of the shorter type's normal numbers, and zeros."""
    least = 2.0**-13 if composition.exponents < 8 else 2.0**-100
    return np.where(np.abs(values) < least, np.float32(0), values)


@pytest.mark.parametrize("composition", COMPOSITIONS.values(), ids=lambda c: c.name)
def test_errors_stay_within_the_bound(composition: Composition) -> None:
    """1,000 products: against float64, relative to the sum of magnitudes, which is what the bound speaks of."""
    rng = np.random.default_rng(7)
    worst = 0.0
    for case in range(CASES // 50):
        depth = int(rng.integers(1, 80))
        a = held(np.stack([hard(rng, (2, depth), case + n) for n in range(50)]), composition)
        b = held(np.stack([hard(rng, (depth, 2), case + n // 6) for n in range(50)]), composition)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
        off = np.abs(composed(a, b, composition) - exact)
        assert (off <= bound(composition, depth) * scale).all()
        worst = max(worst, float((off[scale > 0] / scale[scale > 0]).max() / bound(composition, depth)))
    assert worst > 0.01  # the bound says something


@pytest.mark.parametrize("composition", COMPOSITIONS.values(), ids=lambda c: c.name)
def test_a_term_less_is_found(composition: Composition) -> None:
    """The bound is tight enough to tell the largest product of pieces, or the largest correction, missing."""
    rng = np.random.default_rng(1)
    a, b = hard(rng, (4, 32), 1), hard(rng, (32, 4), 1)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    less = replace(composition, terms=composition.terms[:-1])
    off = np.abs(composed(a, b, less) - exact) if less.terms else np.abs(exact)
    assert (off / exact).max() > bound(composition, 32)


def test_pieces_add_up() -> None:
    drawn = hard(np.random.default_rng(2), (1000,), 2)
    for composition in COMPOSITIONS.values():
        values = held(drawn, composition)
        rest = values - np.sum(pieces(values, composition), axis=0, dtype=np.float64)
        assert (np.abs(rest) <= composition.unit**composition.pieces * np.abs(values)).all()


def test_rounding() -> None:
    one = np.float32(1)
    step = np.float32(2.0**-10)
    assert rounded(np.array([one + step / 2]), 11, cut=False)[0] == one + step  # a tie, away from zero
    assert rounded(np.array([one + step / 2]), 11, cut=True)[0] == one
    assert toward_zero(np.array([1 + 2.0**-24 * 1.9, -1 - 2.0**-24 * 1.9])).tolist() == [1.0, -1.0]
