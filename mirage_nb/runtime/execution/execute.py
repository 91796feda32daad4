"""Running an emitted muGraph: on the attached GPU, or the very same source on the CPU edition.

In: what `codegen.emit` returned. Out: an `Executable` that takes tensors and returns tensors, and a check
of its outputs against float64. Outputs are poisoned before a check, inputs are fresh random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from mirage_nb.codegen import Emitted, Fitting, Launch, LibraryCall, TensorArg
from mirage_nb.errors import LaunchError
from mirage_nb.interp import evaluate
from mirage_nb.ir import COUNTS, DType, Input, KernelGraph
from mirage_nb.ir.rewrite import alone
from mirage_nb.predefined import part
from mirage_nb.runtime.execution.buffers import (
    BITS,
    STORED,
    Array,
    Sample,
    accept,
    check_floats,
    check_shape,
    check_whole,
    decode,
    encode,
    may_round,
    poisoned,
    shapes_of,
)
from mirage_nb.runtime.execution.emulate import CpuModule
from mirage_nb.runtime.execution.tensor_map import TensorMap
from mirage_nb.runtime.execution.torch_program import check_dtype, is_torch, torch_dtype
from mirage_nb.runtime.kernel.plan import mapped
from mirage_nb.verify.reals.float_gate import FloatReport, compare


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call whose arguments are ready: calling it runs it and returns `outputs`, which every call overwrites."""

    outputs: tuple[Any, ...]
    run: Callable[[], None]

    def __repr__(self) -> str:
        return f"<Prepared: a call with {len(self.outputs)} output{'s' * (len(self.outputs) != 1)}>"

    def __call__(self) -> Any:
        """Run; one output, or a tuple of them."""
        self.run()
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs


class Executable(Protocol):
    """A muGraph that can be run."""

    _emitted: Emitted

    @property
    def device(self) -> str:
        """Where it runs."""

    def __call__(self, *tensors: Any) -> Any:
        """Run on tensors in input order; one output, or a tuple of them."""

    def trusting(self, *tensors: Any) -> Any:
        """The same, where whatever writes settled inputs has ended when the launch in front begins."""
        return self(*tensors)

    def prepare(self, *tensors: Any) -> Prepared:
        """A call on these tensors, made ready: for loops and CUDA graphs."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run on stored arrays; outputs start as NaN."""

    def check(self, sample: Sample, tolerance: float = 1.0) -> FloatReport:
        """Run on the sample's inputs with poisoned outputs and compare; `tolerance` as of `float_gate.compare`. Raises
        as `run`."""
        types = self._emitted.graph.output_types
        found = [decode(a, t.dtype) for a, t in zip(self.run(sample.inputs), types, strict=True)]
        return compare(found, sample.reference, tolerance)


