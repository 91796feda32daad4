"""Attention of PyTorch under masks: rows that may look at nothing are zeros, without a second look at the mask."""

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
from mirage_nb.tile.roles.program import Mark, Program
from tests.search.explored import explored

H200 = TARGETS["h200"]
Attention = Callable[..., Tensor]


def under(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])


def documents(q: Tensor, k: Tensor, v: Tensor, d: Tensor) -> Tensor:
    places = torch.arange(q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(d[:, None] == d) & (places[:, None] > places))


def causal(q: Tensor, k: Tensor, v: Tensor, offset: int) -> Tensor:
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(offset)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def inputs(form: Attention, kind: str, dtype: torch.dtype, t: int = 12, heads: int = 2, d: int = 4) -> list[Tensor]:
    torch.manual_seed(0)
    matrices = [torch.randn(2, heads, t, d, dtype=dtype) for _ in range(3)]
    if form is documents:
        return [*matrices, torch.arange(t, dtype=torch.float32) // 5]
    if form is padded:
        return [*matrices, torch.arange(t) < torch.tensor([[0], [7]])]
    kept = torch.rand(2, 1, t, t) > 0.5
    kept[1, :, 3] = False
    least = max(torch.finfo(x).min for x in (dtype, torch.float32)) if kind == "finite" else -torch.inf
    return [*matrices, kept if kind == "truth" else torch.where(kept, torch.randn(2, 1, t, t, dtype=dtype), least)]


FORMS = [(under, "truth"), (under, "infinite"), (under, "finite"), (padded, "truth"), (documents, "")]


def count(graph: KernelGraph, kind: OpKind) -> int:
    return sum(op.kind is kind for op in graph.ops)


@pytest.mark.parametrize(("form", "kind"), FORMS)
def test_rows_that_see_nothing_are_what_pytorch_makes_of_them(form: Attention, kind: str) -> None:
    """Zeros where minus infinity or a truth value hides everything; the mean where it is a finite number that does."""
    given = inputs(form, kind, torch.float64)
    graph = mirage_nb.from_torch(form, given).graph
    (made,) = evaluate(graph, [x.double().numpy() for x in given])
    np.testing.assert_allclose(made, form(*given).numpy(), rtol=1e-9, atol=1e-15)
    assert (made == 0).all(-1).any() or kind == "finite"


@pytest.mark.parametrize(("form", "kind"), FORMS)
def test_a_mask_of_truth_values_is_looked_at_once(form: Attention, kind: str) -> None:
    graph = mirage_nb.from_torch(form, inputs(form, kind, torch.float16)).graph
    assert count(graph, OpKind.MAX) == 2 - (kind in ("", "truth"))
    rng = np.random.default_rng(1)
    rows = [rng.uniform(-200, 200, i.type.shape) for i in graph.inputs[:3]]  # scores of some ten thousand, below 0
    rows[0], rows[1] = abs(rows[0]), -abs(rows[1])
    if kind in ("", "truth"):
        kept = np.ones(graph.inputs[3].type.shape)
        scores = np.einsum("bhid,bhjd->bhij", *rows[:2]) / 2
        if form is documents:
            scores = np.where(np.tril(np.ones(scores.shape[-2:]), -1) > 0, scores, -np.inf)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            wanted = np.nan_to_num(weights / weights.sum(-1, keepdims=True)) @ rows[2]
        np.testing.assert_allclose(evaluate(graph, [*rows, kept])[0], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("offset", "joins"), [(0, 0), (2, 0), (-1, 1)])
def test_a_mask_that_is_the_same_in_every_call_is_looked_at_beforehand(offset: int, joins: int) -> None:
    given = inputs(under, "truth", torch.float64)[:3]
    graph = mirage_nb.from_torch(lambda q, k, v: causal(q, k, v, offset), given).graph
    assert count(graph, OpKind.MAXIMUM) == joins
    np.testing.assert_allclose(
        evaluate(graph, [x.numpy() for x in given])[0], causal(*given, offset).numpy(), rtol=1e-9
    )


@pytest.mark.parametrize("form", [padded, documents])
def test_hidden_tiles_are_left_out(form: Attention) -> None:
    graph = mirage_nb.from_torch(form, inputs(form, "truth", torch.bfloat16, 1024, 16, 64)).graph
    prepared, effort, found = prepare(graph), EFFORTS["standard"], []
    for configuration in [c for c in configurations(prepared, effort) if c.single or c.kernels == 1][:2]:
        for structure in explored(prepared, configuration, effort).structures:
            found += instances(structure, prepared, H200, 1)
    best = min(found, key=lambda instance: instance.cost.us)
    programs = [getattr(kernel, "program", None) for kernel in plan(best.graph, H200).kernels]
    assert any(isinstance(s, Mark) for p in programs if isinstance(p, Program) for s in p.every)
