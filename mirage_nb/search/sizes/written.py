"""What a muGraph takes, whoever wrote it: its generated kernels read back as structures over axes.

In: a muGraph with all its numbers, a target. Out: a `Written` for every generated kernel, which the cost model takes
like a structure of the search with its sizes; or the `Cost` of all kernels in a row. This is the way back from
`concrete`: dimensions that meet in an operator, and those that one grid dim or the loop cuts, are one axis, numbered in
the order of the program's inputs; views vanish, and so do the masks of what hangs over an end. Invariant: the muGraph
of an instance takes what the instance is estimated to take. What no structure says (a view that cuts or joins axes
within a block) is read as axes of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    ThreadGraph,
    TransposeAttrs,
)
from mirage_nb.search.axes import Axis, Layout, Prepared, Tensor, broadcast_layouts, spread_layout
from mirage_nb.search.dims import folded_dim, joined_dim
from mirage_nb.search.saturation.values import BLOCK, DATA, GRID, ITER, LOOP, POST, TILE, Operator
from mirage_nb.search.sizes.anatomy import Sizes
from mirage_nb.search.sizes.cost import Cost, estimate
from mirage_nb.search.sizes.library import library_steps
from mirage_nb.search.structure import KernelStructure, Source, Step
from mirage_nb.targets import Target
from mirage_nb.tile.thread_graph import fuse_block

Key = tuple[int, int, int]
"""Where an axis is met first, inputs before all others: a value of the kernel graph, which reading of it (a tensor that
meets itself, as in X @ X^T, is read twice), and one of its dimensions."""
Codes = dict[int, int]
"""The parts of every axis that a tile has, as in `saturation.values.Type`."""


@dataclass(frozen=True, slots=True)
class Written:
    """One generated kernel, as the cost model takes it."""

    prepared: Prepared
    kernel: KernelStructure
    sizes: Sizes

    def cost(self, target: Target) -> Cost:
        """What it takes."""
        found = estimate(self.prepared, self.kernel, self.sizes, target)
        return Cost(
            us=float(found.us[0]),
            bytes_device=float(found.bytes_device[0]),
            bytes_shared=float(found.bytes_shared[0]),
            shared_memory=float(found.shared_memory[0]),
            blocks=int(found.blocks[0]),
            kernels=1,
        )


def written_cost(graph: KernelGraph, target: Target) -> Cost:
    """What the kernels of a muGraph take in a row: generated ones by the cost model, pre-defined ones by a library."""
    library = {step.values[-1]: step.cost(graph) for step in library_steps(graph, target)}
    kernels = [(value, made.cost(target) if made is not None else None) for value, made in written_kernels(graph)]
    costs = [made if made is not None else library.get(value) for value, made in kernels]
    return Cost.in_a_row([cost for cost in costs if cost is not None])


def written_kernels(graph: KernelGraph) -> list[tuple[int, Written | None]]:
    """The kernels of a muGraph in launch order, each with the first value that it makes; None stands for what a
    pre-defined one does, alone or with others."""
    held = {value: _Tensor.of(graph, value) for value in range(graph.input_count)}
    uniform = graph.uniform()
    found: list[tuple[int, _Block | None]] = []
    for op, values in graph.definitions():
        if values[0] in uniform:
            held[values[0]] = _Tensor.of(graph, values[0])
            continue
        block = None
        if isinstance(op.body, BlockGraph):
            chained = any(isinstance(inner.body, ThreadGraph) for inner in op.body.ops)
            body = fuse_block(op.body) if chained else op.body
            block = _Block(body, [None if v in uniform else held[v] for v in op.inputs])
            saved = zip(values, block.saved, strict=True)
            held.update({v: _Tensor(v, graph.types[v].shape, dims, between=True) for v, dims in saved})
        elif op.kind is OpKind.RESHAPE:
            held[values[0]] = held[op.inputs[0]].viewed(values[0], graph.types[values[0]].shape)
            continue
        else:
            held[values[0]] = _Tensor.of(graph, values[0])
        found.append((values[0], block))
    folded = {key for _, block in found if block is not None for key in block.folded}
    return [(value, None if block is None else block.written(graph, folded)) for value, block in found]


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dimension of a tensor in device memory. `left`: the parts of an axis that it has an element for each of, and
    how many these are, if it has not all of the axis, whose extent is `whole` then."""

    key: Key
    left: tuple[tuple[int, int], ...] = ()
    whole: int = 0


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in device memory; `root`: what it is a view of; `between`: generated kernels wrote it."""

    root: int
    shape: Sequence[int]
    dims: tuple[_Dim, ...]
    between: bool = False

    @classmethod
    def of(cls, graph: KernelGraph, value: int) -> _Tensor:
        """A value of the kernel graph that nothing is known of."""
        shape = graph.types[value].shape
        return cls(value, shape, tuple(_Dim((value, 0, dim)) for dim in range(len(shape))))

    def viewed(self, value: int, shape: Sequence[int]) -> _Tensor:
        """The tensor in another shape; one that joins or cuts dimensions has dimensions of its own."""
        if sorted(e for e in self.shape if e > 1) == sorted(e for e in shape if e > 1):
            places = spread_layout(tuple(range(len(self.shape))), self.shape, shape)
            dims = tuple(_Dim((value, 0, d)) if p is None else self.dims[p] for d, p in enumerate(places))
        else:
            dims = tuple(_Dim((self.root, 0, dim)) for dim in range(len(shape)))
        return _Tensor(self.root, shape, dims, self.between)


NOWHERE = (2**31, 0, 0)
"""The key of axes that no tensor has."""


@dataclass(slots=True)
class _Axes:
    """Axes of one kernel while it is read: dimensions found to lie along one axis are joined."""

    extents: list[int] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    _joined: list[int] = field(default_factory=list)

    def new(self, extent: int, key: Key) -> int:
        """One more axis."""
        self.extents.append(extent)
        self.keys.append(key)
        self._joined.append(len(self._joined))
        return len(self._joined) - 1

    def find(self, axis: int) -> int:
        """The one that stands for all that were joined with it."""
        while self._joined[axis] != axis:
            axis = self._joined[axis]
        return axis

    def join(self, first: int | None, second: int | None) -> None:
        """Say that two are one; those of different extents are not."""
        if first is None or second is None:
            return
        first, second = sorted((self.find(first), self.find(second)), key=lambda axis: self.keys[axis])
        if self.extents[first] == self.extents[second]:
            self._joined[second] = first


@dataclass(frozen=True, slots=True)
class _Tile:
    """What a value of a block graph is: a step, or None for what is the same in all tiles but for their ends; the axis
    of every dimension, and its extent."""

    step: int | None
    layout: Layout
    shape: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A step before the axes are numbered. `own`: the axes that a concatenation joins; `codes`: of a tensor."""

    operator: Operator
    reads: tuple[int, ...]
    stage: int
    source: _Tensor | None = None
    codes: Codes = field(default_factory=dict)
    layout: Layout = ()
    own: Layout = ()
    threads: bool = False


