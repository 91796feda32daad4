"""What pre-defined operators compute on whole arrays, by NumPy or by CuPy; how element types are stored.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package. In: a module
(NumPy or CuPy), the attributes of an operator as plain data, arrays. Out: an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

STORED = {
    "f16": "float16", "bf16": "uint16", "f32": "float32", "f64": "float64", "i8": "int8", "u8": "uint8", "bool": "bool",
    "f8e4m3": "uint8", "f8e5m2": "uint8",
}  # fmt: skip
"""Element types, and the NumPy and CuPy types that hold them: bf16 and floats of one byte travel as bit patterns."""


def _number(value: Any) -> float:
    return float(Fraction(str(value)))


def _rescaled(xp: Any, attrs: Mapping[str, Any], x: Any, m: Any) -> Any:
    x, m = xp.broadcast_arrays(x, m)
    axis = int(attrs["dim"])
    fall = m - m.max(axis=axis, keepdims=True)
    return xp.where(fall == -math.inf, xp.zeros_like(x), x * xp.exp(fall)).sum(axis=axis, keepdims=True)


def _clamp(xp: Any, attrs: Mapping[str, Any], x: Any) -> Any:
    for limit, bound in ((attrs.get("low"), xp.maximum), (attrs.get("high"), xp.minimum)):
        x = x if limit is None else bound(x, _number(limit))
    return x


def _slice(xp: Any, attrs: Mapping[str, Any], x: Any) -> Any:
    start, step = int(attrs["start"]), int(attrs.get("step", 1))
    stop = start + int(attrs["extent"]) * step
    return x[(slice(None),) * int(attrs["dim"]) + (slice(start, None if stop < 0 else stop, step),)]


def _pad(xp: Any, attrs: Mapping[str, Any], x: Any) -> Any:
    edges = [(0, 0)] * x.ndim
    edges[int(attrs["dim"])] = (int(attrs["before"]), int(attrs["after"]))
    return xp.pad(x, edges)


def _other(attrs: Mapping[str, Any]) -> float:
    sign = int(attrs.get("infinite", 0))
    return sign * math.inf if sign else _number(attrs.get("other", 0))


def _erf(xp: Any, x: Any) -> Any:
    if xp is np:
        return np.vectorize(math.erf, otypes=[np.float64])(x)
    return xp.ElementwiseKernel("T x", "T y", "y = erf(x)", "mirage_erf")(x)


def _sigmoid(xp: Any, x: Any) -> Any:
    return 1 / (1 + xp.exp(-x))


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "add": lambda xp, a, b: a + b, "sub": lambda xp, a, b: a - b, "mul": lambda xp, a, b: a * b,
    "div": lambda xp, a, b: a / b, "neg": lambda xp, a: -a, "pow": lambda xp, a, b: a**b,
    "exp": lambda xp, a: xp.exp(a), "log": lambda xp, a: xp.log(a), "sqrt": lambda xp, a: xp.sqrt(a),
    "square": lambda xp, a: a * a, "tanh": lambda xp, a: xp.tanh(a), "sigmoid": _sigmoid, "erf": _erf,
    "abs": lambda xp, a: xp.abs(a), "sin": lambda xp, a: xp.sin(a), "cos": lambda xp, a: xp.cos(a),
    "atan": lambda xp, a: xp.arctan(a),
    "expm1": lambda xp, a: xp.expm1(a), "log1p": lambda xp, a: xp.log1p(a), "sign": lambda xp, a: xp.sign(a),
    "floor": lambda xp, a: xp.floor(a), "step": lambda xp, a: xp.where(a >= 0, a.dtype.type(1), a.dtype.type(0)),
    "minimum": lambda xp, a, b: xp.minimum(a, b), "maximum": lambda xp, a, b: xp.maximum(a, b),
}  # fmt: skip
"""What formulas are made of."""


def _formula(xp: Any, node: Any, x: Any) -> Any:
    """A formula as nested lists: the name of a primitive and its operands, a number as text, or "x" for `x`."""
    if isinstance(node, str):
        return x if node == "x" else _number(node)
    name, *operands = node
    return PRIMITIVES[name](xp, *(_formula(xp, operand, x) for operand in operands))


def _running(xp: Any, attrs: Any, x: Any) -> Any:
    dim = attrs["dim"]
    x = xp.flip(x, dim) if attrs.get("backward") else x
    found = x.cumsum(axis=dim)
    if attrs.get("exclusive"):
        found = xp.roll(found, 1, dim)
        xp.moveaxis(found, dim, 0)[0] = 0
    return xp.flip(found, dim) if attrs.get("backward") else found


OPERATORS: dict[str, Callable[..., Any]] = {
    "Const": lambda xp, attrs: xp.asarray(_number(attrs["value"])),
    "Matmul": lambda xp, attrs, a, b: a @ b,
    "ConcatMatmul": lambda xp, attrs, w, x, y, z: w @ y + x @ z,
    "Sum": lambda xp, attrs, x: x.sum(axis=attrs["dim"], keepdims=True),
    "Max": lambda xp, attrs, x: x.max(axis=attrs["dim"], keepdims=True),
    "RescaledSum": _rescaled,
    "RunningSum": _running,
    "EwAdd": lambda xp, attrs, a, b: a + b,
    "EwSub": lambda xp, attrs, a, b: a - b,
    "EwMul": lambda xp, attrs, a, b: a * b,
    "EwDiv": lambda xp, attrs, a, b: a / b,
    "EwExp": lambda xp, attrs, x: xp.exp(x),
    "Sqr": lambda xp, attrs, x: x * x,
    "Sqrt": lambda xp, attrs, x: xp.sqrt(x),
    "SiLU": lambda xp, attrs, x: x * _sigmoid(xp, x),
    "GELU": lambda xp, attrs, x: x * (1 + _erf(xp, x / math.sqrt(2))) / 2,
    "Sigmoid": lambda xp, attrs, x: _sigmoid(xp, x),
    "ReLU": lambda xp, attrs, x: xp.maximum(x, 0),
    "Clamp": _clamp,
    "Arange": lambda xp, attrs: xp.arange(int(attrs["extent"]), dtype="float64"),
    "Where": lambda xp, attrs, condition, x: xp.where(condition != 0, x, x.dtype.type(_other(attrs))),
    "EwMax": lambda xp, attrs, a, b: xp.maximum(a, b),
    "EwGt": lambda xp, attrs, a, b: (a > b).astype(xp.result_type(a, b)),
    "EwGe": lambda xp, attrs, a, b: (a >= b).astype(xp.result_type(a, b)),
    "EwEq": lambda xp, attrs, a, b: (a == b).astype(xp.result_type(a, b)),
    "Cast": lambda xp, attrs, x: x,
    "Pow": lambda xp, attrs, x: x ** _number(attrs["exponent"]),
    "Apply": lambda xp, attrs, x: _formula(xp, attrs["formula"], x),
    "Repeat": lambda xp, attrs, x: xp.concatenate([x] * attrs["times"], axis=attrs["dim"]),
    "Reshape": lambda xp, attrs, x: x.reshape(attrs["shape"]),
    "Transpose": lambda xp, attrs, x: x.transpose(attrs["perm"]),
    "Concat": lambda xp, attrs, *parts: xp.concatenate(parts, axis=attrs["dim"]),
    "Slice": _slice,
    "Pad": _pad,
}
"""What each pre-defined operator computes, of a module (NumPy or CuPy), attributes and arrays."""


LIBRARY = {
    "attention": ("flash", "cudnn", "efficient", "products"), "softmax": ("torch",), "log_softmax": ("torch",),
    "norm": ("torch",), "group_norm": ("torch",), "running_sum": ("torch",), "linear": ("cublas", "torch"),
}  # fmt: skip
"""Library kernels that compute several operators at once (`mirage_nb.predefined`), and the ways to launch each."""


Step = tuple[str, Mapping[str, Any], Sequence[int]]
"""An operator, its attributes, and the numbers of its operands."""


def run_program(steps: Sequence[Step], inputs: Sequence[Any]) -> list[Any]:
    """All values of a program in float64, by NumPy: the inputs, then the result of every step in order."""
    values = [np.asarray(a, np.float64) for a in inputs]
    with np.errstate(all="ignore"):
        for operator, attrs, operands in steps:
            values.append(OPERATORS[operator](np, attrs, *(values[v] for v in operands)))
    return values


COUNTS = {"i8": (-128, 127), "u8": (0, 255)}
FLOATS = {"f8e4m3": (3, -6, 448.0), "f8e5m2": (2, -14, 57344.0)}
"""Digits behind the point, the smallest exponent and the largest number of types of one byte."""


def encode(values: Any, dtype: str, xp: Any = np) -> Any:
    """Real numbers rounded to a type, as stored; of one byte, those beyond are its last ones."""
    values = xp.asarray(values)
    if dtype in FLOATS:
        return _bits(values.astype("float32"), dtype, xp)
    if dtype in COUNTS:
        values = xp.rint(xp.nan_to_num(values)).clip(*COUNTS[dtype])
    if dtype != "bf16":
        return xp.ascontiguousarray(values.astype(STORED[dtype]))
    bits = xp.ascontiguousarray(values.astype("float32")).view("uint32").astype("uint64")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("uint16")


def _bits(single: Any, dtype: str, xp: Any) -> Any:
    """The bits of floats of one byte: those of halves that have no other digits."""
    digits, least, largest = FLOATS[dtype]
    _, exponent = xp.frexp(xp.maximum(xp.abs(single), 2.0**least))
    step = xp.ldexp(xp.ones_like(single), exponent - 1 - digits)
    near = xp.ascontiguousarray((xp.rint(single / step) * step).clip(-largest, largest))
    if dtype == "f8e5m2":
        near = xp.where(xp.isinf(single), single, near)
        return (near.astype("float16").view("uint16") >> 8).astype("uint8")
    half = (near / 256).astype("float16")
    bits = half.view("uint16")
    return ((bits >> 7 & 0x7F) | (bits >> 8 & 0x80) | xp.isnan(half) * 0x7F).astype("uint8")


def decode(stored: Any, dtype: str, wide: str = "float64") -> Any:
    """Stored elements as real numbers."""
    if dtype == "f8e5m2":
        return (stored.astype("uint16") << 8).view("float16").astype(wide)
    if dtype == "f8e4m3":  # the halves with these bits are so many times smaller, and it has other ones for NaN
        bits = stored.astype("uint16")
        half = (bits & 0x7F) << 7 | (bits & 0x80) << 8 | (((bits & 0x7F) == 0x7F) * 0x7E00).astype("uint16")
        return half.view("float16").astype(wide) * 256
    if dtype != "bf16":
        return stored.astype(wide)
    return (stored.astype("uint32") << 16).view("float32").astype(wide)
