"""The layers of the models of `bench models`, in plain PyTorch as people write them.

In: a `Config`. Out: a `Stack` of layers with weights of their own and a static cache of keys and values. Shapes are
those of the published models; nothing here knows of this package. Sources: the models' own descriptions (LLaMA 3 8B,
Chameleon 7B, nGPT 1B, GPT-3 6.7B with LoRA adapters of rank 16 on its four projections, Qwen3 8B).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Config:
    """A layer. `kept`: heads of keys; `keys`: rows of the cache; `qk_norm`, `mlp`, `rank`, `sphere`: which kind it is.

    Attributes:
        qk_norm: whether queries and keys are normalised head by head (RMS).
        mlp: `swiglu`, or `gelu` with biases and layer norms in front, as in GPT-3.
        rank: of the LoRA adapters, 0 for none.
        sphere: whether it is a layer of nGPT, whose tokens are points of a sphere.
    """

    width: int
    heads: int
    kept: int
    hidden: int
    keys: int = 4096
    qk_norm: bool = False
    mlp: str = "swiglu"
    rank: int = 0
    sphere: bool = False

    @property
    def size(self) -> int:
        """The extent of a head."""
        return self.width // self.heads


MODELS = {
    "llama-3-8b": Config(4096, 32, 8, 14336),
    "chameleon-7b": Config(4096, 32, 32, 11008, qk_norm=True),
    "ngpt-1b": Config(2048, 16, 16, 8192, sphere=True),
    "gpt-3-7b-lora": Config(4096, 32, 32, 16384, mlp="gelu", rank=16),
    "qwen3-8b": Config(4096, 32, 8, 12288, qk_norm=True),
}


def small(config: Config) -> Config:
    """The same kind of layer, for trying things out."""
    return replace(config, width=64, heads=4, kept=max(1, 4 * config.kept // config.heads), hidden=96, keys=32,
                   rank=min(config.rank, 4))  # fmt: skip


class Adapted(nn.Module):
    """A linear layer, with a LoRA adapter beside it where it has a rank."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, rank: int = 0) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=bias)
        self.down = nn.Linear(inputs, rank, bias=False) if rank else None
        self.up = nn.Linear(rank, outputs, bias=False) if rank else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        return y if self.down is None or self.up is None else y + self.up(self.down(x)) * 2.0


class Attention(nn.Module):
    """Attention over a static cache: it writes keys and values at the positions of its tokens, and reads all rows."""

    def __init__(self, config: Config, batch: int) -> None:
        super().__init__()
        self.config = config
        bias, rank = config.mlp == "gelu", config.rank
        out, kept = config.heads * config.size, config.kept * config.size
        self.q = Adapted(config.width, out, bias=bias, rank=rank)
        self.k = Adapted(config.width, kept, bias=bias, rank=rank)
        self.v = Adapted(config.width, kept, bias=bias, rank=rank)
        self.o = Adapted(out, config.width, bias=bias, rank=rank)
        if config.qk_norm:
            self.q_norm, self.k_norm = nn.RMSNorm(config.size, eps=1e-6), nn.RMSNorm(config.size, eps=1e-6)
        if config.sphere:
            self.s_qk = nn.Parameter(torch.ones(config.size))
        shape = (batch, config.kept, config.keys, config.size)
        self.register_buffer("keys", torch.randn(shape))
        self.register_buffer("values", torch.randn(shape))
        frequencies = 500000.0 ** (-torch.arange(0, config.size, 2) / config.size)
        angles = (torch.arange(config.keys)[:, None] * frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    keys: Tensor
    values: Tensor
    cos: Tensor
    sin: Tensor

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.config.size).transpose(1, 2)

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return x * cos + torch.cat((-other, one), -1) * sin

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (self.heads(layer(x)) for layer in (self.q, self.k, self.v))
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.config.mlp != "gelu":
            cos, sin = self.cos[positions], self.sin[positions]
            q, k = self.rotated(q, cos, sin), self.rotated(k, cos, sin)
        scale = None
        if self.config.sphere:
            q, k = F.normalize(q, dim=-1) * self.s_qk, F.normalize(k, dim=-1) * self.s_qk
            scale = math.sqrt(self.config.size)
        self.keys.index_copy_(2, positions, k)
        self.values.index_copy_(2, positions, v)
        prefill = mask is None and x.shape[1] > 1
        keys, values = (k, v) if prefill else (self.keys, self.values)
        made = F.scaled_dot_product_attention(
            q, keys, values, mask, is_causal=prefill, scale=scale, enable_gqa=self.config.kept != self.config.heads
        )
        y: Tensor = self.o(made.transpose(1, 2).reshape(*x.shape[:2], -1))
        return y


class Mlp(nn.Module):
    """SwiGLU, or two layers with a GELU between them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        bias = config.mlp == "gelu"
        self.up = nn.Linear(config.width, config.hidden, bias=bias)
        self.down = nn.Linear(config.hidden, config.width, bias=bias)
        if not bias:
            self.gate = nn.Linear(config.width, config.hidden, bias=False)
        if config.sphere:
            self.s_u, self.s_v = nn.Parameter(torch.ones(config.hidden)), nn.Parameter(torch.ones(config.hidden))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor
        if self.config.mlp == "gelu":
            y = self.down(F.gelu(self.up(x)))
        elif self.config.sphere:
            gate = self.gate(x) * (self.s_v * math.sqrt(self.config.width))
            y = self.down(F.silu(gate) * (self.up(x) * self.s_u))
        else:
            y = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Layer(nn.Module):
    """One layer: attention and an MLP, each behind a norm and beside a residual; on the sphere for nGPT."""

    def __init__(self, config: Config, batch: int) -> None:
        super().__init__()
        self.config = config
        self.attention, self.mlp = Attention(config, batch), Mlp(config)
        self.before: nn.Module
        self.between: nn.Module
        if config.sphere:
            self.alpha_a = nn.Parameter(torch.full((config.width,), 0.05))
            self.alpha_m = nn.Parameter(torch.full((config.width,), 0.05))
        elif config.mlp == "gelu":
            self.before, self.between = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        else:
            self.before, self.between = nn.RMSNorm(config.width, eps=1e-5), nn.RMSNorm(config.width, eps=1e-5)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.config.sphere:
            x = self.moved(x, self.attention(x, positions, mask), self.alpha_a)
            return self.moved(x, self.mlp(x), self.alpha_m)
        x = x + self.attention(self.before(x), positions, mask)
        y: Tensor = x + self.mlp(self.between(x))
        return y

    def moved(self, x: Tensor, to: Tensor, alpha: Tensor) -> Tensor:
        return F.normalize(x + alpha * (F.normalize(to, dim=-1) - x), dim=-1)


class Stack(nn.Module):
    """Layers one after the other: what a model is between its embedding and its head."""

    def __init__(self, config: Config, batch: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, batch) for _ in range(layers))

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, positions, mask)
        return x


class Speaker(nn.Module):
    """A whole small model: an embedding, a stack, a head. The cache is filled token by token, under a mask."""

    def __init__(self, config: Config, words: int, layers: int = 2) -> None:
        super().__init__()
        self.keys = config.keys
        self.embedding, self.stack = nn.Embedding(words, config.width), Stack(config, 1, layers)
        self.norm, self.head = nn.RMSNorm(config.width), nn.Linear(config.width, words, bias=False)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        mask = torch.arange(self.keys, device=token.device) <= position
        y: Tensor = self.head(self.norm(self.stack(self.embedding(token)[:, None], position, mask[None, None, None])))
        return y[:, -1]
