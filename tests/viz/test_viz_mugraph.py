"""Pictures of muGraphs: complete, nothing overlaps, nothing is cut off."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from mirage_nb.ir import ApplyAttrs, DType, Input, KernelGraph, Op, OpKind, TensorType
from mirage_nb.ir.graph import BlockGraph, ThreadGraph
from mirage_nb.viz import mugraph_svg
from tests.viz.mugraph_samples import SAMPLES, rmsnorm_fused, split_attention
from tests.viz.svg_geometry import Box, boxes, edge_points, texts

every_sample = pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)


def all_ops(graph: KernelGraph | BlockGraph | ThreadGraph) -> Iterator[Op]:
    for op in graph.ops:
        yield op
        if op.body is not None:
            yield from all_ops(op.body)


def said(op: Op) -> str:
    """How a picture calls an operator; a function of the program has a name of its own."""
    return op.attrs.name if isinstance(op.attrs, ApplyAttrs) else op.kind.value


@every_sample
def test_boxes_do_not_overlap(make: Callable[[], KernelGraph]) -> None:
    found = boxes(mugraph_svg(make()))
    leaves = [b for b in found if b.classes & {"op", "pill"}]
    frames = [b for b in found if b.classes & {"level", "loop"}]
    for i, a in enumerate(leaves):
        assert [b for b in leaves[i + 1 :] if a.overlaps(b)] == []
        assert [f for f in frames if a.overlaps(f) and not f.holds(a)] == []
    for i, a in enumerate(frames):
        assert [b for b in frames[i + 1 :] if a.overlaps(b) and not a.holds(b) and not b.holds(a)] == []


@every_sample
def test_text_lies_within_its_box(make: Callable[[], KernelGraph]) -> None:
    svg = mugraph_svg(make())
    around = boxes(svg)
    for text in texts(svg):
        centre = Box((text.left + text.right) / 2, text.top, (text.left + text.right) / 2, text.bottom)
        holding = [b for b in around if b.holds(centre)]
        inner = min(holding, key=lambda b: (b.right - b.left) * (b.bottom - b.top))
        assert inner.left <= text.left and text.right <= inner.right, text.text


@every_sample
def test_edges_do_not_run_through_operators(make: Callable[[], KernelGraph]) -> None:
    svg = mugraph_svg(make())
    ops = [b for b in boxes(svg) if b.classes & {"op", "pill"}]
    for points in edge_points(svg):
        for (x1, y1), (x2, y2) in pairwise(points):
            if x1 == x2:
                line = Box(x1 - 0.2, y1 + 0.3, x1 + 0.2, y2 - 0.3)
                assert not any(line.overlaps(op) for op in ops)


@every_sample
def test_every_operator_and_every_tensor_is_there(make: Callable[[], KernelGraph]) -> None:
    graph = make()
    shown = [text.text for text in texts(mugraph_svg(graph))]
    for op in all_ops(graph):
        if op.kind not in (OpKind.GRAPH, OpKind.FUSED, OpKind.CONST):
            assert any(text.startswith(said(op)) for text in shown), op.kind
    wanted = sum(op.kind not in (OpKind.GRAPH, OpKind.FUSED, OpKind.CONST) for op in all_ops(graph))
    names = "|".join({kind.value for kind in OpKind} | {said(op) for op in all_ops(graph)})
    captions = [text for text in shown if re.match(rf"({names})\b", text)]
    assert len(captions) == wanted
    for given in graph.inputs:
        assert any(text.startswith(f"{given.name} ") for text in shown)


def test_figure_3() -> None:
    svg = mugraph_svg(rmsnorm_fused())
    shown = [text.text for text in texts(svg)]
    assert "block graph · grid dims x=128 · for-loop range i=16" in shown
    assert "for-loop body · i = 0 … 15" in shown
    assert sorted(t for t in shown if "→" in t) == ["i→b"] * 3 + ["x→c"] * 2 + ["x→φ"] * 2
    assert {"X f16[a=16, b=1024]", "W f16[b=1024, c=4096]", "Z f16[a=16, c=4096]"} <= set(shown)
    assert "[b=64, c=32]" in shown
    assert "EwMul(·, 1/1024)" in shown


def test_the_loop_box_holds_the_body_and_nothing_else() -> None:
    svg = mugraph_svg(split_attention())
    (loop,) = [b for b in boxes(svg) if "loop" in b.classes]
    inside = [t.text for t in texts(svg) if loop.holds(t)]
    outside = [t.text for t in texts(svg) if not loop.holds(t)]
    assert sum(t == "InIter" for t in inside) == 3 and sum(t == "InIter" for t in outside) == 3
    accumulators = sorted(t for t in inside if t.startswith("Accum"))
    assert accumulators == ["Accum max", "Accum rescale", "Accum rescale"]
    assert not any(t.startswith("Accum") for t in outside)
    assert not {"OutSaver", "Reshape"} & set(inside)


def test_names_are_escaped() -> None:
    name = '<script>"&'
    svg = mugraph_svg(KernelGraph.start(Input(name, TensorType((2,), DType.F16))).returning((0,)))
    assert "<script>" not in svg
    assert any(text.text.startswith(name) for text in texts(svg))


def test_an_empty_program_has_a_picture() -> None:
    assert "kernel graph · 0 kernels" in mugraph_svg(KernelGraph.start())
