"""ATen's pointwise operators: arithmetic, roots and powers, activations.

In: an `At` and the arguments of a node. Out: a term. Invariant: activations that the language has no operator for
are formulas (`ir.formula`), written so that they neither overflow nor cancel where the function itself does not.
"""

from __future__ import annotations

import ast
from typing import Any

from mirage_nb.errors import MirageError
from mirage_nb.frontend import recognise
from mirage_nb.frontend.aten.terms import At, Left, Row, elementwise, number, rational
from mirage_nb.ir import formula
from mirage_nb.ir.ops import ApplyAttrs, OpKind
from mirage_nb.lang import lowering
from mirage_nb.lang.builder import Builder, Term, Value


def apply(b: Builder, x: Value, name: str, text: str, **numbers: float) -> Value:
    """A function of one element, by its formula; `numbers` are constants that the text names."""

    def blame(_: ast.expr, message: str, hint: str) -> MirageError:
        raise Left(message)

    constants = {key: rational(value) for key, value in numbers.items()}
    read = formula.of_node(ast.parse(text, mode="eval").body, "x", constants, blame)
    return b.emit(OpKind.APPLY, x, attrs=ApplyAttrs(name, formula.canonical(read)))


def _unary(kind: OpKind) -> Row:
    return lambda at, x: at.b.emit(kind, at.tensor(x))


def _formula(name: str, text: str) -> Row:
    return lambda at, x: apply(at.b, at.tensor(x), name, text)


def _add(at: At, x: Any, y: Any, *, alpha: float = 1) -> Term:
    left, right = elementwise(at, at.term(x), at.term(y))
    return lowering.add(at.b, left, lowering.multiply(at.b, right, number(alpha)))


def _sub(at: At, x: Any, y: Any, *, alpha: float = 1) -> Term:
    left, right = elementwise(at, at.term(x), at.term(y))
    return lowering.subtract(at.b, left, lowering.multiply(at.b, right, number(alpha)))


def _rsub(at: At, x: Any, y: Any, alpha: float = 1) -> Term:
    return _sub(at, y, x, alpha=alpha)


def _mul(at: At, x: Any, y: Any) -> Term:
    return recognise.multiply(at.b, *elementwise(at, at.term(x), at.term(y)))


def _div(at: At, x: Any, y: Any) -> Term:
    return recognise.divide(at.b, *elementwise(at, at.term(x), at.term(y)))


def _pow(at: At, x: Any, exponent: Any) -> Term:
    if exponent == 0:
        return lowering.ONE
    return lowering.power(at.b, at.term(x), number(exponent)) if exponent != 1 else at.term(x)


def _clamp(at: At, x: Any, min: Any = None, max: Any = None) -> Term:
    limits = [None if limit is None else number(limit) for limit in (min, max)]
    return lowering.clamp(at.b, at.tensor(x), *limits)


def _gelu(at: At, x: Any, approximate: str = "none", *, _: None = None) -> Term:
    if approximate == "none":
        return at.b.emit(OpKind.GELU, at.tensor(x))
    return apply(at.b, at.tensor(x), "gelu_tanh", TANH_GELU)


TANH_GELU = "x / 2 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x ** 3)))"
SOFTPLUS = "maximum(x, 0) + log(1 + exp(-abs(x)))"


def _leaky_relu(at: At, x: Any, slope: float = 0.01) -> Term:
    return apply(at.b, at.tensor(x), "leaky_relu", "maximum(x, 0) + slope * minimum(x, 0)", slope=slope)


