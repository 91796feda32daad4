"""Attention with sinks as PyTorch users write it: no concatenation is left, and what is computed is what it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import Tensor

import mirage_nb
from mirage_nb.interp import evaluate
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.optimize import plan
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Program
from tests.frontend.traced import Backend, regions_of
from tests.search.explored import explored

H200 = TARGETS["h200"]
ROWS, KEYS, D, HEADS, GROUPS = 6, 9, 4, 4, 2


def repeated(x: Tensor) -> Tensor:
    return x[:, :, None].expand(-1, -1, GROUPS, -1, -1).reshape(x.shape[0], HEADS, *x.shape[2:])


def side_by_side(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    """As transformers has it for gpt-oss."""
    weights = torch.matmul(q, repeated(k).transpose(2, 3)) * 0.5 + mask
    combined = torch.cat([weights, sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    probs = F.softmax(combined, dim=-1, dtype=combined.dtype)
    return torch.matmul(F.dropout(probs[..., :-1], 0.0, False), repeated(v)).transpose(1, 2).contiguous()


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    scores, sink = q @ repeated(k).mT * 0.5 + mask, sinks[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    raised = torch.exp(scores - top)
    return raised @ repeated(v) / (raised.sum(-1, keepdim=True) + torch.exp(sink - top))


def one_more(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    scores = q @ repeated(k).mT * 0.5 + mask + sinks[:, None, None]
    top = scores.max(-1, keepdim=True).values.clamp(min=0)
    raised = torch.exp(scores - top)
    return (raised / (torch.exp(-top) + raised.sum(-1, keepdim=True))) @ repeated(v)


def padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    """softmax1 as softmax over a column of zeros more."""
    scores = q @ repeated(k).mT * 0.5 + mask + sinks[:, None, None]
    return F.softmax(F.pad(scores, (0, 1)), dim=-1)[..., :-1] @ repeated(v)


Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
FORMS: list[Attention] = [side_by_side, by_hand, one_more, padded]


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """Of one row a mask hides everything; sinks of every size."""
    torch.manual_seed(0)
    shapes = (HEADS, ROWS, D), (HEADS // GROUPS, KEYS, D), (HEADS // GROUPS, KEYS, D)
    mask = torch.where(torch.rand(1, 1, ROWS, KEYS) > 0.3, 0.0, -torch.inf).to(dtype)
    mask[..., 1, :] = -torch.inf
    sinks = torch.tensor([0.5, -40.0, 300.0, -3000.0], dtype=dtype)
    return [*(torch.randn(1, *shape, dtype=dtype) for shape in shapes), mask, sinks]


def joins(graph: KernelGraph) -> int:
    return sum(op.kind in (OpKind.CONCAT, OpKind.PAD) for op in graph.ops)


@pytest.mark.parametrize("form", FORMS)
def test_as_a_program(form: Attention) -> None:
    given = inputs(torch.float64)
    graph = mirage_nb.from_torch(form, given).graph
    assert not joins(graph) and sum(op.kind is OpKind.MAX for op in graph.ops) == 1
    (made,) = evaluate(graph, [x.numpy() for x in given])
    wanted = form(*given).numpy()
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("form", FORMS[:3])
@torch.no_grad()
def test_as_regions(form: Attention) -> None:
    (region,) = regions_of(form, *inputs(torch.bfloat16)).found
    assert region.operators.count("bmm") == 2 and not joins(region.graph)
    backend = Backend()
    torch._dynamo.reset()
    given = inputs(torch.float32)
    torch.testing.assert_close(torch.compile(form, backend=backend)(*given), form(*given), rtol=2e-3, atol=2e-3)
    assert backend.replaced


class Prompt(torch.nn.Module):
    """Heads share keys, rows see so many keys back; sinks or none."""

    def __init__(self, sunk: bool) -> None:
        super().__init__()
        self.sunk = sunk

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        groups, rows = q.shape[1] // k.shape[1], torch.arange(q.shape[2])
        keys, values = (x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(q.shape) for x in (k, v))
        back = rows[:, None] - rows
        scores = (q @ keys.mT * 0.125).masked_fill(~((back >= 0) & (back < 10_000)), -torch.inf)
        if not self.sunk:
            return torch.softmax(scores, -1) @ values
        sink = sinks.reshape(1, -1, 1, 1).expand(*q.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1] @ values


@pytest.mark.parametrize("sunk", [False, True])
def test_prompts_have_the_kernels_whose_warps_have_roles(sunk: bool) -> None:
    """Of a piece few graphs are read, the smallest first: those that keep whole axes are no better for being smaller.
    And rows that are numbered as keys are have maxima, which are none of the program's."""
    shapes = (1, 64, 2048, 64), (1, 8, 2048, 64), (1, 8, 2048, 64), (64,)
    graph = mirage_nb.from_torch(Prompt(sunk), [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]).graph
    prepared, effort = prepare(graph), EFFORTS["standard"]
    configuration = next(c for c in configurations(prepared, effort) if c.single)
    structures = explored(prepared, configuration, effort).structures
    best = min((i for s in structures for i in instances(s, prepared, H200, 1)), key=lambda i: i.cost.us)
    assert any(isinstance(getattr(kernel, "program", None), Program) for kernel in plan(best.graph, H200).kernels)
