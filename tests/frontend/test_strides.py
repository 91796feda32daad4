"""How tensors lie in memory: results as they did, whatever computes them and what they are computed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F

from mirage_nb.frontend.compiled import graphs
from tests.frontend.traced import Backend


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"options": {"remainder": "inductor"}}])
def test_results_that_lie_in_columns_are_computed_and_lie_so(options: Any) -> None:
    """A residual of rows that attention had in another order, a view of one, and what derivatives keep of them."""
    torch._dynamo.reset()

    def model(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.silu(x.transpose(0, 1) @ w).transpose(0, 1) + x.sigmoid().transpose(0, 1).contiguous().transpose(0, 1)
        return y, F.layer_norm(y, (8,)) @ w, (y.tanh() * 2).transpose(0, 1)

    backend, inputs = Backend(), [torch.randn(shape, requires_grad=True) for shape in ((3, 5, 8), (8, 8))]
    compiled = torch.compile(model, backend=backend, **options)
    wanted = model(*inputs)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), wanted, rtol=2e-3, atol=2e-3)
    found = compiled(*inputs)
    assert [made.stride() for made in found] == [made.stride() for made in wanted] and wanted[0].stride() == (8, 24, 1)
    ours, theirs = (torch.autograd.grad(sum(y.square().sum() for y in made), inputs) for made in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
    report = backend.reports.all()
    assert all(graph.entries and not graph.trouble for graph in report.graphs) and report.replaced


def test_a_view_of_what_is_put_together_lies_as_it_did() -> None:
    """Rotated heads, as derivatives keep them."""
    torch._dynamo.reset()

    def rotated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q = (x @ w).view(2, 5, 2, 8).transpose(1, 2)
        q = torch.cat((q[..., :4].sin(), q[..., 4:]), -1)
        return (q @ q.mT).softmax(-1)

    backend, inputs = Backend(), [torch.randn(shape, requires_grad=True) for shape in ((2, 5, 16), (16, 16))]
    made = (model(*inputs).square().sum() for model in (torch.compile(rotated, backend=backend), rotated))
    torch.testing.assert_close(*(torch.autograd.grad(one, inputs) for one in made), rtol=2e-3, atol=2e-3)
    assert all(graph.entries and not graph.trouble for graph in backend.reports.all().graphs)


def turned(x: torch.Tensor) -> torch.Tensor:
    """Channels last to a program, which writes them so; to PyTorch they lie as they did."""
    y = x.movedim(1, -1)
    return (F.gelu(y * 2) * y.sigmoid()).movedim(-1, 1).contiguous()


def convolved(x: torch.Tensor) -> torch.Tensor:
    """By elements of its own: a convolution lies as what it reads."""
    return F.conv2d(turned(x), x[:, :, :2, :2])


def test_what_is_computed_from_results_that_lie_otherwise_lies_as_it_did() -> None:
    torch._dynamo.reset()
    backend, x = Backend(), torch.randn(2, 8, 4, 4, requires_grad=True)

    def model(x: torch.Tensor) -> torch.Tensor:
        return convolved(x).relu()

    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        assert compiled(x).is_contiguous()
    found = compiled(x).view(2, -1)  # which a tensor whose channels lie last does not have
    ours, theirs = (torch.autograd.grad(made.square().sum(), x) for made in (found, model(x)))
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
    assert backend.replaced and not any(graph.trouble for graph in backend.reports.all().graphs)


@torch.no_grad()
@pytest.mark.parametrize(
    "model",
    [
        lambda x: convolved(x).as_strided((2, 4, 2), (18, 4, 1), 1) * 2 + 1,
        lambda x: torch.fft.fft(torch.view_as_complex(turned(x.reshape(2, 64, 2))), dim=1),
        lambda x: turned(x.reshape(2, 64, 2)).view(torch.int16)[..., 1::2] // 4096,
    ],
)
def test_who_reads_as_it_lies_finds_it_so(model: Callable[[torch.Tensor], Any]) -> None:
    torch._dynamo.reset()
    backend, x = Backend(), torch.randn(2, 8, 4, 4)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x), rtol=2e-3, atol=2e-3)
    assert backend.replaced and not any(graph.trouble for graph in backend.reports.all().graphs)


def test_all_that_derivatives_were_told_of_lies_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's compiler puts channels of what it keeps for them last where it likes, as around convolutions."""
    torch._dynamo.reset()
    kept: list[set[int]] = []

    def build(gm: Any, examples: Any, **more: Any) -> Any:
        (output,) = gm.graph.find_nodes(op="output")
        made = [n for n, node in enumerate(output.args[0]) if getattr(node, "op", "") == "call_function"]
        kept.append({*made} - {*output.meta["user_visible_output_idxs"]})
        return graphs.eager(gm, examples, **more)

    monkeypatch.setattr(graphs, "compile_fx_inner", build)

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q = x.unflatten(-1, (4, 4)).transpose(1, 2)
        return F.conv1d(((q @ q.mT).softmax(-1) @ q).transpose(1, 2).flatten(2).mT, w).relu()

    inputs = [torch.randn(shape, requires_grad=True) for shape in ((2, 6, 16), (8, 16, 3))]
    torch.compile(model, backend=Backend(), options={"remainder": "inductor"})(*inputs)
    plain, changed = kept
    assert plain and not changed


@torch.no_grad()
def test_results_of_every_size_lie_as_pytorchs_code_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which it tells of the first size, and of one of the results alone."""
    torch._dynamo.reset()
    monkeypatch.setattr(graphs, "_reported", lambda: [(96, 1, 32, 8), None])

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sin() * x, x.cos() * x

    backend = Backend()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (2, 3):
        x = torch.randn(rows, 8, 3, 4)
        found = compiled(x)
        torch.testing.assert_close(found, model(x))
        assert [made.stride() for made in found] == [(96, 1, 32, 8), (96, 12, 4, 1)]
    assert backend.replaced
