"""What planners of tile programs share: the points of a block graph's grid, and the global tensors cut by them.

In: a block graph, and a name for every grid dim. Out: tiles of global tensors with named axes, and where the part of a
point begins. Invariant: a dimension has the name of the grid dim that cuts it unless it has one of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from mirage_nb.ir import BlockGraph, TensorType
from mirage_nb.tile.instructions import Place
from mirage_nb.tile.program import Index, Tile, counted

Cut = tuple[int | None, ...]
"""For every grid dim the dimension of a tensor that it cuts."""


@dataclass(slots=True, kw_only=True)
class OnGrid(ABC):
    """Writes one program. counters: the names of grid dims; tiles and axes: those of the program so far, by name."""

    counters: tuple[str, ...]
    tiles: dict[str, Tile] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)

    @property
    @abstractmethod
    def block(self) -> BlockGraph:
        """The block graph that is planned."""

    def _global(self, name: str, type_: TensorType, cut: Cut, axes: tuple[str, ...]) -> None:
        """A tensor in device memory; leading dimensions have the axes of the grid dims that cut them."""
        named = list(axes)
        for g, dim in enumerate(cut):
            if dim is not None and not named[dim] and self.block.grid[g] > 1:
                named[dim] = self.counters[g]
        for axis, extent in zip(named, type_.shape, strict=True):
            if axis:
                self.axes.setdefault(axis, extent)
        self.tiles.setdefault(name, Tile(name, Place.GLOBAL, tuple(named), type_.shape, type_.dtype))

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
