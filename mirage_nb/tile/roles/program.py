"""Tile programs: what every role of a block does with tiles, the level between a plan and its CUDA.

A tile program is data: axes with extents, roles (groups of warps), tiles (axes, place, layout, stages), pipelines
between roles, and statements. The planner makes it (`optimize`), `validate` finds what is wrong with it without
running it, `run` runs it on NumPy arrays, `price` says what it takes, `lines` writes it, and the printer
(`codegen`) says it with the device library and decides nothing.

How roles work together. A pipeline is a ring of stages, each with one slot of every tile that it fills. One role
acquires the next stage once it is empty, which announces its bytes, and copies into it; the stage is full once all of
these bytes have landed. The other role awaits the next full stage, multiplies from it, and releases stages once the
products that read them are done. Invariant of a valid program: a slot is read only between Await and Release, and
written only between Acquire and the landing of its copies; every element of every output is stored exactly once.

Blocks of a cluster take the same points of the walk, and tell what is theirs by their rank. A multicast fills a slot in
all of them, so all of them hand the stage back. What several points have summed of one result is combined by the last.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, TypeVar

from mirage_nb.ir import DType, OpKind
from mirage_nb.ir.ops import Attrs
from mirage_nb.tile.instructions.table import Place

LANES = 32
GROUP = 4
"""Warps that multiply together, and hand registers over together."""
REGISTER_BYTES = 4
PART = "part"
"""The counter of a role's groups of four warps, where it has several."""
RANK = "rank"
"""The counter of the blocks of a cluster."""
SAID = frozenset("e h i j p q row column wide warp lane point place band first height sums".split())
"""What the printer calls things at a point of the walk: no counter of the walk is called so."""


