"""Extraction: every graph once, and exactly those that a naive enumeration finds."""

from __future__ import annotations

from itertools import product

import pytest

from mirage_nb.search.saturation.extract import Choice, Extraction
from mirage_nb.search.saturation.values import Value
from tests.search.programs import PROGRAMS
from tests.search.test_closure import close


def naive(values: list[Value], root: int, limit: int) -> set[frozenset[tuple[int, int]]]:
    """All graphs of a root with at most `limit` operators: all choices of nodes."""
    found: set[frozenset[tuple[int, int]]] = set()

    def grow(chosen: dict[int, int], todo: list[int]) -> None:
        todo = [v for v in todo if v not in chosen]
        operators = sum(not values[v].nodes[n][0].is_leaf for v, n in chosen.items())
        if operators > limit:
            return
        if not todo:
            found.add(frozenset(chosen.items()))
            return
        for number, (_, args) in enumerate(values[todo[0]].nodes):
            grow({**chosen, todo[0]: number}, [*todo[1:], *args])

    grow({}, [root])
    return found


def as_pairs(values: list[Value], choice: Choice) -> frozenset[tuple[int, int]]:
    return frozenset((v, values[v].nodes.index(node)) for v, node in choice.items())


@pytest.mark.parametrize(("name", "loop"), [("rmsnorm", 1), ("gated_mlp", 1), ("lora", 1), ("gqa", 3), ("moe", 3)])
def test_extraction_equals_naive_enumeration(name: str, loop: int) -> None:
    run = close(PROGRAMS[name](), loop=loop)
    values = run.closure.values
    extraction = Extraction(values)
    for final in run.closure.finals(run.semantics.targets[0]):
        least = extraction.minimum([final.id], 30, lambda: False)
        assert least is not None
        listed = [
            as_pairs(values, choice)
            for size in range(1, least + 3)
            for choice in extraction.graphs([final.id], size, lambda: False)
        ]
        assert len(set(listed)) == len(listed), "a graph came twice"
        assert set(listed) == naive(values, final.id, least + 2)


def test_sizes_are_exact_and_smallest_first() -> None:
    run = close(PROGRAMS["rmsnorm_fig3"](), loop=1)
    extraction = Extraction(run.closure.values)
    (final,) = [f.id for f in run.closure.finals(run.semantics.targets[0])][:1]
    least = extraction.minimum([final], 30, lambda: False)
    assert least is not None and extraction.required[final].bit_count() <= least
    for size in range(least, least + 2):
        for choice in extraction.graphs([final], size, lambda: False):
            assert sum(not operator.is_leaf for operator, _ in choice.values()) == size
    assert next(extraction.graphs([final], least - 1, lambda: False), None) is None


def test_order_puts_operands_first() -> None:
    run = close(PROGRAMS["gqa"](), loop=3)
    extraction = Extraction(run.closure.values)
    (final,) = [f.id for f in run.closure.finals(run.semantics.targets[0])][:1]
    for choice in extraction.graphs([final], 7, lambda: False):
        order = extraction.ordered(choice)
        place = {value: index for index, value in enumerate(order)}
        for value, (_, args) in choice.items():
            assert all(place[a] < place[value] for a in args)


def test_several_roots_share_their_operators() -> None:
    run = close(PROGRAMS["gqa"](), loop=3)
    extraction = Extraction(run.closure.values)
    inner = [v.id for v in run.closure.values if v.stage == 1 and v.level == 4][:2]
    for roots in product(inner, inner):
        together = extraction.minimum(sorted(set(roots)), 20, lambda: False)
        apart = [extraction.minimum([r], 20, lambda: False) for r in set(roots)]
        assert together is not None and together <= sum(a for a in apart if a is not None)
