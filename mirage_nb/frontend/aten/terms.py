"""What the rows of the ATen table work with: the place of a node, and terms of the language.

In: the arguments of a node of an fx graph, tensors as terms. Out: terms. Invariant: rows build programs with
`lang.lowering` alone, so that what PyTorch computes gets the canonical form that a cell would give it; what a row
cannot say exactly it refuses with `Left`, and never says approximately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_nb.ir.dtypes import DType, TensorType
from mirage_nb.ir.ops import RepeatAttrs, Shape
from mirage_nb.lang import constants, lowering, views
from mirage_nb.lang.builder import Builder, Infinity, Term, Text, Value, is_tensor
from mirage_nb.lang.calls import call
from mirage_nb.lang.constants import Number
from mirage_nb.lang.functions import FUNCTIONS

DTYPES = {
    "torch.float16": DType.F16, "torch.bfloat16": DType.BF16, "torch.float32": DType.F32, "torch.float64": DType.F64,
}  # fmt: skip
"""The element types of torch that programs have, by name."""
BYTES = {
    "torch.int8": DType.I8, "torch.uint8": DType.U8, "torch.bool": DType.BOOL, "torch.float8_e4m3fn": DType.E4M3,
    "torch.float8_e5m2": DType.E5M2,
}  # fmt: skip
"""Those that inputs of programs may be stored in."""

SHORT = 12
"""Characters of a number that somebody wrote; longer ones are looked at as what was rounded."""


@dataclass(frozen=True, slots=True)
class Undefined:
    """NaN: what is no number, everywhere."""


Result = Term | Infinity | Undefined | tuple[Term | None, ...]
"""What a node stands for; None for results of it that have no term, such as the indices of a maximum."""

Row = Callable[..., Result]
"""Takes an `At`, then the node's arguments: terms for tensors, plain values for the rest."""


class Left(Exception):  # not a mistake of anybody: the node stays PyTorch's
    """Why a node has no term here."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor among a node's arguments: its term, apart from plain integers, and whether it holds truth values; of one
    number everywhere, the type that it has where it has to be a tensor."""

    term: Term | Infinity | Undefined
    logical: bool = False
    filled: TensorType | None = None


@dataclass(frozen=True, slots=True)
class At:
    """A node being translated: the program so far, and the shape and element type that PyTorch says it has.

    Tensors of no dimension have one of extent 1 here. `dtype` is None for other types than `DTYPES`; `truth`: whether
    it holds truth values; `whole`: whether the program is all that is computed, and no part of PyTorch's graph.
    """

    b: Builder
    shape: Shape
    dtype: DType | None
    truth: bool = False
    whole: bool = False

    def term(self, argument: Any) -> Term:
        """An argument that is a tensor or a number."""
        match argument:
            case Held(term):
                if isinstance(term, Infinity | Undefined):
                    raise Left("a constant that is infinite or no number")
                return term
            case None:
                raise Left("an operand is None")
            case int() | float():
                return number(+argument)  # truth values count as numbers
        raise Left(f"an operand of type {type(argument).__name__}")

    def infinity(self, argument: Any) -> Infinity | None:
        """What a tensor is everywhere, if that is infinite. Of a region it is not said: what is computed beside an
        infinity is known without what it is computed of, which PyTorch's graph goes on to compute before."""
        held = isinstance(argument, Held) and isinstance(argument.term, Infinity)
        return argument.term if held and self.whole else None

    def choice(self, argument: Any) -> Term | Infinity:
        """An argument that may be infinite, too."""
        if isinstance(argument, Held) and isinstance(argument.term, Infinity):
            return argument.term
        if isinstance(argument, float) and math.isinf(argument):
            return Infinity(1 if argument > 0 else -1)
        return self.term(argument)

    def logical(self, argument: Any) -> Value | None:
        """An argument that holds truth values: its mask; None for other arguments."""
        return self.tensor(argument) if isinstance(argument, Held) and argument.logical else None

    def tensor(self, argument: Any) -> Value:
        """An argument that has to be a tensor; of one number, or infinite, everywhere it is filled."""
        term = self.infinity(argument) or self.term(argument)
        if not isinstance(term, Number | Infinity):
            return term
        if not isinstance(argument, Held) or argument.filled is None:
            raise Left("an operand is a number, not a tensor")
        made = self.b.tensor_of(call(self.b, "full", tuple(map(Number.of, argument.filled.shape)), term), "full")
        return self.b.tensor(lowering.cast(argument.filled.dtype)(self.b, made), "full")

    def computed(self, x: Value) -> Value:
        """A tensor in the type of the result: PyTorch casts what it is told to compute in another one, and counts truth
        values in whole numbers."""
        return x if self.truth else self.b.tensor(lowering.cast(self.dtype or DType.F32)(self.b, x), "a cast")

    def shape_of(self, term: Term) -> Shape:
        """The extents of a term; a number has none."""
        return () if isinstance(term, Number) else self.b.shape(term)

    def axis(self, x: Value, axis: int) -> int:
        """An axis counted from 0."""
        return axis + len(self.b.shape(x)) if axis < 0 else axis

    def axes(self, x: Value, axes: int | Sequence[int] | None) -> tuple[int, ...]:
        """Axes counted from 0, in order; none given: all."""
        if axes is None or (not isinstance(axes, int) and not axes):
            return tuple(range(len(self.b.shape(x))))
        return tuple(sorted(self.axis(x, axis) for axis in ([axes] if isinstance(axes, int) else axes)))


