"""Convolutions: sums over windows, by their definition.

In: a tensor of images or signals, kernels, strides, paddings, groups. Out: a term: the windows' elements side by side,
as slices of the padded tensor, and one product of matrices. Invariant: it is multi-linear, so that trials decide it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from mirage_nb.errors import ShapeError
from mirage_nb.ir.ops import OpKind, Shape, show_shape
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.lowering import add
from mirage_nb.lang.masks import pad
from mirage_nb.lang.views import reshaped, sliced, stacked

Counts = int | tuple[int, ...]


def convolution(rank: int) -> Callable[..., Term]:
    """The function that convolves x[n, c, ...] with kernels w[o, c / groups, ...] over so many dimensions."""

    def lower(
        b: Builder, x: Value, w: Value, bias: Value | None,
        stride: Counts, padding: Counts, dilation: Counts, groups: int,
    ) -> Term:
        shape, kernel = b.shape(x), b.shape(w)
        name = f"conv{rank}d"
        if len(shape) != rank + 2 or len(kernel) != rank + 2:
            raise ShapeError(
                f"{name} of {show_shape(shape)} with {show_shape(kernel)}",
                hint=f"x has a batch, channels and {rank} more; w has outputs, channels of a group and {rank} more",
            )
        if groups < 1 or shape[1] != kernel[1] * groups or kernel[0] % groups:
            raise ShapeError(
                f"{name}: {shape[1]} channels in {groups} groups, and {kernel[0]} kernels of {kernel[1]} channels",
                hint="channels are groups * w's channels; groups divides w's outputs",
            )
        steps, edges, apart = (_each(name, counts, rank) for counts in (stride, padding, dilation))
        reach = [(size - 1) * gap + 1 for size, gap in zip(kernel[2:], apart, strict=True)]
        sides = zip(shape[2:], edges, reach, steps, strict=True)
        extents = [(extent + 2 * edge - size) // max(1, step) + 1 for extent, edge, size, step in sides]
        if min(*steps, *extents, *apart) < 1 or min(edges) < 0:
            raise ShapeError(
                f"{name}: no window of {show_shape(kernel[2:])} in steps of {', '.join(map(str, steps))} fits",
                hint="strides and dilations are positive, paddings are not negative; padding= makes x larger",
            )
        for dim, edge in enumerate(edges, start=2):
            x = b.tensor(pad(b, x, edge, edge, dim), name)
        made = _product(b, _windows(b, x, kernel[2:], apart, steps, extents), w, groups)
        made = reshaped(b, made, (shape[0], kernel[0], *extents))
        return made if bias is None else add(b, made, _channels(b, bias, kernel[0], rank))

    return lower


def _each(name: str, counts: Counts, rank: int) -> tuple[int, ...]:
    found = counts if isinstance(counts, tuple) else (counts,) * rank
    if len(found) != rank:
        raise ShapeError(f"{name} has {rank} dimensions, not {len(found)}", hint="one number, or one for each in [ ]")
    return found


def _windows(b: Builder, x: Value, window: Shape, apart: Shape, steps: Shape, extents: list[int]) -> Value:
    """[n, c, elements of a window, windows]."""
    parts: list[Value] = []
    places = (range(0, size * gap, gap) for size, gap in zip(window, apart, strict=True))
    for place in itertools.product(*places):
        part = x
        for dim, (start, extent, step) in enumerate(zip(place, extents, steps, strict=True), start=2):
            part = sliced(b, part, dim, start, extent, step)
        parts.append(reshaped(b, part, (*b.shape(x)[:2], math.prod(extents))))
    return b.tensor(stacked(b, tuple(parts), 2), "a convolution")


def _product(b: Builder, windows: Value, w: Value, groups: int) -> Value:
    """[n, groups, outputs of a group, windows]."""
    count, channels, taps, places = b.shape(windows)
    folded = channels // groups * taps
    left = reshaped(b, w, (groups, b.shape(w)[0] // groups, folded))
    return b.emit(OpKind.MATMUL, left, reshaped(b, windows, (count, groups, folded, places)))


def _channels(b: Builder, bias: Value, outputs: int, rank: int) -> Value:
    if b.shape(bias) != (outputs,):
        found = f"bias is {show_shape(b.shape(bias))} for {outputs} outputs"
        raise ShapeError(found, hint=f"declare it as [{outputs}]")
    return reshaped(b, bias, (outputs, *(1 for _ in range(rank))))
