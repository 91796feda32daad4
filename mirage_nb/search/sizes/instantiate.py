"""Instantiate: concrete muGraphs of a structure, best estimate first.

In: a structure, its program, a target. Out: `Instance`s whose tiles fit shared memory. All divisors of the program's
extents are considered, powers of two or not; where an axis has poor ones, parts of useful sizes too whose last tile
hangs over its end: along free axes always, along reduced axes where the caller has found that the zeros there change
nothing. Grids have at most three dims, free axes and reduced ones together. Few instances of many are diverse: sizes
that almost equal better ones are passed over, for the model tells them apart worse than a timer tells other grids
and loops apart. `sized` gives the instance of given sizes, `tiny` a small pair of program and muGraph for field trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import combinations, islice
from math import log2

import numpy as np
import numpy.typing as npt

from mirage_nb.ir import KernelGraph, OpKind, RepeatAttrs, ReshapeAttrs
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.search.axes import Prepared, shape_of
from mirage_nb.search.derive import adds_products, concatenated, may_be_shallow, read_once, reads_again
from mirage_nb.search.limits import MAX_GRID_DIMS, NO_LIMITS, Limits
from mirage_nb.search.saturation.values import BLOCK, DATA, GRID, LOOP, TILE
from mirage_nb.search.sizes.anatomy import Numbers, Sizes, Truths
from mirage_nb.search.sizes.concrete import GRAIN, KernelSizes, concrete, small_inputs, tile_of
from mirage_nb.search.sizes.cost import Cost, Estimates, estimate
from mirage_nb.search.sizes.drafts import Draft, Instance, rewritten, with_threads
from mirage_nb.search.sizes.occupancy import live
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.sizes.work import held_in_registers
from mirage_nb.search.structure import KernelStructure, Structure
from mirage_nb.targets import Target
from mirage_nb.tile.rules.shared import LINE_BYTES
from mirage_nb.tile.rules.sketch import MATMULS
from mirage_nb.tile.rules.teams import RESERVED_BYTES, TEAMS, few

MAX_GRID_X = 2**31 - 1
SHARED = 16
"""Sets of sizes, with what is known of their tiles, that are remembered."""
KNOWN = 4096
"""Kernels, at sizes of those before them, whose best choices are remembered."""
DIGITS = 2
"""Of microseconds, within which estimates are alike."""
CLOSE, COUNTS = 1.5, 3
"""Of what is estimated within this factor of the best, the first of so many numbers of blocks is kept: what an estimate
is off by is much the same where they are equal. 64 blocks of 512 threads compute a SELU of [64, 1024] in 1.56 us
back to back on an H200, 128 of 256 threads in 1.90; the four that were kept had 128."""
ALIKE = 0.99
"""Sizes are almost equal if their binary logarithms differ by less than this in all: no factor of two apart."""
TINY_REDUCED, TINY_FREE = 8, 4
"""Extents of the axes on a tiny instance: two of every part."""
TINY_OVERHANGING = 7
"""Extent of axes over which tiles hang: four parts, or two, that each have an element of it."""
USEFUL_TILES = (16, 32, 64, 128)
"""An axis has poor divisors if none within a factor of two of one of these is a multiple of `DIVISOR_GRAIN`, or of more
where products have it."""
DIVISOR_GRAIN = 8
OVERHANGING_TILES = (16, *(16 * m << s for s in range(8) for m in (2, 3)))
"""What an axis with poor divisors is cut into, about."""


_Interface = tuple[tuple[tuple[int, int], int], ...]
"""Axes and parts with their extents, in order."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """Sizes of one kernel with their estimate. `logarithms`: of the numbers of blocks along all axes, and of the
    for-loop range; `interface`: the extents of the parts that the kernel leaves as dimensions of its outputs."""

    sizes: KernelSizes
    cost: Cost
    logarithms: tuple[float, ...]
    interface: _Interface


@dataclass(frozen=True, slots=True)
class _Plan:
    """The sizes of the kernels so far, what they cost together, and the extents of the parts that they leave."""

    choices: tuple[_Choice, ...] = ()
    us: float = 0.0
    interface: _Interface = ()

    def and_then(self, choice: _Choice) -> _Plan:
        """The plan with one more kernel."""
        left = self.interface
        if choice.interface:
            left = tuple(sorted({**dict(left), **dict(choice.interface)}.items()))
        return _Plan((*self.choices, choice), self.us + choice.cost.us, left)


def drafts(
    structure: Structure,
    prepared: Prepared,
    target: Target,
    limit: int,
    overhang: frozenset[int] | None = None,
    limits: Limits = NO_LIMITS,
) -> list[Draft]:
    """At most `limit` instances before their muGraphs are made, best estimate first: the best of those that are not
    almost equal, then the others; with them those whose small products threads compute, where that is estimated faster.
    What iterators of a kernel bring twice is brought once.

    overhang: the axes over whose ends tiles may hang; default: the free ones with poor divisors.
    limits: what a user allows.
    """
    plans = [plan.choices for plan in _plans(structure, prepared, target, limit, overhang, limits)]
    joins = OpKind.CONCAT_MATMUL.value not in limits.without and adds_products(structure)
    found: list[Draft] = []
    for choices in plans:
        if len(found) >= limit:
            break
        found.append(_draft(prepared, structure, choices))
        if any(map(partial(_reads_again, prepared), structure.kernels, choices)):
            others = rewritten(found[-1].made(), read_once, target)
            found[-1] = min([found[-1], *others], key=lambda draft: draft.cost.us)
        if joins:
            found += rewritten(found[-1].made(), concatenated, target)
    found = found[:limit]
    if may_be_shallow(structure, prepared):
        found = with_threads(found, target)
    return found


def _plans(
    structure: Structure,
    prepared: Prepared,
    target: Target,
    limit: int,
    overhang: frozenset[int] | None,
    limits: Limits,
) -> list[_Plan]:
    overhang = poor_axes(prepared) - {*prepared.reduced} if overhang is None else overhang
    plans = [_Plan()]
    for kernel in structure.kernels:
        last = kernel is structure.kernels[-1]
        interfaces = dict.fromkeys(plan.interface for plan in plans)
        known = {i: _kernel_choices(prepared, kernel, i, overhang, target, limit, not last, limits) for i in interfaces}
        if last and len(structure.kernels) > 1:
            plans = _diverse_plans(plans, known, limit)
        else:
            plans = [plan.and_then(choice) for plan in plans for choice in known[plan.interface]]
        plans.sort(key=lambda plan: plan.us)
    return plans


def _diverse_plans(plans: Sequence[_Plan], known: Mapping[_Interface, Sequence[_Choice]], limit: int) -> list[_Plan]:
    """The first `limit` diverse plans with one more kernel, which is the last; of what is estimated close to the best,
    some number of blocks of the first kernel is kept for each that it may have, as for a kernel alone."""
    us = {i: np.array([choice.cost.us for choice in choices]) for i, choices in known.items()}
    own = {i: np.array([choice.logarithms for choice in choices]) for i, choices in known.items() if choices}
    plans = [plan for plan in plans if known[plan.interface]]
    if not plans:
        return []
    pairs = [(plan, choice) for plan in plans for choice in known[plan.interface]]
    before = np.array([[n for choice in plan.choices for n in choice.logarithms] for plan in plans])
    before = np.repeat(before, [len(own[plan.interface]) for plan in plans], axis=0)
    logarithms = np.concatenate([before, np.concatenate([own[plan.interface] for plan in plans])], axis=1)
    took = np.concatenate([plan.us + us[plan.interface] for plan in plans])
    order = np.argsort(took, kind="stable")
    blocks = np.array([plan.choices[0].cost.blocks for plan, _ in pairs])[order]
    counts = _each_count(blocks, took[order], limit)
    return [plan.and_then(choice) for plan, choice in (pairs[i] for i in _diverse(order, logarithms, limit, counts))]


def sized(structure: Structure, prepared: Prepared, target: Target, sizes: Mapping[str, int]) -> Instance | None:
    """The instance with these sizes, named as in `Instance.sizes` or by the letters of axes; None if there is none."""
    sizes = prepared.named(sizes)
    choices: list[_Choice] = []
    for kernel, numbers in numbered(structure, prepared, sizes):
        tiles = Tiles.of(prepared, kernel, numbers)
        estimates = estimate(tiles, target)
        if not (_has_room(tiles, target) & _legal(estimates, target))[0]:
            return None
        choices.append(_choice(kernel, numbers, estimates, 0))
    if len(choices) < len(structure.kernels):
        return None
    made = _draft(prepared, structure, tuple(choices)).made()
    return made if dict(made.sizes) == dict(sizes) else None


def numbered(
    structure: Structure, prepared: Prepared, sizes: Mapping[str, int]
) -> Iterator[tuple[KernelStructure, Sizes]]:
    """The kernels of a structure, each at its sizes, named as in `sized`, as far as they are sizes of it."""
    sizes = prepared.named(sizes)
    extents = tuple(axis.extent for axis in prepared.axes)
    interface: dict[tuple[int, int], int] = {}
    for number, kernel in enumerate(structure.kernels):
        prefix = f"K{number + 1} " if len(structure.kernels) > 1 else ""
        axes = [*kernel.grid, *_splittable(prepared, kernel)]
        blocks = {axis: sizes.get(f"{prefix}grid {prepared.axes[axis].name}", 1) for axis in axes}
        loop = 1
        if kernel.loop is not None:
            loop = sizes.get(f"{prefix}loop {prepared.axes[kernel.loop].name}", 1)
            if loop != interface.get((kernel.loop, LOOP), max(loop, 2)):
                return
        parts = dict(blocks)
        if kernel.loop is not None:
            parts[kernel.loop] = parts.get(kernel.loop, 1) * loop
        poor = poor_axes(prepared)
        tiles = {a: tile_of(extents[a], n) if a in poor or extents[a] % n == 0 else 0 for a, n in parts.items()}
        many = sum(along > 1 for along in blocks.values()) > MAX_GRID_DIMS
        if many or not all(tiles.values()) or any(blocks[axis] < 2 for axis in kernel.grid):
            return
        yield (
            kernel,
            Sizes(
                extents,
                {axis: np.array([float(along)]) for axis, along in blocks.items()},
                np.array([float(loop)]),
                dict(interface),
                {axis: np.array([float(tile)]) for axis, tile in tiles.items() if axis in poor},
            ),
        )
        chosen = KernelSizes(tuple((axis, along) for axis, along in blocks.items() if along > 1), loop)
        interface.update(_interface(kernel, chosen))


def _diverse(order: npt.NDArray[np.intp], logarithms: Numbers, limit: int, given: Sequence[int] = ()) -> list[int]:
    """The first `limit`: rows at the `given` places of this order, then those not almost equal to one before, then the
    others."""
    rows = logarithms[order]
    first = list(given)
    apart = (np.abs(rows[:, None] - rows[first]).sum(axis=2) >= ALIKE).all(axis=1)
    while len(first) < limit and apart.any():
        first.append(int(np.argmax(apart)))
        apart &= np.abs(rows - rows[first[-1]]).sum(axis=1) >= ALIKE
    others = (i for i in range(len(order)) if i not in first) if len(first) < limit else iter(())
    return [int(order[i]) for i in (*first, *islice(others, limit - len(first)))]


def _each_count(blocks: Numbers, us: Numbers, limit: int) -> list[int]:
    """Where some numbers of blocks come first, of what is estimated close to the best; best estimate first."""
    close = blocks[us <= CLOSE * us[0]]
    return [int(place) for place in np.sort(np.unique(close, return_index=True)[1])[: min(COUNTS, limit // 2)]]


def tiny_extents(prepared: Prepared, overhanging: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """Extents of the axes on a tiny instance. What is always as long as one of `overhanging` is so there, too."""
    hanging = {number for axis in overhanging for number in prepared.alike(axis)}
    return prepared.joined(
        [
            TINY_OVERHANGING if number in hanging else TINY_REDUCED if axis.reduced else TINY_FREE
            for number, axis in enumerate(prepared.axes)
        ]
    )


def poor_axes(prepared: Prepared) -> frozenset[int]:
    """The axes with poor divisors: no tiles of useful sizes, which are neither so small nor so narrow, divide them, or
    none that instructions and the copy engine take where operands of products have them."""
    every = ((number, DIVISOR_GRAIN) for number in range(len(prepared.axes)))
    found = ((prepared.axes[number], number, grain) for number, grain in (*every, *_grains(prepared)))
    return frozenset(number for axis, number, grain in found if not axis.whole and _is_poor(axis.extent, grain))


def _grains(prepared: Prepared) -> Iterator[tuple[int, int]]:
    """Axes of operands of products that are not summed, and what tiles of them are multiples of: lines of the copy
    engine where operands lie along them, else rows of instructions."""
    for operator, args in prepared.program:
        leaves = (prepared.program[a][0] for a in args) if operator.kind in MATMULS else ()
        for tensor in (prepared.tensors[leaf.leaf] for leaf in leaves if leaf.kind is OpKind.IN_ITER):
            size = prepared.graph.inputs[tensor.input].type.dtype.size
            for axis, grain in zip(tensor.axes[-2:], (GRAIN, LINE_BYTES // size)[-len(tensor.axes) :], strict=True):
                if axis is not None and axis != operator.axis:
                    yield axis, grain


def overhangs(prepared: Prepared) -> list[frozenset[int]]:
    """Every set of axes over whose ends tiles may hang, the empty one first."""
    poor = sorted(poor_axes(prepared))
    return [frozenset(axes) for count in range(len(poor) + 1) for axes in combinations(poor, count)]


def _is_poor(extent: int, grain: int) -> bool:
    good = [d for d in divisors(extent) if d % grain == 0]
    wanted = [tile for tile in USEFUL_TILES if grain <= tile and 2 * tile < extent]
    return any(not any(tile <= 2 * d <= 4 * tile for d in good) for tile in wanted)


def tiny(
    prepared: Prepared, structure: Structure, overhanging: frozenset[int] = frozenset()
) -> tuple[KernelGraph, KernelGraph]:
    """The program and the muGraph with every axis small and every part of it of extent 2.

    Every kernel that cuts one of the axes `overhanging` has tiles that hang over its end.
    """
    extents = tiny_extents(prepared, overhanging)
    sizes = []
    for kernel in structure.kernels:
        split = [*kernel.grid, *_splittable(prepared, kernel)][:MAX_GRID_DIMS]
        sizes.append(KernelSizes(tuple((axis, 2) for axis in split), 1 if kernel.loop is None else 2))
    return small_program(prepared, extents), concrete(prepared, structure, sizes, extents)


def small_program(prepared: Prepared, extents: tuple[int, ...]) -> KernelGraph:
    """The program itself with other extents of its axes; what no output needs is left out."""
    made = Rewrite(KernelGraph.start(*small_inputs(prepared, extents)))
    for op, (value, *_) in prepared.graph.definitions():
        if value not in prepared.shapes:
            continue
        if op.kind is OpKind.RESHAPE:
            op = replace(op, attrs=ReshapeAttrs(shape_of(prepared.shapes[value], extents)))
        elif isinstance(op.attrs, RepeatAttrs) and op.attrs.times > 1:  # one copy is no axis
            copies = prepared.shapes[value][op.attrs.dim][0]
            op = replace(op, attrs=RepeatAttrs(op.attrs.dim, extents[copies]))
        made.copy(op, (value,))
    return made.returning(prepared.graph)


def _splittable(prepared: Prepared, kernel: KernelStructure) -> list[int]:
    """Free axes along which the blocks of a kernel may be laid out: all of its outputs have them."""
    types = [kernel.steps[output].type for output in kernel.outputs]
    return [axis for axis in prepared.free if all(type_[axis] & TILE for type_ in types)]


def divisors(extent: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(extent**0.5) + 1) if extent % d == 0]
    return small + [extent // d for d in reversed(small) if d * d != extent]


@lru_cache(maxsize=KNOWN)
def _kernel_choices(
    prepared: Prepared,
    kernel: KernelStructure,
    interface: _Interface,
    overhang: frozenset[int],
    target: Target,
    limit: int,
    each_split: bool,
    limits: Limits,
) -> tuple[_Choice, ...]:
    """`limit` diverse sizes of one kernel, best first, in all or for each way in which it splits the reduced axes. Of
    those that are estimated alike, the ones that move long runs of memory come first.

    The structures of a program have few kernels among them, each many times.
    """
    free = tuple(_splittable(prepared, kernel))
    sizes = _all_sizes(prepared, kernel.grid, kernel.loop, free, interface, overhang)
    tiles = Tiles.of(prepared, kernel, sizes)
    able = _has_room(tiles, target) & limits.allowed(sizes.blocks, sizes.loop)
    if not able.any():  # half of all structures keep a whole axis: nothing else of theirs is worked out
        return ()
    estimates = estimate(tiles, target)
    order = np.flatnonzero(able & _legal(estimates, target) & ~estimates.again)
    order = order[np.lexsort((tiles.runs()[order] * estimates.blocks[order], estimates.us[order].round(DIGITS)))]
    splits = np.zeros(len(order), np.intp)
    if each_split and kernel.grid:
        along = np.stack([sizes.blocks[axis][order] for axis in kernel.grid])
        splits = np.unique(along, axis=1, return_inverse=True)[1].ravel()
    logarithms = np.log2(np.stack([*sizes.blocks.values(), sizes.loop], axis=1))
    ranked = [order[splits == split] for split in range(splits.max(initial=-1) + 1)]
    kept: list[int] = []
    for one in ranked:
        kept += _diverse(one, logarithms, limit, _each_count(estimates.blocks[one], estimates.us[one], limit))
    return tuple(_choice(kernel, sizes, estimates, index) for index in order[np.isin(order, kept)].tolist())


def some_fit(structure: Structure, prepared: Prepared, target: Target) -> bool:
    """Whether there are sizes at which blocks have room for what each of these kernels holds; kernels without loops,
    and without grid dims over reduced axes."""
    overhang = poor_axes(prepared) - {*prepared.reduced}
    sizes = ((k, _all_sizes(prepared, (), None, (*_splittable(prepared, k),), (), overhang)) for k in structure.kernels)
    return all(_has_room(Tiles.of(prepared, kernel, found), target).any() for kernel, found in sizes)


def _fits(nbytes: Numbers, target: Target) -> Truths:
    """Where so many bytes fit the shared memory of a block."""
    return nbytes + RESERVED_BYTES <= target.shared_per_block


def _has_room(tiles: Tiles, target: Target) -> Truths:
    """Where the tensors of a block fit its shared memory, or its tiles the registers of its threads."""
    found = _fits(live(tiles), target)
    return found if found.all() else found | held_in_registers(tiles).fits


def _legal(estimates: Estimates, target: Target) -> Truths:
    """Which choices can be emitted and launched."""
    return _fits(np.maximum(estimates.shared_memory, estimates.needed), target) & (estimates.blocks <= MAX_GRID_X)


@lru_cache(maxsize=SHARED)
def _all_sizes(
    prepared: Prepared,
    grid: tuple[int, ...],
    looped: int | None,
    free: tuple[int, ...],
    interface: _Interface,
    overhang: frozenset[int],
) -> Sizes:
    """Every choice of parts: at least two blocks along a split reduced axis, at least two iterations.

    Kernels that split and loop alike share them, and what is known of their tiles.
    """
    axes, extents = [*grid, *free], tuple(axis.extent for axis in prepared.axes)
    columns = [_parts(extents[axis], axis in overhang)[1:] for axis in grid]
    columns += [_parts(extents[axis], axis in overhang) for axis in free]
    if looped is not None:
        tied = dict(interface).get((looped, LOOP))
        columns.append([tied] if tied is not None else _parts(extents[looped], looped in overhang)[1:])
    grids = np.meshgrid(*(np.array(column, np.float64) for column in columns), indexing="ij")
    rows = np.stack([grid.ravel() for grid in grids], axis=1) if columns else np.zeros((1, 0))
    rows = rows[(rows[:, : len(axes)] > 1).sum(axis=1) <= MAX_GRID_DIMS]
    loop = rows[:, -1] if looped is not None else np.ones(len(rows))
    along = {axis: rows[:, i] for i, axis in enumerate(axes)}
    tiles: dict[int, Numbers] = {}
    fits = np.ones(len(rows), bool)
    for axis in sorted({*axes, *(() if looped is None else (looped,))}):
        parts = along.get(axis, 1.0) * (loop if axis == looped else 1.0)
        if axis in overhang:
            tiles[axis] = _tiles(extents[axis], parts)
            fits &= tiles[axis] > 0
        elif axis == looped and axis in along:
            fits &= extents[axis] % parts == 0
    return Sizes(
        extents,
        {axis: blocks[fits] for axis, blocks in along.items()},
        loop[fits],
        dict(interface),
        {axis: tile[fits] for axis, tile in tiles.items()},
    )


def _parts(extent: int, overhang: bool) -> list[int]:
    """Into how many parts an axis may be cut, ascending: its divisors, and what makes tiles of useful sizes, some of
    them with a few elements more."""
    more = {-(-extent // tile) for tile in OVERHANGING_TILES if tile < extent} if overhang else set[int]()
    whole = {extent // height for height in TEAMS if height < extent} if overhang else set[int]()
    return sorted({*divisors(extent), *more, *(parts for parts in whole if few(-(-extent // parts)))})


def _tiles(extent: int, parts: Numbers) -> Numbers:
    """`tile_of` for many numbers of parts."""
    counts, where = np.unique(parts, return_inverse=True)
    found: Numbers = np.array([float(tile_of(extent, int(count))) for count in counts])[where]
    return found


def _choice(kernel: KernelStructure, sizes: Sizes, estimates: Estimates, index: int) -> _Choice:
    blocks = [(axis, int(along[index])) for axis, along in sizes.blocks.items() if along[index] > 1]
    blocks.sort(key=lambda pair: (-pair[1], pair[0]))
    chosen = KernelSizes(tuple(blocks), int(sizes.loop[index]))
    along = dict(blocks)
    numbers = [*(along.get(axis, 1) for axis in range(len(sizes.extents))), chosen.loop]
    return _Choice(chosen, estimates.cost(index), tuple(map(log2, numbers)), tuple(_interface(kernel, chosen).items()))


def _interface(kernel: KernelStructure, sizes: KernelSizes) -> dict[tuple[int, int], int]:
    """The extents of the parts that this kernel leaves as dimensions of its outputs."""
    found: dict[tuple[int, int], int] = {}
    for output in kernel.outputs:
        for axis, code in enumerate(kernel.steps[output].type):
            if code and not code & TILE:
                if code & (BLOCK | GRID):
                    found[axis, GRID] = sizes.blocks(axis)
                if code & DATA & LOOP:
                    found[axis, LOOP] = sizes.loop
    return found


def _reads_again(prepared: Prepared, kernel: KernelStructure, choice: _Choice) -> bool:
    sizes, loop = choice.sizes, kernel.loop
    return reads_again(kernel, prepared, lambda axis: sizes.blocks(axis) == 1 and axis != loop)


def _draft(prepared: Prepared, structure: Structure, choices: tuple[_Choice, ...]) -> Draft:
    extents = tuple(axis.extent for axis in prepared.axes)
    named: dict[str, int] = {}
    overhanging: set[int] = set()
    for number, (kernel, choice) in enumerate(zip(structure.kernels, choices, strict=True)):
        prefix = f"K{number + 1} " if len(choices) > 1 else ""
        for axis, blocks in choice.sizes.grid:
            named[f"{prefix}grid {prepared.axes[axis].name}"] = blocks
        if kernel.loop is not None:
            named[f"{prefix}loop {prepared.axes[kernel.loop].name}"] = choice.sizes.loop
        for axis, extent in enumerate(extents):
            parts = choice.sizes.blocks(axis) * (choice.sizes.loop if axis == kernel.loop else 1)
            if parts * tile_of(extent, parts) != extent:
                overhanging.add(axis)
    total = Cost.in_a_row([choice.cost for choice in choices])

    @cache  # whoever looks at it first
    def made() -> Instance:
        graph = concrete(prepared, structure, [choice.sizes for choice in choices], extents)
        return Instance(named, prepared.whole(graph), total, frozenset(overhanging))

    return Draft(named, total, frozenset(overhanging), made)
