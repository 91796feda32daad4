"""Whole layers that PyTorch computes as one operator, spelled out: regions may begin and end inside of them; and what
its own decompositions get wrong.

In: what Dynamo traced. Out: the same in place. Invariant: every value is what it was, up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

PLACES = 1
"""The type of a mask that says which places of a batch nobody looks at; others are broadcast as they are."""


def spell_out(gm: torch.fx.GraphModule) -> None:
    """Do it wherever it can be done."""
    for node in gm.graph.nodes:
        if node.op == "call_function":
            node.target = SPELLED.get(node.target, node.target)
    gm.recompile()


def encoder_layer(
    x: Any, width: int, heads: int, qkv: Any, qkv_bias: Any, out: Any, out_bias: Any, gelu: bool, norm_first: bool,
    eps: float, gain: Any, bias: Any, gain2: Any, bias2: Any, up: Any, up_bias: Any, down: Any, down_bias: Any,
    mask: Any = None, mask_type: int | None = None,
) -> Any:  # fmt: skip
    """A layer of a transformer's encoder in evaluation, as `torch._transformer_encoder_layer_fwd` has it."""
    if x.is_nested:
        given = (x, width, heads, qkv, qkv_bias, out, out_bias, gelu, norm_first, eps, gain, bias, gain2, bias2)
        return torch._transformer_encoder_layer_fwd(*given, up, up_bias, down, down_bias, mask, mask_type)

    def attended(y: Any) -> Any:
        q, k, v = F.linear(y, qkv, qkv_bias).view(*y.shape[:2], 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        if mask is None:
            made = F.scaled_dot_product_attention(q, k, v)
        else:
            hidden = mask.bool()
            hidden = hidden[:, None, None] if mask_type == PLACES else hidden
            made = (q @ k.mT * (width // heads) ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return F.linear(made.transpose(1, 2).flatten(2), out, out_bias)

    def fed(y: Any) -> Any:
        return F.linear((F.gelu if gelu else F.relu)(F.linear(y, up, up_bias)), down, down_bias)

    def normed(y: Any, gain: Any, bias: Any) -> Any:
        return F.layer_norm(y, (width,), gain, bias, eps)

    if norm_first:
        x = x + attended(normed(x, gain, bias))
        return x + fed(normed(x, gain2, bias2))
    x = normed(x + attended(x), gain, bias)
    return normed(x + fed(x), gain2, bias2)


def multilabel_margin_loss(
    x: Any, target: Any, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Any:
    """As `F.multilabel_margin_loss` has it; PyTorch's decomposition counts what stands behind the first -1, too."""
    if size_average is not None or reduce is not None or x.dim() not in (1, 2):
        return F.multilabel_margin_loss(x, target, size_average, reduce, reduction)
    rows, labels = (one.reshape(-1, x.shape[-1]) for one in (x, target))
    classes = x.shape[-1]
    named = (labels >= 0).long().cumprod(1).bool()
    places = torch.where(named, labels, 0)
    others = ~((places[..., None] == torch.arange(classes, device=x.device)) & named[..., None]).any(1)
    margins = (1 - rows.gather(1, places)[..., None] + rows[:, None]).clamp_min(0)
    losses = torch.where(named[..., None] & others[:, None], margins, 0).sum((1, 2)) / classes
    if reduction == "none":
        return losses.reshape(x.shape[:-1])
    return losses.mean() if reduction == "mean" else losses.sum()


SPELLED = {
    torch._transformer_encoder_layer_fwd: encoder_layer,
    F.multilabel_margin_loss: multilabel_margin_loss,
}
