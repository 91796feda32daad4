"""Warp-private loop bodies: every value of the body stays in registers of the warp that computes it.

In: the sketch of a block graph whose loop chains matrix multiplications (attention). Out: a `Region`, by the rules of
`tile.bodies`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir import BlockGraph
from mirage_nb.optimize.tiling import Tiling
from mirage_nb.tile.bodies import find_body, row_tiles, split
from mirage_nb.tile.sharing import COLUMN_TILE, ROW_TILE
from mirage_nb.tile.sketch import Sketch


@dataclass(frozen=True, slots=True)
class Region:
    """How warps share a warp-private loop body.

    rows: extent of the row axis; split over `row_warps`. Columns of the `keyed` values and the depth of
    products with them are split over `key_warps`. shifts: Max values that are replaced by their running
    maximum, so that rescaled accumulators add in place. ops: the operators of the body, accumulators
    included, in order. direct: accumulators go from registers to device memory, through elementwise operators only.
    """

    rows: int
    row_warps: int
    key_warps: int
    keyed: frozenset[int]
    shifts: frozenset[int]
    ops: tuple[int, ...]
    direct: bool = False

    @property
    def warps(self) -> int:
        """Warps that work; others wait at barriers."""
        return self.row_warps * self.key_warps

    @property
    def padded_rows(self) -> int:
        """Rows of all warps together."""
        return self.row_warps * self.row_tiles * ROW_TILE

    @property
    def row_tiles(self) -> int:
        """16-row tiles of one warp."""
        return int(row_tiles(self.rows, self.row_warps))

    def column_tiles(self, value: int, columns: int) -> int:
        """8-column tiles of a value that one warp holds."""
        return columns // COLUMN_TILE // (self.key_warps if value in self.keyed else 1)

    def tiling(self, value: int, columns: int, depth: int) -> Tiling:
        """How warps share `value`, [rows, columns], a product over `depth` or an accumulator."""
        keyed = value in self.keyed
        split = (1, self.row_warps, self.key_warps if keyed else 1, 1 if keyed else self.key_warps)
        return Tiling(1, self.rows, columns, depth, False, split)


def find_region(block: BlockGraph, sketch: Sketch, warps: int) -> Region | None:
    """The region of a block graph whose chains are fused; None if its body does not fit the pattern."""
    body = find_body(sketch)
    if body is None:
        return None
    found = split(body, lambda value: block.types[value].shape, warps)
    if not found.able:
        return None
    key_warps = int(found.key_warps)
    return Region(
        found.rows, int(found.row_warps), key_warps, body.keyed, body.shifts, body.ops, key_warps == 1 and body.plain
    )
