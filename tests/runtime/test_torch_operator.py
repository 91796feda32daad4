"""muGraphs as PyTorch operators: torch's own checks of operators, torch.compile without breaks, mistakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mirage_nb.codegen import emit
from mirage_nb.errors import DTypeError, MirageError, OptionError, ShapeError
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.runtime.execution.torch_operator import schema_of, torch_operator
from mirage_nb.targets import find_target
from tests.codegen import mugraphs

PROGRAM = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph


@pytest.fixture(scope="module")
def executable() -> CpuExecutable:
    return CpuExecutable(emit(mugraphs.rmsnorm(8, 64, 32, 16, 2), find_target("h200")))


@pytest.fixture(scope="module")
def operator(executable: CpuExecutable) -> Any:
    return torch_operator(PROGRAM, "rms_test", on_cpu=executable, on_cuda=executable)


@pytest.fixture
def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 64, generator=generator).half(), torch.randn(64, 32, generator=generator).half()


def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x, w = x.double(), w.double()
    return x / (x * x).mean(-1, keepdim=True).sqrt() @ w


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found.double() - wanted).abs().max() <= 5e-3 * wanted.abs().max())


def test_it_is_an_operator_of_torch(operator: Any, tensors: tuple[Any, Any]) -> None:
    found = operator(*tensors)
    assert found.dtype == torch.float16 and close(found, exact(*tensors))
    assert torch.equal(torch.ops.mirage_nb.rms_test(*tensors), found)
    assert torch.equal(operator(X=tensors[0], W=tensors[1]), found)
    torch.library.opcheck(operator, tensors)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_takes_it_whole(operator: Any, tensors: tuple[Any, Any], backend: str) -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return operator(x * 2, w).float().relu() + 1

    compiled = torch.compile(model, fullgraph=True, backend=backend)  # fullgraph: a break is an error
    assert close(compiled(*tensors), exact(*tensors).relu() + 1)
    assert torch._dynamo.explain(model)(*tensors).graph_break_count == 0


def test_mistakes_are_found_before_anything_runs(operator: Any, tensors: tuple[Any, Any]) -> None:
    from torch._subclasses import FakeTensorMode

    x, w = tensors
    cases: list[tuple[Any, Any, type[MirageError], str]] = [
        (x[:4], w, ShapeError, r"X has shape \[4, 64\]"),
        (x.float(), w, DTypeError, "X has dtype torch.float32"),
    ]
    for a, b, kind, message in cases:
        with pytest.raises(kind, match=message):
            operator(a, b)
        with FakeTensorMode() as mode, pytest.raises(kind, match=message):
            operator(mode.from_tensor(a), mode.from_tensor(b))


def test_it_has_no_derivative_and_says_so(operator: Any, tensors: tuple[Any, Any]) -> None:
    found = operator(tensors[0].requires_grad_(), tensors[1])
    with pytest.raises(RuntimeError, match="autograd"):
        found.sum().backward()


def test_names(executable: CpuExecutable) -> None:
    for wrong in ("", "a b", "3d", "a::b::c", "a-b"):
        with pytest.raises(OptionError, match="no name for an operator"):
            torch_operator(PROGRAM, wrong, on_cpu=executable, on_cuda=executable)
    calls: list[int] = []

    def first(*tensors: Any) -> Any:
        calls.append(1)
        return executable(*tensors)

    for _ in range(2):  # registering a name again replaces it
        named = torch_operator(PROGRAM, "elsewhere::rms", on_cpu=first, on_cuda=first)
    named(torch.ones(8, 64).half(), torch.ones(64, 32).half())
    assert calls == [1]


def test_schemas() -> None:
    assert schema_of(["X", "W"], 1) == "(Tensor X, Tensor W) -> Tensor"
    assert schema_of(["X", "_y"], 2) == "(Tensor input0, Tensor input1) -> (Tensor, Tensor)"
