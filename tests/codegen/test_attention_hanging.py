"""Chained products whose tiles hang over the ends of rows and keys: what lies there is masked, dropped, never read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mirage_nb.codegen import Emitted, Launch, MapArg, emit
from mirage_nb.ir import (
    AccumKind,
    ArangeAttrs,
    CastAttrs,
    ConstAttrs,
    DType,
    Input,
    KernelGraph,
    Op,
    OpKind,
    RepeatAttrs,
    ReshapeAttrs,
    WhereAttrs,
)
from mirage_nb.runtime.execution.buffers import decode
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.kernel.plan import Argument, mapped
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Loop, Program, Until, flat
from mirage_nb.tile.roles.validate import validate
from mirage_nb.verify.tiles import compare
from tests.codegen.running import TOLERANCE, WAYS, draw, errors, run
from tests.mugraphs import Block, tensor
from tests.shares import shared_out
from tests.tile.mutants import mutants

H200 = TARGETS["h200"]
FEW = replace(H200, multiprocessors=3)
LOW = 65504
LEAST_CAUGHT = 0.95


def hanging(
    queries: int, length: int, rows: int = 64, keys: int = 64, d: int = 64, *, heads: int = 2,
    window: int | None = None, slopes: bool = False, dtype: DType = DType.F16,
) -> KernelGraph:  # fmt: skip
    """softmax(Q @ K^T / 8) @ V of so many queries and keys, in tiles of rows x keys. window: of the keys in front and
    so many behind, at most."""
    inputs = [tensor((heads, queries, d), dtype), *[tensor((heads, length, d), dtype)] * 2]
    graph = KernelGraph.start(
        *map(Input, "QKV", inputs), *([Input("M", tensor((heads, 1, 1), dtype))] if slopes else [])
    )

    def add(op: Op) -> int:
        nonlocal graph
        graph = graph.append(op)
        return len(graph.types) - 1

    def numbers(number: int) -> int:
        one = add(Op(OpKind.CONST, attrs=ConstAttrs(Fraction(number), dtype=dtype)))
        one = add(Op(OpKind.RESHAPE, (one,), ReshapeAttrs((1,))))
        return add(Op(OpKind.REPEAT, (one,), RepeatAttrs(0, length)))

    operands = [0, 1, 2, numbers(1), numbers(LOW)]
    operands += [add(Op(OpKind.ARANGE, (), ArangeAttrs(n))) for n in (queries, length)]
    operands += [3] if slopes else []
    row_tiles, key_tiles = -(-queries // rows), -(-length // keys)
    b = Block(tuple(graph.types[v] for v in operands), (heads, row_tiles), key_tiles)
    q = b.read(0, (0, 1), tile=(1, rows, d))
    k, v = (b.read(arg, (0, None), 1, (1, keys, d)) for arg in (1, 2))
    scores = b.op(OpKind.MUL, b.op(OpKind.MATMUL, q, b.transpose(k, 0, 2, 1)), b.const(Fraction(1, 8)))
    if window is not None or slopes:
        row = b.reshape(b.read(5, (None, 0), tile=(rows,)), rows, 1)
        key = b.read(6, (None, None), 0, (keys,))
    if slopes:
        scores = b.op(OpKind.ADD, scores, b.op(OpKind.MUL, b.read(7, (0, None)), b.op(OpKind.SUB, key, row)))
    if window is not None:
        mask = b.op(OpKind.GREATER_EQUAL, row, b.op(OpKind.SUB, key, b.const(Fraction(window))))
        scores = b.op(OpKind.WHERE, mask, scores, attrs=WhereAttrs(infinite=-1))
    low = b.op(OpKind.SUB, b.read(4, (None, None), 0, (keys,)), b.const(Fraction(LOW)))
    scores = b.op(OpKind.ADD, scores, low)
    top = b.max(scores, 2)
    weights = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top))
    weights = b.op(OpKind.MUL, weights, b.read(3, (None, None), 0, (keys,)))
    sums = b.accum(b.sum(weights, 2), top, kind=AccumKind.RESCALE)
    result = b.accum(b.op(OpKind.MATMUL, weights, v), top, kind=AccumKind.RESCALE)
    made = b.op(OpKind.CAST, b.op(OpKind.DIV, result, sums), attrs=CastAttrs(dtype))
    b.save(made, (0, 1), (heads, queries, d))
    return graph.append(Op(OpKind.GRAPH, tuple(operands), body=b.graph)).returning((len(graph.types),))


NAMED: dict[str, KernelGraph] = {
    "100 of 100": hanging(100, 100),
    "100 of 128": hanging(100, 128),
    "128 of 100, three tiles": hanging(128, 100, keys=48),
    "197 of 197, 128 x 64": hanging(197, 197, 128, dtype=DType.BF16),
    "one tile of rows, 40 of 150": hanging(40, 150, heads=3),
    "causal, 150": hanging(150, 150, window=0),
    "causal, 130, 128 x 64": hanging(130, 130, 128, window=0, dtype=DType.BF16),
    "20 keys behind, 150": hanging(150, 150, window=20),
    "slopes, 100": hanging(100, 100, window=0, slopes=True),
}


def planned(emitted: Emitted) -> Program:
    """The tile program of its only kernel."""
    (one,) = emitted.programs
    assert isinstance(one.program, Program)
    return one.program


@pytest.mark.parametrize("name", NAMED)
def test_named(name: str) -> None:
    graph = NAMED[name]
    emitted, inputs = emit(graph, FEW), draw(graph, scale=1.0)
    assert validate(planned(emitted), FEW) == ()
    assert compare(emitted.programs[0], FEW, seed=3)[1] == ()
    for how in WAYS:
        outputs = run(emitted, inputs, checked=name == "100 of 100", **how)
        for error, type_ in zip(errors(graph, emitted, inputs, outputs), graph.output_types, strict=True):
            assert error < TOLERANCE[type_.dtype], how


@shared_out
def test_what_is_changed_is_found(share: int) -> None:
    """Of programs with one thing changed, nearly all that compute something else have findings."""
    outcomes: Counter[str] = Counter()
    for name in ("100 of 100", "20 keys behind, 150"):
        one, program = emit(NAMED[name], FEW).programs[0], planned(emit(NAMED[name], FEW))
        for _, changed in list(mutants(program))[::share]:
            if changed == program:
                continue
            if validate(changed, FEW):
                outcomes["found"] += 1
            else:
                outcomes["missed" if compare(replace(one, program=changed), FEW, seed=3)[1] else "as good"] += 1
    assert outcomes["found"] > 300 // share
    assert outcomes["found"] >= LEAST_CAUGHT * (outcomes["found"] + outcomes["missed"])
    assert outcomes["as good"] < 0.15 * outcomes["found"]


def test_the_next_matrix_is_never_read() -> None:
    """What is no number there would make no number of zero weights."""
    graph = hanging(100, 100)
    emitted, inputs = emit(graph, FEW), draw(graph, scale=1.0)
    kept = [array.copy() for array in inputs]
    for array in inputs:
        array[1] = np.nan
    (spoilt,), (whole,) = run(emitted, inputs), run(emitted, kept)
    np.testing.assert_array_equal(decode(spoilt, DType.F16)[0], decode(whole, DType.F16)[0])


def test_maps_are_of_matrices_that_boxes_do_not_divide() -> None:
    for graph, several in ((hanging(100, 128), [2, 0, 0]), (hanging(128, 100), [0, 2, 2])):
        (launch,) = emit(graph, FEW).launches
        assert isinstance(launch, Launch)
        assert [arg.matrices for arg in launch.args if isinstance(arg, MapArg)] == several


def test_a_map_of_matrices_stays_one_where_a_single_one_is_left() -> None:
    """Kernels say which matrix they mean, however many there are."""
    argument = Argument(0, (100, 64), (64, 64), 128, matrices=8).resized(1, 8)
    assert argument.shape is not None
    assert mapped(argument.shape, argument.box, argument.matrices or 0) == ((1, 100, 64), (1, 64, 64))
    assert mapped((800, 64), (64, 64), 0) == ((800, 64), (64, 64))


def test_only_the_last_tile_of_keys_asks_where_they_end() -> None:
    program = planned(emit(hanging(100, 200), FEW))
    every = list(flat(program.statements("math")))
    inside = [s for loop in every if isinstance(loop, Loop) for s in loop.body]
    assert sum(isinstance(s, Until) for s in every) > 0 == sum(isinstance(s, Until) for s in inside)


def test_no_spills_and_products_stay_asynchronous() -> None:
    for graph in (hanging(1025, 1025, 128, 128, 128, dtype=DType.BF16), hanging(577, 577, 128, 128, window=0)):
        cubin = compile_cubin(emit(graph, H200).source, "sm_90a")
        (usage,) = cubin.usage.values()
        assert usage.spill_store_bytes == usage.spill_load_bytes == usage.stack_bytes == 0
        assert "serialized" not in cubin.log, cubin.log
