"""Products of matrices by cuBLAS and cuBLASLt: of all kernels that these have for one, the fastest on this card.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is copied
with it. In: a `Product`, the addresses of its matrices. Out: a function that enqueues it on a stream. Invariants: a
product goes from its operands to its result without a copy; what it needs beside them is its own, so that a CUDA graph
that has captured it may run beside everything else. Which kernel is the fastest is measured once for a product, by its
first run outside of a capture, with cold caches; before that the first one that the library proposes is taken.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from mirage_nb.runtime.kernel.plan import KernelError
from mirage_nb.runtime.kernel.streams import Enqueue, Foreign, allocations_while_captured, is_captured

BLAS_VERSIONS = ("13", "12")
_BLAS = {
    "f16": (2, 68, 0, "float32"), "bf16": (14, 68, 0, "float32"), "f32": (0, 68, 0, "float32"),
    "f64": (1, 70, 1, "float64"),
}  # fmt: skip
"""Element types -> the numbers of the type, of the arithmetic and of the scalars' type in cuBLAS, and that type."""
_TURN_A, _TURN_B, _EPILOGUE, _BIAS = 3, 4, 7, 8
"""cuBLASLt's numbers of the attributes of a product."""
_BATCH, _STRIDE = 5, 6
"""Of a matrix layout."""
_WORKSPACE, _ALIGNMENTS = 1, (5, 6, 7, 8)
"""Of a preference."""
ALIGNED, ALIGNMENT_OF_ALL = 256, 16
"""Bytes that places may be multiples of, and that all are multiples of."""
_PLAIN, _RELU, _BIASED = 1, 2, 4
"""Of epilogues; the last two add up."""
PROPOSALS = 12
"""Kernels that cuBLASLt is asked for."""
LEAST_WORKSPACE, MOST_WORKSPACE, SPLITS = 2**20, 2**25, 16
"""Bytes that a product may use beside the operands; what it wants is room for partial sums of a split reduction."""
FLUSH_BYTES = 2**28
"""What is rewritten in front of every run that is measured: more than the L2 of any card holds, and so much that the
card is busy until the run is enqueued."""
ROUNDS, SLOW_US = 7, 400.0
"""Runs of a kernel that is measured; two of one that takes longer than this."""
CLEARLY = 0.98
"""A kernel that is proposed later has to take less than this share of an earlier one's time."""


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


@dataclass(frozen=True, slots=True)
class Ending:
    """What is done with the sums before they are stored: a bias along the columns is added, or another matrix
    (`added`: the result itself is read, or a matrix of its own), and what is below 0 becomes 0."""

    bias: bool = False
    added: bool = False
    relu: bool = False

    @property
    def epilogue(self) -> int:
        """cuBLASLt's number."""
        return (_RELU * self.relu + _BIASED * self.bias) or _PLAIN


@dataclass(frozen=True, slots=True)
class Places:
    """Addresses: of the operands, the bias, the matrix that is added and the result; 0 where there is none."""

    left: int
    right: int
    result: int
    bias: int = 0
    added: int = 0

    @property
    def alignment(self) -> int:
        """Bytes that all of them are multiples of, as far as kernels care."""
        every = self.left | self.right | self.result | self.bias | self.added
        return ALIGNMENT_OF_ALL if every % ALIGNED else ALIGNED


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


def product_call(product: Product, dtype: str, ending: Ending, places: Places, device: int) -> Enqueue:
    """The product of matrices at these places. Raises KernelError where there is no library that has it; the returned
    function: where the card refuses."""
    tuned = _tuned(product, dtype, ending, places.alignment, device)
    made: dict[int, _Kernel] = {}  # all are kept: a CUDA graph may have captured any of them

    def enqueue(stream: int) -> None:
        if tuned.best is None and len(tuned.kernels) > 1 and not is_captured(stream):
            tuned.measure(places, stream)
        number = tuned.best or 0
        if number not in made:
            made[number] = tuned.kernels[number](places)
        made[number].enqueue(stream)

    return enqueue


# -- the fastest --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel with all that it takes; `held` is kept alive."""

    enqueue: Enqueue
    held: object = None


