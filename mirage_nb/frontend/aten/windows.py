"""ATen's pools, nearest neighbours of images, views by strides: rows of whole programs, since in a model libraries have
pools, and memory shows what lies at strides.

In: an `At` and the arguments of a node. Out: a term. Invariant: windows hang over the end exactly where PyTorch has
them do so, and what is beyond the end counts in no mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_nb.frontend.aten.borrowed import borrowed, first
from mirage_nb.frontend.aten.terms import At, Held, Left, Row, full, number, padded
from mirage_nb.ir.dtypes import DType, TensorType
from mirage_nb.ir.ops import OpKind
from mirage_nb.lang import lowering, reductions, views
from mirage_nb.lang.builder import Builder, Infinity, Term, Value
from mirage_nb.lang.constants import Number


def _each(given: int | Sequence[int], rank: int) -> list[int]:
    return [given] * rank if isinstance(given, int) else [*given] * (rank // len(given))


class _Windows:
    """Those of a pool over the last axes. `over`: by how much the last ones hang over the end."""

    def __init__(self, at: At, x: Any, rank: int, size: Any, step: Any, edge: Any) -> None:
        self.at, self.value, self.rank = at, at.tensor(x), rank
        self.size, self.edge = _each(size, rank), _each(edge, rank)
        self.step = _each(step, rank) if step else self.size
        self.extents = at.b.shape(self.value)[-rank:]
        every = zip(at.shape[-rank:], self.extents, self.size, self.step, self.edge, strict=True)
        self.over = [max(0, (count - 1) * s + k - n - 2 * e) for count, n, k, s, e in every]

    def framed(self, x: Value, around: Number | Infinity, edge: Sequence[int], over: Sequence[int]) -> Value:
        """x with so much around it on both sides, and more at the end."""
        first = len(self.at.b.shape(x)) - self.rank
        for d, (one, more) in enumerate(zip(edge, over, strict=True)):
            x = padded(self.at.b, x, first + d, (one, one + more), around)
        return x

    def pooled(self, name: str, x: Value) -> Value:
        """Of what is framed already."""
        return self.at.b.tensor(borrowed(f"{name}_pool{self.rank}d")(self.at, Held(x), self.size, self.step), "a pool")

    def plain(self, name: str) -> Term:
        """As the language has it."""
        given = self.size, self.step, self.edge
        return borrowed(f"{name}_pool{self.rank}d")(self.at, Held(self.value), *given)


def _mean(rank: int) -> Row:
    def row(
        at: At, x: Any, size: Any, step: Any = None, edge: Any = 0, ceil: bool = False, counted: bool = True,
        divisor: int | None = None,
    ) -> Term:  # fmt: skip
        seen, b = _Windows(at, x, rank, size, step, edge), at.b
        if divisor is not None or not (any(seen.over) or (any(seen.edge) and not counted)):
            made = seen.plain("avg") if not any(seen.over) else seen.pooled("avg", _zeros_around(seen, seen.value))
            return made if divisor is None else lowering.multiply(b, made, _ratio(math.prod(seen.size), divisor))
        shape = (*(1,) * (len(b.shape(seen.value)) - rank), *seen.extents)
        there = at.tensor(Held(number(1), filled=TensorType(shape, at.dtype or DType.F32)))
        if counted:
            there = seen.framed(there, lowering.ONE, seen.edge, (0,) * rank)
            there = seen.framed(there, lowering.ZERO, (0,) * rank, seen.over)
        else:
            there = _zeros_around(seen, there)
        return lowering.divide(b, seen.pooled("avg", _zeros_around(seen, seen.value)), seen.pooled("avg", there))

    return row


def _zeros_around(seen: _Windows, x: Value) -> Value:
    return seen.framed(x, lowering.ZERO, seen.edge, seen.over)


def _ratio(above: int, below: int) -> Number:
    return Number.of(Fraction(above, below))


def _most(rank: int) -> Callable[..., Term]:
    def row(at: At, x: Any, size: Any, step: Any = None, edge: Any = 0, gap: Any = 1, ceil: bool = False) -> Term:
        if any(one != 1 for one in _each(gap, rank)):
            raise Left("windows with gaps")
        seen = _Windows(at, x, rank, size, step, edge)
        if not any(seen.over):
            return seen.plain("max")
        return seen.pooled("max", seen.framed(seen.value, Infinity(-1), seen.edge, seen.over))

    return row


def _adaptive(rank: int, name: str, fold: Callable[..., Term]) -> Callable[..., Term]:
    """Windows over the last axes that share elements where their extents are no multiples."""

    def row(at: At, x: Any, counts: Any) -> Term:
        value, lead = at.tensor(x), len(at.shape) - rank
        if not any(n % count for n, count in zip(at.b.shape(value)[lead:], at.shape[lead:], strict=True)):
            return borrowed(f"adaptive_{name}_pool{rank}d")(at, x, counts)
        for d in range(lead, len(at.shape)):
            n, count = at.b.shape(value)[d], at.shape[d]
            ends = [(i * n // count, -(-(i + 1) * n // count)) for i in range(count)]
            parts = (views.sliced(at.b, value, d, first, last - first) for first, last in ends)
            folded = tuple(at.b.tensor(fold(at.b, part, (d,), True), "a pool") for part in parts)
            value = at.b.tensor(views.concatenated(at.b, folded, None, d), "a pool") if count > 1 else folded[0]
        return value

    return row


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
    parts = tuple(
        views.sliced(b, x, axis, run[0], len(run), run[1] - run[0] if len(run) > 1 else 1) for run in runs
    )
    return parts[0] if len(parts) == 1 else b.tensor(views.concatenated(b, parts, None, axis), "nearest")


def _strided(at: At, x: Any, extents: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Term:
    """Elements at strides of what lies row by row, which windows that overlap have several times."""
    b, value = at.b, at.tensor(x)
    axes = [d for d, (extent, stride) in enumerate(zip(extents, strides, strict=True)) if extent > 1 and stride > 0]
    order = sorted(axes, key=lambda d: -strides[d])
    flat = views.reshaped(b, value, (math.prod(b.shape(value)),))
    made = _walked(b, flat, [(extents[d], strides[d]) for d in order], offset or 0)
    turned = views.turned_back(b, made, [axes.index(d) for d in order]) if order else made
    wide = tuple(extent if d in axes else 1 for d, extent in enumerate(extents))
    return full(b, views.reshaped(b, b.tensor(turned, "strides"), wide or (1,)), at.shape)


def _walked(b: Builder, x: Value, axes: Sequence[tuple[int, int]], start: int) -> Value:
    """Axes of so many elements at strides, the longest first, in the place of the last one."""
    *lead, extent = b.shape(x)
    last = len(lead)
    if len(axes) < 2:
        return views.sliced(b, x, last, start, *(axes[0] if axes else (1, 1)))
    (count, stride), *rest = axes
    if 1 + sum((n - 1) * one for n, one in rest) <= stride:
        x = padded(b, x, last, (0, max(0, start + count * stride - extent)))
        rows = views.sliced(b, x, last, start, count * stride)
        return _walked(b, views.reshaped(b, rows, (*lead, count, stride)), rest, 0)
    few = min(range(len(axes)), key=lambda d: axes[d][0])
    others = [axis for d, axis in enumerate(axes) if d != few]
    parts = tuple(_walked(b, x, others, start + n * axes[few][1]) for n in range(axes[few][0]))
    return b.tensor(views.stacked(b, parts, last + few), "strides")


WHOLE: dict[str, Row] = {
    "aten.as_strided.default": _strided,
    **{f"aten.avg_pool{rank}d.default": _mean(rank) for rank in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{rank}d.default": _adaptive(rank, "avg", reductions.mean) for rank in (1, 2, 3)},
    "aten.adaptive_max_pool2d.default": first(_adaptive(2, "max", reductions.reduction(OpKind.MAX))),
    **{f"aten.max_pool{rank}d.default": _most(rank) for rank in (1, 2)},
    **{f"aten.max_pool{rank}d_with_indices.default": first(_most(rank)) for rank in (2, 3)},
    "aten.upsample_nearest2d.vec": _nearest,
}
