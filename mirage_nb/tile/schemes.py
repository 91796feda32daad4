"""How a block's tile of a product is shared out: roles that multiply, the part of the tile and the row of each.

In: the tile's extents, the type and layout of its operands, a precision. Out: a `Scheme`, or None where no rows of the
instruction table fit. Sixteen-bit products are wgmma's, cut as `rules` says; those of f32 and f64 are derived rows
(`groups`), by one kind of instruction or, where a tessellation says so, by several kinds side by side, each with
columns of its own. Of a tile of a few rows more than a team takes, plain cores multiply these rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage_nb.ir import HALVES, DType
from mirage_nb.tile import rules
from mirage_nb.tile.groups import KINDS, ROWS, VECTOR_BYTES, group_name
from mirage_nb.tile.instructions import INSTRUCTIONS, PLAIN_MULTIPLIES, Unit, wgmma
from mirage_nb.tile.program import GROUP, LANES
from mirage_nb.tile.tessellation import Kind, SideBySide, tessellate

KINDS_OF = {"f32": ("fma",), "tf32": ("wgmma_tf32", "mma_tf32"), "3xtf32": ("wgmma_3xtf32", "mma_3xtf32")}
"""The kinds of derived rows behind every precision of f32 products, exact, one TF32 product, three of them; the fastest
first."""
EXACT_KINDS = {DType.F32: ("fma",), DType.F64: ("mma_f64",)}
"""The same by the type of the operands, where they are multiplied as they are."""
PLAIN_KINDS = {DType.F16: "fma_f16", DType.BF16: "fma_bf16", DType.F32: "fma", DType.F64: "fma_f64"}
"""The kind of the plain cores."""
REACHED: dict[str, dict[tuple[int, int], float]] = {
    "fma": {(128, 128): 104.0, (256, 128): 103.0, (128, 64): 94.0, (64, 128): 46.0},
    "fma_lines": {(128, 128): 104.0},
    "mma_tf32": {(256, 128): 350.0},
    "mma_3xtf32": {(128, 128): 150.0},
    "wgmma_tf32": {(256, 128): 718.0, (128, 128): 455.0, (64, 128): 297.0},
    "wgmma_3xtf32": {(128, 128): 224.0, (128, 64): 176.0, (64, 128): 147.0},
    "wgmma": {(128, 256): 1600.0, (256, 128): 1560.0, (128, 128): 1448.0, (64, 256): 1108.0},
    "mma_f64": {(128, 128): 122.0, (128, 64): 108.0, (64, 128): 80.0},
    "mma_f64_zigzag": {(128, 128): 106.0},
    "fma_f64": {(128, 64): 55.0},
}
"""Multiply-adds of a multiprocessor in a cycle of 1755 MHz, by kind and tile, as kernels of one kind reached them on
one H200 with products of LLaMA and Phi layers; of a tile that was not measured, what the first one reached."""
BESIDE = {"fma": 48.0, "fma_f64": 24.0}
"""The same of plain cores where two kinds share a block: they have one group of warps there, which hides few
latencies."""
SIDE_BY_SIDE = SideBySide()
"""What is lost where both units of a multiprocessor work: next to nothing, beside that."""
FEW_ISSUED = 0.4
"""Of the instructions that lanes could issue, those that one group of warps issues for a few rows."""
MATH, LOAD, REST = "math", "load", "rest"
REGISTERS, REGISTER_UNIT, LEAST_REGISTERS, MOST_REGISTERS = 65536, 8, 24, 240
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
    and right, "k" or their own axis "m"; the type of both."""

    rows: int
    columns: int
    depth: int
    sums: int
    majors: tuple[str, str]
    dtype: DType = DType.F32

    @property
    def step(self) -> int:
        """Summed elements of a stage."""
        return rules.step(self.dtype.size)


