"""Kernels on the attached GPU: a cubin through CuPy's RawModule, on any stream, without copies.

In: an emitted muGraph and its cubin; torch or CuPy tensors. Out: tensors of the same library, enqueued on
that library's current stream. Arguments are prepared once per set of buffers (`bind`), so a call in a
loop or in a CUDA graph only launches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from mirage_nb.codegen import Emitted, Launch, LibraryCall, TensorArg
from mirage_nb.errors import DTypeError, LaunchError, ShapeError
from mirage_nb.ir import DType, Input, KernelGraph, TensorType
from mirage_nb.runtime.buffers import Sample, decode, encode
from mirage_nb.runtime.compile import Cubin
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.runtime.tensor_map import device_map
from mirage_nb.runtime.torch_program import TORCH
from mirage_nb.verify.float_gate import FloatReport, compare

CUPY_DTYPE = {DType.F16: "float16", DType.BF16: "uint16", DType.F32: "float32", DType.F64: "float64"}
TORCH_NAME = {DType.F16: "torch.float16", DType.BF16: "torch.bfloat16", DType.F32: "torch.float32"}
Call = Callable[[], None]


class GpuExecutable:
    """A muGraph on the current CUDA device.

    Raises:
        LaunchError: the cubin does not load on this card.
    """

    def __init__(self, emitted: Emitted, cubin: Cubin, gpu: Gpu) -> None:
        self._emitted = emitted
        self._gpu = gpu
        self._functions = _load(emitted, cubin)

    @property
    def device(self) -> str:
        """The card's name."""
        return self._gpu.name

    def __call__(self, *tensors: Any) -> Any:
        graph = self._emitted.graph
        torch_like = next((t for t in tensors if hasattr(t, "data_ptr")), None)
        if torch_like is None:
            outputs = [cupy.empty(t.shape, CUPY_DTYPE[t.dtype]) for t in graph.output_types]
            arrays = [_upload(t, i) for t, i in zip(tensors, graph.inputs, strict=True)]
            self.bind(arrays, outputs)()
            if not any(isinstance(t, cupy.ndarray) for t in tensors):
                outputs = [cupy.asnumpy(o) for o in outputs]
        else:
            outputs = [torch_like.new_empty(t.shape) for t in graph.output_types]
            import torch

            with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                self.bind(tensors, outputs)()
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Call:
        """Prepare the launches for these buffers; the returned function enqueues them on CuPy's current stream.

        Raises:
            ShapeError, DTypeError, LaunchError: a tensor is of another shape or type, or not contiguous.
        """
        graph = self._emitted.graph
        address: dict[int, int] = {}
        for value, (given, tensor) in enumerate(zip(graph.inputs, inputs, strict=True)):
            address[value] = _address(tensor, given.type, given.name)
        for value, tensor in zip(graph.outputs, outputs, strict=True):
            address[value] = _address(tensor, graph.types[value], "an output")
        workspace = cupy.empty(max(1, self._emitted.workspace_bytes), "uint8")
        for temporary in self._emitted.temporaries:
            address[temporary.value] = int(workspace.data.ptr) + temporary.offset
        for view, original in self._emitted.aliases:
            address.setdefault(view, address.get(original, 0))
            address.setdefault(original, address[view])
        steps = [self._step(step, address, graph) for step in self._emitted.launches]

        def call(held: object = (workspace, inputs, outputs)) -> None:
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

        def launch() -> None:
            function(step.grid, block, packed, shared_mem=step.shared_bytes)

        return launch

    def check(self, sample: Sample) -> FloatReport:
        types = self._emitted.graph.output_types
        inputs = [cupy.asarray(a) for a in sample.inputs]
        outputs = [_poisoned(t) for t in types]
        self.bind(inputs, outputs)()
        cupy.cuda.get_current_stream().synchronize()
        found = [decode(cupy.asnumpy(a), t.dtype) for a, t in zip(outputs, types, strict=True)]
        return compare(found, sample.outputs, types[0].dtype)


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


def _address(tensor: Any, type_: TensorType, name: str) -> int:
    if tuple(tensor.shape) != type_.shape:
        raise ShapeError(f"{name} has shape {list(tensor.shape)}, the program says {list(type_.shape)}")
    if isinstance(tensor, cupy.ndarray):
        contiguous, found, wanted = tensor.flags.c_contiguous, tensor.dtype.name, CUPY_DTYPE[type_.dtype]
        pointer = int(tensor.data.ptr)
    else:
        contiguous, found, wanted = tensor.is_contiguous(), str(tensor.dtype), TORCH_NAME[type_.dtype]
        pointer = int(tensor.data_ptr())
        if not tensor.is_cuda:
            raise LaunchError(f"{name} is not on the GPU", hint="move it with .cuda()")
    if found != wanted:
        raise DTypeError(f"{name} has dtype {found}, the program says {wanted}")
    if not contiguous:
        raise LaunchError(f"{name} is not contiguous", hint="call .contiguous() first")
    if pointer % 16:
        raise LaunchError(f"{name} does not start at a multiple of 16 bytes", hint="call .clone() first")
    return pointer


def _upload(tensor: Any, into: Input) -> Any:
    if isinstance(tensor, cupy.ndarray):
        return tensor
    return cupy.asarray(encode(np.asarray(tensor), into.type.dtype))


def _poisoned(type_: TensorType) -> Any:
    if type_.dtype is DType.BF16:
        return cupy.full(type_.shape, 0x7FFF, "uint16")
    return cupy.full(type_.shape, float("nan"), CUPY_DTYPE[type_.dtype])


def _library_call(step: LibraryCall, address: dict[int, int], graph: KernelGraph) -> Call:
    """A pre-defined operator by torch, on the stream that CuPy is using."""
    import torch

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
    array = cupy.ndarray(type_.shape, CUPY_DTYPE[type_.dtype], cupy.cuda.MemoryPointer(memory, 0))
    tensor = torch.as_tensor(array, device="cuda")
    return tensor.view(torch.bfloat16) if type_.dtype is DType.BF16 else tensor

