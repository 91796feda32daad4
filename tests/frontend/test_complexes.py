"""Complex numbers, taken apart, are what PyTorch computes: with derivatives, and as programs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

import mirage_nb
from mirage_nb.frontend.complexes import lift_complex
from mirage_nb.interp import evaluate
from tests.frontend.random_models import traced
from tests.frontend.traced import Backend


def pairs(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.reshape(3, 4, 2))


COMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "times i": lambda x: pairs(x) * 1j,
    "no imaginary part": lambda x: (x[:, :4] * (2 + 0j)).conj().resolve_conj(),
    "a number": lambda x: (1 + 2j) * pairs(x) - (0.5 + 1j),
    "real and i times real": lambda x: x[:, :4] + 1j * x[:, 4:],
    "whole numbers and i": lambda x: (torch.arange(4) + 1j) * pairs(x),
    "a wider real number": lambda x: x[:, :4] + pairs(x)[0],
    "less a wider real number": lambda x: pairs(x)[0] - x[:, :4],
    "a power of i": lambda x: torch.exp(1j * x[:, :4]) * pairs(x),
    "conjugates": lambda x: (pairs(x).conj() * pairs(x) + pairs(x).conj()).conj().resolve_conj(),
    "angles": lambda x: torch.polar(torch.ones(4), x[:, :4]) * pairs(x),
    "of real numbers": lambda x: torch.complex(x[:, :4], x[:1, 4:]) * pairs(x),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_regions_and_derivatives_are_pytorchs(name: str) -> None:
    torch._dynamo.reset()
    backend, x = Backend(), torch.randn(3, 8, requires_grad=True)
    other = x.detach().clone().requires_grad_()

    def model(x: Tensor) -> Tensor:
        return torch.view_as_real(COMPUTED[name](x)).flatten(1) * x.sigmoid() + 1

    found, wanted = torch.compile(model, backend=backend)(x), model(other)
    torch.testing.assert_close(found, wanted)
    for made in (found, wanted):
        made.square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    report = backend.reports.all()
    assert report.replaced > 1 and not any(graph.trouble for graph in report.graphs), str(report)


@pytest.mark.parametrize("name", [*COMPUTED])
def test_programs_are_pytorchs(name: str) -> None:
    def model(x: Tensor) -> Tensor:
        return torch.view_as_real(COMPUTED[name](x)) + 1

    x = torch.randn(3, 8)
    program = mirage_nb.from_torch(model, (x,))
    (found,) = evaluate(program.graph, [t.double().numpy() for t in program.arguments(x)])
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5, atol=1e-5)


def test_what_is_computed_in_steps_is_taken_apart_once() -> None:
    def model(x: Tensor) -> list[Tensor]:
        z = pairs(x)
        for _ in range(12):
            z = z * z + pairs(x)
        return [torch.view_as_real(z), torch.view_as_real(z * 2)]

    gm = traced(model, [torch.randn(3, 8)])
    lift_complex(gm.graph)
    assert len(gm.graph.nodes) < 200
