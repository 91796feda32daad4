"""Products of residues, against Python's whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_nb.interp.modular import Moduli, Modulus
from mirage_nb.interp.products import _Limbs, product
from mirage_nb.interp.undrawn import Undrawn

LARGE, SMALL = 2**31 - 1, 1_048_367


def _expected(x: Any, y: Any, primes: tuple[int, ...]) -> Any:
    found = np.asarray(x).astype(object) @ np.asarray(y).astype(object)
    columns = np.array(primes, object).reshape(-1, *(1,) * (found.ndim - 1)) if len(primes) > 1 else primes[0]
    return (found % columns).astype(np.uint64)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], prime: int, dtype: type = np.uint64) -> Any:
    return rng.integers(max(0, prime - 3) if rng.random() < 0.3 else 0, prime, shape, dtype=np.uint64).astype(dtype)


SHAPES = (
    ((3, 4), (4, 5)), ((2, 9), (9, 3)), ((1, 64), (64, 40)), ((40, 65), (65, 1)), ((5, 700), (700, 30)),
    ((30, 2049), (2049, 9)), ((2, 5000), (5000, 8)), ((300, 90), (90, 60)), ((2, 3, 70), (2, 70, 50)),
    ((1, 6, 80), (7, 80, 5)), ((9, 6, 80), (1, 80, 5)), ((2, 4, 1, 3, 66), (2, 1, 5, 66, 7)),
    ((3, 1, 1, 2, 600), (1, 4, 1, 600, 3)), ((2, 1, 3, 3), (1, 2, 3, 3)), ((1, 1, 4, 3), (3, 2, 3, 1)),
)  # fmt: skip


@pytest.mark.parametrize("prime", [LARGE, SMALL])
@pytest.mark.parametrize("shapes", SHAPES)
def test_products_are_those_of_whole_numbers(prime: int, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng([prime, len(str(shapes))])
    x, y = (_drawn(rng, shape, prime) for shape in shapes)
    assert np.array_equal(product(x, y, Modulus(prime)), _expected(x, y, (prime,)))
    assert np.array_equal(product(x.astype(np.uint32), y, Modulus(prime)), _expected(x, y, (prime,)))


def test_many_matrices_side_by_side_are_multiplied_a_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_nb.interp.products.CACHED", 2**12)
    rng = np.random.default_rng(1)
    for shapes in (((7, 3, 90), (7, 90, 40)), ((2, 5, 1, 3, 80), (1, 5, 4, 80, 30)), ((6, 40, 90), (6, 90, 3))):
        x, y = (_drawn(rng, shape, LARGE, np.uint32) for shape in shapes)
        assert np.array_equal(product(x, y, Modulus(LARGE)), _expected(x, y, (LARGE,)))


def test_the_largest_residues_add_up_exactly() -> None:
    for inner in (4, 5, 63, 64, 65, 2047, 2048, 2049, 4097):
        for rows, columns in ((1, 300), (300, 1), (2, 2)):
            x, y = np.full((rows, inner), LARGE - 1, np.uint64), np.full((inner, columns), LARGE - 1, np.uint64)
            assert (product(x, y, Modulus(LARGE)) == inner % LARGE).all()


def test_every_prime_has_its_own_row() -> None:
    every = (LARGE, 2**31 - 19, 2**30 + 3)
    rng = np.random.default_rng(0)
    for tail in (((2, 80), (80, 90)), ((4, 1, 2, 80), (1, 3, 80, 90)), ((2, 3), (3, 2)), ((2, 9), (9, 2))):
        for primes in (every, every[:1]):
            x, y = (np.stack([_drawn(rng, shape, prime) for prime in primes]) for shape in tail)
            assert np.array_equal(product(x, y, Moduli(primes)), _expected(x, y, primes))


def test_what_is_not_held_is_drawn_part_by_part() -> None:
    x: Any = Undrawn.of(7, LARGE, (6, 3, 900))
    y = np.random.default_rng(1).integers(0, LARGE, (1, 900, 50), dtype=np.uint64)
    assert np.array_equal(product(x, y, Modulus(LARGE)), _expected(x.drawn(), y, (LARGE,)))
    left = y[:, :3].transpose(0, 2, 1)
    assert np.array_equal(product(left, x, Modulus(LARGE)), _expected(left, x.drawn(), (LARGE,)))


def test_sums_of_limbs_stay_exact() -> None:
    for bits in range(8, 32):
        for inner in (1, 64, 100, 5000):
            limbs = _Limbs.of(bits, inner)
            top = bits - limbs.bits * (limbs.count - 1)
            largest = (2**bits - 1) * (2 ** max(top, limbs.bits if limbs.count > 1 else 0) - 1)
            assert limbs.terms * largest + 2**bits <= 2**53, (bits, inner)
