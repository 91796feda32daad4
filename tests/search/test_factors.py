"""Numbers that multiply operands of products stand behind these, and what folds anything else beside them."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import OpKind
from mirage_nb.lang import parse
from mirage_nb.search.composition import SUMS_APART, UNSEARCHED
from mirage_nb.search.session.unsearched import unsearched
from mirage_nb.search.wordings.factors import behind, scaled
from mirage_nb.targets import TARGETS
from mirage_nb.verify.proof import Proof, prove
from tests.codegen.running import check

H200 = TARGETS["h200"]
GIVEN = "X: f32[8, 32]; Y: f32[16, 32]; Z: f16[16, 32]; S: f32[1]\n"


@pytest.mark.parametrize(
    ("returned", "products"),
    [
        ("2 * X @ Y.T", 1), ("(X / 3) @ (4 * Y.T)", 1), ("exp(X * 2 @ Y.T) + X @ Y.T / 5", 1), ("-X @ f32(Z).T", 1),
        ("X @ Y.T", 0), ("2 * (X @ Y.T)", 0), ("(S * X) @ Y.T", 0), ("(X + 2) @ Y.T", 0),
    ],
)  # fmt: skip
def test_numbers_stand_behind_products(returned: str, products: int) -> None:
    program = parse(f"{GIVEN}return {returned}").graph
    said = behind(program)
    assert len(scaled(program)) == products and (said is program) == (not products) and not scaled(said)
    arrays = [np.random.default_rng(0).uniform(-1, 1, i.type.shape) for i in program.inputs]
    np.testing.assert_allclose(*evaluate(said, arrays), *evaluate(program, arrays), rtol=1e-9)
    assert isinstance(prove(program, said), Proof)


KERNEL = """
X: f32[{0}, 32]; Y: f32[{1}, 32]
return exp(-0.5 * (sum(X * X, 1)[:, None] + sum(Y * Y, 1)[None, :] - 2 * X @ transpose(Y)))
"""
BILINEAR = "X: f16[{0}, 512]; W: f16[512, 512]; Y: f16[{0}, 512]\nreturn sum((X @ W) * Y, 1)"


@pytest.mark.parametrize(
    ("text", "small", "large", "most", "share"),
    [(KERNEL, (128, 64), (4096, 1024), 16.0, 1.05), (BILINEAR, (32,), (256,), 4.1, 0.8)],
    ids=["an RBF kernel", "a bilinear form"],
)
def test_sums_stand_beside_products(
    text: str, small: tuple[int, ...], large: tuple[int, ...], most: float, share: float
) -> None:
    """Warps with roles multiply, which fold nothing else. In one kernel with its sums an RBF matrix took 20.7 us where
    threads had one result after the other; in patches it is estimated as fast."""
    found = {c.configuration: c for c in unsearched(parse(text.format(*large)).graph, H200)}
    others = min(found[name].estimate_us for name in found.keys() & UNSEARCHED - {SUMS_APART})
    assert found[SUMS_APART].verdict.accepted and found[SUMS_APART].estimate_us < min(most, share * others)
    graph = {c.configuration: c for c in unsearched(parse(text.format(*small)).graph, H200)}[SUMS_APART].graph
    bodies = [{op.kind for op in op.body.ops} for op in graph.ops if op.body is not None]
    assert any(OpKind.MATMUL in kinds for kinds in bodies)
    assert all(not {OpKind.MATMUL, OpKind.SUM} <= kinds for kinds in bodies)
    check(graph)
