"""Placement: where each value of a block graph lives, and which steps compute it.

In: a block graph (chains already fused). Out: a `Place` per value and the steps of the block in
dependency order. Invariant: every value that a step reads is a literal, a view, read from device memory,
computed in the reader's registers, or was written to shared memory by an earlier step.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mirage_nb.ir import (
    OPS,
    AccumAttrs,
    AccumKind,
    BlockGraph,
    DType,
    InIterAttrs,
    Op,
    OpKind,
    Trait,
)
from mirage_nb.optimize.held import REDUCTIONS
from mirage_nb.optimize.tiling import on_tensor_cores
from mirage_nb.tile.order import Phase
from mirage_nb.tile.shared import worth_having_early


class Place(enum.Enum):
    """Where readers find a value."""

    LITERAL = "literal"
    COUNTED = "counted"
    """An input iterator over the numbers of places: what a reader finds there is its own index."""
    DEVICE = "device"
    """An input iterator that its one reader takes straight from device memory."""
    SHARED = "shared"
    VIEW = "view"
    """Another index into the operand."""
    INLINE = "inline"
    """Computed in registers where it is read."""
    REGISTER = "register"
    """With the thread or the warp that loads or computes it: a tile in registers, a warp-private loop body."""
    NONE = "none"
    """Never read as a whole: folded into an accumulator or written straight to device memory."""


class StepKind(enum.Enum):
    """What the threads of a block do together between two barriers."""

    LOAD = "load"
    MAP = "map"
    REDUCE = "reduce"
    MATMUL = "matmul"
    FRAGMENT = "fragment"
    """One operator of a warp-private loop body."""
    FINISH = "finish"
    """Registers of an accumulator go to shared memory after the loop."""
    SAVE = "save"


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `op` is the operator it computes; `accum` the accumulator that takes its result, or None.

    `value` is what it leaves in shared memory (None: nothing): a reduction may go on with an elementwise
    operator on its result and leave that one's. `reads` are shared values.
    """

    kind: StepKind
    op: int
    value: int | None
    phase: Phase
    accum: int | None = None
    reads: frozenset[int] = frozenset()

    @property
    def issued(self) -> bool:
        """Whether others do it while the threads go on: a copy from device memory."""
        return self.kind is StepKind.LOAD


@dataclass(frozen=True, slots=True)
class Placement:
    """Place per value; element type in shared memory per value; steps in dependency order."""

    places: tuple[Place, ...]
    stored: tuple[DType, ...]
    steps: tuple[Step, ...]


INLINE_KINDS = frozenset({OpKind.FUSED, OpKind.REPEAT, OpKind.CONCAT})
VIEW_KINDS = frozenset({OpKind.RESHAPE, OpKind.TRANSPOSE})
MATMULS = frozenset({OpKind.MATMUL, OpKind.CONCAT_MATMUL})


def pairs(op: Op) -> tuple[tuple[int, int], ...]:
    """The (left, right) operands of a Matmul or ConcatMatmul."""
    if op.kind is OpKind.MATMUL:
        return ((op.inputs[0], op.inputs[1]),)
    w, x, y, z = op.inputs
    return ((w, y), (x, z))


def place(
    block: BlockGraph,
    literal_args: frozenset[int] = frozenset(),
    private: tuple[int, ...] = (),
    *,
    direct: bool = False,
    numbered: frozenset[int] = frozenset(),
) -> Placement:
    """Place every value of `block`.

    literal_args: operands that are constants of the kernel graph; numbered: those whose elements are the numbers of
    their places. private: operators of a warp-private loop body (see `optimize.region`), empty if there is none;
    direct: its accumulators stay in registers.
    """
    return _Placer(block, literal_args, frozenset(private), direct, numbered).run()


