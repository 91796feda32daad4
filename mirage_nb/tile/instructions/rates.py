"""How fast a block's tile of a product is multiplied, by kind of instruction, and by two units side by side.

In: kinds, extents of tiles, as numbers (the planner of one block) or as arrays of them (the ranking of thousands of
sizes at once). Out: the same: cycles of a multiprocessor for one summed element. What was measured is said as it is;
of another tile, what its extents let one hope for. Invariant: planner, ranking and benchmark read these numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mirage_nb.ir import DType
from mirage_nb.targets import Target
from mirage_nb.tile.instructions.table import PLAIN_MULTIPLIES
from mirage_nb.tile.instructions.tessellation import SideBySide
from mirage_nb.tile.rules.register_resident import VECTOR_BYTES
from mirage_nb.tile.rules.teams import HEIGHT, Extent

REACHED: dict[str, dict[tuple[int, int], float]] = {
    "fma": {
        (64, 32): 73.0, (64, 64): 86.0, (64, 128): 52.0, (64, 256): 51.0, (128, 32): 79.0,
        (128, 64): 93.0, (128, 128): 103.0, (128, 256): 105.0, (256, 32): 94.0, (256, 64): 102.0,
        (256, 128): 102.0,
    },
    "fma_lines": {(128, 128): 103.0},
    "mma_tf32": {
        (64, 32): 146.0, (64, 64): 200.0, (64, 128): 255.0, (64, 256): 270.0, (128, 32): 175.0,
        (128, 64): 235.0, (128, 128): 293.0, (128, 256): 341.0, (256, 32): 239.0, (256, 64): 290.0,
        (256, 128): 347.0,
    },
    "mma_3xtf32": {
        (64, 32): 89.0, (64, 64): 113.0, (64, 128): 129.0, (128, 32): 109.0, (128, 64): 130.0,
        (128, 128): 144.0, (256, 32): 129.0, (256, 64): 144.0,
    },
    "wgmma_tf32": {
        (64, 64): 224.0, (64, 128): 311.0, (64, 256): 334.0, (128, 64): 377.0, (128, 128): 469.0,
        (128, 256): 476.0, (256, 64): 584.0, (256, 128): 686.0,
    },
    "wgmma_3xtf32": {
        (64, 64): 108.0, (64, 128): 146.0, (128, 64): 176.0, (128, 128): 214.0, (256, 64): 208.0,
    },
    "wgmma": {(128, 256): 1600.0, (256, 128): 1560.0, (128, 128): 1448.0, (64, 256): 1108.0},
    "mma_f64": {
        (64, 32): 67.0, (64, 64): 80.0, (64, 128): 80.0, (128, 32): 88.0, (128, 64): 104.0,
        (128, 128): 105.0, (256, 32): 91.0, (256, 64): 107.0,
    },
    "mma_f64_zigzag": {(128, 128): 101.0},
    "fma_f64": {(128, 64): 55.0},
}  # fmt: skip
"""Multiply-adds of a multiprocessor in a cycle, by kind and tile, as kernels of one kind reached them on one H200 with
products of 2048 rows, 4224 columns and 2048 summed elements; f16 with those of LLaMA and Phi layers."""
BESIDE = {"fma": 48.0, "fma_f64": 24.0}
"""The same of plain cores where two kinds share a block: they have one group of warps there, which hides few
latencies."""
SIDE_BY_SIDE = SideBySide()
"""What is lost where both units of a multiprocessor work: next to nothing, beside that."""
FEW_ISSUED = 0.4
"""Of the instructions that lanes could issue, those that one group of warps issues for a few rows."""


def rate(kind: str, rows: Extent, columns: Extent, *, beside: bool = False) -> Any:
    """Multiply-adds of a multiprocessor in a cycle, by warps that share a tile of rows x columns. A tile is as fast as
    one that was measured and is no larger; it is slower than a larger one by as much as it has fewer warps, and as they
    multiply less of what they load. beside: others of another kind multiply there, too. Raises KeyError for a kind that
    was never measured."""
    if beside and kind in BESIDE:
        return BESIDE[kind]
    found: Any = 0.0
    for (height, width), reached in REACHED[kind].items():
        warps, loaded = np.divide(rows, height), _used(columns) / _used(width)
        found = np.maximum(found, reached * np.minimum(1.0, warps) * np.minimum(1.0, loaded))
    for (height, width), reached in REACHED[kind].items():
        found = np.where(np.equal(rows, height) & np.equal(columns, width), reached, found)
    return found


def _used(columns: Extent) -> Any:
    """How often a warpgroup multiplies an element that it loads, about."""
    return np.divide(np.multiply(HEIGHT, columns), np.add(HEIGHT, columns))


def few_cycles(rows: Extent, columns: Extent, dtype: DType) -> Any:
    """Cycles for a few rows of plain cores, one group of warps, beside the tile: what lanes issue for a column."""
    converted = np.add(rows, 1) * (dtype.size < DType.F32.size)
    issued = 1 + np.add(rows, converted) + np.multiply(rows, dtype.size / VECTOR_BYTES)
    return np.where(np.greater(rows, 0), np.multiply(columns, issued) / (PLAIN_MULTIPLIES * FEW_ISSUED), 0.0)


def together(first: Any, second: Any) -> Any:
    """The time of two units of a multiprocessor, side by side."""
    return np.maximum(first, second) + SIDE_BY_SIDE.lost * np.minimum(first, second)


def cycle_us(target: Target) -> float:
    """Microseconds of a cycle in which plain cores issue all that they can."""
    return 2.0 * PLAIN_MULTIPLIES * target.multiprocessors / (target.vector_rate * 1e6)
