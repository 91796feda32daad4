"""Chained products as tile programs: right on the CPU edition, eager and deferred, without spills, and as the muGraph
says; what is no such block is emitted as before."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_nb.codegen import Launch, emit
from mirage_nb.ir import AccumKind, ApplyAttrs, ArangeAttrs, DType, Input, KernelGraph, Op, OpKind, WhereAttrs
from mirage_nb.optimize import plan
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Loop, Program, flat
from mirage_nb.tile.roles.validate import validate
from tests.codegen.running import TOLERANCE, WAYS, draw, errors, run
from tests.mugraphs import Block, one_kernel, tensor

H200 = TARGETS["h200"]
FEW = replace(H200, multiprocessors=3)


def chained(
    rows: int = 128, keys: int = 64, d: int = 64, *, heads: int = 2, row_blocks: int = 2, loop: int = 2,
    dtype: DType = DType.F16, safe: bool = True, turned: bool = False, late: bool = False, columns: int = 0,
) -> KernelGraph:  # fmt: skip
    """softmax(Q @ K^T / 8) @ V in tiles of rows x keys. turned: K is stored [d, keys]. late: weights are summed behind
    the loop. columns: of V, if not d."""
    n, total = columns or d, keys * loop
    shapes = [(heads, rows * row_blocks, d), (heads, d, total) if turned else (heads, total, d), (heads, total, n)]
    b = Block(tuple(tensor(shape, dtype) for shape in shapes), (heads, row_blocks), loop)
    q, k, v = b.read(0, (0, 1)), b.read(1, (0, None), 2 if turned else 1), b.read(2, (0, None), 1)
    scores = b.op(OpKind.MATMUL, q, k if turned else b.transpose(k, 0, 2, 1))
    scores = b.op(OpKind.MUL, scores, b.const(Fraction(1, 8)))
    top = [b.max(scores, 2)] if safe else []
    weights = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top[0]) if safe else scores)
    kind = AccumKind.RESCALE if safe else AccumKind.SUM
    sums = b.sum(b.accum(weights, *top, kind=kind), 2) if late else b.accum(b.sum(weights, 2), *top, kind=kind)
    result = b.accum(b.op(OpKind.MATMUL, weights, v), *top, kind=kind)
    b.save(b.op(OpKind.DIV, result, sums), (0, 1))
    return one_kernel("Q K V", b)


def masked(
    rows: int = 64, keys: int = 64, d: int = 64, *, tiles: int = 3, heads: int = 1, window: int = 0,
    nested: bool = False, dtype: DType = DType.F16, sides: str = "causal",
) -> KernelGraph:  # fmt: skip
    """Causal attention, by places of rows and keys; of the last `window` keys only, if given: one mask, or two that are
    nested. sides: "both", of `window` keys before and behind; "prefix", of the first `window` keys, too."""
    t = keys * tiles
    shape = tensor((heads, t, d), dtype)
    graph = KernelGraph.start(*(Input(name, shape) for name in "QKV"))
    graph = graph.append(Op(OpKind.ARANGE, (), ArangeAttrs(t)))
    b = Block((graph.types[3], shape, shape, shape), (heads, t // rows), tiles)
    row, key = b.reshape(b.read(0, (None, 0)), rows, 1), b.read(0, (None, None), 0)
    q, k, v = b.read(1, (0, 1)), b.read(2, (0, None), 1), b.read(3, (0, None), 1)
    scores = b.op(OpKind.MUL, b.op(OpKind.MATMUL, q, b.transpose(k, 0, 2, 1)), b.const(Fraction(1, 8)))
    apart = b.op(OpKind.SUB, row, key)
    mask = b.op(OpKind.APPLY, apart, attrs=ApplyAttrs("compared", "step(x)"))
    if sides == "both":
        far = b.op(OpKind.APPLY, apart, attrs=ApplyAttrs("abs", "abs(x)"))
        mask = b.op(OpKind.GREATER_EQUAL, b.const(Fraction(window)), far)
    elif sides == "prefix":
        mask = b.op(OpKind.MAXIMUM, mask, b.op(OpKind.GREATER, b.const(Fraction(window)), key))
    elif window:
        within = b.op(OpKind.SUB, b.const(Fraction(window)), apart)
        inner = b.op(OpKind.APPLY, within, attrs=ApplyAttrs("compared", "1 - step(-x)"))
        if nested:
            scores = b.op(OpKind.WHERE, inner, scores, attrs=WhereAttrs(infinite=-1))
        else:
            mask = b.op(OpKind.MUL, mask, inner)
    scores = b.op(OpKind.WHERE, mask, scores, attrs=WhereAttrs(infinite=-1))
    top = b.max(scores, 2)
    weights = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top))
    sums = b.accum(b.sum(weights, 2), top, kind=AccumKind.RESCALE)
    result = b.accum(b.op(OpKind.MATMUL, weights, v), top, kind=AccumKind.RESCALE)
    b.save(b.op(OpKind.DIV, result, sums), (0, 1))
    return graph.append(Op(OpKind.GRAPH, (3, 0, 1, 2), body=b.graph)).returning((4,))


def shared_out(
    rows: int = 64, keys: int = 64, d: int = 64, *, shares: int = 2, loop: int = 2, heads: int = 2, row_blocks: int = 1,
    dtype: DType = DType.F16, safe: bool = True, late: bool = False, turned: bool = False, squared: bool = False,
) -> KernelGraph:  # fmt: skip
    """Numerator, denominator and maximum of attention, of every share of the keys, as one kernel leaves them. squared:
    the denominator is of the squares of what the numerator is of."""
    total = keys * loop * shares
    shapes = [(heads, rows * row_blocks, d), (heads, d, total) if turned else (heads, total, d), (heads, total, d)]
    b = Block(tuple(tensor(shape, dtype) for shape in shapes), (heads, shares, row_blocks), loop)
    q, v = b.read(0, (0, None, 1)), b.read(2, (0, 1, None), 1)
    k = b.read(1, (0, 2, None), 2) if turned else b.transpose(b.read(1, (0, 1, None), 1), 0, 2, 1)
    scores = b.op(OpKind.MUL, b.op(OpKind.MATMUL, q, k), b.const(Fraction(1, 8)))
    top = [b.max(scores, 2)] if safe else []
    weights = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top[0]) if safe else scores)
    kind = AccumKind.RESCALE if safe else AccumKind.SUM
    kept = [b.accum(top[0], kind=AccumKind.MAX)] if safe else []
    added = b.op(OpKind.SQR, weights) if squared else weights
    kept.append(b.sum(b.accum(added, *top, kind=kind), 2) if late else b.accum(b.sum(added, 2), *top, kind=kind))
    kept.append(b.accum(b.op(OpKind.MATMUL, weights, v), *top, kind=kind))
    for one in kept:
        b.save(b.reshape(one, 1, 1, rows, 1 if one != kept[-1] else d), (1, 0, 2))
    return one_kernel("Q K V", b)


def grouped(rows: int = 64, keys: int = 64, d: int = 64, loop: int = 2) -> KernelGraph:
    """softmax(Q @ K^T) @ V of two rows' heads behind each other, which share one of keys: [rows, heads, d]."""
    b = Block((tensor((2, 2 * rows, 2, d)), tensor((2, keys * loop, d)), tensor((2, keys * loop, d))), (2, 2, 2), loop)
    q, k, v = b.read(0, (0, 2, 1)), b.read(1, (0, None, None), 1), b.read(2, (0, None, None), 1)
    scores = b.op(OpKind.MATMUL, q, b.reshape(b.transpose(k, 0, 2, 1), 1, 1, d, keys))
    top = b.max(scores, 3)
    weights = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top))
    sums = b.accum(b.sum(weights, 3), top, kind=AccumKind.RESCALE)
    result = b.accum(b.op(OpKind.MATMUL, weights, b.reshape(v, 1, 1, keys, d)), top, kind=AccumKind.RESCALE)
    b.save(b.op(OpKind.DIV, result, sums), (0, 2, 1))
    return one_kernel("Q K V", b)


