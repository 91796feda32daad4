"""How well a program is conditioned: by how much rounding alone moves what it computes, element by element.

In: a program, and inputs as its types hold them. Out: an `Analysis`: every output in float64, and the deviation that
is to be expected of it when each of the program's operators is evaluated in its types. A running error analysis
beside the evaluation: every result is rounded to its type, sums are accumulated in f32 (f64 for f64) and lose in
proportion to the sum of the sizes of their terms, errors of different operands are independent (Higham and Mary, A
New Approach to Probabilistic Rounding Error Analysis, 2019). Invariant: nothing here knows of a candidate; any kernel
that rounds about as often as the program is off by about as much. Infinite: a value on the way is beyond its type.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.reference import SCALARS, FloatAlgebra
from mirage_nb.interp.run import run_block
from mirage_nb.ir import (
    BYTES,
    COMPARISONS,
    OPS,
    ApplyAttrs,
    BlockGraph,
    DType,
    KernelGraph,
    Op,
    OpKind,
    PowAttrs,
    Trait,
    formula,
)
from mirage_nb.ir.dtypes import FORMATS
from mirage_nb.ir.jumps import JUMPS, jumps
from mirage_nb.tile.instructions.precision import FEW_CHUNK, FEW_DEPTH, FEW_DIGITS, has_few_digits
from mirage_nb.verify.reals.rounding import LARGEST, SMALLEST, rounded

Array = NDArray[Any]
Floats = NDArray[np.float64]

ROUNDING: dict[DType, float] = {
    DType.F16: 2.0**-11 / 3**0.5,
    DType.BF16: 2.0**-9 / 3**0.5,
    DType.F32: 2.0**-22 / 3**0.5,
    DType.F64: 2.0**-52 / 3**0.5,
} | dict.fromkeys(BYTES, 0.0)
"""Standard deviation of a result that is rounded to the type, relative to it: half a unit in the last place, evenly
spread. Of f32 two bits fewer: exponentials, quotients and roots are what the fast units of a GPU make of them."""
ACCUMULATION: dict[DType, float] = {DType.F32: 2.0**-23, DType.F64: 2.0**-52}
"""What a sum loses, relative to the sum of the sizes of its terms, by the type that it is accumulated in."""
LINEAR = frozenset({OpKind.SUM, OpKind.RUNNING_SUM, OpKind.MATMUL, OpKind.CONCAT_MATMUL})
"""Linear in each operand: errors add up as their squares do."""
PRODUCTS = frozenset({OpKind.MATMUL, OpKind.CONCAT_MATMUL})
"""Whose terms a thread may add one after the other."""
STEEP = frozenset({OpKind.EXP, OpKind.SILU, OpKind.GELU, OpKind.SIGMOID})
"""Evaluated by the exponential unit, whose argument is rounded to f32, too."""
SHARP = frozenset({
    OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.MAXIMUM, OpKind.MAX, OpKind.WHERE, OpKind.CAST, OpKind.RELU,
    OpKind.CLAMP, *COMPARISONS,
})  # fmt: skip
"""Operators that lose nothing where the type has their result, as formulas do: comparisons, what is made of masks."""
ZEROS = frozenset({OpKind.SQRT, OpKind.SQR, OpKind.DIV})
"""Operators that lose nothing of a zero: divided by its root, one is infinite in every type."""
ROUND = JUMPS | {"add", "sub", "mul", "neg", "abs", "square", "minimum", "maximum"}
"""Primitives that lose nothing where f32 has their result, as of whole numbers."""
WRITTEN = {OpKind.GELU: "x * (1 + erf(x / (14142135623730951/10000000000000000))) / 2"}
"""Operators that round as this formula does: the sum within cancels where x is negative, and what it loses there is a
share of 1, not of the result."""
NOISE = 2.0**-10
"""A share of its deviation up to which a number is what rounding made of zero; sums of exponentials come to their own
deviation, and are never zero."""
FLUSHED = frozenset({DType.F32, DType.BF16})
"""Types whose denormals a kernel may take for zero."""

LOSING = 0.2
"""The share of products of floats of one byte that lose digits: they have eight, and lose none unless they are 2^6
times smaller than what they are lined up with."""

SINGLE = 12.0
"""Deviations that one element may be off by."""

_EXACT = FloatAlgebra(np.dtype(np.float64))


@dataclass(frozen=True, slots=True)
class Analysis:
    """The outputs in float64; the deviation of each element; the largest share of its type's range that a value on
    the way takes (above 1: the program overflows; infinite: a value becomes so, other than by a mask, or no number)."""

    outputs: tuple[Floats, ...]
    deviations: tuple[Floats, ...]
    fullest: float


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of the program and the deviation of its elements; None: it is exactly what its type holds."""

    exact: Array
    dtype: DType
    deviation: Array | None = None

    def fullness(self, op: Op, operands: Sequence[_Tensor]) -> float:
        """The largest share of the type's range that an element takes; infinities that a mask has, or an operand, are
        no matter of its range."""
        sizes = np.abs(self.exact)
        top = float(np.max(sizes, initial=0.0))
        if top == np.inf and (op.kind is OpKind.WHERE or any(np.isinf(t.exact).any() for t in operands)):
            top = float(np.max(sizes, initial=0.0, where=sizes < np.inf))
        return top / LARGEST[self.dtype] if top == top else float("inf")

    def read(self) -> _Tensor:
        """As an operand: where it is beyond its type, or rounding may have led it there, nothing is known."""
        if self.deviation is None:
            return self
        beyond = np.isfinite(self.exact) & (np.abs(self.exact) + SINGLE * self.deviation > LARGEST[self.dtype])
        if not beyond.any():
            return self
        return _Tensor(self.exact, self.dtype, np.where(beyond, np.inf, self.deviation))


