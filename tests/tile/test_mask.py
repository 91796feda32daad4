"""What masks of places say of tiles, held against all of their elements."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from mirage_nb.ir import ApplyAttrs, Attrs, ClampAttrs, OpKind
from mirage_nb.tile.rules.mask import LISTED, UNKNOWN, Needed, Ranges, Span, _multiply, bounds_of, places, span_of
from mirage_nb.tile.rules.written_out import Node, WrittenOut

STEP = ApplyAttrs("compared", "step(x)")
FEWER = ApplyAttrs("compared", "1 - step(-x)")
WITHIN = ApplyAttrs("compared", "step(10 - x)")
FIRST = ApplyAttrs("compared", "step(40 - x)")
EQUAL = ApplyAttrs("compared", "step(x) * step(-x)")
Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]
MASKS: dict[str, tuple[tuple[tuple[OpKind, Attrs | None, tuple[int, ...]], ...], Mask]] = {
    "causal": (((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, STEP, (2,))), lambda r, k: r >= k),
    "strictly": (((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, FEWER, (2,))), lambda r, k: r > k),
    "the other way": (((OpKind.SUB, None, (1, 0)), (OpKind.APPLY, STEP, (2,))), lambda r, k: k >= r),
    "diagonal": (((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, EQUAL, (2,))), lambda r, k: r == k),
    "both sides": (
        ((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, STEP, (2,)), (OpKind.SUB, None, (1, 0)),
         (OpKind.APPLY, STEP, (4,)), (OpKind.MAXIMUM, None, (3, 5))),
        lambda r, k: (r >= k) | (k >= r),
    ),
    "ten on both sides": (
        ((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, ApplyAttrs("abs", "abs(x)"), (2,)), (OpKind.APPLY, WITHIN, (3,))),
        lambda r, k: abs(r - k) <= 10,
    ),
    "a prefix, then causal": (
        ((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, STEP, (2,)), (OpKind.APPLY, FIRST, (1,)),
         (OpKind.MAXIMUM, None, (3, 4))),
        lambda r, k: (r >= k) | (k <= 40),
    ),
    "within chunks": (
        ((OpKind.APPLY, ApplyAttrs("chunk", "floor(x * (1/32))"), (0,)),
         (OpKind.APPLY, ApplyAttrs("chunk", "floor(x * (1/32))"), (1,)), (OpKind.EQUAL, None, (2, 3))),
        lambda r, k: r // 32 == k // 32,
    ),
    "ten on both sides, by their ends": (
        ((OpKind.APPLY, ApplyAttrs("first", "x - 10"), (0,)), (OpKind.RELU, None, (2,)), (OpKind.SUB, None, (1, 3)),
         (OpKind.APPLY, STEP, (4,)), (OpKind.APPLY, ApplyAttrs("last", "x + 10"), (0,)),
         (OpKind.CLAMP, ClampAttrs(high=Fraction(100)), (6,)), (OpKind.SUB, None, (7, 1)), (OpKind.APPLY, STEP, (8,)),
         (OpKind.MUL, None, (5, 9))),
        lambda r, k: (k >= np.maximum(r - 10, 0)) & (k <= np.minimum(r + 10, 100)),
    ),
    "later, or the same": (((OpKind.GREATER_EQUAL, None, (1, 0)),), lambda r, k: k >= r),
    "later": (((OpKind.GREATER, None, (1, 0)), (OpKind.SQR, None, (2,))), lambda r, k: k > r),
    "causal, among few beside what is not known": (
        ((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, STEP, (2,)), (OpKind.EXP, None, (0,)), (OpKind.EQUAL, None, (1, 4)),
         (OpKind.MUL, None, (3, 5))),
        lambda r, k: (r >= k) & (np.exp(r) == k),
    ),
    "the last eleven": (
        ((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, STEP, (2,)), (OpKind.APPLY, WITHIN, (2,)),
         (OpKind.MUL, None, (3, 4))),
        lambda r, k: (r >= k) & (r - k <= 10),
    ),
}  # fmt: skip


def written(steps: tuple[tuple[OpKind, Attrs | None, tuple[int, ...]], ...]) -> WrittenOut:
    nodes = [Node(OpKind.IN_ITER, None, (), (1,), False)] * 2
    nodes += [Node(kind, attrs, read, (1,), False) for kind, attrs, read in steps]
    return WrittenOut(tuple(nodes), (), ())


def told(needed: Needed, row: int) -> tuple[int, int, int, int]:
    """Behind which tile of keys what a tile of rows needs ends, and how many are masked, plain and far."""
    if isinstance(needed, Ranges):
        return needed.ends[row], needed.masked[row], needed.plain[row], needed.far[row]
    end = needed.slope * row + needed.base
    count, most = int(needed.read(row + 1)[row]), end if needed.most is None else needed.most
    far = max(0, count - (most - needed.first)) if needed.most is not None else 0
    return end, needed.masked, count - needed.masked - far, far


@pytest.mark.parametrize("tiles", [(4, 4, 16, 16), (4, 8, 16, 8), (8, 4, 8, 16), (2, 6, 12, 4), (1, 4, 8, 8)])
@pytest.mark.parametrize("name", MASKS)
def test_no_element_is_lost_and_none_kept_that_is_masked(name: str, tiles: tuple[int, int, int, int]) -> None:
    steps, mask = MASKS[name]
    rows, keys, height, width = tiles
    graph, sides = written(steps), (places(rows, height, rows=True), places(keys, width, rows=False))
    needed = span_of(bounds_of(graph, len(graph.nodes) - 1, lambda node: sides[node]), rows, keys)
    kept = mask(np.arange(rows * height)[:, None], np.arange(keys * width)[None, :])
    for row in range(rows):
        end, masked, plain, far = told(needed, row)
        part = kept[row * height : (row + 1) * height]
        first = end - masked - plain - far
        assert 0 <= first and end <= keys and min(masked, plain, far) >= 0
        assert not part[:, end * width :].any() and not part[:, : first * width].any()
        assert part[:, (first + far) * width : (end - masked) * width].all()


@pytest.mark.parametrize("name", ["ten on both sides", "a prefix, then causal", "within chunks", "later"])
def test_what_follows_no_line_is_told_row_by_row(name: str) -> None:
    """Of 16 tiles each way only those that have something are read."""
    steps, mask = MASKS[name]
    graph, sides = written(steps), (places(16, 16, rows=True), places(16, 16, rows=False))
    needed = span_of(bounds_of(graph, len(graph.nodes) - 1, lambda node: sides[node]), 16, 16)
    kept = mask(np.arange(256)[:, None], np.arange(256)[None, :]).reshape(16, 16, 16, 16).any(axis=(1, 3))
    assert isinstance(needed, Ranges) and needed.read(16).tolist() == kept.sum(axis=1).tolist()


def test_more_rows_than_a_kernel_lists_read_everything() -> None:
    steps, _ = MASKS["ten on both sides"]
    rows = LISTED + 1
    graph, sides = written(steps), (places(rows, 4, rows=True), places(rows, 4, rows=False))
    assert span_of(bounds_of(graph, 4, lambda node: sides[node]), rows, rows) == Span(0, rows, rows)


def test_places_that_double_are_bounded() -> None:
    doubled = written(tuple((OpKind.ADD, None, (place, place)) for place in (0, *range(2, 42))))
    low, high = bounds_of(doubled, 42, lambda node: places(2, 4, rows=True))
    assert np.ravel(low).tolist() == [0.0, 4 * 2.0**41] and np.ravel(high).tolist() == [3 * 2.0**41, 7 * 2.0**41]


def test_causal_tiles_skip_and_only_the_last_ask() -> None:
    steps, _ = MASKS["causal"]
    graph, sides = written(steps), (places(4, 128, rows=True), places(8, 64, rows=False))
    assert span_of(bounds_of(graph, 3, lambda node: sides[node]), 4, 8) == Span(2, 2, 2)


def test_a_window_takes_as_many_tiles_everywhere() -> None:
    """Ten keys back from 64 rows reach one tile more, which is masked; the first rows have no more than their own."""
    steps, _ = MASKS["the last eleven"]
    graph, sides = written(steps), (places(8, 64, rows=True), places(8, 64, rows=False))
    assert span_of(bounds_of(graph, 5, lambda node: sides[node]), 8, 8) == Span(1, 1, 1, 2, 1)


def test_within_a_window_nothing_is_asked() -> None:
    within = ApplyAttrs("compared", "step(200 - x)")
    graph = written(((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, STEP, (2,)), (OpKind.APPLY, within, (2,)),
                     (OpKind.MUL, None, (3, 4))))  # fmt: skip
    sides = places(16, 32, rows=True), places(32, 16, rows=False)
    assert span_of(bounds_of(graph, 5, lambda node: sides[node]), 16, 32) == Span(2, 2, 2, 15, 3)


def test_beside_a_mask_that_is_not_known_a_causal_one_skips() -> None:
    """Of the rest everything is asked."""
    steps, _ = MASKS["causal"]
    graph, sides = written(steps), (places(4, 64, rows=True), places(4, 64, rows=False))
    bounds = _multiply(bounds_of(graph, 3, lambda node: sides[node]), UNKNOWN)
    assert span_of(bounds, 4, 4) == Span(1, 1, 1, 4, 3)


def test_of_what_is_not_known_everything_is_looked_at() -> None:
    graph = written(((OpKind.EXP, None, (0,)),))
    assert bounds_of(graph, 2, lambda node: places(2, 4, rows=True)) == UNKNOWN
    assert bounds_of(written(()), 1, lambda node: UNKNOWN) == UNKNOWN
    assert span_of(UNKNOWN, 2, 3) == Span(0, 3, 3)
