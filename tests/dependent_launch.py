"""Launches that may start while the kernel in front still runs (programmatic dependent launch, sm_90).

In: a kernel of CuPy's, launch extents, arguments as CuPy takes them. Out: a function that enqueues the kernel
on CuPy's current stream, also while that stream is being captured into a CUDA graph. Invariant: a kernel that is
launched this way waits by itself before it touches what the one in front writes; so where the driver does not
know the attribute, an ordinary launch takes its place and changes nothing but the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy

from mirage_nb.runtime.kernel.driver import prepare_launch

Extents = tuple[int, int, int]


def dependent_launch(
    function: Any, grid: Extents, block: Extents, args: Sequence[Any], shared_bytes: int
) -> Callable[[], None]:
    """Prepare a launch of `function` that may overlap with the launch in front of it.

    Args:
        function: a kernel of a `cupy.RawModule`.
        grid, block: extents in blocks and threads; a block lies along x.
        args: NumPy scalars, or arrays that are passed by value (tensor maps); they are copied now.
        shared_bytes: dynamic shared memory per block.
    """
    device = cupy.cuda.Device()
    enqueue = prepare_launch(
        function.kernel.ptr, grid, block[0], shared_bytes, args,
        overlaps=int(device.compute_capability) >= 90, device=int(device.id),
    )  # fmt: skip
    return lambda: enqueue(cupy.cuda.get_current_stream().ptr)
