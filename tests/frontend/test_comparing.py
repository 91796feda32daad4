"""Kernels beside PyTorch's own operators: on which inputs, and how near is the same."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F

from mirage_nb.errors import LaunchError
from mirage_nb.frontend.compiled.comparing import Reference, compare, examples
from tests.frontend.traced import Backend, Block, Composed, regions_of


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


@torch.no_grad()
def test_a_wrong_kernel_is_never_used() -> None:
    class Wrong(Composed):
        def find(self, *args: Any) -> Any:
            found = super().find(*args)
            return type(found)(lambda *tensors: found.run(*tensors) * 1.1)

    backend, model, x = Backend(Wrong()), Block(), torch.randn(4, 32)
    close(torch.compile(model, backend=backend)(x), model(x))
    assert backend.replaced == 0
    assert "off PyTorch's own result" in str(backend.reports.all())


def logarithms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.log(x) * 2, -1) @ w


def powers(x: torch.Tensor) -> torch.Tensor:
    return x.pow(0.6).cumsum(-1) * 2


@torch.no_grad()
def test_of_what_negative_numbers_have_no_value_positive_ones_are_compared() -> None:
    """Of numbers of both signs every row is no number, and a program's cumulative sum up to one is none, too."""
    (region,) = regions_of(logarithms, torch.rand(4, 8), torch.rand(8, 4)).found

    def exact(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        return (logarithms(x.double(), w.double()).float(),)

    compare(exact, Reference.of(region), examples(region))
    with pytest.raises(LaunchError, match="off PyTorch's own"):
        compare(lambda x, w: (exact(x, w)[0] * 1.1,), Reference.of(region), examples(region))
    backend, x = Backend(), torch.rand(4, 8)
    close(torch.compile(powers, backend=backend)(x), powers(x))
    assert all(entry.taken for entry in backend.reports.all().entries) and backend.replaced


def shifted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.softplus(torch.exp(-10 * x * x) @ w) - math.log(2)


def test_what_cancels_wholly_for_one_of_them_is_the_same() -> None:
    """Of large inputs nothing is left but the logarithm of two, less itself."""
    (region,) = regions_of(shifted, torch.randn(4, 8), torch.randn(8, 4)).found
    for more in (0, 2e-9):
        compare(lambda *given, more=more: (shifted(*given) + more,), Reference.of(region), examples(region))
    with pytest.raises(LaunchError, match="off PyTorch's own result on inputs of magnitude 1000"):
        compare(lambda *given: (shifted(*given) + 1e-5,), Reference.of(region), examples(region))


@torch.no_grad()
def test_a_kernel_that_overflows_where_pytorch_does_not_is_never_used() -> None:
    class Overflowing(Composed):
        def find(self, *args: Any) -> Any:
            found = super().find(*args)

            def run(*tensors: torch.Tensor) -> Any:
                made = found.run(*tensors)
                return torch.where(made.abs() > 50, torch.inf, made)

            return type(found)(run)

    backend, x = Backend(Overflowing()), torch.randn(4, 32)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 3 + 1) * x.sigmoid()

    close(torch.compile(model, backend=backend)(x), model(x))
    assert backend.replaced == 0
    assert "overflows" in str(backend.reports.all())


def narrow_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.silu(x.bfloat16() @ w.bfloat16()).float() * 2


def narrow_outside(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x.float() * 3 + 1) * x.float().mean(-1, keepdim=True)


@torch.no_grad()
def test_how_near_is_the_same_follows_from_what_is_computed() -> None:
    """Not from the types of inputs and results: autocast rounds inside, and norms widen what they read."""
    (region,) = regions_of(narrow_inside, torch.randn(8, 64), torch.randn(64, 8)).found
    exact = lambda x, w: (F.silu(x.double() @ w.double()).float() * 2,)  # noqa: E731
    assert region.reads[0].name == "arg0_1"
    compare(exact, Reference.of(region), examples(region))
    (region,) = regions_of(narrow_outside, torch.randn(8, 64).bfloat16()).found
    compare(lambda x: (narrow_outside(x),), Reference.of(region), examples(region))
    with pytest.raises(LaunchError, match="off PyTorch's own"):
        compare(lambda x: (narrow_outside(x) * 1.01,), Reference.of(region), examples(region))


