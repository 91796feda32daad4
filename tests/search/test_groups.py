"""Groups that are joined and dissolved: what comes between two of them, and their order."""

from __future__ import annotations

import random

import pytest

from mirage_nb.search.pieces.groups import Groups
from tests.clock import cpu_limit


def leads(groups: Groups, first: int, second: int) -> bool:
    """Whether a way over other groups leads from one to another, of all groups."""
    front = [*groups.after(first) - {second}]
    for one in front:
        front += [other for other in groups.after(one) if other not in front]
    return second in front


@pytest.mark.parametrize("seed", range(8))
def test_what_comes_between_two_groups_is_what_all_ways_say(seed: int) -> None:
    draw = random.Random(seed)
    sources = {value: [draw.randrange(value) for _ in range(draw.randint(0, min(2, value)))] for value in range(24)}
    readers = {value: [r for r, read in sources.items() if value in read] for value in sources}
    groups = Groups({value: frozenset([value]) for value in sources}, sources, readers)
    for step in range(40):
        if len(groups.members) < 4 or step % 9 == 8:
            groups.dissolve(max(groups.members, key=lambda number: len(groups.members[number])))
        first, second = draw.sample(sorted(groups.members), 2)
        apart = leads(groups, first, second) or leads(groups, second, first)
        assert groups.apart(first, second) == groups.apart(second, first) == apart
        if not apart:
            groups.join(first, second)
        done: set[int] = set()
        for number in groups.ordered():
            assert groups.before(number) <= done
            done.add(number)
        assert done == groups.members.keys()


def test_what_comes_between_near_groups_is_known_soon() -> None:
    """However many layers there are behind them."""
    sources = {value: [value - 1] if value else [] for value in range(20_000)}
    readers = {value: [value + 1] for value in range(len(sources) - 1)}
    groups = Groups({value: frozenset([value]) for value in sources}, sources, readers)
    with cpu_limit(1.0):
        for value in range(0, len(sources) - 4, 2):
            assert not groups.apart(value, value + 1) and groups.apart(value, value + 3)
            groups.join(value, value + 1)
