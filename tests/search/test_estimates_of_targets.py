"""Estimates are sane on every target, for every size: what is better never costs more, masks are never for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from mirage_nb.ir import BlockGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Prepared, Structure, configurations, instances, prepare
from mirage_nb.search.saturation.values import TILE
from mirage_nb.search.sizes.anatomy import Numbers, Sizes
from mirage_nb.search.sizes.concrete import tile_of
from mirage_nb.search.sizes.constants import FITTED
from mirage_nb.search.sizes.cost import Estimates, block_of, estimate
from mirage_nb.search.sizes.instantiate import _all_sizes, _fits, _legal, _splittable, numbered, poor_axes, sized
from mirage_nb.search.sizes.occupancy import DEFAULT_VARIANT, OTHER_VARIANTS, Variant, fits, live, resident
from mirage_nb.search.sizes.representative import masks_of
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.structure import KernelStructure
from mirage_nb.targets import TARGETS, Target, find_target
from tests.search.explored import explored
from tests.search.programs import PROGRAMS
from tests.shares import crossed

H200 = find_target("h200")
QUICK = EFFORTS["quick"]
NAMES = ("rmsnorm", "gated_mlp", "attention_safe", "lora")


@cache
def searched(source: str, per_configuration: int = 2) -> tuple[Prepared, tuple[Structure, ...]]:
    """The first structures of every configuration of a quick search; `source`: a known name, or a program."""
    prepared = prepare(PROGRAMS[source]() if source in PROGRAMS else parse(source).graph)
    structures: list[Structure] = []
    for configuration in configurations(prepared, QUICK):
        if configuration.cut is None:
            found = explored(prepared, configuration, QUICK)
            structures += found.structures[:per_configuration]
    assert structures
    return prepared, tuple(structures)


def kernels(name: str) -> Iterator[tuple[Prepared, KernelStructure, Sizes]]:
    """Kernels of a program at many legal sizes each."""
    prepared, structures = searched(name)
    for structure in structures:
        for kernel in structure.kernels[:1]:
            free = tuple(_splittable(prepared, kernel))
            yield prepared, kernel, _all_sizes(prepared, kernel.grid, kernel.loop, free, (), frozenset())


def legal(prepared: Prepared, kernel: KernelStructure, sizes: Sizes, target: Target) -> tuple[Numbers, np.ndarray]:
    tiles = Tiles.of(prepared, kernel, sizes)
    estimates = estimate(tiles, target)
    return estimates.us, _fits(live(tiles), target) & _legal(estimates, target)


@crossed({
    "name": NAMES,
    "target": TARGETS,
})
def test_a_better_card_never_costs_more(name: str, target: str) -> None:
    card = find_target(target)
    better = {
        "bandwidth": replace(card, device_bandwidth=1.5 * card.device_bandwidth),
        "rates": replace(card, tensor_rate=2 * card.tensor_rate, vector_rate=2 * card.vector_rate),
        "start": replace(card, start_us=card.start_us / 2),
    }
    seen = 0
    for prepared, kernel, sizes in kernels(name):
        us, fitting = legal(prepared, kernel, sizes, card)
        seen += int(fitting.sum())
        for what, other in better.items():
            faster, _ = legal(prepared, kernel, sizes, other)
            assert (faster <= us * (1 + 1e-12))[fitting].all(), what
            if what == "start":
                assert (faster < us)[fitting].all()
    assert seen


@crossed({
    "name": NAMES,
    "target": TARGETS,
})
def test_more_multiprocessors_never_cost_more(name: str, target: str) -> None:
    """Each of them as fast as before, and device memory, too."""
    card = find_target(target)
    for times in (2, 3):
        larger = replace(
            card,
            multiprocessors=times * card.multiprocessors,
            tensor_rate=times * card.tensor_rate,
            vector_rate=times * card.vector_rate,
        )
        for prepared, kernel, sizes in kernels(name):
            us, fitting = legal(prepared, kernel, sizes, card)
            faster, _ = legal(prepared, kernel, sizes, larger)
            assert (faster <= us * (1 + 1e-9))[fitting].all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_no_estimate_is_faster_than_the_card(name: str, target: str) -> None:
    """Neither than its memory nor than its tensor cores."""
    card = find_target(target)
    for prepared, kernel, sizes in kernels(name):
        estimates = estimate(Tiles.of(prepared, kernel, sizes), card)
        assert (estimates.us >= card.start_us + estimates.bytes_device / (card.device_bandwidth * 1e3)).all()
        assert (estimates.us >= card.start_us + operations(prepared, kernel, sizes) / (card.tensor_rate * 1e6)).all()


def operations(prepared: Prepared, kernel: KernelStructure, sizes: Sizes) -> Numbers:
    """Floating-point operations of the products of all blocks."""
    total, tiles = np.zeros_like(sizes.loop), Tiles.of(prepared, kernel, sizes)
    for cell in tiles.outline.cells:
        if cell.node.kind is OpKind.MATMUL:
            depth = tiles.extents(cell.node.reads[0])[-1]
            times = sizes.loop if tiles.outline.varying[cell.value] else 1
            total = total + 2 * tiles.elements[cell.value] * depth * times
    return total * sizes.total_blocks()


@pytest.mark.parametrize("target", TARGETS)
def test_products_of_warpgroups_only_where_there_are_some(target: str) -> None:
    card = find_target(target)
    wide = 0
    for prepared, kernel, sizes in kernels("attention_safe"):
        block = block_of(Tiles.of(prepared, kernel, sizes), card, FITTED)
        if block.registers.private.any():
            wide += sum(int(fits(block.registers, block.copies.bulk, w, card).sum()) for w in OTHER_VARIANTS if w.wide)
            assert not (block.copies.bulk.any() and not card.tma)
    assert (wide > 0) == (card.arch == "sm_90a")


def test_blocks_side_by_side_fit_the_registers_of_each_quarter() -> None:
    """Two blocks of nine warps with 112 registers would fit a multiprocessor, but five warps do not fit a quarter."""
    prepared, kernel, sizes = next(found for found in kernels("attention_safe") if Tiles.of(*found).private.any())
    tiles = Tiles.of(prepared, kernel, sizes)
    block = block_of(tiles, H200, FITTED)
    held = block.registers
    small = np.zeros_like(sizes.loop)
    ways = (DEFAULT_VARIANT, Variant(4), Variant(4, 4, True))
    together = resident(held, small, block.copies.bulk, ways, H200)
    for row, way in zip(together, ways, strict=True):
        assert (row * (way.warps + block.copies.bulk) <= H200.threads_per_multiprocessor / 32).all()
        assert (row == resident(held, small, block.copies.bulk, (way,), H200)[0]).all()
        assert (row >= 1).all()
    most = held.private & block.copies.bulk & (held.fragments >= 4)
    fewer, more, _ = together
    assert (more >= fewer)[most].all()
    assert (more > fewer)[most].any()
    assert (tiles.body.fragments == held.fragments).all()


# -- tiles that hang over the end, rows that begin anywhere

ROWS, DEPTH, COLUMNS = 16, 1024, 4096


def product(depth: int, columns: int, rows: int = ROWS) -> str:
    return f"X: f16[{rows}, {depth}]\nW: f16[{depth}, {columns}]\nreturn rms_norm(X) @ W"


def looped(source: str) -> tuple[Prepared, KernelStructure]:
    """The first kernel with a loop over the axis that all products fold."""
    prepared, structures = searched(source)
    for structure in structures:
        for kernel in structure.kernels[:1]:
            if len(structure.kernels) == 1 and kernel.loop is not None and not kernel.grid:
                return prepared, kernel
    raise AssertionError("no kernel with a loop")


def at(prepared: Prepared, kernel: KernelStructure, blocks: int, loop: int, *, hang: bool) -> float:
    """The estimate with the columns in so many blocks, and so many iterations."""
    columns = next(
        a
        for a in prepared.free
        if all(kernel.steps[o].type[a] & TILE for o in kernel.outputs) and prepared.axes[a].extent > 100
    )
    extents = tuple(axis.extent for axis in prepared.axes)
    assert kernel.loop is not None
    parts = {columns: blocks, kernel.loop: loop}
    tiles = {axis: np.array([float(tile_of(extents[axis], n))]) for axis, n in parts.items()} if hang else {}
    sizes = Sizes(extents, {columns: np.array([float(blocks)])}, np.array([float(loop)]), {}, tiles)
    return float(estimate(Tiles.of(prepared, kernel, sizes), H200).us[0])


@pytest.mark.parametrize("loop", [4, 8, 16])
@pytest.mark.parametrize("depth,columns", [(1021, 4096), (1024, 4093), (1021, 4093), (1016, 4088)])
def test_masked_tiles_cost_no_less_than_whole_ones(depth: int, columns: int, loop: int) -> None:
    """The same tiles, and no more in them; whole ones move the bytes that the others lack."""
    whole = at(*looped(product(DEPTH, COLUMNS)), 64, loop, hang=False)
    lacking = 2 * (DEPTH * COLUMNS - depth * columns + ROWS * (DEPTH - depth + COLUMNS - columns))
    masked = at(*looped(product(depth, columns)), 64, loop, hang=True)
    assert masked >= whole - lacking / (H200.device_bandwidth * 1e3) - 1e-9
    if depth % 8 or columns % 8:
        assert masked > 1.2 * whole, "rows that begin anywhere pass through registers"


ODD = (
    "Q: f16[8, 64, 64]\nK: f16[8, 1021, 64]\nV: f16[8, 1021, 64]\n"
    "return softmax(Q @ transpose(K, 0, 2, 1), axis=2) @ V",
    "X: f16[64, 1021]\nW: f16[1021, 512]\nreturn softmax(X, axis=1) @ W",
    "X: f16[64, 1021]\nreturn exp(X) / sum(exp(X), axis=1, keepdims=True)",
    product(1021, 4093),
)


@pytest.mark.parametrize("source", ODD)
def test_masks_are_those_that_a_muGraph_gets(source: str) -> None:
    """Before a sum, a product with ones that end where the axis does; before a maximum, a sum with something low."""
    prepared, structures = searched(source)
    poor = poor_axes(prepared)
    masked = 0
    for structure in structures:
        for instance in instances(structure, prepared, H200, 3, poor):
            for (kernel, _), op in zip(
                numbered(structure, prepared, instance.sizes),
                (op for op in instance.graph.ops if isinstance(op.body, BlockGraph)),
                strict=True,
            ):
                assert isinstance(op.body, BlockGraph)
                own = sum(step.operator.kind in (OpKind.MUL, OpKind.ADD) for step in kernel.steps)
                made = sum(inner.kind in (OpKind.MUL, OpKind.ADD) for inner in op.body.ops)
                wanted = sum(
                    mask.operations
                    for axis in instance.overhanging
                    for mask in masks_of(prepared, kernel, axis)
                )
                assert made - own == wanted, (dict(instance.sizes), kernel)
                masked += wanted
    assert (masked > 0) == ("softmax" in source or "exp" in source)


MEASURED = (
    (product(1021, 4093), {"grid c": 64, "grid a": 2, "loop b": 4}, 24.69),
    (product(1021, 4093), {"grid c": 64, "grid a": 2, "loop b": 8}, 27.54),
    ("X: f16[37, 1021]\nW: f16[1021, 1030]\nV: f16[1021, 1030]\nreturn silu(X @ W) * (X @ V)",
     {"grid c": 65, "grid a": 2, "loop b": 8}, 15.87),
    ("X: f16[37, 1021]\nW: f16[1021, 1030]\nV: f16[1021, 1030]\nreturn silu(X @ W) * (X @ V)",
     {"grid c": 65, "grid a": 2, "loop b": 4}, 13.77),
    ("X: f16[37, 1021]\nW: f16[1021, 1030]\nV: f16[1021, 1030]\nreturn silu(X @ W) * (X @ V)",
     {"grid c": 65, "loop b": 8}, 20.91),
    ("X: f16[37, 1021]\nW: f16[1021, 1030]\nV: f16[1021, 1030]\nreturn silu(X @ W) * (X @ V)", {"grid c": 103}, 33.8),
    ("Q: f16[8, 127, 64]\nK: f16[8, 1021, 64]\nV: f16[8, 1021, 64]\n"
     "return softmax(Q @ transpose(K, 0, 2, 1), axis=2) @ V",
     {"grid a": 8, "grid b": 8, "grid e": 2, "loop d": 8}, 9.62),
    ("Q: f16[8, 127, 64]\nK: f16[8, 1021, 64]\nV: f16[8, 1021, 64]\n"
     "return softmax(Q @ transpose(K, 0, 2, 1), axis=2) @ V",
     {"grid a": 8, "grid b": 8, "grid e": 2, "loop d": 4}, 8.79),
    ("X: f16[64, 4099]\nW: f16[4099, 512]\nreturn softmax(X, axis=1) @ W",
     {"grid c": 16, "grid a": 8, "loop b": 11}, 39.91),
    ("X: f16[64, 4099]\nW: f16[4099, 512]\nreturn softmax(X, axis=1) @ W",
     {"grid c": 32, "grid a": 4, "loop b": 6}, 49.94),
    ("X: f16[64, 4099]\nW: f16[4099, 512]\nreturn softmax(X, axis=1) @ W", {"grid c": 32, "grid a": 16}, 157.74),
)  # fmt: skip
"""Programs of odd extents, sizes, and what they took on an H200: graph replays, inputs rotated past L2, medians."""


@pytest.mark.parametrize(("source", "sizes", "us"), MEASURED)
def test_odd_sizes_take_about_what_was_measured(source: str, sizes: dict[str, int], us: float) -> None:
    prepared, structures = searched(source)
    found = [instance for s in structures if (instance := sized(s, prepared, H200, sizes)) is not None]
    assert found
    assert 0.75 < min(instance.cost.us for instance in found) / us < 1.25


def test_numbered_sizes_hang_as_they_do_in_a_muGraph() -> None:
    source, wanted, _ = MEASURED[0]
    prepared, structures = searched(source)
    structure = next(s for s in structures if sized(s, prepared, H200, wanted) is not None)
    ((kernel, sizes),) = numbered(structure, prepared, wanted)
    block = block_of(Tiles.of(prepared, kernel, sizes), H200, FITTED)
    assert not block.copies.bulk.any()
    assert (block.copies.waiting > 0).all()


# -- many at once


def numbers(prepared: Prepared, kernel: KernelStructure, sizes: Sizes, target: Target) -> np.ndarray:
    estimates = estimate(Tiles.of(prepared, kernel, sizes), target)
    return np.stack([getattr(estimates, field) for field in Estimates.__slots__])


@pytest.mark.parametrize("name", [*NAMES, "gqa", ODD[0], ODD[1]])
def test_what_kernels_share_is_what_each_has_of_its_own(name: str) -> None:
    """Sizes are shared by kernels, and tiles, rows and products with them: in any order, for any target."""
    prepared, structures = searched(name, 6)
    poor = poor_axes(prepared)
    for target in ("a100", "h200", "a100"):
        card = find_target(target)
        for structure in structures:
            kernel = structure.kernels[0]
            free = tuple(_splittable(prepared, kernel))
            shared = _all_sizes(prepared, kernel.grid, kernel.loop, free, (), poor)
            own = Sizes(shared.extents, shared.blocks, shared.loop, shared.interface, shared.tiles)
            assert (numbers(prepared, kernel, shared, card) == numbers(prepared, kernel, own, card)).all()


@pytest.mark.parametrize("name", [*NAMES, "gqa", ODD[0]])
def test_one_choice_of_sizes_is_estimated_as_many_are(name: str) -> None:
    prepared, structures = searched(name, 3)
    poor = poor_axes(prepared)
    for structure in structures:
        kernel = structure.kernels[0]
        every = _all_sizes(prepared, kernel.grid, kernel.loop, tuple(_splittable(prepared, kernel)), (), poor)
        many = numbers(prepared, kernel, every, H200)
        for row in range(0, len(every.loop), max(1, len(every.loop) // 7)):
            one = Sizes(
                every.extents,
                {axis: along[row : row + 1] for axis, along in every.blocks.items()},
                every.loop[row : row + 1],
                every.interface,
                {axis: tile[row : row + 1] for axis, tile in every.tiles.items()},
            )
            assert numbers(prepared, kernel, one, H200)[:, 0] == pytest.approx(many[:, row], rel=1e-12)
