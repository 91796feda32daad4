"""Hard inputs of products, and what is right for them.

In: a generator, extents, how products are made. Out: operands of all kinds of numbers; their products in more bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mirage_nb.ir import DType
from mirage_nb.tile.instructions.precision import Composition, rounded

Array = np.ndarray[Any, Any]
KINDS = 10


def hard(rng: np.random.Generator, shape: tuple[int, ...], kind: int) -> Array:
    """Normal numbers; of one sign; of many magnitudes; just beside what a piece can hold; whole numbers; powers; tiny
    ones and huge; denormals and zeros among others; one large among small."""
    normal = rng.standard_normal(shape)
    values = (
        normal,
        np.abs(normal),
        normal * 2.0 ** rng.integers(-6, 7, shape),
        np.sign(normal) * (1 + 2.0 ** -rng.integers(8, 13, shape)) * (1 - 2.0**-23),
        rng.integers(-(2**12), 2**12, shape),
        np.sign(normal) * 2.0 ** rng.integers(-5, 5, shape),
        normal * 2.0 ** rng.integers(-100, 50, shape),
        normal * 2.0 ** rng.choice((-149, -140, -126, -24, -14, 0), shape) * rng.integers(0, 2, shape),
        np.where(rng.random(shape) < 0.05, 2.0**50, 2.0**-40) * normal,
        normal * 2.0 ** rng.integers(-149, -120, shape),
    )[kind % KINDS]
    return np.asarray(values)


def held(values: Array, composition: Composition, dtype: DType) -> Array:
    """As numbers of a type, inside what the shorter type can hold, however small."""
    if composition.exponents == 5 or dtype is DType.F16:
        values = np.clip(values, -(2.0**15), 2.0**15)
    if dtype is DType.F64:
        return values
    as_float = values.astype(np.float32)
    if dtype is DType.F16:
        return as_float.astype(np.float16).astype(np.float32)
    return rounded(as_float, 8, cut=True) if dtype is DType.BF16 else as_float


def cancel(rng: np.random.Generator, left: Array, right: Array) -> None:
    """The second half of every sum all but takes away the first."""
    first, second = slice(left.shape[-1] // 2), slice(left.shape[-1] // 2, left.shape[-1] // 2 * 2)
    left[..., second] = -left[..., first] * (1 + 2.0**-20 * rng.integers(0, 2, left[..., first].shape))
    right[..., second, :] = right[..., first, :]


def exact(left: Array, right: Array) -> Array:
    """The products, in more bits than the operands' sums have."""
    with np.errstate(invalid="ignore"):  # infinities times zero
        found: Array = np.matmul(left.astype(np.longdouble), right.astype(np.longdouble))
    return found
