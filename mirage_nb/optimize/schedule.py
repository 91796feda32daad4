"""Operator scheduling: a barrier only where two steps need one (paper section 6); their order is that of
`tile.rules.order`.

In: steps in order, with what they read and write. Out: the positions of block-wide barriers.
Invariant: two steps that touch the same buffer, one of them writing, have a barrier between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Shares = Mapping[int, frozenset[int]]
"""Per buffer, the buffers that share a byte with it, itself included."""


@dataclass(frozen=True, slots=True)
class Access:
    """The buffers in shared memory that one step reads and writes."""

    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()

    def conflicts(self, earlier: Access, shares: Shares) -> bool:
        """Whether this step must wait until every thread has finished `earlier`."""
        written = _spread(earlier.writes, shares)
        return bool((self.reads | self.writes) & written or self.writes & _spread(earlier.reads, shares))


def _spread(buffers: frozenset[int], shares: Shares) -> frozenset[int]:
    return frozenset(other for b in buffers for other in shares.get(b, {b}))


def barriers(steps: Sequence[Access], shares: Shares, pending: Sequence[Access] = ()) -> frozenset[int]:
    """Positions before which a barrier stands, as few as this order allows.

    `shares` says which buffers overlap in memory (see `overlapping`); `pending` was done since the last
    barrier before the first step. Placing each barrier as late as possible is optimal for a fixed order: it
    closes over every earlier conflict at once.
    """
    open_steps = list(pending)
    found = []
    for position, step in enumerate(steps):
        if any(step.conflicts(earlier, shares) for earlier in open_steps):
            found.append(position)
            open_steps = []
        open_steps.append(step)
    return frozenset(found)


def left_open(steps: Sequence[Access], found: frozenset[int]) -> list[Access]:
    """The steps that no barrier in front of one of them closes."""
    return list(steps[max(found, default=0) :])


def overlapping(ranges: Mapping[int, tuple[int, int]]) -> dict[int, frozenset[int]]:
    """For every buffer (offset, bytes), all buffers that share a byte with it, itself included."""
    return {
        a: frozenset(b for b, (s, n) in ranges.items() if start < s + n and s < start + size)
        for a, (start, size) in ranges.items()
    }
