"""Graphs as the inner compiler of torch.compile gets them, kernels that need no search, and a block of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mirage_nb.bench.pytorch import running_modules
from mirage_nb.errors import LaunchError
from mirage_nb.frontend.compiled.backend import compile_inside, compile_with
from mirage_nb.frontend.compiled.kernels import Found, Kernels
from mirage_nb.frontend.compiled.options import Options
from mirage_nb.frontend.compiled.regions import Regions, find_regions
from mirage_nb.frontend.compiled.report import Reports
from mirage_nb.ir import KernelGraph
from mirage_nb.targets import find_target


@contextlib.contextmanager
def anew() -> Iterator[None]:
    """PyTorch's compiler takes no graph from its disk; what g++ made of the same text stays."""
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        yield


def regions_of(model: Any, *inputs: Any) -> Regions:
    """The regions of the first graph that torch.compile makes of a model."""
    found: list[Regions] = []

    def inner(gm: torch.fx.GraphModule, example_inputs: Any, **more: Any) -> Callable[[list[Any]], Any]:
        found.append(find_regions(gm, find_target("h200"), more["static_input_idxs"]))

        def run(arguments: list[Any]) -> Any:
            raise Seen

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        return compile_inside(inner, gm, example_inputs, {})

    torch._dynamo.reset()
    with torch.no_grad():
        try:
            torch.compile(model, backend=backend, dynamic=False)(*inputs)
        except Seen:
            pass
    return found[0]


class Block(nn.Module):
    """A norm, a gated layer and a residual."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def block_by_block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A softmax, two keys at a time, whose maximum begins at minus infinity: what it weighs, the sum of its weights,
    and the largest score."""
    most, total, made = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), v.shape[1])
    for keys, values in zip(k.split(2), v.split(2), strict=True):
        scores = q @ keys.T
        fresh = torch.maximum(most, scores.amax(-1))
        weights, fall = torch.exp(scores - fresh[:, None]), torch.exp(most - fresh)
        total, made, most = total * fall + weights.sum(-1), made * fall[:, None] + weights @ values, fresh
    return made, total, most


class Seen(Exception):
    """The graph was seen; nothing more is wanted of it."""


class Composed(running_modules.Composed):
    """Keeps what it was asked for, and finds nothing for some programs."""

    def __init__(self, broken: Callable[[KernelGraph], bool] = lambda graph: False) -> None:
        self.broken = broken
        self.asked: list[KernelGraph] = []

    def find(self, graph: KernelGraph, name: str, device: str, options: Options) -> Found:
        self.asked.append(graph)
        if self.broken(graph):
            raise LaunchError("there is no kernel")
        return super().find(graph, name, device, options)


class Backend:
    """The backend with kernels and reports of its own, and with eager PyTorch for what is left."""

    def __init__(self, finder: Any = None) -> None:
        self.finder = Composed() if finder is None else finder
        self.kernels = Kernels(self.finder)
        self.reports = Reports()

    def __call__(self, gm: Any, example_inputs: Any, *, mode: Any = None, options: Any = None) -> Any:
        chosen = {"remainder": "eager", "wait": True, **(options or {})}
        return compile_with(self.kernels, self.reports, gm, example_inputs, mode=mode, options=chosen)

    @property
    def replaced(self) -> int:
        return self.reports.all().replaced
