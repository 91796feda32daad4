"""Programs mean what NumPy makes of the same text, and lowering is exact, shared and minimal."""

from __future__ import annotations

import math
import pickle
import textwrap
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.errors import FormatError, MirageError, ShapeError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import ConstAttrs, DType, OpKind
from mirage_nb.lang import FUNCTIONS, OPERATORS, TensorProgram, load, parse, reference
from mirage_nb.lang.functions import EXAMPLE_INPUTS
from tests.shares import examples

Array = np.ndarray[Any, np.dtype[np.float64]]


WEAK = {
    "X + where(X > Y, 0, -inf)": DType.F16, "softmax(X + where(M, 0, -inf)) @ Z": DType.F16,
    "X - 0.05 * abs(I[:, None] - I)": DType.F16, "X * (Y > 0)": DType.F16, "X / (1 + sum(Y > 0))": DType.F16,
    "X * exp(-I / 8)": DType.F16, "X @ (I[:, None] * 0.5)": DType.F16, "concat([X, I[None, :]], axis=0)": DType.F16,
    "where(X > 0, I, -inf) + X": DType.F16, "B * I": DType.BF16, "X * I * B": DType.F32, "X * Y": DType.F32,
    "X * f32(I)": DType.F32, "(X > 0).float() + X": DType.F32, "X + zeros(16, 16)": DType.F32, "I + 1": DType.F32,
    "X * where(Y > 0, Y, -1)": DType.F32, "D * I": DType.F64,
}  # fmt: skip
"""The type of expressions over halves and what has no type of its own."""


@pytest.mark.parametrize("text", WEAK)
def test_places_comparisons_and_chosen_numbers_take_the_type_of_a_half(text: str) -> None:
    names = {"X": "f16", "Y": "f32", "B": "bf16", "D": "f64", "Z": "f16", "M": "bool"}
    lines = "".join(f"{name}: {dtype}[16, 16]\n" for name, dtype in names.items())
    graph = parse(f"{lines}I = arange(16)\nreturn {text}").graph
    assert [type_.dtype for type_ in graph.output_types] == [WEAK[text]]


def test_what_meets_a_half_is_exact_until_then() -> None:
    """4095 is no number of f16: a comparison tells it from 4096."""
    graph = parse("X: f16[1]\nI = arange(4097)\nreturn f32(X == I), X + I / 4096").graph
    rounded = [graph.types[value].dtype for op, (value, *_) in graph.definitions() if op.kind is OpKind.CAST]
    assert rounded == [DType.F32, DType.F16]  # what the program says, and the sum
    same, added = evaluate(graph, [np.array([4096.0])])
    np.testing.assert_array_equal(same, np.arange(4097) == 4096)
    np.testing.assert_array_equal(added, 4096 + np.arange(4097) / 4096)


