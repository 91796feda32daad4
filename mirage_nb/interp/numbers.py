"""Real numbers that say what they know: exact rationals, and balls that hold the value whatever was rounded.

In: numbers and the functions of the operator table. Out: numbers, or one of two holes. `UNDEFINED`: over the reals
there is no value for certain, as of 1 / 0 and the root of -1; `OPEN`: this precision cannot tell, as of 1 / x for a
ball x around 0, or, to the wary, of a sum that swallows one of its terms. So nothing that is said here hangs on
rounding. Infinities are numbers, as masks have them: exp(-inf) is 0, and infinity less infinity, or times 0, has no
value. Rationals stay exact as long as they are short; balls are Arb's (Johansson 2017, by way of python-flint).

A library's precision is a setting of the whole process; `precision` holds a lock while it is another one.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from threading import RLock
from typing import Any

import numpy as np
from flint import arb as arb
from flint import ctx
from flint import fmpq as fmpq
from numpy.typing import NDArray

from mirage_nb.interp.constants import constant, rational
from mirage_nb.ir import ClampAttrs, ConstAttrs, OpKind, PowAttrs, WhereAttrs, formula
from mirage_nb.ir.ops import Attrs

Array = NDArray[Any]
"""Of numbers: an array of objects."""


class Hole(enum.Enum):
    """Why there is no number."""

    UNDEFINED = "undefined"
    OPEN = "open"


UNDEFINED, OPEN = Hole.UNDEFINED, Hole.OPEN

Number = Any
"""A rational (`fmpq`), a ball (`arb`), or a `Hole`; the library has no types."""

ZERO, ONE, HALF = fmpq(0), fmpq(1), fmpq(1, 2)
LONG_BITS, FEW = 2048, 32
"""Rationals of more bits become balls; so many may be added up before that is looked at."""

_LOCK = RLock()
_WARY = ContextVar("wary", default=False)


@contextmanager
def precision(bits: int, *, wary: bool = False) -> Iterator[None]:
    """Balls of so many bits, in this thread alone; `wary`: a term that no bit of a sum shows leaves the sum open."""
    with _LOCK, ctx.workprec(bits):
        before = _WARY.set(wary)
        try:
            yield
        finally:
            _WARY.reset(before)


def _short(x: Number) -> Number:
    return x if x.height_bits() <= LONG_BITS else arb(x)


def _told(x: Number) -> Number:
    """A ball, or an infinity; none where infinities are taken from each other, open where the ball is everything."""
    if x.is_finite() or is_infinite(x):
        return x
    if x.is_nan():
        return UNDEFINED
    return x.mid() if not x.mid().is_finite() and x.rad().is_finite() else OPEN


def is_infinite(x: Number) -> bool:
    """Whether the number is an infinity."""
    return type(x) is arb and x.is_exact() and not x.is_finite() and not x.is_nan()


PLUS, MINUS = arb.pos_inf(), arb.neg_inf()


def as_ball(x: Number) -> Number:
    """The ball around a number."""
    return arb(x) if type(x) is fmpq else x


def is_zero(x: Number) -> bool:
    """Whether the number is 0 for certain."""
    return bool(x == 0) if type(x) is fmpq else bool(x.is_zero())


Operation = Callable[..., Number]


def strict(operation: Operation) -> Operation:
    """The operation for operands that may be holes: what has no value has none in any function."""

    def held(*operands: Number) -> Number:
        for x in operands:  # by hand: any way through a tool takes half as long again, and millions come by
            if type(x) is Hole:
                return UNDEFINED if any(y is UNDEFINED for y in operands) else OPEN
        return operation(*operands)

    return held


def add(x: Number, y: Number) -> Number:
    """x + y; to the wary, open where a ball is left as if the other term were not there."""
    total = x + y
    if type(total) is fmpq:
        return total if total.height_bits() <= LONG_BITS else arb(total)
    if not total.is_finite():  # an infinity is no sum that lost a term
        return _told(total)
    if _WARY.get() and _swallows(total, x, y):
        return OPEN
    return total


def _swallows(total: Number, x: Number, y: Number) -> bool:
    """Whether a sum is left as if one of its terms were not there."""
    return (total.contains(x) and not _may_be_zero(y)) or (total.contains(y) and not _may_be_zero(x))


def _may_be_zero(x: Number) -> bool:
    return bool(x == 0) if type(x) is fmpq else bool(x.contains(0))


def negative(x: Number) -> Number:
    """-x."""
    return -x


def subtract(x: Number, y: Number) -> Number:
    """x - y."""
    return add(x, -y)


def multiply(x: Number, y: Number) -> Number:
    """x * y."""
    product = x * y
    if type(product) is fmpq:
        return product if product.height_bits() <= LONG_BITS else arb(product)
    if product.is_finite():  # as it never is of an infinity
        return ZERO if product.is_zero() else product
    return _infinite_product(x, y) if is_infinite(x) or is_infinite(y) else _told(product)


def _infinite_product(x: Number, y: Number) -> Number:
    """The product of an infinity and something."""
    if is_zero(x) or is_zero(y):
        return UNDEFINED
    if _may_be_zero(x) or _may_be_zero(y):
        return OPEN
    return PLUS if (x > 0) == (y > 0) else MINUS


def divide(x: Number, y: Number) -> Number:
    """x / y."""
    if is_zero(y):
        return UNDEFINED
    if type(y) is fmpq:
        return _short(x / y) if type(x) is fmpq else _told(x / y)
    if y.contains(0):
        return OPEN
    if is_infinite(y):
        return UNDEFINED if is_infinite(x) else ZERO
    return ZERO if type(x) is fmpq and x == 0 else _told(x / y)


def exponential(x: Number) -> Number:
    """exp(x)."""
    return ONE if is_zero(x) else _told(as_ball(x).exp())


def logarithm(x: Number) -> Number:
    """log(x)."""
    if x > 0:
        return ZERO if type(x) is fmpq and x == 1 else as_ball(x).log()
    return UNDEFINED if x <= 0 else OPEN


def square_root(x: Number) -> Number:
    """sqrt(x)."""
    if type(x) is fmpq:
        if x < 0:
            return UNDEFINED
        top, bottom = x.p.isqrt(), x.q.isqrt()
        return fmpq(top, bottom) if top * top == x.p and bottom * bottom == x.q else arb(x).sqrt()
    if x >= 0:
        return x.sqrt()
    return UNDEFINED if x < 0 else OPEN


def power(exponent: Fraction, x: Number) -> Number:
    """x ** exponent, for a negative x where the exponent is whole."""
    if exponent < 0:
        return strict(divide)(ONE, power(-exponent, x))
    if is_infinite(x) and exponent > 0:
        if x < 0 and exponent.denominator != 1:
            return UNDEFINED
        return MINUS if x < 0 and exponent.numerator % 2 else PLUS
    if exponent.denominator == 1:
        if type(x) is fmpq and x.height_bits() * exponent <= LONG_BITS:
            return x ** int(exponent)
        return _whole(as_ball(x), int(exponent)) if exponent else ONE
    if exponent.denominator == 2:
        return strict(partial(power, Fraction(exponent.numerator)))(square_root(x))
    if is_zero(x):
        return ZERO
    if x > 0:
        return _told(as_ball(x) ** arb(rational(exponent)))
    return UNDEFINED if x < 0 else OPEN


def _whole(x: Number, exponent: int) -> Number:
    """A ball to a positive whole power; arb's own goes by the logarithm and finds nothing for a ball around 0."""
    if not x.contains(0) or is_zero(x):
        return _told(x**exponent)
    most = x.abs_upper() ** exponent
    return _told(arb(most / 2, most / 2) if exponent % 2 == 0 else arb(0, most))


