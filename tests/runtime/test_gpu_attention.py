"""Attention with roles on the card: what it reads beside its matrices, tiles that hang over an end or are hidden."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.codegen import emit, variants
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.targets import TARGETS
from tests.codegen import test_attention_beside, test_attention_hanging, test_hidden_tiles
from tests.codegen.running import TOLERANCE, draw, errors

pytestmark = pytest.mark.gpu

H200 = TARGETS["h200"]
CASES = {**test_attention_beside.NAMED, **test_attention_hanging.NAMED}


@pytest.mark.parametrize("name", CASES)
def test_named(gpu: Gpu, name: str) -> None:
    from mirage_nb.runtime.execution.launch import GpuExecutable

    graph = CASES[name]
    inputs, ways = draw(graph, scale=1.0), [way for way in variants(graph, H200) if way.specialised]
    assert ways
    for way in ways:
        made = emit(graph, H200, way)
        ready = GpuExecutable(made, compile_cubin(made.source, H200.arch), gpu)
        found = errors(graph, made, inputs, ready.run(inputs))
        assert all(e < TOLERANCE[t.dtype] for e, t in zip(found, graph.output_types, strict=True)), (way, found)


@pytest.mark.parametrize("form", test_hidden_tiles.FORMS)
def test_whatever_is_hidden(gpu: Gpu, form: str) -> None:
    from mirage_nb.runtime.execution.launch import GpuExecutable

    graph, rng = test_hidden_tiles.FORMS[form], np.random.default_rng(4)
    made = emit(graph, H200)
    ready = GpuExecutable(made, compile_cubin(made.source, H200.arch), gpu)
    for _ in range(20):
        inputs = test_hidden_tiles.drawn(graph, test_hidden_tiles.random_data(form, rng), rng)
        assert test_hidden_tiles.close(graph, inputs, ready.run(inputs))
