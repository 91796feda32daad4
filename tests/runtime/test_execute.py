"""Executables on the CPU edition: every kind of tensor in and out, clear mistakes, checks that catch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mirage_nb.codegen import Emitted, Fitting, emit
from mirage_nb.errors import CompileError, DTypeError, LaunchError, MirageError, MissingPartError, ShapeError
from mirage_nb.interp import evaluate
from mirage_nb.ir import DType, Input, KernelGraph, Op, OpKind, ReshapeAttrs, TensorType, TransposeAttrs
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import decode, draw_sample
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.execution.execute import CpuExecutable, as_declared, ordered
from mirage_nb.targets import find_target
from tests.codegen import mugraphs

H200 = find_target("h200")


def rmsnorm(dtype: DType = DType.F16) -> KernelGraph:
    """X[8, 64] and W[64, 32] in the given dtype, in one kernel."""
    lines = [line.split(" : ")[0].rstrip() for line in print_graph(mugraphs.rmsnorm(8, 64, 32, 16, 2)).splitlines()]
    return parse_graph("\n".join(lines).replace("f16[", f"{dtype.value}["))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CpuExecutable:
    return CpuExecutable(emit(rmsnorm(), H200))


def arrays(graph: KernelGraph) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(i.type.shape).astype(np.float16) for i in graph.inputs]


def close(found: object, exact: np.ndarray, tolerance: float = 5e-3) -> bool:
    return bool(np.abs(np.asarray(found, np.float64) - exact).max() <= tolerance * np.abs(exact).max())


def test_numpy_in_numpy_out(compiled: CpuExecutable) -> None:
    x, w = arrays(rmsnorm())
    (exact,) = evaluate(rmsnorm(), [x, w])
    found = compiled(x, w)
    assert isinstance(found, np.ndarray) and found.dtype == np.float16 and close(found, exact)
    for other in (np.asfortranarray(x), x.tolist()):
        assert np.array_equal(compiled(other, w), found)
    for wide in (np.float32, np.float64):
        for refused in (compiled, compiled.prepare):
            with pytest.raises(DTypeError, match="the program says f16") as told:
                refused(x.astype(wide), w)
            assert "cast=True" in told.value.hint
        assert np.array_equal(compiled(*as_declared([x.astype(wide), w], rmsnorm().inputs)), found)
    wider = as_declared([torch.from_numpy(x).double(), torch.from_numpy(w)], rmsnorm().inputs)
    assert [t.dtype for t in wider] == [torch.float16] * 2


def test_torch_in_torch_out(compiled: CpuExecutable) -> None:
    x, w = arrays(rmsnorm())
    found = compiled(torch.from_numpy(x), torch.from_numpy(w))
    assert isinstance(found, torch.Tensor) and found.dtype == torch.float16 and found.device.type == "cpu"
    assert np.array_equal(found.numpy(), compiled(x, w))
    mixed = compiled(torch.from_numpy(x).requires_grad_(), w)
    assert isinstance(mixed, torch.Tensor) and not mixed.requires_grad and torch.equal(mixed, found)
    assert torch.equal(compiled(torch.from_numpy(x.T.copy()).T, torch.from_numpy(w)), found)


def test_bf16_keeps_its_kind() -> None:
    graph = rmsnorm(DType.BF16)
    ready = CpuExecutable(emit(graph, H200))
    x, w = (torch.from_numpy(a.astype(np.float32)).to(torch.bfloat16) for a in arrays(graph))
    (exact,) = evaluate(graph, [x.double().numpy(), w.double().numpy()])
    found = ready(x, w)
    assert found.dtype == torch.bfloat16 and close(found.double().numpy(), exact, 3e-2)
    plain = ready(x.float().numpy(), w.float().numpy())
    assert plain.dtype == np.float32 and np.array_equal(plain, found.float().numpy())
    bits = [t.view(torch.int16).numpy().view(np.uint16) for t in (x, w)]
    assert np.array_equal(ready(*bits), plain)
    sample = draw_sample(graph, 0)
    assert ready.check(sample).ok


def test_mistakes_of_the_caller(compiled: CpuExecutable) -> None:
    x, w = arrays(rmsnorm())
    cases: list[tuple[tuple[object, ...], type[MirageError], str]] = [
        ((x,), LaunchError, "1 tensors for 2 inputs"),
        ((x, w, w), LaunchError, "3 tensors for 2 inputs"),
        ((w, x), ShapeError, r"X has shape \[64, 32\], the program says f16\[8, 64\]"),
        ((x[None], w), ShapeError, "X has shape"),
        ((torch.from_numpy(x).float(), w), DTypeError, r"X has dtype torch\.float32"),
        ((x.astype(complex), w), DTypeError, "X has dtype complex128"),
        ((torch._neg_view(torch.from_numpy(x)), w), DTypeError, "X is the negative of what lies in memory"),
        ((x, "a string"), ShapeError, "W is no tensor, but of type str"),
        ((x, [[1.0], [2.0, 3.0]]), ShapeError, "W is no array"),
        ((torch.from_numpy(x).to("meta"), w), ShapeError, "X has no elements side by side"),
        ((torch.from_numpy(x).to_sparse(), w), ShapeError, "X has no elements side by side"),
    ]
    for tensors, kind, message in cases:
        with pytest.raises(kind, match=message):
            compiled(*tensors)


@pytest.mark.parametrize("given", [2, 2.0, np.float32(2), np.array(2, np.float32), torch.tensor(2.0)])
def test_a_scalar_may_be_a_number(given: object) -> None:
    inputs = parse("X: f32[3]\na: f32\nreturn X * a").graph.inputs
    x, a = ordered(inputs, (np.ones(3, np.float32),), {"a": given})
    assert np.shape(x) == (3,) and np.shape(a) == (1,) and a[0] == 2
    _, a = ordered(inputs, (torch.ones(3), given), {})
    assert np.shape(a) == (1,) and ((torch.is_tensor(a) and a.dtype == torch.float32) or hasattr(given, "dtype"))


def test_inputs_are_left_alone(compiled: CpuExecutable) -> None:
    x, w = arrays(rmsnorm())
    before = x.copy(), w.copy()
    compiled(x, w)
    assert np.array_equal(x, before[0]) and np.array_equal(w, before[1])


def sabotaged(source: str) -> str:
    """The source with its last store of an output taken out."""
    lines = source.splitlines()
    last = max(n for n, line in enumerate(lines) if "store" in line and line.strip().endswith(";"))
    return "\n".join([*lines[:last], ";", *lines[last + 1 :]])


def test_a_check_catches_what_is_wrong() -> None:
    emitted = emit(rmsnorm(), H200)
    sample = draw_sample(rmsnorm(), 1)
    assert CpuExecutable(emitted).check(sample).ok
    unwritten = replace(emitted, source=sabotaged(emitted.source))
    report = CpuExecutable(unwritten).check(sample)
    assert not report.ok and "not written" in report.note
    outputs = tuple(o + 0.1 * np.abs(o).max() for o in sample.reference.outputs)
    other = replace(sample, reference=replace(sample.reference, outputs=outputs))
    assert not CpuExecutable(emitted).check(other).ok


def test_views_and_predefined_operators_between_kernels() -> None:
    """Two outputs, a reshape, and a transpose that no generated kernel does."""
    x = Input("X", TensorType((8, 64), DType.F16))
    graph = KernelGraph.start(x).append(Op(OpKind.SQR, (0,)))
    graph = graph.append(Op(OpKind.TRANSPOSE, (1,), TransposeAttrs((1, 0))))
    graph = graph.append(Op(OpKind.RESHAPE, (1,), ReshapeAttrs((4, 128)))).returning((3, 2))
    emitted = emit(graph, H200)
    ready = CpuExecutable(emitted)
    (values,) = arrays(graph)
    flat, turned = ready(values)
    exact = values.astype(np.float64) ** 2
    assert close(flat, exact.reshape(4, 128)) and close(turned, exact.T)
    assert flat.shape == (4, 128) and turned.shape == (64, 8)


@pytest.mark.parametrize(("given", "said"), [((1, 1), "1 tensors for 2 inputs"), ((2, 2), "2 tensors for 1 outputs")])
def test_a_call_is_not_bound_to_too_few_tensors_or_too_many(given: tuple[int, int], said: str) -> None:
    launch = pytest.importorskip("mirage_nb.runtime.execution.launch")
    executable = object.__new__(launch.GpuExecutable)  # without a card
    executable._emitted = emit(rmsnorm(), H200)
    executable._fits = Fitting(executable._emitted)
    with pytest.raises(LaunchError, match=said):
        executable.bind(arrays(rmsnorm())[: given[0]], [None] * given[1])


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted = emit(rmsnorm(), H200)
    monkeypatch.setenv("MIRAGE_NB_CXX", "/nonexistent")
    with pytest.raises(MissingPartError, match="no C\\+\\+ compiler"):
        CpuExecutable(emitted)


def test_a_source_that_no_compiler_takes() -> None:
    source = '#include "mirage_device.cuh"\nextern "C" __global__ void kernel0() { nonsense }'
    broken: Emitted = replace(emit(rmsnorm(), H200), source=source)
    with pytest.raises(CompileError, match="nonsense"):
        compile_cubin(broken.source, H200.arch)
    with pytest.raises(CompileError, match="nonsense"):
        CpuExecutable(broken)


def test_decoding_gives_back_what_was_encoded(compiled: CpuExecutable) -> None:
    sample = draw_sample(rmsnorm(), 4)
    (found,) = compiled.run(sample.inputs)
    (reversed_,) = compiled.run(sample.inputs, deferred=True, order="reversed")
    assert close(decode(reversed_, DType.F16), decode(found, DType.F16).astype(np.float64))
