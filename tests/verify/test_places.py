"""Inputs that only decide are drawn as whole numbers, so that masks of equal numbers hide and show something."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import Input, KernelGraph, Op, OpKind
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import decode, draw, draw_sample
from mirage_nb.verify.reals.float_gate import Array, compare, gate, samples
from mirage_nb.verify.reals.hard_inputs import BETWEEN, BEYOND, DRAWS, hard_inputs
from mirage_nb.verify.reals.places import FEW, MOST, Places, places
from tests.mugraphs import Block, tensor

AROUND = Places(FEW, -FEW)
HEAD = "X: f32[8, 12]\nD: i32[8]\nE: i32[12]\nT: f32[8, 1]\nN: i32[1]\n"


def graph(returned: str) -> KernelGraph:
    return parse(f"{HEAD}return {returned}").graph


@pytest.mark.parametrize(("returned", "found"), [
    ("where(D[:, None] == E, X, 0)", {"D": AROUND, "E": AROUND}),
    ("where(D[:, None] == D, 1, 0) @ X", {"D": AROUND}),
    ("where((D[:, None] == E) & (arange(8)[:, None] >= arange(12)), X, 0)", {"D": AROUND, "E": AROUND}),
    ("where(D[:, None] == 3, X, 0)", {"D": Places(FEW, -FEW, (2, 3, 4))}),
    ("where(T > 0.5, X, 0)", {"T": Places(FEW, -FEW, (0, 1))}),
    ("where(D[:, None] % 2 == 0, X, 0)", {"D": Places(FEW, -FEW, (0, 1, 2, 3))}),
    ("where(D[:, None] // 4 == arange(12) // 4, X, 0)", {"D": Places(13, 0, (0, 1))}),
    ("where(D[:, None] - E < 2, X, 0)", dict.fromkeys("DE", Places(FEW, -FEW, (1, 2, 3)))),
    ("sum(where(arange(12) == D[:, None], X, 0), axis=1)", {"D": Places(12)}),
    ("F.nll_loss(X, D, ignore_index=-100)", {"D": Places(12, also=(-100,))}),
    ("where(arange(12) < T, X, 0)", {"T": Places(13)}),
    ("where(X > T, X, 0)", {}),
    ("where(X > 0, X, 0)", {}),
    ("where(D[:, None] == E, X, 0) * D[:, None]", {}),
    ("where(D[:, None] > E, X, 0) * (T > X)", {"D": AROUND, "E": AROUND}),
    ("where(sum(where(D[:, None] == E, X, 0), axis=1, keepdims=True) > T, X, 0)", {"D": AROUND, "E": AROUND}),
])  # fmt: skip
def test_what_only_decides_is_drawn_as_what_it_meets(returned: str, found: dict[str, Places]) -> None:
    assert places(graph(returned)) == found


def test_what_is_drawn() -> None:
    drawn = [Places(13, 0, (-100,)).drawn(np.random.default_rng(seed), (8, 40), runs=True) for seed in range(16)]
    assert all({*np.unique(a)} <= {*range(13), -100} and a.max() == 12 and a.min() == -100 for a in drawn)
    assert 0 < sum(bool((np.diff(a.ravel()) >= 0).all()) for a in drawn) < 16
    large = AROUND.drawn(np.random.default_rng(1), (3, 2**21))
    assert large.shape == (3, 2**21) and np.array_equal(large.ravel()[MOST:], large.ravel()[: large.size - MOST])


@pytest.mark.parametrize(("right", "wrong"), [
    ("where(D[:, None] == D, 1, 0) @ X", "X + 0 * D[:, None]"),
    ("where(D[:, None] == 3, X, 0)", "0 * X"),
    ("where(D[:, None] % 3 == 1, X, 0)", "0 * X"),
    ("softmax(where(D[:, None] == E, X, -inf))", "softmax(X)"),
    ("where(D[:, None] >= E, X, 0)", "where(D[:, None] > E, X, 0)"),
])  # fmt: skip
def test_a_kernel_that_has_its_mask_wrong_is_wrong(right: str, wrong: str) -> None:
    """Of normal numbers no two are equal, and these were right; or no row had a value, and anything was."""
    program, other = graph(right), graph(wrong)
    sample = draw_sample(program, 0)
    names = {i.name: decode(a, i.type.dtype) for i, a in zip(program.inputs, sample.inputs, strict=True)}
    for found, ok in ((program, True), (other, False)):
        assert compare(evaluate(found, [names[i.name] for i in found.inputs]), sample.reference).ok is ok


@pytest.mark.parametrize(("right", "wrong"), [
    ("where(T > 0.25, X, 0)", "where(ceil(T) > 0.25, X, 0)"),
    ("where(T > 0.25, X, 0)", "where(T > 0.75, X, 0)"),
    ("where(clip(T, -1, 1) == 1, X, 0)", "where(T > 0, X, 0)"),
    ("sum(where(arange(12) == D[:, None], X, 0), axis=1)",
     "sum(where(arange(12) == clip(D, 0, 11)[:, None], X, 0), axis=1)"),
    ("where(arange(12) < E, X, 0)", "where(arange(12) % 13 < E % 13, X, where(E == 12, X, 0))"),
    ("where(arange(12) < N, X, 0)", "where(arange(12) <= N, X, 0)"),
])  # fmt: skip
def test_a_kernel_that_takes_what_decides_for_other_numbers_is_wrong(right: str, wrong: str) -> None:
    """On whole numbers alone these were right, and on places, or where a length was that of all."""
    program, other = graph(right), graph(wrong)

    def run(inputs: Mapping[str, Array]) -> tuple[Array, ...]:
        return evaluate(other, [inputs[i.name] for i in other.inputs])

    broken = gate(run, samples(program, names=DRAWS)).broken
    assert broken and (BETWEEN.issuperset(broken) or "N" in right)


def test_they_are_whole_in_every_other_hard_input() -> None:
    program = graph("where(D[:, None] == E, X, 0) + where(log(T) < 0.5, X, 0)")
    for name in DRAWS:
        found = hard_inputs(program, name, 0)
        assert (found["T"] >= 0).all() or name in BEYOND
        assert all(np.array_equal(found[n], np.round(found[n])) is (name not in BETWEEN) for n in "DE")
    x, d, e, t, *_ = (a for a in draw(program, 0, 1.0))
    assert (d[:, None] == e).any() and (d[:, None] != e).any() and (t >= 0).all() and not np.array_equal(x, np.round(x))


def test_no_row_of_a_sample_is_masked_wholly() -> None:
    """Runs are for hard inputs: a program that has no value in some rows tells less of a kernel."""
    graph = parse("S: f16[64, 128]\nM: f16[64, 128]\nreturn softmax(where(M != 0, S, -inf))").graph
    sample = draw_sample(graph, 0)
    assert sample.safe and sample.reference.asked == 64 * 128


def test_graphs_with_kernels_of_several_results_are_read() -> None:
    inner = Block((tensor((8, 12)), tensor((8, 1))), (8,))
    x, y = inner.read(0, (0,)), inner.read(1, (0,))
    inner.save(inner.op(OpKind.ADD, x, y), (0,))
    inner.save(inner.op(OpKind.MUL, x, y), (0,))
    program = KernelGraph.start(Input("X", tensor((8, 12))), Input("Y", tensor((8, 1))), Input("D", tensor((8, 1))))
    program = program.append(Op(OpKind.GRAPH, (0, 1), body=inner.graph)).append(Op(OpKind.EQUAL, (2, 2)))
    program = program.append(Op(OpKind.MUL, (3, 5))).append(Op(OpKind.ADD, (6, 4)))
    assert places(program.returning((7,))) == {"D": AROUND}
