"""Kernels on the attached GPU: a cubin through CuPy's RawModule, on any stream, without copies.

In: an emitted muGraph and its cubin; torch, CuPy or NumPy tensors. Out: tensors of the same library, enqueued
on that library's current stream (NumPy arrays are copied there and back). Arguments are prepared once per
set of buffers (`bind`), so a call in a loop or in a CUDA graph only launches.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from mirage_nb.codegen import Emitted, Launch, LibraryCall, TensorArg
from mirage_nb.errors import DTypeError, LaunchError, MissingPartError
from mirage_nb.ir import DType, Input, KernelGraph, TensorType
from mirage_nb.runtime.buffers import STORED, Sample, accept, check_count, check_shape, decode
from mirage_nb.runtime.compile import Cubin
from mirage_nb.runtime.dependent_launch import dependent_launch
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.runtime.tensor_map import device_map
from mirage_nb.runtime.torch_program import TORCH, check_dtype, is_torch, torch_dtype
from mirage_nb.verify.float_gate import FloatReport, compare

ALIGNMENT = 16
Call = Callable[[], None]


class GpuExecutable:
    """A muGraph on the CUDA device that is current when it is made.

    Raises:
        LaunchError: the cubin does not load on this card.
    """

    def __init__(self, emitted: Emitted, cubin: Cubin, gpu: Gpu) -> None:
        self._emitted = emitted
        self._gpu = gpu
        self._index = int(cupy.cuda.Device().id)
        self._functions = _load(emitted, cubin)

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
        graph = self._emitted.graph
        check_count(tensors, graph.inputs)
        kinds = {_kind(t) for t in tensors}
        if len(kinds) > 1:
            raise LaunchError(f"tensors of {' and '.join(sorted(kinds))} in one call", hint="pass them of one library")
        (kind,) = kinds
        outputs = self._on_torch(tensors) if kind == "torch" else self._on_cupy(tensors, kind)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _on_torch(self, tensors: Sequence[Any]) -> list[Any]:
        import torch

        like = tensors[0]
        with torch.cuda.device(self._index):
            types = self._emitted.graph.output_types
            outputs = [like.new_empty(t.shape, dtype=torch_dtype(torch, t.dtype)) for t in types]
            # From torch's memory: inside a CUDA graph capture only its pool may be asked for more.
            workspace = like.new_empty(self._emitted.workspace_bytes, dtype=torch.uint8)
            call = self.bind(tensors, outputs, workspace.data_ptr())
            with torch_stream(torch):
                call()
        return outputs

    def _on_cupy(self, tensors: Sequence[Any], kind: str) -> list[Any]:
        graph = self._emitted.graph
        with cupy.cuda.Device(self._index):
            arrays = list(tensors)
            if kind == "NumPy":
                arrays = [cupy.asarray(accept(t, i)) for t, i in zip(tensors, graph.inputs, strict=True)]
            outputs = [cupy.empty(t.shape, STORED[t.dtype]) for t in graph.output_types]
            self.bind(arrays, outputs)()
            if kind == "NumPy":
                pairs = zip(outputs, graph.output_types, strict=True)
                return [_host(o, t) for o, t in pairs]
        return outputs

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: int | None = None) -> Call:
        """Prepare the launches for these buffers; the returned function enqueues them on CuPy's current stream.

        Args:
            inputs, outputs: torch or CuPy tensors; the function keeps them alive.
            workspace: address of `workspace_bytes` of device memory that the caller keeps alive; default: its own.

        Raises:
            ShapeError, DTypeError, LaunchError: a tensor does not fit, is elsewhere, or is not contiguous.
        """
        graph = self._emitted.graph
        address: dict[int, int] = {}
        for value, (given, tensor) in enumerate(zip(graph.inputs, inputs, strict=True)):
            address[value] = self._address(tensor, given)
        for number, (value, tensor) in enumerate(zip(graph.outputs, outputs, strict=True)):
            address[value] = self._address(tensor, Input(f"output {number}", graph.types[value]))
        own = None
        if workspace is None and self._emitted.workspace_bytes:
            own = cupy.empty(self._emitted.workspace_bytes, "uint8")
            workspace = int(own.data.ptr)
        for temporary in self._emitted.temporaries:
            address[temporary.value] = (workspace or 0) + temporary.offset
        for view, original in self._emitted.aliases:
            if original in address:
                address.setdefault(view, address[original])
            else:
                address[original] = address[view]
        steps = [self._step(step, address, graph) for step in self._emitted.launches]
        held = (own, inputs, outputs)

        def call(held: object = held) -> None:
            for step in steps:
                step()

        return call

    def _step(self, step: Launch | LibraryCall, address: dict[int, int], graph: KernelGraph) -> Call:
        if isinstance(step, LibraryCall):
            return _library_call(step, address, graph)
        function = self._functions[step.kernel]
        args: list[Any] = []
        for arg in step.args:
            if isinstance(arg, TensorArg):
                args.append(np.uintp(address[arg.value]))
            else:
                dtype = graph.types[arg.value].dtype
                args.append(device_map(address[arg.value], dtype, (arg.rows, arg.columns), arg.box, arg.swizzle))
        packed, block = tuple(args), (step.threads, 1, 1)
        if step.overlaps:
            return dependent_launch(function, step.grid, block, packed, step.shared_bytes)

        def launch() -> None:
            function(step.grid, block, packed, shared_mem=step.shared_bytes)

        return launch

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
                raise DTypeError(f"{into.name} has dtype {tensor.dtype}, {into.type.dtype.value} is {wanted} in CuPy")
        check_shape(tensor.shape, into)
        if device != self._index:
            where = "not on a GPU" if device is None else f"on GPU {device}"
            raise LaunchError(f"{into.name} is {where}, the kernels are on GPU {self._index}", hint="move it there")
        if not contiguous:
            raise LaunchError(f"{into.name} is not contiguous", hint="call .contiguous() or cupy.ascontiguousarray")
        if pointer % ALIGNMENT:
            raise LaunchError(f"{into.name} starts at no multiple of {ALIGNMENT} bytes", hint="pass a copy of it")
        return pointer

    def check(self, sample: Sample) -> FloatReport:
        """Run on the sample's inputs with poisoned outputs and compare with its float64 outputs.

        Raises:
            LaunchError: the card rejects a launch, or a kernel failed on it.
        """
        types = self._emitted.graph.output_types
        with _card_errors():
            inputs = [cupy.asarray(a) for a in sample.inputs]
            outputs = [_poisoned(t) for t in types]
            self.bind(inputs, outputs)()
            cupy.cuda.get_current_stream().synchronize()
            found = [decode(cupy.asnumpy(a), t.dtype) for a, t in zip(outputs, types, strict=True)]
        return compare(found, sample.outputs, types[0].dtype)


@dataclass(frozen=True, slots=True)
class _Foreign:
    """Somebody else's stream, the way CuPy takes it in."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def torch_stream(torch: Any) -> Any:
    """torch's current stream, to be made CuPy's in a `with` statement."""
    return cupy.cuda.Stream.from_external(_Foreign(torch.cuda.current_stream().cuda_stream))


