"""Constants as real numbers: roots are what their symbols say, as long as their values are next to that."""

from __future__ import annotations

from fractions import Fraction

import pytest
from flint import arb

from mirage_nb.interp.constants import constant
from mirage_nb.interp.numbers import fmpq, precision
from mirage_nb.ir import ConstAttrs
from mirage_nb.lang import parse
from mirage_nb.lang.constants import Number
from mirage_nb.verify import verify
from mirage_nb.verify.verdict import VerdictKind


@pytest.mark.parametrize(
    "number", [Number(1, Fraction(2), 2), Number(-1, Fraction(2, 3), 3), Number(1, Fraction(1, 8), 2)]
)
def test_roots_are_what_programs_write(number: Number) -> None:
    with precision(512):
        found = constant(number.attrs())
        power = found**number.root
        assert isinstance(found, arb) and power.overlaps(arb(number.sign**number.root * fmpq(str(number.radicand))))
        assert power.rad() < 1e-100


@pytest.mark.parametrize("symbol", ["2^(1/2)", "eps", "2^(1/0)", "2^(-1/2)", "(2/0)^(1/2)"])
def test_other_symbols_are_names(symbol: str) -> None:
    with precision(128):
        assert constant(ConstAttrs(Fraction(5), symbol)) == 5


def test_a_function_by_hand_is_not_refuted() -> None:
    """The double next to the root of 2 is another number."""
    program, right, wrong = (
        parse(f"X: f32[4]\nreturn {text}").graph
        for text in ("gelu(X)", "0.5 * X * (1 + erf(X / sqrt(2)))", "0.5 * X * (1 + erf(X / 1.4142135623730951))")
    )
    assert verify(program, right).kind is VerdictKind.OUTSIDE_LAX
    assert verify(program, wrong).kind is VerdictKind.REFUTED
