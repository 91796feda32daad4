"""Products in thread graphs: searched, emitted, executed on the CPU edition, equal to float64."""

from __future__ import annotations

import random

import pytest

import mirage_nb
from mirage_nb.codegen import emit
from mirage_nb.ir import AccumKind, BlockGraph, DType, Input, KernelGraph, Op, OpKind, ThreadGraph
from mirage_nb.ir.legality import check as legal
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.optimize import plan
from mirage_nb.search.sizes.written import written_cost
from mirage_nb.targets import TARGETS
from mirage_nb.tile.placement import StepKind
from mirage_nb.tile.thread_graph import MOST_DEPTH, TENSOR_DEPTH, fuse, shallow, with_products
from tests.codegen.running import check
from tests.mugraphs import Block, one_kernel, tensor

H200 = TARGETS["h200"]


def in_threads(graph: KernelGraph) -> int:
    """Products that stand in thread graphs."""
    bodies = [inner.body for op in graph.ops if isinstance(op.body, BlockGraph) for inner in op.body.ops]
    return sum(part.kind is OpKind.MATMUL for body in bodies if isinstance(body, ThreadGraph) for part in body.ops)


def product_block(rng: random.Random, dtype: DType) -> Block:
    """A small product between other operators: batches, views, tiles that hang over, loops, what reads its result."""
    rows, depth, columns = rng.randint(1, 9), rng.randint(1, TENSOR_DEPTH), rng.choice((1, 2, 3, 8, 16))
    left_batch, right_batch = rng.choice([((), ()), ((3,), ()), ((), (3,)), ((3,), (3,)), ((3,), (1,))])
    first, turned = max(len(left_batch), len(right_batch)), rng.random() < 0.3
    loop = 1 if turned else rng.choice((1, 1, 2))
    blocks = 2 if rows > 1 else 1
    tile = -(-rows // blocks)
    hangs = tile * blocks != rows
    right = (*right_batch, columns, depth) if turned else (*right_batch, depth, columns * loop)
    b = Block(tuple(tensor(s, dtype) for s in ((*left_batch, rows, depth), right, (columns * loop,))), (blocks,), loop)
    x = b.read(0, (len(left_batch),), tile=(*left_batch, tile, depth) if hangs else None)
    w = b.read(1, (None,), len(right_batch) + 1 if loop > 1 else None)
    c = b.read(2, (None,), 0 if loop > 1 else None)
    if turned:
        w = b.transpose(w, *range(len(right_batch)), len(right_batch) + 1, len(right_batch))
    x = b.op(OpKind.RELU, x) if rng.random() < 0.5 else x
    w = b.op(OpKind.SQR, w) if rng.random() < 0.3 else w
    y = b.op(OpKind.MATMUL, x, w)
    match rng.randrange(4):
        case 0:
            y = b.op(OpKind.ADD, b.op(OpKind.MUL, y, y), c)
        case 1:
            y = b.op(OpKind.MUL, y, b.op(OpKind.ADD, b.op(OpKind.MATMUL, x, w), c))
        case 2:
            y = b.op(OpKind.ADD, y, b.op(OpKind.MUL, b.max(y, first + 1), c))
        case _:
            y = b.op(OpKind.ADD, y, c)
    y = b.accum(y, kind=AccumKind.CONCAT, dim=first + 1) if loop > 1 else y
    b.save(y, (first,), (*(3,) * first, rows, columns * loop) if hangs else None)
    return b


def family(seed: int, dtype: DType, count: int = 10) -> KernelGraph:
    """So many of them as kernels of one muGraph."""
    rng = random.Random(seed)
    blocks = [product_block(rng, dtype) for _ in range(count)]
    args = [(f"x{n}_{i}", t) for n, b in enumerate(blocks) for i, t in enumerate(b.graph.args)]
    graph = KernelGraph.start(*(Input(name, type_) for name, type_ in args))
    for n, b in enumerate(blocks):
        graph = graph.append(Op(OpKind.GRAPH, (3 * n, 3 * n + 1, 3 * n + 2), body=b.graph))
    return graph.returning(tuple(range(graph.input_count, len(graph.types))))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_threads_compute_small_products(dtype: DType) -> None:
    graph = family(1, dtype)
    made = with_products(graph, shallow(graph))
    legal(made, H200)
    assert in_threads(made) > 10 and fuse(made) == made and parse_graph(print_graph(made)) == made
    kinds = {step.kind for k in plan(made, H200).kernels if k and k.staged for step in k.staged.steps}
    assert StepKind.MATMUL not in kinds
    check(made)


@pytest.mark.parametrize("staged", [False, True])
def test_products_of_rows_that_lie_beyond_the_end(staged: bool) -> None:
    b = Block((tensor((100, 3), DType.F32), tensor((3, 64), DType.F32)), (2,))
    x, w = b.read(0, (0,), tile=(64, 3)), b.read(1, (None,))
    y = b.op(OpKind.RELU, b.op(OpKind.MATMUL, x, w))
    y = b.op(OpKind.ADD, y, b.max(y, 1)) if staged else y
    b.save(y, (0,), (100, 64))
    graph = one_kernel("X W", b)
    check(with_products(graph, shallow(graph)))


def test_deep_products_are_written_out() -> None:
    def product(depth: int, dtype: DType) -> KernelGraph:
        b = Block((tensor((8, depth), dtype), tensor((depth, 8), dtype)), (1,))
        b.save(b.op(OpKind.RELU, b.op(OpKind.MATMUL, b.read(0, (None,)), b.read(1, (None,)))), (None,))
        return one_kernel("X W", b)

    for dtype, most in ((DType.F32, MOST_DEPTH), (DType.F16, TENSOR_DEPTH)):
        assert shallow(product(most, dtype)) and not shallow(product(most + 1, dtype))
    assert not shallow(product(4, DType.F64))
    graph = product(2 * MOST_DEPTH, DType.F32)
    given = with_products(graph, frozenset({(0, 0)}))
    assert in_threads(given) == 1 and in_threads(fuse(given)) == 0
    assert emit(given, H200).source == emit(graph, H200).source
    assert written_cost(given, H200) == written_cost(graph, H200)


PROGRAMS = {
    "between": "X: f32[512, 8]\nA: f32[8, 16]\nb: f32[16]\nreturn relu(exp(X) @ A + b)",
    "tiny": "X: f32[256, 3, 5]\nY: f32[256, 5, 4]\nreturn X @ Y * 0.5",
    "rotated": "X: f16[2048, 2]\nR: f16[2, 2]\nZ: f16[2048, 2]\nreturn X @ R * Z",
}


@pytest.mark.parametrize("name", ["between", *(pytest.param(n, marks=pytest.mark.slow) for n in ("tiny", "rotated"))])
def test_a_session_finds_one_and_runs_it(name: str) -> None:
    """The best of the ranked muGraphs has its product in a thread graph, is verified as it stands, and ran."""
    session = mirage_nb.superoptimize(PROGRAMS[name], effort="quick", budget=10, target="h200")
    session.wait()
    candidate = session.best.candidate
    assert in_threads(candidate.graph) == 1 and candidate.verdict.accepted
    if candidate.small is not None and not any(size.startswith("P1") for size in candidate.sizes):
        assert in_threads(candidate.small[1]) == 1
    assert candidate.error is not None and candidate.error < 1e-3
    beside = [c for c in session.snapshot().candidates if c.sizes == candidate.sizes and not in_threads(c.graph)]
    assert beside and all(c.estimate_us > candidate.estimate_us for c in beside)
