"""Operators of lists of tensors: each tensor's are a region, and what they compute is PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import mirage_nb
from mirage_nb.interp import evaluate
from tests.frontend.traced import Backend

STEPS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, weight_decay=0.1, nesterov=True, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-2, momentum=0.9, centered=True, foreach=True),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_steps_of_optimisers_are_regions(name: str) -> None:
    torch._dynamo.reset()
    backend, one = Backend(), nn.Linear(8, 4)
    other = copy.deepcopy(one)
    steps = [STEPS[name](layer.parameters()) for layer in (one, other)]
    compiled = torch.compile(steps[0].step, backend=backend)
    for _ in range(3):
        x = torch.randn(5, 8)
        for layer, step in zip((one, other), (compiled, steps[1].step), strict=True):
            layer.zero_grad()
            layer(x).square().mean().backward()
            step()
        torch.testing.assert_close([*one.parameters()], [*other.parameters()])
    report = backend.reports.all()
    assert report.replaced >= 2 and not any("foreach" in why for why in report.reasons()), str(report)
    assert all(entry.seams for entry in report.entries)  # PyTorch has all tensors in one launch


def everything(a: list[Tensor], b: list[Tensor]) -> Any:
    """Every kind of call: a number, one for each tensor, tensors, or one tensor behind the first ones."""
    each, ratio, made = torch, b[0].mean().abs() + 1, [-0.5, 0.25]
    sums = each._foreach_add(a, b, alpha=2.0), each._foreach_add(a, 1.5), each._foreach_add(a, made)
    scaled = each._foreach_mul(a, ratio), each._foreach_div(a, 3.0), each._foreach_sub(b, a, alpha=0.5)
    cut = each._foreach_clamp_min(a, 0.1), each._foreach_clamp_min(a, b), each._foreach_maximum(a, 0.2)
    least = each._foreach_minimum(a, b), each._foreach_minimum(a, made), each._foreach_clamp_max(a, 0.3)
    powers = each._foreach_pow(a, 2.0), each._foreach_pow(2.0, a), each._foreach_pow(a, [3.0, 4.0])
    mixed = each._foreach_lerp(a, b, 0.3), each._foreach_addcmul(a, b, a, 0.1)
    ratios = each._foreach_addcdiv(a, b, ones(a), made), each._foreach_addcdiv(a, b, ones(a))
    alone = each._foreach_exp(a), each._foreach_sqrt(ones(a)), each._foreach_neg(a), each._foreach_norm(b)
    return [sums, scaled, cut, least, powers, mixed, ratios, alone]


def ones(tensors: list[Tensor]) -> Any:
    return torch._foreach_add(torch._foreach_abs(tensors), 1)


def test_each_overload_is_what_it_is_of_one_tensor() -> None:
    a, b = [torch.randn(3, 4), torch.randn(5)], [torch.randn(3, 4), torch.randn(5)]
    wanted = tree_leaves(everything(a, b))
    torch._dynamo.reset()
    backend = Backend()
    with torch.no_grad():
        torch.testing.assert_close(tree_leaves(torch.compile(everything, backend=backend)(a, b)), wanted)
    report = backend.reports.all()
    assert report.replaced and not any("foreach" in why for why in report.reasons()), str(report)
    program = mirage_nb.from_torch(everything, (a, b))
    found = evaluate(program.graph, [x.double().numpy() for x in program.arguments(*a, *b)])
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.reshape(ours, theirs.shape), theirs.numpy(), rtol=1e-4, atol=1e-5)
