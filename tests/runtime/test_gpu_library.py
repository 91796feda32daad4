"""Pre-defined operators on a real GPU: products of all types and shapes, in CUDA graphs, on any stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_nb.runtime.kernel.library import library_call
from mirage_nb.runtime.kernel.operators import OPERATORS, STORED, decode, encode
from mirage_nb.runtime.kernel.plan import Apply, Tensor
from mirage_nb.runtime.kernel.products import matrix_product

pytestmark = pytest.mark.gpu

TOLERANCE = {"f16": 2e-3, "bf16": 1e-2, "f32": 1e-5, "f64": 1e-12}
SHAPES = [
    ((8, 64), (64, 40)),
    ((3, 8, 64), (64, 40)),
    ((3, 8, 64), (3, 64, 40)),
    ((1, 8, 64), (5, 64, 40)),
    ((2, 1, 8, 64), (1, 3, 64, 40)),
    ((1, 4096), (4096, 1)),
]


def arrays(shapes: Any, dtype: str) -> list[Any]:
    rng = np.random.default_rng(len(dtype))
    return [encode(rng.standard_normal(shape), dtype) for shape in shapes]


def check(step: Apply, inputs: list[Any], dtype: str, capture: bool) -> None:
    cupy = pytest.importorskip("cupy")
    exact = OPERATORS[step.operator](np, step.attrs, *(decode(a, dtype) for a in inputs))
    held = [cupy.asarray(a) for a in inputs]
    output = cupy.full(exact.shape, 0x7FFF if dtype == "bf16" else np.nan, STORED[dtype])
    tensors = [Tensor("", dtype, a.shape, "workspace", 0) for a in (*held, output)]
    address = [int(a.data.ptr) for a in (*held, output)]
    call = library_call([step], tensors, address, int(cupy.cuda.Device().id))
    cupy.cuda.runtime.deviceSynchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    call(stream.ptr)
    stream.synchronize()
    if capture:
        with stream:
            stream.begin_capture()
            call(stream.ptr)
            graph = stream.end_capture()
        for array in held:
            array[...] = cupy.asarray(encode(decode(cupy.asnumpy(array), dtype) * 0.5, dtype))
        exact = exact * 0.5 ** len(held) if step.operator == "Matmul" else exact * 0.25
        output.fill(0)
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
    found = decode(cupy.asnumpy(output), dtype)
    assert np.abs(found - exact).max() <= TOLERANCE[dtype] * np.abs(exact).max()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products(shapes: Any, dtype: str) -> None:
    inputs = arrays(shapes, dtype)
    result = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
    captured = matrix_product([*shapes, (*result, shapes[0][-2], shapes[1][-1])]) is not None
    check(Apply("Matmul", {}, (0, 1), 2), inputs, dtype, captured)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_sum_of_products(dtype: str) -> None:
    inputs = arrays([(8, 64), (8, 32), (64, 40), (32, 40)], dtype)
    check(Apply("ConcatMatmul", {}, (0, 1, 2, 3), 4), inputs, dtype, capture=True)


@pytest.mark.parametrize("operator", ["EwExp", "Sum", "Max", "Transpose"])
def test_other_operators_may_be_captured_once_they_ran(operator: str) -> None:
    cupy = pytest.importorskip("cupy")
    attrs = {"perm": (1, 0)} if operator == "Transpose" else {"dim": 1}
    x = cupy.asarray(np.random.default_rng(3).standard_normal((64, 256)).astype(np.float16))
    exact = OPERATORS[operator](np, attrs, cupy.asnumpy(x).astype(np.float64))
    output = cupy.zeros(exact.shape, "float16")
    tensors = [Tensor("", "f16", a.shape, "workspace", 0) for a in (x, output)]
    call = library_call([Apply(operator, attrs, (0,), 1)], tensors, [int(a.data.ptr) for a in (x, output)], 0)
    one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.runtime.deviceSynchronize()
    call(one.ptr)
    one.synchronize()
    with other:  # another stream than the one that it ran on
        other.begin_capture()
        call(other.ptr)
        graph = other.end_capture()
    output.fill(0)
    cupy.cuda.runtime.deviceSynchronize()
    graph.launch(other)
    other.synchronize()
    found = cupy.asnumpy(output).astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=2e-3, atol=2e-3)