def analyse(program: KernelGraph, inputs: Mapping[str, Array]) -> Analysis:
    """Evaluate a program on inputs by name, with what rounding does to it. No value is held longer than it is read."""
    values = {n: _Tensor(np.asarray(inputs[i.name], np.float64), i.type.dtype) for n, i in enumerate(program.inputs)}
    last = {v: index for index, op in enumerate(program.ops) for v in op.inputs}
    extremes = extremes_of(program)
    fullest = 0.0
    with np.errstate(all="ignore"):
        for index, (op, results) in enumerate(program.definitions()):
            operands = [values[v].read() for v in op.inputs]
            for value in {*op.inputs}:
                if last[value] == index and value not in program.outputs:
                    del values[value]
            extreme = extremes.get(results[0]) if results else None
            made = _results(op, operands, [program.types[v].dtype for v in results], extreme)
            fullest = max([fullest, *(tensor.fullness(op, operands) for tensor in made)])
            values |= {v: t for v, t in zip(results, made, strict=True) if v in last or v in program.outputs}
        found = [(values[v], program.types[v].shape) for v in program.outputs]
        return Analysis(
            tuple(np.broadcast_to(tensor.exact, shape) for tensor, shape in found),
            tuple(np.broadcast_to(_deviation(tensor), shape) for tensor, shape in found),
            fullest,
        )


def _deviation(tensor: _Tensor) -> Array:
    return np.zeros(()) if tensor.deviation is None else tensor.deviation


