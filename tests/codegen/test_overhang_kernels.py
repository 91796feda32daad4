"""Kernels whose tiles hang over the ends of tensors: right, and nothing beyond the ends is read or written.

They come from the search, at sizes that no useful tile divides. Tensors lie between guards: inputs between numbers
that would be seen in any result, outputs between a pattern that has to stay.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mirage_nb.codegen import LibraryCall, MapArg, TensorArg, emit, variants
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.runtime.buffers import poisoned
from mirage_nb.runtime.emulate import CpuModule
from mirage_nb.runtime.tensor_map import TensorMap
from mirage_nb.search import EFFORTS, configurations, instances, prepare, run_configuration, tiny
from mirage_nb.search.sizes.instantiate import poor_axes
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from tests.codegen.running import TOLERANCE, WAYS, draw, errors

H200 = TARGETS["h200"]
GUARD = 4096
"""Elements before and behind every tensor."""

PROGRAMS = {
    "prime sizes": "X: f16[37, 67]\nW: f16[67, 41]\nreturn X @ W",
    "rows that the copy engine takes": "X: f16[37, 136]\nW: f16[136, 152]\nreturn X @ W",
    "f32": "X: f32[37, 67]\nW: f32[67, 41]\nreturn X @ W",
    "norm and product": "X: f16[35, 67]\nG: f16[67]\nW: f16[67, 74]\nreturn rms_norm(X, G) @ W",
    "gates": "X: f16[37, 34]\nW: f16[34, 41]\nV: f16[34, 41]\nreturn silu(X @ W) * (X @ V)",
    "rows held in registers": "X: f16[67, 48]\nreturn softmax(X, axis=1)",
    "columns held in registers": "X: f16[37, 74]\nreturn X / sum(X * X, axis=0, keepdims=True)",
    "elements": "X: f16[5, 37, 34]\nB: f16[34]\nreturn silu(X + B)",
    "attention": (
        "Q: f16[2, 67, 16]\nK: f16[2, 64, 16]\nV: f16[2, 64, 16]\nreturn softmax(Q @ transpose(K, 0, 2, 1), axis=2) @ V"
    ),
}


def overhanging(text: str, count: int) -> Iterator[KernelGraph]:
    """Some muGraphs of a program with tiles that hang over ends, the same in every run."""
    program = parse(text).graph
    prepared = prepare(program)
    choose = random.Random(1)
    found = []
    effort = EFFORTS["quick"]
    for configuration in [c for c in configurations(prepared, effort) if c.cut is None][:6]:
        result = run_configuration(prepared, configuration, effort, effort.budget, lambda counts: None, lambda: False)
        for structure in result.structures[:2]:
            sound = frozenset(
                a for a in poor_axes(prepared) if verify(*tiny(prepared, structure, frozenset({a}))).accepted
            )
            found += [i.graph for i in instances(structure, prepared, H200, 60, sound) if i.overhanging]
    assert found
    yield from choose.sample(found, min(count, len(found)))


def guarded(array: np.ndarray[Any, Any], fill: float) -> np.ndarray[Any, Any]:
    """The array in the middle of a larger one."""
    before = np.full(GUARD, fill, array.dtype) if array.dtype.kind == "f" else np.full(GUARD, 0x7F7F, array.dtype)
    held = np.concatenate([before, array.ravel(), before])
    return held[GUARD : GUARD + array.size].reshape(array.shape)


def run_guarded(graph: KernelGraph, options: Any, **how: Any) -> list[float]:
    """Errors of the outputs; also looks at what surrounds them."""
    emitted = emit(graph, H200, options)
    inputs = draw(graph)
    held = {value: guarded(array, 1e4) for value, array in enumerate(inputs)}
    written = sorted({*emitted.graph.outputs, *(t.value for t in emitted.temporaries)})
    for value in written:
        held.setdefault(value, guarded(poisoned(emitted.graph.types[value]), 7.0))
    around = {value: np.array(_around(held[value])) for value in written}
    module = CpuModule(emitted.source)
    for step in emitted.launches:
        assert not isinstance(step, LibraryCall)
        args: list[Any] = []
        for arg in step.args:
            match arg:
                case TensorArg(value):
                    args.append(held[value])
                case MapArg(value, rows, columns, box, swizzle):
                    args.append(TensorMap(held[value].reshape(rows, columns), box, swizzle))
        module.launch(step.kernel, step.grid, (step.threads, 1, 1), step.shared_bytes, args, **how)
    for value in written:
        np.testing.assert_array_equal(_around(held[value]), around[value], "something was written beyond an end")
    return errors(emitted.graph, emitted, inputs, [held[v] for v in emitted.graph.outputs])


def _around(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    return np.concatenate([base[:GUARD], base[-GUARD:]])


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_beyond_an_end_is_read_or_written(name: str) -> None:
    choose = random.Random(2)
    for number, graph in enumerate(overhanging(PROGRAMS[name], 2)):
        ways = variants(graph, H200)
        for options in {ways[0], choose.choice(ways)}:
            for error, type_ in zip(run_guarded(graph, options, **WAYS[number % 2]), graph.output_types, strict=True):
                assert error < TOLERANCE[type_.dtype], (graph, options)


def test_the_copy_engine_fills_in_zeros_by_itself() -> None:
    """Tiles that hang over the matrix are boxes; those that would reach other rows, or unaligned ones, are not."""
    found = [emit(graph, H200) for graph in overhanging(PROGRAMS["rows that the copy engine takes"], 40)]
    bulk = [e for e in found if any(isinstance(arg, MapArg) for step in e.launches for arg in step.args)]
    assert bulk
    for emitted in bulk:
        assert "load_inside" not in emitted.source


def test_exact_tiles_have_no_conditions() -> None:
    graph = parse("X: f16[32, 64]\nW: f16[64, 128]\nreturn X @ W").graph
    prepared = prepare(graph)
    effort = EFFORTS["quick"]
    (configuration, *_) = configurations(prepared, effort)
    result = run_configuration(prepared, configuration, effort, effort.budget, lambda counts: None, lambda: False)
    for instance in instances(result.structures[0], prepared, H200, 8):
        assert not instance.overhanging
        assert all(op.attrs.tile is None for k in instance.graph.ops for op in k.body.ops if op.kind.value == "InIter")
