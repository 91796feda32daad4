"""Where zeros beyond the end of an axis stay zeros, in a block graph whose tiles hang over it.

In: the operators of a block graph in order. Out: for each value the axes along which what lies beyond the end is zero.
What folds such an axis may count zeros: sums and products do not tell. Everything else has to be masked first: times
one before the end and zero behind it; what a maximum is taken of is lowered there. `concrete` puts the masks in, and
the verifier says whether they were enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_nb.ir import DType, OpKind

Axes = frozenset[int]

_FIRST = frozenset(
    {
        OpKind.DIV, OpKind.SUM, OpKind.MAX, OpKind.RESCALED_SUM, OpKind.ACCUM, OpKind.RESHAPE, OpKind.TRANSPOSE,
        OpKind.SQR, OpKind.SQRT, OpKind.SILU, OpKind.GELU, OpKind.RELU,
    }
)  # fmt: skip
"""Zero where the first operand is zero."""


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
