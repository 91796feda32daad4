"""Chained products that read more than matrices: slopes, biases and masks from data."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_nb.codegen import emit
from mirage_nb.ir import (
    AccumKind,
    ApplyAttrs,
    ArangeAttrs,
    CastAttrs,
    DType,
    Input,
    KernelGraph,
    Op,
    OpKind,
    WhereAttrs,
)
from mirage_nb.optimize import plan
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Loop, Program, Read, flat
from mirage_nb.tile.roles.validate import validate
from mirage_nb.tile.rules import teams
from tests.codegen.running import TOLERANCE, WAYS, draw, errors, run
from tests.mugraphs import Block, tensor

H200 = TARGETS["h200"]
FEW = replace(H200, multiprocessors=3)
SLOPES, PER_KEY, TABLE, LENGTHS, DOCUMENTS, MASK = (
    "slopes", "a bias per key", "a table", "lengths", "documents", "a mask",
)  # fmt: skip


def beside(
    form: str, rows: int = 64, keys: int = 64, d: int = 64, *, tiles: int = 3, heads: int = 2, causal: bool = False,
    dtype: DType = DType.F16, other: DType = DType.F16, cast: bool = True,
) -> KernelGraph:  # fmt: skip
    """softmax(scores of this form) @ V. causal: of the keys in front. other: the type of what is read beside. cast:
    the result to the type of the matrices."""
    t = keys * tiles
    matrix = tensor((heads, t, d), dtype)
    shape = {
        SLOPES: (heads, 1, 1), PER_KEY: (heads, 1, t), TABLE: (heads, t, t), LENGTHS: (heads, 1, 1), DOCUMENTS: (t,),
        MASK: (t, t),
    }[form]  # fmt: skip
    extra = tensor(shape, other)
    graph = KernelGraph.start(*(Input(name, matrix) for name in "QKV"), Input("B", extra))
    graph = graph.append(Op(OpKind.ARANGE, (), ArangeAttrs(t)))
    b = Block((graph.types[4], matrix, matrix, matrix, extra), (heads, t // rows), tiles)
    row, key = b.reshape(b.read(0, (None, 0)), rows, 1), b.read(0, (None, None), 0)
    q, k, v = b.read(1, (0, 1)), b.read(2, (0, None), 1), b.read(3, (0, None), 1)
    scores = b.op(OpKind.MUL, b.op(OpKind.MATMUL, q, b.transpose(k, 0, 2, 1)), b.const(Fraction(1, 8)))
    mask = [b.op(OpKind.GREATER_EQUAL, row, key)] if causal else []
    match form:
        case "slopes":
            far = b.op(OpKind.SUB, key, row)
            scores = b.op(OpKind.ADD, scores, b.op(OpKind.MUL, b.read(4, (0, None)), far))
        case "a bias per key":
            scores = b.op(OpKind.ADD, scores, b.read(4, (0, None), 2))
        case "a table":
            scores = b.op(OpKind.ADD, scores, b.read(4, (0, 1), 2))
        case "lengths":
            length = b.op(OpKind.APPLY, b.read(4, (0, None)), attrs=ApplyAttrs("length", "32 + 64 * square(x)"))
            mask.append(b.op(OpKind.GREATER, length, key))
        case "documents":
            own = b.reshape(b.read(4, (None, 0)), rows, 1)
            mask.append(b.op(OpKind.GREATER_EQUAL, own, b.read(4, (None, None), 0)))
        case "a mask":
            given = b.read(4, (None, 0), 1)
            mask.append(b.op(OpKind.APPLY, given, attrs=ApplyAttrs("compared", "step(1 + x)")))
    if mask:
        both = b.op(OpKind.MUL, *mask) if len(mask) > 1 else mask[0]
        scores = b.op(OpKind.WHERE, both, scores, attrs=WhereAttrs(infinite=-1))
    top = b.max(scores, 2)
    weights = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top))
    sums = b.accum(b.sum(weights, 2), top, kind=AccumKind.RESCALE)
    result = b.accum(b.op(OpKind.MATMUL, weights, v), top, kind=AccumKind.RESCALE)
    out = b.op(OpKind.DIV, result, sums)
    b.save(b.op(OpKind.CAST, out, attrs=CastAttrs(dtype)) if cast else out, (0, 1))
    return graph.append(Op(OpKind.GRAPH, (4, 0, 1, 2, 3), body=b.graph)).returning((5,))


NAMED: dict[str, KernelGraph] = {
    "slopes, causal": beside(SLOPES, causal=True),
    "slopes in f32, 128 x 64": beside(SLOPES, 128, tiles=4, other=DType.F32, dtype=DType.BF16),
    "a bias per key": beside(PER_KEY),
    "a bias per key in f32, 128 x 64": beside(PER_KEY, 128, tiles=4, other=DType.F32),
    "a table": beside(TABLE, tiles=2),
    "a table, 128 x 64, causal": beside(TABLE, 128, tiles=4, heads=1, causal=True, dtype=DType.BF16, other=DType.BF16),
    "a table in f32": beside(TABLE, tiles=2, other=DType.F32),
    "a table of 16 keys": beside(TABLE, 64, 16, tiles=4),
    "lengths, causal": beside(LENGTHS, causal=True, other=DType.F32),
    "documents": beside(DOCUMENTS, heads=1),
    "documents, causal": beside(DOCUMENTS, causal=True, tiles=4),
    "a mask": beside(MASK, heads=1),
}


def planned(graph: KernelGraph) -> Program:
    """The tile program of a muGraph's kernel."""
    program = next(block for block in plan(graph, FEW).kernels if block is not None).program
    assert isinstance(program, Program)
    return program


