"""Models as people write them, small: blocks of well-known architectures, and habits that compilers stumble over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

W = 32
"""Width of what has one."""


class ViTBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(W), nn.LayerNorm(W)
        self.attention = nn.MultiheadAttention(W, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(W, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, W))

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        made: Tensor = x + self.mlp(self.two(x))
        return made


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(W), nn.LayerNorm(W)
        self.tokens = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
        self.channels = nn.Sequential(nn.Linear(W, 64), nn.GELU(), nn.Linear(64, W))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.one(x).transpose(1, 2)).transpose(1, 2)
        made: Tensor = x + self.channels(self.two(x))
        return made


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(W), nn.LayerNorm(W)
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.up, self.down = nn.Linear(W, 4 * W), nn.Linear(4 * W, W)
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    mask: Tensor

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, 4, c // 4).transpose(1, 2) for y in self.qkv(self.one(x)).split(c, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (c // 4) ** -0.5
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        x = x + self.out((F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, c))
        made: Tensor = x + self.down(F.gelu(self.up(self.two(x)), approximate="tanh"))
        return made


class T5(nn.Module):
    """Attention with a learned bias for distances, without a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(8, 4)
        self.q, self.k, self.v, self.o = (nn.Linear(W, W, bias=False) for _ in range(4))
        self.gain = nn.Parameter(torch.ones(W))

    def forward(self, x: Tensor) -> Tensor:
        y = self.gain * (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)
        q, k, v = (layer(y).view(2, 6, 4, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        far = (torch.arange(6)[None] - torch.arange(6)[:, None]).clamp(-3, 4) + 3
        scores = torch.matmul(q, k.transpose(3, 2)) + self.bias(far).permute(2, 0, 1)[None]
        made: Tensor = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, W))
        return made


class NeoX(nn.Module):
    """Rotary positions for a part of each head, interleaved projections, a mask of infinities that is added."""

    def __init__(self, heads: int = 4, turned: int = 2) -> None:
        super().__init__()
        self.heads, self.turned = heads, turned
        self.before, self.between = nn.LayerNorm(W), nn.LayerNorm(W)
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.up, self.down = nn.Linear(W, 4 * W), nn.Linear(4 * W, W)
        self.register_buffer("rates", 10000 ** -(torch.arange(0, turned, 2) / turned))

    rates: Tensor

    def rotated(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[-2]).float(), self.rates).repeat(1, 2)
        turned, rest = x[..., : self.turned], x[..., self.turned :]
        one, other = turned.chunk(2, -1)
        return torch.cat((turned * angles.cos() + torch.cat((-other, one), -1) * angles.sin(), rest), -1)

    def forward(self, x: Tensor) -> Tensor:
        rows, size = x.shape[1], W // self.heads
        q, k, v = self.qkv(self.before(x)).view(len(x), rows, self.heads, 3 * size).transpose(1, 2).chunk(3, -1)
        mask = torch.full((rows, rows), float("-inf")).triu(1)
        weights = torch.softmax(self.rotated(q) @ self.rotated(k).mT * size**-0.5 + mask, -1)
        y: Tensor = self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        return x + y + self.down(F.gelu(self.up(self.between(x))))


class Shifted(nn.Module):
    """RWKV's channels: each token is mixed with the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.mix = nn.Parameter(torch.rand(2, W))
        self.key, self.value, self.gate = nn.Linear(W, 2 * W), nn.Linear(2 * W, W), nn.Linear(W, W)

    def forward(self, x: Tensor) -> Tensor:
        one, other = (x * mix + self.shift(x) * (1 - mix) for mix in self.mix)
        y: Tensor = torch.sigmoid(self.gate(one)) * self.value(torch.relu(self.key(other)) ** 2)
        return y


class Mamba(nn.Module):
    """A selective scan, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.conv = nn.Linear(W, 2 * W), nn.Conv1d(W, W, 3, groups=W, padding=2)
        self.delta, self.bc, self.out = nn.Linear(W, W), nn.Linear(W, 8), nn.Linear(W, W)
        self.a = nn.Parameter(-torch.rand(W, 4))

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.inner(x).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        delta, (b, c) = F.softplus(self.delta(y)), self.bc(y).chunk(2, -1)
        state = x.new_zeros(x.shape[0], W, 4)
        made = []
        for t in range(x.shape[1]):
            state = state * torch.exp(delta[:, t, :, None] * self.a) + (delta * y)[:, t, :, None] * b[:, t, None]
            made.append((state * c[:, t, None]).sum(-1))
        out: Tensor = self.out(torch.stack(made, 1) * F.silu(gate))
        return out


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(W, 4)
        self.one, self.two = nn.Parameter(torch.randn(4, W, 48) / 6), nn.Parameter(torch.randn(4, 48, W) / 7)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2)
        every = F.silu(torch.einsum("bd,edh->beh", x, self.one))
        every = torch.einsum("beh,ehd->bed", every, self.two)
        taken = every.gather(1, chosen[..., None].expand(-1, -1, W))
        return (taken * (weights / weights.sum(-1, keepdim=True))[..., None]).sum(1)


