"""Extraction: every graph once, and exactly those that a naive enumeration finds; none reads its own results."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.ir import OpKind
from mirage_nb.lang import parse
from mirage_nb.search.saturation.extract import Choice, Extraction
from mirage_nb.search.saturation.values import Node, Operator, Value
from tests.search.programs import PROGRAMS
from tests.search.test_closure import close


def naive(values: list[Value], root: int, limit: int) -> set[frozenset[tuple[int, int]]]:
    """All graphs of a root with at most `limit` operators: all choices of nodes that need no value for itself."""
    found: set[frozenset[tuple[int, int]]] = set()

    def grow(chosen: dict[int, int], todo: list[int]) -> None:
        todo = [v for v in todo if v not in chosen]
        operators = sum(not values[v].nodes[n][0].is_leaf for v, n in chosen.items())
        if operators > limit:
            return
        if not todo:
            reads = {v: values[v].nodes[n][1] for v, n in chosen.items()}
            if is_acyclic(reads):
                found.add(frozenset(chosen.items()))
            return
        for number, (_, args) in enumerate(values[todo[0]].nodes):
            grow({**chosen, todo[0]: number}, [*todo[1:], *args])

    grow({}, [root])
    return found


def is_acyclic(reads: dict[int, tuple[int, ...]]) -> bool:
    """Whether the values can be made one after the other."""
    made: set[int] = set()
    while ready := {v for v, args in reads.items() if v not in made and made.issuperset(args)}:
        made |= ready
    return len(made) == len(reads)


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


@st.composite
def derivations(draw: st.DrawFn) -> list[Value]:
    """Values as a closure makes them: each first from earlier ones, later from any of them, itself included."""
    count = draw(st.integers(3, 8))
    values = []
    for number in range(count):
        leaf = number < 2
        nodes: list[Node] = [(Operator(OpKind.IN_ITER, leaf=number), ())] if leaf else []
        for again in range(0 if leaf else draw(st.integers(1, 3))):
            known = st.integers(0, count - 1 if again else number - 1)
            args = tuple(draw(st.lists(known, min_size=1, max_size=2)))
            nodes.append((Operator(OpKind.MUL, axis=again), args))
        values.append(Value(number, (), 0, number, np.zeros(1), None, False, b"", nodes=nodes))
    return values


@given(derivations())
def test_values_that_are_read_off_each_other(values: list[Value]) -> None:
    extraction, root = Extraction(values), len(values) - 1
    listed = []
    for size in range(len(values) + 1):
        for choice in extraction.graphs([root], size, lambda: False):
            order = extraction.ordered(choice)
            assert all(order.index(a) < order.index(v) for v, (_, args) in choice.items() for a in args)
            listed.append(as_pairs(values, choice))
    assert len(set(listed)) == len(listed), "a graph came twice"
    assert set(listed) == naive(values, root, len(values)) and listed


def test_a_closure_with_signs_that_cancel_each_other() -> None:
    run = close(parse("X: f32[4, 4]\nY: f32[4, 4]\nreturn exp(-X) / Y").graph)
    values = run.closure.values
    assert not is_acyclic({v.id: tuple(a for _, args in v.nodes for a in args) for v in values})
    extraction = Extraction(values)
    for final in run.closure.finals(run.semantics.targets[0]):
        listed = {as_pairs(values, c) for n in range(7) for c in extraction.graphs([final.id], n, lambda: False)}
        assert listed and listed == naive(values, final.id, 6)
