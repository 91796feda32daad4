"""Pre-defined operators by PyTorch's kernels, and how these work on memory that is not PyTorch's.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is copied
with it. In: operators of a plan as functions of PyTorch's tensors, addresses of tensors. Out: a function that enqueues
them on a stream. Invariants: operands are read where they lie, as views, and results written where they are wanted, by
kernels that are told so; memory that PyTorch takes on the way belongs to the call, so that a CUDA graph that has
captured it may be replayed on any stream. An operator rounds once, at its end, as PyTorch's own do.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from mirage_nb.runtime.kernel.plan import Apply, KernelError, Tensor
from mirage_nb.runtime.kernel.streams import Enqueue, allocations_while_captured

Go = Callable[[], object]
"""Enqueues kernels on PyTorch's current stream."""
Rule = Callable[[Any, Mapping[str, Any], Sequence[Any], Any], Go]
"""Of the module torch, attributes, operands (tensors, or floats) and the tensor that the result goes to."""
_HELD = {"f16": "<f2", "bf16": "<i2", "f32": "<f4", "f64": "<f8", "i8": "|i1", "u8": "|u1"}
_HELD |= dict.fromkeys(("bool", "f8e4m3", "f8e5m2"), "|u1")
"""Element types -> what holds them, as arrays on a GPU say it."""
_SEEN = {"bf16": "bfloat16", "bool": "bool", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
"""Element types that PyTorch sees in what holds them."""
MOVING = frozenset({"Cast", "Reshape", "Transpose", "Repeat", "Slice", "Pad", "Concat", "Where"})
"""Operators that compute nothing of their operands: these may be stored in bytes."""


# -- the operators ------------------------------------------------------------------------------------


def _exact(value: Any) -> float:
    return float(Fraction(str(value)))


def into(made: Callable[..., Callable[..., Any]]) -> Rule:
    """What is computed where it is told to: `made` takes the module, attributes and operands, and returns a function of
    `out`."""

    def rule(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
        return partial(made(torch, attrs, *operands), out=result)

    return rule


def _one(name: str) -> Rule:
    """An operator of one tensor that PyTorch has under one name."""
    return into(lambda torch, attrs, x: partial(getattr(torch, name), x))


def _two(name: str) -> Rule:
    """An operator of two tensors, one of which may be a number: PyTorch computes with that as it is."""

    def made(torch: Any, attrs: Mapping[str, Any], *operands: Any) -> Callable[..., Any]:
        given = (torch.tensor(x, dtype=torch.float64) if isinstance(x, float) else x for x in operands)
        return partial(getattr(torch, name), *given)

    return into(made)


def _moved(view: Callable[[Any, Mapping[str, Any], Any], Any]) -> Rule:
    """An operator that only moves elements: the result is a copy of a view of its operand."""

    def rule(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
        (x,) = operands
        moved = view(torch, attrs, x)
        return lambda: result.copy_(moved)

    return rule


def _filled(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    value = _exact(attrs["value"])
    return lambda: result.fill_(value)


def _matmul(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    a, b = operands
    if a.dtype != b.dtype:  # PyTorch multiplies matrices of one type
        return lambda: torch.matmul(a.to(result.dtype), b.to(result.dtype), out=result)
    return lambda: torch.matmul(a, b, out=result)


def _concat_matmul(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    left, right = (torch.cat, -1), (torch.cat, -2)
    w, x, y, z = operands
    lead = torch.broadcast_shapes(*(o.shape[:-2] for o in operands))
    w, x, y, z = (o.expand(*lead, *o.shape[-2:]) for o in (w, x, y, z))
    return lambda: torch.matmul(left[0]((w, x), left[1]), right[0]((y, z), right[1]), out=result)


def _rescaled_total(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    x, m = torch.broadcast_tensors(*operands)
    dim = attrs["dim"]

    def go() -> None:
        fall = (wide := _wide(torch, m)) - wide.amax(dim, keepdim=True)
        kept = torch.where(fall == -math.inf, 0.0, _wide(torch, x) * torch.exp(fall))
        result.copy_(kept.sum(dim, keepdim=True))

    return go


def _run_sums(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    (x,), dim, backward = operands, int(attrs["dim"]), bool(attrs.get("backward"))

    def go() -> None:
        found = torch.cumsum(_wide(torch, x.flip(dim) if backward else x), dim)
        if attrs.get("exclusive"):
            found = found.roll(1, dim)
            found.narrow(dim, 0, 1).zero_()
        result.copy_(found.flip(dim) if backward else found)

    return go


def _wide(torch: Any, x: Any) -> Any:
    """At least as f32."""
    return x if x.dtype == torch.float64 else x.float()


def _clamped(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    (x,) = operands
    low, high = (None if attrs.get(end) is None else _exact(attrs[end]) for end in ("low", "high"))
    if low is None and high is None:
        return lambda: result.copy_(x)
    return lambda: torch.clamp(x, low, high, out=result)


def _chosen(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    condition, x = (result.new_full((), v) if isinstance(v, float) else v for v in operands)
    sign = int(attrs.get("infinite", 0))
    other = result.new_full((), sign * math.inf if sign else _exact(attrs.get("other", 0)))
    return lambda: torch.where(condition != 0, x, other, out=result)


def _repeated(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    (x,), dim = operands, int(attrs["dim"])
    copies = result.unflatten(dim, (int(attrs["times"]), x.shape[dim]))
    return lambda: copies.copy_(x.unsqueeze(dim))


def _part(torch: Any, attrs: Mapping[str, Any], x: Any) -> Any:
    dim, start, extent, step = (int(attrs.get(name, 1)) for name in ("dim", "start", "extent", "step"))
    last = start + (extent - 1) * step
    found = x[(slice(None),) * dim + (slice(min(start, last), max(start, last) + 1, abs(step)),)]
    return found if step > 0 else found.flip(dim)


def _sliced(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    (x,) = operands
    if int(attrs.get("step", 1)) < 0:  # there are no views backwards
        return lambda: result.copy_(_part(torch, attrs, x))
    return _moved(_part)(torch, attrs, operands, result)


def _padded(torch: Any, attrs: Mapping[str, Any], x: Any) -> Callable[..., Any]:
    """Joined with zeros, by one kernel."""
    dim = int(attrs["dim"])

    def zeros(extent: int) -> Any:
        return x.new_zeros((*x.shape[:dim], extent, *x.shape[dim + 1 :]))

    sides = zeros(int(attrs["before"])), x, zeros(int(attrs["after"]))
    return partial(torch.cat, [side for side in sides if side.shape[dim]], dim)


def _computed(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    """A formula, in f32 at least: it is one operator, and rounds at its end."""
    (x,), formula = operands, attrs["formula"]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    one, zero = (x.new_full((), v, dtype=wide) for v in (1.0, 0.0))

    def value(node: Any, given: Any) -> Any:
        if isinstance(node, str):
            return given if node == "x" else torch.tensor(_exact(node), dtype=wide)
        name, *parts = node
        found = [value(part, given) for part in parts]
        return torch.where(found[0] >= 0, one, zero) if name == "step" else getattr(torch, name)(*found)

    return lambda: result.copy_(value(formula, _wide(torch, x)))


BY_TORCH: dict[str, Rule] = {
    "Const": _filled, "Matmul": _matmul, "ConcatMatmul": _concat_matmul,
    "Sum": into(lambda torch, attrs, x: partial(torch.sum, x, attrs["dim"], keepdim=True)),
    "Max": into(lambda torch, attrs, x: partial(torch.amax, x, attrs["dim"], keepdim=True)),
    "RunningSum": _run_sums, "RescaledSum": _rescaled_total,
    "EwAdd": _two("add"), "EwSub": _two("sub"), "EwMul": _two("mul"), "EwDiv": _two("div"), "EwMax": _two("maximum"),
    "EwGt": _two("gt"), "EwGe": _two("ge"), "EwEq": _two("eq"), "EwExp": _one("exp"), "Sqr": _one("square"),
    "Sqrt": _one("sqrt"), "Sigmoid": _one("sigmoid"),
    "SiLU": into(lambda torch, attrs, x: partial(torch.ops.aten.silu.out, x)),
    "GELU": into(lambda torch, attrs, x: partial(torch.ops.aten.gelu.out, x, approximate="none")),
    "ReLU": into(lambda torch, attrs, x: partial(torch.clamp, x, 0.0, None)),  # aten's relu writes where it likes
    "Clamp": _clamped, "Arange": into(lambda torch, attrs: partial(torch.arange, int(attrs["extent"]))),
    "Where": _chosen, "Cast": _moved(lambda torch, attrs, x: x),
    "Pow": into(lambda torch, attrs, x: partial(torch.pow, x, _exact(attrs["exponent"]))),
    "Apply": _computed, "Repeat": _repeated, "Reshape": _moved(lambda torch, attrs, x: x.reshape(attrs["shape"])),
    "Transpose": _moved(lambda torch, attrs, x: x.permute(attrs["perm"])),
    "Concat": into(lambda torch, attrs, *parts: partial(torch.cat, parts, int(attrs["dim"]))),
    "Slice": _sliced, "Pad": into(_padded),
}  # fmt: skip
"""How PyTorch computes each pre-defined operator; the keys are those of `OPERATORS`."""


# -- their memory -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lying:
    """Memory of a GPU as PyTorch takes it in."""

    __cuda_array_interface__: Mapping[str, Any]


def torch_view(torch: Any, tensor: Tensor, start: int, device: int) -> Any:
    """A tensor of a plan that begins at this address, as PyTorch sees it; nobody's memory."""
    said = {"shape": tensor.shape, "typestr": _HELD[tensor.dtype], "data": (start, False), "version": 3}
    found = torch.as_tensor(_Lying(said), device=f"cuda:{device}")
    return found.view(getattr(torch, _SEEN[tensor.dtype])) if tensor.dtype in _SEEN else found


class Pool:
    """Memory of one call: what PyTorch takes while it runs goes back there, so that nobody else gets it while a CUDA
    graph that has captured the call may be replayed. It is given up with the call, never in the middle of something."""

    def __init__(self, torch: Any, device: int) -> None:
        self._cuda, self._device, self._name = torch._C, device, torch.cuda.graph_pool_handle()
        self._cuda._cuda_beginAllocateCurrentThreadToPool(device, self._name)
        self._cuda._cuda_endAllocateToPool(device, self._name)
        weakref.finalize(self, self._cuda._cuda_releasePool, device, self._name).atexit = False

    @contextlib.contextmanager
    def taken_from(self) -> Iterator[None]:
        """What this thread allocates meanwhile is of this memory."""
        self._cuda._cuda_beginAllocateCurrentThreadToPool(self._device, self._name)
        try:
            yield
        finally:
            self._cuda._cuda_endAllocateToPool(self._device, self._name)
            self._cuda._cuda_releasePool(self._device, self._name)


def torch_on(device: int) -> Any:
    """PyTorch, where it is there and sees this device; else None."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() and device < torch.cuda.device_count() else None


def go_of(torch: Any, rule: Rule, step: Apply, operands: Sequence[Any], result: Any) -> Go:
    """What a rule makes of a step on these tensors, to which its numbers are added. Raises KernelError."""
    name, found = f"{step.operator} by {step.attrs.get('by', 'torch')}", list(operands)
    for position, value in step.scalars:
        found.insert(position, value)
    try:
        with torch.no_grad():
            for place, moves in enumerate(step.attrs.get("views", ())):
                found[place] = viewed(found[place], moves)
            found, copies = _widened(torch, step, found, result)
            go = rule(torch, step.attrs, found, result)
    except RuntimeError as error:
        raise _refused(name, error) from error

    def named() -> None:
        try:
            for copy in copies:
                copy()
            go()
        except RuntimeError as error:
            raise _refused(name, error) from error

    return named


def _widened(torch: Any, step: Apply, operands: Sequence[Any], result: Any) -> tuple[list[Any], list[Go]]:
    """The operands, those that are stored in bytes as tensors of the result's type, and what copies them there. Floats
    of one byte are moved as they are, but PyTorch joins them with nothing of another type."""
    found, copies = list(operands), list[Go]()
    for place, x in enumerate(found):
        if not isinstance(x, torch.Tensor) or x.element_size() > 1:
            continue
        joined = len(found) > 1 and x.is_floating_point() and x.dtype is not result.dtype
        if joined or step.operator not in MOVING:
            found[place] = torch.empty_like(x, dtype=result.dtype)
            copies.append(partial(found[place].copy_, x))
    return found, copies


def viewed(x: Any, moves: Sequence[Sequence[Any]]) -> Any:
    """A view of a tensor: parts of it, and its dimensions in another order."""
    for kind, *numbers in moves:
        if kind == "turn":
            x = x.permute(numbers)
        else:
            dim, start, extent, step = numbers
            x = x[(slice(None),) * dim + (slice(start, start + (extent - 1) * step + 1, step),)]
    return x


def _refused(name: str, error: RuntimeError) -> KernelError:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return KernelError(f"{name}: {first[:200]}")


def enqueued(torch: Any, goes: Sequence[Go], device: int) -> Enqueue:
    """All of these, on the stream of an address, from memory of their own."""
    pool, cuda = Pool(torch, device), torch.cuda

    def enqueue(stream: int) -> None:
        with allocations_while_captured(), cuda.device(device), cuda.stream(stream_at(torch, stream, device)):
            with pool.taken_from(), torch.no_grad():
                for go in goes:
                    go()

    return enqueue


def stream_at(torch: Any, address: int, device: int) -> Any:
    """The stream of an address, which is 0 for the default one: PyTorch takes that for "any other stream"."""
    return torch.cuda.ExternalStream(address, device=device) if address else torch.cuda.default_stream(device)