class _Tuned:
    """The kernels of one product, and which one was measured to be the fastest."""

    def __init__(self, kernels: Sequence[Callable[[Places], _Kernel]], result_bytes: int, device: int) -> None:
        self.kernels = kernels
        self.best: int | None = None
        self._result_bytes, self._device = result_bytes, device
        self._guard = threading.Lock()

    def measure(self, places: Places, stream: int) -> None:
        """Run all of them on a stream; what they write goes nowhere. Without memory for that the first one is taken."""
        import cupy

        with self._guard, cupy.cuda.Device(self._device), allocations_while_captured():
            if self.best is None:
                try:
                    self.best = self._fastest(places, stream)
                except MemoryError:
                    self.best = 0

    def _fastest(self, places: Places, stream: int) -> int:
        import cupy

        flushed, scratch = cupy.cuda.Memory(FLUSH_BYTES), cupy.cuda.Memory(self._result_bytes)
        aside = replace(places, added=places.added or places.result, result=scratch.ptr)
        timer = _Timer(stream, flushed)
        return fastest([functools.partial(timer.took, functools.partial(kernel, aside)) for kernel in self.kernels])


class _Timer:
    """Times kernels on a stream, whose device is the current one, with cold caches."""

    def __init__(self, stream: int, flushed: Any) -> None:
        import cupy

        self._runtime, self._elapsed = cupy.cuda.runtime, cupy.cuda.get_elapsed_time
        self._stream, self._on = stream, cupy.cuda.Stream.from_external(Foreign(stream))
        self._flushed = flushed
        self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()
        self._made: tuple[object, _Kernel] | None = None

    def took(self, make: Callable[[], _Kernel]) -> float:
        """Microseconds of one run; the kernel that was made last is kept. Raises KernelError where it is refused."""
        if self._made is None or self._made[0] is not make:
            self._made = make, make()
        self._runtime.memsetAsync(self._flushed.ptr, 0, FLUSH_BYTES, self._stream)
        self._begin.record(self._on)
        self._made[1].enqueue(self._stream)
        self._end.record(self._on)
        self._end.synchronize()
        return 1e3 * float(self._elapsed(self._begin, self._end))


def fastest(runs: Sequence[Callable[[], float]]) -> int:
    """Which of these took the fewest microseconds, the least of a few runs each: what else goes on only adds to them.
    An earlier one unless a later one is clearly faster. One that raises KernelError is out; the first one if all of
    them do."""
    best, least = 0, math.inf
    for number, run in enumerate(runs):
        try:
            run()  # loads the kernel
            samples = [run()]
            while len(samples) < (ROUNDS if samples[0] < SLOW_US else 2) and samples[0] < 2 * least:
                samples.append(run())
        except KernelError:
            continue
        if min(samples) < CLEARLY * least:
            best, least = number, min(samples)
    return best


@functools.lru_cache(maxsize=512)
def _tuned(product: Product, dtype: str, ending: Ending, alignment: int, device: int) -> _Tuned:
    """The kernels for a product, those first that are proposed first. Raises KernelError where there is none."""
    kernels: list[Callable[[Places], _Kernel]] = []
    with contextlib.suppress(KernelError):
        kernels += _of_lt(product, dtype, ending, alignment, device)
    if ending == Ending():
        kernels.insert(1 if kernels else 0, functools.partial(_of_blas, product, dtype, device))
    if not kernels:
        raise KernelError(f"no library multiplies {product} with {ending}")
    itemsize = 8 if dtype == "f64" else 4
    return _Tuned(kernels, itemsize * product.batch * product.rows * product.columns, device)


# -- cuBLAS -------------------------------------------------------------------------------------------


def blas_function(name: str, library: str = "cublas") -> Any:
    """A function of the cuBLAS, or cuBLASLt, that CuPy has loaded: what CuPy has of it refuses to be captured into a
    CUDA graph. Raises KernelError where there is none."""
    try:
        from cupy.cuda import cublas  # noqa: F401  # loads the library

        for version in BLAS_VERSIONS:
            with contextlib.suppress(OSError):
                return getattr(ctypes.CDLL(f"lib{library}.so.{version}"), name)
    except (ImportError, AttributeError) as error:
        raise KernelError(f"CuPy finds no {library} that has {name}: {error}") from error
    raise KernelError(f"no {library} of version {' or '.join(BLAS_VERSIONS)} is loaded")


