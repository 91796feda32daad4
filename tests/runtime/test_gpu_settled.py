"""Weights on a real GPU: read while the launch in front runs where that is promised, and in order everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mirage_nb.codegen import Launch, emit
from mirage_nb.ir import KernelGraph
from mirage_nb.optimize.options import all_options
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.gpu import Gpu, attached_gpu
from mirage_nb.targets import DEFAULT_TARGET, find_target
from tests.codegen import mugraphs

pytestmark = pytest.mark.gpu

torch: Any = pytest.importorskip("torch")
ROWS, DEPTH, COLUMNS = 8, 4096, 2048


def graphs() -> Iterator[tuple[str, KernelGraph]]:
    """Kernels that stream weights beside what is computed in front: of eight rows, and of so many that warps have
    roles."""
    yield "norm", settled(mugraphs.rmsnorm(ROWS, DEPTH, COLUMNS, 16, 32), "W")
    yield "gate", settled(mugraphs.gated_mlp(ROWS, DEPTH, COLUMNS, 32, 32), "W1", "W2")
    yield "roles", settled(mugraphs.gated_mlp(128, DEPTH, COLUMNS, 64, 64), "W1", "W2")


def settled(graph: KernelGraph, *names: str) -> KernelGraph:
    return replace(graph, inputs=tuple(replace(i, settled=i.name in names) for i in graph.inputs))


GRAPHS = [*graphs()]


def executables(graph: KernelGraph, gpu: Gpu) -> Iterator[tuple[str, Any]]:
    """Every way to emit it that trusts."""
    from mirage_nb.runtime.execution.launch import GpuExecutable

    target, seen = gpu.target() or find_target(DEFAULT_TARGET), set()
    for options in all_options(target):
        made = emit(graph, target, options)
        if any(isinstance(step, Launch) and step.trusting for step in made.launches) and made.source not in seen:
            seen.add(made.source)
            yield str(options), GpuExecutable(made, compile_cubin(made.source, target.arch), gpu)


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    found = attached_gpu()
    if found is None or found.capability < 90:
        pytest.skip("needs a GPU whose launches may overlap")
    return found


@pytest.mark.parametrize(("name", "graph"), GRAPHS, ids=[name for name, _ in GRAPHS])
def test_what_is_not_settled_is_read_when_the_launch_in_front_has_ended(
    gpu: Gpu, name: str, graph: KernelGraph
) -> None:
    """The launch in front writes X, late; weights were there before."""
    tensors = [torch.randn(i.type.shape, device="cuda").half() * (0.02 if i.settled else 1) for i in graph.inputs]
    fresh, slow = torch.randn_like(tensors[0]), torch.randn(8 * 2**20, device="cuda")
    for how, ready in executables(graph, gpu):
        wanted = ready(fresh, *tensors[1:])
        for captured in (False, True):
            x = torch.zeros_like(tensors[0])

            def call(ready: Any = ready, x: Any = x) -> Any:
                slow.add_(1)
                x.copy_(fresh)
                made = ready.trusting(x, *tensors[1:])
                return ready.trusting(x.mul(1), *tensors[1:]), made

            torch.cuda.synchronize()
            if captured:
                recorded = torch.cuda.CUDAGraph()
                call()
                x.zero_()
                torch.cuda.synchronize()
                with torch.cuda.graph(recorded):
                    found = call()
                recorded.replay()
            else:
                found = call()
            for made in found:
                torch.testing.assert_close(made, wanted, rtol=0, atol=0, msg=lambda m, how=how: f"{how}: {m}")


@pytest.mark.parametrize(("name", "graph"), GRAPHS, ids=[name for name, _ in GRAPHS])
def test_calls_that_promise_nothing_find_weights_that_were_just_written(
    gpu: Gpu, name: str, graph: KernelGraph
) -> None:
    shapes = [i.type.shape for i in graph.inputs]
    fresh = [torch.randn(shape, device="cuda").half() * 0.05 for shape in shapes]
    for how, ready in executables(graph, gpu):
        wanted = ready(*fresh)
        held = [torch.zeros_like(t) for t in fresh]
        torch.cuda.synchronize()
        for old, new in zip(held, fresh, strict=True):
            old.copy_(new)
        torch.testing.assert_close(ready(*held), wanted, rtol=0, atol=0, msg=lambda m, how=how: f"{how}: {m}")