def maximum(x: Number, y: Number) -> Number:
    """The larger one; of balls that overlap, a ball around both."""
    if x >= y:
        return x
    return y if y >= x else as_ball(x).max(y)


def minimum(x: Number, y: Number) -> Number:
    """The smaller one."""
    return -maximum(-x, -y)


def absolute(x: Number) -> Number:
    """|x|."""
    return maximum(x, -x)


def sign(x: Number) -> Number:
    """1, 0 or -1."""
    if is_zero(x):
        return ZERO
    if x > 0:
        return ONE
    return -ONE if x < 0 else OPEN


def floor(x: Number) -> Number:
    """The largest whole number that is not larger."""
    if is_infinite(x):
        return x
    below = as_ball(x).floor()
    return fmpq(below.unique_fmpz()) if below.is_exact() and below.is_finite() else OPEN


def step(x: Number) -> Number:
    """1 where x >= 0, else 0."""
    if x >= 0:
        return ONE
    return ZERO if x < 0 else OPEN


def _compared(holds: Callable[[Number, Number], bool], fails: Callable[[Number, Number], bool]) -> Operation:
    """1 where numbers, infinities among them, compare so, else 0; of balls that overlap nobody knows."""
    return lambda x, y: ONE if holds(x, y) else ZERO if fails(x, y) else OPEN


def _of_ball(name: str, at_zero: Number) -> Operation:
    """A function of Arb's."""
    return lambda x: at_zero if is_zero(x) else _told(getattr(as_ball(x), name)())


def _error_function(x: Number) -> Number:
    """erf(x)."""
    if is_infinite(x):
        return ONE if x > 0 else -ONE
    return ZERO if is_zero(x) else _told(as_ball(x).erf())


