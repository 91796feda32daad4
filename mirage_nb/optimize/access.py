"""Where the elements of a block's values lie: seen through views, in shared memory, in operands and outputs.

In: the plan of a block and what is known of its operands. Out: offsets as sums of bounded integers, conditions under
which elements exist, whether one vector access reaches several. Invariant: nothing beyond the end of a tensor is
reached without a condition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from mirage_nb.ir import BlockGraph, InIterAttrs, Op, OpKind, OutSaverAttrs, ReshapeAttrs, TensorType, TransposeAttrs
from mirage_nb.ir.graph import result_count
from mirage_nb.ir.lookups import Lookup
from mirage_nb.ir.ops import Shape
from mirage_nb.ir.windows import Window, row_major
from mirage_nb.optimize.plan import BlockPlan, Staged
from mirage_nb.optimize.reach import Reach, Reaches
from mirage_nb.tile.index import Index, Multi, linear, named, reshaped_dim, unravel
from mirage_nb.tile.resident.program import within
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.rules.placing import Part
from mirage_nb.tile.rules.shared import Buffer, SharedLayout


@dataclass(slots=True)
class Scope:
    """What all readers of one kernel share.

    literals: operands of the kernel that are constants. reaches: how far tensors go that end with a size. windows: of
    operands that are parts of larger tensors; lookups: of those that are looked up. ops, results: per value, its
    operator and which of the operator's results it is. first: per operator, its first value (-1: none). reads:
    iterators, by their values. buffers: the shared tensors, by theirs.
    """

    plan: BlockPlan
    literals: dict[int, Fraction]
    reaches: Reaches = field(default_factory=Reaches)
    windows: dict[int, Window] = field(default_factory=dict)
    lookups: dict[int, Lookup] = field(default_factory=dict)
    ops: dict[int, Op] = field(default_factory=dict)
    results: dict[int, int] = field(default_factory=dict)
    first: list[int] = field(default_factory=list)
    reads: dict[int, InIterAttrs] = field(default_factory=dict)
    buffers: dict[int, Buffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.plan.staged is not None:
            self.buffers |= {buffer.value: buffer for buffer in self.plan.staged.buffers}
        for op, values in self.block.definitions():
            self.first.append(values[0] if values else -1)
            if isinstance(op.attrs, InIterAttrs):
                self.reads[values[0]] = op.attrs
            for position, value in enumerate(values):
                self.ops[value] = op
                self.results[value] = position

    @property
    def threads(self) -> int:
        """Threads that compute."""
        return self.plan.options.compute_threads

    def values(self, op: int) -> range:
        """The values that operator `op` defines."""
        return range(self.first[op], self.first[op] + result_count(self.block.ops[op]))

    @property
    def block(self) -> BlockGraph:
        """The block graph."""
        return self.plan.block

    @property
    def staged(self) -> Staged:
        """Its steps, where its tiles pass through shared memory."""
        assert isinstance(self.plan.strategy, Staged)
        return self.plan.strategy

    def shape(self, value: int) -> tuple[int, ...]:
        """Extents of a value."""
        return self.block.types[value].shape


class Conditions(tuple[str, ...]):
    """In C++, all of which have to hold; none: there is nothing to ask."""

    def __str__(self) -> str:
        return " && ".join(self)

    def without(self, asked: Collection[str]) -> Conditions:
        """Where some of them hold."""
        return Conditions(c for c in self if c not in asked)


ALWAYS = Conditions()


@dataclass(frozen=True, slots=True)
class Leaf:
    """Elements in memory.

    offset: of the first element. element: of element v along the vector dimension. whole: one vector access
    reaches all of them. varies: they are different elements at all. copies, copy_elements: partial sums of
    the same element, and how far they are apart. inside, each_inside: whether the vector, and its element v, lie
    before the end of a tensor over which tiles hang (empty: they always do).
    """

    pointer: str
    offset: str
    element: str
    whole: bool
    varies: bool
    copies: int = 1
    copy_elements: int = 0
    inside: Conditions = ALWAYS
    each_inside: Conditions = ALWAYS

    def without(self, asked: Collection[str]) -> Leaf:
        """Where some conditions hold."""
        return replace(self, inside=self.inside.without(asked), each_inside=self.each_inside.without(asked))


def swizzled_offset(layout: SharedLayout, index: Multi) -> str:
    """Element offset under a swizzle, as a C expression.

    The pattern repeats every eight rows, so only the row inside the pattern goes through the swizzle.
    """
    size, panel = layout.dtype.size, layout.panel
    row, column = linear(index[:-1], layout.shape[:-1]), index[-1]
    if layout.fold > 1:
        place = row * layout.shape[-1] + column
        row, column = place // panel, place % panel
    outside = (column // panel) * (layout.panel_rows * panel) + (row // 8) * (8 * panel)
    inside = (row % 8) * (panel * size) + (column % panel) * size
    swizzled = f"swizzle<{layout.swizzle}>({inside.bare}) / {size}"
    return swizzled if outside == Index() else f"{outside.bare} + {swizzled}"


def view(scope: Scope, op: Op, index: Multi, dim: int | None) -> tuple[int, Multi, int | None]:
    """The operand of a view, and the index into it."""
    source = op.inputs[0]
    match op.kind:
        case OpKind.TRANSPOSE:
            assert isinstance(op.attrs, TransposeAttrs)
            perm = op.attrs.perm
            moved = {perm[d]: part for d, part in enumerate(index)}
            inner = tuple(moved[d] for d in range(len(perm)))
            return source, inner, None if dim is None else perm[dim]
        case OpKind.RESHAPE:
            assert isinstance(op.attrs, ReshapeAttrs)
            shape = scope.shape(source)
            inner = unravel(linear(index, op.attrs.shape), shape)
            same = None if dim is None else reshaped_dim(op.attrs.shape, shape, dim)
            return source, inner, len(shape) - 1 if dim is not None and same is None else same
        case _:  # a hold accumulator of a value that no iteration changes
            return source, index, dim


def behind_views(scope: Scope, value: int) -> int:
    """The value that a chain of views looks at."""
    while scope.plan.places[value] is Place.VIEW:
        value = scope.ops[value].inputs[0]
    return value


def locate(scope: Scope, value: int, index: Multi, dim: int | None, width: int = 1) -> Leaf:
    """Where `width` elements along `dim` of a shared or device leaf lie, the first at `index`."""
    if scope.plan.places[value] is not Place.SHARED:
        return operand_leaf(scope, scope.reads[value], index, named("iteration", scope.block.loop), dim, width)
    buffer = scope.buffers[value]
    layout = buffer.layout
    # Ring slots are chosen by the pointer; partial sums are added up by the reader.
    copies = buffer.copies if scope.ops[value].kind is OpKind.ACCUM else 1
    if not layout.swizzle:
        leaf = strided(f"t{value}", index, layout.strides, dim, width)
        return replace(leaf, copies=copies, copy_elements=layout.elements)
    chunk = width * layout.dtype.size <= 16 and dim == len(index) - 1 and index[dim].multiple_of(width)
    moved = tuple(p + named("v", width) if d == dim else p for d, p in enumerate(index))
    return Leaf(
        f"t{value}",
        swizzled_offset(layout, index),
        swizzled_offset(layout, moved),
        chunk,
        dim is not None,
        copies,
        layout.elements,
    )


def strided(pointer: str, index: Multi, strides: tuple[int, ...], dim: int | None, width: int, first: int = 0) -> Leaf:
    """Elements of a tensor with plain strides, of which so many elements lie in front of it."""
    offset = Index(const=first)
    for part, step in zip(index, strides, strict=True):
        offset = offset + part * step
    stride = 0 if dim is None else strides[dim]
    element = offset + named("v", width) * stride
    return Leaf(pointer, offset.bare, element.bare, stride == 1 and offset.multiple_of(width), dim is not None)


def masked(
    leaf: Leaf,
    at: Multi,
    shape: Shape,
    overhanging: Sequence[bool],
    dim: int | None,
    width: int,
    reach: Reach | None = None,
    window: Window | None = None,
) -> Leaf:
    """An access at `at` to a tensor of `shape`, kept before its end in the dimensions over which tiles hang; `reach`:
    where the dimension ends that is known at launch, if there is one; `window`: what has elements in some places
    only."""
    starts, units, ends, bounded = [0] * len(shape), [*shape], [str(extent) for extent in shape], [*overhanging]
    if reach is not None:
        bounded[reach.dim], units[reach.dim], ends[reach.dim] = not reach.whole, reach.factor, str(reach)
    for d, places in enumerate(window.inside if window is not None else ()):
        if places is not None:
            bounded[d], starts[d], units[d], ends[d] = True, places.start, places.stop, str(places.stop)
    if not any(bounded):
        return leaf
    crossing = dim is not None and bounded[dim] and (
        starts[dim] % width > 0 or units[dim] % width > 0 or not at[dim].multiple_of(width)
    )
    # Else a vector ends where the tensor does, or before: its first element says where all are.
    moved = tuple(part + named("v", width) if d == dim and crossing else part for d, part in enumerate(at))
    inside, each_inside = (
        Conditions(
            condition
            for part, start, end, over in zip(index, starts, ends, bounded, strict=True)
            if over
            for condition in ([f"{start} <= {part.bare}"] if start else []) + [f"{part.bare} < {end}"]
        )
        for index in (at, moved)
    )
    return replace(leaf, whole=leaf.whole and not crossing, inside=inside, each_inside=each_inside)


def operand_leaf(scope: Scope, attrs: InIterAttrs, index: Multi, iteration: Index, dim: int | None, width: int) -> Leaf:
    """Where `width` elements along `dim` of a tile lie in its operand, the first at `index` of the tile."""
    block, reach = scope.block, scope.reaches.operands.get(attrs.arg)
    shape = block.args[attrs.arg].shape
    at = tuple(first + part for first, part in zip(device_start(block, attrs, iteration), index, strict=True))
    window = scope.windows.get(attrs.arg)
    strides, first = (row_major(shape), 0) if window is None else (window.strides, window.offset)
    leaf = strided(f"x{attrs.arg}", at, strides, dim, width, first)
    return masked(leaf, at, shape, block.overhanging(attrs), dim, width, reach, window)


def output_leaf(
    scope: Scope,
    attrs: OutSaverAttrs,
    output: str,
    index: Multi,
    tile: tuple[int, ...],
    out_type: TensorType,
    width: int,
) -> Leaf:
    """Where `width` elements of this block's tile lie in an output, the first at `index`."""
    parts = [grid_part(scope.block, attrs.omap, dim) for dim in range(len(tile))]
    at = tuple(part * extent + inner for part, extent, inner in zip(parts, tile, index, strict=True))
    offset = linear(at, out_type.shape)
    leaf = Leaf(output, offset.bare, (offset + named("v", width)).bare, offset.multiple_of(width), True)
    over = [(part.limit + 1) * extent > whole for part, extent, whole in zip(parts, tile, out_type.shape, strict=True)]
    reach = scope.reaches.outputs.get(int(output.removeprefix("o")))
    return masked(leaf, at, out_type.shape, over, len(tile) - 1 if width > 1 else None, width, reach)


