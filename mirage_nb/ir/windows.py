"""Windows: slices, transpositions and reshapes of a tensor in memory, which kernels read where it lies.

In: a kernel graph. Out: for values that are such views, where their elements lie; and those of them that nobody has to
copy. Invariant: element i of a window is element offset + sum(i[d] * strides[d]) of its base, row-major.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from mirage_nb.ir.graph import KernelGraph, Op
from mirage_nb.ir.ops import OpKind, SliceAttrs, TransposeAttrs
from mirage_nb.ir.sizes import size_of

MOVING = frozenset({OpKind.SLICE, OpKind.TRANSPOSE})
"""Views whose elements do not lie one after the other."""


@dataclass(frozen=True, slots=True)
class Window:
    """Where the elements of a value lie: in value `base`, which has so many `elements`, some of them."""

    base: int
    elements: int
    offset: int
    strides: tuple[int, ...]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor."""
    found = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        found[dim] = found[dim + 1] * shape[dim + 1]
    return tuple(found)


def windows(graph: KernelGraph, copied: Collection[int] = ()) -> dict[int, Window]:
    """The windows that only graph-defined operators read, and windows that such operators read, but for those that are
    copied: kernels do with what they look at. None where a size is known at launch, on which offsets would depend."""
    if size_of(graph) is not None:
        return {}
    found = _all(graph)
    uniform = graph.uniform()
    kept = {value for value in found if value not in uniform} - {*graph.outputs, *copied}
    for op, values in reversed([*graph.definitions()]):
        if op.body is None and not kept.issuperset(values):
            kept.difference_update(op.inputs)
    return {value: found[value] for value in kept}


def _all(graph: KernelGraph) -> dict[int, Window]:
    """Every value that is a window of another one."""
    found: dict[int, Window] = {}
    dense: dict[int, int] = {}
    for op, (value, *_) in graph.definitions():
        if op.kind not in MOVING and op.kind is not OpKind.RESHAPE:
            continue
        (source,) = op.inputs
        types = graph.types[source], graph.types[value]
        if op.kind is OpKind.RESHAPE and source not in found:
            dense[value] = dense.get(source, source)
            continue
        whole = Window(dense.get(source, source), types[0].elements, 0, row_major(types[0].shape))
        made = _seen(op, found.get(source, whole), types[0].shape, types[1].shape)
        if made is not None:
            found[value] = made
    return found


def moved(op: Op, strides: Sequence[int]) -> tuple[int, ...]:
    """The strides of a slice or a transposition of what has these."""
    match op.attrs:
        case SliceAttrs(dim=dim, step=step):
            return (*strides[:dim], strides[dim] * step, *strides[dim + 1 :])
        case TransposeAttrs(perm=perm):
            return tuple(strides[dim] for dim in perm)
    return tuple(strides)


def _seen(op: Op, window: Window, shape: tuple[int, ...], made: tuple[int, ...]) -> Window | None:
    """The window of a view of a window; None where no strides say it."""
    if op.kind in MOVING:
        first = op.attrs.start * window.strides[op.attrs.dim] if isinstance(op.attrs, SliceAttrs) else 0
        return replace(window, offset=window.offset + first, strides=moved(op, window.strides))
    split = _split(shape, window.strides, made)
    return None if split is None else replace(window, strides=split)


def _split(shape: tuple[int, ...], strides: tuple[int, ...], made: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of a reshape, which joins dimensions only where they lie one after the other."""
    joined: list[tuple[int, int]] = []  # extents and strides of runs, outermost first
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if joined and joined[-1][1] == extent * stride:
            joined[-1] = joined[-1][0] * extent, stride
        else:
            joined.append((extent, stride))
    found: list[int] = []
    left, stride = 1, 0
    for extent in reversed(made):
        if left == 1 and extent > 1:
            left, stride = joined.pop()
        if left % extent:
            return None
        found.append(stride)
        left, stride = left // extent, stride * extent
    return tuple(reversed(found)) if math.prod(e for e, _ in joined) * left == 1 else None
