"""Sums of products by matrices are those of one row after another, where numbers are short rationals."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.numbers import LONG_BITS, REALS, arb, fmpq
from mirage_nb.interp.tables import summed, tables


@pytest.mark.parametrize("shape", [(1, 4, 4, 8), (3, 2, 9, 5), (2, 8, 8, 1)])
def test_rows_that_meet_are_multiplied_as_matrices(shape: tuple[int, ...]) -> None:
    batch, m, n, k = shape
    outer, row, column = (part.reshape(-1) for part in np.indices((batch, m, n)))
    rng = np.random.default_rng(0)

    def drawn(rows: int) -> np.ndarray:
        return np.array([[fmpq(int(x), 1 << int(x) % 7) for x in part] for part in rng.integers(-99, 99, (rows, k))])

    left, right = outer * m + row, outer * n + column
    x, y = drawn(batch * m)[left], drawn(batch * n)[right]
    made = tables(outer, left * k, right * k)
    assert len(made) == batch
    assert list(summed(made, x, y)) == list(REALS.product(x, y))
    for other in (arb(2), fmpq(1, 2**LONG_BITS)):  # the table leaves these to others
        x[0, 0] = other
        assert summed(made, x, y) is None


def test_rows_that_meet_once_are_no_table() -> None:
    assert tables(np.zeros(5, np.int64), np.arange(5), np.arange(5)) == []
    assert summed([], np.array([[fmpq(1)]]), np.array([[fmpq(1)]])) is None
