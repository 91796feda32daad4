"""Chained products whose masks are data: tiles of keys that these hide altogether are neither loaded nor computed.

The reference is float64 of the muGraph. What is hidden from all rows is poisoned, where it lies in tiles behind the one
that a block begins with, which is always computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from mirage_nb.codegen import Emitted, emit
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import (
    AccumKind,
    ApplyAttrs,
    ArangeAttrs,
    Attrs,
    ConstAttrs,
    DType,
    Input,
    KernelGraph,
    Op,
    OpKind,
    RepeatAttrs,
    ReshapeAttrs,
    TensorType,
    WhereAttrs,
)
from mirage_nb.optimize import plan
from mirage_nb.runtime.execution.buffers import decode, encode
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.tile.roles.program import Loop, Mark, Program, flat
from mirage_nb.tile.roles.validate import validate
from tests.codegen.running import TOLERANCE
from tests.codegen.test_attention_beside import FEW, H200, MASK, PER_KEY, beside
from tests.mugraphs import Block, tensor
from tests.shares import some

Array = np.ndarray[Any, Any]
Data = tuple[Array, ...]
HEADS, TILES, KEYS, LOW = 2, 5, 64, 65504
T = TILES * KEYS


def hiding(
    extra: tuple[TensorType, ...], mask: Callable[..., tuple[int, ...]], *, rows: int = 64, keys: int = KEYS,
    d: int = 64, t: int = T, heads: int = HEADS, dtype: DType = DType.F16,
) -> KernelGraph:  # fmt: skip
    """softmax(where(mask, Q @ K^T / 8, -inf)) @ V. mask: nodes that leave scores out, one behind the other, of a block,
    the places of its rows and keys, and a reader of the extra operands: of which, along rows, keys or neither."""
    matrix = tensor((heads, t, d), dtype)
    inputs = [Input(name, matrix) for name in "QKV"] + [Input(f"X{n}", type_) for n, type_ in enumerate(extra)]
    graph, operands = KernelGraph.start(*inputs), list(range(len(inputs)))

    def add(kind: OpKind, of: tuple[int, ...], attrs: Attrs) -> int:
        nonlocal graph
        graph = graph.append(Op(kind, of, attrs))
        return len(graph.types) - 1

    operands.insert(0, add(OpKind.ARANGE, (), ArangeAttrs(t)))
    for number in (1, LOW) if t % keys else ():  # what hangs over is lowered, and weighs nothing
        one = add(OpKind.CONST, (), ConstAttrs(Fraction(number), dtype=dtype))
        operands.append(add(OpKind.REPEAT, (add(OpKind.RESHAPE, (one,), ReshapeAttrs((1,))),), RepeatAttrs(0, t)))
    b = Block(tuple(graph.types[v] for v in operands), (heads, -(-t // rows)), -(-t // keys))
    row = b.reshape(b.read(0, (None, 0), tile=(rows,)), rows, 1)
    key = b.read(0, (None, None), 0, (keys,))
    q = b.read(1, (0, 1), tile=(1, rows, d))
    k, v = (b.read(arg, (0, None), 1, (1, keys, d)) for arg in (2, 3))
    scores = b.op(OpKind.MUL, b.op(OpKind.MATMUL, q, b.transpose(k, 0, 2, 1)), b.const(Fraction(1, 8)))

    def read(which: int, along: str = "") -> int:
        of_head = 0 if extra[which].shape[0] == heads and len(extra[which].shape) > 1 else None
        dim, ones = len(extra[which].shape) - 1, (1,) * (len(extra[which].shape) - 1)
        if along == "rows":
            return b.reshape(b.read(4 + which, (of_head, dim), tile=(*ones, rows)), rows, 1)
        if along == "keys":
            return b.read(4 + which, (of_head, None), dim, (*ones, keys))
        return b.read(4 + which, (of_head, None))

    for left in mask(b, row, key, read):
        scores = b.op(OpKind.WHERE, left, scores, attrs=WhereAttrs(infinite=-1))
    if t % keys:
        low = b.op(OpKind.SUB, b.read(len(operands) - 1, (None, None), 0, (keys,)), b.const(Fraction(LOW)))
        scores = b.op(OpKind.ADD, scores, low)
    top = b.max(scores, 2)
    weights = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top))
    if t % keys:
        weights = b.op(OpKind.MUL, weights, b.read(len(operands) - 2, (None, None), 0, (keys,)))
    sums = b.accum(b.sum(weights, 2), top, kind=AccumKind.RESCALE)
    result = b.accum(b.op(OpKind.MATMUL, weights, v), top, kind=AccumKind.RESCALE)
    b.save(b.op(OpKind.DIV, result, sums), (0, 1), (heads, t, d))
    return graph.append(Op(OpKind.GRAPH, tuple(operands), body=b.graph)).returning((len(graph.types),))


def documents(b: Block, row: int, key: int, read: Any) -> tuple[int, ...]:
    return (b.op(OpKind.EQUAL, read(0, "rows"), read(0, "keys")),)


def causal_documents(b: Block, row: int, key: int, read: Any) -> tuple[int, ...]:
    return (b.op(OpKind.MUL, *documents(b, row, key, read), b.op(OpKind.GREATER_EQUAL, row, key)),)


def lengths(b: Block, row: int, key: int, read: Any) -> tuple[int, ...]:
    return (b.op(OpKind.GREATER, read(0), key),)


def padding(b: Block, row: int, key: int, read: Any) -> tuple[int, ...]:
    return (b.op(OpKind.GREATER, read(0, "keys"), b.const(Fraction(0))),)


def as_it_is(b: Block, row: int, key: int, read: Any) -> tuple[int, ...]:
    return (read(0, "keys"),)


def hidden(b: Block, row: int, key: int, read: Any) -> tuple[int, ...]:
    """Keys that are left out where a number says so, as `masked_fill` has it."""
    one = b.const(Fraction(1))
    left = b.op(OpKind.APPLY, read(0, "keys"), attrs=ApplyAttrs("compared", "step(x - 1) * step(1 - x)"))
    return (b.op(OpKind.SUB, one, b.op(OpKind.WHERE, left, one, attrs=WhereAttrs())),)


def both_paddings(b: Block, row: int, key: int, read: Any) -> tuple[int, ...]:
    """Of rows, and of keys within a window behind them."""
    near = b.op(OpKind.GREATER, b.const(Fraction(100)), b.op(OpKind.SUB, row, key))
    kept = b.op(OpKind.MUL, near, b.op(OpKind.GREATER, read(1, "rows"), b.const(Fraction(0))))
    return *padding(b, row, key, read), kept


def documents_and_scores(b: Block, row: int, key: int, read: Any) -> tuple[int, ...]:
    """What is asked of scores, which were made last, nobody knows beforehand."""
    large = b.op(OpKind.GREATER, len(b.graph.types) - 1, b.const(Fraction(-1)))
    return large, *documents(b, row, key, read)


def tiny(b: Block, row: int, key: int, read: Any) -> tuple[int, ...]:
    """Numbers other than zero, whose product is zero in f32."""
    return read(0, "keys"), read(1, "rows")


def not_below(b: Block, row: int, key: int, read: Any) -> tuple[int, ...]:
    """Everything but squares, among which are differences of infinities: these are no number."""
    far = b.op(OpKind.SQR, b.op(OpKind.SUB, read(0, "rows"), read(0, "keys")))
    return (b.op(OpKind.SUB, b.const(Fraction(1)), b.op(OpKind.GREATER_EQUAL, far, b.const(Fraction(0)))),)


VECTOR, PER_HEAD = tensor((T,), DType.F32), tensor((HEADS, 1, T))
FORMS: dict[str, KernelGraph] = {
    "documents": hiding((VECTOR,), documents),
    "documents, causal": hiding((VECTOR,), causal_documents, dtype=DType.BF16),
    "lengths": hiding((tensor((HEADS, 1, 1), DType.F32),), lengths),
    "padding": hiding((PER_HEAD,), padding),
    "padding in bytes": hiding((tensor((HEADS, 1, T), DType.BOOL),), padding),
    "a line": hiding((VECTOR,), padding),
    "a line of truth values": hiding((tensor((T,), DType.BOOL),), as_it_is),
    "what is left out": hiding((PER_HEAD,), hidden),
    "both paddings": hiding((PER_HEAD, PER_HEAD), both_paddings),
    "lengths, hanging over": hiding((tensor((HEADS, 1, 1), DType.F32),), lengths, t=T - 20),
    "documents and scores": hiding((VECTOR,), documents_and_scores),
    "tiny": hiding((VECTOR, VECTOR), tiny),
    "infinities": hiding((VECTOR,), not_below),
}


def random_data(form: str, rng: np.random.Generator) -> Data:
    """Masks that hide much: documents of random lengths in a row, lengths, runs of keys that count; now and then of
    nothing, of everything, or numbers that are none or infinite."""
    t = FORMS[form].inputs[0].type.shape[1]

    def runs() -> Array:
        """One of few numbers, in runs."""
        ends = np.sort(rng.choice(t, rng.integers(0, 7), replace=False))
        return np.searchsorted(ends, np.arange(t), side="right")

    if form == "tiny":
        return tuple(1e-30 * rng.integers(0, 2, 8)[runs()] for _ in range(2))
    if form == "infinities":
        return (np.array([0, 1, np.inf])[rng.integers(0, 3, 8)[runs()]],)
    if form.startswith("documents"):
        numbers = np.array([0, -1, 5, np.inf, -np.inf, 2.0**24, 2.0**24 + 2, 1e-40])[rng.permutation(8)[runs()]]
        return (np.where(rng.random(t) < rng.choice([0, 0, 0.01]), np.nan, numbers),)
    if form.startswith("lengths"):
        return (rng.choice([0, 1, 63, 64, 65, 130, T - 65, t, t + 9, rng.integers(t)], (HEADS, 1, 1)).astype(float),)
    if form.startswith("a line"):
        return (rng.integers(0, 2, 8)[runs()],)
    masks = [
        np.stack([rng.integers(0, 2, 8)[runs()] * rng.choice([0, 1, 1, 1]) for _ in range(HEADS)])[:, None]
        for _ in range(2)
    ]
    return tuple(masks[: 2 if form == "both paddings" else 1])


@cache
def made(form: str) -> tuple[KernelGraph, Emitted]:
    return FORMS[form], emit(FORMS[form], FEW)


def program_of(graph: KernelGraph) -> Program:
    program = next(block for block in plan(graph, FEW).kernels if block is not None).program
    assert isinstance(program, Program)
    return program


def drawn(graph: KernelGraph, data: Data, rng: np.random.Generator) -> list[Array]:
    """Inputs as stored."""
    values = [rng.standard_normal(i.type.shape) for i in graph.inputs[:3]]
    return [encode(x, i.type.dtype) for x, i in zip([*values, *data], graph.inputs, strict=True)]


def close(graph: KernelGraph, inputs: list[Array], outputs: list[Array]) -> bool:
    """Whether the result is that of float64; no number exactly where that is none."""
    with np.errstate(all="ignore"):
        (exact,) = evaluate(graph, [decode(a, i.type.dtype) for a, i in zip(inputs, graph.inputs, strict=True)])
    (type_,) = graph.output_types
    found, none = decode(outputs[0], type_.dtype), np.isnan(exact)
    error = np.linalg.norm(np.where(none, 0, found - exact)) / max(np.linalg.norm(np.where(none, 0, exact)), 1e-9)
    return bool((np.isnan(found) == none).all() and error < TOLERANCE[type_.dtype])


@pytest.mark.parametrize("form", some([*FORMS], share=2))
def test_whatever_is_hidden(form: str) -> None:
    graph, emitted = made(form)
    assert any(isinstance(s, Mark) for s in program_of(graph).every)
    rng = np.random.default_rng(1)
    for number in range(5):
        inputs = drawn(graph, random_data(form, rng), rng)
        how = {"deferred": bool(number % 2), "order": "reversed" if number % 3 else "forward"}
        assert close(graph, inputs, CpuExecutable(emitted, checked=not number).run(inputs, **how)), number


def poisoned(form: str, data: Data, hidden: slice) -> bool:
    """Whether keys and values of hidden places that are no numbers are no part of the result."""
    graph, emitted = made(form)
    inputs = drawn(graph, data, np.random.default_rng(2))
    outputs = CpuExecutable(emitted).run(inputs)
    assert close(graph, inputs, outputs)
    values = [decode(x, DType.F16) for x in inputs[1:3]]
    for x in values:
        x[:, hidden] = np.nan
    again = CpuExecutable(emitted).run([inputs[0], *(encode(x, DType.F16) for x in values), *inputs[3:]])
    return bool((again[0] == outputs[0]).all())


def test_hidden_tiles_are_not_read() -> None:
    """Of five tiles the last one is always computed."""
    length = np.full((HEADS, 1, 1), 70.0)
    assert poisoned("lengths", (length,), slice(128, 256))
    assert not poisoned("lengths", (length,), slice(64, 128))
    kept = np.tile(np.arange(T) // 64 == 1, (HEADS, 1, 1))
    assert poisoned("padding in bytes", (kept,), slice(128, 256))
    assert poisoned("padding in bytes", (kept,), slice(0, 64))
    assert poisoned("a line", (kept[0, 0],), slice(0, 64))
    assert poisoned("a line of truth values", (kept[0, 0],), slice(128, 256))
    assert poisoned("what is left out", (~kept,), slice(0, 64))
    assert not poisoned("what is left out", (~kept,), slice(64, 128))


@pytest.mark.parametrize(("form", "right", "wrong"), [
    ("padding", "may_be(", "!may_be("), ("padding", "lane; column <", "lane + 32; column <"),
    ("padding", "* 5 + tile]", "* 5 + (tile + 1) % 5]"), ("padding", "greater(v1, v2)", "greater(v2, v1)"),
    ("documents", "equal(v1, v2)", "greater(v1, v2)"), ("documents", "v2_own.take(", "v2_own = Bounds("),
    ("lengths", "Bounds(float(tile * 64),", "Bounds(float(tile * 64 + 63),"),
])  # fmt: skip
def test_what_marks_wrongly_is_seen(form: str, right: str, wrong: str) -> None:
    """Something that is not hidden is left out."""
    graph, emitted = made(form)
    assert right in emitted.source
    changed = replace(emitted, source=emitted.source.replace(right, wrong))
    rng = np.random.default_rng(3)
    data = [random_data(form, rng) for _ in range(6)]
    runs = [(inputs, CpuExecutable(changed).run(inputs)) for inputs in (drawn(graph, one, rng) for one in data)]
    assert not all(close(graph, *pair) for pair in runs)


def test_what_is_marked() -> None:
    """By lines of data; a number for every pair is not read beforehand, and places alone say it without marks."""
    assert not any(isinstance(s, Mark) for s in program_of(beside(MASK)).every)
    assert not any(isinstance(s, Mark) for s in program_of(beside(PER_KEY, causal=True)).every)
    program = program_of(FORMS["documents, causal"])
    loops = [s for role in ("math", "load") for s in flat(program.statements(role)) if isinstance(s, Loop)]
    assert loops and all(loop.only is not None for loop in loops)


@pytest.mark.parametrize("graph", [
    hiding((tensor((4096,), DType.F32),), causal_documents, rows=128, keys=128, d=128, t=4096, dtype=DType.BF16),
    hiding((tensor((2048,), DType.F32),), documents, rows=128, keys=128, t=2048),
    hiding((tensor((8, 1, 2304)),), padding, rows=192, keys=64, t=2304, heads=8),
    hiding((tensor((8, 1, 1), DType.F32),), lengths, rows=192, keys=64, t=2304, heads=8),
])  # fmt: skip
def test_no_spills_and_products_stay_asynchronous(graph: KernelGraph) -> None:
    assert validate(program_of(graph), H200) == ()
    cubin = compile_cubin(emit(graph, H200).source, "sm_90a")
    usage = cubin.usage["kernel0" if "kernel0" in cubin.usage else next(iter(cubin.usage))]
    assert usage.spill_store_bytes == usage.spill_load_bytes == usage.stack_bytes == 0
    assert "serialized" not in cubin.log, cubin.log
