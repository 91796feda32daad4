"""Where zeros beyond the end of an axis stay zeros, in a block graph whose tiles hang over it.

In: the operators of a block graph in order. Out: for each value the axes along which what lies beyond the end is zero.
What folds such an axis may count zeros: sums and products do not tell. Everything else has to be masked first: times
one before the end and zero behind it; what a maximum is taken of is lowered there. `concrete` puts the masks in, and
the verifier says whether they were enough; `masks_of` says of a structure which they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from mirage_nb.ir import AccumKind, DType, OpKind
from mirage_nb.search.saturation.values import ITER, LOOP, TILE
from mirage_nb.search.structure import KernelStructure

Axes = frozenset[int]

_FIRST = frozenset(
    {
        OpKind.DIV, OpKind.SUM, OpKind.MAX, OpKind.RESCALED_SUM, OpKind.ACCUM, OpKind.RESHAPE, OpKind.TRANSPOSE,
        OpKind.SQR, OpKind.SQRT, OpKind.SILU, OpKind.GELU, OpKind.RELU,
    }
)  # fmt: skip
"""Zero where the first operand is zero."""
KNOWN = 1024
"""Kernels and axes whose masks are remembered."""
_FOLDS = frozenset({OpKind.SUM, OpKind.MAX, OpKind.ACCUM})
_FOLDING = frozenset({AccumKind.SUM, AccumKind.RESCALE, AccumKind.MAX})


def lowest(dtype: DType) -> int:
    """What zeros beyond the end are lowered by before a maximum: no finite f16 is lower, no score of other types."""
    return 65504 if dtype is DType.F16 else 2**127


def zeros(kind: OpKind, operands: Sequence[Axes]) -> Axes:
    """The axes beyond whose end a value is zero, from those of its operands."""
    match kind:
        case OpKind.MUL | OpKind.MATMUL:
            return operands[0] | operands[1]
        case OpKind.ADD | OpKind.SUB:
            return operands[0] & operands[1]
        case _:
            return operands[0] if kind in _FIRST else frozenset()


@dataclass(frozen=True, slots=True)
class Mask:
    """A step of a kernel structure, and the operations that make its value fit to be folded: times one or zero where
    it is not zero already, plus something very low before a maximum."""

    step: int
    operations: int


@lru_cache(maxsize=KNOWN)
def masks_of(kernel: KernelStructure, axis: int, reduced: bool) -> tuple[Mask, ...]:
    """The masks of a kernel whose tiles hang over the end of an axis; `reduced`: one that the program sums."""
    found: list[Mask] = []
    zero: list[Axes] = []

    def end(read: int, along: int, *, lowered: bool) -> None:
        code = kernel.steps[read].type[along]
        placed = code & (LOOP | ITER) or along != kernel.loop  # else sums over iterations: nothing lies behind
        operations = (axis not in zero[read]) + lowered
        if along == axis and code & TILE and placed and operations:
            found.append(Mask(read, operations))
            zero[read] = frozenset() if lowered else frozenset({axis})

    for step in kernel.steps:
        operator = step.operator
        match operator.kind:
            case OpKind.SUM | OpKind.MAX:
                end(step.reads[0], operator.axis, lowered=operator.kind is OpKind.MAX)
            case OpKind.ACCUM if operator.accum in _FOLDING and kernel.loop is not None:
                end(step.reads[0], kernel.loop, lowered=operator.accum is AccumKind.MAX)
            case OpKind.MATMUL if operator.axis not in zero[step.reads[1]]:
                end(step.reads[0], operator.axis, lowered=False)
        if operator.kind is OpKind.IN_ITER:
            zero.append(frozenset({axis}) if step.type[axis] & TILE else frozenset())
        else:
            zero.append(zeros(operator.kind, [zero[read] for read in step.reads]))
        lost = len(step.reads) == 1 and zero[step.reads[0]] - zero[-1]
        if lost and reduced and step.type[axis] & TILE and operator.kind not in _FOLDS:
            found.append(Mask(len(zero) - 1, 1))  # what is to be folded some time
            zero[-1] = lost
    return tuple(found)
