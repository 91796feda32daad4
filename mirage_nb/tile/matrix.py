"""Global tensors of a tile program as matrices, of which the copy engine brings boxes.

In: a tensor and the tile that is cut from it. Out: rows and columns, and where a tile begins among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mirage_nb.tile.program import Copy, Index, Program, Read, Tile


@dataclass(frozen=True, slots=True)
class Matrix:
    """A global tensor as the copy engine has it for some box: the dimensions up to the box's rows are the rows."""

    tile: Tile
    split: int

    @classmethod
    def of(cls, source: Tile, target: Tile) -> Matrix:
        """As boxes of `target` are cut from it."""
        return cls(source, source.axes.index(target.axes[0]) + 1)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return prod(self.tile.shape[: self.split]), prod(self.tile.shape[self.split :])

    def start(self, at: tuple[Index, ...]) -> tuple[Index, Index]:
        """Row and column of a box."""
        return self._flat(at, 0, self.split), self._flat(at, self.split, len(at))

    def _flat(self, at: tuple[Index, ...], first: int, last: int) -> Index:
        found = Index()
        for place, extent in zip(at[first:last], self.tile.shape[first:last], strict=True):
            found = found * extent + place
        return found


def columns_brought(program: Program, operand: int) -> int | None:
    """How many columns an operand has as a matrix, if boxes of it are all that a program reads of it."""
    read = any(isinstance(s, Read) and program.operand(s.source) == operand for s in program.every)
    copies = [s for s in program.every if isinstance(s, Copy) and program.operand(s.source) == operand]
    found = {Matrix.of(program.tile(s.source), program.tile(s.target)).shape[1] for s in copies}
    return found.pop() if len(found) == 1 and not read else None
