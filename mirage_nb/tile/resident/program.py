"""Resident programs: what the threads of a block do together that hold its tiles in their registers.

All threads run the same statements. A thread asks for its elements of every operand, folds what it has of a row or
column, combines that with the threads that have the rest, and saves what elementwise operators make of it: those are
computed where they are read. Values are those of the block graph, the registers of an operand have its number, those of
results have names. The planner makes such programs (`optimize.resident_program`), the printer says them with the device
library and decides nothing.

Invariant of a valid program: what passes between threads are partial results, through scratch that no other fold takes;
all threads that share a result reach every barrier of theirs.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from mirage_nb.ir import AccumKind, BlockGraph, TensorType, ThreadGraph
from mirage_nb.ir.lookups import Rows, Seen
from mirage_nb.tile.index import Index, Multi, broadcast_index, linear, named, unravel
from mirage_nb.tile.roles.program import LANES, flat
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.rules.register_resident import MOST_WARPS, WIDTHS
from mirage_nb.tile.rules.sharing import Extents, Vectors


@dataclass(frozen=True, slots=True)
class RegisterLayout:
    """Which elements of `tile`, the shape that all values of a block broadcast to, a thread holds; of rows there may be
    shorter ones, too.

    dims: the reduced axes of `tile`. width: elements of a vector along the last axis. slots: vectors per thread along
    the reduced axes; of rows that are crossed by columns, which threads have whole, along the last one. lanes: threads
    that share a reduction (1: a thread has all of it, and one vector of results after the other). warps: of the block.
    blocked: what a thread has of a column lies together; else one thread's vector follows the other's. together: warps
    that a multiprocessor has registers for, at least.
    """

    tile: Extents
    dims: Extents
    width: int
    slots: int
    lanes: int
    warps: int
    blocked: bool = False
    together: int = MOST_WARPS

    @property
    def threads(self) -> int:
        """Of the block."""
        return LANES * self.warps

    @property
    def shared(self) -> bool:
        """Whether threads share a reduction."""
        return self.lanes > 1

    @property
    def blocks(self) -> int:
        """That a multiprocessor has registers for, at least."""
        return self.together // self.warps if self.shared else 1

    @property
    def rows(self) -> bool:
        """Whether warps share rows of the last axis."""
        return self.shared and self.dims == (len(self.tile) - 1,)

    @property
    def crossed(self) -> bool:
        """Whether all threads share every row, and have whole columns."""
        return self.shared and len(self.dims) > 1

    @property
    def teams(self) -> bool:
        """Whether threads share what lies along the last axis: warps in a row."""
        return self.rows or self.crossed

    @property
    def groups(self) -> int:
        """Of threads that share a row."""
        return self.threads // self.lanes

    @property
    def vectors(self) -> int:
        """Of the results of columns."""
        return math.prod(self.kept) // self.width

    @property
    def kept(self) -> Extents:
        """The tile without its reduced axes."""
        return self.reduced(self.tile)

    def each(self, form: Extents) -> int:
        """Elements of a vector of a value along a reduced axis that threads share."""
        return self.vector(form) if self.teams else 1

    def ragged(self, form: Extents) -> bool:
        """Whether some threads have less of a row or column of a value than others."""
        if not self.divided(form):
            return False
        return self.spans(form)[-1] * self.lanes * self.each(form) != self.along(form, self.dims[-1])

    def reduced(self, form: Extents) -> Extents:
        """What is left of a value that lies as `form` in the tile."""
        behind = len(form) - len(self.tile)
        return tuple(1 if dim - behind in self.dims else extent for dim, extent in enumerate(form))

    def spans(self, form: Extents) -> Extents:
        """Vectors of a value that one thread holds along every reduced axis."""
        return tuple(self._span(form, dim) for dim in self.dims)

    def _span(self, form: Extents, dim: int) -> int:
        extent = self.along(form, dim)
        if extent == 1 or not self.divides(dim):
            return extent
        return self.slots if extent == self.tile[dim] else math.ceil(extent // self.each(form) / self.lanes)

    def divides(self, dim: int) -> bool:
        """Whether threads share what lies along a reduced axis."""
        return self.shared and dim == self.dims[-1]

    def divided(self, form: Extents) -> bool:
        """Whether threads that share a reduction have elements of their own of a value."""
        return self.shared and self._varies(form, self.dims[-1])

    def combines(self, operand: Extents, form: Extents) -> bool:
        """Whether threads have parts of the results of a fold."""
        return self.shared and (not self.crossed or (self.divided(operand) and not self.divided(form)))

    def along(self, form: Extents, dim: int) -> int:
        """Elements of a value along an axis of the tile: one, or all, or those of a shorter row."""
        if not self._varies(form, dim):
            return 1
        return form[-1] if self.rows and dim == self.dims[-1] else self.tile[dim]

    def _varies(self, form: Extents, dim: int) -> bool:
        place = dim - len(self.tile)
        return -place <= len(form) and form[place] > 1

    def long(self, form: Extents) -> bool:
        """Whether a value varies along a reduced axis."""
        return any(self._varies(form, dim) for dim in self.dims)

    def run(self, form: Extents) -> int:
        """Elements of a value behind one another that a thread has of a row, and loads at once."""
        short = not self.shared and len(self.tile) - 1 in self.dims and self.tile[-1] in WIDTHS
        return self.tile[-1] if short and form and form[-1] > 1 else 1

    def vector(self, form: Extents) -> int:
        """Elements of a value in one vector: 1 if it does not vary along the last axis; of a shorter row as many
        as leave no thread without one."""
        if not form or form[-1] == 1:
            return 1
        if not self.rows or form[-1] == self.tile[-1]:
            return self.width
        return max(w for w in WIDTHS if w <= self.width and (w == 1 or form[-1] // w >= self.lanes))

    def count(self, form: Extents) -> int:
        """Vectors of a value that one thread holds."""
        return math.prod(self.spans(form))

    # -- as C++ has it: `row` or `column` names the results that a thread shares, `place` the thread among those who do,
    # and `e` the vector of results that a thread is at which shares none

    @property
    def results(self) -> Multi:
        """The index of the first result of a thread."""
        if self.rows:
            return (*unravel(named("row", self.groups), self.tile[:-1]), Index())
        if self.crossed:
            return (Index(),) * len(self.tile)
        if self.shared:
            return unravel(named("column", self.vectors) * self.width, self.kept)
        return Vectors(self.kept, self.width).coordinates[1]

    def held(self, form: Extents, slot: str = "s", *, anyway: bool = False, run: int = 1) -> tuple[Multi, Multi]:
        """Of the vectors of a value that a thread holds, `run` of them at once, number `slot`: its place along the
        reduced axes, and its index into the tile; of the first one if `anyway` and there is none."""
        spans = self.spans(form)
        if not self.long(form):
            return (Index(),) * len(spans), self.results
        *first, behind = unravel(named(slot, self.count(form) // run), (*spans[:-1], spans[-1] // run))
        at, found = (*first, behind * run), [*self.results]
        for dim, place in zip(self.dims, at, strict=True):
            if self.divides(dim):
                each = self.each(form)
                vectors, mine = self.along(form, dim) // each, named("place", self.lanes)
                place = place + mine * spans[-1] if self.blocked else place * self.lanes + mine
                if anyway and self.ragged(form):
                    place = Index(((f"({place} < {vectors} ? {place} : 0)", vectors, 1),))
                place = place * each
            found[dim] = place
        return at, tuple(found)

    def slot(self, form: Extents, at: Multi) -> Index:
        """Which vector of a value a thread has at this place along the reduced axes."""
        spans = self.spans(form)
        every = named("s", math.prod(spans))
        if at == unravel(every, spans):
            return every
        return linear([place if span > 1 else Index() for place, span in zip(at, spans, strict=True)], spans)


def within(index: Multi, form: Extents, shape: Extents) -> Multi:
    """Where an element of the tile lies in a value of `shape` that the tile has as `form`."""
    at = broadcast_index(index, form)
    return at if form == shape else unravel(linear(at, form), shape)


def deepest(shape: Extents) -> int:
    """The dimension along which elements that vary lie side by side."""
    return max((dim for dim, extent in enumerate(shape) if extent > 1), default=len(shape) - 1)


# -- statements


@dataclass(frozen=True, slots=True)
class Depend:
    """Wait for the end of the kernel in front."""


@dataclass(frozen=True, slots=True)
class Each:
    """The body for each of this thread's vectors of results, where it shares none. asked: conditions in C++ without
    which it saves nothing of one, so that all loads wait for one jump."""

    body: tuple[Statement, ...]
    asked: tuple[str, ...] = ()


class Access(enum.Enum):
    """How a vector is read: by which function of the device library, or otherwise."""

    LOAD = "load"
    NOW = "load_now"
    """Where it stands, before what stands behind it."""
    ONCE = "load_once"
    """Past L1, and first to go from L2: nobody reads it again."""
    AROUND = "around"
    """From the aligned ones around it: of a window that begins between two of them, or takes every second element.
    Those that several operands have around theirs are read once."""
    EACH = "each"
    """Element by element: they do not lie as vectors do."""
    COUNTED = "counted"
    """Not at all: elements are their places."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number for each line: what a formula makes of its elements of these tensors, or that of the only one. seen: of
    each tensor, which element that is (`ir.lookups.Lookup`)."""

    tensors: Extents
    formula: ThreadGraph | None = None
    seen: tuple[tuple[Seen, ...], ...] = ()

    def places(self, line: Index) -> Iterator[tuple[int, Index]]:
        """Tensors, and which of its elements is that of a line."""
        for tensor, looks in zip(self.tensors, self.seen, strict=True):
            place = line
            for look in looks:
                pairs = zip(unravel(place, look.extents), look.steps, strict=True)
                place = sum((part * step for part, step in pairs), start=Index(const=look.first))
            yield tensor, place


@dataclass(frozen=True, slots=True)
class Table:
    """What operand `value` of a block is looked up in. Element i of it is element offset + sum(i[d] * strides[d]) of
    what is looked up, which stands as `found` says in the row that is numbered for its line by `numbers` of the
    program, and is 0 where that names none."""

    value: int
    numbers: int
    found: Rows
    offset: int
    strides: Extents

    def element(self, at: Multi) -> Index:
        """Which element of what is looked up an element of the operand is."""
        return sum((part * step for part, step in zip(at, self.strides, strict=True)), start=Index(const=self.offset))

    def line(self, element: Index) -> Index:
        """Which number says where it stands."""
        return element // self.found.columns

    def place(self, element: Index, row: Index) -> Index:
        """Where it stands, in this row of its line."""
        found = self.found
        inner, line = unravel(element % found.columns, found.inner), unravel(self.line(element), found.lines)
        pairs = zip((*line, *inner), (*found.line_steps, *found.inner_steps), strict=True)
        return sum((part * step for part, step in pairs), start=row * found.step + found.first)

    def whole(self, dim: int, width: int) -> bool:
        """Whether vectors along a dimension, of so many elements, each begin at a multiple of that and lie within a
        row."""
        found, others = self.found, (step for d, step in enumerate(self.strides) if d != dim)
        steps = (found.first, found.step, *found.line_steps, *found.inner_steps[:-1])
        aligned = all(n % width == 0 for n in (self.offset, found.run, *others, *steps))
        return width > 1 and self.strides[dim] == 1 and aligned


@dataclass(frozen=True, slots=True)
class Find:
    """A thread asks in which rows of its table an operand stands, `width` elements at once, or by a number for each of
    them: below `rows`, by `numbers` of the program; where there is no such row nothing is loaded, and zeros are
    found."""

    value: int
    width: int
    each: bool
    numbers: int
    rows: int


@dataclass(frozen=True, slots=True)
class Load:
    """A thread asks for all that it holds of an operand, `width` elements at once; of one that is looked up, in rows
    that it has found."""

    value: int
    width: int
    access: Access


@dataclass(frozen=True, slots=True)
class Task:
    """What a reduction of the block, or a saver, comes to."""

    op: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Team:
    """So many warps in a row share each result; where they are more than one, through floats of scratch, those of the
    first team from `scratch` on, behind a named barrier of their own, the first team's `barrier` (0: of the block)."""

    warps: int
    scratch: int = 0
    barrier: int = 0