def _reduce(fold: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, axis=None, *, keepdims=False: fold(x, axis=axis, keepdims=keepdims)


def _norm(x: Array, gain: Any = 1, *, eps: float = 0) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def _softmax(x: Array, axis: int = -1) -> Array:
    raised = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return raised / np.sum(raised, axis=axis, keepdims=True)


def _layer_norm(x: Array, gain: Any = 1, bias: Any = 0, *, eps: float = 0) -> Array:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return centred / np.sqrt(np.var(x, axis=-1, keepdims=True) + eps) * gain + bias


def _expand(x: Array, *extents: int) -> Array:
    held = (1,) * (len(extents) - x.ndim) + x.shape
    return np.broadcast_to(x, [h if e == -1 else e for e, h in zip(extents, held, strict=True)])


def _split(x: Array, parts: int | list[int], axis: int = 0) -> tuple[Array, ...]:
    return tuple(np.split(x, parts if isinstance(parts, int) else np.cumsum(parts)[:-1], axis=axis))


def _chunk(x: Array, parts: int, axis: int = 0) -> tuple[Array, ...]:
    size = -(-x.shape[axis] // parts)
    return tuple(np.split(x, range(size, x.shape[axis], size), axis=axis))


def _pad(x: Array, before: int, after: int, axis: int) -> Array:
    return np.pad(x, [(before, after) if d == axis % x.ndim else (0, 0) for d in range(x.ndim)])


def _rope(x: Array, cos: Array, sin: Array) -> Array:
    first, second = np.split(x, 2, axis=-1)
    cos, sin = (np.concatenate([a, a], -1) if a.shape[-1] < x.shape[-1] else a for a in (cos, sin))
    return x * cos + np.concatenate([-second, first], axis=-1) * sin


def _cross_entropy(x: Array, target: Array, axis: int = -1) -> Array:
    if target.ndim < x.ndim:
        target = np.moveaxis((target[..., None] == np.arange(x.shape[axis])) * 1.0, -1, axis)
    return -np.sum(target * np.log(_softmax(x, axis)), axis=axis)


def _group_norm(x: Array, groups: int, gain: Any = 1, bias: Any = 0, *, eps: float = 0) -> Array:
    normed = _layer_norm(x.reshape(x.shape[0], groups, -1), eps=eps).reshape(x.shape)
    gain, bias = (np.reshape(v, (-1, *(1 for _ in x.shape[2:]))) for v in (gain, bias))
    return normed * gain + bias


ORACLE: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "square": np.square,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "pow": np.power,
    "clamp": lambda x, low=None, high=None: np.clip(x, low, high),
    "sum": _reduce(np.sum),
    "mean": _reduce(np.mean),
    "max": _reduce(np.max),
    "transpose": lambda x, *axes: x.transpose(*axes) if axes else x.mT,
    "reshape": lambda x, *extents: x.reshape(*extents),
    "repeat": lambda x, times, axis: np.concatenate([x] * times, axis=axis),
    "concat": lambda x, y=None, axis=0: np.concatenate(x if y is None else [x, y], axis=axis),
    **{name: getattr(np, name) for name in ("log", "log1p", "expm1", "tanh", "sin", "cos", "abs", "sign")},
    "atan": np.arctan, "floor": np.floor, "trunc": np.trunc,
    "erf": np.vectorize(math.erf),
    "step": lambda x: np.where(x >= 0, 1.0, 0.0),
    "softplus": lambda x: np.logaddexp(x, 0),
    "logsigmoid": lambda x: -np.logaddexp(-x, 0),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "elu": lambda x, alpha=1: np.where(x > 0, x, alpha * (np.exp(x) - 1)),
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "maximum": np.maximum,
    "minimum": np.minimum,
    **dict.fromkeys(("f16", "bf16", "f32", "f64"), lambda x: x),  # the reference computes in double precision
    "min": _reduce(np.min),
    "prod": _reduce(np.prod),
    "var": np.var,
    "std": np.std,
    "logsumexp": _reduce(np.logaddexp.reduce),
    "expand": _expand,
    "stack": np.stack,
    "split": _split,
    "chunk": _chunk,
    "flip": np.flip,
    "where": np.where,
    "inf": np.inf,
    "arange": np.arange,
    "pad": _pad,
    "cumsum": np.cumsum,
    "rope": _rope,
    "one_hot": lambda x, classes: (x[..., None] == np.arange(classes)) * 1.0,
    "take": lambda x, index, axis=0: np.take(x, index.astype(int), axis),
    "gather": lambda x, index, axis: np.take_along_axis(x, index.astype(int), axis),
    "einsum": np.einsum,
    "log_softmax": lambda x, axis=-1: np.log(_softmax(x, axis)),
    "cross_entropy": _cross_entropy,
    "group_norm": _group_norm,
    "softmax": _softmax,
    "rms_norm": _norm,
    "layer_norm": _layer_norm,
}


def numpy_says(text: str, inputs: dict[str, Array]) -> tuple[Array, ...]:
    """What NumPy computes; an annotation of a local name is never evaluated, so declarations are harmless."""
    names: dict[str, Any] = dict(ORACLE)
    body = textwrap.indent(text.replace(".T", ".mT"), "    ")
    exec(f"def program({', '.join(inputs)}):\n{body}", names)
    with np.errstate(all="ignore"):
        found = names["program"](**inputs)
    return found if isinstance(found, tuple) else (found,)


def random_inputs(program: TensorProgram, seed: int = 0) -> dict[str, Array]:
    """Positive numbers around one, so that roots and quotients are tame."""
    rng = np.random.default_rng(seed)
    return {i.name: rng.uniform(0.3, 1.8, i.type.shape) for i in program.graph.inputs}


def check(text: str) -> TensorProgram:
    """The program agrees with NumPy."""
    program = parse(text)
    inputs = random_inputs(program)
    found = evaluate(program.graph, inputs)
    expected = numpy_says(text, inputs)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == np.shape(theirs)
        finite = np.isfinite(theirs)
        np.testing.assert_allclose(ours[finite], theirs[finite], rtol=1e-9, atol=1e-9)
    return program


def kinds(text: str) -> list[str]:
    """The operators, in order, of `return text` over the example inputs."""
    return [op.kind.value for op in parse(EXAMPLE_INPUTS + f"return {text}").graph.ops]


ROWS = [*FUNCTIONS.values(), *OPERATORS.values()]


def test_every_function_has_an_oracle() -> None:
    assert FUNCTIONS.keys() == ORACLE.keys() - {"inf"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.example)
def test_examples_of_the_reference(row: Any) -> None:
    program = check(EXAMPLE_INPUTS + f"return {row.example}")
    if row.same_as:
        same = check(EXAMPLE_INPUTS + f"return {row.same_as}")
        assert same.graph == program.graph


@pytest.mark.parametrize("row", FUNCTIONS.values(), ids=lambda row: row.name)
def test_reference_names_every_function(row: Any) -> None:
    assert f"  {row.signature}\n" in reference()
    assert row.example in reference()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("X + 0", None), ("X + -0", None), ("X - 0", None), ("X * 1", None), ("X / 1", None),
        ("-(-X)", None), ("X.T.T", None),
        ("reshape(reshape(X, 6), 2, 3)", None), ("repeat(X, 1, 0)", None), ("X ** 1", None),
        ("sum(reshape(X, 1, 6), 0)", ["Reshape"]), ("mean(reshape(X, 6, 1), -1)", ["Reshape"]),
        ("X * X", ["Sqr"]), ("X ** 2", ["Sqr"]), ("square(X)", ["Sqr"]), ("pow(X, 2)", ["Sqr"]),
        ("X ** 3", ["Sqr", "EwMul"]), ("X ** 4", ["Sqr", "Sqr"]), ("X ** 0.5", ["Sqrt"]),
        ("X ** -1", ["Const", "EwDiv"]), ("X ** -0.5", ["Sqrt", "Const", "EwDiv"]), ("X ** 1.5", ["Pow"]),
        ("X ** 8", ["Sqr"] * 3), ("X ** 9", ["Pow"]), ("-X", ["Const", "EwMul"]), ("2 * X * 3", ["Const", "EwMul"]),
        ("X / 2", ["Const", "EwMul"]), ("2 * (1 / X)", ["Const", "EwDiv"]), ("X - 1", ["Const", "EwAdd"]),
        ("1 - X", ["Const", "EwSub"]), ("0 - X", ["Const", "EwMul"]), ("Y * rsqrt(X)", ["Sqrt", "EwDiv"]),
        ("(1 / X) * Y", ["EwDiv"]), ("Y * (2 / X)", ["Const", "EwDiv", "EwMul"]), ("X * Y + Y * X", ["EwMul", "EwAdd"]),
        ("X - Y + (Y - X)", ["EwSub", "EwSub", "EwAdd"]), ("X @ X.T + X @ X.T", ["Transpose", "Matmul", "EwAdd"]),
        ("mean(X, 1)", ["Sum", "Const", "EwMul", "Reshape"]),
        ("sum(X, 1, keepdims=True) / 3", ["Sum", "Const", "EwMul"]),
        ("exp(X) / sum(exp(X), 1, keepdims=True)", ["EwExp", "Sum", "EwDiv"]),
        ("silu(X @ W) * (X @ W)", ["Matmul", "SiLU", "EwMul"]), ("transpose(X.T, 1, 0) + X", ["EwAdd"]),
        ("sum(X, (1, 0), keepdims=True) + sum(X, (0, 1), keepdims=True)", ["Sum", "Sum", "EwAdd"]),
        ("reshape(reshape(X, 6), 3, 2)", ["Reshape"]), ("sum(sum(X, 1, keepdims=True), 1)", ["Sum", "Reshape"]),
    ],
)  # fmt: skip
def test_lowering_is_minimal(written: str, expected: Any) -> None:
    """None: the expression is X itself, which a program cannot return."""
    if expected is None:
        with pytest.raises(MirageError, match="unchanged"):
            kinds(written)
    else:
        assert kinds(written) == expected


