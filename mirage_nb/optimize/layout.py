"""Layouts of shared tensors: the order of dimensions, padding, or the 128-byte swizzle.

In: the shared tensors of a block graph with the ways in which each is written and read (paper section 6). Out: one
`SharedLayout` each. Invariant: a layout is injective on the tensor's indices, copies of a tensor begin on 128-byte
lines, and every hard demand (16-byte rows for ldmatrix and asynchronous copies) holds; the boxes that bring a streamed
tile (`tile.rules.boxes`) fill its swizzled layout.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mirage_nb.errors import GraphError
from mirage_nb.ir import BlockGraph, DType, InIterAttrs
from mirage_nb.ir.windows import row_major
from mirage_nb.tile.rules.boxes import bulk_of
from mirage_nb.tile.rules.placement import Placement, StepKind, touched
from mirage_nb.tile.rules.shared import (
    FORBIDDEN,
    LINE_BYTES,
    WAVEFRONT_COST,
    Lines,
    SharedLayout,
    Use,
    between_rows,
    forms,
    panel_bytes,
    panel_elements,
    pitched_elements,
    use_cost,
)
from mirage_nb.tile.rules.sharing import Tiling
from mirage_nb.tile.rules.sketch import Sketch


def pitched(shape: tuple[int, ...], dtype: DType, order: tuple[int, ...] | None = None, pad: int = 0) -> SharedLayout:
    """Dimensions nested in `order` (outermost first; default row-major), `pad` elements behind each row."""
    order = tuple(range(len(shape))) if order is None else order
    strides = [0] * len(shape)
    step = 1
    for position, dim in enumerate(reversed(order)):
        strides[dim] = step
        step = step * shape[dim] + (pad if position == 0 else 0)
    inner = shape[order[-1]] if order else 1
    outer = math.prod(shape) // inner if inner else 0
    return SharedLayout(shape, dtype, tuple(strides), int(pitched_elements(inner, outer, pad, dtype.size)))


def swizzled(shape: tuple[int, ...], dtype: DType, fold: int = 1) -> SharedLayout:
    """Panels with swizzled chunks; the last extent must fill whole panels, or `fold` rows of it one panel."""
    swizzle = LINE_BYTES if fold > 1 else int(panel_bytes(shape[-1], dtype.size))
    assert swizzle and (fold == 1 or fold * shape[-1] * dtype.size == swizzle)
    width = swizzle // dtype.size // fold
    strides = tuple(s // shape[-1] * width for s in row_major(shape)[:-1])
    elements = int(panel_elements(math.prod(shape[:-1]), shape[-1], fold))
    return SharedLayout(shape, dtype, (*strides, 1), elements, swizzle, fold)


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
        elif demand.fold > 1 or (shape and panel_bytes(shape[-1], dtype.size)):
            found.append(swizzled(shape, dtype, demand.fold))
    return tuple(dict.fromkeys(found))


def cost(demand: Demand, layout: SharedLayout) -> float:
    """Shared-memory wavefronts of one access by a warp, summed over the uses, and bytes; FORBIDDEN if one is
    impossible."""
    shape, flat = demand.shape, len(demand.shape) < 2
    pitch = 1 if flat else max(layout.strides[-2:])
    pitch = pitch if flat or layout.swizzle else between_rows(pitch, shape[-2])
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
    costs: dict[int, Mapping[SharedLayout, float]] = {}
    for demand in demands:
        costs[demand.value] = _allowed(demand.shape, demand.dtype, demand.uses, demand.fold)
        if not costs[demand.value]:
            raise GraphError(f"no layout of %{demand.value} allows {', '.join(u.value for u in demand.uses)}")
    best = {value: min(found, key=lambda x: found[x]) for value, found in costs.items()}
    if all(_same_order(best[a], best[b]) for a, b in pairs):
        return best  # each cost is at its own minimum, and no pair pays
    return _solve(costs, pairs)


@lru_cache(maxsize=4096)
def _allowed(shape: tuple[int, ...], dtype: DType, uses: tuple[Use, ...], fold: int) -> Mapping[SharedLayout, float]:
    """What layouts cost that allow these uses: plans of one muGraph ask for the same tensors again and again."""
    demand = Demand(0, shape, dtype, uses, fold)
    return {x: c for x in candidates(demand) if (c := cost(demand, x)) != FORBIDDEN}


def _same_order(a: SharedLayout, b: SharedLayout) -> bool:
    return (a.strides[-1:] == (1,)) == (b.strides[-1:] == (1,))


def _solve(
    costs: Mapping[int, Mapping[SharedLayout, float]], pairs: Sequence[tuple[int, int]]
) -> dict[int, SharedLayout]:
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
        cut = bulk_of(block, attrs) if isinstance(attrs, InIterAttrs) and value in boxed else None
        uses, fold = tuple(dict.fromkeys((written, *found.reads))), 1 if cut is None else cut.fold
        demands.append(Demand(value, block.types[value].shape, placement.stored[value], uses, fold))
    for step in placement.steps:
        if step.kind is StepKind.MAP and step.value is not None:
            pairs += [(value, step.value) for value in step.reads]
    connected = [(a, b) for a, b in pairs if min(len(block.types[a].shape), len(block.types[b].shape)) > 1]
    return lay_out(demands, connected)