class ExpertsByIndex(Experts):
    """Each expert gets its rows: how many, depends on the data."""

    def forward(self, x: Tensor) -> Tensor:
        chosen, made = self.gate(x).argmax(-1), torch.zeros_like(x)
        for number in range(4):
            rows = torch.nonzero(chosen == number)[:, 0]
            made[rows] = F.silu(x[rows] @ self.one[number]) @ self.two[number]
        return made


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.up = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.down(x)
        y = self.middle(F.max_pool2d(kept, 2))
        made: Tensor = self.up(torch.cat([kept, F.interpolate(y, scale_factor=2)], 1))
        return made


class Cell(nn.Module):
    """An LSTM cell written out."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(W, 4 * W), nn.Linear(W, 4 * W)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        i, f, g, o = (self.x(x) + self.h(h)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


class Graph(nn.Module):
    """A layer of a graph network: messages along edges, summed at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * W, W), nn.Linear(2 * W, W)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        sent = F.relu(self.message(torch.cat([x[edges[0]], x[edges[1]]], -1)))
        got = torch.zeros_like(x).index_add(0, edges[1], sent)
        return F.layer_norm(x + self.update(torch.cat([x, got], -1)), (W,))


class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))
        self.below = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.above = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.below(dense)
        every = torch.stack([x, *(table(sparse[n]) for n, table in enumerate(self.tables))], 1)
        pairs = every @ every.transpose(1, 2)
        rows, columns = torch.tril_indices(4, 4, -1)
        made: Tensor = self.above(torch.cat([x, pairs[:, rows, columns]], 1))
        return made


class DiT(nn.Module):
    """A diffusion transformer's block: shifts and scales come from the time step."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.modulation = nn.LayerNorm(W, elementwise_affine=False), nn.Linear(W, 6 * W)
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.mlp = nn.Sequential(nn.Linear(W, 64), nn.GELU("tanh"), nn.Linear(64, W))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        a, b, c, d, e, f = self.modulation(F.silu(time))[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.norm(x) * (1 + b) + a).view(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + c * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 6, W))
        made: Tensor = x + f * self.mlp(self.norm(x) * (1 + e) + d)
        return made


class Rope(nn.Module):
    """Rotary positions in complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(6.0), 100.0 ** (-torch.arange(0, 8, 2) / 8))
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles))
        self.q = nn.Linear(W, W)

    turn: Tensor

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).view(2, 6, 4, 8)
        turned = torch.view_as_complex(q.float().reshape(2, 6, 4, 4, 2)) * self.turn[None, :, None]
        return torch.view_as_real(turned).flatten(3) * x.sigmoid().view(2, 6, 4, 8)


class Cache(nn.Module):
    """Keys and values in buffers, one row more with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(W, W) for _ in range(3))
        self.register_buffer("keys", torch.zeros(1, 4, 8, 8))
        self.register_buffer("values", torch.zeros(1, 4, 8, 8))

    keys: Tensor
    values: Tensor

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        q, k, v = (layer(x).view(1, 1, 4, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        self.keys[:, :, place] = k
        self.values.index_copy_(2, place, v)
        mask = torch.arange(8) <= place
        return F.scaled_dot_product_attention(q, self.keys, self.values, mask[None, None, None])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, W), nn.Linear(W, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return F.log_softmax(self.head(F.layer_norm(self.words(tokens), (W,))), -1)


class Answers(nn.Module):
    """Takes keywords and dictionaries; returns dictionaries, tuples, None."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(W, W)

    def forward(self, batch: dict[str, Tensor], *, scale: float = 2.0, mask: Tensor | None = None) -> dict[str, Any]:
        y = F.relu(self.layer(batch["x"]) * scale) * batch["y"].sigmoid()
        return {"out": y, "pair": (y.sum(-1), None), "same": batch["x"], "mask": mask, "number": scale}


