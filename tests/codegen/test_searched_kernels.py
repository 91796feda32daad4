"""What the search finds can be emitted as it is, and computes the program: search -> plan -> emit -> run."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.execution.buffers import decode
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.targets import TARGETS
from tests.codegen.running import draw, run
from tests.search.explored import explored
from tests.search.programs import PROGRAMS
from tests.shares import shared_out

H200, STANDARD = TARGETS["h200"], EFFORTS["standard"]

# Large enough for tensor cores and boxes, small enough for the CPU edition; some extents fill no tile.
SIZES = {
    "rmsnorm": (4, 128, 96), "rmsnorm_fig3": (16, 64, 120), "gated_mlp": (8, 96, 128), "lora": (16, 64, 16, 64),
    "gqa": (2, 32, 64, 64), "attention_safe": (2, 16, 64, 128), "ntrans": (4, 128), "moe": (2, 8, 32, 48, 16),
}  # fmt: skip


def sample(program: KernelGraph, kernels: int, count: int, choose: random.Random) -> list[KernelGraph]:
    """Instances of muGraphs that the search finds, each of another configuration, at sizes of all kinds."""
    prepared = prepare(program)
    every = [c for c in configurations(prepared, STANDARD) if c.kernels == kernels]
    found: list[KernelGraph] = []
    for configuration in choose.sample(every, len(every)):
        result = explored(prepared, configuration, STANDARD)
        offered = [i.graph for structure in result.structures[:3] for i in instances(structure, prepared, H200, 20)]
        found += choose.sample(offered, min(1, len(offered)))
        if len(found) == count:
            break
    return found


@shared_out
@pytest.mark.parametrize("kernels", [1, 2])
@pytest.mark.parametrize("name", SIZES)
def test_searched_mugraphs_run(name: str, kernels: int, share: int) -> None:
    program = PROGRAMS[name](*SIZES[name])
    inputs = draw(program, scale=0.3)
    exact = evaluate(program, [decode(a, i.type.dtype) for a, i in zip(inputs, program.inputs, strict=True)])
    choose = random.Random(f"{name} {kernels}")
    graphs = sample(program, kernels, max(1, 3 // share), choose)
    assert graphs
    for graph in graphs:
        options = Options(choose.choice([2, 4, 8]), choose.choice([2, 3]), choose.random() < 0.6)
        outputs = run(emit(graph, H200, options), inputs, deferred=True, order=choose.randrange(100))
        for found, wanted, type_ in zip(outputs, exact, graph.output_types, strict=True):
            error = np.linalg.norm(decode(found, type_.dtype) - wanted) / np.linalg.norm(wanted)
            assert error < 2e-3, (options, graph)
