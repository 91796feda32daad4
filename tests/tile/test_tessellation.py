"""Tessellations: every point once, as fast as brute force on small spaces, one kind where mixing does not pay."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from mirage_nb.tile.instructions.table import Unit
from mirage_nb.tile.instructions.tessellation import (
    Extents,
    Kind,
    SideBySide,
    Tessellation,
    counts,
    tessellate,
)

FMA = Kind("fma", (1, 1, 1, 1), 1.0, Unit.PLAIN)
ONES = (1, 1, 1)
DEFAULT, ALL = 150, 10_000


def padded(space: Extents, kind: Kind) -> float:
    """Cycles of one kind whose last instructions hang over the ends of the space."""
    return kind.cycles * math.prod(-(-e // s) for e, s in zip(space, kind.extents, strict=True))


def drawn(rng: random.Random, most: int) -> tuple[Extents, list[Kind], SideBySide]:
    """A space and kinds; in one of three, none that covers everything."""
    space = (rng.randint(1, most), rng.randint(1, most), rng.randint(1, most // 2), rng.randint(1, 3))
    kinds = [FMA] if rng.random() < 0.7 else []
    for number in range(rng.randint(1, 3)):
        extents = (rng.randint(1, 4), rng.randint(1, 4), rng.choice((1, 1, 2, 4)), 1)
        unit = rng.choice((Unit.TENSOR, Unit.PLAIN))
        kinds.append(Kind(f"kind{number}", extents, math.prod(extents) * rng.uniform(0.1, 1.5), unit))
    return space, kinds, SideBySide(rng.choice((0.0, 0.3, 1.0)), rng.choice((0.0, 0.1)))


def check(found: Tessellation) -> None:
    """Every point once, and the cycles are those of the instructions that are there."""
    assert (counts(found) == 1).all()
    units = {unit: sum(r.instances * r.kind.cycles for r in found.regions if r.kind.unit is unit) for unit in Unit}
    assert found.tensor == pytest.approx(units[Unit.TENSOR])
    assert found.plain >= units[Unit.PLAIN] * (1 - 1e-9)


def covers(count: int) -> None:
    rng = random.Random(11)
    some = 0
    for _ in range(count):
        space, kinds, side = drawn(rng, rng.choice((4, 9, 14)))
        found = tessellate(space, kinds, side)
        if found is None:
            assert FMA not in kinds
            continue
        some += 1
        check(found)
        whole = [k for k in kinds if not any(e % s for e, s in zip(space, k.extents, strict=True))]
        for kind in whole:  # never slower than one kind alone
            assert found.cycles <= padded(space, kind) * (1 + 1e-9)
    assert some > count / 2


def test_random_spaces_are_covered_once() -> None:
    covers(DEFAULT)


@pytest.mark.slow
def test_ten_thousand_random_spaces() -> None:
    covers(ALL)


def brute_force(space: Extents, kinds: Sequence[Kind], side: SideBySide) -> float:
    """The least time of all exact covers, cell by cell, whatever their form; combining is free."""
    cells = list(itertools.product(*map(range, space)))
    bit = {cell: 1 << n for n, cell in enumerate(cells)}
    shapes = []
    for kind in kinds:
        inner = list(itertools.product(*map(range, kind.extents)))
        masks = {}
        for at in cells:
            covered = [tuple(a + x for a, x in zip(at, c, strict=True)) for c in inner]
            if all(cell in bit for cell in covered):
                masks[bit[at]] = sum(bit[cell] for cell in covered)
        shapes.append((kind, masks))
    front: dict[int, set[tuple[float, float]]] = {0: {(0.0, 0.0)}}
    everything = (1 << len(cells)) - 1
    for mask in range(everything):
        if mask not in front:
            continue
        first = ~mask & (mask + 1)
        for kind, masks in shapes:
            placed = masks.get(first)
            if placed is None or placed & mask:
                continue
            add = (kind.cycles, 0.0) if kind.unit is Unit.TENSOR else (0.0, kind.cycles)
            grown = {(round(t + add[0], 6), round(p + add[1], 6)) for t, p in front[mask]}
            front.setdefault(mask | placed, set()).update(grown)
        del front[mask]
    return min((max(t, p) + side.lost * min(t, p) for t, p in front.get(everything, ())), default=math.inf)


@pytest.mark.parametrize("seed", range(25))
def test_as_fast_as_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    space = rng.choice(
        [(4, 3, 1, 1), (3, 3, 1, 1), (2, 3, 2, 1), (2, 2, 2, 1), (5, 2, 1, 1), (2, 2, 1, 2), (12, *ONES)]
    )
    _, kinds, side = drawn(rng, 4)
    side = SideBySide(side.lost, 0.0)
    found = tessellate(space, kinds, side)
    assert (math.inf if found is None else found.cycles) == pytest.approx(brute_force(space, kinds, side), rel=1e-4)


TENSOR = Kind("tensor", (16, 8, 8, 1), 1024 / 512, Unit.TENSOR)
PLAIN = Kind("plain", (4, 8, 1, 1), 32 / 128, Unit.PLAIN)


def test_units_share_a_space_as_their_rates_are() -> None:
    """Four times the rate: four fifths of the columns, near enough; and no faster than both rates together."""
    found = tessellate((64, 320, 32, 1), [TENSOR, PLAIN])
    assert found is not None and found.kinds == ("plain", "tensor")
    together = 64 * 320 * 32 / (512 + 128)
    assert together <= found.cycles < 1.05 * together
    check(found)


def test_one_kind_where_mixing_loses() -> None:
    found = tessellate((64, 320, 32, 1), [TENSOR, PLAIN], SideBySide(lost=1.0))
    assert found is not None and found.kinds == ("tensor",) and len(found.regions) == 1


@pytest.mark.parametrize(("m", "n"), [(33, 64), (64, 65), (49, 130), (17, 24), (18, 8)])
def test_remainders_go_to_plain_cores(m: int, n: int) -> None:
    """One row too many is not a whole instruction more."""
    row = Kind("row", (1, 8, 1, 1), 8 / 128, Unit.PLAIN)
    found = tessellate((m, n, 32, 1), [TENSOR, PLAIN, row, Kind("one", (1, 1, 1, 1), 1 / 128, Unit.PLAIN)])
    assert found is not None and found.cycles < padded((m, n, 32, 1), TENSOR)
    check(found)


def test_sums_are_split_where_results_are_few() -> None:
    """Reduction tessellation: along i and j there is nothing to share out."""
    found = tessellate((16, 8, 4096, 1), [TENSOR, PLAIN])
    assert found is not None and found.kinds == ("plain", "tensor")
    assert {r.at[:2] for r in found.regions} == {(0, 0)} and found.cycles < padded((16, 8, 4096, 1), TENSOR)


def test_nothing_covers_it() -> None:
    assert tessellate((3, 1, 1, 1), [Kind("two", (2, 1, 1, 1), 1.0, Unit.TENSOR)]) is None
    with pytest.raises(ValueError):
        tessellate((0, 1, 1, 1), [FMA])
