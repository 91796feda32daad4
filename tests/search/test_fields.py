"""The field of the closure: primes, inverses, roots and exponentials obey the laws that merging relies on."""

from __future__ import annotations

import numpy as np

from mirage_nb.search.saturation.fields import Field, P, Q, fingerprint, inverse, inverse_or_zero, root


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def test_the_primes_fit_together() -> None:
    assert is_prime(P) and is_prime(Q)
    assert (P - 1) % Q == 0 and P % 8 == 3 and Q % 8 == 3


def test_inverse_and_root() -> None:
    p, q = Field(1).draw((50,))
    found = inverse(p, P)
    assert found is not None and np.all(p * found % P == 1)
    assert np.all(q * inverse_or_zero(q, Q) % Q == 1)
    squared = root(p, P) ** 2 % P
    assert np.all((squared == p) | (squared == P - p))
    assert np.all(root(P - p, P) == P - root(p, P)), "a sign under a root shows"
    other = Field(2).draw((50,))[0]
    assert np.all(root(p * other % P, P) == root(p, P) * root(other, P) % P)


def test_zero_has_no_inverse() -> None:
    assert inverse(np.array([3, 0]), P) is None
    assert inverse_or_zero(np.array([3, 0]), Q)[1] == 0


def test_exponential_turns_sums_into_products() -> None:
    field = Field(3)
    _, a = field.draw((50,))
    _, b = field.draw((50,))
    assert np.all(field.exp((a + b) % Q) == field.exp(a) * field.exp(b) % P)
    assert field.exp(np.array([0]))[0] == 1 and field.exp(np.array([1]))[0] != 1


def test_everything_follows_from_the_seed() -> None:
    assert np.array_equal(Field(5).draw((9,))[0], Field(5).draw((9,))[0])
    assert not np.array_equal(Field(5).draw((9,))[0], Field(6).draw((9,))[0])
    a, b = Field(5), Field(5)
    b.draw((3,))
    assert np.array_equal(a.drawn_for(b"key", (4,))[0], b.drawn_for(b"key", (4,))[0])


def test_uninterpreted_functions_depend_on_name_and_argument_alone() -> None:
    field = Field(7)
    p, q = field.draw((6,))
    twice = np.concatenate([p, p]), np.concatenate([q, q])
    found = field.uninterpreted("gelu", *twice)[0]
    assert np.array_equal(found[:6], found[6:]) and len(set(found.tolist())) == 6
    assert not np.array_equal(found, field.uninterpreted("relu", *twice)[0])
    assert np.all((found >= 0) & (found < P))


def test_fingerprints_see_the_shape() -> None:
    assert fingerprint(np.arange(6)) != fingerprint(np.arange(6).reshape(2, 3))
