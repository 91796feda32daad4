"""Library kernels that compute several operators of a program at once, as PyTorch has them.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is copied
with it. In: a step of a plan, addresses of its tensors. Out: a function that enqueues it on a stream. Invariants:
operands are read where they lie, as views; memory that PyTorch takes on the way belongs to the call, so that a CUDA
graph that has captured it may be replayed on any stream. A launch without a form that writes where it is told to copies
its result.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mirage_nb.runtime.kernel_plan import Apply, KernelError, Tensor

Rule = Callable[[Any, Mapping[str, Any], Sequence[Any], Any], Callable[[], object]]
"""Of the module torch, attributes, operands and the result: a function that enqueues the kernel."""
_HELD = {"f16": "<f2", "bf16": "<i2", "f32": "<f4", "f64": "<f8"}
"""Element types -> what holds them, as arrays on a GPU say it."""


def _softmax(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Callable[[], object]:
    (x,) = operands
    return lambda: torch.ops.aten._softmax.out(x, attrs["dim"], False, out=result)


def _log_softmax(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Callable[[], object]:
    (x,) = operands
    return lambda: torch.ops.aten._log_softmax.out(x, attrs["dim"], False, out=result)


def _norm(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Callable[[], object]:
    x, *rest = operands
    last, eps = x.shape[-1:], float(Fraction(attrs["eps"]))
    gain = rest[0].view(last) if attrs["gain"] else None
    bias = rest[-1].view(last) if attrs["bias"] else None
    if attrs["centred"]:
        return lambda: result.copy_(torch.nn.functional.layer_norm(x, last, gain, bias, eps))
    return lambda: result.copy_(torch.nn.functional.rms_norm(x, last, gain, eps))


def _linear(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Callable[[], object]:
    left, right, bias = operands
    left, right = (x.mT if attrs[side] else x for x, side in ((left, "left"), (right, "right")))
    rows, columns = math.prod(result.shape[:-1]), result.shape[-1]
    left, result, bias = left.reshape(rows, left.shape[-1]), result.view(rows, columns), bias.view(columns)
    if attrs["relu"]:
        return lambda: torch.ops.aten._addmm_activation.out(bias, left, right, use_gelu=False, out=result)
    return lambda: torch.addmm(bias, left, right, out=result)


@dataclass(frozen=True, slots=True)
class _Heads:
    """The operands of attention as [batch, heads, rows, features], and its numbers."""

    q: Any
    k: Any
    v: Any
    bias: Any
    result: Any
    scale: float
    causal: bool
    window: int

    @classmethod
    def of(cls, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any, grouped: bool) -> _Heads:
        """`grouped`: heads of keys are as many as there are, each for several of queries behind each other; else every
        group is a batch of its own, and its heads read the same keys."""
        q, k, v, *bias = operands
        heads, groups = (math.prod(x.shape[:-2]) for x in (q, k))  # not those of the attributes: batches vary
        batch, each = (1, heads) if grouped else (groups, heads // groups)
        q, out = (x.view(batch, each, *x.shape[-2:]) for x in (q, result))
        k, v = (x.view(batch, groups // batch, *x.shape[-2:]) for x in (k, v))
        if not grouped:
            k, v = (x.expand(-1, each, -1, -1) for x in (k, v))
        added = None
        if bias:
            lead = (*result.shape[:-1], bias[0].shape[-1])
            added = bias[0].expand(lead).view(batch, each, *lead[-2:])
        return cls(q, k, v, added, out, float(Fraction(attrs["scale"])), bool(attrs["causal"]), attrs["window"])


def _flash(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Callable[[], object]:
    h = _Heads.of(attrs, operands, result, grouped=True)
    q, k, v, out = (x.transpose(1, 2) for x in (h.q, h.k, h.v, h.result))
    numbers = (None, None, q.shape[1], k.shape[1], 0.0, h.causal, False)
    named: dict[str, Any] = {"scale": h.scale}
    if h.window >= 0:
        named |= {"window_size_left": h.window, "window_size_right": 0}
    in_place = getattr(torch.ops.aten, "_flash_attention_forward_no_dropout_inplace", None)
    if in_place is not None:
        return lambda: in_place(out, q, k, v, *numbers, **named)
    return lambda: out.copy_(torch.ops.aten._flash_attention_forward(q, k, v, *numbers, **named)[0])


def _cudnn(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Callable[[], object]:
    h = _Heads.of(attrs, operands, result, grouped=True)
    run = torch.ops.aten._scaled_dot_product_cudnn_attention
    return lambda: h.result.copy_(run(h.q, h.k, h.v, h.bias, False, 0.0, h.causal, False, scale=h.scale)[0])


def _efficient(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Callable[[], object]:
    h = _Heads.of(attrs, operands, result, grouped=False)
    run = torch.ops.aten._scaled_dot_product_efficient_attention
    return lambda: h.result.copy_(run(h.q, h.k, h.v, h.bias, False, 0.0, h.causal, scale=h.scale)[0])


LAUNCHES: dict[tuple[str, str], Rule] = {
    ("softmax", "torch"): _softmax, ("log_softmax", "torch"): _log_softmax, ("norm", "torch"): _norm,
    ("linear", "torch"): _linear, ("attention", "flash"): _flash, ("attention", "cudnn"): _cudnn,
    ("attention", "efficient"): _efficient,
}  # fmt: skip
"""By the name of the row and that of the launch."""


@dataclass(frozen=True, slots=True)
class _Lying:
    """Memory of a GPU as PyTorch takes it in."""

    __cuda_array_interface__: Mapping[str, Any]


def _view(torch: Any, tensor: Tensor, start: int, device: int) -> Any:
    said = {"shape": tensor.shape, "typestr": _HELD[tensor.dtype], "data": (start, False), "version": 3}
    found = torch.as_tensor(_Lying(said), device=f"cuda:{device}")
    return found.view(torch.bfloat16) if tensor.dtype == "bf16" else found


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


def by_torch(step: Apply, tensors: Sequence[Tensor], starts: Sequence[int], device: int) -> Callable[[int], None]:
    """A step on tensors that begin at these addresses, the result last: a function that enqueues it on the stream of
    an address.

    Raises:
        KernelError: there is no PyTorch, or its kernel does not take such tensors. The returned function: as well.
    """
    try:
        import torch
    except ImportError as error:
        raise KernelError(f"{step.operator} by {step.attrs['by']} needs PyTorch: {error}") from error
    with _told(step), torch.cuda.device(device):
        *operands, result = (_view(torch, t, start, device) for t, start in zip(tensors, starts, strict=True))
        go = LAUNCHES[step.operator, step.attrs["by"]](torch, step.attrs, operands, result)
        pool = Pool(torch, device)
    cuda: Any = torch.cuda

    def enqueue(stream: int) -> None:
        with _told(step), cuda.device(device), cuda.stream(cuda.ExternalStream(stream)):
            with pool.taken_from(), torch.no_grad():
                go()

    return enqueue


@contextlib.contextmanager
def _told(step: Apply) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise KernelError(f"{step.operator} by {step.attrs['by']}: {first[:200]}") from error
