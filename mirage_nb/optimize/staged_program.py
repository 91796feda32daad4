"""The planner's last word on a block whose tiles pass through shared memory: its plan becomes a staged program.

In: the scope of a planned block, what may overlap, the types of its outputs. Out: a `StagedProgram`: who waits for what
and when, how every tile is shared, which registers hold what. Invariant: no thread that computes reads what an earlier
launch writes, or stores to device memory, before it has waited for the kernel in front.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mirage_nb.ir import AccumAttrs, AccumKind, InIterAttrs, OpKind, OutSaverAttrs, TensorType
from mirage_nb.optimize.access import Scope, behind_views
from mirage_nb.optimize.overlap import Overlap
from mirage_nb.optimize.region_program import RegionPlanner
from mirage_nb.optimize.vectors import copied, multiplied, share, sides, stored, vectors
from mirage_nb.optimize.wide import right_leaves
from mirage_nb.tile.index import Index, named
from mirage_nb.tile.roles.program import flat
from mirage_nb.tile.rules.boxes import bulk_of, read_once
from mirage_nb.tile.rules.order import Phase
from mirage_nb.tile.rules.placement import Place, Step, StepKind
from mirage_nb.tile.rules.sharing import Side, Tiling, twins
from mirage_nb.tile.rules.sketch import pairs
from mirage_nb.tile.staged import program as staged
from mirage_nb.tile.staged.program import KINDS, Signal, StagedProgram, Statement


def staged_program(scope: Scope, overlap: Overlap, outputs: tuple[TensorType, ...]) -> StagedProgram:
    """The program of a block that is planned as `Staged`."""
    return _Planner(scope, overlap, outputs).program()


class _Planner:
    """Writes one program. awaited: the early loads have landed; pending: nothing has waited for the kernel in front."""

    def __init__(self, scope: Scope, overlap: Overlap, outputs: tuple[TensorType, ...]) -> None:
        self.scope, self.overlap, self.outputs = scope, overlap, outputs
        self.options, self.block, self.staged = scope.plan.options, scope.block, scope.staged
        region = self.staged.region
        self.region = RegionPlanner(scope, region) if region else None
        self.wide_tiles = right_leaves(scope.block, region) if self.options.wide and region else frozenset[int]()
        self.ring = self._loads(Phase.LOOP)
        if self.options.bulk:  # what takes longest is asked for first
            self.ring.sort(key=lambda s: -scope.block.types[s.value or 0].nbytes)
        self.slots = self.options.stages if self.ring else 0
        self.pending, self.awaited, self.looped = overlap.behind, True, False

    def program(self) -> StagedProgram:
        plan, loader = self.scope.plan, tuple(self._loader()) if self.options.bulk else ()
        code = tuple(self._code())
        scratch = [(f"{name}_all", length) for name, length in (self.region.exchanged() if self.region else ())]
        if any(isinstance(s, staged.Reduce | staged.Total) and s.share.whole_block for s in flat(code)):
            scratch.append(("scratch", self.options.warps))
        return StagedProgram(
            self.block, plan.places, plan.stored, self.outputs, self.options.warps, self.staged.buffers, tuple(scratch),
            tuple(s.value for s in self.ring if s.value is not None), self.slots, self.staged.region, loader, code,
            self.overlap.late, self.overlap.behind,
        )  # fmt: skip

    def _loads(self, phase: Phase) -> list[Step]:
        return [s for s in self.staged.steps if s.kind is StepKind.LOAD and s.phase is phase]

    def _phase(self, phase: Phase) -> list[tuple[int, Step]]:
        """The steps of a phase that are not issued, with their positions."""
        return [(i, s) for i, s in enumerate(self.staged.steps) if s.phase is phase and s.kind is not StepKind.LOAD]

    # -- when

    def _before(self, steps: Iterable[Step]) -> Iterator[Statement]:
        """A wait for the kernel in front, if one of the steps that follow has to and nothing has waited yet."""
        if self.pending and any(map(self._late, steps)):
            self.pending = False
            yield Signal.DEPEND

    def _late(self, step: Step) -> bool:
        """Whether a step stores to device memory, or reads there what an earlier launch writes."""
        op = self.block.ops[step.op]
        if isinstance(op.attrs, InIterAttrs):
            return op.attrs.arg in self.overlap.late
        return step.kind is StepKind.SAVE or any(self._reads_late(v) for v in op.inputs)

    def _reads_late(self, value: int) -> bool:
        op = self.scope.ops[value]
        match self.scope.plan.places[value]:
            case Place.DEVICE:
                return self.scope.reads[value].arg in self.overlap.late
            case Place.SHARED | Place.LITERAL | Place.COUNTED:
                return False
            case _:
                return any(self._reads_late(v) for v in op.inputs)

    def _sync(self) -> Iterator[Statement]:
        """A barrier of all threads that compute; the first one also completes the early loads."""
        if not self.awaited:
            self.awaited = True
            yield staged.Landed(0 if self.options.bulk or not self.slots or self.looped else self.slots - 1)
        yield Signal.BARRIER

    def _code(self) -> Iterator[Statement]:
        yield from self._begin()
        yield from self._steps(Phase.BEFORE)
        yield from self.region.declare() if self.region else self._accumulators()
        if self._phase(Phase.LOOP):
            yield from self._loop()
        if self.region is not None:
            yield from self.region.settle()
            if shown := tuple(name for name, _ in self.region.exchanged()):
                yield staged.Publish(shown)
                yield from self._sync()
                yield from self.region.agree()
            yield from self.region.close()
        yield from self._steps(Phase.AFTER)

    def _begin(self) -> Iterator[Statement]:
        """Issue the loads that happen once, then start the ring."""
        early = sorted(self._loads(Phase.BEFORE), key=self._late)
        for step in early:
            yield from self._before([step])
            yield from self._copies([step], Index())
        if early:
            self.awaited = False
            yield Signal.COMMIT
        if self.options.bulk:
            yield Signal.READY
            return
        yield from self._before(self.ring)
        if self.slots:
            fills = self._copies(self.ring, named("f", self.slots - 1))
            yield staged.Loop("f", self.slots - 1, (*fills, Signal.COMMIT))

    def _copies(self, steps: Iterable[Step], iteration: Index) -> list[Statement]:
        return [copied(self.scope, s.value, iteration) for s in steps if s.value is not None]

    def _loop(self) -> Iterator[Statement]:
        yield from self._before(step for _, step in self._phase(Phase.LOOP))
        if self.staged.entry_barrier and (self.options.bulk or not self.slots or self.region is not None):
            yield from self._sync()
        if self.region is not None:
            yield from self.region.hoist()
        # A ring of cp.async waits for everything older than itself, and has a barrier in every iteration.
        self.awaited = self.awaited or (self.slots > 0 and not self.options.bulk)
        self.looped = True
        current = [Signal.CURRENT] if self.ring else []
        body = (*self._enter(), *current, *self._steps(Phase.LOOP), *self._leave())
        yield staged.Loop("iteration", self.block.loop, body)

    def _enter(self) -> Iterator[Statement]:
        """Wait for the stage of this iteration; where all threads copy, refill the one that the last has left."""
        if self.options.bulk:
            yield Signal.AWAIT
        elif self.slots:
            yield staged.Landed(self.slots - 2)
        if self.staged.loop_barrier or (self.slots and not self.options.bulk):
            yield from self._sync()
        if self.slots and not self.options.bulk:
            ahead, loop = self.slots - 1, self.block.loop
            yield staged.Refill(ahead, loop, tuple(self._copies(self.ring, named("iteration", loop - ahead) + ahead)))
            yield Signal.COMMIT

    def _leave(self) -> Iterator[Statement]:
        """Hand the stage back. An arrival does not wait for loads in front of it: on a card the engine overwrote what
        was still being read. Products of warpgroups are waited for."""
        if self.options.bulk:
            yield from [Signal.FENCE] if self._loaded() else []
            yield Signal.RELEASE

    def _loaded(self) -> bool:
        """Whether ordinary loads read a tile of the ring, in the loop."""
        ring = {s.value for s in self.ring}
        for _, step in self._phase(Phase.LOOP):
            read = set(step.reads)
            if self.options.wide and step.kind is StepKind.FRAGMENT:
                op = self.block.ops[step.op]
                operands = op.inputs[:1] if op.kind is OpKind.MATMUL else op.inputs  # its columns stay where they are
                read = {behind_views(self.scope, v) for v in operands}
            if not read.isdisjoint(ring):
                return True
        return False

    def _loader(self) -> Iterator[Statement]:
        """What nothing in front writes comes first, as much as the ring holds."""
        loop, late = self.block.loop, {step: self._late(step) for step in self.ring}
        first, brought = 0, {step: self._bring(step) for step in self.ring}
        nbytes = (b.bulk.elements * self.scope.plan.stored[b.value].size for b in brought.values())
        announce = staged.Announce(sum(nbytes))
        if self.pending and len(set(late.values())) > 1:
            first = min(self.slots, loop)
            yield staged.Loop("f", first, (announce, *(b for step, b in brought.items() if not late[step])))
            yield Signal.DEPEND
            yield staged.Loop("f", first, tuple(b for step, b in brought.items() if late[step]))
        elif self.pending and any(late.values()):
            yield Signal.DEPEND
        if first < loop:
            yield staged.Loop("f", loop, (Signal.ACQUIRE, announce, *brought.values()), first)

    def _bring(self, step: Step) -> staged.Bring:
        assert step.value is not None
        attrs = self.scope.reads[step.value]
        bulk = bulk_of(self.block, attrs)
        assert bulk is not None, "else there are no bulk copies"
        return staged.Bring(step.value, bulk, read_once(self.block, attrs))

    # -- what

    def _accumulators(self) -> Iterator[Statement]:
        done, threads = set(), self.scope.threads
        for step in self.staged.steps:
            if step.accum is None or step.accum in done:
                continue
            done.add(step.accum)
            attrs, name = self.block.ops[step.accum].attrs, self._registers(step.accum)
            assert isinstance(attrs, AccumAttrs)
            tiling = self.staged.tiling(step.op)
            if tiling is not None:
                yield staged.Zeros(name, (*tiling.per_warp[:3], 4))
                continue
            if step.kind is StepKind.MATMUL:
                count = multiplied(self.scope, self.scope.first[step.op]).slots(threads)
            elif step.kind is StepKind.REDUCE:
                count = share(self.scope, step.op).slots
            else:
                count = vectors(self.scope, self.block.ops[step.accum].inputs[0]).registers(threads)
            yield staged.Start(name, attrs.kind, count)

    def _registers(self, accum: int) -> str:
        return f"a{self.scope.first[accum]}"

    def _steps(self, phase: Phase) -> Iterator[Statement]:
        for position, step in self._phase(phase):
            if position in self.staged.barriers:
                yield from self._sync()
            yield from self._before([step])
            yield staged.Task(step, self.staged.tiling(step.op), tuple(self._step(step)))

    def _step(self, step: Step) -> Iterator[Statement]:
        match step.kind:
            case StepKind.MAP:
                yield self._map(step)
                if step.value in self.wide_tiles:
                    yield Signal.FENCE
            case StepKind.REDUCE:
                yield self._reduce(step)
            case StepKind.MATMUL:
                yield self._matmul(step)
            case StepKind.FRAGMENT:
                assert self.region is not None
                yield from self.region.step(step)
            case StepKind.FINISH:
                yield self.region.finish(step) if self.region else self._finish(step)
            case StepKind.SAVE:
                yield self._save(step)
            case StepKind.LOAD:
                raise AssertionError("loads are issued by the ring, or before everything else")

    def _map(self, step: Step) -> Statement:
        op, scope = self.block.ops[step.op], self.scope
        if not isinstance(op.attrs, AccumAttrs):
            assert step.value is not None
            return staged.Compute(step.value, vectors(scope, step.value, computed=True))
        walked = vectors(scope, op.inputs[0])
        if step.value is None:
            return staged.Add(self._registers(step.op), op.attrs.kind, op.inputs, walked)
        return staged.Move(step.value, op.inputs[0], op.attrs.dim, walked)

    def _save(self, step: Step) -> Statement:
        """A streamed value goes to its place for this iteration."""
        op = self.block.ops[step.op]
        assert isinstance(op.attrs, OutSaverAttrs)
        number, source, along = self.block.savers.index(op), op.inputs[0], None
        if self.region is not None and self.region.region.direct:
            return self.region.save(number, step)
        feeding = self.scope.ops[source]
        if self.scope.plan.places[source] is Place.NONE and isinstance(feeding.attrs, AccumAttrs):
            source, along = feeding.inputs[0], feeding.attrs.dim
        run = self.outputs[number].shape[-1]
        walked = vectors(self.scope, source) if along is not None else stored(self.scope, source, run)
        return staged.Save(number, step.op, source, along, walked)

    def _reduce(self, step: Step) -> Statement:
        op, shared = self.block.ops[step.op], share(self.scope, step.op)
        if step.accum is not None:
            return staged.Partial(self._registers(step.accum), KINDS[op.kind], op.inputs, shared)
        assert step.value is not None
        return staged.Reduce(step.value, self.scope.first[step.op], KINDS[op.kind], op.inputs, shared)

    def _matmul(self, step: Step) -> Statement:
        """Into accumulator registers, or through them into its shared tile."""
        op, value, tiling = self.block.ops[step.op], self.scope.first[step.op], self.staged.tiling(step.op)
        factors = pairs(op.kind, op.inputs)
        name = self._registers(step.accum) if step.accum is not None else f"a{value}"
        if tiling is None:
            walked = multiplied(self.scope, value)
            return staged.Dot(name if step.accum is not None else "", value, factors, walked)
        body: list[Statement] = [] if step.accum is not None else [staged.Zeros(name, (*tiling.per_warp[:3], 4))]
        body += [staged.Multiply(name, tiling, *both, n) for n, both in enumerate(self._sides(step.op, tiling))]
        if step.value is not None:
            body.append(self._unload(step.op, step.value, name, tiling))
        return staged.Warps(0, tiling, tuple(body))

    def _sides(self, product: int, tiling: Tiling) -> list[tuple[Side, Side]]:
        """Of all products that an operator adds up."""
        op = self.block.ops[product]
        factors = pairs(op.kind, op.inputs)
        return [sides(self.scope, tiling, *both, alone=len(factors) == 1) for both in factors]

    def _unload(self, product: int, value: int, name: str, tiling: Tiling) -> Statement:
        return staged.Unload(value, name, tiling, twins(self.block.types, *self._sides(product, tiling)[0]))

    def _finish(self, step: Step) -> Statement:
        """Registers of an accumulator go to its shared tile."""
        assert step.value is not None
        source, name = next(s for s in self.staged.steps if s.accum == step.op), f"a{step.value}"
        match source.kind:
            case StepKind.MATMUL:
                tiling = self.staged.tiling(source.op)
                if tiling is not None:
                    return staged.Warps(0, tiling, (self._unload(source.op, step.value, name, tiling),))
                return staged.Leave(step.value, name, multiplied(self.scope, step.value))
            case StepKind.REDUCE:
                op = self.block.ops[source.op]
                kind = AccumKind.SUM if op.kind is OpKind.SUM else AccumKind.MAX
                return staged.Total(step.value, name, kind, share(self.scope, source.op))
            case _:
                return staged.Leave(step.value, name, vectors(self.scope, self.block.ops[step.op].inputs[0]))
