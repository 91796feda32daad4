"""Formulas keep what they mean through text, and every interpreter computes them alike."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.codegen import operators
from mirage_nb.errors import FormatError, MirageError, ProgramSizeError
from mirage_nb.interp import reference
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import formula
from mirage_nb.ir.formula import ARGUMENT, PRIMITIVES, SCALARS, Formula
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.lang import parse

NUMBERS = st.fractions(min_value=-9, max_value=9, max_denominator=12).map(lambda value: Formula(number=value))


def _grown(inner: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
    signs = st.sampled_from(["add", "sub", "mul", "div"])
    binary = st.builds(lambda name, a, b: Formula(name, (a, b)), signs, inner, inner)
    called = st.builds(
        lambda name, operands: Formula(name, operands[: SCALARS[name]]),
        st.sampled_from(sorted(SCALARS)),
        st.tuples(inner, inner),
    )
    power = st.builds(lambda base, exponent: Formula("pow", (base, exponent)), inner, NUMBERS)
    return st.one_of(binary, called, power, inner.map(lambda a: Formula("neg", (a,))))


FORMULAS = st.recursive(st.just(ARGUMENT) | NUMBERS, _grown, max_leaves=8)


def _same(name: str) -> Callable[..., str]:
    return lambda *operands: f"{name}({', '.join(map(str, operands))})"


@given(FORMULAS)
def test_text_keeps_the_meaning(made: Formula) -> None:
    text = formula.write(made)
    if len(text) > formula.MAX_LENGTH:
        return
    try:
        once = formula.of_node(ast.parse(text, mode="eval").body, "x", {}, lambda _, message, __: FormatError(message))
    except FormatError as error:  # numbers that fold to a division by zero
        assert "zero" in error.message or "bits" in error.message
        return
    if re.search(r"\bx\b", formula.write(once)):
        assert formula.read(formula.write(once)) == once
    with np.errstate(all="ignore"):
        x = np.array([0.3, 1.7])
        values = [
            np.broadcast_to(formula.fold(f, x, float, reference.SCALARS), x.shape).astype(float) for f in (made, once)
        ]
    finite = np.isfinite(values[0])  # beyond the range, numbers that are folded exactly need not overflow
    np.testing.assert_allclose(values[0][finite], values[1][finite], rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("table", [reference.SCALARS, operators.SCALARS])
def test_every_interpreter_has_every_primitive(table: dict[str, object]) -> None:
    assert table.keys() == PRIMITIVES


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("x +", FormatError, "cannot be read"),
        ("import os", FormatError, "cannot be read"),
        ("x.real", FormatError, "no formula"),
        ("__import__(x)", FormatError, "no function"),
        ("y", FormatError, "no y"),
        ("x+1", FormatError, "canonical"),
        ("(" * 60 + "x" + ")" * 60, FormatError, "canonical"),
        ("-" * 40 + "x", FormatError, "levels"),
        ("x + " + "9" * 40, FormatError, "bits"),
        ("x" * 300, ProgramSizeError, "300 characters"),
        ("exp(x=1)", FormatError, "one argument"),
        ("x ** x", FormatError, "exponent"),
        ("1e400 * x", FormatError, "bits"),
        ("1/2", FormatError, "argument"),
        ("exp(2)", FormatError, "argument"),
    ],
)
def test_foreign_text_is_refused(text: str, kind: type[MirageError], message: str) -> None:
    with pytest.raises(kind, match=message):
        formula.read(text)


PROGRAM = """
X: f32[2, 3]
beta = 3/2
def mish(x): return x * tanh(log(1 + exp(beta * x)))
return mish(X)
"""


def test_a_program_defines_a_function() -> None:
    graph = parse(PROGRAM).graph
    assert parse_graph(print_graph(graph)) == graph
    x = np.linspace(-3, 3, 6).reshape(2, 3)
    (found,) = evaluate(graph, {"X": x})
    wanted = [[v * math.tanh(math.log(1 + math.exp(1.5 * v))) for v in row] for row in x]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_one_function_under_two_names_is_one_formula() -> None:
    (op,) = parse("X: f32[2]\ndef f(y): return 0.5 * y + 1/3\nreturn f(X)").graph.ops
    assert op.attrs.formula == "1/2 * x + 1/3"
    assert formula.read("1/2 * x + 1/3") == Formula(
        "add", (Formula("mul", (Formula(number=Fraction(1, 2)), ARGUMENT)), Formula(number=Fraction(1, 3)))
    )
