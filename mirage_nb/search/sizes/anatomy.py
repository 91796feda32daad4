"""What emission makes of a block: which operators cost a pass over a tile, and which stay in registers.

In: a block graph without thread graphs, and what its extents are called. Out: its `Outline`, a `Part` per value, by the
rules of `tile.rules.placement`, so that the cost model can look at thousands of `Sizes` without planning one of them
(paper section 6). The blocks are those of kernel structures (`representative`) and of muGraphs (`written`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from mirage_nb.ir import AccumKind, Attrs, BlockGraph, InIterAttrs, OpKind
from mirage_nb.ir.legality import Operators
from mirage_nb.ir.windows import WHOLE, Share
from mirage_nb.search.saturation.values import GRID, LOOP, TILE
from mirage_nb.tile.rules.attention import AttentionBlock
from mirage_nb.tile.rules.bodies import Body, find_body
from mirage_nb.tile.rules.mask import Needed, masks_of, span_needed
from mirage_nb.tile.rules.order import find_chains, groups
from mirage_nb.tile.rules.placement import Place, Placement, StepKind, place
from mirage_nb.tile.rules.products import ProductBlock
from mirage_nb.tile.rules.scales import scaled_tiles
from mirage_nb.tile.rules.sketch import MATMULS, VIEWS, Node, Sketch, sketch_of
from mirage_nb.tile.rules.squares import across

Numbers = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]
Result = TypeVar("Result")


def common(numbers: Numbers, power: int) -> Numbers:
    """The greatest common divisors of whole numbers and a power of two."""
    whole = numbers.astype(np.int64)
    found: Numbers = np.minimum(whole & -whole, power).astype(np.float64)
    return found


def largest(numbers: Iterable[Numbers]) -> Numbers:
    """The largest of several numbers, for each choice."""
    return reduce(np.maximum, numbers)


WARPS = 8
"""Warps of a block that compute."""
KNOWN = 1024
"""Kernels whose outlines are remembered: a program has few, at many sizes."""


@dataclass(slots=True)
class Sizes:
    """Sizes of one kernel, many choices at once: blocks along the split axes and the for-loop range.

    They are those of one program and one loop. `interface` holds the extents of parts that an earlier kernel left as
    dimensions, `tiles` the tile parts of axes that their other parts need not divide.
    """

    extents: tuple[int, ...]
    blocks: dict[int, Numbers]
    loop: Numbers
    interface: Mapping[tuple[int, int], int] = field(default_factory=dict)
    tiles: Mapping[int, Numbers] = field(default_factory=dict)
    _known: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, found: Callable[[], Result]) -> Result:
        """What `found` says, which is asked once for each key: all kernels that share these sizes share it, too."""
        if key not in self._known:
            self._known[key] = found()
        known: Result = self._known[key]
        return known

    def total_blocks(self) -> Numbers:
        """Blocks of the grid."""
        return self.once("blocks", lambda: reduce(np.multiply, self.blocks.values(), np.ones_like(self.loop)))


class Along(NamedTuple):
    """An extent of a structure: these parts of an axis, as in `saturation.values.Type`; whether the loop runs over
    it."""

    axis: int
    code: int
    looped: bool

    def extent(self, sizes: Sizes) -> Numbers:
        """How much of the axis a tile holds."""
        axis, code, one = self.axis, self.code, np.ones_like(sizes.loop)
        split, looped = sizes.blocks.get(axis, one), sizes.loop if self.looped else one
        held = one
        if code & GRID:
            held = held * (split if code & TILE else sizes.interface.get((axis, GRID), split))
        if code & LOOP:
            held = held * (looped if code & TILE else sizes.interface.get((axis, LOOP), looped))
        if code & TILE:
            held = held * sizes.tiles.get(axis, sizes.extents[axis] / (split * looped))
        return held

    def whole(self, sizes: Sizes) -> int:
        """How much of it a tensor in device memory holds: all of it, or what earlier kernels left of its parts."""
        if self.code & TILE:
            return sizes.extents[self.axis]
        return math.prod(sizes.interface.get((self.axis, part), 1) for part in (GRID, LOOP) if self.code & part)

    def covered(self, sizes: Sizes) -> Numbers | None:
        """How long the tiles make it, where they may hang over its end."""
        if self.axis not in sizes.tiles or not self.code & TILE:
            return None
        parts = sizes.blocks.get(self.axis, 1.0) * (sizes.loop if self.looped else 1.0)
        return parts * sizes.tiles[self.axis]


class Fixed(NamedTuple):
    """An extent of a muGraph: elements of a tile, of the tensor, and of all tiles of it."""

    number: int
    all: int = 1
    tiles: int = 1

    def extent(self, sizes: Sizes) -> Numbers:
        """Of a tile."""
        return np.full_like(sizes.loop, self.number)

    def whole(self, sizes: Sizes) -> int:
        """Of the tensor."""
        return self.all

    def covered(self, sizes: Sizes) -> Numbers | None:
        """How long the tiles make it, where they hang over its end."""
        return np.full_like(sizes.loop, self.tiles) if self.tiles > self.all else None


Extent = Along | Fixed | None
"""What an extent is called; None: one element."""


class Part(enum.Enum):
    """What becomes of a value."""

    CONSTANT = "constant"
    STREAMED = "streamed"
    """An input tile that travels through the ring of the for-loop."""
    HELD = "held"
    """An input tile that is brought once, before the loop."""
    DIRECT = "direct"
    """An input tile that its one reader takes from device memory when it needs it."""
    INLINE = "inline"
    """Computed in the registers of its reader, or a view."""
    PRIVATE = "private"
    """Of a loop body that chains matmuls, and one of them goes into it: in fragments of one warp where sizes
    allow it, else a tile."""
    FOLDED = "folded"
    """Goes from registers into an accumulator, which warps may share by depth."""
    TILE = "tile"
    """Written to shared memory for everybody."""
    ACCUMULATOR = "accumulator"


@dataclass(frozen=True, slots=True)
class Moved:
    """A tile that is cut from a tensor in device memory, or put there: which tensor, bytes of an element, extents per
    dimension, the grid dims that cut it; whether every iteration brings another one; what it is of a
    tensor of which other tiles are windows, too; of a window, whether the copy engine brings boxes of it."""

    tensor: Hashable
    width: int
    extents: tuple[Extent, ...]
    cuts: tuple[int, ...]
    streamed: bool = False
    share: Share = WHOLE
    boxed: bool | None = None


@dataclass(frozen=True, slots=True)
class Mask:
    """A value, and the operations that make it fit to be folded where its tile hangs over the end of an axis: times one
    or zero where it is not zero already, plus something very low before a maximum."""

    value: int
    operations: int


@dataclass(frozen=True, slots=True)
class Beside:
    """An operand that is read beside the matrices of a chain: the dimensions along its keys, and those along its rows;
    all others are of one element."""

    attrs: InIterAttrs
    keys: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """A block that chains two products; the dimensions along which queries, keys and values may have their rows or
    columns, one at a time; of the operands that number places, along which axis they do, and what extent that has; what
    else is read; whether blocks share out the keys of a row."""

    found: AttentionBlock
    own: tuple[tuple[int, ...], ...]
    numbered: Mapping[Attrs | None, tuple[str, Extent]]
    beside: tuple[Beside, ...] = ()
    shared: bool = False

    @cached_property
    def masks(self) -> bool:
        """Whether it leaves keys out."""
        return bool(masks_of(self.found))

    def span(self, rows: tuple[int, int], keys: tuple[int, int]) -> Needed:
        """The keys that rows need, of so many tiles of such lengths."""
        return span_needed(self.found, lambda attrs: self.numbered.get(attrs, ("", None))[0], rows, keys)


@dataclass(frozen=True, slots=True)
class Cell:
    """A value that is no view of another one: the operator that makes it and those that it reads, seen through views;
    whether it is made behind the loop, or there is none."""

    value: int
    node: Node
    reads: tuple[int, ...]
    late: bool

    @property
    def is_leaf(self) -> bool:
        """Whether it reads a tensor or a constant instead of computing."""
        return self.node.kind in (OpKind.IN_ITER, OpKind.CONST)


@dataclass(frozen=True, eq=False)
class Outline:
    """What is known of a block before its sizes; there is one of each kernel: it is found faster than what it holds.

    block: its operators one by one, of the types in which values travel; legal: as legality looks at them, with the
    bytes of an element of every value. literals: operands that are one number. heads: products that threads compute.
    extents: of every value; reads, saves: its tiles in device memory, by the values that iterators make and savers
    read. masks: by the axis over whose end tiles hang, where sizes say which they are; else under no axis, since they
    do. follows: some tensor is left by an earlier kernel. loop: the axis that it runs over, where it has a name.
    products, chain: what its loop multiplies, if it does nothing else.
    """

    block: BlockGraph
    legal: tuple[Operators, tuple[int, ...]]
    literals: frozenset[int]
    heads: frozenset[int]
    extents: tuple[tuple[Extent, ...], ...]
    reads: Mapping[int, Moved]
    saves: tuple[tuple[int, Moved], ...]
    masks: Callable[[int | None], tuple[Mask, ...]]
    follows: bool
    loop: int | None
    products: ProductBlock | None
    chain: Chain | None

    @cached_property
    def flat(self) -> Sketch:
        """Its operators, one by one."""
        return sketch_of(self.block, self.literals)

    @cached_property
    def sketch(self) -> Sketch:
        """The same, chains of elementwise operators in one."""
        return chained(self.flat, self.heads)

    @cached_property
    def placed(self) -> Placement:
        """Where values live if the loop body does not stay with warps."""
        return place(self.sketch)

    @cached_property
    def body(self) -> Body | None:
        """The loop body, if it might stay with them."""
        return find_body(self.sketch)

    @cached_property
    def scaled(self) -> frozenset[int]:
        """The tiles that are divided in every iteration, where what is written divides the rows of a product."""
        return scaled_tiles(self.block)

    @cached_property
    def across(self) -> dict[int, tuple[int, int]]:
        """The saved values that lie across what they are computed of: by which dimension, and of which tile."""
        lies = {value: across(self.block, self.placed.places, value) for value, _ in self.saves}
        return {value: found for value, found in lies.items() if found is not None}

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """The value that each value is a view of, or itself."""
        found: list[int] = []
        for node in self.flat.nodes:
            view = node.kind in VIEWS or node.kind is OpKind.REPEAT
            found += [found[node.reads[0]] if view else value for value in node.makes]
        return tuple(found)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every value but the views."""
        made = zip(self.flat.nodes, self.flat.stages, strict=True)
        every = (
            Cell(value, node, tuple(self.leaves[read] for read in node.reads), stage != 0)
            for node, stage in made
            for value in node.makes
        )
        return tuple(cell for cell in every if self.leaves[cell.value] == cell.value)

    @cached_property
    def by_value(self) -> dict[int, Cell]:
        """The same by value."""
        return {cell.value: cell for cell in self.cells}

    @cached_property
    def varying(self) -> tuple[bool, ...]:
        """The values that are computed anew in every iteration."""
        return tuple(bool(self.flat.times[self.flat.defined[value]][1]) for value in range(len(self.extents)))

    @cached_property
    def cores(self) -> frozenset[int]:
        """The products that tensor cores compute."""
        flat = self.flat
        return frozenset(n.makes[0] for n in flat.nodes if n.kind in MATMULS and flat.on_tensor_cores(n))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What becomes of every value."""
        above = [self.flat.times[self.flat.defined[value]][2] for value in range(len(self.extents))]
        # A product in the loop that reads what another one goes into.
        products = [c for c in self.cells if c.node.kind is OpKind.MATMUL and self.varying[c.value]]
        private = any(above[read] for cell in products for read in cell.reads)
        parts = [Part.INLINE for _ in self.extents]
        for cell in self.cells:
            value, node = cell.value, cell.node
            stays = private and above[value] and node.kind is not OpKind.ACCUM
            parts[value] = Part.PRIVATE if stays else _part(node, self.placed.places[value], self.varying[value])
        for done in self.placed.steps:
            if done.kind is StepKind.REDUCE and done.value is not None and parts[done.value] is Part.TILE:
                # What the threads that hold the result of a reduction compute from it at once is a part of it.
                parts[done.value] = Part.INLINE
                parts[self.sketch.nodes[done.op].makes[0]] = Part.TILE
        return tuple(parts)

    def tensor(self, attrs: InIterAttrs) -> Hashable:
        """What an iterator with these attributes reads: a tensor, or a number, which is one by itself."""
        return attrs if attrs.arg in self.literals else self.read_by(attrs).tensor

    def read_by(self, attrs: InIterAttrs) -> Moved:
        """The tile that an iterator with these attributes brings."""
        made = (values[0] for op, values in self.block.definitions() if op.attrs == attrs)
        return self.reads[next(made)]


def _part(node: Node, where: Place, varying: bool) -> Part:
    """What becomes of a value that lives there."""
    match node.kind, where:
        case _ if node.literal:
            return Part.CONSTANT
        case OpKind.IN_ITER, Place.DEVICE:
            return Part.DIRECT
        case OpKind.IN_ITER, _:
            return Part.STREAMED if varying else Part.HELD
        case OpKind.ACCUM, _:
            return Part.INLINE if node.accum is AccumKind.HOLD else Part.ACCUMULATOR
        case _, Place.NONE:
            return Part.FOLDED
        case _, Place.SHARED:
            return Part.TILE
        case _:
            return Part.INLINE


def chained(sketch: Sketch, heads: Collection[int]) -> Sketch:
    """A sketch whose chains of elementwise operators, and of the products of these values, are one operator each, as
    thread graphs have them; values keep their numbers."""
    multiplied = {sketch.defined[value] for value in heads}
    chains = find_chains(sketch.chaining, sketch.reads, sketch.times, multiplied)
    nodes = []
    for members in groups(chains, sketch.reads):
        chain = [sketch.nodes[index] for index in members]
        if len(chain) == 1 and members[0] not in multiplied:
            nodes += chain
            continue
        made = [value for node in chain for value in node.makes]
        read = dict.fromkeys(value for node in chain for value in node.reads if value not in made)
        place = {value: number for number, value in enumerate((*read, *made))}
        leaving = tuple(value for value in made if not {*members}.issuperset(sketch.uses[value]))
        inner = tuple((node.kind, tuple(place[value] for value in node.reads)) for node in chain)
        nodes.append(
            Node(OpKind.FUSED, tuple(read), leaving, chain=inner, leaving=tuple(place[value] for value in leaving))
        )
    return Sketch(tuple(nodes), sketch.values, sketch.looped, sketch.repeated)
