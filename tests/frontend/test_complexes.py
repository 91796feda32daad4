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


def stepped(z: Tensor) -> Tensor:
    """PyTorch's compiler adds complex tensors as real ones, side by side; the state begins with zeros."""
    state = torch.zeros_like(z)
    for _ in range(3):
        state = state * torch.exp(1j * z.real) + z
    return state


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
    "quotients": lambda x: pairs(x) / (pairs(x.sin()) + 2j) - pairs(x) / (3 - 1j) + pairs(x) / x[:, :4].exp(),
    "products of few rows": lambda x: pairs(x) @ pairs(x).mT @ pairs(x) + x[:, :3].to(torch.cfloat) @ pairs(x),
    "sums and joined parts": lambda x: torch.cat([pairs(x)[:, :2], pairs(x).sum(1, keepdim=True).expand(3, 2)], 1),
    "choices and powers": lambda x: torch.where(x[:, 4:] > 0, pairs(x) ** 2, pairs(x)[0]),
    "lengths": lambda x: pairs(x) * pairs(x).abs() + pairs(x).mean(0),
    "steps of a state": lambda x: stepped(pairs(x)),
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


def filtered(x: Tensor) -> Tensor:
    """A layer of a neural operator: low frequencies alone, mixed between channels."""
    seen, made = torch.fft.rfft2(x.view(3, 2, 2, 2), norm="ortho"), torch.zeros(3, 2, 2, 2, dtype=torch.cfloat)
    mixed = torch.full((2, 2), 1 - 2j)
    made[..., :1] = torch.einsum("bixy,io->boxy", seen[..., :1], mixed)
    return torch.fft.irfft2(made, s=(2, 2), norm="ortho")


TRANSFORMED: dict[str, Callable[[Tensor], Tensor]] = {
    "a convolution": lambda x: torch.fft.irfft(torch.fft.rfft(x, n=16) * torch.fft.rfft(x, n=16).conj(), n=16),
    "odd extents": lambda x: torch.fft.irfft(torch.fft.rfft(x, n=7, norm="forward"), n=7) + torch.fft.hfft(x, n=7),
    "a filter": lambda x: torch.fft.ifft(torch.fft.fft(x) * (torch.fft.fftfreq(8).abs() < 0.25)).real,
    "several axes": lambda x: torch.fft.ifftn(torch.fft.fftn(x.view(3, 2, 4)) / torch.arange(1, 5), dim=(1, 2)).imag,
    "windows": lambda x: torch.stft(x, 4, 2, window=torch.hann_window(4), return_complex=True).abs().log1p(),
    "an operator": filtered,
    "angles": lambda x: (torch.fft.fft(x) / (torch.fft.fft(x.flip(0)) + 9)).angle() * torch.fft.rfft(x).norm(),
    "products": lambda x: (torch.fft.fft(x) @ torch.fft.fft(x).mH).real + (torch.fft.fft(x) ** 2).imag.sum(),
    "parts": lambda x: sum(z.abs() for z in torch.cat([torch.fft.fft(x), torch.fft.fft(x).conj()], 1).chunk(2, -1)),
    "choices": lambda x: torch.where(torch.fft.rfft(x).abs() > 1, torch.fft.rfft(x), 0).real.cumsum(0),
    "ones": lambda x: torch.view_as_real(pairs(x) * torch.ones(4, dtype=torch.cfloat)),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_whole_programs_transform_and_take_more_apart(name: str) -> None:
    x = torch.randn(3, 8)
    program = mirage_nb.from_torch(lambda x: TRANSFORMED[name](x) * 2, (x,))
    (found,) = evaluate(program.graph, [t.double().numpy() for t in program.arguments(x)])
    np.testing.assert_allclose(found, TRANSFORMED[name](x).numpy() * 2, rtol=1e-4, atol=1e-4)


def test_what_is_computed_in_steps_is_taken_apart_once() -> None:
    def model(x: Tensor) -> list[Tensor]:
        z = pairs(x)
        for _ in range(12):
            z = z * z + pairs(x)
        return [torch.view_as_real(z), torch.view_as_real(z * 2)]

    gm = traced(model, [torch.randn(3, 8)])
    lift_complex(gm.graph)
    assert len(gm.graph.nodes) < 200
