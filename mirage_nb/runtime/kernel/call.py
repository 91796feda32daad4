"""A saved muGraph that can be called: arguments checked, outputs made, results compared with NumPy.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is
copied with it. In: a `Plan` and arrays of CuPy, NumPy or anything with `__cuda_array_interface__`. Out: CuPy
arrays, NumPy arrays where those came in. Nothing touches the GPU before the first call.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_nb.runtime.kernel.driver import EXTENTS, Loaded, replayed
from mirage_nb.runtime.kernel.operators import FLOATS, STORED, decode, encode, run_program
from mirage_nb.runtime.kernel.plan import ALIGNMENT, Drawn, KernelError, Plan, Tensor
from mirage_nb.runtime.kernel.streams import Enqueue

CALLS = 200
"""How many calls a self-check times."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call whose arguments are ready; `outputs` are overwritten by every one. It keeps its arrays alive."""

    outputs: tuple[Any, ...]
    enqueue: Enqueue
    held: tuple[Any, ...]

    def __call__(self, stream: int | None = None) -> Any:
        """Enqueue the kernels on a stream, given by its address (default: CuPy's current one); returns the outputs."""
        if stream is None:
            import cupy

            stream = cupy.cuda.get_current_stream().ptr
        self.enqueue(stream)
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs


