"""Where field values of large programs are computed: on the attached GPU, else on the CPU.

In: nothing. Out: a `Device` for `verify`. Field arithmetic is that of `interp`, on CuPy arrays instead of NumPy's:
whole numbers in 64 bits, and float64 matrix products of whole numbers whose sums stay below 2^53. So both give the
same residues and the same verdict.
"""

from __future__ import annotations

from mirage_nb.interp.instance import CPU, Device
from mirage_nb.runtime.gpu import attached_gpu


def field_device() -> Device:
    """The attached GPU, or the CPU where there is none."""
    if attached_gpu() is None:
        return CPU
    import cupy

    return Device("GPU", cupy.asarray, cupy.asnumpy)
