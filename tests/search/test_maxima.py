"""Maxima that a program uses beyond the exponentials of a softmax: still in one kernel, and still safe."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.ir import AccumKind, KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import decode
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.search import (
    EFFORTS,
    Prepared,
    Structure,
    configurations,
    instances,
    prepare,
    tiny,
)
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.space import why_refused
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from tests.search.explored import explored
from tests.search.programs import attention_safe
from tests.search.test_closure import close
from tests.search.test_foreign_programs import error, exact, stored

H200 = TARGETS["h200"]
STANDARD = EFFORTS["standard"]
LOG = "def ln(x): return log(x)\n"

PROGRAMS = {
    "log_sum_exp": LOG + "X: f16[16, 64]\nm = max(X, axis=-1, keepdims=True)\n"
    "return ln(sum(exp(X - m), axis=-1, keepdims=True)) + m",
    "log_softmax": LOG + "X: f16[16, 64]\nd = X - max(X, axis=-1, keepdims=True)\n"
    "return d - ln(sum(exp(d), axis=-1, keepdims=True))",
    "scaled": "X: f16[16, 64]\nreturn X / max(X, axis=-1, keepdims=True)",
    "pooled": "X: f16[4, 16, 64]\nW: f16[64, 32]\nreturn max(X, axis=1) @ W",
    "of_rectified": "X: f16[16, 64]\nreturn max(relu(X), axis=-1, keepdims=True)",
    "both": "X: f16[16, 64]\nm = max(X, axis=-1, keepdims=True)\nE = exp(X - m)\n"
    "return E / sum(E, axis=-1, keepdims=True), m",
}
RAISING = ("log_sum_exp", "log_softmax", "both")


def found(prepared: Prepared) -> list[Structure]:
    every: list[Structure] = []
    for configuration in configurations(prepared, STANDARD):
        if configuration.cut is None:
            every += explored(prepared, configuration, STANDARD).structures[:40]
    return every


def program(name: str) -> KernelGraph:
    return parse(PROGRAMS[name]).graph


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_verified_kernel_computes_it(name: str) -> None:
    graph = program(name)
    prepared = prepare(graph)
    assert why_refused(prepared, STANDARD) is None
    structures = [s for s in found(prepared) if len(s.kernels) == 1]
    assert structures
    choose = random.Random(name)
    for structure in choose.sample(structures, min(4, len(structures))):
        pair = tiny(prepared, structure)
        assert verify(*pair, seed=3).accepted
        assert error(exact(pair[1], stored(pair[0])), exact(pair[0], stored(pair[0]))) < 1e-9
    if name == "log_sum_exp":
        inputs = stored(graph)
        few = [i for s in structures[-6:] for i in instances(s, prepared, H200, 4) if i.cost.blocks <= 16]
        outputs = CpuExecutable(emit(choose.choice(few).graph, H200, Options(2))).run(inputs, deferred=True)
        mine = [decode(o, t.dtype) for o, t in zip(outputs, graph.output_types, strict=True)]
        assert error(mine, exact(graph, inputs)) < 3e-3


@pytest.mark.parametrize("name", RAISING)
def test_no_form_raises_what_was_not_lowered(name: str) -> None:
    """Logits of thousands: an exponential of one without its maximum is infinite, also in float64."""
    prepared = prepare(program(name))
    rng = np.random.default_rng(0)
    for structure in found(prepared):
        small, candidate = tiny(prepared, structure)
        inputs = [rng.uniform(-3000, 3000, i.type.shape) for i in small.inputs]
        assert error(exact(candidate, inputs), exact(small, inputs)) < 1e-9


def test_the_sum_may_be_rescaled_on_the_way() -> None:
    structures = found(prepare(program("log_sum_exp")))
    assert any(step.operator.accum is AccumKind.RESCALE for s in structures for k in s.kernels for step in k.steps)


def test_a_softmax_is_as_strict_as_ever_and_exponentials_of_maxima_are_refused() -> None:
    assert Semantics(prepare(attention_safe()), STANDARD.options).strict
    assert not Semantics(prepare(program("scaled")), STANDARD.options).strict
    raised = parse("X: f16[16, 64]\nreturn X / exp(max(X, axis=-1, keepdims=True))").graph
    assert "before an exponential" in str(why_refused(prepare(raised), STANDARD))


def test_a_maximum_is_taken_off_what_it_is_the_maximum_of() -> None:
    """exp(S - max(S + M)) overflows where M hides a large score, and times exp(M) it is no number."""
    program = parse(
        "Q: f16[8, 16]\nK: f16[32, 16]\nV: f16[32, 16]\nM: f16[8, 32]\nreturn softmax(Q @ K.T * 0.125 + M) @ V"
    ).graph
    for loop in (None, 1, 2):
        run = close(program, loop=loop)
        values = run.closure.values
        sums = {v.print for v in values if any(operator.kind is OpKind.ADD for operator, _ in v.nodes)}
        lowered = [args for v in values for operator, args in v.nodes if operator.kind is OpKind.SUB]
        assert lowered and all(values[args[0]].print in sums for args in lowered)
        assert run.closure.finals(run.semantics.targets[0])
