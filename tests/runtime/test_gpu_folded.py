"""Products whose columns are folded on the card: every way to emit them with roles, groups of warps in turns, too."""

from __future__ import annotations

import pytest

from mirage_nb.codegen import emit, variants
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.targets import TARGETS
from tests.codegen import test_folded
from tests.codegen.running import TOLERANCE, draw, errors

pytestmark = pytest.mark.gpu

H200 = TARGETS["h200"]
MANY = test_folded.folded(test_folded.exponentials, 4096, 1024, 8192, 128, 128)
"""Blocks go from tile to tile, in turns."""
CASES = {**test_folded.NAMED, "three groups": test_folded.DEEP, "many tiles": MANY}


@pytest.mark.parametrize("name", CASES)
def test_named(gpu: Gpu, name: str) -> None:
    from mirage_nb.runtime.execution.launch import GpuExecutable

    graph = CASES[name]
    ways = [way for way in variants(graph, H200) if way.specialised]
    assert ways and {way.ahead for way in ways} >= ({0, 2, 4} if graph in (test_folded.DEEP, MANY) else {0})
    inputs = draw(graph, scale=0.25)
    for way in ways:
        made = emit(graph, H200, way)
        ready = GpuExecutable(made, compile_cubin(made.source, H200.arch), gpu)
        for _ in range(3):
            found = errors(graph, made, inputs, ready.run(inputs))
            assert all(e < TOLERANCE[t.dtype] for e, t in zip(found, graph.output_types, strict=True)), (way, found)
