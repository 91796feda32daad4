"""The state of a staged program that runs: numbers, shared memory, registers; what goes wrong with them is told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirage_nb.ir import AccumAttrs, AccumKind, DimAttrs, InIterAttrs, OpKind
from mirage_nb.tile.machine import Machine
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.staged import program as staged
from mirage_nb.tile.staged.program import KINDS, StagedProgram, fragment

Key = tuple[int, int]
"""A value, and which of its copies."""
REDUCED = {kind: op for op, kind in KINDS.items()}
ADDING = staged.Add | staged.Partial | staged.Dot | staged.Multiply | staged.MultiplyPacked | staged.MultiplyPanels | (
    staged.SumPacked | staged.Change
)
"""What may happen once in an iteration."""
LOWEST = float(np.finfo(np.float32).min)


@dataclass
class Actor:
    """All threads that compute, or the loader: the iteration that it is in, whose stage `current` names; whether it has
    waited for the kernel in front."""

    iteration: int = 0
    current: int | None = None
    waited: bool = False


@dataclass
class Stage:
    """A stage of the ring of bulk copies: how often it was filled, found full and handed back; bytes that it waits
    for."""

    fills: int = 0
    found: int = 0
    given: int = 0
    missing: int = 0


@dataclass
class StagedMachine(Machine[StagedProgram]):
    """memory: what copies of shared tensors hold; reading, writing: copies since the last barrier; groups: of copies on
    their way; registers: by warps that share keys, or depth; parts: registers of which lanes have parts; tops: of
    factors, from which maximum to which; loads, stores: what ordinary accesses touched since the last fence; done:
    statements of this iteration that add to registers; rises: how often a maximum may have risen; faded: up to which
    rise sums follow theirs; shown: registers that every warp has published as they are, and whether behind a barrier;
    ready: whether the loader has set up the barriers of the ring."""

    memory: dict[Key, Any] = field(default_factory=dict)
    reading: set[Key] = field(default_factory=set)
    writing: set[Key] = field(default_factory=set)
    groups: list[list[tuple[Key, Any]]] = field(default_factory=lambda: [[]])
    states: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    registers: dict[str, dict[int, Any]] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    tops: dict[str, dict[int, tuple[Any, Any]]] = field(default_factory=dict)
    shown: dict[str, bool] = field(default_factory=dict)
    ready: bool = False
    stages: dict[int, Stage] = field(default_factory=lambda: defaultdict(Stage))
    loads: set[int] = field(default_factory=set)
    stores: set[int] = field(default_factory=set)
    saved: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    bound: dict[int, Any] = field(default_factory=dict)
    done: set[object] = field(default_factory=set)
    rises: Counter[str] = field(default_factory=Counter)
    faded: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.buffers = {b.value: b for b in self.program.buffers}
        self.scaled = {
            f"a{values[0]}": f"{op.inputs[1]}" for op, values in self.block.definitions()
            if isinstance(op.attrs, AccumAttrs) and op.attrs.kind is AccumKind.RESCALE
        }  # fmt: skip
        self.warps = range(self.program.region.key_warps if self.program.region else 1)

    # -- numbers

    def cut(self, value: Any, dim: int, part: int, size: int) -> Any:
        """So many elements of the last dimension but some."""
        inside: tuple[Any, ...] = (..., slice(part * size, (part + 1) * size), *(slice(None),) * (-1 - dim))
        return self.algebra.view(value, lambda array: array[inside])

    def along(self, value: Any, kind: OpKind, like: int) -> Any:
        """A reduction of the columns of a value."""
        return self.apply(kind, [value], DimAttrs(len(self.block.types[like].shape) - 1))

    def tile(self, value: int, actor: Actor) -> Any:
        """A tile in device memory, or of numbers of places, which nobody writes."""
        attrs, counted = self.ops[value].attrs, self.program.places[value] is Place.COUNTED
        assert isinstance(attrs, InIterAttrs)
        if attrs.arg in self.program.late and not (actor.waited or counted):
            self.wrong(f"%{value} is read before the kernel in front has ended")
        if actor.iteration >= self.block.loop:
            self.wrong(f"%{value} of an iteration that there is not")
            return None
        return self.tiles(value, 0 if attrs.fmap is None else actor.iteration)

    def value(self, value: int, actor: Actor, warp: int = 0) -> Any:
        """A value as a reader finds it."""
        if value in self.bound:
            return self.bound[value]
        op = self.ops[value]
        match self.program.places[value]:
            case Place.SHARED:
                return self.load(value, actor)
            case Place.REGISTER:
                rows = self.block.types[value].shape[-1] <= 1 and self.program.region
                shift = rows and value in rows.shifts
                return self.held(f"shift{value}" if shift else fragment(value), warp)
            case Place.VIEW if op.kind is OpKind.ACCUM:
                return self.value(op.inputs[0], actor, warp)
            case Place.LITERAL | Place.COUNTED | Place.DEVICE if op.kind is OpKind.IN_ITER:
                return self.tile(value, actor)
            case _:
                return self.computed(value, actor, warp)

    def computed(self, value: int, actor: Actor, warp: int = 0) -> Any:
        """What an operator makes of what it reads."""
        op, keyed = self.ops[value], self.program.region.keyed if self.program.region else frozenset()
        operands = []
        for read in op.inputs:
            found, columns = self.value(read, actor, warp), self.block.types[read].shape[-1:]
            whole = self.program.places[read] is not Place.REGISTER and read not in self.bound
            if whole and value in keyed and columns == self.block.types[value].shape[-1:] != (1,):
                found = self.cut(found, -1, warp, columns[0] // len(self.warps))
            operands.append(found)
        return self.made(value, operands)

    # -- shared memory

    def spots(self, key: Key) -> range:
        """The bytes of a copy of a tensor."""
        buffer = self.buffers[key[0]]
        start = buffer.offset + key[1] * buffer.layout.nbytes
        return range(start, start + buffer.layout.nbytes)

    def meets(self, key: Key, others: set[Key]) -> Iterator[Key]:
        mine = self.spots(key)
        return (o for o in others if o[0] in self.buffers and _meet(mine, self.spots(o)))

    def load(self, value: int, actor: Actor, *, ordinary: bool = True) -> Any:
        """A shared tensor, the sum of its copies."""
        streamed, slot = value in self.program.streamed, actor.current
        if value not in self.buffers or (streamed and slot is None):
            self.wrong(f"%{value} is read where nothing of it is")
            return None
        every = range(self.buffers[value].copies) if self.ops[value].kind is OpKind.ACCUM else range(1)
        total: tuple[Any, ...] = ()
        for copy in (slot,) if streamed and slot is not None else every:
            key = (value, copy)
            stage = self.stages[copy] if streamed and self.program.loader else Stage()
            if key not in self.memory or stage.found < stage.fills:
                self.wrong(f"%{value} is read before it is there")
                continue
            if any(self.meets(key, self.writing)):
                self.wrong(f"%{value} is read without a barrier behind what wrote it")
            self.reading.add(key)
            total = self.fold(AccumKind.SUM, total, (self.memory[key],))
        if ordinary and streamed:
            self.loads.add(value)
        if not ordinary and value in self.stores:
            self.wrong(f"%{value} is read by warpgroups without a fence behind what wrote it")
        return total[0] if total else None

    def store(self, key: Key, tile: Any, *, bulk: bool = False) -> None:
        """A tile in shared memory; what lay there is lost."""
        if key[0] not in self.buffers or key[1] >= self.buffers[key[0]].copies:
            self.wrong(f"%{key[0]} has no copy {key[1]}")
            return
        coming = {there for group in self.groups for there, _ in group}
        for other in self.meets(key, self.reading | self.writing | coming):
            if not bulk or other[0] != key[0]:
                self.wrong(f"%{key[0]} is written while others are at %{other[0]}")
        for other in list(self.meets(key, set(self.memory))):
            del self.memory[other]
        self.memory[key] = tile
        if not bulk:
            self.writing.add(key)
            self.stores.add(key[0])

    def fill(self, value: int, actor: Actor) -> None:
        """A copy that has begun: nobody knows what lies there."""
        key = (value, actor.iteration % self.program.stages if value in self.program.streamed else 0)
        tile = self.tile(value, actor)
        self.store(key, tile)
        self.memory.pop(key, None)
        self.writing.discard(key)
        self.groups[-1].append((key, tile))

    def landed(self, newer: int) -> None:
        while len(self.groups) > newer + 1:
            for key, tile in self.groups.pop(0):
                self.memory[key] = tile
                self.writing.add(key)

    # -- registers

    def held(self, name: str, warp: int) -> Any:
        """Registers of a warp."""
        self._followed(name)
        if warp not in self.registers.get(name, {}):
            self.wrong(f"{name} is read before it is there")
            return None
        return self.registers[name][warp]

    def collect(self, name: str, warp: int, value: Any, kind: AccumKind = AccumKind.SUM) -> None:
        """Folds a value into registers."""
        if name not in self.registers:
            self.wrong(f"{name} is added to before it is there")
        self.shown.pop(name, None)
        self._followed(name)
        cells = self.registers.setdefault(name, {})
        cells[warp] = self.fold(kind, (cells[warp],) if warp in cells else (), (value,))[0]

    def _followed(self, name: str) -> None:
        """Whether a rescaled sum of a region has followed its maximum."""
        shift = self.scaled.get(name)
        if name in self.registers and shift is not None and self.faded.get(name, 0) != self.rises[shift]:
            self.wrong(f"{name} has not followed its maximum")

    def _unload(self, value: int, source: str, copies: int, across: bool = False) -> None:
        if copies != self.buffers[value].copies:
            self.wrong(f"%{value} has {self.buffers[value].copies} copies, {copies} are left")
        if across:
            last, columns = len(self.block.types[value].shape) - 1, [self.held(source, w) for w in self.warps]
            self.store((value, 0), self.algebra.join(columns, last, self.batch))
            return
        for copy in range(copies):
            self.store((value, copy), self.held(source, copy))


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
