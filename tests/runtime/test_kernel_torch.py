"""Pre-defined operators by PyTorch, on the CPU: each computes what it says, plans of them what their programs say."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage_nb.bench.problems import Problem
from mirage_nb.codegen import emit
from mirage_nb.interp import evaluate
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import FUNCTIONS, OPERATORS, parse
from mirage_nb.lang.functions import EXAMPLE_INPUTS
from mirage_nb.optimize import default_options
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.runtime.kernel import operators as kernel_operators
from mirage_nb.runtime.kernel.operators import LIBRARY, PRIMITIVES
from mirage_nb.runtime.kernel.plan import Apply
from mirage_nb.runtime.kernel.pytorch import BY_TORCH, go_of, stream_at
from mirage_nb.runtime.kernel.saved import lower, plain_attrs
from mirage_nb.targets import find_target
from mirage_nb.verify.reals.float_gate import compare
from tests.library_programs import WHOLE

torch = pytest.importorskip("torch")
from tests.plans import DTYPES, run_on_cpu  # noqa: E402  # it imports PyTorch

H200 = find_target("h200")
ROWS = [*FUNCTIONS.values(), *OPERATORS.values()]


def checked(graph: KernelGraph, ways: Any) -> None:
    """Its own operators by kernels of libraries, in the ways of these numbers, are right up to its own rounding."""
    sample = draw_sample(graph, 0)
    for way in ways:
        made = emit(graph, H200, replace(default_options(H200), library=way))
        report = compare(run_on_cpu(lower(made, graph, arch=H200.arch), sample.inputs), sample.reference)
        assert report.ok, (way, report)


def test_every_operator_has_its_form() -> None:
    assert {*BY_TORCH} == {*kernel_operators.OPERATORS}
    assert all(hasattr(torch, name) for name in PRIMITIVES if name != "step")


TWO_TYPES = "X: f32[2, 3]\nY: f16[3, 4]\nreturn X @ Y"


def test_operators_compute_the_reference_in_every_type() -> None:
    rng = np.random.default_rng(7)
    for text in (*(EXAMPLE_INPUTS + f"return {row.example}" for row in ROWS), TWO_TYPES):
        graph = parse(text).graph
        inputs = [rng.uniform(0.3, 1.8, i.type.shape) for i in graph.inputs]
        pairs = zip(inputs, graph.inputs, strict=True)
        values: list[Any] = [torch.tensor(a).to(DTYPES[i.type.dtype.value]) for a, i in pairs]
        inputs = [v.double().numpy() for v in values]
        for op, (made, *_) in graph.definitions():
            type_ = graph.types[made]
            result = torch.full(type_.shape, torch.nan, dtype=DTYPES[type_.dtype.value])
            rule = BY_TORCH[op.kind.value]
            step = Apply(op.kind.value, plain_attrs(op.attrs), op.inputs, made)
            go_of(torch, rule, step, [values[v] for v in op.inputs], result)()
            values.append(result)
        for value, want in zip(graph.outputs, evaluate(graph, inputs), strict=True):
            loose = 1e-4 if graph.types[value].dtype.size > 2 else 1e-2
            got = values[value].double().numpy()
            np.testing.assert_allclose(got, want, rtol=loose, atol=loose, err_msg=text)


BY_LIBRARY = {name: sample.text for name, sample in WHOLE.items() if sample.row in LIBRARY}


@pytest.mark.parametrize("text", BY_LIBRARY.values(), ids=[*BY_LIBRARY])
def test_plans_of_library_kernels_compute_their_programs(text: str) -> None:
    masked = "where(" in text or "+ M" in text
    checked(parse(text).graph, (0,) if masked else (1, 2, 0))


SMALL = {
    "group": {"B": 2, "G": 2, "C": 2, "L": 64}, "swish_group": {"M": 8, "K": 32, "G": 4, "C": 8},
    "group_swish": {"M": 8, "K": 32, "G": 4, "C": 8}, "gelu_softmax": {"M": 8, "K": 32},
    "bias_relu": {"M": 8, "K": 32}, "lora": {"M": 8, "K": 64, "R": 4}, "swiglu": {"M": 4, "K": 32, "F": 48},
    "add_rms": {"M": 4, "K": 64}, "norm_linear": {"M": 4, "K": 64, "N": 32}, "latent": {"H": 8, "T": 64},
    "block_decode": {"T": 64, "H": 64, "F": 96, "G": 2, "R": 2, "D": 16},
}  # fmt: skip
"""Families of problems and sizes at which they are quickly computed."""


@pytest.mark.parametrize("family", SMALL)
def test_problems_are_right_by_library_kernels_in_the_memory_that_they_share(family: str) -> None:
    problem = Problem(family, MappingProxyType(SMALL[family]))
    checked(problem.program().graph, (1, 2, 4, 0))


def test_the_default_stream_is_itself() -> None:
    """PyTorch makes a stream of its own of the address 0, on which kernels overtake those of the default stream."""
    made: list[Any] = []
    cuda = SimpleNamespace(
        ExternalStream=lambda address, device: made.append((address, device)) or "foreign",
        default_stream=lambda device: f"default of {device}",
    )
    assert stream_at(SimpleNamespace(cuda=cuda), 0, 3) == "default of 3"
    assert stream_at(SimpleNamespace(cuda=cuda), 2**40, 3) == "foreign" and made == [(2**40, 3)]


@pytest.mark.parametrize("expression", [
    "W * W + U", "exp(W / 128)", "f16(W) * s", "where(M, s, W)", "sum(M * U, axis=0)", "X @ f16(W).T", "(W > U) * 1.5",
    "sqrt(U) + max(W)", "cat((W, W), 0) * s", "W.T[::-1] * 2", "exp(F) + G", "X @ f16(F).T", "F.T[::-1] * 2", "F * G",
    "cat((G, G), 1)[:, 3:9] * 2", "F @ G.T", "cat((F, W), 0)", "cat((X, F), 0)", "where(M, F, 0)", "where(G > 0, s, F)",
])  # fmt: skip
def test_what_is_stored_in_bytes_is_computed_with_in_the_type_of_the_result(expression: str) -> None:
    head = "W: i8[4, 8]\nU: u8[4, 8]\nM: bool[4, 8]\ns: f16[8]\nX: f16[3, 8]\nF: f8e4m3[4, 8]\nG: f8e5m2[4, 8]\nreturn "
    checked(parse(head + expression).graph, (0,))
