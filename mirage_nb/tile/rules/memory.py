"""Memory planning: offsets for tensors with live intervals, as dynamic storage allocation (paper section 6).

In: buffers with sizes and live intervals. Out: an offset for each, and the peak. Invariant: two buffers
that live at the same time share no byte. Small problems are solved exactly by branch and bound, larger
ones by the best of a few orders; the answer is never worse than best fit. The ranking, which has no time to place
anything, takes the most bytes that live at once; `tests/search/test_memory_sizes.py` holds that plans reach that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

EXACT_LIMIT = 10
"""Up to this many buffers the plan is optimal."""

SHUFFLES = 100
"""Orders that are tried before that."""

NODE_LIMIT = 20_000
"""Partial plans that branch and bound may look at before it settles for the best one found."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A buffer of `size` bytes that lives from step `first` to step `last`, both included."""

    name: int
    size: int
    first: int
    last: int

    def meets(self, other: Interval) -> bool:
        """Whether the two live at the same time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offset per buffer, in the order they were given, and the bytes needed in all."""

    offsets: tuple[int, ...]
    peak: int


def allocate(intervals: Sequence[Interval], alignment: int = 16) -> MemoryPlan:
    """Offsets (multiples of `alignment` bytes) with the smallest peak that the limits let us find."""
    sizes = [-(-i.size // alignment) * alignment for i in intervals]
    best = _best_fit(intervals, sizes)
    bound = _lower_bound(intervals, sizes)
    orders = _orders(intervals)
    while best.peak > bound and (order := next(orders, None)) is not None:
        best = min(best, _lowest_fit(intervals, sizes, order), key=lambda plan: plan.peak)
    if best.peak > bound and len(intervals) <= EXACT_LIMIT:
        best = _branch_and_bound(intervals, sizes, best, bound)
    return best


def _orders(intervals: Sequence[Interval]) -> Iterator[list[int]]:
    """From the start, from the end, the largest areas first; then shuffled ones, always the same: in one of them each
    buffer mostly finds a place below the bound."""
    numbers = list(range(len(intervals)))
    yield sorted(numbers, key=lambda i: (intervals[i].first, -intervals[i].last))
    yield sorted(numbers, key=lambda i: (-intervals[i].last, intervals[i].first))
    yield sorted(numbers, key=lambda i: -intervals[i].size * (intervals[i].last - intervals[i].first + 1))
    draw = Random(0)
    for _ in range(SHUFFLES):
        draw.shuffle(numbers)
        yield numbers


def _lowest_fit(intervals: Sequence[Interval], sizes: Sequence[int], order: Sequence[int]) -> MemoryPlan:
    """In this order, each at the lowest free offset."""
    placed: dict[int, int] = {}
    for index in order:
        gaps = _gaps(index, intervals, sizes, placed)
        placed[index] = next(start for start, end in gaps if end is None or end - start >= sizes[index])
    return _finish(placed, sizes)


def _lower_bound(intervals: Sequence[Interval], sizes: Sequence[int]) -> int:
    """The largest number of bytes alive in any one step."""
    return max(
        (sum(n for i, n in zip(intervals, sizes, strict=True) if i.first <= at.first <= i.last) for at in intervals),
        default=0,
    )


def _best_fit(intervals: Sequence[Interval], sizes: Sequence[int]) -> MemoryPlan:
    """Largest first, each into the tightest gap that holds it."""
    placed: dict[int, int] = {}
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], intervals[i].first, i)):
        gaps = _gaps(index, intervals, sizes, placed)
        fitting = [(end - start, start) for start, end in gaps if end is not None and end - start >= sizes[index]]
        placed[index] = min(fitting)[1] if fitting else gaps[-1][0]
    return _finish(placed, sizes)


def _gaps(
    index: int, intervals: Sequence[Interval], sizes: Sequence[int], placed: dict[int, int]
) -> list[tuple[int, int | None]]:
    """Free ranges at the time of `index`; the last one is open-ended."""
    taken = sorted((placed[o], placed[o] + sizes[o]) for o in placed if intervals[o].meets(intervals[index]))
    found: list[tuple[int, int | None]] = []
    at = 0
    for start, end in taken:
        if start > at:
            found.append((at, start))
        at = max(at, end)
    return [*found, (at, None)]


def _finish(placed: dict[int, int], sizes: Sequence[int]) -> MemoryPlan:
    peak = max((placed[i] + sizes[i] for i in placed), default=0)
    return MemoryPlan(tuple(placed[i] for i in range(len(sizes))), peak)


def _branch_and_bound(intervals: Sequence[Interval], sizes: Sequence[int], best: MemoryPlan, bound: int) -> MemoryPlan:
    """Try every order of placing each buffer at the lowest free offset.

    Some order reaches the optimum: sort an optimal plan by offset and push every buffer down.
    """
    nodes = 0
    placed: dict[int, int] = {}

    def lowest(index: int) -> int:
        return next(s for s, e in _gaps(index, intervals, sizes, placed) if e is None or e - s >= sizes[index])

    def visit(peak: int) -> None:
        nonlocal nodes, best
        nodes += 1
        if peak >= best.peak or nodes > NODE_LIMIT or best.peak == bound:
            return
        if len(placed) == len(sizes):
            best = _finish(placed, sizes)
            return
        for index in range(len(sizes)):
            if index not in placed:
                start = lowest(index)
                placed[index] = start
                visit(max(peak, start + sizes[index]))
                del placed[index]

    visit(0)
    return best