def extremes_of(program: KernelGraph) -> dict[int, int]:
    """Of comparisons of elements with the largest or smallest of them, and of differences that nothing reads but to see
    where they are 0, by their values, which operand that is."""
    found: dict[int, int] = {}
    times = {value: (value, Fraction(1)) for value in range(len(program.types))}  # another value, times a number
    ends: dict[int, set[tuple[int, Fraction]]] = {}
    constants, uses = program.uniform(), program.uses()
    for op, (value, *_) in program.definitions():
        x = next((v for v in op.inputs if v not in constants), -1)
        if op.kind is OpKind.MAX and x in times:
            ends[value] = ends.get(x, set()) | {times[x]}
        elif op.kind is OpKind.WHERE:  # the second largest is one of them, too
            ends[value] = ends.get(op.inputs[1], set()) | {times[op.inputs[1]]}
        elif op.kind in (OpKind.RESHAPE, OpKind.TRANSPOSE) and x in times:
            times[value] = times[x]
            ends[value] = ends.get(x, set())
        elif op.kind is OpKind.MUL and (factors := [constants[v] for v in op.inputs if v in constants]):
            times[value] = times[x][0], times[x][1] * factors[0]
            ends[value] = {(source, factor * factors[0]) for source, factor in ends.get(x, set())}
        elif op.kind in COMPARISONS or (op.kind is OpKind.SUB and all(jumps(program.ops[n]) for n in uses[value])):
            one, other = op.inputs
            for place, (end, elements) in enumerate(((one, other), (other, one))):
                if times[elements] in ends.get(end, set()):
                    found[value] = place
    return found


def _results(op: Op, operands: list[_Tensor], dtypes: list[DType], extreme: int | None) -> list[_Tensor]:
    """The results of one operator, rounded to these types; `extreme`: of a comparison, or of a difference that is
    compared with 0, the operand that is the largest or smallest of the other one."""
    if isinstance(op.body, BlockGraph):
        return _of_kernel(op.body, operands, dtypes)
    exact = _EXACT.apply(op.kind, [t.exact for t in operands], op.attrs, 0)
    (dtype,) = dtypes
    moved = Trait.VIEW in OPS[op.kind].traits and all(t.dtype is dtype for t in operands)
    if all(t.deviation is None for t in operands) and op.kind not in STEEP:
        if moved or (_holds(dtype, exact) and (op.kind not in LINEAR or _sums_exactly(op, operands, dtype))):
            return [_Tensor(exact, dtype)]
    written = op.attrs.formula if isinstance(op.attrs, ApplyAttrs) else WRITTEN.get(op.kind)
    if written is not None:
        squares = _of_formula(written, operands[0], dtype)
    elif extreme is not None:
        squares = _beside_extreme(operands[1 - extreme], operands[extreme])
        if op.kind is OpKind.SUB:
            squares = np.where((squares == 0) & (exact == 0), 0.0, _carried(op, operands, exact))
    else:
        squares = _carried(op, operands, exact)
    if not moved:
        lost = _lost(op, operands, exact, dtype)
        if op.kind in SHARP or isinstance(op.attrs, ApplyAttrs):
            lost = np.where((squares == 0) & _has(dtype, exact), 0.0, lost)
        elif op.kind in ZEROS:
            lost = np.where((squares == 0) & (exact == 0), 0.0, lost)
        squares = squares + lost
    chosen = np.where(squares == np.inf, np.inf, 0.0)  # an infinity, or a number, as a mask comes out
    deviation = np.where(np.isfinite(exact), np.sqrt(squares), chosen)
    return [_Tensor(exact, dtype, np.where(np.isnan(deviation), np.inf, deviation) if deviation.any() else None)]


def _computed_in(dtype: DType) -> DType:
    """The type of registers and sums for results of this one."""
    return DType.F64 if dtype is DType.F64 else DType.F32


def _holds(dtype: DType, exact: Array) -> bool:
    """Whether the type has all of these numbers."""
    return bool(np.array_equal(rounded(exact, dtype), exact, equal_nan=True))


def _has(dtype: DType, exact: Array) -> NDArray[np.bool_]:
    """Which of these numbers the type has, none of which a kernel may take for zero."""
    found: NDArray[np.bool_] = (rounded(exact, dtype) == exact) & ((np.abs(exact) >= SMALLEST[dtype]) | (exact == 0))
    return found


