"""Whatever the search finds is accepted, and of its mutants whatever float64 tells apart is refuted.

The default tests take workloads that `test_mutants` has no graphs of; the slow ones screen all that the standard
search finds for all workloads, and verify some of it and 4,160 mutants.
"""

from __future__ import annotations

import pytest

from tests.shares import some
from tests.verify.mutant_table import WORKLOADS, Row, row, table

SLOW_GRAPHS, SLOW_COUNT = 64, 320


@pytest.mark.parametrize("name", some(["moe", "mqa", "ntrans", "decode70b", "qknorm_k"], share=2))
def test_found_graphs_are_accepted_and_mutants_refuted_or_equal(name: str) -> None:
    made = row(name, 16, effort="quick", most=4)
    assert made.wrong == []
    assert made.graphs >= 3 and made.mutants == 16
    assert made.tally["refuted"] >= 5 and made.tally["undecided"] <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_all_that_the_standard_search_finds(name: str) -> None:
    made = row(name, SLOW_COUNT, most=SLOW_GRAPHS)
    assert made.wrong == []
    assert made.mutants == SLOW_COUNT


def test_the_table_adds_up() -> None:
    rows = [Row("a", 3, 1), Row("b", 4)]
    rows[0].tally.update(mutants=5, refuted=4)
    rows[1].tally.update(mutants=2, refuted=2)
    assert table(rows).splitlines()[-1].split()[:5] == ["all", "7", "1", "7", "6"]