def _wave(name: str, at_zero: Number) -> Operation:
    """Sine or cosine, which no infinity has."""
    of_ball = _of_ball(name, at_zero)
    return lambda x: UNDEFINED if is_infinite(x) else of_ball(x)


def rescaled(x: Number, top: Number, new: Number) -> Number:
    """What was shifted by `top`, shifted by the larger `new` instead. Where the shift was minus infinity it left no
    number: beside anything larger it counts nothing, beside its like the result is no number either."""
    fall = SUBTRACT(top, new)
    if type(fall) is not Hole and is_infinite(fall) and fall < 0:
        return ZERO
    return MULTIPLY(x, EXPONENTIAL(fall))


def sigmoid(x: Number) -> Number:
    """1 / (1 + exp(-x))."""
    below = strict(add)(ONE, exponential(-x))
    return strict(divide)(ONE, below)


def silu(x: Number) -> Number:
    """x / (1 + exp(-x))."""
    return strict(multiply)(x, sigmoid(x))


def gelu(x: Number) -> Number:
    """x (1 + erf(x / sqrt(2))) / 2."""
    if is_zero(x):
        return ZERO
    return strict(multiply)(x * HALF, strict(add)(ONE, _error_function(x / arb(2).sqrt())))


_OF_NUMBERS: dict[str, Operation] = {
    "add": add, "sub": subtract, "mul": multiply, "div": divide, "neg": negative,
    "exp": exponential, "log": logarithm, "sqrt": square_root, "square": lambda x: multiply(x, x),
    "tanh": _of_ball("tanh", ZERO), "sigmoid": sigmoid, "erf": _error_function, "abs": absolute,
    "sin": _wave("sin", ZERO), "cos": _wave("cos", ONE), "expm1": _of_ball("expm1", ZERO),
    "atan": _of_ball("atan", ZERO), "sign": sign, "floor": floor, "step": step, "minimum": minimum, "maximum": maximum,
}  # fmt: skip
SCALARS = {name: strict(operation) for name, operation in _OF_NUMBERS.items()}
"""The primitives of formulas, but for powers and those that are made of these; what is made of a hole is one."""
ELEMENTWISE: dict[OpKind, Operation] = {
    **{kind: SCALARS[name] for kind, name in formula.OPERATORS.items()},
    OpKind.SILU: strict(silu),
    OpKind.GELU: strict(gelu),
    OpKind.RELU: strict(lambda x: maximum(x, ZERO)),
    OpKind.GREATER: strict(_compared(operator.gt, operator.le)),
    OpKind.GREATER_EQUAL: strict(_compared(operator.ge, operator.lt)),
    OpKind.EQUAL: strict(_compared(operator.eq, operator.ne)),
    OpKind.CAST: strict(lambda x: x),
}
"""What elementwise operators without attributes compute of numbers and holes."""


def elementwise(kind: OpKind, attrs: Attrs | None) -> Operation:
    """What an elementwise operator, but for functions of the program's own, makes of numbers and holes."""
    if isinstance(attrs, PowAttrs):
        return strict(partial(power, attrs.exponent))
    if isinstance(attrs, ClampAttrs):
        return strict(partial(_clamp, attrs))
    if isinstance(attrs, WhereAttrs):
        return partial(_where, other(attrs))
    return ELEMENTWISE[kind]


def other(attrs: WhereAttrs) -> Number:
    """What a choice takes where its condition is 0."""
    if attrs.infinite:
        return PLUS if attrs.infinite > 0 else MINUS
    return rational(attrs.other)


def _where(other: Number, condition: Number, x: Number) -> Number:
    """x where the condition is not 0, whatever it is elsewhere."""
    if type(condition) is Hole:
        return condition
    if is_zero(condition):
        return other
    return OPEN if _may_be_zero(condition) else x


def _clamp(attrs: ClampAttrs, x: Number) -> Number:
    if attrs.low is not None:
        x = maximum(x, rational(attrs.low))
    return x if attrs.high is None else minimum(x, rational(attrs.high))


ADD, SUBTRACT, MULTIPLY, DIVIDE = (SCALARS[name] for name in ("add", "sub", "mul", "div"))
MAXIMUM, EXPONENTIAL = SCALARS["maximum"], SCALARS["exp"]
PLAIN: dict[Operation, np.ufunc] = {
    ADD: np.add, SUBTRACT: np.subtract, MULTIPLY: np.multiply, DIVIDE: np.true_divide,
    SCALARS["square"]: np.square, MAXIMUM: np.maximum,
}  # fmt: skip
"""Operations that are the library's own where every number is a short rational; but for the maximum, where none is an
infinity, too."""