def _sums_exactly(op: Op, operands: Sequence[_Tensor], dtype: DType) -> bool:
    """Whether sums come out exactly in any order and grouping: the terms are multiples of one number, of which no
    partial sum has too many. 128 times one number may fit its type where three times it does not."""
    terms = _EXACT.apply(op.kind, [np.abs(t.exact) for t in operands], op.attrs, 0)
    units = [_unit(t.exact) for t in operands]
    half = len(units) // 2  # the operands of products: those on the left, then those on the right
    unit = min(map(math.prod, zip(units[:half], units[half:], strict=True))) if half else units[0]
    digits = FEW_DIGITS if has_few_digits(op.kind, (t.dtype for t in operands)) else FORMATS[_computed_in(dtype)][0]
    return bool(np.all(np.where(np.isfinite(terms), terms, 0.0) <= 2.0 ** (digits + 1) * unit))


def _unit(values: Array) -> float:
    """The largest power of two of which all finite numbers are multiples; infinite where all are 0."""
    mantissa, exponent = np.frexp(np.where(np.isfinite(values), values, 0.0))
    digits = np.asarray(np.ldexp(np.abs(mantissa), 53), np.int64)
    lowest = np.where(digits == 0, np.inf, np.ldexp((digits & -digits).astype(np.float64), exponent - 53))
    return float(np.min(lowest, initial=np.inf))


def _lost(op: Op, operands: Sequence[_Tensor], exact: Array, dtype: DType) -> Array:
    """The variance that the operator itself adds."""
    size = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    square = (ROUNDING[dtype] * np.maximum(size, SMALLEST[dtype])) ** 2
    if dtype in FLUSHED:
        square += SMALLEST[dtype] ** 2
    if op.kind in LINEAR:
        terms = _EXACT.apply(op.kind, [np.abs(t.exact) for t in operands], op.attrs, 0)
        unit = ACCUMULATION[_computed_in(dtype)]
        square = square + (unit * np.where(np.isfinite(terms), terms, 0.0)) ** 2
        if op.kind in PRODUCTS:
            square = square + (unit * _drift(op, operands, exact)) ** 2
        if has_few_digits(op.kind, (t.dtype for t in operands)):
            square = square + _of_few_digits(*(t.exact for t in operands))
        square = np.where(terms == 0, 0.0, square)  # nothing but zeros
    return square


