"""Launches that may start while the kernel in front still runs (programmatic dependent launch, sm_90).

In: a kernel of CuPy's, launch extents, arguments as CuPy takes them. Out: a function that enqueues the kernel
on CuPy's current stream, also while that stream is being captured into a CUDA graph. CuPy's own launch has no
attributes, so this one calls the driver. Invariant: a kernel that is launched this way waits by itself before
it touches what the one in front writes; so where the driver does not know the attribute, an ordinary launch
takes its place and changes nothing but the time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

import cupy
import numpy as np

Call = Callable[[], None]
Extents = tuple[int, int, int]

_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_REFUSALS = frozenset({1, 801})
"""The driver's numbers for "invalid value" and "not supported": it does not know the attribute."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a number, and a value in a union of 64 bytes."""

    _fields_: ClassVar = [("id", ctypes.c_uint), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_: ClassVar = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


@cache
def _driver_launch() -> Any:
    """cuLaunchKernelEx, or None where there is no driver that has it."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p]
    return function


def dependent_launch(function: Any, grid: Extents, block: Extents, args: Sequence[Any], shared_bytes: int) -> Call:
    """Prepare a launch of `function` that may overlap with the launch in front of it.

    Args:
        function: a kernel of a `cupy.RawModule`.
        grid, block: extents in blocks and threads.
        args: NumPy scalars, or arrays that are passed by value (tensor maps); they are copied now.
        shared_bytes: dynamic shared memory per block.

    Returns:
        A function that enqueues it on CuPy's current stream; an ordinary launch where the card or the driver
        cannot do better. It raises what CuPy raises for a failed launch.
    """
    packed = tuple(args)

    def ordinary() -> None:
        function(grid, block, packed, shared_mem=shared_bytes)

    launch = _driver_launch()
    if launch is None or int(cupy.cuda.Device().compute_capability) < 90:
        return ordinary
    held = [np.ascontiguousarray(arg) for arg in packed]
    pointers = (ctypes.c_void_p * len(held))(*(a.ctypes.data for a in held))
    attribute = _Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    extents = ((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block))
    config = _Config(*extents, shared_bytes, None, ctypes.pointer(attribute), 1)
    kernel = ctypes.c_void_p(function.kernel.ptr)

    def overlapping(held: object = held) -> None:
        config.stream = cupy.cuda.get_current_stream().ptr
        status = launch(ctypes.byref(config), kernel, pointers, None)
        if status in _REFUSALS:
            ordinary()
        elif status != 0:
            raise cupy.cuda.driver.CUDADriverError(status)

    return overlapping