@dataclass(frozen=True, slots=True)
class Columns:
    """Threads share the columns of every so many `vectors`: lanes of a warp first, then `sets` of what these have, if
    they are more than one, through floats from `scratch` on."""

    vectors: int
    sets: int
    scratch: int = 0


Combine: TypeAlias = Team | Columns | None
"""How threads make their parts of a result one; not at all where each has all of it."""


@dataclass(frozen=True, slots=True)
class Fold:
    """What a thread has of a value becomes registers that lie as `form` in the tile; then threads combine theirs. Of a
    rescaled sum the second operand is the shift, whose largest is in the registers `top`."""

    result: str
    form: Extents
    kind: AccumKind
    operands: Extents
    combine: Combine
    top: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """Registers of a row or column become the sums up to them, before them (exclusive), or from them on (backward)."""

    result: str
    form: Extents
    backward: bool
    exclusive: bool
    combine: Combine


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing that was computed of these operands stays in registers."""

    values: Extents


@dataclass(frozen=True, slots=True)
class Save:
    """Parts of what is saved (`tile.rules.placing`) go to an output; the elements of several take turns there. first:
    by the first of the threads that share it."""

    output: int
    parts: Extents
    first: bool


Statement: TypeAlias = Depend | Each | Find | Load | Task | Fold | Running | Forget | Save


@dataclass(frozen=True, slots=True)
class ResidentProgram:
    """A block as such statements.

    block: whose values they compute, which lie in `places`; forms: how the tile has the elements of each. outputs: what
    is saved. scratch: floats of shared memory. late: operands that nothing reads before it has waited for the kernel in
    front; behind: that holds of stores, too. tables: what operands are looked up in, by which numbers.
    """

    block: BlockGraph
    places: tuple[Place, ...]
    forms: tuple[Extents, ...]
    outputs: tuple[TensorType, ...]
    layout: RegisterLayout
    scratch: int
    code: tuple[Statement, ...]
    late: frozenset[int] = frozenset()
    behind: bool = False
    tables: tuple[Table, ...] = ()
    numbers: tuple[Numbers, ...] = ()

    def table(self, value: int) -> Table | None:
        """What an operand is looked up in, if it is."""
        return next((table for table in self.tables if table.value == value), None)

    def __repr__(self) -> str:
        statements = len([*flat(self.code)])
        return f"<ResidentProgram of {statements} statements, {self.layout.warps} warps, for {self.block!r}>"


def result(value: int) -> str:
    """The registers of a reduction."""
    return f"r{value}"
