"""How a block's tile of a product is shared out: roles that multiply, the part of the tile and the row of each.

In: the tile's extents, the type and layout of its operands, a precision. Out: a `Scheme`, or None where no rows of the
instruction table fit. Sixteen-bit products are wgmma's, cut as `rules` says; products of f32 are those of the derived
rows (`groups`), by one kind of instruction or, where a tessellation says so, by several kinds side by side, each with
columns of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir import DType
from mirage_nb.tile import rules
from mirage_nb.tile.groups import ROWS, group_name
from mirage_nb.tile.instructions import Unit, wgmma
from mirage_nb.tile.precision import COMPOSITIONS
from mirage_nb.tile.program import GROUP, LANES
from mirage_nb.tile.tessellation import Kind, SideBySide, tessellate

KINDS_OF = {"f32": ("fma",), "tf32": ("wgmma_tf32", "mma_tf32"), "3xtf32": ("wgmma_3xtf32", "mma_3xtf32")}
"""The kinds of derived rows behind every precision of f32 products, exact, one TF32 product, three of them; the fastest
first."""
MULTIPLIES = {"fma": 99.7, "mma_tf32": 350.0, "mma_3xtf32": 155.0, "wgmma_tf32": 682.0, "wgmma_3xtf32": 206.0}
"""Multiply-adds of a multiprocessor in a cycle of 1755 MHz, as kernels of one kind reach them on one H200 with products
of 4096 cubed."""
BESIDE = {**MULTIPLIES, "fma": 48.0}
"""The same where two kinds share a block: the plain cores have one group of warps there, which hides few latencies."""
SIDE_BY_SIDE = SideBySide()
"""What is lost where both units of a multiprocessor work: next to nothing, beside that."""
MATH, LOAD = "math", "load"
REGISTERS, REGISTER_UNIT, LEAST_REGISTERS = 65536, 8, 24
ADDRESSES = 36
"""Registers of a thread for what is neither a sum nor an operand."""


@dataclass(frozen=True, slots=True)
class MathRole:
    """Warps that multiply: `parts` groups of four, each with rows x columns of the tile, one below the other; the first
    of them begins at `column`. registers: of a thread."""

    name: str
    parts: int
    registers: int
    instruction: str
    rows: int
    columns: int
    column: int = 0

    @property
    def warps(self) -> int:
        """Of all parts."""
        return GROUP * self.parts

    @property
    def rest(self) -> bool:
        """Whether second pieces of the left operand lie in shared memory."""
        row = ROWS[self.instruction]
        return row.apart and row.texel.left is None


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
    and right, "k" or their own axis "m"."""

    rows: int
    columns: int
    depth: int
    sums: int
    majors: tuple[str, str]


def scheme(dtype: DType, asked: Asked, precision: str) -> Scheme | None:
    """The scheme of one kind of instruction; None where none fits. precision: one of `KINDS_OF`, a kind, or
    two kinds with a plus between them, which share the columns."""
    if dtype is not DType.F32:
        if not rules.fits(asked.rows, asked.columns, asked.depth, asked.sums):
            return None
        team = rules.TEAMS[asked.rows]
        row = wgmma(asked.columns, dtype).name
        role = MathRole(MATH, team.parts, team.math_registers, row, asked.rows // team.parts, asked.columns)
        return Scheme(rules.STEP, 1, (role,), team.load_warps, team.load_registers)
    if "+" in precision:
        return mixed(asked, *precision.split("+"))
    float_team = rules.FLOAT_TEAMS.get(asked.rows)
    if float_team is None or asked.depth % rules.FLOAT_STEP:
        return None
    height = asked.rows // float_team.parts
    for kind in KINDS_OF.get(precision, (precision,)):
        name = group_name(kind, height, asked.columns, *asked.majors)
        if name in ROWS and ROWS[name].registers * asked.sums <= rules.ACCUMULATOR_REGISTERS:
            role = MathRole(MATH, float_team.parts, float_team.math_registers, name, height, asked.columns)
            return Scheme(rules.FLOAT_STEP, 0, (role,), float_team.load_warps, float_team.load_registers)
    return None


def mixed(asked: Asked, tensor: str, plain: str) -> Scheme | None:
    """Two kinds side by side, each with columns of its own by warps of its own. None where the planner takes one kind,
    or the rows or registers are not there."""
    widths = shares(asked, tensor, plain)
    if widths is None or asked.depth % rules.FLOAT_STEP or asked.rows % 2:
        return None
    roles, at = [], 0
    for (kind, width), parts in zip(widths.items(), (2, 1), strict=True):
        height = asked.rows // parts
        name = group_name(kind, height, width, *asked.majors)
        if name not in ROWS or ROWS[name].registers * asked.sums > rules.ACCUMULATOR_REGISTERS:
            return None
        roles.append(MathRole(kind, parts, needed(name, asked.sums), name, height, width, at))
        at += width
    threads = LANES * (sum(role.warps for role in roles) + GROUP)
    taken = LANES * (sum(role.warps * role.registers for role in roles) + GROUP * LEAST_REGISTERS)
    if taken > REGISTERS // threads // REGISTER_UNIT * REGISTER_UNIT * threads:
        return None
    return Scheme(rules.FLOAT_STEP, 0, tuple(roles), GROUP, LEAST_REGISTERS)


def shares(asked: Asked, tensor: str, plain: str) -> dict[str, int] | None:
    """The columns of each kind: those that are asked for ("kind:columns"), or those of the tessellation of the tile by
    32 columns at a time."""
    named = [kind.partition(":") for kind in (tensor, plain)]
    if all(width.isdecimal() for _, _, width in named):
        given = {kind: int(width) for kind, _, width in named}
        return given if sum(given.values()) == asked.columns and len(given) == 2 else None
    columns = [
        Kind(kind, (asked.rows, rules.FLOAT_STEP, rules.FLOAT_STEP, 1), cycles(kind, asked.rows), unit)
        for kind, unit in ((tensor, Unit.TENSOR), (plain, Unit.PLAIN))
        if kind in MULTIPLIES
    ]
    found = tessellate((asked.rows, asked.columns, rules.FLOAT_STEP, 1), columns, SIDE_BY_SIDE)
    widths = {region.kind.name: region.extents[1] for region in found.regions} if found else {}
    return {kind: widths[kind] for kind in (tensor, plain)} if len(widths) == 2 else None


def cycles(kind: str, rows: int) -> float:
    """Of a multiprocessor for 32 columns and 32 summed elements, beside another kind, as measured."""
    return rows * rules.FLOAT_STEP**2 / BESIDE[kind]


def needed(name: str, sums: int) -> int:
    """Registers of a thread: sums, operands and their pieces, and what addresses take."""
    row = ROWS[name]
    held = [spread.count for spread in (row.texel.left, row.texel.right) if spread is not None]
    pieces = COMPOSITIONS[row.composition].pieces if row.composition else 1
    steps = rules.FLOAT_STEP // row.k if row.texel.left is None else 1
    count = row.registers * sums + sum(held) * pieces * steps + ADDRESSES
    return -(-count // REGISTER_UNIT) * REGISTER_UNIT
