"""The functions and operators of the language: one row each, for the parser, the reference and the tests.

In: nothing. Out: two tables. Invariant: whatever a program may call or write between operands stands here, with
its parameters, its meaning, its shape rule, an example that the tests run, and the rows of the operator table that
it becomes (`lower`, see lowering.py).
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable
from dataclasses import dataclass

from mirage_nb.ir.ops import ApplyAttrs, OpKind
from mirage_nb.lang import lowering
from mirage_nb.lang.builder import Term


class Kind(enum.Enum):
    """What an argument is; the value says it in words.

    Axes count dimensions of the first argument; negative ones count from the end.
    """

    TENSOR = "a tensor"
    TERM = "a tensor or a constant"
    NUMBER = "a constant"
    COUNT = "an integer constant"
    AXIS = "an axis"
    AXES = "an axis, several in ( ), or None for all"
    FLAG = "True or False"
    REST_AXES = "axes"
    """All further positional arguments."""
    REST_EXTENTS = "integer constants"
    """All further positional arguments."""


REST = (Kind.REST_AXES, Kind.REST_EXTENTS)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; `default` is the text of an expression, None if the argument must be given."""

    name: str
    kind: Kind
    default: str | None = None
    keyword_only: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """One row: how it is called, what it computes, the shape of the result, and its lowering.

    The example uses the inputs of `EXAMPLE_INPUTS`; `same_as` writes it with simpler means, empty for primitives.
    `lower` takes a Builder and one value per parameter (see expressions.py for what each Kind yields).
    """

    name: str
    parameters: tuple[Parameter, ...]
    summary: str
    shape: str
    lower: Callable[..., Term]
    example: str
    same_as: str = ""

    @property
    def signature(self) -> str:
        """`sum(x, axis=None, *, keepdims=False)`."""
        shown: list[str] = []
        for parameter in self.parameters:
            if parameter.keyword_only and "*" not in shown:
                shown.append("*")
            if parameter.kind in REST:
                shown.append(f"{parameter.name}...")
            else:
                shown.append(parameter.name if parameter.default is None else f"{parameter.name}={parameter.default}")
        return f"{self.name}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the notation: its syntax node, how it is written, and the same columns as a function."""

    node: type[ast.AST]
    form: str
    summary: str
    shape: str
    lower: Callable[..., Term]
    example: str
    same_as: str = ""


EXAMPLE_INPUTS = "X: f32[2, 3]\nY: f32[2, 3]\nW: f32[3, 4]\nG: f32[3]\n"

_X = Parameter("x", Kind.TENSOR)
_TERM = Parameter("x", Kind.TERM)
_REDUCED = (_X, Parameter("axis", Kind.AXES, "None"), Parameter("keepdims", Kind.FLAG, "False", keyword_only=True))
_EPS = Parameter("eps", Kind.NUMBER, "0", keyword_only=True)
_GAIN = Parameter("gain", Kind.TENSOR, "None")
_BIAS = Parameter("bias", Kind.TENSOR, "None")
_SAME = "the shape of x"
_FOLDED = "without the axes; with keepdims=True they stay with extent 1"
_BROADCAST = "extents align at the right and are equal or 1 (keepdims=True keeps a reduced axis at 1)"


def _elementwise(kind: OpKind, name: str, summary: str) -> Function:
    return Function(name, (_X,), summary, _SAME, lowering.unary(kind), f"{name}(X)")


def defined(name: str, text: str) -> Function:
    """The row of a function that a program defines by a formula (`ir.formula`, canonical text)."""
    attrs = ApplyAttrs(name, text)
    return Function(name, (_X,), text, _SAME, lambda b, x: b.emit(OpKind.APPLY, x, attrs=attrs), f"{name}(X)")


