"""Streams and the driver: what enqueues work, and what may happen meanwhile.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is
copied with it. In: addresses of streams, names of functions. Out: contexts, functions of the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mirage_nb.runtime.kernel.plan import KernelError

Enqueue = Callable[[int], None]
"""Enqueues work on the stream of this address."""
RELAXED = 2
"""The driver's number of the capture mode that lets a thread allocate."""


def driver_function(name: str) -> Any:
    """A function of the CUDA driver. Raises KernelError where there is none."""
    try:
        return getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError) as error:
        raise KernelError(f"no CUDA driver that has {name}: CUDA 12 or newer is needed") from error


@functools.cache
def _exchange_capture_mode() -> Any:
    return driver_function("cuThreadExchangeStreamCaptureMode")


@contextlib.contextmanager
def allocations_while_captured() -> Iterator[None]:
    """Memory may be allocated and freed by this thread although a stream is being captured into a CUDA graph, which
    would spoil the capture otherwise: it is no part of the graph."""
    exchange = _exchange_capture_mode()
    mode = ctypes.c_int(RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@functools.cache
def _is_capturing() -> Any:
    return driver_function("cuStreamIsCapturing")


def is_captured(stream: int) -> bool:
    """Whether what is enqueued on a stream goes into a CUDA graph just now."""
    status = ctypes.c_int()
    return bool(_is_capturing()(ctypes.c_void_p(stream), ctypes.byref(status)) or status.value)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Somebody else's stream, the way CuPy takes it in."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


@contextlib.contextmanager
def working_on(device: int, stream: int) -> Iterator[None]:
    """CuPy's current device and stream are these."""
    import cupy

    with cupy.cuda.Device(device), allocations_while_captured(), cupy.cuda.Stream.from_external(Foreign(stream)):
        yield


def in_turn(calls: list[Enqueue]) -> Enqueue:
    """All of them, one after the other."""
    if len(calls) == 1:
        return calls[0]

    def enqueue(stream: int) -> None:
        for call in calls:
            call(stream)

    return enqueue