class CpuExecutable(Executable):
    """The kernels of a muGraph on the CPU edition, in a process of their own: a wrong kernel harms nothing.

    `checked` and `seconds` as in `CpuModule`.

    Raises:
        CompileError, MissingPartError: as `CpuModule` does.
    """

    device = "CPU edition"

    def __init__(self, emitted: Emitted, *, checked: bool = False, seconds: float = math.inf) -> None:
        self._emitted = emitted
        self._fits = Fitting(emitted)
        generated = any(isinstance(step, Launch) for step in emitted.launches)
        self._module = CpuModule(emitted.source, checked=checked, seconds=seconds) if generated else None

    def __repr__(self) -> str:
        return f"<CpuExecutable on the {self.device} of {self._emitted!r}>"

    def __call__(self, *tensors: Any) -> Any:
        """Run on NumPy arrays or torch tensors (of any device) in input order.

        Returns torch tensors, where the first one passed in is, if there is one, else NumPy arrays of the
        program's dtypes (float32 for bf16).

        Raises:
            LaunchError: another number of tensors; or as `run`.
            ShapeError, DTypeError: a tensor does not fit its input.
        """
        graph = self._fitting(tensors).graph
        outputs = self.run([_stored(t, i) for t, i in zip(tensors, graph.inputs, strict=True)])
        like = next((t for t in tensors if is_torch(t)), None)
        values = [_handed_out(a, t.dtype, like) for a, t in zip(outputs, graph.output_types, strict=True)]
        return values[0] if len(values) == 1 else tuple(values)

    def prepare(self, *tensors: Any) -> Prepared:
        """A call on these tensors, read anew by every call; outputs are of their kind. Raises as a call does."""
        graph = self._fitting(tensors).graph
        like = next((t for t in tensors if is_torch(t)), None)
        for tensor, into in zip(tensors, graph.inputs, strict=True):
            check_shape(tensor.shape if is_torch(tensor) else np.shape(tensor), into)
            check_floats(tensor, into)
        outputs = tuple(_handed_out(poisoned(t), t.dtype, like) for t in graph.output_types)

        def run() -> None:
            found = self(*tensors)
            for held, new in zip(outputs, found if isinstance(found, tuple) else (found,), strict=True):
                held[...] = new

        return Prepared(outputs, run)

    def run(self, inputs: Sequence[Array], *, deferred: bool = False, order: str | int = "forward") -> list[Array]:
        """Run on stored arrays; outputs start as NaN. `deferred` and `order` as in `CpuModule.launch`.

        Raises:
            LaunchError: a kernel crashed, hung, diverged or read what nothing wrote.
            ShapeError: a size that is known at launch is out of its range.
        """
        emitted = self._fitting(inputs)
        graph = emitted.graph
        held: dict[int, Array] = dict(enumerate(inputs))
        for value in sorted({*graph.outputs, *(t.value for t in emitted.temporaries)}):
            held.setdefault(value, poisoned(graph.types[value]))
        for view, original in emitted.aliases:
            if original in held:
                held[view] = held[original].reshape(graph.types[view].shape)
            else:
                held[original] = held[view].reshape(graph.types[original].shape)
        constants = graph.uniform()
        for step in emitted.launches:
            if isinstance(step, LibraryCall):
                held[step.output][...] = _library(step, held, graph, constants)
            else:
                self._launch(step, held, emitted.extent, deferred, order)
        return [held[v] for v in graph.outputs]

    def _fitting(self, tensors: Sequence[Any]) -> Emitted:
        """What was emitted, for as many tensors of these shapes."""
        return self._fits(shapes_of(tensors, self._emitted.graph.inputs))

    def _launch(
        self, step: Launch, held: dict[int, Array], extent: int | None, deferred: bool, order: str | int
    ) -> None:
        if self._module is None:
            raise LaunchError(f"{step.kernel} was never emitted")
        args: list[Any] = []
        for arg in step.args:
            if isinstance(arg, TensorArg):
                args.append(held[arg.value])
            else:
                shape, box = mapped((arg.rows, arg.columns), arg.box, arg.matrices)
                args.append(TensorMap(held[arg.value], box, arg.swizzle, shape, arg.first, arg.pitch))
        if step.sized:
            args.append(extent)
        self._module.launch(
            step.kernel, step.grid, (step.threads, 1, 1), step.shared_bytes, args, deferred=deferred, order=order
        )