FUNCTIONS: dict[str, Function] = {
    row.name: row
    for row in (
        _elementwise(OpKind.EXP, "exp", "e to the power of x"),
        Function("sqrt", (_TERM,), "the square root", _SAME, lowering.sqrt, "sqrt(X)"),
        Function("rsqrt", (_TERM,), "the reciprocal of the square root", _SAME, lowering.rsqrt,
                 "rsqrt(X)", "1 / sqrt(X)"),
        Function("square", (_TERM,), "x times x", _SAME, lowering.square, "square(X)", "X * X"),
        _elementwise(OpKind.SILU, "silu", "x * sigmoid(x)"),
        _elementwise(OpKind.GELU, "gelu", "x times the normal distribution function of x (the exact form, with erf)"),
        _elementwise(OpKind.SIGMOID, "sigmoid", "1 / (1 + exp(-x))"),
        _elementwise(OpKind.RELU, "relu", "x where it is positive, else 0"),
        Function("pow", (_TERM, Parameter("exponent", Kind.NUMBER)), "x ** exponent", _SAME, lowering.power,
                 "pow(X, 1.5)", "X ** 1.5"),
        Function("clamp", (_X, Parameter("low", Kind.NUMBER, "None"), Parameter("high", Kind.NUMBER, "None")),
                 "x, at least low and at most high; one of them may be left out", _SAME, lowering.clamp,
                 "clamp(X, 0.5, 1)"),
        Function("sum", _REDUCED, "the sum over axes", _FOLDED, lowering.reduction(OpKind.SUM), "sum(X, axis=1)"),
        Function("mean", _REDUCED, "the sum over axes times 1/n", _FOLDED, lowering.mean,
                 "mean(X, axis=-1, keepdims=True)", "sum(X, axis=-1, keepdims=True) / 3"),
        Function("max", _REDUCED, "the maximum over axes", _FOLDED, lowering.reduction(OpKind.MAX), "max(X, axis=0)"),
        Function("transpose", (_X, Parameter("axes", Kind.REST_AXES)),
                 "dimension i of the result is dimension axes[i] of x; without axes the last two are swapped",
                 "the extents of x in that order", lowering.transpose, "transpose(X, 1, 0)", "X.T"),
        Function("reshape", (_X, Parameter("extents", Kind.REST_EXTENTS)),
                 "the same elements in row-major order; one extent may be -1", "the extents, same number of elements",
                 lowering.reshape, "reshape(X, 3, -1)", "reshape(X, 3, 2)"),
        Function("repeat", (_X, Parameter("times", Kind.COUNT), Parameter("axis", Kind.AXIS)),
                 "whole copies of x behind each other along the axis", "the axis is `times` as long",
                 lowering.repeat, "repeat(X, 2, axis=0)"),
        Function("concat", (_X, Parameter("y", Kind.TENSOR), Parameter("axis", Kind.AXIS)),
                 "y behind x along the axis", "extents add up along the axis and are equal elsewhere",
                 lowering.concat, "concat(X, Y, axis=-1)"),
        Function("softmax", (_X, Parameter("axis", Kind.AXIS, "-1")),
                 "exp(x) over its sum along the axis, with the maximum subtracted first", _SAME, lowering.softmax,
                 "softmax(X, axis=-1)",
                 "exp(X - max(X, axis=-1, keepdims=True))"
                 " / sum(exp(X - max(X, axis=-1, keepdims=True)), axis=-1, keepdims=True)"),
        Function("rms_norm", (_X, _GAIN, _EPS),
                 "x / sqrt(mean(x * x) + eps) over the last axis, times gain", _SAME + "; gain has its last extent",
                 lowering.rms_norm, "rms_norm(X, G, eps=1e-5)",
                 "X / sqrt(mean(X * X, axis=-1, keepdims=True) + 1e-5) * G"),
        Function("layer_norm", (_X, _GAIN, _BIAS, _EPS),
                 "rms_norm(x - mean(x), gain, eps=eps) + bias over the last axis",
                 _SAME + "; gain and bias have its last extent", lowering.layer_norm,
                 "layer_norm(X, G, eps=1e-5)", "rms_norm(X - mean(X, axis=-1, keepdims=True), G, eps=1e-5)"),
    )
}  # fmt: skip

OPERATORS: dict[type[ast.AST], Operator] = {
    row.node: row
    for row in (
        Operator(ast.Add, "x + y", "the sum", _BROADCAST, lowering.add, "X + G"),
        Operator(ast.Sub, "x - y", "the difference", _BROADCAST, lowering.subtract, "X - Y"),
        Operator(ast.Mult, "x * y", "the product", _BROADCAST, lowering.multiply, "X * G"),
        Operator(ast.Div, "x / y", "the quotient", _BROADCAST, lowering.divide, "X / Y"),
        Operator(ast.MatMult, "x @ y", "the matrix product of the last two dimensions",
                 "[..., m, k] @ [..., k, n] is [..., m, n]; leading dimensions broadcast", lowering.matmul, "X @ W"),
        Operator(ast.Pow, "x ** c", "the power; c is a constant", _SAME, lowering.power, "X ** -0.5", "rsqrt(X)"),
        Operator(ast.FloorDiv, "c // d", "the integer quotient of constants", "a constant", lowering.floor_divide,
                 "X * (7 // 2)", "X * 3"),
        Operator(ast.USub, "-x", "the negative", _SAME, lowering.negate, "-X", "X * -1"),
        Operator(ast.Attribute, "x.T", "the last two dimensions swapped", "the extents of x, the last two swapped",
                 lowering.swap_last, "X.T", "transpose(X)"),
    )
}  # fmt: skip