def number(value: int | float) -> Number:
    """The exact constant that a Python number was written as: 0.1 is one tenth, as in a cell, and so is what single
    precision makes of it. What is too large for digits behind its point, or a power of two of many digits, is itself,
    as the largest and the least numbers of a type."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Left("a constant that is infinite or no number")
    if isinstance(value, float) and abs(value) >= 2**53:
        return Number.of(int(value))
    if isinstance(value, float) and len(repr(value)) > SHORT:
        if math.frexp(value)[0] in (0.5, -0.5):
            return Number.of(Fraction(value))
        single = np.float32(value)
        value = float(str(single)) if float(single) == value else value
    return constants.literal(repr(abs(value))) if value >= 0 else constants.negate(constants.literal(repr(abs(value))))


def named(b: Builder, name: str, x: Value, *numbers: float) -> Term:
    """The function of the language that is called so, of a tensor and numbers."""
    made = FUNCTIONS[name].lower(b, x, *map(number, numbers))
    assert is_tensor(made)  # of one tensor, one tensor
    return made


def padded(
    b: Builder, x: Value, along: int, amounts: tuple[int, int], around: Number | Infinity = lowering.ZERO
) -> Value:
    """So many more elements before and after those of an axis, all of them the same."""
    if amounts == (0, 0):
        return x
    every = (0, 0) * (len(b.shape(x)) - 1 - along) + amounts
    return b.tensor_of(call(b, "pad", x, tuple(map(Number.of, every)), Text("constant"), around), "pad")


def full(b: Builder, x: Value, shape: Shape) -> Value:
    """x, repeated along what PyTorch broadcasts."""
    return x if b.shape(x) == shape else b.tensor(views.expand(b, x, shape), "expand")


def narrowest(b: Builder, x: Value) -> Value:
    """x before it was repeated from extent 1, for operators that broadcast by themselves."""
    op = b.definition(x)
    while op is not None and isinstance(op.attrs, RepeatAttrs) and b.shape(Value(op.inputs[0]))[op.attrs.dim] == 1:
        x = Value(op.inputs[0])
        op = b.definition(x)
    return x


def elementwise(at: At, *terms: Term) -> tuple[Term, ...]:
    """Operands of an operator that broadcasts: as narrow as the result allows."""
    slim = tuple(t if isinstance(t, Number) else narrowest(at.b, t) for t in terms)
    shapes = [at.shape_of(t) for t in slim]
    rank = max(map(len, shapes))
    reached = [1] * rank
    for shape in shapes:
        for place, extent in enumerate(shape, start=rank - len(shape)):
            reached[place] = max(reached[place], extent)
    return slim if tuple(reached) == at.shape else terms
