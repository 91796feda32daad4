"""Events of the closure: every application of an operator that it tries, as plain frozen data.

Every application is one event with an `Outcome`; the counts are exact, the prefixes a bounded sample.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class Outcome(enum.Enum):
    """What became of one application of an operator."""

    __hash__ = object.__hash__  # as in `OpKind`
    KEPT = "kept"
    MERGED = "merged"
    PRUNED_TYPE = "pruned: types"
    PRUNED_EXPRESSION = "pruned: expression"
    PRUNED_CANONICAL = "pruned: canonical form"
    PRUNED_SHIFT = "pruned: shift"


Counts = Mapping[tuple[int, Outcome], int]
"""Number of events by depth (operators on the longest path) and outcome."""


def merge_counts(parts: Iterable[Counts]) -> Counts:
    """The sum of the counts of several closures, or configurations."""
    total: Counter[tuple[int, Outcome]] = Counter()
    for counts in parts:
        total.update(counts)
    return total


@dataclass(frozen=True, slots=True)
class Prefix:
    """One sampled application: the prefix it extends, its operator, and what the oracle said."""

    identity: int
    parents: tuple[int, ...]
    configuration: str
    depth: int
    operator: str
    stage: str
    type: str
    expression: str
    outcome: Outcome
    reason: str

    def __repr__(self) -> str:
        return f"<Prefix {self.identity}: {self.operator[:40]}, {self.outcome.value}, {self.expression[:120]}>"