@pytest.mark.parametrize(
    ("written", "value", "symbol"),
    [
        ("0.1", Fraction(1, 10), ""), ("1e-5", Fraction(1, 100_000), ""), ("1_000", Fraction(1000), ""),
        (".5", Fraction(1, 2), ""), ("2.", Fraction(2), ""), ("64 ** -0.5", Fraction(1, 8), ""),
        ("sqrt(2) * sqrt(8)", Fraction(4), ""), ("1 / 3 + 1 / 6", Fraction(1, 2), ""),
        ("0.1 + 0.2", Fraction(3, 10), ""), ("7 // 2", Fraction(3), ""), ("-7 // 2", Fraction(-4), ""),
        ("27 ** (2 / 3)", Fraction(9), ""), ("(-2) ** 3", Fraction(-8), ""), ("(-2) ** 2", Fraction(4), ""),
        ("2 ** -3", Fraction(1, 8), ""),
        ("sqrt(2) - sqrt(8) / 4", Fraction(math.sqrt(2) / 2), "2^(-1/2)"),
        ("128 ** -0.5", Fraction(128**-0.5), "128^(-1/2)"), ("rsqrt(128)", Fraction(128**-0.5), "128^(-1/2)"),
        ("1 / sqrt(128)", Fraction(128**-0.5), "128^(-1/2)"), ("-sqrt(0.6)", Fraction(-math.sqrt(0.6)), "-(3/5)^(1/2)"),
        ("4 ** (1 / 6)", Fraction(2 ** (1 / 3)), "2^(1/3)"), ("pow(2, 0.5)", Fraction(math.sqrt(2)), "2^(1/2)"),
    ],
)  # fmt: skip
def test_constants_are_exact(written: str, value: Fraction, symbol: str) -> None:
    program = parse(f"X: f32[2]\nc = {written}\nreturn exp(X) + c")
    (const,) = [op.attrs for op in program.graph.ops if op.kind is OpKind.CONST]
    assert isinstance(const, ConstAttrs)
    assert const.symbol == symbol
    assert const.value == value or (symbol and abs(const.value / value - 1) < Fraction(1, 2**52))


