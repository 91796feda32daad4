"""A LLaMA layer in plain PyTorch goes through the backend, at any batch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn

from tests.frontend.traced import Backend


class Layer(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4, kept: int = 2, hidden: int = 64) -> None:
        super().__init__()
        self.heads, self.kept, self.size = heads, kept, width // heads
        self.before, self.between = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, heads * self.size, bias=False)
        self.k = nn.Linear(width, kept * self.size, bias=False)
        self.v = nn.Linear(width, kept * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        one, other = x.chunk(2, -1)
        return x * cos + torch.cat((-other, one), -1) * sin

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        y = self.before(x)
        q = self.rotated(self.q(y).view(batch, rows, self.heads, self.size).transpose(1, 2), cos, sin)
        k = self.rotated(self.k(y).view(batch, rows, self.kept, self.size).transpose(1, 2), cos, sin)
        v = self.v(y).view(batch, rows, self.kept, self.size).transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, rows, width))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "f16"])
def test_a_layer_at_any_batch(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    backend, layer = Backend(), Layer().to(dtype)
    compiled = torch.compile(layer, backend=backend)
    angles = torch.randn(2, 6, 8).to(dtype)
    for batch in (2, 3, 4, 2) if dtype is torch.float32 else (2, 3):
        x = torch.randn(batch, 6, 32).to(dtype)
        torch.testing.assert_close(compiled(x, *angles), layer(x, *angles), rtol=2e-2, atol=1e-2)
    report = backend.reports.all()
    assert report.replaced >= 6, str(report)


def test_gradients_at_any_batch() -> None:
    """Derivatives of rotated heads lie otherwise at one batch than PyTorch traced them for all."""
    torch._dynamo.reset()
    backend, angles = Backend(), torch.randn(2, 6, 8)
    x, w = torch.randn(2, 6, 32, requires_grad=True), torch.randn(32, 32, requires_grad=True)

    def attend(x: torch.Tensor) -> torch.Tensor:
        q = Layer.rotated(None, (x @ w).view(len(x), 6, 4, 8).transpose(1, 2), *angles)  # type: ignore[arg-type]
        return F.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True).transpose(1, 2).reshape(x.shape) * x

    models = attend, torch.compile(attend, backend=backend, dynamic=True)
    wanted, found = (torch.autograd.grad(model(x).square().sum(), (x, w)) for model in models)
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
    report = backend.reports.all()
    assert report.replaced and not any(graph.trouble for graph in report.graphs), str(report)
