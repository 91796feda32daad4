"""The planner of products: a block of products becomes a persistent, warp-specialised tile program.

In: a `ProductBlock`, a target, the types of its outputs. Out: a tile program, or None where the block's extents fit no
instruction or no ring. The block graph's grid is the work that blocks walk over, its tile the tile of one turn, its
for-loop the stages of 64 summed elements. One role loads, the others multiply. Invariant: what is planned is a
function of its arguments, and `tile.roles.validate` finds nothing in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from mirage_nb.ir import BlockGraph, ConstAttrs, DType, InIterAttrs, OpKind, TensorType
from mirage_nb.optimize.on_grid import Cut, OnGrid
from mirage_nb.targets import Target
from mirage_nb.tile.instructions.groups import ROWS as INSTRUCTION_ROWS
from mirage_nb.tile.instructions.schemes import LOAD, Asked, MathRole, Scheme, scheme
from mirage_nb.tile.instructions.table import Place, wgmma
from mirage_nb.tile.roles.program import (
    PART,
    Acquire,
    Await,
    Clear,
    Copy,
    Count,
    Index,
    Layout,
    Loop,
    Map,
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
from mirage_nb.tile.rules import teams
from mirage_nb.tile.rules.products import (
    COLUMNS,
    LEADING,
    OF_ROWS,
    RANK,
    ROWS,
    SUMMED,
    Operand,
    ProductBlock,
    boxed,
    broadcast_axes,
    dim_of,
    reshaped,
    unfolded,
)
from mirage_nb.tile.rules.shared import PATTERN_ROWS
from mirage_nb.tile.rules.teams import CAPABILITY, SHALLOWEST

SPLIT = "s"
UNKNOWN = ""
CUTS = {(ROWS,): ROWS, (COLUMNS,): COLUMNS, (SUMMED, SUMMED): SPLIT}
"""What a grid dim is called that cuts these axes of the operands."""
TILES = "t"
"""The same of columns that are folded: results have an axis of their tiles."""
RING, ONCE = "ring", "once"
MOST_POINTS = 2
"""Of the walk, that a block takes where matrices behind its products are read early: of eight, a product of 4096 x 4096
x 4096 took 228 us without and 230 with it."""
CHUNK = "_chunk"
"""What sums of chunks are called after."""
ADDED = ""
"""Stands for a product behind the loop that the accumulator holds already that it is added to."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a block graph does not say of itself: the types of its outputs, operands that are one number; how
    products of f32 are to be computed; operands that number the places of an axis; `Options.ahead`."""

    outputs: tuple[TensorType, ...]
    numbers: Mapping[int, Fraction]
    precision: str = "f32"
    places: frozenset[int] = frozenset()
    ahead: int = 0


def product_program(made: ProductBlock, target: Target, given: Given) -> Program | None:
    """The tile program of a block, None where there is none."""
    counters = _counters(made)
    if target.capability != CAPABILITY or counters is None:
        return None
    found = _scheme(made, given.precision)
    if found is None or not all(_boxed(made.block, operand, found.step) for operand in made.operands):
        return None
    ranks = {_rank(made.block, added.right) for added in made.added.values()}
    low = made.low_columns(max(ranks, default=0))
    if len(ranks) > 1 or not teams.low_fits(made.rows, made.columns, len(made.sums), len(made.low) * low):
        return None
    return _Planner(made, target, given, found, low, block=made.block, counters=counters).program()


def _rank(block: BlockGraph, operand: Operand) -> int:
    """What a product with a held operand sums."""
    return block.tile_shape(operand.attrs)[operand.axes.index(RANK)]


def _counters(made: ProductBlock) -> tuple[str, ...] | None:
    """A name for every grid dim: the axis that it cuts, `SPLIT` for the summed one, a letter for leading dimensions."""
    found = {_named_cuts(made.block, f.left, f.right) for factors in made.sums.values() for f in factors}
    names = tuple(TILES if made.folded and name == COLUMNS else name for name in found.pop())
    return names if not found and UNKNOWN not in names and len(set(names)) == len(names) else None


def _named_cuts(block: BlockGraph, left: Operand, right: Operand) -> tuple[str, ...]:
    names = []
    for g, extent in enumerate(block.grid):
        dims = [o.axes[dim] for o in (left, right) if (dim := o.attrs.imap[g]) is not None]
        if extent == 1 or not any(dims):
            names.append(LEADING[g])
        else:
            names.append(CUTS.get(tuple(dims), UNKNOWN))
    return tuple(names)


def _scheme(made: ProductBlock, precision: str) -> Scheme | None:
    """Which roles multiply, by what."""
    major = made.major
    if major is None:
        return None
    extents = made.rows, made.columns, made.depth
    return scheme(Asked(*extents, len(made.sums), major, made.dtype, made.folded, made.other), precision)


def _boxed(block: BlockGraph, operand: Operand, step: int) -> bool:
    """Whether boxes of the copy engine bring the tile."""
    attrs = operand.attrs
    tensor, tile, over = block.args[attrs.arg], block.tile_shape(attrs), block.overhanging(attrs)
    return bool(boxed(operand, tensor.shape, tile, over, step, tensor.dtype.size))


@dataclass(slots=True)
class _Planner(OnGrid):
    """Writes one program. low: columns of products of low rank. begin: where the part of a role begins in the block's
    tile, along rows and columns."""

    made: ProductBlock
    target: Target
    given: Given
    scheme: Scheme
    low: int
    slots: dict[Operand, str] = field(default_factory=dict)
    values: dict[object, str] = field(default_factory=dict)
    named: dict[tuple[int, tuple[str, ...]], str] = field(default_factory=dict)
    accumulators: dict[int, str] = field(default_factory=dict)
    begin: Mapping[str, Index] = field(default_factory=dict)

    def program(self) -> Program | None:
        """The whole program."""
        made, shared = self.made, self.scheme
        streamed = {o: self._slot(o) for f in (*made.factors, *made.low.values()) for o in (f.left, f.right)}
        nbytes = sum(self.tiles[name].nbytes for name in streamed.values())
        rests = sum(r.parts * r.rows * shared.step * made.dtype.size for r in shared.math if r.rest)
        held = {o: self._slot(o, "t") for added in made.added.values() for o, _ in added.held}
        once = sum(self.tiles[name].nbytes for name in held.values())
        stages = int(teams.stages(nbytes, self.target.shared_per_block - rests - once))
        if stages < SHALLOWEST:
            return None
        for name in streamed.values():
            self.tiles[name] = replace(self.tiles[name], stages=stages)
        math_roles = [Role(role.name, role.warps, role.registers) for role in shared.math]
        roles = (*math_roles, Role(LOAD, shared.load_warps, shared.load_registers))
        warps = sum(role.warps for role in math_roles)
        rings = [Pipeline(RING, tuple(streamed.values()), stages, nbytes, warps)]
        loop = Loop(SUMMED, made.depth // shared.step, ())
        loading = [replace(loop, body=(Acquire(RING), *(self._copy(o, name) for o, name in streamed.items())))]
        behind = Loop(RANK, 0, ())
        if held:
            rings.append(Pipeline(ONCE, tuple(held.values()), 1, once, warps))
            rank = _rank(made.block, next(iter(held)))
            behind = replace(behind, count=-(-rank // shared.step))
            copies = (self._copy(o, name) for o, name in held.items())
            loading.append(replace(behind, body=(Acquire(ONCE), *copies)))
        walk, blocks = self._walk()
        bodies = {role.name: self._computing(role, loop, behind) for role in shared.math}
        return self._program(blocks, roles, rings, walk, {**bodies, LOAD: tuple(loading)}, len(self.given.outputs))

    def _computing(self, role: MathRole, loop: Loop, behind: Loop) -> tuple[Statement, ...]:
        """What a role that multiplies does at a point: the loop over what is streamed, that over what is held."""
        made, dtype, instruction = self.made, self.made.dtype, INSTRUCTION_ROWS[role.instruction]
        self.values, self.named, self.accumulators = {}, {}, {}
        for value in made.sums:
            name = f"c{value}" if role is self.scheme.math[0] else f"c{value}_{role.name}"
            self.accumulators[value] = name
            self._register(name, COLUMNS, role.rows, role.columns, instruction.sums)
            if instruction.chunk:
                self._register(f"{name}{CHUNK}", COLUMNS, role.rows, role.columns, instruction.sums)
        rest = f"r_{role.name}" if role.rest else ""
        if rest:
            shape = (role.parts * role.rows, self.scheme.step)
            self.tiles[rest] = Tile(rest, Place.SHARED, (ROWS, SUMMED), shape, dtype, Layout.PANELS)
        row, column = Index((), role.row), Index((), role.column)
        row = counted(PART, role.rows) + row if role.parts > 1 else row
        self.begin = {ROWS: row, COLUMNS: column}

        def product(total: int, left: str, right: str) -> Product:
            return Product(role.instruction, self.accumulators[total], left, right, row, column, rest)

        products = [product(v, self.slots[f.left], self.slots[f.right]) for v, many in made.sums.items() for f in many]
        rounded: dict[int, Set] = {}
        for value, f in made.low.items():
            self._register(f"c{value}", RANK, role.rows, self.low, DType.F32)
            self._register(f"p{value}", RANK, role.rows, self.low, dtype)
            operands = self.slots[f.left], self.slots[f.right]
            products.append(Product(wgmma(self.low, dtype).name, f"c{value}", *operands, row))
            rounded[value] = Set(f"p{value}", f"c{value}")
        late = [
            replace(product(a.total, f"p{a.left}", self.slots[a.right]), row=Index()) if isinstance(a.left, int)
            else product(a.total, self.slots[a.left], self.slots[a.right])
            for a in made.added.values()
        ]  # fmt: skip
        return (
            *(Clear(name) for name in (*self.accumulators.values(), *(f"c{value}" for value in rounded))),
            *self._steps(role, replace(loop, body=self._step(products))),
            *rounded.values(),
            *([replace(behind, body=(Await(ONCE), *late, Release(ONCE)))] if late else []),
            *map(self._early, self._epilogue()),
        )

    def _early(self, behind: Statement) -> Statement:
        """What stands behind the products: a matrix that comes from device memory there is read early, where blocks
        take few points. A product of 2048 x 1024 x 1024 with a matrix added took 14.7 us of an H200, and 12.6 so."""
        few = math.prod(self.points.values()) <= MOST_POINTS * self.target.multiprocessors
        if not few or not isinstance(behind, Read):
            return behind
        axes = self.tiles[behind.source].axes
        return replace(behind, early=ROWS in axes and axes[-1] == COLUMNS)

    def _step(self, products: Sequence[Product]) -> tuple[Statement, ...]:
        """What is done with a stage. Where tensor cores sum few elements well, each product begins anew, and its sums
        are added to those before when all are done."""
        added = tuple(p.result for p in products if INSTRUCTION_ROWS[p.instruction].chunk)
        if not added:
            return (Await(RING), *products, Release(RING, self.scheme.behind))
        apart, sums = list[Statement](), list[Statement]()
        for product, c in zip(products, added, strict=True):
            chunk = f"{c}{CHUNK}"
            apart += Clear(chunk), replace(product, result=chunk)
            sums += Map(f"{c}_sum", OpKind.ADD, None, (c, chunk)), Set(c, f"{c}_sum")
        return (Await(RING), *apart, Release(RING), *sums)

    def _steps(self, role: MathRole, loop: Loop) -> tuple[Statement, ...]:
        """The loop over what is streamed; of folded columns, groups of warps take turns with its first steps."""
        rest = (Release(RING),) if self.scheme.behind else ()
        ring = self.tiles[next(iter(self.slots.values()))].stages
        ahead = teams.ahead(self.given.ahead, loop.count, ring) if self.made.folded and role.parts > 1 else 0
        if not ahead:
            return (loop, *rest)
        first, others = replace(loop, count=ahead), replace(loop, count=loop.count - ahead)
        return (Turn(), first, *rest, Yield(), others, *rest)

    def _register(self, name: str, across: str, rows: int, columns: int, dtype: DType) -> None:
        self.tiles[name] = Tile(name, Place.REGISTER, (ROWS, across), (rows, columns), dtype, Layout.FRAGMENT)

    def _walk(self) -> tuple[Walk, int]:
        """The points of the grid, those of one wave near each other; blocks as many as run at once."""
        made, extents = self.made, self.points
        across = TILES if made.folded else COLUMNS
        order = sorted(extents, key=lambda name: (name in (ROWS, across), name == across))
        wave = round(math.sqrt(self.target.multiprocessors * made.columns / made.rows))
        group = max(1, min(extents[ROWS], wave)) if order[-2:] == [ROWS, across] else 1
        points = math.prod(extents.values())
        return Walk(tuple((name, extents[name]) for name in order), group, ()), min(points, self.target.multiprocessors)

    # -- operands of products

    def _slot(self, operand: Operand, stem: str = "s") -> str:
        """The shared tile of an operand of products."""
        if operand not in self.slots:
            block, attrs = self.block, operand.attrs
            tile = block.tile_shape(attrs)[-2:]
            step = self.scheme.step
            along = {SUMMED: step, RANK: step}
            first, second = (along.get(axis, n) for axis, n in zip(operand.axes[-2:], tile, strict=True))
            if self.low and operand.axes[-2] == RANK:
                first = self.low
            shape = (-(-first // PATTERN_ROWS) * PATTERN_ROWS, second)  # what lies beyond is not multiplied
            name = f"{stem}{len(self.slots)}"
            self.slots[operand] = name
            dtype = block.args[attrs.arg].dtype
            self.tiles[name] = Tile(name, Place.SHARED, operand.axes[-2:], shape, dtype, Layout.PANELS)
        return self.slots[operand]

    def _copy(self, operand: Operand, name: str) -> Copy:
        block, attrs = self.block, operand.attrs
        at = []
        for dim, extent in enumerate(block.tile_shape(attrs)):
            start = self._part(attrs.imap, dim)
            if operand.axes[dim] == RANK:
                at.append(Index() if self.low else counted(RANK, self.scheme.step))
            elif operand.axes[dim] == SUMMED:
                at.append(start * (extent * block.loop) + counted(SUMMED, self.scheme.step))
            else:
                at.append(start * extent)
        source = self._global(f"x{attrs.arg}", block.args[attrs.arg], attrs.imap, operand.axes)
        return Copy(source, name, tuple(at))

    # -- what stands behind the loop

    def _epilogue(self) -> list[Statement]:
        """Values, each once, in the order in which they are needed; then what is stored."""
        found, stores = list[Statement](), list[Statement]()
        for number, (value, attrs) in enumerate(self.made.written.saved):
            type_, tile = self.given.outputs[number], self.made.written.nodes[value].shape
            long = iter((ROWS, COLUMNS))
            axes = tuple(next(long) if extent > 1 else "" for extent in tile)
            name = self._value(found, value, axes)
            self._global(f"o{number}", type_, attrs.omap, axes)
            stores.append(Store(name, f"o{number}", self._at(attrs.omap, tile, axes)))
        return found + stores

    def _at(self, cut: Cut, tile: tuple[int, ...], axes: tuple[str, ...]) -> tuple[Index, ...]:
        return tuple(
            self._part(cut, dim) * extent + self.begin.get(axes[dim], Index()) for dim, extent in enumerate(tile)
        )

    def _value(self, found: list[Statement], value: int, axes: tuple[str, ...]) -> str:
        """The name of a node that has these axes here."""
        if (value, axes) not in self.named:
            self.named[value, axes] = self._computed(found, value, axes)
        return self.named[value, axes]

    def _computed(self, found: list[Statement], value: int, axes: tuple[str, ...]) -> str:
        made, nodes = self.made, self.made.written.nodes
        node = nodes[value]
        if value in made.sums:
            return self.accumulators[value]
        if value in made.added:
            return ADDED
        if value in made.held:
            return self._held(found, made.held[value], axes)
        if isinstance(node.attrs, ConstAttrs):
            return self._number(found, node.attrs.value)
        if node.kind is OpKind.RESHAPE:
            inside = reshaped(axes, node.shape, nodes[node.inputs[0]].shape)
            assert inside is not None
            return self._value(found, node.inputs[0], inside)
        if node.kind in OF_ROWS:
            operand = self._value(found, node.inputs[0], unfolded(axes, dim_of(node)))
            return self._once(found, (node.kind, operand), lambda name: Reduce(name, node.kind, operand, COLUMNS))
        operands = tuple(self._value(found, v, broadcast_axes(axes, nodes[v].shape)) for v in node.inputs)
        if ADDED in operands:
            return next(name for name in operands if name != ADDED)
        return self._once(
            found, (node.kind, node.attrs, operands), lambda name: Map(name, node.kind, node.attrs, operands)
        )

    def _held(self, found: list[Statement], attrs: InIterAttrs, axes: tuple[str, ...]) -> str:
        block, made = self.block, self.made
        at = self._at(attrs.imap, block.tile_shape(attrs), axes)
        if (number := self.given.numbers.get(attrs.arg)) is not None:
            ends = [at[dim] for dim, over in enumerate(block.overhanging(attrs)) if over and axes[dim] == COLUMNS]
            if not made.folded or not ends:  # what lies beyond its end is not stored
                return self._number(found, number)
            return self._once(found, (number, ends[0]), lambda name: Until(name, number, COLUMNS, ends[0]))
        if attrs.arg in self.given.places and (dim := self._counted(attrs, axes)) is not None:
            return self._once(found, (axes[dim], at[dim]), lambda name: Count(name, axes[dim], at[dim]))
        source = self._global(f"x{attrs.arg}", block.args[attrs.arg], attrs.imap, axes)
        return self._once(found, (attrs, axes), lambda name: Read(name, source, at))

    def _counted(self, attrs: InIterAttrs, axes: tuple[str, ...]) -> int | None:
        """The dimension of an operand that numbers places along rows or columns; none where folds meet such beyond its
        end, which are zero there."""
        long = [dim for dim, extent in enumerate(self.block.args[attrs.arg].shape) if extent > 1]
        if len(long) != 1 or not axes[long[0]]:
            return None
        folded = self.made.folded and axes[long[0]] == COLUMNS
        return None if folded and self.block.overhanging(attrs)[long[0]] else long[0]

    def _number(self, found: list[Statement], number: Fraction) -> str:
        return self._once(found, number, lambda name: Number(name, number))

    def _once(self, found: list[Statement], key: object, made: Callable[[str], Statement]) -> str:
        if key not in self.values:
            self.values[key] = f"v{len(self.values)}"
            found.append(made(self.values[key]))
        return self.values[key]
