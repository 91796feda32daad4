"""The statements of a warp-private loop body: one operator after the other on fragments in registers.

In: the scope of a planned block with a region. Out: statements of its staged program in which each warp computes its
rows (and its part of the key axis). Invariant: no shared memory is written before the loop is over; partial row sums of
an accumulator are added over the four lanes then.
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage_nb.ir import AccumAttrs, AccumKind, OpKind
from mirage_nb.optimize.access import Scope, behind_views
from mirage_nb.optimize.vectors import sides
from mirage_nb.tile.rules.bodies import Region
from mirage_nb.tile.rules.order import Phase
from mirage_nb.tile.rules.placement import Place, Step
from mirage_nb.tile.rules.sharing import DEPTH_TILE, Cells, Tiling
from mirage_nb.tile.staged import program as staged
from mirage_nb.tile.staged.program import How, Signal, Statement, fragment

HELD_REGISTERS = 32
"""Registers that operands of the whole loop may take."""


class RegionPlanner:
    """Says what one region does. accumulator: of a value, the operator that takes it in; operands: values that products
    read from registers; folded: those that are added to their accumulator as they are computed; sums: of these, sums of
    rows that stay with the tensor cores until the loop is over; held: of products, registers with rows that no
    iteration changes; packed: operands that lie as rows of products so far."""

    def __init__(self, scope: Scope, region: Region) -> None:
        self.scope, self.region, ops = scope, region, scope.block.ops
        self.rows = Cells(region.row_tiles, 0)
        accumulator = {ops[i].inputs[0]: i for i in region.ops if isinstance(ops[i].attrs, AccumAttrs)}
        self.held: dict[int, str] = {}
        self.packed: set[int] = set()
        factors = [ops[i].inputs[0] for i in region.ops if ops[i].kind is OpKind.MATMUL]
        self.operands = frozenset(v for v in factors if scope.plan.places[v] is Place.REGISTER)
        uses = scope.block.uses()
        self.folded = {
            v: index for v, index in accumulator.items()
            if len(uses[v]) == 1 and scope.ops[v].kind in (OpKind.MATMUL, OpKind.SUM)
            and self._kind(index) is not AccumKind.MAX
        }  # fmt: skip
        self.sums = {
            v: self._sum(index) for v, index in self.folded.items()
            if scope.ops[v].kind is OpKind.SUM and scope.ops[v].inputs[0] in self.operands
            and self._kind(index) is AccumKind.SUM
        }  # fmt: skip

    def _kind(self, accum: int) -> AccumKind:
        attrs = self.scope.block.ops[accum].attrs
        assert isinstance(attrs, AccumAttrs)
        return attrs.kind

    def _sum(self, accum: int) -> str:
        """The registers of an accumulator; those of the max of a running maximum are the running maximum's."""
        (source, *_) = self.scope.block.ops[accum].inputs
        return f"top{source}" if self._is_shift(accum) else f"a{self.scope.first[accum]}"

    def _is_shift(self, accum: int) -> bool:
        """A max accumulator of a running maximum: the running maximum is its value."""
        return self.scope.block.ops[accum].inputs[0] in self.region.shifts and self._kind(accum) is AccumKind.MAX

    def _cells(self, value: int) -> Cells:
        """Of a value that this warp holds; without columns, of a column of row results."""
        columns = self.scope.shape(value)[-1]
        return Cells(self.region.row_tiles, self.region.column_tiles(value, columns) if columns > 1 else 0)

    @property
    def _accumulators(self) -> Iterator[tuple[int, int, AccumKind]]:
        """Operator, value and kind of those that have registers of their own."""
        for index in self.region.ops:
            if isinstance(self.scope.block.ops[index].attrs, AccumAttrs) and not self._is_shift(index):
                yield index, self.scope.first[index], self._kind(index)

    def declare(self) -> Iterator[Statement]:
        """This warp's place, accumulators, running maxima."""
        yield Signal.PLACE
        for shift in sorted(self.region.shifts):
            yield staged.Change(f"top{shift}", How.LOWEST, self.rows)
        for _, value, kind in self._accumulators:
            if kind is AccumKind.MAX:
                yield staged.Change(f"a{value}", How.LOWEST, self.rows)
            else:
                yield staged.Zeros(f"a{value}", self._cells(value).form)
        for target in self.sums.values():
            yield staged.Zeros(f"sum_{target}", (self.region.row_tiles, 4))

    def hoist(self) -> Iterator[Statement]:
        """Row sides that no iteration changes are loaded into registers once, before the loop.

        Not for warpgroups: the assembler gives the rows of two products the same registers, whatever lives on.
        """
        if self.scope.plan.options.wide:
            return
        anew = {s.value for s in self.scope.staged.steps if s.phase is Phase.LOOP}
        for index in self.region.ops:
            op, tiling = self.scope.block.ops[index], self.scope.staged.tiling(index)
            if op.kind is not OpKind.MATMUL or tiling is None:
                continue
            left, right = op.inputs
            rows, _ = sides(self.scope, tiling, left, right)
            depth = rows.depth // DEPTH_TILE
            streamed = self.scope.plan.places[left] is Place.REGISTER or behind_views(self.scope, left) in anew
            if streamed or not rows.along or 4 * self.region.row_tiles * depth > HELD_REGISTERS:
                continue
            if (name := f"held{left}") not in self.held.values():
                yield staged.Load(name, tiling, rows, depth, kept=True)
            self.held[index] = name

    def step(self, step: Step) -> Iterator[Statement]:
        """One operator of the body."""
        op = self.scope.block.ops[step.op]
        if op.kind is OpKind.MATMUL:
            yield from self._matmul(step.op)
        elif op.kind in (OpKind.SUM, OpKind.MAX):
            yield from self._reduce(step.op)
        elif isinstance(op.attrs, AccumAttrs):
            if op.inputs[0] not in self.folded and not self._is_shift(step.op):
                yield from self._fade(step.op)
                how = How.LARGEST if self._kind(step.op) is AccumKind.MAX else How.SUM
                value = self.scope.first[step.op]
                yield staged.Change(f"a{value}", how, self._cells(value), self._registers(op.inputs[0]))
        else:
            for value in self.scope.values(step.op):
                if self.scope.plan.places[value] is Place.REGISTER:
                    yield staged.Evaluate(value, self._cells(value), self._rounds(value))
                if value in self.region.shifts:  # a maximum that something joins
                    yield staged.Largest(value, fragment(value), True, self.rows)

    def _registers(self, value: int) -> str:
        """Those of a value of the body."""
        rows = self.scope.shape(value)[-1] <= 1
        return f"shift{value}" if rows and value in self.region.shifts else fragment(value)

    def _rounds(self, value: int) -> bool:
        """Whether a product reads a value rounded to its type, and others have to read the same: what is summed
        beside a product divides it later."""
        if value not in self.operands:
            return False
        readers = {self.scope.block.ops[i].kind for i in self.scope.block.uses()[value]}
        return not readers <= {OpKind.MATMUL, OpKind.SUM}

    def _target(self, value: int) -> Iterator[Statement]:
        """Where a value is added up: in its accumulator, or in registers of its own."""
        if value in self.folded:
            yield from self._fade(self.folded[value])
        else:
            yield staged.Zeros(fragment(value), self._cells(value).form)

    def _into(self, value: int) -> str:
        return self._sum(self.folded[value]) if value in self.folded else fragment(value)

    def _fade(self, accum: int) -> Iterator[Statement]:
        """What a rescaled accumulator holds shrinks by the rise of its running maximum."""
        if self._kind(accum) is AccumKind.RESCALE:
            op, value = self.scope.block.ops[accum], self.scope.first[accum]
            yield staged.Change(f"a{value}", How.FADE, self._cells(value), f"fade{op.inputs[1]}")

    def _pack(self, value: int) -> Iterator[Statement]:
        """A matrix in registers as the rows of a product; written once."""
        if value in self.operands and value not in self.packed:
            self.packed.add(value)
            yield staged.Pack(f"p{value}", fragment(value), self.scope.block.types[value].dtype, self._cells(value))

    def _matmul(self, index: int) -> Iterator[Statement]:
        op, value, tiling = self.scope.block.ops[index], self.scope.first[index], self.scope.staged.tiling(index)
        assert tiling is not None
        yield from self._target(value)
        yield from self._pack(op.inputs[0])
        yield staged.Warps(0, tiling, tuple(self._product(index, tiling, self._into(value))))

    def _product(self, index: int, tiling: Tiling, target: str) -> Iterator[Statement]:
        left, right = self.scope.block.ops[index].inputs
        rows, columns = sides(self.scope, tiling, left, right)
        depth, packed = rows.depth // DEPTH_TILE, f"p{left}"
        in_registers = self.scope.plan.places[left] is Place.REGISTER
        if self.scope.plan.options.wide:
            if not in_registers:
                yield staged.Load(packed, tiling, rows, depth, kept=False)
            yield staged.MultiplyPanels(target, packed, columns, behind_views(self.scope, right), depth)
        elif in_registers:
            yield staged.MultiplyPacked(target, packed, tiling, columns, self._cells(left).columns // 2)
        else:
            yield staged.Multiply(target, tiling, rows, columns, held=self.held.get(index, ""))

    def _reduce(self, index: int) -> Iterator[Statement]:
        op, value = self.scope.block.ops[index], self.scope.first[index]
        (source,) = op.inputs
        cells, target = self._cells(source), self._into(value)
        if op.kind is OpKind.MAX:
            yield staged.Largest(value, fragment(source), value in self.region.shifts, cells)
            return
        yield from self._target(value)
        if source in self.operands:
            yield from self._pack(source)
            dtype = self.scope.block.types[source].dtype
            yield staged.SumPacked(target, f"p{source}", dtype, cells, target in self.sums.values())
        else:
            yield staged.Change(target, How.ALONG, cells, fragment(source))
        if value not in self.folded:
            yield staged.Change(target, How.ACROSS, self._cells(value))

    # -- after the loop

    def settle(self) -> Iterator[Statement]:
        """Sums that were left in the accumulators of the tensor cores; no number in rows of which nothing but minus
        infinity was seen, unless warps that share them are still to agree on that."""
        for target in self.sums.values():
            yield staged.Change(target, How.SETTLE, self.rows, f"sum_{target}")
        for index, value, kind in self._accumulators if self.region.key_warps == 1 else ():
            if kind is AccumKind.RESCALE:
                top = f"top{self.scope.block.ops[index].inputs[1]}"
                yield staged.Change(f"a{value}", How.SPOIL, self._cells(value), top)

    def exchanged(self) -> tuple[tuple[str, int], ...]:
        """Row maxima that the key warps have to agree on, by their registers, and how many of them a block has."""
        if not self.region.agrees(self.scope.block):
            return ()
        maxima = [f"a{value}" for _, value, kind in self._accumulators if kind is AccumKind.MAX]
        count = self.region.key_warps * self.region.padded_rows
        return tuple((name, count) for name in (*(f"top{v}" for v in sorted(self.region.shifts)), *maxima))

    def agree(self) -> Iterator[Statement]:
        """Every warp takes the largest maximum and shrinks its rescaled accumulators accordingly."""
        for name, _ in self.exchanged():
            last = name.replace("top", "last") if name.startswith("top") else ""
            yield staged.Agree(name, last)
            for index, value, kind in self._accumulators if last else ():
                shift = self.scope.block.ops[index].inputs[-1]
                if kind is AccumKind.RESCALE and f"last{shift}" == last:
                    yield staged.Change(f"a{value}", How.FADE, self._cells(value), last)

    def close(self) -> Iterator[Statement]:
        """Row sums that the four lanes of a row have parts of become whole, where nothing leaves through memory."""
        for value in sorted({self.scope.first[index] for index in self.folded.values()} if self.region.direct else ()):
            if not self._cells(value).columns:
                yield staged.Change(f"a{value}", How.ACROSS, self.rows)

    def finish(self, step: Step) -> Statement:
        """An accumulator goes to its shared tile."""
        assert step.value is not None
        count = self.region.warps if self.region.warps < self.scope.plan.options.warps else 0
        tiling = self.scope.staged.tiling(step.op)
        if tiling is not None:
            return staged.Warps(count, tiling, (staged.Unload(step.value, f"a{step.value}", tiling),))
        summed = self.scope.block.ops[step.op].inputs[0] in self.folded
        return staged.Warps(count, None, (staged.LeaveRows(step.value, self._sum(step.op), summed),))

    def save(self, output: int, step: Step) -> Statement:
        """A value that is computed from accumulators in registers goes to device memory."""
        accumulated = [i for i in self.region.ops if isinstance(self.scope.block.ops[i].attrs, AccumAttrs)]
        return staged.SaveRows(output, step.op, tuple((self.scope.first[i], self._sum(i)) for i in accumulated))
