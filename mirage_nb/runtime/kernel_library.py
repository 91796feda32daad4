"""Pre-defined operators between kernels, on a GPU: products of matrices by cuBLAS, everything else by CuPy.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is
copied with it. In: an operator of a plan, addresses of its tensors. Out: a function that enqueues it on a stream.
Invariants: a product goes from its operands to its result without a copy; temporaries of the others are allocated
by the first run and kept, so that a CUDA graph that has captured a call may be replayed on any stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_nb.runtime.kernel_operators import OPERATORS, STORED, decode, encode
from mirage_nb.runtime.kernel_plan import Apply, KernelError, Tensor

Enqueue = Callable[[int], None]
"""Enqueues work on the stream of this address."""
_RELAXED = 2
"""The driver's number of the capture mode that lets a thread allocate."""
_BLAS = {
    "f16": (2, 68, "float32"), "bf16": (14, 68, "float32"), "f32": (0, 68, "float32"), "f64": (1, 70, "float64")
}  # fmt: skip
"""Element types -> the numbers of the type and of the arithmetic in cuBLAS, and the type of its scalars."""


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
    mode = ctypes.c_int(_RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@dataclass(frozen=True, slots=True)
class Foreign:
    """Somebody else's stream, the way CuPy takes it in."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


@contextlib.contextmanager
def _working_on(device: int, stream: int) -> Iterator[None]:
    """CuPy's current device and stream are these."""
    import cupy

    with cupy.cuda.Device(device), allocations_while_captured(), cupy.cuda.Stream.from_external(Foreign(stream)):
        yield


def library_call(step: Apply, tensors: Sequence[Tensor], address: Sequence[int], device: int) -> Enqueue:
    """An operator on tensors that begin at these addresses of `device`; computed in float32 at least.

    Raises:
        KernelError: CuPy finds no cuBLAS. The returned function: the card refuses.
    """
    used = (*step.inputs, step.output)
    if step.operator == "Matmul" and not step.scalars and len({tensors[n].dtype for n in used}) == 1:
        product = matrix_product([tensors[n].shape for n in used])
        if product is not None:
            return _product(product, tensors[step.output].dtype, [address[n] for n in used], device)
    return _by_cupy(step, [tensors[n] for n in used], [address[n] for n in used], device)


def _by_cupy(step: Apply, tensors: Sequence[Tensor], address: Sequence[int], device: int) -> Enqueue:
    import cupy

    def view(tensor: Tensor, start: int) -> Any:
        memory = cupy.cuda.UnownedMemory(start, tensor.nbytes, None, device)
        return cupy.ndarray(tensor.shape, STORED[tensor.dtype], cupy.cuda.MemoryPointer(memory, 0))

    *operands, output = (view(tensor, start) for tensor, start in zip(tensors, address, strict=True))
    *dtypes, stored = (tensor.dtype for tensor in tensors)
    temporaries = Temporaries(cupy.cuda.MemoryPool().malloc)

    def enqueue(stream: int) -> None:
        with _working_on(device, stream), cupy.cuda.using_allocator(temporaries.malloc):
            temporaries.rewind()
            wide: list[Any] = [
                a if dtype == "f64" else decode(a, dtype, "float32") for a, dtype in zip(operands, dtypes, strict=True)
            ]
            for position, value in step.scalars:
                wide.insert(position, value)
            found = OPERATORS[step.operator](cupy, step.attrs, *wide)
            output[...] = encode(found, stored, cupy)

    return enqueue


def _product(product: Product, dtype: str, address: Sequence[int], device: int) -> Enqueue:
    import cupy

    try:
        from cupy.cuda import cublas
    except ImportError as error:
        raise KernelError(f"CuPy finds no cuBLAS: {error}") from error
    element, compute, scalar = _BLAS[dtype]
    one, zero = np.ones(1, scalar), np.zeros(1, scalar)
    left, right, result = address
    # A matrix of cuBLAS lies column by column, so it sees all three transposed: the result is right^T @ left^T.
    arguments = (
        0, 0, product.columns, product.rows, product.depth, one.ctypes.data,
        right, element, product.columns, product.right_stride, left, element, product.depth, product.left_stride,
        zero.ctypes.data, result, element, product.columns, product.rows * product.columns,
        product.batch, compute, -1,
    )  # fmt: skip

    def enqueue(stream: int, held: object = (one, zero)) -> None:
        with _working_on(device, stream):
            try:
                cublas.gemmStridedBatchedEx(cupy.cuda.device.get_cublas_handle(), *arguments)
            except cublas.CUBLASError as error:
                raise KernelError(f"the card reports {error}") from error

    return enqueue


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` products [rows, depth] @ [depth, columns]; strides in elements from one matrix to the next."""

    batch: int
    rows: int
    columns: int
    depth: int
    left_stride: int
    right_stride: int


def matrix_product(shapes: Sequence[tuple[int, ...]]) -> Product | None:
    """NumPy's matmul of two contiguous arrays into a third one as one call: shapes of operands and result. None if
    their leading dimensions broadcast in a way that one stride for each does not describe."""
    left, right, result = shapes
    if min(len(left), len(right)) < 2:
        return None
    rows, depth, columns = left[-2], left[-1], right[-1]
    batch, lefts, rights = (math.prod(shape[:-2]) for shape in (result, left, right))
    if rights == 1 and lefts == batch:  # the left operands are one tall matrix
        return Product(1, batch * rows, columns, depth, 0, 0)
    if not {lefts, rights} <= {1, batch}:
        return None
    return Product(batch, rows, columns, depth, rows * depth * (lefts > 1), depth * columns * (rights > 1))


class Temporaries:
    """Memory for what an operator needs while it runs: the first run allocates it, all later ones get the same
    blocks in the same order.

    Args:
        allocate: takes bytes, returns memory as CuPy has it.
    """

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self._blocks: list[tuple[int, Any]] = []
        self._next = 0

    def rewind(self) -> None:
        """A run begins."""
        self._next = 0

    def malloc(self, nbytes: int) -> Any:
        """The next block; allocated anew if there is none yet, or too small a one."""
        place, self._next = self._next, self._next + 1
        if place == len(self._blocks):
            self._blocks.append((nbytes, self._allocate(nbytes)))
        elif self._blocks[place][0] < nbytes:
            self._blocks[place] = (nbytes, self._allocate(nbytes))
        return self._blocks[place][1]
