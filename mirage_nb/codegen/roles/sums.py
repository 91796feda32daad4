"""Sums of a tile program that several points of its walk combine.

In: its Combine statements. Out: where the sums are left in global memory, and the calls that leave them and add them
up. Invariant: warp by warp, and a lane has the same elements of a tile at every point, so no place in a matrix is
known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mirage_nb.codegen.writer import Writer, stored_type
from mirage_nb.tile.roles.program import GROUP, RANK, Combine, Program, Role, Tile, Walk, flat


@dataclass(frozen=True, slots=True)
class SumText:
    """Writes them. kernel: its name, with which those of its places begin."""

    out: Writer
    program: Program
    kernel: str

    def places(self) -> None:
        """Room for the sums of every warp at every point, and how many points have left theirs: zero between them."""
        for role in self.program.roles:
            for combine in (s for s in flat(self.program.statements(role.name)) if isinstance(s, Combine)):
                tiles, counts = self._tiles(combine), self._counts(role)
                sums = prod(counts.values()) * self.program.cluster * role.warps
                names = self._names(role)
                self.out.line(f"__device__ {stored_type(tiles[0].dtype)} {names[0]}[{sums} * {_size(tiles)}];")
                self.out.line(f"__device__ uint32_t {names[1]}[{sums // counts[combine.counter]}];")

    def combine(self, role: Role, combine: Combine) -> None:
        """All warps of a role leave their sums; the last point goes on with those of all."""
        out, counts, tiles = self.out, self._counts(role), self._tiles(combine)
        count, size, number = counts.pop(combine.counter), _size(tiles), "0"
        for name, extent in {**counts, RANK: self.program.cluster}.items():
            number = f"({number}) * {extent} + {name}" if extent > 1 else number
        first = sum(r.warps for r in self.program.roles[: self.program.roles.index(role)])
        left, arrived = self._names(role)
        out.line(f"const int sums = ({number}) * {role.warps} + warp - {first};")
        starts = [_size(tiles[:place]) for place in range(len(tiles))]
        for tile, at in zip(tiles, starts, strict=True):
            out.line(f"leave_sums({tile.name}, {left} + (sums * {count} + {combine.counter}) * {size} + {at});")
        out.line(f"if (!arrives_last({arrived} + sums, {count})) continue;")
        for tile, at in zip(tiles, starts, strict=True):
            out.line(f"add_sums({tile.name}, {left} + sums * {count * size} + {at}, {count}, {size});")

    def _names(self, role: Role) -> tuple[str, str]:
        return f"{self.kernel}_{role.name}_left", f"{self.kernel}_{role.name}_arrived"

    def _counts(self, role: Role) -> dict[str, int]:
        """The counters of the walk."""
        return dict(next(s.counters for s in self.program.statements(role.name) if isinstance(s, Walk)))

    def _tiles(self, combine: Combine) -> list[Tile]:
        return [self.program.tile(name) for name in combine.results]


def _size(tiles: list[Tile]) -> int:
    """Elements that a warp has of register tiles."""
    return sum(tile.elements for tile in tiles) // GROUP
