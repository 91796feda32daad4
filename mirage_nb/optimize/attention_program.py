"""The planner of chained products: a block of attention becomes a persistent tile program of two kinds of roles.

In: an `AttentionBlock`, a target, what the block graph does not say. Out: a tile program, or None where the block's
extents fit no instruction or no ring. One role loads queries once and keys and values into rings of their own; groups
of four warps have 64 rows each. The product of an iteration's keys is issued in front of the product of the values of
the iteration before, whose weights are registers, so that exponentials are computed while the other product runs; and
groups take turns, so that one multiplies while the other computes (FlashAttention-3, section 3). Invariant: what is
planned is a function of its arguments, and `tile.roles.validate` finds nothing in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction

from mirage_nb.ir import OPS, AccumAttrs, AccumKind, ConstAttrs, DType, InIterAttrs, OpKind, Trait
from mirage_nb.optimize import attention_marks as marks
from mirage_nb.optimize.attention_keys import Keys, keys_of
from mirage_nb.optimize.on_grid import Cut, OnGrid
from mirage_nb.optimize.product_program import Given
from mirage_nb.targets import Target
from mirage_nb.tile.instructions.schemes import LOAD, MATH
from mirage_nb.tile.instructions.table import Place, wgmma
from mirage_nb.tile.roles.program import (
    GROUP,
    PART,
    Acquire,
    Await,
    Clear,
    Copy,
    Count,
    Index,
    Layout,
    Map,
    Mark,
    Number,
    Pipeline,
    Product,
    Program,
    Read,
    Reduce,
    Release,
    Role,
    Set,
    Statement,
    Store,
    Tile,
    Turn,
    Until,
    Walk,
    Yield,
    counted,
)
from mirage_nb.tile.rules.attention import (
    KEYS,
    SHARE,
    AttentionBlock,
    beside,
    counters_of,
    ends_of,
    lies_along,
    matrix_axes,
    registers_beside,
    weights_are_f32,
)
from mirage_nb.tile.rules.mask import masks_of, places_of, span_needed
from mirage_nb.tile.rules.products import COLUMNS, ROWS, Operand, broadcast_axes, distinct, reshaped
from mirage_nb.tile.rules.teams import CAPABILITY, HEIGHT, TEAMS, chained_fits, chained_stages

QUERY_RING, KEY_RING, VALUE_RING = "rq", "rk", "rv"
SCORES, WEIGHTS, RESULT, TOP = "s", "p", "o", "top"
NEAR_BYTES = 30_000_000
"""Keys and values that stay in L2 while the rows of several heads go by side by side."""
LOWEST = -(Fraction(2) ** 126)
"""Where a running maximum begins: rows that are masked so far have an exponential of zero, not of no number."""


class _OtherBlock(Exception):
    """Something that these programs do not compute."""


def attention_program(made: AttentionBlock, target: Target, given: Given) -> Program | None:
    """The tile program of a block, None where there is none."""
    counters = counters_of(made)
    if target.capability != CAPABILITY or counters is None or not _fits(made, target, given):
        return None
    try:
        return _Planner(made, target, given, block=made.block, counters=counters).program()
    except _OtherBlock:
        return None


def _fits(made: AttentionBlock, target: Target, given: Given) -> bool:
    """Whether tiles are those of warpgroups, and the copy engine can bring every operand."""
    sizes = made.rows, made.step, made.depth, made.columns
    operands = made.queries, made.keys, made.values
    others = beside(made, {*given.numbers, *given.places})
    if weights_are_f32((made.block.args[attrs.arg].dtype for attrs in others), (t.dtype for t in given.outputs)):
        return False
    fits = bool(chained_fits(*sizes, target.shared_per_block, registers_beside(made, others)))
    return fits and distinct(operands, lambda attrs: attrs.arg) and all(map(made.boxed, operands))


@dataclass(slots=True)
class _Planner(OnGrid):
    """Writes one program. known: the names of nodes that were computed, as long as what they are computed from holds.
    ends: nodes that are one number in front of the end of the keys, and another one behind it; ending: the last tile of
    keys is looked at. once: what is read where a point begins; ahead: what an iteration reads before its keys have
    come; loaded: the names of both. keys: the tiles of keys that rows need; masks: the nodes that choose scores. row:
    where a group's rows begin; chosen: masks are asked. mark: the tiles of keys that data leaves something of."""

    made: AttentionBlock
    target: Target
    given: Given
    known: dict[int, str] = field(default_factory=dict)
    ends: Mapping[int, Fraction] = field(init=False)
    ending: bool = False
    once: dict[int, Read] = field(default_factory=dict)
    loaded: dict[int, str] = field(default_factory=dict)
    ahead: list[Read] = field(default_factory=list)
    names: int = 0
    keys: Keys = field(init=False)
    row: Index = field(default_factory=Index)
    masks: tuple[int, ...] = field(init=False)
    mark: Mark | None = field(init=False)
    key: Index = field(default_factory=Index)
    chosen: bool = False

    def __post_init__(self) -> None:
        self.masks, self.ends = masks_of(self.made), ends_of(self.made, self.given.numbers)
        rows = self.block.grid[self.counters.index(ROWS)] if ROWS in self.counters else 1
        tiles = (rows, self.made.rows), (self.block.loop, self.made.step)
        self.keys = keys_of(span_needed(self.made, self._numbers, *tiles), rows)
        self.mark = self._marked() if self.masks and self.keys.sections else None  # of the rows of all groups
        self.row = counted(PART, HEIGHT) if TEAMS[self.made.rows].parts > 1 else Index()

    def program(self) -> Program:
        """The whole program."""
        made, team = self.made, TEAMS[self.made.rows]
        stages = int(chained_stages(made.rows, made.step, made.depth, made.columns, self.target.shared_per_block))
        rings = [
            self._ring(QUERY_RING, "q", made.queries, 1, GROUP * team.parts),
            self._ring(KEY_RING, "k", made.keys, stages, GROUP * team.parts),
            self._ring(VALUE_RING, "v", made.values, stages, GROUP * team.parts),
        ]
        self._registers()
        roles = [Role(MATH, GROUP * team.parts, team.math_registers), Role(LOAD, team.load_warps, team.load_registers)]
        walk, blocks = self._walk()
        bodies = {MATH: self._computing(team.parts), LOAD: self._loading()}
        if self.mark is not None:
            self.tiles[marks.SEEN] = tile = marks.tile_of(made)
            roles[1:] = marks.roles_of(roles[1])
            rings.append(marks.ring_of(tile, roles[:2]))
            bodies[marks.ROLE] = (*self.keys.tables, Acquire(marks.RING), self.mark)
        return self._program(blocks, roles, rings, walk, bodies, len(self.given.outputs))

    def _walk(self) -> tuple[Walk, int]:
        """The points of the grid: those that read the same keys behind each other. Where rows need unlike many keys,
        those with most come first, and blocks take the next one when they are done with another."""
        extents = self.points
        order = sorted(extents, key=lambda name: (name == COLUMNS, name == ROWS))
        points = math.prod(extents.values())
        group = 1
        if self.keys.uneven and len(order) > 1:
            read = self.made.step * self.block.loop * (self.made.depth + self.made.columns) * self.made.dtype.size
            group = max(1, min(extents[order[-2]], NEAR_BYTES // read))
        walk = Walk(tuple((name, extents[name]) for name in order), group, ())
        return walk, points if self.keys.uneven or self.mark else min(points, self.target.multiprocessors)

    def _key(self, done: Index) -> Index:
        """Where the keys of an iteration begin: the last ones of this point's come first."""
        first = counted(SHARE, self.block.loop) if SHARE in self.points else Index()
        return (first + self.keys.tile(done)) * self.made.step

    def _marked(self) -> Mark | None:
        """The tiles of keys that data leaves something of, where it says so, and there is room for it."""
        made, nodes, found, values = self.made, self.made.written.nodes, list[Statement](), list[str]()
        self.key, self.chosen = marks.key(made), True
        for mask in self.masks:
            with suppress(_OtherBlock):  # what is asked of scores is not known beforehand
                axes = broadcast_axes(_padded((ROWS, KEYS), nodes[mask].shape), nodes[nodes[mask].inputs[0]].shape)
                values.append(self._value(found, nodes[mask].inputs[0], axes))
        body = (*self.once.values(), *self.ahead, *found)
        self.once, self.ahead = {}, []
        return marks.mark_of(made, self.target.shared_per_block, body, values, self.keys.end, self.tiles)

    # -- tiles

    def _ring(self, ring: str, name: str, operand: Operand, stages: int, arrivals: int) -> Pipeline:
        attrs, block = operand.attrs, self.block
        self._global(f"x{attrs.arg}", block.args[attrs.arg], attrs.imap, operand.axes)
        long = [dim for dim, axis in enumerate(operand.axes) if axis]
        shape, axes = block.tile_shape(attrs), tuple(operand.axes[dim] for dim in long)
        slot = tuple(shape[dim] for dim in long)
        self.tiles[name] = tile = Tile(name, Place.SHARED, axes, slot, self.made.dtype, Layout.PANELS, stages)
        return Pipeline(ring, (name,), stages, tile.nbytes, arrivals)

    def _registers(self) -> None:
        made = self.made
        if len(made.results) != 1 or len(made.tops) > 1 or (SHARE in self.points and (self.masks or self.ends)):
            raise _OtherBlock
        if not made.is_held:
            raise _OtherBlock
        f32 = [(SCORES, (ROWS, KEYS), (HEIGHT, made.step)), (RESULT, (ROWS, COLUMNS), (HEIGHT, made.columns))]
        rows = [*(_total(place) for place in made.sums), *([TOP] if self._tops() else [])]
        for name, axes, shape in (*f32, *((name, (ROWS,), (HEIGHT,)) for name in rows)):
            self.tiles[name] = Tile(name, Place.REGISTER, axes, shape, DType.F32, Layout.FRAGMENT)
        shape = (HEIGHT, made.step)
        self.tiles[WEIGHTS] = Tile(WEIGHTS, Place.REGISTER, (ROWS, KEYS), shape, made.dtype, Layout.FRAGMENT)

    def _at(self, cut: Cut, shape: tuple[int, ...]) -> tuple[Index, ...]:
        """Where this point's part of a tensor begins."""
        return tuple(self._part(cut, dim) * size for dim, size in enumerate(shape))

    def _counter(self, g: int) -> Index:
        """That of rows runs from the last ones where these need more keys."""
        name = self.counters[g]
        turned = name == ROWS and self.keys.turned
        return Index(((name, -1),), self.block.grid[g] - 1) if turned else counted(name)

    # -- roles

    def _loading(self) -> tuple[Statement, ...]:
        def load(done: Index) -> tuple[Statement, ...]:
            return (
                Acquire(KEY_RING), self._copy("k", self.made.keys, self._key(done)),
                Acquire(VALUE_RING), self._copy("v", self.made.values, self._key(done)),
            )  # fmt: skip

        loads = marks.loading(self.mark, self.keys, load)
        return *self.keys.tables, Acquire(QUERY_RING), self._copy("q", self.made.queries, Index()), *loads

    def _copy(self, name: str, operand: Operand, step: Index) -> Copy:
        at = self._at(operand.attrs.imap, self.block.tile_shape(operand.attrs))
        moved = tuple(step if axis == KEYS else i for i, axis in zip(at, operand.axes, strict=True))
        return Copy(f"x{operand.attrs.arg}", name, moved)

    def _computing(self, parts: int) -> tuple[Statement, ...]:
        """What a group of four warps does at a point."""
        made, keys = self.made, self.keys
        turn: tuple[Statement, ...] = (Turn(),) if parts > 1 else ()
        over: tuple[Statement, ...] = (Yield(),) if parts > 1 else ()
        scored = (Clear(SCORES), Product(wgmma(made.step, made.dtype).name, SCORES, "q", "k", self.row))
        added = Product(wgmma(made.columns, made.dtype).name, RESULT, WEIGHTS, "v")
        start = (Clear(RESULT), *(Clear(_total(place)) for place in made.sums), *self._lowest())

        def iteration(done: Index, chosen: bool) -> tuple[Statement, ...]:
            before, behind = self._softmax(self._key(done), rescaled=True, chosen=chosen)
            return (
                *self.ahead, Await(KEY_RING), *turn, *scored, Await(VALUE_RING), added, *over,
                Release(KEY_RING), *before, Release(VALUE_RING), *behind,
            )  # fmt: skip

        first = self._softmax(self._key(Index()), rescaled=False, chosen=keys.chosen)
        ahead = self.ahead
        loops = marks.computing(self.mark, keys, iteration)
        joined, epilogue = self._joined(), self._epilogue()
        return (
            *keys.tables, *keys.skipped(made.step), *start, *self.once.values(), *joined, *ahead, Await(QUERY_RING),
            Await(KEY_RING), *turn, *scored, *over, Release(KEY_RING), *first[0], *first[1], *loops,
            Release(QUERY_RING), Await(VALUE_RING), added, Release(VALUE_RING), *epilogue,
        )  # fmt: skip

    def _lowest(self) -> list[Statement]:
        if not self._tops():
            return []
        name = self._new()
        return [Number(name, LOWEST), Set(TOP, name)]

    def _joined(self) -> list[Statement]:
        """What a running maximum begins with, where something joins it."""
        self.known, found, nodes = self._kept(), list[Statement](), self.made.written.nodes
        for top, place in self.made.joined.items():
            axes = broadcast_axes(_padded((ROWS, ""), nodes[top].shape), nodes[place].shape)
            name, larger = self._value(found, place, axes), self._new()
            found += [Map(larger, OpKind.MAXIMUM, None, (TOP, name)), Set(TOP, larger)]
        return found

    def _kept(self) -> dict[int, str]:
        """What is read once at a point."""
        return {place: read.name for place, read in self.once.items()}

    def _tops(self) -> Sequence[int]:
        """The maxima in whose place a running maximum stands, or the exponential that one holds up."""
        return self.made.tops or ([] if self.made.bare is None else [self.made.bare])

    def _softmax(self, key: Index, *, rescaled: bool, chosen: bool) -> tuple[list[Statement], list[Statement]]:
        """Everything between the products: in front of the result's release, and behind it. rescaled: the result holds
        something already. chosen: the mask leaves out some of the scores."""
        made, found = self.made, list[Statement]()
        self.loaded = self._kept()
        self.known = {made.scores: SCORES, **self.loaded}
        self.ahead, self.key, self.chosen, self.ending = [], key, chosen, not rescaled
        factor = ""
        for top in self._tops():
            source = made.ranked(top)
            self._keep(found, source)
            largest, risen, fallen, factor = (self._new() for _ in range(4))
            found += [
                Reduce(largest, OpKind.MAX, self._value(found, source, (ROWS, KEYS)), KEYS),
                Map(risen, OpKind.MAXIMUM, None, (largest, TOP)),
                Map(fallen, OpKind.SUB, None, (TOP, risen)),
                Map(factor, OpKind.EXP, None, (fallen,)),
                Set(TOP, risen),
            ]
            self.known[top] = self._held_up(found, source, risen) if top == made.bare else risen
        shared = made.shared
        if shared is not None:
            self._keep(found, shared)
        weights = self._value(found, made.weights, (ROWS, KEYS))
        for place, source in made.sums.items():
            total, part, added = _total(place), self._new(), self._new()
            found.append(Reduce(part, OpKind.SUM, self._value(found, source, (ROWS, KEYS)), KEYS))
            if self._rescaled(place):
                kept = self._new()
                found += [Map(kept, OpKind.MUL, None, (total, factor)), Map(added, OpKind.ADD, None, (kept, part))]
            else:
                found.append(Map(added, OpKind.ADD, None, (total, part)))
            found.append(Set(total, added))
        behind: list[Statement] = []
        if rescaled and self._rescaled(made.results[0]):
            name = self._new()
            behind = [Map(name, OpKind.MUL, None, (RESULT, factor)), Set(RESULT, name)]
        return found, [*behind, Set(WEIGHTS, weights)]

    def _rescaled(self, place: int) -> bool:
        attrs = self.made.written.nodes[place].attrs
        rescaled = isinstance(attrs, AccumAttrs) and attrs.kind is AccumKind.RESCALE
        return rescaled or self.made.bare is not None

    def _keep(self, found: list[Statement], node: int) -> None:
        """The scores' registers hold this node from here on, unless it is little more than what they hold."""
        if (same := self._same(node)) is not None:
            self._keep(found, same)
            return
        made = self.made.written.nodes[node]
        numbers = [v for v in made.inputs if self.made.written.nodes[v].kind is OpKind.CONST]
        if self.known.get(node) == SCORES or (made.kind is OpKind.MUL and numbers):
            return
        found.append(Set(SCORES, self._value(found, node, (ROWS, KEYS))))
        rows = {place: name for place, name in self.known.items() if self.made.written.nodes[place].shape[-1:] == (1,)}
        self.known = {**self.loaded, **rows, node: SCORES, **{p: n for p, n in self.known.items() if self._number(p)}}

    def _same(self, place: int) -> int | None:
        """The operand that a node is equal to here, if it is: what a mask chooses from, where it chooses all, and what
        only the end of the keys changes, in front of it."""
        node = self.made.written.nodes[place]
        if place in self.masks and not self.chosen:
            return node.inputs[1]
        if place in self.ends or self.ending or len(node.inputs) != 2:
            return None
        left, right = (self.ends.get(v) for v in node.inputs)
        neutral = {OpKind.ADD: 0, OpKind.SUB: 0, OpKind.MUL: 1}.get(node.kind)
        if neutral is None or neutral not in (left, right):
            return None
        return node.inputs[0] if right == neutral else node.inputs[1] if node.kind is not OpKind.SUB else None

    def _number(self, place: int) -> bool:
        return self.made.written.nodes[place].kind is OpKind.CONST

    # -- values

    def _new(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def _value(self, found: list[Statement], place: int, axes: tuple[str, ...]) -> str:
        """The name of a node that has these axes."""
        if place in self.known:
            return self.known[place]
        node = self.made.written.nodes[place]
        if (same := self._same(place)) is not None:
            return self._value(found, same, axes)
        if place in self.ends and not self.ending:
            return self._named_value(place, found, Number(self._new(), self.ends[place]))
        if place == self.made.scores:
            raise _OtherBlock  # its registers hold something else by now
        if node.kind is OpKind.RESHAPE:
            inside = reshaped(_padded(axes, node.shape), node.shape, self.made.written.nodes[node.inputs[0]].shape)
            if inside is None:
                raise _OtherBlock
            return self._value(found, node.inputs[0], inside)
        if isinstance(node.attrs, ConstAttrs):
            return self._named_value(place, found, Number(self._new(), node.attrs.value))
        if isinstance(node.attrs, InIterAttrs) and place in self.ends:
            if KEYS not in axes:
                raise _OtherBlock
            return self._named_value(place, found, Until(self._new(), self.ends[place], KEYS, self.key))
        if isinstance(node.attrs, InIterAttrs) and node.attrs.arg in self.given.numbers:
            return self._named_value(place, found, Number(self._new(), self.given.numbers[node.attrs.arg]))
        if isinstance(node.attrs, InIterAttrs) and node.attrs.arg in self.given.places:
            return self._named_value(place, found, self._count(node.attrs, axes))
        if isinstance(node.attrs, InIterAttrs):
            return self._read(place, node.attrs, axes)
        if place in self.made.sums or place in self.made.results:
            return _total(place) if place in self.made.sums else RESULT
        if place in self.made.largest:
            return TOP
        if place in self.made.late or node.attrs == AccumAttrs(AccumKind.HOLD):
            return self._value(found, node.inputs[0], axes)
        if Trait.ELEMENTWISE not in OPS[node.kind].traits:
            raise _OtherBlock
        full = _padded(axes, node.shape)
        operands = tuple(
            self._value(found, v, broadcast_axes(full, self.made.written.nodes[v].shape)) for v in node.inputs
        )
        return self._named_value(place, found, Map(self._new(), node.kind, node.attrs, operands))

    def _numbers(self, attrs: InIterAttrs) -> str:
        """The axis whose places an operand numbers, or nothing."""
        return places_of(self.made, self.given.places, self.counters, attrs)

    def _count(self, attrs: InIterAttrs, axes: tuple[str, ...]) -> Count:
        """The places of rows or keys."""
        axis = self._numbers(attrs)
        if axis not in axes:
            raise _OtherBlock
        shape = self.block.tile_shape(attrs)
        (at,) = (index for index, n in zip(self._at(attrs.imap, shape), shape, strict=True) if n > 1)
        return Count(self._new(), axis, at + self.row if axis == ROWS else self.key)

    def _read(self, place: int, attrs: InIterAttrs, axes: tuple[str, ...]) -> str:
        """Elements of an operand beside the matrices: those of an iteration in front of it, others once at a point."""
        if not lies_along(self.made, self.counters, attrs, axes):
            raise _OtherBlock
        shape = self.block.tile_shape(attrs)
        moves = {ROWS: self.row, KEYS: self.key}
        at = tuple(i + moves.get(axis, Index()) for i, axis in zip(self._at(attrs.imap, shape), axes, strict=True))
        source = self._global(f"x{attrs.arg}", self.block.args[attrs.arg], attrs.imap, axes)
        read = Read(self._new(), source, at)
        self.known[place] = self.loaded[place] = read.name
        if KEYS in axes:
            self.ahead.append(read)
        else:
            self.once[place] = read
        return read.name

    def _named_value(self, place: int, found: list[Statement], statement: Number | Count | Until | Map) -> str:
        found.append(statement)
        self.known[place] = statement.name
        return statement.name

    def _epilogue(self) -> list[Statement]:
        """What stands behind the loop, and what is stored."""
        made, found = self.made, list[Statement]()
        self.known = self._kept()
        if made.bare is not None and not made.is_quotient:
            found += self._lowered()
        for number, (place, attrs) in enumerate(made.written.saved):
            type_, shape = self.given.outputs[number], made.written.nodes[place].shape
            axes = matrix_axes(shape, (ROWS, COLUMNS if shape[-1] > 1 else ""))
            if axes is None or shape[axes.index(ROWS)] != made.rows or shape[-1] not in (1, made.columns):
                raise _OtherBlock
            name = self._value(found, place, axes)
            self._global(f"o{number}", type_, attrs.omap, axes)
            at = self._at(attrs.omap, shape)
            placed = tuple(i + self.row if axis == ROWS else i for i, axis in zip(at, axes, strict=True))
            found.append(Store(name, f"o{number}", placed))
        return found

    def _held_up(self, found: list[Statement], source: int, top: str) -> str:
        """The exponential of a node that a running maximum holds up."""
        less, raised = self._new(), self._new()
        found.append(Map(less, OpKind.SUB, None, (self._value(found, source, (ROWS, KEYS)), top)))
        found.append(Map(raised, OpKind.EXP, None, (less,)))
        return raised

    def _lowered(self) -> Iterator[Statement]:
        """What a running maximum held up, as it is without."""
        raised = self._new()
        yield Map(raised, OpKind.EXP, None, (TOP,))
        for name in (RESULT, *map(_total, self.made.sums)):
            whole = self._new()
            yield Map(whole, OpKind.MUL, None, (name, raised))
            yield Set(name, whole)


def _total(place: int) -> str:
    return f"t{place}"


def _padded(axes: tuple[str, ...], shape: tuple[int, ...]) -> tuple[str, ...]:
    """Axes of rows and columns as the dimensions of a node have them."""
    if len(axes) == len(shape):
        return axes
    found = matrix_axes(shape, (axes[0], axes[-1]))
    if found is None:
        raise _OtherBlock
    return found
