"""Element types as sets of numbers: their range, and the nearest number that each holds.

In: real numbers in float64 or float32. Out: the same as an element type holds them.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import BYTES, COUNTS, FLOAT8, DType, dtypes
from mirage_nb.ir.dtypes import FORMATS

Array = NDArray[Any]

LARGEST: dict[DType, float] = {DType.F16: 65504.0, DType.BF16: 3.38e38, DType.F32: 3.4e38, DType.F64: 1.79e308}
LARGEST |= {dtype: float(numbers[-1]) for dtype, numbers in COUNTS.items()}
LARGEST |= {dtype: float(dtypes.LARGEST[dtype]) for dtype in FLOAT8}
SMALLEST: dict[DType, float] = {DType.F16: 6.104e-5, DType.BF16: 1.176e-38, DType.F32: 1.176e-38, DType.F64: 2.3e-308}
SMALLEST |= dict.fromkeys(COUNTS, 1.0) | {DType.E4M3: 2.0**-6, DType.E5M2: 2.0**-14}
"""The smallest normal numbers; what lies below is a denormal."""


def rounded(values: Array, dtype: DType) -> Array:
    """A new array of the numbers as the element type holds them: float64 for it, else float32."""
    if dtype is DType.F64:
        return np.array(values, np.float64)
    if dtype is DType.BOOL:
        return np.array(np.not_equal(values, 0), np.float32)
    if dtype in COUNTS:
        whole = np.rint(np.nan_to_num(np.array(values, np.float32)))
        return np.clip(whole, COUNTS[dtype][0], COUNTS[dtype][-1])
    if dtype in BYTES:
        single = np.clip(np.array(values, np.float32), -LARGEST[dtype], LARGEST[dtype])
        _, exponent = np.frexp(np.maximum(np.abs(single), np.float32(SMALLEST[dtype])))
        step = np.ldexp(np.float32(1), exponent - 1 - FORMATS[dtype][0])
        near: Array = np.rint(single / step) * step
        return near.clip(-LARGEST[dtype], LARGEST[dtype])
    with np.errstate(all="ignore"):
        single = np.array(values, np.float32)
        if dtype is DType.F16:
            return single.astype(np.float16).astype(np.float32)
        if dtype is DType.BF16:
            bits = single.view(np.uint32)
            even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
            return np.where(np.isfinite(single), even.view(np.float32), single)
    return single


@functools.cache
def numbers_of(dtype: DType) -> NDArray[np.float64]:
    """Of a float of one byte, what its bit patterns stand for, in order."""
    digits, _ = FORMATS[dtype]
    bits = np.arange(128)
    exponent, fraction = bits >> digits, bits & (2**digits - 1)
    counted = np.where(exponent == 0, fraction, fraction + 2**digits)
    size = SMALLEST[dtype] / 2**digits * counted * 2.0 ** (np.maximum(exponent, 1) - 1)
    beyond = size > LARGEST[dtype]
    size[beyond] = np.nan
    if dtype is DType.E5M2:
        size[beyond.argmax()] = np.inf
    found = np.concatenate([size, -size])
    found.flags.writeable = False
    return found


def bits_of(values: Array, dtype: DType) -> NDArray[np.uint8]:
    """Real numbers as bit patterns of a float of one byte; those beyond its largest are that one."""
    near, size = rounded(values, dtype), numbers_of(dtype)[:128]
    found = np.searchsorted(size[np.isfinite(size)], np.abs(near)).astype(np.uint8)
    found[np.isnan(near)] = 0x7F
    return np.ascontiguousarray(found | (np.signbit(near).astype(np.uint8) << 7))