PROGRAMS = [
    "X: f32[4, 6]\nreturn sum(X, keepdims=True), mean(X, axis=None, keepdims=True)",
    "X: f32[4, 6, 5]\nreturn sum(X, axis=(0, -1)), max(X, -2), mean(X, (1, 2), keepdims=True)",
    "X: f32[2, 3, 4]\nY: f32[4, 5]\nreturn X @ Y, transpose(X, 0, 2, 1), transpose(X, (2, 0, -2)), exp(X).T",
    "X: f32[2, 1, 4]\nY: f32[3, 1]\nreturn X + Y, X - Y, X * Y, Y / X, 2 - X, 3 / Y",
    "X: f32[6, 4]\nreturn reshape(X, 3, -1), reshape(X, (2, 3, 4)), repeat(X, 3, axis=-1), concat(X, X, 0)",
    "X: f32[6, 4]\ng: f32[4]\nb: f32[4]\n"
    "return layer_norm(X, g, b, eps=1e-5), layer_norm(X, bias=b), rms_norm(X, gain=g)",
    "X: f32[6, 4]\nreturn softmax(X), softmax(X, 0), clamp(X, 1), clamp(X, high=1), relu(X - 1), gelu(X), sigmoid(X)",
    "X: f32[6, 4]\nreturn X ** 7, X ** -3, X ** 2.5, X ** -2.5, pow(X, -0.5), square(X - 1), -X * 3 / 7 - 1",
    "X: f32[6]\nreturn X * 2 / 3, sum(X, 0, keepdims=True) + X, rms_norm(X)",
    "n = 2\nm = n * 3 // 2 + 1\nX: f32[n, m]\nk = m ** 0.5\nreturn X * k, X @ X.T * m ** -0.5",
    "X: f32[3, 4]\nY = exp(X)\n\n# comment: ² is fine here\nZ = (Y +\n     X)  # more\nreturn Y, Z",
    "X: f32[2, 3]\nA = exp(X)\nY: f32[3]\nreturn A * Y",
    "X: f32[4, 6]\nreturn X[1], X[-1:, 2:5], X[:, None, ::2], X[..., None], X[::-1, 4:1:-2], X[1:, None, 3], X[..., 0]",
    "X: f32[4, 6, 5]\nreturn X[:, 1], X[..., 2:4], X[2, ..., 1], X[None, 1:3][0, ::-1], X[1:][1:, :, ::2][:, :, 1:]",
    "X: f32[4, 6]\nA, B = split(X, 2)\nC, D = split(X, [4, 2], axis=-1)\nE, F, G = chunk(X, 3, 1)\n"
    "return A * B, C + 1, D * 2, E - F - G, stack([A, B], axis=-1), concat([A, X, B], axis=0), stack([E, F, G])",
    "X: f32[4, 6]\n"
    "return var(X, 0), var(X, ddof=1, keepdims=True), std(X, (0, 1), keepdims=True), min(X, 1), prod(X, 0)",
    "X: f32[4, 6]\nY: f32[6]\nreturn maximum(X, Y), minimum(X, Y), maximum(X, 1), minimum(2 / 3, X), maximum(X, 0)",
    "X: f32[4, 6]\nY: f32[6]\nreturn leaky_relu(X - 1, 0.2), elu(X - 1, 2), X * maximum(2, 3) + minimum(-1, 0.5)",
    "N: f32[2, 6, 3, 2]\ng: f32[6]\nreturn group_norm(N, 3), group_norm(N, 2, g, g, eps=0.5), group_norm(N, 6, bias=g)",
    "X: f32[4, 6]\nreturn logsumexp(X), logsumexp(X, 0), log_softmax(X, 0), cross_entropy(X, X, 0), flip(X)".replace(
        "logsumexp(X),", "logsumexp(X, (0, 1), keepdims=True),"
    ),
    'X: f32[2, 3, 4]\nY: f32[2, 5, 4]\n'
    'return einsum("bqd,bkd->bqk", X, Y), einsum("bqd->dq", X), einsum("bqd,bkd->qk", X, Y)',
    "X: f32[2, 3, 4]\nY: f32[2, 5, 4]\nreturn einsum('bqd, bke -> b', X, Y), einsum('bqd,bkd->bdqk', X, Y)",
    'X: f32[3]\nY: f32[4]\nW: f32[4, 2]\n'
    'return einsum("i,j->ij", X, Y), einsum("i,j,jk->ki", X, Y, W), einsum("i,j->j", X, Y)',
    "X: f32[4, 4]\nW: f32[4, 4]\nx = X\nfor i in range(3):\n    x = x + exp(x @ W * 0.01)\n    x *= i + 1\nreturn x",
    "X: f32[4, 4]\nY: f32[4, 4]\ny = X - X * 2\nfor w in (X, Y):\n    for k in range(1, 5, 3):\n"
    "        y = y - w * k\n    y -= 1\nreturn y, w * 2",
    "X: f32[4, 6]\nW: f32[6, 6]\nk = 3\n\ndef block(x, w, scale=k, *, shift=0):\n    # of two tensors\n"
    "    y = x @ w * scale\n    "
    "return y + shift, x + y\n\nA, B = block(X, W)\nX = block(B, w=W, shift=2)[0]\nreturn X, A",
    "X: f32[4, 6]\ndef twice(x): return relu(x) * 2\ndef norm(x):\n    m = mean(x, -1, keepdims=True)\n"
    "    for i in range(2):\n        x = twice(x - m)\n    return x\nreturn norm(X) + norm(exp(X)), twice(3 - X)",
    "X: f32[4, 6]\ndef softmax(x): return x / 2\nreturn softmax(X - 1)",
    "X: f32[4, 6]\nY: f32[6]\nreturn X > Y, X <= 1, 1 < X, X == Y, X != 1, (X >= 1) * X, ~(X > 1), X == X",
    "X: f32[4, 6]\nY: f32[6]\n"
    "return where(X > 1, X, Y), where(X > 1, 2, Y), where(X < Y, X, -inf), where(X < 1, inf, X)",
    "X: f32[4, 6]\nreturn where(X > 1, 1 / 3, 2), where(X > 1, 0, -inf), where(X > 1, inf, 3), where(floor(X), X, -1)",
    "X: f32[4, 6]\nm = (X > 0.5) & ~(X > 1) | (X == 2)\nreturn where(m, X, 0), where(m.T[::-1], X.T, 7), m & m",
    "X: f32[2, 5, 5]\nS = where(arange(5)[:, None] >= arange(5), X, -inf)\nreturn softmax(S), X * arange(1, 11, 2)",
    "X: f32[5, 5]\ni, j = arange(5)[:, None], arange(5)\n"
    "return where((j <= i) & (i - j < 2), X, -inf), X + arange(4, -1, -1)",
    "X: f32[2, 3, 4]\nreturn cumsum(X, 0), cumsum(X, 1), cumsum(X, axis=-1), pad(X, 1, 2, 1), pad(X, 0, 1, -1)",
    "X: f32[5]\nreturn cumsum(X, 0), pad(X, 0, 0, 0) * 2",
    "X: f32[2, 3, 4]\nI: f32[2, 3]\nJ: f32[2, 4]\n"
    "return cross_entropy(X, floor(I)), cross_entropy(X, floor(J), axis=1)",
    "W: f32[4, 6]\nI: f32[5]\nJ: f32[2, 3]\n"
    "return take(W, floor(I)) * 2, take(W[::-1], floor(I)), take(W, floor(J), 1), one_hot(floor(J), 2)",
    "X: f32[4, 6]\nI: f32[4, 2]\nJ: f32[3, 6]\n"
    "return gather(X, floor(I), 1), gather(X, floor(J), 0), gather(X, floor(I), -1) * 2",
    "X: f32[2, 3, 4]\nC: f32[3, 4]\nS: f32[3, 4]\nreturn rope(X, C, S), rope(X, C[:, :2], S[..., :2])",
    "dtype: f16\nX: [4, 6]\nY: f32[6]\nreturn f32(X) + Y, f16(Y) * X, f64(X)",
]  # fmt: skip


