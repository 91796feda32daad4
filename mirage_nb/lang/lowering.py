"""From the notation to pre-defined operators: what arithmetic and elementwise functions of a program become.

In: terms (tensors and exact constants) and plain arguments. Out: terms. Invariant: the result is canonical and
as short as the notation allows: constants are folded exactly, factors of a tensor are gathered in one scalar
multiplication, x * x is a square, a product with a reciprocal is a division, and neutral elements vanish.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from mirage_nb.errors import MirageError, ProgramSyntaxError, ShapeError
from mirage_nb.ir import formula
from mirage_nb.ir.dtypes import BYTES, FLOAT8, HALVES, DType, computed, promote
from mirage_nb.ir.graph import Op
from mirage_nb.ir.ops import COMPARISONS, OPS, ApplyAttrs, CastAttrs, ClampAttrs, OpKind, PowAttrs, Trait, WhereAttrs
from mirage_nb.ir.syntax import expression
from mirage_nb.lang import constants
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.constants import Number
from mirage_nb.lang.limits import MAX_POWER
from mirage_nb.lang.views import reshaped, shaped

COMPARED: dict[type[ast.cmpop], OpKind] = {
    ast.GtE: OpKind.GREATER_EQUAL, ast.Gt: OpKind.GREATER, ast.Eq: OpKind.EQUAL,
}  # fmt: skip
"""Comparisons of what may be no number, or infinite; what is not equal is the opposite."""
STEPS = {kind: COMPARISONS[compared].formula for kind, compared in COMPARED.items()}
STEPS[ast.NotEq] = f"1 - {STEPS[ast.Eq]}"
"""Comparisons of a finite difference with zero, as formulas."""
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
    if not isinstance(y, Number):  # zeros that another tensor is added to, as sums begin with
        for zeros, other in ((x, y), (y, x)):
            narrow = b.dtype(zeros) is DType.F32 and b.dtype(other) is not DType.F64
            alike = b.shape(zeros) == b.shape(other) and (narrow or b.dtype(zeros) is b.dtype(other))
            if alike and b.filled(zeros) == ZERO and b.definition(other) is not None:  # an input is no result
                return cast(b.dtype(zeros))(b, other)
    return b.emit(OpKind.ADD, x, b.value(y))


def subtract(b: Builder, x: Term, y: Term) -> Term:
    """x - y; a constant is subtracted by adding its negative. What is less its maximum has the maximum 0."""
    if isinstance(y, Number):
        return add(b, x, constants.negate(y))
    if not isinstance(x, Number) and _is_lowered(b, x, y):
        return x
    if x == ZERO and isinstance(x, Number):
        return negate(b, y)
    return b.emit(OpKind.SUB, b.value(x), y)


def _is_lowered(b: Builder, x: Value, y: Value) -> bool:
    """Whether y is the maximum of x, which is less its maximum already."""
    (x, op), top = _bare(b, x), _bare(b, y)[1]
    if op is None or op.kind is not OpKind.SUB or top is None or top.kind is not OpKind.MAX:
        return False
    before, first = (_bare(b, Value(v)) for v in op.inputs)
    maxima = [(of.kind, of.attrs, _bare(b, Value(of.inputs[0]))[0]) for of in (top, first[1]) if of and of.inputs]
    return maxima == [(top.kind, top.attrs, x), (top.kind, top.attrs, before[0])]


def _bare(b: Builder, x: Value, *views: OpKind) -> tuple[Value, Op | None]:
    """What a tensor was before it was given other types, or these views, and the operator that makes that."""
    while (op := b.definition(x)) is not None and op.kind in (OpKind.CAST, *views):
        x = Value(op.inputs[0])
    return x, op


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
    """x @ y; a vector on the left is a row, on the right a column, and goes from the result."""
    left, right = b.tensor(x, "@"), b.tensor(y, "@")
    row, column = (len(b.shape(v)) == 1 for v in (left, right))
    left = reshaped(b, left, (1, *b.shape(left))) if row else left
    right = reshaped(b, right, (*b.shape(right), 1)) if column else right
    made = product(b, left, right)
    *lead, rows, columns = b.shape(made)
    kept = (*lead, *(() if row else (rows,)), *(() if column else (columns,)))
    return shaped(b, made, kept)


def product(b: Builder, x: Value, y: Value) -> Value:
    """Two matrices multiplied; one that is stored in bytes is given the other's type. Two of floats of one byte are
    multiplied as such: sums have the digits that tensor cores keep of these, if somebody asks for no more."""
    if {b.dtype(x), b.dtype(y)} <= FLOAT8:
        return b.emit(OpKind.MATMUL, x, y)
    wide = computed(promote(b.dtype(x), b.dtype(y)))
    return b.emit(OpKind.MATMUL, *(b.tensor(cast(wide)(b, v), "@") if b.dtype(v) in BYTES else v for v in (x, y)))


def floor_divide(b: Builder, x: Term, y: Term) -> Term:
    """x // y."""
    if isinstance(x, Number) and isinstance(y, Number):
        return constants.floor_divide(x, y)
    return floor(b, divide(b, x, y))


