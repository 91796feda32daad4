"""Windows: slices, transpositions, reshapes and paddings of a tensor in memory, which kernels read where it lies.

In: a kernel graph. Out: for values that are such views, where their elements lie; and those of them that nobody has to
copy. Invariant: element i of a window is element offset + sum(i[d] * strides[d]) of its base, row-major, if every i[d]
lies in inside[d], and 0 otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_nb.errors import NamedSizeError
from mirage_nb.ir.graph import KernelGraph, Op
from mirage_nb.ir.ops import OpKind, PadAttrs, SliceAttrs, TransposeAttrs
from mirage_nb.ir.sizes import Sized, sized

MOVING = frozenset({OpKind.SLICE, OpKind.TRANSPOSE, OpKind.PAD})
"""Views whose elements do not lie one after the other."""


@dataclass(frozen=True, slots=True)
class Window:
    """Where the elements of a value lie: in value `base`, which has so many `elements`, some of them; outside of
    the places that a dimension names, if it names some, there are zeros."""

    base: int
    elements: int
    offset: int
    strides: tuple[int, ...]
    inside: tuple[range | None, ...]

    def read(self, shape: Sequence[int]) -> int:
        """How many elements of its base it looks at, as a value of this shape."""
        pairs = zip(self.inside, shape, strict=True)
        return prod(extent if places is None else len(places) for places, extent in pairs)

    def gaps(self, shape: Sequence[int]) -> list[int]:
        """The dimensions behind which elements do not lie one after the other, of a value of this shape."""
        outer = zip(self.strides, self.inside, strict=True)
        inner = zip(self.strides[1:], self.inside[1:], shape[1:], strict=True)
        pairs = enumerate(zip(outer, inner, strict=False))
        return [d for d, ((step, held), (next_step, its, n)) in pairs if held or its or step != next_step * n]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor."""
    found = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        found[dim] = found[dim + 1] * shape[dim + 1]
    return tuple(found)


def windows(graph: KernelGraph, copied: Collection[int] = ()) -> dict[int, Window]:
    """The windows that only graph-defined operators read, and windows that such operators read, but for those that are
    copied: kernels do with what they look at. None in a graph that has a size and does not keep to it."""
    try:
        where = sized(graph)
    except NamedSizeError:  # such a muGraph is refused
        return {}
    found = _all(graph, where)
    uniform = graph.uniform()
    kept = {v for v, window in found.items() if uniform.keys().isdisjoint((v, window.base))} - {*graph.outputs, *copied}
    for op, values in reversed([*graph.definitions()]):
        if op.body is None and not kept.issuperset(values):
            kept.difference_update(op.inputs)
    return {value: found[value] for value in kept}


def as_matrix(window: Window, shape: Sequence[int], columns: int) -> tuple[int, int] | None:
    """A window as a matrix with so many columns: the elements of its base in front of it, and from one row to the next;
    None where it is no such matrix."""
    if any(places is not None for places in window.inside):
        return None
    runs: list[tuple[int, int]] = []  # extents and strides, outermost first
    for extent, stride in zip(shape, window.strides, strict=True):
        if extent > 1 and runs and runs[-1][1] == extent * stride:
            runs[-1] = runs[-1][0] * extent, stride
        elif extent > 1:
            runs.append((extent, stride))
    match runs:
        case [(extent, 1)] if extent % columns == 0:
            return window.offset, columns
        case [(_, pitch), (extent, 1)] if extent == columns and pitch > 0:
            return window.offset, pitch
    return None


def views(graph: KernelGraph) -> dict[int, Window]:
    """All values that are windows, whoever reads them. Raises NamedSizeError as `ir.sizes.sized`."""
    return _all(graph, sized(graph))


@dataclass(frozen=True, slots=True)
class Share:
    """What an operand is of the tensor that it and others are windows of. part: of its bytes, those that it has for
    itself; beside: along each dimension, how many more places than any of them they reach together. Of one that is
    looked up, `part` counts the numbers, too; numbers: their part of that; table: bytes of what it looks in, else 0."""

    part: float = 1.0
    beside: tuple[int, ...] = ()
    table: int = 0
    numbers: float = 0.0

    def coalesced(self, shape: Sequence[int], made: Sequence[int]) -> Share:
        """The same where dimensions of the operand are one dimension each of another shape."""
        found, pairs = list[int](), iter(zip(self.beside, shape, strict=False))
        for extent in made if self.beside else ():
            joined, places = 1, 0
            while joined < extent and (pair := next(pairs, None)) is not None:
                joined, places = joined * pair[1], places * pair[1] + pair[0]
            found.append(places)
        return replace(self, beside=tuple(found))


WHOLE = Share()


