"""ATen's pointwise operators: arithmetic, roots and powers, activations.

In: an `At` and the arguments of a node. Out: a term. Invariant: what the language has a function for is that function;
other activations are formulas that neither overflow nor cancel where the function itself does not.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from mirage_nb.frontend import recognise
from mirage_nb.frontend.aten.terms import At, Held, Left, Result, Row, Undefined, elementwise, named, number
from mirage_nb.ir.dtypes import DType
from mirage_nb.lang import lowering
from mirage_nb.lang.builder import Infinity, Term
from mirage_nb.lang.constants import Number
from mirage_nb.lang.masks import comparison
from mirage_nb.lang.ranges import may_be_infinite

LARGEST = {DType.F16: 65519.0, DType.BF16: 3.39e38, DType.F32: 3.4028235e38, DType.F64: math.inf}
"""What PyTorch rounds to infinity when it fills a tensor of a type is beyond these."""
LEAST, MOST = Infinity(-1), Infinity(1)


def _named(name: str) -> Row:
    """The function of the language that this is."""
    return lambda at, x: named(at.b, name, at.tensor(x))


def _add(at: At, x: Any, y: Any, *, alpha: float = 1) -> Result:
    if (beside := _beside_infinity(at, x, y, alpha)) is not None:
        return beside
    left, right = elementwise(at, at.term(x), at.term(y))
    return lowering.add(at.b, left, lowering.multiply(at.b, right, number(alpha)))


def _sub(at: At, x: Any, y: Any, *, alpha: float = 1) -> Result:
    if (beside := _beside_infinity(at, x, y, -alpha)) is not None:
        return beside
    left, right = elementwise(at, at.term(x), at.term(y))
    return lowering.subtract(at.b, left, lowering.multiply(at.b, right, number(alpha)))


def _beside_infinity(at: At, x: Any, y: Any, factor: float) -> Infinity | None:
    """x + factor * y where one of them is the infinity that an extreme begins with: what is finite does not count."""
    for one, other, times in ((x, y, 1.0), (y, x, factor)):
        infinity = at.infinity(one)
        if infinity is not None and factor and at.infinity(other) is None:
            rest = at.term(other)
            if isinstance(rest, Number) or not may_be_infinite(at.b, rest):
                return Infinity(infinity.sign if times > 0 else -infinity.sign)
    return None


def _mul(at: At, x: Any, y: Any) -> Term:
    return recognise.multiply(at.b, *elementwise(at, at.term(x), at.term(y)))


def _fused(at: At, x: Any, y: Any, z: Any) -> Term:
    """x * y + z, which PyTorch rounds once."""
    one, other, summand = elementwise(at, *(at.term(argument) for argument in (x, y, z)))
    return lowering.add(at.b, lowering.multiply(at.b, one, other), summand)


def _div(at: At, x: Any, y: Any) -> Term:
    return recognise.divide(at.b, *elementwise(at, at.term(x), at.term(y)))


def _pow(at: At, x: Any, exponent: Any) -> Term:
    if exponent == 0:
        return lowering.ONE
    return lowering.power(at.b, at.term(x), number(exponent)) if exponent != 1 else at.term(x)


def _clamp(at: At, x: Any, min: Any = None, max: Any = None) -> Term:
    min, max = (
        None if limit is None or at.choice(limit) == free else limit for limit, free in ((min, LEAST), (max, MOST))
    )
    if not isinstance(min, Held) and not isinstance(max, Held):
        limits = [None if limit is None else number(limit) for limit in (min, max)]
        return at.term(x) if limits == [None, None] else lowering.clamp(at.b, at.tensor(x), *limits)
    made = at.term(x)
    for lower, limit in ((lowering.maximum, min), (lowering.minimum, max)):
        if limit is not None:
            made = lower(at.b, *elementwise(at, made, at.term(limit)))
    return made


_ELU = lowering.formula_of(
    "elu", "scale * (maximum(x, 0) + alpha * expm1(within * minimum(x, 0)))", "alpha", "scale", "within"
)
_SOFTPLUS = lowering.formula_of("softplus", "maximum(x, 0) + log1p(exp(-abs(beta * x))) / beta", "beta")


def _elu(at: At, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Term:
    if (scale, input_scale) == (1, 1):
        return named(at.b, "elu", at.tensor(x), alpha)
    return _ELU(at.b, at.tensor(x), number(alpha), number(scale), number(input_scale))


def _softplus(at: At, x: Any, beta: float = 1, threshold: float = 20) -> Term:
    """Beyond the threshold PyTorch returns x itself, which the formula is, too, up to its rounding there."""
    if beta * threshold < 15:
        raise Left("a softplus with a threshold that shows")
    return named(at.b, "softplus", at.tensor(x)) if beta == 1 else _SOFTPLUS(at.b, at.tensor(x), number(beta))


def _extreme(lower: Callable[..., Term], free: Infinity) -> Row:
    """The larger or the smaller of two; `free`: the infinity that every number takes the place of."""

    def row(at: At, x: Any, y: Any) -> Result:
        for one, other in ((x, y), (y, x)):
            if (infinity := at.infinity(one)) is not None:
                return at.choice(other) if infinity == free else infinity
        return lower(at.b, *elementwise(at, at.term(x), at.term(y)))

    return row


def _exp(at: At, x: Any) -> Result:
    if (infinity := at.infinity(x)) is not None:
        return infinity if infinity == MOST else lowering.ZERO
    return named(at.b, "exp", at.tensor(x))


def _same(at: At, x: Any, *_: Any, **__: Any) -> Term:
    """The same elements: copies and layouts are a matter of code."""
    return at.term(x)


def _cast(at: At, x: Any, *_: Any, **__: Any) -> Term:
    """Between element types of floating-point numbers, and to truth values."""
    if at.truth:
        return comparison(ast.NotEq)(at.b, at.term(x), lowering.ZERO)
    if at.dtype is None and at.logical(x) is not None:
        return at.term(x)  # ones and zeros in any type
    if at.dtype is None:
        raise Left("a cast to a type that is not a floating-point type of programs")
    return lowering.cast(at.dtype)(at.b, at.term(x))


def _filled(at: At, value: Any) -> Result:
    if isinstance(value, Held):
        raise Left("a tensor that is filled with what is computed")
    if at.truth:
        return number(int(bool(value)))
    if at.dtype is None:
        if not isinstance(value, int):
            raise Left("whole numbers that are filled with a fraction")
        return number(int(value))
    if value != value:
        return Undefined()
    infinite = math.isinf(value) or abs(value) > LARGEST[at.dtype]
    return Infinity(1 if value > 0 else -1) if infinite else number(value)


ALIKE = (
    "expm1", "log", "log1p", "tanh", "erf", "abs", "sin", "cos", "sigmoid", "relu", "silu", "sign", "floor",
    "atan", "mish", "hardswish", "hardsigmoid",
)  # fmt: skip
"""Functions that PyTorch and the language call the same."""
FILLS = ("full.default", "full_like.default", "fill.Scalar")
NO_TANGENT = "_efficientzerotensor"
"""Zeros, as derivatives have them of what they are not taken by."""
COPIES = ("clone", "contiguous", "detach", "alias", "lift_fresh_copy")

ROWS: dict[str, Row] = {
    **{f"aten.{name}.default": _named(name) for name in ALIKE},
    **{f"aten.{name}.default": _same for name in COPIES},
    "aten.exp.default": _exp,
    "aten.add.Tensor": _add,
    "aten.add.Scalar": lambda at, x, y, alpha=1: _add(at, x, y, alpha=alpha),
    "aten.sub.Tensor": _sub,
    "aten.sub.Scalar": lambda at, x, y, alpha=1: _sub(at, x, y, alpha=alpha),
    **{f"aten.rsub.{kind}": lambda at, x, y, alpha=1: _sub(at, y, x, alpha=alpha) for kind in ("Tensor", "Scalar")},
    **{f"aten.mul.{kind}": _mul for kind in ("Tensor", "Scalar")},
    "prims.fma.default": _fused,
    **{f"aten.div.{kind}": _div for kind in ("Tensor", "Scalar")},
    "aten.neg.default": lambda at, x: lowering.negate(at.b, at.term(x)),
    "aten.reciprocal.default": lambda at, x: recognise.divide(at.b, lowering.ONE, at.tensor(x)),
    "aten.round.default": lambda at, x: lowering.ROUND(at.b, at.tensor(x)),
    "aten.square.default": lambda at, x: lowering.square(at.b, at.tensor(x)),
    "aten.pow.Tensor_Scalar": _pow,
    "aten.pow.Scalar": lambda at, base, x: lowering.power(at.b, number(base), at.term(x)),
    "aten.sqrt.default": lambda at, x: lowering.sqrt(at.b, at.tensor(x)),
    "aten.rsqrt.default": lambda at, x: lowering.rsqrt(at.b, at.tensor(x)),
    "aten.sgn.default": _named("sign"),
    "aten.maximum.default": _extreme(lowering.maximum, LEAST),
    "aten.minimum.default": _extreme(lowering.minimum, MOST),
    "aten.leaky_relu.default": lambda at, x, slope=0.01: named(at.b, "leaky_relu", at.tensor(x), slope),
    "aten.elu.default": _elu,
    "aten.softplus.default": _softplus,
    "aten.log_sigmoid.default": _named("logsigmoid"),
    "aten.log_sigmoid_forward.default": lambda at, x: (named(at.b, "logsigmoid", at.tensor(x)), None),
    "aten.clamp.default": _clamp,
    "aten.clamp.Tensor": _clamp,
    "aten.clamp_min.default": _clamp,
    "aten.clamp_min.Tensor": _clamp,
    "aten.clamp_max.default": lambda at, x, high: _clamp(at, x, None, high),
    "aten.clamp_max.Tensor": lambda at, x, high: _clamp(at, x, None, high),
    "aten.copy.default": lambda at, x, source, *_: _cast(at, source),
    "aten._to_copy.default": _cast,
    "aten.to.dtype": _cast,
    "prims.convert_element_type.default": _cast,
    "prims.device_put.default": _same,
    **{f"aten.{name}": lambda at, _, value, **__: _filled(at, value) for name in FILLS},
    "aten.scalar_tensor.default": lambda at, value, **_: _filled(at, value),
    **{f"aten.ones{like}.default": lambda at, *_, **__: _filled(at, 1) for like in ("", "_like")},
    **{f"aten.{name}.default": lambda at, *_, **__: _filled(at, 0) for name in ("zeros", "zeros_like", NO_TANGENT)},
}  # fmt: skip
