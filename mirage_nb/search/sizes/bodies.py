"""Loop bodies that stay with warps: where a chained body of a kernel is one, and how warps share it.

In: the tiles of a kernel at many sizes. Out: a `Body`, `Private`. What makes a body one of these is said over axes here
and over dimensions in `optimize.region`; how warps share it are the rules of `tile.bodies`, for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.axes import Layout, Prepared
from mirage_nb.search.saturation.values import BODY, DATA
from mirage_nb.search.sizes.anatomy import ELEMENTWISE, WARPS, Numbers, Part, Sizes, Truths, anatomy
from mirage_nb.search.sizes.layouts import layouts
from mirage_nb.search.sizes.types import cores
from mirage_nb.search.structure import KernelStructure
from mirage_nb.tile import bodies
from mirage_nb.tile.bodies import Held
from mirage_nb.tile.sharing import DEPTH_TILE, ROW_TILE

_SUMS = frozenset({AccumKind.SUM, AccumKind.MAX, AccumKind.RESCALE})


@dataclass(frozen=True, slots=True)
class Body:
    """A chained loop body: its steps, accumulators among them; those whose columns are keys; whether warps may share
    these; the axis of its rows, None where there is one row; whether its accumulators are saved through elementwise
    operators alone."""

    steps: tuple[int, ...]
    keyed: frozenset[int]
    splittable: bool
    rows: int | None
    plain: bool


@lru_cache(maxsize=1024)
def body_of(prepared: Prepared, kernel: KernelStructure) -> Body | None:
    """The body of a kernel, None if it is none that could stay with warps, whatever its sizes."""
    made, steps, known = anatomy(prepared, kernel), kernel.steps, layouts(prepared, kernel)
    private = {i for i, part in enumerate(made.parts) if part is Part.PRIVATE}
    if not private:
        return None
    sums = [i for i, step in enumerate(steps) if step.operator.kind is OpKind.ACCUM]
    products = {i for i in private if steps[i].operator.kind is OpKind.MATMUL}
    if not products <= cores(prepared, kernel):
        return None
    if any(steps[i].operator.accum not in _SUMS or not private & {*steps[i].reads} for i in sums):
        return None
    found = (*sorted(private | {*sums}),)
    rows = _row_axis(kernel, found, [known[i] for i, step in enumerate(steps) if step.source is not None])
    if rows is None:
        return None
    keyed, splittable = _keys(kernel, found, known)
    after = [i for i, s in enumerate(steps) if s.stage != BODY and not s.operator.is_leaf]
    plain = all(steps[i].operator.kind in ELEMENTWISE | {OpKind.ACCUM} for i in after)
    return Body(found, keyed, splittable, *rows, plain)


def _row_axis(kernel: KernelStructure, body: Sequence[int], inputs: Sequence[Layout]) -> tuple[int | None] | None:
    """The axis that all values of the body have, but not all inputs, and no input innermost, or none, for one row; None
    if there are several."""
    read = [step.type for step in kernel.steps if step.source is not None]
    types = [kernel.steps[i].type for i in body]
    rows = [
        a for a in range(len(types[0])) if all(type_[a] & DATA for type_ in types) and not all(t[a] for t in read)
    ]
    if len(rows) > 1 or any(layout[-1:] == (row,) for layout in inputs for row in rows):
        return None
    return (rows[0] if rows else None,)


def _keys(kernel: KernelStructure, body: Sequence[int], known: Sequence[Layout]) -> tuple[frozenset[int], bool]:
    """The values whose columns are keys; whether warps that share them can add up what they have in the end."""
    steps, inside = kernel.steps, {*body}
    shifts = {s.reads[1] for s in steps if s.operator.accum is AccumKind.RESCALE}
    keyed: set[int] = set()
    partial: set[int] = set()
    splittable = True
    for index in body:
        step, read = steps[index], [r for r in steps[index].reads if r in inside]
        kind = step.operator.kind
        if kind is not OpKind.ACCUM and not partial.isdisjoint(read):
            splittable = False
        match kind:
            case OpKind.MATMUL if read:
                partial.add(index)
                splittable &= keyed.issuperset(read)
            case OpKind.MATMUL:
                keyed.add(index)
            case OpKind.SUM | OpKind.MAX:
                splittable &= keyed.issuperset(read)
                if index not in shifts:
                    partial.add(index)
            case OpKind.ACCUM if step.reads[0] in keyed:
                keyed.add(index)
            case OpKind.ACCUM:
                splittable &= step.reads[0] in partial | shifts
            case _:
                if not keyed.isdisjoint(read) and known[index][-1:] not in ((), (None,)):
                    keyed.add(index)
    return frozenset(keyed), splittable


@dataclass(frozen=True, slots=True)
class Private:
    """Where a body stays with warps; where its results are saved from registers, too; how many fragments lie below
    each other; into how many partial sums warps split its keys."""

    able: Truths
    direct: Truths
    fragments: Numbers
    keys: Numbers


def private(
    kernel: KernelStructure, body: Body | None, known: Sequence[Layout], sizes: Sizes, warps: int = WARPS
) -> Private:
    """The body of a kernel, whose steps have these layouts, at many sizes."""
    one = np.ones_like(sizes.loop)
    if body is None:
        nowhere = np.zeros_like(sizes.loop, bool)
        return Private(nowhere, nowhere, one, one)
    steps = kernel.steps
    rows = one if body.rows is None else sizes.extent(kernel, body.rows, steps[body.steps[0]].type[body.rows])
    held, able = [], np.ones_like(sizes.loop, bool)
    for index in body.steps:
        layout, type_ = known[index], steps[index].type
        across = layout[-1]
        columns = one if across in (None, body.rows) else sizes.extent(kernel, across, type_[across])
        able &= sizes.elements(kernel, steps[index]) == rows * columns  # nothing but rows and columns
        able &= (columns == 1) | (columns % DEPTH_TILE == 0)
        if steps[index].operator.kind is OpKind.MATMUL:
            axis, of = steps[index].operator.axis, steps[steps[index].reads[0]].type
            able &= (columns > 1) & (sizes.extent(kernel, axis, of[axis]) % DEPTH_TILE == 0)
        held.append(Held(columns, index in body.keyed, steps[index].operator.kind is OpKind.ACCUM))
    able &= bodies.fits(rows, held, body.splittable, warps)
    keys = bodies.key_warps(rows, held, body.splittable, warps)
    return Private(able, able & (keys == 1) & body.plain, np.ceil(rows / ROW_TILE), keys)
