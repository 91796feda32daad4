"""Blocks that hold their tiles in registers: no loop, no product, every tensor is used by the thread that loads it.

In: a block graph of elementwise operators and reductions. Out: a `Resident`: how threads share the tile. Along the last
axis a group of warps shares a row, each thread with vectors of it; along other axes, or several, a thread has whole
columns of the reductions, as wide as a vector, or a part of them, and where nothing is reduced a vector. Of rows and
columns all threads share every row, and each has whole columns. Invariant:
nothing but partial results passes between threads, so a reduction costs one barrier at most. How wide vectors are, and
what fits, are the rules of `tile.rules.register_resident`, which the ranking asks, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_nb.ir import BlockGraph, InIterAttrs, OpKind
from mirage_nb.tile.resident.program import RegisterLayout
from mirage_nb.tile.roles.program import LANES
from mirage_nb.tile.rules.held import held
from mirage_nb.tile.rules.register_resident import (
    LIGHT,
    MOST_WARPS,
    REGISTER_BUDGET,
    Holding,
    busy_lanes,
    joins,
    needed,
    row_lanes,
    row_slots,
    turned,
    views,
)
from mirage_nb.tile.rules.sharing import Extents
from mirage_nb.tile.rules.sketch import Sketch


@dataclass(frozen=True, slots=True)
class Resident:
    """layout: which elements of the block's tiles a thread holds; forms: how the tile has those of each value. behind:
    inputs that are asked for behind the reductions: there is no room for them before, or registers that they would fill
    while others are on their way let more blocks run at once. together: whether all blocks run side by side, each
    waiting for what it asked for alone.
    """

    layout: RegisterLayout
    forms: tuple[Extents, ...]
    behind: frozenset[int] = frozenset()
    together: bool = True

    @property
    def computed_anew(self) -> bool:
        """Whether a thread has no registers for what it computes of all its elements, so that it does so wherever it
        needs them: two of 16 bits take one."""
        return self.layout.shared and self.layout.slots * self.layout.width > REGISTER_BUDGET


def find_resident(block: BlockGraph, sketch: Sketch, warps: int, at_once: int = 0) -> Resident | None:
    """How `warps` warps, or more, hold the block's tiles, or None if they cannot. at_once: so many blocks run at least
    side by side (0: all of them)."""
    found = held(block, sketch, warps)
    if found is None:
        return None
    tile, width, results = tuple(map(int, found.tile)), int(found.width), int(found.results)
    dims = tuple(len(tile) + axis for axis in found.axes)
    together, warps, parts = not at_once or math.prod(block.grid) <= at_once, int(found.warps), int(found.parts)
    behind = _behind(block, sketch, found) if found.tight or (found.rows and not together) else frozenset[int]()
    if found.rows:
        lanes = int(busy_lanes(tile[-1], row_lanes(results, warps), width))
        slots = int(row_slots(tile[-1], lanes, width))
        layout = RegisterLayout(tile, dims, width, slots, lanes, lanes * results // LANES)
    elif found.crossed:
        slots = tile[-1] // (LANES * warps * width)
        room = 2 * MOST_WARPS if found.registers <= LIGHT else MOST_WARPS
        layout = RegisterLayout(tile, dims, width, slots, LANES * warps, warps, together=room)
    elif parts > 1:
        slots, shared = math.ceil(tile[dims[0]] / parts), parts * (results // width) // LANES
        running = any(op.kind is OpKind.RUNNING_SUM for op in block.ops)  # they run along what a thread has
        layout = RegisterLayout(tile, dims, width, slots, parts, shared, blocked=running)
    else:  # as many as take them without one that comes back more often than with all warps
        vectors = math.ceil(results / width)
        busy = math.ceil(vectors / math.ceil(vectors / (LANES * warps)) / LANES)
        layout = RegisterLayout(tile, dims, width, math.prod(tile[dim] for dim in dims), 1, busy)
    return Resident(layout, _forms(block, sketch, layout), behind, together)


def _forms(block: BlockGraph, sketch: Sketch, layout: RegisterLayout) -> tuple[Extents, ...]:
    """How the tile has the elements of every value: what is reshaped has those of its operand."""
    viewed = views(sketch)
    lies = turned(sketch, viewed, joins(sketch))
    lying = lies.lying if lies is not None else {}
    found = [layout.kept if v in lying else block.types[viewed.get(v, v)].shape for v in range(len(block.types))]
    for node in sketch.nodes:
        if node.kind is OpKind.RESHAPE:
            found[node.makes[0]] = found[node.reads[0]]
    return tuple(found)


def _behind(block: BlockGraph, sketch: Sketch, found: Holding) -> frozenset[int]:
    """Inputs that no reduction needs: all of them where there is no room, else those that are the same for all blocks,
    which caches keep."""
    wanted = needed(sketch)
    inputs = {values[0]: op.attrs for op, values in block.definitions() if isinstance(op.attrs, InIterAttrs)}
    late = {value: attrs for value, attrs in inputs.items() if value not in wanted}
    return frozenset(value for value, attrs in late.items() if found.tight or set(attrs.imap) == {None})
