"""Hints: what is said of names that there are not is true, and helps."""

from __future__ import annotations

import re

import pytest

from mirage_nb.errors import MirageError, UnknownNameError
from mirage_nb.ir.dtypes import DTYPE_NAMES
from mirage_nb.lang import FUNCTIONS, parse
from mirage_nb.lang.hints import ABROAD, NAMES, dtype_hint
from mirage_nb.lang.names import WHOLE


def hint(text: str) -> str:
    with pytest.raises(MirageError) as caught:
        parse(text)
    return caught.value.hint


@pytest.mark.parametrize("index", ["X > 0", "(X > 0) & (X < 1)", "~(X > 0)"])
def test_a_mask_is_no_index(index: str) -> None:
    """NumPy takes as many elements as the mask has; numbers of places are something else."""
    assert "where(" in hint(f"X: f32[4]\nreturn X[{index}]")


@pytest.mark.parametrize("resized", ["interpolate(X, size=7)", "interpolate(X, scale_factor=1.5)"])
def test_sizes_that_do_not_divide_are_refused(resized: str) -> None:
    """They gave tensors of other extents."""
    with pytest.raises(MirageError, match="multiples"):
        parse(f"X: f32[1, 2, 4, 4]\nreturn {resized}")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_means_something_else_is_no_slip_of_the_pen(name: str) -> None:
    if name not in FUNCTIONS:
        assert "did you mean" not in hint(f"X: f16[4, 4]\nreturn {name}(X)")


@pytest.mark.parametrize("name", ABROAD)
def test_element_types_that_are_elsewhere_are_told_of_ours(name: str) -> None:
    told = hint(f"X: {name}[4]\nreturn X * 2")
    named = {*re.findall(r"\b[a-z]+\d\w*", told)}
    assert "did you mean" not in told and named >= {"f16", "i8", "f8e4m3"} and named <= {*DTYPE_NAMES, *WHOLE}


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
