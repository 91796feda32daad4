"""Fusing elementwise chains changes no value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.codegen import emit
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import OPS, BlockGraph, DimAttrs, DType, KernelGraph, Op, OpKind, ThreadGraph, Trait
from mirage_nb.ir.legality import check
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.optimize import fuse
from mirage_nb.search.sizes.written import written_cost
from mirage_nb.targets import TARGETS
from tests.codegen.mugraphs import attention, lora, ntrans, rmsnorm, safe_attention
from tests.mugraphs import Block, one_kernel, tensor

H200 = TARGETS["h200"]


def same(graph: KernelGraph) -> None:
    fused = fuse(graph)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(i.type.shape) for i in graph.inputs]
    for a, b in zip(evaluate(graph, inputs), evaluate(fused, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert fused.output_types == graph.output_types


def elementwise(graph: KernelGraph) -> list[OpKind]:
    body = graph.ops[0].body
    assert body is not None
    return [op.kind for op in body.ops if Trait.ELEMENTWISE in OPS[op.kind].traits or op.kind is OpKind.FUSED]


def test_mul_sqrt_div_are_one_thread_graph() -> None:
    """The paper's Figure 3: three operators after the loop, nothing of them in shared memory."""
    assert elementwise(fuse(rmsnorm())) == [OpKind.SQR, OpKind.FUSED]


def test_a_constant_that_only_chains_read_leaves_the_block_graph() -> None:
    """Otherwise nothing would read it, and the muGraph would not be legal."""
    for graph in (rmsnorm(), lora(), ntrans(), safe_attention()):
        check(fuse(graph))


def test_named_mugraphs_keep_their_values() -> None:
    for graph in (rmsnorm(), lora(), ntrans(), safe_attention()):
        same(graph)


def with_products(block: BlockGraph) -> BlockGraph:
    """Every elementwise operator and the products that it alone reads as one thread graph."""
    uses, made = block.uses(), {v: op for op, values in block.definitions() for v in values}
    result, new = BlockGraph.start(block.args, block.grid, block.loop), dict[int, int]()

    def passed(value: int) -> bool:
        readers = [block.ops[n] for n in uses[value]]
        alone = len(readers) == 1 and Trait.ELEMENTWISE in OPS[readers[0].kind].traits
        return made[value].kind is OpKind.MATMUL and alone

    for op, values in block.definitions():
        heads = [v for v in op.inputs if passed(v)]
        if values and passed(values[0]):
            continue
        if heads:
            outer = list(dict.fromkeys(v for i in op.inputs for v in (made[i].inputs if i in heads else (i,))))
            thread = ThreadGraph.start(tuple(block.types[v] for v in outer))
            inner = {v: n for n, v in enumerate(outer)}
            for head in heads:
                thread = thread.append(replace(made[head], inputs=tuple(inner[v] for v in made[head].inputs)))
                inner[head] = len(thread.types) - 1
            thread = thread.append(replace(op, inputs=tuple(inner[v] for v in op.inputs)))
            op = Op(OpKind.FUSED, tuple(outer), body=thread.returning((len(thread.types) - 1,)))
        result = result.append(replace(op, inputs=tuple(new[v] for v in op.inputs)))
        new |= dict.fromkeys(values, len(result.types) - 1)
    return result


PRODUCTS = {"attention": attention(), "safe attention": safe_attention()}


@pytest.mark.parametrize("name", PRODUCTS)
def test_thread_graphs_with_products(name: str) -> None:
    """They are legal, mean what they say, survive a file, and are planned and emitted as what they consist of."""
    graph = PRODUCTS[name]
    ops = tuple(replace(op, body=with_products(op.body)) if isinstance(op.body, BlockGraph) else op for op in graph.ops)
    threads = replace(graph, ops=ops)
    (body,) = (op.body for op in ops)
    assert body is not None and any(op.body and op.body.ops[0].kind is OpKind.MATMUL for op in body.ops)
    check(threads, H200)
    assert parse_graph(print_graph(threads)) == threads
    same(threads)
    assert emit(threads, H200).source == emit(graph, H200).source
    assert written_cost(threads, H200) == written_cost(graph, H200)


def test_a_chain_does_not_swallow_a_path_that_returns() -> None:
    """exp(x) -> sum -> division of exp(x): the division may not join the exponential."""
    b = Block((tensor((4, 8), DType.F32),), (1,))
    e = b.op(OpKind.EXP, b.read(0, (None,)))
    b.save(b.op(OpKind.DIV, e, b.sum(e, 1)), (None,))
    graph = one_kernel("X", b)
    assert elementwise(fuse(graph)) == [OpKind.EXP, OpKind.DIV]
    same(graph)


def test_nor_one_that_returns_through_another_chain() -> None:
    """a with a + q, and q with s + q, where s is the sum of a: each chain is convex, and each waits for the other."""
    b = Block((tensor((4, 8), DType.F32),), (1,))
    x = b.read(0, (None,))
    a, q = b.op(OpKind.ADD, x, x), b.op(OpKind.SQR, x)
    late = b.op(OpKind.ADD, b.sum(a, 0), q)
    b.save(b.op(OpKind.MUL, late, b.op(OpKind.ADD, a, q)), (None,))
    same(one_kernel("X", b))


@st.composite
def block_graphs(draw: st.DrawFn) -> KernelGraph:
    """Random elementwise operators and sums; every value may be read several times or saved."""
    b = Block((tensor((4, 8), DType.F32), tensor((1, 8), DType.F32)), (1,))
    values = [b.read(0, (None,)), b.read(1, (None,))]
    for _ in range(draw(st.integers(1, 9))):
        kind = draw(st.sampled_from([OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.SQR, OpKind.RELU, OpKind.SUM]))
        picked = [draw(st.sampled_from(values)) for _ in range(OPS[kind].arity or 1)]
        attrs = DimAttrs(draw(st.integers(0, 1))) if kind is OpKind.SUM else None
        values.append(b.op(kind, *picked, attrs=attrs))
    for value in draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3)):
        b.save(value, (None,))
    return one_kernel("X Y", b)


@given(block_graphs())
def test_any_chains_keep_their_values(graph: KernelGraph) -> None:
    same(graph)
