"""The kernels of a plan on a GPU: loaded once, launched with arguments that were made ready before.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is
copied with it. In: a `Plan`, addresses of tensors. Out: functions that enqueue its work on a stream. Invariants:
an enqueued launch allocates nothing, copies nothing and waits for nothing, so it may be captured into a CUDA
graph (a pre-defined operator between kernels once it ran, from memory of its own); a kernel that is launched to
overlap with the one in front waits by itself for what that one writes.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mirage_nb.runtime.kernel.library import library_call
from mirage_nb.runtime.kernel.operators import STORED
from mirage_nb.runtime.kernel.plan import SWIZZLES, Apply, KernelError, Launch, Plan, mapped
from mirage_nb.runtime.kernel.streams import Enqueue, allocations_while_captured, driver_function, in_turn, is_captured

MAP_BYTES = 128
EXTENTS = 64
"""Extents of a size whose launches are kept."""
_DRIVER_UINT = {1: 0, 2: 1, 4: 2, 8: 4}
"""Element bytes -> the driver's number of the unsigned integer: elements are moved, never computed with."""
_L2_PROMOTION_256B = 3
_OVERLAP = 6
"""The driver's number of the attribute "programmatic stream serialization"."""
_REFUSALS = frozenset({1, 801})
"""The driver's numbers for "invalid value" and "not supported": it does not know the attribute."""
_ELSEWHERE = frozenset({201, 400, 709})
"""The driver's numbers for the mistakes that another current device makes, or none."""


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


def encode_map(
    address: int, itemsize: int, shape: Sequence[int], box: Sequence[int], swizzle: int, pitch: int = 0
) -> Any:
    """A tensor map over device memory, slowest dimension first: 128 bytes, which kernels take by value.

    `pitch`: elements from one row to the next, if these are more than a row has.

    Raises:
        KernelError: there is no driver, or it rejects the map.
    """
    encode_tiled = driver_function("cuTensorMapEncodeTiled")
    rank = len(shape)
    extents = [*shape[:-1], pitch or shape[-1]]
    strides = [itemsize * math.prod(extents[n + 1 :]) for n in range(rank)]
    storage = ctypes.create_string_buffer(MAP_BYTES + 64)
    offset = -ctypes.addressof(storage) % 64
    status = encode_tiled(
        ctypes.c_void_p(ctypes.addressof(storage) + offset),
        ctypes.c_int(_DRIVER_UINT[itemsize]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*reversed(shape)),
        (ctypes.c_uint64 * (rank - 1))(*reversed(strides[:-1])),
        (ctypes.c_uint32 * rank)(*reversed(box)),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        ctypes.c_int(0),  # not interleaved
        ctypes.c_int(SWIZZLES[swizzle]),
        ctypes.c_int(_L2_PROMOTION_256B),
        ctypes.c_int(0),  # outside the array: zero
    )
    if status != 0:
        what = f"{tuple(shape)} in boxes of {tuple(box)}, swizzled by {swizzle}, at address {address:#x}"
        raise KernelError(f"the driver rejects the tensor map {what}: CUDA error {status}")
    return np.frombuffer(storage.raw[offset : offset + MAP_BYTES], dtype=np.dtype((np.void, MAP_BYTES)))


