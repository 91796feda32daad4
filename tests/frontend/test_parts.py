"""Regions in parts: where a whole region has no kernel, or none that saves more than kernels for its parts."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn

from mirage_nb.frontend.compiled.kernels import Found
from mirage_nb.frontend.compiled.options import Options
from mirage_nb.ir import KernelGraph, OpKind
from tests.frontend.traced import Backend, Block, Composed


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


def products(graph: KernelGraph) -> int:
    return sum(op.kind is OpKind.MATMUL for op in graph.ops)


class Projected(nn.Module):
    """A norm, and three layers that read it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(32)
        self.q, self.k, self.v = (nn.Linear(32, wide, bias=False) for wide in (32, 16, 16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(x)
        return self.q(y), self.k(y), self.v(y)


@torch.no_grad()
@pytest.mark.parametrize("make", [pytest.param(Block, marks=pytest.mark.slow), Projected])
def test_a_region_without_a_kernel_is_searched_in_parts(make: Any) -> None:
    """Twice the same model: kernels of parts that are known already are found again."""
    backend = Backend(Composed(broken=lambda graph: len(graph.ops) > 12 and products(graph) > 1))
    for _ in range(2):
        torch._dynamo.reset()
        model, x = make(), torch.randn(4, 32)
        compiled = torch.compile(model, backend=backend)
        for found, wanted in zip(compiled(x), model(x), strict=True):
            close(found, wanted)
    first, second = backend.reports.all().graphs
    whole, *parts = first.entries
    assert len(backend.finder.asked) == len({e.region.digest for e in first.entries})
    assert whole.state == "in parts: there is no kernel"
    taken = [entry.region for entry in parts if entry.taken]
    assert len(taken) > 1 and {node for part in taken for node in part.covers} == {*whole.region.covers}
    assert [entry.taken for entry in second.entries] == [entry.taken for entry in first.entries]


@torch.no_grad()
def test_no_part_reads_a_result_of_an_operator_that_it_computes() -> None:
    """A variance takes the mean that is returned: what reads that as a tensor is not compared with another mean."""

    def normed(x: Any, w: Any) -> Any:
        spread, middle = torch.var_mean(x, -1, correction=0, keepdim=True)
        scaled = (x - middle) * torch.rsqrt(spread + 1e-5)
        return middle, scaled, scaled @ w

    backend, inputs = Backend(Composed(broken=lambda graph: products(graph) > 0)), (torch.randn(4, 32), torch.eye(32))
    close(torch.compile(normed, backend=backend)(*inputs), normed(*inputs))
    assert not any("off PyTorch's own" in entry.state for entry in backend.reports.all().entries)


@torch.no_grad()
def test_a_part_reads_what_pytorch_computes_twice() -> None:
    """The norm in front of the division is the one that is returned, though PyTorch does not see it."""

    def scaled(x: Any, w: Any) -> Any:
        return x.square().sum(1, True).sqrt(), (x / x.pow(2.0).sum(1, True).sqrt().clamp_min(1e-12)) @ w

    backend, inputs = Backend(Composed(broken=lambda graph: len(graph.ops) > 5)), (torch.randn(4, 32), torch.eye(32))
    close(torch.compile(scaled, backend=backend)(*inputs), scaled(*inputs))
    _, *parts = backend.reports.all().entries
    assert len(parts) > 1 and all(part.taken for part in parts), str(backend.reports.all())


@torch.no_grad()
def test_a_tensor_without_dimensions_does_not_count_for_the_type_of_a_part() -> None:
    """As PyTorch has it of a learned temperature in single precision beside halves."""

    def scores(x: Any, y: Any, temperature: Any) -> Any:
        return (F.normalize(x) * temperature.exp()) @ F.normalize(y).T

    backend = Backend(Composed(broken=lambda graph: len(graph.ops) > 12))
    inputs = torch.randn(4, 32).bfloat16(), torch.randn(4, 32).bfloat16(), torch.tensor(2.0)
    found, wanted = torch.compile(scores, backend=backend)(*inputs), scores(*inputs)
    torch.testing.assert_close(found, wanted, rtol=5e-2, atol=5e-2)
    _, *parts = backend.reports.all().entries
    assert len(parts) > 1 and all(part.taken for part in parts), str(backend.reports.all())


@torch.no_grad()
@pytest.mark.parametrize(("kernels", "saved", "taken"), [(6, 1.0, "parts"), (6, 9.0, "whole"), (1, 1.0, "whole")])
def test_a_region_put_together_is_kept_where_it_saves_more_than_its_parts(
    kernels: int, saved: float, taken: str
) -> None:
    """A kernel of its own is taken as it is; what is put together of many is compared with kernels for the parts."""

    class Measured(Composed):
        def find(self, graph: KernelGraph, name: str, device: str, options: Options) -> Any:
            run = super().find(graph, name, device, options).run
            whole = products(graph) == 3
            session: Any = SimpleNamespace(best=SimpleNamespace(candidate=SimpleNamespace(kernels=kernels)))
            return Found(run, 20 - saved, 20, session) if whole else Found(run, 2, 4)

    backend, model, x = Backend(Measured()), Projected(), torch.randn(4, 32)
    for found, wanted in zip(torch.compile(model, backend=backend)(x), model(x), strict=True):
        close(found, wanted)
    (whole, *parts) = backend.reports.all().entries
    assert whole.taken == (taken == "whole") and all(part.taken for part in parts)
    assert bool(parts) == (taken == "parts") and (len(backend.finder.asked) > 1) == (kernels > 1)


@torch.no_grad()
@pytest.mark.parametrize(("saved", "taken"), [(1.0, False), (9.0, True)])
def test_what_pytorch_would_have_fused_around_a_region_counts(saved: float, taken: bool) -> None:
    """Two lookups of angles and a write into a cache: kernels of their own beside one of ours."""

    class Measured(Composed):
        def find(self, *args: Any) -> Any:
            return Found(super().find(*args).run, 20 - saved, 20)

    def rotated(x: Any, table: Any, places: Any, cache: Any) -> Any:
        turned = x * table[places] + torch.cat((-x[:, 4:], x[:, :4]), -1) * table[places + 1]
        return cache.index_copy(0, places, turned)

    backend, inputs = Backend(Measured()), (torch.randn(3, 8), torch.randn(9, 8), torch.arange(3), torch.randn(5, 8))
    close(torch.compile(rotated, backend=backend)(*inputs), rotated(*inputs))
    (entry,) = backend.reports.all().entries
    assert len(entry.seams) == 3 and entry.taken == taken
    assert taken or entry.state == "found; PyTorch fuses it with 3 operators around it"


@torch.no_grad()
@pytest.mark.parametrize(("before", "taken"), [(2.0, 0), (20.0, 3)])
def test_what_stands_beside_a_region_that_is_left_is_fused_with_it_by_pytorch(before: float, taken: int) -> None:
    """Norms of heads in front of a rotation that PyTorch computes as fast: all of it is one kernel of its own."""

    class Measured(Composed):
        def find(self, graph: KernelGraph, *more: Any) -> Any:
            turned = len(graph.outputs) == 2
            return Found(super().find(graph, *more).run, 2.0 if turned else 1.5, before if turned else 2.0)

    def halves(x: Any) -> Any:
        return torch.cat((-x[..., 4:], x[..., :4]), -1)

    def rotated(q: Any, k: Any, w: Any, v: Any, cos: Any, sin: Any) -> Any:
        q, k = F.rms_norm(q, (8,), w), F.rms_norm(k, (8,), v)
        return q * cos + halves(q) * sin, k * cos + halves(k) * sin

    backend, heads = Backend(Measured()), [torch.randn(1, 4, 1, 8) for _ in range(2)]
    inputs = *heads, *(torch.randn(8) for _ in range(2)), *(torch.randn(1, 8) for _ in range(2))
    for found, wanted in zip(torch.compile(rotated, backend=backend)(*inputs), rotated(*inputs), strict=True):
        close(found, wanted)
    entries = backend.reports.all().entries
    assert len(entries) == 3 and backend.replaced == taken
    assert sum(entry.state.startswith("found; PyTorch fuses it with") for entry in entries) == (0 if taken else 2)


@torch.no_grad()
def test_what_moves_the_most_bytes_wherever_it_stands_is_searched_first() -> None:
    """Among them parts of what has no kernel."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.often = Projected(), nn.ModuleList(nn.Linear(24, 24) for _ in range(6))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            for layer in self.often:
                y = torch.sort(torch.relu(layer(y)) * 2, -1).values
            return *self.large(x), y

    backend = Backend(Composed(broken=lambda graph: products(graph) == 3))
    begun = torch.compile(Model(), backend=backend, options={"wait": False})
    queue = backend.kernels._later
    queue._threads.append(threading.current_thread())  # nobody works yet
    begun(torch.randn(4, 32), torch.randn(4, 24))
    order = []
    while not queue._jobs.empty():
        queue._jobs.get()[-1].run()
        order.append(sum(i.type.nbytes for i in backend.finder.asked[-1].inputs))
    often, large, *parts = order
    assert large > often and parts == sorted(parts, reverse=True) and len(parts) > 1


@torch.no_grad()
@pytest.mark.parametrize(
    ("took", "total", "asked", "taken"),
    [((30, 8), 99, 2, True), ((30, 25), 99, 2, False), ((25, 30), 99, 2, False), ((17, 18), 99, 2, True),
     ((30, 8), None, 1, False), ((14, 8), 99, 1, True)],
)  # fmt: skip
def test_what_takes_far_longer_than_estimated_is_searched_for_once_more(
    took: tuple[float, float], total: float | None, asked: int, taken: bool
) -> None:
    """If there is time for all: where others have the cores or the card, a search sees little of what it found."""

    class Measured(Composed):
        def find(self, *args: Any) -> Any:
            run, us = super().find(*args).run, took[len(self.asked) - 1]
            best = SimpleNamespace(candidate=SimpleNamespace(kernels=1))
            known = SimpleNamespace(candidates=[SimpleNamespace(estimate_us=us) for us in (10.0, 90.0)])
            session: Any = SimpleNamespace(best=best, result=lambda: known)
            return Found(run, us, 20, session)

    backend, inputs = Backend(Measured()), (torch.randn(4, 32), torch.randn(4, 32))
    found = torch.compile(lambda x, y: (x * y).exp().sum(1), backend=backend, options={"total": total})(*inputs)
    close(found, (inputs[0] * inputs[1]).exp().sum(1))
    (entry,) = backend.reports.all().entries
    assert len(backend.finder.asked) == asked and entry.taken == taken
    assert entry.kernel is not None and entry.kernel.found is not None and entry.kernel.found.us == min(took[:asked])
    assert taken or f"the best kernel {min(took[:asked]):.1f} us" in entry.state
