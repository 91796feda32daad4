"""A kernel's program beside the block graph that it was planned of: what is printed computes what was verified.

In: both, a target. Out: what was looked at, and findings in words; none where the program is valid and stores what the
block graph saves at points of its walk, or in blocks of its grid, the first, the last, a random one and, where tiles
hang over ends, the corners: over float64, and at one of them over residues where these have a meaning and a point is no
long computation. Operands are drawn where they are read, so that a point costs what it reads, at any shape. The paper
verifies muGraphs, not what is made of them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import GraphError
from mirage_nb.interp import arrays
from mirage_nb.interp.field import FieldAlgebra, FieldInstance
from mirage_nb.interp.instance import FieldTensor
from mirage_nb.interp.reference import FloatAlgebra
from mirage_nb.interp.run import run_block
from mirage_nb.interp.undrawn import Undrawn
from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    ArangeAttrs,
    BlockGraph,
    ConstAttrs,
    InIterAttrs,
    Op,
    OpKind,
    OutSaverAttrs,
    TensorType,
    ThreadGraph,
    WhereAttrs,
)
from mirage_nb.ir.ops import Shape
from mirage_nb.targets import Target
from mirage_nb.tile.planned import Planned
from mirage_nb.tile.resident import run as resident_run
from mirage_nb.tile.resident.program import ResidentProgram
from mirage_nb.tile.resident.run import Sources
from mirage_nb.tile.roles.price import multiplied
from mirage_nb.tile.roles.program import Program, Walk
from mirage_nb.tile.roles.run import Algebra, Stored, boxed, points, run_point
from mirage_nb.tile.rules.sketch import pairs
from mirage_nb.tile.staged import run as staged_run
from mirage_nb.tile.staged.program import StagedProgram
from mirage_nb.tile.staged.validate import NONSENSE
from mirage_nb.verify.looked import Box, Drawn

Array = NDArray[Any]
T = TypeVar("T", Array, FieldTensor)
Point = tuple[int, ...]

BOUND = 2**24
"""Floats are multiples of two over this."""
RESIDUES, FLOATS = 2**26, 2**31
"""Multiply-adds that are done over residues, and over floats, at most: a second or two."""
ELEMENT = 16
"""An element that is drawn or computed takes as long as so many of them."""
TOLERANCE = 1e-9
"""Of float64 sums in another order, relative to the largest element."""


class Level(enum.IntEnum):
    """How well a program is known to compute what its block graph does."""

    VALIDATED = 0
    """It is valid."""
    FLOATS = 1
    """It was run on floats, too."""
    RESIDUES = 2
    """It was run on floats and on residues, too."""

    def __str__(self) -> str:
        return "validated" if self is Level.VALIDATED else f"run over {self.name.lower()}"


def compare(planned: Planned, target: Target, seed: int) -> tuple[Level, tuple[str, ...]]:
    """What was looked at; and what is wrong, in words, () if nothing is."""
    if found := planned.findings(target):
        return Level.VALIDATED, found
    walk, cost = _walk(planned), _cost(planned)
    if cost > FLOATS:
        return Level.VALIDATED, ()
    last, instance = math.prod(extent for _, extent in walk.counters) - 1, FieldInstance.draw(seed)
    between = int(np.random.default_rng(seed).integers(last + 1))
    places = {0, between, last, *(_corners(walk) if _overhangs(planned.block) else ())}
    looks: list[tuple[int, Any]] = [(place, _Floats(instance)) for place in sorted(places)]
    level = Level.FLOATS
    if not _infinite(planned.block) and not _ordered(planned) and cost <= RESIDUES:
        looks.append((between, _Residues(instance)))
        level = Level.RESIDUES
    with np.errstate(all="ignore"):
        return level, tuple(finding for place, numbers in looks for finding in _at(planned, place, numbers))


def _walk(planned: Planned) -> Walk:
    """How work is numbered: the walk of a tile program, or the grid."""
    if isinstance(planned.program, Program):
        return next((s for s in planned.program.every if isinstance(s, Walk)), Walk((), 1, ()))
    return Walk(tuple((f"g{g}", extent) for g, extent in enumerate(planned.block.grid)), 1, ())


def _corners(walk: Walk) -> Iterator[int]:
    """The points of a walk at which every counter is its first or its last number; the outer ones their last."""
    ends = {name: extent - 1 for name, extent in walk.counters}
    outer = [name for name, _ in walk.counters[:-2]]
    for place, at in enumerate(points(walk)):
        if all(at[name] in (0, end) for name, end in ends.items()) and all(at[name] == ends[name] for name in outer):
            yield place


def _overhangs(block: BlockGraph) -> bool:
    """Whether tiles hang over the end of a tensor."""
    return any(getattr(op.attrs, "tile", None) or getattr(op.attrs, "shape", None) for op in block.ops
               if isinstance(op.attrs, InIterAttrs | OutSaverAttrs))  # fmt: skip


def _infinite(block: BlockGraph) -> bool:
    """Whether an infinity stands for what a mask leaves out: a large number may do that in a tile program."""
    inner = (op for outer in block.ops if isinstance(outer.body, ThreadGraph) for op in outer.body.ops)
    return any(isinstance(op.attrs, WhereAttrs) and op.attrs.infinite for op in (*block.ops, *inner))


def _ordered(planned: Planned) -> bool:
    """Whether a largest element is kept over iterations that a tile program may go through in another order: residues
    have none, and what stands for it is another one then."""
    kept = (op.attrs.kind for op in planned.block.ops if isinstance(op.attrs, AccumAttrs))
    return isinstance(planned.program, Program) and AccumKind.MAX in kept


def _cost(planned: Planned) -> int:
    """Multiply-adds at one point of the walk; those of a block, and its elements, which take as long as several."""
    block, cost = planned.block, 0
    if isinstance(planned.program, Program):
        return multiplied(planned.program)
    for (op, values), stage in zip(block.definitions(), block.stages(), strict=True):
        each = ELEMENT + sum(block.types[left].shape[-1] for left, _ in pairs(op.kind, op.inputs))
        cost += sum(block.types[v].elements for v in values) * each * (block.loop if stage == 0 else 1)
    return cost


def _at(planned: Planned, place: int, numbers: _Numbers[T]) -> list[str]:
    """What is wrong at one point of the walk."""
    try:
        wrong = list(_differences(planned, place, numbers))
    except GraphError as error:
        wrong = [error.message]
    except NONSENSE as error:
        wrong = [f"it cannot be run: {error!r}"]
    where = f"point {place} of the walk" if isinstance(planned.program, Program) else f"block {place} of the grid"
    return [f"{where}: {what}" for what in wrong]


class _Numbers(Protocol[T]):
    """A kind of numbers: how they are computed with, drawn, and told apart."""

    algebra: Algebra[T]

    def draw(self, name: str, shape: Shape) -> T:
        """Random elements, which are there when they are read."""

    def table(self, name: str, shape: Shape) -> T:
        """The same, which are there at once."""

    def same(self, one: T, other: T) -> bool:
        """Whether two tensors are equal."""


class _Floats:
    """Numbers from -1 to 1."""

    def __init__(self, instance: FieldInstance) -> None:
        self.algebra, self._instance = FloatAlgebra(np.dtype(float)), instance

    def draw(self, name: str, shape: Shape) -> Any:
        return _Drawn(Undrawn.of(self._instance.key("floats", name), BOUND, shape))

    def table(self, name: str, shape: Shape) -> Array:
        return np.asarray(self.draw(name, shape)[:])

    def same(self, one: Array, other: Array) -> bool:
        scale = np.max(np.abs(one), initial=0.0, where=np.isfinite(one))
        return np.allclose(one, other, rtol=0.0, atol=TOLERANCE * scale, equal_nan=True)


class _Drawn:
    """Words as numbers, where they are read."""

    def __init__(self, words: Undrawn) -> None:
        self._words = words

    def __getitem__(self, key: Any) -> Array:
        return np.asarray(self._words[key]) * (2.0 / BOUND) - 1.0


class _Residues:
    """Pairs of residues."""

    def __init__(self, instance: FieldInstance) -> None:
        self.algebra, self._instance = FieldAlgebra(instance), instance

    def draw(self, name: str, shape: Shape) -> FieldTensor:
        parts: list[Any] = self._words(name, shape)
        return FieldTensor(*parts)

    def table(self, name: str, shape: Shape) -> FieldTensor:
        parts: list[Any] = [np.asarray(part.drawn()) for part in self._words(name, shape)]
        return FieldTensor(*parts)

    def _words(self, name: str, shape: Shape) -> list[Undrawn]:
        moduli = {"p": self._instance.p, "q": self._instance.q}
        return [Undrawn.of(self._instance.key("words", name, k), m.value, shape) for k, m in moduli.items()]

    def same(self, one: FieldTensor, other: FieldTensor) -> bool:
        both = one.defined & other.defined
        pairs = [(x, y) for x, y in ((one.p, other.p), (one.q, other.q)) if x is not None and y is not None]
        return all(np.array_equal(np.where(both, x, 0), np.where(both, y, 0)) for x, y in pairs)


def _differences(planned: Planned, place: int, numbers: _Numbers[T]) -> Iterator[str]:
    """Where a point of the walk stores something else than the block there saves."""
    block, algebra = planned.block, numbers.algebra
    operands = [_operand(planned, arg, numbers) for arg in range(len(block.args))]
    drawn = Drawn.of(block, planned.tables, planned.lines, numbers.table, place)
    savers = [(op.attrs, block.types[op.inputs[0]].shape) for op in block.savers if isinstance(op.attrs, OutSaverAttrs)]
    stored: Stored[T]
    if isinstance(planned.program, Program):
        stored = run_point(planned.program, place, {f"x{arg}": x for arg, x in enumerate(operands)}, algebra)
        began = [(attrs.omap, tile, min(stored[f"o{o}"])) for o, (attrs, tile) in enumerate(savers)]
        grid = _grid_point(block.grid, began)
    else:
        grid = tuple(map(int, np.unravel_index(place, block.grid)))
    alone, parts, boxes = _alone(block, grid, operands, drawn.operands, algebra)
    if not isinstance(planned.program, Program):
        program = replace(planned.program, block=alone, late=frozenset(), behind=False)
        made = run_staged(program, parts, algebra, drawn.sources(boxes))
        begins = [_begin(attrs.omap, block.grid, tile, grid) for attrs, tile in savers]
        stored = {f"o{o}": {at: value} for o, (at, value) in enumerate(zip(begins, made, strict=True))}
    for number, ((attrs, tile), saved) in enumerate(zip(savers, run_block(alone, parts, algebra), strict=True)):
        begin, ends = _begin(attrs.omap, block.grid, tile, grid), block.output_types[number].shape
        held = [min(size, end - at) for size, end, at in zip(tile, ends, begin, strict=True)]
        seen = 0
        for at, value in stored[f"o{number}"].items():
            inner = [a - b for a, b in zip(at, begin, strict=True)]
            shape = [max(0, min(size, most - a)) for size, most, a in zip(value.shape, held, inner, strict=True)]
            box = tuple(slice(a, a + size) for a, size in zip(inner, shape, strict=True))
            wanted = algebra.view(saved, partial(boxed, box))
            found = algebra.view(value, partial(boxed, tuple(slice(size) for size in shape)))
            if not numbers.same(wanted, found):
                yield f"o{number} from {list(at)} on is not what the block saves"
            seen += math.prod(shape)
        if seen != math.prod(held):
            yield f"o{number}: {seen} elements are stored, the block saves {math.prod(held)}"


def run_staged(
    program: StagedProgram | ResidentProgram, args: Sequence[T], algebra: Algebra[T], sources: Sources | None = None
) -> tuple[T, ...]:
    """What the blocks of a staged or resident program save, side by side; sources: what operands are looked up in, with
    the places of whole operands. Raises GraphError as its machine does."""
    block, batch = program.block, len(program.block.grid)
    reads = {values[0]: op.attrs for op, values in block.definitions() if isinstance(op.attrs, InIterAttrs)}
    splits = {v: arrays.Split(a.imap, a.fmap, block.grid, block.loop, a.tile) for v, a in reads.items()}
    tiles = {value: algebra.view(args[a.arg], splits[value]) for value, a in reads.items()}

    def tile(value: int, iteration: int) -> T:
        found = algebra.view(tiles[value], arrays.Iteration(iteration, batch))
        return algebra.view(found, np.ascontiguousarray)  # products of other views take ten times as long

    if isinstance(program, StagedProgram):
        made = staged_run.Run(program, algebra, tile).run()
    else:
        if (given := sources) is not None:  # nothing stands behind an end
            first = arrays.Iteration(0, batch)
            sources = replace(given, places=lambda v: tuple(first(splits[v](place)) for place in given.places(v)))
        made = resident_run.Run(program, algebra, tile, sources=sources).run()
    savers = [op.attrs for op in block.savers if isinstance(op.attrs, OutSaverAttrs)]
    return tuple(
        algebra.view(value, arrays.Place(attrs.omap, block.grid, attrs.shape))
        for value, attrs in zip(made, savers, strict=True)
    )


def _operand(planned: Planned, arg: int, numbers: _Numbers[T]) -> T:
    shape = planned.block.args[arg].shape
    if arg in planned.numbers:
        one = numbers.algebra.apply(OpKind.CONST, (), ConstAttrs(planned.numbers[arg]), 0)
        return numbers.algebra.view(one, lambda array: np.broadcast_to(array, shape))
    if arg in planned.places:
        counted = numbers.algebra.apply(OpKind.ARANGE, (), ArangeAttrs(math.prod(shape)), 0)
        return numbers.algebra.view(counted, lambda array: array.reshape(shape))
    return numbers.draw(f"x{arg}", shape)


def _grid_point(grid: Point, saved: Sequence[tuple[tuple[int | None, ...], Shape, Point]]) -> Point:
    """Which block saves what begins there, by the outputs that every grid dim cuts."""
    found = [0] * len(grid)
    for omap, tile, at in saved:
        for dim, start in enumerate(at):
            number = start // tile[dim]
            for g in reversed([g for g, cut in enumerate(omap) if cut == dim]):
                number, found[g] = divmod(number, grid[g])
    return tuple(found)


def _begin(cut: tuple[int | None, ...], grid: Point, part: Sequence[int], point: Point) -> Point:
    """Where a block's part of a tensor begins; of several grid dims that cut one dimension the first is outermost."""
    found = []
    for dim, size in enumerate(part):
        number = 0
        for g, extent in enumerate(grid):
            if cut[g] == dim:
                number = number * extent + point[g]
        found.append(number * size)
    return tuple(found)


