"""Tensors that a model makes of numbers, and what it reads from another device."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from mirage_nb.frontend.compiled.regions import find_regions
from mirage_nb.targets import find_target
from tests.frontend.traced import Backend, anew


def normalised(x: torch.Tensor) -> torch.Tensor:
    y = (
        (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[:, None, None]
    ).sigmoid()
    return y * y.mean(-1, keepdim=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_table_of_numbers_parts_no_model(dynamic: bool) -> None:
    torch._dynamo.reset()
    backend = Backend()
    options = {"remainder": "inductor"}
    with anew():
        compiled = torch.compile(normalised, backend=backend, dynamic=dynamic, options=options)
        for batch in (2, 3):
            x = torch.rand(batch, 3, 4, 4, requires_grad=True)
            found, wanted = (torch.autograd.grad(model(x).sum(), x) for model in (compiled, normalised))
            torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
    report = backend.reports.all()
    assert report.replaced and not any(graph.trouble for graph in report.graphs), str(report)


def earliest(x: torch.Tensor) -> torch.Tensor:
    far, near = torch.tensor(1e9), torch.tensor(0.0)
    first = x[0] - torch.logsumexp(-torch.stack([far, near, far]), 0) / 2
    return x[1] - torch.logsumexp(-torch.stack([far, first, far]), 0) / 2


def test_numbers_that_are_joined_are_those_of_the_model() -> None:
    """PyTorch's code, which kernels are compared with, did not find them."""
    torch._dynamo.reset()
    backend, x = Backend(), torch.rand(2)
    torch.testing.assert_close(torch.compile(earliest, backend=backend)(x), earliest(x))
    report = backend.reports.all()
    assert report.replaced and not any(graph.trouble for graph in report.graphs), str(report)


def brought(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * torch.ops.prims.device_put(y, x.device)).softmax(-1) * 2


def counted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    places = torch.ops.prims.device_put(torch.arange(4), x.device)
    return torch.where(places > 1, x * 2, 0.0).softmax(-1)


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.softmax(-1) * y[0]).sigmoid() * x


def one_number(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * torch.tensor(0.5)).softmax(-1) * x


@pytest.mark.parametrize(
    ("model", "left", "count"),
    [(brought, "device_put", 1), (counted, "", 1), (scaled, "mul", 2), (one_number, "", 1)],
)
def test_what_comes_from_another_device_is_brought_by_pytorch(model: Any, left: str, count: int) -> None:
    """Regions read it where it was brought to; places and numbers are made in kernels."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        gm = make_fx(model)(torch.empty(3, 4, device="meta"), torch.empty(4))
        found = find_regions(gm, find_target("h200"))
    foreign = [node.name for node, why in found.left.items() if why == "it reads from cpu"]
    assert foreign == ([left] if left else []) and len(found.found) == count
    assert {str(node.meta["val"].device) for region in found.found for node in region.reads} == {"meta"}
    assert all(region.operators for region in found.found)
