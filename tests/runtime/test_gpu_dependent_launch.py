"""Dependent launches on a real GPU: in order, in graphs, and really at the same time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_nb.runtime.execution.compile import compile_cubin

pytestmark = pytest.mark.gpu

SOURCE = """#include "mirage_device.cuh"
using namespace mirage;
// Adds 1 to every element, late: the next kernel has every chance to read too early.
extern "C" __global__ void __launch_bounds__(256) first(const float* x, float* y, float one, int rounds) {
  grid_dependency_launch();
  const int i = (int)blockIdx.x * 256 + thread_index();
  float v = x[i] + 1.0f;
  for (int r = 0; r < rounds; ++r) v = fused_multiply_add(v, one, 1.0f - one);
  y[i] = v;
}
// Doubles what `first` wrote, seen from the other end of the tensor.
extern "C" __global__ void __launch_bounds__(256) second(const float* y, float* z) {
  const int i = (int)blockIdx.x * 256 + thread_index();
  const int far = (int)gridDim.x * 256 - 1 - i;
  grid_dependency_wait();
  z[i] = 2.0f * y[far];
}
// Has work of its own before it needs anything.
extern "C" __global__ void __launch_bounds__(256) busy(const float* y, float* z, float one, int rounds) {
  const int i = (int)blockIdx.x * 256 + thread_index();
  float v = 1.0f;
  for (int r = 0; r < rounds; ++r) v = fused_multiply_add(v, one, 1.0f - one);
  grid_dependency_wait();
  z[i] = v * y[i];
}
"""
BLOCKS, ROUNDS, ONE = 64, np.int32(20000), np.float32(1)


@pytest.fixture(scope="module")
def cupy() -> Any:
    module = pytest.importorskip("cupy")
    if not module.cuda.is_available():
        pytest.skip("no CUDA device")
    return module


@pytest.fixture(scope="module")
def kernels(cupy: Any) -> Any:
    capability = int(cupy.cuda.Device().compute_capability)
    cubin = compile_cubin(SOURCE, "sm_90a" if capability == 90 else f"sm_{capability}")
    assert cubin.path is not None
    return cupy.RawModule(path=str(cubin.path))


def prepared(cupy: Any, kernels: Any, name: str, *args: Any, overlap: bool = True) -> Any:
    """A call that enqueues a kernel, dependent or ordinary."""
    from tests.dependent_launch import dependent_launch

    packed = [np.uintp(a.data.ptr) if isinstance(a, cupy.ndarray) else a for a in args]
    function, extents = kernels.get_function(name), ((BLOCKS, 1, 1), (256, 1, 1))
    if overlap:
        return dependent_launch(function, *extents, packed, 0)
    return lambda: function(*extents, tuple(packed))


@pytest.fixture
def tensors(cupy: Any) -> tuple[Any, Any, Any]:
    x = cupy.arange(BLOCKS * 256, dtype="float32")
    return x, cupy.full_like(x, float("nan")), cupy.full_like(x, float("nan"))


def test_reads_what_the_kernel_in_front_wrote(cupy: Any, kernels: Any, tensors: tuple[Any, Any, Any]) -> None:
    x, y, z = tensors
    prepared(cupy, kernels, "first", x, y, ONE, ROUNDS, overlap=False)()
    prepared(cupy, kernels, "second", y, z)()
    np.testing.assert_allclose(cupy.asnumpy(z), 2 * (cupy.asnumpy(x)[::-1] + 1))


def captured(cupy: Any, stream: Any, calls: list[Any]) -> Any:
    """A CUDA graph of the calls; they have run once before."""
    with stream:
        for call in calls:
            call()
        stream.synchronize()
        stream.begin_capture()
        for call in calls:
            call()
        return stream.end_capture()


def test_inside_a_graph(cupy: Any, kernels: Any, tensors: tuple[Any, Any, Any]) -> None:
    x, y, z = tensors
    first = prepared(cupy, kernels, "first", x, y, ONE, ROUNDS, overlap=False)
    calls = [first, prepared(cupy, kernels, "second", y, z)]
    stream = cupy.cuda.Stream(non_blocking=True)
    graph = captured(cupy, stream, calls)
    for turn in range(5):
        x += 1
        y.fill(float("nan"))
        z.fill(float("nan"))
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_allclose(cupy.asnumpy(z), 2 * (cupy.asnumpy(x)[::-1] + 1), err_msg=str(turn))


def test_two_kernels_run_at_the_same_time(cupy: Any, kernels: Any, tensors: tuple[Any, Any, Any]) -> None:
    """Both work for about as long as each other; on sm_90 the second does so beside the first."""
    if int(cupy.cuda.Device().compute_capability) < 90:
        pytest.skip("needs sm_90 or later")
    x, y, z = tensors
    stream, times = cupy.cuda.Stream(non_blocking=True), {}
    for overlap in (False, True):
        calls = [
            prepared(cupy, kernels, "first", x, y, ONE, ROUNDS, overlap=False),
            prepared(cupy, kernels, "busy", y, z, ONE, ROUNDS, overlap=overlap),
        ]
        graph, found = captured(cupy, stream, calls), []
        for _ in range(10):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            found.append(cupy.cuda.get_elapsed_time(begin, end))
        times[overlap] = float(np.median(found))
    print(f"\ntwo kernels, one after the other {times[False] * 1e3:.1f} us, overlapping {times[True] * 1e3:.1f} us")
    assert times[True] < 0.75 * times[False]


def test_refusals_become_ordinary_launches(
    cupy: Any, kernels: Any, tensors: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirage_nb.runtime.kernel import driver as kernel_driver

    real, x, y, z = kernel_driver.driver_function, *tensors
    asked: list[int] = []

    def older(name: str) -> Any:
        """A driver that does not know the attribute."""
        launch = real(name)

        def refuse(config: Any, *rest: Any) -> int:
            count = config._obj.attribute_count
            asked.append(count)
            return 801 if count else int(launch(config, *rest))

        return refuse

    monkeypatch.setattr(kernel_driver, "driver_function", older)
    prepared(cupy, kernels, "first", x, y, ONE, np.int32(10), overlap=False)()
    second = prepared(cupy, kernels, "second", y, z)
    for _ in range(2):
        z.fill(float("nan"))
        second()
        np.testing.assert_allclose(cupy.asnumpy(z), 2 * (cupy.asnumpy(x)[::-1] + 1))
    if int(cupy.cuda.Device().compute_capability) >= 90:
        assert asked == [1, 0, 0]  # refused once, never asked again
