"""Library kernels on the card: every launch of every row against float64, captured into CUDA graphs, and saved."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_nb.codegen import emit
from mirage_nb.lang import parse
from mirage_nb.optimize import default_options
from mirage_nb.predefined import matches
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.execution.torch_program import torch_dtype
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.runtime.kernel.saved import lower, write_file
from mirage_nb.targets import DEFAULT_TARGET, find_target
from tests.library_programs import WHOLE, Sample

pytestmark = pytest.mark.gpu

CASES = [(name, way) for name, sample in WHOLE.items() for way in range(1, len(sample.launches) + 1)]


def emitted(sample: Sample, way: int) -> Any:
    graph, target = parse(sample.text).graph, find_target(DEFAULT_TARGET)
    return emit(graph, target, replace(default_options(target), library=way))


def launch_of(name: str, way: int) -> str:
    (match,) = matches(parse(WHOLE[name].text).graph)
    return match.launches[way - 1]


NAMES = [f"{name}, {launch_of(name, way)}" for name, way in CASES]


@pytest.mark.parametrize(("name", "way"), CASES, ids=NAMES)
def test_every_launch_is_right_and_stays_right_in_cuda_graphs(gpu: Gpu, name: str, way: int) -> None:
    import torch

    from mirage_nb.runtime.execution.launch import GpuExecutable

    made = emitted(WHOLE[name], way)
    ready = GpuExecutable(made, compile_cubin(made.source, find_target(DEFAULT_TARGET).arch), gpu)
    graph = made.graph
    report = ready.check(draw_sample(graph, 1))
    assert report.ok, report.note
    inputs = [torch.randn(i.type.shape, device="cuda").to(torch_dtype(torch, i.type.dtype)) for i in graph.inputs]
    call = ready.prepare(*inputs)
    first = call().clone()
    held = [torch.full((2**20,), 7.0, device="cuda") for _ in range(8)]  # whoever reuses the call's memory spoils it
    call()
    del held
    again = call().clone()
    torch.cuda.synchronize()
    torch.testing.assert_close(again, first, rtol=1e-3, atol=1e-3)
    outputs = ready(*inputs)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        outputs = ready(*inputs)
    outputs.fill_(float("nan"))
    captured.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(outputs, first, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "name", ["causal", "softmax", "rows of a table", "both turned, batched", "biased relu", "layer_norm"]
)
def test_saved_files_run_without_the_package(gpu: Gpu, name: str, tmp_path: Path) -> None:
    made = emitted(WHOLE[name], 1)
    plan = lower(made, made.graph, arch=find_target(DEFAULT_TARGET).arch, about={"name": name})
    path = write_file(plan, tmp_path / "saved.py")
    run = [sys.executable, path.name]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernels_of_several_libraries_wait_for_each_other_on_the_default_stream(gpu: Gpu) -> None:
    import torch

    from mirage_nb.runtime.execution.launch import GpuExecutable

    text = "X: f32[8192,8192]\nW: f32[8192,64]\nreturn layer_norm(exp(X * 0.1)) @ W"
    made = emitted(Sample(text, "norm", ("torch",)), 1)
    ready = GpuExecutable(made, compile_cubin(made.source, find_target(DEFAULT_TARGET).arch), gpu)
    x, w = torch.randn(8192, 8192, device="cuda"), torch.randn(8192, 64, device="cuda")
    out = torch.empty(8192, 64, device="cuda")
    call = ready.bind([x, w], [out])
    for _ in range(3):
        x.normal_()
        out.fill_(float("nan"))
        call(torch.cuda.default_stream().cuda_stream)
        wanted = torch.nn.functional.layer_norm(torch.exp(x * 0.1), (8192,), eps=0.0) @ w
        torch.testing.assert_close(out, wanted, rtol=1e-3, atol=1e-3)


def test_calls_with_the_same_buffers_become_a_graph(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from mirage_nb.runtime.execution.launch import GpuExecutable
    from mirage_nb.runtime.kernel import driver

    made = emitted(Sample("X: f16[64,64]\nY = X\nfor i in range(10):\n    Y = exp(sin(Y)) * X\nreturn Y", "", ()), 0)
    ready = GpuExecutable(made, compile_cubin(made.source, find_target(DEFAULT_TARGET).arch), gpu)
    x = torch.randn(64, 64, device="cuda").half()
    wanted, kept = ready(x), []
    recorded: list[bool] = []
    found = driver._recorded
    monkeypatch.setattr(driver, "_recorded", lambda *given: recorded.append(bool(made := found(*given))) or made)
    for _ in range(8):  # buffers come again as soon as results are dropped
        kept = [ready(x)]
        torch.testing.assert_close(kept[0], wanted)
    assert recorded and all(recorded) and len(recorded) < 8, "later calls replay what an earlier one recorded"
