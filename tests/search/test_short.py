"""Folds of a few elements of pairs, written out: distances of points in two or three dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.search.composition import SHORT_FUSED
from mirage_nb.search.session.unsearched import unsearched
from mirage_nb.search.wordings.short import folds, small, written_out
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from tests.codegen.running import check

H200 = TARGETS["h200"]
POINTS = "X: f32[{n}, {d}]; Y: f32[{m}, {d}]; s: f32[{d}]; w: f32[{n}]\n"
PROGRAMS = {
    "nearest": "return min(sum((X[:, None] - Y[None])**2, 2), 1)",
    "a kernel's sums": "return sum(exp(-sum((X[:, None] - Y[None])**2 * s, 2)), 1)",
    "distances": "return sqrt(sum((X[:, None] - Y[None])**2, 2)) * w[:, None]",
    "in the largest dimension": "return min(max(abs(X[:, None] - Y), -1), 0)",
    "of what is known by one side": "return sum(where(X[:, None] > Y, X[:, None] * s, Y), -1)",
    "in front": "return sum((transpose(X)[:, :, None] - transpose(Y)[:, None])**2, 0)",
    "a product": "return min(sum(X * X, 1)[:, None] + sum(Y * Y, 1) - 2 * X @ transpose(Y), 1)",
    "two of them": "D = X[:, None] - Y\nreturn max(sum(D * D, 2) - max(D, 2), 1)",
}
OTHERS = {
    "of one tensor": "return sum(X * X, 1)",
    "of few pairs": "return sum((X[:2, None] - Y[None, :2])**2, 2)",
    "what is no fold of them": "return (X[:, None] - Y[None])**2",
    "a product of few rows": "return X[:16] @ transpose(Y)",
}


def program(text: str, n: int = 256, m: int = 192, d: int = 3) -> KernelGraph:
    return parse(POINTS.format(n=n, m=m, d=d) + text).graph


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_stays_what_it_was(name: str) -> None:
    graph = program(PROGRAMS[name], 160, 128)
    said = written_out(graph)
    assert folds(graph) and not folds(said)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=i.type.shape) for i in graph.inputs]
    for got, want in zip(evaluate(said, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    assert verify(graph, said, seed=1).accepted


def test_products_of_low_rank_are_added_by_threads() -> None:
    """A matrix and an update of rank four: 24.0 us by tensor cores, so 17.2."""
    graph = parse("A: f16[4096, 4]; B: f16[4, 4096]; W: f16[4096, 4096]\nreturn W + A @ B").graph
    found = {c.configuration: c for c in unsearched(graph, H200)}
    mine, others = found.pop(SHORT_FUSED), min(c.estimate_us for c in found.values())
    assert mine.verdict.accepted and mine.estimate_us < 0.8 * others
    few = parse("A: f16[192, 4]; B: f16[4, 200]; W: f16[192, 200]\nreturn W + A @ B").graph
    check({c.configuration: c for c in unsearched(few, H200)}[SHORT_FUSED].graph)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_left_as_it_is(name: str) -> None:
    graph = program(OTHERS[name])
    assert not folds(graph) and written_out(graph) is graph


def test_long_axes_stay_and_small_programs_are_written_out_whatever_they_are() -> None:
    long = program(PROGRAMS["nearest"], d=5)
    assert not folds(long) and written_out(long) is long
    assert sum(op.kind is OpKind.SUM for op in small(program(OTHERS["of few pairs"], d=5)).ops) == 0


@pytest.mark.parametrize("name", ["nearest", "a kernel's sums", "distances"])
def test_threads_hold_pairs(name: str) -> None:
    """Tiles of pairs and their parts were in shared memory: 13.8 us estimated for the sums of 2048 points, so 3.6."""
    graph = program(PROGRAMS[name], 2048, 2048)
    found = {c.configuration: c for c in unsearched(graph, H200)}
    mine, others = found.pop(SHORT_FUSED), min(c.estimate_us for c in found.values())
    assert mine.verdict.accepted and mine.estimate_us < 0.7 * others
    assert sum(op.kind is OpKind.GRAPH for op in mine.graph.ops) == 1
    few = {c.configuration: c for c in unsearched(program(PROGRAMS[name]), H200)}[SHORT_FUSED]
    check(few.graph)