class Kernel:
    """The kernels of one muGraph, on the CUDA device that is current at the first call."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.inputs = plan.at("input")
        self.outputs = plan.at("output")
        self._loaded: Loaded | None = None
        self._at = functools.lru_cache(maxsize=EXTENTS)(plan.sized)

    def __repr__(self) -> str:
        ins, outs = (", ".join(map(str, ts)) for ts in (self.inputs, self.outputs))
        return f"<kernel {self.plan.about.get('name', '')}({ins}) -> {outs}, {self.plan.arch}>"

    def __call__(self, *arrays: Any, stream: int | None = None) -> Any:
        """Run on arrays in the order of the inputs; returns one array or a tuple.

        CuPy arrays, and whatever has `__cuda_array_interface__`, are read where they are: on the GPU, contiguous,
        of the stored types (bf16 is uint16). NumPy arrays are rounded to these, unless they have them, and copied
        there and back.
        The kernels are enqueued on CuPy's current stream, or on the stream of this address.

        Raises:
            KernelError: arrays that do not fit, no GPU, or one that refuses.
        """
        plan = self._fitting(arrays)
        if not any(isinstance(a, np.ndarray) for a in arrays):
            return self.prepare(*arrays)(stream)
        stored = [_stored(a, t) for a, t in zip(arrays, plan.at("input"), strict=True)]
        cupy = gpu()
        call = self.prepare(*(cupy.asarray(a) for a in stored))
        call(stream)
        cupy.cuda.runtime.deviceSynchronize()
        found = [cupy.asnumpy(a) for a in call.outputs]
        found = [
            decode(a, t.dtype, "float32") if t.dtype == "bf16" else a for a, t in zip(found, self.outputs, strict=True)
        ]
        return found[0] if len(found) == 1 else tuple(found)

    def prepare(self, *arrays: Any, outputs: Sequence[Any] | None = None) -> Prepared:
        """Make a call ready: outputs and workspace allocated, every argument in its place. It may be called any
        number of times, and captured into a CUDA graph. Raises KernelError as a call does."""
        plan = self._fitting(arrays)
        if outputs is not None and len(outputs) != len(self.outputs):
            raise KernelError(f"{len(outputs)} arrays to write to; the outputs are {', '.join(map(str, self.outputs))}")
        cupy = gpu()
        loaded = self._load(cupy)
        with cupy.cuda.Device(loaded.device):
            if outputs is None:
                outputs = [cupy.empty(t.shape, STORED[t.dtype]) for t in plan.at("output")]
            given = [_address(a, t, loaded.device) for a, t in zip(arrays, plan.at("input"), strict=True)]
            made = [_address(a, t, loaded.device) for a, t in zip(outputs, plan.at("output"), strict=True)]
            workspace = cupy.empty(self.plan.workspace_bytes, "uint8")
            bound = (loaded.at(plan.extent) if plan.extent else loaded).bind(given, made, int(workspace.data.ptr))
            enqueue = replayed(bound, loaded.device)
        return Prepared(tuple(outputs), enqueue, (arrays, workspace))

    def reference(self, *arrays: Any) -> Any:
        """What the program says, in float64 by NumPy, on arrays as they are stored or real ones."""
        plan = self._fitting(arrays)
        steps = [(s.operator, s.attrs, s.inputs) for s in self.plan.program]
        given = [decode(np.asarray(a), t.dtype) if _is_stored(a, t) else a
                 for a, t in zip(arrays, self.inputs, strict=True)]  # fmt: skip
        try:
            found = run_program(steps, given)
            pairs = zip(plan.results, plan.at("output"), strict=True)
            outputs = [np.broadcast_to(found[v], t.shape) for v, t in pairs]
        except (ArithmeticError, LookupError, TypeError, ValueError, MemoryError) as error:
            raise KernelError(f"the program of this kernel cannot be computed: {error}") from error
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def sample(self, seed: int = 0) -> list[Any]:
        """Random inputs as they are stored, of the kinds that the program has values for."""
        rng = np.random.default_rng(seed)
        ways = self.plan.drawn or (Drawn(),) * len(self.inputs)
        return [encode(way.numbers(rng, t.shape, self.plan.scale), t.dtype)
                for way, t in zip(ways, self.inputs, strict=True)]  # fmt: skip

    def check(self, seed: int = 0) -> float:
        """Run on random inputs, outputs poisoned, and compare with the reference; the relative error.

        Raises:
            KernelError: it is wrong.
        """
        cupy = gpu()
        inputs = self.sample(seed)
        poison = [cupy.full(t.shape, 0x7FFF if t.dtype == "bf16" else np.nan, STORED[t.dtype]) for t in self.outputs]
        self.prepare(*(cupy.asarray(a) for a in inputs), outputs=poison)()
        cupy.cuda.runtime.deviceSynchronize()
        exact = self.reference(*inputs)
        worst = 0.0
        wanted = exact if isinstance(exact, tuple) else (exact,)
        for got, want, tensor in zip(poison, wanted, self.outputs, strict=True):
            worst = max(worst, distance(decode(cupy.asnumpy(got), tensor.dtype), want, tensor))
        if not worst <= self.plan.tolerance:
            raise KernelError(f"wrong: relative error {worst:.1e}, at most {self.plan.tolerance:.0e} is right")
        return worst

    def _fitting(self, arrays: Sequence[Any]) -> Plan:
        """The plan for arrays of these shapes."""
        if len(arrays) != len(self.inputs):
            raise KernelError(f"{len(arrays)} arrays; the inputs are {', '.join(map(str, self.inputs))}")
        shapes = [tuple(getattr(array, "shape", np.shape(array))) for array in arrays]
        plan = self._at(self.plan.extent_of(shapes))
        for shape, tensor in zip(shapes, plan.at("input"), strict=True):
            if shape != tensor.shape:
                raise KernelError(f"an array of shape {list(shape)} for {tensor}")
        return plan

    def _load(self, cupy: Any) -> Loaded:
        if self._loaded is None:
            self._loaded = Loaded(self.plan, int(cupy.cuda.Device().id))
        return self._loaded


def gpu() -> Any:
    """CuPy, once it sees a GPU. Raises KernelError."""
    try:
        import cupy
    except ImportError as error:
        raise KernelError(f"this runs on a GPU, with CuPy (pip install cupy-cuda13x): {error}") from error
    if not cupy.cuda.is_available():
        raise KernelError("this runs on a GPU: there is no CUDA device here, or no driver")
    return cupy


def _stored(array: Any, tensor: Tensor) -> Any:
    """A NumPy array as the kernels take it."""
    if _interface(array, tensor) is not None:
        raise KernelError(f"{tensor} got an array on the GPU, others are NumPy's: pass arrays of one kind")
    host = np.asarray(array)
    if host.dtype.kind not in "fiub":
        raise KernelError(f"{tensor} got {host.dtype}, which are no real numbers")
    return np.ascontiguousarray(host) if _is_stored(host, tensor) else encode(host, tensor.dtype)


def _is_stored(array: Any, tensor: Tensor) -> bool:
    """Whether an array has a tensor's bit patterns, of a type that NumPy has not."""
    return tensor.dtype in ("bf16", *FLOATS) and np.asarray(array).dtype == STORED[tensor.dtype]


def _interface(array: Any, tensor: Tensor) -> Any:
    """What an array on the GPU says of itself; None where it is elsewhere."""
    try:
        return getattr(array, "__cuda_array_interface__", None)
    except (RuntimeError, TypeError) as error:  # torch's words on gradients, and on types that NumPy does not know
        raise KernelError(f"{tensor} got a {type(array).__name__} that cannot be read: {error}") from error


