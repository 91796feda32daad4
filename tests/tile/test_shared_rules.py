"""Rules that take numbers and arrays say the same of both, and of layouts what the layouts themselves say."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mirage_nb.ir import DType
from mirage_nb.optimize.layout import Demand, lay_out
from mirage_nb.tile.rules.bodies import Body, split
from mirage_nb.tile.rules.boxes import boxes
from mirage_nb.tile.rules.order import find_chains, groups
from mirage_nb.tile.rules.shared import Shape, Use, lay, wavefronts
from mirage_nb.tile.rules.sharing import depth_split, share

DRAW = np.random.default_rng(0)
EXTENTS = DRAW.choice([1, 2, 7, 8, 16, 24, 33, 64, 67, 100, 128, 256, 600], (120, 4))


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
@pytest.mark.parametrize(
    "uses", [(Use.COPY,), (Use.VECTOR,), (Use.STRAIGHT, Use.VECTOR), (Use.TURNED, Use.FACTOR), (Use.COPY, Use.FACTOR)]
)
def test_the_cheapest_layout_of_many_tensors_is_that_of_each(dtype: DType, uses: tuple[Use, ...]) -> None:
    if dtype is DType.F32 and Use.FACTOR in uses:
        return  # tensor cores take 16 bits
    lead, rows, last, _ = EXTENTS.T
    at_once = lay(Shape(lead, rows, last, dtype.size), uses)
    for place, shape in enumerate(zip(lead, rows, last, strict=True)):
        singly = lay_out([Demand(0, tuple(map(int, shape)), dtype, uses)], [])[0]
        assert singly.nbytes == at_once.nbytes[place], shape
        assert bool(singly.swizzle) == at_once.swizzled[place], shape


@pytest.mark.parametrize(("use", "size"), [(Use.FACTOR, 2), (Use.STRAIGHT, 4), (Use.TURNED, 2)])
def test_wavefronts_repeat_with_the_lines_of_all_banks(use: Use, size: int) -> None:
    line = 128 // size
    longer = np.arange(line, 9 * line)
    assert (wavefronts(use, longer, size) == wavefronts(use, line + longer % line, size)).all()


def test_products_are_shared_alike() -> None:
    batch, m, k, n = EXTENTS.T
    loop = DRAW.choice([1, 2, 16], len(batch))
    for warps in (4, 8, 16):
        at_once = share(batch, m, k, n, warps, deferred=True, loop=loop)
        split = depth_split(batch, m, k, n, warps, loop)
        for place in range(len(batch)):
            one = [int(a[place]) for a in (batch, m, k, n)]
            singly = share(*one, warps, deferred=True, loop=int(loop[place]))
            assert [int(s) for s in singly.split] == [int(s[place]) for s in at_once.split]
            assert bool(singly.swapped) == at_once.swapped[place] and int(singly.split[3]) == split[place]


def test_bodies_are_shared_alike() -> None:
    rows, *others = EXTENTS[:, 0], EXTENTS[:, 1], EXTENTS[:, 2], np.ones_like(EXTENTS[:, 0])
    for splittable, warps in product((False, True), (4, 8)):
        body = Body((), (0, 1, 2), frozenset({0}), frozenset(), splittable, True, frozenset({1, 2}), (0,), (), (), (2,))
        at_once = split(body, lambda value: (rows, others[value]), warps)
        for place, height in enumerate(rows):
            one = split(body, lambda value, at=place, height=height: (int(height), int(others[value][at])), warps)
            assert bool(one.able) == at_once.able[place]
            assert (one.row_warps, one.key_warps) == (at_once.row_warps[place], at_once.key_warps[place])
        assert at_once.able.any() and not at_once.able.all()


def test_boxes_are_cut_alike() -> None:
    lead, rows, last, _ = EXTENTS.T
    tensor, over = (4, 1024, 16), [False] * 3
    at_once = boxes([lead, rows, last], tensor, 2, over)
    for place, extents in enumerate(zip(lead, rows, last, strict=True)):
        one = boxes(list(map(int, extents)), tensor, 2, over)
        assert bool(one.fits) == at_once.fits[place]
        assert not one.fits or (one.lines, one.nbytes) == (at_once.lines[place], at_once.nbytes[place])
    assert at_once.fits.any() and not at_once.fits.all()


def test_groups_stand_behind_what_they_read() -> None:
    """Two chains, one of which reads a sum of the other; a third operator joins the first that it may join."""
    elementwise, reads = [False, True, False, True, True], [[], [0], [1], [1, 2], [3, 0]]
    chains = find_chains(elementwise, reads, [0] * 5)
    assert chains == [(1,), (3, 4)]
    order = groups(chains, reads)
    assert order == [(0,), (1,), (2,), (3, 4)]