def scheme(asked: Asked, precision: str) -> Scheme | None:
    """The scheme of one kind of instruction; None where none fits. precision: one of `KINDS_OF`, a kind, or
    two kinds with a plus between them, which share the columns."""
    if rules.few(asked.rows):
        return with_few_rows(asked, precision)
    if "+" in precision:
        return mixed(asked, *precision.split("+"))
    if asked.dtype in HALVES:
        if not rules.fits(asked.rows, asked.columns, asked.depth, asked.sums):
            return None
        team = rules.TEAMS[asked.rows]
        row = wgmma(asked.columns, asked.dtype).name
        role = MathRole(MATH, team.parts, team.math_registers, row, asked.rows // team.parts, asked.columns)
        return Scheme(asked.step, 1, (role,), team.load_warps, team.load_registers)
    if not rules.fits(asked.rows, asked.columns, asked.depth, asked.sums, asked.dtype.size):
        return None
    team = rules.FLOAT_TEAMS[asked.rows]
    height = asked.rows // team.parts
    for kind in kinds_of(precision, asked.dtype):
        name = group_name(kind, height, asked.columns, *asked.majors)
        if name in ROWS and ROWS[name].registers * asked.sums <= rules.ACCUMULATOR_REGISTERS:
            role = MathRole(MATH, team.parts, team.math_registers, name, height, asked.columns)
            return Scheme(asked.step, 0, (role,), team.load_warps, team.load_registers)
    return None


def kinds_of(precision: str, dtype: DType) -> tuple[str, ...]:
    """The kinds that a precision stands for, of products of a type: those that multiply it as it is where none of them
    is for it."""
    named = KINDS_OF.get(precision, (precision,))
    return tuple(k for k in named if k in KINDS and KINDS[k].row.dtype is dtype) or EXACT_KINDS[dtype]


def with_few_rows(asked: Asked, precision: str) -> Scheme | None:
    """Tensor cores for as many rows as a team takes, plain cores for the few that are left: a tile of 130 rows is
    no tile of 192. None where there are no such rows, or too few registers."""
    few = int(rules.few(asked.rows))
    if not rules.fits(asked.rows, asked.columns, asked.depth, asked.sums, asked.dtype.size):
        return None
    main = scheme(replace(asked, rows=asked.rows - few), precision)
    name = group_name(PLAIN_KINDS[asked.dtype], few, asked.columns, *asked.majors)
    if main is None or len(main.math) > 1 or name not in ROWS:
        return None
    (math,) = main.math
    plain = MathRole(REST, 1, needed(name, asked.sums, few), name, few, asked.columns, row=asked.rows - few)
    threads = LANES * (math.warps + 2 * GROUP)
    free = REGISTERS // threads // REGISTER_UNIT * REGISTER_UNIT * threads // (LANES * GROUP)
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
        if name not in ROWS or ROWS[name].registers * asked.sums > rules.ACCUMULATOR_REGISTERS:
            return None
        roles.append(MathRole(kind, parts, needed(name, asked.sums, height), name, height, width, at))
        at += width
    threads = LANES * (sum(role.warps for role in roles) + GROUP)
    taken = LANES * (sum(role.warps * role.registers for role in roles) + GROUP * LEAST_REGISTERS)
    if taken > REGISTERS // threads // REGISTER_UNIT * REGISTER_UNIT * threads:
        return None
    return Scheme(asked.step, 0, tuple(roles), GROUP, LEAST_REGISTERS)


def shares(asked: Asked, tensor: str, plain: str) -> dict[str, int] | None:
    """The columns of each kind: those that are asked for ("kind:columns"), or those of the tessellation of the tile by
    32 columns at a time."""
    named = [kind.partition(":") for kind in (tensor, plain)]
    if all(width.isdecimal() for _, _, width in named):
        given = {kind: int(width) for kind, _, width in named}
        return given if sum(given.values()) == asked.columns and len(given) == 2 else None
    step = rules.FLOAT_STEP
    columns = [
        Kind(kind, (asked.rows, step, step, 1), asked.rows * step**2 / rate(kind, asked.rows, step, beside=True), unit)
        for kind, unit in ((tensor, Unit.TENSOR), (plain, Unit.PLAIN))
        if kind in REACHED
    ]
    found = tessellate((asked.rows, asked.columns, step, 1), columns, SIDE_BY_SIDE)
    widths = {region.kind.name: region.extents[1] for region in found.regions} if found else {}
    return {kind: widths[kind] for kind in (tensor, plain)} if len(widths) == 2 else None


def needed(name: str, sums: int, rows: int) -> int:
    """Registers of a thread that multiplies `rows` by a row of the table: sums, operands and their pieces, and what
    addresses take."""
    row = ROWS[name]
    count = rows // row.m * row.registers * sums + ADDRESSES
    if name not in INSTRUCTIONS:  # what instructions read from shared memory themselves is in no registers
        held = [spread.count for spread in (row.texel.left, row.texel.right) if spread is not None]
        steps = rules.FLOAT_STEP // row.k if row.texel.left is None else 1
        count += sum(held) * row.arithmetic.pieces * steps * (row.sums.size // DType.F32.size)
    return -(-count // REGISTER_UNIT) * REGISTER_UNIT


def rate(kind: str, rows: int, columns: int, *, beside: bool = False) -> float:
    """Multiply-adds of a multiprocessor in a cycle, by warps that share a tile of rows x columns. beside: others of
    another kind multiply there, too. Raises KeyError for a kind that was never measured."""
    if beside and kind in BESIDE:
        return BESIDE[kind]
    measured = REACHED[kind]
    return measured.get((rows, columns)) or next(iter(measured.values()))


def cycles(made: Scheme, depth: int) -> float:
    """Of a multiprocessor for one tile of a scheme, as kernels of its kinds were measured: those of its units, side by
    side."""
    mixed_kinds = len(made.math) > 1 and made.math[-1].name != REST
    units = sorted(_cycles(role, beside=mixed_kinds) * depth for role in made.math)
    return units[-1] + SIDE_BY_SIDE.lost * sum(units[:-1])


def _cycles(role: MathRole, *, beside: bool) -> float:
    """The same of a role, for one summed element."""
    rows = role.parts * role.rows
    if role.name != REST:
        return rows * role.columns / rate(role.instruction.partition(".")[0], rows, role.columns, beside=beside)
    row = ROWS[role.instruction]
    converted = (rows + 1) * (row.dtype.size < row.sums.size)
    issued = 1 + rows + converted + rows * row.dtype.size / VECTOR_BYTES
    return role.columns * issued / (PLAIN_MULTIPLIES * FEW_ISSUED)