@pytest.mark.parametrize("text", PROGRAMS)
def test_programs_agree_with_numpy(text: str) -> None:
    program = check(text)
    assert len(program.spans) == len(program.graph.ops)


@st.composite
def random_programs(draw: st.DrawFn) -> str:
    """Random statements over a few tensors; about half of them do not fit."""
    shapes = ["2, 3", "3, 2", "3, 3", "1, 3", "2, 1", "2, 2, 3"]
    names = ["A", "B", "C"]
    lines = [f"{name}: f32[{draw(st.sampled_from(shapes))}]" for name in names]
    constants = ["2", "1", "0", "0.5", "-3", "1 / 3", "2 ** 0.5"]
    axis = st.sampled_from(["0", "1", "-1", "-2", "2"])
    kept = st.sampled_from(["", ", keepdims=True"])
    for index in range(draw(st.integers(1, 5))):
        x, y = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        c, a = draw(st.sampled_from(constants)), draw(axis)
        forms = [
            f"{x} + {y}", f"{x} - {y}", f"{x} * {y}", f"{x} / {y}", f"{x} @ {y}", f"{x} @ {y}.T", f"{x} * rsqrt({y})",
            f"{x} * ({c})", f"({c}) * {x} * ({c})", f"{x} + ({c})", f"({c}) - {x}", f"{x} - ({c})", f"({c}) / {x}",
            f"-{x}", f"exp({x})", f"square({x})", f"{x} ** 3", f"{x} ** -2", f"{x}.T", f"transpose({x}, 1, 0)",
            f"sum({x}, {a}{draw(kept)})", f"mean({x}, axis={a}{draw(kept)})", f"max({x}, axis={a}{draw(kept)})",
            f"reshape({x}, 3, -1)", f"reshape({x}, 6)", f"repeat({x}, 2, {a})", f"concat({x}, {y}, {a})",
            f"softmax({x}, axis={a})", f"rms_norm({x}, eps=0.5)", f"1 / {x} * {y}", f"{x} * (({c}) / {y})",
            f"({x} / {y}) * ({c})",
        ]  # fmt: skip
        lines.append(f"T{index} = {draw(st.sampled_from(forms))}")
        names.append(f"T{index}")
    return "\n".join([*lines, f"return exp({names[-1]} * 0.125)"])


