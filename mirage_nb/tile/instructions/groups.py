"""Derived rows: what a group of four warps multiplies of tiles in shared memory, by one instruction issued often.

In: the instruction table. Out: `GROUPS`, and with the table `ROWS`, which planner, validator, price and printer read. A
row is a texel of the plain cores or of the tensor cores, repeated over registers and warps; which of its elements are
neighbours follows from how the operands lie in shared memory: what runs along a line there is loaded 16 bytes at a
time, so registers that are filled together hold neighbours (Figure 6c of the paper). Rows of a few rows only are for
what a tile of tensor cores leaves of odd extents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mirage_nb.ir import BYTES, HALVES, DType
from mirage_nb.tile.instructions.precision import COMPOSITIONS
from mirage_nb.tile.instructions.table import INSTRUCTIONS, WGMMA_COLUMNS, InstructionTile, Place
from mirage_nb.tile.instructions.texels import Texel, derived, in_bits, nearest, over_warps, renamed, repeated, swapped
from mirage_nb.tile.roles.program import GROUP, LANES, Product, Program
from mirage_nb.tile.rules.register_resident import VECTOR_BYTES
from mirage_nb.tile.rules.teams import FEW, FEWEST, LEAST_COLUMNS

WIDE_COLUMNS = 64
"""Of one product of a warpgroup whose operands are swapped: the instruction's rows."""
LANE_ROWS = 4
"""The outer product of a warp's lanes; of fewer rows, one row."""
MOST_SUMS = 128
"""Registers of a thread for results."""
WARPS = ((1, 4), (2, 2), (4, 1))
WIDENED_ROWS = tuple(n for n in WGMMA_COLUMNS if n >= LEAST_COLUMNS)
"""Of products whose right operand is widened."""
ROW_EXTENTS, COLUMN_EXTENTS = (32, 64, 128), (32, 64, 96, 128, 256)
MAJORS = ("k", "m")
"""Which index of an operand runs along a line of shared memory: the summed one, or its own."""
APART = {("k", "m"): {"k": {1: 2, 2: 4, 4: 1, 8: 8}, "i": {1: 4, 2: 1, 4: 2, 8: 8}}}
"""By majors: how lanes and registers are renamed that read doubles, so that lanes which read together meet different
banks of swizzled lines. Others hold neighbours along the summed axis."""


@dataclass(frozen=True, slots=True)
class GroupKind:
    """A kind of derived row. instruction: the row of the table behind it, of wgmma one of several. few: for rows of an
    odd extent's end, too. zigzag: the order of instances (`InstructionTile`). stored: the type of right operands that
    are widened in registers."""

    instruction: str
    composition: str = ""
    few: bool = False
    zigzag: bool = True
    stored: DType | None = None

    @property
    def row(self) -> InstructionTile:
        """Of the table."""
        return INSTRUCTIONS[self.instruction]

    @property
    def vector(self) -> bool:
        """Whether lanes multiply each for itself."""
        return self.row.texel.extents[:3] == (1, 1, 1)

    @property
    def apart(self) -> bool:
        """Whether chunks are summed apart."""
        return bool(self.composition) and COMPOSITIONS[self.composition].apart

    @property
    def wide(self) -> bool:
        """Whether four warps multiply together, left from shared memory."""
        return self.row.warps == GROUP

    @property
    def depth(self) -> int:
        """Summed elements of a step."""
        return VECTOR_BYTES // self.row.dtype.size if self.vector else self.row.k


KINDS = {
    "fma": GroupKind("fma.m1n1k1.f32", few=True),
    "fma_f16": GroupKind("fma.m1n1k1.f16", few=True),
    "fma_bf16": GroupKind("fma.m1n1k1.bf16", few=True),
    "fma_lines": GroupKind("fma.m1n1k1.f32", zigzag=False),
    "fma_f64": GroupKind("fma.m1n1k1.f64"),
    "mma_f64": GroupKind("mma.m16n8k16.f64", zigzag=False),
    "mma_f64_zigzag": GroupKind("mma.m16n8k16.f64"),
    "mma_tf32": GroupKind("mma.m16n8k8.tf32", "tf32"),
    "mma_3xtf32": GroupKind("mma.m16n8k8.tf32", "3xtf32"),
    "wgmma_tf32": GroupKind("wgmma.m64n64k8.tf32", "tf32"),
    "wgmma_3xtf32": GroupKind("wgmma.m64n64k8.tf32", "3xtf32"),
    **{
        f"wgmma_{half.value}_{byte.value}": GroupKind(f"wgmma.m64n64k16.{half.value}", stored=byte)
        for half in sorted(HALVES, key=str)
        for byte in sorted(BYTES, key=str)
    },
}


NAME = re.compile(r"(?P<kind>\w+)\.m(?P<m>\d+)n(?P<n>\d+)k\d+\.(?P<left>[km])(?P<right>[km])")