@functools.cache
def _blas_handle(device: int, thread: int) -> ctypes.c_void_p:
    """One for every device, which is the current one, and thread: a handle has one stream at a time."""
    handle = ctypes.c_void_p()
    _checked(blas_function("cublasCreate_v2")(ctypes.byref(handle)))
    return handle


def _checked(status: int) -> None:
    if status != 0:
        raise KernelError(f"the card reports cuBLAS error {status}")


def _of_blas(p: Product, dtype: str, device: int, places: Places) -> _Kernel:
    """cuBLAS's own choice for the product."""
    import cupy

    batched = "StridedBatched" if p.batch > 1 else ""
    multiply, set_stream, set_workspace = (
        blas_function(f"cublas{name}") for name in (f"Gemm{batched}Ex", "SetStream_v2", "SetWorkspace_v2")
    )
    element, compute, _, scalar = _BLAS[dtype]
    one, zero = np.ones(1, scalar), np.zeros(1, scalar)
    pointer, number, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong

    def operand(address: int, leading: int, step: int) -> tuple[Any, ...]:
        said = (pointer(address), number(element), number(leading))
        return (*said, stride(step)) if batched else said

    # A matrix of cuBLAS lies column by column, so it sees all three transposed: the result is right^T @ left^T.
    arguments = (
        number(int(p.right_turned)), number(int(p.left_turned)), number(p.columns), number(p.rows), number(p.depth),
        pointer(one.ctypes.data), *operand(places.right, p.depth if p.right_turned else p.columns, p.right_stride),
        *operand(places.left, p.rows if p.left_turned else p.depth, p.left_stride),
        pointer(zero.ctypes.data), *operand(places.result, p.columns, p.rows * p.columns),
        *((number(p.batch),) if batched else ()), number(compute), number(-1),
    )  # fmt: skip
    nbytes = min(MOST_WORKSPACE, max(LEAST_WORKSPACE, SPLITS * 4 * p.batch * p.rows * p.columns))
    with cupy.cuda.Device(device), allocations_while_captured():
        workspace = cupy.cuda.alloc(nbytes)
    start, size = pointer(workspace.ptr), ctypes.c_size_t(nbytes)

    def enqueue(stream: int) -> None:
        with cupy.cuda.Device(device), allocations_while_captured():
            handle = _blas_handle(device, threading.get_ident())
            _checked(set_stream(handle, pointer(stream)))
            _checked(set_workspace(handle, start, size))
            _checked(multiply(handle, *arguments))

    return _Kernel(enqueue, (one, zero, workspace))


# -- cuBLASLt -----------------------------------------------------------------------------------------


