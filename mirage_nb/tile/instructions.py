"""The table of instruction tiles: what one instruction multiplies, where its operands lie, which cards have it.

In: nothing. Out: `INSTRUCTIONS`, by name. A row that is not in the table does not exist for planner, validator,
interpreter and printer alike. Rates are those of one multiprocessor.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mirage_nb.ir import DType


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
    """result[m x n] += left[m x k] @ right[k x n], results in f32 registers.

    left, right: where the operands may lie. warps: that issue it together, each with m / warps rows of the result.
    majors: whether an operand in shared memory may have its summed index contiguous, or the other one, in lines of 128
    bytes. capabilities: the compute capabilities that have it, from the first to the last. cycles: of a
    multiprocessor's unit, from one to the next; latency: until a result can be used. function: of the device library.
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

    @property
    def registers(self) -> int:
        """Of a thread, for the result."""
        return self.m * self.n // (32 * self.warps)

    def on(self, capability: int) -> bool:
        """Whether a card of this compute capability has it."""
        return self.capabilities[0] <= capability <= self.capabilities[1]


TENSOR_MULTIPLIES = 2048
"""16-bit multiply-adds of a multiprocessor's tensor cores in a cycle, where there are warpgroups; half before."""
SHARED_LINE = 128
"""Bytes of shared memory that a multiprocessor reads in a cycle."""
NEWEST = 1000
_REGISTERS, _EITHER = frozenset({Place.REGISTER}), frozenset({Place.SHARED, Place.REGISTER})


def _wgmma(n: int, dtype: DType) -> InstructionTile:
    multiplied = 64 * n * 16 / TENSOR_MULTIPLIES
    read = (64 + n) * 16 * dtype.size / SHARED_LINE
    return InstructionTile(
        f"wgmma.m64n{n}k16.{dtype.value}", 64, n, 16, dtype, _EITHER, frozenset({Place.SHARED}), 4, Unit.TENSOR,
        (90, 90), max(multiplied, read), 32 + multiplied, f"wgmma_m64k16<{n}>",
    )  # fmt: skip


def _mma(dtype: DType) -> InstructionTile:
    return InstructionTile(
        f"mma.m16n8k16.{dtype.value}", 16, 8, 16, dtype, _REGISTERS, _REGISTERS, 1, Unit.TENSOR,
        (80, NEWEST), 16 * 8 * 16 / (TENSOR_MULTIPLIES / 2), 33.0, "mma_m16n8k16",
    )  # fmt: skip


WGMMA_COLUMNS = (8, *range(16, 257, 16))
"""Columns of the products of warpgroups."""

INSTRUCTIONS: dict[str, InstructionTile] = {
    tile.name: tile
    for tile in (
        *(_wgmma(n, dtype) for dtype in (DType.F16, DType.BF16) for n in WGMMA_COLUMNS),
        *(_mma(dtype) for dtype in (DType.F16, DType.BF16)),
        InstructionTile("fma.m1n1k1.f32", 1, 1, 1, DType.F32, _REGISTERS, _REGISTERS, 1, Unit.PLAIN,
                        (50, NEWEST), 1 / 128, 4.0, "fused_multiply_add"),
    )
}  # fmt: skip


def wgmma(n: int, dtype: DType) -> InstructionTile:
    """The product of a warpgroup with n columns. Raises KeyError if there is none."""
    return INSTRUCTIONS[f"wgmma.m64n{n}k16.{dtype.value}"]
