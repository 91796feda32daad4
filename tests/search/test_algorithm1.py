"""The closure finds what Algorithm 1 finds, and nothing else, on spaces small enough for both."""

from __future__ import annotations

import pytest

from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.search.algorithm1 import BlockPrefix, Enumerator
from tests.search.programs import gated_mlp, gqa, lora, moe
from tests.search.test_closure import COMMUTES, Run, close, graphs_up_to


def enumerate_all(run: Run, loop: int | None, bound: int, prune: bool = True) -> tuple[set[frozenset[str]], int]:
    leaves = [v for v in run.closure.values if v.level == 0]
    enumerator = Enumerator(run.semantics, leaves, loop, bound, prune=prune)
    found = {as_texts(prefix) for prefix in enumerator.run() if no_value_twice(prefix)}
    return found, sum(enumerator.prefixes.values())


def no_value_twice(prefix: BlockPrefix) -> bool:
    used = {a for _, args in prefix.operators for a in args}
    kept = [v for i, v in enumerate(prefix.values) if i >= len(prefix.leaves) or i in used]
    return len({(v.stage, v.type, v.print, v.expr) for v in kept}) == len(kept)


def as_texts(prefix: BlockPrefix) -> frozenset[str]:
    texts: list[str] = [f"{leaf.nodes[0][0]}{leaf.type}()" for leaf in prefix.leaves]
    used: set[int] = set()
    for index, (operator, args) in enumerate(prefix.operators, start=len(prefix.leaves)):
        read = sorted(texts[a] for a in args) if operator.kind in COMMUTES else [texts[a] for a in args]
        texts.append(f"{operator}{prefix.values[index].type}({', '.join(read)})")
        used |= {index, *args}
    return frozenset(texts[i] for i in used)


SPACES = [
    (lora(), None, 4), (lora(), 1, 4), (gated_mlp(), None, 4), (gated_mlp(), 1, 5), (moe(), None, 3), (moe(), 3, 4),
    (gqa(), None, 5),
]  # fmt: skip


@pytest.mark.parametrize(("graph", "loop", "bound"), SPACES)
def test_the_closure_finds_what_algorithm_1_finds(graph: KernelGraph, loop: int | None, bound: int) -> None:
    run = close(graph, loop=loop)
    found, _ = enumerate_all(run, loop, bound)
    expected = {g for g in graphs_up_to(run, bound) if not any("hold" in text for text in g)}
    assert found and found == expected


@pytest.mark.parametrize(("graph", "bound"), [(lora(), 3), (moe(), 3)])
def test_pruning_by_expression_loses_no_graph_and_saves_most_prefixes(graph: KernelGraph, bound: int) -> None:
    run = close(graph)
    with_pruning, few = enumerate_all(run, None, bound)
    without, many = enumerate_all(run, None, bound, prune=False)
    assert with_pruning == without
    assert many > 20 * few


def test_the_memory_limit_cuts() -> None:
    run = close(gated_mlp(), loop=1)
    leaves = [v for v in run.closure.values if v.level == 0]
    assert OpKind.SILU in {op.kind for op in run.semantics.prepared.operators}
    roomy = Enumerator(run.semantics, leaves, 1, 3)
    tight = Enumerator(run.semantics, leaves, 1, 3, elements=sum(v.p.size for v in leaves) + 8)
    list(roomy.run()), list(tight.run())
    assert sum(tight.prefixes.values()) < sum(roomy.prefixes.values())
