"""What is picked of a large program is exactly what the program computes there."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.bench.problems import Problem
from mirage_nb.errors import ShapeError
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import decode, draw, draw_sample
from mirage_nb.runtime.picked import picking, right_for
from mirage_nb.verify.reals.float_gate import compare, reference
from tests.shares import examples
from tests.strategies import programs

SMALL = {
    "linear": {"M": 24, "N": 40, "K": 8}, "group": {"B": 6, "G": 6, "C": 2, "L": 16}, "layer": {"M": 40, "K": 8},
    "prefill": {"T": 24, "H": 8}, "decode": {"B": 6, "T": 16}, "swiglu": {"M": 24, "K": 16, "F": 8},
    "gelu_softmax": {"M": 24, "K": 8}, "swish_group": {"M": 24, "K": 8, "G": 6, "C": 4},
}  # fmt: skip


def agrees(program: KernelGraph, most: int) -> int:
    """Compare with the whole program; how many elements were picked, 0 for all."""
    found = picking(program, most, most)
    if found is None:
        return 0
    stored = draw(program, 0, 0.5)
    whole = reference(program, {i.name: decode(a, i.type.dtype) for a, i in zip(stored, program.inputs, strict=True)})
    parts = found.parts(stored)
    read = len(stored) + len(found.copies)
    arrays = [decode(a, i.type.dtype) for a, i in zip(parts, found.program.inputs, strict=False)][:read]
    mine = found.reference([*arrays, *parts[read:]])
    for pick, all_, some in zip(mine.picks, whole.outputs, mine.outputs, strict=True):
        np.testing.assert_allclose(some, pick.of(np.asarray(all_)), rtol=1e-9, atol=1e-12)
        for place in {0, some.size - 1}:
            at = tuple(map(int, np.unravel_index(place, some.shape)))
            np.testing.assert_allclose(some[at], all_[pick.at(at)], rtol=1e-9, atol=1e-12)
    assert compare(whole.outputs, mine).ok
    return sum(output.size for output in mine.outputs)


@examples(15)
@given(programs(), st.sampled_from((1, 50, 400)))
def test_what_is_picked_is_what_the_program_computes_there(program: KernelGraph, most: int) -> None:
    agrees(program, most)


@pytest.mark.parametrize("family", SMALL)
def test_large_problems_are_picked_from(family: str) -> None:
    program = Problem(family, MappingProxyType(SMALL[family])).program().graph
    assert 0 < agrees(program, 1) < sum(t.elements for t in program.output_types)


SEVERAL = {
    "documents": "Q: f32[2, 40, 4]\nK: f32[2, 40, 4]\nd: f32[40]\nI = arange(40)\n"
    "return softmax(where((d[:, None] >= d) & (I[:, None] >= I), Q @ K.T, -inf)) @ K",
    "products": "X: f32[40, 8]\nreturn relu(X @ X.T)",
    "differences": "x: f32[40]\nreturn abs(x[:, None] - x) * x",
    "beside itself": "X: f32[40, 40]\nreturn softmax(X @ X) + X",
}
"""An input is read along several axes."""


@pytest.mark.parametrize("name", SEVERAL)
def test_operators_read_other_parts_of_one_input(name: str) -> None:
    """As few as if they read inputs of their own."""
    program = parse(SEVERAL[name]).graph
    found = picking(program, 1, 1)
    assert found is not None and len({*found.copies}) == 1
    rows = found.program.output_types[0].shape
    assert agrees(program, 1) and min(rows) < 40 // 2 and max(rows) <= 40


def test_a_wrong_element_among_those_picked_is_told_by_its_place() -> None:
    program = parse("X: f32[300, 16]\nreturn softmax(X)").graph
    assert right_for(program, draw(program, 0, 1.0), decode).picks == (), "a small program is computed whole"
    found = picking(program, 3000, 3000)
    assert found is not None and {0, 299} < {*found.outputs[0].places[0][1]}
    right = found.reference(found.parts(draw(program, 0, 1.0)))
    output = np.zeros((300, 16))
    report = compare([output], right)
    assert not report.ok and "output 0[0, 0] is 0" in report.note
    whole = draw_sample(program, 0).reference.outputs[0]
    assert compare([whole], right).ok
    last = whole.copy()
    last[299, 3] = 7.0
    assert "output 0[299, 3] is 7" in compare([last], right).note
    with pytest.raises(ShapeError):
        compare([whole[:5]], right)


def test_what_cannot_be_said_over_axes_is_computed_whole() -> None:
    assert picking(parse("X: f16[64, 64]\nreturn X[:, 8:40] * 2").graph, 1, 1) is None
