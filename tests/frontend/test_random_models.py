"""Random functions of PyTorch, regions replaced, agree with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import HealthCheck, Phase, given

from mirage_nb.frontend.compiled.graphs import Compiler
from mirage_nb.frontend.compiled.options import Options
from tests.frontend.random_models import models, traced
from tests.frontend.traced import Backend
from tests.shares import examples

TOLERANCE = {torch.float32: 2e-3, torch.float16: 3e-2, torch.bfloat16: 2e-1}
Drawn = tuple[Callable[..., list[Any]], list[torch.Tensor]]
BACKEND = Backend()
FOUND = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking would take hours


def agrees(drawn: Drawn, backend: Any) -> None:
    function, inputs = drawn
    with torch.no_grad():
        wanted = function(*(x.clone() for x in inputs))
        found = backend(function, [x.clone() for x in inputs])
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        scale = max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(ours / scale, theirs / scale, rtol=0, atol=TOLERANCE[theirs.dtype])


def by_graph(function: Callable[..., Any], inputs: list[torch.Tensor]) -> Any:
    """The inner compiler alone, on a graph that was traced without Dynamo."""
    gm = traced(function, inputs)
    options = Options(remainder="eager", wait=True)
    return Compiler(BACKEND.kernels, BACKEND.reports, options)(gm, inputs, is_inference=True)(list(inputs))


def by_compile(function: Callable[..., Any], inputs: list[torch.Tensor]) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=BACKEND, dynamic=False)(*inputs)


def test_random_functions() -> None:
    """A few of them; regions were replaced, so PyTorch is not compared with itself alone."""

    @examples(50, suppress_health_check=list(HealthCheck))
    @given(models())
    def each(drawn: Drawn) -> None:
        agrees(drawn, by_graph)

    each()
    graphs = BACKEND.reports.all().graphs
    assert BACKEND.replaced > len(graphs) / 4


@pytest.mark.slow
@examples(900, suppress_health_check=list(HealthCheck), phases=FOUND)
@given(models())
def test_many_random_functions(drawn: Drawn) -> None:
    agrees(drawn, by_graph)


@pytest.mark.slow
@examples(100, suppress_health_check=list(HealthCheck), phases=FOUND)
@given(models())
def test_random_functions_through_torch_compile(drawn: Drawn) -> None:
    agrees(drawn, by_compile)
