"""How far tensors go that have a dimension whose size is known at launch.

In: where a graph has its size. Out: for a kernel, the C expressions of these extents. Invariant: a kernel touches no
element beyond them; what it would read there is zero, what it would write is dropped.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from mirage_nb.errors import EmitError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.sizes import Cut, Sized

EXTENT = "extent"
"""The parameter of a kernel that says what the size is."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The extent of dimension `dim` of a tensor: `factor` times the size. whole: no block's tile goes beyond it."""

    factor: int
    whole: bool
    dim: int = 0

    def __str__(self) -> str:
        return EXTENT if self.factor == 1 else f"{EXTENT} * {self.factor}"


@dataclass(frozen=True, slots=True)
class Reaches:
    """Of one kernel: by the numbers of its operands, of its outputs, and how its grid follows."""

    operands: dict[int, Reach] = field(default_factory=dict)
    outputs: dict[int, Reach] = field(default_factory=dict)
    cut: Cut | None = None

    def __bool__(self) -> bool:
        return bool(self.operands) or bool(self.outputs)


def reaches(
    graph: KernelGraph, where: Sized | None, index: int, values: tuple[int, ...], windows: Collection[int] = ()
) -> Reaches:
    """Of operator `index`, which defines `values`; `windows`: those that it reads where other ones lie.

    Raises:
        EmitError: the size is an inner dimension of a tensor that it reads or writes.
    """
    if where is None:
        return Reaches()
    cut = where.cuts[index]

    def found(tensors: tuple[int, ...]) -> dict[int, Reach]:
        made = {}
        for number, value in enumerate(tensors):
            dim, shape = where.dims[value], graph.types[value].shape
            if dim is None:
                continue
            if dim and value not in windows:
                hint = "the size has to be outermost in every tensor between kernels"
                raise EmitError(f"{where.size.name} is dimension {dim} of a tensor of rank {len(shape)}", hint=hint)
            made[number] = Reach(shape[dim] // where.size.most, cut is not None and cut.whole, dim)
        return made

    return Reaches(found(graph.ops[index].inputs), found(values), cut)
