"""The table of instruction tiles: what one instruction multiplies, where its operands lie, which cards have it.

In: nothing. Out: `INSTRUCTIONS`, by name. A row that is not in the table does not exist for planner, validator,
interpreter and printer alike. Rates are those of one multiprocessor.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import product

from mirage_nb.ir import FLOAT8, FLOATS, DType
from mirage_nb.tile.instructions.precision import COMPOSITIONS, EXACT, FEW_CHUNK, Composition
from mirage_nb.tile.instructions.texels import Texel, canonical_group, canonical_matrix, canonical_vector


class Place(enum.Enum):
    """Where a tile lies."""

    GLOBAL = "global"
    SHARED = "shared"
    REGISTER = "register"


class Unit(enum.Enum):
    """What computes: tensor cores, or the plain ones of every lane."""

    TENSOR = "tensor"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class InstructionTile:
    """result[m x n] += left[m x k] @ right[k x n], results in registers of `sums`.

    left, right: where the operands may lie. warps: that issue it together, each with m / warps rows of the result.
    majors: whether an operand in shared memory may have its summed index contiguous, or the other one, in lines of 128
    bytes. capabilities: the compute capabilities that have it, from the first to the last. cycles: of a
    multiprocessor's unit, from one to the next; latency: until a result can be used. function: of the device library.
    texel: where its registers lie in the computation space. composition: the name of what makes an f32 product of
    several of it (`precision`), "" for what multiplies elements as they are. zigzag: whether a derived row issues its
    instances so that each shares an operand with the one in front. other: the type of the right operand, where it may
    be another one. chunk: summed elements after which a result is added to a sum of plain cores and begins anew,
    because it keeps few bits (`precision.FEW_DIGITS`); 0: it need not.
    """

    name: str
    m: int
    n: int
    k: int
    dtype: DType
    left: frozenset[Place]
    right: frozenset[Place]
    warps: int
    unit: Unit
    capabilities: tuple[int, int]
    cycles: float
    latency: float
    function: str
    texel: Texel
    composition: str = ""
    zigzag: bool = True
    other: DType | None = None
    chunk: int = 0

    @property
    def types(self) -> tuple[DType, DType]:
        """Of left and right operands."""
        return self.dtype, self.other or self.dtype

    @property
    def sums(self) -> DType:
        """The type of the results."""
        return DType.F64 if self.dtype is DType.F64 else DType.F32

    @property
    def registers(self) -> int:
        """Of 32 bits, of a thread, for the result; twice as many where chunks are summed apart."""
        words = self.sums.size // DType.F32.size
        return -(-self.m * self.n // (32 * self.warps)) * words * (2 if self.arithmetic.apart else 1)

    @property
    def arithmetic(self) -> Composition:
        """How its products are made."""
        return COMPOSITIONS[self.composition] if self.composition else EXACT[self.sums]

    def on(self, capability: int) -> bool:
        """Whether a card of this compute capability has it."""
        return self.capabilities[0] <= capability <= self.capabilities[1]


TENSOR_MULTIPLIES = 2048
"""16-bit multiply-adds of a multiprocessor's tensor cores in a cycle, where there are warpgroups; half before."""
PLAIN_MULTIPLIES = 128
"""f32 multiply-adds of a multiprocessor's lanes in a cycle."""
DOUBLE_MULTIPLIES = {"tensor": 128, "plain": 64}
"""The same of f64, where there are warpgroups."""
SHARED_LINE = 128
"""Bytes of shared memory that a multiprocessor reads in a cycle."""
NEWEST = 1000
_REGISTERS, _EITHER = frozenset({Place.REGISTER}), frozenset({Place.SHARED, Place.REGISTER})


def _wgmma(n: int, dtype: DType) -> InstructionTile:
    multiplied = 64 * n * 16 / TENSOR_MULTIPLIES
    read = (64 + n) * 16 * dtype.size / SHARED_LINE
    return InstructionTile(
        f"wgmma.m64n{n}k16.{dtype.value}", 64, n, 16, dtype, _EITHER, frozenset({Place.SHARED}), 4, Unit.TENSOR,
        (90, 90), max(multiplied, read), 32 + multiplied, f"wgmma_m64k16<{n}>", canonical_group(n, 16, 2),
    )  # fmt: skip


