"""How a block's tile of a product is shared out: roles that multiply, the part of the tile and the row of each.

In: the tile's extents, the type and layout of its operands, a precision. Out: a `Scheme`, or None where no rows of the
instruction table fit. Sixteen-bit products are wgmma's, cut as `rules` says; those of f32 and f64 are derived rows
(`groups`), by one kind of instruction or, where a tessellation says so, by several kinds side by side, each with
columns of its own. Of a tile of a few rows more than a team takes, plain cores multiply these rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from mirage_nb.ir import BYTES, FLOAT8, HALVES, DType
from mirage_nb.tile.instructions import rates
from mirage_nb.tile.instructions.groups import KINDS, ROWS, WIDE_COLUMNS, group_name
from mirage_nb.tile.instructions.table import INSTRUCTIONS, Unit, wgmma
from mirage_nb.tile.instructions.tessellation import Kind, tessellate
from mirage_nb.tile.roles.program import GROUP, LANES
from mirage_nb.tile.rules import teams
from mirage_nb.tile.rules.teams import REGISTER_UNIT, Extent, first_registers

KINDS_OF = {"f32": ("fma",), "tf32": ("wgmma_tf32", "mma_tf32"), "3xtf32": ("wgmma_3xtf32", "mma_3xtf32")}
"""The kinds of derived rows behind every precision of f32 products, exact, one TF32 product, three of them; the first
one where two are as fast."""
EXACT_KINDS = {DType.F32: ("fma",), DType.F64: ("mma_f64",)}
"""The same by the type of the operands, where they are multiplied as they are."""
PLAIN_KINDS = {DType.F16: "fma_f16", DType.BF16: "fma_bf16", DType.F32: "fma", DType.F64: "fma_f64"}
"""The kind of the plain cores."""
MATH, LOAD, REST = "math", "load", "rest"
LEAST_REGISTERS, MOST_REGISTERS = 24, 240
ADDRESSES = 36
"""Registers of a thread for what is neither a sum nor an operand."""


@dataclass(frozen=True, slots=True)
class MathRole:
    """Warps that multiply: `parts` groups of four, each with rows x columns of the tile, one below the other; the first
    of them begins at `row` and `column`. registers: of a thread."""

    name: str
    parts: int
    registers: int
    instruction: str
    rows: int
    columns: int
    column: int = 0
    row: int = 0

    @property
    def warps(self) -> int:
        """Of all parts."""
        return GROUP * self.parts

    @property
    def rest(self) -> bool:
        """Whether second pieces of the left operand lie in shared memory."""
        row = ROWS[self.instruction]
        return row.arithmetic.apart and row.texel.left is None


@dataclass(frozen=True, slots=True)
class Scheme:
    """step: summed elements of a stage. behind: stages whose products may still be under way. math, load: the roles."""

    step: int
    behind: int
    math: tuple[MathRole, ...]
    load_warps: int
    load_registers: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The block's tile: rows x columns, `depth` summed elements, so many accumulators; what runs along a line of left
    and right, "k" or their own axis "m"; the type of left, and of right where it may be another one; whether columns
    are folded behind the products."""

    rows: int
    columns: int
    depth: int
    sums: int
    majors: tuple[str, str]
    dtype: DType = DType.F32
    folded: bool = False
    other: DType | None = None

    @property
    def step(self) -> int:
        """Summed elements of a stage."""
        return teams.step(min(self.dtype.size, (self.other or self.dtype).size))


