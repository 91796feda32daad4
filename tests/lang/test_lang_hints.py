"""Hints: what is said of names that there are not is true, and helps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mirage_nb.errors import DTypeError, MirageError, UnknownNameError
from mirage_nb.interp import evaluate
from mirage_nb.lang import FUNCTIONS, parse
from mirage_nb.lang.hints import EIGHT, FORMULAS, NAMES, dtype_hint

EXACT = {
    "sinh": np.sinh, "cosh": np.cosh, "tan": np.tan, "exp2": np.exp2, "log2": np.log2, "log10": np.log10,
    "erfc": np.vectorize(math.erfc), "ceil": np.ceil, "reciprocal": np.reciprocal,
    "logit": lambda x: np.log(x / (1 - x)), "relu6": lambda x: np.clip(x, 0, 6),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "swish": lambda x: x / (1 + np.exp(-x)), "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "tanhshrink": lambda x: x - np.tanh(x), "neg": np.negative, "atanh": np.arctanh, "asinh": np.arcsinh,
    "acosh": lambda x: np.arccosh(x), "cbrt": np.cbrt, "trunc": np.trunc,
    "selu": lambda x: np.where(x > 0, 1.0507 * x, 1.7581 * np.expm1(x)),
}  # fmt: skip


def hint(text: str) -> str:
    with pytest.raises(MirageError) as caught:
        parse(text)
    return caught.value.hint


@pytest.mark.parametrize("name", FORMULAS)
def test_the_line_that_is_offered_is_the_function(name: str) -> None:
    if name in FUNCTIONS:
        return
    said = hint(f"X: f32[4]\nreturn {name}(X)")
    line = said.removeprefix("define it in the program: ")
    x = np.array([0.25, 0.5, 0.75, 0.9]) + (2 if name == "acosh" else 0)
    (found,) = evaluate(parse(f"{line}\nX: f32[4]\nreturn {name}(X)").graph, [x])
    np.testing.assert_allclose(found, EXACT[name](x), rtol=1e-4)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_means_something_else_is_no_slip_of_the_pen(name: str) -> None:
    if name not in FUNCTIONS:
        assert "did you mean" not in hint(f"X: f16[4, 4]\nreturn {name}(X)")


@pytest.mark.parametrize("name", EIGHT)
def test_whole_numbers_are_not_taken_for_real_ones(name: str) -> None:
    try:
        parse(f"X: {name}[4]\nreturn X * 2")
    except DTypeError as error:
        assert "did you mean" not in error.hint and "f16" in error.hint


@pytest.mark.parametrize(
    ("name", "meant"), [("rms_nrm", "rms_norm"), ("sofmax", "softmax"), ("sqr", "sqrt"), ("clmap", "clamp")]
)
def test_slips_are_still_seen(name: str, meant: str) -> None:
    assert hint(f"X: f16[4, 4]\nreturn {name}(X)") == f"did you mean {meant}?"
    assert dtype_hint("f61").startswith("did you mean f")


def test_an_input_with_an_equals_sign_is_told_of_the_colon() -> None:
    assert "an input has a colon, as X: f16[2, 3]" in hint("X = f16[4, 4]\nreturn exp(X)")
    assert "programs print nothing" in hint("X: f16[4, 4]\nreturn print(X)")


def test_a_function_that_nobody_knows_can_be_defined() -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse("X: f16[4, 4]\nreturn zzyzx(X)")
    assert "def zzyzx(x): return" in caught.value.hint and "sqrt" in caught.value.hint
