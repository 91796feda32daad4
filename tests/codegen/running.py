"""Runs what was emitted on the CPU edition and compares it with the float64 reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from mirage_nb.codegen import Emitted, Options, emit
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.runtime.execution.buffers import decode, encode
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.targets import TARGETS

Arrays = list[np.ndarray[Any, Any]]

TOLERANCE = {DType.F16: 1e-3, DType.BF16: 6e-3, DType.F32: 2e-6}
WAYS: list[dict[str, Any]] = [{"deferred": False}, {"deferred": True, "order": "reversed"}]


def draw(graph: KernelGraph, seed: int = 0, scale: float = 0.5) -> Arrays:
    """Normally distributed inputs, as stored."""
    rng = np.random.default_rng(seed)
    return [encode(scale * rng.standard_normal(i.type.shape), i.type.dtype) for i in graph.inputs]


def run(emitted: Emitted, inputs: Arrays, *, checked: bool = False, **how: Any) -> Arrays:
    """The outputs as stored; `how` goes to the CPU edition (deferred, order), which may look for races."""
    return CpuExecutable(emitted, checked=checked).run(inputs, **how)


def errors(graph: KernelGraph, emitted: Emitted, inputs: Arrays, outputs: Arrays) -> list[float]:
    """Relative error in the 2-norm of every output, against the float64 reference of `graph`."""
    exact = evaluate(graph, [decode(a, i.type.dtype) for a, i in zip(inputs, graph.inputs, strict=True)])
    found = [decode(a, t.dtype) for a, t in zip(outputs, graph.output_types, strict=True)]
    return [float(np.linalg.norm(f - e) / np.linalg.norm(e)) for f, e in zip(found, exact, strict=True)]


def check(graph: KernelGraph, options: Options | None = None, scale: float = 0.5) -> None:
    """Eager and deferred, warps in two orders: asynchronous copies and barriers are all needed and enough."""
    emitted = emit(graph, TARGETS["h200"], options or Options(warps=4))
    inputs = draw(graph, scale=scale)
    for how in WAYS:
        outputs = run(emitted, inputs, **how)
        for error, type_ in zip(errors(graph, emitted, inputs, outputs), graph.output_types, strict=True):
            assert error < TOLERANCE[type_.dtype], how
