"""Kernels on the attached GPU: a cubin through CuPy's RawModule, on any stream, without copies.

In: an emitted muGraph and its cubin; torch, CuPy or NumPy tensors. Out: tensors of the same library, enqueued
on that library's current stream (NumPy arrays are copied there and back). Arguments are prepared once per
set of buffers (`bind`), so a call in a loop or in a CUDA graph only launches.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import cupy
import numpy as np

from mirage_nb.codegen import Emitted, Fitting, Launch, LibraryCall
from mirage_nb.errors import DTypeError, LaunchError
from mirage_nb.ir import DType, Input, KernelGraph, TensorType
from mirage_nb.runtime.execution.buffers import CAST, STORED, Array, accept, check_count, check_shape, decode, shapes_of
from mirage_nb.runtime.execution.compile import Cubin
from mirage_nb.runtime.execution.execute import Executable, Prepared
from mirage_nb.runtime.execution.torch_program import check_dtype, is_torch, torch_dtype
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.runtime.kernel.driver import Loaded, replayed
from mirage_nb.runtime.kernel.plan import ALIGNMENT, KernelError
from mirage_nb.runtime.kernel.saved import lower
from mirage_nb.runtime.kernel.streams import Enqueue, allocations_while_captured

ALL_BITS = 0xFF
BOUND = 64
"""Sets of addresses whose launches are kept ready."""
LANES = 4
"""Processes that try kernels side by side, at most."""
LANE_BYTES = 4 * 2**30
"""What one of them may take of the card's memory: its context, and inputs of a large program."""
SHOWN = 120
"""Characters of what a library reports."""
_COMPUTE_MODE, _EXCLUSIVE = 20, 3
"""The runtime's numbers of the attribute and of the mode "exclusive process"."""


class Call(Protocol):
    """Enqueues a muGraph's work on the stream of this address, or on CuPy's current one."""

    def __call__(self, stream: int | None = None) -> None: ...


