"""Runs staged programs on tiles; what goes wrong on the way is told.

In: a staged program, an algebra (`interp`) and the tiles of its iterators, or none to look only at who reads and writes
what and when. Out: what is saved of every output. Copies land as late as the program lets them, the loader goes as far
ahead as the ring lets it. Between two barriers every thread may be anywhere: bytes that one statement writes and
another one reads or writes have a barrier between them; bulk copies have their stages instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_nb.ir import AccumKind, ConstAttrs, DimAttrs, OpKind
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.rules.sharing import DEPTH_TILE, Side, Tiling
from mirage_nb.tile.staged import program as staged
from mirage_nb.tile.staged.machine import ADDING, LOWEST, REDUCED, Actor, StagedMachine
from mirage_nb.tile.staged.program import How, Signal, StagedProgram, Statement, fragment

FOLLOWED = 4
"""Rounds of the ring that are followed, and what is left of one: more of them are like the last."""


class Run(StagedMachine):
    """One run."""

    def run(self) -> tuple[Any, ...]:
        """What is saved of every output. Raises GraphError, where there are numbers, for the first thing that is
        wrong."""
        loader = self._body(self.program.loader, Actor())
        next(loader, None)  # it waits for nobody to begin
        for again in self._body(self.program.code, Actor()):
            before = [(stage.fills, stage.missing) for stage in self.stages.values()]
            next(loader, None)
            if again and before == [(stage.fills, stage.missing) for stage in self.stages.values()]:
                self.wrong("the loader and the warps that compute wait for each other")
                return ()
        self.now = None
        if next(loader, None) is not None or any(self.groups):
            self.wrong("copies are on their way at the end")
        if any(stage.fills != stage.given for stage in self.stages.values()):
            self.wrong("stages are not handed back")
        found = []
        for number, op in enumerate(self.block.savers):
            parts = self.saved[number]
            feeding = self.ops[op.inputs[0]].attrs
            along = getattr(feeding, "dim", None) if self.program.places[op.inputs[0]] is Place.NONE else None
            if len(parts) != (1 if along is None else self.block.loop):
                self.wrong(f"output {number} is saved {len(parts)} times")
            elif along is not None:
                parts = [self.algebra.join(parts, along, self.batch)]
            found += parts[:1]
        return tuple(found)

    # -- statements

    def _body(self, statements: tuple[Statement, ...], actor: Actor) -> Iterator[bool]:
        """Runs statements; yields where they wait, whether they have waited for the same before."""
        for statement in statements:
            self.now = statement
            match statement:
                case staged.Loop(_, count, body, first):
                    for actor.iteration in range(first, count):
                        actor.current = None
                        self.done.clear()
                        yield from self._body(body, actor)
                    actor.iteration, actor.current = 0, None
                    self.done.clear()
                case staged.Refill(ahead, count, body):
                    if actor.iteration + ahead < count:
                        yield from self._body(body, Actor(actor.iteration + ahead, None, actor.waited))
                case staged.Task(body=body) | staged.Warps(body=body):
                    yield from self._body(body, actor)
                case Signal.ACQUIRE:
                    stage = self.stages[actor.iteration % self.program.stages]
                    while stage.fills > stage.given:
                        yield False
                case Signal.AWAIT:
                    if not self.ready:
                        self.wrong("nobody knows whether the barriers of the ring are there")
                    stage, again = self.stages[actor.iteration % self.program.stages], False
                    while stage.fills <= actor.iteration // self.program.stages or stage.missing:
                        yield again
                        again = True
                    stage.found = stage.fills
                case Signal():
                    self._signal(statement, actor)
                case _ if isinstance(statement, ADDING) and statement in self.done:
                    self.wrong("it adds twice")
                case staged.Multiply() | staged.MultiplyPacked() | staged.MultiplyPanels():
                    self._multiply(statement, actor)
                case staged.Evaluate() | staged.Change() | staged.SumPacked() | staged.Largest() | staged.Pack():
                    self._fragments(statement, actor)
                case _:
                    self._statement(statement, actor)
            if isinstance(statement, ADDING):
                self.done.add(statement)

    def _signal(self, signal: Signal, actor: Actor) -> None:
        stage = self.stages[slot := actor.iteration % max(1, self.program.stages)]
        match signal:
            case Signal.DEPEND:
                actor.waited = True
            case Signal.READY:
                if self.ready or not self.program.loader:
                    self.wrong("the loader says once that it is ready, if there is one")
                self.ready = True
            case Signal.COMMIT:
                self.groups.append([])
            case Signal.BARRIER:
                self.reading.clear()
                self.writing.clear()
                self.shown = dict.fromkeys(self.shown, True)
            case Signal.FENCE:
                self.loads.clear()
                self.stores.clear()
            case Signal.RELEASE:
                if self.loads:
                    self.wrong("a stage is handed back while loads from it are on their way")
                stage.given += 1
                actor.current = None
                for value in self.program.streamed:
                    self.memory.pop((value, slot), None)
            case Signal.CURRENT:
                actor.current = slot

    def _statement(self, statement: Statement, actor: Actor) -> None:
        match statement:
            case staged.Landed(newer):
                self.landed(newer)
            case staged.Announce(nbytes):
                stage = self.stages[actor.iteration % self.program.stages]
                if stage.fills > stage.given or stage.missing:
                    self.wrong("bytes are announced in a stage that is not empty")
                stage.fills, stage.missing = stage.fills + 1, nbytes
            case staged.Bring(value, bulk):
                stage = self.stages[slot := actor.iteration % self.program.stages]
                stage.missing -= bulk.elements * self.program.stored[value].size
                if stage.fills <= stage.given or stage.missing < 0:
                    self.wrong(f"%{value} is brought into a stage that does not wait for it")
                self.store((value, slot), self.tile(value, actor), bulk=True)
            case staged.Fill(value) | staged.Carry(value):
                self.fill(value, actor)
            case staged.Compute(value):
                self.store((value, 0), self.computed(value, actor))
            case staged.Move(value, source, along):
                tile = self.value(source, actor)
                if along is not None and self.memory.get((value, 0)) is not None:
                    tile = self.algebra.join((self.memory[value, 0], tile), along, self.batch)
                self.store((value, 0), tile)
            case staged.Save(output, _, source, along):
                self._save(output, self.value(source, actor), actor)
            case staged.Start(result):
                self.states[result] = ()
            case staged.Add(result, kind, operands):
                self._add(result, kind, [self.value(v, actor) for v in operands])
            case staged.Partial(result, kind, operands, share):
                reduced = self.apply(REDUCED[kind], [self.value(v, actor) for v in operands], DimAttrs(share.dim))
                self._add(result, kind, [reduced])
            case staged.Leave(value, source) | staged.Total(value, source):
                self.store((value, 0), self._state(source))
            case staged.Reduce(value, made, kind, operands, share):
                attrs = self.ops[made].attrs
                result = self.apply(REDUCED[kind], [self.value(v, actor) for v in operands], attrs)
                if value != made:
                    self.bound[made] = result
                    result = self.computed(value, actor)
                    del self.bound[made]
                self.store((value, 0), result)
            case staged.Dot(result, value, pairs):
                self.states |= {} if result else {"": ()}
                for pair in pairs:
                    product = self.apply(OpKind.MATMUL, [self.value(v, actor) for v in pair])
                    self._add(result, AccumKind.SUM, [product])
                if not result:
                    self.store((value, 0), self._state(""))
            case _:
                self._registers(statement, actor)

    def _registers(self, statement: Statement, actor: Actor) -> None:
        """What is done with fragments, but for what is done cell by cell."""
        match statement:
            case staged.Zeros(result):
                self.registers[result] = {}
                self.parts.discard(result)
            case staged.Load(result, _, rows):
                held = self.value(rows.value, actor)
                self.registers[result] = dict.fromkeys(self.warps, held)
            case staged.Unload(value, source, tiling):
                self._unload(value, source, tiling.copies, tiling.split[2] > 1 and self.program.region is not None)
            case staged.Publish(results):
                self.shown |= dict.fromkeys(results, False)
            case staged.Agree(result, last):
                if not self.shown.get(result):
                    self.wrong(f"{result} of other warps is read without a barrier")
                every: tuple[Any, ...] = ()
                for warp in self.warps:
                    every = self.fold(AccumKind.MAX, every, (self.held(result, warp),))
                if last:
                    self.rises[last.removeprefix("last")] += 1
                    self.tops[last] = {w: (self.held(result, w), every[0]) for w in self.warps}
                self.registers[result] = dict.fromkeys(self.warps, every[0])
            case staged.LeaveRows(value, source, summed):
                if summed is not (source in self.parts):
                    self.wrong(f"{source} is {'whole' if summed else 'in parts'} where rows are left")
                self._unload(value, source, self.buffers[value].copies)
            case staged.SaveRows(output, saver, bound):
                if any(name in self.parts for _, name in bound):
                    self.wrong("rows of which lanes have parts are saved")
                self.bound = {v: self.held(name, 0) for v, name in bound}
                self._save(output, self.value(self.block.ops[saver].inputs[0], actor), actor)
                self.bound = {}

    def _save(self, output: int, value: Any, actor: Actor) -> None:
        if self.program.behind and not actor.waited:
            self.wrong(f"output {output} is saved before the kernel in front has ended")
        self.saved[output].append(value)

    def _add(self, result: str, kind: AccumKind, operands: Sequence[Any]) -> None:
        if result not in self.states:
            self.wrong(f"{result} is added to before it is there")
        self.states[result] = self.fold(kind, self.states.get(result, ()), operands)

    def _state(self, name: str) -> Any:
        if not self.states.get(name):
            self.wrong(f"{name} is left before anything was added")
            return None
        return self.states[name][0]

    def _multiply(
        self, product: staged.Multiply | staged.MultiplyPacked | staged.MultiplyPanels, actor: Actor
    ) -> None:
        columns = product.columns
        match product:
            case staged.MultiplyPanels(result, packed, _, leaf):
                self.load(leaf, actor, ordinary=False)
                factors = [self.held(packed, 0), self._unloaded(columns, actor)]
                self.collect(result, 0, self.apply(OpKind.MATMUL, factors))
            case staged.MultiplyPacked(result, packed, tiling):
                right = self.value(columns.value, actor)
                for warp in range(max(1, tiling.copies)):
                    size = columns.depth // tiling.copies
                    factors = [self.held(packed, warp), self.cut(right, -2, warp, size)]
                    self.collect(result, warp, self.apply(OpKind.MATMUL, factors))
            case staged.Multiply(result, tiling, rows, _, _, held):
                first = self.held(held, 0) if held else self.value(rows.value, actor)
                self._shared(result, tiling, rows, first, columns, self.value(columns.value, actor))

    def _unloaded(self, side: Side, actor: Actor) -> Any:
        """Columns that no ordinary load reads."""
        before = set(self.loads)
        found = self.value(side.value, actor)
        self.loads = before
        return found

    def _shared(self, result: str, tiling: Tiling, rows: Side, first: Any, columns: Side, second: Any) -> None:
        """Warps share the depth, or in a region the columns."""
        left, right = (second, first) if rows.transposed else (first, second)
        region = self.program.region
        if region is not None and tiling.split[2] > 1:
            for warp in self.warps:
                part = self.cut(right, -1, warp, columns.extent // len(self.warps))
                self.collect(result, warp, self.apply(OpKind.MATMUL, [left, part]))
            return
        tiles = -(-rows.depth // DEPTH_TILE)
        size = -(-tiles // tiling.copies) * DEPTH_TILE
        for warp in range(tiling.copies):
            if warp * size < rows.depth:
                factors = [self.cut(left, -1, warp, size), self.cut(right, -2, warp, size)]
                self.collect(result, warp, self.apply(OpKind.MATMUL, factors))
            else:
                nothing = self.apply(OpKind.CONST, (), ConstAttrs(Fraction(0)))
                self.registers.setdefault(result, {}).setdefault(warp, nothing)

    def _fragments(self, statement: Statement, actor: Actor) -> None:
        match statement:
            case staged.Evaluate(value):
                self.registers[fragment(value)] = {w: self.computed(value, actor, w) for w in self.warps}
            case staged.Pack(result, source):
                self.registers[result] = {w: self.held(source, w) for w in self.warps}
            case staged.SumPacked(result, packed, _, _, kept):
                target = f"sum_{result}" if kept else result
                self.parts.add(target)
                for warp in self.warps:
                    self.collect(target, warp, self.along(self.held(packed, warp), OpKind.SUM, int(packed[1:])))
            case staged.Largest(value, source, running, cells):
                read, top = self.ops[value].inputs[0], f"top{value}"
                made = {w: self.held(source, w) for w in self.warps}
                if cells.columns:
                    made = {w: self.along(x, OpKind.MAX, read) for w, x in made.items()}
                if not running:
                    self.registers[fragment(value)] = made
                    return
                self.rises[f"{value}"] += 1
                last = dict(self.registers.get(top, {}))
                for warp in self.warps:
                    self.collect(top, warp, made[warp], AccumKind.MAX)
                self.registers[f"shift{value}"] = {w: self._finite(self.held(top, w)) for w in self.warps}
                self.tops[f"fade{value}"] = {w: (last.get(w), self.held(f"shift{value}", w)) for w in self.warps}
            case staged.Change():
                self._change(statement)

    def _finite(self, top: Any) -> Any:
        """A maximum that can be taken off what is minus infinity; of residues as it is."""
        return self.algebra.view(top, lambda a: np.maximum(a, LOWEST) if a.dtype.kind == "f" else a)

    def _change(self, change: staged.Change) -> None:
        result, by = change.result, change.by
        match change.how:
            case How.LOWEST:
                self.registers[result] = {}
            case How.SUM | How.LARGEST:
                kind = AccumKind.SUM if change.how is How.SUM else AccumKind.MAX
                for warp in self.warps:
                    self.collect(result, warp, self.held(by, warp), kind)
                self.parts |= {result} if by in self.parts else set()
            case How.ALONG:
                self.parts.add(result)
                for warp in self.warps:
                    self.collect(result, warp, self.along(self.held(by, warp), OpKind.SUM, _number(by)))
            case How.ACROSS:
                if result not in self.parts:
                    self.wrong(f"{result} is whole, and counted four times")
                self.parts.discard(result)
            case How.SETTLE:
                if result not in self.registers:
                    self.wrong(f"{result} is added to before it is there")
                self.registers[result] = {w: self.held(by, w) for w in self.warps}
                self.parts.add(result)
            case How.FADE:
                self.faded[result] = self.faded.get(result, 0) + 1
                for warp in list(self.registers.get(result, {})):
                    last, top = self.tops.get(by, {}).get(warp, (None, None))
                    if last is None:
                        continue
                    factor = self.apply(OpKind.EXP, [self.apply(OpKind.SUB, [last, top])])
                    self.registers[result][warp] = self.apply(OpKind.MUL, [self.registers[result][warp], factor])
                if by not in self.tops:
                    self.wrong(f"{by} is read before it is there")
            case How.SPOIL:
                for warp in self.warps:
                    self.held(result, warp), self.held(by, warp)


def _number(name: str) -> int:
    return int(name.strip("f_"))


def follow(program: StagedProgram) -> tuple[str, ...]:
    """What goes wrong, whatever the numbers."""
    looked = Run(_shorter(program))
    looked.run()
    return tuple(looked.found)


def _shorter(program: StagedProgram) -> StagedProgram:
    """The same with fewer iterations, as many whole rounds of the ring."""
    loop, ring = program.block.loop, max(1, program.stages)
    less = max(0, loop // ring - FOLLOWED) * ring

    def shorter(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(map(changed, body))

    def changed(statement: Statement) -> Statement:
        match statement:
            case staged.Loop(count=count, body=body) | staged.Refill(count=count, body=body) if count > less + ring:
                return replace(statement, count=count - less, body=shorter(body))
        return statement

    if not less:
        return program
    block = replace(program.block, loop=loop - less)
    return replace(program, block=block, loader=shorter(program.loader), code=shorter(program.code))