def floor(b: Builder, x: Term) -> Term:
    """The largest whole number not above x. Quotients of whole numbers are taken half a step beyond, so that rounding
    makes it no smaller one."""
    if isinstance(x, Number):
        return FLOOR(b, x)
    if (sides := _quotient(b, x)) is not None:
        above, below = sides
        return FLOOR(b, divide(b, add(b, above, scale(b, _SIGN(b, below), HALF)), below))
    steps = denominator(b, x)
    if steps is not None and steps & (steps - 1):  # powers of two are exact
        x = add(b, x, Number.of(Fraction(1, 2 * steps)))
    return x if steps == 1 else FLOOR(b, x)


def trunc(b: Builder, x: Term) -> Term:
    """x without what is behind its point, by the rule of `floor`."""
    if not isinstance(x, Number) and (sides := _quotient(b, x)) is not None:
        signs, sizes = zip(*((_SIGN(b, side), _ABS(b, side)) for side in sides), strict=True)
        return multiply(b, multiply(b, *signs), floor(b, divide(b, *sizes)))
    steps = denominator(b, x)
    if steps is None or isinstance(x, Number):
        return _TRUNC(b, x)
    return x if steps == 1 else multiply(b, _SIGN(b, x), floor(b, _ABS(b, x)))


def has_steps(b: Builder, x: Value) -> bool:
    """Whether x is a multiple of a known step, or a quotient of whole numbers: rounded to those, it is exact."""
    return _quotient(b, x) is not None or denominator(b, x) is not None


def _quotient(b: Builder, x: Value) -> tuple[Term, Term] | None:
    """The whole numbers of which x is the quotient."""
    op = b.definition(x)
    sides = [b.number(Value(v)) or Value(v) for v in op.inputs] if op is not None and op.kind is OpKind.DIV else []
    return (sides[0], sides[1]) if sides and all(is_whole(b, side) for side in sides) else None


def remainder(b: Builder, x: Term, y: Term) -> Term:
    """x % y, which has the sign of y."""
    if isinstance(x, Number) and isinstance(y, Number):
        return constants.remainder(x, y)
    return subtract(b, x, multiply(b, floor_divide(b, x, y), y))


KEEPING = frozenset({OpKind.SQR, OpKind.CAST, OpKind.MUL, OpKind.MAXIMUM, OpKind.MAX})
"""What makes masks of masks."""


def is_mask(b: Builder, x: Term) -> bool:
    """Whether a tensor is known to hold ones and zeros only."""
    op = b.definition(x) if not isinstance(x, Number) else None
    if op is None:
        return x in b.masks
    if isinstance(op.attrs, ApplyAttrs):
        return op.attrs.formula in STEPS.values()
    if op.kind in COMPARED.values():
        return True
    if op.kind is OpKind.SUB:
        return b.number(Value(op.inputs[0])) == ONE and is_mask(b, Value(op.inputs[1]))
    if op.attrs == WhereAttrs():
        return b.number(Value(op.inputs[1])) == ONE
    if op.kind in KEEPING or Trait.VIEW in OPS[op.kind].traits:
        return all(is_mask(b, Value(v)) for v in op.inputs)
    return False


def is_whole(b: Builder, x: Term) -> bool:
    """Whether a term is known to hold whole numbers only, as indices do."""
    return denominator(b, x) == 1


def denominator(b: Builder, x: Term) -> int | None:
    """The least known n of which all elements are multiples of 1 / n; None of what may be anything, or infinite."""
    if isinstance(x, Number):
        return None if x.rational is None else x.rational.denominator
    known: dict[int, int] = {}
    for value in b.needed([x]):
        found = _denominator(b, value, known)
        if found is not None and (found == 1 or (found <= FINEST and b.dtype(value) not in HALVES)):
            known[value] = found
    return known.get(x)


