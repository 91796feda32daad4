"""Temporaries in f32, between blocks whose operators stand alone or in thread graphs."""

from __future__ import annotations

import pytest

from mirage_nb.ir import DType, KernelGraph, OpKind
from mirage_nb.optimize.plan import rewritten
from mirage_nb.tile.rules.thread_graph import fuse, shallow, with_products
from tests.mugraphs import Kernel, cases


def two_kernels(product: bool) -> KernelGraph:
    """T = exp(X), then relu(T) * Y, or T @ Y * Y."""
    outer = Kernel(X=(4, 4), Y=(4, 4))
    first = outer.block((0,), (2,))
    first.save(first.op(OpKind.EXP, first.read(0, (0,))), (0,))
    second = outer.block((outer.launch((0,), first), 1), (2,))
    made, y = second.read(0, (0,)), second.read(1, (None,) if product else (0,))
    made = second.op(OpKind.MATMUL, made, y) if product else second.op(OpKind.RELU, made)
    made = second.op(OpKind.SQR, made) if product else second.op(OpKind.MUL, made, y)
    second.save(second.op(OpKind.EXP, made), (0,))
    return outer.returning(outer.launch((2, 1), second))


MUGRAPHS = {case.name: case.candidate for case in cases()}
MUGRAPHS |= {"two kernels": two_kernels(False), "a product behind": two_kernels(True)}


@pytest.mark.parametrize("graph", MUGRAPHS.values(), ids=MUGRAPHS)
def test_it_does_not_matter_what_was_fused_before(graph: KernelGraph) -> None:
    for fused in (fuse(graph), with_products(graph, shallow(graph))):
        assert rewritten(fused).types == rewritten(graph).types


def test_what_is_only_computed_with_is_widened() -> None:
    assert rewritten(fuse(two_kernels(False))).types[2].dtype is DType.F32
    products = two_kernels(True)
    assert rewritten(with_products(products, shallow(products))).types[2].dtype is DType.F16
