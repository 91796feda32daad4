"""Inputs that are drawn from a part of the numbers, for elsewhere the program has no values that tell of a kernel.

In: a tensor program. Out: which inputs are drawn as positive numbers, as ones between 0 and 1, or as 0 and 1, and draws
that are: what a logarithm or a root is taken of is followed back to inputs, as far as sums, products and maxima of
positive numbers are positive. Invariant: an input that nothing of the kind reads is drawn from all numbers; what is
chosen among by a mask asks nothing of it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from mirage_nb.interp.reference import SCALARS
from mirage_nb.ir import COUNTS, OPS, ApplyAttrs, DType, KernelGraph, Op, OpKind, PowAttrs, Trait, formula
from mirage_nb.verify.defined.domain import NEEDS, Need, power

T = TypeVar("T")

PROBES = np.array([-4.0, -0.75, 0.75, 4.0])
"""Where functions are asked for values."""
SPREAD = 32.0
"""The deviation of whole numbers of one byte."""
KEPT = frozenset({
    OpKind.ADD, OpKind.MUL, OpKind.DIV, OpKind.SUM, OpKind.MAX, OpKind.MAXIMUM, OpKind.MATMUL, OpKind.CAST,
    OpKind.CONCAT, OpKind.RELU, OpKind.CLAMP, OpKind.WHERE,
})  # fmt: skip
"""What is positive where its operands are."""
WITHIN = KEPT - {OpKind.ADD, OpKind.DIV, OpKind.SUM, OpKind.MATMUL}
"""What is between 0 and 1 where its operands are."""


class Range(enum.Enum):
    """The numbers that an input is drawn from."""

    POSITIVE = "greater than 0"
    SHARE = "between 0 and 1"
    TRUTH = "0 or 1"
    WHOLE = "whole numbers of one byte"
    NATURAL = "those that are not negative"
    COUNTED = "those that are greater than 0"


def ranges(program: KernelGraph) -> dict[str, Range]:
    """The inputs, by their names, that are not drawn from all numbers."""
    asked: dict[int, Range] = {}
    uses = program.uses()
    constants = program.uniform()
    maker = {values[0]: op for op, values in program.definitions()}
    for value, op in reversed(maker.items()):
        readers = [program.ops[index].kind for index in uses[value]]
        chosen = bool(readers) and all(kind is OpKind.WHERE for kind in readers)
        held = asked.get(value)
        passed = held if _looks_up(op, maker) else _passed(op, held, constants)
        wanted = (None if chosen else _of_operands(op)) or passed
        if wanted is None or _is_square(op, maker, constants):
            continue
        for operand in op.inputs[1:] if op.kind in (OpKind.SUB, OpKind.WHERE) else op.inputs:
            if operand not in constants:
                asked[operand] = max(wanted, asked.get(operand, wanted), key=lambda r: r is Range.SHARE)
    asked |= dict.fromkeys(_choosing(program), Range.TRUTH)
    stored = ((i.name, _stored(i.type.dtype, asked.get(n))) for n, i in enumerate(program.inputs))
    return {name: found for name, found in stored if found is not None}


def _stored(dtype: DType, asked: Range | None) -> Range | None:
    """Numbers of a range that a type has, of whole ones more than a few."""
    if dtype not in COUNTS or asked is Range.TRUTH:
        return asked
    if dtype is DType.BOOL or asked is Range.SHARE:
        return Range.TRUTH
    if asked is Range.POSITIVE:
        return Range.COUNTED
    return Range.WHOLE if dtype is DType.I8 else Range.NATURAL


def _choosing(program: KernelGraph) -> set[int]:
    """Values that nothing reads but to choose by them."""
    uses, found = program.uses(), set[int]()
    for value in reversed(range(len(program.types))):
        readers = [(program.ops[index], program.input_count + index) for index in uses[value]]
        views = (made for op, made in readers if Trait.VIEW in OPS[op.kind].traits)
        others = (op for op, _ in readers if Trait.VIEW not in OPS[op.kind].traits)
        chosen = all(op.kind is OpKind.WHERE and value not in op.inputs[1:] for op in others)
        if readers and value not in program.outputs and chosen and found.issuperset(views):
            found.add(value)
    return found


def _of_operands(op: Op) -> Range | None:
    """Where an operator has values, if not everywhere."""
    match op.attrs:
        case ApplyAttrs(formula=text):
            known = np.isfinite(_at(PROBES, text))
            return None if known.all() or not known[2] else Range.POSITIVE if known[3] else Range.SHARE
        case PowAttrs(exponent=exponent):
            return Range.POSITIVE if power(exponent) in (Need.POSITIVE, Need.NONNEGATIVE) else None
    return Range.POSITIVE if NEEDS.get(op.kind) is Need.NONNEGATIVE else None


def _at(points: np.ndarray[Any, Any], text: str) -> np.ndarray[Any, Any]:
    """What a formula makes of numbers."""
    with np.errstate(all="ignore"):
        found = formula.fold(formula.read(text), points, lambda number: np.asarray(float(number)), SCALARS)
    return np.broadcast_to(found, points.shape)


def _looks_up(op: Op, maker: Mapping[int, Op]) -> bool:
    """Whether an operator multiplies rows of a table by ones where places are equal, and by zeros elsewhere."""
    picks = maker.get(op.inputs[0]) if op.kind is OpKind.MATMUL else None
    if picks is None or not isinstance(picks.attrs, ApplyAttrs):
        return picks is not None and picks.kind is OpKind.EQUAL
    return not _at(PROBES, picks.attrs.formula).any() and bool((_at(np.zeros(1), picks.attrs.formula) == 1).all())


def _is_square(op: Op, maker: Mapping[int, Op], constants: Mapping[int, Fraction]) -> bool:
    """Whether an operator multiplies a value with itself, or with so many times itself."""
    sides = []
    for value in op.inputs:
        scaled = maker.get(value)
        while scaled is not None and scaled.kind is OpKind.MUL and (rest := {*scaled.inputs} - constants.keys()):
            if len(rest) > 1:
                break
            (value,) = rest
            scaled = maker.get(value)
        sides.append(value)
    return op.kind is OpKind.MUL and len({*sides}) == 1


def _passed(op: Op, asked: Range | None, constants: Mapping[int, Fraction]) -> Range | None:
    """What an operator asks of its operands, so that its value is in a range."""
    if asked is None:
        return None
    if op.kind is OpKind.SUB:  # 1 - x
        return Range.SHARE if constants.get(op.inputs[0], 0) > 0 else None
    if any(constants.get(operand, 1) < 0 for operand in op.inputs):
        return None
    kept = KEPT if asked is Range.POSITIVE else WITHIN
    return asked if op.kind in kept or Trait.VIEW in OPS[op.kind].traits else None


def within(values: T, wanted: Range | None) -> T:
    """Normal numbers, as arrays of NumPy or tensors of PyTorch, moved into a range."""
    numbers: Any = values
    moved: T
    match wanted:
        case Range.POSITIVE:
            moved = abs(numbers)
        case Range.SHARE:
            moved = 0.5 ** abs(numbers)
        case Range.TRUTH:
            moved = 1.0 * (numbers > 0)
        case Range.WHOLE:
            moved = (SPREAD * numbers).round()
        case Range.NATURAL:
            moved = abs(SPREAD * numbers).round()
        case Range.COUNTED:
            moved = 1 + abs(SPREAD * numbers).round()
        case None:
            moved = values
    return moved