def test_a_kernel_is_compared_on_inputs_that_lie_as_the_models() -> None:
    """What lies in no order has to be copied for a kernel, which counts beside PyTorch's code."""
    found = regions_of(lambda x, w: torch.sigmoid(x @ w) * 2 + x, torch.ones(8, 3).T, torch.ones(8, 8)).found
    shown = [(tuple(t.shape), t.stride()) for region in found for t in examples(region)()]
    values = [node.meta["val"] for region in found for node in region.reads]
    assert shown == [(tuple(v.shape), v.stride()) for v in values]
    assert ((3, 8), (1, 3)) in shown


def slopes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda w: F.gelu(x @ w).pow(2).mean())(w)


def test_what_the_graph_computes_of_other_inputs_is_computed() -> None:
    """A gelu is made of what is read beside it by PyTorch's operators, and of the other input alone by programs."""
    backend, x, w = Backend(), torch.randn(4, 8), torch.randn(8, 6, requires_grad=True)
    found = torch.compile(slopes, backend=backend)(x, w)
    close(torch.autograd.grad(found.square().sum(), w), torch.autograd.grad(slopes(x, w).square().sum(), w))
    assert all(entry.taken for entry in backend.reports.all().entries), str(backend.reports.all())


def advantages(rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Row by row from the last one, each written into its place."""
    made, last = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        last = rewards[t] + 0.99 * values[t + 1] * values[t].sigmoid() - values[t] + 0.9 * last
        made[t] = last
    return (made - made.mean()) / made.std()


@torch.no_grad()
def test_what_the_graph_copies_from_one_input_into_another_is_the_same_in_both() -> None:
    """Programs read rows where they were computed, PyTorch's operators where they were written."""
    backend, inputs = Backend(), (torch.randn(5, 3), torch.randn(6, 3))
    close(torch.compile(advantages, backend=backend)(*inputs), advantages(*inputs))
    entries = backend.reports.all().entries
    assert len(entries) > 2 and all(entry.taken for entry in entries), str(backend.reports.all())


def triangle(a: torch.Tensor) -> torch.Tensor:
    """Each row is written into its place from those above it, which lie in what is read beside it."""
    made = -a.tanh().tril(-1)
    for row in range(1, 4):
        made[:, row, :row] += (made[:, row, :row, None] * made[:, :row, :row]).sum(-2)
    return made + torch.eye(4)


@torch.no_grad()
def test_an_input_that_is_copied_in_part_is_computed_where_the_rest_is_known() -> None:
    backend, x = Backend(), torch.randn(2, 4, 4)
    close(torch.compile(triangle, backend=backend)(x), triangle(x))
    entries = backend.reports.all().entries
    assert len(entries) > 1 and all(entry.taken for entry in entries), str(backend.reports.all())


def twice_scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x = x * torch.tensor(5.5)
    y = F.rms_norm(F.rms_norm(x, (8,)) @ w, (8,))
    return x * y.sum(-1, keepdim=True) + x * 2


def test_what_a_number_of_the_model_scales_is_the_same_beside_what_it_was() -> None:
    """A program reads both x and x * 5.5, which depend on each other; derivatives do, too."""
    backend, inputs = Backend(), [torch.randn(shape, requires_grad=True) for shape in ((4, 8), (8, 8))]
    found, wanted = (torch.autograd.grad(model(*inputs).square().sum(), inputs)
                     for model in (torch.compile(twice_scaled, backend=backend), twice_scaled))  # fmt: skip
    close(found, wanted)
    report = backend.reports.all()
    assert report.replaced and all(entry.taken for entry in report.entries), str(report)


@torch.no_grad()
def test_inputs_that_are_known_are_compared_as_they_are() -> None:
    """Places of a picture, which PyTorch makes whole numbers of, and their distances from these."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, (8, 6), mode="bilinear", align_corners=False)

    backend, x = Backend(), torch.randn(1, 2, 4, 3)
    close(torch.compile(model, backend=backend)(x), model(x))
    assert backend.replaced and all(entry.taken for entry in backend.reports.all().entries)
