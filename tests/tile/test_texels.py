"""Instruction texels: every point of their space once, and the right product over floats and residues."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mirage_nb.interp.field import FieldAlgebra, FieldInstance
from mirage_nb.interp.reference import FloatAlgebra
from mirage_nb.ir import BYTES, DType, OpKind
from mirage_nb.tile.instructions.groups import GROUPS, ROWS
from mirage_nb.tile.instructions.schemes import Asked, apart, scheme
from mirage_nb.tile.instructions.table import INSTRUCTIONS
from mirage_nb.tile.instructions.texel_run import multiplies, run_texel
from mirage_nb.tile.instructions.texels import (
    HAS,
    Digit,
    Instance,
    Texel,
    canonical_matrix,
    canonical_vector,
    derived,
    instances,
    nearest,
    over_warps,
    repeated,
    swapped,
)
from mirage_nb.tile.rules import teams

FLOATS = FloatAlgebra(np.dtype(float))
FMA = canonical_vector()
MMA = canonical_matrix(16, 8, 8)


def check(texel: Texel) -> None:
    """Its multiply-adds are the points of its space, and its registers compute the product."""
    m, n, k, batch = texel.extents
    points = multiplies(texel)
    assert len(points) == m * n * k * batch == len(np.unique(points, axis=0))
    assert (points < np.array(texel.extents)).all() and (points >= 0).all()
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((batch, m, k)), rng.standard_normal((batch, k, n))
    np.testing.assert_allclose(run_texel(texel, a, b, FLOATS), a @ b)
    instance = FieldInstance.draw(3)
    algebra = FieldAlgebra(instance)
    left, right = instance.random("a", (batch, m, k)), instance.random("b", (batch, k, n))
    found, exact = run_texel(texel, left, right, algebra), algebra.apply(OpKind.MATMUL, (left, right), None, 0)
    np.testing.assert_array_equal(found.p, exact.p)
    np.testing.assert_array_equal(found.q, exact.q)


@pytest.mark.parametrize("name", [n for n, row in INSTRUCTIONS.items() if row.n <= 32])
def test_canonical(name: str) -> None:
    check(INSTRUCTIONS[name].texel)


@pytest.mark.parametrize(("m", "n", "b"), [(1, 1, 32), (4, 8, 1), (8, 4, 1), (32, 1, 1), (1, 32, 1), (2, 4, 4)])
def test_an_fma_of_lanes_is_many_small_products(m: int, n: int, b: int) -> None:
    texel = derived(FMA, m, n, b)
    assert texel.extents == (m, n, 1, b)
    check(texel)


def test_the_operand_map_of_the_papers_example() -> None:
    """Figure 6b: an outer product of 4 x 8 needs every value of B in four lanes."""
    right = derived(FMA, 4, 8).right
    assert right is not None and right.lanes == (Digit(4), Digit(8, j=1))
    assert [right.point(0, lane, 0)[1] for lane in range(12)] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_what_is_not_derived() -> None:
    with pytest.raises(ValueError):
        derived(FMA, 4, 4)
    with pytest.raises(ValueError):
        derived(MMA, 16, 8)
    with pytest.raises(ValueError):
        nearest(MMA, "j")  # operand and result cut columns differently


def grown(rng: random.Random) -> Texel:
    """A random chain of transformations."""
    texel = rng.choice([derived(FMA, 4, 8), derived(FMA, 2, 4, 4), MMA, canonical_matrix(8, 8, 4)])
    for _ in range(rng.randrange(1, 5)):
        move = rng.randrange(4)
        axis = rng.choice("ijkb")
        if move == 0:
            texel = swapped(texel)
        elif move == 1 and texel.warps < 3 and axis != "k":
            texel = over_warps(texel, axis, 2)
        elif texel.issued < 8:
            texel = repeated(texel, axis, rng.choice((2, 3)), near=move == 2)
    return texel


@pytest.mark.parametrize("seed", range(24))
def test_transformed(seed: int) -> None:
    check(grown(random.Random(seed)))


@pytest.mark.parametrize("name", [n for n in GROUPS if ROWS[n].m * ROWS[n].n <= 4096 and ROWS[n].texel.k <= 8][::7])
def test_derived_rows(name: str) -> None:
    row = ROWS[name]
    check(row.texel)
    assert row.texel.extents == (row.m, row.n, row.k, 1) and row.texel.warps == row.warps


def test_neighbours_come_with_one_load() -> None:
    """Figure 6c: what runs along a line of shared memory lies in the registers of one thread."""
    right = GROUPS["fma.m64n64k4.km"].texel.right
    assert right is not None
    assert [right.point(0, 3, r)[1] - right.point(0, 3, 0)[1] for r in range(4)] == [0, 1, 2, 3]


def test_a_wrong_map_is_found() -> None:
    for name in HAS:
        spread = getattr(MMA, name)
        turned = replace(spread, lanes=spread.lanes[::-1])
        wrong = replace(MMA, **{name: turned}, canonical=MMA)
        with pytest.raises((ValueError, AssertionError, IndexError)):
            check(wrong)


def test_zig_zag_shares_an_operand() -> None:
    """Section 5.2: of instructions behind each other, two operands are never both new."""
    texel = repeated(repeated(repeated(derived(FMA, 4, 8), "k", 4), "i", 3), "j", 5)
    order = list(instances(texel))
    assert len({(i.left, i.right) for i in order}) == len(order) == 60

    def shared(a: Instance, b: Instance) -> bool:
        return a.left == b.left or a.right == b.right or a.result == b.result

    assert all(shared(a, b) for a, b in pairwise(order))
    plain = list(instances(texel, zigzag=False))
    assert sum(not shared(a, b) for a, b in pairwise(plain)) > 5


@pytest.mark.parametrize(("dtype", "precision"), [
    *((dtype, "f32") for dtype in DType if dtype not in BYTES),
    (DType.F32, "tf32"), (DType.F32, "3xtf32"), (DType.F16, "3xtf32"),
])  # fmt: skip
def test_rules_and_schemes_agree(dtype: DType, precision: str) -> None:
    """What the ranking takes for possible has a row of the table, whatever the operands' layouts."""
    heights, widths = (32, 63, 64, 65, 96, 128, 135, 136, 192, 256), (16, 32, 48, 64, 96, 128, 256)
    for rows, columns, sums in itertools.product(heights, widths, (1, 2)):
        fits = bool(teams.fits(rows, columns, 64, sums, dtype.size, apart(precision, dtype)))
        for left, right in itertools.product("km" if rows % 64 == 0 else "k", "km"):
            assert (scheme(Asked(rows, columns, 64, sums, (left, right), dtype), precision) is not None) == fits


def test_doubles_that_lanes_read_together_lie_in_different_banks() -> None:
    """Of 128 bytes that eight lanes read together, 16 bytes each, no two lie in one group of four banks."""
    for name in ("mma_f64.m64n128k16.kk", "mma_f64.m64n128k16.km"):
        for spread, along in ((ROWS[name].texel.left, "k"), (ROWS[name].texel.right, name[-1])):
            assert spread is not None
            for first in range(0, 32, 8):
                chunks = set()
                for lane in range(first, first + 8):
                    i, j, k, _ = spread.point(0, lane, 0)
                    row, column = (i + j, k) if along == "k" else (k, i + j)
                    chunks.add((column // 2 ^ row) % 8)
                assert len(chunks) == 8, (name, along)
