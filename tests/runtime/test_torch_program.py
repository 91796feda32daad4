"""Tensor programs in PyTorch: the same operators and the same values as the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given

from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.errors import DTypeError, GraphError
from mirage_nb.interp import evaluate
from mirage_nb.ir import OPS, ConstAttrs, DType, Input, KernelGraph, Level, Op, OpKind, TensorType, Trait
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.torch_program import TORCH, as_torch, check_dtype, torch_dtype
from tests.mugraphs import rmsnorm
from tests.shares import examples
from tests.strategies import arrays_for, programs


def test_one_row_for_every_predefined_operator_of_a_kernel_graph() -> None:
    plain = {k for k, spec in OPS.items() if Level.KERNEL in spec.levels and Trait.STRUCTURAL not in spec.traits}
    assert set(TORCH) == plain


@given(programs())
@examples(150)
def test_values_are_those_of_the_reference(graph: KernelGraph) -> None:
    inputs = arrays_for(graph, 5)
    expected = evaluate(graph, inputs)
    found = as_torch(graph, torch, exact=True)(*(torch.from_numpy(inputs[i.name]) for i in graph.inputs))
    for want, got, type_ in zip(expected, found, graph.output_types, strict=True):
        assert tuple(got.shape) == type_.shape
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-7, atol=1e-9)


def test_casts_round_nothing_where_the_exact_value_is_asked_for() -> None:
    """A norm in single precision in front of a product in half: in float64 all of it is."""
    declared = "X: bf16[4, 16]\nM: f16[8]\nW: bf16[8, 16]"
    text = f"{declared}\nreturn bf16(rms_norm(f32(X))) @ W.T + bf16(where(arange(8) >= 3, M, 1))"
    graph = parse(text).graph
    rng = np.random.default_rng(0)
    inputs = {i.name: rng.standard_normal(i.type.shape) for i in graph.inputs}
    tensors = [torch.from_numpy(inputs[i.name]) for i in graph.inputs]
    (found,) = as_torch(graph, torch, exact=True)(*tensors)
    np.testing.assert_allclose(found.numpy(), evaluate(graph, inputs)[0], rtol=1e-12)
    typed = (t.to(torch_dtype(torch, i.type.dtype)) for t, i in zip(tensors, graph.inputs, strict=True))
    assert as_torch(graph, torch)(*typed)[0].dtype is torch.bfloat16


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_at_their_own_dtype(name: str) -> None:
    text = workload(name)
    for large, small in (("4096", "64"), ("6144", "96"), ("8192", "64"), ("1024", "32"), ("256", "16")):
        text = text.replace(large, small)
    graph = parse(text).graph
    inputs = [torch.randn(i.type.shape) * 0.3 for i in graph.inputs]
    halves = [t.to(torch_dtype(torch, i.type.dtype)) for t, i in zip(inputs, graph.inputs, strict=True)]
    expected = evaluate(graph, [t.double().numpy() for t in halves])
    for want, got, type_ in zip(expected, as_torch(graph, torch)(*halves), graph.output_types, strict=True):
        assert got.dtype == torch_dtype(torch, type_.dtype)
        if name != "qknorm_k":  # its exponentials leave f16, in torch as in anything else
            np.testing.assert_allclose(got.double().numpy(), want, atol=2e-2 * np.abs(want).max())


def test_products_of_two_types_are_of_the_wider_one() -> None:
    graph = parse("X: f32[2, 3]\nY: f16[3, 4]\nreturn X @ Y").graph
    x, y = torch.randn(2, 3), torch.randn(3, 4).half()
    (found,) = as_torch(graph, torch)(x, y)
    torch.testing.assert_close(found, x @ y.float())


def test_scalars_stay_scalars() -> None:
    x = Input("X", TensorType((2, 3), DType.F16))
    graph = KernelGraph.start(x).append(Op(OpKind.CONST, (), ConstAttrs(2)))  # type: ignore[arg-type]
    graph = graph.append(Op(OpKind.SQRT, (1,))).append(Op(OpKind.MUL, (0, 2))).returning((3, 2))
    ones = torch.ones(2, 3, dtype=torch.float16)
    scaled, scalar = as_torch(graph, torch)(ones)
    assert scaled.dtype == torch.float16 and scalar.dtype == torch.float32 and graph.types[2].dtype is DType.F32
    assert float(scaled[0, 0]) == pytest.approx(2**0.5, rel=1e-3)


def test_numbers_are_made_where_the_tensors_are() -> None:
    """A copy from the host is none that a CUDA graph captures: nobody was timed who compares with a number."""
    graph = parse("X: f32[3]\nY: f32[3]\nreturn where(Y > 0, X, 2.5) + where(0 > X, Y, 1)").graph
    traced = as_torch(graph, torch)
    assert isinstance(traced, torch.fx.GraphModule)
    made = {str(node.target) for node in traced.graph.nodes}
    assert "new_full" in made and not made & {"new_tensor", "tensor", "as_tensor"}
    x, y = torch.tensor([-1.0, 2.0, 3.0]), torch.tensor([1.0, -1.0, 2.0])
    torch.testing.assert_close(traced(x, y)[0], torch.where(y > 0, x, 2.5) + torch.where(x < 0, y, 1))


@pytest.mark.parametrize("first", ["M: bool[3]", "M: i8[3]", "M: f16[3]"])
def test_numbers_have_the_type_of_what_they_meet(first: str) -> None:
    """Whatever input comes first: a mask has no 70000, nor has a half."""
    graph = parse(f"{first}\nY: f32[3]\nreturn where(Y > 70000, M, 0.5), where(M > 0.5, Y, -2.5)").graph
    kept, y = torch.tensor([1, 0, 1]).to(torch_dtype(torch, graph.inputs[0].type.dtype)), torch.tensor([1e5, 8e4, 3.0])
    found = as_torch(graph, torch)(kept, y)
    wanted = torch.where(y > 70000, kept.float(), 0.5), torch.where(kept > 0.5, y, -2.5)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), other)


def test_what_is_joined_has_the_type_of_the_result() -> None:
    """PyTorch joins whole numbers of two types as such of two bytes, and floats of one byte with nothing else."""
    declared = {"W": "i8", "U": "u8", "F": "f8e4m3", "G": "f8e5m2", "X": "f16"}
    head = "\n".join(f"{name}: {dtype}[2, 4]" for name, dtype in declared.items())
    graph = parse(f"{head}\nreturn cat((W, U), 0), cat((F, X), 1), stack((G, F), 0), cat((F, F), 0) * 2, F @ G.T").graph
    held = torch.arange(8).reshape(2, 4)
    found = as_torch(graph, torch)(*(held.to(torch_dtype(torch, i.type.dtype)) for i in graph.inputs))
    for got, want, type_ in zip(found, evaluate(graph, [held.double().numpy()] * 5), graph.output_types, strict=True):
        assert got.dtype is torch_dtype(torch, type_.dtype)
        np.testing.assert_array_equal(got.double().numpy(), want)


def test_mugraphs_and_wrong_dtypes_are_refused() -> None:
    with pytest.raises(GraphError, match="pre-defined"):
        as_torch(rmsnorm().candidate, torch)
    x = Input("X", TensorType((2,), DType.BF16))
    check_dtype(torch.zeros(2, dtype=torch.bfloat16), x)
    with pytest.raises(DTypeError, match=r"X has dtype torch\.float32, the program says torch\.bfloat16"):
        check_dtype(torch.zeros(2), x)
