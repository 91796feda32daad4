"""Storage allocation: never overlapping, never worse than best fit, optimal where it is small."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.tile.rules.memory import Interval, MemoryPlan, allocate


@st.composite
def intervals(draw: st.DrawFn, most: int) -> list[Interval]:
    count = draw(st.integers(0, most))
    found = []
    for name in range(count):
        first = draw(st.integers(0, 6))
        found.append(Interval(name, 16 * draw(st.integers(1, 8)), first, first + draw(st.integers(0, 4))))
    return found


def overlaps(given_: list[Interval], plan: MemoryPlan) -> bool:
    placed = [(i, o, o + i.size) for i, o in zip(given_, plan.offsets, strict=True)]
    return any(a[0].meets(b[0]) and a[1] < b[2] and b[1] < a[2] for n, a in enumerate(placed) for b in placed[n + 1 :])


@given(intervals(14))
def test_live_tensors_share_no_byte(buffers: list[Interval]) -> None:
    plan = allocate(buffers)
    assert not overlaps(buffers, plan)
    assert plan.peak == max((o + i.size for i, o in zip(buffers, plan.offsets, strict=True)), default=0)


@given(intervals(4))
def test_small_plans_are_optimal(buffers: list[Interval]) -> None:
    """Against every assignment of multiples of 16 below the plan's own peak."""
    plan = allocate(buffers)
    steps = range(0, plan.peak, 16)
    for offsets in product(steps, repeat=len(buffers)) if len(buffers) * len(steps) <= 48 else ():
        peak = max((o + i.size for i, o in zip(buffers, offsets, strict=True)), default=0)
        if peak < plan.peak:
            assert overlaps(buffers, MemoryPlan(offsets, peak))


def test_best_fit_is_improved_upon() -> None:
    """Largest first ends at 128 bytes here; 112 is possible."""
    spans = [(32, 4, 6), (16, 2, 4), (80, 1, 1), (48, 3, 5), (32, 0, 2)]
    buffers = [Interval(name, *span) for name, span in enumerate(spans)]
    assert allocate(buffers).peak == 112


@given(intervals(8), st.sampled_from([128, 1024]))
def test_alignment(buffers: list[Interval], alignment: int) -> None:
    plan = allocate(buffers, alignment)
    assert all(offset % alignment == 0 for offset in plan.offsets)
    assert not overlaps(buffers, plan)
