"""The functions and operators of the language: one row each, for the parser, the reference and the tests.

In: nothing. Out: two tables. Invariant: whatever a program may call or write between operands stands here, with
its parameters, its meaning, its shape rule, an example that the tests run, and the rows of the operator table that
it becomes (`lower`, see lowering.py).
"""

from __future__ import annotations

import ast

from mirage_nb.ir.dtypes import FLOATS, DType
from mirage_nb.ir.ops import ApplyAttrs, OpKind
from mirage_nb.lang import elements, lowering, masks, norms, ranges, reductions, views
from mirage_nb.lang.einsum import einsum
from mirage_nb.lang.signature import Function, Kind, Operator, Parameter

EXAMPLE_INPUTS = "X: f32[2, 3]\nY: f32[2, 3]\nW: f32[3, 4]\nG: f32[3]\nN: f32[2, 4, 5]\n"

_X = Parameter("x", Kind.TENSOR)
_TERM = Parameter("x", Kind.TERM)
_SECOND = Parameter("y", Kind.TERM)
_AXIS = Parameter("axis", Kind.AXIS)
_LAST = Parameter("axis", Kind.AXIS, "-1")
_ALL = Parameter("axis", Kind.AXES, "None")
_KEPT = Parameter("keepdims", Kind.FLAG, "False", keyword_only=True)
_REDUCED = (_X, _ALL, _KEPT)
_SPREAD = (_X, _ALL, Parameter("ddof", Kind.COUNT, "0", keyword_only=True), _KEPT)
_EPS = Parameter("eps", Kind.NUMBER, "0", keyword_only=True)
_GAIN = Parameter("gain", Kind.TENSOR, "None")
_BIAS = Parameter("bias", Kind.TENSOR, "None")
_INDEX = Parameter("index", Kind.TENSOR)
_SAME = "the shape of x"
_FOLDED = "without the axes; with keepdims=True they stay with extent 1"
_BROADCAST = "extents align at the right and are equal or 1 (keepdims=True keeps a reduced axis at 1)"


def _elementwise(kind: OpKind, name: str, summary: str) -> Function:
    return Function(name, (_X,), summary, _SAME, lowering.unary(kind), f"{name}(X)")


def _formula(name: str, summary: str, text: str, **constants: str) -> Function:
    """A function that is a formula over x and constants with these defaults."""
    parameters = (_TERM, *(Parameter(constant, Kind.NUMBER, default) for constant, default in constants.items()))
    lower = lowering.formula_of(name, text, *constants)
    return Function(name, parameters, summary, _SAME, lower, f"{name}(X)")


def _cast(dtype: DType) -> Function:
    name = dtype.value
    summary = f"x with the element type {name}; sums and products of it follow the rules of that type"
    return Function(name, (_TERM,), summary, _SAME, lowering.told(dtype), f"{name}(f64(X))")


def defined(name: str, text: str) -> Function:
    """The row of a function that a program defines by a formula (`ir.formula`, canonical text)."""
    attrs = ApplyAttrs(name, text)
    return Function(name, (_X,), text, _SAME, lambda b, x: b.emit(OpKind.APPLY, x, attrs=attrs), f"{name}(X)")


