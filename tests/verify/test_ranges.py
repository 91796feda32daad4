"""Inputs are drawn where a program has values, so that what is executed is also compared."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mirage_nb.bench.programs import text
from mirage_nb.interp.reference import evaluate
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.verify.reals.float_gate import Array, gate, samples
from mirage_nb.verify.reals.hard_inputs import DRAWS
from mirage_nb.verify.reals.ranges import Range, ranges, within

HEAD = "X: f32[4, 8]\nY: f32[4, 8]\nM: bool[4, 8]\nI: i64[4]\nreturn "
POSITIVE, SHARE, TRUTH = Range.POSITIVE, Range.SHARE, Range.TRUTH
RANGES = {
    "log(X) * Y": {"X": POSITIVE},
    "Y / sqrt(mean(X, axis=1, keepdims=True) + 1e-5)": {"X": POSITIVE},
    "log(X / Y)": {"X": POSITIVE, "Y": POSITIVE},
    "X * log(X) + (1 - X) * log(1 - X) + Y": {"X": SHARE},
    "atanh(X) + Y": {"X": SHARE},
    "sqrt(1 - X) * Y": {"X": SHARE},
    "sqrt(sum(X @ Y.T, axis=1))": {"X": POSITIVE, "Y": POSITIVE},
    "X ** 0.7 + Y": {"X": POSITIVE},
    "sqrt(sum(X * X, axis=1)) + sqrt(0.9 * X * X + 0.1 * Y * Y)[:, 0]": {},
    "log(sum(exp(X), axis=1)) + softplus(Y)[:, 0]": {},
    "where(X > 0, log(X), Y)": {},
    "sqrt(abs(X)) + log(1 + exp(Y))": {},
    "where(M, X, Y)": {"M": TRUTH},
    "softmax(where(M.T, X.T, -inf)) + sum(M)": {"M": TRUTH},
    "exp(where(M, X, M))": {"M": TRUTH},
    "sqrt(1 - take(X, I, 0)) * Y": {"X": SHARE},
    "log(1 - (X > Y).T @ X)": {},
}


@pytest.mark.parametrize("expression", RANGES)
def test_what_a_function_has_values_of_is_followed_back_to_inputs(expression: str) -> None:
    assert ranges(parse(HEAD + expression).graph) == RANGES[expression] | {"M": TRUTH}


@pytest.mark.parametrize("name", ["kl_divergence", "liger_jsd", "focal_loss", "graph_convolution", "adamw"])
def test_every_element_of_a_sample_is_compared(name: str) -> None:
    program = parse(text(name)).graph
    right = draw_sample(program, 0).reference
    assert right.asked == sum(t.elements for t in program.output_types)
    assert all(np.isfinite(output).all() for output in right.outputs)
    normal = next(iter(samples(program, names=["normal"])))
    assert normal.reference.asked == right.asked


def test_numbers_are_moved_into_a_range() -> None:
    z = np.random.default_rng(0).standard_normal(100)
    assert within(z, None) is z and (within(z, POSITIVE) > 0).all()
    assert {*within(z, TRUTH)} == {0, 1}
    assert (within(z, SHARE) > 0).all() and (within(z, SHARE) < 1).all()


@pytest.mark.parametrize(("right", "wrong"), [
    ("log(X + 9) + relu(X)", "log(X + 9) + X"),
    ("log(X / Y)", "log(X / Y) + relu(-X)"),
    ("atanh(X) + Y", "atanh(abs(X)) + Y"),
])  # fmt: skip
def test_a_kernel_meets_other_numbers_too(right: str, wrong: str) -> None:
    """On positive numbers these were right."""
    program, other = (parse(HEAD + returned).graph for returned in (right, wrong))

    def run(inputs: Mapping[str, Array]) -> tuple[Array, ...]:
        return evaluate(other, [inputs[i.name] for i in other.inputs])

    assert gate(run, samples(program, names=DRAWS)).broken