@given(random_programs())
@examples(300)
def test_random_programs_agree_with_numpy(text: str) -> None:
    """Accepted exactly when NumPy accepts, but for what is made of scalars, [1] here; then equal values."""
    try:
        program = parse(text)
    except ShapeError as error:
        shapes = [line.split(": f32[")[1][:-1] for line in text.split("\n") if ": f32[" in line]
        inputs = {
            name: np.ones(tuple(map(int, shape.split(", ")))) for name, shape in zip("ABC", shapes, strict=True)
        }
        excused = ("no two dimensions to swap",)
        if not any(words in error.message for words in excused):
            with pytest.raises((ValueError, np.exceptions.AxisError)):
                numpy_says(text, inputs)
        return
    inputs = random_inputs(program)
    (found,) = evaluate(program.graph, inputs)
    scalars = (1,) in {t.shape for t in program.graph.types}  # which have no dimension in NumPy
    try:
        (expected,) = numpy_says(text, inputs)
    except (ValueError, np.exceptions.AxisError):
        assert scalars
        return
    assert found.shape == expected.shape or scalars
    with np.errstate(all="ignore"):
        close = np.abs(found - expected) <= 1e-7 * (1 + np.abs(expected))
    assert np.all(close | ~np.isfinite(expected) | (np.abs(expected) > 1e12))