def over(operation: Operation, *operands: Array) -> Array:
    """The operation on every element of arrays that broadcast."""
    with contextlib.suppress(TypeError, ZeroDivisionError):  # holes, and what has no value
        if operation in PLAIN:
            made = np.asarray(PLAIN[operation](*operands), object)
            found = _settled(operation, operands, made.reshape(-1).tolist())
            if found is not None:
                return _listed(found, made.shape)
        elif operation is EXPONENTIAL:
            found = [ONE if x.is_zero() else x.exp() for x in map(arb, operands[0].reshape(-1).tolist())]
            if all(x.is_finite() for x in found if x is not ONE):
                return _listed(found, operands[0].shape)
    return np.asarray(np.frompyfunc(operation, len(operands), 1)(*operands), object)


def _listed(found: Sequence[Number], shape: tuple[int, ...]) -> Array:
    """An array of these numbers."""
    return np.fromiter(found, object, len(found)).reshape(shape)


def _settled(operation: Operation, operands: Sequence[Array], found: list[Number]) -> list[Number] | None:
    """What the operation makes where these are the library's own results; None where that takes a closer look."""
    kinds = set(map(type, found))
    if operation is MAXIMUM:
        kinds = set(map(type, itertools.chain(*(x.reshape(-1).tolist() for x in operands))))
    known = kinds <= ({fmpq} if operation is MAXIMUM else {fmpq, arb})
    if not known or (arb in kinds and _WARY.get() and operation in (ADD, SUBTRACT)):
        return None
    balls, rationals = [x for x in found if type(x) is arb], [x for x in found if type(x) is fmpq]
    if not all(map(arb.is_finite, balls)) or max(map(fmpq.height_bits, rationals), default=0) > LONG_BITS:
        return None
    if operation in (ADD, SUBTRACT) or not any(map(arb.is_zero, balls)):
        return found
    return None if operation is DIVIDE else [ZERO if type(x) is arb and x.is_zero() else x for x in found]


def folded(operation: Operation, x: Array) -> Array:
    """The elements of every row, folded."""
    rows = x.tolist()
    fold: Operation = partial(reduce, operation)
    kinds = {*map(type, itertools.chain(*rows))}
    if kinds == {fmpq} and operation is MAXIMUM:
        fold = max
    elif kinds == {fmpq} and operation is ADD:
        sums = [*itertools.takewhile(lambda found: found is not None, map(_summed, rows))]
        if len(sums) == len(rows):
            return np.fromiter(sums, object, len(sums))
    elif kinds <= {fmpq, arb} and operation is ADD and not _WARY.get():
        fold = _added
    return np.fromiter(map(fold, rows), object, len(rows))


def _added(row: Sequence[Number]) -> Number:
    """The sum of rationals and balls, to those who are not wary: a ball stays one."""
    first = next((place for place, x in enumerate(row) if type(x) is arb), len(row))
    total = reduce(operator.add, row[first:], reduce(ADD, row[:first])) if first else reduce(operator.add, row)
    return total if first == len(row) or total.is_finite() else reduce(ADD, row)


def _summed(row: Sequence[Number]) -> Number | None:
    """The sum of rationals; None as soon as it is long."""
    total = ZERO
    for first in range(0, len(row), FEW):
        total = sum(row[first : first + FEW], total)
        if total.height_bits() > LONG_BITS:
            return None
    return total


@dataclass(frozen=True, slots=True)
class Reals:
    """The system of these numbers: what `slices` asks of one. `certain`: a choice takes only what it certainly does."""

    certain: bool = False

    def elementwise(self, kind: OpKind, attrs: Attrs | None) -> Operation:
        """What an elementwise operator, but for functions of the program's own, makes of numbers and holes."""
        return elementwise(kind, attrs)

    def scalar(self, name: str) -> Operation:
        """What a primitive of formulas computes."""
        return SCALARS[name]

    def constant(self, attrs: ConstAttrs) -> Number:
        """The number that a constant stands for."""
        return constant(attrs)

    def holds(self, condition: Number) -> bool:
        """Whether a choice takes what it reads, or may do so."""
        if type(condition) is Hole:
            return not self.certain
        return not (_may_be_zero(condition) if self.certain else is_zero(condition))

    def folded(self, operation: Operation, x: Array) -> Array:
        """The elements of every row, folded."""
        return folded(operation, x)

    def product(self, x: Array, y: Array) -> Array:
        """The sums of x * y, row by row."""
        return folded(ADD, over(MULTIPLY, x, y))

    def rescaled(self, x: Number, top: Number, new: Number) -> Number:
        """x * exp(top - new)."""
        return rescaled(x, top, new)


REALS, CERTAIN = Reals(), Reals(certain=True)