def _window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to the last four keys."""
    i, j = torch.arange(12)[:, None], torch.arange(12)
    return F.scaled_dot_product_attention(q, k, v, (i >= j) & (i - j < 4))


def _in_place(x: Tensor, state: Tensor) -> Tensor:
    state.mul_(0.9).add_(x.tanh() * x)
    x = x.clone()
    x[:, 0] = 1
    x[x > 1] = 0.5
    x.relu_()
    return x @ state.T


def _views(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.relu(x * 2 + 1)
    return y[:, ::2], y.t(), x[1:]


def _branches(x: Tensor) -> Tensor:
    y = F.silu(x) * x.tanh()
    while y.abs().max() > 1:
        y = y * 0.5 + 0.1
    return y @ y.T if bool((y > 0).any()) else y


def _checked(x: Tensor) -> Tensor:
    y = x.softmax(-1) * x
    print(end="")
    return y - y.mean().item()


def _autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.gelu(x @ w) * (x @ w).sigmoid()


def _inference(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        return F.gelu(x @ w) * x.sum()


def _integers(x: Tensor) -> Tensor:
    return (x * 2 + 1).clamp(0, 9) // 2 + (x % 3 == 0)


def _many(*tensors: Tensor) -> Tensor:
    return torch.stack([F.relu(t * n + 1) for n, t in enumerate(tensors)]).mean(0)


def _nothing(x: Tensor) -> None:
    x.sigmoid() * 2


def _empty(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.relu(x[:0] * 2 + 1), F.relu(x * 2) + x[:0].sum()


def _t(*shape: int) -> Tensor:
    return torch.randn(shape)


def _heads() -> tuple[Tensor, ...]:
    return _t(2, 4, 12, 8), _t(2, 4, 12, 8), _t(2, 4, 12, 8)


class Architecture(NamedTuple):
    """What makes a model, and what makes positional arguments of one call; the keywords of the call."""

    model: Callable[[], Callable[..., Any]]
    inputs: Callable[[], tuple[Any, ...]]
    keywords: dict[str, Any] | None = None


def _given(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    return lambda: function


ARCHITECTURES: dict[str, Architecture] = {
    "ViT block": Architecture(ViTBlock, lambda: (_t(2, 6, W),)),
    "MLP-Mixer": Architecture(Mixer, lambda: (_t(2, 6, W),)),
    "GPT-2 block": Architecture(GPT2, lambda: (_t(2, 6, W),)),
    "BERT layer": Architecture(
        lambda: nn.TransformerEncoderLayer(W, 4, 64, activation="gelu", batch_first=True), lambda: (_t(2, 6, W),)),
    "decoder layer": Architecture(
        lambda: nn.TransformerDecoderLayer(W, 4, 64, batch_first=True), lambda: (_t(2, 6, W), _t(2, 5, W))),
    "T5 block": Architecture(T5, lambda: (_t(2, 6, W),)),
    "GPT-NeoX block": Architecture(NeoX, lambda: (_t(2, 8, W),)),
    "RWKV": Architecture(Shifted, lambda: (_t(2, 6, W),)),
    "Mamba": Architecture(Mamba, lambda: (_t(2, 5, W),)),
    "experts": Architecture(Experts, lambda: (_t(5, W),)),
    "experts by index": Architecture(ExpertsByIndex, lambda: (_t(9, W),)),
    "U-Net": Architecture(UNet, lambda: (_t(2, 3, 8, 8),)),
    "LSTM cell": Architecture(Cell, lambda: (_t(3, W), (_t(3, W), _t(3, W)))),
    "LSTM": Architecture(lambda: nn.LSTM(W, W, batch_first=True), lambda: (_t(2, 4, W),)),
    "GRU": Architecture(lambda: nn.GRU(W, W), lambda: (_t(4, 2, W),)),
    "graph layer": Architecture(Graph, lambda: (_t(7, W), torch.randint(0, 7, (2, 12)))),
    "DLRM": Architecture(DLRM, lambda: (_t(4, 5), torch.randint(0, 20, (3, 4, 2)))),
    "DiT block": Architecture(DiT, lambda: (_t(2, 6, W), _t(2, W))),
    "conv net": Architecture(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                              nn.Linear(8, 5)), lambda: (_t(2, 3, 9, 9).to(memory_format=torch.channels_last),)),
    "complex rope": Architecture(Rope, lambda: (_t(2, 6, W),)),
    "sliding window": Architecture(_given(_window), _heads),
    "KV cache": Architecture(Cache, lambda: (_t(1, 1, W), torch.tensor([3]))),
    "tied weights": Architecture(Tied, lambda: (torch.randint(0, 20, (2, 6)),)),
    "dictionaries": Architecture(Answers, lambda: ({"x": _t(3, W), "y": _t(3, W)},), {"scale": 0.5}),
    "in place": Architecture(_given(_in_place), lambda: (_t(4, 4), _t(4, 4))),
    "views": Architecture(_given(_views), lambda: (_t(4, 6),)),
    "branches on data": Architecture(_given(_branches), lambda: (_t(5, 5),)),
    "printing": Architecture(_given(_checked), lambda: (_t(4, 5),)),
    "autocast": Architecture(_given(_autocast), lambda: (_t(4, 8), _t(8, 8))),
    "inference mode": Architecture(_given(_inference), lambda: (_t(4, 8), _t(8, 8))),
    "half on a CPU": Architecture(lambda: ViTBlock().half(), lambda: (_t(2, 6, W).half(),)),
    "float64": Architecture(lambda: Mixer().double(), lambda: (_t(2, 6, W).double(),)),
    "integers": Architecture(_given(_integers), lambda: (torch.arange(12).view(3, 4),)),
    "many inputs": Architecture(_given(_many), lambda: tuple(_t(3, 4) for _ in range(9))),
    "nothing": Architecture(_given(_nothing), lambda: (_t(3, 4),)),
    "no elements": Architecture(_given(_empty), lambda: (_t(3, 4),)),
}  # fmt: skip