def test_sizes_change_constants_and_what_follows_from_them() -> None:
    text = "B = 1\nD = 64\nH = 4 * B\nX: f16[H, D]\nreturn exp(X * D ** -0.5)"
    program = parse(text, sizes={"B": 8, "D": 16})
    assert program.graph.inputs[0].type.shape == (32, 16)
    assert dict(program.sizes) == {"B": 8, "D": 16, "H": 32}
    assert parse(text).graph != program.graph
    assert parse(text, sizes={"B": np.int64(1)}).graph == parse(text).graph


def test_an_indented_program_is_the_same_program() -> None:
    text = "\n    X: f32[3, 4]\n  # a comment left of the code\n    Y = exp(X *\n  2)\n\n    return Y\n"
    program = parse(text)
    assert program.graph == parse("X: f32[3, 4]\nY = exp(X * 2)\nreturn Y").graph
    assert [(s.line, s.column) for s in program.spans] == [(4, 13), (4, 13), (4, 9)]


def test_program_names_and_places() -> None:
    text = "X: bf16[2, 4]\nunused: f32[1]\nE = exp(X)\nk = 2\ndead = E * k\nalias = E\nreturn alias, E / 3"
    program = parse(text, name="p")
    assert program.name == "p" and program.text == text
    assert program.input_names == ("X", "unused")
    assert program.output_names == ("alias", "O1")
    assert program.graph.output_types[0].dtype is DType.BF16
    assert [(s.line, s.column, s.width) for s in program.spans] == [(3, 5, 6), (7, 15, 5), (7, 15, 5)]
    assert [r.message.split()[0] for r in program.remarks] == ["unused", "k", "dead"]
    assert [r.span.line for r in program.remarks] == [2, 4, 5]
    assert pickle.loads(pickle.dumps(program)) == program
    assert hash(program) == hash(parse(text, name="p"))