NAMED: dict[str, KernelGraph] = {
    "128 x 64, three iterations": chained(128, 64, loop=3, row_blocks=1, heads=4),
    "64 x 64 x 128, bf16, sums behind the loop": chained(64, 64, 128, dtype=DType.BF16, late=True),
    "192 x 64, keys turned, wider values": chained(192, 64, turned=True, columns=128, row_blocks=1, heads=1),
    "heads between rows and columns": grouped(),
    "causal, 64 x 64": masked(),
    "causal, 128 x 64, the last 70 keys": masked(128, 64, tiles=4, heads=2, window=70, dtype=DType.BF16),
    "causal, 64 x 64, the last 70 keys by two masks": masked(tiles=5, window=70, nested=True),
    "causal, 64 x 64, the last 200 keys": masked(tiles=7, window=200, nested=True, dtype=DType.BF16),
    "70 keys on both sides": masked(tiles=6, window=70, sides="both"),
    "128 x 64, 130 keys on both sides": masked(128, tiles=10, window=130, sides="both", dtype=DType.BF16),
    "a prefix of 70 keys, then causal": masked(tiles=4, heads=2, window=70, sides="prefix"),
    "64 x 64, no maximum, one iteration": chained(64, 64, safe=False, dtype=DType.BF16, loop=1, row_blocks=3),
    "128 x 64, no maximum, f16": chained(128, 64, safe=False, loop=3),
    "keys shared out": shared_out(),
    "keys shared out, 128 x 64 x 128, sums behind the loop": shared_out(
        128, 64, 128, shares=3, late=True, row_blocks=2, dtype=DType.BF16
    ),
    "keys shared out, no maximum": shared_out(safe=False, shares=4, turned=True),
    "keys shared out, no maximum, bf16": shared_out(safe=False, dtype=DType.BF16, loop=1),
}