def group_name(kind: str, m: int, n: int, left: str, right: str) -> str:
    """Of a derived row of a kind."""
    return f"{kind}.m{m}n{n}k{KINDS[kind].depth}.{left}{right}"


def group_texel(kind: GroupKind, m: int, n: int, left: str, right: str) -> Texel | None:
    """The texel of four warps that multiply m x n; None where none fits."""
    found = []
    for warp_rows, warp_columns in WARPS:
        if m % warp_rows or n % warp_columns:
            continue
        one = _warp_texel(kind, m // warp_rows, n // warp_columns, left, right)
        if one is not None and one.left is not None and one.right is not None:
            loaded = one.left.count + one.right.count
            found.append((loaded, over_warps(over_warps(one, "i", warp_rows), "j", warp_columns)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _warp_texel(kind: GroupKind, rows: int, columns: int, left: str, right: str) -> Texel | None:
    one = _lanes(kind.row, LANE_ROWS if rows % LANE_ROWS == 0 else 1, left, right)
    if rows % one.m or columns % one.n:
        return None
    down, across, vector = rows // one.m, columns // one.n, VECTOR_BYTES // kind.row.dtype.size
    near_rows = min(vector, down) if left == "m" else 1
    near_columns = min(vector, across & -across) if right == "m" else 1
    made = repeated(repeated(one, "i", near_rows, near=True), "j", near_columns, near=True)
    made = repeated(made, "k", kind.depth // one.k)
    return repeated(repeated(made, "i", down // near_rows), "j", across // near_columns)


def _lanes(row: InstructionTile, lane_rows: int, left: str, right: str) -> Texel:
    """The texel of one instruction of a warp, its elements where they are loaded well."""
    if row.texel.extents[:3] == (1, 1, 1):
        return derived(row.texel, lane_rows, LANES // lane_rows)
    if row.dtype is not DType.F64:
        return row.texel
    if (left, right) not in APART:
        return nearest(row.texel, "k")
    made = row.texel
    for axis, steps in APART[left, right].items():
        made = renamed(in_bits(made, axis), axis, steps)
    return made


def wide_texel(one: InstructionTile, columns: int, right: str) -> Texel:
    """wgmma with operands swapped: right, transposed, comes from registers, left from shared memory as it lies."""
    grown = repeated(one.texel, "i", columns // WIDE_COLUMNS)
    return swapped(nearest(grown, "i") if right == "m" else grown)


@lru_cache(maxsize=1024)
def _row(name: str) -> InstructionTile | None:
    """The derived row of a name, None where there is none."""
    said = NAME.fullmatch(name)
    kind = KINDS.get(said["kind"]) if said else None
    if said is None or kind is None or name not in _names(said["kind"]):
        return None
    m, n, left, right = int(said["m"]), int(said["n"]), said["left"], said["right"]
    one = INSTRUCTIONS.get(kind.instruction.replace("m64n64", f"m64n{m}")) if kind.wide else kind.row
    if one is None or (kind.wide and (left != "k" or n % WIDE_COLUMNS)) or (kind.stored and right != "k"):
        return None
    texel = wide_texel(one, n, right) if kind.wide else group_texel(kind, m, n, left, right)
    if texel is None:
        return None
    shared = frozenset({Place.SHARED})
    cycles = m * n * texel.k / (one.m * one.n * one.k) * one.cycles
    made = replace(
        one, name=name, m=m, n=n, k=texel.k, left=shared, right=shared, warps=GROUP, texel=texel,
        composition=kind.composition, zigzag=kind.zigzag, other=kind.stored,
    )  # fmt: skip
    made = replace(made, cycles=cycles * len(made.arithmetic.terms))
    return made if made.registers <= MOST_SUMS else None


@lru_cache(maxsize=16)
def _names(kind: str) -> frozenset[str]:
    """What rows of a kind may be called."""
    whole = ROW_EXTENTS if KINDS[kind].row.dtype.size >= DType.F32.size else ()
    whole = WIDENED_ROWS if KINDS[kind].stored is not None else whole
    rows = [(m, left) for m in whole for left in MAJORS] + [(m, "k") for m in range(FEWEST, FEW + 1) if KINDS[kind].few]
    tiles = [(m, n, left, right) for m, left in rows for n in COLUMN_EXTENTS for right in MAJORS]
    return frozenset(group_name(kind, *tile) for tile in tiles)


class Derived(Mapping[str, InstructionTile]):
    """Rows by name, each made when it is asked for. own: rows that are there anyway."""

    def __init__(self, own: Mapping[str, InstructionTile]) -> None:
        self.own = own

    def __getitem__(self, name: str) -> InstructionTile:
        found = self.own.get(name) or _row(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from (name for kind in KINDS for name in sorted(_names(kind)) if _row(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


GROUPS = Derived({})
ROWS = Derived(INSTRUCTIONS)


def rows_of(program: Program) -> frozenset[InstructionTile]:
    """The rows of the table that a program multiplies with."""
    return frozenset(ROWS[s.instruction] for s in program.every if isinstance(s, Product))
