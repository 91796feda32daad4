"""Programs on parts of their inputs compute what they did, and muGraphs of them are muGraphs of the programs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mirage_nb import superoptimize
from mirage_nb.bench.generated import program as random_program
from mirage_nb.errors import MirageError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.search.axes import prepare
from mirage_nb.search.sizes.looked import launched
from mirage_nb.search.wordings.parts import parts
from mirage_nb.verify.verdict import VerdictKind
from tests.shares import shared_out

GLU = "X: f16[16, 64]\nW: f16[64, 96]\nY = X @ W\nreturn silu(Y[:, :48]) * Y[:, 48:]"


def agrees(program: KernelGraph) -> bool:
    """Whether a program computes the same on parts of its inputs; True if that is no other program."""
    found = parts(program)
    if found is None:
        return True
    given = {i.name: np.random.default_rng(n).normal(size=i.type.shape) for n, i in enumerate(program.inputs)}
    whole = found.whole(found.program)
    assert whole.inputs == program.inputs and whole.output_types == program.output_types
    assert whole.output_names == program.output_names and found.inner(whole) == found.program
    for wanted, made in zip(evaluate(program, given), evaluate(whole, given), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-9, atol=1e-9)
    return True


@pytest.mark.parametrize(
    "program, taken",
    [
        (GLU, ["X", "W[:, 0:48]", "W[:, 48:96]"]),
        ("X: f16[16, 64]\nW: f16[64, 96]\nb: f16[96]\nY = X @ W + b\nreturn tanh(Y[:, 48:]) + Y[:, :48]",
         ["X", "W[:, 0:48]", "W[:, 48:96]", "b[0:48]", "b[48:96]"]),
        ("X: f16[16, 64]\nW: f16[96, 64]\nY = X @ transpose(W, (1, 0))\nreturn Y[:, ::2] * Y[:, 1::2]",
         ["X", "W[0:95:2]", "W[1:96:2]"]),
        ("X: f16[16, 64]\nW: f16[64, 96]\nY = reshape(X @ W, 16, 3, 32)\nreturn Y[:, 0] * Y[:, 1] + Y[:, 2]",
         ["X", "W[:, 0:32]", "W[:, 32:64]", "W[:, 64:96]"]),
        ("X: f16[16, 64]\nG: f16[64]\nW: f16[64, 96]\nY = rms_norm(X, G) @ W\nreturn silu(Y[:, :48]) * Y[:, 48:]",
         ["X", "G", "W[:, 0:48]", "W[:, 48:96]"]),
        ("X: f16[16, 64]\nW: f16[64, 96]\nY = X @ W\nreturn silu(Y[:8]) * Y[8:]", ["X[0:8]", "X[8:16]", "W"]),
        ("X: f32[8, 12]\nreturn exp(X)[:, ::-1]", ["X[:, 11::-1]"]),
        ("X: f32[8, 12]\nreturn max(X, axis=1)[2:]", ["X[2:8]"]),
    ],
)  # fmt: skip
def test_slices_go_back_to_inputs(program: str, taken: list[str]) -> None:
    graph = parse(program).graph
    found = parts(graph)
    assert found is not None and [i.name for i in found.program.inputs] == taken
    assert all(op.kind is not OpKind.SLICE for op in found.program.ops) and agrees(graph)


@pytest.mark.parametrize(
    "program",
    [
        "X: f16[16, 64]\nreturn exp(X)",
        "X: f16[16, 64]\nreturn X[:, :8]",  # nothing is computed
        "X: f16[16, 64]\nW: f16[64, 96]\nY = X @ W\nreturn Y, Y[:, :48] * 2",  # it is an output, too
        "X: f16[16, 64]\nW: f16[64, 96]\nY = X @ W\nreturn Y[:, :64] * Y[:, 32:]",  # a third would be computed twice
        "X: f16[16, 64]\nreturn cumsum(X, axis=1)[:, 8:]",
        "X: f16[16, 60]\nreturn exp(reshape(X, 16, 5, 12)[:, 1:, 2:])",  # no run of elements
    ],
)  # fmt: skip
def test_what_is_read_whole_stays_whole(program: str) -> None:
    assert parts(parse(program).graph) is None


@shared_out
def test_random_programs_compute_the_same(share: int) -> None:
    said = 0
    for seed in range(0, 3000, share):
        text = random_program(seed)
        if not re.search(r"\[[^\]]*:[^\]]*\]|split|take", text):
            continue
        try:
            graph = parse(text).graph
        except MirageError:
            continue
        with np.errstate(all="ignore"):
            assert agrees(graph), seed
        said += parts(graph) is not None
    assert said > 40 / share


@pytest.mark.parametrize("size", ["", "B: size(16)\n"])
def test_halves_of_a_product_are_one_kernel(size: str) -> None:
    """A product was one kernel, and what joins its halves another."""
    program = size + (GLU.replace("f16[16", "f16[B") if size else GLU)
    session = superoptimize(program, effort="quick", target="h200")
    session.wait()
    best = session.best
    assert launched(best.graph) == 1 and best.graph.inputs == session.program.graph.inputs
    assert "The search makes all of its values" in session.explain(best.candidate.digest)
    verdict = session.snapshot().candidates[0].verdict
    assert size or (verdict.kind is VerdictKind.PROVED and "on parts of inputs" in verdict.note)
    given = [np.random.default_rng(n).normal(size=s).astype(np.float16) for n, s in enumerate([(16, 64), (64, 96)])]
    x, w = (a.astype(float) for a in given)
    y = x @ w
    wanted = y[:, :48] / (1 + np.exp(-y[:, :48])) * y[:, 48:]
    np.testing.assert_allclose(np.asarray(best(*given), float), wanted, rtol=2e-2, atol=2e-1)


def test_a_program_that_cannot_be_said_over_axes_is_cut_as_it_is() -> None:
    graph = parse("X: f16[16, 64]\nreturn cumsum(X, axis=1)[:, 8:]").graph
    prepared = prepare(graph)
    assert prepared.refused and prepared.graph == graph


def test_what_lies_apart_in_memory_stays_apart() -> None:
    """Rows of a part that are one dimension for the search would have to be copied."""
    found = parts(parse("X: f16[4, 6, 8, 10]\nreturn X[:, 1:] + X[:, :5], exp(X[:, :, ::2])").graph)
    assert found is not None
    apart = {(found.program.inputs[number].name, dim) for number, dim in found.apart}
    assert apart == {("X[:, 0:5]", 0), ("X[:, 1:6]", 0), ("X[:, :, 0:7:2]", 1), ("X[:, :, 0:7:2]", 2)}


def test_a_fused_projection_and_attention_are_two_kernels_at_most() -> None:
    """The parts of the projection were copied before attention read them."""
    program = """X: f16[8, 128]
W: f16[128, 384]
K: f16[8, 4, 32, 32]
V: f16[8, 4, 32, 32]
Y = X @ W
q = reshape(Y[:, :128], 8, 4, 1, 32)
k = reshape(Y[:, 128:256], 8, 4, 1, 32)
v = reshape(Y[:, 256:], 8, 4, 1, 32)
return softmax(q @ swapaxes(concat(K, k, axis=2), 2, 3)) @ concat(V, v, axis=2)"""
    session = superoptimize(program, effort="quick", target="h200", budget=600)
    session.wait()
    assert launched(session.best.graph) <= 2
    graph = session.program.graph
    given = [np.random.default_rng(n).normal(size=i.type.shape) / 4 for n, i in enumerate(graph.inputs)]
    (wanted,) = evaluate(graph, dict(zip([i.name for i in graph.inputs], given, strict=True)))
    made = session.best(*(array.astype(np.float16) for array in given))
    np.testing.assert_allclose(np.asarray(made, float), wanted, rtol=2e-2, atol=1e-2)
