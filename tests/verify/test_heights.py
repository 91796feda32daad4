"""Numbers that are 0 in every field that trials draw, and not over the reals: none is taken for 0."""

from __future__ import annotations

import pytest

from mirage_nb.bench.programs import PROGRAMS
from mirage_nb.bench.programs import text as program_text
from mirage_nb.interp.primes import PRIMES
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.verify.fields import heights
from mirage_nb.verify.fields.heights import is_believed
from mirage_nb.verify.trials import BEYOND, verify
from mirage_nb.verify.verdict import VerdictKind
from tests.shares import some

ROWS = 2**22
SCALE = "6.268938650046666e-10"
"""The product of so many of these numbers, each times this, is about 1."""


def hidden(term: str) -> KernelGraph:
    """2 X and a term of P, a multiple of all primes of the pool: p = 2q + 1 with both 3 modulo 4 is 23 modulo 24."""
    first, lines = PRIMES.low + (23 - PRIMES.low) % 24, [f"A = arange({ROWS}) * 24.0", "P = A * 0 + 1"]
    for start in range(first, PRIMES.high, 24 * ROWS):
        lines.append(f"P = P * ((A + {start}) * {SCALE})")
    rows = ROWS
    while rows > 1:
        rows //= 2
        lines.append(f"P = P[:{rows}] * P[{rows}:]")
    return parse("\n".join(["X: f32[4]", *lines, f"return 2 * X + {term}"])).graph


TERMS = {"a number": "P * relu(X - 50)", "made of inputs": "P * X / X * relu(X - 50)"}
POWER = """X: f32[4]
P = X / (X * X + 1)
for i in range(31):
    P = P * P
return 2 * X + (P - 1) * relu(X - 50)"""


@pytest.mark.parametrize("name", TERMS)
def test_products_of_all_primes_are_not_believed_to_be_zero(name: str) -> None:
    assert not is_believed(hidden(TERMS[name]))


def test_powers_that_are_one_in_a_field_are_not_believed() -> None:
    assert not is_believed(parse(POWER).graph)


@pytest.mark.slow
def test_what_is_zero_in_every_field_is_not_taken_for_equal() -> None:
    """float64 sees nothing of it where it looks, and exact numbers would take too long."""
    program = parse("X: f32[4]\nreturn 2 * X").graph
    verdict = verify(program, hidden(TERMS["a number"]))
    assert verdict.kind is VerdictKind.UNDECIDED and verdict.note == BEYOND


def test_what_is_not_believed_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = [parse(f"X: f32[4]\nreturn {text}").graph for text in ("3 * X", "X + 2 * X")]
    monkeypatch.setattr(heights, "MOST_BITS", 1.0)
    assert verify(*pair).note == BEYOND and verify(pair[0], pair[0]).accepted


@pytest.mark.parametrize("name", some(tuple(PROGRAMS)))
def test_programs_that_people_write_are_believed(name: str) -> None:
    assert is_believed(parse(program_text(name)).graph)
