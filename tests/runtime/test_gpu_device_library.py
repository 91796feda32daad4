"""The CUDA edition of the device library on a real GPU: the CPU edition's test kernels against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.execution.tensor_map import MapShape
from mirage_nb.runtime.kernel.driver import encode_map
from tests.device_cases import AMPERE, HOPPER
from tests.launches import Case, In, Map, Out, compare, fresh

pytestmark = pytest.mark.gpu
CASES = {case.name: case for case in (*AMPERE, *HOPPER)}
NEWER = {case.name for case in HOPPER}


@pytest.fixture(scope="module")
def cupy() -> Any:
    module = pytest.importorskip("cupy")
    if not module.cuda.is_available():
        pytest.skip("no CUDA device")
    return module


def run(cupy: Any, case: Case) -> list[tuple[Out, Any]]:
    """Launch a case on the current device; each output with what was found in it."""
    capability = int(cupy.cuda.Device().compute_capability)
    if case.name in NEWER and capability != 90:
        pytest.skip("needs a Hopper GPU")
    cubin = compile_cubin(case.source, "sm_90a" if capability == 90 else f"sm_{capability}", case.options)
    assert cubin.path is not None
    function = cupy.RawModule(path=str(cubin.path)).get_function(case.kernel)
    function.max_dynamic_shared_size_bytes = case.shared_bytes
    args: list[Any] = []
    held: list[Any] = []
    outputs: list[tuple[Out, Any]] = []
    for arg in case.args:
        if isinstance(arg, Out):
            outputs.append((arg, cupy.asarray(fresh(arg))))
            args.append(outputs[-1][1])
        elif isinstance(arg, In):
            args.append(cupy.asarray(arg.array))
        elif isinstance(arg, Map):
            held.append(cupy.asarray(arg.array))
            shape = MapShape(arg.array.shape, arg.box, arg.array.itemsize, arg.swizzle)
            args.append(encode_map(held[-1].data.ptr, shape.element_bytes, shape.shape, shape.box, shape.swizzle))
        else:
            args.append(np.int32(arg))
    function(case.grid, case.block, tuple(args), shared_mem=case.shared_bytes)
    cupy.cuda.runtime.deviceSynchronize()
    return [(out, cupy.asnumpy(found)) for out, found in outputs]


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_numpy_on_the_gpu(name: str, cupy: Any) -> None:
    for out, found in run(cupy, CASES[name]):
        compare(out, found)


def test_a_map_of_device_memory_is_one_argument(cupy: Any) -> None:
    memory = cupy.zeros((32, 64), "float16")
    found = encode_map(memory.data.ptr, 2, (32, 64), (16, 64), 128)
    assert found.shape == (1,) and found.nbytes == 128 and found.tobytes() != bytes(128)
