"""Staged programs: what the threads of a block do together with tiles that pass through shared memory.

All threads that compute run the same statements, `code`; each is over all elements of a tile, which threads share as
it says, or over fragments, of which every warp has its own. Tiles come from device memory by copies of all threads,
which land group by group, or, where there is a `loader`, by bulk copies of a warp of its own, which goes ahead as far
as the stages of the ring let it. Values are those of the block graph; registers have names. The planner makes such
programs (`optimize.staged_program`), the printer says them with the device library and decides nothing.

Invariant of a valid program: a shared tile is read behind a barrier that stands behind what wrote it, and overwritten,
by whatever takes its bytes, behind one that stands behind what read it; a stage is read between the wait for its copies
and its release.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from mirage_nb.ir import AccumKind, BlockGraph, DType, OpKind, TensorType
from mirage_nb.tile.rules.bodies import Region
from mirage_nb.tile.rules.boxes import Bulk
from mirage_nb.tile.rules.placement import Place, Step
from mirage_nb.tile.rules.shared import Buffer
from mirage_nb.tile.rules.sharing import Cells, Extents, Share, Side, Tiling, Twins, Vectors

KINDS = {OpKind.SUM: AccumKind.SUM, OpKind.MAX: AccumKind.MAX, OpKind.RESCALED_SUM: AccumKind.RESCALE}
"""What reductions fold by."""

# -- statements: when


@dataclass(frozen=True, slots=True)
class Loop:
    """The body for counter = first, ..., count - 1."""

    counter: str
    count: int
    body: tuple[Statement, ...]
    first: int = 0


@dataclass(frozen=True, slots=True)
class Refill:
    """The body for the iteration `ahead` of this one of `count`, if there is one."""

    ahead: int
    count: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """What a step of the block comes to; `tiling`: how warps share it, if they multiply."""

    step: Step
    tiling: Tiling | None
    body: tuple[Statement, ...]


class Signal(enum.Enum):
    """What has no more to say than when it is: the value, in words."""

    DEPEND = "wait for the end of the kernel in front"
    COMMIT = "the copies since the last one are a group"
    BARRIER = "all threads that compute wait for each other"
    READY = "wait until the loader has set up the barriers of the ring"
    FENCE = "ordinary loads and stores come before what the copy engine and warpgroups do from here on"
    ACQUIRE = "the loader waits until the stage of this iteration is empty"
    AWAIT = "wait until the stage of this iteration is full"
    RELEASE = "this warp has finished with the stage"
    PLACE = "this warp finds its place in the region"
    CURRENT = "from here on the ring's tiles are those of this iteration"


@dataclass(frozen=True, slots=True)
class Landed:
    """Wait until all groups of this thread's copies but the newest ones have landed."""

    newer: int


@dataclass(frozen=True, slots=True)
class Announce:
    """The loader says how many bytes land in the stage."""

    nbytes: int


# -- statements: copies from device memory


@dataclass(frozen=True, slots=True)
class Fill:
    """All threads copy a tile, asynchronously: into its stage, if it is streamed."""

    value: int
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class Carry:
    """The same through registers: vectors that may begin anywhere, `batch` of them on their way at once."""

    value: int
    vectors: Vectors
    batch: int


@dataclass(frozen=True, slots=True)
class Bring:
    """The copy engine brings a tile into the stage. once: nobody reads these elements again."""

    value: int
    bulk: Bulk
    once: bool


# -- statements: tiles


@dataclass(frozen=True, slots=True)
class Compute:
    """A value, element by element, goes to its tile."""

    value: int
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class Move:
    """A value goes to the tile of an accumulator: `along` a dimension to this iteration's part, if one is given."""

    value: int
    source: int
    along: int | None
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class Save:
    """A value goes to an output: `along` a dimension to this iteration's part, if one is given."""

    output: int
    saver: int
    source: int
    along: int | None
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class Start:
    """Registers of an accumulator at its neutral element."""

    result: str
    kind: AccumKind
    count: int


@dataclass(frozen=True, slots=True)
class Zeros:
    """Fragments of zeros."""

    result: str
    form: Extents


@dataclass(frozen=True, slots=True)
class Add:
    """A value, element by element, is folded into registers; of a rescaled sum beside its shift."""

    result: str
    kind: AccumKind
    operands: Extents
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class Leave:
    """Registers go to the tile of their value."""

    value: int
    source: str
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class Partial:
    """Each thread folds its elements of a reduction into registers."""

    result: str
    kind: AccumKind
    operands: Extents
    share: Share


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction's results, `made`, or what one elementwise operator makes of them, go to the tile of `value`."""

    value: int
    made: int
    kind: AccumKind
    operands: Extents
    share: Share


@dataclass(frozen=True, slots=True)
class Total:
    """The parts of all threads become one, and go to a tile."""

    value: int
    source: str
    kind: AccumKind
    share: Share


@dataclass(frozen=True, slots=True)
class Dot:
    """Products of tiles, summed, by threads with whole elements: into registers, or (result "") the tile of `value`."""

    result: str
    value: int
    pairs: tuple[tuple[int, int], ...]
    vectors: Vectors


# -- statements: fragments


@dataclass(frozen=True, slots=True)
class Warps:
    """The body by the first warps, each with its place in a split, if there is one; all of them, if `count` is 0."""

    count: int
    tiling: Tiling | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Multiply:
    """result += rows @ columns, over this warp's share. held: registers that have the rows already, if any do."""

    result: str
    tiling: Tiling
    rows: Side
    columns: Side
    number: int = 0
    held: str = ""