def _wgmma_f8(n: int, left: DType, right: DType) -> InstructionTile:
    multiplied = 64 * n * 32 / (2 * TENSOR_MULTIPLIES)
    read = (64 + n) * 32 / SHARED_LINE
    return InstructionTile(
        f"wgmma.m64n{n}k32.{left.value}.{right.value}", 64, n, 32, left, frozenset({Place.SHARED}),
        frozenset({Place.SHARED}), 4, Unit.TENSOR, (90, 90), max(multiplied, read), 32 + multiplied,
        f"wgmma_m64k32<{n}, {left.value}>", canonical_group(n, 32, 4), other=right, chunk=FEW_CHUNK,
    )  # fmt: skip


def _wgmma_tf32(n: int) -> InstructionTile:
    multiplied = 64 * n * 8 / (TENSOR_MULTIPLIES / 2)
    return InstructionTile(
        f"wgmma.m64n{n}k8.tf32", 64, n, 8, DType.F32, _REGISTERS, frozenset({Place.SHARED}), 4, Unit.TENSOR,
        (90, 90), multiplied, 32 + multiplied, f"wgmma_m64k8_tf32<{n}>", canonical_group(n, 8, 1), "tf32",
    )  # fmt: skip


def _mma(dtype: DType) -> InstructionTile:
    return InstructionTile(
        f"mma.m16n8k16.{dtype.value}", 16, 8, 16, dtype, _REGISTERS, _REGISTERS, 1, Unit.TENSOR,
        (80, NEWEST), 16 * 8 * 16 / (TENSOR_MULTIPLIES / 2), 33.0, "mma_m16n8k16", canonical_matrix(16, 8, 16, 2),
    )  # fmt: skip


def _fma(dtype: DType) -> InstructionTile:
    """Elements of 16 bits are converted where they are loaded."""
    rate = DOUBLE_MULTIPLIES["plain"] if dtype is DType.F64 else PLAIN_MULTIPLIES
    return InstructionTile(
        f"fma.m1n1k1.{dtype.value}", 1, 1, 1, dtype, _REGISTERS, _REGISTERS, 1, Unit.PLAIN, (50, NEWEST), 1 / rate, 4.0,
        "fused_multiply_add", canonical_vector(),
    )  # fmt: skip


WGMMA_COLUMNS = (8, *range(16, 257, 16))
"""Columns of the products of warpgroups."""

TF32_COLUMNS = (32, 64, 128)
"""The same of TF32."""

F8_COLUMNS = (16, 32, 64, 96, 128, 160, 192)
"""The same of floats of one byte; of more, no thread has the registers for two sums."""

INSTRUCTIONS: dict[str, InstructionTile] = {
    tile.name: tile
    for tile in (
        *(_wgmma(n, dtype) for dtype in (DType.F16, DType.BF16) for n in WGMMA_COLUMNS),
        *(_wgmma_tf32(n) for n in TF32_COLUMNS),
        *(_wgmma_f8(n, *types) for types in product(sorted(FLOAT8, key=str), repeat=2) for n in F8_COLUMNS),
        *(_mma(dtype) for dtype in (DType.F16, DType.BF16)),
        *(_fma(dtype) for dtype in FLOATS),
        InstructionTile("mma.m16n8k8.tf32", 16, 8, 8, DType.F32, _REGISTERS, _REGISTERS, 1, Unit.TENSOR,
                        (80, NEWEST), 16 * 8 * 8 / (TENSOR_MULTIPLIES / 4), 33.0, "mma_m16n8k8_tf32",
                        canonical_matrix(16, 8, 8), "tf32"),
        InstructionTile("mma.m16n8k16.f64", 16, 8, 16, DType.F64, _REGISTERS, _REGISTERS, 1, Unit.TENSOR,
                        (90, NEWEST), 16 * 8 * 16 / DOUBLE_MULTIPLIES["tensor"], 33.0, "mma_m16n8k16_f64",
                        canonical_matrix(16, 8, 16)),
    )
}  # fmt: skip


def wgmma(n: int, left: DType, right: DType | None = None) -> InstructionTile:
    """The product of a warpgroup with n columns, of operands of these types. Raises KeyError if there is none."""
    types = f"k32.{left.value}.{(right or left).value}" if left in FLOAT8 else f"k16.{left.value}"
    return INSTRUCTIONS[f"wgmma.m64n{n}{types}"]
