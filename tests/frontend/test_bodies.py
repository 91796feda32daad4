"""Branches and bodies of loops that a model calls have regions of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch._higher_order_ops.map import map as each
from torch._higher_order_ops.while_loop import while_loop

from mirage_nb.frontend.compiled import graphs
from tests.frontend.traced import Backend

Model = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


def branches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Each branch has an operator of its own to fuse; one asks for the size."""
    y = torch.relu(x @ w) * x

    def more(z: torch.Tensor) -> torch.Tensor:
        return torch.sin(z @ w) * 2 + z.shape[0]

    made: torch.Tensor = torch.cond(y.sum() > 0, more, lambda z: z.cos() * z + 1, (y,))
    return made * 2 + x


def nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Branches inside of a branch."""

    def inner(z: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.cond(z.sum() > 9, lambda u: u.tanh() * u + 1, lambda u: u.sigmoid() * 2 + u, (z,))
        return made * 3 + z

    made: torch.Tensor = torch.cond((x @ w).sum() > 0, inner, lambda z: z.exp() + z, (x,))
    return made


def loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def body(n: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return n + 1, torch.tanh(y @ w) + y * 0.5

    _, y = while_loop(lambda n, y: n < 3, body, (torch.tensor(0), torch.sigmoid(x) * x))
    return torch.relu(y) * 2 + x


def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = each(lambda row, w: torch.tanh(row @ w) * 2 + row, x, w)
    return made


def checked(model: Model, backend: Backend, dynamic: bool, **options: Any) -> None:
    compiled = torch.compile(model, backend=backend, dynamic=dynamic, options=options)
    w = torch.randn(4, 4)
    for count in (3, 5) if dynamic else (3, 3):
        for sign in (1, -1):
            x = torch.rand(count, 4) * sign
            close(compiled(x, w.abs()), model(x, w.abs()))


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("model", "inside"), [(branches, "sin"), (nested, "sigmoid"), (loop, "tanh"), (rows, "tanh")])
def test_what_a_model_calls_has_regions(model: Model, inside: str, dynamic: bool) -> None:
    backend = Backend()
    checked(model, backend, dynamic)
    report = backend.reports.all()
    assert all(entry.taken for entry in report.entries), str(report)
    assert sum(inside in entry.region.operators for entry in report.entries) == 1 + dynamic
    assert any("calls functions, there are regions inside of them" in why for why in report.reasons())


@torch.no_grad()
@pytest.mark.parametrize("model", [branches, loop])
def test_pytorchs_compiler_takes_them_with_sizes_that_are_not_fixed(model: Model) -> None:
    """It asks for what every operand is, numbers among them."""
    backend = Backend()
    checked(model, backend, True, remainder="inductor")
    report = backend.reports.all()
    assert all(entry.taken for entry in report.entries) and report.replaced >= 4, str(report)


def test_gradients_through_branches_come_in_between_calls() -> None:
    backend, w = Backend(), torch.randn(4, 4, requires_grad=True)
    compiled = torch.compile(branches, backend=backend, options={"wait": False})
    for _ in range(3):
        x = torch.rand(3, 4, requires_grad=True)
        ours, theirs = (torch.autograd.grad(f(x, w).square().sum(), (x, w)) for f in (compiled, branches))
        close(ours, theirs)
        for entry in backend.reports.all().entries:
            assert entry.kernel is not None and entry.kernel.job.wait(60)
    assert sum(entry.taken for entry in backend.reports.all().entries if "cos" in entry.region.operators) > 1


@torch.no_grad()
def test_what_cannot_be_replaced_is_called_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = graphs.replace

    def failing(*given: Any) -> None:
        changed(*given)
        raise ValueError("not today")

    monkeypatch.setattr(graphs, "replace", failing)
    backend = Backend()
    checked(branches, backend, False)
    report = backend.reports.all()
    assert report.replaced == 0 and "not today" in str(report)
