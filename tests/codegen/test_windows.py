"""Parts of tensors are read where they lie: by every kind of kernel, aligned or not, along any dimension."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirage_nb import superoptimize
from mirage_nb.codegen import Emitted, Launch, MapArg, Options, emit, variants
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import (
    DType,
    Input,
    KernelGraph,
    Op,
    OpKind,
    PadAttrs,
    ReshapeAttrs,
    SliceAttrs,
    TensorType,
    TransposeAttrs,
)
from mirage_nb.ir.windows import Window, as_matrix, windows
from mirage_nb.lang import parse
from mirage_nb.search.composition import library_and_fused
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Program
from tests.codegen.mugraphs import attention, rmsnorm_gain
from tests.codegen.running import TOLERANCE, WAYS, draw, errors, run
from tests.mugraphs import Block
from tests.shares import examples

H200 = TARGETS["h200"]
OPTIONS = Options(warps=4, stages=3, bulk=True)


def read_by_a_kernel(graph: KernelGraph) -> KernelGraph:
    """The squares of the last value."""
    b = Block((graph.types[-1],), (1,))
    b.save(b.op(OpKind.SQR, b.read(0, (None,))), (None,))
    return graph.append(Op(OpKind.GRAPH, (len(graph.types) - 1,), body=b.graph)).returning((len(graph.types),))


@st.composite
def views(pick: st.DrawFn) -> KernelGraph:
    """A view of a view of ... an input."""
    shape = pick(st.sampled_from([(12,), (4, 6), (3, 4, 5), (2, 1, 6, 2)]))
    graph = KernelGraph.start(Input("X", TensorType(shape, DType.F32)))
    for _ in range(pick(st.integers(1, 4))):
        value, shape = len(graph.types) - 1, graph.types[-1].shape
        match pick(st.sampled_from([OpKind.SLICE, OpKind.SLICE, OpKind.TRANSPOSE, OpKind.RESHAPE, OpKind.PAD])):
            case OpKind.PAD:
                ends = PadAttrs(pick(st.integers(0, len(shape) - 1)), pick(st.integers(0, 2)), pick(st.integers(0, 2)))
                op = Op(OpKind.PAD, (value,), ends)
            case OpKind.TRANSPOSE:
                op = Op(OpKind.TRANSPOSE, (value,), TransposeAttrs(tuple(pick(st.permutations(range(len(shape)))))))
            case OpKind.RESHAPE:
                count, first = graph.types[-1].elements, shape[0]
                rest = count // first
                made = pick(st.sampled_from([(count,), (*shape, 1), (first, rest), (1, rest, first)]))
                op = Op(OpKind.RESHAPE, (value,), ReshapeAttrs(made))
            case _:
                dim, step = pick(st.integers(0, len(shape) - 1)), pick(st.sampled_from([1, 1, 2, -1]))
                start = pick(st.integers(0, shape[dim] - 1))
                most = len(range(start, shape[dim] if step > 0 else -1, step))
                op = Op(OpKind.SLICE, (value,), SliceAttrs(dim, start, pick(st.integers(1, most)), step))
        graph = graph.append(op)
    return graph


def padded_zeros() -> KernelGraph:
    """Zeros beside the elements of an input, without these, between other zeros."""
    start = KernelGraph.start(Input("X", TensorType((3, 4), DType.F32)))
    wide = start.append(Op(OpKind.PAD, (0,), PadAttrs(1, 4, 0)))
    return wide.append(Op(OpKind.SLICE, (1,), SliceAttrs(1, 0, 3))).append(Op(OpKind.PAD, (2,), PadAttrs(1, 1, 1)))


@examples(60)
@given(views())
@example(padded_zeros())
def test_a_window_has_the_elements_of_its_view(graph: KernelGraph) -> None:
    graph = read_by_a_kernel(graph)
    x = np.arange(graph.types[0].elements, dtype=np.float64).reshape(graph.types[0].shape)
    seen = windows(graph)
    for value, window in seen.items():
        assert window.base not in seen, "of what lies in memory, not of another window"
        base, expected = (x if v == 0 else evaluate(graph.returning((v,)), [x])[0] for v in (window.base, value))
        index = np.indices(graph.types[value].shape)
        places = window.offset + sum(part * stride for part, stride in zip(index, window.strides, strict=True))
        held = np.ones(graph.types[value].shape, dtype=bool)
        for part, inside in zip(index, window.inside, strict=True):
            held &= np.isin(part, inside) if inside is not None else held
        np.testing.assert_array_equal(np.where(held, base.ravel()[np.where(held, places, 0)], 0), expected)
        assert window.elements == base.size


def test_who_copies() -> None:
    start = KernelGraph.start(Input("X", TensorType((4, 6), DType.F32)))
    cut = start.append(Op(OpKind.SLICE, (0,), SliceAttrs(1, 1, 3)))
    kernel = read_by_a_kernel(cut)
    assert windows(kernel).keys() == {1}
    assert not windows(kernel, copied=[1])
    assert not windows(kernel.returning((1, 2))), "an output has memory of its own"
    assert not windows(kernel.append(Op(OpKind.SQR, (1,))).returning((2, 3))), "a library's kernel reads it, too"


def test_a_padded_constant_lies_nowhere() -> None:
    start = KernelGraph.start(Input("X", TensorType((4, 6), DType.F32)))
    ones = parse("X: f32[4, 6]\nreturn X * pad(ones(4, 3), 1, 2, 1)").graph
    (op,) = (op for op in ones.ops if op.kind is OpKind.PAD)
    assert start.types[0] == ones.types[0]
    assert op.inputs[0] not in {window.base for window in windows(ones).values()}


def inside(graph: KernelGraph, step: int, start: int) -> KernelGraph:
    """The same kernel on parts of larger inputs, along their last dimensions; with a step of 0, on what is padded."""
    larger, dims = [], [len(t.shape) - 1 for t in (i.type for i in graph.inputs)]
    for given_, dim in zip(graph.inputs, dims, strict=True):
        shape = list(given_.type.shape)
        shape[dim] = start + shape[dim] * step if step else shape[dim] - start
        larger.append(Input(given_.name, TensorType(tuple(shape), given_.type.dtype)))
    made = KernelGraph.start(*larger)
    for value, (given_, dim) in enumerate(zip(graph.inputs, dims, strict=True)):
        part = Op(OpKind.SLICE, (value,), SliceAttrs(dim, start, given_.type.shape[dim], step or 1))
        made = made.append(part if step else Op(OpKind.PAD, (value,), PadAttrs(dim, start // 2, start - start // 2)))
    (kernel,) = graph.ops
    count = len(graph.inputs)
    return made.append(Op(OpKind.GRAPH, tuple(range(count, 2 * count)), body=kernel.body)).returning((2 * count,))


@pytest.mark.parametrize(
    ("graph", "step", "start"),
    [
        (rmsnorm_gain(), 1, 3), (rmsnorm_gain(), 2, 1), (attention(), 1, 8),
        (rmsnorm_gain(), 0, 5), (rmsnorm_gain(), 0, 32), (attention(), 0, 2),
    ],
)
def test_kernels_read_parts_of_their_inputs(graph: KernelGraph, step: int, start: int) -> None:
    whole = inside(graph, step, start)
    emitted = emit(whole, H200, OPTIONS)
    (launch,) = emitted.launches
    assert isinstance(launch, Launch)
    inputs = draw(whole)
    assert max(errors(whole, emitted, inputs, run(emitted, inputs, deferred=True))) < 1e-3


PROGRAMS = {
    "stencil": "u: f32[18, 18]\nreturn u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]",
    "halves": "x: f16[4, 8, 32]\nc: f16[8, 16]\ns: f16[8, 16]\na, b = x[..., :16], x[..., 16:]\n"
    "return concat([a * c - b * s, b * c + a * s], axis=-1)",
    "pairs": "x: f16[8, 64]\nreturn sqrt(square(x[:, ::2]) + square(x[:, 1::2]))",
    "columns": "A: f32[16, 2, 2]\nreturn A[:, 0, 0] * A[:, 1, 1] - A[:, 0, 1] * A[:, 1, 0]",
    "turned": "x: f32[8, 40]\nreturn exp(flip(x, axis=1)[:, 3:]) * x[:, :37]",
    "row": "x: f16[8, 129]\nreturn softmax(x[:, 1:], axis=-1)",
    "padded": "u: f32[16, 16]\np = np.pad(u, 1)\nreturn p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - u",
    "rolled": "u: f32[16, 16]\nreturn u + np.roll(u, 1, 0) - np.roll(u, 3, 1) * np.roll(u, -2, 0)",
    "shifted": "x: f16[32, 64]\nm: f16[64]\nreturn x * m + F.pad(x[:-1], (0, 0, 1, 0)) * (1 - m)",
}


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_parts_cost_no_launch(text: str) -> None:
    program = parse(text).graph
    made = library_and_fused(program, H200)
    assert made is not None
    emitted = emit(made.instance.graph, H200)
    assert len(emitted.launches) == 1
    inputs = draw(program)
    assert max(errors(program, emitted, inputs, run(emitted, inputs))) < 1e-3


@pytest.mark.parametrize(
    "shape, strides, columns, lies",
    [
        ((8, 48), (96, 1), 48, (5, 96)),
        ((8, 48), (48, 1), 48, (5, 48)),
        ((8, 48), (48, 1), 96, (5, 96)),  # two rows as one
        ((8, 48), (96, 1), 96, None),
        ((2, 4, 48), (384, 96, 1), 48, (5, 96)),
        ((2, 4, 48), (768, 96, 1), 48, None),  # rows that are not as far from each other as others
        ((8, 48), (96, 2), 48, None),
        ((8, 48), (-96, 1), 48, None),
        ((8, 1, 48), (96, 7, 1), 48, (5, 96)),
    ],
)
def test_a_window_may_be_a_matrix(
    shape: tuple[int, ...], strides: tuple[int, ...], columns: int, lies: tuple[int, int] | None
) -> None:
    window = Window(0, 10_000, 5, strides, (None,) * len(shape))
    assert as_matrix(window, shape, columns) == lies
    padded = Window(0, 10_000, 5, strides, (range(1, 2), *(None,) * (len(shape) - 1)))
    assert as_matrix(padded, shape, columns) is None


@pytest.mark.parametrize("rows, depth, programs", [(16, 1024, {False}), (256, 128, {False, True})])
def test_the_copy_engine_brings_halves_of_a_weight(rows: int, depth: int, programs: set[bool]) -> None:
    """They came element by element, or were copied first for a tile program."""
    program = f"X: f16[{rows}, {depth}]\nW: f16[{depth}, 512]\nY = X @ W\nreturn silu(Y[:, :256]) * Y[:, 256:]"
    session = superoptimize(program, effort="quick", target="h200")
    session.wait()
    graph = next(c.graph for c in session.snapshot().candidates if c.kernels == 1)
    kinds = defaultdict[bool, list[Emitted]](list)
    inputs = draw(session.program.graph)
    for options in variants(graph, H200):
        emitted = emit(graph, H200, options)
        (launch,) = emitted.launches
        assert isinstance(launch, Launch)
        parts = [a for a in launch.args if isinstance(a, MapArg) and a.value == 1]
        if parts:
            assert sorted((a.first, a.pitch, a.columns) for a in parts) == [(0, 512, 256), (256, 512, 256)]
            kinds[isinstance(emitted.programs[0].program, Program)].append(emitted)
    for kind in kinds.values():
        for emitted in kind[:: max(1, len(kind) - 1)]:  # the first and the last
            assert max(errors(session.program.graph, emitted, inputs, run(emitted, inputs))) < 1e-2
    assert kinds.keys() == programs


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize(("rows", "columns"), [(70, 130), (67, 96)])
def test_windows_of_one_tensor_have_one_pointer_and_one_condition(dtype: str, rows: int, columns: int) -> None:
    """A box filter in tiles that hang over ends: compilers see which loads are the same; none is behind a jump."""
    shifts = [f"U[{i}:{i + rows - 2}, {j}:{j + columns - 2}]" for i in range(3) for j in range(3)]
    text = f"U: {dtype}[{rows}, {columns}]\nreturn ({' + '.join(shifts)}) / 9"
    found = library_and_fused(parse(text).graph, H200)
    assert found is not None
    emitted = emit(found.instance.graph, H200)
    assert emitted.source.count("__restrict__ x") == 1 and len(emitted.launches[0].args) == 2
    assert "load_inside" not in emitted.source and "?" not in emitted.source
    inputs = draw(emitted.graph)
    for how in WAYS:
        outputs = run(emitted, inputs, checked=True, **how)
        assert errors(emitted.graph, emitted, inputs, outputs)[0] < TOLERANCE[DType(dtype)]
