"""Emitted kernels on a real GPU: right against float64 in every way to emit them, and how long they take.

`python -m pytest -m gpu -s tests/codegen/test_gpu_kernels.py` prints one short table: the best options per
muGraph and what the default ones take, medians in microseconds per call inside a CUDA graph, with inputs
rotated past the L2 cache. Inputs are drawn once per muGraph, on the card, and its kernels compiled side by side:
all of it takes well under a minute and a half.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_nb.codegen import Emitted, Launch, Options, TensorArg, emit, variants
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.execution.compile import Cubin, compile_cubin
from mirage_nb.runtime.kernel.driver import encode_map
from mirage_nb.targets import TARGETS
from tests.codegen import mugraphs

pytestmark = pytest.mark.gpu

H200 = TARGETS["h200"]
ROTATED_BYTES = 200e6
REPEATS = 10

CASES: dict[str, KernelGraph] = {
    "rmsnorm B=1": mugraphs.rmsnorm(2, 4096, 6144, 64, 16),
    "rmsnorm B=8": mugraphs.rmsnorm(16, 4096, 6144, 64, 32),
    "gated_mlp B=1": mugraphs.gated_mlp(8, 4096, 4096, 32, 16),
    "gqa safe B=1 split": mugraphs.split_safe_attention(2, 256, 4096, 64, 4, 16, 4, 64),
    "decode70b B=1 split": mugraphs.split_safe_attention(2, 8, 8192, 128, 1, 32, 4, 8),
    "ntrans B=1": mugraphs.ntrans(8, 4096),
}


@dataclass(frozen=True)
class Drawn:
    """The inputs of a muGraph on the card, one set per turn, and what is right for the first set."""

    cupy: Any
    turns: list[list[Any]]
    exact: Any


def draw(graph: KernelGraph, cupy: Any, scale: float) -> Drawn:
    """Sets of random inputs that together do not fit L2."""
    held = sum(i.type.nbytes for i in graph.inputs) + sum(t.nbytes for t in graph.output_types)
    rng = cupy.random.default_rng(0)

    def one() -> list[Any]:
        shapes = [i.type.shape for i in graph.inputs]
        return [(scale * rng.standard_normal(s, dtype="float32")).astype("float16") for s in shapes]

    turns = [one() for _ in range(max(3, min(24, int(ROTATED_BYTES // held) + 1)))]
    return Drawn(cupy, turns, _exact(graph, dict(enumerate(turns[0])), cupy))


class Bound:
    """One way to emit a muGraph, ready to run on every set of its inputs."""

    def __init__(self, emitted: Emitted, cubin: Cubin, drawn: Drawn) -> None:
        self.emitted, self.drawn, self.cupy = emitted, drawn, drawn.cupy
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernels.cubin"
            path.write_bytes(cubin.data)
            module = self.cupy.RawModule(path=str(path))
            launches = [step for step in emitted.launches if isinstance(step, Launch)]
            self.functions = {step.kernel: module.get_function(step.kernel) for step in launches}
        for step in launches:
            self.functions[step.kernel].max_dynamic_shared_size_bytes = step.shared_bytes
        self.turns = [self._buffers(inputs) for inputs in drawn.turns]
        self.calls = [self._call(turn) for turn in self.turns]

    def _buffers(self, inputs: list[Any]) -> dict[int, Any]:
        graph = self.emitted.graph
        held = dict(enumerate(inputs))
        kinds = {t.value: t.type for t in self.emitted.temporaries}
        kinds |= {v: graph.types[v] for v in graph.outputs}
        names = {"f16": "float16", "f32": "float32"}
        for value, type_ in kinds.items():
            held[value] = self.cupy.full(type_.shape, float("nan"), names[type_.dtype.value])
        return held

    def _call(self, held: dict[int, Any]) -> Callable[[], None]:
        steps = []
        for step in self.emitted.launches:
            assert isinstance(step, Launch)
            args: list[Any] = []
            for arg in step.args:
                pointer = held[arg.value].data.ptr
                if isinstance(arg, TensorArg):
                    args.append(np.uintp(pointer))
                else:
                    dtype = self.emitted.graph.types[arg.value].dtype
                    args.append(encode_map(pointer, dtype.size, (arg.rows, arg.columns), arg.box, arg.swizzle))
            steps.append(self._enqueue(step, tuple(args)))

        def call() -> None:
            for step in steps:
                step()

        return call

    def _enqueue(self, step: Launch, args: tuple[Any, ...]) -> Callable[[], None]:
        from tests.dependent_launch import dependent_launch  # imports CuPy

        function, block = self.functions[step.kernel], (step.threads, 1, 1)
        if step.overlaps:
            return dependent_launch(function, step.grid, block, args, step.shared_bytes)
        return lambda: function(step.grid, block, args, shared_mem=step.shared_bytes)

    def error(self) -> float:
        """Relative error of the first output against float64."""
        self.calls[0]()
        self.cupy.cuda.get_current_stream().synchronize()
        found = self.turns[0][self.emitted.graph.outputs[0]].astype(self.cupy.float64)
        norm = self.cupy.linalg.norm
        return float(norm(found - self.drawn.exact) / norm(self.drawn.exact))

    def microseconds(self) -> float:
        """Median time of one call."""
        cuda = self.cupy.cuda
        stream = cuda.Stream(non_blocking=True)
        with stream:
            for call in self.calls:
                call()
            stream.synchronize()
            stream.begin_capture()
            for call in self.calls:
                call()
            graph = stream.end_capture()
            times = []
            for turn in range(REPEATS + 3):
                begin, end = cuda.Event(), cuda.Event()
                begin.record(stream)
                graph.launch(stream)
                end.record(stream)
                end.synchronize()
                if turn >= 3:
                    times.append(cuda.get_elapsed_time(begin, end) * 1e3 / len(self.calls))
        return float(np.median(times))


def _exact(graph: KernelGraph, held: dict[int, Any], cupy: Any) -> Any:
    """The program behind the muGraph, in float64 on the GPU, told by the names of its inputs."""
    names = " ".join(i.name for i in graph.inputs)
    x = [held[i].astype(cupy.float64) for i in range(len(graph.inputs))]
    match names:
        case "X W":
            found = (x[0] / cupy.sqrt((x[0] ** 2).mean(-1, keepdims=True))) @ x[1]
        case "X W1 W2":
            gate = x[0] @ x[1]
            found = gate / (1 + cupy.exp(-gate)) * (x[0] @ x[2])
        case "Q K V":
            scores = x[0] @ x[1].transpose(0, 2, 1) / 8
            e = cupy.exp(scores - scores.max(-1, keepdims=True))
            found = (e / e.sum(-1, keepdims=True)) @ x[2]
        case _:

            def rms(a: Any) -> Any:
                return a / cupy.sqrt((a**2).mean(-1, keepdims=True))

            h, skip, alpha = x
            found = rms(skip + alpha * (rms(h) + skip))
    return found


@pytest.mark.parametrize("name", CASES)
def test_right_and_how_fast(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    graph = CASES[name]
    ways = [emit(graph, H200, options) for options in variants(graph, H200)]
    with ThreadPoolExecutor() as pool:
        cubins = list(pool.map(lambda e: compile_cubin(e.source, H200.arch), ways))
    drawn = draw(graph, cupy, 0.05 if name.startswith("gated") else 1.0)
    rows = []
    for emitted, cubin in zip(ways, cubins, strict=True):
        bound = Bound(emitted, cubin, drawn)
        error = bound.error()
        assert error < 2e-3, (name, emitted.options, error)
        registers = max((u.registers for u in cubin.usage.values()), default=0)  # ptxas does not always say
        spilled = max((u.spill_store_bytes for u in cubin.usage.values()), default=0)
        rows.append((bound.microseconds(), emitted.options, error, registers, spilled))
    best, default = min(rows, key=lambda row: row[0]), rows[0]
    for label, (time, options, error, registers, spilled) in (("best", best), ("default", default)):
        how = f"warps {options.warps} stages {options.stages} {'bulk' if options.bulk else 'async'}"
        print(
            f"\n{name:24} {label:8} {time:8.2f} us  {how:26} error {error:.1e} regs {registers} spill {spilled}",
            end="",
        )


WIDE: dict[str, KernelGraph] = {
    "sums in the loop": mugraphs.attention(2, 64, 512, 64, 1, 8),
    "two groups": mugraphs.attention(2, 128, 512, 64, 1, 8),
    "running maximum": mugraphs.split_safe_attention(2, 64, 1024, 64, 1, 2, 8),
    "normed values": mugraphs.normed_attention("V", 64, 512, loop=8),
    "weights over norms": mugraphs.normed_attention("E", 64, 512, loop=8),
}


@pytest.mark.parametrize("name", WIDE)
def test_warpgroups_multiply_right(name: str) -> None:
    """Rows that live over the loop and rows that are computed in it: both are registers of asynchronous products."""
    cupy = pytest.importorskip("cupy")
    graph = WIDE[name]
    rng = np.random.default_rng(0)
    inputs = [(0.3 * rng.standard_normal(i.type.shape)).astype(np.float16) for i in graph.inputs]
    (exact,) = evaluate(graph, [a.astype(np.float64) for a in inputs])
    drawn = Drawn(cupy, [[cupy.asarray(a) for a in inputs]], cupy.asarray(exact))
    for stages in (2, 4):
        emitted = emit(graph, H200, Options(8 if name == "two groups" else 4, stages, bulk=True, wide=True))
        assert "wgmma_m64k16" in emitted.source
        assert Bound(emitted, compile_cubin(emitted.source, H200.arch), drawn).error() < 1e-3, stages
