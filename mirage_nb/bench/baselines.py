"""The peers: eager PyTorch, torch.compile, and the attention kernels that a workload may use.

In: a workload's tensor program and its inputs on the GPU. Out: named functions that compute the same
outputs, each checked against float64 by the caller before it is timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.contest.race import Peer, pytorch_peers
from mirage_nb.runtime.execution.torch_program import as_torch


@dataclass(frozen=True, slots=True)
class Attention:
    """How a workload's inputs map to scaled dot-product attention: the scale, and whether K lies [d, keys]."""

    scale: float
    keys_last: bool


ATTENTION: Mapping[str, Attention] = {
    "gqa": Attention(1.0, True),
    "mha": Attention(1.0, True),
    "mqa": Attention(1.0, True),
    "attention_safe": Attention(64**-0.5, False),
    "decode70b": Attention(128**-0.5, False),
}
"""The workloads that are plain attention; the others have no attention peer."""


def peers(name: str, program: KernelGraph, torch: Any) -> dict[str, Peer]:
    """Every peer of a workload, by name; each takes the program's inputs in order."""
    found: dict[str, Peer] = pytorch_peers(program)
    tuned = torch.compile(as_torch(program, torch), dynamic=False, mode="max-autotune-no-cudagraphs")
    found["torch.compile max-autotune"] = Peer(tuned)
    if name in ATTENTION:
        found |= _attention_peers(ATTENTION[name], torch)
    return found


def sdpa_backends(torch: Any) -> dict[str, Any]:
    """The attention kernels that PyTorch can be told to use, by name."""
    backend = torch.nn.attention.SDPBackend
    return {
        "SDPA flash": backend.FLASH_ATTENTION,
        "SDPA cudnn": backend.CUDNN_ATTENTION,
        "SDPA efficient": backend.EFFICIENT_ATTENTION,
    }


def _attention_peers(form: Attention, torch: Any) -> dict[str, Peer]:
    found: dict[str, Peer] = {label: _sdpa(form, kind, torch) for label, kind in sdpa_backends(torch).items()}
    found["flex_attention max-autotune"] = _flex(form, torch)
    return found


def _heads(form: Attention, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """[batch, rows, d] tensors as [1, batch, rows, d]; K as [1, batch, keys, d], the layout these kernels want."""
    keys = k.transpose(-1, -2).contiguous() if form.keys_last else k
    return q[None], keys[None], v[None]


def _sdpa(form: Attention, backend: Any, torch: Any) -> Peer:
    def run(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        with torch.nn.attention.sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=form.scale)
        return (out[0],)

    return Peer(run, partial(_heads, form))


def _flex(form: Attention, torch: Any) -> Peer:
    flex = torch.nn.attention.flex_attention.flex_attention
    compiled = torch.compile(flex, dynamic=False, mode="max-autotune-no-cudagraphs")

    def run(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        return (compiled(q, k, v, scale=form.scale)[0],)

    return Peer(run, partial(_heads, form))
