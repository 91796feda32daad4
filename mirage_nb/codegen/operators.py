"""The CUDA table of elementwise operators: how each is said with the device library, in f32.

One row per elementwise OpKind; a test compares the keys with the operator table.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from mirage_nb.ir import ApplyAttrs, Attrs, ClampAttrs, OpKind, PowAttrs, WhereAttrs, formula


def number(value: Fraction) -> str:
    """A float literal; nine significant digits name every f32."""
    text = f"{float(value):.9g}"
    if text in ("inf", "-inf"):
        return "-NEGATIVE_INFINITY" if text == "inf" else "NEGATIVE_INFINITY"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _clamp(operand: str, attrs: Attrs | None) -> str:
    assert isinstance(attrs, ClampAttrs)
    if attrs.low is not None:
        operand = f"maximum({operand}, {number(attrs.low)})"
    if attrs.high is not None:
        operand = f"minimum({operand}, {number(attrs.high)})"
    return operand


def _power(operand: str, exponent: Fraction) -> str:
    special = {
        Fraction(1): operand,
        Fraction(2): f"square({operand})",
        Fraction(1, 2): f"fast_sqrt({operand})",
        Fraction(-1, 2): f"fast_rsqrt({operand})",
        Fraction(-1): f"fast_reciprocal({operand})",
    }
    return special.get(exponent) or f"power({operand}, {number(exponent)})"


def _truth(said: Callable[[str, str], str]) -> Callable[[list[str], Attrs | None], str]:
    return lambda operands, attrs: f"({said(*operands)} ? 1.0f : 0.0f)"


def _call(function: Callable[..., str]) -> Callable[[list[str], Attrs | None], str]:
    return lambda operands, attrs: function(*operands)


def called(name: str) -> Callable[[list[str], Attrs | None], str]:
    """A function of the device library, of all operands."""
    return _call(_function(name))


def _infix(symbol: str) -> Callable[[list[str], Attrs | None], str]:
    return lambda operands, attrs: f"{operands[0]} {symbol} {operands[1]}"


def _raised(operands: list[str], attrs: Attrs | None) -> str:
    assert isinstance(attrs, PowAttrs)
    return _power(operands[0], attrs.exponent)


def _function(name: str) -> Callable[..., str]:
    return lambda *operands: f"{name}({', '.join(operands)})"


def _bracketed(sign: str) -> Callable[..., str]:
    return lambda left, right: f"({left} {sign} {right})"


SCALARS: dict[str, Callable[..., str]] = {
    "add": _bracketed("+"),
    "sub": _bracketed("-"),
    "mul": _bracketed("*"),
    "div": _function("fast_divide"),
    "neg": lambda operand: f"(-{operand})",
    "pow": _power,
    "exp": _function("fast_exp"),
    "expm1": _function("exp_minus_one"),
    "log": _function("natural_log"),
    "log1p": _function("log_one_plus"),
    "sqrt": _function("fast_sqrt"),
    "square": _function("square"),
    "tanh": _function("fast_tanh"),
    "sigmoid": _function("sigmoid"),
    "erf": _function("erf_value"),
    "abs": _function("absolute"),
    "sign": _function("sign"),
    "floor": _function("floor_value"),
    "step": _function("step"),
    "sin": _function("sine"),
    "cos": _function("cosine"),
    "atan": _function("arc_tangent"),
    "minimum": _function("minimum"),
    "maximum": _function("maximum"),
}
"""The primitives of formulas; whatever has a sign around it is bracketed."""


def _applied(operands: list[str], attrs: Attrs | None) -> str:
    assert isinstance(attrs, ApplyAttrs)
    return formula.fold(formula.read(attrs.formula), operands[0], lambda value: f"({number(value)})", SCALARS)


def left_out(attrs: Attrs | None) -> str:
    """What a choice has where its mask is zero."""
    assert isinstance(attrs, WhereAttrs)
    return {0: number(attrs.other), 1: "-NEGATIVE_INFINITY", -1: "NEGATIVE_INFINITY"}[attrs.infinite]


def _where(operands: list[str], attrs: Attrs | None) -> str:
    return f"({operands[0]} != 0.0f ? {operands[1]} : {left_out(attrs)})"


CUDA: dict[OpKind, Callable[[list[str], Attrs | None], str]] = {
    **{kind: _call(SCALARS[name]) for kind, name in formula.OPERATORS.items()},
    OpKind.ADD: _infix("+"),
    OpKind.SUB: _infix("-"),
    OpKind.MUL: _infix("*"),
    **{kind: called(kind.value.lower()) for kind in (OpKind.SILU, OpKind.GELU, OpKind.RELU)},
    OpKind.CLAMP: lambda operands, attrs: _clamp(operands[0], attrs),
    OpKind.GREATER: _truth(_function("above")),
    OpKind.GREATER_EQUAL: _truth(_function("not_below")),
    OpKind.EQUAL: _truth(lambda left, right: f"{left} == {right}"),
    OpKind.WHERE: _where,
    OpKind.CAST: lambda operands, attrs: operands[0],
    OpKind.POW: _raised,
    OpKind.APPLY: _applied,
}
"""Elementwise operator -> C expression over named operands (no operand needs brackets: all are names)."""
