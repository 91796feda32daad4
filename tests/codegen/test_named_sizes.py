"""One kernel for all extents of a size that is known at launch: right at each, and nothing behind it is touched.

muGraphs come from the search. The CPU edition reports every access beyond the end of a tensor, so a lost mask shows.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from mirage_nb import superoptimize
from mirage_nb.codegen import Emitted, Launch, emit, variants
from mirage_nb.errors import EmitError, LaunchError, ShapeError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.ir.sizes import Cut, resized, size_of
from mirage_nb.lang import parse
from mirage_nb.optimize.reach import Reaches
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.search.sizes.looked import launched
from mirage_nb.targets import TARGETS
from tests.codegen.running import TOLERANCE, draw, errors
from tests.search.explored import explored
from tests.shares import some

H200 = TARGETS["h200"]
PROGRAMS = {
    "rmsnorm": "X: f16[B, 128]\nW: f16[128, 64]\nreturn rms_norm(X) @ W",
    "gated_mlp": "X: f16[2*B, 64]\nW: f16[64, 64]\nV: f16[64, 64]\nreturn silu(X @ W) * (X @ V)",
    "lora": "X: f16[B, 64]\nW: f16[64, 64]\nA: f16[64, 16]\nC: f16[16, 64]\nreturn X @ W + (X @ A) @ C",
    "softmax": "X: f16[B, 96]\nreturn softmax(X)",
    "decode": "Q: f16[2*B, 16, 64]\nK: f16[2*B, 64, 64]\nV: f16[2*B, 64, 64]\nreturn softmax(Q @ K) @ V",
    "batches": "X: f16[B, 5, 64]\nG: f16[64]\nW: f16[64, 32]\nreturn rms_norm(X, G) @ W",
    "elements": "X: f16[B, 37, 34]\nG: f16[34]\nreturn silu(X + G)",
    "vectors": "X: f32[B]\nY: f16[B]\nreturn exp(X) * Y",
    "scaled": "X: f16[B, 64]\ns: f32[B]\nW: f16[64, 32]\nreturn (X * s[:, None]) @ W + s[:, None]",
}
EXTENTS = {"decode": (1, 3, 8)}


@cache
def found(name: str) -> tuple[KernelGraph, ...]:
    """muGraphs of a program for B from 1 to 64 (attention: 8), those that are emitted first."""
    most = max(EXTENTS.get(name, (64,)))
    prepared = prepare(parse(f"B: size({most})\n{PROGRAMS[name]}").graph)
    effort, made = EFFORTS["quick"], []
    for configuration in [c for c in configurations(prepared, effort) if c.cut is None][:3]:
        result = explored(prepared, configuration, effort)
        for structure in result.structures[:2]:
            made += [i.graph for i in instances(structure, prepared, H200, 12, frozenset())]
    return tuple(random.Random(3).sample(made, min(len(made), 8)))


def able(name: str, number: int) -> Iterator[Emitted]:
    """Those that are emitted in one of their ways, from one of them on."""
    graphs = found(name)
    for at in range(len(graphs)):
        graph = graphs[(number + at) % len(graphs)]
        with contextlib.suppress(EmitError):
            yield emit(graph, H200, random.Random(number).choice(variants(graph, H200)))


def emitted(name: str, number: int = 0) -> Emitted:
    return next(able(name, number))


@pytest.mark.parametrize("name", some(list(PROGRAMS)))
def test_most_muGraphs_take_a_size(name: str) -> None:
    assert 2 * len([*able(name, 1)]) >= len(found(name))


@pytest.mark.parametrize(
    ("name", "number"),
    [(n, k) if k < 2 else pytest.param(n, k, marks=pytest.mark.slow) for n in PROGRAMS for k in range(1, 12)],
)
def test_one_kernel_is_right_at_every_extent(name: str, number: int) -> None:
    kernels = emitted(name, number)
    executable = CpuExecutable(kernels)
    for extent in EXTENTS.get(name, (1, 3, 8, 17, 64)):
        graph = resized(kernels.graph, extent)
        assert kernels.at(extent).source == kernels.source
        inputs = draw(graph, seed=extent)
        outputs = executable.run(inputs, deferred=bool(extent % 2))
        program = resized(parse(f"B: size({max(EXTENTS.get(name, (64,)))})\n{PROGRAMS[name]}").graph, extent)
        for error, type_ in zip(errors(program, kernels, inputs, outputs), program.output_types, strict=True):
            assert error < TOLERANCE[type_.dtype], extent


def test_folds_of_rows_end_where_the_size_does() -> None:
    """Tiles of 64 rows or more, of which warps with roles store one number each."""
    text = "B: size({})\nX: f16[B, 128]\nW: f16[128, 64]\nreturn max(X @ W, 1)"
    prepared, effort = prepare(parse(text.format(256)).graph), EFFORTS["quick"]
    made = (s for c in configurations(prepared, effort) for s in explored(prepared, c, effort).structures[:2])
    graphs = (i.graph for s in made for i in instances(s, prepared, H200, 40, frozenset()))
    kernels = next(k for k in map(partial(emit, target=H200), graphs) if "ring_full" in k.source)
    executable = CpuExecutable(kernels, checked=True)
    for extent in (1, 63, 64, 130, 256):
        inputs = draw(resized(kernels.graph, extent), seed=extent)
        program = resized(parse(text.format(256)).graph, extent)
        (error,) = errors(program, kernels, inputs, executable.run(inputs, deferred=bool(extent % 2)))
        assert error < TOLERANCE[DType.F16], extent


def test_the_text_does_not_depend_on_the_extent_it_runs_at() -> None:
    kernels = emitted("rmsnorm")
    grids = {extent: [s.grid for s in kernels.at(extent).launches if isinstance(s, Launch)] for extent in (1, 64)}
    assert grids[1] != grids[64] == [s.grid for s in kernels.launches if isinstance(s, Launch)]
    inputs = draw(resized(kernels.graph, 64))
    with pytest.raises(ShapeError, match="with B from 1 to 64"):
        CpuExecutable(kernels).run([inputs[0].repeat(2, axis=0), *inputs[1:]])


def wrong(kernels: Emitted, extent: int) -> bool:
    """Whether running it at an extent shows that something is wrong."""
    graph = resized(kernels.graph, extent)
    inputs = draw(graph, seed=extent)
    program = resized(parse(f"B: size({size_of(kernels.graph).most})\n{PROGRAMS['rmsnorm']}").graph, extent)  # type: ignore[union-attr]
    try:
        outputs = CpuExecutable(kernels).run(inputs)
    except LaunchError:
        return True
    return not max(errors(program, kernels, inputs, outputs)) < 1e-2


def test_a_lost_mask_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels whose last blocks have less to do: without the comparison, or with a block too few, they fail."""
    graph = next(g for g in found("rmsnorm") if any(not c.whole for c in _cuts(g)))
    kernels = emit(graph, H200)
    assert not wrong(kernels, 3)
    fewer = [replace(s, cut=Cut(s.cut.axis, s.cut.per * 2)) if isinstance(s, Launch) and s.cut else s
             for s in kernels.launches]  # fmt: skip
    assert wrong(replace(kernels, launches=tuple(fewer)), 64)
    monkeypatch.setattr(Cut, "whole", property(lambda cut: True))
    assert wrong(emit(graph, H200), 3)


