"""Attention with a sink: a number beside a row's scores that takes part in its maximum and its sum, and has no value.

The reference is softmax over scores and sink, side by side, in float64. Rows of which a mask hides everything are 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage_nb.codegen import Emitted, Options, emit
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.optimize import plan
from mirage_nb.runtime.execution.buffers import decode, encode
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Program
from tests.codegen.mugraphs import sunk
from tests.codegen.running import TOLERANCE

H200 = TARGETS["h200"]
FEW = replace(H200, multiprocessors=3)
HEADS = 2
Array = np.ndarray[Any, Any]


def inputs(graph: KernelGraph, number: float, seed: int = 0) -> list[Array]:
    """Scores of some ten; of one row in five a mask hides everything; sinks like this one, or of any size."""
    rng = np.random.default_rng(seed)
    *matrices, lengths, sink = (i.type for i in graph.inputs)
    drawn = [3 * rng.standard_normal(type_.shape) for type_ in matrices]
    drawn.append((rng.random(lengths.shape) > 0.2).astype(float))
    drawn.append(10 * rng.standard_normal(sink.shape) if np.isnan(number) else np.full(sink.shape, number))
    return [encode(x, i.type.dtype) for x, i in zip(drawn, graph.inputs, strict=True)]


def exact(graph: KernelGraph, stored: list[Array], constant: bool) -> Array:
    q, k, v, kept, sink = (decode(x, i.type.dtype) for x, i in zip(stored, graph.inputs, strict=True))
    scores = np.where(kept > 0, q @ k.swapaxes(1, 2) / 8, -np.inf)
    sink = np.broadcast_to(1.0 if constant else sink, (*scores.shape[:2], 1))
    both = np.concatenate([scores, sink], axis=2)
    with np.errstate(invalid="ignore"):
        raised = np.exp(both - both.max(2, keepdims=True))
        return (raised / raised.sum(2, keepdims=True))[:, :, :-1] @ v


def hold(graph: KernelGraph, emitted: Emitted, constant: bool = False) -> None:
    """The kernel computes it, whatever the sink is: where everything is hidden, too."""
    (type_,) = graph.output_types
    for seed, number in enumerate((np.nan, 0.0, -np.inf, -3e4, 3e4, 90.0)):
        stored = inputs(graph, number, seed)
        wanted = exact(graph, stored, constant)
        outputs = CpuExecutable(emitted, checked=not seed).run(stored, deferred=bool(seed % 2))
        found, none = decode(outputs[0], type_.dtype), np.isnan(wanted)
        assert (np.isnan(found) == none).all(), number
        error = np.linalg.norm(np.where(none, 0, found - wanted)) / max(np.linalg.norm(np.where(none, 0, wanted)), 1)
        assert error < TOLERANCE[type_.dtype], number
        hidden = stored[3].reshape(HEADS, -1) == 0
        assert (number == -np.inf and not constant) or (found[hidden] == 0).all()


NAMED = {
    "sinks of heads": sunk(64, 64, 3),
    "sinks of rows": sunk(64, 64, 3, (HEADS, 192, 1)),
    "sinks in f32, 128 rows": sunk(128, 64, 4, other=DType.F32, dtype=DType.F16),
    "one more score": sunk(64, 64, 3, constant=True),
}


@pytest.mark.parametrize("name", NAMED)
def test_roles(name: str) -> None:
    graph = NAMED[name]
    program = next(block for block in plan(graph, FEW).kernels if block is not None).program
    assert isinstance(program, Program)
    hold(graph, emit(graph, FEW), constant=name == "one more score")


@pytest.mark.parametrize(("sink", "warps", "rows", "constant"), [
    ((HEADS, 1, 1), 4, 16, False), ((HEADS, 16, 1), 4, 16, False), ((HEADS, 8, 1), 2, 8, False),
    ((HEADS, 1, 1), 4, 64, True), ((HEADS, 64, 1), 4, 64, False),
], ids=["few rows", "of rows", "warps share keys", "one", "of many rows"])  # fmt: skip
def test_warps(sink: tuple[int, ...], warps: int, rows: int, constant: bool) -> None:
    """Each warp has a running maximum of its own, which the sink joins."""
    graph, options = sunk(rows, 64, 3, sink, t=rows, constant=constant), Options(warps=warps, stages=2)
    block = next(block for block in plan(graph, FEW, options).kernels if block is not None)
    assert block.staged is not None and block.staged.region is not None
    hold(graph, emit(graph, FEW, options), constant)
