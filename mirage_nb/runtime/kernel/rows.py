"""Library kernels that compute several operators of a program at once, as PyTorch has them.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is copied
with it. In: attributes of a row, PyTorch's tensors. Out: a function that enqueues the kernel on PyTorch's current
stream (`kernel_torch` has the table of single operators). Invariant: operands are read where they lie, as views, and
results written where they are wanted; a launch that has no form for that copies its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from mirage_nb.runtime.kernel.pytorch import Go, Rule, into


def _running_sum(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    (x,) = operands
    if x.dtype in (torch.float16, torch.bfloat16):  # PyTorch adds up in the type of its result
        return _made(lambda: torch.cumsum(x, attrs["dim"], dtype=torch.float32), result)
    return lambda: torch.cumsum(x, attrs["dim"], out=result)


def _norm(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    x, *rest = operands
    last, eps = x.shape[-1:], float(Fraction(attrs["eps"]))
    gain = rest[0].view(last) if attrs["gain"] else None
    bias = rest[-1].view(last) if attrs["bias"] else None
    if attrs["centred"]:
        return _made(lambda: torch.nn.functional.layer_norm(x, last, gain, bias, eps), result)
    return _made(lambda: torch.nn.functional.rms_norm(x, last, gain, eps), result)


def _group_norm(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    x, gain, bias = operands
    groups, channels, eps = attrs["groups"], gain.numel(), float(Fraction(attrs["eps"]))
    batch = x.numel() // (groups * x.shape[-1])
    x, gain, bias = x.view(batch, channels, -1), gain.view(channels), bias.view(channels)
    whole = result.view(x.shape)
    return _made(lambda: torch.nn.functional.group_norm(x, groups, gain, bias, eps), whole)


def _made(make: Callable[[], Any], result: Any) -> Go:
    """What makes its result itself, and a copy of that."""
    return lambda: result.copy_(make())


def _linear(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    left, right, *third = operands
    left, right = (x.mT if attrs[side] else x for x, side in ((left, "left"), (right, "right")))
    if not third and not attrs["relu"]:
        return lambda: torch.matmul(left, right, out=result)
    rows, columns = math.prod(result.shape[:-1]), result.shape[-1]
    if not third:
        return lambda: torch.matmul(left, right, out=result).clamp_(0.0)
    left, result = left.reshape(rows, left.shape[-1]), result.view(rows, columns)
    added = third[0].view(columns) if attrs["bias"] else third[0].view(rows, columns)
    if attrs["bias"] and attrs["relu"]:
        return lambda: torch.ops.aten._addmm_activation.out(added, left, right, use_gelu=False, out=result)
    if attrs["relu"]:
        return lambda: torch.addmm(added, left, right, out=result).clamp_(0.0)
    return lambda: torch.addmm(added, left, right, out=result)


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


def _flash(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    h = _Heads.of(attrs, operands, result, grouped=True)
    q, k, v, out = (x.transpose(1, 2) for x in (h.q, h.k, h.v, h.result))
    numbers = (None, None, q.shape[1], k.shape[1], 0.0, h.causal, False)
    named: dict[str, Any] = {"scale": h.scale}
    if h.window >= 0:
        named |= {"window_size_left": h.window, "window_size_right": 0}
    in_place = getattr(torch.ops.aten, "_flash_attention_forward_no_dropout_inplace", None)
    if in_place is not None:
        return lambda: in_place(out, q, k, v, *numbers, **named)
    return _made(lambda: torch.ops.aten._flash_attention_forward(q, k, v, *numbers, **named)[0], out)


def _cudnn(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    h = _Heads.of(attrs, operands, result, grouped=True)
    run = torch.ops.aten._scaled_dot_product_cudnn_attention
    return _made(lambda: run(h.q, h.k, h.v, h.bias, False, 0.0, h.causal, False, scale=h.scale)[0], h.result)


def _efficient(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    h = _Heads.of(attrs, operands, result, grouped=False)
    run = torch.ops.aten._scaled_dot_product_efficient_attention
    return _made(lambda: run(h.q, h.k, h.v, h.bias, False, 0.0, h.causal, scale=h.scale)[0], h.result)


def _products(torch: Any, attrs: Mapping[str, Any], operands: Sequence[Any], result: Any) -> Go:
    """Two products and the softmax between them: the heads that share keys are rows of one product."""
    q, k, v = operands
    groups, scale = math.prod(k.shape[:-2]), float(Fraction(attrs["scale"]))
    lead = (groups,) if groups > 1 else ()  # a product alone is another kernel than one of several
    k, v, out = (x.view(*lead, -1, x.shape[-1]) for x in (k, v, result))
    k, (multiplied, weighted) = k.mT, (torch.baddbmm, torch.bmm) if lead else (torch.addmm, torch.mm)

    def go() -> None:
        rows = q.reshape(*lead, -1, q.shape[-1])  # a copy, where the rows of heads are not those of one matrix
        scores, shares = (q.new_empty((*rows.shape[:-1], k.shape[-1])) for _ in range(2))
        multiplied(scores, rows, k, beta=0, alpha=scale, out=scores)
        torch.ops.aten._softmax.out(scores, -1, False, out=shares)
        weighted(shares, v, out=out)

    return go


LAUNCHES: dict[tuple[str, str], Rule] = {
    ("softmax", "torch"): into(lambda torch, attrs, x: partial(torch.ops.aten._softmax.out, x, attrs["dim"], False)),
    ("log_softmax", "torch"): into(
        lambda torch, attrs, x: partial(torch.ops.aten._log_softmax.out, x, attrs["dim"], False)
    ),
    ("running_sum", "torch"): _running_sum, ("norm", "torch"): _norm, ("group_norm", "torch"): _group_norm,
    ("linear", "torch"): _linear, ("attention", "flash"): _flash, ("attention", "cudnn"): _cudnn,
    ("attention", "efficient"): _efficient, ("attention", "products"): _products,
}  # fmt: skip
"""By the name of the row and that of the launch."""