FUNCTIONS: dict[str, Function] = {
    row.name: row
    for row in (
        Function("exp", (_TERM,), "e to the power of x", _SAME, lowering.exp, "exp(X)"),
        Function("sqrt", (_TERM,), "the square root", _SAME, lowering.sqrt, "sqrt(X)"),
        Function("rsqrt", (_TERM,), "the reciprocal of the square root", _SAME, lowering.rsqrt,
                 "rsqrt(X)", "1 / sqrt(X)"),
        Function("square", (_TERM,), "x times x", _SAME, lowering.square, "square(X)", "X * X"),
        _elementwise(OpKind.SILU, "silu", "x * sigmoid(x)"),
        _elementwise(OpKind.GELU, "gelu", "x times the normal distribution function of x (the exact form, with erf)"),
        _elementwise(OpKind.SIGMOID, "sigmoid", "1 / (1 + exp(-x))"),
        _elementwise(OpKind.RELU, "relu", "x where it is positive, else 0"),
        Function("pow", (_TERM, Parameter("exponent", Kind.TERM)), "x ** exponent", _SAME, ranges.raised,
                 "pow(X, 1.5)", "X ** 1.5"),
        Function("clamp", (_X, Parameter("low", Kind.TERM, "None"), Parameter("high", Kind.TERM, "None")),
                 "x, at least low and at most high; one of them may be left out", _SAME, lowering.clamp,
                 "clamp(X, 0.5, 1)"),
        _formula("log", "the natural logarithm", "log(x)"),
        _formula("log1p", "the logarithm of 1 + x", "log1p(x)"),
        _formula("expm1", "exp(x) - 1", "expm1(x)"),
        _formula("tanh", "the hyperbolic tangent", "tanh(x)"),
        _formula("erf", "the error function", "erf(x)"),
        _formula("sin", "the sine", "sin(x)"),
        _formula("cos", "the cosine", "cos(x)"),
        _formula("atan", "the angle whose tangent is x", "atan(x)"),
        _formula("abs", "the magnitude", "abs(x)"),
        _formula("sign", "-1, 0 or 1", "sign(x)"),
        Function("floor", (_TERM,), "the largest integer that is not above x", _SAME, lowering.floor, "floor(X)"),
        Function("trunc", (_TERM,), "x without what is behind its point", _SAME, lowering.trunc, "trunc(X)"),
        _formula("step", "1 where x is at least 0, else 0", "step(x)"),
        _formula("softplus", "log(1 + exp(x))", "maximum(x, 0) + log1p(exp(-abs(x)))"),
        _formula("logsigmoid", "log(sigmoid(x))", "minimum(x, 0) - log1p(exp(-abs(x)))"),
        _formula("mish", "x * tanh(softplus(x))", "x * tanh(maximum(x, 0) + log1p(exp(-abs(x))))"),
        _formula("gelu_tanh", "the form of gelu with tanh",
                 "x / 2 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))"),
        _formula("elu", "x where it is positive, else alpha * (exp(x) - 1)",
                 "maximum(x, 0) + alpha * expm1(minimum(x, 0))", alpha="1"),
        _formula("leaky_relu", "x where it is positive, else slope * x", "maximum(x, 0) + slope * minimum(x, 0)",
                 slope="0.01"),
        _formula("hardsigmoid", "x / 6 + 1/2, at least 0 and at most 1", "minimum(maximum(x / 6 + 1/2, 0), 1)"),
        _formula("hardswish", "x * hardsigmoid(x)", "x * minimum(maximum(x / 6 + 1/2, 0), 1)"),
        _formula("softsign", "x / (1 + abs(x))", "x / (1 + abs(x))"),
        Function("maximum", (_TERM, _SECOND), "the larger of two", _BROADCAST, lowering.maximum, "maximum(X, Y)"),
        Function("minimum", (_TERM, _SECOND), "the smaller of two", _BROADCAST, lowering.minimum, "minimum(X, Y)",
                 "-maximum(-X, -Y)"),
        *map(_cast, FLOATS),
        Function("sum", _REDUCED, "the sum over axes", _FOLDED, reductions.reduction(OpKind.SUM), "sum(X, axis=1)"),
        Function("mean", _REDUCED, "the sum over axes times 1/n", _FOLDED, reductions.mean,
                 "mean(X, axis=-1, keepdims=True)", "sum(X, axis=-1, keepdims=True) / 3"),
        Function("max", _REDUCED, "the maximum over axes", _FOLDED, reductions.reduction(OpKind.MAX),
                 "max(X, axis=0)"),
        Function("min", _REDUCED, "the minimum over axes", _FOLDED, reductions.minimum, "min(X, axis=0)",
                 "-max(-X, axis=0)"),
        Function("prod", _REDUCED, "the product over axes", _FOLDED, reductions.product, "prod(X, axis=1)"),
        Function("var", _SPREAD, "the sum of the squares of x - mean(x) over axes, by n - ddof", _FOLDED,
                 reductions.variance, "var(X, axis=1)", "mean(square(X - mean(X, axis=1, keepdims=True)), axis=1)"),
        Function("std", _SPREAD, "the square root of the variance", _FOLDED, reductions.deviation,
                 "std(X, axis=1, ddof=1, keepdims=True)", "sqrt(var(X, axis=1, ddof=1, keepdims=True))"),
        Function("logsumexp", _REDUCED, "the logarithm of the sum over axes of exp(x)", _FOLDED,
                 reductions.logsumexp, "logsumexp(X, axis=1)"),
        Function("transpose", (_X, Parameter("axes", Kind.REST_AXES)),
                 "dimension i of the result is dimension axes[i] of x; without axes the last two are swapped",
                 "the extents of x in that order", views.transpose, "transpose(X, 1, 0)", "X.T"),
        Function("reshape", (_X, Parameter("extents", Kind.REST_EXTENTS)),
                 "the same elements in row-major order; one extent may be -1", "the extents, same number of elements",
                 views.reshape, "reshape(X, 3, -1)", "reshape(X, 3, 2)"),
        Function("expand", (_X, Parameter("extents", Kind.REST_EXTENTS)),
                 "x repeated along axes of extent 1, and along new ones in front; -1 leaves an axis as it is",
                 "the extents", views.expand, "expand(X, 4, 2, -1)", "repeat(X[None], 4, axis=0)"),
        Function("repeat", (_X, Parameter("times", Kind.COUNT), _AXIS),
                 "whole copies of x behind each other along the axis", "the axis is `times` as long",
                 views.repeat, "repeat(X, 2, axis=0)"),
        Function("concat", (Parameter("x", Kind.TENSORS), Parameter("y", Kind.TENSOR, "None"), _AXIS),
                 "tensors behind each other along the axis: concat(x, y, axis) or concat([x, y, z], axis=axis)",
                 "extents add up along the axis and are equal elsewhere", views.concatenated,
                 "concat([X, Y], axis=-1)", "concat(X, Y, axis=-1)"),
        Function("stack", (Parameter("x", Kind.TENSORS), Parameter("axis", Kind.NEW_AXIS, "0")),
                 "tensors behind each other along a new axis", "one shape, and the new axis", views.stacked,
                 "stack([X, Y], axis=1)", "concat(X[:, None], Y[:, None], axis=1)"),
        Function("split", (_X, Parameter("parts", Kind.COUNTS), Parameter("axis", Kind.AXIS, "0")),
                 "so many equal parts along the axis, or parts of these extents: A, B = split(X, [1, 2], axis=1)",
                 "several tensors", views.split, "split(X, [1, 2], axis=1)"),
        Function("chunk", (_X, Parameter("parts", Kind.COUNT), Parameter("axis", Kind.AXIS, "0")),
                 "at most so many parts of one extent along the axis, the last one perhaps smaller",
                 "several tensors", views.chunk, "chunk(X, 2, axis=1)", "split(X, [2, 1], axis=1)"),
        Function("flip", (_X, _ALL), "the elements along axes in the opposite order", _SAME, views.flipped,
                 "flip(X, axis=1)", "X[:, ::-1]"),
        Function("where", (Parameter("condition", Kind.TENSOR), *(Parameter(name, Kind.CHOICE) for name in "xy")),
                 "x where the condition holds, else y; inf and -inf are choices", _BROADCAST, masks.where,
                 "where(X > Y, X, 0)"),
        Function("arange", (Parameter("start", Kind.NUMBER), Parameter("stop", Kind.NUMBER, "None"),
                            Parameter("step", Kind.NUMBER, "1")),
                 "the numbers from start up to but without stop, in f32; arange(n) counts from 0", "[n]", masks.arange,
                 "X + arange(3)"),
        Function("pad", (_X, Parameter("before", Kind.COUNT), Parameter("after", Kind.COUNT), _AXIS),
                 "zeros before and after the elements of the axis", "the axis is so much longer", masks.pad,
                 "pad(X, 1, 0, axis=1)"),
        Function("cumsum", (_X, _AXIS), "the sums over all elements up to each one along the axis", _SAME,
                 masks.cumsum, "cumsum(X, axis=1)"),
        Function("one_hot", (_X, Parameter("classes", Kind.COUNT)),
                 "1 where x is the number of the place along a new last axis, else 0", "x's, and the classes",
                 masks.of_places(masks.one_hot, 0), "one_hot(floor(X), 4)"),
        Function("take", (_X, _INDEX, Parameter("axis", Kind.AXIS, "0")),
                 "the elements of the axis that the index names, whole numbers from 0, as rows of an embedding: W[I]",
                 "the axis becomes the index's", masks.of_places(masks.take), "take(W, floor(X), axis=0)"),
        Function("gather", (_X, _INDEX, _AXIS),
                 "for every index the element of x at that place of the axis and its own places of the others",
                 "the index's", masks.of_places(elements.gather), "gather(X, floor(Y), axis=1)"),
        Function("rope", (_X, Parameter("cos", Kind.TENSOR), Parameter("sin", Kind.TENSOR)),
                 "rotary embedding: x * cos + concat(-x2, x1) * sin, where x1 and x2 are the halves of the last axis",
                 _SAME + "; the last axis of cos and sin is as long, or half as long", masks.rope,
                 "rope(W, W + 1, W - 1)"),
        Function("einsum", (Parameter("text", Kind.TEXT), Parameter("x", Kind.REST_TENSORS)),
                 "the sum over the letters that are not behind the arrow of the products of the elements",
                 "the extents of the letters behind the arrow", einsum, 'einsum("ij,jk->ik", X, W)', "X @ W"),
        Function("softmax", (_X, _LAST),
                 "exp(x) over its sum along the axis, with the maximum subtracted first", _SAME, norms.softmax,
                 "softmax(X, axis=-1)",
                 "exp(X - max(X, axis=-1, keepdims=True))"
                 " / sum(exp(X - max(X, axis=-1, keepdims=True)), axis=-1, keepdims=True)"),
        Function("log_softmax", (_X, _LAST), "the logarithm of softmax(x)", _SAME, norms.log_softmax,
                 "log_softmax(X)"),
        Function("cross_entropy", (_X, Parameter("target", Kind.TENSOR), _LAST),
                 "-sum(target * log_softmax(x)) along the axis, one loss a row; target holds probabilities, or classes",
                 "without the axis", norms.cross_entropy, "cross_entropy(X, Y)",
                 "-sum(Y * log_softmax(X), axis=-1)"),
        Function("rms_norm", (_X, _GAIN, _EPS),
                 "x / sqrt(mean(x * x) + eps) over the last axis, times gain", _SAME + "; gain has its last extent",
                 norms.rms_norm, "rms_norm(X, G, eps=1e-5)",
                 "X / sqrt(mean(X * X, axis=-1, keepdims=True) + 1e-5) * G"),
        Function("layer_norm", (_X, _GAIN, _BIAS, _EPS),
                 "rms_norm(x - mean(x), gain, eps=eps) + bias over the last axis",
                 _SAME + "; gain and bias have its last extent", norms.layer_norm,
                 "layer_norm(X, G, eps=1e-5)", "rms_norm(X - mean(X, axis=-1, keepdims=True), G, eps=1e-5)"),
        Function("group_norm", (_X, Parameter("groups", Kind.COUNT), _GAIN, _BIAS, _EPS),
                 "layer_norm of x[n, c, ...] over groups of channels c and all that follows",
                 _SAME + "; gain and bias have an entry for every channel", norms.group_norm,
                 "group_norm(N, 2, eps=1e-5)", "reshape(layer_norm(reshape(N, 2, 2, 10), eps=1e-5), 2, 4, 5)"),
    )
}  # fmt: skip