def _of_few_digits(left: Array, right: Array) -> Array:
    """The variance of a product of floats of one byte, which tensor cores sum chunk by chunk with few digits: of every
    term some are dropped, toward zero, below the largest of the terms and of the sum so far, which is about as large as
    the chunk's sum, or as the root of its squares where terms cancel. As many terms as have its sign beyond those that
    have the other one pull the sum toward zero together."""
    total: Array = np.zeros(())
    for start in range(0, left.shape[-1], FEW_CHUNK):
        a, b = left[..., start : start + FEW_CHUNK], right[..., start : start + FEW_CHUNK, :]
        times = LOSING * (a.shape[-1] + -(-a.shape[-1] // FEW_DEPTH))
        sums, squares, sizes = a @ b, a**2 @ b**2, np.abs(a) @ np.abs(b)
        one_way = times / 2 * np.divide(sums, sizes, out=np.zeros(sizes.shape), where=sizes > 0)
        total = total + (sums**2 + squares) * (times / 3 + one_way**2)
    return np.where(np.isfinite(total), total, 0.0) * 4.0**-FEW_DIGITS


def _drift(op: Op, operands: Sequence[_Tensor], exact: Array) -> Array:
    """What one sum of all terms, added one after the other, is off by, in roundings of one: of terms of one sign the
    root of their number times it, of equal terms, each of which is rounded the same way, their number times it."""
    count = sum(t.exact.shape[-1] for t in operands[: len(operands) // 2])
    squares = _EXACT.apply(op.kind, [t.exact**2 for t in operands], op.attrs, 0)
    alike = count * squares - exact**2 <= (count * ACCUMULATION[DType.F32] * exact) ** 2
    drift: Array = np.where(np.isfinite(exact), np.abs(exact), 0.0) * np.where(alike, count / 10, count**0.5 / 6)
    return drift


def _carried(op: Op, operands: Sequence[_Tensor], exact: Array) -> Array:
    """The variance that the errors of the operands bring with them."""
    total: Array = np.zeros(())
    for place, operand in enumerate(operands):
        deviation = operand.deviation
        if op.kind in STEEP:
            size = np.where(np.isfinite(operand.exact), np.abs(operand.exact), 0.0)
            unit = ACCUMULATION[_computed_in(operand.dtype)]
            deviation = np.hypot(_deviation(operand), unit * size)
        if deviation is None:
            continue
        if op.kind in COMPARISONS:
            deviation = SINGLE * deviation
        if op.kind is OpKind.WHERE and place == 0:
            total = total + _turned(op, operands, deviation, exact) ** 2
        elif Trait.VIEW in OPS[op.kind].traits:
            rest = [np.zeros(t.exact.shape) for t in operands]
            total = total + _EXACT.apply(op.kind, _put(rest, place, deviation**2), op.attrs, 0)
        elif op.kind in LINEAR:
            rest = [t.exact**2 for t in operands]
            total = total + _EXACT.apply(op.kind, _put(rest, place, deviation**2), op.attrs, 0)
        else:
            total = total + _difference(op, operands, place, deviation, exact) ** 2
    return total


def _beside_extreme(x: _Tensor, end: _Tensor) -> Array:
    """The variance of comparing elements with the largest of them, or the smallest: that is itself, rounded as it was,
    unless rounding may have led another one there."""
    apart = np.abs(end.exact - x.exact)
    reach = np.broadcast_to(SINGLE * np.hypot(_deviation(x), _deviation(end)), apart.shape)
    near = (apart <= reach) & (reach > 0)
    folded = (1,) * (apart.ndim - end.exact.ndim) + end.exact.shape
    along = tuple(dim for dim, extent in enumerate(apart.shape) if extent != folded[dim])
    return np.where(near & ((near.sum(along, keepdims=True) > 1) | (apart > 0)), 1.0, 0.0)


def _of_formula(text: str, operand: _Tensor, dtype: DType) -> Array:
    """The variance of a formula, whose primitives are evaluated one after the other in f32 (f64 for f64)."""
    unit = ROUNDING[_computed_in(dtype)]
    start = (operand.exact, np.broadcast_to(_deviation(operand), operand.exact.shape))
    primitives = {name: _primitive(name, function, unit) for name, function in SCALARS.items()}

    def exactly(number: Fraction) -> tuple[Array, Array]:
        return np.asarray(float(number)), np.zeros(())

    _, deviation = formula.fold(formula.read(text), start, exactly, primitives)
    return np.asarray(deviation**2)


def _primitive(name: str, function: Callable[..., Array], unit: float) -> Callable[..., tuple[Array, Array]]:
    """A primitive of formulas on values with their deviations; an exponent has none."""

    def made(*given: Any) -> tuple[Array, Array]:
        values = [one[0] if isinstance(one, tuple) else one for one in given]
        found = function(*values)
        lost = np.where(np.isfinite(found), unit * np.abs(found), 0.0)
        if name in ROUND:
            known = (one[1] == 0 for one in given if name not in JUMPS)
            lost = np.where(functools.reduce(np.logical_and, known, np.float32(found) == found), 0.0, lost)
        square = lost**2
        for place, one in enumerate(given):
            if not isinstance(one, tuple) or not one[1].any():
                continue
            value, deviation = one[0], one[1] * (SINGLE if name in JUMPS else 1.0)
            ends = [[*values[:place], end, *values[place + 1 :]] for end in (value + deviation, value - deviation)]
            moved = np.fmax(*(np.abs(function(*end) - found) for end in ends))
            divides = (name, place) == ("div", 1) or (name == "pow" and given[1] < 0)
            unknown = np.isinf(deviation) | np.isnan(moved) | (divides & (np.abs(value) <= NOISE * deviation))
            moved = np.where(unknown, np.inf, moved)
            square = square + np.where(deviation > 0, moved, 0.0) ** 2
        return found, np.where(np.isfinite(found), np.sqrt(square), 0.0)

    return made


def _put(arrays: list[Array], place: int, array: Array) -> list[Array]:
    """The arrays with another one at its place, of the shape of the one there."""
    shape = arrays[place].shape
    return [*arrays[:place], np.array(np.broadcast_to(array, shape)), *arrays[place + 1 :]]


def _difference(op: Op, operands: Sequence[_Tensor], place: int, deviation: Array, exact: Array) -> Array:
    """By how much a result moves when one operand moves by its deviation, up or down."""
    found: Array = np.full((), np.nan)
    at = operands[place].exact
    for moved in (at + deviation, at - deviation):
        made = _EXACT.apply(op.kind, _put([t.exact for t in operands], place, moved), op.attrs, 0)
        found = np.fmax(found, np.abs(made - exact))
    unknown = np.isinf(deviation)
    if _divides(op, place):  # both ends are far from the pole that lies between them
        unknown |= (deviation > 0) & (np.abs(at) <= NOISE * deviation)
    if unknown.any() and op.kind is OpKind.WHERE:  # what is not chosen is not read
        unknown = unknown & ((operands[0].exact != 0) | (_deviation(operands[0]) > 0))
    if unknown.any():
        mark = _put([np.zeros(t.exact.shape) for t in operands], place, unknown.astype(np.float64))
        found = np.where(_reached(op, mark, exact.shape), np.inf, found)
    return np.where(np.isnan(found), np.where(np.isfinite(exact), np.inf, 0.0), found)  # an infinity stays one


def _turned(op: Op, operands: Sequence[_Tensor], deviation: Array, exact: Array) -> Array:
    """By how much a choice moves where its condition may be 0 or not."""
    condition = operands[0].exact
    unsure = (deviation > 0) & (np.abs(condition) <= deviation)
    other = np.where(unsure, condition == 0, condition).astype(np.float64)
    made = _EXACT.apply(op.kind, [other, *(t.exact for t in operands[1:])], op.attrs, 0)
    return np.where(made == exact, 0.0, np.where(np.isnan(made), np.inf, np.abs(made - exact)))


def _divides(op: Op, place: int) -> bool:
    """Whether the operator divides by this operand."""
    if isinstance(op.attrs, PowAttrs):
        return op.attrs.exponent < 0
    return op.kind is OpKind.DIV and place == 1


def _reached(op: Op, marked: list[Array], shape: tuple[int, ...]) -> Array:
    """Which elements of a result read marked elements of the operands."""
    if Trait.REDUCTION in OPS[op.kind].traits:
        return np.broadcast_to(_EXACT.apply(OpKind.SUM, marked[:1], op.attrs, 0) > 0, shape)
    return np.broadcast_to(sum(marked) > 0, shape)


def _of_kernel(body: BlockGraph, operands: Sequence[_Tensor], dtypes: Sequence[DType]) -> list[_Tensor]:
    """The results of a graph-defined kernel; off by what f32 makes of it."""
    held = [t.exact for t in operands]
    single = FloatAlgebra(np.dtype(np.float64 if DType.F64 in dtypes else np.float32))
    exact, rough = run_block(body, held, _EXACT), run_block(body, [a.astype(single.dtype) for a in held], single)
    rows = zip(exact, rough, dtypes, strict=True)
    return [_Tensor(x, dtype, np.hypot(ROUNDING[dtype] * np.abs(x), np.abs(y - x))) for x, y, dtype in rows]