class Layout(enum.Enum):
    """How a tile lies in its place.

    ROWS: row-major. PANELS: columns in panels of 128 bytes, the rows of a panel behind each other in the copy
    engine's swizzle of 128 bytes. FRAGMENT: spread over the registers of the warps as their instruction has it.
    """

    ROWS = "rows"
    PANELS = "panels"
    FRAGMENT = "fragment"


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of the program, with its extent."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True)
class Role:
    """Warps that run the same statements. registers: of a thread, after it has claimed or released some; 0: as the
    compiler has it. Roles begin at multiples of four warps, in their order in the program."""

    name: str
    warps: int
    registers: int = 0

    @property
    def parts(self) -> int:
        """Groups of four warps, which count themselves as `PART`."""
        return max(1, self.warps // GROUP)


@dataclass(frozen=True, slots=True)
class Tile:
    """Elements with axes. Of a global tensor the whole of it; of a register tile what one group of four warps holds.

    axes: a name per dimension, "" for one of extent 1 that belongs to no axis. stages: slots of a pipeline.
    """

    name: str
    place: Place
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout = Layout.ROWS
    stages: int = 1

    @property
    def elements(self) -> int:
        """Of one slot."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of one slot."""
        return self.elements * self.dtype.size


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A ring of stages. nbytes: that land in one of them. arrivals: of warps, which make it empty again; of all blocks
    of the cluster, where one of them fills slots of the others."""

    name: str
    tiles: tuple[str, ...]
    stages: int
    nbytes: int
    arrivals: int


@dataclass(frozen=True, slots=True)
class Index:
    """`const` plus the sum of factor * counter."""

    terms: tuple[tuple[str, int], ...] = ()
    const: int = 0

    def __add__(self, other: Index) -> Index:
        merged = dict(self.terms)
        for counter, factor in other.terms:
            merged[counter] = merged.get(counter, 0) + factor
        return Index(tuple((c, f) for c, f in merged.items() if f), self.const + other.const)

    def __mul__(self, factor: int) -> Index:
        return Index(tuple((c, f * factor) for c, f in self.terms if factor), self.const * factor)


def counted(counter: str, factor: int = 1) -> Index:
    """factor * counter."""
    return Index(((counter, factor),))


# -- statements


@dataclass(frozen=True, slots=True)
class Walk:
    """The blocks take the points of the counters' product, block b the points b, b + blocks, and so on; of clusters
    the blocks together.

    The last counter runs fastest, but for the last two: `group` steps of the last but one belong together, and go by
    before the last one's next step, so that what runs at the same time reads few rows and columns.
    """

    counters: tuple[tuple[str, int], ...]
    group: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """That the element `at` of a tile of marks is not zero."""

    tile: str
    at: Index


@dataclass(frozen=True, slots=True)
class Loop:
    """The body for counter = 0, 1, ..., count - 1; `more` of them, which counters of the walk decide, but from none to
    `most`, if it says so. only: of these iterations those that are marked."""

    counter: str
    count: int
    body: tuple[Statement, ...]
    more: Index = Index()
    most: int | None = None
    only: Marked | None = None

    def times(self, more: int) -> int:
        """How often it runs where counters decide on so many more."""
        count = self.count + more
        return count if self.most is None else min(max(count, 0), self.most)


@dataclass(frozen=True, slots=True)
class Table:
    """From here on at this point of the walk there is another counter: what stands in `numbers` where `of`, a counter
    of the walk, is now."""

    counter: str
    of: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Acquire:
    """Wait until the next stage is empty; announce the bytes that will land there."""

    pipeline: str


@dataclass(frozen=True, slots=True)
class Copy:
    """The copy engine brings the box of a global tensor that begins at `at` into the stage that was acquired; what lies
    beyond the tensor's end arrives as zeros."""

    source: str
    target: str
    at: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Multicast(Copy):
    """As Copy, for all blocks of the cluster, to each of which all of them bring their part: as many rows of the box,
    those of the first block first."""


@dataclass(frozen=True, slots=True)
class Mark:
    """All warps of the role fill the stage that was acquired: element n of the target is zero only where one of the
    `values`, which the body computes with the counter at n, is zero everywhere in a tile of these sides, for n = 0, 1,
    ..., count - 1. What the kernel finds is bounds of the values: it may mark a tile in which there is nothing."""

    target: str
    counter: str
    count: Index
    sides: tuple[tuple[str, int], ...]
    body: tuple[Computed, ...]
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until the next stage is full."""

    pipeline: str


@dataclass(frozen=True, slots=True)
class Product:
    """result += left @ right over all of the tiles' summed extent; tiles in shared memory are those of the stage that
    was awaited last. `row` and `column`: where in the left tile's rows and the right tile's columns this group's part
    begins. rest: the shared tile in which this group keeps the second piece of its left operand, where its instruction
    reads pieces from there."""

    instruction: str
    result: str
    left: str
    right: str
    row: Index = Index()
    column: Index = Index()
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """Wait until the products of all awaited stages but the newest `behind` are done, and hand these stages back."""

    pipeline: str
    behind: int = 0


@dataclass(frozen=True, slots=True)
class Clear:
    """Zeros in a register tile."""

    result: str


@dataclass(frozen=True, slots=True)
class Number:
    """A value that is one number."""

    name: str
    value: Fraction


@dataclass(frozen=True, slots=True)
class Read:
    """A value read from a global tensor, element by element where a fragment needs it; zero beyond the tensor's end.
    early: its lines are on their way to L2 from where the point begins."""

    name: str
    source: str
    at: tuple[Index, ...]
    early: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """A value that is the place of every element along an axis: at, at + 1, and so on."""

    name: str
    axis: str
    at: Index


@dataclass(frozen=True, slots=True)
class Until:
    """A value that is this number at every element of an axis from `at` on, as far as the axis goes; zero beyond its
    end."""

    name: str
    number: Fraction
    axis: str
    at: Index


@dataclass(frozen=True, slots=True)
class Skip:
    """Of an axis that is summed, what lies from here on adds nothing at this point of the walk, nor does what lies more
    than `reach` elements in front of it, if it says so."""

    axis: str
    start: Index
    reach: Index | None = None

    def left(self, at: Callable[[Index], int]) -> range:
        """What adds something. at: what indices are at this point."""
        start = at(self.start)
        return range(0 if self.reach is None else max(start - at(self.reach), 0), start)


@dataclass(frozen=True, slots=True)
class Map:
    """An elementwise operator on values and register tiles, which broadcast along their axes."""

    name: str
    kind: OpKind
    attrs: Attrs | None
    operands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """The sum or the largest of a value's elements along an axis, as far as this group's tile reaches."""

    name: str
    kind: OpKind
    operand: str
    axis: str


@dataclass(frozen=True, slots=True)
class Set:
    """A value goes to a register tile, rounded to the tile's type. A value that was computed from what the tile held
    before is not used behind it, unless it has rows only."""

    result: str
    value: str


@dataclass(frozen=True, slots=True)
class Combine:
    """Register tiles become the sums of what they are at all values of a counter of the walk. Who is the last of these
    points to come here goes on with them; for the others the point ends."""

    results: tuple[str, ...]
    counter: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Wait until it is this group's turn: the groups of a role take turns, in their order, beginning with the first."""


@dataclass(frozen=True, slots=True)
class Yield:
    """Hand the turn over to the next group of the role."""


@dataclass(frozen=True, slots=True)
class Store:
    """A value goes to a global tensor, from `at` on; what lies beyond the tensor's end is dropped."""

    value: str
    target: str
    at: tuple[Index, ...]


Statement: TypeAlias = (
    Walk | Loop | Acquire | Copy | Await | Product | Release | Clear | Number | Read | Count | Map | Reduce | Set
    | Store | Skip | Turn | Yield | Combine | Table | Until | Mark
)  # fmt: skip
Computed: TypeAlias = Number | Read | Count | Map
"""What a mask is computed of."""
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel as a tile program. capability: of the card it is made for. blocks: that are launched. axes: extents.
    outputs: the global tiles that are stored to, o0, o1, ...; the others are operands x<number>, which are read. One
    that is read along other axes, too, is another tile, x<number>_<axes>.
    cluster: blocks that run side by side, and reach each other's shared memory."""

    capability: int
    blocks: int
    axes: tuple[Axis, ...]
    roles: tuple[Role, ...]
    tiles: tuple[Tile, ...]
    pipelines: tuple[Pipeline, ...]
    outputs: tuple[str, ...]
    code: tuple[tuple[str, tuple[Statement, ...]], ...]
    cluster: int = 1

    def tile(self, name: str) -> Tile:
        """The tile of this name. Raises KeyError."""
        for tile in self.tiles:
            if tile.name == name:
                return tile
        raise KeyError(name)

    def pipeline(self, name: str) -> Pipeline:
        """The pipeline of this name. Raises KeyError."""
        for pipeline in self.pipelines:
            if pipeline.name == name:
                return pipeline
        raise KeyError(name)

    def operand(self, name: str) -> int:
        """Which of the kernel's operands, or of its outputs, a global tile is: the number in its name."""
        return int(name[1:].partition("_")[0])

    def statements(self, role: str) -> tuple[Statement, ...]:
        """What a role does."""
        return dict(self.code)[role]

    @property
    def every(self) -> Iterator[Statement]:
        """All statements of all roles."""
        for _, statements in self.code:
            yield from flat(statements)

    def register_tiles(self, role: str) -> tuple[Tile, ...]:
        """The register tiles that a role adds to or sets."""
        names = {s.result for s in flat(self.statements(role)) if isinstance(s, Product | Clear | Set)}
        return tuple(t for t in self.tiles if t.place is Place.REGISTER and t.name in names)

    def box(self, tile: Tile, role: str) -> tuple[int, ...]:
        """What one access to a global tensor behind a role's products reaches: as long as its register tiles are."""
        sizes = {"": 1}
        for held in self.register_tiles(role):
            sizes |= dict(zip(held.axes, held.shape, strict=True))
        return tuple(sizes.get(axis, 1) for axis in tile.axes)

    def held_axes(self, tile: Tile, role: str) -> tuple[str, ...]:
        """The axes of a global tensor along which a role's register tiles lie, rows first."""
        held = [t.axes for t in self.register_tiles(role)]
        axes = dict.fromkeys(axis for dim in range(2) for axes in held for axis in axes[dim : dim + 1])
        return tuple(axis for axis in axes if axis in tile.axes)

    def stores(self, output: str) -> tuple[tuple[str, Store], ...]:
        """What stores to an output: role and statement."""
        every = ((role, s) for role, code in self.code for s in flat(code))
        return tuple((role, s) for role, s in every if isinstance(s, Store) and s.target == output)

    @property
    def marks(self) -> dict[str, Mark]:
        """What fills tiles of marks, by their names."""
        return {s.target: s for s in self.every if isinstance(s, Mark)}

    def emptied_by(self, pipeline: str) -> int:
        """The blocks that hand back each stage of a pipeline: all of the cluster, where one fills slots of all."""
        tiles = self.pipeline(pipeline).tiles
        several = (s.target for s in self.every if isinstance(s, Multicast))
        return self.cluster if any(name in tiles for name in several) else 1

    @property
    def threads(self) -> int:
        """Of a block: every role but the last has whole groups of four warps."""
        return LANES * sum(role.warps for role in self.roles)

    @property
    def extents(self) -> dict[str, int]:
        """Of all axes."""
        return {axis.name: axis.extent for axis in self.axes}

    @property
    def shared_bytes(self) -> int:
        """Of all slots of the tiles in shared memory; marks lie beside barriers."""
        return sum(t.nbytes * t.stages for t in self.tiles if t.place is Place.SHARED and t.layout is Layout.PANELS)


def flat(statements: tuple[S, ...]) -> Iterator[S]:
    """All statements of a program, those inside others behind them."""
    for statement in statements:
        yield statement
        yield from flat(getattr(statement, "body", ()))


def summed_axis(left: Tile, right: Tile) -> str:
    """The axis along which two tiles are multiplied."""
    (axis,) = set(left.axes) & set(right.axes)
    return axis
