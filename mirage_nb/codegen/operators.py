"""The CUDA table of elementwise operators: how each is said with the device library, in f32.

One row per elementwise OpKind; a test compares the keys with the operator table.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from mirage_nb.ir import Attrs, ClampAttrs, OpKind, PowAttrs


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


def _power(operand: str, attrs: Attrs | None) -> str:
    assert isinstance(attrs, PowAttrs)
    special = {
        Fraction(1): operand,
        Fraction(2): f"square({operand})",
        Fraction(1, 2): f"fast_sqrt({operand})",
        Fraction(-1, 2): f"fast_rsqrt({operand})",
        Fraction(-1): f"fast_reciprocal({operand})",
    }
    return special.get(attrs.exponent) or f"power({operand}, {number(attrs.exponent)})"


def _call(name: str) -> Callable[[list[str], Attrs | None], str]:
    return lambda operands, attrs: f"{name}({', '.join(operands)})"


def _infix(symbol: str) -> Callable[[list[str], Attrs | None], str]:
    return lambda operands, attrs: f"{operands[0]} {symbol} {operands[1]}"


CUDA: dict[OpKind, Callable[[list[str], Attrs | None], str]] = {
    OpKind.ADD: _infix("+"),
    OpKind.SUB: _infix("-"),
    OpKind.MUL: _infix("*"),
    OpKind.DIV: _call("fast_divide"),
    OpKind.EXP: _call("fast_exp"),
    OpKind.SQR: _call("square"),
    OpKind.SQRT: _call("fast_sqrt"),
    OpKind.SILU: _call("silu"),
    OpKind.GELU: _call("gelu"),
    OpKind.SIGMOID: _call("sigmoid"),
    OpKind.RELU: _call("relu"),
    OpKind.CLAMP: lambda operands, attrs: _clamp(operands[0], attrs),
    OpKind.POW: lambda operands, attrs: _power(operands[0], attrs),
}
"""Elementwise operator -> C expression over named operands (no operand needs brackets: all are names)."""