def _denominator(b: Builder, value: Value, known: Mapping[int, int]) -> int | None:
    """The same of a value, where those before it are known."""
    op = b.definition(value)
    if op is None or value in b.whole:
        return 1 if value in b.whole | b.masks else None
    if op.kind is OpKind.ARANGE or op.kind in COMPARED.values() or getattr(op.attrs, "formula", "") in _WHOLE:
        return 1
    if (number := b.number(value)) is not None:
        return denominator(b, number)
    given = [known.get(v, 0) for v in (op.inputs[1:] if op.kind is OpKind.WHERE else op.inputs)]
    if not all(given):
        return None
    match op.attrs:
        case WhereAttrs(other, 0):
            return math.lcm(other.denominator, *given)
        case ClampAttrs(low, high):
            return math.lcm(*given, *(limit.denominator for limit in (low, high) if limit is not None))
        case ApplyAttrs():
            return given[0] if op.attrs.formula == "abs(x)" else None
    if op.kind in (OpKind.MUL, OpKind.MATMUL, OpKind.SQR):
        return math.prod(given if len(given) > 1 else given * 2)
    return math.lcm(*given) if op.kind in _KEPT or Trait.VIEW in OPS[op.kind].traits else None


def power(b: Builder, x: Term, exponent: Term) -> Term:
    """x ** exponent: squares, products and roots where they suffice, because those stay in LAX."""
    if not isinstance(exponent, Number):
        base = x.rational if isinstance(x, Number) else None
        if base is None or base <= 0:
            hint = "exp(y * log(x)) is x to the power of y where x is positive"
            raise ProgramSyntaxError("the exponent of ** must be a constant, or the base a positive one", hint=hint)
        return b.emit(OpKind.EXP, b.tensor(scale(b, exponent, Number.of(_logarithm(base))), "**"))
    if isinstance(x, Number):
        return constants.power(x, exponent)
    value = exponent.rational
    if value is None:
        raise ProgramSyntaxError("the exponent of ** must be rational", hint="write it as a decimal number")
    if value == 0:
        ones = b.tensor(_ONES(b, x), "**")
        b.fills[ones] = ONE
        return ones
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


def _logarithm(base: Fraction) -> Fraction:
    """The natural logarithm, as the double next to it."""
    return Fraction(math.log(base.numerator) - math.log(base.denominator))


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


def clamp(b: Builder, x: Value, low: Term | None, high: Term | None) -> Term:
    """x, at least low and at most high."""
    if isinstance(low, int) or isinstance(high, int):
        raised = x if low is None else maximum(b, x, low)
        return raised if high is None else minimum(b, raised, high)
    if low is not None and high is None and _is_maximum(b, x):
        return maximum(b, x, low)
    limits = [None if limit is None else limit.attrs().value for limit in (low, high)]
    if low is None and high is None:
        raise ProgramSyntaxError("clamp needs a limit", hint="clamp(x, low, high), or one of low= and high=")
    if limits[0] is not None and limits[1] is not None and limits[0] > limits[1]:
        raise ShapeError(f"clamp: low {low} is above high {high}", hint="low comes first")
    return b.emit(OpKind.CLAMP, x, attrs=ClampAttrs(*limits))


def maximum(b: Builder, x: Term, y: Term) -> Term:
    """The larger of two; with a constant, a limit."""
    if isinstance(x, Number):
        return constants.larger(x, y) if isinstance(y, Number) else maximum(b, y, x)
    if isinstance(y, Number) and _is_maximum(b, x):
        return b.emit(OpKind.MAXIMUM, x, b.value(y))  # one of more
    if isinstance(y, Number):
        return b.emit(OpKind.RELU, x) if y == ZERO else clamp(b, x, y, None)
    return x if x == y else b.emit(OpKind.MAXIMUM, x, y)


def _is_maximum(b: Builder, x: Value) -> bool:
    """Whether it is the largest of a row, or of several, or something joins such."""
    _, op = _bare(b, x, OpKind.RESHAPE)
    if op is not None and op.kind is OpKind.MAXIMUM:
        return any(_is_maximum(b, Value(v)) for v in op.inputs)
    return op is not None and op.kind is OpKind.MAX


def minimum(b: Builder, x: Term, y: Term) -> Term:
    """The smaller of two; with a constant, a limit."""
    if isinstance(x, Number):
        return _OF_NUMBERS["minimum"](x, y) if isinstance(y, Number) else minimum(b, y, x)
    if isinstance(y, Number):
        return clamp(b, x, None, y)
    return x if x == y else negate(b, maximum(b, negate(b, x), negate(b, y)))


def cast(dtype: DType) -> Callable[[Builder, Term], Term]:
    """The function that gives a tensor another element type, of one of bytes that of what is computed of them;
    constants have none of their own."""

    def lower(b: Builder, x: Term) -> Term:
        if isinstance(x, Number) or b.dtype(x) in (dtype, computed(dtype)):
            return x
        return b.emit(OpKind.CAST, x, attrs=CastAttrs(computed(dtype)))

    return lower


