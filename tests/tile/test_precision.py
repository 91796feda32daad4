"""Products as the card makes them, through the registers of texels: within their stated error, on random and on hard
inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage_nb.ir import DType
from mirage_nb.tile.instructions.groups import ROWS
from mirage_nb.tile.instructions.precision import (
    COMPOSITIONS,
    EXACT,
    FEW_CHUNK,
    FEW_DEPTH,
    FEW_DIGITS,
    Composition,
    allowed,
    bound,
    few_summed,
    pieces,
    rounded,
    summed,
    toward_zero,
)
from mirage_nb.tile.instructions.table import INSTRUCTIONS
from mirage_nb.tile.instructions.texel_run import run_composed
from mirage_nb.tile.instructions.texels import (
    Texel,
    canonical_matrix,
    canonical_vector,
    derived,
    over_warps,
    repeated,
    swapped,
)
from tests.shares import shared_out
from tests.tile.hard import KINDS, Array, cancel, exact, hard, held

CASES = 1000


def drawn(rng: np.random.Generator, texel: Texel, count: int, made: Composition, dtype: DType) -> tuple[Array, Array]:
    """Operands of all kinds; of one product in three, the second half of the sum all but takes away the first."""
    m, n, k, batch = texel.extents
    left = np.stack([hard(rng, (batch, m, k), case) for case in range(count)])
    right = np.stack([hard(rng, (batch, k, n), case // KINDS) for case in range(count)])
    cancel(rng, left[::3], right[::3])
    return held(left, made, dtype), held(right, made, dtype)


MMA, FMA = canonical_matrix(16, 8, 8), derived(canonical_vector(), 4, 8)
DEEP = repeated(repeated(MMA, "k", 9), "i", 2, near=True)
TEXELS: dict[str, tuple[DType, Composition, tuple[Texel, ...]]] = {
    "f32": (
        DType.F32,
        EXACT[DType.F32],
        (FMA, derived(canonical_vector(), 2, 4, 4), swapped(repeated(repeated(FMA, "k", 12), "j", 2, near=True)),
         over_warps(repeated(FMA, "k", 5), "i", 2), ROWS["fma.m5n128k4.km"].texel),
    ),
    "f16": (DType.F16, EXACT[DType.F32], (canonical_matrix(16, 8, 16, 2), INSTRUCTIONS["wgmma.m64n8k16.f16"].texel)),
    "bf16": (DType.BF16, EXACT[DType.F32], (swapped(repeated(canonical_matrix(16, 8, 16, 2), "k", 3)),)),
    "f64": (DType.F64, EXACT[DType.F64], (canonical_matrix(16, 8, 16), swapped(canonical_matrix(8, 8, 4)))),
    "tf32": (DType.F32, COMPOSITIONS["tf32"], (MMA, swapped(MMA), DEEP, INSTRUCTIONS["wgmma.m64n32k8.tf32"].texel)),
    "3xtf32": (DType.F32, COMPOSITIONS["3xtf32"], (MMA, swapped(DEEP), over_warps(MMA, "j", 2),
                                                   ROWS["wgmma_3xtf32.m32n64k8.kk"].texel)),
    "3xbf16": (DType.F32, COMPOSITIONS["3xbf16"], (canonical_matrix(16, 8, 16, 2), repeated(MMA, "k", 5))),
    "6xbf16": (DType.F32, COMPOSITIONS["6xbf16"], (swapped(canonical_matrix(16, 8, 16, 2)), repeated(MMA, "k", 5))),
    "3xf16": (DType.F32, COMPOSITIONS["3xf16"], (canonical_matrix(16, 8, 16, 2), repeated(MMA, "k", 5))),
}  # fmt: skip
"""Derived, transformed, composed: what multiplies what, by which registers."""


@shared_out
@pytest.mark.parametrize("name", TEXELS)
def test_texels_stay_within_their_error(name: str, share: int) -> None:
    """1,000 products through the maps of registers, against wider numbers."""
    dtype, made, texels = TEXELS[name]
    rng = np.random.default_rng(7)
    worst = 0.0
    for texel in texels:
        a, b = drawn(rng, texel, -(-CASES // len(texels) // share), made, dtype)
        off = np.abs(run_composed(texel, a, b, made) - exact(a, b))
        may = allowed(a, b, made)
        assert (off <= may).all()
        worst = max(worst, float((off / may).max()))
    assert worst > 0.02  # the bound says something


@pytest.mark.parametrize("name", TEXELS)
def test_infinities(name: str) -> None:
    """What an infinity meets is not finite; by operands of one piece it is what numbers with infinities say."""
    dtype, made, texels = TEXELS[name]
    rng = np.random.default_rng(3)
    for texel in texels:
        m, n, k, batch = texel.extents
        a, b = (held(rng.standard_normal((20, batch, *s)), made, dtype) for s in ((m, k), (k, n)))
        a[rng.random(a.shape) < 0.03] = np.inf
        b[rng.random(b.shape) < 0.03] = -np.inf
        found, said = run_composed(texel, a, b, made), exact(a, b)
        touched = ~np.isfinite(said)
        assert touched.any() and (np.isfinite(found) == ~touched).all()
        if made.pieces == 1:
            np.testing.assert_array_equal(found[touched], said[touched].astype(found.dtype))


@pytest.mark.parametrize("composition", COMPOSITIONS.values(), ids=lambda c: c.name)
def test_a_term_less_is_found(composition: Composition) -> None:
    """The bound is tight enough to tell the largest product of pieces, or the largest correction, missing."""
    rng = np.random.default_rng(1)
    a, b = (np.abs(rng.standard_normal(s)).astype(np.float32) for s in ((4, 32), (32, 4)))
    right = a.astype(np.float64) @ b.astype(np.float64)
    less = replace(composition, terms=composition.terms[:-1])
    made = summed(a[:, None, :], b.T[None, :, :], less) if less.terms else 0.0
    off = np.abs(made - right)
    assert (off / right).max() > bound(composition, 32)


def test_pieces_add_up() -> None:
    values = hard(np.random.default_rng(2), (1000,), 2).astype(np.float32)
    for composition in COMPOSITIONS.values():
        rest = values - np.sum(pieces(values, composition), axis=0, dtype=np.float64)
        last = composition.spacing(composition.pieces - 1)
        assert (np.abs(rest) <= composition.unit**composition.pieces * np.abs(values) + last).all()


def test_sums_of_few_digits() -> None:
    """What is far smaller than the largest term, or than the sum so far, loses digits; not in the next chunk."""
    one, small = np.zeros((1, 2 * FEW_CHUNK)), np.zeros((2 * FEW_CHUNK, 1))
    one[0, [0, 1, FEW_DEPTH, FEW_CHUNK]], small[[0, 1, FEW_DEPTH, FEW_CHUNK], 0] = (256, 1, 1, 1), 1.125
    unit = 2.0 ** (8 - FEW_DIGITS)
    assert few_summed(one, small)[0, 0] == 288 + 3 * 1.125  # 1.125 is 36 units
    one[0, [1, FEW_DEPTH, FEW_CHUNK]] = 1 - unit / 4
    lost = np.trunc((1 - unit / 4) * 1.125 / unit) * unit
    assert few_summed(one, small)[0, 0] == 288 + 2 * lost + (1 - unit / 4) * 1.125


def test_rounding() -> None:
    one = np.float32(1)
    step = np.float32(2.0**-10)
    assert rounded(np.array([one + step / 2]), 11, cut=False)[0] == one + step  # a tie, away from zero
    assert rounded(np.array([one + step / 2]), 11, cut=True)[0] == one
    assert toward_zero(np.array([1 + 2.0**-24 * 1.9, -1 - 2.0**-24 * 1.9])).tolist() == [1.0, -1.0]