def _kind(tensor: Any) -> str:
    if is_torch(tensor):
        return "torch"
    return "CuPy" if isinstance(tensor, cupy.ndarray) else "NumPy"


@contextlib.contextmanager
def _card_errors() -> Iterator[None]:
    """What CUDA reports, as a LaunchError."""
    try:
        yield
    except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError, MemoryError) as error:
        raise LaunchError(f"the card reports {error}") from error


def _load(emitted: Emitted, cubin: Cubin) -> dict[str, Any]:
    launches = [step for step in emitted.launches if isinstance(step, Launch)]
    if not launches:
        return {}
    with tempfile.TemporaryDirectory(prefix="mirage-nb-") as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(cubin.data)
        try:
            module = cupy.RawModule(path=str(path))
            functions = {step.kernel: module.get_function(step.kernel) for step in launches}
            for step in launches:
                functions[step.kernel].max_dynamic_shared_size_bytes = step.shared_bytes
        except cupy.cuda.driver.CUDADriverError as error:
            raise LaunchError(f"the cubin for {cubin.arch} does not load: {error}") from error
    return functions


def _host(array: Any, type_: TensorType) -> Any:
    """A NumPy array of the program's dtype, float32 for bf16."""
    host = cupy.asnumpy(array)
    return decode(host, type_.dtype).astype(np.float32) if type_.dtype is DType.BF16 else host


def _poisoned(type_: TensorType) -> Any:
    if type_.dtype is DType.BF16:
        return cupy.full(type_.shape, 0x7FFF, "uint16")
    return cupy.full(type_.shape, float("nan"), STORED[type_.dtype])


def _library_call(step: LibraryCall, address: dict[int, int], graph: KernelGraph) -> Call:
    """A pre-defined operator by torch, on the stream that CuPy is using.

    Raises:
        MissingPartError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        what = f"{step.op.kind.value} between kernels runs in PyTorch, which is not installed"
        raise MissingPartError(what, hint="pip install 'mirage-nb[torch]'") from error
    operands = [_as_torch(torch, address[v], graph.types[v]) for v in step.inputs]
    output = _as_torch(torch, address[step.output], graph.types[step.output])

    def call() -> None:
        stream: Any = torch.cuda.ExternalStream
        with torch.cuda.stream(stream(cupy.cuda.get_current_stream().ptr)):
            output.copy_(TORCH[step.op.kind](torch, step.op, tuple(operands)))

    return call


def _as_torch(torch: Any, address: int, type_: TensorType) -> Any:
    """A torch tensor over device memory that somebody else owns."""
    memory = cupy.cuda.UnownedMemory(address, type_.nbytes, None)
    array = cupy.ndarray(type_.shape, STORED[type_.dtype], cupy.cuda.MemoryPointer(memory, 0))
    tensor = torch.as_tensor(array, device="cuda")
    return tensor.view(torch.bfloat16) if type_.dtype is DType.BF16 else tensor
