"""Quotients of products move to the tile that they are multiplied by, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.ir.legality import check
from mirage_nb.tile.rules.scales import move_scales
from tests.codegen.mugraphs import attention, normed_attention, safe_attention, split_safe_attention


def body(graph: KernelGraph) -> BlockGraph:
    found = graph.ops[0].body
    assert isinstance(found, BlockGraph)
    return found


def test_a_quotient_moves_to_the_values() -> None:
    before = normed_attention("E")
    after = move_scales(before)
    check(after)
    made = {v: op for op, values in body(after).definitions() for v in values}
    (product,) = [op for op in body(after).ops if op.kind is OpKind.MATMUL and made[op.inputs[0]].kind is OpKind.EXP]
    moved = made[product.inputs[1]]
    assert moved.kind is OpKind.DIV and made[moved.inputs[0]].kind is OpKind.IN_ITER
    assert all(op.kind is not OpKind.RESHAPE for op in body(after).ops)
    assert move_scales(after) == after
    rng = np.random.default_rng(0)
    inputs = [0.2 * rng.standard_normal(i.type.shape) for i in before.inputs]
    for old, new in zip(evaluate(before, inputs), evaluate(after, inputs), strict=True):
        np.testing.assert_allclose(old, new, rtol=1e-12)


@pytest.mark.parametrize(
    "graph", [attention(), safe_attention(), split_safe_attention(), normed_attention("V"), normed_attention("K")]
)
def test_nothing_else_changes(graph: KernelGraph) -> None:
    assert move_scales(graph) == graph
