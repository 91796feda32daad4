"""Two kernels that both split a reduced axis, and what is kept of the pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage_nb.codegen import emit
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.ir.legality import check
from mirage_nb.runtime.execution.buffers import decode, encode
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.search import (
    EFFORTS,
    ConfigurationResult,
    Prepared,
    Structure,
    configurations,
    instances,
    prepare,
    tiny,
)
from mirage_nb.search.space import UNCAPPED, Effort, Pairs, last_grids
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from tests.search.explored import explored
from tests.search.programs import Builder, gqa, ntrans, rmsnorm

STANDARD, H200 = EFFORTS["standard"], TARGETS["h200"]


def normed(m: int = 4, k: int = 512) -> KernelGraph:
    b = Builder.over(X=(m, k))
    b.rms(0)
    return b.done()


def softmax(m: int = 4, k: int = 512) -> KernelGraph:
    b = Builder.over(X=(m, k))
    b.softmax(0, safe=True)
    return b.done()


def results(prepared: Prepared, effort: Effort = STANDARD) -> list[ConfigurationResult]:
    return [
        explored(prepared, c, effort)
        for c in configurations(prepared, effort)
        if c.kernels == 2 and c.cut is None
    ]


def both_split(structures: tuple[Structure, ...]) -> list[Structure]:
    return [s for s in structures if all(kernel.grid for kernel in s.kernels)]


@pytest.mark.parametrize("graph", [normed(), softmax(), ntrans(4, 512)], ids=["rms_norm", "softmax", "ntrans"])
def test_both_kernels_split_the_axis_that_the_program_reduces(graph: KernelGraph) -> None:
    """Partial sums over the blocks of a row; then as many blocks of every row use them, in numbers of their own."""
    prepared = prepare(graph)
    found = [s for result in results(prepared) for s in both_split(result.structures)]
    assert found
    rng = np.random.default_rng(0)
    arrays = [encode(rng.uniform(0.1, 0.6, i.type.shape), i.type.dtype) for i in graph.inputs]
    inputs = [decode(a, i.type.dtype) for a, i in zip(arrays, graph.inputs, strict=True)]
    wanted = evaluate(graph, inputs)
    different = 0
    for structure in found[:3]:
        assert verify(*tiny(prepared, structure), seed=7).accepted
        for instance in instances(structure, prepared, H200, 4):
            check(instance.graph)
            first, second = (op.body for op in instance.graph.ops if op.kind is OpKind.GRAPH)
            assert first is not None and second is not None
            different += sorted(first.grid) != sorted(second.grid)
            made = evaluate(instance.graph, inputs)
            np.testing.assert_allclose(made[0], wanted[0], rtol=1e-9)
    assert different, "the two grids have sizes of their own"


def test_both_split_kernels_run() -> None:
    graph = softmax(2, 128)
    prepared = prepare(graph)
    structure = next(s for result in results(prepared) for s in both_split(result.structures))
    (instance,) = instances(structure, prepared, H200, 1)
    arrays = [encode(np.random.default_rng(0).normal(size=i.type.shape), i.type.dtype) for i in graph.inputs]
    (wanted,) = evaluate(graph, [decode(a, i.type.dtype) for a, i in zip(arrays, graph.inputs, strict=True)])
    (output,) = CpuExecutable(emit(instance.graph, H200)).run(arrays, deferred=True, order=3)
    made = decode(output, instance.graph.output_types[0].dtype)
    assert float(np.linalg.norm(made - wanted) / np.linalg.norm(wanted)) < 3e-3


def test_the_last_grid_splits_what_all_outputs_have() -> None:
    assert [len(grid) for grid in last_grids(prepare(normed()))] == [0, 1]
    assert last_grids(prepare(rmsnorm())) == last_grids(prepare(gqa())) == ((),)


def test_a_cap_is_named_only_where_it_leaves_something_out() -> None:
    prepared = prepare(gqa(2, 16, 16, 64))
    capped = results(prepared, replace(STANDARD, pairs=Pairs(kept=2, firsts=1)))
    said = {sentence for result in capped for sentence in result.cut}
    assert "two kernels: only the first 2 graphs of a configuration were kept" in said
    assert "two kernels: at most 1 first kernels for each set of tensors between" in said
    whole = results(prepared, replace(STANDARD, pairs=Pairs(UNCAPPED, UNCAPPED, UNCAPPED, UNCAPPED)))
    assert not [sentence for result in whole for sentence in result.cut if "two kernels" in sentence]
    few = {s.digest() for result in capped for s in result.structures}
    assert few < {s.digest() for result in whole for s in result.structures}


def test_an_exhaustive_search_has_no_caps_on_pairs() -> None:
    pairs = EFFORTS["exhaustive"].pairs
    assert {pairs.kept, pairs.firsts, pairs.looked_at, pairs.between} == {UNCAPPED}
