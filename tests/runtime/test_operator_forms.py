"""Every example of the language means the same in all forms of its operators: reference, plain arrays, PyTorch, fields.

Element types are those that PyTorch gives, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.lang import FUNCTIONS, OPERATORS, parse
from mirage_nb.lang.functions import EXAMPLE_INPUTS
from mirage_nb.runtime.execution.torch_program import TORCH_DTYPE, as_torch
from mirage_nb.runtime.kernel.operators import run_program
from mirage_nb.runtime.kernel.saved import plain_attrs
from mirage_nb.verify.trials import verify

ROWS = [*FUNCTIONS.values(), *OPERATORS.values()]


def graph_of(row: Any) -> KernelGraph:
    return parse(EXAMPLE_INPUTS + f"return {row.example}").graph


def inputs_of(graph: KernelGraph) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.uniform(0.3, 1.8, i.type.shape) for i in graph.inputs]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.example)
def test_plain_arrays_compute_the_reference(row: Any) -> None:
    graph = graph_of(row)
    inputs = inputs_of(graph)
    steps = [(op.kind.value, plain_attrs(op.attrs), op.inputs) for op in graph.ops]
    found = run_program(steps, inputs)
    for value, want in zip(graph.outputs, evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(np.broadcast_to(found[value], want.shape), want, rtol=1e-12, atol=1e-12)
    assert parse_graph(print_graph(graph)) == graph


def test_pytorch_computes_the_reference() -> None:
    torch = pytest.importorskip("torch")
    for row in ROWS:
        graph = graph_of(row)
        inputs = inputs_of(graph)
        found = as_torch(graph, torch)(*(torch.tensor(a, dtype=torch.float32) for a in inputs))
        for got, want, type_ in zip(found, evaluate(graph, inputs), graph.output_types, strict=True):
            loose = 1e-4 if type_.dtype.size > 2 else 1e-2
            assert str(got.dtype) == f"torch.{TORCH_DTYPE[type_.dtype]}"
            np.testing.assert_allclose(got.to(torch.float64).numpy(), want, rtol=loose, atol=loose, err_msg=row.example)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.example)
def test_a_program_is_accepted_beside_itself_and_refused_beside_another(row: Any) -> None:
    graph = graph_of(row)
    assert verify(graph, graph).accepted
    if len(graph.outputs) == 1:
        other = parse(EXAMPLE_INPUTS + f"O = {row.example}\nO = O + 0.5 * O\nreturn O").graph
        assert not verify(graph, other).accepted
