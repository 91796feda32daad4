"""What masks of places say of tiles, held against all of their elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mirage_nb.ir import ApplyAttrs, OpKind
from mirage_nb.tile.mask import UNKNOWN, Span, _multiply, bounds_of, places, span_of
from mirage_nb.tile.written_out import Node, WrittenOut

STEP = ApplyAttrs("compared", "step(x)")
FEWER = ApplyAttrs("compared", "1 - step(-x)")
WITHIN = ApplyAttrs("compared", "step(10 - x)")
EQUAL = ApplyAttrs("compared", "step(x) * step(-x)")
Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]
MASKS: dict[str, tuple[tuple[tuple[OpKind, ApplyAttrs | None, tuple[int, ...]], ...], Mask]] = {
    "causal": (((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, STEP, (2,))), lambda r, k: r >= k),
    "strictly": (((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, FEWER, (2,))), lambda r, k: r > k),
    "the other way": (((OpKind.SUB, None, (1, 0)), (OpKind.APPLY, STEP, (2,))), lambda r, k: k >= r),
    "diagonal": (((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, EQUAL, (2,))), lambda r, k: r == k),
    "both sides": (
        ((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, STEP, (2,)), (OpKind.SUB, None, (1, 0)),
         (OpKind.APPLY, STEP, (4,)), (OpKind.MAXIMUM, None, (3, 5))),
        lambda r, k: (r >= k) | (k >= r),
    ),
    "the last eleven": (
        ((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, STEP, (2,)), (OpKind.APPLY, WITHIN, (2,)),
         (OpKind.MUL, None, (3, 4))),
        lambda r, k: (r >= k) & (r - k <= 10),
    ),
}  # fmt: skip


def written(steps: tuple[tuple[OpKind, ApplyAttrs | None, tuple[int, ...]], ...]) -> WrittenOut:
    nodes = [Node(OpKind.IN_ITER, None, (), (1,), False)] * 2
    nodes += [Node(kind, attrs, read, (1,), False) for kind, attrs, read in steps]
    return WrittenOut(tuple(nodes), (), ())


@pytest.mark.parametrize("tiles", [(4, 4, 16, 16), (4, 8, 16, 8), (8, 4, 8, 16), (2, 6, 12, 4), (1, 4, 8, 8)])
@pytest.mark.parametrize("name", MASKS)
def test_no_element_is_lost_and_none_kept_that_is_masked(name: str, tiles: tuple[int, int, int, int]) -> None:
    steps, mask = MASKS[name]
    rows, keys, height, width = tiles
    graph, sides = written(steps), (places(rows, height, rows=True), places(keys, width, rows=False))
    bounds = bounds_of(graph, len(graph.nodes) - 1, lambda node: sides[node])
    assert bounds is not None
    span = span_of(bounds, rows, keys)
    kept = mask(np.arange(rows * height)[:, None], np.arange(keys * width)[None, :])
    for row in range(rows):
        needed = span.slope * row + span.base
        part = kept[row * height : (row + 1) * height]
        first = 0 if span.most is None else max(needed - span.most, 0)
        assert needed <= keys and not part[:, needed * width :].any() and not part[:, : first * width].any()
        behind = first if span.most is None else max(needed - span.most + span.first, 0)
        assert span.masked <= needed and part[:, behind * width : (needed - span.masked) * width].all()


def test_places_that_double_are_bounded() -> None:
    doubled = written(tuple((OpKind.ADD, None, (place, place)) for place in (0, *range(2, 42))))
    low, high = bounds_of(doubled, 42, lambda node: places(2, 4, rows=True)) or ((), ())
    assert np.ravel(low).tolist() == [0.0, 4 * 2.0**41] and np.ravel(high).tolist() == [3 * 2.0**41, 7 * 2.0**41]


def test_causal_tiles_skip_and_only_the_last_ask() -> None:
    steps, _ = MASKS["causal"]
    graph, sides = written(steps), (places(4, 128, rows=True), places(8, 64, rows=False))
    assert span_of(bounds_of(graph, 3, lambda node: sides[node]) or UNKNOWN, 4, 8) == Span(2, 2, 2)


def test_a_window_takes_as_many_tiles_everywhere() -> None:
    """Ten keys back from 64 rows reach one tile more, which is masked; the first rows have no more than their own."""
    steps, _ = MASKS["the last eleven"]
    graph, sides = written(steps), (places(8, 64, rows=True), places(8, 64, rows=False))
    assert span_of(bounds_of(graph, 5, lambda node: sides[node]) or UNKNOWN, 8, 8) == Span(1, 1, 1, 2, 1)


def test_within_a_window_nothing_is_asked() -> None:
    within = ApplyAttrs("compared", "step(200 - x)")
    graph = written(((OpKind.SUB, None, (0, 1)), (OpKind.APPLY, STEP, (2,)), (OpKind.APPLY, within, (2,)),
                     (OpKind.MUL, None, (3, 4))))  # fmt: skip
    sides = places(16, 32, rows=True), places(32, 16, rows=False)
    assert span_of(bounds_of(graph, 5, lambda node: sides[node]) or UNKNOWN, 16, 32) == Span(2, 2, 2, 15, 3)


def test_beside_a_mask_that_is_not_known_a_causal_one_skips() -> None:
    """Of the rest everything is asked."""
    steps, _ = MASKS["causal"]
    graph, sides = written(steps), (places(4, 64, rows=True), places(4, 64, rows=False))
    bounds = _multiply(bounds_of(graph, 3, lambda node: sides[node]) or UNKNOWN, UNKNOWN)
    assert span_of(bounds, 4, 4) == Span(1, 1, 1, 4, 3)


def test_of_what_is_not_known_everything_is_looked_at() -> None:
    graph = written(((OpKind.EXP, None, (0,)),))
    assert bounds_of(graph, 2, lambda node: places(2, 4, rows=True)) is None
    assert bounds_of(written(()), 1, lambda node: None) is None
    assert span_of(UNKNOWN, 2, 3) == Span(0, 3, 3)
