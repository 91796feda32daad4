"""Loop bodies that stay with warps: what makes a body one, and how warps share it, for the planner and the ranking.

In: the sketch of a block; extents, as numbers or as arrays of them, and the number of warps. Out: a `Body`; how warps
`Split` it, in the same kind as the extents. A body chains matrix multiplications (attention): warps take 16-row tiles
of the result, and, where the body allows it, parts of the key axis, each with its own accumulators that are added up
after the loop. Invariant: a warp needs no product that another warp computes in the loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from mirage_nb.ir import AccumAttrs, AccumKind, BlockGraph, OpKind
from mirage_nb.tile.rules.sharing import COLUMN_TILE, DEPTH_TILE, ROW_TILE, Tiling
from mirage_nb.tile.rules.sketch import VIEWS, Node, Sketch

REGISTER_BUDGET = 176
"""f32 values of fragments that one thread may hold at once."""
LANE_VALUES = 4
"""Of an 8-column fragment, f32 values of one thread."""


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


@dataclass(frozen=True, slots=True)
class Body:
    """A loop body that may stay with warps: its operators, accumulators included, in order; what they make, each a
    matrix or a column of row results; the values whose columns lie along the keys; the maxima that are replaced by
    their running maximum, so that rescaled accumulators add in place; whether warps may share the keys; whether its
    accumulators go from registers to device memory, through elementwise operators only. sums: its accumulators' values;
    factors, products: left operands and results of its products, of which matrices have `whole` none beside them;
    columns: values that are columns if they are anything."""

    ops: tuple[int, ...]
    values: tuple[int, ...]
    keyed: frozenset[int]
    shifts: frozenset[int]
    splittable: bool
    plain: bool
    sums: frozenset[int]
    products: tuple[int, ...]
    factors: tuple[int, ...]
    whole: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """How warps share a body: where they can; its rows; over how many warps rows and keys are split."""

    able: Any
    rows: Any
    row_warps: Any
    key_warps: Any


def split(body: Body, extents: Callable[[int], Sequence[Any]], warps: int) -> Split:
    """The body on so many warps. extents: those of a value."""
    shapes = {value: extents(value) for value in body.values}
    rows = shapes[body.values[0]][-2]
    able: Any = True
    for *lead, height, columns in shapes.values():
        able = able & np.equal(height, rows) & (np.equal(columns, 1) | np.equal(np.mod(columns, DEPTH_TILE), 0))
        able = able & np.equal(reduce(np.multiply, lead, 1), 1)
    for value in body.products:
        able = able & np.greater(shapes[value][-1], 1)
    for value in body.factors:
        able = able & np.equal(np.mod(extents(value)[-1], DEPTH_TILE), 0)
    for value in body.whole:
        able = able & np.equal(reduce(np.multiply, extents(value)[:-2], 1), 1)
    for value in body.columns:
        able = able & np.equal(extents(value)[-1], 1)
    held = [_Held(shapes[value][-1], value in body.keyed, value in body.sums) for value in body.values]
    down = _row_warps(rows, warps)
    across = _key_warps(down, held, body.splittable, warps)
    return Split(able & _fits(rows, held, down, across, warps), rows, down, across)


@dataclass(frozen=True, slots=True)
class _Held:
    """A value of the body: its columns; whether they lie along the keys, which warps may share; whether it is an
    accumulator."""

    columns: Any
    keyed: bool
    summed: bool


def row_tiles(rows: Any, row_warps: Any) -> Any:
    """16-row tiles of one warp."""
    return np.ceil(np.ceil(np.divide(rows, ROW_TILE)) / row_warps)


def _row_warps(rows: Any, warps: int) -> Any:
    """Warps that have rows of their own."""
    tiles, found = np.ceil(np.divide(rows, ROW_TILE)), np.ones_like(rows)
    for count in (2, 4, 8, 16, 32):
        if warps % count == 0:
            found = np.where(count <= tiles, count, found)
    return found


def _key_warps(row_warps: Any, held: Sequence[_Held], splittable: bool, warps: int) -> Any:
    """Warps that share the keys of one row: as many as are left, and have whole fragments."""
    if not splittable:
        return np.ones_like(row_warps)
    found = np.floor_divide(warps, row_warps)
    common: Any = np.int64(0)
    for value in held:
        common = np.gcd(common, np.asarray(value.columns).astype(np.int64)) if value.keyed else common
    for _ in range(warps.bit_length()):
        odd = np.not_equal(np.mod(common, found * DEPTH_TILE), 0)
        found = np.where(odd & np.greater(found, 1), np.floor_divide(found, 2), found)
    return found


def _fits(rows: Any, held: Sequence[_Held], row_warps: Any, key_warps: Any, warps: int) -> Any:
    """Whether half of the warps have something to do, and their threads hold it: accumulators, and the widest value
    beside them."""
    sums: Any = 0
    widest: Any = 0
    for value in held:
        columns = np.floor_divide(np.floor_divide(value.columns, COLUMN_TILE), key_warps if value.keyed else 1)
        sums, widest = (sums + columns, widest) if value.summed else (sums, np.maximum(widest, columns))
    size = LANE_VALUES * row_tiles(rows, row_warps) * (sums + widest)
    return (2 * row_warps * key_warps >= warps) & (size <= REGISTER_BUDGET)


def find_body(sketch: Sketch) -> Body | None:
    """The body of a block whose chains are fused; None if it does not fit the pattern, whatever its extents."""
    found = Finder(sketch)
    nodes = [sketch.nodes[index] for index in found.ops]
    flat = any(len(sketch.values[value].long) < 2 for node in nodes for value in node.makes)
    if not found.fits or not found.chained or flat:
        return None
    sums = frozenset(node.makes[0] for node in nodes if node.kind is OpKind.ACCUM)
    return Body(
        tuple(found.ops), tuple(value for node in nodes for value in node.makes), frozenset(found.keyed),
        frozenset(found.shifts), found.splittable, _elementwise_to_the_end(sketch), sums, tuple(found.products),
        tuple(found.factors), tuple(found.whole), tuple(found.columns),
    )  # fmt: skip


def _elementwise_to_the_end(sketch: Sketch) -> bool:
    """Whether what follows the accumulators is elementwise over them and saved, every value by one reader."""
    accumulated: set[int] = set()
    for node in sketch.nodes:
        if node.kind is OpKind.ACCUM:
            accumulated.update(node.makes)
        elif not accumulated.isdisjoint(node.reads):
            if not node.elementwise and node.kind not in (OpKind.RESHAPE, OpKind.OUT_SAVER):
                return False
            widest = max((sketch.values[v].size for v in node.reads), default=0)
            if len(node.makes) > 1 or any(sketch.values[v].size != widest for v in node.makes):
                return False
            accumulated.update(node.makes)
        elif node.kind is OpKind.OUT_SAVER:
            return False
    return all(len(sketch.uses[v]) == 1 for v in accumulated)


class Finder:
    """Checks the operators of a loop body one by one: whether it `fits`, and what becomes of every value of it."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self.status: dict[int, Status] = {}
        self.leaves: set[int] = set()
        self.invariant: set[int] = set()
        self.ops: list[int] = []
        self.keyed: set[int] = set()
        self.partial: set[int] = set()
        self.products: list[int] = []
        self.factors: list[int] = []
        self.whole: list[int] = []
        self.columns: list[int] = []
        self.chained = False
        self.splittable = True
        self.shifts = sketch.shifts
        joined = {value: joined_maximum(sketch, value) for value in self.shifts}
        self.joined = {value: largest for value, largest in joined.items() if largest is not None}
        self.fits = sketch.looped and all(
            self._accept(index, node)
            for index, node in enumerate(sketch.nodes)
            if sketch.stages[index] != 1 or node.kind is OpKind.ACCUM
        )

    def _accept(self, index: int, node: Node) -> bool:
        loaded = node.kind in (OpKind.IN_ITER, OpKind.CONST)
        if node.kind is not OpKind.ACCUM and not node.streamed and self.invariant.issuperset(node.reads):
            # The same in every iteration: computed once before the loop, and a leaf for the body.
            self.invariant.update(node.makes)
            self.leaves.update(node.makes)
            return True
        viewed = node.kind in VIEWS or node.accum is AccumKind.HOLD
        if loaded or (viewed and node.reads[0] in self.leaves):
            self.leaves.update(node.makes)
            return True
        if node.kind in VIEWS:
            return self._viewed(node)
        if node.kind not in (OpKind.ACCUM, OpKind.MATMUL) and self.leaves.issuperset(node.reads):
            # No product goes into it (the norms of the keys): all warps compute it together, a leaf for the body.
            self.leaves.update(node.makes)
            return True
        self.ops.append(index)
        if node.kind is not OpKind.ACCUM and not self.partial.isdisjoint(node.reads):
            self.splittable = False
        match node.kind:
            case OpKind.MATMUL:
                return self._product(node)
            case OpKind.SUM | OpKind.MAX:
                return self._reduction(node)
            case OpKind.ACCUM:
                return self._accumulator(node)
            case _:
                return self._elementwise(node)

    def _viewed(self, node: Node) -> bool:
        """A view of a value of the body: fragments lie as they are."""
        return False

    def _product(self, node: Node) -> bool:
        (left, right), (value,) = node.reads, node.makes
        if right not in self.leaves or not self.sketch.on_tensor_cores(node) or self.sketch.on_bytes(node):
            return False
        self.factors.append(left)
        self.products.append(value)
        if left in self.leaves:
            self.keyed.add(value)
            self.status[value] = UNSHIFTED
            self.whole.append(left)
            return True
        self.chained |= left in self.keyed
        self.partial.add(value)
        self.splittable &= left in self.keyed
        self.status[value] = self.status[left]
        return self.status[left][0] in (Shift.PLAIN, Shift.SCALED)

    def _reduction(self, node: Node) -> bool:
        (source,), (value,) = node.reads, node.makes
        if source in self.leaves or node.along != -1:
            return False
        kind = self.status[source][0]
        self.splittable &= source in self.keyed
        if node.kind is OpKind.SUM:
            self.partial.add(value)
            self.status[value] = self.status[source]
            return kind in (Shift.PLAIN, Shift.SCALED)
        if value in self.shifts:
            self.status[value] = (Shift.TOP, value)
        elif value in self.joined.values():
            self.status[value] = UNSHIFTED
        else:
            self.partial.add(value)
            self.status[value] = UNSHIFTED
        return kind is Shift.PLAIN

    def _accumulator(self, node: Node) -> bool:
        if not self.leaves.isdisjoint(node.reads):
            return False
        found, source = [self.status[v] for v in node.reads], node.reads[0]
        if source in self.keyed:
            self.keyed.update(node.makes)
        elif source not in self.partial and found[0][0] is not Shift.TOP:
            self.splittable = False  # every key warp has all of it: adding copies up would count it twice
        match node.accum:
            case AccumKind.SUM:
                return found[0] == UNSHIFTED
            case AccumKind.MAX:
                self.columns.append(source)
                return found[0][0] in (Shift.PLAIN, Shift.TOP)
            case AccumKind.RESCALE:
                return found == [(Shift.SCALED, node.reads[1]), (Shift.TOP, node.reads[1])]
            case _:
                return False

    def _elementwise(self, node: Node) -> bool:
        if not node.elementwise:
            return False
        known: list[Status | None] = [UNSHIFTED if v in self.leaves else self.status[v] for v in node.reads]
        if node.chain:
            for kind, read in node.chain:
                known.append(shifted(kind, [known[v] for v in read]))
            found = [known[v] for v in node.leaving]
        else:
            (value,) = node.makes
            found = [(Shift.TOP, value) if value in self.joined else shifted(node.kind, known)]
        keyed = not self.keyed.isdisjoint(node.reads)
        for value, status in zip(node.makes, found, strict=True):
            if status is None:
                return False
            self.status[value] = status
            if keyed and any(self.sketch.values[value].long[-1:]):
                self.keyed.add(value)
        return True


