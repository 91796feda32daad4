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
from mirage_nb.tile.instructions import wgmma
from mirage_nb.tile.program import GROUP

PRECISIONS = {"f32": ("fma",), "tf32": ("wgmma_tf32", "mma_tf32"), "3xtf32": ("wgmma_3xtf32", "mma_3xtf32")}
"""The kinds of derived rows behind every precision of f32 products, exact, one TF32 product, three of them; the fastest
first."""
MATH, LOAD = "math", "load"


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
    """The scheme of one kind of instruction; None where none fits. precision: one of `PRECISIONS`, or a kind."""
    if dtype is not DType.F32:
        if not rules.fits(asked.rows, asked.columns, asked.depth, asked.sums):
            return None
        team = rules.TEAMS[asked.rows]
        row = wgmma(asked.columns, dtype).name
        role = MathRole(MATH, team.parts, team.math_registers, row, asked.rows // team.parts, asked.columns)
        return Scheme(rules.STEP, 1, (role,), team.load_warps, team.load_registers)
    float_team = rules.FLOAT_TEAMS.get(asked.rows)
    if float_team is None or asked.depth % rules.FLOAT_STEP:
        return None
    height = asked.rows // float_team.parts
    for kind in PRECISIONS.get(precision, (precision,)):
        name = group_name(kind, height, asked.columns, *asked.majors)
        if name in ROWS and ROWS[name].registers * asked.sums <= rules.ACCUMULATOR_REGISTERS:
            role = MathRole(MATH, float_team.parts, float_team.math_registers, name, height, asked.columns)
            return Scheme(rules.FLOAT_STEP, 0, (role,), float_team.load_warps, float_team.load_registers)
    return None
