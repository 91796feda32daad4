"""Layouts of shared tensors: the order of dimensions, padding, or the 128-byte swizzle (paper section 6).

In: the shared tensors of a block graph with the ways in which each is written and read. Out: one
`SharedLayout` each. Invariant: a layout is injective on the tensor's indices, and every hard demand
(16-byte rows for ldmatrix and asynchronous copies) holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mirage_nb.errors import GraphError
from mirage_nb.ir import BlockGraph, DType, InIterAttrs
from mirage_nb.optimize.swizzle import SharedLayout, panel_bytes, pitched, swizzled
from mirage_nb.optimize.tiling import Tiling
from mirage_nb.optimize.transfer import boxes
from mirage_nb.tile.placement import Placement, StepKind, touched
from mirage_nb.tile.shared import FORBIDDEN, WAVEFRONT_COST, Lines, Use, forms, use_cost
from mirage_nb.tile.sketch import Sketch


@dataclass(frozen=True, slots=True)
class Demand:
    """One shared tensor and everything that is done to it. fold: of the boxes that bring it, if boxes do."""

    value: int
    shape: tuple[int, ...]
    dtype: DType
    uses: tuple[Use, ...]
    fold: int = 1


ORDER_COST = 64
"""Cost of an elementwise step between tensors whose contiguous dimensions differ, in wavefronts: no vectors."""


def candidates(demand: Demand) -> tuple[SharedLayout, ...]:
    """Layouts worth considering: row-major and column-major, plain and padded, and swizzled."""
    shape, dtype = demand.shape, demand.dtype
    turned = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    found = []
    for form in forms(dtype.size, len(shape) < 2, Use.BOXES in demand.uses):
        if not form.panels:
            found.append(pitched(shape, dtype, turned if form.turned else None, form.pad))
        elif demand.fold > 1 or panel_bytes(shape, dtype):
            found.append(swizzled(shape, dtype, demand.fold))
    return tuple(dict.fromkeys(found))


def cost(demand: Demand, layout: SharedLayout) -> float:
    """Shared-memory wavefronts of one access by a warp, summed over the uses, and bytes; FORBIDDEN if one is
    impossible."""
    shape, flat = demand.shape, len(demand.shape) < 2
    pitch = 1 if flat else max(layout.strides[-2:])
    chunks = not flat and shape[-1] % 8 == 0 == shape[-2] % 8
    lines = Lines(pitch, not shape or layout.strides[-1] == 1, layout.swizzle, chunks, flat)
    return float(use_cost(demand.uses, demand.dtype.size, lines, layout.nbytes))


def lay_out(demands: Sequence[Demand], pairs: Sequence[tuple[int, int]]) -> dict[int, SharedLayout]:
    """The cheapest layouts: a 0/1 program with one variable per tensor and layout.

    Exactly one layout per tensor; a pair of tensors (values) that one elementwise step connects pays
    ORDER_COST where their contiguous dimensions differ. Tensors that no pair connects are independent of
    each other, so for them the program is a minimum.

    Raises:
        GraphError: the demands on one tensor contradict each other.
    """
    costs: dict[int, dict[SharedLayout, float]] = {}
    for demand in demands:
        allowed = {x: c for x in candidates(demand) if (c := cost(demand, x)) != FORBIDDEN}
        if not allowed:
            raise GraphError(f"no layout of %{demand.value} allows {', '.join(u.value for u in demand.uses)}")
        costs[demand.value] = allowed
    best = {value: min(found, key=lambda x: found[x]) for value, found in costs.items()}
    if all(_same_order(best[a], best[b]) for a, b in pairs):
        return best  # each cost is at its own minimum, and no pair pays
    return _solve(costs, pairs)


def _same_order(a: SharedLayout, b: SharedLayout) -> bool:
    return (a.strides[-1:] == (1,)) == (b.strides[-1:] == (1,))


def _solve(costs: dict[int, dict[SharedLayout, float]], pairs: Sequence[tuple[int, int]]) -> dict[int, SharedLayout]:
    """The 0/1 program, by Z3."""
    import z3  # heavy, and needed only where choices depend on each other

    solver = z3.Optimize()
    chosen = {value: {x: z3.Bool(f"t{value}_{i}") for i, x in enumerate(found)} for value, found in costs.items()}
    total = z3.IntVal(0)
    for value, found in chosen.items():
        solver.add(z3.PbEq([(b, 1) for b in found.values()], 1))
        total += z3.Sum([z3.If(b, int(costs[value][x]), 0) for x, b in found.items()])
    for a, b in pairs:
        for x, first in chosen[a].items():
            for y, second in chosen[b].items():
                if not _same_order(x, y):
                    total += z3.If(z3.And(first, second), WAVEFRONT_COST * ORDER_COST, 0)
    solver.minimize(total)
    assert solver.check() == z3.sat
    model = solver.model()
    return {value: next(x for x, b in found.items() if z3.is_true(model.eval(b))) for value, found in chosen.items()}


def choose_layouts(
    block: BlockGraph, sketch: Sketch, placement: Placement, tilings: Mapping[int, Tiling], boxed: Collection[int]
) -> dict[int, SharedLayout]:
    """A layout for every shared value, in order of definition; `boxed` ones arrive by bulk tensor copies."""
    demands, pairs = [], []
    for value, found in touched(sketch, placement).items():
        written = Use.VECTOR
        if found.left.issued:
            written = Use.BOXES if value in boxed else Use.COPY
        elif found.tiled is not None:
            written = Use.TURNED if tilings[found.tiled.op].swapped else Use.STRAIGHT
        attrs = block.ops[found.left.op].attrs
        cut = boxes(block, attrs) if isinstance(attrs, InIterAttrs) and value in boxed else None
        uses, fold = tuple(dict.fromkeys((written, *found.reads))), 1 if cut is None else cut.fold
        demands.append(Demand(value, block.types[value].shape, placement.stored[value], uses, fold))
    for step in placement.steps:
        if step.kind is StepKind.MAP and step.value is not None:
            pairs += [(value, step.value) for value in step.reads]
    connected = [(a, b) for a, b in pairs if min(len(block.types[a].shape), len(block.types[b].shape)) > 1]
    return lay_out(demands, connected)