def _elu(at: At, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Term:
    text = "scale * (maximum(x, 0) + alpha * (exp(within * minimum(x, 0)) - 1))"
    return apply(at.b, at.tensor(x), "elu", text, alpha=alpha, scale=scale, within=input_scale)


def _softplus(at: At, x: Any, beta: float = 1, threshold: float = 20) -> Term:
    """Beyond the threshold PyTorch returns x itself, which the formula is, too, up to its rounding there."""
    if beta * threshold < 15:
        raise Left("a softplus with a threshold that shows")
    text = "maximum(x, 0) + log(1 + exp(-abs(beta * x))) / beta"
    return apply(at.b, at.tensor(x), "softplus", text, beta=beta)


def _log_sigmoid(at: At, x: Any) -> Term:
    return apply(at.b, at.tensor(x), "log_sigmoid", "minimum(x, 0) - log(1 + exp(-abs(x)))")


def _same(at: At, x: Any, *_: Any, **__: Any) -> Term:
    """The same elements: copies and layouts are a matter of code."""
    return at.term(x)


def _cast(at: At, x: Any, *_: Any, **__: Any) -> Term:
    """Between element types of floating-point numbers; who translates watches what is rounded where."""
    if at.dtype is None:
        raise Left("a cast to a type that is not a floating-point type of programs")
    return at.term(x)


def _filled(at: At, *arguments: Any, value: float) -> Term:
    if at.dtype is None:
        raise Left("a constant that is not a floating-point number")
    return number(value)


def _full(at: At, _: Any, value: Any, **__: Any) -> Term:
    return _filled(at, value=value)


def _scalar(at: At, value: Any, **_: Any) -> Term:
    return _filled(at, value=value)


ROWS: dict[str, Row] = {
    "aten.add.Tensor": _add,
    "aten.add.Scalar": lambda at, x, y, alpha=1: _add(at, x, y, alpha=alpha),
    "aten.sub.Tensor": _sub,
    "aten.sub.Scalar": lambda at, x, y, alpha=1: _sub(at, x, y, alpha=alpha),
    "aten.rsub.Scalar": _rsub,
    "aten.rsub.Tensor": _rsub,
    "aten.mul.Tensor": _mul,
    "aten.mul.Scalar": _mul,
    "aten.div.Tensor": _div,
    "aten.div.Scalar": _div,
    "aten.neg.default": lambda at, x: lowering.negate(at.b, at.term(x)),
    "aten.reciprocal.default": lambda at, x: recognise.divide(at.b, lowering.ONE, at.tensor(x)),
    "aten.square.default": lambda at, x: lowering.square(at.b, at.tensor(x)),
    "aten.pow.Tensor_Scalar": _pow,
    "aten.sqrt.default": lambda at, x: lowering.sqrt(at.b, at.tensor(x)),
    "aten.rsqrt.default": lambda at, x: lowering.rsqrt(at.b, at.tensor(x)),
    "aten.exp.default": _unary(OpKind.EXP),
    "aten.expm1.default": _formula("expm1", "exp(x) - 1"),
    "aten.log.default": _formula("log", "log(x)"),
    "aten.log1p.default": _formula("log1p", "log(1 + x)"),
    "aten.tanh.default": _formula("tanh", "tanh(x)"),
    "aten.erf.default": _formula("erf", "erf(x)"),
    "aten.abs.default": _formula("abs", "abs(x)"),
    "aten.sin.default": _formula("sin", "sin(x)"),
    "aten.cos.default": _formula("cos", "cos(x)"),
    "aten.sigmoid.default": _unary(OpKind.SIGMOID),
    "aten.relu.default": _unary(OpKind.RELU),
    "aten.silu.default": _unary(OpKind.SILU),
    "aten.gelu.default": _gelu,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.elu.default": _elu,
    "aten.selu.default": lambda at, x: _elu(at, x, 1.6732632423543772, 1.0507009873554805),
    "aten.celu.default": lambda at, x, alpha=1.0: _elu(at, x, alpha, 1.0, 1.0 / alpha),
    "aten.softplus.default": _softplus,
    "aten.mish.default": _formula("mish", f"x * tanh({SOFTPLUS})"),
    "aten.hardswish.default": _formula("hardswish", "x * minimum(maximum(x + 3, 0), 6) / 6"),
    "aten.hardsigmoid.default": _formula("hardsigmoid", "minimum(maximum(x + 3, 0), 6) / 6"),
    "aten.log_sigmoid.default": _log_sigmoid,
    "aten.log_sigmoid_forward.default": lambda at, x: (_log_sigmoid(at, x), None),
    "aten.clamp.default": _clamp,
    "aten.clamp_min.default": _clamp,
    "aten.clamp_max.default": lambda at, x, high: _clamp(at, x, None, high),
    "aten.hardtanh.default": lambda at, x, low=-1, high=1: _clamp(at, x, low, high),
    "aten.relu6.default": lambda at, x: _clamp(at, x, 0, 6),
    "aten.clone.default": _same,
    "aten.contiguous.default": _same,
    "aten.detach.default": _same,
    "aten.alias.default": _same,
    "aten.lift_fresh_copy.default": _same,
    "aten.dropout.default": lambda at, x, p, train: _same(at, x) if not train or p == 0 else _random(),
    "aten._to_copy.default": _cast,
    "aten.to.dtype": _cast,
    "prims.convert_element_type.default": _cast,
    "aten.full.default": _full,
    "aten.full_like.default": _full,
    "aten.scalar_tensor.default": _scalar,
    "aten.ones.default": lambda at, *_, **__: _filled(at, value=1),
    "aten.zeros.default": lambda at, *_, **__: _filled(at, value=0),
    "aten.ones_like.default": lambda at, *_, **__: _filled(at, value=1),
    "aten.zeros_like.default": lambda at, *_, **__: _filled(at, value=0),
}  # fmt: skip


def _random() -> Term:
    raise Left("random numbers")