def part_leaf(
    scope: Scope, output: int, parts: Sequence[Part], type_: TensorType, form: Shape, index: Multi, width: int
) -> Leaf:
    """Where a vector of a part of what is saved goes, which begins at `index` of the tile that has it as `form`; of
    several parts, which take turns."""
    attrs, part = scope.block.savers[output].attrs, parts[0]
    assert isinstance(attrs, OutSaverAttrs)
    whole = len(parts) > 1 or part.keeps(width, type_.shape)
    at = index if whole else (*index[:-1], index[-1] + named("v", width))
    at, count = part.at(within(at, form, part.shape)), width * len(parts) if whole else 1
    leaf = output_leaf(scope, attrs, f"o{output}", at, part.whole, type_, count)
    return leaf if whole else replace(leaf, whole=False, element=leaf.offset, each_inside=leaf.inside)


def grid_part(block: BlockGraph, split: tuple[int | None, ...], dim: int) -> Index:
    """Which part of data dimension `dim` this block has, in a space split by imap or omap `split`.

    Several grid dims on one data dim: the first is the outermost.
    """
    at = Index()
    for axis, extent, data_dim in zip("xyz", block.grid, split, strict=False):
        if data_dim == dim and extent > 1:
            at = at * extent + Index(((f"block_{axis}", extent, 1),))
    return at


def device_start(block: BlockGraph, attrs: InIterAttrs, iteration: Index) -> Multi:
    """Where in operand `attrs.arg` the tile of this block begins in one for-loop iteration."""
    found = []
    for dim, extent in enumerate(block.tile_shape(attrs)):
        at = grid_part(block, attrs.imap, dim)
        if attrs.fmap == dim and block.loop > 1:
            at = at * block.loop + iteration
        found.append(at * extent)
    return tuple(found)


def trace(scope: Scope, value: int, index: Multi) -> tuple[int, Multi]:
    """The leaf behind a chain of views, and the index into it."""
    while scope.plan.places[value] is Place.VIEW:
        value, index, _ = view(scope, scope.ops[value], index, None)
    return value, index