@dataclass(frozen=True, slots=True)
class MultiplyPacked:
    """result += packed rows @ columns, as far as the warp's rows reach: so many 16-deep tiles of them."""

    result: str
    packed: str
    tiling: Tiling
    columns: Side
    depth: int


@dataclass(frozen=True, slots=True)
class MultiplyPanels:
    """The same by groups of four warps: columns where they lie in panels, in the tile of `leaf`."""

    result: str
    packed: str
    columns: Side
    leaf: int
    depth: int


@dataclass(frozen=True, slots=True)
class Load:
    """Rows of a product that lie in shared memory become registers, `depth` 16-deep tiles of them; kept: over all
    iterations."""

    result: str
    tiling: Tiling
    rows: Side
    depth: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Pack:
    """Fragments of a value become the rows of a product."""

    result: str
    source: str
    dtype: DType
    cells: Cells


@dataclass(frozen=True, slots=True)
class Unload:
    """Fragments go to the tile of a value, each share of the depth to a copy of its own."""

    value: int
    source: str
    tiling: Tiling
    twins: Twins = Twins.NEITHER


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Fragments of an elementwise value; rounded to its type, where a product reads it so."""

    value: int
    cells: Cells
    rounded: bool


class How(enum.Enum):
    """What becomes of registers, cell by cell."""

    LOWEST = "lowest"
    """Minus infinity in new ones."""
    SUM = "sum"
    """Others are added to them."""
    LARGEST = "largest"
    """Others take their place where they are larger."""
    FADE = "fade"
    """They shrink by a factor for each row."""
    ALONG = "along"
    """A row's result takes in the columns of others that this thread has."""
    ACROSS = "across"
    """The parts that the four lanes of a row have become one."""
    SETTLE = "settle"
    """Sums that were kept in accumulators of tensor cores go to their rows."""
    SPOIL = "spoil"
    """No number in rows whose maximum is minus infinity."""


@dataclass(frozen=True, slots=True)
class Change:
    """Registers of fragments change, those in `cells`, by the registers `by`."""

    result: str
    how: How
    cells: Cells
    by: str = ""


@dataclass(frozen=True, slots=True)
class SumPacked:
    """Columns are added up by the tensor cores, as products see them, and may be `kept` in their accumulator."""

    result: str
    packed: str
    dtype: DType
    cells: Cells
    kept: bool


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest of a row's columns, or a row's result, where a source has no columns; where it is a running maximum
    also the shift and how far it rose."""

    value: int
    source: str
    running: bool
    cells: Cells


@dataclass(frozen=True, slots=True)
class Publish:
    """Every warp that works shows its maxima of rows."""

    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Agree:
    """Every warp takes the largest of them; of a running maximum `last` is how far its own lies below."""

    result: str
    last: str


@dataclass(frozen=True, slots=True)
class LeaveRows:
    """Results of rows go to the tile of a value, of the first warp that has them, or each warp's to a copy of its own;
    `summed` over the four lanes first."""

    value: int
    source: str
    summed: bool


@dataclass(frozen=True, slots=True)
class SaveRows:
    """What elementwise operators make of fragments goes to an output. bound: the registers of accumulated values."""

    output: int
    saver: int
    bound: tuple[tuple[int, str], ...]


Statement: TypeAlias = (
    Loop | Refill | Task | Warps | Signal | Landed | Announce | Fill | Carry | Bring | Compute | Move | Save | Start
    | Zeros | Add | Leave | Partial | Reduce | Total | Dot | Multiply | MultiplyPacked | MultiplyPanels | Load | Pack
    | Unload | Evaluate | Change | SumPacked | Largest | Publish | Agree | LeaveRows | SaveRows
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StagedProgram:
    """A block as such statements.

    block: whose values they compute, which lie in `places`, with elements of type `stored` in shared memory. outputs:
    what is saved. warps: that compute. buffers: of shared memory; `scratch`: names and lengths of arrays of f32 beside
    them. streamed: the values of the ring, which has so many `stages`. region: how warps share a body that is theirs.
    late: operands that nothing reads before it has waited for the kernel in front; behind: that holds of stores, too.
    """

    block: BlockGraph
    places: tuple[Place, ...]
    stored: tuple[DType, ...]
    outputs: tuple[TensorType, ...]
    warps: int
    buffers: tuple[Buffer, ...]
    scratch: tuple[tuple[str, int], ...]
    streamed: tuple[int, ...]
    stages: int
    region: Region | None
    loader: tuple[Statement, ...]
    code: tuple[Statement, ...]
    late: frozenset[int] = frozenset()
    behind: bool = False

    def __repr__(self) -> str:
        statements = len(self.loader) + len(self.code)
        return f"<StagedProgram of {statements} statements, {self.warps} warps, for {self.block!r}>"

    @property
    def threads(self) -> int:
        """Threads that compute."""
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """As far as tensors reach in shared memory."""
        return max((b.offset + b.nbytes for b in self.buffers), default=0)

    def buffer(self, value: int) -> Buffer:
        """The shared tensor of `value`."""
        return next(b for b in self.buffers if b.value == value)


def fragment(value: int) -> str:
    """The registers of a value's fragments; f16 is a type."""
    name = f"f{value}"
    return f"{name}_" if name == DType.F16.value else name
