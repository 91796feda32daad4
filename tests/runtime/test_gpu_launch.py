"""Executables and races on a real GPU: no copies, any stream, clear mistakes, CUDA graphs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from mirage_nb.codegen import emit
from mirage_nb.errors import DTypeError, LaunchError, MirageError, ShapeError
from mirage_nb.interp import evaluate
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.gpu import Gpu, attached_gpu
from mirage_nb.targets import DEFAULT_TARGET, find_target
from tests.codegen import mugraphs

pytestmark = pytest.mark.gpu

PROGRAM = "X: f16[8, 1024]\nW: f16[1024, 512]\nreturn rms_norm(X) @ W"
MIB = 2**20


def mugraph(dtype: DType = DType.F16) -> KernelGraph:
    """The program above as one kernel, of 32 blocks and 8 iterations."""
    lines = [line.split(" : ")[0].rstrip() for line in print_graph(mugraphs.rmsnorm(8, 1024, 512, 16, 8)).splitlines()]
    return parse_graph("\n".join(lines).replace("f16[", f"{dtype.value}["))


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    found = attached_gpu()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


def executable(gpu: Gpu, graph: KernelGraph) -> Any:
    from mirage_nb.runtime.execution.launch import GpuExecutable

    target = gpu.target() or find_target(DEFAULT_TARGET)
    emitted = emit(graph, target)
    return GpuExecutable(emitted, compile_cubin(emitted.source, target.arch), gpu)


@pytest.fixture(scope="module")
def rmsnorm(gpu: Gpu) -> Any:
    return executable(gpu, mugraph())


@pytest.fixture
def tensors(torch: Any) -> tuple[Any, Any]:
    generator = torch.Generator("cuda").manual_seed(1)
    shapes = [i.type.shape for i in mugraph().inputs]
    x, w = (torch.randn(s, device="cuda", generator=generator).half() for s in shapes)
    return x, w


def close(found: Any, tensors: tuple[Any, Any], tolerance: float = 5e-3) -> bool:
    x, w = (t.double() for t in tensors)
    exact = x / (x * x).mean(-1, keepdim=True).sqrt() @ w
    return bool((found.double() - exact).abs().max() <= tolerance * exact.abs().max())


def test_torch_in_torch_out(rmsnorm: Any, tensors: tuple[Any, Any], torch: Any, gpu: Gpu) -> None:
    found = rmsnorm(*tensors)
    assert found.is_cuda and found.dtype == torch.float16 and tuple(found.shape) == (8, 512)
    assert close(found, tensors)
    assert rmsnorm.device == gpu.name


def test_cupy_in_cupy_out(rmsnorm: Any, tensors: tuple[Any, Any], torch: Any, cupy: Any) -> None:
    found = rmsnorm(*(cupy.asarray(t) for t in tensors))
    assert isinstance(found, cupy.ndarray) and found.dtype == np.float16
    assert torch.equal(torch.as_tensor(found, device="cuda"), rmsnorm(*tensors))


def test_numpy_in_numpy_out(rmsnorm: Any, tensors: tuple[Any, Any]) -> None:
    found = rmsnorm(*(t.cpu().numpy() for t in tensors))
    assert isinstance(found, np.ndarray) and found.dtype == np.float16
    assert np.array_equal(found, rmsnorm(*tensors).cpu().numpy())


def test_bf16_on_every_side(gpu: Gpu, tensors: tuple[Any, Any], torch: Any, cupy: Any) -> None:
    ready = executable(gpu, mugraph(DType.BF16))
    x, w = (t.to(torch.bfloat16) for t in tensors)
    found = ready(x, w)
    assert found.dtype == torch.bfloat16 and close(found, (x, w), 3e-2)
    bits = ready(*(cupy.asarray(t.view(torch.uint16)) for t in (x, w)))
    assert bits.dtype == np.uint16
    assert torch.equal(torch.as_tensor(bits, device="cuda").view(torch.bfloat16), found)
    plain = ready(*(t.float().cpu().numpy() for t in (x, w)))
    assert plain.dtype == np.float32 and np.array_equal(plain, found.float().cpu().numpy())
    assert ready.check(draw_sample(mugraph(DType.BF16), 0)).ok


def test_work_goes_to_the_current_stream_and_copies_nothing(
    rmsnorm: Any, tensors: tuple[Any, Any], torch: Any
) -> None:
    x, w = tensors
    rmsnorm(x.mul_(1), w)  # both kernels are loaded, which may wait for the card
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    before = torch.cuda.memory_allocated()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)  # about a second: far more than a call takes on a loaded machine
        x.mul_(2)  # on the side stream: what follows has to wait for it
        found = rmsnorm(x, w)
        pending = not side.query()
    assert torch.cuda.memory_allocated() - before < MIB < w.numel() * 2 + 1
    assert pending, "the call waited for the card"
    side.synchronize()
    assert close(found, (x, w))


def test_calls_are_captured_into_cuda_graphs(rmsnorm: Any, tensors: tuple[Any, Any], torch: Any) -> None:
    x, w = tensors
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        rmsnorm(x, w)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        found = rmsnorm(x, w)
    x.mul_(0.5).add_(1.0)
    found.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert close(found, (x, w))


def test_bound_calls_run_again_on_the_same_buffers(rmsnorm: Any, tensors: tuple[Any, Any], torch: Any) -> None:
    x, w = tensors
    output = torch.full((8, 512), float("nan"), device="cuda", dtype=torch.float16)
    call = rmsnorm.bind((x, w), (output,))
    torch.cuda.synchronize()
    for scale in (1.0, 3.0):
        x.mul_(scale).add_(0.1)
        torch.cuda.synchronize()
        call()
        torch.cuda.synchronize()
        assert close(output, (x, w))


def test_pre_defined_operators_run_beside_kernels_and_in_graphs(gpu: Gpu, torch: Any) -> None:
    text = "X: f16[2, 64, 128]\nY: f16[2, 128, 32]\nE = exp(X @ Y * 0.125)\nreturn E / sum(E, -1, keepdims=True)"
    graph = parse(text).graph
    ready = executable(gpu, graph)
    generator = torch.Generator("cuda").manual_seed(2)
    x, y = (torch.randn(i.type.shape, device="cuda", generator=generator).half() for i in graph.inputs)

    def right(found: Any) -> bool:
        exact = torch.softmax(x.double() @ y.double() * 0.125, -1)
        return bool((found.double() - exact).abs().max() < 5e-3 * exact.abs().max())

    assert right(ready(x, y))
    call, side = ready.prepare(x, y), torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    side.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=side):
        found = call()
    for scale in (0.5, 0.25):
        x.mul_(scale)
        ready(y.new_ones(x.shape), y)  # would take the memory of the graph, if it could
        captured.replay()
        torch.cuda.synchronize()
        assert right(found)


def microseconds(call: Any, torch: Any) -> float:
    """The least of what a call takes in Python, over some rounds."""
    call()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        for _ in range(100):
            call()
        best = min(best, (time.perf_counter() - started) * 1e4)
        torch.cuda.synchronize()
    return best


def test_prepared_calls_cost_a_few_microseconds(rmsnorm: Any, tensors: tuple[Any, Any], torch: Any, cupy: Any) -> None:
    arrays = tuple(cupy.asarray(t) for t in tensors)
    for call in (rmsnorm.prepare(*tensors), rmsnorm.prepare(*arrays)):
        found = call()
        assert call() is found
        assert microseconds(call, torch) < 10, "half of it where nothing else runs"
        assert close(torch.as_tensor(found, device="cuda"), tensors)


@pytest.mark.parametrize("kind", ["torch", "CuPy"])
def test_prepared_calls_of_two_kernels_cost_no_more(gpu: Gpu, torch: Any, cupy: Any, kind: str) -> None:
    graph = mugraphs.split_safe_attention()
    ready = executable(gpu, graph)
    sample = draw_sample(graph, 4)
    given = [torch.from_numpy(a).cuda() if kind == "torch" else cupy.asarray(a) for a in sample.inputs]
    call = ready.prepare(*given)
    assert microseconds(call, torch) < 10, "half of it where nothing else runs"
    given[2][...] = given[2] * 2  # inputs are read anew by every call
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side), cupy.cuda.ExternalStream(side.cuda_stream):
        found = call()
        with torch.cuda.graph(captured, stream=side):
            call()
    side.synchronize()
    exact = 2 * sample.reference.outputs[0]
    for run in (call, captured.replay, call):
        found[...] = 0
        torch.cuda.synchronize()
        run()
        torch.cuda.synchronize()
        error = np.abs(torch.as_tensor(found, device="cuda").cpu().numpy().astype(np.float64) - exact).max()
        assert error < 5e-3 * np.abs(exact).max()


def test_mistakes_of_the_caller(rmsnorm: Any, tensors: tuple[Any, Any], torch: Any, cupy: Any) -> None:
    x, w = tensors
    wide = torch.zeros(8, 2048, device="cuda", dtype=torch.float16)
    shifted = torch.zeros(8 * 1024 + 1, device="cuda", dtype=torch.float16)[1:].view(8, 1024)
    cases: list[tuple[tuple[Any, ...], type[MirageError], str]] = [
        ((x,), LaunchError, "1 tensors for 2 inputs"),
        ((w, x), ShapeError, "X has shape"),
        ((x.float(), w), DTypeError, r"X has dtype torch\.float32, the program says torch\.float16"),
        ((cupy.asarray(x.float()), cupy.asarray(w)), DTypeError, "X has dtype float32"),
        ((x, w.cpu()), LaunchError, "W is not on a GPU"),
        ((wide[:, ::2], w), LaunchError, "X is not contiguous"),
        ((cupy.asarray(wide)[:, ::2], cupy.asarray(w)), LaunchError, "X is not contiguous"),
        ((shifted, w), LaunchError, "multiple of 16 bytes"),
        ((x, cupy.asarray(w)), LaunchError, "tensors of CuPy and torch in one call"),
        ((x.cpu().numpy()[:4], w.cpu().numpy()), ShapeError, "X has shape"),
    ]
    for given, kind, message in cases:
        with pytest.raises(kind, match=message):
            rmsnorm(*given)
    assert close(rmsnorm(x, w), tensors)  # nothing is left broken


def test_a_check_compares_with_float64(rmsnorm: Any) -> None:
    sample = draw_sample(mugraph(), 2)
    report = rmsnorm.check(sample)
    assert report.ok and 0 < report.relative_error < 5e-3
    (exact,) = evaluate(mugraph(), [a.astype(np.float64) for a in sample.inputs])
    np.testing.assert_allclose(sample.reference.outputs[0], exact, rtol=1e-9, atol=1e-9)


def test_a_cubin_of_another_card_is_refused(gpu: Gpu) -> None:
    from mirage_nb.runtime.execution.launch import GpuExecutable

    other = find_target("rtx4090" if gpu.capability != 89 else "a100")
    if gpu.runs(other):
        pytest.skip(f"{gpu.name} runs {other.arch}")
    emitted = emit(mugraph(), other)
    with pytest.raises(LaunchError, match="does not load"):
        GpuExecutable(emitted, compile_cubin(emitted.source, other.arch), gpu)


def test_a_race_times_those_that_are_right(rmsnorm: Any, gpu: Gpu, torch: Any) -> None:
    from mirage_nb.runtime.contest.race import Peer, Track, pytorch_peers

    program = parse(PROGRAM).graph
    eager = pytorch_peers(program)["eager"]

    def wrong(*inputs: Any) -> tuple[Any, ...]:
        return tuple(output * 1.5 for output in eager.run(*inputs))

    def broken(*inputs: Any) -> tuple[Any, ...]:
        raise RuntimeError("these shapes are not supported")

    def not_capturable(*inputs: Any) -> tuple[Any, ...]:
        torch.cuda.synchronize()
        return tuple(eager.run(*inputs))

    peers = {"eager": eager, "wrong": Peer(wrong), "broken": Peer(broken), "waits": Peer(not_capturable)}
    laps = {lap.name: lap for lap in Track(program, gpu, 1.0).race({"ours": rmsnorm}, peers, 10)}
    assert set(laps) == {"ours", *peers}
    for name in ("ours", "eager"):
        timing = laps[name].timing
        assert timing is not None and laps[name].note == ""
        assert 0.5 < timing.low_us <= timing.median_us <= timing.high_us < 1000
        chain = laps[name].chain
        assert chain is not None and 0.5 < chain.median_us < 2 * timing.median_us, "behind others nobody is faster"
    assert laps["wrong"].timing is None and "wrong" in laps["wrong"].note
    assert laps["broken"].timing is None and laps["broken"].note == "these shapes are not supported"
    assert laps["waits"].timing is None and "captured" in laps["waits"].note
    assert laps["ours"].error is not None and laps["ours"].error < 5e-3
    again = Track(program, gpu, 1.0).race({"ours": rmsnorm}, {"eager": eager}, 5)
    assert all(lap.timing is not None for lap in again), "a failed capture spoils nothing"
