"""Runs a tile program on arrays: blocks one after the other, the roles of a block side by side.

In: a tile program, a value for every operand, an algebra: floats, or pairs of residues (`interp`). Out: a value for
every output. What is computed is what the printed kernel computes, up to rounding: boxes end in zeros, slots are
overwritten as soon as their stage is empty, a stage is full when the announced bytes have landed and empty when
enough warps have arrived. Those that fill run ahead of those that read, as far as the pipelines let them.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import GraphError
from mirage_nb.ir import AccumKind, ArangeAttrs, ConstAttrs, DimAttrs, OpKind
from mirage_nb.ir.ops import Attrs
from mirage_nb.tile.instructions.table import Place
from mirage_nb.tile.roles.program import (
    GROUP,
    PART,
    RANK,
    Acquire,
    Await,
    Clear,
    Combine,
    Copy,
    Count,
    Index,
    Loop,
    Map,
    Mark,
    Marked,
    Multicast,
    Number,
    Pipeline,
    Product,
    Program,
    Read,
    Reduce,
    Release,
    Role,
    Set,
    Skip,
    Statement,
    Store,
    Table,
    Tile,
    Turn,
    Until,
    Walk,
    Yield,
    flat,
    summed_axis,
)

T = TypeVar("T")
Array = NDArray[Any]
Counters = dict[str, int]
Stored = dict[str, dict[tuple[int, ...], T]]
"""For every output the tiles that were stored, by where they begin."""


class Algebra(Protocol[T]):
    """A number system, as `interp.run` has it."""

    def apply(self, kind: OpKind, operands: Sequence[T], attrs: Attrs | None, batch: int) -> T:
        """The result of one operator."""

    def view(self, value: T, move: Callable[[Array], Array]) -> T:
        """The value with its elements moved."""

    def fold(self, kind: AccumKind, state: tuple[T, ...], operands: Sequence[T], batch: int) -> tuple[T, ...]:
        """An accumulator that has taken in one more value."""

    def join(self, parts: Sequence[T], dim: int, batch: int) -> T:
        """Tiles behind each other along `dim`."""


def points(walk: Walk) -> Iterator[Counters]:
    """The points of a walk in their order: bands of `group` steps of the last counter but one."""
    counters = [("", 1), ("", 1), *walk.counters]
    *outer, rows, columns = [range(count) for _, count in counters]
    for before in itertools.product(*outer):
        for band in range(0, len(rows), walk.group):
            for column, row in itertools.product(columns, rows[band : band + walk.group]):
                at = zip(counters, (*before, row, column), strict=True)
                yield {name: number for (name, _), number in at if name}


def run(program: Program, operands: Mapping[str, T], algebra: Algebra[T]) -> dict[str, T]:
    """The outputs of a program by name; `operands` are the global tiles that it reads.

    Raises:
        GraphError: the roles of a block wait for each other; something is read that is not there; an element of an
            output is stored twice or never.
    """
    stored: Stored[T] = {name: {} for name in program.outputs}
    launch = _Launch(program, operands, algebra, stored)
    for cluster in range(program.blocks // program.cluster):
        _run_cluster([_Block(launch, cluster, rank) for rank in range(program.cluster)])
    return {name: _assembled(program.tile(name), tiles, algebra) for name, tiles in stored.items()}


def run_point(program: Program, place: int, operands: Mapping[str, T], algebra: Algebra[T]) -> Stored[T]:
    """What one point of the walk stores, by output and by where it begins; nothing where its sums are combined with
    those of others. Raises GraphError as `run`."""
    stored: Stored[T] = {name: {} for name in program.outputs}
    launch, cluster = _Launch(program, operands, algebra, stored), place % (program.blocks // program.cluster)
    _run_cluster([_Block(launch, cluster, rank, place) for rank in range(program.cluster)])
    return stored


def _assembled(tile: Tile, tiles: dict[tuple[int, ...], T], algebra: Algebra[T]) -> T:
    """The tensor that tiles make, by where they begin: where each of its elements lies in all of them in a row."""
    shapes, rows, places, first = list[tuple[int, ...]](), list[T](), np.full(tile.shape, -1), 0

    def row(array: Array) -> Array:
        shapes.append(array.shape)
        return array.reshape(-1)

    for at, value in tiles.items():
        rows.append(algebra.view(value, row))
        here = places[tuple(map(slice, at, map(operator.add, at, shapes[-1])))]
        numbers = np.arange(first, first + math.prod(shapes[-1])).reshape(shapes[-1])
        here[:] = numbers[tuple(map(slice, here.shape))]
        first += numbers.size
    if (places < 0).any():
        raise GraphError(f"some elements of {tile.name} are never stored")
    return algebra.view(algebra.join(rows, 0, 0), lambda array: array[places])


def boxed(box: tuple[slice, ...], array: Array) -> Array:
    """The part of an array."""
    return array[box]


@dataclass(slots=True)
class _Ring(Generic[T]):
    """One pipeline of a block: fills that began, arrivals in all; bytes of every fill that came; the parts of every
    slot, by who brought them."""

    pipeline: Pipeline
    began: int = 0
    arrived: int = 0
    nbytes: Counter[int] = field(default_factory=Counter)
    slots: dict[tuple[int, str], dict[int, T]] = field(default_factory=dict)

    def empty(self) -> bool:
        """Whether the next stage is empty."""
        return self.began - self.arrived // self.pipeline.arrivals < self.pipeline.stages

    def landed(self, fill: int) -> bool:
        """Whether a fill has come as a whole."""
        return self.began > fill and self.nbytes[fill] >= self.pipeline.nbytes

    def write(self, fill: int, name: str, brought_by: int, part: T, nbytes: int) -> None:
        """A part of a slot."""
        self.slots.setdefault((fill % self.pipeline.stages, name), {})[brought_by] = part
        self.nbytes[fill] += nbytes


@dataclass(slots=True)
class _Thread(Generic[T]):
    """One group of a role: its counters, accumulators, values; stages of each pipeline that it took and gave back."""

    role: Role
    part: int
    counters: Counters
    sums: dict[str, tuple[T, ...]] = field(default_factory=dict)
    values: dict[str, T] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Launch(Generic[T]):
    """What all blocks share. left: sums that points have left to be combined, by who adds to them."""

    program: Program
    operands: Mapping[str, T]
    algebra: Algebra[T]
    stored: Stored[T]
    left: dict[Hashable, list[tuple[T, ...]]] = field(default_factory=dict)


def _run_cluster(blocks: Sequence[_Block[T]]) -> None:
    """Blocks side by side: whoever can go on does, those that fill first."""
    for block in blocks:
        block.cluster = blocks
    waiting = [pair for block in blocks for pair in block.begin()]
    rings = [ring for block in blocks for ring in block.rings.values()]
    waiting.sort(key=lambda pair: not any(isinstance(s, Copy) for s in flat(blocks[0].program.statements(pair[0]))))
    while waiting:
        before = [(r.began, r.arrived) for r in rings]
        left = [(role, going) for role, going in waiting if not _ended(going)]
        if len(left) == len(waiting) and before == [(r.began, r.arrived) for r in rings]:
            raise GraphError(f"roles {', '.join(sorted({role for role, _ in left}))} wait for each other")
        waiting = left


class _Block(Generic[T]):
    """One block of a program; `only` at one point of the walk, if given."""

    def __init__(self, launch: _Launch[T], number: int, rank: int, only: int | None = None) -> None:
        self.launch, self.program, self.algebra, self.stored = launch, launch.program, launch.algebra, launch.stored
        self.number, self.rank, self.only = number, rank, only
        self.cluster: Sequence[_Block[T]] = (self,)
        self.rings: dict[str, _Ring[T]] = {p.name: _Ring(p) for p in self.program.pipelines}
        self.made = {s.name: s for s in self.program.every if isinstance(s, Map | Reduce)}
        self.marks: dict[tuple[str, int], list[bool]] = {}  # by tile and fill

    def begin(self) -> Iterator[tuple[str, Iterator[None]]]:
        """Every group of every role, which has not done anything."""
        for role in self.program.roles:
            for part in range(role.parts):
                thread: _Thread[T] = _Thread(role, part, {PART: part, RANK: self.rank})
                yield role.name, self._body(thread, self.program.statements(role.name))

    def _body(self, thread: _Thread[T], statements: tuple[Statement, ...]) -> Iterator[None]:
        """Runs statements; yields where it has to wait."""
        for statement in statements:
            match statement:
                case Walk():
                    for place, at in enumerate(points(statement)):
                        clusters = self.program.blocks // self.program.cluster
                        if place % clusters == self.number and self.only in (None, place):
                            thread.counters |= at
                            yield from self._body(thread, statement.body)
                case Loop(counter, body=body):
                    for number in range(statement.times(self._at(statement.more, thread))):
                        thread.counters[counter] = number
                        if statement.only is None or self._seen(thread, statement.only):
                            yield from self._body(thread, body)
                case Acquire(name):
                    while not self.rings[name].empty():
                        yield
                    self.rings[name].began += 1
                case Await(name):
                    while not self.rings[name].landed(thread.taken.get(name, 0)):
                        yield
                    thread.taken[name] = thread.taken.get(name, 0) + 1
                case Combine():
                    if not self._combine(thread, statement):
                        return
                case _:
                    self._statement(thread, statement)

    def _statement(self, thread: _Thread[T], statement: Statement) -> None:
        match statement:
            case Copy():
                self._copy(thread, statement)
            case Mark():
                self._mark(thread, statement)
            case Clear(name):
                thread.sums[name] = ()
            case Product():
                self._product(thread, statement)
            case Release(name, behind):
                given, taken = thread.given.get(name, 0), thread.taken.get(name, 0)
                back = max(taken - behind - given, 0)
                thread.given[name] = given + back
                for block in self.cluster if self.program.emptied_by(name) > 1 else (self,):
                    block.rings[name].arrived += back * min(GROUP, thread.role.warps)
            case Number(name, value):
                thread.values[name] = self.algebra.apply(OpKind.CONST, (), ConstAttrs(value), 0)
            case Read(name, source, at):
                tile = self.program.tile(source)
                thread.values[name] = self._read(tile, at, thread)
            case Map(name, kind, attrs, operands):
                thread.values[name] = self.algebra.apply(kind, [self._operand(thread, o) for o in operands], attrs, 0)
            case Reduce(name, kind, operand, axis):
                dim = self._axes(operand).index(axis)
                thread.values[name] = self.algebra.apply(kind, [self._operand(thread, operand)], DimAttrs(dim), 0)
            case Set(result, value):
                thread.sums[result] = (self._operand(thread, value),)
            case Count(name, axis, at):
                thread.values[name] = self._count(axis, self._at(at, thread))
            case Table(counter, of, numbers):
                thread.counters[counter] = numbers[thread.counters[of]]
            case Until(name, number, axis, at):
                thread.values[name] = self._until(number, axis, self._at(at, thread))
            case Turn() | Yield() | Skip():
                pass  # blocks run one role after the other as far as each can go: turns change nothing
            case Store():
                self._store(thread, statement)

    def _mark(self, thread: _Thread[T], mark: Mark) -> None:
        """Residues know no masks: with them all tiles are marked."""
        ring, (rows, _), found = self._ring_of(mark.target), mark.sides, list[bool]()
        for number in range(self._at(mark.count, thread)):
            thread.counters[mark.counter] = number
            for made in mark.body:
                match made:
                    case Read(name):
                        thread.values[name] = self._side(thread, made, mark.sides)
                    case Count(name, axis, at):
                        length, first = dict(mark.sides)[axis], self._at(at, thread)
                        thread.values[name] = self._places(length, axis == rows[0], first)
                    case _:
                        self._statement(thread, made)
            values = [thread.values[name] for name in mark.values]
            found.append(all(not isinstance(value, np.ndarray) or bool(value.any()) for value in values))
        self.marks[mark.target, ring.began - 1] = found
        ring.nbytes[ring.began - 1] += ring.pipeline.nbytes

    def _side(self, thread: _Thread[T], made: Read, sides: Sequence[tuple[str, int]]) -> T:
        """What is read for a tile of these sides, as a matrix."""
        tile, sizes = self.program.tile(made.source), dict(sides)
        part = self._box(tile, made.at, tuple(sizes.get(axis, 1) for axis in tile.axes), thread)
        turned = [axis for axis in tile.axes if axis in sizes] == [axis for axis, _ in reversed(sides)]
        shape = tuple(size if axis in tile.axes else 1 for axis, size in sides)

        def matrix(array: Array) -> Array:
            return array.reshape(shape[::-1]).T if turned else array.reshape(shape)

        return self.algebra.view(part, matrix)

    def _seen(self, thread: _Thread[T], only: Marked) -> bool:
        """Whether an element of the newest marks that this role awaited says so."""
        ring = self._ring_of(only.tile)
        marks = self.marks[only.tile, thread.taken[ring.pipeline.name] - 1]
        return marks[self._at(only.at, thread)]

    def _ring_of(self, tile: str) -> _Ring[T]:
        return next(ring for ring in self.rings.values() if tile in ring.pipeline.tiles)

    def _count(self, axis: str, first: int) -> T:
        """first, first + 1, ... along an axis, as far as register tiles reach."""
        held = [t for t in self.program.tiles if t.place is Place.REGISTER and axis in t.axes]
        return self._places(held[0].shape[held[0].axes.index(axis)], held[0].axes[0] == axis, first)

    def _places(self, length: int, rows: bool, first: int) -> T:
        """So many of them."""
        places = self.algebra.apply(OpKind.ARANGE, (), ArangeAttrs(length), 0)
        start = self.algebra.apply(OpKind.CONST, (), ConstAttrs(Fraction(first)), 0)
        moved = self.algebra.apply(OpKind.ADD, (places, start), None, 0)
        return self.algebra.view(moved, lambda array: array.reshape((length, 1) if rows else (1, length)))

    def _until(self, number: Fraction, axis: str, first: int) -> T:
        """The number in front of the end of an axis, from `first` on, as far as register tiles reach."""
        held = [t for t in self.program.tiles if t.place is Place.REGISTER and axis in t.axes]
        length, rows = held[0].shape[held[0].axes.index(axis)], held[0].axes[0] == axis
        inside = min(max(self.program.extents[axis] - first, 0), length)
        parts = [
            self.algebra.view(
                self.algebra.apply(OpKind.CONST, (), ConstAttrs(value), 0), partial(np.broadcast_to, shape=(count,))
            )
            for value, count in ((number, inside), (Fraction(0), length - inside))
            if count
        ]
        whole = self.algebra.join(parts, 0, 0) if len(parts) > 1 else parts[0]
        return self.algebra.view(whole, lambda array: array.reshape((length, 1) if rows else (1, length)))

    def _axes(self, name: str) -> tuple[str, ...]:
        """The axes of a value's dimensions: rows that were reduced keep one of one element."""
        tile = next((t for t in self.program.tiles if t.name == name), None)
        if tile is None:
            made = self.made.get(name)
            if made is None:
                return ()
            operands = made.operands if isinstance(made, Map) else (made.operand,)
            return max((self._axes(operand) for operand in operands), key=len, default=())
        return tile.axes

    # -- elements

    def _at(self, index: Index, thread: _Thread[T]) -> int:
        return index.const + sum(thread.counters[name] * factor for name, factor in index.terms)

    def _box(self, tile: Tile, at: Sequence[Index], shape: tuple[int, ...], thread: _Thread[T]) -> T:
        """The part of a global tensor that begins at `at`, with zeros beyond its end."""
        starts = [self._at(index, thread) for index in at]
        if any(start < 0 or start >= extent for start, extent in zip(starts, tile.shape, strict=True)):
            raise GraphError(f"{tile.name} has no elements at {starts}")

        def box(array: Array) -> Array:
            inside = array[tuple(slice(start, start + size) for start, size in zip(starts, shape, strict=True))]
            return np.pad(inside, [(0, size - held) for size, held in zip(shape, inside.shape, strict=True)])

        return self.algebra.view(self.launch.operands[f"x{self.program.operand(tile.name)}"], box)

    def _read(self, tile: Tile, at: Sequence[Index], thread: _Thread[T]) -> T:
        """What a fragment has of a tensor, as a matrix of rows and columns."""
        box = self.program.box(tile, thread.role.name)
        sizes, rows = dict(zip(tile.axes, box, strict=True)), self._axes_of_rows(thread.role.name)
        held = self.program.held_axes(tile, thread.role.name)
        shape = [math.prod(sizes[axis] for axis in held if (axis in rows) is of_rows) for of_rows in (True, False)]
        order = sorted(range(len(box)), key=lambda dim: held.index(tile.axes[dim]) if tile.axes[dim] in held else -1)
        return self.algebra.view(self._box(tile, at, box, thread), lambda array: array.transpose(order).reshape(shape))

    def _axes_of_rows(self, role: str) -> set[str]:
        return {tile.axes[0] for tile in self.program.register_tiles(role)}

    def _copy(self, thread: _Thread[T], copy: Copy) -> None:
        source, target = self.program.tile(copy.source), self.program.tile(copy.target)
        ring = next(r for r in self.rings.values() if target.name in r.pipeline.tiles)
        sizes = dict(zip(target.axes, target.shape, strict=True))
        at, rows, blocks = list(copy.at), target.axes[0], 1
        if isinstance(copy, Multicast):
            blocks = len(self.cluster)
            sizes[rows] //= blocks
            at[source.axes.index(rows)] += Index((), self.rank * sizes[rows])
        value = self._box(source, at, tuple(sizes.get(axis, 1) for axis in source.axes), thread)
        part = self.algebra.view(value, lambda array: array.reshape(tuple(sizes.values())))
        for block in self.cluster if blocks > 1 else (self,):
            there = block.rings[ring.pipeline.name]
            there.write(ring.began - 1, target.name, self.rank * (blocks > 1), part, target.nbytes // blocks)

    def _slot(self, thread: _Thread[T], name: str) -> T:
        ring = next(r for r in self.rings.values() if name in r.pipeline.tiles)
        slot = (thread.taken.get(ring.pipeline.name, 0) - 1) % ring.pipeline.stages
        if (slot, name) not in ring.slots:
            raise GraphError(f"{name} is read before it is there")
        parts = [part for _, part in sorted(ring.slots[slot, name].items())]
        return self.algebra.join(parts, 0, 0) if len(parts) > 1 else parts[0]

    def _product(self, thread: _Thread[T], product: Product) -> None:
        left, right = self.program.tile(product.left), self.program.tile(product.right)
        result = self.program.tile(product.result)
        axis = summed_axis(left, right)
        row, column = self._at(product.row, thread), self._at(product.column, thread)

        def rows(array: Array) -> Array:
            turned = array if left.axes[-1] == axis else array.T
            return turned[row : row + result.shape[0]]

        def columns(array: Array) -> Array:
            turned = array if right.axes[0] == axis else array.T
            return turned[:, column : column + result.shape[1]]

        held = left.place is Place.REGISTER
        source = self._operand(thread, left.name) if held else self._slot(thread, left.name)
        a = self.algebra.view(source, rows)
        b = self.algebra.view(self._slot(thread, product.right), columns)
        added = self.algebra.apply(OpKind.MATMUL, (a, b), None, 0)
        if product.result not in thread.sums:
            raise GraphError(f"{product.result} was not cleared")
        thread.sums[product.result] = self.algebra.fold(AccumKind.SUM, thread.sums[product.result], (added,), 0)

    def _combine(self, thread: _Thread[T], combine: Combine) -> bool:
        """Whether this is the last point to come; its sums are those of all then."""
        counters = tuple(pair for pair in thread.counters.items() if pair[0] != combine.counter)
        walk = next(s for s in self.program.statements(thread.role.name) if isinstance(s, Walk))
        left = self.launch.left.setdefault((thread.role.name, counters), [])
        left.append(tuple(self._operand(thread, name) for name in combine.results))
        if len(left) < dict(walk.counters)[combine.counter]:
            return False
        for name, *parts in zip(combine.results, *left, strict=True):
            total: tuple[T, ...] = ()
            for part in parts:
                total = self.algebra.fold(AccumKind.SUM, total, (part,), 0)
            thread.sums[name] = total
        return True

    def _operand(self, thread: _Thread[T], name: str) -> T:
        if name in thread.sums:
            cleared = self.algebra.apply(OpKind.CONST, (), ConstAttrs(Fraction(0)), 0)
            return thread.sums[name][0] if thread.sums[name] else cleared
        if name not in thread.values:
            raise GraphError(f"there is no value {name}")
        return thread.values[name]

    def _store(self, thread: _Thread[T], store: Store) -> None:
        tile = self.program.tile(store.target)
        starts = tuple(self._at(index, thread) for index in store.at)
        shape = self.program.box(tile, thread.role.name)
        if starts in self.stored[tile.name]:
            raise GraphError(f"elements of {tile.name} at {starts} are stored twice")

        def placed(array: Array) -> Array:
            whole = array.size == math.prod(shape)
            return np.broadcast_to(array.reshape(shape if whole else array.shape[-len(shape) :]), shape)

        self.stored[tile.name][starts] = self.algebra.view(self._operand(thread, store.value), placed)


def _ended(going: Iterator[None]) -> bool:
    """Whether it ended; it goes on as far as it can."""
    return next(going, True) is True
