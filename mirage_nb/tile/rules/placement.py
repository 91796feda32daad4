"""Placement: where each value of a block lives, and which steps compute it.

In: the sketch of a block whose chains are fused. Out: a `Place` per value and the steps of the block in
dependency order. Invariant: every value that a step reads is a literal, a view, read from device memory,
computed in the reader's registers, or was written to shared memory by an earlier step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from mirage_nb.ir import OPS, AccumKind, DType, OpKind, Trait
from mirage_nb.ir.dtypes import Word
from mirage_nb.ir.graph import reached
from mirage_nb.tile.rules.order import Phase
from mirage_nb.tile.rules.shared import Use
from mirage_nb.tile.rules.sketch import MATMULS, REDUCTIONS, Node, Sketch


class Place(Word):
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


class StepKind(Word):
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
    """Place per value; element type in shared memory per value; steps in dependency order. early: values that are
    staged only to be there early. outer: of what is folded of smaller values alone, each read for many results, these;
    lone: inputs that are staged only because they are such."""

    places: tuple[Place, ...]
    stored: tuple[DType, ...]
    steps: tuple[Step, ...]
    early: frozenset[int]
    outer: Mapping[int, frozenset[int]]
    lone: frozenset[int]


INLINE_KINDS = frozenset({OpKind.FUSED, OpKind.REPEAT, OpKind.CONCAT})
_FOLDS = {
    OpKind.MATMUL: AccumKind.SUM, OpKind.CONCAT_MATMUL: AccumKind.SUM, OpKind.SUM: AccumKind.SUM,
    OpKind.MAX: AccumKind.MAX,
}  # fmt: skip
"""The accumulators that take a result straight from registers."""


def place(
    sketch: Sketch,
    private: Collection[int] = (),
    *,
    direct: bool = False,
    worth_having: Callable[[int], bool] = lambda value: True,
) -> Placement:
    """Place every value of a block.

    private: operators of a warp-private loop body (see `tile.rules.bodies`), empty if there is none; direct: its
    accumulators stay in registers. worth_having: whether a value is worth staging only to have it early.
    """
    return _Placer(sketch, frozenset(private), direct, worth_having).run()


class _Placer:
    """Holds the tables that the rules below look things up in."""

    def __init__(
        self, sketch: Sketch, private: frozenset[int], direct: bool, worth_having: Callable[[int], bool]
    ) -> None:
        self.sketch, self.private, self.direct, self.worth_having = sketch, private, direct, worth_having
        self.nodes, self.uses, self.defined = sketch.nodes, sketch.uses, sketch.defined
        self.readers = self._readers()
        self.factors = self._factors()
        self.early: set[int] = set()
        self.lone: set[int] = set()
        self.outer = self._outer()
        self.places = [self._place(v) if v in self.defined else Place.INLINE for v in range(len(sketch.values))]
        self.stored = tuple(self._stored(v) if v in self.defined else DType.F32 for v in range(len(sketch.values)))

    def run(self) -> Placement:
        steps = [step for index in range(len(self.nodes)) for step in self._steps(index)]
        ordered = sorted(steps, key=lambda step: step.phase.value)
        early, lone = frozenset(self.early), frozenset(self.lone)
        return Placement(tuple(self.places), self.stored, tuple(ordered), early, self.outer, lone)

    def _readers(self) -> list[frozenset[int]]:
        """Per value the operators that read it, seen through views."""
        found = [frozenset(users) for users in self.uses]
        for index in reversed(range(len(self.nodes))):
            if self.sketch.is_view(index):
                (read, *_), (made,) = self.nodes[index].reads, self.nodes[index].makes
                found[read] = found[read] - {index} | found[made]
        return found

    def _factors(self) -> frozenset[int]:
        """Values that a tensor-core Matmul reads, seen through views: kept in the operands' 16-bit type."""
        products = (node for node in self.nodes if node.kind in MATMULS and self.sketch.on_tensor_cores(node))
        return frozenset(self.leaf(value) for node in products for value in node.reads)

    def _outer(self) -> dict[int, frozenset[int]]:
        """What sums and maxima fold that is computed where it is read, of smaller values alone; and these."""
        found: dict[int, frozenset[int]] = {}
        for index, node in enumerate(self.nodes):
            if node.kind in (OpKind.SUM, OpKind.MAX) and index not in self.private:
                (whole,) = node.reads
                read = reached([whole], self._behind)
                sources = frozenset(v for v in read if not self._behind(v) and not self._is_literal(v))
                if sources and all(self.sketch.values[v].size < self.sketch.values[whole].size for v in sources):
                    found[whole] = sources
        return found

    def _behind(self, value: int) -> tuple[int, ...]:
        """What a value is computed of, or a view of, where it is read."""
        index = self.defined[value]
        node = self.nodes[index]
        inline = node.elementwise or node.kind is OpKind.REPEAT
        return node.reads if self.sketch.is_view(index) or (inline and self._place(value) is Place.INLINE) else ()

    def leaf(self, value: int) -> int:
        """The value behind a chain of views."""
        index = self.defined[value]
        return self.leaf(self.nodes[index].reads[0]) if self.sketch.is_view(index) else value

    def folded_into(self, index: int) -> int | None:
        """The accumulator that takes the result of operator `index` straight from registers, if one does."""
        node = self.nodes[index]
        if node.kind not in _FOLDS or len(users := self.uses[node.makes[0]]) != 1:
            return None
        return users[0] if self.nodes[users[0]].accum is _FOLDS[node.kind] else None

    def _streams(self, index: int) -> bool:
        """A concat accumulator that only savers read goes to device memory iteration by iteration."""
        node = self.nodes[index]
        return node.accum is AccumKind.CONCAT and all(
            self.nodes[user].kind is OpKind.OUT_SAVER for user in self.uses[node.makes[0]]
        )

    def _place(self, value: int) -> Place:
        index = self.defined[value]
        node, readers = self.nodes[index], self.readers[value]
        for_matmul = any(self.nodes[user].kind in MATMULS for user in readers)
        if self.sketch.is_view(index):
            return Place.VIEW
        if node.literal:
            return Place.LITERAL
        match node.kind:
            case OpKind.IN_ITER if node.numbered and not for_matmul:
                return Place.COUNTED
            case OpKind.IN_ITER:
                if not for_matmul and len(readers) <= 1:
                    early = self._may_be_early(node) and self.worth_having(value)
                    self.early |= {value} if early else set()
                    if any(value in sources for sources in self.outer.values()):
                        self.lone.add(value)
                    elif not early:
                        return Place.DEVICE
                return Place.SHARED
            case OpKind.ACCUM:
                if self.direct and index in self.private:
                    return Place.REGISTER
                return Place.NONE if self._streams(index) else Place.SHARED
            case _ if index in self.private:
                return Place.REGISTER
            case _ if self.folded_into(index) is not None or self._continued(index) is not None:
                return Place.NONE
            case kind if kind in INLINE_KINDS or node.elementwise:
                once = len(readers) <= 1 and not for_matmul and not self._repeated(value, readers)
                return Place.INLINE if once else Place.SHARED
            case _:
                return Place.SHARED

    def _is_literal(self, value: int) -> bool:
        """Whether the value stands in the source as a number."""
        return self.nodes[self.defined[value]].literal

    def _repeated(self, value: int, readers: frozenset[int]) -> bool:
        """Whether threads that multiply, or fragments of a warp-private body, would compute a value again and again."""
        size = self.sketch.values[value].size
        if all(self._is_literal(v) for v in self.nodes[self.defined[value]].reads):
            return False
        if any(value in map(self.leaf, self.nodes[i].factors) for i in readers):
            return True
        return any(self.sketch.values[v].size > size for i in readers & self.private for v in self.nodes[i].makes)

    def _continued(self, index: int) -> int | None:
        """What the threads that hold the result of a reduction compute from it at once: the one elementwise
        value that reads it, if that has its shape and nothing else goes into it."""
        if self.nodes[index].kind not in REDUCTIONS:
            return None
        (value,) = self.nodes[index].makes
        users = self.uses[value]
        if len(users) != 1 or not (reader := self.nodes[users[0]]).elementwise or len(reader.makes) != 1:
            return None
        alone = all(self._is_literal(v) for v in reader.reads if v != value)
        values, result = self.sketch.values, reader.makes[0]
        if not alone or values[result].shape != values[value].shape:
            return None
        return result if self._place(result) is Place.SHARED else None

    def _may_be_early(self, node: Node) -> bool:
        """Whether a tile with one reader may be on its way long before it is read.

        Beside a ring it travels with the ring, if the copy engine can take it. Without a loop it is asked
        for together with everything else, if barriers would otherwise stand before its first use.
        """
        if self.sketch.looped:
            return node.streamed and self.sketch.repeated and self._has_ring()
        return any(Trait.REDUCTION in OPS[other.kind].traits for other in self.nodes)

    def _has_ring(self) -> bool:
        """Whether a Matmul streams an operand through the loop."""
        return any(
            node.streamed and any(self.nodes[user].kind in MATMULS for user in self.readers[node.makes[0]])
            for node in self.nodes
        )

    def _stored(self, value: int) -> DType:
        node, dtype = self.nodes[self.defined[value]], self.sketch.values[value].dtype
        summed = node.accum not in (None, AccumKind.CONCAT)
        return dtype if node.kind is OpKind.IN_ITER or (value in self.factors and not summed) else DType.F32

    def _phase(self, index: int) -> Phase:
        if self.sketch.stages[index] == 1:
            return Phase.AFTER
        return Phase.BEFORE if self.sketch.invariant[index] else Phase.LOOP

    def _reads(self, values: tuple[int, ...]) -> frozenset[int]:
        """The shared values behind `values`."""

        def behind(value: int) -> tuple[int, ...]:
            node, place = self.nodes[self.defined[value]], self.places[value]
            held = place is Place.REGISTER and node.kind is not OpKind.ACCUM
            return node.reads if held or place in (Place.VIEW, Place.INLINE, Place.NONE) else ()

        return frozenset(value for value in reached(values, behind) if self.places[value] is Place.SHARED)

    def _steps(self, index: int) -> list[Step]:
        node = self.nodes[index]
        reads = self._reads(node.reads)
        if node.kind is OpKind.OUT_SAVER:
            streamed = self._streams(self.defined[node.reads[0]])
            return [Step(StepKind.SAVE, index, None, Phase.LOOP if streamed else Phase.AFTER, None, reads)]
        made = [v for v in node.makes if self.places[v] is Place.SHARED]
        if index in self.private:
            return self._private(index, made, reads)
        if node.accum is not None:
            return self._accumulate(index, node.accum, made, reads)
        if node.kind is OpKind.IN_ITER:
            early = self.sketch.invariant[index]
            return [Step(StepKind.LOAD, index, v, Phase.BEFORE if early else Phase.LOOP) for v in made]
        kind = StepKind.MAP
        if node.kind in MATMULS:
            kind = StepKind.MATMUL
        elif node.kind in REDUCTIONS:
            kind = StepKind.REDUCE
            made = [v for v in (self._continued(index),) if v is not None] or made
        elif any(self._continued(self.defined[v]) == w for v in node.reads for w in made):
            return []  # the reduction has computed it
        accum = self.folded_into(index)
        if accum is not None:
            return [Step(kind, index, None, Phase.LOOP, accum, reads)]
        return [Step(kind, index, v, self._phase(index), None, reads) for v in made]

    def _private(self, index: int, made: list[int], reads: frozenset[int]) -> list[Step]:
        """An operator of a warp-private body; an accumulator also has its end after the loop."""
        if self.nodes[index].kind is OpKind.ACCUM:
            step = Step(StepKind.FRAGMENT, index, None, Phase.LOOP, index, reads)
            return [step, *(Step(StepKind.FINISH, index, v, Phase.AFTER) for v in made)]
        return [Step(StepKind.FRAGMENT, index, None, Phase.LOOP, None, reads)]

    def _accumulate(self, index: int, accum: AccumKind, made: list[int], reads: frozenset[int]) -> list[Step]:
        if not made:
            return []
        if accum in (AccumKind.CONCAT, AccumKind.HOLD):
            return [Step(StepKind.MAP, index, made[0], Phase.LOOP, None, reads)]
        source = self.defined[self.nodes[index].reads[0]]
        folded = self.folded_into(source) == index
        finish = Step(StepKind.FINISH, index, made[0], Phase.AFTER)
        return [finish] if folded else [Step(StepKind.MAP, index, None, Phase.LOOP, index, reads), finish]


