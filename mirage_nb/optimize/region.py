"""Warp-private loop bodies: every value of the body stays in registers of the warp that computes it.

In: a block graph whose loop chains matrix multiplications (attention). Out: a `Region`: warps take 16-row
tiles of the result, and, where the body allows it, parts of the key axis, each with its own accumulators
that are added up after the loop. Invariant: a warp needs no product that another warp computes in the loop.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from mirage_nb.ir import (
    OPS,
    AccumAttrs,
    AccumKind,
    BlockGraph,
    DimAttrs,
    InIterAttrs,
    Op,
    OpKind,
    ThreadGraph,
    Trait,
)
from mirage_nb.optimize.tiling import Tiling, on_tensor_cores
from mirage_nb.tile import bodies
from mirage_nb.tile.bodies import Held, fits, row_tiles, row_warps
from mirage_nb.tile.sharing import COLUMN_TILE, DEPTH_TILE, ROW_TILE


@dataclass(frozen=True, slots=True)
class Region:
    """How warps share a warp-private loop body.

    rows: extent of the row axis; split over `row_warps`. Columns of the `keyed` values and the depth of
    products with them are split over `key_warps`. shifts: Max values that are replaced by their running
    maximum, so that rescaled accumulators add in place. ops: the operators of the body, accumulators
    included, in order. direct: accumulators go from registers to device memory, through elementwise operators only.
    """

    rows: int
    row_warps: int
    key_warps: int
    keyed: frozenset[int]
    shifts: frozenset[int]
    ops: tuple[int, ...]
    direct: bool = False

    @property
    def warps(self) -> int:
        """Warps that work; others wait at barriers."""
        return self.row_warps * self.key_warps

    @property
    def padded_rows(self) -> int:
        """Rows of all warps together."""
        return self.row_warps * self.row_tiles * ROW_TILE

    @property
    def row_tiles(self) -> int:
        """16-row tiles of one warp."""
        return int(row_tiles(self.rows, self.row_warps))

    def column_tiles(self, value: int, columns: int) -> int:
        """8-column tiles of a value that one warp holds."""
        return columns // COLUMN_TILE // (self.key_warps if value in self.keyed else 1)

    def tiling(self, value: int, columns: int, depth: int) -> Tiling:
        """How warps share `value`, [rows, columns], a product over `depth` or an accumulator."""
        keyed = value in self.keyed
        split = (1, self.row_warps, self.key_warps if keyed else 1, 1 if keyed else self.key_warps)
        return Tiling(1, self.rows, columns, depth, False, split)


class Shift(enum.Enum):
    """What a shift by the running maximum does to a value."""

    PLAIN = 0
    """Nothing."""
    TOP = 1
    """It is the maximum itself."""
    LOG = 2
    """It falls by the shift."""
    SCALED = 3
    """It is divided by exp(shift)."""


Status = tuple[Shift, int | None]
UNSHIFTED: Status = (Shift.PLAIN, None)


def find_region(block: BlockGraph, warps: int) -> Region | None:
    """The region of a block graph whose chains are fused; None if its body does not fit the pattern."""
    body = _Body(block)
    if not body.fits or not body.chained:
        return None
    held = [
        Held(block.types[value].shape[-1], value in body.keyed, block.ops[index].kind is OpKind.ACCUM)
        for index in body.ops
        for value in body.values[index]
    ]
    if not fits(body.rows, held, body.splittable, warps):
        return None
    key_warps = int(bodies.key_warps(body.rows, held, body.splittable, warps))
    direct = key_warps == 1 and _elementwise_to_the_end(block)
    return Region(
        body.rows, int(row_warps(body.rows, warps)), key_warps, frozenset(body.keyed), frozenset(body.shifts),
        tuple(body.ops), direct,
    )  # fmt: skip


def _elementwise_to_the_end(block: BlockGraph) -> bool:
    """Whether what follows the accumulators is elementwise over them and saved, every value by one reader."""
    uses = block.uses()
    accumulated: set[int] = set()
    for op, values in block.definitions():
        if op.kind is OpKind.ACCUM:
            accumulated.update(values)
        elif not accumulated.isdisjoint(op.inputs):
            elementwise = op.kind is OpKind.FUSED or Trait.ELEMENTWISE in OPS[op.kind].traits
            if not elementwise and op.kind not in (OpKind.RESHAPE, OpKind.OUT_SAVER):
                return False
            widest = max((block.types[v].elements for v in op.inputs), default=0)
            if len(values) > 1 or any(block.types[v].elements != widest for v in values):
                return False
            accumulated.update(values)
        elif op.kind is OpKind.OUT_SAVER:
            return False
    return all(len(uses[v]) == 1 for v in accumulated)


class _Body:
    """Checks the operators of a loop body one by one."""

    def __init__(self, block: BlockGraph) -> None:
        self.block = block
        self.first = [values[0] if values else -1 for _, values in block.definitions()]
        self.values = [values for _, values in block.definitions()]
        self.status: dict[int, Status] = {}
        self.leaves: set[int] = set()
        self.invariant: set[int] = set()
        self.ops: list[int] = []
        self.keyed: set[int] = set()
        self.partial: set[int] = set()
        self.rows = 0
        self.chained = False
        self.splittable = True
        self.shifts = {
            op.inputs[1] for op in block.ops if isinstance(op.attrs, AccumAttrs) and op.attrs.kind is AccumKind.RESCALE
        }
        stages = block.stages()
        self.fits = block.has_loop and all(
            self._accept(index) for index, op in enumerate(block.ops) if stages[index] != 1 or op.kind is OpKind.ACCUM
        )

    def _accept(self, index: int) -> bool:
        op = self.block.ops[index]
        loaded = op.kind in (OpKind.IN_ITER, OpKind.CONST)
        streamed = isinstance(op.attrs, InIterAttrs) and op.attrs.fmap is not None
        if op.kind is not OpKind.ACCUM and not streamed and all(v in self.invariant for v in op.inputs):
            # The same in every iteration: computed once before the loop, and a leaf for the body.
            self.invariant.update(self.values[index])
            self.leaves.update(self.values[index])
            return True
        if loaded or op.kind in (OpKind.TRANSPOSE, OpKind.RESHAPE):
            self.leaves.update(self.values[index])
            return loaded or op.inputs[0] in self.leaves
        if op.kind not in (OpKind.ACCUM, OpKind.MATMUL) and all(v in self.leaves for v in op.inputs):
            # No product goes into it (the norms of the keys): all warps compute it together, a leaf for the body.
            self.leaves.update(self.values[index])
            return True
        if not all(self._shaped(v) for v in self.values[index]):
            return False
        self.ops.append(index)
        if any(v in self.partial for v in op.inputs) and op.kind is not OpKind.ACCUM:
            self.splittable = False
        match op.kind:
            case OpKind.MATMUL:
                return self._product(index, op)
            case OpKind.SUM | OpKind.MAX:
                return self._reduction(index, op)
            case OpKind.ACCUM:
                return self._accumulator(index, op)
            case _:
                return self._elementwise(index, op)

    def _shaped(self, value: int) -> bool:
        """A matrix or a column of row results, all over the same rows."""
        shape = self.block.types[value].shape
        if len(shape) < 2 or math.prod(shape[:-2]) != 1:
            return False
        self.rows = self.rows or shape[-2]
        return shape[-2] == self.rows and (shape[-1] == 1 or shape[-1] % DEPTH_TILE == 0)

    def _product(self, index: int, op: Op) -> bool:
        left, right = op.inputs
        types = self.block.types
        if right not in self.leaves or not on_tensor_cores(types[left], types[right]):
            return False
        if types[left].shape[-1] % DEPTH_TILE or types[self.first[index]].shape[-1] == 1:
            return False
        value = self.first[index]
        if left in self.leaves:
            self.keyed.add(value)
            self.status[value] = UNSHIFTED
            return math.prod(types[left].shape[:-2]) == 1
        self.chained |= left in self.keyed
        self.partial.add(value)
        self.splittable &= left in self.keyed
        self.status[value] = self.status[left]
        return self.status[left][0] in (Shift.PLAIN, Shift.SCALED)

    def _reduction(self, index: int, op: Op) -> bool:
        (source,) = op.inputs
        value = self.first[index]
        shape = self.block.types[source].shape
        if source in self.leaves or not isinstance(op.attrs, DimAttrs) or op.attrs.dim != len(shape) - 1:
            return False
        kind = self.status[source][0]
        self.splittable &= source in self.keyed
        if op.kind is OpKind.SUM:
            self.partial.add(value)
            self.status[value] = self.status[source]
            return kind in (Shift.PLAIN, Shift.SCALED)
        if value in self.shifts:
            self.status[value] = (Shift.TOP, value)
        else:
            self.partial.add(value)
            self.status[value] = UNSHIFTED
        return kind is Shift.PLAIN

    def _accumulator(self, index: int, op: Op) -> bool:
        assert isinstance(op.attrs, AccumAttrs)
        if any(v in self.leaves for v in op.inputs):
            return False
        found = [self.status[v] for v in op.inputs]
        source = op.inputs[0]
        if source in self.keyed:
            self.keyed.add(self.first[index])
        elif source not in self.partial and found[0][0] is not Shift.TOP:
            self.splittable = False  # every key warp has all of it: adding copies up would count it twice
        match op.attrs.kind:
            case AccumKind.SUM:
                return found[0] == UNSHIFTED
            case AccumKind.MAX:
                return self.block.types[op.inputs[0]].shape[-1] == 1 and found[0][0] in (
                    Shift.PLAIN,
                    Shift.TOP,
                )
            case AccumKind.RESCALE:
                return found == [(Shift.SCALED, op.inputs[1]), (Shift.TOP, op.inputs[1])]
            case _:
                return False

    def _elementwise(self, index: int, op: Op) -> bool:
        if op.kind is not OpKind.FUSED and Trait.ELEMENTWISE not in OPS[op.kind].traits:
            return False
        known = [UNSHIFTED if v in self.leaves else self.status[v] for v in op.inputs]
        if op.kind is OpKind.FUSED:
            assert isinstance(op.body, ThreadGraph)
            inner: list[Status | None] = list(known)
            for thread_op in op.body.ops:
                inner.append(shifted(thread_op.kind, [inner[v] for v in thread_op.inputs]))
            found = [inner[v] for v in op.body.outputs]
        else:
            found = [shifted(op.kind, list(known))]
        keyed = any(v in self.keyed for v in op.inputs)
        for value, status in zip(self.values[index], found, strict=True):
            if status is None:
                return False
            self.status[value] = status
            if keyed and self.block.types[value].shape[-1] > 1:
                self.keyed.add(value)
        return True


def shifted(kind: OpKind, found: list[Status | None]) -> Status | None:
    """How an elementwise operator passes a shift on; None: the shift would change what it computes."""
    if any(status is None for status in found):
        return None
    known = [status for status in found if status is not None]
    if all(status == UNSHIFTED for status in known):
        return UNSHIFTED
    kinds = [kind for kind, _ in known]
    match kind:
        case OpKind.SUB if kinds == [Shift.PLAIN, Shift.TOP]:
            return Shift.LOG, known[1][1]
        case OpKind.EXP if kinds == [Shift.LOG]:
            return Shift.SCALED, known[0][1]
        case OpKind.MUL if sorted(k.value for k in kinds) == [Shift.PLAIN.value, Shift.SCALED.value]:
            return next(status for status in known if status != UNSHIFTED)
        case OpKind.DIV if kinds == [Shift.SCALED, Shift.PLAIN]:
            return known[0]
        case OpKind.ADD | OpKind.SUB if kinds == [Shift.SCALED] * 2 and known[0] == known[1]:
            return known[0]
        case _:
            return None
