"""The rules by which products of many rows are cut into roles, stages and instructions: one set for all who ask.

In: extents, as numbers (the planner of one block) or as arrays of them (the ranking of thousands of sizes at once).
Out: the same kind. Nothing else decides what a warp-specialised product looks like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirage_nb.tile.instructions.table import F8_COLUMNS, WGMMA_COLUMNS
from mirage_nb.tile.roles.program import GROUP, LANES, REGISTER_BYTES

Extent = int | npt.NDArray[np.float64]

CAPABILITY = 90
"""The compute capability whose warpgroups multiply, and hand registers over."""
STEP = 64
"""Summed 16-bit elements of a stage: a line of shared memory, and the width of a panel."""
HEIGHT = 64
"""Rows of an instruction."""
LEAST_COLUMNS = 16
DEEPEST = 12
"""Stages at most: about what is on its way in the time of one trip to memory."""
SHALLOWEST = 3
ACCUMULATOR_REGISTERS = 128
"""Of a thread, for all sums."""
TWICE_REGISTERS = {1: 192, 2: 192, 3: 128}
"""By warpgroups: the same, where a sum of few bits is beside each."""
BYTE, FLOAT, DOUBLE = 1, 4, 8
"""Bytes of a float of one byte, of an f32 and of an f64 element."""
QUAD = 4
"""Lanes that hold the columns of a row of a fragment."""
RESERVED_BYTES = 1024
"""Shared memory of a block kept for barriers, small static arrays and the driver."""
VARIANTS = ((8, 4, False), (4, 4, False), (4, 2, False), (8, 4, True), (4, 4, True), (4, 2, True))
"""Warps, stages and wide of the ways to emit a block whose loop body stays with warps, the default one first: with
fewer warps and stages more blocks run side by side."""
REGISTERS, REGISTER_UNIT = 65536, 8
"""Of a multiprocessor; threads have a multiple of the unit."""
BESIDE_SUMS = 26
"""Registers of a thread beside the results of one product of a warpgroup, which is compiled only where threads begin
with so many, whatever they claim later."""


def first_registers(threads: int, registers: int = REGISTERS) -> int:
    """Of a thread, when a block of so many begins that has a multiprocessor for itself."""
    return registers // threads // REGISTER_UNIT * REGISTER_UNIT


@dataclass(frozen=True, slots=True)
class Team:
    """How many warpgroups multiply, and the registers of their threads and of those that load (0: the compiler's)."""

    parts: int
    math_registers: int
    load_registers: int
    load_warps: int

    @property
    def first_registers(self) -> int:
        """Of a thread, before any are handed over."""
        return first_registers(LANES * (GROUP * self.parts + self.load_warps))


TEAMS: dict[int, Team] = {
    64: Team(1, 0, 0, 1),
    128: Team(2, 240, 24, GROUP),
    192: Team(3, 160, 32, GROUP),
    256: Team(2, 240, 24, GROUP),
}
"""By the rows of a block's tile."""


FLOAT_STEP = 32
"""Summed f32 elements of a stage: a line of shared memory."""
FLOAT_TEAMS: dict[int, Team] = {64: Team(1, 0, 0, 1), 128: Team(2, 240, 24, GROUP), 256: Team(2, 240, 24, GROUP)}
"""Of products of f32 and of f64."""
FLOAT_COLUMNS = (32, 64, 128, 256)
FEWEST, FEW = 1, 7
"""Rows beyond a multiple of an instruction's, which plain cores multiply instead of a whole instruction more."""
FEW_COLUMNS = (128, 256)
FEW_REGISTERS = {1: 128, 2: 64}
"""By warpgroups beside such rows: of a thread, for all sums; the fourth group leaves each of them fewer."""


def step(width: int) -> int:
    """Summed elements of a stage, where an element has `width` bytes: a line of shared memory."""
    return STEP * 2 // width


def few(rows: Extent) -> Any:
    """Rows of a tile that plain cores multiply; 0 where there are none."""
    left = np.mod(rows, HEIGHT)
    return np.where((left >= FEWEST) & (left <= FEW) & np.greater(rows, HEIGHT), left, 0)


def parts(rows: Extent, width: int = 2) -> Any:
    """Warpgroups that multiply, those of plain cores for a few rows not counted; 0 where no team is for so many."""
    teams, main = FLOAT_TEAMS if width >= FLOAT else TEAMS, rows - few(rows)
    return sum(np.where(np.equal(main, height), team.parts, 0) for height, team in teams.items())


def fits(
    rows: Extent, columns: Extent, depth: Extent, sums: int, width: int = 2, apart: bool = False, folded: bool = False
) -> Any:
    """Whether a tile of `sums` accumulators, each of rows x columns, is one for a team; depth: summed elements, of
    `width` bytes; apart: chunks are summed in registers of their own; folded: columns are folded behind the products,
    by lanes that have a row to themselves."""
    many, byte = parts(rows, width), width == BYTE
    words, left = max(1, width // FLOAT) * (2 if apart or byte else 1), few(rows)
    each = np.multiply(rows - left, columns) * words * sums / np.maximum(many, 1) / (LANES * GROUP)
    known = np.isin(columns, FLOAT_COLUMNS if width >= FLOAT else F8_COLUMNS if byte else WGMMA_COLUMNS)
    twice = sum(np.where(np.equal(many, count), most, 0) for count, most in TWICE_REGISTERS.items())
    room = sum(np.where(np.equal(many, count), most, 0) for count, most in FEW_REGISTERS.items())
    known &= (left == 0) | (np.isin(columns, FEW_COLUMNS) & (each <= room) & (sums == 1) & (BYTE < width < DOUBLE))
    known &= np.greater_equal(columns, LEAST_COLUMNS) & (not folded or ((left == 0) & (width < FLOAT)))
    if width < FLOAT:
        begin = sum(np.where(np.equal(rows - left, height), t.first_registers, 0) for height, t in TEAMS.items())
        known &= np.multiply(HEIGHT / LANES / GROUP, columns) + BESIDE_SUMS <= begin
    known &= each <= (twice if byte else ACCUMULATOR_REGISTERS)
    return (many > 0) & known & np.equal(np.mod(depth, step(width)), 0)


WIDENED_COLUMNS = {64: 1, 128: 2}
"""By the columns of a block's tile: the warpgroups that multiply by what they widen, each all rows by 64 columns."""


def widened_fits(rows: Extent, columns: Extent, depth: Extent, sums: int) -> Any:
    """Whether a tile is one for warpgroups that widen right operands of one byte in registers."""
    known = np.isin(rows, WGMMA_COLUMNS) & np.greater_equal(rows, LEAST_COLUMNS) & np.isin(columns, [*WIDENED_COLUMNS])
    each = np.multiply(rows, min(WIDENED_COLUMNS)) * sums / (LANES * GROUP)
    return known & (each <= ACCUMULATOR_REGISTERS) & np.equal(np.mod(depth, step(BYTE)), 0)


def low_columns(rank: int, *, along: bool) -> int:
    """Columns of an accumulated product of low rank, which instructions sum sixteen at a time; along: lines of what it
    is multiplied by, which come whole."""
    unit = STEP if along else LEAST_COLUMNS
    return -(-rank // unit) * unit


def low_fits(rows: Extent, columns: Extent, sums: int, low: int) -> Any:
    """Whether so many accumulators leave registers for products of low rank, with `low` columns together, and for what
    they are rounded to; no more than a line may be summed behind the loop."""
    each = np.multiply(rows, np.multiply(columns, sums) + 1.5 * low) / np.maximum(parts(rows), 1) / (LANES * GROUP)
    return (low == 0) | ((low <= STEP) & (each <= ACCUMULATOR_REGISTERS))


def stages(nbytes: Extent, memory: Extent) -> Any:
    """Stages of the ring: nbytes that land in one of them, of `memory` bytes that a block may take. Fewer than
    `SHALLOWEST` are too few."""
    return np.minimum(DEEPEST, np.floor_divide(memory - RESERVED_BYTES, nbytes))


def ahead(asked: int, steps: int, ring: int) -> int:
    """Steps of a product that a group of warps may be ahead of the next one: what they hold is not loaded anew, and two
    stages at least are."""
    return max(0, min(asked, steps - 1, ring - 2))


CHAINED_REGISTERS = {64: 192, 128: 192, 192: 128}
"""By the rows of a block's tile: of a thread, for scores, weights and result of two chained products."""
DEEPEST_CHAINED = 4
"""Stages of keys and values at most."""


def chained_stages(rows: Extent, keys: Extent, depth: Extent, columns: Extent, memory: int) -> Any:
    """Stages of the rings of keys and of values, beside the queries."""
    free = memory - RESERVED_BYTES - 2 * np.multiply(rows, depth)
    return np.minimum(DEEPEST_CHAINED, np.floor_divide(free, 2 * np.multiply(keys, np.add(depth, columns))))


def registers_beside(keys: Extent, width: int, rows: Any) -> Any:
    """Of a thread, for elements of `width` bytes that are read of so many keys, and of its two rows, if they differ by
    `rows`."""
    return np.ceil(np.multiply(keys, np.where(rows, 2, 1)) * width / (QUAD * REGISTER_BYTES))


def chained_fits(rows: Extent, keys: Extent, depth: Extent, columns: Extent, memory: int, beside: Any = 0) -> Any:
    """Whether a team multiplies `rows` of 16-bit elements by `keys`, and what comes of that by `columns`. beside:
    registers of a thread for what else an iteration reads."""
    threads = LANES * GROUP
    held = HEIGHT * (np.add(keys, columns) + np.divide(keys, 2)) / threads + beside
    most = sum(np.where(np.equal(rows, height), room, 0) for height, room in CHAINED_REGISTERS.items())
    known = np.isin(columns, WGMMA_COLUMNS) & np.isin(keys, WGMMA_COLUMNS) & np.equal(np.mod(keys, 16), 0)
    return (
        known & (held <= most) & np.equal(np.mod(depth, STEP), 0) & np.equal(np.mod(columns, STEP), 0)
        & (chained_stages(rows, keys, depth, columns, memory) >= 2)
    )  # fmt: skip
