"""The peers: a program's own operators in PyTorch, what a PyTorch user writes for the problems of `bench breadth`, and
the attention kernels where they apply.

In: a problem, or a workload. Out: named functions of its inputs, eager and compiled; each is checked against float64 by
the race before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from mirage_nb.bench import masked
from mirage_nb.bench.problems import Problem
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.contest.race import Peer, pytorch_peers
from mirage_nb.runtime.execution.torch_program import as_torch

Idiom = Callable[..., Any]
EPS = 1e-5


def _add_rms(x: Any, r: Any, g: Any) -> Any:
    total = x + r
    return F.rms_norm(total, g.shape, g, EPS), total


def _masked_softmax(x: Any) -> Any:
    seen = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
    return F.softmax(x.masked_fill(~seen, float("-inf")), -1)


def _grouped(x: Any, g: Any, b: Any) -> Any:
    return F.group_norm(x, g.shape[0], g.flatten(), b.flatten(), EPS)


IDIOMS: dict[str, Idiom] = {
    "linear": lambda x, w: F.linear(x, w),
    "rms": lambda x, g: F.rms_norm(x, g.shape, g, EPS),
    "add_rms": _add_rms,
    "layer": lambda x, g, b: F.layer_norm(x, g.shape, g, b, EPS),
    "group": _grouped,
    "norm_linear": lambda x, g, w: F.linear(F.rms_norm(x, g.shape, g, EPS), w),
    "decode": lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None])[0],
    "prefill": lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0],
    "latent": lambda q, c: F.scaled_dot_product_attention(
        q[None, None], c[None, None], c[None, None, :, :512], scale=192**-0.5
    )[0, 0],
    "swiglu": lambda x, gate, up, down: F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down),
    "lora": lambda x, w, a, c: F.linear(x, w) + F.linear(F.linear(x, a), c),
    "square": lambda a, b: a @ b,
    "deep": lambda a, b: a @ b,
    "swish_group": lambda x, w, b, c, g, h: _grouped(F.silu(F.linear(x, w, b)) + c, g, h),
    "bias_relu": lambda x, w, b: F.relu(F.linear(x, w, b)),
    "group_swish": lambda x, w, b, g, h, m: F.silu(F.silu(_grouped(F.linear(x, w, b), g, h)) * m),
    "gelu_softmax": lambda x, w, b: F.softmax(F.gelu(F.linear(x, w, b)), -1),
    "long_softmax": lambda x: F.softmax(x, -1),
    "vocabulary": lambda x: F.log_softmax(x, -1),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True, eps=EPS),
    "bias_gradient": lambda d, h: (d * torch.sigmoid(h)).sum(0),
    "column_variance": lambda x: torch.var(x, 0, correction=0),
    "column_logsumexp": lambda x: torch.logsumexp(x, 0),
    "masked_softmax": _masked_softmax,
    "running_sum": lambda x: torch.cumsum(x, 1),
    **{family: partial(masked.attention, form) for family, form in masked.MASKED.items()},
}
"""By family; the inputs in the program's order, the outputs too."""
ATTENTION = frozenset({"decode", "prefill", "latent"})
"""Families that are one call of scaled dot-product attention, so that every backend can be asked for."""


class Attention(NamedTuple):
    """How a workload's inputs map to scaled dot-product attention: the scale, and whether K lies [d, keys]."""

    scale: float
    keys_last: bool


WORKLOADS = {
    **dict.fromkeys(("gqa", "mha", "mqa"), Attention(1.0, True)),
    "attention_safe": Attention(64**-0.5, False),
    "decode70b": Attention(128**-0.5, False),
}
"""Those that are plain attention; the others have no attention peer."""
MODES = {"torch.compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Modes whose code is captured into CUDA graphs here, like everybody's."""


def peers(problem: Problem) -> dict[str, Peer]:
    """Every peer of a problem: the program's own operators in PyTorch, and what a PyTorch user writes."""
    found = {f"as written, {name}": peer for name, peer in pytorch_peers(problem.program().graph).items()}
    idiom = IDIOMS.get(problem.family)
    if idiom is None:
        return found
    if (form := masked.MASKED.get(problem.family)) is not None:
        return found | masked.peers(form)
    found["PyTorch"] = Peer(partial(_outputs, idiom))
    for name, mode in MODES.items():
        found[name] = Peer(partial(_outputs, torch.compile(idiom, dynamic=False, mode=mode)))
    if problem.family in ATTENTION:
        found |= {name: Peer(partial(_attention, idiom, backend)) for name, backend in _backends().items()}
    return found


def workload_peers(name: str, program: KernelGraph) -> dict[str, Peer]:
    """Every peer of a workload; each takes the program's inputs in order."""
    tuned_anew: Any = partial(torch.compile, dynamic=False, mode=MODES["max-autotune"])
    found = {**pytorch_peers(program), "torch.compile max-autotune": Peer(tuned_anew(as_torch(program, torch)))}
    if (form := WORKLOADS.get(name)) is not None:
        flex = tuned_anew(torch.nn.attention.flex_attention.flex_attention)
        sdpa, tuned = (partial(_of_batch, run, form.scale) for run in (F.scaled_dot_product_attention, flex))
        arrange = partial(_heads, form)
        found |= {label: Peer(partial(_attention, sdpa, kind), arrange) for label, kind in _backends().items()}
        found["flex_attention max-autotune"] = Peer(partial(_outputs, tuned), arrange)
    return found


def _backends() -> dict[str, Any]:
    """The attention kernels that PyTorch can be told to use, by name."""
    kinds = ("flash", "FLASH_ATTENTION"), ("cudnn", "CUDNN_ATTENTION"), ("efficient", "EFFICIENT_ATTENTION")
    return {f"SDPA {name}": getattr(torch.nn.attention.SDPBackend, kind) for name, kind in kinds}


def _heads(form: Attention, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """[batch, rows, d] tensors as [1, batch, rows, d]; K as [1, batch, keys, d], the layout these kernels want."""
    keys = k.transpose(-1, -2).contiguous() if form.keys_last else k
    return q[None], keys[None], v[None]


def _of_batch(run: Idiom, scale: float, q: Any, k: Any, v: Any) -> Any:
    return run(q, k, v, scale=scale)[0]


def _outputs(idiom: Idiom, *inputs: Any) -> tuple[Any, ...]:
    made = idiom(*inputs)
    return made if isinstance(made, tuple) else (made,)


def _attention(idiom: Idiom, backend: Any, *inputs: Any) -> tuple[Any, ...]:
    with torch.nn.attention.sdpa_kernel(backend):
        return _outputs(idiom, *inputs)
