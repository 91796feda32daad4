"""Builds the kernel graph of a program: every distinct operator once, only what the outputs need.

In: operators in any order of declaration. Out: a KernelGraph, with the place in the text of each operator.
Invariant: an operator with the same kind, operands and attributes is the same value (operands of commutative
operators in either order), so that equal subexpressions are shared (paper section 2: a tensor program is a
kernel graph of pre-defined operators).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NewType, TypeGuard

from mirage_nb.errors import MirageError, ProgramSizeError, ProgramSyntaxError, ShapeError, SourceSpan
from mirage_nb.ir.dtypes import BYTES, HALVES, DType, MemSpace, TensorType
from mirage_nb.ir.graph import Input, KernelGraph, Op, Size, infer
from mirage_nb.ir.ops import COMPARISONS, OPS, Attrs, CastAttrs, Level, OpKind, Shape, Trait, WhereAttrs, show_shape
from mirage_nb.lang.constants import Number, shorten
from mirage_nb.lang.hints import shapes_hint
from mirage_nb.lang.limits import MAX_ELEMENTS, MAX_OPERATORS, MAX_RANK

Value = NewType("Value", int)
"""A tensor of the program under construction."""


class Whole(int):
    """A mask that was made whole numbers: as an index it names places, and takes none by itself."""


class Truth(int):
    """A mask that is known to hold truth values: a sum of two says whether one of them is true."""


class Scalar(int):
    """A tensor of one element that has no dimensions in NumPy: what a sum over all leaves, and what is made of such."""


Term = Value | Number
"""What an expression stands for: a tensor, or an exact constant."""


@dataclass(frozen=True, slots=True)
class Infinity:
    """inf, or -inf: what `where` may put in the place of elements, or a limit that limits nothing."""

    sign: int


@dataclass(frozen=True, slots=True)
class Text:
    """A word that chooses between ways to compute: "mean", "tanh", the name of an element type."""

    value: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """None: what is left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Callee:
    """A function, for others to call: its name, how it is called, and what it is to `Expressions`."""

    name: str
    signature: str
    function: object


@dataclass(frozen=True, slots=True)
class Picked:
    """The elements of a tensor that a mask of its first dimensions takes, see `picked`."""

    whole: Value
    mask: Value


Result = Term | Infinity | Text | Nothing | Callee | Picked | tuple["Result", ...]
"""What an expression stands for: a term, several, or what only chooses."""


class Extremes(tuple["Result", ...]):
    """Maxima, or minima, and their places, as PyTorch returns them; where one tensor is asked for, the former."""

    __slots__ = ()


class Named(tuple["Result", ...]):
    """Results, each under a name: {"y": Y, "z": Z}."""

    names: tuple[str, ...]


def true(result: Result) -> Result:
    """A tensor as truth values; a scalar stays one."""
    return Value(Truth(result)) if type(result) is int else result


def plain(result: Result) -> Result:
    """What was made of truth values as the numbers 1 and 0."""
    return Value(int(result)) if isinstance(result, Truth) else result


def is_tensor(result: object) -> TypeGuard[Value]:
    """Whether this is a tensor of the program."""
    return isinstance(result, int)


