"""Where field values of large programs are computed: on the attached GPU, else on the CPU.

In: nothing. Out: a `Device` for `verify`. Field arithmetic is that of `interp`, on CuPy arrays instead of NumPy's:
whole numbers in 64 bits, and float64 matrix products of whole numbers whose sums stay below 2^53. So both give the
same residues and the same verdict; `verify.fields.large` says how that is seen to.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from mirage_nb.interp.arrays import Array
from mirage_nb.interp.instance import CPU, Device
from mirage_nb.runtime.gpu import attached_gpu


def field_device() -> Device:
    """The attached GPU, or the CPU where there is none that answers."""
    try:
        if attached_gpu() is None:
            return CPU
    except (RuntimeError, OSError):  # a driver that is half there
        return CPU
    import cupy

    def to(array: Array) -> Array:
        return cast(Array, cupy.asarray(np.asarray(array)))

    def release() -> None:
        cupy.get_default_memory_pool().free_all_blocks()

    return Device("GPU", to, cupy.asnumpy, release)