def _address(array: Any, tensor: Tensor, device: int) -> int:
    """Where the elements begin on the GPU, once the array fits."""
    interface = _interface(array, tensor)
    if interface is None:
        raise KernelError(f"{tensor} got a {type(array).__name__} that is not on the GPU")
    dtype = np.dtype(interface["typestr"])
    if tuple(interface["shape"]) != tensor.shape or dtype != STORED[tensor.dtype]:
        raise KernelError(f"{tensor} got {dtype}{list(interface['shape'])}; {tensor.dtype} is {STORED[tensor.dtype]}")
    strides, itemsize = interface.get("strides"), dtype.itemsize
    if strides is not None and tuple(strides) != tuple(
        itemsize * int(np.prod(tensor.shape[n + 1 :])) for n in range(len(tensor.shape))
    ):
        raise KernelError(f"{tensor} got an array that is not contiguous")
    address = int(interface["data"][0])
    if address % ALIGNMENT:
        raise KernelError(f"{tensor} got an array that starts at no multiple of {ALIGNMENT} bytes")
    where = getattr(array, "device", None)
    index = getattr(where, "id", getattr(where, "index", device))
    if index != device:
        raise KernelError(f"{tensor} got an array on GPU {index}; the kernels are on GPU {device}")
    return address


def distance(got: Any, want: Any, tensor: Tensor) -> float:
    """The relative error of an output, where the program has values; infinite where it has none of its own. Raises
    KernelError where the program has none at all."""
    asked = np.isfinite(want)
    if not asked.any():
        raise KernelError(f"nothing was compared: the program has no value for {tensor} on what was drawn")
    error = float(np.abs(got[asked] - want[asked]).max() / max(np.abs(want[asked]).max(), 1e-30))
    return error if error == error else float("inf")


def describe(kernel: Kernel) -> str:
    """The kernel for a reader."""
    lines = [repr(kernel)[1:-1]]
    lines += [f"{key}: {text}" for key, text in kernel.plan.about.items() if "\n" not in text and key != "name"]
    for key, text in kernel.plan.about.items():
        if "\n" in text:
            lines += ["", key, *(f"  {line}" for line in text.splitlines())]
    return "\n".join(lines)


USAGE = """usage: python FILE            compare the kernels with NumPy in float64 on random inputs, and time a call
       python FILE --check    the comparison alone, with one launch of every kernel
       python FILE --show     the program, the muGraph, what is known of it
       python FILE --source   the CUDA source, the device library included
or, in Python: from FILE import run, KERNEL; Y = run(*arrays); call = KERNEL.prepare(*arrays); call()"""


def main(kernel: Kernel, arguments: Sequence[str]) -> int:
    """What a saved file does when it is run; returns the exit code: 0 right, 1 wrong, 2 nothing was checked."""
    show = sys.stdout.write
    if list(arguments) == ["--show"]:
        show(describe(kernel) + "\n")
        return 0
    if list(arguments) == ["--source"]:
        show(kernel.plan.source)
        return 0
    timed = list(arguments) != ["--check"]
    if arguments and timed:
        show(USAGE + "\n")
        return 0 if arguments[0] in ("-h", "--help") else 2
    try:
        gpu()
    except KernelError as error:
        show(f"{describe(kernel)}\n\n{USAGE}\n\nnot checked: {error}\n")
        return 2
    try:
        distance = kernel.check()
    except KernelError as mistake:
        show(f"{kernel!r}\n{mistake}\n")
        return 1
    show(f"{kernel!r}\nright: relative error {distance:.1e} against NumPy in float64\n")
    if timed:
        show(_timed(kernel) + "\n")
    return 0


def _timed(kernel: Kernel) -> str:
    """What a call costs: in Python, and on the card with all caches warm."""
    cupy = gpu()
    arrays = [cupy.zeros(t.shape, STORED[t.dtype]) for t in kernel.inputs]
    call = kernel.prepare(*arrays)
    call()
    cupy.cuda.runtime.deviceSynchronize()
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    launched = (time.perf_counter() - started) / CALLS * 1e6
    end.record()
    end.synchronize()
    took = cupy.cuda.get_elapsed_time(begin, end) / CALLS * 1e3
    return f"a prepared call: {launched:.1f} us to launch from Python, {took:.1f} us on the card, caches warm"
