"""From the notation to pre-defined operators: what each function and operator of a program becomes.

In: terms (tensors and exact constants) and plain arguments. Out: terms. Invariant: the result is canonical and
as short as the notation allows: constants are folded exactly, factors of a tensor are gathered in one scalar
multiplication, x * x is a square, a product with a reciprocal is a division, neutral elements, views that change
nothing and reductions of one element vanish.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from mirage_nb.errors import ProgramSyntaxError, ShapeError
from mirage_nb.ir.ops import (
    ClampAttrs,
    DimAttrs,
    OpKind,
    PowAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    Shape,
    TransposeAttrs,
    show_shape,
)
from mirage_nb.lang import constants
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.constants import Number
from mirage_nb.lang.limits import MAX_POWER

ZERO, ONE, MINUS_ONE, HALF = (Number.of(Fraction(v)) for v in ("0", "1", "-1", "1/2"))


# Arithmetic


def add(b: Builder, x: Term, y: Term) -> Term:
    """x + y."""
    if isinstance(x, Number):
        if isinstance(y, Number):
            return constants.add(x, y)
        return add(b, y, x)
    if y == ZERO:
        return x
    return b.emit(OpKind.ADD, x, b.value(y))


def subtract(b: Builder, x: Term, y: Term) -> Term:
    """x - y; a constant is subtracted by adding its negative."""
    if isinstance(y, Number):
        return add(b, x, constants.negate(y))
    if x == ZERO and isinstance(x, Number):
        return negate(b, y)
    return b.emit(OpKind.SUB, b.value(x), y)


def multiply(b: Builder, x: Term, y: Term) -> Term:
    """x * y."""
    if isinstance(x, Number) and isinstance(y, Number):
        return constants.multiply(x, y)
    if isinstance(x, Number):
        return scale(b, y, x)
    if isinstance(y, Number):
        return scale(b, x, y)
    if x == y:
        return b.emit(OpKind.SQR, x)
    for value, other in ((y, x), (x, y)):
        if (denominator := _reciprocal(b, value)) is not None:
            return b.emit(OpKind.DIV, other, denominator)
    return b.emit(OpKind.MUL, x, y)


def divide(b: Builder, x: Term, y: Term) -> Term:
    """x / y; division by a constant is multiplication by its reciprocal."""
    if isinstance(y, Number):
        return multiply(b, x, constants.divide(ONE, y))
    return b.emit(OpKind.DIV, b.value(x), y)


def scale(b: Builder, x: Term, factor: Number) -> Term:
    """x * factor, with the factors that x already carries."""
    if isinstance(x, Number):
        return constants.multiply(x, factor)
    op = b.definition(x)
    if op is not None and op.kind in (OpKind.MUL, OpKind.DIV):
        # Factors stand right in a product and above in a quotient; see multiply and divide.
        position = 1 if op.kind is OpKind.MUL else 0
        if (held := b.number(Value(op.inputs[position]))) is not None:
            rest = Value(op.inputs[1 - position])
            product = constants.multiply(held, factor)
            return scale(b, rest, product) if op.kind is OpKind.MUL else divide(b, product, rest)
    if factor == ONE:
        return x
    return b.emit(OpKind.MUL, x, b.value(factor))


def negate(b: Builder, x: Term) -> Term:
    """-x."""
    return scale(b, x, MINUS_ONE)


def matmul(b: Builder, x: Term, y: Term) -> Term:
    """x @ y."""
    return b.emit(OpKind.MATMUL, b.tensor(x, "@"), b.tensor(y, "@"))


def floor_divide(b: Builder, x: Term, y: Term) -> Term:
    """x // y, for constants."""
    if isinstance(x, Number) and isinstance(y, Number):
        return constants.floor_divide(x, y)
    raise ProgramSyntaxError("// divides constants only", hint="tensors are divided with /")