@pytest.mark.parametrize("name", NAMED)
def test_named(name: str) -> None:
    graph = NAMED[name]
    assert any(isinstance(s, Read) for s in planned(graph).every)
    emitted, inputs = emit(graph, FEW), draw(graph, scale=1.0)
    for how in WAYS:
        outputs = run(emitted, inputs, checked=name.startswith("documents"), **how)
        for error, type_ in zip(errors(graph, emitted, inputs, outputs), graph.output_types, strict=True):
            assert error < TOLERANCE[type_.dtype], how


@pytest.mark.parametrize(("form", "often"), [(SLOPES, 0), (PER_KEY, 1), (TABLE, 1), (DOCUMENTS, 1), (LENGTHS, 0)])
def test_what_keys_do_not_change_is_read_once(form: str, often: int) -> None:
    """At a point, in front of its loops."""
    program = planned(beside(form, causal=True, tiles=4))
    loops = [s for s in flat(program.statements("math")) if isinstance(s, Loop)]
    assert loops
    for loop in loops:
        assert sum(isinstance(s, Read) for s in loop.body) <= often


def test_beside_a_mask_from_data_a_causal_one_leaves_tiles_out() -> None:
    """The first of the others stands in front of the loop."""
    loops = [s for s in flat(planned(beside(DOCUMENTS, causal=True)).statements("load")) if isinstance(s, Loop)]
    assert [(loop.count, loop.more.terms) for loop in loops] == [(2, (("m", -1),))]


@pytest.mark.parametrize("graph", [
    beside(TABLE, 128, 128, 128, tiles=8, dtype=DType.BF16), beside(TABLE, 128, 128, 64, tiles=8, causal=True),
    beside(SLOPES, 128, 128, 128, tiles=8, causal=True), beside(DOCUMENTS, 128, 128, 128, tiles=8, causal=True),
    beside(TABLE, 128, 64, 128, tiles=8, other=DType.F32), beside(PER_KEY, 192, 64, 128, tiles=6),
    beside(TABLE, 192, 64, 64, tiles=6, other=DType.F32),
])  # fmt: skip
def test_no_spills_and_products_stay_asynchronous(graph: KernelGraph) -> None:
    assert validate(planned(graph), H200) == ()
    cubin = compile_cubin(emit(graph, H200).source, "sm_90a")
    usage = cubin.usage["kernel0" if "kernel0" in cubin.usage else next(iter(cubin.usage))]
    assert usage.spill_store_bytes == usage.spill_load_bytes == usage.stack_bytes == 0
    assert "serialized" not in cubin.log, cubin.log


@pytest.mark.parametrize("graph", [
    beside(PER_KEY, other=DType.F32, cast=False),  # weights of f32
    beside(PER_KEY, other=DType.F64),
])  # fmt: skip
def test_other_blocks_are_emitted_as_before(graph: KernelGraph) -> None:
    assert next(block for block in plan(graph, FEW).kernels if block is not None).program is None


@pytest.mark.parametrize(("rows", "keys", "width", "fits"), [
    (128, 128, 2, True), (128, 128, 4, False), (128, 64, 4, True), (192, 64, 2, True), (192, 64, 4, True),
    (192, 128, 2, False),
])  # fmt: skip
def test_tables_take_registers(rows: int, keys: int, width: int, fits: bool) -> None:
    """Of 128 wide rows; a thread has 192 for what lies along them, or 128 beside two more groups."""
    columns = 128 if rows == 128 else 64
    registers = teams.registers_beside(keys, width, True)
    assert registers == keys * width / 8
    assert teams.chained_fits(rows, keys, columns, columns, H200.shared_per_block, registers) == fits
