"""Instantiate: concrete muGraphs of a structure, best estimate first.

In: a structure, its program, a target. Out: `Instance`s whose sizes divide the program's extents and whose tiles
fit shared memory. All divisors are considered, powers of two or not; grids have at most three dims, free axes
and reduced ones together. `tiny` gives a small pair of program and muGraph for field trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from mirage_nb.ir import KernelGraph, OpKind, ReshapeAttrs
from mirage_nb.search.axes import Prepared
from mirage_nb.search.concrete import KernelSizes, concrete, small_inputs
from mirage_nb.search.cost import Cost, Estimates, Sizes, estimate
from mirage_nb.search.space import MAX_GRID_DIMS
from mirage_nb.search.structure import KernelStructure, Structure
from mirage_nb.search.values import BLOCK, DATA, GRID, LOOP, TILE
from mirage_nb.targets import Target

MAX_GRID_X = 2**31 - 1
TINY_REDUCED, TINY_FREE = 8, 4
"""Extents of the axes on a tiny instance: two of every part."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One concrete muGraph. `sizes` names its numbers: "grid m" blocks along axis m, "loop k" iterations."""

    sizes: Mapping[str, int]
    graph: KernelGraph
    cost: Cost


@dataclass(frozen=True, slots=True)
class _Choice:
    """Sizes of one kernel with their estimate."""

    sizes: KernelSizes
    cost: Cost


def instances(structure: Structure, prepared: Prepared, target: Target, limit: int) -> list[Instance]:
    """The `limit` best instances by the cost model; fewer, or none, when fewer fit the target."""
    extents = tuple(axis.extent for axis in prepared.axes)
    plans: list[tuple[tuple[_Choice, ...], dict[tuple[int, int], int]]] = [((), {})]
    for kernel in structure.kernels:
        grown: list[tuple[tuple[_Choice, ...], dict[tuple[int, int], int]]] = []
        for done, interface in plans:
            for choice in _kernel_choices(prepared, kernel, extents, interface, target, limit, kernel is not structure.kernels[-1]):
                grown.append(((*done, choice), {**interface, **_interface(kernel, choice.sizes)}))
        grown.sort(key=lambda plan: sum(choice.cost.us for choice in plan[0]))
        plans = grown if kernel is not structure.kernels[-1] else grown[:limit]
    return [_instance(prepared, structure, choices, extents) for choices, _ in plans]


def tiny(prepared: Prepared, structure: Structure) -> tuple[KernelGraph, KernelGraph]:
    """The program and the muGraph with every axis small and every part of it of extent 2."""
    extents = tuple(TINY_REDUCED if axis.reduced else TINY_FREE for axis in prepared.axes)
    sizes = []
    for kernel in structure.kernels:
        split = [*kernel.grid, *_splittable(prepared, kernel)][:MAX_GRID_DIMS]
        sizes.append(KernelSizes(tuple((axis, 2) for axis in split), 1 if kernel.loop is None else 2))
    return small_program(prepared, extents), concrete(prepared, structure, sizes, extents)


def small_program(prepared: Prepared, extents: tuple[int, ...]) -> KernelGraph:
    """The program itself with other extents of its axes."""
    graph = KernelGraph.start(*small_inputs(prepared, extents))
    original = prepared.graph
    for op, values in original.definitions():
        if op.kind is OpKind.RESHAPE:
            before = original.types[op.inputs[0]].shape
            moved = iter([new for new, old in zip(graph.types[op.inputs[0]].shape, before, strict=True) if old != 1])
            shape = tuple(1 if extent == 1 else next(moved) for extent in original.types[values[0]].shape)
            op = type(op)(op.kind, op.inputs, ReshapeAttrs(shape))
        graph = graph.append(op)
    return graph.returning(original.outputs, original.output_names)


def _splittable(prepared: Prepared, kernel: KernelStructure) -> list[int]:
    """Free axes along which the blocks of a kernel may be laid out: all of its outputs have them."""
    types = [kernel.steps[output].type for output in kernel.outputs]
    return [axis for axis in prepared.free if all(type_[axis] & TILE for type_ in types)]