def joined_maximum(sketch: Sketch, shift: int) -> int | None:
    """The maximum that a shift is the larger one of, beside what no iteration changes, if it is; nobody else reads it,
    so that each warp that shares a row may have one of its own keys."""
    index = sketch.defined[shift]
    node = sketch.nodes[index]
    for value, other in (node.reads, node.reads[::-1]) if node.kind is OpKind.MAXIMUM else ():
        ranks = sketch.nodes[sketch.defined[value]].kind is OpKind.MAX and sketch.uses[value] == (index,)
        if ranks and sketch.invariant[sketch.defined[other]]:
            return value
    return None


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

    def agrees(self, block: BlockGraph) -> bool:
        """Whether warps that share keys have row maxima to agree on behind the loop."""
        accumulators = (attrs for i in self.ops if isinstance(attrs := block.ops[i].attrs, AccumAttrs))
        maxima = any(attrs.kind is AccumKind.MAX for attrs in accumulators)
        return self.key_warps > 1 and (bool(self.shifts) or maxima)

    def column_tiles(self, value: int, columns: int) -> int:
        """8-column tiles of a value that one warp holds."""
        return columns // COLUMN_TILE // (self.key_warps if value in self.keyed else 1)

    def tiling(self, value: int, columns: int, depth: int) -> Tiling:
        """How warps share `value`, [rows, columns], a product over `depth` or an accumulator."""
        keyed = value in self.keyed
        split = (1, self.row_warps, self.key_warps if keyed else 1, 1 if keyed else self.key_warps)
        return Tiling(1, self.rows, columns, depth, False, split)


def find_region(block: BlockGraph, sketch: Sketch, warps: int) -> Region | None:
    """The region of a block graph whose chains are fused; None if its body does not fit the pattern."""
    body = find_body(sketch)
    if body is None:
        return None
    found = split(body, lambda value: block.types[value].shape, warps)
    if not found.able:
        return None
    key_warps = int(found.key_warps)
    return Region(
        found.rows, int(found.row_warps), key_warps, body.keyed, body.shifts, body.ops, key_warps == 1 and body.plain
    )
