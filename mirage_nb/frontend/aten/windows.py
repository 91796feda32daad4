"""ATen's pools, nearest neighbours of images, views by strides: rows of whole programs, since in a model libraries have
pools, and memory shows what lies at strides.

In: an `At` and the arguments of a node. Out: a term. Invariant: neighbours are those that PyTorch counts in single
precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirage_nb.frontend.aten.borrowed import borrowed, first
from mirage_nb.frontend.aten.terms import At, Row, full
from mirage_nb.lang import views
from mirage_nb.lang.builder import Builder, Term, Value


def _nearest(at: At, x: Any, size: Sequence[int] | None, factors: Sequence[float] | None) -> Term:
    """Each element of the result is one of x: the places are counted in single precision, as PyTorch does."""
    value, every = at.tensor(x), []
    extents, counts = at.b.shape(value)[-2:], at.shape[-2:]
    for d, (extent, count) in enumerate(zip(extents, counts, strict=True)):
        ratio = np.float32(1 / factors[d] if factors else extent / count)
        every.append([min(int(np.float32(n) * ratio), extent - 1) for n in range(count)])
    sides = [*zip(extents, counts, strict=True)]
    repeated = [[n * extent // count for n in range(count)] for extent, count in sides]
    if every == repeated and not any(count % extent for extent, count in sides):
        return borrowed("interpolate")(at, x, counts)
    for d, places in enumerate(every, start=len(at.shape) - 2):
        value = _picked(at.b, value, d, places)
    return value


def _picked(b: Builder, x: Value, axis: int, places: Sequence[int]) -> Value:
    """The elements at places that are known, in runs of the same step."""
    runs: list[list[int]] = []
    for place in places:
        last = runs[-1] if runs else []
        step = last[1] - last[0] if len(last) > 1 else place - last[-1] if last else 0
        if step > 0 and place == last[-1] + step:
            last.append(place)
        else:
            runs.append([place])
    parts = tuple(views.sliced(b, x, axis, run[0], len(run), run[1] - run[0] if len(run) > 1 else 1) for run in runs)
    return parts[0] if len(parts) == 1 else b.tensor(views.concatenated(b, parts, None, axis), "nearest")


def _strided(at: At, x: Any, extents: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Term:
    """Elements at strides of what lies row by row, which windows that overlap have several times."""
    b, every = at.b, [*zip(extents, strides, strict=True)]
    order = sorted((d for d, (n, one) in enumerate(every) if n > 1 and one > 0), key=lambda d: -strides[d])
    made = b.tensor(borrowed("_at_strides")(at, x, [every[d] for d in order], offset or 0), "strides")
    turned = views.turned_back(b, made, [sorted(order).index(d) for d in order]) if order else made
    wide = tuple(extent if d in order else 1 for d, extent in enumerate(extents))
    return full(b, views.reshaped(b, b.tensor(turned, "strides"), wide or (1,)), at.shape)


WHOLE: dict[str, Row] = {
    "aten.as_strided.default": _strided,
    **{f"aten.avg_pool{rank}d.default": borrowed(f"avg_pool{rank}d") for rank in (1, 2, 3)},
    **{f"aten.max_pool{rank}d.default": borrowed(f"max_pool{rank}d") for rank in (1, 2)},
    **{f"aten.max_pool{rank}d_with_indices.default": first(borrowed(f"max_pool{rank}d")) for rank in (2, 3)},
    **{f"aten.adaptive_avg_pool{rank}d.default": borrowed(f"adaptive_avg_pool{rank}d") for rank in (1, 2, 3)},
    "aten.adaptive_max_pool2d.default": first(borrowed("adaptive_max_pool2d")),
    "aten.upsample_nearest2d.vec": _nearest,
}
