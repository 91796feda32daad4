"""Rows that nobody reads may hold anything: kernels are tried on tables that do, those that multiply masks break."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage_nb import superoptimize
from mirage_nb.codegen import default_options, emit
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph, Op, OpKind, ReshapeAttrs
from mirage_nb.lang import parse
from mirage_nb.runtime.contest.trial import draw_hard, hard_names, try_on_cpu
from mirage_nb.runtime.contest.without_gpu import WithoutGpu
from mirage_nb.search.session.progress import Candidate
from mirage_nb.search.session.unsearched import ITSELF
from mirage_nb.verify.reals.float_gate import samples
from mirage_nb.verify.reals.unread import MOST, UNREAD, choosing, is_spoilt, tables
from tests.codegen.test_windows import read_by_a_kernel
from tests.lookups import H200, PROGRAMS, composed

NORM = PROGRAMS["embedding and norm of wide rows"]
NAME = "unread rows of E"


def program(text: str) -> KernelGraph:
    return parse(text).graph


def test_what_is_right_is_that_of_rows_that_are_read() -> None:
    graph = program(NORM.text)
    (sample,) = samples(graph, 3, names=[NAME])
    read = np.isin(np.arange(30), sample.inputs["I"])
    assert read.any() and not read.all()
    assert np.isnan(sample.inputs["E"][~read]).all() and np.isfinite(sample.inputs["E"][read]).all()
    assert np.isfinite(sample.reference.outputs[0]).all() and sample.reference.asked
    assert hard_names(graph, 10**9)[0] == NAME and len(draw_hard(graph, 3, NAME)) == 1


def test_kernels_that_multiply_masks_break() -> None:
    graph, emitted = composed(NORM)
    product = emit(emitted.graph, H200, replace(default_options(H200), library=0))
    assert len(product.launches) > 1
    for one, survives in ((emitted, True), (product, False)):
        outcome = try_on_cpu(graph, one, seed=3)
        assert outcome.report.ok and (NAME in outcome.hard.survived) is survives


@pytest.mark.parametrize(("text", "names"), [
    ("E: f16[40,64]\nF: f16[40,64]\nI: i64[9]\nreturn E[I] * F[I + 1]", {"E", "F"}),
    ("E: f16[4,10,64]\nI: i64[9]\nreturn reshape(E, 40, 64)[I]", {"E"}),
    ("E: f16[40,64]\nI: i64[9]\nreturn E[I] @ E.T", set()),
    ("E: f16[40,64]\nI: i64[9]\nreturn E[I], exp(E)", set()),
    ("E: f16[40,64]\nI: i64[9]\nreturn exp(E)[I]", set()),
    ("X: f16[9,64]\nI: i64[9]\nreturn sum(where(arange(64) == I[:, None], X, 0), 1)", set()),
])  # fmt: skip
def test_tables_that_lookups_alone_read(text: str, names: set[str]) -> None:
    graph = program(text)
    assert tables(graph).keys() == names
    unread = {name for name in hard_names(graph, 10**9) if name.startswith(UNREAD)}
    assert unread == {f"{UNREAD}{name}" for name in names}


def test_what_is_not_read_spoils_nothing() -> None:
    """A product of ones and zeros has no numbers where one of what it leaves out is infinite."""
    graph = program("E: f32[6,4]\nI: i64[3]\nreturn E[I] + 1")
    said = choosing(graph)
    assert said is not None and choosing(program("X: f32[4,4]\nreturn X @ X")) is not None
    table, numbers = np.arange(24.0).reshape(6, 4), np.array([5.0, 0.0, 2.0])
    table[3] = np.inf
    with np.errstate(all="ignore"):
        assert np.isnan(evaluate(graph, [table, numbers])[0]).all()
    np.testing.assert_array_equal(evaluate(said, [table, numbers])[0], table[[5, 0, 2]] + 1)
    assert choosing(program(f"E: f32[{MOST},4]\nI: i64[3]\nreturn E[I] + 1")) is None


def test_what_multiplies_masks_is_tried_last() -> None:
    graph, emitted = composed(NORM)
    inputs = KernelGraph.start(*graph.inputs)
    otherwise = read_by_a_kernel(inputs.append(Op(OpKind.RESHAPE, (0,), ReshapeAttrs((1024, 30)))))
    assert not is_spoilt(graph, emitted.graph) and is_spoilt(graph, otherwise)
    one, other = (Candidate("d", g, "", 1, {}, ITSELF, us) for g, us in ((otherwise, 1.0), (emitted.graph, 2.0)))
    passes: Any = SimpleNamespace(search=SimpleNamespace(program=graph))
    assert [*WithoutGpu(passes, None)._in_turn([], [one, other])] == [other, one]
    assert [*WithoutGpu(passes, None)._in_turn([one], [one, other])] == [one, other]


@pytest.mark.slow
def test_a_session_finds_the_kernel_that_looks_up() -> None:
    """Small tables are cheap to multiply: such kernels were all that there was time for, and all of them broke."""
    text = "S: f32[2,16,16]\nT: f32[32,2]\nR: i64[16,16]\nreturn softmax(S + transpose(T[R], 2, 0, 1))"
    session = superoptimize(text, effort="quick", budget=20)
    session.result()
    candidates = session.snapshot().candidates
    spoilt = [is_spoilt(session.search.program, c.graph) for c in candidates]
    assert any(spoilt) and not all(spoilt) and not is_spoilt(session.search.program, session.best.graph)
    assert not any("unread rows" in message for message in session.snapshot().messages)
    assert session.best.candidate.kernels == 1
