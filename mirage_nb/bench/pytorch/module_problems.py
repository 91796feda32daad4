"""Modules like those of KernelBench's levels 1 and 2, written anew at small sizes: all without convolutions, five with.

In: nothing. Out: modules or functions by name, and inputs for each. Names and shapes are public; these are smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

B, K, N = 8, 32, 48
Problem = tuple[Callable[..., Any], tuple[Any, ...]]


def _t(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


class Behind(nn.Module):
    """A layer, then a function; `others` are layers that the function uses."""

    def __init__(self, layer: nn.Module, after: Callable[..., Any], *others: nn.Module) -> None:
        super().__init__()
        self.layer, self.others, self.after = layer, nn.ModuleList(others), after

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        return self.after(self.layer(x), *self.others, *more)


def _linear(after: Callable[..., Any], *others: nn.Module) -> nn.Module:
    return Behind(nn.Linear(K, N), after, *others)


def _newgelu(x: torch.Tensor) -> Any:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x.pow(3))))


def _rms(x: torch.Tensor) -> Any:
    return x / torch.sqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)


def _cosine(x: torch.Tensor, y: torch.Tensor) -> Any:
    return 1 - (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))


def _hinge(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.clamp(1 - x * y, min=0).mean()


IMAGE = (4, 6, 5, 5)


def problems() -> dict[str, Problem]:
    """All of them, with fresh random weights and inputs."""
    groups = (_products(), _activations(), _norms(), _folds(), _losses(), _behind_linear(), _convolutions())
    return {name: problem for group in groups for name, problem in group.items()}


def _products() -> dict[str, Problem]:
    """Level 1: products."""
    return {
        "square product": (torch.matmul, (_t(32, 32), _t(32, 32))),
        "product": (torch.matmul, (_t(16, 32), _t(32, 24))),
        "batched product": (torch.bmm, (_t(3, 16, 32), _t(3, 32, 8))),
        "matrix by vector": (torch.matmul, (_t(16, 256), _t(256, 1))),
        "matrix by scalar": (lambda x: x * 2.5, (_t(16, 32),)),
        "large inner extent": (torch.matmul, (_t(8, 512), _t(512, 8))),
        "small inner extent": (torch.matmul, (_t(64, 4), _t(4, 64))),
        "odd extents": (torch.matmul, (_t(13, 29), _t(29, 7))),
        "tall and skinny": (torch.matmul, (_t(128, 4), _t(4, 128))),
        "3d by matrix": (torch.matmul, (_t(3, 8, 32), _t(32, 16))),
        "4d by matrix": (lambda x, y: torch.einsum("bijl,lk->bijk", x, y), (_t(2, 3, 4, 32), _t(32, 8))),
        "diagonal": (lambda a, x: torch.diag(a) @ x, (_t(16), _t(16, 8))),
        "diagonal, scaled": (lambda a, x: a[:, None] * x + 1, (_t(16), _t(16, 8))),
        "upper triangle": (lambda x, y: torch.triu(torch.triu(x) @ torch.triu(y)), (_t(16, 16), _t(16, 16))),
        "left transposed": (lambda x, y: x.T @ y, (_t(32, 16), _t(32, 8))),
        "right transposed": (lambda x, y: x @ y.T, (_t(16, 32), _t(8, 32))),
        "both transposed": (lambda x, y: x.T @ y.T, (_t(32, 16), _t(8, 32))),
        "symmetric": (lambda x, y: (x + x.T) @ (y + y.T), (_t(16, 16), _t(16, 16))),
        "lower triangle": (lambda x, y: torch.tril(torch.tril(x) @ torch.tril(y)), (_t(16, 16), _t(16, 16))),
    }  # fmt: skip


def _activations() -> dict[str, Problem]:
    """Level 1: activations."""
    return {
        "relu": (torch.relu, (_t(B, K),)),
        "leaky relu": (F.leaky_relu, (_t(B, K),)),
        "sigmoid": (torch.sigmoid, (_t(B, K),)),
        "tanh": (torch.tanh, (_t(B, K),)),
        "softmax": (lambda x: torch.softmax(x, 1), (_t(B, K),)),
        "log softmax": (lambda x: torch.log_softmax(x, 1), (_t(B, K),)),
        "swish": (lambda x: x * torch.sigmoid(x), (_t(B, K),)),
        "gelu": (F.gelu, (_t(B, K),)),
        "selu": (F.selu, (_t(B, K),)),
        "hard sigmoid": (F.hardsigmoid, (_t(B, K) * 4,)),
        "softplus": (F.softplus, (_t(B, K),)),
        "softsign": (F.softsign, (_t(B, K),)),
        "elu": (F.elu, (_t(B, K),)),
        "hard tanh": (F.hardtanh, (_t(B, K),)),
        "new gelu": (_newgelu, (_t(B, K),)),
    }  # fmt: skip


def _norms() -> dict[str, Problem]:
    """Level 1: norms."""
    return {
        "batch norm": (nn.BatchNorm2d(6).eval(), (_t(*IMAGE),)),
        "instance norm": (nn.InstanceNorm2d(6), (_t(*IMAGE),)),
        "group norm": (nn.GroupNorm(3, 6), (_t(*IMAGE),)),
        "rms norm": (_rms, (_t(*IMAGE),)),
        "frobenius norm": (lambda x: x / torch.norm(x, p="fro"), (_t(B, K),)),
        "l1 norm": (lambda x: x / x.abs().mean(1, keepdim=True), (_t(B, K),)),
        "l2 norm": (lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True), (_t(B, K),)),
        "layer norm": (nn.LayerNorm([6, 5, 5]), (_t(*IMAGE),)),
        "layer norm of a row": (nn.LayerNorm(K), (_t(B, K),)),
    }  # fmt: skip


def _folds() -> dict[str, Problem]:
    """Level 1: pooling, reductions, scans."""
    return {
        "mean pooling": (lambda x: F.avg_pool1d(x, 4), (_t(2, 4, 16),)),
        "max pooling": (lambda x: F.max_pool1d(x, 4), (_t(2, 4, 16),)),
        "sum": (lambda x: x.sum(1, keepdim=True), (_t(4, 16, 8),)),
        "mean": (lambda x: x.mean(1), (_t(4, 16, 8),)),
        "maximum": (lambda x: x.max(1)[0], (_t(4, 16, 8),)),
        "minimum": (lambda x: x.min(1)[0], (_t(4, 16, 8),)),
        "argmax": (lambda x: x.argmax(1), (_t(4, 16, 8),)),
        "product over an axis": (lambda x: x.prod(1), (_t(4, 8),)),
        "cumulative sum": (lambda x: x.cumsum(1), (_t(4, 16),)),
        "cumulative product": (lambda x: x.cumprod(1), (_t(4, 16),)),
        "mean pooling of images": (lambda x: F.avg_pool2d(x, 3), (_t(2, 4, 9, 9),)),
        "max pooling of images": (lambda x: F.max_pool2d(x, 3, 1, 1), (_t(2, 4, 9, 9),)),
        "mean pooling of volumes": (lambda x: F.avg_pool3d(x, 2), (_t(1, 2, 4, 4, 4),)),
        "max pooling of volumes": (lambda x: F.max_pool3d(x, 2), (_t(1, 2, 4, 4, 4),)),
        "argmin": (lambda x: x.argmin(1), (_t(4, 16, 8),)),
        "cumulative sum, backwards": (lambda x: x.flip(1).cumsum(1).flip(1), (_t(4, 16),)),
        "cumulative sum, exclusive": (
            lambda x: torch.cat([torch.zeros_like(x[:, :1]), x.cumsum(1)], 1)[:, :-1], (_t(4, 16),)),
        "cumulative sum under a mask": (lambda x, mask: (x * mask).cumsum(1), (_t(4, 16), _t(4, 16) > 0)),
    }  # fmt: skip


def _losses() -> dict[str, Problem]:
    """Level 1: losses, attention."""
    return {
        "mean squared error": (lambda x, y: ((x - y) ** 2).mean(), (_t(B, K), _t(B, K))),
        "cross entropy": (F.cross_entropy, (_t(B, K), torch.arange(B))),
        "huber": (F.smooth_l1_loss, (_t(B, K), _t(B, K))),
        "cosine": (_cosine, (_t(B, K), _t(B, K))),
        "kl divergence": (lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
                          (_t(B, K), _t(B, K))),
        "triplet margin": (F.triplet_margin_loss, (_t(B, K), _t(B, K), _t(B, K))),
        "hinge": (_hinge, (_t(B, K), torch.ones(B, K))),
        "attention": (F.scaled_dot_product_attention, (_t(2, 3, 16, 8), _t(2, 3, 16, 8), _t(2, 3, 16, 8))),
        "causal attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                             (_t(2, 3, 16, 8), _t(2, 3, 16, 8), _t(2, 3, 16, 8))),
    }  # fmt: skip


def _behind_linear() -> dict[str, Problem]:
    """Level 2: what follows a linear layer."""
    return {
        "subtract, multiply, relu": (_linear(lambda x: torch.relu((x - 2.0) * 1.5)), (_t(B, K),)),
        "multiply, leaky relu": (_linear(lambda x: F.leaky_relu(x * 2.0, 0.1)), (_t(B, K),)),
        "divide, sum, scale": (_linear(lambda x: (x / 2).sum(1, keepdim=True) * 1.5), (_t(B, K),)),
        "sum, max, mean, logsumexp": (
            _linear(lambda x: torch.logsumexp(x.sum(1, keepdim=True).max(1, keepdim=True)[0], 1, True)), (_t(B, K),)),
        "scale, residual, clamp, logsumexp, mish": (
            _linear(lambda x: (y := torch.logsumexp(((x * 2) + (x * 2)).clamp(-10, 10), 1, True)) * F.mish(y)),
            (_t(B, K),)),
        "batched, instance norm, residual": (
            _linear(lambda x, norm, y: (norm(x[:, None])[:, 0] + y) * y, nn.InstanceNorm1d(1)), (_t(B, K), _t(B, N))),
        "mish, mish": (_linear(lambda x: F.mish(F.mish(x))), (_t(B, K),)),
        "group norm, hard tanh": (_linear(lambda x, n: F.hardtanh(n(x), -2, 2), nn.GroupNorm(4, N)), (_t(B, K),)),
        "scale, batch norm": (_linear(lambda x, n: n(x * 1.5), nn.BatchNorm1d(N)), (_t(B, K),)),
        "swish, bias, group norm": (_linear(lambda x, n: n(F.silu(x) + 0.5), nn.GroupNorm(4, N)), (_t(B, K),)),
        "scale, residual": (_linear(lambda x: x * 0.5 + x), (_t(B, K),)),
        "batch norm, gelu, group norm, mean, relu": (
            _linear(lambda x, n, g: F.relu(g(F.gelu(n(x))).mean(1, keepdim=True)),
                   nn.BatchNorm1d(N), nn.GroupNorm(4, N)),
            (_t(B, K),)),
        "sigmoid, sum, logsumexp": (_linear(lambda x: torch.logsumexp(torch.sigmoid(x).sum(1), 0)), (_t(B, K),)),
        "subtract, mean, logsumexp, gelu, residual": (
            _linear(lambda x, y: F.gelu(torch.logsumexp((x - 0.5).mean(1, keepdim=True), 1, True)) + y),
            (_t(B, K), _t(B, K))),
        "scale, hard tanh, gelu": (_linear(lambda x: F.gelu(F.hardtanh(x * 0.5, -2, 2))), (_t(B, K),)),
        "max pool, sum, scale": (_linear(lambda x: F.max_pool1d(x[:, None], 2)[:, 0].sum(1) * 0.5), (_t(B, K),)),
        "sigmoid, sum": (_linear(lambda x: torch.sigmoid(x).sum(1, keepdim=True)), (_t(B, K),)),
        "swish, scale": (_linear(lambda x: x * torch.sigmoid(x) * 2.0), (_t(B, K),)),
        "group norm, leaky relu, sum": (
            _linear(lambda x, n: F.leaky_relu(n(x), 0.01) * 2, nn.GroupNorm(4, N)), (_t(B, K),)),
        "relu, divide": (_linear(lambda x: torch.relu(x) / 2.0), (_t(B, K),)),
        "logsumexp, leaky relu, gelu": (
            _linear(lambda x: F.gelu(F.gelu(F.leaky_relu(torch.logsumexp(x, 1, True), 0.01)))), (_t(B, K),)),
        "dropout, mean, softmax": (
            _linear(lambda x, d: torch.softmax(d(x).mean(1, keepdim=True), 1), nn.Dropout(0.2)), (_t(B, K),)),
        "minimum, subtract": (_linear(lambda x: torch.min(x, torch.tensor(1.0)) - 1.0), (_t(B, K),)),
        "sigmoid, scale, residual": (_linear(lambda x: torch.sigmoid(x) * 2.0 + x), (_t(B, K),)),
        "group norm, min, bias": (
            _linear(lambda x, n: n(x).min(1, keepdim=True)[0] + torch.ones(1, N), nn.GroupNorm(4, N)), (_t(B, K),)),
        "add, relu": (_linear(lambda x, y: torch.relu(x + y)), (_t(B, K), _t(N))),
        "max, subtract, gelu": (
            _linear(lambda x: F.gelu((m := x.max(1, keepdim=True)[0]) - m.mean(1, keepdim=True))), (_t(B, K),)),
        "swish, divide, clamp, tanh, clamp": (
            _linear(lambda x: torch.tanh((F.silu(x) / 2).clamp(-1, 1)).clamp(-0.5, 0.5)), (_t(B, K),)),
        "batch norm, scale, softmax": (
            _linear(lambda x, n: torch.softmax(1.3 * n(x), 1), nn.BatchNorm1d(N)), (_t(B, K),)),
        "divide, gelu": (_linear(lambda x: F.gelu(x / 10.0)), (_t(B, K),)),
        "group norm, swish, multiply, swish": (
            _linear(lambda x, n, w: F.silu(F.silu(n(x)) * w), nn.GroupNorm(4, N)), (_t(B, K), _t(N))),
        "bias, hard tanh, mish, group norm": (
            _linear(lambda x, n, b: n(F.mish(F.hardtanh(x + b))), nn.GroupNorm(4, N)), (_t(B, K), _t(N))),
        "add, swish, tanh, gelu, hard tanh": (
            _linear(lambda x, b: F.hardtanh(F.gelu(torch.tanh(F.silu(x + b))))), (_t(B, K), _t(N))),
        "batch norm, bias, divide, swish": (
            _linear(lambda x, n, b: F.silu((n(x) + b) / 1.5), nn.BatchNorm1d(N)), (_t(B, K), _t(1))),
        "mean pool, gelu, scale, max": (
            _linear(lambda x: (F.gelu(F.avg_pool1d(x[:, None], 4)[:, 0]) * 2.0).max(1)[0]), (_t(B, K),)),
        "gelu, softmax": (_linear(lambda x: torch.softmax(F.gelu(x), 1)), (_t(B, K),)),
    }  # fmt: skip


def _convolutions() -> dict[str, Problem]:
    """Level 2: what follows a convolution."""
    flat, image, volume = nn.Conv2d(3, 8, 3), _t(2, 3, 9, 9), _t(1, 3, 5, 5, 5)
    return {
        "convolution, relu, bias": (Behind(flat, lambda x, b: torch.relu(x) + b), (image, _t(8, 1, 1))),
        "convolution, min, tanh, tanh": (
            Behind(flat, lambda x: torch.tanh(torch.tanh(x.min(1, keepdim=True)[0]))), (image,)),
        "convolution, group norm, tanh, hard swish, residual, logsumexp": (
            Behind(flat, lambda x, n: torch.logsumexp(x + F.hardswish(torch.tanh(n(x))), 1, True),
                        nn.GroupNorm(4, 8)), (image,)),
        "convolution of volumes, scale, tanh, multiply, sigmoid": (
            Behind(nn.Conv3d(3, 4, 3), lambda x, s, b: torch.sigmoid(torch.tanh(x * s) * b)),
            (volume, _t(4, 1, 1, 1), _t(4, 1, 1, 1))),
        "transposed convolution, mean, bias, softmax, tanh, scale": (
            Behind(nn.ConvTranspose2d(3, 8, 3),
                        lambda x, b: torch.tanh(torch.softmax(x.mean(2, keepdim=True) + b, 1)) * 2.0),
            (image, _t(8, 1, 1))),
    }  # fmt: skip
