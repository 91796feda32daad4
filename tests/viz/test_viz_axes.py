"""Names of axes: equal where the operators force it, over all levels."""

from __future__ import annotations

from mirage_nb.ir import DType, Input, KernelGraph, Op, OpKind, ReshapeAttrs, TensorType
from mirage_nb.lang import parse
from mirage_nb.viz.axes import axis_names
from mirage_nb.viz.mugraph import mugraph_svg
from tests.viz.mugraph_samples import rmsnorm_fused, rmsnorm_program, split_attention


def test_figure_3_reads_as_in_the_paper() -> None:
    names = axis_names(rmsnorm_program())
    assert [names.of((), v) for v in range(3)] == [("a", "b"), ("b",), ("b", "c")]
    assert names.of((), 4) == ("a", "")  # the sum is 1 by nature
    assert names.of((), len(rmsnorm_program().types) - 1) == ("a", "c")


def test_names_go_through_all_levels() -> None:
    graph = rmsnorm_fused()
    names = axis_names(graph)
    assert names.of((), 3) == ("a", "c")
    assert [names.of((0,), v) for v in range(3)] == [("a", "b"), ("b",), ("b", "c")]
    body = graph.ops[0].body
    assert body is not None
    fused = next(i for i, op in enumerate(body.ops) if op.kind is OpKind.FUSED)
    assert names.of((0, fused), 0) == ("a", "")
    assert names.of((0, fused), 1) == ("a", "c")


def test_a_batch_axis_split_to_1_keeps_its_name_and_partial_sums_get_a_new_one() -> None:
    graph = split_attention()
    names = axis_names(graph)
    assert names.of((), 0) == ("a", "b", "c")
    body = graph.ops[0].body
    assert body is not None and body.types[0].shape == (1, 32, 64)
    assert names.of((0,), 0) == ("a", "b", "c")
    parts = names.of((), 3)
    assert parts[1:] == ("a", "b", "e") and parts[0] not in {"a", "b", "c", "d", "e", ""}
    assert names.of((), 6) == ("a", "b", "e")


def test_a_reshape_that_merges_dimensions_makes_new_axes() -> None:
    graph = KernelGraph.start(Input("X", TensorType((4, 6), DType.F16)))
    merged = graph.append(Op(OpKind.RESHAPE, (0,), ReshapeAttrs((24,))))
    assert axis_names(merged).of((), 1)[0] not in axis_names(merged).of((), 0)
    rows = KernelGraph.start(Input("X", TensorType((2, 3, 6), DType.F16)))
    rows = rows.append(Op(OpKind.RESHAPE, (0,), ReshapeAttrs((6, 6))))
    assert axis_names(rows).of((), 0) == ("a", "b", "c") and axis_names(rows).of((), 1) == ("d", "c")
    widened = graph.append(Op(OpKind.RESHAPE, (0,), ReshapeAttrs((4, 1, 6))))
    assert axis_names(widened).of((), 1) == ("a", "", "b")


def test_names_never_run_out() -> None:
    graph = KernelGraph.start(*(Input(f"X{i}", TensorType((2, 3, 5), DType.F16)) for i in range(20)))
    names = [name for v in range(20) for name in axis_names(graph).of((), v)]
    assert len(set(names)) == 60
    assert not {"x", "y", "z", "i"} & set(names)


def test_every_value_of_a_program_has_names_for_its_dimensions() -> None:
    head = "X: f16[8, 16]\nW: f16[16, 32]\nH = X @ W\n"
    mask = parse(f"{head}return where(arange(8)[:, None] >= arange(32), H, 0.0)").graph
    halves = parse(f"{head}return H[:, :16] * sigmoid(H[:, 16:])").graph
    for graph in (mask, halves, parse("X: f16[8, 16]\nreturn pad(X, 2, 3, axis=1)").graph):
        names = axis_names(graph)
        for value, found in enumerate(graph.types):
            assert len(names.of((), value)) == len(found.shape)
        assert "<svg" in mugraph_svg(graph)
    names = axis_names(halves)
    assert [names.of((), value) for value in (2, 3, 4, 6)] == [("a", "c"), ("a", "d"), ("a", "d"), ("a", "d")]
