"""Expressions as text."""

from __future__ import annotations

import pytest

from mirage_nb.algebra import QUICK, STANDARD, THOROUGH, Algebra
from tests.algebra.specimens import SPECIMENS, parts, tensor


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rmsnorm", "Σk X·W / √(1/k·(Σk X²))"),
        ("gated_mlp", "silu(Σk X·W1)·(Σk X·W2)"),
        ("lora", "Σk,r X·A·C + Σk X·W"),
        ("attention", "Σj V·exp(Σd Q·K) / (Σj exp(Σd Q·K))"),
    ],
)
def test_programs(name: str, text: str) -> None:
    algebra = Algebra(STANDARD)
    assert algebra.show(SPECIMENS[name](algebra).target) == text


def test_parts_of_axes() -> None:
    algebra = Algebra()
    x, w = tensor(algebra, "X", "m", "k"), tensor(algebra, "W", "n", "k")
    grid, loop, tile = parts("k")
    assert algebra.show(algebra.sum([loop, tile], algebra.mul(x, w))) == "Σk.lt X·W"
    assert algebra.show(algebra.sum([("m",), grid], algebra.mul(x, w))) == "Σk.g,m X·W"


def test_terms_have_coefficients() -> None:
    algebra = Algebra()
    x, y = algebra.symbol("x"), algebra.symbol("y")
    square = algebra.mul(algebra.add(x, y), algebra.add(x, y))
    assert algebra.terms(square) == ((1, "x²"), (2, "x·y"), (1, "y²"))
    assert algebra.show(square) == "x² + 2·x·y + y²"


def test_quotients_and_powers() -> None:
    algebra = Algebra(THOROUGH)
    x, y, z = (algebra.symbol(n, "k") for n in "xyz")
    assert algebra.show(algebra.div(x, algebra.mul(y, z))) == "x / (y·z)"
    assert algebra.show(algebra.div(x, algebra.div(y, z))) == "x / (y·(1 / z))"
    assert algebra.show(algebra.div(x, algebra.mul(y, y))) == "x / y²"
    assert algebra.show(algebra.div(x, algebra.add(y, y))) == "x / (2·y)"
    assert algebra.show(algebra.sum("k", algebra.div(x, y))) == "Σk (x / y)"
    assert algebra.show(algebra.sqrt(algebra.mul(x, y))) == "√(x·y)"
    assert algebra.show(algebra.mul(algebra.sum("k", x), algebra.exp(algebra.add(x, y)))) == "exp(x + y)·(Σk x)"


def test_kept_products_of_sums() -> None:
    algebra = Algebra(QUICK)
    x, y, z = (algebra.symbol(n) for n in "xyz")
    assert algebra.show(algebra.mul(algebra.add(x, y), algebra.add(y, z))) == "(x + y)·(y + z)"


def test_second_sum_over_one_axis_is_primed() -> None:
    algebra = Algebra()
    x, y = algebra.symbol("X", "jk"), algebra.symbol("Y", "jk")
    apart = algebra.sum("j", algebra.mul(algebra.sum("k", x), algebra.sum("k", y)))
    assert algebra.show(apart) == "Σj,k,k′ X·Y[k′]"


def test_extent_of_an_absent_axis() -> None:
    algebra = Algebra()
    assert algebra.show(algebra.sum("k", algebra.symbol("X", "m"))) == "X·|k|"
