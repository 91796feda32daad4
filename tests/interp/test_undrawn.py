"""Inputs that are drawn where they are read: the same elements whatever way they are read, and no memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.interp import instance, undrawn
from mirage_nb.interp.field import FieldInstance, evaluate
from mirage_nb.interp.instance import FieldTensor
from mirage_nb.interp.modular import Modulus
from mirage_nb.interp.primes import PRIMES, Pool
from mirage_nb.interp.undrawn import Undrawn, splitmix
from tests.mugraphs import Case, cases

SMALL = Pool("21-bit primes", 2**20, 2**21)
PRIME = SMALL.pairs[7][0]


def scalar_splitmix(place: int, key: int) -> int:
    """As published: a counter that grows by the golden ratio, and a finaliser."""
    word = (key + place * 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def test_elements_follow_from_key_and_place() -> None:
    # The first outputs of the published generator at seed 1234567, whose counter is one ahead of ours.
    assert splitmix(np.arange(1, 4, dtype=np.uint64), 1234567).tolist() == [
        6457827717110365317, 3203168211198807973, 9817491932198370423,
    ]  # fmt: skip
    x = Undrawn.of(99, PRIME, (3, 5))
    assert np.asarray(x).tolist() == [[scalar_splitmix(5 * i + j, 99) % PRIME for j in range(5)] for i in range(3)]
    assert not np.array_equal(np.asarray(x), np.asarray(Undrawn.of(98, PRIME, (3, 5))))


MOVES: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda x: x.transpose(2, 0, 1),
    lambda x: x.reshape(4, 3, 10),
    lambda x: x.reshape(x.shape[0], -1),
    lambda x: x.transpose(1, 0, 2).reshape(-1),  # takes a copy
    lambda x: x[1],
    lambda x: x[..., 1:4],
    lambda x: x[:, ::-1],
    lambda x: x[:, 2:2],
    lambda x: x[[2, 0]],
    lambda x: x[0, 0, 0],
    lambda x: x.transpose(2, 0, 1)[3:, 1:].reshape(-1, 3, 5, 1),
    lambda x: np.broadcast_to(x, (2, *x.shape)),
    lambda x: np.concatenate([x, x[:1]]),
    lambda x: np.pad(x, 1),
    lambda x: x + x,
    lambda x: 3 * x - x,
    lambda x: x.sum(axis=1),
    lambda x: x.astype(np.float64),
    lambda x: np.zeros_like(x),
)


@pytest.mark.parametrize("at_once", [1, 7, 2**18])
@pytest.mark.parametrize("move", MOVES)
def test_it_moves_as_an_array_does(
    move: Callable[[np.ndarray], np.ndarray], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undrawn, "AT_ONCE", at_once)
    x = Undrawn.of(5, PRIME, (4, 5, 6))
    assert np.array_equal(np.asarray(move(x)), move(np.asarray(x)))


@given(st.data())
def test_moves_follow_each_other(data: st.DataObject) -> None:
    x = Undrawn.of(3, PRIME, (2, 3, 4, 5))
    held = np.asarray(x)
    for _ in range(data.draw(st.integers(1, 5))):
        match data.draw(st.integers(0, 2)):
            case 0:
                order = data.draw(st.permutations(range(x.ndim)))
                x, held = x.transpose(order), held.transpose(order)
            case 1 if x.ndim > 1:
                shape = (x.shape[0], -1) if data.draw(st.booleans()) else (-1, x.shape[-1])
                x, held = x.reshape(shape), held.reshape(shape)
            case _:
                part = slice(data.draw(st.integers(0, x.shape[-1] - 1)), None)
                x, held = x[..., part], held[..., part]
        assert np.array_equal(np.asarray(x), held)


@pytest.mark.parametrize("pool", [SMALL, PRIMES], ids=lambda pool: pool.name)
@pytest.mark.parametrize("inner", [2, 40, 300])
def test_products_draw_what_they_multiply(pool: Pool, inner: int) -> None:
    modulus = Modulus(pool.draw(np.random.default_rng(inner))[0])
    x = np.random.default_rng(0).integers(0, modulus.value, (4, inner), np.uint64)
    y = Undrawn.of(11, modulus.value, (2, inner, 7))
    exact = (x.astype(object) @ np.asarray(y).astype(object)) % modulus.value
    assert np.array_equal(modulus.matmul(x, y).astype(object), exact)
    turned = modulus.matmul(y.transpose(0, 2, 1), x.T.copy())
    assert np.array_equal(turned.astype(object), exact.transpose(0, 2, 1))


def test_a_product_with_an_input_that_is_not_held_takes_little_memory() -> None:
    modulus = Modulus(PRIME)
    x = np.random.default_rng(0).integers(0, PRIME, (4, 4096), np.uint64)
    y = Undrawn.of(11, PRIME, (4096, 4096))
    y[:2].drawn()
    tracemalloc.start()
    modulus.matmul(x, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < y.size * 4 / 2  # held, it takes 4 bytes for each element


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_graphs_of_inputs_that_are_not_held(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "UNDRAWN", 1)
    here = FieldInstance.draw(5)
    inputs = [here.random(i.name, i.type.shape) for i in case.program.inputs]
    assert all(isinstance(x.p, Undrawn) and isinstance(x.q, Undrawn) for x in inputs)
    held = [FieldTensor(np.asarray(x.p), np.asarray(x.q)) for x in inputs]
    for graph in (case.program, case.candidate):
        for a, b in zip(evaluate(graph, inputs, here), evaluate(graph, held, here), strict=True):
            assert np.array_equal(a.p, b.p) and np.array_equal(a.defined, b.defined)


def test_draws_are_uniform_and_apart() -> None:
    here = FieldInstance.draw(5)
    x = np.asarray(Undrawn.of(here.key("X", "p"), PRIME, (2**16,)))
    assert x.max() < PRIME and abs(float(x.mean()) / PRIME - 0.5) < 0.01
    assert 0 <= len(x) - len(np.unique(x)) < 2 * 2**32 / 2 / PRIME