class _Block:
    """Reads one block graph over these operands; None stands for one number in all elements.

    `grid`, `loop`: the axes that they cut; `saved`: the dimensions of the results; `left`, `cut`: the extents of parts
    that are left of axes, and of tiles that hang over ends.
    """

    def __init__(self, block: BlockGraph, operands: Sequence[_Tensor | None]) -> None:
        self.block, self.operands = block, operands
        self.axes = _Axes()
        self.drafts: list[_Draft] = []
        self.grid: list[int | None] = [None] * len(block.grid)
        self.loop: int | None = None
        self.left: dict[tuple[int, int], int] = {}
        self.cut: dict[int, int] = {}
        self.savers: list[tuple[OutSaverAttrs, _Tile]] = []
        self._read = {op: self._leaf(op.attrs) for op in block.ops if isinstance(op.attrs, InIterAttrs)}
        for place, parts in enumerate(block.grid):
            if self.grid[place] is None and parts > 1:
                self.grid[place] = self.axes.new(parts, NOWHERE)
        if self.loop is None and block.loop > 1:
            self.loop = self.axes.new(block.loop, NOWHERE)
        tiles: list[_Tile] = []
        for (op, values), stage in zip(block.definitions(), block.stages(), strict=True):
            stage = POST if stage is None or block.loop == 1 else stage
            self._op(op, [block.types[v].shape for v in values], stage, tiles)
        self._share([tile.layout for tile in tiles])
        self.codes = self._all_codes()
        self.saved = [self._dims(attrs, tile) for attrs, tile in self.savers]

    @property
    def folded(self) -> set[Key]:
        """The axes that it sums, or takes maxima along."""
        axes = {d.operator.axis for d in self.drafts if d.operator.kind is not OpKind.CONCAT}
        return {self._key(axis) for axis in axes if axis >= 0}

    def _share(self, layouts: Sequence[Layout]) -> None:
        """One dimension that is read twice is one axis, unless some tile has both."""
        met: dict[Key, list[int]] = {}
        for axis in dict.fromkeys(map(self.axes.find, range(len(self.axes.keys)))):
            value, _, dim = key = self.axes.keys[axis]
            others = met.setdefault(key, [])
            together = [{self.axes.find(a) for a in layout if a is not None} for layout in layouts] if others else []
            other = next((o for o in others if not any({axis, o} <= axes for axes in together)), None)
            if other is None or key == NOWHERE:
                self.axes.keys[axis] = (value, len(others), dim)
                others.append(axis)
            else:
                self.axes.join(other, axis)

    def _key(self, axis: int) -> Key:
        return self.axes.keys[self.axes.find(axis)]

    def _blocks(self, axis: int) -> int:
        """Into how many parts the grid cuts an axis."""
        along = zip(self.grid, self.block.grid, strict=True)
        return math.prod(n for a, n in along if a is not None and self.axes.find(a) == self.axes.find(axis))

    # -- tensors

    def _leaf(self, attrs: InIterAttrs) -> _Draft:
        """What an iterator reads: the axes of its dimensions, joined with those that the grid and the loop cut."""
        tensor, shape = self.operands[attrs.arg], self.block.args[attrs.arg].shape
        dims = (_Dim(NOWHERE),) * len(shape) if tensor is None else tensor.dims
        layout: list[int | None] = []
        codes: Codes = {}
        for place, (extent, dim) in enumerate(zip(shape, dims, strict=True)):
            split = [g for g, d in enumerate(attrs.imap) if d == place and self.block.grid[g] > 1]
            looped = attrs.fmap == place and self.block.loop > 1
            left = () if split or looped else dim.left
            layout.append(self.axes.new(dim.whole if left else extent, dim.key) if extent > 1 else None)
            if (axis := layout[-1]) is None:
                continue
            for cut in split:
                self.axes.join(self.grid[cut], axis)
                self.grid[cut] = axis
            if looped:
                self.axes.join(self.loop, axis)
                self.loop = axis
            codes[axis] = (BLOCK if split else GRID) | (ITER if looped else LOOP) | TILE
            if left:
                codes[axis] = sum(part for part, _ in left)
                self.left.update({(axis, part): number for part, number in left})
            if self.block.overhanging(attrs)[place] and attrs.tile is not None:
                self.cut[axis] = attrs.tile[place]
        return _Draft(Operator(OpKind.IN_ITER), (), POST, tensor, codes, tuple(layout))

    def _dims(self, attrs: OutSaverAttrs, tile: _Tile) -> tuple[_Dim, ...]:
        """The dimensions of what a saver writes."""
        codes = {} if tile.step is None else self.codes[tile.step]
        found = []
        for dim, (axis, extent) in enumerate(zip(tile.layout, tile.shape, strict=True)):
            place = next((g for g, d in enumerate(attrs.omap) if d == dim and self.block.grid[g] > 1), None)
            if extent == 1:  # views leave open which of several it is
                axis = None if place is None else self.grid[place]
            if axis is None:
                found.append(_Dim(NOWHERE))
                continue
            code = codes.get(self.axes.find(axis), 0)
            numbers = ((GRID, self._blocks(axis)), (LOOP, self.block.loop))
            parts = 0 if code & TILE else code | (GRID if place is not None else 0)
            left = tuple((part, number) for part, number in numbers if parts & part)
            found.append(_Dim(self._key(axis), left, self.axes.extents[self.axes.find(axis)]))
        return tuple(found)

    # -- operators

    def _op(self, op: Op, shapes: Sequence[Sequence[int]], stage: int, tiles: list[_Tile]) -> None:
        """Read an operator, whose operands are among `tiles`; what it defines, of these shapes, is added to them."""
        reads = [tiles[v] for v in op.inputs]
        if isinstance(op.attrs, OutSaverAttrs):
            self.savers.append((op.attrs, reads[0]))
        elif isinstance(op.body, ThreadGraph):
            inner = list(reads)
            for one, values in op.body.definitions():
                self._op(one, [op.body.types[v].shape for v in values], stage, inner)
                if one.kind is OpKind.MATMUL and (made := inner[-1].step) is not None:
                    self.drafts[made] = replace(self.drafts[made], threads=True)
            tiles += [inner[v] for v in op.body.outputs]
        elif isinstance(op.attrs, InIterAttrs):
            draft = self._read[op]
            ends = self.operands[op.attrs.arg] is None and any(self.block.overhanging(op.attrs))
            tiles.append(_Tile(None, draft.layout, shapes[0]) if ends else self._step(draft, stage, shapes[0]))
        elif op.kind is OpKind.CONST:
            tiles.append(self._step(_Draft(Operator(OpKind.CONST), (), stage), stage, shapes[0]))
        elif any(tile.step is None for tile in reads):  # a mask leaves what it masks as it is
            kept = next((tile for tile in reads if tile.step is not None and tile.layout), reads[0])
            layout = kept.layout if kept.shape == shapes[0] else (None,) * len(shapes[0])
            tiles.append(_Tile(kept.step, layout, shapes[0]))
        else:
            tiles.append(self._computed(op, reads, shapes[0], stage))

    def _step(self, draft: _Draft, stage: int, shape: Sequence[int]) -> _Tile:
        self.drafts.append(replace(draft, stage=stage))
        return _Tile(len(self.drafts) - 1, draft.layout, shape)

    def _made(
        self, operator: Operator, reads: Sequence[_Tile], layout: Layout, shape: Sequence[int], stage: int,
        own: Layout = (),
    ) -> _Tile:  # fmt: skip
        steps = tuple(tile.step for tile in reads if tile.step is not None)
        return self._step(_Draft(operator, steps, stage, layout=layout, own=own), stage, shape)

    def _computed(self, op: Op, reads: Sequence[_Tile], shape: Sequence[int], stage: int) -> _Tile:
        """What an operator makes of tiles; views make nothing."""
        first = reads[0]
        match op.kind:
            case OpKind.CAST:
                return first
            case OpKind.TRANSPOSE:
                assert isinstance(op.attrs, TransposeAttrs)
                return _Tile(first.step, tuple(first.layout[dim] for dim in op.attrs.perm), shape)
            case OpKind.RESHAPE | OpKind.REPEAT:
                return _Tile(first.step, self._viewed(first, shape), shape)
            case OpKind.MATMUL:
                return self._product(first, reads[1], shape, stage)
            case OpKind.CONCAT_MATMUL:
                w, x, y, z = reads
                products = (self._product(w, y, shape, stage), self._product(x, z, shape, stage))
                return self._made(Operator(OpKind.ADD), products, products[0].layout, shape, stage)
            case OpKind.SUM | OpKind.MAX | OpKind.RESCALED_SUM:
                dim = folded_dim(op)
                axis = first.layout[dim]
                layout = (*first.layout[:dim], None, *first.layout[dim + 1 :])
                return first if axis is None else self._made(Operator(op.kind, axis=axis), reads, layout, shape, stage)
            case OpKind.ACCUM:
                assert isinstance(op.attrs, AccumAttrs)
                return self._accumulated(op.attrs, reads, shape)
            case OpKind.CONCAT:
                dim = joined_dim(op)
                whole = self.axes.new(shape[dim], NOWHERE)
                rest = [replace(t, layout=(*t.layout[:dim], None, *t.layout[dim + 1 :])) for t in reads]
                layout = self._met(rest)
                own = tuple(tile.layout[dim] for tile in reads)
                layout = (*layout[:dim], whole, *layout[dim + 1 :])
                return self._made(Operator(OpKind.CONCAT, axis=whole), reads, layout, shape, stage, own)
            case OpKind.MUL if first == reads[1]:
                return self._made(Operator(OpKind.SQR), reads[:1], first.layout, shape, stage)
            case kind:
                return self._made(Operator(kind, attrs=op.attrs), reads, self._met(reads), shape, stage)

    def _met(self, tiles: Sequence[_Tile]) -> Layout:
        """The axes of what meets element by element: dimensions of one extent lie along one axis."""
        layout, shape = tiles[0].layout, tiles[0].shape
        for other in tiles[1:]:
            places = zip(reversed(layout), reversed(shape), reversed(other.layout), reversed(other.shape), strict=False)
            for axis, extent, another, more in places:
                if extent == more:
                    self.axes.join(axis, another)
            layout = broadcast_layouts(layout, other.layout)
            shape = [max(pair) for pair in zip_longest(reversed(shape), reversed(other.shape), fillvalue=1)][::-1]
        return layout

    def _product(self, left: _Tile, right: _Tile, shape: Sequence[int], stage: int) -> _Tile:
        x, y = left.layout, right.layout
        self.axes.join(x[-1], y[-2])
        lead = self._met([_Tile(None, t.layout[:-2], t.shape[:-2]) for t in (left, right)])
        axis = y[-2] if x[-1] is None else x[-1]
        operator = Operator(OpKind.MUL) if axis is None else Operator(OpKind.MATMUL, axis=axis)
        return self._made(operator, (left, right), (*lead, x[-2], y[-1]), shape, stage)

    def _accumulated(self, attrs: AccumAttrs, reads: Sequence[_Tile], shape: Sequence[int]) -> _Tile:
        layout = reads[0].layout
        if self.loop is None:  # there is one iteration
            return reads[0]
        if attrs.dim is not None and layout[attrs.dim] is None:
            layout = (*layout[: attrs.dim], self.loop, *layout[attrs.dim + 1 :])
        operator = Operator(OpKind.ACCUM, axis=self.loop, accum=attrs.kind)
        return self._made(operator, reads, layout, shape, POST)

    def _viewed(self, tile: _Tile, shape: Sequence[int]) -> Layout:
        """The axes of a tile in another shape; dimensions that it joins or cuts are axes of their own. Where there are
        more dimensions than before, nobody knows which of them is that of one element of an axis."""
        if sorted(e for e in tile.shape if e > 1) == sorted(e for e in shape if e > 1):
            same = len(shape) == len(tile.shape)
            known = [a if same or e > 1 else None for a, e in zip(tile.layout, tile.shape, strict=True)]
            return spread_layout(known, tile.shape, shape)
        return tuple(self.axes.new(extent, NOWHERE) if extent > 1 else None for extent in shape)

    # -- the structure

    def _all_codes(self) -> list[Codes]:
        """The parts of the axes that every step has."""
        found: list[Codes] = []
        for draft in self.drafts:
            codes = {self.axes.find(axis): code for axis, code in draft.codes.items()}
            for read in draft.reads:
                for axis, code in found[read].items():
                    codes[axis] = codes.get(axis, 0) | code
            for own in draft.own:
                codes.pop(-1 if own is None else self.axes.find(own), None)
            operator = draft.operator
            axis = self.axes.find(operator.axis) if operator.axis >= 0 else -1
            match operator.kind:
                case OpKind.CONCAT:
                    codes[axis] = TILE
                case OpKind.ACCUM if operator.accum is AccumKind.CONCAT:
                    codes[axis] = codes.get(axis, 0) & ~ITER | LOOP
                case OpKind.ACCUM if operator.accum is not AccumKind.HOLD:
                    codes[axis] = codes.get(axis, 0) & ~ITER
                case OpKind.MATMUL | OpKind.SUM | OpKind.MAX | OpKind.RESCALED_SUM:
                    codes[axis] = codes.get(axis, 0) & ~DATA
            found.append(codes)
        return found

    def _cuts(self, axes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The tiles of the axes that their parts do not divide."""
        cut = {self.axes.find(axis): tile for axis, tile in self.cut.items()}
        for axis in axes:
            looped = self.loop is not None and self.axes.find(self.loop) == axis
            parts = self._blocks(axis) * (self.block.loop if looped else 1)
            if axis in cut or self.axes.extents[axis] % parts:
                yield axis, cut.get(axis, -(-self.axes.extents[axis] // parts))

    def written(self, graph: KernelGraph, folded: Collection[Key]) -> Written:
        """The kernel of a muGraph that folds these axes."""
        roots = sorted({self.axes.find(axis) for axis in range(len(self.axes.keys))}, key=self._key)
        places = {axis: place for place, axis in enumerate(roots)}
        number = [places[self.axes.find(axis)] for axis in range(len(self.axes.keys))]
        tensors: dict[Tensor, int] = {}
        steps = []
        for draft, codes in zip(self.drafts, self.codes, strict=True):
            operator, source = draft.operator, None
            if operator.axis >= 0:
                operator = operator._replace(axis=number[operator.axis])
            if operator.kind is OpKind.IN_ITER:
                source = _source(draft, number, tensors)
            type_ = tuple(codes.get(a, 0) for a in roots)
            threads = draft.threads and operator.kind is OpKind.MATMUL
            steps.append(Step(operator, draft.reads, type_, draft.stage, source, threads))
        outputs = [_groups(tile.layout, number) for _, tile in self.savers]
        blocks = {number[axis]: float(self._blocks(axis)) for axis in self.grid if axis is not None}
        axes = [Axis("", self.axes.extents[axis], self._key(axis) in folded, ()) for axis in roots]
        prepared = Prepared(graph, 0, tuple(axes), tuple(tensors), (), (), (), tuple(outputs), {})
        loop = None if self.loop is None else number[self.loop]
        saved = tuple(tile.step for _, tile in self.savers if tile.step is not None)
        return Written(
            prepared,
            KernelStructure(tuple(steps), saved, tuple(sorted(blocks)), loop),
            Sizes(
                tuple(axis.extent for axis in axes),
                {axis: np.array([parts]) for axis, parts in blocks.items()},
                np.array([float(self.block.loop)]),
                {(number[axis], part): count for (axis, part), count in self.left.items()},
                {number[axis]: np.array([float(tile)]) for axis, tile in self._cuts(roots)},
            ),
        )


def _groups(layout: Layout, number: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(() if axis is None else (number[axis],) for axis in layout)


def _source(draft: _Draft, number: Sequence[int], tensors: dict[Tensor, int]) -> Source:
    """Where an iterator reads: one of the tensors that are there before, or what a generated kernel wrote."""
    if draft.source is not None and draft.source.between:
        return Source(draft.source.root, 0)
    root = -1 if draft.source is None else draft.source.root
    return Source(tensors.setdefault(Tensor("", root, _groups(draft.layout, number)), len(tensors)))
