"""What planners of tile programs share: the points of a block graph's grid, and the global tensors cut by them.

In: a block graph, and a name for every grid dim. Out: tiles of global tensors with named axes, and where the part of a
point begins. Invariant: a dimension has the name of the grid dim that cuts it unless it has one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mirage_nb.ir import BlockGraph, TensorType
from mirage_nb.tile.instructions.table import Place
from mirage_nb.tile.roles.program import Axis, Index, Pipeline, Program, Role, Statement, Tile, Walk, counted
from mirage_nb.tile.rules.teams import CAPABILITY

Cut = tuple[int | None, ...]
"""For every grid dim the dimension of a tensor that it cuts."""


@dataclass(slots=True, kw_only=True)
class OnGrid:
    """Writes one program. block: what is planned; counters: the names of its grid dims; tiles and axes: those of the
    program so far, by name."""

    block: BlockGraph
    counters: tuple[str, ...]
    tiles: dict[str, Tile] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)

    @property
    def points(self) -> dict[str, int]:
        """The counters of more than one point, with their numbers of points."""
        return {name: n for name, n in zip(self.counters, self.block.grid, strict=True) if n > 1}

    def _program(
        self, blocks: int, roles: Sequence[Role], rings: Sequence[Pipeline], walk: Walk,
        bodies: dict[str, tuple[Statement, ...]], outputs: int,
    ) -> Program:  # fmt: skip
        """So many blocks, whose roles do these things at the points of a walk."""
        code = tuple((role, (replace(walk, body=body),)) for role, body in bodies.items())
        axes = tuple(Axis(*pair) for pair in self.axes.items())
        stored = tuple(f"o{i}" for i in range(outputs))
        return Program(CAPABILITY, blocks, axes, tuple(roles), tuple(self.tiles.values()), tuple(rings), stored, code)

    def _global(self, name: str, type_: TensorType, cut: Cut, axes: tuple[str, ...]) -> str:
        """The tile of a tensor in device memory; leading dimensions have the axes of the grid dims that cut them."""
        named = list(axes)
        for g, dim in enumerate(cut):
            if dim is not None and not named[dim] and self.block.grid[g] > 1:
                named[dim] = self.counters[g]
        for axis, extent in zip(named, type_.shape, strict=True):
            if axis:
                self.axes.setdefault(axis, extent)
        if name in self.tiles and self.tiles[name].axes != tuple(named):
            name = f"{name}_{''.join(named)}"
        self.tiles.setdefault(name, Tile(name, Place.GLOBAL, tuple(named), type_.shape, type_.dtype))
        return name

    def _part(self, cut: Cut, dim: int) -> Index:
        """Which part of a dimension is this point's."""
        found = Index()
        for g, extent in enumerate(self.block.grid):
            if cut[g] == dim and extent > 1:
                found = found * extent + self._counter(g)
        return found

    def _counter(self, g: int) -> Index:
        """Where this point is along a grid dim."""
        return counted(self.counters[g])
