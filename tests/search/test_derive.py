"""Derived muGraphs compute what they were derived from."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from mirage_nb.interp import reference
from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.ir.legality import check
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Structure, configurations, instances, prepare, tiny
from mirage_nb.search.derive import concatenated, free_loops, read_once
from mirage_nb.search.pieces.assemble import drafts
from mirage_nb.search.sizes.written import written_cost
from mirage_nb.targets import find_target
from mirage_nb.tile.rules.thread_graph import shallow, with_products
from tests.codegen.running import check as run
from tests.search.explored import explored
from tests.search.programs import PROGRAMS, lora

H200 = find_target("h200")


def first_structures(graph: KernelGraph, number: int) -> list[Structure]:
    prepared, effort = prepare(graph), replace(EFFORTS["standard"], kernels=1, structures=number)
    found: list[Structure] = []
    for configuration in configurations(prepared, effort):
        found.extend(explored(prepared, configuration, effort).structures)
    return found


def same(program: KernelGraph, candidate: KernelGraph) -> bool:
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(i.type.shape) for i in program.inputs]
    pairs = zip(reference.evaluate(program, arrays), reference.evaluate(candidate, arrays), strict=True)
    return all(np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs)


@pytest.mark.parametrize("name", ["rmsnorm", "gated_mlp", "lora", "gqa", "moe", "attention_safe"])
def test_a_loop_over_a_free_axis_changes_nothing(name: str) -> None:
    prepared = prepare(PROGRAMS[name]())
    derived = [d for s in first_structures(PROGRAMS[name](), 3) for d in free_loops(s, prepared)]
    assert derived
    for structure in derived:
        program, candidate = tiny(prepared, structure)
        check(candidate)
        assert same(program, candidate)
        for instance in instances(structure, prepared, H200, 1):
            check(instance.graph, H200)
            (op,) = instance.graph.ops
            assert isinstance(op.body, BlockGraph) and op.body.loop > 1


def test_lora_in_its_concatenated_form() -> None:
    graph = lora(6, 12, 4, 10)
    prepared = prepare(graph)
    forms = set()
    for structure in first_structures(graph, 10):
        for instance in instances(structure, prepared, H200, 4):
            (op,) = instance.graph.ops
            assert isinstance(op.body, BlockGraph)
            if OpKind.CONCAT_MATMUL in {inner.kind for inner in op.body.ops}:
                forms.add(sum(inner.kind is OpKind.MATMUL for inner in op.body.ops))
                check(instance.graph)
                assert same(graph, instance.graph)
    assert 1 in forms, "X @ A feeds the concatenated matmul"


def test_only_block_graphs_are_rewritten() -> None:
    graph = lora(6, 12, 4, 10)
    assert concatenated(graph) == graph


def test_products_in_threads_are_the_best_of_all_choices() -> None:
    """Beside the first instance stands the choice of small products that is estimated fastest, if one is faster than
    none; beside the others the same one."""
    graph = parse("X: f32[512, 8]\nA: f32[8, 16]\nB: f32[8, 16]\nreturn relu(X @ A) * (X @ B)").graph
    prepared, met = prepare(graph), 0
    for structure in first_structures(graph, 4):
        found = drafts(structure, prepared, H200, 3)
        assert [d.cost.us for d in found] == sorted(d.cost.us for d in found)
        threaded = {str(d.made().sizes): d for d in found if d.rewritten is not None}
        plain = [d.made() for d in found if d.rewritten is None]
        every = sorted(shallow(plain[0].graph))
        chosen = [c for n in range(1, len(every) + 1) for c in combinations(every, n)]
        made = [with_products(plain[0].graph, frozenset(some)) for some in chosen]
        costs = [written_cost(one, H200).us for one in made]
        assert all(same(plain[0].graph, one) for one in made)
        first = threaded.get(str(plain[0].sizes))
        faster = min([us for us in costs if us < plain[0].cost.us], default=None)
        assert faster == (first.cost.us if first is not None else None)
        for one in plain:
            other = threaded.get(str(one.sizes))
            assert other is None or (other.cost.us < one.cost.us and first and other.rewritten == first.rewritten)
            met += other is not None
    assert met


TWICE = {
    "of small matrices": "X: f16[64, 27, 128]\nreturn X @ transpose(X, 0, 2, 1)",
    "of columns": "X: f16[64, 256, 32]\nreturn transpose(X, 0, 2, 1) @ X",
    "by threads": "X: f32[64, 16, 32]\nreturn X @ transpose(X, 0, 2, 1)",
    "weights of itself": "X: f16[16, 32, 64]\nreturn softmax(X @ transpose(X, 0, 2, 1)) @ X",
}


def iterators(graph: KernelGraph) -> int:
    return sum(op.kind is OpKind.IN_ITER for b in graph.ops if isinstance(b.body, BlockGraph) for op in b.body.ops)


@pytest.mark.parametrize("name", TWICE)
def test_what_is_brought_twice_is_brought_once(name: str) -> None:
    """No block has two iterators over the same tiles."""
    prepared = prepare(parse(TWICE[name]).graph)
    every = {
        instance.graph.digest(): instance
        for configuration in configurations(prepared, EFFORTS["quick"])
        for structure in explored(prepared, configuration, EFFORTS["quick"]).structures[:2]
        if isinstance(structure, Structure)
        for instance in instances(structure, prepared, H200, 12)
    }
    counts = {digest: iterators(one.graph) for digest, one in every.items()}
    assert min(counts.values()) == 1
    for digest in sorted(counts, key=lambda d: (counts[d], d))[:3]:
        made = every[digest].graph
        assert read_once(made) == made and written_cost(made, H200).us == pytest.approx(every[digest].cost.us)
        check(made, H200)
        run(made)
