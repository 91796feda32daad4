"""What a PyTorch user writes for the problems of `bench breadth`: the peers beside the program's own operators.

In: a problem. Out: named functions of its inputs, eager and compiled in every mode, and the attention kernels where
they apply; each is checked against float64 by the race before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from mirage_nb.bench.baselines import sdpa_backends
from mirage_nb.bench.problems import Problem
from mirage_nb.runtime.contest.race import Peer, pytorch_peers

Idiom = Callable[..., Any]
EPS = 1e-5


def _linear(x: Any, w: Any) -> Any:
    return F.linear(x, w)


def _rms(x: Any, g: Any) -> Any:
    return F.rms_norm(x, g.shape, g, EPS)


def _add_rms(x: Any, r: Any, g: Any) -> Any:
    total = x + r
    return F.rms_norm(total, g.shape, g, EPS), total


def _layer(x: Any, g: Any, b: Any) -> Any:
    return F.layer_norm(x, g.shape, g, b, EPS)


def _group(x: Any, g: Any, b: Any) -> Any:
    return F.group_norm(x, g.shape[0], g.flatten(), b.flatten(), EPS)


def _norm_linear(x: Any, g: Any, w: Any) -> Any:
    return F.linear(F.rms_norm(x, g.shape, g, EPS), w)


def _decode(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def _prefill(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


def _latent(q: Any, c: Any) -> Any:
    return F.scaled_dot_product_attention(q[None, None], c[None, None], c[None, None, :, :512], scale=192**-0.5)[0, 0]


def _swiglu(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def _lora(x: Any, w: Any, a: Any, c: Any) -> Any:
    return F.linear(x, w) + F.linear(F.linear(x, a), c)


def _product(a: Any, b: Any) -> Any:
    return a @ b


def _swish_group(x: Any, w: Any, b: Any, c: Any, g: Any, h: Any) -> Any:
    return F.group_norm(F.silu(F.linear(x, w, b)) + c, g.shape[0], g.flatten(), h.flatten(), EPS)


def _bias_relu(x: Any, w: Any, b: Any) -> Any:
    return F.relu(F.linear(x, w, b))


def _group_swish(x: Any, w: Any, b: Any, g: Any, h: Any, m: Any) -> Any:
    return F.silu(F.silu(F.group_norm(F.linear(x, w, b), g.shape[0], g.flatten(), h.flatten(), EPS)) * m)


def _gelu_softmax(x: Any, w: Any, b: Any) -> Any:
    return F.softmax(F.gelu(F.linear(x, w, b)), -1)


def _softmax(x: Any) -> Any:
    return F.softmax(x, -1)


def _log_softmax(x: Any) -> Any:
    return F.log_softmax(x, -1)


def _batch_norm(x: Any) -> Any:
    return F.batch_norm(x, None, None, training=True, eps=EPS)


def _bias_gradient(d: Any, h: Any) -> Any:
    return (d * torch.sigmoid(h)).sum(0)


def _column_variance(x: Any) -> Any:
    return torch.var(x, 0, correction=0)


def _column_logsumexp(x: Any) -> Any:
    return torch.logsumexp(x, 0)


def _masked_softmax(x: Any) -> Any:
    seen = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
    return F.softmax(x.masked_fill(~seen, float("-inf")), -1)


def _running_sum(x: Any) -> Any:
    return torch.cumsum(x, 1)


IDIOMS: dict[str, Idiom] = {
    "linear": _linear, "rms": _rms, "add_rms": _add_rms, "layer": _layer, "group": _group,
    "norm_linear": _norm_linear, "decode": _decode, "prefill": _prefill, "latent": _latent, "swiglu": _swiglu,
    "lora": _lora, "square": _product, "deep": _product, "swish_group": _swish_group, "bias_relu": _bias_relu,
    "group_swish": _group_swish, "gelu_softmax": _gelu_softmax, "long_softmax": _softmax, "vocabulary": _log_softmax,
    "batch_norm": _batch_norm, "bias_gradient": _bias_gradient, "column_variance": _column_variance,
    "column_logsumexp": _column_logsumexp, "masked_softmax": _masked_softmax, "running_sum": _running_sum,
}  # fmt: skip
"""By family; the inputs in the program's order, the outputs too."""
ATTENTION = frozenset({"decode", "prefill", "latent"})
"""Families that are one call of scaled dot-product attention, so that every backend can be asked for."""
MODES = {"torch.compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Modes whose code is captured into CUDA graphs here, like everybody's."""


def peers(problem: Problem) -> dict[str, Peer]:
    """Every peer of a problem: the program's own operators in PyTorch, and what a PyTorch user writes."""
    found = {f"as written, {name}": peer for name, peer in pytorch_peers(problem.program().graph).items()}
    idiom = IDIOMS.get(problem.family)
    if idiom is None:
        return found
    found["PyTorch"] = Peer(partial(_outputs, idiom))
    for name, mode in MODES.items():
        found[name] = Peer(partial(_outputs, torch.compile(idiom, dynamic=False, mode=mode)))
    if problem.family in ATTENTION:
        found |= {name: Peer(partial(_attention, idiom, backend)) for name, backend in sdpa_backends(torch).items()}
    return found


def _outputs(idiom: Idiom, *inputs: Any) -> tuple[Any, ...]:
    made = idiom(*inputs)
    return made if isinstance(made, tuple) else (made,)


def _attention(idiom: Idiom, backend: Any, *inputs: Any) -> tuple[Any, ...]:
    with torch.nn.attention.sdpa_kernel(backend):
        return _outputs(idiom, *inputs)
