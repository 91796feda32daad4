"""What a muGraph takes, whoever wrote it: its generated kernels as the cost model takes them.

In: a muGraph with all its numbers, a target. Out: the `Tiles` of every generated kernel, at one choice of sizes; or the
`Cost` of all kernels in a row. Block graphs are taken as they are, but for thread graphs, which are written out, casts
of what is saved, and masks of what hangs over an end, which are counted by themselves. Invariant: the muGraph of an
instance takes what the instance is estimated to take.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from mirage_nb.ir import (
    AccumAttrs,
    Attrs,
    BlockGraph,
    DType,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    TensorType,
)
from mirage_nb.ir.places import numbered
from mirage_nb.ir.windows import Share, Window, shares, windows
from mirage_nb.predefined import LOOKUP, matches
from mirage_nb.predefined.lookups import looked_up, share_of
from mirage_nb.search.sizes.anatomy import Beside, Chain, Extent, Fixed, Mask, Moved, Outline, Sizes
from mirage_nb.search.sizes.cost import Cost, best_variant, estimate
from mirage_nb.search.sizes.library import library_steps
from mirage_nb.search.sizes.looked import looked_up_by_kernels
from mirage_nb.search.sizes.occupancy import DEFAULT_VARIANT, Variant
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.targets import Target
from mirage_nb.tile.rules.attention import (
    KEYS,
    SHARE,
    AttentionBlock,
    axes_beside,
    counters_of,
    find_attention,
    weights_are_f32,
)
from mirage_nb.tile.rules.boxes import in_boxes
from mirage_nb.tile.rules.mask import places_of
from mirage_nb.tile.rules.products import COLUMNS, ROWS, find_product
from mirage_nb.tile.rules.thread_graph import flat
from mirage_nb.tile.rules.widen import widen

KNOWN = 4096
"""Kernels whose cost is remembered."""
_Tensor = tuple[int, Share, bool | None]
OWN = (ROWS, KEYS, COLUMNS)
"""The axes that queries, keys and values of a chain have for themselves."""


def written_cost(graph: KernelGraph, target: Target) -> Cost:
    """What the kernels of a muGraph take in a row: generated ones by the cost model, pre-defined ones by a library."""
    library = {step.values[-1]: step.cost(graph) for step in library_steps(graph, target)}
    kernels = _kernels(graph)
    costs = [library.get(value) if made is None else _cost(made, target) for value, made in kernels]
    return Cost.in_a_row([cost for cost in costs if cost is not None])


def written_kernels(graph: KernelGraph) -> list[tuple[int, Tiles | None]]:
    """The kernels of a muGraph in launch order, each with the first value that it makes; None stands for what a
    pre-defined one does, alone or with others."""
    return [(value, None if made is None else made.tiles()) for value, made in _kernels(graph)]


def likely_variant(graph: KernelGraph, target: Target) -> Variant:
    """The variant in which a muGraph is estimated fastest: that of the kernel that gains most by it."""
    found = [best_variant(made.tiles(), target) for _, made in _kernels(graph) if made is not None]
    return max(found, key=lambda pair: pair[0], default=(0.0, DEFAULT_VARIANT))[1]


@dataclass(frozen=True, slots=True)
class _Written:
    """A generated kernel. tensors: a number for each operand, the same for what is the same tensor; shares: what
    each is of a tensor of which several are windows; boxed: of windows, whether the copy engine brings boxes of them;
    literals: operands that are one number; counted: those that number places; follows: whether it reads what a kernel
    before it wrote; saved: bytes of an element of each output."""

    block: BlockGraph
    tensors: tuple[int, ...]
    shares: tuple[Share, ...]
    boxed: tuple[bool | None, ...]
    literals: frozenset[int]
    counted: frozenset[int]
    follows: bool
    saved: tuple[int, ...]

    def tiles(self) -> Tiles:
        """What the cost model looks at."""
        operands = [*zip(self.tensors, self.shares, self.boxed, strict=True)]
        return _tiles(self.block, operands, self.saved, self.literals, self.counted, follows=self.follows)


@lru_cache(maxsize=KNOWN)
def _cost(kernel: _Written, target: Target) -> Cost:
    """What a kernel takes: the muGraphs of a program have few kernels among them, each many times."""
    return estimate(kernel.tiles(), target).cost(0)


def _kernels(graph: KernelGraph) -> list[tuple[int, _Written | None]]:
    given, graph = graph.types, widen(graph)
    roots, uniform, left, seen = [*range(len(graph.types))], graph.uniform(), set[int](), windows(graph)
    places, looked = numbered(graph), looked_up_by_kernels(graph, matches(graph, [LOOKUP]))
    found: list[tuple[int, _Written | None]] = []
    for op, values in graph.definitions():
        if values[0] in uniform:
            continue
        if op.kind is OpKind.RESHAPE:
            roots[values[0]] = roots[op.inputs[0]]
        elif isinstance(op.body, BlockGraph):
            literals = frozenset(arg for arg, value in enumerate(op.inputs) if value in uniform)
            counted = frozenset(arg for arg, value in enumerate(op.inputs) if value in places)
            tensors = [roots[value] for value in op.inputs]
            numbers, own = tuple(map(tensors.index, tensors)), shares(graph, op.inputs, seen, roots)
            tables = looked_up(op.inputs, looked, seen)
            own = tuple(share_of(graph, op.inputs[n], tables[n]) if n in tables else s for n, s in enumerate(own))
            boxed = tuple(_in_boxes(seen.get(value), graph.types[value]) for value in op.inputs)
            behind = {*tensors, *(roots[seen[value].base] for value in op.inputs if value in seen)}
            behind |= {roots[source] for lookup in tables.values() for source in (lookup.table, *lookup.numbers)}
            follows = not left.isdisjoint(behind)
            saved = tuple(given[value].dtype.size for value in values)
            found.append((values[0], _Written(op.body, numbers, own, boxed, literals, counted, follows, saved)))
            left.update(values)
        else:
            found.append((values[0], None))
    return found


def _tiles(
    block: BlockGraph, tensors: Sequence[_Tensor], saved: Sequence[int], literals: frozenset[int],
    counted: frozenset[int], *, follows: bool,
) -> Tiles:  # fmt: skip
    """The tiles of a block over these tensors, some of which are one number, or number places."""
    made = _Plain.of(block, literals)
    plain = made.block
    ends, loop = made.ends, plain.loop
    reads = {
        value: _read(plain, op.attrs, tensors)
        for op, values in plain.definitions()
        for value in values
        if isinstance(op.attrs, InIterAttrs) and op.attrs.arg not in literals
    }
    product = find_product(plain, literals) if loop > 1 else None
    attention = find_attention(plain, literals) if loop > 1 and product is None else None
    chain = None
    if attention is not None:
        operands = zip((attention.queries, attention.keys, attention.values), OWN, strict=True)
        others = _others(attention, counted, literals, [type_.dtype for type_ in block.output_types])
        if others is not None:
            own = tuple((operand.axes.index(axis),) for operand, axis in operands)
            chain = Chain(attention, own, *others)
    operators = [(op.kind, op.inputs, values) for op, values in plain.definitions()]
    outline = Outline(
        plain, (operators, tuple(t.dtype.size for t in plain.types)), literals, frozenset(made.heads),
        tuple(tuple(Fixed(n) if n > 1 else None for n in t.shape) for t in plain.types), reads,
        tuple((op.inputs[0], _saved(plain, op, width)) for op, width in zip(plain.savers, saved, strict=True)),
        lambda axis: tuple(ends) if axis is None else (), follows, None, product, chain,
    )  # fmt: skip
    grid = {place: np.array([float(parts)]) for place, parts in enumerate(plain.grid)}
    return Tiles(outline, Sizes((), grid, np.array([float(loop)])))


def _others(
    made: AttentionBlock, counted: Collection[int], literals: Collection[int], stored: Collection[DType]
) -> tuple[dict[Attrs | None, tuple[str, Extent]], tuple[Beside, ...], bool] | None:
    """What the operands of a chain number that are no matrices, those that are read, and whether blocks share out the
    keys of a row; None where they share what a planner does not let them share. stored: the types of the outputs."""
    counters, block = counters_of(made), made.block
    if counters is None:
        return None
    operands = [o.attrs for o in (made.queries, made.keys, made.values)]
    reads = [op.attrs for op in block.ops if isinstance(op.attrs, InIterAttrs) and op.attrs.arg not in literals]
    found: dict[Attrs | None, tuple[str, Extent]] = {}
    beside: list[Beside] = []
    for attrs in reads:
        if attrs in operands:
            continue
        if attrs.arg in counted:
            if not (axis := places_of(made, counted, counters, attrs)):
                return None
            found[attrs] = axis, Fixed(max(block.tile_shape(attrs)), max(block.args[attrs.arg].shape))
            continue
        axes = axes_beside(made, counters, attrs)
        if axes is None:
            return None
        parts = (tuple(dim for dim, axis in enumerate(axes) if axis == part) for part in (KEYS, ROWS))
        beside.append(Beside(attrs, *parts))
    if weights_are_f32((block.args[one.attrs.arg].dtype for one in beside), stored):
        return None
    return found, tuple(beside), SHARE in counters


def _in_boxes(window: Window | None, type_: TensorType) -> bool | None:
    return None if window is None else in_boxes(window, type_, type_.shape[-1])


def _read(block: BlockGraph, attrs: InIterAttrs, tensors: Sequence[_Tensor]) -> Moved:
    """The tile that an iterator brings."""
    operand, tile = block.args[attrs.arg], block.tile_shape(attrs)
    cuts = tuple(g for g, dim in enumerate(attrs.imap) if dim is not None)
    splits = [*zip(attrs.imap, block.grid, strict=True), (attrs.fmap, block.loop)]
    names = _fixed(tile, operand.shape, splits)
    (tensor, share, boxed), streamed = tensors[attrs.arg], attrs.fmap is not None and block.loop > 1
    return Moved(tensor, operand.dtype.size, names, cuts, streamed, share, boxed)


def _saved(block: BlockGraph, op: Op, width: int) -> Moved:
    """The tile that a saver writes, of elements of so many bytes."""
    attrs, type_ = op.attrs, block.types[op.inputs[0]]
    assert isinstance(attrs, OutSaverAttrs)
    splits = [*zip(attrs.omap, block.grid, strict=True)]
    whole = replace(block, ops=(op,)).output_types[0].shape
    return Moved(None, width, _fixed(type_.shape, whole, splits), ())


def _fixed(
    tile: Sequence[int], whole: Sequence[int], splits: Sequence[tuple[int | None, int]]
) -> tuple[Fixed | None, ...]:
    """The extents of a tile of a tensor that is split so along its dimensions."""
    covered = list(tile)
    for dim, parts in splits:
        if dim is not None:
            covered[dim] *= parts
    return tuple(Fixed(*one) if max(one) > 1 else None for one in zip(tile, whole, covered, strict=True))


@dataclass(slots=True)
class _Plain:
    """Copies a block graph without what the cost model does not look at. heads: products that threads compute; ends:
    masks; beyond: values that are one number before the end of an axis, and another one behind it."""

    source: BlockGraph
    block: BlockGraph
    new: dict[int, int] = field(default_factory=dict)
    heads: set[int] = field(default_factory=set)
    ends: list[Mask] = field(default_factory=list)
    beyond: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, block: BlockGraph, literals: Collection[int]) -> _Plain:
        """The copy. literals: operands that are one number."""
        source, heads = flat(block)
        made = cls(source, BlockGraph.start(source.args, source.grid, source.loop))
        for number, (op, values) in enumerate(source.definitions()):
            made.add(op, values, literals)
            if number in heads:
                made.heads.add(made.new[values[0]])
        return made

    def add(self, op: Op, values: tuple[int, ...], literals: Collection[int]) -> None:
        """Copy an operator."""
        read = [self.new[v] for v in op.inputs if v not in self.beyond]
        ends = isinstance(op.attrs, InIterAttrs) and op.attrs.arg in literals and any(self.source.overhanging(op.attrs))
        masked = len(read) < len(op.inputs)
        if ends or (masked and not any(len(self.block.types[v].shape) for v in read)):
            self.beyond.update(values)
            return
        once = isinstance(op.attrs, AccumAttrs) and self.block.loop == 1
        if masked:
            kept = max(read, key=lambda v: self.block.types[v].elements)
            self.new[values[0]] = kept
            self.ends.append(Mask(kept, 1))
        elif once or (op.kind is OpKind.CAST and self._only_saved(values[0])):
            self.new[values[0]] = read[0]
        elif op.kind is OpKind.CONCAT_MATMUL:
            w, x, y, z = read
            products = tuple(self._append(Op(OpKind.MATMUL, pair)) for pair in ((w, y), (x, z)))
            self.new[values[0]] = self._append(Op(OpKind.ADD, products))
        else:
            made = self._append(replace(op, inputs=tuple(read)))
            self.new |= dict.fromkeys(values, made)

    def _only_saved(self, value: int) -> bool:
        return all(op.kind is OpKind.OUT_SAVER for op in self.source.ops if value in op.inputs)

    def _append(self, op: Op) -> int:
        self.block = self.block.append(op)
        return len(self.block.types) - 1