def divisors(extent: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(extent**0.5) + 1) if extent % d == 0]
    return small + [extent // d for d in reversed(small) if d * d != extent]


def _kernel_choices(
    prepared: Prepared, kernel: KernelStructure, extents: tuple[int, ...], interface: Mapping[tuple[int, int], int],
    target: Target, limit: int, keep_parts: bool,
) -> list[_Choice]:  # fmt: skip
    """The best sizes of one kernel; with `keep_parts` the best for every way in which it splits reduced axes."""
    found: list[_Choice] = []
    for free in _free_subsets(prepared, kernel):
        sizes = _all_sizes(kernel, extents, free, interface)
        if not len(sizes.loop):
            continue
        estimates = estimate(prepared, kernel, sizes, target)
        legal = estimates.shared_memory <= target.shared_per_block
        legal &= estimates.blocks <= MAX_GRID_X
        for index in _best(sizes, estimates, legal, kernel, limit, keep_parts and bool(kernel.grid)):
            found.append(_choice(sizes, estimates, index))
    found.sort(key=lambda choice: (choice.cost.us, choice.sizes.grid, choice.sizes.loop))
    return found if keep_parts and kernel.grid else found[:limit]


def _free_subsets(prepared: Prepared, kernel: KernelStructure) -> list[tuple[int, ...]]:
    axes = _splittable(prepared, kernel)
    room = MAX_GRID_DIMS - len(kernel.grid)
    return [subset for count in range(room + 1) for subset in combinations(axes, count)]


def _all_sizes(
    kernel: KernelStructure, extents: tuple[int, ...], free: tuple[int, ...], interface: Mapping[tuple[int, int], int]
) -> Sizes:
    """Every choice of divisors: at least two blocks along a split axis, at least two iterations."""
    axes = [*kernel.grid, *free]
    tied = interface.get((kernel.loop, LOOP)) if kernel.loop is not None else None
    columns = [divisors(extents[axis])[1:] for axis in axes]
    if kernel.loop is not None:
        columns.append([tied] if tied is not None else divisors(extents[kernel.loop])[1:])
    choices = list(product(*columns))
    rows = np.array(choices, np.float64).reshape(len(choices), len(columns))
    if kernel.loop in kernel.grid:
        both = rows[:, axes.index(kernel.loop)] * rows[:, -1]
        rows = rows[(extents[kernel.loop] % np.maximum(both, 1)) == 0]
    loop = rows[:, -1] if kernel.loop is not None else np.ones(len(rows))
    return Sizes(extents, {axis: rows[:, i] for i, axis in enumerate(axes)}, loop, dict(interface))


def _best(
    sizes: Sizes, estimates: Estimates, legal: np.ndarray, kernel: KernelStructure, limit: int, per_split: bool
) -> list[int]:
    """Indices of the best legal choices, `limit` in all or for every split of the reduced axes."""
    order = np.flatnonzero(legal)
    order = order[np.argsort(estimates.us[order], kind="stable")]
    if not per_split:
        return [int(i) for i in order[:limit]]
    taken: dict[tuple[float, ...], int] = {}
    kept = []
    for index in order:
        split = tuple(float(sizes.blocks[axis][index]) for axis in kernel.grid)
        if taken.setdefault(split, 0) < limit:
            taken[split] += 1
            kept.append(int(index))
    return kept


def _choice(sizes: Sizes, estimates: Estimates, index: int) -> _Choice:
    blocks = [(axis, int(along[index])) for axis, along in sizes.blocks.items()]
    blocks.sort(key=lambda pair: (-pair[1], pair[0]))
    cost = Cost(
        us=float(estimates.us[index]),
        bytes_device=float(estimates.bytes_device[index]),
        bytes_shared=float(estimates.bytes_shared[index]),
        shared_memory=float(estimates.shared_memory[index]),
        blocks=int(estimates.blocks[index]),
        kernels=1,
    )
    return _Choice(KernelSizes(tuple(blocks), int(sizes.loop[index])), cost)


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


def _instance(
    prepared: Prepared, structure: Structure, choices: tuple[_Choice, ...], extents: tuple[int, ...]
) -> Instance:
    named: dict[str, int] = {}
    for number, (kernel, choice) in enumerate(zip(structure.kernels, choices, strict=True)):
        prefix = f"K{number + 1} " if len(choices) > 1 else ""
        for axis, blocks in choice.sizes.grid:
            named[f"{prefix}grid {prepared.axes[axis].name}"] = blocks
        if kernel.loop is not None:
            named[f"{prefix}loop {prepared.axes[kernel.loop].name}"] = choice.sizes.loop
    costs = [choice.cost for choice in choices]
    total = Cost(
        us=sum(c.us for c in costs),
        bytes_device=sum(c.bytes_device for c in costs),
        bytes_shared=sum(c.bytes_shared for c in costs),
        shared_memory=max(c.shared_memory for c in costs),
        blocks=max(c.blocks for c in costs),
        kernels=len(costs),
    )
    graph = concrete(prepared, structure, [choice.sizes for choice in choices], extents)
    return Instance(named, graph, total)
