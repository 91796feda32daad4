"""Pre-defined operators between kernels, on a GPU: products of matrices by cuBLAS, several operators at once by
PyTorch's kernels (`kernel_rows`), everything else by CuPy.

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
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_nb.runtime.kernel_operators import OPERATORS, STORED, decode, encode
from mirage_nb.runtime.kernel_plan import Apply, KernelError, Tensor
from mirage_nb.runtime.kernel_rows import LAUNCHES, by_torch

Enqueue = Callable[[int], None]
"""Enqueues work on the stream of this address."""
_RELAXED = 2
"""The driver's number of the capture mode that lets a thread allocate."""
_BLAS = {
    "f16": (2, 68, "float32"), "bf16": (14, 68, "float32"), "f32": (0, 68, "float32"), "f64": (1, 70, "float64")
}  # fmt: skip
"""Element types -> the numbers of the type and of the arithmetic in cuBLAS, and the type of its scalars."""
BLAS_VERSIONS = ("13", "12")
PRODUCTS = {"Matmul": ((0, 1),), "ConcatMatmul": ((0, 2), (1, 3))}
"""Operators that are sums of products of matrices: which operands."""
LEAST_WORKSPACE, MOST_WORKSPACE, SPLITS = 2**20, 2**25, 16
"""Bytes that cuBLAS may use beside the operands; what it wants is room for partial sums of a split reduction."""


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
        KernelError: CuPy finds no cuBLAS, or there is no PyTorch for a step that needs it. The returned function: the
            card refuses.
    """
    used = (*step.inputs, step.output)
    shapes, places = [tensors[n].shape for n in used], [address[n] for n in used]
    if (step.operator, step.attrs.get("by")) in LAUNCHES:
        enqueue = by_torch(step, [tensors[n] for n in used], places, device)

        def enqueue_apart(stream: int) -> None:
            with allocations_while_captured():
                enqueue(stream)

        return enqueue_apart
    if step.operator == "linear":
        turned = matrix_product(shapes, bool(step.attrs["left"]), bool(step.attrs["right"]))
        if turned is None:
            raise KernelError(f"no one product of matrices: {shapes}")
        return _by_blas([(turned, (places[0], places[1]))], tensors[step.output].dtype, places[-1], device)
    if step.operator in PRODUCTS and not step.scalars and len({tensors[n].dtype for n in used}) == 1:
        products = [matrix_product([shapes[n] for n in (*pair, -1)]) for pair in PRODUCTS[step.operator]]
        known = [product for product in products if product is not None]
        if len(known) == len(products):
            pairs = [(places[a], places[b]) for a, b in PRODUCTS[step.operator]]
            return _by_blas(list(zip(known, pairs, strict=True)), tensors[step.output].dtype, places[-1], device)
    return _by_cupy(step, [tensors[n] for n in used], places, device)


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


def _by_blas(
    products: Sequence[tuple[Product, tuple[int, int]]], dtype: str, result: int, device: int
) -> Enqueue:
    """The sum of products, each of operands at two addresses. Workspace is of its own: a CUDA graph that has captured
    the call may run beside everything else."""
    import cupy

    multiply, set_stream, set_workspace = (
        blas_function(f"cublas{name}") for name in ("GemmStridedBatchedEx", "SetStream_v2", "SetWorkspace_v2")
    )
    element, compute, scalar = _BLAS[dtype]
    one, zero = np.ones(1, scalar), np.zeros(1, scalar)
    pointer, number, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    calls = []
    for place, (p, (left, right)) in enumerate(products):
        # A matrix of cuBLAS lies column by column, so it sees all three transposed: the result is right^T @ left^T.
        operands = (
            pointer(one.ctypes.data),
            pointer(right), number(element), number(p.depth if p.right_turned else p.columns), stride(p.right_stride),
            pointer(left), number(element), number(p.rows if p.left_turned else p.depth), stride(p.left_stride),
            pointer((one if place else zero).ctypes.data),
            pointer(result), number(element), number(p.columns), stride(p.rows * p.columns),
        )  # fmt: skip
        turned = (number(int(p.right_turned)), number(int(p.left_turned)))
        extents = (*turned, number(p.columns), number(p.rows), number(p.depth))
        calls.append((*extents, *operands, number(p.batch), number(compute), number(-1)))
    p = products[0][0]
    nbytes = min(MOST_WORKSPACE, max(LEAST_WORKSPACE, SPLITS * 4 * p.batch * p.rows * p.columns))
    with cupy.cuda.Device(device), allocations_while_captured():
        workspace = cupy.cuda.alloc(nbytes)
    start, size = pointer(workspace.ptr), ctypes.c_size_t(nbytes)

    def enqueue(stream: int, held: object = (one, zero, workspace)) -> None:
        with cupy.cuda.Device(device), allocations_while_captured():
            handle = _blas_handle(device, threading.get_ident())
            status = set_stream(handle, pointer(stream)) or set_workspace(handle, start, size)
            for arguments in calls:
                status = status or multiply(handle, *arguments)
        if status != 0:
            raise KernelError(f"the card reports cuBLAS error {status}")

    return enqueue


def blas_function(name: str) -> Any:
    """A function of the cuBLAS that CuPy has loaded: what CuPy has of it refuses to be captured into a CUDA graph.
    Raises KernelError where there is none."""
    try:
        from cupy.cuda import cublas  # noqa: F401  # loads the library

        for version in BLAS_VERSIONS:
            with contextlib.suppress(OSError):
                return getattr(ctypes.CDLL(f"libcublas.so.{version}"), name)
    except (ImportError, AttributeError) as error:
        raise KernelError(f"CuPy finds no cuBLAS that has {name}: {error}") from error
    raise KernelError(f"no cuBLAS of version {' or '.join(BLAS_VERSIONS)} is loaded")


@functools.cache
def _blas_handle(device: int, thread: int) -> ctypes.c_void_p:
    """One for every device, which is the current one, and thread: a handle has one stream at a time."""
    handle = ctypes.c_void_p()
    status = blas_function("cublasCreate_v2")(ctypes.byref(handle))
    if status != 0:
        raise KernelError(f"cuBLAS cannot be started: error {status}")
    return handle


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` products [rows, depth] @ [depth, columns]; strides in elements from one matrix to the next; whether an
    operand lies transposed."""

    batch: int
    rows: int
    columns: int
    depth: int
    left_stride: int
    right_stride: int
    left_turned: bool = False
    right_turned: bool = False


def matrix_product(
    shapes: Sequence[tuple[int, ...]], left_turned: bool = False, right_turned: bool = False
) -> Product | None:
    """NumPy's matmul of two contiguous arrays, or of one with its last dimensions exchanged, into a third one as one
    call: shapes of operands as they lie, and of the result. None if their leading dimensions broadcast in a way that
    one stride for each does not describe."""
    left, right, result = shapes
    if min(len(left), len(right)) < 2:
        return None
    rows, depth = left[-2:] if not left_turned else left[:-3:-1]
    columns = right[-2] if right_turned else right[-1]
    batch, lefts, rights = (math.prod(shape[:-2]) for shape in (result, left, right))
    turned = left_turned, right_turned
    if rights == 1 and lefts == batch and (batch == 1 or not left_turned):  # the left operands are one tall matrix
        return Product(1, batch * rows, columns, depth, 0, 0, *turned)
    if not {lefts, rights} <= {1, batch}:
        return None
    return Product(batch, rows, columns, depth, rows * depth * (lefts > 1), depth * columns * (rights > 1), *turned)


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
