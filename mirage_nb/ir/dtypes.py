"""Element types, memory spaces and tensor types.

A tensor type is a shape, an element type and the memory level that holds the tensor: device for kernel
graphs, shared for block graphs, register for thread graphs (paper section 2).
"""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass


class Word(enum.Enum):
    """One of a few. Members are one of a kind; an enum hashes their names, in Python, again and again."""

    __hash__ = object.__hash__


class DType(Word):
    """Element type; the value is the short name used in programs and files."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"
    E4M3 = "f8e4m3"
    E5M2 = "f8e5m2"

    @property
    def size(self) -> int:
        """Bytes per element."""
        return _SIZE[self]


COUNTS = {DType.I8: range(-128, 128), DType.U8: range(256), DType.BOOL: range(2)}
"""The types of whole numbers of one byte."""
BYTES = frozenset({*COUNTS, DType.E4M3, DType.E5M2})
"""Types of one byte, which inputs, and views of them, are stored in. What is computed of them is not of these types,
but of the others' that it is computed with, or f32."""

FLOAT8 = frozenset({DType.E4M3, DType.E5M2})
"""The floats of one byte, which tensor cores multiply with each other."""

FLOATS = tuple(dtype for dtype in DType if dtype not in BYTES)
"""The types of what is computed."""

_SIZE = {DType.F16: 2, DType.BF16: 2, DType.F32: 4, DType.F64: 8} | dict.fromkeys(BYTES, 1)

HALVES = frozenset({DType.F16, DType.BF16})
"""The types of two bytes, which tensor cores multiply."""

FORMATS = {
    DType.F16: (10, 15), DType.BF16: (7, 127), DType.F32: (23, 127), DType.F64: (52, 1023), DType.E5M2: (2, 15),
    DType.E4M3: (3, 8),
}  # fmt: skip
"""Digits behind the point of types, and their largest exponents."""
LARGEST = {dtype: 2 ** (exponent + 1) - 2 ** (exponent - digits) for dtype, (digits, exponent) in FORMATS.items()}
LARGEST[DType.F64] = LARGEST[DType.F32]
LARGEST[DType.E4M3] = 448  # it has no infinity, and NaN in place of its last number
"""The largest numbers of types, of double precision the largest that constants may be."""

DTYPE_NAMES: dict[str, DType] = {
    "f16": DType.F16, "float16": DType.F16, "half": DType.F16,
    "bf16": DType.BF16, "bfloat16": DType.BF16,
    "f32": DType.F32, "float32": DType.F32, "float": DType.F32,
    "f64": DType.F64, "float64": DType.F64, "double": DType.F64,
    "i8": DType.I8, "int8": DType.I8, "u8": DType.U8, "uint8": DType.U8, "bool": DType.BOOL,
    "f8e4m3": DType.E4M3, "float8_e4m3fn": DType.E4M3, "f8e5m2": DType.E5M2, "float8_e5m2": DType.E5M2,
}  # fmt: skip


class MemSpace(Word):
    """Where a tensor lives."""

    DEVICE = "device"
    SHARED = "shared"
    REGISTER = "register"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape (extents per dimension, outermost first), element type and memory space."""

    shape: tuple[int, ...]
    dtype: DType
    space: MemSpace = MemSpace.DEVICE

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.elements * self.dtype.size

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.shape))}]"


def computed(dtype: DType) -> DType:
    """The element type of what is computed of this one alone."""
    return DType.F32 if dtype in BYTES else dtype


def promote(left: DType, right: DType) -> DType:
    """The element type of an operator on two element types: the wider one; f16 with bf16 gives f32, and so do two
    of one byte that differ."""
    if left is right:
        return left
    if {left, right} <= BYTES:
        return DType.F32
    if {left, right} == HALVES:
        return DType.F32
    return max(left, right, key=lambda dtype: dtype.size)


def multiplied_as(left: DType, right: DType) -> DType:
    """The element type of factors on tensor cores: that of the wider one; of two floats of one byte f16, which has
    both exactly."""
    return DType.F16 if {left, right} <= FLOAT8 else promote(left, right)


def result_dtype(operands: tuple[TensorType, ...]) -> DType:
    """The widest element type of the operands; scalars (constants) take that of their partner."""
    typed = [t.dtype for t in operands if t.shape != ()] or [t.dtype for t in operands]
    return functools.reduce(promote, typed) if typed else DType.F32
