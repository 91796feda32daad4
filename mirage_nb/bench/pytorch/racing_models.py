"""Who takes part in `bench models`: eager PyTorch, the modes of torch.compile, and our backend.

In: a point. Out: outputs, errors against single precision, microseconds. Invariant: all contestants run the same
modules on the same inputs; who is further from single precision than eager PyTorch's own rounding explains is not
timed.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mirage_nb.bench.idioms import MODES
from mirage_nb.bench.kernels import OURS
from mirage_nb.bench.pytorch.layers import Config, Speaker, Stack
from mirage_nb.frontend.compiled.backend import compile_with
from mirage_nb.frontend.compiled.kernels import Kernels, Searched
from mirage_nb.frontend.compiled.report import Reports
from mirage_nb.runtime.contest.timing import Contestant, Lane, time_interleaved, took

if TYPE_CHECKING:
    from mirage_nb.bench.models import Point

OWN_GRAPHS = {"reduce-overhead": "reduce-overhead"}
"""Modes that replay CUDA graphs of their own, timed as they come."""
ALLOWED, LEAST = 2.0, 1e-3
"""So many times eager PyTorch's distance from single precision, and so much more, is right."""
REPEATS = 20
SPEAKER = Config(64, 4, 2, 96, keys=96)
WORDS = 256

Call = Callable[[], Any]
Module = Callable[..., Any]


@dataclass(frozen=True)
class Compared:
    """Errors of all and seconds of their first calls, calls of those that are right, why others are not, and what
    became of the regions."""

    errors: dict[str, float]
    first_calls: dict[str, float]
    calls: dict[str, Call]
    left_out: dict[str, str]
    regions: list[str]


@dataclass
class Contestants:
    """Everybody, on one device. `kernels` are those of our backend, `options` its options."""

    device: str
    kernels: Kernels
    options: Mapping[str, Any]
    modes: Mapping[str, str] = field(default_factory=lambda: {**MODES, **OWN_GRAPHS})

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    def stack(self, point: Point, layers: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The layers of a point with random weights, and what they are called with."""
        torch.manual_seed(0)
        with torch.device(self.device):
            stack = Stack(point.config, point.batch, layers).to(self.dtype).eval()
            x = torch.randn(point.batch, point.rows, point.config.width).to(self.dtype)
            if point.config.sphere:
                x = nn.functional.normalize(x, dim=-1)
            last = point.config.keys - 1
            positions = torch.arange(point.rows) if point.rows > 1 else torch.tensor([last])
        return stack, (x, positions)

    def compared(self, stack: nn.Module, inputs: tuple[Tensor, ...], until: float = math.inf) -> Compared:
        """Who is right. No mode of torch.compile but the first is begun after the clock (`time.monotonic`) says
        `until`."""
        reports = Reports()
        with _alone():
            wanted = copy.deepcopy(stack).float()(*(x.float() if x.is_floating_point() else x for x in inputs))
            entrants: dict[str, Module] = {"eager": stack, OURS: self.ours(stack, reports)}
            entrants |= {name: torch.compile(stack, mode=mode, dynamic=False) for name, mode in self.modes.items()}
            errors, first_calls = dict[str, float](), dict[str, float]()
            calls, left_out = dict[str, Call](), dict[str, str]()
            for name, module in entrants.items():
                if name in [*self.modes][1:] and time.monotonic() > until:
                    left_out[name] = "there was no time for it"
                    continue
                try:
                    began = time.monotonic()
                    module(*inputs)
                    first_calls[name] = time.monotonic() - began
                    errors[name] = error = _distance(module(*inputs), wanted)
                except Exception as failed:  # noqa: BLE001  # who cannot run is no contestant
                    left_out[name] = f"{type(failed).__name__}: {(str(failed).splitlines() or [''])[0][:160]}"
                    continue
                if error <= ALLOWED * errors["eager"] + LEAST:
                    calls[name] = partial(module, *inputs)
                else:
                    left_out[name] = f"{error:.1e} off single precision, eager PyTorch {errors['eager']:.1e}"
        return Compared(errors, first_calls, calls, left_out, str(reports.all()).splitlines())

    def ours(self, module: nn.Module, reports: Reports) -> Module:
        """A module through our backend, kernels in place from its first call on."""

        def backend(gm: Any, examples: Any) -> Any:
            return compile_with(self.kernels, reports, gm, examples, options={"wait": True, **self.options})

        compiled: Module = torch.compile(module, backend=backend, dynamic=False)
        return compiled

    def timed(self, calls: Mapping[str, Call]) -> dict[str, float]:
        """Microseconds of calls on a GPU, in turns."""
        if self.device != "cuda":
            return {}
        captured = [Contestant(name, [call]) for name, call in calls.items() if name not in OWN_GRAPHS]
        with torch.no_grad():
            us = {t.name: t.median_us for t in time_interleaved(captured, Lane(torch, None), repeats=REPEATS)}
            return us | {name: _replayed(call) for name, call in calls.items() if name in OWN_GRAPHS}

    def spoken(self, tokens: int, *, ours: bool) -> tuple[list[int], list[float]]:
        """What a small seeded model says, the likeliest word each time, and how far ahead that was of the next one."""
        torch.manual_seed(0)
        with torch.device(self.device):
            model = Speaker(SPEAKER, WORDS).eval()
        said, margins = [1], []
        with _alone():
            run = self.ours(model, Reports()) if ours else model
            for position in range(tokens):
                place = torch.tensor([position], device=self.device)
                logits = run(torch.tensor([said[-1]], device=self.device), place)[0]
                best = logits.topk(2).values
                margins.append(float((best[0] - best[1]) / logits.abs().max()))
                said.append(int(logits.argmax()))
        return said[1:], margins


def contestants(device: str, budget: float, total: float | None, store: str | None) -> Contestants:
    """Everybody, with kernels that are searched for: so many seconds for each region, and for all of a point."""
    return Contestants(device, Kernels(Searched()), {"seconds": budget, "total": total, "store": store})


@contextmanager
def _alone() -> Iterator[None]:
    """Nothing that was compiled before is in the way, and no derivatives are kept."""
    torch._dynamo.reset()
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=64):
        yield


def _distance(found: Tensor, wanted: Tensor) -> float:
    """The relative error in the Frobenius norm."""
    off = float((found.double() - wanted.double()).norm() / wanted.double().norm())
    return off if off == off else float("inf")


def _replayed(call: Call) -> float:
    """The median of calls one by one, as the card sees them."""
    for _ in range(5):
        call()
    return statistics.median(took(call, torch) for _ in range(REPEATS))