def test_an_unnamed_output_never_takes_a_name_of_the_text() -> None:
    assert parse("O: f32[2]\nO_ = exp(O)\nreturn O_ * O").output_names == ("O__",)


def test_equal_programs_have_equal_digests() -> None:
    first = parse("X: f16[4, 8]\nY = X / sqrt(mean(X * X, -1, keepdims=True))\nreturn Y")
    second = parse("X: f16[4, 8]\nunread = 3\nr = rsqrt(mean(X ** 2, axis=1, keepdims=True))\nY = r * X\nreturn Y")
    assert first.graph.digest() == second.graph.digest()


def test_load_reads_files_of_other_systems(tmp_path: Any) -> None:
    file = tmp_path / "small.mirage"
    file.write_bytes(b"\xef\xbb\xbfX: f16[2]\r\nreturn exp(X)\r\n")
    program = load(file)
    assert program.name == "small"
    assert program.graph == parse("X: f16[2]\nreturn exp(X)").graph
    file.write_bytes(b"X: f16[2]\xff")
    with pytest.raises(FormatError, match="UTF-8"):
        load(file)
    for absent, said in (("smal.mirage", "did you mean small.mirage?"), ("zzz.mirage", "has small.mirage")):
        with pytest.raises(FormatError, match="No such file") as caught:
            load(tmp_path / absent)
        assert caught.value.hint.endswith(said)


def test_what_was_added_to_itself_sixty_times_is_known_to_be_whole() -> None:
    """Each operand was followed by itself: twice as long with every addition."""
    program = parse("X: i32[4]\nfor _ in range(60):\n    X = X + X\nreturn X // 3").graph
    assert sum(op.kind is OpKind.ADD for op in program.ops) == 61, "half a step is added, as of whole numbers"


def test_a_function_may_return_from_a_loop_as_often_as_it_is_called() -> None:
    for loop in ("for i in range(2):", "while True:"):
        function = f"def f(x):\n    {loop}\n        return x + 1"
        graph = parse(f"X: f32[4]\n{function}\nfor k in range(200):\n    X = f(X)\nreturn X").graph
        assert [op.kind for op in graph.ops].count(OpKind.ADD) == 200


@pytest.mark.parametrize(("written", "right"), [
    ("logaddexp(where(X > 1, X, -inf), where(Y > 1, Y, -inf))", [-np.inf, 2, 3, np.logaddexp(2, 3)]),
    ("logaddexp(where(X > 1, X, -inf), 1)", np.logaddexp([-np.inf, 2, -np.inf, 2], 1)),
    ("np.average(where(X > 1, inf, X)[None], 1, weights=Y)", [np.inf]),
])  # fmt: skip
def test_infinities_beside_numbers_are_values(written: str, right: Any) -> None:
    """As in the recurrences of log-probabilities, whose first states are minus infinity but one."""
    inputs = {"X": np.array([0.0, 2, 0, 2]), "Y": np.array([1.0, 1, 3, 3])}
    (found,) = evaluate(parse(f"X: f64[4]\nY: f64[4]\nreturn {written} + 0 * (X[0] + Y[0])").graph, inputs)
    np.testing.assert_allclose(found, right)
