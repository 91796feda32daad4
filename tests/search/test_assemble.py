"""Assemblies: kernels found for the pieces of a program compute the program together."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.bench.workloads import workload
from mirage_nb.interp import reference
from mirage_nb.ir import DimAttrs, KernelGraph, OpKind
from mirage_nb.ir.legality import check
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Assembly, configurations, instances, prepare, tiny
from mirage_nb.search.explore import NEAR, PARTS_KEPT, of_every_kind
from mirage_nb.search.pieces.assemble import cheapest
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from tests.search.explored import explored
from tests.search.programs import Builder

STANDARD, H200 = EFFORTS["standard"], TARGETS["h200"]


def chain() -> KernelGraph:
    b = Builder.over(X=(8, 16), A=(16, 32), B=(32, 16), C=(16, 8))
    b.matmul(b.op(OpKind.RELU, b.matmul(b.op(OpKind.RELU, b.matmul(0, 1)), 2)), 3)
    return b.done()


def concat() -> KernelGraph:
    b = Builder.over(X=(8, 16), Y=(8, 16), W=(32, 8))
    b.op(OpKind.SILU, b.matmul(b.op(OpKind.CONCAT, 0, 1, attrs=DimAttrs(1)), 2))
    return b.done()


def raised_maximum() -> KernelGraph:
    b = Builder.over(X=(8, 16))
    b.op(OpKind.DIV, 0, b.op(OpKind.EXP, b.max(0)))
    return b.done()


def two_outputs() -> KernelGraph:
    b = Builder.over(X=(8, 16), A=(16, 8), B=(16, 32))
    n = b.rms(0)
    return b.done(b.matmul(n, 1), b.matmul(n, 2))


PROGRAMS = {f.__name__: f for f in (chain, concat, raised_maximum, two_outputs)}


def assemblies(graph: KernelGraph, single: bool = False) -> list[Assembly]:
    prepared = prepare(graph)
    found = []
    for configuration in configurations(prepared, STANDARD):
        if configuration.cut is not None and configuration.single == single:
            result = explored(prepared, configuration, STANDARD)
            assert all(isinstance(s, Assembly) for s in result.structures)
            found += [s for s in result.structures if isinstance(s, Assembly)]
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_assemblies_compute_the_program(name: str) -> None:
    graph = PROGRAMS[name]()
    prepared = prepare(graph)
    rng = np.random.default_rng(0)
    arrays = {i.name: rng.standard_normal(i.type.shape) for i in graph.inputs}
    expected = reference.evaluate(graph, arrays)
    found = assemblies(graph)
    assert found and len({s.digest() for s in found}) == len(found)
    single = [s.digest() for s in assemblies(graph, single=True)]  # they come first
    lost = {*single} - {s.digest() for s in found}
    assert not lost or (single[0] not in lost and len(found) >= PARTS_KEPT), "another kind has a place of those kept"
    for structure in (*found[:3], found[-1]):
        assert verify(*tiny(prepared, structure), seed=3).accepted
        made = instances(structure, prepared, H200, limit=3)
        assert made and [i.cost.us for i in made] == sorted(i.cost.us for i in made)
        for instance in made:
            check(instance.graph)
            assert instance.graph.inputs == graph.inputs and instance.graph.output_names == graph.output_names
            for a, b in zip(reference.evaluate(instance.graph, arrays), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9)


def test_a_chain_of_three_matmuls_gets_three_kernels() -> None:
    found = assemblies(chain())
    assert {s.launches for s in found} >= {2, 3} and max(s.launches for s in found) <= STANDARD.pieces


@given(st.lists(st.tuples(st.floats(1, 3), st.integers(0, 3))), st.integers(0, 6))
def test_what_is_kept_is_of_every_kind_that_is_near(ranked: list[tuple[float, int]], count: int) -> None:
    ranked = sorted((us, 4 * place + kind) for place, (us, kind) in enumerate(sorted(ranked)))
    kept = of_every_kind(ranked, lambda item: item % 4, count)
    assert kept == sorted(set(kept)) and set(kept) <= set(ranked) and len(kept) == min(count, len(ranked))
    best: dict[int, tuple[float, int]] = {}
    for us, item in ranked:
        best.setdefault(item % 4, (us, item))
    wanted = [entry for entry in best.values() if entry[0] <= NEAR * ranked[0][0]]
    assert set(wanted[:count]) <= set(kept)
    left = [entry for entry in ranked if entry not in wanted]
    assert [entry for entry in kept if entry not in wanted] == left[: max(0, count - len(wanted))]


def test_attention_behind_norms_comes_with_and_without_a_split() -> None:
    """One estimate or the other may err: both are measured (the norms of qknorm's values, then its attention)."""
    graph = parse(workload("qknorm"), sizes={"B": 8}).graph
    (found,) = (
        explored(prepare(graph), c, STANDARD)
        for c in configurations(prepare(graph), STANDARD)
        if c.cut is not None and len(c.cut) == 1 and graph.types[next(iter(c.cut))].shape == (16, 4096, 64)
    )
    assert {s.launches for s in found.structures} == {2, 3}


def test_a_large_matmul_may_be_a_pre_defined_kernel() -> None:
    b = Builder.over(X=(4096, 4096), A=(4096, 4096), B=(4096, 4096))
    b.matmul(b.op(OpKind.RELU, b.matmul(0, 1)), 2)
    found = assemblies(b.done())
    assert any([part.structure is None for part in s.parts] == [False, True] for s in found)


def test_a_wrong_part_is_refuted() -> None:
    structure = next(s for s in assemblies(chain()) if s.launches == 3 and len(s.kernels) == 3)
    other = next(s for s in assemblies(two_outputs()) if len(s.kernels) == len(s.parts))
    prepared = prepare(chain())
    program, small = tiny(prepared, structure)
    wrong = tiny(prepared, replace(other, parts=other.parts[:1]))
    assert not verify(program, small.returning((*small.outputs[:-1], small.outputs[0]))).accepted
    assert verify(*wrong).accepted, "a pair of its own program"


def test_a_matmul_of_prime_extents_may_stay_a_pre_defined_kernel() -> None:
    b = Builder.over(X=(7, 1009), W=(1009, 1301))
    b.matmul(0, 1)
    prepared = prepare(b.done())
    (structure,) = [s for s in assemblies(b.done()) if not s.kernels]
    (instance,) = instances(structure, prepared, H200, limit=3)
    assert instance.graph == b.done() and instance.cost.us < 15
    assert verify(*tiny(prepared, structure)).accepted


def test_assemblies_cross_a_process_boundary() -> None:
    structure = assemblies(two_outputs())[0]
    assert pickle.loads(pickle.dumps(structure)) == structure


COSTS = st.lists(st.lists(st.integers(0, 9).map(float), max_size=4).map(sorted), min_size=1, max_size=4)


@given(COSTS, st.integers(1, 9))
def test_cheapest_combinations_are_those_of_brute_force(costs: list[list[float]], limit: int) -> None:
    found = [sum(row[i] for row, i in zip(costs, pick, strict=True)) for pick in cheapest(costs, limit)]
    assert found == sorted(map(sum, product(*costs)))[:limit]
    picks = list(cheapest(costs, limit))
    assert len(set(picks)) == len(picks)
