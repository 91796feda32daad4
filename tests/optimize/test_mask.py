"""What masks of places say of tiles, held against all of their elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mirage_nb.ir import ApplyAttrs, OpKind
from mirage_nb.optimize.mask import Span, bounds_of, places, span_of
from mirage_nb.tile.written_out import Node, WrittenOut

STEP = ApplyAttrs("compared", "step(x)")
FEWER = ApplyAttrs("compared", "1 - step(-x)")
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
    span = span_of(bounds_of(graph, len(graph.nodes) - 1, lambda node: sides[node]), rows, keys)
    kept = mask(np.arange(rows * height)[:, None], np.arange(keys * width)[None, :])
    for row in range(rows):
        needed = span.slope * row + span.base
        part = kept[row * height : (row + 1) * height]
        assert span.masked <= needed <= keys
        assert not part[:, needed * width :].any()
        assert part[:, : (needed - span.masked) * width].all()


def test_places_that_double_are_bounded() -> None:
    doubled = written(tuple((OpKind.ADD, None, (place, place)) for place in (0, *range(2, 42))))
    low, high = bounds_of(doubled, 42, lambda node: places(2, 4, rows=True)) or ((), ())
    assert np.ravel(low).tolist() == [0.0, 4 * 2.0**41] and np.ravel(high).tolist() == [3 * 2.0**41, 7 * 2.0**41]


def test_causal_tiles_skip_and_only_the_last_ask() -> None:
    steps, _ = MASKS["causal"]
    graph, sides = written(steps), (places(4, 128, rows=True), places(8, 64, rows=False))
    assert span_of(bounds_of(graph, 3, lambda node: sides[node]), 4, 8) == Span(2, 2, 2)


def test_of_what_is_not_known_everything_is_looked_at() -> None:
    graph = written(((OpKind.EXP, None, (0,)),))
    assert span_of(bounds_of(graph, 2, lambda node: places(2, 4, rows=True)), 2, 3) == Span(0, 3, 3)
    assert span_of(bounds_of(written(()), 1, lambda node: None), 2, 3) == Span(0, 3, 3)