def is_tiled(sketch: Sketch, step: Step) -> bool:
    """Whether fragments of tensor cores hold what a step computes."""
    node = sketch.nodes[step.op]
    if step.kind is StepKind.FRAGMENT:
        return node.kind in (OpKind.MATMUL, OpKind.ACCUM) and sketch.values[node.makes[0]].long[-1]
    return node.kind in MATMULS and sketch.on_tensor_cores(node)


@dataclass(frozen=True, slots=True)
class Touched:
    """How a shared tensor is read; the step that leaves it; the one whose result, held by fragments of tensor cores, it
    is, if there is one."""

    reads: tuple[Use, ...]
    left: Step
    tiled: Step | None


def touched(sketch: Sketch, placement: Placement) -> dict[int, Touched]:
    """How every shared tensor of a block is written and read, in the order in which they are made."""
    steps, found = placement.steps, dict[int, Touched]()
    tiled = {step.op: step for step in steps if is_tiled(sketch, step)}
    for step in sorted((s for s in steps if s.value is not None), key=lambda s: s.value or 0):
        assert step.value is not None
        half = placement.stored[step.value].size == 2
        readers = [reader for reader in steps if step.value in reader.reads]
        chunks = [(half and tiled.get(r.op) is r) or _is_across(sketch, r, step.value) for r in readers]
        if any(step.value in placement.outer.get(v, ()) for r in readers for v in sketch.nodes[r.op].reads):
            chunks.append(True)
        uses = (Use.FACTOR if by_chunks else Use.VECTOR for by_chunks in chunks)
        writer = tiled.get(step.op)
        if step.kind is StepKind.FINISH:
            writer = next((s for s in tiled.values() if s.accum == step.op), None)
        found[step.value] = Touched(tuple(dict.fromkeys(uses)), step, writer)
    return found


def _is_across(sketch: Sketch, reader: Step, value: int) -> bool:
    """Whether threads side by side read rows of a value as columns of a product that they compute themselves, in chunks
    of what is summed."""
    node = sketch.nodes[reader.op]
    if sketch.on_tensor_cores(node):
        return False
    turned = (sketch.nodes[sketch.defined[right]] for _, right in node.pairs)
    return any(n.kind is OpKind.TRANSPOSE and value in n.reads for n in turned)