def ordered(wanted: Sequence[Input], tensors: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Tensors in the order of these inputs, the last ones given by name; numbers, and tensors without dimensions, as
    tensors of the one element that scalars have. Raises LaunchError."""
    left = [i.name for i in wanted[len(tensors) :]]
    if len(tensors) > len(wanted) or set(left) != set(named):
        names, missing, other = ", ".join(i.name for i in wanted), set(left) - set(named), set(named) - set(left)
        said = f"there is none for {', '.join(n for n in left if n in missing)}" if missing else ""
        said = f"{', '.join(sorted(other))} is not one of those that are left" if other else said
        said = f"{len(tensors)} were given" if len(tensors) > len(wanted) else said
        raise LaunchError(f"expected the tensors {names}: {said}", hint="pass them in this order, or by name")
    given = (*tensors, *(named[name] for name in left))
    like = next(filter(is_torch, given), None)
    return tuple(_as_scalar(t, i, like) for t, i in zip(given, wanted, strict=True))


def _as_scalar(tensor: Any, into: Input, like: Any) -> Any:
    if into.type.shape != (1,) or into.size is not None:
        return tensor
    if getattr(tensor, "shape", None) == ():
        return tensor.reshape(1)
    if not isinstance(tensor, int | float):
        return tensor
    if like is None:
        return [tensor]  # of no type of its own
    import torch

    return like.new_full((1,), tensor, dtype=torch_dtype(torch, into.type.dtype))


def as_declared(tensors: Sequence[Any], inputs: Sequence[Input]) -> tuple[Any, ...]:
    """Tensors rounded to the element types that a program says, each in its own library; those that have them stay."""
    return tuple(_declared(t, i.type.dtype) for t, i in zip(tensors, inputs, strict=True))


def whole_declared(tensors: Sequence[Any], inputs: Sequence[Input]) -> tuple[Any, ...]:
    """Tensors of whole numbers, which have no float type of their own, as the program says; others stay. Bits of bf16
    look like whole numbers, and are none.

    Raises:
        DTypeError: f32 or f64 would round some; nothing is looked at while a CUDA graph is captured.
    """
    pairs = zip(tensors, inputs, strict=True)
    return tuple(_held_whole(t, i) if _is_whole(t, i.type.dtype) else t for t, i in pairs)


def _held_whole(tensor: Any, into: Input) -> Any:
    made = _declared(tensor, into.type.dtype)
    if made is not tensor and may_round(_kind(tensor), tensor.dtype.itemsize, into) and not _captured(tensor):
        back = made.to(tensor.dtype) if is_torch(tensor) else made.astype(tensor.dtype)
        check_whole(bool((back != tensor).any()), into)
    return made


def _captured(tensor: Any) -> bool:
    if not is_torch(tensor) or not tensor.is_cuda:
        return False
    import torch

    return torch.cuda.is_current_stream_capturing()


def _is_whole(tensor: Any, dtype: DType) -> bool:
    if is_torch(tensor):
        return not tensor.is_floating_point() and not tensor.is_complex()
    return _kind(tensor) in ("i", "u", "b") and dtype not in BITS and not isinstance(tensor, np.ndarray)


def _is_real(tensor: Any) -> bool:
    return tensor.is_floating_point() if is_torch(tensor) else _kind(tensor) == "f"


def _kind(tensor: Any) -> str:
    """Of the elements of a tensor, as NumPy names them; whole numbers of PyTorch are i or b."""
    if is_torch(tensor):
        return "b" if str(tensor.dtype) == "torch.bool" else "i"
    return getattr(getattr(tensor, "dtype", None), "kind", "")


def _declared(tensor: Any, dtype: DType) -> Any:
    if isinstance(tensor, np.ndarray):
        return tensor if dtype in BITS or tensor.dtype.kind not in "fiu" else encode(tensor, dtype)
    if is_torch(tensor):
        import torch

        wanted = torch_dtype(torch, dtype)
        return (_counted(tensor, dtype) if dtype in COUNTS and tensor.dtype is not wanted else tensor).to(wanted)
    if dtype in BITS or not hasattr(tensor, "astype"):
        return tensor
    return (_counted(tensor, dtype) if dtype in COUNTS else tensor).astype(STORED[dtype])


def _counted(tensor: Any, dtype: DType) -> Any:
    """Numbers as those of a type of whole numbers of one byte, as `encode` has them."""
    if dtype is DType.BOOL:
        return tensor != 0
    whole = tensor.round() if _is_real(tensor) else tensor.long() if is_torch(tensor) else tensor.astype(np.int64)
    return whole.clip(COUNTS[dtype][0], COUNTS[dtype][-1])


def _stored(tensor: Any, into: Input) -> Array:
    if not is_torch(tensor):
        return accept(tensor, into)
    check_shape(tensor.shape, into)
    check_dtype(tensor, into)
    host = tensor.detach().cpu()
    return encode((host.float() if into.type.dtype in BITS else host).numpy(), into.type.dtype)


def _handed_out(stored: Array, dtype: DType, like: Any) -> Any:
    """An output as the caller's kind of tensor; `like` is a torch tensor, or None for NumPy."""
    plain = decode(stored, dtype).astype(np.float32) if dtype is DType.BF16 else stored
    if like is None:
        return plain
    import torch

    return torch.from_numpy(plain).to(device=like.device, dtype=torch_dtype(torch, dtype))


def _library(step: LibraryCall, held: dict[int, Array], graph: KernelGraph, constants: Mapping[int, Fraction]) -> Array:
    """A pre-defined operator between kernels, or several that one library kernel computes, by the float64 reference,
    rounded as stored."""
    if step.match is not None:
        wide = [decode(held[v], graph.types[v].dtype) for v in step.match.inputs]
        return encode(evaluate(part(graph, step.match), wide)[0], graph.types[step.output].dtype)

    def operand(value: int) -> Array:
        type_ = graph.types[value]
        if value in constants:
            return np.full(type_.shape, float(constants[value]))
        return decode(held[value], type_.dtype)

    exact = evaluate(alone(graph, step.op), [operand(v) for v in step.inputs])
    return encode(exact[0], graph.types[step.output].dtype)
