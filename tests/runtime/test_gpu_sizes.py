"""One kernel at every extent of its size, on a real GPU: executables, saved files, operators of libraries beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_nb.codegen import Emitted, Launch, MapArg, emit, variants
from mirage_nb.errors import EmitError, ShapeError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir.sizes import resized
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.gpu import Gpu, attached_gpu
from mirage_nb.runtime.kernel.saved import load_kernel, lower, write_file
from mirage_nb.search import EFFORTS, configurations, instances, prepare, run_configuration
from mirage_nb.targets import DEFAULT_TARGET, find_target

pytestmark = pytest.mark.gpu

PROGRAMS = {
    "rmsnorm": "X: f16[B, 1024]\nW: f16[1024, 512]\nreturn rms_norm(X) @ W",
    "gated_mlp": "X: f16[8*B, 512]\nW: f16[512, 512]\nV: f16[512, 512]\nreturn silu(X @ W) * (X @ V)",
    "batches": "X: f16[B, 5, 512]\nW: f16[512, 512]\nreturn gelu(X @ W)",
    "halves": "X: f16[8*B, 512]\nW: f16[512, 1024]\nY = X @ W\nreturn silu(Y[:, :512]) * Y[:, 512:]",
    "half of each row": "X: f16[8*B, 1024]\nW: f16[512, 512]\nreturn X[:, 512:] @ W",
    "softmax": "X: f16[B, 960]\nreturn softmax(X)",
    "decode": "Q: f16[2*B, 16, 64]\nK: f16[2*B, 64, 512]\nV: f16[2*B, 512, 64]\nreturn softmax(Q @ K) @ V",
    "vectors": "X: f32[B]\nY: f16[B]\nreturn exp(X) * Y",
    "scaled": "X: f16[B, 512]\ns: f32[B]\nW: f16[512, 256]\nreturn (X * s[:, None]) @ W + s[:, None]",
}
EXTENTS = (1, 3, 8, 17, 64)


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    found = attached_gpu()
    assert found is not None
    return found


def kernels(name: str, most: int) -> list[Any]:
    """A few muGraphs, each emitted in a few ways."""
    program = parse(f"B: size(64)\n{PROGRAMS[name]}").graph
    prepared, effort, target = prepare(program), EFFORTS["quick"], find_target(DEFAULT_TARGET)
    graphs = []
    for configuration in [c for c in configurations(prepared, effort) if c.cut is None][:3]:
        result = run_configuration(prepared, configuration, effort, effort.budget)
        for structure in result.structures[:1]:
            graphs += [i.graph for i in instances(structure, prepared, target, 4)][:2]
    found = []
    for graph in graphs[:most]:
        for options in variants(graph, target)[:6:2]:
            try:
                found.append(emit(graph, target, options))
            except EmitError:
                continue
    return [*found, emit(program, target)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_extent_is_right(name: str, gpu: Gpu) -> None:
    from mirage_nb.runtime.execution.launch import GpuExecutable

    program = parse(f"B: size(64)\n{PROGRAMS[name]}").graph
    samples = {extent: draw_sample(resized(program, extent), extent) for extent in EXTENTS}
    for emitted in kernels(name, 3):
        executable = GpuExecutable(emitted, compile_cubin(emitted.source, "sm_90a"), gpu)
        for extent, sample in samples.items():
            report = executable.check(sample)
            assert report.ok, (name, extent, emitted, report)


def test_a_saved_file_and_a_call_in_a_loop(gpu: Gpu, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from mirage_nb.runtime.execution.launch import GpuExecutable

    program = parse(f"B: size(64)\n{PROGRAMS['rmsnorm']}").graph
    emitted = next(e for e in kernels("rmsnorm", 1) if any(isinstance(s, Launch) for s in e.launches))
    cubin = compile_cubin(emitted.source, "sm_90a")
    executable = GpuExecutable(emitted, cubin, gpu)
    saved = load_kernel(write_file(lower(emitted, program, arch="sm_90a", cubin=cubin.data), tmp_path / "norm.py"))
    w = torch.randn(1024, 512, device="cuda").half()
    for extent in (64, 1, 5, 64):
        x = torch.randn(extent, 1024, device="cuda").half()
        right = x.float() / x.float().pow(2).mean(1, keepdim=True).sqrt() @ w.float()
        prepared = executable.prepare(x, w)
        for made in (executable(x, w), prepared(), prepared()):
            assert torch.allclose(made.float(), right, atol=0.5, rtol=2e-2)
        host = saved(x.cpu().numpy(), w.cpu().numpy())
        assert np.allclose(host, right.cpu().numpy(), atol=0.5, rtol=2e-2)
    with pytest.raises(ShapeError, match="B from 1 to 64"):
        executable(torch.zeros(65, 1024, device="cuda").half(), w)


@pytest.mark.parametrize("name", ["halves", "half of each row"])
def test_a_saved_file_knows_parts_of_tensors(name: str, gpu: Gpu, tmp_path: Path) -> None:
    program = parse(f"B: size(64)\n{PROGRAMS[name]}").graph
    parts = [e for e in kernels(name, 3) if any(isinstance(a, MapArg) and a.pitch for s in own(e) for a in s.args)]
    assert parts, "the copy engine brings them"
    for number, emitted in enumerate(parts):
        cubin = compile_cubin(emitted.source, "sm_90a")
        lowered = lower(emitted, program, arch="sm_90a", cubin=cubin.data)
        saved = load_kernel(write_file(lowered, tmp_path / f"{number}.py"))
        for extent in (1, 7, 64):
            at = resized(program, extent)
            given = [np.random.default_rng(n).normal(size=i.type.shape) / 4 for n, i in enumerate(at.inputs)]
            (right,) = evaluate(at, dict(zip([i.name for i in at.inputs], given, strict=True)))
            made = saved(*(array.astype(np.float16) for array in given))
            assert np.allclose(np.asarray(made, float), right, atol=0.1, rtol=2e-2)


def own(emitted: Emitted) -> list[Launch]:
    """The launches of generated kernels."""
    return [step for step in emitted.launches if isinstance(step, Launch)]