class _Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: a kernel, and what it needs."""

    _fields_: ClassVar = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@functools.cache
def _lt_handle(device: int) -> ctypes.c_void_p:
    """One for every device, which is the current one; threads may share it."""
    handle = ctypes.c_void_p()
    _checked(blas_function("cublasLtCreate", "cublasLt")(ctypes.byref(handle)))
    return handle


def _said(owner: ctypes.c_void_p, kind: str, attribute: int, value: Any) -> None:
    """Set an attribute of a description, a layout or a preference."""
    _checked(
        blas_function(f"cublasLt{kind}SetAttribute", "cublasLt")(
            owner, ctypes.c_int(attribute), ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
        )
    )


class _Described:
    """A product as cuBLASLt describes it: what is multiplied, and how its matrices lie. A matrix of cuBLAS lies column
    by column, so it sees all of them transposed: the result is right^T @ left^T."""

    def __init__(self, p: Product, dtype: str, ending: Ending, bias: int = 0) -> None:
        element, compute, scale, _ = _BLAS[dtype]
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        weakref.finalize(self, _destroyed, self._made).atexit = False
        self.product = self._create("MatmulDesc", ctypes.c_int(compute), ctypes.c_int(scale))
        _said(self.product, "MatmulDesc", _TURN_A, ctypes.c_int32(int(p.right_turned)))
        _said(self.product, "MatmulDesc", _TURN_B, ctypes.c_int32(int(p.left_turned)))
        _said(self.product, "MatmulDesc", _EPILOGUE, ctypes.c_uint32(ending.epilogue))
        if bias:
            _said(self.product, "MatmulDesc", _BIAS, ctypes.c_void_p(bias))
        right = (p.depth, p.columns) if p.right_turned else (p.columns, p.depth)
        left = (p.rows, p.depth) if p.left_turned else (p.depth, p.rows)
        self.right = self._layout(element, *right, p.batch, p.right_stride)
        self.left = self._layout(element, *left, p.batch, p.left_stride)
        self.result = self._layout(element, p.columns, p.rows, p.batch, p.rows * p.columns)

    def _create(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        _checked(blas_function(f"cublasLt{kind}Create", "cublasLt")(ctypes.byref(made), *arguments))
        self._made.append((kind, made))
        return made

    def _layout(self, element: int, rows: int, columns: int, batch: int, stride: int) -> ctypes.c_void_p:
        extents = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
        made = self._create("MatrixLayout", ctypes.c_int(element), *extents)
        if batch > 1:
            _said(made, "MatrixLayout", _BATCH, ctypes.c_int32(batch))
            _said(made, "MatrixLayout", _STRIDE, ctypes.c_int64(stride))
        return made

    def proposals(self, alignment: int, device: int) -> list[_Proposal]:
        """The kernels that cuBLASLt thinks to be the fastest, the best first."""
        preference = self._create("MatmulPreference")
        _said(preference, "MatmulPreference", _WORKSPACE, ctypes.c_size_t(MOST_WORKSPACE))
        for operand in _ALIGNMENTS:
            _said(preference, "MatmulPreference", operand, ctypes.c_uint32(alignment))
        found, count = (_Proposal * PROPOSALS)(), ctypes.c_int()
        _checked(
            blas_function("cublasLtMatmulAlgoGetHeuristic", "cublasLt")(
                _lt_handle(device), self.product, self.right, self.left, self.result, self.result, preference,
                ctypes.c_int(PROPOSALS), found, ctypes.byref(count),
            )
        )  # fmt: skip
        return [proposal for proposal in found[: count.value] if proposal.state == 0]


def _destroyed(made: list[tuple[str, ctypes.c_void_p]]) -> None:
    for kind, what in made:
        blas_function(f"cublasLt{kind}Destroy", "cublasLt")(what)


def _of_lt(p: Product, dtype: str, ending: Ending, alignment: int, device: int) -> list[Callable[[Places], _Kernel]]:
    """What cuBLASLt proposes for the product. Raises KernelError where it has none."""
    import cupy

    with cupy.cuda.Device(device), allocations_while_captured():
        # Where the bias lies is said of each call; that there is one, before kernels are proposed.
        found = _Described(p, dtype, ending, ALIGNED if ending.bias else 0).proposals(alignment, device)
    return [functools.partial(_proposed, p, dtype, ending, device, proposal) for proposal in found]


def _proposed(p: Product, dtype: str, ending: Ending, device: int, proposal: _Proposal, places: Places) -> _Kernel:
    import cupy

    multiply = blas_function("cublasLtMatmul", "cublasLt")
    scalar = _BLAS[dtype][3]
    one, added = np.ones(1, scalar), np.full(1, float(ending.added), scalar)
    pointer = ctypes.c_void_p
    with cupy.cuda.Device(device), allocations_while_captured():
        said = _Described(p, dtype, ending, places.bias)
        workspace = cupy.cuda.alloc(proposal.workspace) if proposal.workspace else None
        handle = _lt_handle(device)
    arguments = (
        handle, said.product, pointer(one.ctypes.data), pointer(places.right), said.right, pointer(places.left),
        said.left, pointer(added.ctypes.data), pointer(places.added or places.result), said.result,
        pointer(places.result), said.result, ctypes.byref(proposal), pointer(workspace.ptr if workspace else 0),
        ctypes.c_size_t(proposal.workspace),
    )  # fmt: skip

    def enqueue(stream: int) -> None:
        with cupy.cuda.Device(device), allocations_while_captured():
            _checked(multiply(*arguments, pointer(stream)))

    return _Kernel(enqueue, (one, added, said, workspace, proposal))
