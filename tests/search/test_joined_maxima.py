"""Maxima that something joins, as a sink joins those of attention: they shift what they shifted without it."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Prepared, Structure, configurations, prepare, tiny
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.verify.proof import verify_and_prove
from tests.search.explored import explored
from tests.search.test_foreign_programs import error, exact

STANDARD = EFFORTS["standard"]
HEAD = "Q: f16[2, 8, 16]\nK: f16[2, 64, 16]\nV: f16[2, 64, 16]\ns: f16[2, 1, 1]\nS = Q @ K.T / 4\n"
FORMS = {
    "side by side": "return softmax(concat([S, broadcast_to(s, (2, 8, 1))], axis=-1))[..., :-1] @ V",
    "by hand": "m = maximum(max(S, -1, keepdims=True), s)\nE = exp(S - m)\n"
    "return E @ V / (sum(E, -1, keepdims=True) + exp(s - m))",
    "one more": "m = max(S, -1, keepdims=True).clip(0)\nE = exp(S - m)\n"
    "return E @ V / (exp(-m) + sum(E, -1, keepdims=True))",
}


@cache
def prepared(name: str) -> Prepared:
    return prepare(parse(HEAD + FORMS[name]).graph)


@cache
def found(name: str, kernels: int) -> tuple[Structure, ...]:
    """Of one kernel with a loop over the keys, or of two that share these out."""
    program, every = prepared(name), list[Structure]()
    for configuration in configurations(program, STANDARD):
        keys = [n for n, axis in enumerate(program.axes) if axis.extent == 64]
        split = configuration.loop in keys and (kernels == 1 or {*configuration.grid} == {*keys})
        if configuration.cut is None and configuration.kernels == kernels and split:
            every += explored(program, configuration, STANDARD).structures
    return tuple(s for s in every if len(s.kernels) == kernels)


def is_rescaled(structure: Structure) -> bool:
    """Whether each score is computed once, and the sums of parts are rescaled."""
    *_, last = structure.kernels
    steps = [step.operator for kernel in structure.kernels for step in kernel.steps]
    rescales = any(step.accum is AccumKind.RESCALE for step in steps)
    behind = len(structure.kernels) == 1 or any(step.operator.kind is OpKind.RESCALED_SUM for step in last.steps)
    return rescales and behind and sum(step.kind is OpKind.MATMUL for step in steps) == 2


@pytest.mark.parametrize("kernels", [1, 2])
@pytest.mark.parametrize("name", FORMS)
def test_the_kernels_of_attention_are_found_and_proved(name: str, kernels: int) -> None:
    structures = [structure for structure in found(name, kernels) if is_rescaled(structure)]
    assert structures
    for structure in random.Random(name).sample(structures, min(2, len(structures))):
        verdict, proof = verify_and_prove(*tiny(prepared(name), structure), seed=3, seconds=20)
        assert verdict.accepted and proof is not None, verdict


@pytest.mark.parametrize("name", FORMS)
def test_nothing_is_raised_that_was_lowered(name: str) -> None:
    """Scores and sinks of thousands: an exponential of one without the maximum is infinite, also in float64."""
    assert Semantics(prepared(name), STANDARD.options).strict
    rng = np.random.default_rng(0)
    for structure in (*found(name, 1)[::4], *found(name, 2)[::8]):
        small, candidate = tiny(prepared(name), structure)
        inputs = [rng.uniform(-3000, 3000, i.type.shape) / (1 if i.type.shape[-1] == 1 else 40) for i in small.inputs]
        assert error(exact(candidate, inputs), exact(small, inputs)) < 1e-9


def test_what_joins_a_maximum_may_come_before_or_behind_its_parts() -> None:
    """The larger one of a sink and the largest of each tile is that of the sink and the largest of all tiles."""
    program = prepared("by hand")
    both = [structure for structure in found("by hand", 2) if len(structure.kernels[0].outputs) == 3]
    joins = {
        tuple(any(step.operator.kind is OpKind.MAXIMUM for step in kernel.steps) for kernel in structure.kernels)
        for structure in both
    }
    assert both and (True, False) in joins
    assert all(verify_and_prove(*tiny(program, structure), seed=1)[0].accepted for structure in both[:3])
