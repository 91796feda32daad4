"""Models as people write them go through the backend: right outputs, changed inputs and buffers, short reasons."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils import _pytree as pytree

import mirage_nb
from mirage_nb.errors import TraceError
from tests.frontend.architectures import ARCHITECTURES
from tests.frontend.traced import Backend

EVERY = ["LSTM cell", "T5 block", "KV cache", "dictionaries", "in place", "views"]
"""Those that are tried in every run."""
LONGEST = 160
"""Characters of a reason."""


def named(names: Any) -> list[Any]:
    return [name if name in EVERY else pytest.param(name, marks=pytest.mark.slow) for name in names]


def made(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs, keywords = ARCHITECTURES[name]
    built = model()
    return (built.eval() if isinstance(built, nn.Module) else built), inputs(), keywords or {}


def leaves(value: Any) -> list[Any]:
    return pytree.tree_leaves(value)


def compare(found: Any, wanted: Any) -> None:
    for ours, theirs in zip(leaves(found), leaves(wanted), strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        wide = 2e-2 if theirs.dtype in (torch.half, torch.bfloat16) else 2e-3
        torch.testing.assert_close(ours, theirs, rtol=wide, atol=wide)


@torch.no_grad()
@pytest.mark.parametrize("name", named(ARCHITECTURES))
def test_a_model_computes_what_it_did(name: str) -> None:
    model, inputs, keywords = made(name)
    other, others = copy.deepcopy((model, inputs)) if isinstance(model, nn.Module) else (model, copy.deepcopy(inputs))
    backend = Backend()
    compiled = torch.compile(model, backend=backend)
    for _ in range(2):
        compare(compiled(*inputs, **keywords), other(*others, **keywords))
        compare(inputs, others)
    if isinstance(model, nn.Module):
        compare(dict(model.named_buffers()), dict(other.named_buffers()))
    report = backend.reports.all()
    assert not any(graph.trouble for graph in report.graphs), str(report)
    assert all(0 < len(why) <= LONGEST and "\n" not in why for why in report.reasons())
    left = {entry.state for entry in report.entries if not entry.taken}
    assert all("overflows" in why for why in left), str(report)  # half precision, unlike PyTorch's own attention


@torch.no_grad()
@pytest.mark.parametrize("name", named(ARCHITECTURES))
def test_a_model_is_read_or_the_reason_is_short(name: str) -> None:
    model, inputs, keywords = made(name)
    if keywords:
        pytest.skip("from_torch takes positional inputs")
    try:
        program = mirage_nb.from_torch(model, inputs)
    except TraceError as error:
        assert len(error.message) < 400 and "internal" not in error.message and "\n" not in error.message
    else:
        assert program.graph.outputs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT block", "MLP-Mixer", "GPT-2 block", "T5 block", "LSTM cell", "U-Net"])
def test_gradients_are_pytorchs(name: str) -> None:
    model, inputs, keywords = made(name)
    model.train()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    backend = Backend()
    first = leaves(torch.compile(model, backend=backend)(*inputs, **keywords))[0]
    first.square().sum().backward()
    found = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad()
    leaves(model(*inputs, **keywords))[0].square().sum().backward()
    compare(found, {n: p.grad for n, p in model.named_parameters()})
    assert backend.replaced > 0
