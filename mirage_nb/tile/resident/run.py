"""Runs resident programs on tiles; what goes wrong on the way is told.

In: a resident program, an algebra (`interp`), the tiles of its operands and what they are looked up in, or none to look
only at who reads and writes what and when. Out: what is saved of every output. Registers are arrays [thread, vectors
along each reduced axis, element of a vector], so that elementwise operators take elements of the same thread; what
combines registers of several threads takes those that the function of the device library takes. A thread that shares no
results has one vector of them after the other: each stands here for a thread.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import AccumKind, DimAttrs, InIterAttrs, OpKind, RunningAttrs, ThreadGraph
from mirage_nb.ir.lookups import Seen
from mirage_nb.tile.machine import NOTHING, Machine
from mirage_nb.tile.resident import program as resident
from mirage_nb.tile.resident.program import RegisterLayout, ResidentProgram, result
from mirage_nb.tile.roles.program import LANES
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.rules.placing import parts
from mirage_nb.tile.rules.register_resident import PLACING
from mirage_nb.tile.rules.sharing import Extents
from mirage_nb.tile.rules.sketch import FOLDS

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Owned:
    """Which elements of a value the threads hold: `at`, row-major in its form, and whether there is such a vector;
    first: of every thread, whether it is the first of those that share a result."""

    at: Indices
    inside: Mask
    first: Mask


@dataclass(frozen=True, slots=True)
class Sources:
    """What operands are looked up in. tables: by their values, as one dimension, or the first elements of it, which
    stand for all that are as many places apart; sizes: all their elements. tensors: those of which numbers are made;
    made: what a formula makes of elements. places: of the tile of an operand, which elements of that it has, along each
    dimension, counted from 1 on (0: none, behind an end)."""

    tables: Mapping[int, Any]
    sizes: Mapping[int, int]
    tensors: Sequence[NDArray[Any]]
    made: Callable[[ThreadGraph, Sequence[NDArray[Any]]], NDArray[Any]]
    places: Callable[[int], tuple[Indices, ...]]


def seen_at(line: Indices, looks: Sequence[Seen]) -> Indices:
    """Which elements of a tensor are those of lines."""
    for look in looks:
        parts = np.unravel_index(line, look.extents)
        line = np.asarray(look.first + sum(part * step for part, step in zip(parts, look.steps, strict=True)))
    return line


@lru_cache(maxsize=32)
def owned(layout: RegisterLayout, form: Extents) -> Owned:
    """What threads hold of a value that lies as `form` in the tile. Raises ValueError where one of them is at no
    result, or a vector ends behind the tile."""
    axes = len(layout.dims)
    thread = np.arange(layout.threads if layout.shared else layout.vectors)
    place, vector = np.zeros_like(thread), thread
    if layout.rows:
        row, place = np.divmod(thread, layout.lanes)
        at = [*np.unravel_index(row, (1, *layout.tile[:-1]))[1:], place * 0]
    elif layout.crossed:
        place, at = thread, [thread * 0 for _ in layout.tile]
    else:
        if layout.shared:
            place, vector = np.divmod(thread, layout.vectors)
        at = [*np.unravel_index(vector * layout.width, layout.kept)]
    at = [part.reshape(-1, *(1,) * axes, 1) for part in at]
    mine, inside = place.reshape(-1, *(1,) * axes, 1), np.ones((1,) * (axes + 2), bool)
    spans = layout.spans(form)
    for axis, (dim, span) in enumerate(zip(layout.dims, spans, strict=True)):
        slot = np.arange(span).reshape(-1, *(1,) * (axes - axis))
        if layout.divides(dim):
            slot = mine * span + slot if layout.blocked else slot * layout.lanes + mine
            each = layout.each(form)
            inside = slot < layout.along(form, dim) // each if layout.divided(form) else inside
            slot = np.where(inside, slot, 0) * each
        at[dim] = slot
    at[-1] = at[-1] + np.arange(layout.vector(form))
    tail = [part if extent > 1 else 0 * part for part, extent in zip(at[len(at) - len(form) :], form, strict=True)]
    shape = (len(thread), *spans, layout.vector(form))
    flat = np.ravel_multi_index(np.broadcast_arrays(*tail), form) if form else np.zeros((1,) * (axes + 2), np.int64)
    return Owned(np.broadcast_to(flat, shape), np.broadcast_to(inside, shape), place == 0)


@dataclass
class Run(Machine[ResidentProgram]):
    """One run. registers: of operands and results; waited: for the kernel in front; walking: each vector of results;
    ran: what running sums are; saved: of every output its parts; step, lives: at which statement registers were filled,
    and last read; sources: what operands are looked up in; rows: of these, where they stand."""

    registers: dict[int | str, Any] = field(default_factory=dict)
    waited: bool = False
    walking: bool = False
    ran: set[str] = field(default_factory=set)
    saved: dict[int, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    step: int = 0
    lives: dict[int | str, tuple[int, int]] = field(default_factory=dict)
    sources: Sources | None = None
    rows: dict[int, Indices | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.layout, self.forms = self.program.layout, self.program.forms
        self.memo: dict[int, Any] = {}

    def run(self) -> tuple[Any, ...]:
        """What is saved of every output. Raises GraphError, where there are numbers, for the first thing that is
        wrong."""
        self._body(self.program.code)
        self.now, found = None, []
        for number, op in enumerate(self.block.savers):
            wanted, saved = parts(self.block, op.inputs[0]), self.saved[number]
            if saved.keys() != {*range(len(wanted))}:
                self.wrong(f"parts of output {number} are not saved")
                continue
            found.append(self._joined(op.inputs[0], [saved[part] for part in reversed(range(len(wanted)))]))
        return tuple(found)

    def _joined(self, value: int, left: list[Any]) -> Any:
        """A saved value of its parts, those behind them in front."""
        op = self.ops[value]
        if op.kind not in PLACING:
            return left.pop()
        return self.apply(op.kind, [self._joined(v, left) for v in op.inputs], op.attrs)

    # -- statements

    def _body(self, statements: tuple[resident.Statement, ...]) -> None:
        for statement in statements:
            self.now, self.step = statement, self.step + 1
            self.memo.clear()
            match statement:
                case resident.Depend():
                    self.waited = True
                case resident.Each(body):
                    if self.walking or self.layout.shared:
                        self.wrong("a thread is at all its results already")
                    self.walking = True
                    self._body(body)
                    self.walking = False
                case _ if not (self.walking or self.layout.shared):
                    self.wrong("a thread has several vectors of results")
                case resident.Task(body=body):
                    self._body(body)
                case resident.Find():
                    self._find(statement)
                case resident.Load():
                    self._load(statement)
                case resident.Fold():
                    self._fold(statement)
                case resident.Running():
                    self._run(statement)
                case resident.Forget(values):
                    if missing := {*values} - self.registers.keys():
                        self.wrong(f"{sorted(missing)} are in no registers")
                case resident.Save():
                    self._save(statement)

    def _fill(self, name: int | str, held: Any) -> None:
        if name in self.registers:
            self.wrong(f"{name} is there already")
        self.registers[name], self.lives[name] = held, (self.step, self.step)

    def _held(self, name: int | str, called: str) -> Any:
        if name not in self.registers:
            self.wrong(f"{called} is read before it is there")
            return None
        self.lives[name] = self.lives[name][0], self.step
        return self.registers[name]

    def _ask(self, value: int) -> None:
        """Look at when something is read for an operand."""
        attrs = self.ops[value].attrs
        assert isinstance(attrs, InIterAttrs)
        if attrs.arg in self.program.late and not self.waited:
            self.wrong(f"%{value} is read before the kernel in front has ended")

    def _load(self, load: resident.Load) -> None:
        self._ask(load.value)
        table = self.program.table(load.value)
        self._fill(load.value, self._tile(load.value) if table is None else self._looked_up(load, table))

    def _find(self, find: resident.Find) -> None:
        self._ask(find.value)
        table = self.program.table(find.value)
        if table is None or find.value in self.rows:
            self.wrong(f"%{find.value} is found already, or is in no table")
            return
        self.rows[find.value] = None
        if self.sources is None:
            return
        element = self._elements(table)
        if not find.each:
            element = np.repeat(element[..., :: find.width], find.width, -1)[..., : element.shape[-1]]
        numbers, line = self.program.numbers[find.numbers], np.clip(element, 0, None) // table.found.columns
        pairs = zip(numbers.tensors, numbers.seen, strict=True)
        own = [self.sources.tensors[tensor][seen_at(line, looks)] for tensor, looks in pairs]
        found = own[0] if numbers.formula is None else self.sources.made(numbers.formula, own)
        named = (element >= 0) & (found >= 0) & (found < find.rows) & (found == np.floor(found))
        self.rows[find.value] = np.where(named, found, -1).astype(np.int64)

    def _elements(self, table: resident.Table) -> Indices:
        """Which elements of what is looked up the threads hold of an operand; -1: none."""
        assert self.sources is not None
        places, at = self.sources.places(table.value), owned(self.layout, self.forms[table.value]).at
        mine = [place.reshape(*place.shape[: self.batch], -1)[..., at] for place in places]
        steps = ((place - 1) * step for place, step in zip(mine, table.strides, strict=True))
        found: Indices = np.where(reduce(np.minimum, mine) > 0, sum(steps, start=np.array(table.offset)), -1)
        return found

    def _looked_up(self, load: resident.Load, table: resident.Table) -> Any:
        """What threads hold of an operand that stands in the rows of a table that they have found."""
        if load.value not in self.rows:
            self.wrong(f"%{load.value} is read before it is found")
        if self.algebra is NOTHING or self.sources is None:
            return None
        row, element = self.rows[load.value], self._elements(table)
        assert row is not None
        if load.access is not resident.Access.EACH:  # a vector lies as its first element says
            width = min(load.width, element.shape[-1])
            first, more = np.repeat(element[..., ::width], width, -1), np.arange(element.shape[-1]) % width
            element = np.where(first >= 0, first + more, -1)
        inside, at = (row >= 0) & (element >= 0), np.clip(element, 0, None)
        line, column = (
            np.unravel_index(n, extents) if extents else ()
            for n, extents in zip(
                np.divmod(at, table.found.columns), (table.found.lines, table.found.inner), strict=True
            )
        )
        steps = (*table.found.line_steps, *table.found.inner_steps)
        place = row * table.found.step + table.found.first
        place = place + sum(part * step for part, step in zip((*line, *column), steps, strict=True))
        if (place[inside] >= self.sources.sizes[load.value]).any():
            self.wrong(f"%{load.value} is read beyond its table")

        def taken(array: NDArray[Any]) -> NDArray[Any]:
            found: NDArray[Any] = array[np.where(inside, place, 0) % array.size]
            return np.where(inside, found, np.zeros_like(found))

        return self.algebra.view(self.sources.tables[load.value], taken)

    def _tile(self, value: int) -> Any:
        """What threads hold of an operand."""
        if self.algebra is NOTHING:
            return None
        return self._picked(self.tiles(value, 0), owned(self.layout, self.forms[value]).at)

    def _picked(self, value: Any, at: Indices, shape: Extents | None = None) -> Any:
        """Elements of what a block has, row-major; of that as `shape`, if it is given."""

        def take(array: NDArray[Any]) -> NDArray[Any]:
            lead = array.shape[: self.batch]
            whole = array if shape is None else np.broadcast_to(array, (*lead, *shape))
            return whole.reshape(*lead, -1)[..., at]

        return self.algebra.view(value, take)

    def value(self, value: int) -> Any:
        """A value in the registers of the threads that read it."""
        if value not in self.memo:
            self.memo[value] = self._value(value)
        return self.memo[value]

    def _value(self, value: int) -> Any:
        op = self.ops[value]
        if op.kind in FOLDS:
            if op.kind is OpKind.RUNNING_SUM and result(value) not in self.ran:
                self.wrong(f"%{value} is read before its sums run")
            return self._held(result(value), f"%{value}")
        if op.kind is OpKind.IN_ITER:
            literal = self.program.places[value] is Place.LITERAL
            return self._tile(value) if literal else self._held(value, f"%{value}")
        operands = [self.value(v) for v in op.inputs]
        return operands[0] if op.kind is OpKind.RESHAPE else self.made(value, operands)

    # -- reductions

    def _fold(self, fold: resident.Fold) -> None:
        held, *shift = [self.value(v) for v in fold.operands]
        form = np.broadcast_shapes(*(self.forms[v] for v in fold.operands))
        if fold.kind is AccumKind.RESCALE:
            fall = self.apply(OpKind.SUB, [shift[0], self._held(fold.top, fold.top)])
            held = self.apply(OpKind.MUL, [held, self.apply(OpKind.EXP, [fall])])
        kind, left = (OpKind.MAX if fold.kind is AccumKind.MAX else OpKind.SUM), fold.form
        if self.layout.long(form) or kind is OpKind.SUM:  # the largest of copies of an element is itself
            held = self._folded(held, form, left, kind, fold.combine)
        self._fill(fold.result, held)

    def _folded(self, held: Any, form: Extents, left: Extents, kind: OpKind, combine: resident.Combine) -> Any:
        """What is left of registers, with every thread."""
        if self.algebra is NOTHING:
            return None
        spans, width = (self.layout.spans(form), self.layout.spans(left)), self.layout.vector(left)
        gone = [axis + 2 for axis, (whole, part) in enumerate(zip(*spans, strict=True)) if whole > part]
        if combine is None and not gone and width == self.layout.vector(form):
            return held
        taken = self._taken(form, combine, [1, *gone, *(() if width > 1 else (-1,))])
        together = self._picked(held, taken, owned(self.layout, form).at.shape)
        made = self.apply(kind, [together], DimAttrs(taken.ndim - 1))
        cells = np.arange(taken[..., 0].size).reshape(taken.shape[:-1])
        members = self._members(combine)
        every = np.empty((members.size, *cells.shape[1:]), np.int64)
        every[members] = cells[:, None]
        return self._picked(made, every.reshape(members.size, *spans[1], -1))

    def _run(self, run: resident.Running) -> None:
        held = self._held(run.result, run.result)
        if run.result in self.ran:
            self.wrong(f"{run.result} are running sums already")
        self.ran.add(run.result)
        if self.algebra is NOTHING:
            return
        rows = isinstance(run.combine, resident.Team)
        taken = self._taken(run.form, run.combine, [2, 1, -1] if rows else [1, 2])
        attrs = RunningAttrs(taken.ndim - 1, run.backward, run.exclusive)
        at = np.zeros(owned(self.layout, run.form).at.shape, np.int64)
        made = self.apply(OpKind.RUNNING_SUM, [self._picked(held, taken, at.shape)], attrs)
        at.reshape(-1)[taken] = np.arange(taken.size).reshape(taken.shape)
        self.registers[run.result] = self._picked(made, at)

    def _members(self, combine: resident.Combine) -> Indices:
        """The threads that combine what they have, in order: [group, member]."""
        found = np.arange(self.layout.threads if self.layout.shared else self.layout.vectors)
        match combine:
            case resident.Team(warps):
                return found.reshape(-1, LANES * warps)
            case resident.Columns(vectors, sets):
                each = vectors if LANES % vectors else LANES
                if sets == 1:
                    return found.reshape(-1, each // vectors, vectors).swapaxes(1, 2).reshape(-1, each // vectors)
                return found.reshape(sets * each // vectors, vectors).T
        return found[:, None]

    def _taken(self, form: Extents, combine: resident.Combine, along: list[int]) -> Indices:
        """Which registers are taken together, in order: those of the axes `along` of [group, member, vectors along each
        reduced axis, element of a vector]. Raises ValueError where not all groups have as many."""
        members, mine = self._members(combine), owned(self.layout, form)
        at = np.arange(mine.at.size).reshape(mine.at.shape)[members]
        last = [axis % at.ndim for axis in along]
        order = [*(axis for axis in range(at.ndim) if axis not in last), *last]
        turned, inside = at.transpose(order), mine.inside[members].transpose(order)
        shape = turned.shape[: at.ndim - len(last)]
        turned, inside = turned.reshape(*shape, -1), inside.reshape(*shape, -1)
        (count,) = {*inside.sum(axis=-1).reshape(-1).tolist()}
        return turned[inside].reshape(*shape, count)

    # -- results

    def _save(self, save: resident.Save) -> None:
        found = parts(self.block, self.block.savers[save.output].inputs[0])
        if self.program.behind and not self.waited:
            self.wrong(f"output {save.output} is saved before the kernel in front has ended")
        for number in save.parts:
            source, shape = found[number].source, found[number].shape
            held, mine = self.value(source), owned(self.layout, self.forms[source])
            who = mine.inside & mine.first.reshape(-1, *(1,) * (mine.at.ndim - 1)) if save.first else mine.inside
            taken, at = np.full(math.prod(shape), -1), mine.at[who]
            taken[at] = np.flatnonzero(who)
            if number in self.saved[save.output] or at.size != taken.size or (taken < 0).any():
                self.wrong(f"elements of %{source} are saved twice, or never")
                continue
            self.saved[save.output][number] = self._picked(held, taken.reshape(shape), mine.at.shape)