class Builder:
    """The program under construction.

    `place` is where in the text the next operators come from; `most`: how many there may be. `weakly`: what is made of
    places, comparisons and chosen numbers alone takes the type of the half that it meets, as in JAX; else it is f32.
    """

    def __init__(self, operators: int = MAX_OPERATORS, *, weakly: bool = False) -> None:
        self.most, self.weakly = operators, weakly
        self.place: SourceSpan | None = None
        self._made: list[Input | Op] = []
        self._types: list[TensorType] = []
        self._places: list[SourceSpan | None] = []
        self._numbers: dict[Value, Number] = {}
        self.apart: dict[Value, int] = {}
        """Places of which none is there twice along an axis, and that axis."""
        self.whole: set[Value] = set()
        """Inputs and tables that hold whole numbers; inputs of them that hold ones and zeros only: `masks`."""
        self.masks: set[Value] = set()
        self.truths: set[Value] = set()
        """Inputs of truth values, and views of them: any number but 0 is true, as in NumPy, whatever they are given."""
        self.weak: set[Value] = set()
        """What has no type of its own, which f32 holds."""
        self.unrounded: dict[Value, Value] = {}
        """What was rounded to a half when it met one, as f32."""
        self.infinite: set[Value] = set()
        """Tables that hold infinities."""
        self.fills: dict[Value, Number | Infinity] = {}
        """Tensors of one number everywhere."""
        self._known: dict[tuple[OpKind, tuple[int, ...], Attrs | None], Value] = {}

    def declare(self, name: str, tensor: TensorType, dims: tuple[str, ...] = (), size: Size | None = None) -> Value:
        """A new input; `dims`: what the text calls its dimensions; `size`: see `Input`. Raises ProgramSizeError beyond
        the limits."""
        check_size(tensor.shape)
        return self._append(Input(name, tensor, dims, size), tensor)

    def emit(self, kind: OpKind, *operands: Value, attrs: Attrs | None = None) -> Value:
        """The value of this operator: an earlier one if it is the same.

        Raises:
            ShapeError: the operands do not fit.
            ProgramSizeError: the result, or the program, is beyond the limits.
        """
        if operands and Trait.ELEMENTWISE in OPS[kind].traits and all(isinstance(v, Scalar) for v in operands):
            return Value(Scalar(self.emit(kind, *(Value(int(v)) for v in operands), attrs=attrs)))
        operands = tuple(Value(int(v)) for v in operands)
        is_view = kind in _VIEWS
        if not self.truths.isdisjoint(operands) and not is_view:
            operands = tuple(v if kind is OpKind.WHERE and n == 0 else self.one(v) for n, v in enumerate(operands))
        ordered = tuple(sorted(operands)) if Trait.COMMUTATIVE in OPS[kind].traits else operands
        if (known := self._known.get((kind, ordered, attrs))) is not None:
            return known
        weak = self.weakly and self._is_weak(kind, operands, attrs)
        own = None if weak else self.meeting(operands[kind is OpKind.WHERE :])
        if own is not None and Trait.ELEMENTWISE not in OPS[kind].traits:  # products and joins are of one type
            operands = tuple(self._cast(v, own) if self.is_weak(v) else v for v in operands)
        op = Op(kind, operands, attrs)
        types = tuple(self._types[v] for v in operands)
        try:
            tensor = infer(op, types, Level.KERNEL, MemSpace.DEVICE)
        except ShapeError as error:
            hint = error.hint or shapes_hint(kind is OpKind.MATMUL, [t.shape for t in types])
            raise ShapeError(error.message, hint=hint) from None
        check_size(tensor.shape)
        if len(self._known) >= self.most:
            hint = "loops are unrolled: one may never end, or go too often; a program is one kernel, or a few"
            raise ProgramSizeError(f"the program has more than {self.most} operators", hint=hint)
        made = self._append(op, tensor)
        if weak:
            self.weak.add(made)
        elif own is not None and tensor.dtype is not own:
            exact, made = made, self._cast(made, own)
            self.unrounded[made] = exact
        self._known[kind, ordered, attrs] = made
        if is_view and self.truths.issuperset(operands):
            self.truths.add(made)
        return made

    def _is_weak(self, kind: OpKind, operands: Sequence[Value], attrs: Attrs | None) -> bool:
        """Whether what an operator makes has no type of its own."""
        if kind is OpKind.ARANGE or kind in COMPARISONS or getattr(attrs, "name", "") == COMPARISON:
            return True
        chosen = operands[kind is OpKind.WHERE :]
        numbers = all(v in self._numbers for v in chosen)
        weak = all(v in self._numbers or self.is_weak(v) for v in chosen)
        return weak and kind is not OpKind.CAST and (kind is OpKind.WHERE or not numbers)

    @property
    def has_halves(self) -> bool:
        """Whether some tensor is of a half."""
        return any(type_.dtype in HALVES for type_ in self._types)

    def is_weak(self, value: Value) -> bool:
        """Whether a tensor has no type of its own; one that was made full of a number has."""
        return value in self.weak and self.filled(value) is None

    def meeting(self, values: Sequence[Value]) -> DType | None:
        """The half that those have which have a type of their own, where others have none; else None."""
        weak = {v for v in self.weak.intersection(values) if self.is_weak(v)}
        typed = {self.dtype(v) for v in values if v not in weak and v not in self._numbers} if weak else set()
        return typed.pop() if len(typed) == 1 and typed <= HALVES else None

    def _cast(self, value: Value, dtype: DType) -> Value:
        return self.emit(OpKind.CAST, value, attrs=CastAttrs(dtype))

    def one(self, value: Value) -> Value:
        """A truth value as the number 1 or 0; any other tensor as it is."""
        if value not in self.truths:
            return value
        return self.emit(OpKind.WHERE, value, self.value(Number.of(1)), attrs=WhereAttrs())

    def value(self, term: Term) -> Value:
        """The term as an operand: a constant becomes a scalar operator."""
        if not isinstance(term, Number):
            return term
        made = self.emit(OpKind.CONST, attrs=term.attrs())
        self._numbers[made] = term
        return Value(Scalar(made))

    def tensor(self, term: Term, what: str) -> Value:
        """The term, which must be a tensor; `what` names its user in the error."""
        if isinstance(term, Number):
            raise ProgramSyntaxError(
                f"{what} takes a tensor, not the number {shorten(str(term))}",
                hint="tensors are declared as X: f16[2, 3]",
            )
        return term

    def tensor_of(self, result: Result, what: str) -> Value:
        """The same of any result."""
        if isinstance(result, Extremes):
            result = result[0]
        if isinstance(result, Number) or is_tensor(result):
            return self.tensor(result, what)
        if isinstance(result, Picked):
            raise self.unknown_extent()
        raise ProgramSyntaxError(f"{what} takes a tensor", hint="tensors are declared as X: f16[2, 3]")

    def unknown_extent(self) -> MirageError:
        """The error for elements that a mask takes, where their number matters."""
        hint = "where(mask, x, 0) has zeros for the others; x[mask].sum(), .mean() and .max() are tensors"
        return ProgramSyntaxError("how many elements a mask takes depends on values", hint=hint)

    def filled(self, value: Value) -> Number | Infinity | None:
        """What all elements of a tensor are, where that is known."""
        while value not in self.fills:
            op = self.definition(value)
            if op is None or op.kind not in _SAME:
                return None
            value = Value(op.inputs[0])
            if op.kind is OpKind.CAST and self.dtype(value) is not DType.F32:  # it may have lost digits before
                return None
        return self.fills[value]

    def shape(self, value: Value) -> Shape:
        """The extents of a tensor."""
        return self._types[value].shape

    def dtype(self, value: Value) -> DType:
        """The element type of a tensor."""
        return self._types[value].dtype

    def definition(self, value: Value) -> Op | None:
        """The operator that makes this value, or None for an input."""
        made = self._made[value]
        return made if isinstance(made, Op) else None

    def operands(self, value: Value) -> tuple[Value, ...]:
        """What the operator reads that makes this value."""
        made = self._made[value]
        return tuple(map(Value, made.inputs)) if isinstance(made, Op) else ()

    def needed(self, outputs: Iterable[Value]) -> list[Value]:
        """These values and all that they are made of, operands first."""
        found = {*outputs}
        for value in range(max(found, default=-1), -1, -1):
            if value in found:
                found.update(self.operands(Value(value)))
        return sorted(found)

    def place_of(self, value: Value) -> SourceSpan | None:
        """Where in the text a value was made."""
        return self._places[value]

    def number(self, value: Value) -> Number | None:
        """The constant that this value is, if it is one."""
        return self._numbers.get(value)

    def finish(self, outputs: tuple[tuple[str, Value], ...]) -> tuple[KernelGraph, tuple[SourceSpan, ...]]:
        """The graph and the place of each operator.

        Every input stays, read or not: whoever calls the program passes all of them.
        """
        graph, places, _ = self.numbered(outputs)
        return graph, places

    def numbered(
        self, outputs: tuple[tuple[str, Value], ...]
    ) -> tuple[KernelGraph, tuple[SourceSpan, ...], dict[Value, int]]:
        """As `finish`, with the number in the graph of every value that is there. What is stored in bytes is handed
        out in f32."""
        outputs = tuple((name, self._handed_out(value)) for name, value in outputs)
        needed = {*self.needed([value for _, value in outputs])}
        declared = [Value(v) for v, made in enumerate(self._made) if isinstance(made, Input)]
        graph = KernelGraph.start(*(made for made in self._made if isinstance(made, Input)))
        renamed: dict[Value, int] = {value: index for index, value in enumerate(declared)}
        places: list[SourceSpan] = []
        for index, made in enumerate(self._made):
            if isinstance(made, Op) and index in needed:
                renamed[Value(index)] = len(graph.types)
                graph = graph.append(replace(made, inputs=tuple(renamed[Value(v)] for v in made.inputs)))
                place = self._places[index]
                assert place is not None  # operators are only made while an expression is read
                places.append(place)
        names = tuple(name for name, _ in outputs)
        graph = graph.returning(tuple(renamed[value] for _, value in outputs), names)
        return graph, tuple(places), renamed

    def _handed_out(self, value: Value) -> Value:
        if self.dtype(value) not in BYTES:
            return value
        self.place = self._places[value]
        return self.emit(OpKind.CAST, value, attrs=CastAttrs(DType.F32))

    def _append(self, made: Input | Op, tensor: TensorType) -> Value:
        self._made.append(made)
        self._types.append(tensor)
        self._places.append(self.place)
        return Value(len(self._made) - 1)


COMPARISON = "compared"
"""What formulas of comparisons are called."""
_VIEWS = (OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT, OpKind.SLICE)
_SAME = (OpKind.CAST, *_VIEWS)
"""What leaves a tensor of one number what it is, but for the digits of its type."""


def check_size(shape: Shape) -> None:
    """Raise ProgramSizeError for a tensor beyond the limits."""
    if len(shape) > MAX_RANK:
        raise ProgramSizeError(f"a tensor of {len(shape)} dimensions", hint=f"at most {MAX_RANK}")
    if (elements := math.prod(shape)) > MAX_ELEMENTS:
        raise ProgramSizeError(
            f"a tensor {shorten(show_shape(shape))} of {shorten(f'{elements:,}')} elements",
            hint=f"at most {MAX_ELEMENTS:,}",
        )