def planned(graph: KernelGraph) -> Program | None:
    """The tile program of a muGraph's kernel."""
    return next(block for block in plan(graph, FEW).kernels if block is not None).program


@pytest.mark.parametrize("name", NAMED)
def test_named(name: str) -> None:
    graph = NAMED[name]
    assert planned(graph) is not None
    emitted, inputs = emit(graph, FEW), draw(graph, scale=1.0)
    for how in WAYS:
        outputs = run(emitted, inputs, checked=name.startswith("64 x 64 x 128"), **how)
        for error, type_ in zip(errors(graph, emitted, inputs, outputs), graph.output_types, strict=True):
            assert error < TOLERANCE[type_.dtype], how


def test_places_are_not_stored_where_kernels_count() -> None:
    """One launch, whose blocks are as many as there are points: those with most keys begin."""
    graph = masked(rows=64, tiles=3, heads=2)
    program = planned(graph)
    assert program is not None and program.blocks == 6
    assert [type(launch) for launch in emit(graph, FEW).launches] == [Launch]
    loops = [s for s in flat(program.statements("load")) if isinstance(s, Loop)]
    assert [(loop.count, loop.more.terms) for loop in loops] == [(3, (("m", -1),))]


@pytest.mark.parametrize("graph", [
    chained(128, 128, 128, dtype=DType.BF16, loop=8), masked(128, 128, 128, tiles=8), chained(192, 128, 64, loop=8),
    chained(128, 64, 256, loop=8), masked(128, 128, 128, tiles=16, window=300, sides="both"),
])  # fmt: skip
def test_no_spills_and_products_stay_asynchronous(graph: KernelGraph) -> None:
    program = planned(graph)
    assert program is not None and validate(program, H200) == ()
    cubin = compile_cubin(emit(graph, H200).source, "sm_90a")
    (usage,) = cubin.usage.values()
    assert usage.spill_store_bytes == usage.spill_load_bytes == usage.stack_bytes == 0
    assert "warning" not in cubin.log and "serialized" not in cubin.log, cubin.log


@pytest.mark.parametrize("graph", [
    chained(32),  # few rows
    chained(64, 256),  # more than registers hold
    shared_out(safe=False, squared=True),  # in f16 nothing holds both exponentials up
])  # fmt: skip
def test_other_blocks_are_emitted_as_before(graph: KernelGraph) -> None:
    assert planned(graph) is None
    emit(graph, H200)
