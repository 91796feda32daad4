"""The bits of floats of 16, and the floats that TF32 has, by NumPy alone."""

from __future__ import annotations

import numpy as np

from tests.launches import Array


def bf16_bits(values: Array) -> Array:
    """Floats rounded to nearest even, as bit patterns; NaN is 0x7fff."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def bf16_values(bits: Array) -> Array:
    """The floats that bf16 bit patterns stand for."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def tf32_values(values: Array) -> Array:
    """What tensor cores read of floats as TF32."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def f16_bits(values: Array) -> Array:
    """Floats rounded to nearest even, as bit patterns; NaN is 0x7fff."""
    with np.errstate(over="ignore"):
        return np.where(np.isnan(values), np.uint16(0x7FFF), values.astype(np.float16).view(np.uint16))