def scheme(asked: Asked, precision: str) -> Scheme | None:
    """The scheme of one kind of instruction; None where none fits. precision: one of `KINDS_OF`, a kind, or
    two kinds with a plus between them, which share the columns."""
    if asked.dtype in HALVES and asked.other in BYTES:
        return widened(asked)
    if teams.few(asked.rows):
        return with_few_rows(asked, precision)
    if "+" in precision:
        return mixed(asked, *precision.split("+"))
    if not _fits(asked, precision):
        return None
    if asked.dtype in HALVES | FLOAT8:
        team = teams.TEAMS[asked.rows]
        row = wgmma(asked.columns, asked.dtype, asked.other)
        role = MathRole(MATH, team.parts, team.math_registers, row.name, asked.rows // team.parts, asked.columns)
        return Scheme(asked.step, 0 if row.chunk else 1, (role,), team.load_warps, team.load_registers)
    team = teams.FLOAT_TEAMS[asked.rows]
    height = asked.rows // team.parts
    named = {k: group_name(k, height, asked.columns, *asked.majors) for k in kinds_of(precision, asked.dtype)}
    able = [kind for kind, name in named.items() if name in ROWS]
    if not able:
        return None
    fastest = max(able, key=lambda kind: float(rates.rate(kind, asked.rows, asked.columns)))
    role = MathRole(MATH, team.parts, team.math_registers, named[fastest], height, asked.columns)
    return Scheme(asked.step, 0, (role,), team.load_warps, team.load_registers)


def widened(asked: Asked) -> Scheme | None:
    """Groups of warps side by side, each of which widens columns of its own, and multiplies all rows by them."""
    assert asked.other is not None
    if asked.folded or not teams.widened_fits(asked.rows, asked.columns, asked.depth, asked.sums):
        return None
    width, many = min(teams.WIDENED_COLUMNS), teams.WIDENED_COLUMNS[asked.columns]
    name = group_name(f"wgmma_{asked.dtype.value}_{asked.other.value}", asked.rows, width, *asked.majors)
    registers, load_warps, load_registers = (MOST_REGISTERS, GROUP, LEAST_REGISTERS) if many > 1 else (0, 1, 0)
    if name not in ROWS:
        return None
    roles = (MathRole(f"{MATH}{n or ''}", 1, registers, name, asked.rows, width, n * width) for n in range(many))
    return Scheme(asked.step, 0, tuple(roles), load_warps, load_registers)


def kinds_of(precision: str, dtype: DType) -> tuple[str, ...]:
    """The kinds that a precision stands for, of products of a type: those that multiply it as it is where none of them
    is for it."""
    named = KINDS_OF.get(precision, (precision,))
    return tuple(k for k in named if k in KINDS and KINDS[k].row.dtype is dtype) or EXACT_KINDS[dtype]


def apart(precision: str, dtype: DType) -> bool:
    """Whether the kinds of a precision sum chunks in registers of their own."""
    return dtype not in HALVES | FLOAT8 and KINDS[kinds_of(precision, dtype)[0]].apart


def _fits(asked: Asked, precision: str) -> bool:
    doubled = apart(precision, asked.dtype)
    extents = asked.rows, asked.columns, asked.depth
    return bool(teams.fits(*extents, asked.sums, asked.dtype.size, doubled, asked.folded))


def with_few_rows(asked: Asked, precision: str) -> Scheme | None:
    """Tensor cores for as many rows as a team takes, plain cores for the few that are left: a tile of 130 rows is
    no tile of 192. None where there are no such rows, or too few registers."""
    few = int(teams.few(asked.rows))
    if not _fits(asked, precision):
        return None
    main = scheme(replace(asked, rows=asked.rows - few), precision)
    name = group_name(PLAIN_KINDS[asked.dtype], few, asked.columns, *asked.majors)
    if main is None or len(main.math) > 1 or name not in ROWS:
        return None
    (math,) = main.math
    plain = MathRole(REST, 1, needed(name, asked.sums, few), name, few, asked.columns, row=asked.rows - few)
    threads = LANES * (math.warps + 2 * GROUP)
    free = first_registers(threads) * threads // (LANES * GROUP)
    each = (free - plain.registers - LEAST_REGISTERS) // math.parts // REGISTER_UNIT * REGISTER_UNIT
    if each < needed(math.instruction, asked.sums, math.rows):
        return None
    roles = (replace(math, registers=min(each, MOST_REGISTERS)), plain)
    return Scheme(main.step, main.behind, roles, GROUP, LEAST_REGISTERS)


def mixed(asked: Asked, tensor: str, plain: str) -> Scheme | None:
    """Two kinds side by side, each with columns of its own by warps of its own. None where the planner takes one kind,
    or the rows or registers are not there."""
    widths = shares(asked, tensor, plain)
    if widths is None or asked.depth % asked.step or asked.rows % 2:
        return None
    roles, at = [], 0
    for (kind, width), parts in zip(widths.items(), (2, 1), strict=True):
        height = asked.rows // parts
        name = group_name(kind, height, width, *asked.majors)
        if name not in ROWS or ROWS[name].registers * asked.sums > teams.ACCUMULATOR_REGISTERS:
            return None
        roles.append(MathRole(kind, parts, needed(name, asked.sums, height), name, height, width, at))
        at += width
    threads = LANES * (sum(role.warps for role in roles) + GROUP)
    taken = LANES * (sum(role.warps * role.registers for role in roles) + GROUP * LEAST_REGISTERS)
    if taken > first_registers(threads) * threads:
        return None
    return Scheme(asked.step, 0, tuple(roles), GROUP, LEAST_REGISTERS)


def shares(asked: Asked, tensor: str, plain: str) -> dict[str, int] | None:
    """The columns of each kind: those that are asked for ("kind:columns"), or those of the tessellation of the tile by
    32 columns at a time."""
    named = [kind.partition(":") for kind in (tensor, plain)]
    if all(width.isdecimal() for _, _, width in named):
        given = {kind: int(width) for kind, _, width in named}
        return given if sum(given.values()) == asked.columns and len(given) == 2 else None
    step, work = teams.FLOAT_STEP, asked.rows * teams.FLOAT_STEP**2
    columns = [
        Kind(kind, (asked.rows, step, step, 1), work / rates.rate(kind, asked.rows, asked.columns, beside=True), unit)
        for kind, unit in ((tensor, Unit.TENSOR), (plain, Unit.PLAIN))
        if kind in rates.REACHED
    ]
    found = tessellate((asked.rows, asked.columns, step, 1), columns, rates.SIDE_BY_SIDE)
    widths = {region.kind.name: region.extents[1] for region in found.regions} if found else {}
    return {kind: widths[kind] for kind in (tensor, plain)} if len(widths) == 2 else None


def needed(name: str, sums: int, rows: int) -> int:
    """Registers of a thread that multiplies `rows` by a row of the table: sums, operands and their pieces, and what
    addresses take."""
    row = ROWS[name]
    count = rows // row.m * row.registers * sums + ADDRESSES
    if name not in INSTRUCTIONS:  # what instructions read from shared memory themselves is in no registers
        held = [spread.count for spread in (row.texel.left, row.texel.right) if spread is not None]
        steps = teams.FLOAT_STEP // row.k if row.texel.left is None else 1
        count += sum(held) * row.arithmetic.pieces * steps * (row.sums.size // DType.F32.size)
    return -(-count // REGISTER_UNIT) * REGISTER_UNIT


def cycles(made: Scheme, depth: int) -> float:
    """Of a multiprocessor for one tile of a scheme, as kernels of its kinds were measured: those of its units, side by
    side."""
    mixed_kinds = len(made.math) > 1 and made.math[-1].name != REST
    units = [_cycles(role, beside=mixed_kinds) * depth for role in made.math]
    return float(reduce(rates.together, units))


def _cycles(role: MathRole, *, beside: bool) -> Any:
    """The same of a role, for one summed element."""
    rows = role.parts * role.rows
    if role.name == REST:
        return rates.few_cycles(rows, role.columns, ROWS[role.instruction].dtype)
    return rows * role.columns / rates.rate(role.instruction.partition(".")[0], rows, role.columns, beside=beside)


def one_kind(rows: Extent, columns: Extent, major: str, precision: str, dtype: DType) -> tuple[Any, Any]:
    """Of any tile of f32 or f64 products by the fastest kind: the same for one summed element, and for how many rows
    second pieces lie in shared memory; endless where no kind is for it. major: what runs along a line of left."""
    busy: Any = np.inf
    rests: Any = 0
    for name in kinds_of(precision, dtype):
        kind, here = KINDS[name], np.multiply(rows, columns) / rates.rate(name, rows, columns)
        able = not kind.wide or (np.equal(np.mod(columns, WIDE_COLUMNS), 0) & (major == "k"))
        faster = able & (here < busy)
        busy, rests = np.where(faster, here, busy), np.where(faster, rows * (kind.wide and kind.apart), rests)
    return busy, rests
