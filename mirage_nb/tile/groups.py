"""Derived rows: what a group of four warps multiplies of f32 tiles in shared memory, by one instruction issued often.

In: the instruction table. Out: `GROUPS`, and with the table `ROWS`, which planner, validator, price and printer read. A
row is a texel of the plain cores or of the tensor cores, repeated over registers and warps; which of its elements are
neighbours follows from how the operands lie in shared memory: what runs along a line there is loaded four at a time, so
registers that are filled together hold neighbours (Figure 6c of the paper).
"""

from __future__ import annotations

from dataclasses import replace

from mirage_nb.tile.instructions import INSTRUCTIONS, TF32_COLUMNS, InstructionTile, Place
from mirage_nb.tile.program import GROUP, Product, Program, flat
from mirage_nb.tile.texels import Texel, derived, nearest, over_warps, repeated, swapped

VECTOR = 4
"""Floats that one load brings."""
LANE_ROWS, LANE_COLUMNS = 4, 8
"""The outer product of a warp's lanes."""
MOST_SUMS = 128
"""Registers of a thread for results."""
WARPS = ((1, 4), (2, 2), (4, 1))
ROW_EXTENTS, COLUMN_EXTENTS = (32, 64, 128), (32, 64, 128, 256)
MAJORS = ("k", "m")
"""Which index of an operand runs along a line of shared memory: the summed one, or its own."""


def group_name(kind: str, m: int, n: int, left: str, right: str) -> str:
    """Of a derived row of a kind."""
    return f"{kind}.m{m}n{n}k{4 if kind == 'fma' else 8}.{left}{right}"


def group_texel(row: InstructionTile, m: int, n: int, left: str, right: str) -> Texel | None:
    """The texel of four warps that multiply m x n; None where none fits."""
    found = []
    for warp_rows, warp_columns in WARPS:
        one = _warp_texel(row, m // warp_rows, n // warp_columns, left, right)
        if one is not None and one.left is not None and one.right is not None:
            loaded = one.left.count + one.right.count
            found.append((loaded, over_warps(over_warps(one, "i", warp_rows), "j", warp_columns)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _warp_texel(row: InstructionTile, rows: int, columns: int, left: str, right: str) -> Texel | None:
    vector = row.texel.extents[:3] == (1, 1, 1)
    one = derived(row.texel, LANE_ROWS, LANE_COLUMNS) if vector else row.texel
    if rows % one.m or columns % one.n:
        return None
    down, across = rows // one.m, columns // one.n
    near_rows = min(VECTOR, down) if left == "m" else 1
    near_columns = min(VECTOR, across) if right == "m" else 1
    made = repeated(repeated(one, "i", near_rows, near=True), "j", near_columns, near=True)
    made = repeated(made, "k", VECTOR if vector else 1)
    return repeated(repeated(made, "i", down // near_rows), "j", across // near_columns)


def wide_texel(rows: int, columns: int, right: str) -> Texel:
    """wgmma with operands swapped: right, transposed, comes from registers, left from shared memory as it lies."""
    grown = repeated(INSTRUCTIONS[f"wgmma.m64n{rows}k8.tf32"].texel, "i", columns // 64)
    return swapped(nearest(grown, "i") if right == "m" else grown)


def _row(kind: str, m: int, n: int, left: str, right: str) -> InstructionTile | None:
    """A derived row, None where there is none."""
    wide = kind.startswith("wgmma")
    if wide and (left != "k" or m not in TF32_COLUMNS or n % 64):
        return None
    one = INSTRUCTIONS[f"wgmma.m64n{m}k8.tf32" if wide else KINDS[kind]]
    texel = wide_texel(m, n, right) if wide else group_texel(one, m, n, left, right)
    if texel is None:
        return None
    shared = frozenset({Place.SHARED})
    composition = {"fma": ""}.get(kind, kind.partition("_")[2])
    cycles = m * n * texel.k / (one.m * one.n * one.k) * one.cycles * (3 if composition == "3xtf32" else 1)
    made = replace(
        one, name=group_name(kind, m, n, left, right), m=m, n=n, k=texel.k, left=shared, right=shared, warps=GROUP,
        cycles=cycles, texel=texel, composition=composition,
    )  # fmt: skip
    return made if made.registers <= MOST_SUMS else None


KINDS = {
    "fma": "fma.m1n1k1.f32", "mma_tf32": "mma.m16n8k8.tf32", "mma_3xtf32": "mma.m16n8k8.tf32",
    "wgmma_tf32": "wgmma.m64n64k8.tf32", "wgmma_3xtf32": "wgmma.m64n64k8.tf32",
}  # fmt: skip
"""The instruction behind every kind of row, of wgmma one of several."""

GROUPS: dict[str, InstructionTile] = {
    row.name: row
    for kind in KINDS
    for m in ROW_EXTENTS
    for n in COLUMN_EXTENTS
    for left in MAJORS
    for right in MAJORS
    if (row := _row(kind, m, n, left, right)) is not None
}
ROWS: dict[str, InstructionTile] = INSTRUCTIONS | GROUPS


def rows_of(program: Program) -> frozenset[InstructionTile]:
    """The rows of the table that a program multiplies with."""
    statements = (s for _, code in program.code for s in flat(code))
    return frozenset(ROWS[s.instruction] for s in statements if isinstance(s, Product))
