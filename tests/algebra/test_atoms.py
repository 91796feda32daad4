"""Blocks: one canonical form per tensor network, whatever order it was built in."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from mirage_nb.algebra import Algebra, Oracle, atoms
from mirage_nb.algebra.atoms import AtomKind, AtomTable, PrimeSource, bits


def table_with(**axes: str) -> tuple[AtomTable, dict[str, int]]:
    """A table and symbols, each with one-letter axes."""
    table = AtomTable()
    return table, {name: table.intern(AtomKind.SYMBOL, name, table.mask(on)) for name, on in axes.items()}


def test_primes_in_order() -> None:
    source = PrimeSource()
    taken = [source.take() for _ in range(2000)]
    assert taken[:6] == [2, 3, 5, 7, 11, 13]
    assert taken[1999] == 17389
    assert len(set(taken)) == 2000


def test_bits() -> None:
    assert list(bits(0b101001)) == [0, 3, 5]


def test_order_of_sums_does_not_matter() -> None:
    table, symbol = table_with(X="ik", Y="kj", Z="jl")
    whole = table.product(symbol.values())
    results = set()
    for order in permutations("ikjl"):
        m = whole
        for axis in order:
            m = table.sum(table.mask(axis), m)
        results.add(m)
    assert results == {table.sum(table.mask("ikjl"), whole)}


def test_independent_factor_stands_outside() -> None:
    table, symbol = table_with(X="ik", Y="j")
    k = table.mask("k")
    whole = table.multiply(symbol["X"], symbol["Y"])
    assert table.sum(k, whole) == table.multiply(table.sum(k, symbol["X"]), symbol["Y"])


def test_bound_and_free_axis_of_one_name_are_kept_apart() -> None:
    """X[k] * sum_k Y[k] has a free k and a bound k; summing over k must not join them."""
    table, symbol = table_with(X="k", Y="k")
    k = table.mask("k")
    mixed = table.multiply(symbol["X"], table.sum(k, symbol["Y"]))
    assert table.monomials[mixed].axes == k
    both = table.sum(k, mixed)
    assert both == table.multiply(table.sum(k, symbol["X"]), table.sum(k, symbol["Y"]))
    assert both != table.sum(k, table.multiply(symbol["X"], symbol["Y"]))


def test_two_sums_over_one_axis_inside_a_third() -> None:
    table, symbol = table_with(X="jk", Y="jk")
    j, k = table.mask("j"), table.mask("k")
    x, y = symbol["X"], symbol["Y"]
    apart = table.sum(j, table.multiply(table.sum(k, x), table.sum(k, y)))
    joint = table.sum(j, table.sum(k, table.multiply(x, y)))
    assert apart != joint
    assert apart == table.sum(j, table.multiply(table.sum(k, y), table.sum(k, x)))


def test_numbering_of_variables_does_not_matter(rng: Random) -> None:
    table, symbol = table_with(X="jk", Y="k", Z="jl", W="jkl")
    number = {axis: table.axis(axis) for axis in "jkl"}
    for _ in range(200):
        names = [number[rng.choice("jkl")] for _ in range(rng.randint(2, 5))]
        factors = []
        for _ in range(rng.randint(1, 5)):
            prime = rng.choice(list(symbol.values()))
            on = list(bits(table.atoms[prime].axes))
            choices = [[v for v, name in enumerate(names) if name == a] + [-1 - a] for a in on]
            factors.append((prime, tuple(rng.choice(c) for c in choices)))
        before = table.close(names, factors)
        order = list(range(len(names)))
        rng.shuffle(order)
        shuffled = [names[order.index(i)] for i in range(len(order))]
        renamed = [(p, tuple(v if v < 0 else order[v] for v in vs)) for p, vs in factors]
        rng.shuffle(renamed)
        assert table.close(shuffled, renamed) == before


def test_too_many_equal_sums_are_vague_and_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atoms, "ORDERINGS_LIMIT", 5)
    algebra = Algebra()
    x, j, k = algebra.symbol("X", "jk"), "j", "k"
    row = algebra.sum(k, x)
    cube = algebra.mul(algebra.mul(row, row), row)
    target = algebra.sum(j, cube)
    assert algebra.is_vague(target) and not algebra.is_vague(cube)
    assert Oracle(algebra, [target]).reaches(algebra.exp(x))
    assert Oracle(algebra, [x]).reaches(target)
    assert not Oracle(algebra, [x]).reaches(algebra.exp(x))
