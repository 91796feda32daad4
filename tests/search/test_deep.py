"""Deep products of few results, summed in parts."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import OpKind
from mirage_nb.lang import parse
from mirage_nb.search.composition import DEEP_IN_PARTS, UNSEARCHED
from mirage_nb.search.session.unsearched import unsearched
from mirage_nb.search.wordings.deep import halved, in_parts, products
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from tests.codegen.running import check
from tests.shares import crossed

H200 = TARGETS["h200"]
GRADIENT = "X: f16[{n}, {a}]; D: f16[{n}, {b}]\nreturn transpose(X) @ D"
CENTRED = "X: f32[{n}, {a}]\nC = X - mean(X, 0)\nreturn transpose(C) @ C / {n}"


@pytest.mark.parametrize(
    ("shapes", "product", "parts"),
    [
        ("X: f32[512, 16]; Y: f32[512, 24]", "X.T @ Y", 4), ("X: f32[16, 512]; Y: f32[512, 24]", "X @ Y", 4),
        ("X: f32[16, 512]; Y: f32[24, 512]", "X @ Y.T", 4), ("X: f32[512, 16]; Y: f32[24, 512]", "X.T @ Y.T", 4),
        ("X: f32[512, 16]", "X.T @ X", 4), ("X: f32[384, 16]", "exp(X.T @ X) + 1", 3),
        ("X: f32[256, 100]", "X.T @ X", 0), ("X: f32[509, 16]", "X.T @ X", 0), ("X: f32[2, 512, 8]", "X.mT @ X", 0),
        ("X: f32[8192, 1024]", "X.T @ X", 0),
    ],
)  # fmt: skip
def test_the_parts_of_a_product(shapes: str, product: str, parts: int) -> None:
    program = parse(f"{shapes}\nreturn {product}").graph
    said = in_parts(program)
    assert len(products(program)) == (parts > 0) and (said is program) == (not parts) and not products(said)
    if parts:
        (made,) = (said.types[v] for op, (v, *_) in said.definitions() if op.kind is OpKind.MATMUL)
        assert made.shape[0] == parts
        arrays = [np.random.default_rng(n).standard_normal(i.type.shape) for n, i in enumerate(program.inputs)]
        (wanted,) = evaluate(program, arrays)
        for other in (said, halved(program)):
            assert other.output_types == program.output_types
            np.testing.assert_allclose(*evaluate(other, arrays), wanted, rtol=1e-9)


@crossed({"text": [GRADIENT, CENTRED], "n, a, b": [(1024, 32, 48), (768, 64, 16)]})
def test_it_is_one_kernel_for_the_parts_and_one_for_the_sum(text: str, n: int, a: int, b: int) -> None:
    program = parse(text.format(n=n, a=a, b=b)).graph
    found = {c.configuration: c for c in unsearched(program, H200)}[DEEP_IN_PARTS]
    assert found.verdict.accepted and found.small is not None and verify(*found.small, seed=3).accepted
    kinds = [{op.kind for op in op.body.ops} for op in found.graph.ops if op.body is not None]
    assert sum(OpKind.MATMUL in some for some in kinds) == 1 and OpKind.SUM in kinds[-1]
    check(found.graph)


@pytest.mark.parametrize(("text", "n", "a", "b"), [(GRADIENT, 4096, 64, 128), (CENTRED, 8192, 128, 0)])
def test_it_is_estimated_below_what_others_take(text: str, n: int, a: int, b: int) -> None:
    found = {c.configuration: c.estimate_us for c in unsearched(parse(text.format(n=n, a=a, b=b)).graph, H200)}
    assert found[DEEP_IN_PARTS] < 0.6 * min(found[name] for name in found.keys() & UNSEARCHED - {DEEP_IN_PARTS})