def _cuts(graph: KernelGraph) -> list[Cut]:
    return [s.cut for s in emit(graph, H200).launches if isinstance(s, Launch) and s.cut is not None]


PARTS = {
    "halves": "X: f16[B, 96]\nreturn silu(X[:, :48]) * X[:, 48:]",
    "of rows": "X: f32[B, 12]\nG: f32[10]\nreturn X[:, 2:] * G + X[:, :10]",
    "turned": "X: f16[B, 7, 33]\nreturn transpose(X, (0, 2, 1)) * 2",
    "rotated": "X: f16[B, 3, 32]\nc: f16[16]\nreturn concat(X[:, :, :16] * c - X[:, :, 16:], X[:, :, 16:] * c, axis=2)",
    "a head's": """X: f16[B, 192]
K: f16[B, 4, 32, 16]
q = transpose(reshape(X[:, 64:128], B, 1, 4, 16), (0, 2, 1, 3))
return softmax(q @ transpose(K, (0, 1, 3, 2)))""",
    "innermost": """X: f32[B, 5, 40]
T = transpose(X, (1, 2, 0))[:, 8:]
return transpose(sum(T * exp(T), axis=0), (1, 0))""",
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_tensors_are_read_where_they_lie_at_every_extent(name: str) -> None:
    """They were copied first where a size is known at launch only."""
    session = superoptimize(f"B: size(9)\n{PARTS[name]}", effort="quick", target="h200")
    session.wait()
    best, program = session.best, session.program.graph
    assert launched(best.graph) == 1
    for extent in (1, 4, 9):
        graph = resized(program, extent)
        given = {i.name: a for i, a in zip(graph.inputs, draw(graph, seed=extent), strict=True)}
        (wanted,) = evaluate(graph, {name: np.asarray(array, float) for name, array in given.items()})
        np.testing.assert_allclose(np.asarray(best(*given.values()), float), wanted, rtol=1e-2, atol=2e-3)


def test_nothing_is_known_at_launch_of_a_program_without_a_size() -> None:
    kernels = emit(resized(found("rmsnorm")[0], 64), H200)
    assert kernels.size is None and "extent" not in kernels.source and not Reaches()
