"""torch.compile with our backend in training: gradients are those of eager PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from mirage_nb.frontend.compiled import graphs, mutated
from mirage_nb.frontend.compiled.mutated import KeepOverwritten, passes
from tests.frontend.traced import Backend, Block, block_by_block


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


class Adapted(nn.Module):
    """A linear layer with a LoRA adapter beside it."""

    def __init__(self, width: int = 32, rank: int = 4) -> None:
        super().__init__()
        self.base, self.down = nn.Linear(width, width), nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.base(x) + self.up(self.down(x)) * 2
        return made


@pytest.mark.parametrize("make", [Block, Adapted, lambda: nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 16))])
def test_gradients_are_pytorchs_with_regions_replaced_forwards_and_backwards(make: Any) -> None:
    backend, model, x = Backend(), make(), torch.randn(4, 32, requires_grad=True)
    torch.compile(model, backend=backend)(x).square().sum().backward()
    assert x.grad is not None
    found, x.grad = x.grad, None
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    close(found, x.grad)
    for ours, parameter in zip(gradients, model.parameters(), strict=True):
        close(ours, parameter.grad)
    forwards, backwards = backend.reports.all().graphs
    assert all(any(entry.taken for entry in graph.entries) for graph in (forwards, backwards))


class Centered(nn.Module):
    """Derivatives need what was computed from a buffer before it was overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("center", torch.zeros(1, 8))

    center: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.center.mul_(0.9).add_(y.detach().mean(0, keepdim=True), alpha=0.5)
        return (torch.softmax((y.detach() - self.center) / 0.04, -1).sin() * torch.log_softmax(y, -1)).sum()


def test_gradients_of_what_was_read_before_it_is_overwritten() -> None:
    """PyTorch's own compiler computes it again from the new elements."""
    theirs, ours, backend, gradients = Centered(), Centered(), Backend(), []
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 8)
    for model in (theirs, torch.compile(ours, backend=backend)):
        given = x.clone().requires_grad_()
        model(given).backward()
        gradients.append(given.grad)
    close(*gradients)
    close(ours.center, theirs.center)
    assert backend.replaced > 0


def queued(queue: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Rows are compared with older ones, some of which they take the place of."""
    scores = x @ queue.clone().T
    queue[1:3] = x.detach()[:2]
    return torch.log_softmax(scores, -1)[:, 0]


def scaled(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    made = x * scale.clone().t().t() + scale[:1].clone().expand(4, 8) * x.sin()
    scale.mul_(0.9)
    return made.tanh()


@pytest.mark.parametrize("model", [queued, scaled])
def test_gradients_that_read_what_is_overwritten(model: Any) -> None:
    """PyTorch's own compiler takes the copy that was made before for none."""
    given, found, backend = [torch.randn(4, 8) for _ in range(2)], [], Backend()
    for one in (model, torch.compile(model, backend=backend)):
        state, x = given[0].clone(), given[1].clone().requires_grad_()
        found.append((*torch.autograd.grad(one(state, x).square().sum(), x), state))
    close(*found)
    assert backend.replaced > 0


def online(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A softmax block by block: the first maximum, minus infinity, counts for nothing, and PyTorch computes with it."""
    made, total, most = block_by_block(q, k, v)
    return made / total[:, None] + (most + total.log())[:, None]


def test_gradients_of_maxima_that_begin_at_infinity() -> None:
    backend, inputs = Backend(), [torch.randn(4, 8, requires_grad=True) for _ in range(3)]
    functions = torch.compile(online, backend=backend), online
    close(*(torch.autograd.grad(f(*inputs).square().sum(), inputs) for f in functions))
    report = backend.reports.all()
    assert report.replaced and not any(graph.trouble for graph in report.graphs), str(report)


def history(state: torch.Tensor, before: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What a state was is kept in another buffer."""
    old = state.clone()
    state.mul_(0.9).add_(x.detach())
    before.copy_(old)
    return (torch.tanh(x) * x - before).sin()


def swapped(one: torch.Tensor, other: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    old = one.clone()
    one.copy_(other)
    other.copy_(old)
    return (one - other).sin() * torch.tanh(x) * x


@pytest.mark.parametrize("remainder", ["eager", "inductor"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("model", [history, swapped])
def test_what_is_copied_into_an_input_is_what_was_there(model: Any, training: bool, remainder: str) -> None:
    """PyTorch's own compiler takes the copy that was made before for none."""
    inputs = [torch.randn(4, 8) for _ in range(3)]
    compiled, backend = [], Backend()
    for one in (model, torch.compile(model, backend=backend, options={"remainder": remainder})):
        given = [x.clone() for x in inputs]
        given[2].requires_grad_(training)
        made = one(*given)
        if training:
            made.square().sum().backward()
        compiled.append((made, given[:2], given[2].grad))
    close(*compiled)
    assert backend.replaced > 0


def test_a_pass_of_ones_own_is_done_too() -> None:
    """It and ours are one pass: before 2.13 PyTorch had no lists of them."""
    seen: list[Any] = []
    with torch._inductor.config.patch(joint_custom_post_pass=seen.append):
        torch.compile(Centered(), backend=Backend())(torch.randn(4, 8)).backward()
    assert len(seen) == 1 and isinstance(seen[0], torch.fx.Graph)
    assert callable(passes({})["joint_custom_post_pass"])


def test_what_is_kept_on_disk_is_the_whole_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's compiler finds what it made before by the settings: another version of any file is another one."""
    assert {Path(one.__file__).name for one in (graphs, mutated)} < {Path(path).name for path in mutated.SOURCES}
    seen, plain = [], graphs.eager

    def build(*arguments: Any, **more: Any) -> Any:
        seen.append(torch._inductor.config.joint_custom_post_pass)
        return plain(*arguments, **more)

    monkeypatch.setattr(graphs, "eager", build)
    with torch.no_grad():  # compiled at the first call, when PyTorch's compiler has ended
        torch.compile(Centered(), backend=Backend())(torch.randn(4, 8))
    assert seen and all(isinstance(one, KeepOverwritten) for one in seen)
