"""Truth values that several regions read: tensors to PyTorch, and part of each region to programs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.frontend.traced import Backend


class Padded(nn.Module):
    """Attention twice, and a mean, under one mask of what is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor, dead: Tensor) -> Tensor:
        seen = ~dead
        for _ in range(2):
            q, k, v = self.qkv(F.layer_norm(x, (16,))).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
            scores = (q @ k.mT).masked_fill(~seen[:, None, None], -1e9)
            x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 16))
        return (x * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)


class Gated(nn.Module):
    """A recurrence that some tokens begin anew, whose roots are one there."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.a, self.rate = nn.Linear(8, 8), nn.Linear(8, 8), nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor, fresh: Tensor) -> Tensor:
        kept = -4 * self.a(x).sigmoid() * F.softplus(self.rate)
        scale = fresh + ~fresh * torch.sqrt(1 - torch.exp(2 * kept))
        x, kept = self.x(x) * scale, kept.exp() * ~fresh
        state, made = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            made.append(state := kept[:, t] * state + x[:, t])
        return torch.stack(made, 1)


DEAD = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
FRESH = torch.tensor([[True, False, False, True]])[..., None]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("kind", "inputs"), [(Padded, (torch.randn(2, 6, 16), DEAD)), (Gated, (torch.randn(1, 4, 8), FRESH))]
)
def test_each_region_makes_them_again(kind: type[nn.Module], inputs: tuple[Tensor, ...], training: bool) -> None:
    torch._dynamo.reset()
    backend, model = Backend(), kind()
    with torch.set_grad_enabled(training):
        found, wanted = torch.compile(model, backend=backend)(*inputs), model(*inputs)
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
    if training:
        ours, theirs = (torch.autograd.grad(made.square().sum(), [*model.parameters()]) for made in (found, wanted))
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
    report = backend.reports.all()
    assert report.replaced and not any("begin or end" in why for why in report.reasons()), str(report)


def test_what_is_no_truth_value_is_handed_on() -> None:
    """A mean that a deviation is computed from, as gradients read it."""
    torch._dynamo.reset()

    def model(x: Tensor, y: Tensor) -> Tensor:
        pairs = x.view(-1, 2)
        one = (pairs - pairs.mean(1, keepdim=True)) / (pairs.std(1, keepdim=True) + 1e-4)
        return torch.min(y.exp() * one.view(-1, 1), y.exp().clamp(0.8, 1.2) * one.view(-1, 1)).mean(1)

    backend, inputs = Backend(), [torch.randn(shape, requires_grad=True) for shape in ((4,), (4, 5))]
    made = (one(*inputs).square().sum() for one in (torch.compile(model, backend=backend), model))
    torch.testing.assert_close(*(torch.autograd.grad(one, inputs) for one in made), rtol=2e-3, atol=2e-3)
    assert not any("begin or end" in why for why in backend.reports.all().reasons())