class _Placer:
    """Holds the tables that the rules below look things up in."""

    def __init__(
        self,
        block: BlockGraph,
        literal_args: frozenset[int],
        private: frozenset[int],
        direct: bool,
        numbered: frozenset[int],
    ) -> None:
        self.block = block
        self.private = private
        self.direct = direct
        self.literal_args = literal_args
        self.numbered = numbered
        self.values = [values for _, values in block.definitions()]
        self.defined = {v: i for i, values in enumerate(self.values) for v in values}
        self.uses = block.uses()
        self.stages = block.stages()
        self.invariant = self._invariant()
        self.factors = self._factors()
        self.places = [self._place(v) for v in range(len(block.types))]
        self.stored = tuple(self._stored(v) for v in range(len(block.types)))

    def run(self) -> Placement:
        steps = [step for index in range(len(self.block.ops)) for step in self._steps(index)]
        ordered = sorted(steps, key=lambda step: step.phase.value)
        return Placement(tuple(self.places), self.stored, tuple(ordered))

    def _invariant(self) -> list[bool]:
        """Per value: the same in every iteration."""
        found: list[bool] = []
        for op, values in zip(self.block.ops, self.values, strict=True):
            match op.attrs:
                case InIterAttrs(fmap=fmap):
                    same = fmap is None or self.block.loop == 1
                case AccumAttrs():
                    same = False
                case _:
                    same = all(found[v] for v in op.inputs)
            found.extend(same for _ in values)
        return found

    def readers(self, value: int) -> set[int]:
        """Operators that read `value`, seen through views."""
        found: set[int] = set()
        for index in self.uses[value]:
            if self._is_view(index):
                found |= self.readers(self.values[index][0])
            else:
                found.add(index)
        return found

    def _is_view(self, index: int) -> bool:
        op = self.block.ops[index]
        held = isinstance(op.attrs, AccumAttrs) and op.attrs.kind is AccumKind.HOLD
        return op.kind in VIEW_KINDS or (held and self.invariant[op.inputs[0]])

    def _factors(self) -> frozenset[int]:
        """Values that a tensor-core Matmul reads, seen through views: kept in the operands' 16-bit type."""
        found: set[int] = set()
        for op in self.block.ops:
            if op.kind in MATMULS:
                for left, right in pairs(op):
                    if on_tensor_cores(self.block.types[left], self.block.types[right]):
                        found |= {self.leaf(left), self.leaf(right)}
        return frozenset(found)

    def leaf(self, value: int) -> int:
        """The value behind a chain of views."""
        index = self.defined[value]
        return self.leaf(self.block.ops[index].inputs[0]) if self._is_view(index) else value

    def folded_into(self, index: int) -> int | None:
        """The accumulator that takes the result of operator `index` straight from registers, if one does."""
        op = self.block.ops[index]
        match op.kind:
            case OpKind.MATMUL | OpKind.CONCAT_MATMUL | OpKind.SUM:
                kind = AccumKind.SUM
            case OpKind.MAX:
                kind = AccumKind.MAX
            case _:
                return None
        readers = self.uses[self.values[index][0]]
        if len(readers) != 1:
            return None
        attrs = self.block.ops[readers[0]].attrs
        return readers[0] if isinstance(attrs, AccumAttrs) and attrs.kind is kind else None

    def _streams(self, index: int) -> bool:
        """A concat accumulator that only savers read goes to device memory iteration by iteration."""
        op = self.block.ops[index]
        return (
            isinstance(op.attrs, AccumAttrs)
            and op.attrs.kind is AccumKind.CONCAT
            and all(self.block.ops[i].kind is OpKind.OUT_SAVER for i in self.uses[self.values[index][0]])
        )

    def _place(self, value: int) -> Place:
        index = self.defined[value]
        op = self.block.ops[index]
        readers = self.readers(value)
        for_matmul = any(self.block.ops[i].kind in MATMULS for i in readers)
        if self._is_view(index):
            return Place.VIEW
        match op.kind:
            case _ if self._is_literal(value):
                return Place.LITERAL
            case OpKind.IN_ITER:
                assert isinstance(op.attrs, InIterAttrs)
                if op.attrs.arg in self.numbered and not for_matmul:
                    return Place.COUNTED
                early = for_matmul or len(readers) > 1 or self._worth_prefetching(value, op.attrs)
                return Place.SHARED if early else Place.DEVICE
            case OpKind.ACCUM:
                if self.direct and index in self.private:
                    return Place.REGISTER
                return Place.NONE if self._streams(index) else Place.SHARED
            case _ if index in self.private:
                return Place.REGISTER
            case _ if self.folded_into(index) is not None or self._continued(index) is not None:
                return Place.NONE
            case kind if kind in INLINE_KINDS or Trait.ELEMENTWISE in OPS[kind].traits:
                once = len(readers) <= 1 and not for_matmul and not self._repeated(value, readers)
                return Place.INLINE if once else Place.SHARED
            case _:
                return Place.SHARED

    def _is_literal(self, value: int) -> bool:
        """Whether the value stands in the source as a number."""
        op = self.block.ops[self.defined[value]]
        return op.kind is OpKind.CONST or (isinstance(op.attrs, InIterAttrs) and op.attrs.arg in self.literal_args)

    def _repeated(self, value: int, readers: set[int]) -> bool:
        """Whether fragments of a warp-private body would compute a value again and again."""
        size = self.block.types[value].elements
        if all(self._is_literal(v) for v in self.block.ops[self.defined[value]].inputs):
            return False
        return any(self.block.types[v].elements > size for i in readers & self.private for v in self.values[i])

    def _continued(self, index: int) -> int | None:
        """What the threads that hold the result of a reduction compute from it at once: the one elementwise
        value that reads it, if that has its shape and nothing else goes into it."""
        if self.block.ops[index].kind not in REDUCTIONS:
            return None
        (value,) = self.values[index]
        readers = [self.block.ops[i] for i in self.uses[value]]
        if len(readers) != 1 or not self._elementwise(readers[0].kind):
            return None
        results = self.values[self.uses[value][0]]
        others = [v for v in readers[0].inputs if v != value]
        alone = len(results) == 1 and all(self._is_literal(v) for v in others)
        if not alone or self.block.types[results[0]].shape != self.block.types[value].shape:
            return None
        return results[0] if self._place(results[0]) is Place.SHARED else None

    @staticmethod
    def _elementwise(kind: OpKind) -> bool:
        return kind is OpKind.FUSED or Trait.ELEMENTWISE in OPS[kind].traits

    def _worth_prefetching(self, value: int, attrs: InIterAttrs) -> bool:
        """Whether a tile with one reader should be on its way long before it is read.

        Beside a ring it travels with the ring, if the copy engine can take it. Without a loop it is asked
        for together with everything else, if barriers would otherwise stand before its first use.
        """
        tile, looped = self.block.types[value], self.block.has_loop
        if not tile.shape or not worth_having_early(looped, tile.nbytes, tile.shape[-1], tile.dtype.size):
            return False
        if looped:
            return attrs.fmap is not None and self.block.loop > 1 and self._has_ring()
        return any(Trait.REDUCTION in OPS[op.kind].traits for op in self.block.ops)

    def _has_ring(self) -> bool:
        """Whether a Matmul streams an operand through the loop."""
        return any(
            isinstance(op.attrs, InIterAttrs)
            and op.attrs.fmap is not None
            and any(self.block.ops[i].kind in MATMULS for i in self.readers(values[0]))
            for op, values in zip(self.block.ops, self.values, strict=True)
        )

    def _stored(self, value: int) -> DType:
        op = self.block.ops[self.defined[value]]
        dtype = self.block.types[value].dtype
        summed = isinstance(op.attrs, AccumAttrs) and op.attrs.kind is not AccumKind.CONCAT
        if op.kind is OpKind.IN_ITER or (value in self.factors and not summed):
            return dtype
        return DType.F32

    def _phase(self, index: int) -> Phase:
        if self.stages[index] == 1:
            return Phase.AFTER
        return Phase.BEFORE if all(self.invariant[v] for v in self.values[index]) else Phase.LOOP

    def _reads(self, values: tuple[int, ...]) -> frozenset[int]:
        """The shared values behind `values`."""
        found: set[int] = set()
        for value in values:
            if self.places[value] is Place.SHARED:
                found.add(value)
            elif self.places[value] in (Place.VIEW, Place.INLINE, Place.REGISTER, Place.NONE):
                op = self.block.ops[self.defined[value]]
                kept = self.places[value] is Place.REGISTER and op.kind is OpKind.ACCUM
                found |= frozenset() if kept else self._reads(op.inputs)
        return frozenset(found)

    def _steps(self, index: int) -> list[Step]:
        op = self.block.ops[index]
        reads = self._reads(op.inputs)
        if op.kind is OpKind.OUT_SAVER:
            streamed = self._streams(self.defined[op.inputs[0]])
            return [Step(StepKind.SAVE, index, None, Phase.LOOP if streamed else Phase.AFTER, None, reads)]
        made = [v for v in self.values[index] if self.places[v] is Place.SHARED]
        if index in self.private:
            return self._private(index, made, reads)
        if isinstance(op.attrs, AccumAttrs):
            return self._accumulate(index, op.attrs, made, reads)
        if op.kind is OpKind.IN_ITER:
            early = self.invariant[self.values[index][0]]
            return [Step(StepKind.LOAD, index, v, Phase.BEFORE if early else Phase.LOOP) for v in made]
        kind = StepKind.MAP
        if op.kind in MATMULS:
            kind = StepKind.MATMUL
        elif op.kind in REDUCTIONS:
            kind = StepKind.REDUCE
            made = [v for v in (self._continued(index),) if v is not None] or made
        elif any(self._continued(self.defined[v]) == w for v in op.inputs for w in made):
            return []  # the reduction has computed it
        accum = self.folded_into(index)
        if accum is not None:
            return [Step(kind, index, None, Phase.LOOP, accum, reads)]
        return [Step(kind, index, v, self._phase(index), None, reads) for v in made]

    def _private(self, index: int, made: list[int], reads: frozenset[int]) -> list[Step]:
        """An operator of a warp-private body; an accumulator also has its end after the loop."""
        op = self.block.ops[index]
        if op.kind is OpKind.ACCUM:
            step = Step(StepKind.FRAGMENT, index, None, Phase.LOOP, index, reads)
            return [step, *(Step(StepKind.FINISH, index, v, Phase.AFTER) for v in made)]
        return [Step(StepKind.FRAGMENT, index, None, Phase.LOOP, None, reads)]

    def _accumulate(self, index: int, attrs: AccumAttrs, made: list[int], reads: frozenset[int]) -> list[Step]:
        if not made:
            return []
        if attrs.kind in (AccumKind.CONCAT, AccumKind.HOLD):
            return [Step(StepKind.MAP, index, made[0], Phase.LOOP, None, reads)]
        source = self.defined[self.block.ops[index].inputs[0]]
        folded = self.folded_into(source) == index
        finish = Step(StepKind.FINISH, index, made[0], Phase.AFTER)
        return [finish] if folded else [Step(StepKind.MAP, index, None, Phase.LOOP, index, reads), finish]
