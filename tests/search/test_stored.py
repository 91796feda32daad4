"""Programs that read tensors of one byte as they are stored."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import BYTES, OpKind
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import decode, draw
from mirage_nb.search.stored import as_stored

HEAD = "X: f16[4, 8]; A: i8[6, 8]; B: i8[6, 8]; U: u8[6, 8]; s: f16[6]; E: f8e4m3[4, 8]; F: f8e5m2[6, 8]; return "
CASTS = {
    "(X @ f16(A).T) * s": 0,
    "X @ A.T": 0,
    "X @ f32(A).T": 1,
    "exp(f16(A)) + A": 1,
    "f16(A)": 1,
    "cat((f16(A), f16(B)), 0)[2:9] @ X.T": 0,
    "X @ cat((f16(A), f16(U)), 0).T": 2,
    "relu(f16(A).T) * s + f16(A).T": 1,
    "X @ f16(A).T + X @ bf16(B).T": 1,
    "f32(f16(A)) * 2": 1,
    "where(f16(A) > 0, f16(B), s[:, None])": 2,
    "sum(f16(A), 1)": 1,
    "f16(A) * f16(A) + s[:, None]": 1,
    "E @ F.T": 0,
    "f32(E) @ f32(F).T": 2,
}
"""Expressions, and how many casts are left of them."""


@pytest.mark.parametrize("expression", CASTS)
def test_what_reads_them_has_its_type(expression: str) -> None:
    program = parse((HEAD + expression).replace("; ", "\n")).graph
    made = as_stored(program)
    assert made.output_types == program.output_types and made.inputs == program.inputs
    assert sum(op.kind is OpKind.CAST for op in made.ops) == CASTS[expression]
    inputs = [decode(x, i.type.dtype) for x, i in zip(draw(program, 0, 1.0), program.inputs, strict=True)]
    for one, other in zip(evaluate(made, inputs), evaluate(program, inputs), strict=True):
        np.testing.assert_array_equal(one, other)
    again = as_stored(made)
    assert again.output_types == made.output_types and len(again.ops) <= len(made.ops)


def test_others_stay_as_they_are() -> None:
    program = parse("X: f16[4, 8]\nreturn f32(X) * 2").graph
    assert as_stored(program) is program and not any(t.dtype in BYTES for t in program.types)
