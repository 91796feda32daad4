"""Depths, orders and barriers."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.optimize.schedule import Access, barriers, overlapping
from mirage_nb.tile.rules.order import depths, order


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    return [draw(st.lists(st.integers(0, n - 1), max_size=3, unique=True)) if n else [] for n in range(8)]


def longest(graph: list[list[int]], node: int) -> int:
    return max((longest(graph, p) + 1 for p in graph[node]), default=0)


@given(graphs())
def test_depth_is_the_longest_path(graph: list[list[int]]) -> None:
    assert depths(graph) == tuple(longest(graph, n) for n in range(len(graph)))


@given(graphs())
def test_order_follows_dependencies(graph: list[list[int]]) -> None:
    found = order(graph)
    assert sorted(found) == list(range(len(graph)))
    assert all(found.index(p) < found.index(n) for n, before in enumerate(graph) for p in before)


accesses = st.lists(
    st.builds(Access, st.frozensets(st.integers(0, 3), max_size=2), st.frozensets(st.integers(0, 3), max_size=1)),
    max_size=6,
)
SHARES = [{}, {0: frozenset({0, 1}), 1: frozenset({0, 1})}]


def separated(steps: list[Access], marks: frozenset[int], shares: dict[int, frozenset[int]]) -> bool:
    """Every conflicting pair has a barrier between its two steps."""
    return all(
        any(a < m <= b for m in marks)
        for a, b in combinations(range(len(steps)), 2)
        if steps[b].conflicts(steps[a], shares)
    )


@given(accesses, st.sampled_from(SHARES))
def test_barriers_separate_conflicts_and_are_as_few_as_possible(
    steps: list[Access], shares: dict[int, frozenset[int]]
) -> None:
    found = barriers(steps, shares)
    assert separated(steps, found, shares)
    for fewer in combinations(range(len(steps)), max(0, len(found) - 1)):
        assert not found or not separated(steps, frozenset(fewer), shares)


def test_write_after_read_of_reused_bytes_needs_a_barrier() -> None:
    shares = overlapping({7: (0, 64), 8: (32, 64), 9: (96, 16)})
    assert shares == {7: {7, 8}, 8: {7, 8}, 9: {9}}
    reads_seven = Access(reads=frozenset({7}))
    assert barriers([reads_seven, Access(writes=frozenset({8}))], shares) == {1}
    assert barriers([reads_seven, Access(writes=frozenset({9}))], shares) == frozenset()
    assert barriers([Access(writes=frozenset({8}))], shares, [reads_seven]) == {0}
