"""Elements of global tensors, as a part of a tile program reads and stores them.

In: a tensor of a tile program, where a part's tile of rows and columns begins in it. Out: the offset of an element in
C, whether it exists, and how many of its neighbours may be moved at once. Invariant: what may not exist is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mirage_nb.ir import HALVES
from mirage_nb.optimize.reach import Reach
from mirage_nb.tile.roles.program import PART, RANK, Index, Program, Tile, Walk
from mirage_nb.tile.rules.sharing import COLUMN_TILE

TOGETHER = 4
"""Fragments whose words the lanes of a row exchange."""
ROW = 64
"""Elements of a row that a warp stores at once, where rows begin anywhere."""


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of a global tensor at a row and a column of the part's tile: the offset of the first, and what says of
    each dimension that it exists ("": always). wide: lanes may move 16 bytes of it, paired: two elements, rows: a warp
    may store 64 elements of a row, which begins anywhere."""

    tile: Tile
    offset: str
    checks: tuple[str, ...]
    wide: bool
    paired: bool
    rows: bool

    @property
    def inside(self) -> str:
        """Whether the element exists ("": always)."""
        return _all(self.checks)

    def asked(self, value: str, none: str) -> str:
        """A C expression of the element, `none` where there is none."""
        return f"{self.inside} ? {value} : {none}" if self.inside else value

    def vector(self, at: str, length: int) -> str:
        """One for so many neighbours, of which this is the first."""
        return f"load_inside<{length}>({at}, {self.inside})" if self.inside else f"load<{length}>({at})"

    @property
    def row_inside(self) -> str:
        """Whether its row exists."""
        return _all(self.checks[:-1])


@dataclass(frozen=True)
class Part:
    """A part's tile: the axes and extents of its rows and columns. ends: of global tensors that end where a size does,
    which is known at launch; group: fragments that are side by side."""

    program: Program
    ends: dict[str, Reach]
    axes: tuple[str, str]
    shape: tuple[int, int]
    group: int = TOGETHER

    @cached_property
    def _most(self) -> dict[str, int]:
        """The largest value of every counter."""
        found = {PART: max(role.parts for role in self.program.roles) - 1, RANK: self.program.cluster - 1}
        for walk in (s for s in self.program.every if isinstance(s, Walk)):
            found |= {name: count - 1 for name, count in walk.counters}
        return found

    def access(self, name: str, at: tuple[Index, ...], column: str = "column") -> Access:
        """The element of a global tensor at `row` and `column` of it."""
        tile, (row_axis, column_axis), (rows, columns) = self.program.tile(name), self.axes, self.shape
        end_of = self.ends.get(f"{name[0]}{self.program.operand(name)}")
        terms: dict[str, int] = {}
        checks: list[str] = []
        stride, const = tile.elements, 0
        for dim, (axis, extent, place) in enumerate(zip(tile.axes, tile.shape, at, strict=True)):
            stride //= extent
            const += place.const * stride
            inner = {row_axis: "row", column_axis: column}.get(axis, "0") if axis else "0"
            size = {row_axis: rows, column_axis: columns}.get(axis, 1) if axis else 1
            for counter, factor in (*place.terms, *(((inner, 1),) if inner != "0" else ())):
                terms[counter] = terms.get(counter, 0) + factor * stride
            last = place.const + sum(max(f, 0) * self._most.get(c, 0) for c, f in place.terms) + size
            end = end_of if not dim else None
            here = {**dict(place.terms), **({inner: 1} if inner != "0" else {})}
            beyond = last > extent if end is None else not end.whole
            checks.append(f"{_sum(here, place.const)} < {extent if end is None else end}" if beyond else "")
        matrix = {row_axis, column_axis} <= set(tile.axes)
        contiguous = bool(tile.axes) and tile.axes[-1] == column_axis
        width = tile.shape[-1] if tile.shape else 1
        starts = all(f % COLUMN_TILE == 0 for _, f in at[-1].terms) and at[-1].const % COLUMN_TILE == 0 if at else False
        full = self.group == TOGETHER and width % COLUMN_TILE == 0 and starts
        return Access(
            tile,
            _sum(terms, const),
            tuple(checks),
            matrix and contiguous and full and tile.dtype in HALVES,
            contiguous and width % 2 == 0 and starts,
            matrix and contiguous and columns % ROW == 0 and tile.dtype in HALVES,
        )

    def left(self, name: str, at: tuple[Index, ...], column: str) -> str:
        """How many elements a row of it has from `column` on."""
        place = _sum({**dict(at[-1].terms), column: 1}, at[-1].const)
        return f"{self.program.tile(name).shape[-1]} - ({place})"


def loaded(access: Access) -> str:
    """A C expression for one element; zero where there is none."""
    return access.asked(f"to_float({access.tile.name}[{access.offset}])", "0.0f")


def _all(checks: tuple[str, ...]) -> str:
    return " && ".join(filter(None, checks))


def _sum(terms: dict[str, int], const: int) -> str:
    """A C expression for a sum of multiples."""
    parts = [
        name if factor == 1 else f"({name}) * {factor}" if " " in name else f"{name} * {factor}"
        for name, factor in terms.items()
    ]
    return " + ".join([*parts, *([str(const)] if const or not parts else [])])
