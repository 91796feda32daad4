"""Element types as sets of numbers: their range, and the nearest number that each holds.

In: real numbers in float64 or float32. Out: the same as an element type holds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import BYTES, DType

Array = NDArray[Any]

LARGEST: dict[DType, float] = {DType.F16: 65504.0, DType.BF16: 3.38e38, DType.F32: 3.4e38, DType.F64: 1.79e308}
LARGEST |= {dtype: float(numbers[-1]) for dtype, numbers in BYTES.items()}
SMALLEST: dict[DType, float] = {DType.F16: 6.104e-5, DType.BF16: 1.176e-38, DType.F32: 1.176e-38, DType.F64: 2.3e-308}
SMALLEST |= dict.fromkeys(BYTES, 1.0)
"""The smallest normal numbers; what lies below is a denormal."""


def rounded(values: Array, dtype: DType) -> Array:
    """A new array of the numbers as the element type holds them: float64 for it, else float32."""
    if dtype is DType.F64:
        return np.array(values, np.float64)
    if dtype is DType.BOOL:
        return np.array(np.not_equal(values, 0), np.float32)
    if dtype in BYTES:
        whole = np.rint(np.nan_to_num(np.array(values, np.float32)))
        return np.clip(whole, BYTES[dtype][0], BYTES[dtype][-1])
    with np.errstate(all="ignore"):
        single = np.array(values, np.float32)
        if dtype is DType.F16:
            return single.astype(np.float16).astype(np.float32)
        if dtype is DType.BF16:
            bits = single.view(np.uint32)
            even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
            return np.where(np.isfinite(single), even.view(np.float32), single)
    return single
