"""Programs that choose between elements: masks, maxima of two tensors and casts, in one verified kernel."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.runtime.execution.buffers import decode
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.search import (
    EFFORTS,
    configurations,
    instances,
    prepare,
    tiny,
)
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Loop, flat
from mirage_nb.verify.trials import verify
from tests.search.explored import explored
from tests.search.test_foreign_programs import error, stored

QUICK, H200 = EFFORTS["quick"], TARGETS["h200"]

PROGRAMS = {
    "masked": "X: f16[32, 32]\nI: f32[32]\nreturn softmax(where(I[:, None] >= I, X, -inf))",
    "windowed": "X: f16[32, 64]\nI: f32[32, 1]\nJ: f32[64]\nreturn sum(where((I >= J) & (I - J < 8), X, 0.5), 1)",
    "larger": "X: f16[32, 64]\nY: f16[32, 64]\nW: f16[64, 32]\nreturn maximum(X, Y * 2) @ W",
    "smaller": "X: f32[32, 64]\nY: f32[64]\nreturn minimum(X, Y) - min(X, 1, keepdims=True)",
    "cast": "X: f16[32, 64]\nG: f32[64]\nreturn f16(rms_norm(f32(X), G, eps=1e-5)), bf16(X * 2)",
    "leaky": "X: f16[32, 64]\nY: f16[64]\nreturn where(X > Y, X, tanh(X) * 0.1)",
}


def found(graph: KernelGraph) -> list[KernelGraph]:
    """muGraphs of one kernel that are verified at a small size: a tile that is masked as a whole has no maximum."""
    prepared = prepare(graph)
    assert not prepared.refused
    made = []
    for configuration in configurations(prepared, QUICK):
        if configuration.cut is None and configuration.kernels == 1:
            result = explored(prepared, configuration, QUICK)
            for structure in result.structures[:2]:
                if verify(*tiny(prepared, structure), seed=3).accepted:
                    made += [instance.graph for instance in instances(structure, prepared, H200, 2)]
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_verified_kernel_computes_it(name: str) -> None:
    graph = parse(PROGRAMS[name]).graph
    candidates = found(graph)
    assert candidates and all(c.output_types == graph.output_types for c in candidates)
    inputs = stored(graph)
    wanted = evaluate(graph, [decode(a, i.type.dtype) for a, i in zip(inputs, graph.inputs, strict=True)])
    outputs = CpuExecutable(emit(candidates[-1], H200, Options(2))).run(inputs, deferred=True)
    mine = [decode(o, t.dtype) for o, t in zip(outputs, graph.output_types, strict=True)]
    assert error(mine, wanted) < (1e-2 if DType.BF16 in {t.dtype for t in graph.output_types} else 3e-3)


def test_a_mask_is_computed_where_it_is_used() -> None:
    """The kernel reads indices, as rows and as columns, and no mask as large as the scores."""
    graph = parse(PROGRAMS["masked"]).graph
    kernels = [op for candidate in found(graph) for op in candidate.ops if op.body is not None]
    assert kernels and all(len(op.inputs) <= 3 for op in kernels)


def test_masks_of_other_conditions_are_told_apart() -> None:
    head = "X: f32[4, 4]\nI: f32[4, 1]\nJ: f32[4]\n"
    left = parse(head + "return where(I >= J, X, -inf) * 2").graph
    same = parse(head + "return where(J <= I, X, -inf) * 2").graph
    assert left == same
    for other in ("where(I > J, X, -inf) * 2", "where(J >= I, X, -inf) * 2", "where(I >= J, X, 0) * 2"):
        assert not verify(left, parse(f"{head}return {other}").graph).accepted
    ones = parse("X: f32[4]\nY: f32[4]\nreturn where(X, Y, 0)").graph
    times = parse("X: f32[4]\nY: f32[4]\nreturn X * Y").graph
    assert not verify(ones, times).accepted


def test_causal_attention_is_one_kernel_that_skips_and_the_first_to_be_found() -> None:
    """Nothing between its kernels but the numbers of places, which it counts itself."""
    lines = "".join(f"{name}: f16[32, 1024, 128]\n" for name in "QKV")
    scores = "where(arange(1024)[:, None] >= arange(1024), Q @ K.T * 128 ** -0.5, -inf)"
    prepared, effort = prepare(parse(f"{lines}return softmax({scores}) @ V").graph), EFFORTS["standard"]
    first = configurations(prepared, effort)[0]
    assert first.single and str(first).endswith("one kernel each")
    found = explored(prepared, first, effort)
    (best,) = instances(found.structures[0], prepared, TARGETS["h200"], 1)
    (program,) = (block.program for block in plan(best.graph, H200).kernels if block is not None)
    assert program is not None and len(emit(best.graph, H200).launches) == 1
    loops = [s for s in flat(program.statements("load")) if isinstance(s, Loop)]
    assert loops and all(loop.more.terms for loop in loops)  # as many keys as its rows need


def test_attention_within_documents_is_looked_for_where_rows_are_the_grids() -> None:
    """Rows lie along the same labels as keys, which the program folds, but no block needs all of them."""
    lines = "".join(f"{name}: f16[4, 256, 64]\n" for name in "QKV") + "G: i32[256]\n"
    program = f"{lines}return softmax(where(G[:, None] == G, Q @ K.T, -inf)) @ V"
    prepared = prepare(parse(program).graph)
    row, key = (next(a for a in t.axes if a in prepared.reduced) for t in prepared.tensors if t.name in "QK")
    first = configurations(prepared, EFFORTS["quick"])[:2]
    assert [(one.grid, one.loop) for one in first] == [((row,), None), ((row,), key)]


@pytest.mark.parametrize(("keys", "first"), [(512, None), (4096, "loop over d")])
def test_where_a_block_cannot_hold_all_keys_loops_over_them_come_first(keys: int, first: str | None) -> None:
    program = f"Q: f16[4, 64, 64]\nK: f16[4, {keys}, 64]\nV: f16[4, {keys}, 64]\nreturn softmax(Q @ K.mT) @ V"
    found = [str(one) for one in configurations(prepare(parse(program).graph), EFFORTS["quick"])]
    assert found[0].endswith(first or "no loop") and found[1].endswith("no loop" if first else "loop over d")


def test_arange_is_exact_in_the_field() -> None:
    def graph(text: str) -> KernelGraph:
        return parse(f"X: f32[6]\nreturn X * ({text})").graph

    assert verify(graph("arange(6) * 2 + 1"), graph("arange(1, 13, 2)")).accepted
    assert not verify(graph("arange(6) * 2 + 1"), graph("arange(0, 12, 2)")).accepted
    assert verify(graph("cumsum(arange(6) * 0 + 1, 0)"), graph("cumsum(arange(6) * 0 + 1, 0) * 1")).accepted
    (value,) = evaluate(graph("arange(6) - 1"), [np.ones(6)])
    np.testing.assert_array_equal(value, np.arange(6) - 1)
