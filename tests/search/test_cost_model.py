"""The cost model: finite, monotone, explained by tiles, and in step with what emission makes of a muGraph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.errors import TargetError
from mirage_nb.ir import AccumKind, BlockGraph, DType, InIterAttrs, KernelGraph, OpKind, TensorType
from mirage_nb.ir.legality import peak_shared_bytes
from mirage_nb.optimize import BlockPlan, default_options, plan
from mirage_nb.search import (
    EFFORTS,
    Assembly,
    Prepared,
    Structure,
    configurations,
    instances,
    prepare,
)
from mirage_nb.search.pieces.assemble import drafts
from mirage_nb.search.saturation.values import TILE
from mirage_nb.search.sizes.anatomy import Part, Sizes
from mirage_nb.search.sizes.cost import Estimates, estimate
from mirage_nb.search.sizes.drafts import Instance
from mirage_nb.search.sizes.instantiate import ALIKE, _diverse, divisors, numbered, sized
from mirage_nb.search.sizes.occupancy import live
from mirage_nb.search.sizes.representative import outline
from mirage_nb.search.sizes.tiles import SECTOR_BYTES, Tiles, rows, touched
from mirage_nb.search.structure import KernelStructure
from mirage_nb.targets import TARGETS, find_target
from mirage_nb.tile.rules.boxes import boxes as panels_of
from mirage_nb.tile.rules.boxes import bulk_of
from mirage_nb.tile.rules.order import Phase
from mirage_nb.tile.rules.placement import StepKind
from mirage_nb.tile.rules.shared import LINE_BYTES
from tests.clock import cpu_limit
from tests.search.explored import explored
from tests.search.programs import PROGRAMS, Builder
from tests.shares import shared_out, some

H200 = find_target("h200")
QUICK = EFFORTS["quick"]


@cache
def found(name: str, per_configuration: int = 4) -> tuple[Prepared, tuple[Structure, ...]]:
    prepared = prepare(PROGRAMS[name]())
    structures: list[Structure] = []
    for configuration in configurations(prepared, QUICK):
        result = explored(prepared, configuration, QUICK)
        structures.extend(result.structures[:per_configuration])
    assert structures
    return prepared, tuple(structures)


def costs(name: str, grid: list[int], loop: int, columns: int, target: str = "h200") -> Estimates:
    """Estimates of the best structure at `columns` columns a block, for several grids: the program grows with them."""
    prepared, structures = found(name)
    with_loop = [s for s in structures if s.kernels[0].loop is not None]
    best = min(with_loop, key=lambda s: instances(s, prepared, H200, 1)[0].cost.us)
    (kernel,) = best.kernels
    axis = max(prepared.free, key=lambda i: prepared.axes[i].extent)
    assert all(kernel.steps[output].type[axis] & TILE for output in kernel.outputs)
    found_ = []
    for blocks in grid:
        extents = [columns * blocks if i == axis else a.extent for i, a in enumerate(prepared.axes)]
        sizes = Sizes(tuple(extents), {axis: np.array([float(blocks)])}, np.array([float(loop)]))
        found_.append(estimate(Tiles.of(prepared, kernel, sizes), find_target(target)))
    return Estimates(*(np.concatenate([getattr(e, field) for e in found_]) for field in Estimates.__slots__))


@pytest.mark.parametrize(("name", "target"), some([*itertools.product(PROGRAMS, TARGETS)]))
def test_estimates_are_finite_and_positive(name: str, target: str) -> None:
    prepared, structures = found(name)
    card = find_target(target)
    for structure in structures:
        for draft in drafts(structure, prepared, card, 10):
            cost = draft.cost
            assert math.isfinite(cost.us)
            assert cost.us >= card.start_us * cost.kernels + cost.bytes_device / (card.device_bandwidth * 1e3)
            assert 0 < cost.shared_memory <= card.shared_per_block


@pytest.mark.parametrize(("name", "columns"), [("rmsnorm", 32), ("rmsnorm_fig3", 64), ("gated_mlp", 16)])
@pytest.mark.parametrize("loop", [2, 16, 64])
def test_more_blocks_of_the_same_tiles_are_never_cheaper(name: str, columns: int, loop: int) -> None:
    grid = [1, 2, 33, 66, 131, 132, 133, 264, 265, 400, 1000, 4000, 20000]
    us = costs(name, grid, loop, columns).us
    assert (np.diff(us) > -1e-9 * us[:-1]).all()
    assert us[-1] > 4 * us[0]


def test_a_last_wave_of_few_blocks_costs_nearly_a_wave() -> None:
    """Tiles that leave room for one block at a time: the 133rd block waits for the 132 before it."""
    full, one_more = costs("rmsnorm", [132, 133], 2, 32).us
    narrow, narrow_more = costs("rmsnorm", [132, 133], 64, 32).us
    assert one_more > 1.4 * full
    assert narrow_more < 1.1 * narrow


def test_narrow_columns_cost_more_than_wide_ones() -> None:
    """The same bytes in rows of 128, 64, 32, 16 and 8 bytes."""
    us = [float(costs("rmsnorm", [6144 // columns], 16, columns).us[0]) for columns in (64, 32, 16, 8, 4)]
    assert max(us[:2]) < us[2] < us[3] < us[4]
    assert us[4] > 3 * us[1]
    odd = float(costs("rmsnorm", [256], 16, 24).us[0])
    assert odd > 1.2 * us[1]


def test_very_short_loops_and_very_long_ones_are_worse() -> None:
    us = {loop: float(costs("gated_mlp", [128], loop, 32).us[0]) for loop in (2, 16, 32, 256)}
    assert max(us[16], us[32]) < min(us[2], us[256])


def test_faster_memory_is_never_slower() -> None:
    prepared, structures = found("gated_mlp")
    faster = replace(H200, device_bandwidth=2 * H200.device_bandwidth)
    for structure in structures:
        for draft in drafts(structure, prepared, H200, 20):
            again = sized(structure, prepared, faster, draft.sizes)
            assert again is not None
            assert again.cost.us <= draft.cost.us


# -- against emission

ONE_KERNEL = ("rmsnorm", "rmsnorm_fig3", "gated_mlp", "lora", "gqa", "attention_safe", "qknorm", "ntrans")


def body(graph: KernelGraph) -> BlockGraph:
    (op,) = graph.ops
    assert isinstance(op.body, BlockGraph)
    return op.body


def sizes_of(prepared: Prepared, structure: Structure, instance: Instance) -> Sizes:
    (kernel,) = structure.kernels
    blocks = {i: np.array([float(instance.sizes.get(f"grid {a.name}", 1))]) for i, a in enumerate(prepared.axes)}
    loop = 1 if kernel.loop is None else instance.sizes[f"loop {prepared.axes[kernel.loop].name}"]
    return Sizes(tuple(a.extent for a in prepared.axes), blocks, np.array([float(loop)]))


def private(prepared: Prepared, structure: Structure, instance: Instance) -> bool:
    (kernel,) = structure.kernels
    sizes = sizes_of(prepared, structure, instance)
    return bool(Tiles.of(prepared, kernel, sizes).private[0])


@shared_out
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_what_is_legal_fits_when_it_is_planned(name: str, share: int) -> None:
    """Also near the limit; and the memory of a kernel with a ring is nearly known."""
    prepared, structures = found(name)
    for structure in structures[:6]:
        every = drafts(structure, prepared, H200, 150 // share)
        every.sort(key=lambda draft: -draft.cost.shared_memory)
        for instance in [draft.made() for draft in every[:6] + every[6::30]]:
            block = next(k for k in plan(instance.graph, H200, default_options(H200)).kernels if k is not None)
            if block.options.bulk and instance.cost.shared_memory > 32768:
                # A warp with all keys of its rows leaves one sum, or saves it from its registers.
                region = block.staged.region if block.staged is not None else None
                least = 0.0 if region is not None and region.key_warps == 1 else 0.7
                assert least < block.shared_bytes / instance.cost.shared_memory < 1.1


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_tiles_travel_as_they_do_in_a_plan(name: str) -> None:
    prepared, structures = found(name)
    for structure in structures:
        parts = outline(prepared, structure.kernels[0]).parts
        for instance in instances(structure, prepared, H200, 1):
            block = next(k for k in plan(instance.graph, H200, default_options(H200)).kernels if k is not None)
            loads = [step for step in (block.staged.steps if block.staged else ()) if step.kind is StepKind.LOAD]
            streamed = sum(step.phase is Phase.LOOP for step in loads)
            if structure.kernels[0].loop is not None:
                assert streamed == parts.count(Part.STREAMED)
                assert len(loads) - streamed == parts.count(Part.HELD)


@shared_out
@pytest.mark.parametrize("name", ["gqa", "attention_safe", "lora", "qknorm"])
def test_loop_bodies_are_warp_private_where_a_plan_makes_them_so(name: str, share: int) -> None:
    prepared, structures = found(name)
    seen = set()
    for structure in structures:
        for instance in [draft.made() for draft in drafts(structure, prepared, H200, 30)[::share]]:
            block = next(k for k in plan(instance.graph, H200, default_options(H200)).kernels if k is not None)
            assert private(prepared, structure, instance) == has_region(block), instance.sizes
            seen.add(has_region(block))
    assert seen == ({False} if name == "lora" else {True, False})


@cache
def two_kernels(name: str, per_configuration: int = 3) -> tuple[Prepared, tuple[Structure, ...]]:
    """Structures of a standard search whose second kernel reads results of the first."""
    prepared = prepare(PROGRAMS[name]())
    standard = EFFORTS["standard"]
    found_: list[Structure] = []
    for configuration in configurations(prepared, standard):
        if configuration.kernels == 2:
            result = explored(prepared, configuration, standard)
            chosen = [s for s in result.structures if not isinstance(s, Assembly)]
            found_ += chosen[:: max(1, len(chosen) // per_configuration)]
    return prepared, tuple(found_)


def has_region(block: BlockPlan) -> bool:
    return block.staged is not None and block.staged.region is not None


def planned(prepared: Prepared, structure: Structure) -> Iterator[tuple[KernelStructure, Sizes, BlockPlan]]:
    """The kernels of the best instance of a structure, with their sizes and how emission plans them."""
    instance = next(iter(instances(structure, prepared, H200, 1)), None)
    if instance is None:
        return
    try:
        plans = [kernel for kernel in plan(instance.graph, H200, default_options(H200)).kernels if kernel is not None]
    except TargetError:  # it needs more memory than estimated
        return
    for (kernel, sizes), block in zip(numbered(structure, prepared, instance.sizes), plans, strict=True):
        yield kernel, sizes, block


@pytest.mark.parametrize("name", ["rmsnorm", "gqa"])
def test_products_of_what_travels_in_f32_are_those_that_a_plan_leaves_to_scalar_units(name: str) -> None:
    prepared, structures = two_kernels(name)
    seen = set()
    for structure in structures:
        for kernel, _, block in planned(prepared, structure):
            if block.staged is None or block.staged.region is not None:
                continue
            made = outline(prepared, kernel)
            products = [cell for cell in made.cells if cell.node.kind is OpKind.MATMUL]
            tilings = [block.staged.tiling(i) for i, op in enumerate(block.block.ops) if op.kind is OpKind.MATMUL]
            for product, tiling in zip(products, tilings, strict=True):
                assert any(made.block.types[v].dtype is DType.F32 for v in product.reads) == (tiling is None)
                seen.add(tiling is None)
    assert seen == {True, False}


def test_what_is_kept_for_all_iterations_is_not_warp_private() -> None:
    prepared, structures = two_kernels("gqa")
    seen = set()
    for structure in structures:
        for kernel, sizes, block in planned(prepared, structure):
            made = outline(prepared, kernel)
            if Part.PRIVATE in made.parts:
                kept = any(step.operator.accum is AccumKind.CONCAT for step in kernel.steps)
                assert bool(Tiles.of(prepared, kernel, sizes).private[0]) == has_region(block)
                seen.add((kept, has_region(block)))
    assert {(True, False), (False, True)} <= seen


def test_what_hangs_over_the_end_is_computed_but_not_moved() -> None:
    built = Builder.over(X=(8, 4096), W=(4096, 1002))
    product = built.op(OpKind.MATMUL, 0, 1)
    result = built.op(OpKind.EXP, product)
    prepared = prepare(built.graph.returning((result,)))
    moved = 2.0 * (8 * 4096 + 4096 * 1002 + 8 * 1002)
    seen = 0
    for configuration in configurations(prepared, QUICK):
        result = explored(prepared, configuration, QUICK)
        for structure in result.structures:
            for draft in drafts(structure, prepared, H200, 40):
                if draft.cost.kernels == 1 and draft.overhanging:
                    assert draft.cost.bytes_device == pytest.approx(moved)
                    seen += 1
    assert seen


@pytest.mark.parametrize("name", ["rmsnorm", "gqa", "attention_safe", "ntrans"])
def test_live_bytes_are_those_of_legality(name: str) -> None:
    prepared, structures = found(name)
    for structure in structures:
        (kernel,) = structure.kernels
        for instance in instances(structure, prepared, H200, 5):
            tiles = Tiles.of(prepared, kernel, sizes_of(prepared, structure, instance))
            counted = float(live(tiles)[0])
            assert counted >= peak_shared_bytes(body(instance.graph))
            assert counted <= 1.01 * peak_shared_bytes(body(instance.graph)) + 64


@given(
    height=st.sampled_from([1, 2, 7, 8, 16, 100, 256, 260, 264, 512, 520]),
    columns=st.sampled_from([1, 8, 12, 16, 24, 32, 48, 64, 96, 128]),
    outer=st.sampled_from([1, 2]),
    whole=st.booleans(),
)
def test_bulk_rows_are_those_of_the_boxes(height: int, columns: int, outer: int, whole: bool) -> None:
    shape = (2, height * 2, columns if whole else columns * 2)
    split = (0 if outer == 1 else None, 1, None if whole else 2)
    block = BlockGraph.start((TensorType(shape, DType.F16),), (2, 2, 2), 1)
    boxed = bulk_of(block, InIterAttrs(0, split, None))
    extents = [np.array([float(e)]) for e in (outer, height, columns)]
    found_ = panels_of(extents, shape, 2, [False] * 3)
    assert bool(found_.fits[0]) == (boxed is not None)
    assert boxed is None or found_.lines[0] == boxed.box[0] * boxed.down * boxed.across


@given(width=st.integers(1, 400), unit=st.sampled_from([SECTOR_BYTES, LINE_BYTES]))
def test_touched_units_are_the_mean_over_where_runs_begin(width: int, unit: int) -> None:
    lying = rows([np.array([1.0]), np.array([float(width)])], [9, width * 7], 1)
    starts = [block * width for block in range(unit)]
    units = [(start + width - 1) // unit - start // unit + 1 for start in starts]
    assert float(touched(lying.width, lying.count, unit)[0]) == pytest.approx(sum(units) / unit)


def test_whole_rows_are_one_run() -> None:
    lying = rows([np.array([4.0]), np.array([64.0])], [16, 64], 2)
    assert (float(lying.width[0]), float(lying.count[0])) == (512.0, 1.0)
    lying = rows([np.array([4.0]), np.array([32.0])], [16, 64], 2)
    assert (float(lying.width[0]), float(lying.count[0])) == (64.0, 4.0)


# -- choice


def test_few_instances_are_diverse() -> None:
    """Neither the grid nor the loop of two of the first four is within a factor of two, summed over all of them."""
    for name in ("rmsnorm", "gated_mlp", "attention_safe", "gqa"):
        prepared, structures = found(name)
        for structure in structures:
            first = drafts(structure, prepared, H200, 4)
            keys = sorted({key for draft in first for key in draft.sizes})
            if len(first) < 4:
                continue
            logarithms = np.array([[math.log2(i.sizes.get(key, 1)) for key in keys] for i in first])
            distances = np.abs(logarithms[:, None] - logarithms[None, :]).sum(axis=2)
            assert (distances[~np.eye(4, dtype=bool)] > 0.99).all(), (name, [i.sizes for i in first])


@pytest.mark.parametrize("name", ["rmsnorm", "gqa"])
def test_the_first_instance_is_the_best_of_all_and_none_is_lost(name: str) -> None:
    prepared, structures = found(name)
    for structure in structures[:4]:
        every = drafts(structure, prepared, H200, 10**6)
        if not every:
            continue
        assert instances(structure, prepared, H200, 1)[0].cost == every[0].cost
        assert len({tuple(sorted(i.sizes.items())) for i in every}) == len(every)
        for instance in [draft.made() for draft in every[:: max(1, len(every) // 10)]]:
            again = sized(structure, prepared, H200, instance.sizes)
            assert again is not None
            assert again.graph == instance.graph
            assert again.cost == instance.cost


def test_sizes_that_do_not_divide_have_no_instance() -> None:
    prepared, structures = found("rmsnorm")
    looped = next(s for s in structures if s.kernels[0].loop is not None)
    good = dict(instances(looped, prepared, H200, 1)[0].sizes)
    grid = next(key for key in good if key.startswith("grid"))
    assert 5 not in divisors(6144)
    for bad in ({**good, grid: 5}, {**good, "grid z": 2}, {grid: good[grid]}, {**good, grid: 1}):
        assert sized(looped, prepared, H200, bad) is None


def test_sizes_of_two_kernels_are_found_again() -> None:
    prepared = prepare(PROGRAMS["gqa"]())
    standard = EFFORTS["standard"]
    tried = 0
    for configuration in configurations(prepared, standard):
        if configuration.kernels == 2 and tried < 3:
            result = explored(prepared, configuration, standard)
            for structure in result.structures[:1]:
                for instance in instances(structure, prepared, H200, 3):
                    again = sized(structure, prepared, H200, instance.sizes)
                    assert again is not None
                    assert again.graph == instance.graph
                    tried += 1
    assert tried


def test_instances_are_quick() -> None:
    """Four instances of 32 structures in well under a second, on a slow machine."""
    prepared, structures = found("ntrans", 12)
    chosen = (structures * 32)[:32]
    with cpu_limit(1.5):
        for structure in chosen:
            instances(structure, prepared, H200, 4)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30), st.integers(1, 8))
def test_diverse_rows_are_those_of_a_walk_through_them(rows_: list[tuple[int, int]], limit: int) -> None:
    logarithms = np.array(rows_, float)
    kept: list[int] = []
    passed: list[int] = []
    for row in range(len(rows_)):
        if len(kept) < limit:
            alike = any(np.abs(logarithms[row] - logarithms[k]).sum() < ALIKE for k in kept)
            (passed if alike else kept).append(row)
    assert _diverse(range(len(rows_)), logarithms, limit) == [*kept, *passed][:limit]
