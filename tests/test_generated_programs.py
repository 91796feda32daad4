"""Programs that nobody wrote go through search and emission without a mistake of ours; some are executed, too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from mirage_nb.lang import FUNCTIONS, parse
from tests.campaign import searched, whole
from tests.generated import program

SEARCHED, EXECUTED = 40, 3


@pytest.mark.parametrize("seed", range(SEARCHED))
def test_searched(seed: int) -> None:
    searched(program(seed))


def test_they_are_of_every_kind() -> None:
    texts = [program(seed) for seed in range(60)]
    used = {name for name in FUNCTIONS if any(f"{name}(" in text for text in texts)}
    assert len(used) > 0.6 * len(FUNCTIONS)
    graphs = [parse(text).graph for text in texts]
    assert {len(i.type.shape) for graph in graphs for i in graph.inputs} == set(range(1, 6))
    assert {t.dtype for graph in graphs for t in graph.types} and any(len(graph.outputs) > 1 for graph in graphs)
    assert program(3) == program(3)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 5000, 50))
def test_whole_sessions(first: int) -> None:
    with ThreadPoolExecutor(1) as executor:
        told = {seed: whole(program(seed), executor) for seed in range(first, first + 50)}
    assert not {seed: what for seed, what in told.items() if "internal error" in what}