class GpuExecutable(Executable):
    """A muGraph on the CUDA device that is current when it is made.

    Raises:
        LaunchError: the cubin does not load on this card.
    """

    def __init__(self, emitted: Emitted, cubin: Cubin, gpu: Gpu) -> None:
        self._emitted = emitted
        self._fits = Fitting(emitted)
        self._gpu = gpu
        self._index = int(cupy.cuda.Device().id)
        self._bound: dict[tuple[int, ...], Enqueue] = {}
        self._captured: list[Enqueue] = []
        self._calls_libraries = any(isinstance(step, LibraryCall) for step in emitted.launches)
        with card_errors():
            self._loaded = Loaded(lower(emitted, arch=cubin.arch, cubin=cubin.data), self._index)
        self._trusted = self._loaded
        if any(isinstance(step, Launch) and step.trusting for step in emitted.launches):
            self._trusted = self._loaded.of(lower(emitted, arch=cubin.arch, trusted=True))

    def __repr__(self) -> str:
        return f"<GpuExecutable on {self.device} of {self._emitted!r}>"

    @property
    def device(self) -> str:
        """The card's name."""
        return self._gpu.name

    def __call__(self, *tensors: Any) -> Any:
        """Run on torch, CuPy or NumPy tensors in input order; returns as it was given, one tensor or a tuple.

        Torch and CuPy tensors are read where they are: they have to lie on the GPU, contiguous, in the
        program's dtypes (bf16 is uint16 in CuPy). NumPy arrays are rounded to these and copied.

        Raises:
            LaunchError: another number of tensors, of several libraries, or a tensor that is elsewhere.
            ShapeError, DTypeError: a tensor does not fit its input.
        """
        check_count(tensors, self._emitted.graph.inputs)
        kind = _one_kind(tensors)
        return _alone(self._on_torch(tensors) if kind == "torch" else self._on_cupy(tensors, kind))

    def trusting(self, *tensors: Any) -> Any:
        """The same on tensors of torch, where whatever writes settled inputs has ended when the launch in front begins:
        kernels may read these inputs while it still runs. Raises as a call does."""
        check_count(tensors, self._emitted.graph.inputs)
        return _alone(self._on_torch(tensors, trusted=True))

    def _graph(self, tensors: Sequence[Any]) -> KernelGraph:
        """What was emitted, for tensors of these shapes."""
        return self._fits(shapes_of(tensors, self._emitted.graph.inputs)).graph

    def _on_torch(self, tensors: Sequence[Any], *, trusted: bool = False) -> list[Any]:
        import torch

        like = tensors[0]
        with torch.cuda.device(self._index):
            types = self._graph(tensors).output_types
            outputs = [like.new_empty(t.shape, dtype=torch_dtype(torch, t.dtype)) for t in types]
            # From torch's memory: inside a CUDA graph capture only its pool may be asked for more.
            workspace = like.new_empty(self._emitted.workspace_bytes, dtype=torch.uint8)
            captured = torch.cuda.is_current_stream_capturing()
            once = {"captured": captured, "again": not captured, "trusted": trusted}
            call = self.bind(tensors, outputs, workspace.data_ptr(), **once)
            call(torch.cuda.current_stream().cuda_stream)
        return outputs

    def _on_cupy(self, tensors: Sequence[Any], kind: str) -> list[Any]:
        graph = self._graph(tensors)
        with cupy.cuda.Device(self._index):
            arrays, outputs = _arrays(tensors, graph, kind)
            self.bind(arrays, outputs, again=kind != "NumPy")()
            if kind == "NumPy":
                return [_host(o, t) for o, t in zip(outputs, graph.output_types, strict=True)]
        return outputs

    @property
    def workspace_bytes(self) -> int:
        """Device memory that lies between its kernels."""
        return self._emitted.workspace_bytes

    def bind(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        workspace: int | None = None,
        *,
        captured: bool = False,
        again: bool = False,
        trusted: bool = False,
    ) -> Call:
        """Prepare the launches for these buffers; the returned function only enqueues them: on the stream of the
        address that it is given, or on CuPy's current one.

        Args:
            inputs, outputs: torch or CuPy tensors; the function keeps them alive.
            workspace: address of `workspace_bytes` of device memory that the caller keeps alive; default: its own.
            captured: whether the call goes into a CUDA graph that nobody here knows: what it uses beside these
                buffers stays for as long as this executable.
            again: whether these buffers are likely to come again: what takes long to enqueue becomes a CUDA graph then.
            trusted: as of `trusting`.

        Raises:
            ShapeError, DTypeError, LaunchError: a tensor is missing, does not fit, is elsewhere, or is not contiguous.
        """
        emitted = self._fits(shapes_of(inputs, self._emitted.graph.inputs))
        graph = emitted.graph
        named = [Input(f"output {n}", t) for n, t in enumerate(graph.output_types)]
        check_count(outputs, named, "outputs")
        given = [self._address(tensor, into) for tensor, into in zip(inputs, graph.inputs, strict=True)]
        made = [self._address(tensor, into) for tensor, into in zip(outputs, named, strict=True)]
        own = None
        with card_errors(), cupy.cuda.Device(self._index):
            if workspace is None and self._emitted.workspace_bytes:
                own = cupy.empty(self._emitted.workspace_bytes, "uint8")
                workspace = int(own.data.ptr)
            replays = again and self._calls_libraries
            enqueue = self._enqueue(given, made, workspace or 0, emitted.extent or 0, replays, trusted)
        if captured:
            self._captured.append(enqueue)
        held = (own, inputs, outputs)

        def call(stream: int | None = None, held: object = held) -> None:
            enqueue(cupy.cuda.get_current_stream().ptr if stream is None else stream)

        return call

    def _enqueue(
        self, inputs: Sequence[int], outputs: Sequence[int], workspace: int, extent: int, replays: bool, trusted: bool
    ) -> Enqueue:
        """The launches for tensors at these addresses, made once: in a loop the same addresses come again.
        Each thread has its own, because a launch is made ready in place. `replays`: as a CUDA graph, from the second
        call on."""
        key = (threading.get_ident(), replays, trusted, extent, workspace, *inputs, *outputs)
        found = self._bound.get(key)
        if found is None:
            with allocations_while_captured():  # and freed
                if len(self._bound) >= BOUND:
                    self._bound.clear()
                loaded = self._trusted if trusted else self._loaded
                bound = loaded.at(extent).bind(inputs, outputs, workspace)
                found = self._bound[key] = replayed(bound, self._index) if replays else bound
        return found

    def prepare(self, *tensors: Any) -> Prepared:
        """Make a call on these tensors ready: checked, outputs and workspace allocated. Calling it enqueues the
        kernels on the current stream of the tensors' library and returns the outputs, the same ones every time;
        it allocates nothing, so it may be captured into a CUDA graph. Raises as a call does.
        """
        check_count(tensors, self._emitted.graph.inputs)
        graph = self._graph(tensors)
        kind = _one_kind(tensors)
        if kind == "torch":
            import torch

            like, index, current = tensors[0], self._index, _torch_stream(torch)
            outputs = [like.new_empty(t.shape, dtype=torch_dtype(torch, t.dtype)) for t in graph.output_types]
            enqueue = replayed(self.bind(tensors, outputs), index)
            return Prepared(tuple(outputs), lambda: enqueue(current(index)))
        with cupy.cuda.Device(self._index):
            arrays, outputs = _arrays(tensors, graph, kind)
            enqueue = replayed(self.bind(arrays, outputs), self._index)
            return Prepared(tuple(outputs), lambda: enqueue(cupy.cuda.get_current_stream().ptr))

    def _address(self, tensor: Any, into: Input) -> int:
        """Where the tensor's elements start on the GPU, once it fits."""
        if is_torch(tensor):
            device = tensor.device.index if tensor.is_cuda else None
            contiguous, pointer = tensor.is_contiguous(), int(tensor.data_ptr())
            check_dtype(tensor, into)
        else:
            device, pointer = int(tensor.device.id), int(tensor.data.ptr)
            contiguous = tensor.flags.c_contiguous
            if tensor.dtype != STORED[into.type.dtype]:
                wanted = np.dtype(STORED[into.type.dtype]).name
                said = f"{into.name} has dtype {tensor.dtype}, {into.type.dtype.value} is {wanted} in CuPy"
                raise DTypeError(said, hint=f"{into.name}.astype({wanted!r}) converts it, {CAST}")
        check_shape(tensor.shape, into)
        if device != self._index:
            where = "not on a GPU" if device is None else f"on GPU {device}"
            raise LaunchError(f"{into.name} is {where}, the kernels are on GPU {self._index}", hint="move it there")
        if not contiguous:
            raise LaunchError(f"{into.name} is not contiguous", hint="call .contiguous() or cupy.ascontiguousarray")
        if pointer % ALIGNMENT:
            raise LaunchError(f"{into.name} starts at no multiple of {ALIGNMENT} bytes", hint="pass a copy of it")
        return pointer

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run on stored arrays, copied there and back; outputs start as NaN.

        Raises:
            LaunchError: the card rejects a launch, or a kernel failed on it.
        """
        with card_errors(), cupy.cuda.Device(self._index):
            return [cupy.asnumpy(a) for a in self.ran(inputs)]

    def ran(self, inputs: Sequence[Any]) -> list[Any]:
        """The same, once the kernels have ended; the outputs stay on the card."""
        with card_errors(), cupy.cuda.Device(self._index):
            outputs = [poisoned(t) for t in self._graph(inputs).output_types]
            self.bind([cupy.asarray(a) for a in inputs], outputs)()
            cupy.cuda.get_current_stream().synchronize()
            return outputs


def usable() -> bool:
    """Whether the card still takes work from this process: after a fault it never does again."""
    try:
        cupy.cuda.runtime.deviceSynchronize()
        cupy.zeros(1).get()
    except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError, MemoryError):
        return False
    return True


def exclusive() -> bool:
    """Whether the card takes one process at a time (its compute mode). Raises LaunchError where it does not say."""
    with card_errors():
        return int(cupy.cuda.runtime.deviceGetAttribute(_COMPUTE_MODE, cupy.cuda.Device().id)) == _EXCLUSIVE


def lanes(workers: int) -> int:
    """How many processes may try kernels on the card side by side, where there are so many `workers`. Raises
    LaunchError where the card takes none, as one that another program holds exclusively."""
    with card_errors():
        free, _ = cupy.cuda.runtime.memGetInfo()
    return 1 if exclusive() else max(1, min(LANES, workers // 3, free // LANE_BYTES))


def _torch_stream(torch: Any) -> Callable[[int], int]:
    """What returns the address of torch's current stream on a device: torch's own short way takes a twentieth."""
    short: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return short or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))


def _alone(outputs: list[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _kind(tensor: Any) -> str:
    if is_torch(tensor):
        return "torch"
    return "CuPy" if isinstance(tensor, cupy.ndarray) else "NumPy"


def _one_kind(tensors: Sequence[Any]) -> str:
    """The library of all tensors. Raises LaunchError when they are of several."""
    kinds = sorted({_kind(t) for t in tensors})
    if len(kinds) > 1:
        raise LaunchError(f"tensors of {' and '.join(kinds)} in one call", hint="pass them of one library")
    return kinds[0]


@contextlib.contextmanager
def card_errors() -> Iterator[None]:
    """What CUDA reports, full memory included, as a LaunchError."""
    try:
        yield
    except KernelError as error:
        raise LaunchError(str(error)) from error
    except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError, MemoryError) as error:
        raise LaunchError(f"the card reports {error}") from error


@contextlib.contextmanager
def torch_errors() -> Iterator[None]:
    """What PyTorch and CuPy say of faults and of full memory, as a LaunchError."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LaunchError(f"the card reports {first[:SHOWN]}") from error


def _arrays(tensors: Sequence[Any], graph: KernelGraph, kind: str) -> tuple[list[Any], list[Any]]:
    """Inputs as arrays of CuPy, on the current device, and room for the outputs."""
    arrays = list(tensors)
    if kind == "NumPy":
        arrays = [cupy.asarray(accept(t, i)) for t, i in zip(tensors, graph.inputs, strict=True)]
    return arrays, [cupy.empty(t.shape, STORED[t.dtype]) for t in graph.output_types]


def _host(array: Any, type_: TensorType) -> Any:
    """A NumPy array of the program's dtype, float32 for bf16."""
    host = cupy.asnumpy(array)
    return decode(host, type_.dtype).astype(np.float32) if type_.dtype is DType.BF16 else host


def poisoned(type_: TensorType) -> Any:
    """An array on the card whose elements nobody has computed: all bits are set, which is NaN in every type."""
    array = cupy.empty(type_.shape, STORED[type_.dtype])
    array.data.memset(ALL_BITS, array.nbytes)
    return array