def prepare_launch(
    kernel: int,
    grid: tuple[int, int, int],
    threads: int,
    shared_bytes: int,
    args: Sequence[Any],
    *,
    overlaps: bool,
    device: int,
) -> Enqueue:
    """A launch with everything but the stream made ready: about two microseconds a call.

    Args:
        kernel: the driver's handle of a kernel of `device`.
        args: NumPy scalars, or arrays that are passed by value (tensor maps); they are copied now.
        overlaps: it may start while the launch in front of it still runs, where the card knows how.

    The returned function raises KernelError when the driver refuses.
    """
    launch = driver_function("cuLaunchKernelEx")
    held = [np.ascontiguousarray(arg) for arg in args]
    pointers = (ctypes.c_void_p * len(held))(*(a.ctypes.data for a in held))
    attribute = _Attribute(id=_OVERLAP)
    attribute.value[0] = 1
    extents = ((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(threads, 1, 1))
    config = _Config(*extents, shared_bytes, None, ctypes.pointer(attribute), int(overlaps))
    reference, handle, none = ctypes.byref(config), ctypes.c_void_p(kernel), ctypes.c_void_p()

    def again(status: int) -> int:
        """After a refusal without the attribute, and on the kernel's own device."""
        if status in _REFUSALS and config.attribute_count:
            config.attribute_count = 0
            status = launch(reference, handle, pointers, none)
        if status in _ELSEWHERE:
            import cupy

            with cupy.cuda.Device(device):
                status = launch(reference, handle, pointers, none)
        return status

    def enqueue(stream: int, held: object = held) -> None:
        config.stream = stream
        status = launch(reference, handle, pointers, none)
        if status != 0 and (status := again(status)) != 0:
            raise KernelError(f"the card reports CUDA error {status}")

    return enqueue


class Loaded:
    """The kernels of a plan on one device. Raises KernelError when they do not load."""

    def __init__(self, plan: Plan, device: int, kernels: dict[str, Any] | None = None) -> None:
        self.plan = plan
        self.device = device
        self._kernels = self._load() if kernels is None else kernels
        self.at = functools.lru_cache(maxsize=EXTENTS)(self._at)

    def _at(self, extent: int) -> Loaded:
        """The same kernels at an extent of the size that is known at launch; 0: where there is none."""
        return self.of(self.plan.sized(extent)) if extent else self

    def of(self, plan: Plan) -> Loaded:
        """Another plan of the same kernels."""
        return Loaded(plan, self.device, self._kernels)

    def _load(self) -> dict[str, Any]:
        import cupy

        launches = [step for step in self.plan.steps if isinstance(step, Launch)]
        if not launches:
            return {}
        cubin = self.plan.cubin or compiled(self.plan.source, self.plan.arch)
        with cupy.cuda.Device(self.device), tempfile.TemporaryDirectory(prefix="mirage-nb-") as folder:
            path = Path(folder) / "kernels.cubin"
            path.write_bytes(cubin)
            try:
                module = cupy.RawModule(path=str(path))
                found = {step.kernel: module.get_function(step.kernel) for step in launches}
                for step in launches:
                    found[step.kernel].max_dynamic_shared_size_bytes = step.shared_bytes
            except cupy.cuda.driver.CUDADriverError as error:
                raise KernelError(f"the cubin for {self.plan.arch} does not load: {error}") from error
        return found

    def bind(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int) -> Enqueue:
        """The launches for tensors that begin at these addresses; the caller keeps their memory."""
        starts = {"input": inputs, "output": outputs}
        address = [workspace + t.at if t.place == "workspace" else starts[t.place][t.at] for t in self.plan.tensors]
        calls: list[Enqueue] = []
        for is_ours, steps in itertools.groupby(self.plan.steps, lambda step: isinstance(step, Launch)):
            if is_ours:
                calls += [self._launch(step, address) for step in steps if isinstance(step, Launch)]
            else:
                applied = [step for step in steps if isinstance(step, Apply)]
                calls.append(library_call(applied, self.plan.tensors, address, self.device))
        return in_turn(calls)

    def _launch(self, step: Launch, address: Sequence[int]) -> Enqueue:
        args: list[Any] = []
        for arg in step.args:
            tensor, start = self.plan.tensors[arg.tensor], address[arg.tensor]
            itemsize = np.dtype(STORED[tensor.dtype]).itemsize
            if arg.shape is not None:
                first = start + (arg.first or 0) * itemsize
                shape, box = mapped(arg.shape, arg.box, arg.matrices or 0)
                args.append(encode_map(first, itemsize, shape, box, arg.swizzle, arg.pitch or 0))
            else:
                args.append(np.uintp(start))
        if step.sized:
            args.append(np.int32(self.plan.extent))
        kernel = self._kernels[step.kernel].kernel.ptr
        capability = int(self.plan.arch.removeprefix("sm_").rstrip("af"))
        return prepare_launch(
            kernel, step.grid, step.threads, step.shared_bytes, args,
            overlaps=step.overlaps and capability >= 90, device=self.device,
        )  # fmt: skip


def replayed(enqueue: Enqueue, device: int) -> Enqueue:
    """The same work, from its second call on as one CUDA graph: launching that takes a third of the time that its
    kernels take one by one. Into a stream that is being captured goes the work itself."""
    launch = driver_function("cuGraphLaunch")
    handle = ctypes.c_void_p()
    graph: Any = None
    runs = 0

    def call(stream: int) -> None:
        nonlocal graph, runs
        place = ctypes.c_void_p(stream)
        if runs and not is_captured(stream):
            if graph is None:
                graph = _recorded(enqueue, device)
                handle.value = graph and graph.graphExec
            if graph and launch(handle, place) == 0:
                return
        enqueue(stream)
        runs += 1

    return call


def _recorded(enqueue: Enqueue, device: int) -> Any:
    """What this enqueues, as a CUDA graph; False where CUDA does not take it."""
    import cupy

    with cupy.cuda.Device(device), allocations_while_captured():
        stream = cupy.cuda.Stream(non_blocking=True)
        try:
            with stream:
                stream.begin_capture()
                try:
                    enqueue(stream.ptr)
                finally:
                    graph = stream.end_capture()
        except (KernelError, NotImplementedError, cupy.cuda.runtime.CUDARuntimeError):
            return False
        graph.upload(stream)
        return graph


def whole(cubin: bytes) -> bytes:
    """A cubin with the zero at its end, which CuPy takes for the end of a text: its parts begin and end at multiples of
    8 bytes. Drivers do without it, `cuobjdump` and `nvdisasm` do not."""
    return cubin.ljust(-(-len(cubin) // 8) * 8, b"\0")


def compiled(source: str, arch: str) -> bytes:
    """A cubin of CUDA C++ that includes nothing. Raises KernelError with the first errors."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, "kernels.cu", [], [])
    try:
        nvrtc.compileProgram(program, ["--std=c++17", f"--gpu-architecture={arch}"])
        return whole(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise KernelError(f"NVRTC rejects the source for {arch}:\n{nvrtc.getProgramLog(program)[:2000]}") from error
    finally:
        nvrtc.destroyProgram(program)