OPERATORS: dict[type[ast.AST], Operator] = {
    row.node: row
    for row in (
        Operator(ast.Add, "x + y", "the sum", _BROADCAST, masks.added, "X + G"),
        Operator(ast.Sub, "x - y", "the difference", _BROADCAST, masks.subtracted, "X - Y"),
        Operator(ast.Mult, "x * y", "the product", _BROADCAST, lowering.multiply, "X * G"),
        Operator(ast.Div, "x / y", "the quotient", _BROADCAST, lowering.divide, "X / Y"),
        Operator(ast.MatMult, "x @ y", "the matrix product of the last two dimensions",
                 "[..., m, k] @ [..., k, n] is [..., m, n]; leading dimensions broadcast", lowering.matmul, "X @ W"),
        Operator(ast.Pow, "x ** c", "the power; c is a constant, or x positive by how it is made: exp(X) ** Y", _SAME,
                 ranges.raised, "X ** -0.5", "rsqrt(X)"),
        Operator(ast.FloorDiv, "x // y", "the largest integer that is not above x / y", _BROADCAST,
                 lowering.floor_divide, "X // 0.5 * (7 // 2)", "floor(X / 0.5) * 3"),
        Operator(ast.Mod, "x % y", "what is left of x, with the sign of y", _BROADCAST, lowering.remainder,
                 "X % 0.3", "X - X // 0.3 * 0.3"),
        Operator(ast.USub, "-x", "the negative", _SAME, lowering.negate, "-X", "X * -1"),
        *(Operator(kind, f"x {sign} y", f"1 where x {sign} y, else 0: a mask", _BROADCAST, masks.comparison(kind),
                   f"where(X {sign} Y, X, 2)")
          for kind, sign in ((ast.Eq, "=="), (ast.NotEq, "!="), (ast.GtE, ">="), (ast.Gt, ">"), (ast.LtE, "<="),
                             (ast.Lt, "<"))),
        Operator(ast.LShift, "x << n", "x * 2 ** n, of whole numbers; n is a constant, or an arange", _SAME,
                 masks.shifted(lowering.multiply), "(X > Y) << 2", "(X > Y) * 4"),
        Operator(ast.RShift, "x >> n", "x // 2 ** n, of whole numbers", _SAME, masks.shifted(lowering.floor_divide),
                 "(X > Y) >> 1", "(X > Y) // 2"),
        Operator(ast.BitAnd, "m & n", "1 where both masks are; x & 15 are the last bits of whole numbers", _BROADCAST,
                 masks.both, "where((X > 1) & (Y > 1), X, 0)"),
        Operator(ast.BitOr, "m | n", "1 where one of two masks is", _BROADCAST, masks.either,
                 "where((X > 1) | (Y > 1), X, Y)"),
        Operator(ast.BitXor, "m ^ n", "1 where one of two masks is, and not the other", _BROADCAST, masks.differing,
                 "where((X > 1) ^ (Y > 1), X, Y)"),
        Operator(ast.Invert, "~m", "1 where the mask is 0", _SAME, masks.opposite, "where(~(X > 1), X, 0)"),
        Operator(ast.Subscript, "x[i, 1:3, ::2, None, ...]",
                 "elements and parts as in NumPy; indices and bounds are integer constants, None is a new axis; "
                 "a tensor of indices picks rows, as take",
                 "integers take their dimension away", views.indexed, "X[1, None, ::-2]"),
        Operator(ast.Attribute, "x.T", "the last two dimensions swapped", "the extents of x, the last two swapped",
                 views.swap_last, "X.T", "transpose(X)"),
    )
}  # fmt: skip
