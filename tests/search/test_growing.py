"""Programs whose expressions double with every step: what is prepared of them stays small."""

from __future__ import annotations

import pytest

from mirage_nb.algebra import Algebra, Oracle
from mirage_nb.algebra.normal_form import SIZE_LIMIT
from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    DType,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    TensorType,
    ThreadGraph,
)
from mirage_nb.lang import parse
from mirage_nb.optimize import default_options, plan
from mirage_nb.optimize.access import Scope
from mirage_nb.optimize.plan import plan_block
from mirage_nb.optimize.vectors import vectorizes
from mirage_nb.predefined.masks import Band, band
from mirage_nb.predefined.reading import Reading
from mirage_nb.search.axes import prepare
from mirage_nb.search.composition import library_and_fused
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.sizes.written import written_cost
from mirage_nb.search.space import EFFORTS
from mirage_nb.targets import find_target
from mirage_nb.tile.index import vector_reads


def repeated(step: str, times: int = 40) -> KernelGraph:
    """A program that says so many times A = step."""
    return parse(f"X: f32[8, 8]\nA = X\nfor k in range({times}):\n    A = {step}\nreturn A").graph


@pytest.mark.parametrize("step", ["A + A", "A * A", "A + exp(A) * A", "tanh(A) + A", "A / (1 + A)"])
def test_forty_steps_are_prepared(step: str) -> None:
    semantics = Semantics(prepare(repeated(step)), EFFORTS["quick"].options)
    texts = [semantics.algebra.show(target.expr) for target in semantics.targets]
    assert all(0 < len(text) < 10_000 for text in texts)


def test_sums_in_sums_are_prepared_and_joined() -> None:
    graph = repeated("A - sum(A * A, axis=1, keepdims=True)", 30)
    Semantics(prepare(graph), EFFORTS["quick"].options)
    assert library_and_fused(graph, find_target("h200")) is not None


def test_what_is_too_large_to_be_written_out_is_vague_and_never_cut() -> None:
    algebra = Algebra()
    x, y = algebra.symbol("X", "i"), algebra.symbol("Y", "i")
    power, several = x, algebra.add(x, y)
    for _ in range(SIZE_LIMIT.bit_length()):
        power, several = algebra.mul(power, power), algebra.add(several, several)
    assert algebra.is_vague(power) and algebra.is_vague(several)
    assert algebra.mul(power, x) == algebra.mul(x, power)
    assert Oracle(algebra, [power]).reaches(algebra.exp(y))
    assert algebra.is_vague(algebra.sum("i", power)) and algebra.free_axes(power) == {"i"}


def test_a_mask_of_numbers_that_double_is_read() -> None:
    doubled = "i = arange(8)[:, None]\nj = arange(8)\nfor k in range(40):\n    i = i + i\n    j = j + j\n"
    graph = parse(f"S: f32[8, 8]\n{doubled}return where(i >= j, S, 0)").graph
    (where,) = (op for op in graph.ops if op.kind is OpKind.WHERE)
    assert band(Reading(graph), where.inputs[0]) == Band()


def test_a_block_that_doubles_outside_of_chains_is_planned_and_read_as_vectors() -> None:
    block = BlockGraph.start((TensorType((32, 64), DType.F16),), (4,)).append(
        Op(OpKind.IN_ITER, attrs=InIterAttrs(0, (0,)))
    )
    for value in range(60):
        block = block.append(Op(OpKind.MUL, (value, value)))
    block = block.append(Op(OpKind.OUT_SAVER, (60,), OutSaverAttrs((0,))))
    card = find_target("h200")
    scope = Scope(plan_block(block, card, default_options(card)), {})
    assert vectorizes(scope, 60, 1, 8)


def test_a_product_that_doubles_behind_its_loop_is_estimated() -> None:
    graph = parse("X: f16[128, 1024]\nW: f16[1024, 128]\nreturn X @ W").graph
    block = BlockGraph.start(tuple(graph.types[v] for v in (0, 1)), (1,), 16)
    for arg, dim in enumerate((1, 0)):
        block = block.append(Op(OpKind.IN_ITER, attrs=InIterAttrs(arg, (None,), dim)))
    block = block.append(Op(OpKind.MATMUL, (0, 1))).append(Op(OpKind.ACCUM, (2,), AccumAttrs(AccumKind.SUM)))
    for value in range(3, 60):
        block = block.append(Op(OpKind.MUL, (value, value)))
    block = block.append(Op(OpKind.OUT_SAVER, (60,), OutSaverAttrs((None,))))
    fused = KernelGraph.start(*graph.inputs).append(Op(OpKind.GRAPH, (0, 1), body=block)).returning((2,), ("O",))
    card = find_target("h200")
    assert plan(fused, card).kernels[0] is not None
    assert 0 < written_cost(fused, card).us < 100


def test_what_a_thread_graph_that_doubles_reads_as_vectors_is_found() -> None:
    thread = ThreadGraph.start((parse("X: f16[4, 8]\nreturn X + 1").graph.inputs[0].type,))
    for value in range(60):
        thread = thread.append(Op(OpKind.ADD, (value, value)))
    assert vector_reads(thread, 60, 1) == {(0, 1)}