def power(b: Builder, x: Term, exponent: Term) -> Term:
    """x ** exponent: squares, products and roots where they suffice, because those stay in LAX."""
    if not isinstance(exponent, Number):
        raise ProgramSyntaxError("the exponent of ** must be a constant", hint="exp(x) is e to the power of a tensor")
    if isinstance(x, Number):
        return constants.power(x, exponent)
    value = exponent.rational
    if value is None:
        raise ProgramSyntaxError("the exponent of ** must be rational", hint="write it as a decimal number")
    if value == 0:
        raise ProgramSyntaxError("x ** 0 is 1 everywhere", hint="write 1")
    if value < 0 and (-value == Fraction(1, 2) or _small_integer(-value)):
        return divide(b, ONE, power(b, x, constants.negate(exponent)))
    if value == Fraction(1, 2):
        return sqrt(b, x)
    if not _small_integer(value):
        exponent.attrs()  # the same limits as for any constant
        return b.emit(OpKind.POW, x, attrs=PowAttrs(value))
    half = power(b, x, Number.of(value // 2)) if value > 1 else x
    squared = square(b, half) if value > 1 else x
    return multiply(b, squared, x) if value > 1 and value % 2 else squared


def _small_integer(value: Fraction) -> bool:
    return value.denominator == 1 and 1 <= value <= MAX_POWER


def _reciprocal(b: Builder, value: Value) -> Value | None:
    """z for a value 1 / z."""
    op = b.definition(value)
    if op is not None and op.kind is OpKind.DIV and b.number(Value(op.inputs[0])) == ONE:
        return Value(op.inputs[1])
    return None


# Elementwise functions


def unary(kind: OpKind) -> Callable[[Builder, Value], Term]:
    """The function that applies one elementwise operator to a tensor."""

    def lower(b: Builder, x: Value) -> Term:
        return b.emit(kind, x)

    return lower


def square(b: Builder, x: Term) -> Term:
    """x * x."""
    return multiply(b, x, x)


def sqrt(b: Builder, x: Term) -> Term:
    """The square root; exact for constants."""
    return constants.power(x, HALF) if isinstance(x, Number) else b.emit(OpKind.SQRT, x)


def rsqrt(b: Builder, x: Term) -> Term:
    """1 / sqrt(x)."""
    return divide(b, ONE, sqrt(b, x))


def clamp(b: Builder, x: Value, low: Number | None, high: Number | None) -> Term:
    """x, at least low and at most high."""
    limits = [None if limit is None else limit.attrs().value for limit in (low, high)]
    if low is None and high is None:
        raise ProgramSyntaxError("clamp needs a limit", hint="clamp(x, low, high), or one of low= and high=")
    if limits[0] is not None and limits[1] is not None and limits[0] > limits[1]:
        raise ShapeError(f"clamp: low {low} is above high {high}", hint="low comes first")
    return b.emit(OpKind.CLAMP, x, attrs=ClampAttrs(*limits))


# Reductions


def _folded(b: Builder, kind: OpKind, x: Value, axes: tuple[int, ...]) -> Value:
    """The reduction over these dimensions, all kept with extent 1."""
    for axis in axes:
        if b.shape(x)[axis] != 1:
            x = b.emit(kind, x, attrs=DimAttrs(axis))
    return x


def _drop(b: Builder, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    """Without `keepdims` the reduced dimensions go."""
    if keepdims:
        return x
    left = tuple(extent for dim, extent in enumerate(b.shape(x)) if dim not in axes)
    if not left:
        raise ShapeError("this reduction leaves no dimension", hint="write keepdims=True: the result is a tensor too")
    return reshaped(b, x, left)


def reduction(kind: OpKind) -> Callable[[Builder, Value, tuple[int, ...], bool], Term]:
    """The function that folds dimensions with Sum or Max."""

    def lower(b: Builder, x: Value, axes: tuple[int, ...], keepdims: bool) -> Term:
        return _drop(b, _folded(b, kind, x, axes), axes, keepdims)

    return lower


def _mean(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    count = math.prod(b.shape(x)[axis] for axis in axes)
    total = scale(b, _folded(b, OpKind.SUM, x, axes), Number.of(Fraction(1, count)))
    return b.tensor(total, "mean")


def mean(b: Builder, x: Value, axes: tuple[int, ...], keepdims: bool) -> Term:
    """The sum times the constant 1/n."""
    return _drop(b, _mean(b, x, axes), axes, keepdims)


# Views


def reshaped(b: Builder, x: Value, shape: Shape) -> Value:
    """The same elements in row-major order under another shape; a reshape of a reshape is one reshape."""
    op = b.definition(x)
    if op is not None and op.kind is OpKind.RESHAPE:
        x = Value(op.inputs[0])
    return x if shape == b.shape(x) else b.emit(OpKind.RESHAPE, x, attrs=ReshapeAttrs(shape))


def reshape(b: Builder, x: Value, extents: tuple[int, ...]) -> Term:
    """reshape(x, d0, d1, ...); one extent may be -1 and follows from the others."""
    shape, elements = list(extents), math.prod(b.shape(x))
    if extents.count(-1) == 1:
        others = math.prod(extent for extent in extents if extent != -1)
        if others > 0 and elements % others == 0:
            shape[extents.index(-1)] = elements // others
    if any(extent < 1 for extent in shape):
        raise ShapeError(
            f"{show_shape(b.shape(x))} cannot become {show_shape(extents)}",
            hint="extents are positive; one of them may be -1 if the others divide the number of elements",
        )
    if math.prod(shape) != elements:
        raise ShapeError(
            f"{show_shape(b.shape(x))} has {elements} elements, {show_shape(tuple(shape))} has not",
            hint="the product of the extents stays the same",
        )
    return reshaped(b, x, tuple(shape))


def transpose(b: Builder, x: Value, axes: tuple[int, ...]) -> Term:
    """Dimension i of the result is dimension axes[i] of x; without axes the last two are swapped."""
    rank = len(b.shape(x))
    if not axes:
        if rank < 2:
            raise ShapeError(f"{show_shape(b.shape(x))} has no two dimensions to swap")
        axes = (*range(rank - 2), rank - 1, rank - 2)
    if sorted(axes) != list(range(rank)):
        raise ShapeError(
            f"transpose: {', '.join(map(str, axes))} does not name each dimension of {show_shape(b.shape(x))} once",
            hint=f"for example transpose(x, {', '.join(map(str, reversed(range(rank))))})",
        )
    op = b.definition(x)
    if op is not None and isinstance(op.attrs, TransposeAttrs):
        x, axes = Value(op.inputs[0]), tuple(op.attrs.perm[axis] for axis in axes)
    if axes == tuple(range(rank)):
        return x
    return b.emit(OpKind.TRANSPOSE, x, attrs=TransposeAttrs(axes))


def swap_last(b: Builder, x: Term) -> Term:
    """x.T"""
    return transpose(b, b.tensor(x, ".T"), ())


def repeat(b: Builder, x: Value, times: int, axis: int) -> Term:
    """Whole copies of x behind each other along an axis."""
    if times < 1:
        raise ShapeError(f"repeat: {constants.shorten(str(times))} copies", hint="at least one")
    return x if times == 1 else b.emit(OpKind.REPEAT, x, attrs=RepeatAttrs(axis, times))


def concat(b: Builder, x: Value, y: Value, axis: int) -> Term:
    """y behind x along an axis."""
    return b.emit(OpKind.CONCAT, x, y, attrs=DimAttrs(axis))


# Normalisations


def softmax(b: Builder, x: Value, axis: int) -> Term:
    """exp(x - max) over its sum: safe for any magnitude."""
    shifted = b.emit(OpKind.SUB, x, _folded(b, OpKind.MAX, x, (axis,)))
    raised = b.emit(OpKind.EXP, shifted)
    return b.emit(OpKind.DIV, raised, _folded(b, OpKind.SUM, raised, (axis,)))


def rms_norm(b: Builder, x: Value, gain: Value | None, eps: Number) -> Term:
    """x over the root of its mean square along the last axis, times gain."""
    last = len(b.shape(x)) - 1
    spread = add(b, _mean(b, b.emit(OpKind.SQR, x), (last,)), eps)
    normed = b.emit(OpKind.DIV, x, b.emit(OpKind.SQRT, b.tensor(spread, "rms_norm")))
    return normed if gain is None else b.emit(OpKind.MUL, normed, _along_last(b, x, gain, "gain"))


def layer_norm(b: Builder, x: Value, gain: Value | None, bias: Value | None, eps: Number) -> Term:
    """x minus its mean, over its standard deviation along the last axis, times gain, plus bias."""
    last = len(b.shape(x)) - 1
    centred = b.emit(OpKind.SUB, x, _mean(b, x, (last,)))
    normed = b.tensor(rms_norm(b, centred, gain, eps), "layer_norm")
    return normed if bias is None else b.emit(OpKind.ADD, normed, _along_last(b, x, bias, "bias"))


def _along_last(b: Builder, x: Value, vector: Value, what: str) -> Value:
    """Gains and biases have one entry per element of the last axis."""
    if b.shape(vector) != b.shape(x)[-1:]:
        raise ShapeError(
            f"{what} is {show_shape(b.shape(vector))}, but the last axis of {show_shape(b.shape(x))} "
            f"has extent {b.shape(x)[-1]}",
            hint=f"declare it as [{b.shape(x)[-1]}]",
        )
    return vector
