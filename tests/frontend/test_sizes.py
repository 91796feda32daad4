"""Graphs with sizes that depend on values go through the backend."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import mirage_nb
from tests.frontend.traced import Backend, anew


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


def picked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.relu(x @ x.T) * x
    some = y[y > 0]
    return torch.tanh(y) * 2 + 1, (y > 0).nonzero(), some * 2 + 1, some.tanh().sum() * y.mean()


def cut(x: torch.Tensor) -> torch.Tensor:
    count = int((x > 0).any(-1).sum().item())
    torch._check(count <= x.shape[0])
    return (torch.relu(x @ x.T) * x + 1)[:count].tanh() * 2


@torch.no_grad()
def test_images_of_sizes_that_are_not_fixed_lie_as_they_did() -> None:
    """PyTorch's compiler would have the last convolution's channels lie last."""
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 4, 3)
    model, backend = nn.Sequential(*layers).eval(), Backend()
    with anew():
        compiled = torch.compile(model, backend=backend, dynamic=True, options={"remainder": "inductor"})
        for batch in (2, 3):
            x = torch.randn(batch, 3, 6, 6)
            found, wanted = compiled(x), model(x)
            close(found, wanted)
            assert found.stride() == wanted.stride()
    assert backend.replaced


def test_numbers_of_sizes_are_floats_as_they_were() -> None:
    """Gradients of a group norm divide by how many elements there are: a tensor that does not say its type."""
    model, backend = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU()), Backend()
    compiled = torch.compile(model, backend=backend, dynamic=True, options={"remainder": "inductor"})
    x = torch.randn(2, 4, 6, 6, requires_grad=True)
    found, wanted = (torch.autograd.grad(one(x).square().sum(), [x, *model.parameters()]) for one in (compiled, model))
    close(found, wanted)
    _, backwards = backend.reports.all().graphs
    assert not backwards.trouble and any(entry.taken for entry in backwards.entries)


@torch.no_grad()
def test_how_many_elements_are_looked_up_at_places_depends_on_no_values() -> None:
    report = mirage_nb.model_report(lambda x: (x[torch.arange(4) * 0, torch.arange(4)] + 1).tanh(), torch.rand(4, 4))
    assert any("index.Tensor stays PyTorch's in a model" in why for why in report.reasons()), str(report)


@torch.no_grad()
@pytest.mark.parametrize("remainder", ["eager", "inductor"])
@pytest.mark.parametrize("model", [picked, cut])
def test_sizes_that_depend_on_values_part_no_model(model: Any, remainder: str) -> None:
    backend, x = Backend(), torch.rand(4, 4)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        compiled = torch.compile(model, backend=backend, fullgraph=True, options={"remainder": remainder})
        for sign in (1, -1):
            close(compiled(x * sign), model(x * sign))
    report = backend.reports.all()
    assert report.entries and (report.replaced or (remainder == "inductor" and model is picked)), str(report)