def shares(
    graph: KernelGraph, operands: Sequence[int], seen: Mapping[int, Window], roots: Sequence[int]
) -> tuple[Share, ...]:
    """Of the bytes of each operand, those that it has for itself: all of them, unless it is one of several windows of a
    tensor which have more elements together than that, or has zeros beside what it is a window of. roots: of every
    value, what it is another shape of."""
    types = graph.types
    whole = (Window(v, types[v].elements, 0, row_major(t := types[v].shape), (None,) * len(t)) for v in operands)
    looks = [seen.get(v, own) for v, own in zip(operands, whole, strict=True)]
    bases, read = [roots[w.base] for w in looks], [w.read(types[v].shape) for v, w in zip(operands, looks, strict=True)]
    together: dict[int, dict[int, int]] = {}
    for value, base, count in zip(operands, bases, read, strict=True):
        together.setdefault(base, {})[roots[value]] = count
    found = list[Share]()
    for value, base, count, look in zip(operands, bases, read, looks, strict=True):
        own = min(1.0, look.elements / max(1, sum(together[base].values())))
        alike = [w for w, other in zip(looks, bases, strict=True) if other == base and w.strides == look.strides]
        beside = _reach(look.strides, [w.offset for w in alike]) if own < 1.0 else ()
        found.append(Share(own * count / types[value].elements, beside))
    return tuple(found)


def _reach(strides: Sequence[int], offsets: Sequence[int]) -> tuple[int, ...]:
    """Places along each dimension between the first and the last of windows with these offsets."""
    left = [offset - offsets[0] for offset in offsets]
    found = [0 for _ in strides]
    for dim in sorted(range(len(strides)), key=lambda d: -abs(strides[d])):
        if stride := strides[dim]:
            places = [round(offset / stride) for offset in left]
            left = [offset - place * stride for offset, place in zip(left, places, strict=True)]
            found[dim] = max(places) - min(places)
    return tuple(found)


def _all(graph: KernelGraph, where: Sized | None) -> dict[int, Window]:
    """Every value that is a window of another one. Where a size is known at launch, no offset and no stride depends on
    it: it is the outermost dimension of what is looked at."""
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
        if source not in found and where is not None and where.dims[source]:
            continue
        shape = types[0].shape
        whole = Window(dense.get(source, source), types[0].elements, 0, row_major(shape), (None,) * len(shape))
        made = _seen(op, found.get(source, whole), shape, types[1].shape)
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
    inside = window.inside
    match op.attrs:
        case TransposeAttrs(perm=perm):
            return replace(window, strides=moved(op, window.strides), inside=tuple(inside[dim] for dim in perm))
        case SliceAttrs(dim=dim, start=start):
            held = inside[dim]
            first, part = start, None if held is None else _within(held, op.attrs)
        case PadAttrs(dim=dim, before=before):
            held = inside[dim]
            held = range(shape[dim]) if held is None else held  # a range of no places is not "all"
            first, part = -before, range(held.start + before, held.stop + before)
        case _:
            split = _split(shape, window, made)
            return None if split is None else replace(window, strides=split[0], inside=split[1])
    offset = window.offset + first * window.strides[dim]
    inside = (*inside[:dim], part, *inside[dim + 1 :])
    return replace(window, offset=offset, strides=moved(op, window.strides), inside=inside)


def _within(inside: range, part: SliceAttrs) -> range | None:
    """The places of a slice that lie inside; None if all do."""
    start, step = part.start, part.step
    if step < 0:
        start, step, inside = -start, -step, range(1 - inside.stop, 1 - inside.start)
    first, stop = (min(max(-((start - end) // step), 0), part.extent) for end in (inside.start, inside.stop))
    return None if (first, stop) == (0, part.extent) else range(first, stop)


def _split(
    shape: tuple[int, ...], window: Window, made: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[range | None, ...]] | None:
    """The strides of a reshape, which joins dimensions only where they lie one after the other, and what lies inside:
    dimensions with zeros stay as they are."""
    joined: list[tuple[int, int, range | None]] = []  # extents and strides of runs, outermost first
    for extent, stride, inside in zip(shape, window.strides, window.inside, strict=True):
        if extent == 1 and inside is None:
            continue
        if joined and joined[-1][1] == extent * stride and joined[-1][2] is inside is None:
            joined[-1] = joined[-1][0] * extent, stride, None
        else:
            joined.append((extent, stride, inside))
    found: list[tuple[int, range | None]] = []
    runs, left, stride, part = [*joined], 1, 0, None
    for extent in reversed(made):
        if left == 1 and extent > 1 and runs:
            left, stride, part = runs.pop()
        if left % extent or (part is not None and extent not in (1, left)):
            return None
        found.append((stride, part if extent > 1 else None))
        left, stride = left // extent, stride * extent
    if runs or left > 1:
        return None
    found.reverse()
    return tuple(stride for stride, _ in found), tuple(places for _, places in found)
