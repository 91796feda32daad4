"""Kernels that look rows and elements up: they compute the program, read nothing else, and find zeros for no number."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.codegen import Launch, LibraryCall, emit
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import OpKind
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import decode, encode
from tests.codegen.running import WAYS, run
from tests.lookups import H200, PROGRAMS, Array, Looked, composed, drawn
from tests.shares import crossed

CLOSE = {"f16": 4e-3, "bf16": 3e-2, "f32": 1e-5}


def results(name: str, inputs: list[Array], **how: object) -> list[Array]:
    program, emitted = composed(PROGRAMS[name])
    stored = [encode(a, i.type.dtype) for a, i in zip(inputs, program.inputs, strict=True)]
    found = run(emitted, stored, **how)
    return [decode(a, t.dtype) for a, t in zip(found, program.output_types, strict=True)]


def close(name: str, found: list[Array], wanted: list[Array]) -> None:
    far = CLOSE[PROGRAMS[name].text.split(": ")[1].split("[")[0]]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=far, atol=far)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_lookup_is_part_of_the_kernel_that_reads_it(name: str) -> None:
    looked, (_, emitted) = PROGRAMS[name], composed(PROGRAMS[name])
    assert sum(isinstance(step, Launch) for step in emitted.launches) == looked.kernels
    assert sum(len(planned.tables) for planned in emitted.programs) == looked.operands


@crossed({"name": PROGRAMS, "bad": [0.0, np.nan, np.inf, -np.inf], "way": [0, 1]})
def test_rows_that_are_not_read_may_hold_anything(name: str, bad: float, way: int) -> None:
    looked, (program, _) = PROGRAMS[name], composed(PROGRAMS[name])
    inputs = drawn(program, looked, named=True)
    exact = list(evaluate(program, inputs))
    for given, array in zip(program.inputs, inputs, strict=True):
        if given.name in looked.tables:
            array[looked.rows + 1 :] = bad
    close(name, results(name, inputs, **WAYS[way]), exact)


@pytest.mark.parametrize("name", [name for name, looked in PROGRAMS.items() if "I" in looked.numbers])
def test_what_is_no_number_of_a_row_finds_zeros(name: str) -> None:
    """Below, above, between two of them, none at all: the mask says zeros, and so does the kernel."""
    looked, (program, _) = PROGRAMS[name], composed(PROGRAMS[name])
    inputs = drawn(program, looked, named=False)
    assert any(np.isnan(array).any() for array in inputs)
    # Over the reals a mask that nothing meets is 0 everywhere; beside no number the reference knows no comparison.
    known = [
        np.where(np.isfinite(array), array, -100.0) if given.name in looked.numbers else array
        for given, array in zip(program.inputs, inputs, strict=True)
    ]
    close(name, results(name, inputs), list(evaluate(program, known)))


@pytest.mark.parametrize("text", [
    "E: f32[4,40,16]\nI: i64[5]\nreturn take(E, I, axis=1)", "E: f16[48,16]\nI: i64[9]\nreturn E[4:36][I]",
    "E: f32[37,30]\nI: i64[37,4]\nreturn torch.gather(E, 1, I)", "E: f16[12,40]\nI: i64[8]\nreturn E.T[I]",
    "E: f32[40,16]\nI: i64[8]\nreturn E[floor(I / 2) + 1]",
])  # fmt: skip
def test_a_lookup_alone_is_one_kernel_that_reads_the_table_where_it_lies(text: str) -> None:
    """Tables that are turned, or parts of others, were copied first."""
    program = parse(text).graph
    emitted = emit(program, H200)
    assert [type(step) for step in emitted.launches if not _moves(step)] == [Launch]
    inputs = drawn(program, Looked(text, "", "I"), named=True)
    stored = [encode(a, i.type.dtype) for a, i in zip(inputs, program.inputs, strict=True)]
    (found,), (exact,) = run(emitted, stored), evaluate(program, inputs)
    np.testing.assert_allclose(decode(found, program.output_types[0].dtype), exact, rtol=1e-6, atol=1e-6)


def _moves(step: object) -> bool:
    """Whether something is only turned: what was looked up along an axis in the middle."""
    return isinstance(step, LibraryCall) and step.op.kind is OpKind.TRANSPOSE
