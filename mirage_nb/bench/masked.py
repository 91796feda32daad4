"""Attention with masks and biases, as PyTorch users write it for the problems of `bench breadth`.

In: a problem's inputs. Out: peers: scaled dot-product attention with its mask, and flex_attention with its functions of
places. What depends on no query, key or value (masks, which blocks of them are empty) is made beforehand and not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mirage_nb.runtime.contest.race import Peer


@dataclass(frozen=True)
class Masked:
    """keep: which pairs of places count, by head, and all of them where it is None; score: what is added to the scores.
    Both take the inputs behind queries, keys and values, by themselves (`given`), then batch, head and places. scaled:
    whether scores are divided by the root of their width. batched: whether masks differ along the batch."""

    keep: Callable[..., Any] | None = None
    score: Callable[..., Any] | None = None
    scaled: bool = True
    batched: bool = False

    def mask(self, q: Tensor, *given: Tensor) -> Tensor:
        """For scaled dot-product attention: truth values, or what is added, minus infinity where nothing counts."""
        rows = torch.arange(q.shape[-2], device=q.device)
        batch, head = (torch.arange(n, device=q.device) for n in q.shape[:2])
        places = (batch[:, None, None, None], head[:, None, None], rows[:, None], rows)
        kept = self.keep(*given, *places) if self.keep is not None else None
        if self.score is None:
            assert kept is not None
            return torch.broadcast_to(kept, (*kept.shape[:-2], len(rows), len(rows)))
        added: Tensor = self.score(*given, *places).to(q.dtype)
        return added if kept is None else added.masked_fill(~kept, float("-inf"))


MASKED: dict[str, Masked] = {
    "sliding": Masked(lambda b, h, i, j: (j <= i) & (i - j < 1024)),
    "prefix": Masked(lambda b, h, i, j: (j <= i) | (j < 512)),
    "alibi": Masked(lambda a, b, h, i, j: j <= i, lambda a, b, h, i, j: a.flatten()[h] * (j - i)),
    "documents": Masked(lambda n, b, h, i, j: (n[i] == n[j]) & (j <= i)),
    "padded": Masked(lambda m, b, h, i, j: m[b, 0, 0, j] > 0, batched=True),
    "biased": Masked(score=lambda p, b, h, i, j: p[h, i, j], scaled=False),
}
"""By family."""


def attention(form: Masked, *inputs: Tensor) -> Tensor:
    """The whole, on the inputs of a problem."""
    return _dense(form, *_masked(form, *inputs))


def peers(form: Masked) -> dict[str, Peer]:
    """What a PyTorch user has for it."""
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    return {
        "SDPA": Peer(lambda *inputs: (_dense(form, *inputs),), partial(_masked, form)),
        "flex_attention": Peer(partial(_flexible, form, compiled), partial(_blocked, form)),
    }


def _lifted(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Queries, keys and values with a batch, and the rest."""
    return (*(t if t.dim() == 4 else t[None] for t in inputs[:3]), *inputs[3:])


def _masked(form: Masked, *inputs: Tensor) -> tuple[Any, ...]:
    q, k, v, *given = _lifted(inputs)
    return q, k, v, form.mask(q, *given), inputs[0].shape


def _dense(form: Masked, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    made: Tensor = F.scaled_dot_product_attention(q, k, v, mask, scale=None if form.scaled else 1.0)
    return made.reshape(shape)


def _blocked(form: Masked, *inputs: Tensor) -> tuple[Any, ...]:
    q, k, v, *given = _lifted(inputs)
    blocks = None
    if form.keep is not None:
        keep = partial(form.keep, *given)
        batch = q.shape[0] if form.batched else None
        blocks = create_block_mask(keep, batch, None, q.shape[-2], k.shape[-2], device=str(q.device))
    return q, k, v, blocks, given, inputs[0].shape


def _flexible(
    form: Masked, run: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, blocks: Any, given: list[Tensor], shape: Any
) -> tuple[Tensor, ...]:
    score = form.score

    def added(value: Tensor, *place: Tensor) -> Any:
        assert score is not None
        return value + score(*given, *place)

    options: Mapping[str, Any] = {"score_mod": added if score is not None else None, "block_mask": blocks}
    return (run(q, k, v, scale=None if form.scaled else 1.0, **options).reshape(shape),)