def _alone(
    block: BlockGraph, point: Point, operands: Sequence[T], looked: Mapping[int, T], algebra: Algebra[T]
) -> tuple[BlockGraph, list[T], dict[int, Box]]:
    """One block of a block graph as a block graph of its own, and what it reads of each operand, or of what is looked
    up; where that lies, by the value."""
    ops: list[Op] = []
    args: list[TensorType] = []
    parts: list[T] = []
    boxes: dict[int, Box] = {}
    for op, values in block.definitions():
        attrs = op.attrs
        if isinstance(attrs, InIterAttrs):
            tile = block.tile_shape(attrs)
            whole = [size * block.loop if dim == attrs.fmap else size for dim, size in enumerate(tile)]
            begin = _begin(attrs.imap, block.grid, whole, point)
            box = tuple(slice(a, a + size) for a, size in zip(begin, whole, strict=True))
            boxes[values[0]] = box
            parts.append(algebra.view(looked.get(values[0], operands[attrs.arg]), partial(boxed, box)))
            args.append(replace(block.args[attrs.arg], shape=parts[-1].shape))
            op = replace(op, attrs=replace(attrs, arg=len(parts) - 1, tile=tile))
        elif isinstance(attrs, OutSaverAttrs):
            op = replace(op, attrs=replace(attrs, shape=None))
        ops.append(_plain(op))
    return replace(block, ops=tuple(ops), args=tuple(args), grid=(1,) * len(block.grid)), parts, boxes


def _plain(op: Op) -> Op:
    """A constant as the number that stands for it in a tile program, which knows no symbols; also in a thread graph."""
    if isinstance(op.attrs, ConstAttrs):
        return replace(op, attrs=replace(op.attrs, symbol=""))
    if isinstance(op.body, ThreadGraph):
        return replace(op, body=replace(op.body, ops=tuple(map(_plain, op.body.ops))))
    return op
