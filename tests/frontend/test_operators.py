"""The operators that stand for regions in compiled code: registered, replaced, cheap to call."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from mirage_nb.errors import LaunchError
from mirage_nb.frontend.compiled.kernels import Found, laid_out
from mirage_nb.frontend.compiled.operators import register_operator
from mirage_nb.frontend.compiled.options import Options
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from tests.frontend.traced import Backend, Block, Composed

PROGRAM = parse("X: f32[4, 32]\nW: f32[32, 32]\nB: f32[32, 32]\nreturn relu(X @ W) @ B").graph
HOST_US = 20.0
"""What stands between compiled code and a kernel, at most."""


def made(*tensors: torch.Tensor) -> torch.Tensor:
    return tensors[0].new_empty((4, 32))


def least_us(call: Any) -> float:
    rounds = []
    for _ in range(40):
        began = time.perf_counter()
        for _ in range(100):
            call()
        rounds.append((time.perf_counter() - began) / 100 * 1e6)
    return min(rounds)


@torch.no_grad()
def test_a_call_costs_the_host_little() -> None:
    operator = register_operator(PROGRAM, "test_cheap", laid_out(made))
    x, w, b = torch.randn(4, 32), torch.randn(32, 32), torch.randn(32, 32)
    assert least_us(lambda: operator(x, w, b)) - least_us(lambda: made(x, w, b)) < HOST_US


@torch.no_grad()
def test_the_same_name_again_is_the_new_operator() -> None:
    x, w, b = torch.randn(4, 32), torch.randn(32, 32), torch.randn(32, 32)
    for value in (1.0, 2.0):
        operator = register_operator(PROGRAM, "test_again", lambda *t, value=value: made(*t).fill_(value))
        assert operator(x, w, b).unique().tolist() == [value]
        assert torch.ops.mirage_nb.test_again(x, w, b).unique().tolist() == [value]
        compiled = torch.compile(lambda x, w, b, call=operator: call(x, w, b) + 1, backend="aot_eager", fullgraph=True)
        assert compiled(x, w, b).unique().tolist() == [value + 1]


class Failing(Composed):
    """Kernels that run when they are compared, and fail at the third call from then on."""

    def find(self, graph: KernelGraph, name: str, device: str, options: Options) -> Found:
        found, calls = super().find(graph, name, device, options), itertools.count()

        def run(*tensors: torch.Tensor) -> Any:
            if next(calls) > 2:
                raise LaunchError("the kernel did not run")
            return found.run(*tensors)

        return Found(run)


@torch.no_grad()
def test_a_kernel_that_fails_at_a_call_is_pytorchs_from_then_on() -> None:
    torch._dynamo.reset()
    backend, model, x = Backend(Failing()), Block(), torch.randn(4, 32)
    compiled = torch.compile(model, backend=backend)
    for _ in range(6):
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-3, atol=2e-3)
    states = {entry.state for entry in backend.reports.all().entries}
    assert states == {"failed at a call, PyTorch's operators run: the kernel did not run"}


@torch.no_grad()
def test_an_operator_of_a_users_own_that_writes_is_named() -> None:
    torch._dynamo.reset()

    @torch.library.custom_op("mirage_nb_tests::accumulate", mutates_args=("total",))
    def accumulate(x: torch.Tensor, total: torch.Tensor) -> None:
        total.add_(x)

    def model(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        accumulate(x.sin() * x, total)
        return total.tanh() * total

    backend, x, totals = Backend(), torch.randn(4, 8), [torch.ones(4, 8), torch.ones(4, 8)]
    torch.testing.assert_close(torch.compile(model, backend=backend)(x, totals[0]), model(x, totals[1]))
    torch.testing.assert_close(*totals)
    (why,) = (why for why in backend.reports.all().reasons() if "accumulate" in why)
    assert backend.replaced == 2 and why.startswith("mirage_nb_tests.accumulate.default writes")