def told(dtype: DType) -> Callable[[Builder, Term], Term]:
    """The same where a program says so: what has no type of its own has this one from now on."""

    def lower(b: Builder, x: Term) -> Term:
        weak = not isinstance(x, Number) and b.has_halves and b.is_weak(x)
        return b.emit(OpKind.CAST, b.value(x), attrs=CastAttrs(dtype)) if weak else cast(dtype)(b, x)

    return lower


def formula_of(name: str, text: str, *parameters: str) -> Callable[..., Term]:
    """The elementwise function that a formula over x says; `parameters` are the names of constants in it."""
    tree = expression(text).body

    def blame(_: ast.expr, message: str, hint: str) -> MirageError:
        return ProgramSyntaxError(f"{name}: {message}", hint=hint)

    def lower(b: Builder, x: Term, *given: Number) -> Term:
        numbers = {}
        for parameter, number in zip(parameters, given, strict=True):
            if number.rational is None:
                raise ProgramSyntaxError(f"the {parameter} of {name} is rational", hint="write it as a decimal number")
            numbers[parameter] = number.rational
        read = formula.of_node(tree, "x", numbers, blame)
        if isinstance(x, Number):
            return formula.fold(read, x, Number.of, _OF_NUMBERS)
        return b.emit(OpKind.APPLY, x, attrs=ApplyAttrs(name, formula.canonical(read)))

    return lower


def formula_at(text: str, x: Number) -> Number:
    """What a formula is of a constant."""
    return formula.fold(formula.read(text), x, Number.of, _OF_NUMBERS)


def exp(b: Builder, x: Term) -> Term:
    """e to the power of x."""
    if isinstance(x, Number):
        return _OF_NUMBERS["exp"](x)
    op = b.definition(x)
    if op is not None and op.kind is OpKind.MUL and b.number(Value(op.inputs[1])) == MINUS_ONE:
        if _is_maximum(b, top := Value(op.inputs[0])):  # it is taken off 0, as off scores beside
            x = b.emit(OpKind.SUB, b.value(ZERO), top)
    return b.emit(OpKind.EXP, x)


def _double(name: str, function: Callable[[float], float]) -> Callable[[Number], Number]:
    return lambda x: constants.function_of(name, function, x)


_OF_NUMBERS: dict[str, Callable[..., Number]] = {
    **{
        name: _double(name, getattr(math, name))
        for name in ("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos", "atan")
    },
    "sigmoid": _double("sigmoid", lambda x: 1 / (1 + math.exp(-x))),
    "sqrt": lambda x: constants.power(x, HALF), "square": lambda x: constants.multiply(x, x),
    "abs": lambda x: Number(1, x.radicand, x.root), "sign": lambda x: Number.of(x.sign if x.radicand else 0),
    "floor": lambda x: Number.of(math.floor(x.nearest)), "step": lambda x: Number.of(x.sign > 0 or not x.radicand),
    "maximum": constants.larger,
    "minimum": lambda x, y: constants.negate(constants.larger(constants.negate(x), constants.negate(y))),
    "add": constants.add, "sub": constants.subtract, "mul": constants.multiply, "div": constants.divide,
    "neg": constants.negate, "pow": lambda x, exponent: constants.power(x, Number.of(exponent)),
}  # fmt: skip
"""The functions of formulas, of constants."""
FLOOR, LOG, _SIGN, _ABS = (formula_of(name, f"{name}(x)") for name in ("floor", "log", "sign", "abs"))
_TRUNC = formula_of("trunc", "sign(x) * floor(abs(x))")
_ONES = formula_of("ones", "step(step(x))")
_NEAR = "floor(x + 1/2)"
_NEAREST = f"{_NEAR} - step({_NEAR} - x - 1/2) * step({_NEAR} - 2 * floor({_NEAR} / 2) - 1/2)"
ROUND = formula_of("round", _NEAREST)
"""The nearest whole number, and of two the even one; infinities stay."""
_WHOLE = frozenset({"floor(x)", "sign(x)", "step(x)", "sign(x) * floor(abs(x))", _NEAREST, *STEPS.values()})
"""Formulas that make whole numbers of any."""
_KEPT = frozenset({OpKind.ADD, OpKind.SUB, OpKind.MAXIMUM, OpKind.RELU, OpKind.SUM, OpKind.MAX})
FINEST = 2**20
"""The finest steps that are followed: beyond them f32 rounds more than half a step."""
