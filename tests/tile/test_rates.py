"""Rates of tiles: what was measured as it is, what was not by what is known, for one tile and for many at once."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.ir import DType
from mirage_nb.targets import TARGETS
from mirage_nb.tile.instructions.groups import KINDS
from mirage_nb.tile.instructions.rates import REACHED, cycle_us, few_cycles, rate, together
from mirage_nb.tile.instructions.schemes import one_kind
from mirage_nb.tile.instructions.table import DOUBLE_MULTIPLIES, PLAIN_MULTIPLIES

ROWS, COLUMNS = np.meshgrid([64, 128, 192, 256], [32, 64, 96, 128, 256])


@pytest.mark.parametrize("kind", REACHED)
def test_rates(kind: str) -> None:
    found = rate(kind, ROWS, COLUMNS)
    assert found.min() > 0
    for (rows, columns), here in np.ndenumerate(found):
        tile = ROWS[rows, columns], COLUMNS[rows, columns]
        assert rate(kind, *tile) == here == REACHED[kind].get(tile, here)
        assert here <= max(REACHED[kind].values())
    if kind in KINDS and KINDS[kind].row.dtype is not DType.F16:
        peak = (
            DOUBLE_MULTIPLIES["tensor"] if kind.startswith("mma_f64") else PLAIN_MULTIPLIES if "fma" in kind else 1024
        )
        assert max(REACHED[kind].values()) <= peak


def test_the_kind_follows_the_tile() -> None:
    """The faster one, of warpgroups only where their instruction fits, with second pieces in shared memory."""
    busy, rests = one_kind(ROWS, COLUMNS, "k", "3xtf32", DType.F32)
    group, warp = (ROWS * COLUMNS / rate(kind, ROWS, COLUMNS) for kind in ("wgmma_3xtf32", "mma_3xtf32"))
    wide = (COLUMNS % 64 == 0) & (group <= warp)
    assert wide.any() and not wide[COLUMNS % 64 == 0].all()  # of 64 x 64, single warps are faster
    np.testing.assert_array_equal(busy, np.where(wide, group, warp))
    np.testing.assert_array_equal(rests, ROWS * wide)
    turned, none = one_kind(ROWS, COLUMNS, "m", "3xtf32", DType.F32)
    assert (turned >= busy).all() and not none.any()
    assert (one_kind(ROWS, 32, "k", "wgmma_3xtf32", DType.F32)[0] == np.inf).all()


def test_units_side_by_side() -> None:
    """The longer one counts; no rows take nothing."""
    few = few_cycles(np.arange(8), 128, DType.F32)
    assert few[0] == 0 and (np.diff(few) > 0).all() and few_cycles(3, 128, DType.F16) > few[3]
    assert together(few, 20.0).tolist() == np.maximum(few, 20.0).tolist()
    assert 1 / cycle_us(TARGETS["h200"]) == pytest.approx(1775, rel=0.01)  # cycles of a microsecond
