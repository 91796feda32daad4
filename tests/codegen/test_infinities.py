"""Emitted kernels where inputs are infinite: tiles and rows that are masked by minus infinity, plus infinity, NaN.

What is right is what the program's own operators say, in float64; a row that is wholly masked is no number there.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import FLOATS, AccumKind, DimAttrs, DType, KernelGraph, Op, OpKind
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.runtime.execution.buffers import Array, decode, encode
from mirage_nb.runtime.kernel.operators import OPERATORS
from mirage_nb.targets import TARGETS
from tests.codegen.running import run
from tests.mugraphs import Block, one_kernel, tensor

H200 = TARGETS["h200"]
ROWS, KEYS, D = 32, 256, 64
PROGRAM = parse(
    f"""
Q: f16[1, {ROWS}, {D}]
K: f16[1, {KEYS}, {D}]
V: f16[1, {KEYS}, {D}]
M: f16[{ROWS}, {KEYS}]
S = Q @ K.T / 8 + M
m = max(S, axis=-1, keepdims=True)
E = exp(S - m)
t = sum(E, axis=-1, keepdims=True)
return E @ V / t, E @ V, t, m
"""
).graph


def masked_attention(loop: int, splits: int = 1, dtype: DType = DType.F16, rows: int = ROWS) -> KernelGraph:
    """A muGraph of the program: sums rescaled by the maxima of tiles, of the loop and of two kernels."""
    shapes = ((1, rows, D), (1, KEYS, D), (1, KEYS, D), (rows, KEYS))
    b = Block(tuple(tensor(shape, dtype) for shape in shapes), (1, splits), loop)
    q, m = b.read(0, (0, None)), b.read(3, (None, 1), 1)
    k, v = b.read(1, (0, 1), 1), b.read(2, (0, 1), 1)
    scores = b.op(OpKind.MUL, b.op(OpKind.MATMUL, q, b.transpose(k, 0, 2, 1)), b.const(Fraction(1, 8)))
    scores = b.op(OpKind.ADD, scores, m)
    top = b.max(scores, 2)
    e = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top))
    total = b.accum(b.sum(e, 2), top, kind=AccumKind.RESCALE)
    out = b.accum(b.op(OpKind.MATMUL, e, v), top, kind=AccumKind.RESCALE)
    highest = b.accum(top, kind=AccumKind.MAX)
    if splits == 1:
        for value in (b.op(OpKind.DIV, out, total), out, total, highest):
            b.save(value, (0, None))
        return one_kernel("Q K V M", b)
    for value, last in ((out, D), (total, 1), (highest, 1)):
        b.save(b.reshape(value, 1, 1, rows, last), (0, 1))
    graph = one_kernel("Q K V M", b)
    c = Block(tuple(graph.types[-3:]), (1,))
    o, t, m = (c.read(i, (None,)) for i in range(3))
    o, t = (c.op(OpKind.RESCALED_SUM, part, m, attrs=DimAttrs(1)) for part in (o, t))
    for value, last in ((c.op(OpKind.DIV, o, t), D), (o, D), (t, 1), (c.max(m, 1), 1)):
        c.save(c.reshape(value, 1, rows, last), (None,))
    return graph.append(Op(OpKind.GRAPH, (4, 5, 6), body=c.graph)).returning((7, 8, 9, 10))


def masks() -> dict[str, Array]:
    """What is added to the scores, by what it is like."""
    row, key = np.indices((ROWS, KEYS))
    low = float("-inf")
    return {
        "causal": np.where(row * (KEYS // ROWS) >= key, 0.0, low),
        "first tiles": np.where(key >= KEYS - 8, 0.0, low),
        "last tiles": np.where(key < 8, 0.0, low),
        "whole rows": np.where(row % 3 > 0, 0.0, low),
        "everything": np.full((ROWS, KEYS), low),
        "scattered": np.where(np.random.default_rng(1).random((ROWS, KEYS)) < 0.3, 0.0, low),
        "large and finite": np.where(row * (KEYS // ROWS) >= key, 0.0, -6e4),
        "plus infinity": np.where((row == 3) & (key == 100), np.inf, 0.0),
        "both infinities": np.where(row % 2, np.where(key == 200, np.inf, low), 0.0),
        "no number": np.where((row == 5) & (key == 17), np.nan, 0.0),
    }


def given(mask: Array) -> list[Array]:
    """Random inputs and this mask."""
    rng = np.random.default_rng(0)
    return [*(rng.normal(size=i.type.shape).astype(np.float16) for i in PROGRAM.inputs[:3]), mask.astype(np.float16)]


def check(found: list[Array], inputs: list[Array], tolerance: float = 2e-3) -> None:
    """As the program: numbers near its numbers, infinities of its sign, no number where it has none."""
    with np.errstate(all="ignore"):
        wanted = evaluate(PROGRAM, [a.astype(np.float64) for a in inputs])
    for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(got, want, atol=tolerance * 16, rtol=tolerance, err_msg=f"output {number}")


GRAPHS = {
    "one tile": masked_attention(1),
    "loop": masked_attention(4),
    "split": masked_attention(4, 2),
    "split without a loop": masked_attention(1, 4),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_the_reference_gives_mugraphs_the_meaning_of_their_program(graph: KernelGraph) -> None:
    for mask in masks().values():
        inputs = given(mask)
        check([*evaluate(graph, [a.astype(np.float64) for a in inputs])], inputs)


CASES = {
    "warps that share rows": (GRAPHS["loop"], Options(warps=4)),
    "warps with rows of their own": (GRAPHS["loop"], Options(warps=2, bulk=True)),
    "rounded to f32": (masked_attention(4, dtype=DType.F32), Options(warps=4)),
    "split, rounded to bf16": (masked_attention(4, 2, dtype=DType.BF16), Options(warps=4)),
}


@pytest.mark.parametrize(("graph", "options"), CASES.values(), ids=CASES)
def test_kernels_as_the_program(graph: KernelGraph, options: Options) -> None:
    emitted = emit(graph, H200, options)
    tolerance = 3e-2 if graph.output_types[0].dtype is DType.BF16 else 2e-3
    for mask in masks().values():
        stored = [encode(a.astype(np.float64), i.type.dtype) for a, i in zip(given(mask), graph.inputs, strict=True)]
        outputs = run(emitted, stored)
        found = [decode(a, t.dtype) for a, t in zip(outputs, graph.output_types, strict=True)]
        check(found, [decode(a, i.type.dtype) for a, i in zip(stored, graph.inputs, strict=True)], tolerance)


def test_the_cases_are_of_every_kind() -> None:
    kernels = [kernel for graph, options in CASES.values() for kernel in plan(graph, H200, options).kernels]
    regions = [k.staged.region if k and k.staged else None for k in kernels]
    assert {region and region.key_warps for region in regions} == {None, 1, 2}


def test_rescaled_sums_in_registers() -> None:
    b = Block((tensor((8, 64), DType.F32), tensor((8, 1), DType.F32)), (1,))
    x, m = b.read(0, (None,)), b.read(1, (None,))
    b.save(b.op(OpKind.RESCALED_SUM, x, m, attrs=DimAttrs(0)), (None,))
    graph = one_kernel("X M", b)
    (kernel,) = plan(graph, H200, Options(warps=4)).kernels
    assert kernel is not None and kernel.resident is not None
    low, emitted = float("-inf"), emit(graph, H200, Options(warps=4))
    for tops in ([low, low, 1.0, 0.0, *[low] * 4], [low] * 8, [low, np.inf, *[0.0] * 6]):
        m_ = np.array(tops, np.float32)[:, None]
        x_ = np.where(np.isinf(m_), np.nan, np.arange(512).reshape(8, 64)).astype(np.float32)
        (found,) = run(emitted, [x_, m_])
        np.testing.assert_allclose(found, evaluate(graph, [x_, m_])[0], rtol=1e-5)
        assert np.isfinite(found).all() == (tops[2] == 1.0)


def test_rescaled_sums_by_libraries() -> None:
    torch = pytest.importorskip("torch")
    from mirage_nb.runtime.execution.torch_program import TORCH

    x, low = np.array([[np.nan, np.nan, 3.0, 0.5]]), float("-inf")
    for m, want in (([low, low, 1.0, 0.0], 3 + 0.5 * np.exp(-1)), ([low] * 4, np.nan), ([low, low, np.inf, 0], np.nan)):
        tops = np.array([m])
        with np.errstate(all="ignore"):
            found = OPERATORS["RescaledSum"](np, {"dim": 1}, x, tops)
        op = Op(OpKind.RESCALED_SUM, (0, 1), DimAttrs(1))
        by_torch = TORCH[OpKind.RESCALED_SUM](torch, op.attrs, (torch.tensor(x), torch.tensor(tops)))
        np.testing.assert_allclose(found, [[want]])
        np.testing.assert_allclose(by_torch.numpy(), [[want]])


SIGNS = {
    "==": np.equal, "!=": np.not_equal, ">=": np.greater_equal, ">": np.greater, "<=": np.less_equal, "<": np.less,
}  # fmt: skip
SIDES = (("X", "Y"), ("X", "1"), ("inf", "X"), ("X", "-inf"))
SPECIAL = np.array(list(itertools.product((-np.inf, -1, -0.0, 0, 1, np.inf, np.nan), repeat=2))).T


def in_one_kernel(program: KernelGraph) -> KernelGraph:
    """All of an elementwise program in one block."""
    b = Block(tuple(i.type for i in program.inputs), (1,))
    made = [b.read(number, (None,)) for number in range(len(program.inputs))]
    for op in program.ops:
        made.append(b.op(op.kind, *(made[v] for v in op.inputs), attrs=op.attrs))
    for value in program.outputs:
        b.save(made[value], (None,))
    return one_kernel(" ".join(i.name for i in program.inputs), b)


def test_comparisons_are_those_of_ieee_754() -> None:
    """Six of them, of all pairs of numbers, infinities and NaN, in every type: each is a digit of a sum."""
    values = {"X": SPECIAL[0], "Y": SPECIAL[1], "1": 1, "inf": np.inf, "-inf": -np.inf}
    held = [[test(values[left], values[right]) for test in SIGNS.values()] for left, right in SIDES]
    wanted = [sum(truth * 2**k for k, truth in enumerate(tests)) for tests in held]

    def program(*dtypes: DType) -> KernelGraph:
        lines, made = [], []
        for name in (dtype.value for dtype in dtypes):
            lines += [f"X{name}: {name}[49]", f"Y{name}: {name}[49]"]
            for sides in SIDES:
                left, right = (side + name if side in "XY" else side for side in sides)
                made.append(" + ".join(f"({left} {sign} {right}) * {2**k}" for k, sign in enumerate(SIGNS)))
        return parse("\n".join([*lines, f"return {', '.join(made)}"])).graph

    every, kernel = program(*FLOATS), in_one_kernel(program(DType.F16, DType.BF16, DType.F32))
    references = evaluate(every, {i.name: values[i.name[0]] for i in every.inputs})
    found = run(emit(kernel, H200), [encode(values[i.name[0]], i.type.dtype) for i in kernel.inputs])
    read = [decode(one, output.dtype) for one, output in zip(found, kernel.output_types, strict=True)]
    for one, right in zip((*references, *read), itertools.cycle(wanted), strict=False):
        np.testing.assert_array_equal(one, right)
