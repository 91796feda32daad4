"""The planner of products: a block of products becomes a persistent, warp-specialised tile program.

In: a `ProductBlock`, a target, the types of its outputs. Out: a tile program, or None where the block's extents fit no
instruction or no ring. The block graph's grid is the work that blocks walk over, its tile the tile of one turn, its
for-loop the stages of 64 summed elements. One role loads, the others multiply. Invariant: what is planned is a
function of its arguments, and `tile.validate` finds nothing in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from mirage_nb.ir import BlockGraph, ConstAttrs, DType, Op, OpKind, TensorType, ThreadGraph
from mirage_nb.optimize.product import COLUMNS, ROWS, SUMMED, Operand, ProductBlock, broadcast_axes, reshaped
from mirage_nb.targets import Target
from mirage_nb.tile.instructions import Place, wgmma
from mirage_nb.tile.program import (
    GROUP,
    PART,
    Acquire,
    Await,
    Axis,
    Clear,
    Copy,
    Index,
    Layout,
    Loop,
    Map,
    Number,
    Pipeline,
    Product,
    Program,
    Read,
    Release,
    Role,
    Statement,
    Store,
    Tile,
    Walk,
    counted,
)
from mirage_nb.tile.rules import CAPABILITY, CHUNK_BYTES, SHALLOWEST, STEP, TEAMS, fits
from mirage_nb.tile.rules import stages as ring_stages

SPLIT = "s"
LEADING = ("b", "c", "d")
UNKNOWN = ""
CUTS = {(ROWS,): ROWS, (COLUMNS,): COLUMNS, (SUMMED, SUMMED): SPLIT}
"""What a grid dim is called that cuts these axes of the operands."""
LOAD, MATH, RING = "load", "math", "ring"


@dataclass(frozen=True, slots=True)
class Given:
    """What a block graph does not say of itself: the types of its outputs, operands that are one number."""

    outputs: tuple[TensorType, ...]
    numbers: Mapping[int, Fraction]


def product_program(made: ProductBlock, target: Target, given: Given) -> Program | None:
    """The tile program of a block, None where there is none."""
    counters = _counters(made)
    if target.capability != CAPABILITY or counters is None or not _fits(made):
        return None
    return _Planner(made, target, given, counters).program()


def _counters(made: ProductBlock) -> tuple[str, ...] | None:
    """A name for every grid dim: the axis that it cuts, `SPLIT` for the summed one, a letter for leading dimensions."""
    found = {_named_cuts(made.block, f.left, f.right) for factors in made.sums.values() for f in factors}
    names = found.pop()
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


def _fits(made: ProductBlock) -> bool:
    """Whether the tile is one for a team of warpgroups, and the copy engine can bring every operand."""
    if not fits(made.rows, made.columns, made.depth, len(made.sums)):
        return False
    operands = {o for factors in made.sums.values() for f in factors for o in (f.left, f.right)}
    return all(_boxed(made.block, operand) for operand in operands)


def _boxed(block: BlockGraph, operand: Operand) -> bool:
    """Whether boxes of the copy engine bring the tile, in whole panels, with zeros where it hangs over the end."""
    tensor, tile = block.args[operand.attrs.arg], block.tile_shape(operand.attrs)
    over = block.overhanging(operand.attrs)
    panel = STEP if operand.axes[-1] == SUMMED else tile[-1]
    return (
        tensor.shape[-1] * tensor.dtype.size % CHUNK_BYTES == 0
        and panel % STEP == 0
        and (not any(over[:-1]) or math.prod(tensor.shape[:-2]) == 1)
    )


@dataclass(slots=True)
class _Planner:
    """Writes one program."""

    made: ProductBlock
    target: Target
    given: Given
    counters: tuple[str, ...]
    tiles: dict[str, Tile] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    slots: dict[Operand, str] = field(default_factory=dict)
    values: dict[object, str] = field(default_factory=dict)

    def program(self) -> Program | None:
        """The whole program."""
        made, team = self.made, TEAMS[self.made.rows]
        products = {value: [(self._slot(f.left), self._slot(f.right)) for f in made.sums[value]] for value in made.sums}
        nbytes = sum(self.tiles[name].nbytes for name in self.slots.values())
        stages = int(ring_stages(nbytes, self.target.shared_per_block))
        if stages < SHALLOWEST:
            return None
        for name in self.slots.values():
            self.tiles[name] = replace(self.tiles[name], stages=stages)
        height = made.rows // team.parts
        for value in made.sums:
            name = f"c{value}"
            shape = (height, made.columns)
            self.tiles[name] = Tile(name, Place.REGISTER, (ROWS, COLUMNS), shape, DType.F32, Layout.FRAGMENT)
        math_role = Role(MATH, GROUP * team.parts, team.math_registers)
        load_role = Role(LOAD, team.load_warps, team.load_registers)
        ring = Pipeline(RING, tuple(self.slots.values()), stages, nbytes, math_role.warps)
        loop = Loop(SUMMED, made.depth // STEP, ())
        row = counted(PART, height) if team.parts > 1 else Index()
        instruction = wgmma(made.columns, made.dtype)
        adding = [Product(instruction.name, f"c{v}", a, b, row) for v, pairs in products.items() for a, b in pairs]
        computing = (
            *(Clear(f"c{value}") for value in made.sums),
            replace(loop, body=(Await(RING), *adding, Release(RING, 1))),
            Release(RING),
            *self._epilogue(row),
        )
        loading = (replace(loop, body=(Acquire(RING), *(self._copy(o, name) for o, name in self.slots.items()))),)
        walk, blocks = self._walk()
        code = ((MATH, (replace(walk, body=computing),)), (LOAD, (replace(walk, body=loading),)))
        return Program(
            CAPABILITY, blocks, tuple(Axis(*pair) for pair in self.axes.items()), (math_role, load_role),
            tuple(self.tiles.values()), (ring,), tuple(f"o{i}" for i in range(len(self.given.outputs))), code,
        )  # fmt: skip

    def _walk(self) -> tuple[Walk, int]:
        """The points of the grid, those of one wave near each other; blocks as many as run at once."""
        made = self.made
        extents = {name: n for name, n in zip(self.counters, made.block.grid, strict=True) if n > 1}
        order = sorted(extents, key=lambda name: (name in (ROWS, COLUMNS), name == COLUMNS))
        wave = round(math.sqrt(self.target.multiprocessors * made.columns / made.rows))
        group = max(1, min(extents[ROWS], wave)) if order[-2:] == [ROWS, COLUMNS] else 1
        points = math.prod(extents.values())
        return Walk(tuple((name, extents[name]) for name in order), group, ()), min(points, self.target.multiprocessors)

    # -- operands of products

    def _slot(self, operand: Operand) -> str:
        """The shared tile of a streamed operand."""
        if operand not in self.slots:
            block, attrs = self.made.block, operand.attrs
            self._global(f"x{attrs.arg}", block.args[attrs.arg], self._named(attrs.imap, operand.axes))
            tile = block.tile_shape(attrs)[-2:]
            shape = tuple(STEP if axis == SUMMED else n for axis, n in zip(operand.axes[-2:], tile, strict=True))
            name = f"s{len(self.slots)}"
            self.slots[operand] = name
            self.tiles[name] = Tile(name, Place.SHARED, operand.axes[-2:], shape, self.made.dtype, Layout.PANELS)
        return self.slots[operand]

    def _named(self, cut: tuple[int | None, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes of a global tensor: leading dimensions have those of the grid dims that cut them."""
        named = list(axes)
        for g, dim in enumerate(cut):
            if dim is not None and not named[dim] and self.made.block.grid[g] > 1:
                named[dim] = self.counters[g]
        return tuple(named)

    def _global(self, name: str, type_: TensorType, axes: tuple[str, ...]) -> None:
        for axis, extent in zip(axes, type_.shape, strict=True):
            if axis:
                self.axes.setdefault(axis, extent)
        self.tiles.setdefault(name, Tile(name, Place.GLOBAL, axes, type_.shape, type_.dtype))

    def _copy(self, operand: Operand, name: str) -> Copy:
        block, attrs = self.made.block, operand.attrs
        at = []
        for dim, extent in enumerate(block.tile_shape(attrs)):
            start = self._part(attrs.imap, dim)
            if operand.axes[dim] == SUMMED:
                at.append(start * (extent * block.loop) + counted(SUMMED, STEP))
            else:
                at.append(start * extent)
        return Copy(f"x{attrs.arg}", name, tuple(at))

    def _part(self, cut: tuple[int | None, ...], dim: int) -> Index:
        """Which part of a dimension is this point's."""
        found = Index()
        for g, extent in enumerate(self.made.block.grid):
            if cut[g] == dim and extent > 1:
                found = found * extent + counted(self.counters[g])
        return found

    # -- what stands behind the loop

    def _epilogue(self, row: Index) -> list[Statement]:
        """Values, each once, in the order in which they are needed; then what is stored."""
        found: list[Statement] = []
        for number, (value, attrs) in enumerate(self.made.saved):
            type_, tile = self.given.outputs[number], self.made.block.types[value]
            long = iter((ROWS, COLUMNS))
            axes = tuple(next(long) if extent > 1 else "" for extent in tile.shape)
            name = self._value(found, value, axes, row)
            self._global(f"o{number}", type_, self._named(attrs.omap, axes))
            found.append(Store(name, f"o{number}", self._at(attrs.omap, tile.shape, axes, row)))
        return found

    def _at(
        self, cut: tuple[int | None, ...], tile: tuple[int, ...], axes: tuple[str, ...], row: Index
    ) -> tuple[Index, ...]:
        return tuple(
            self._part(cut, dim) * extent + (row if axes[dim] == ROWS else Index()) for dim, extent in enumerate(tile)
        )

    def _value(self, found: list[Statement], value: int, axes: tuple[str, ...], row: Index) -> str:
        """The name of a value of the block graph that has these axes here."""
        made = self.made
        op, result = made.defined[value]
        if value in made.sums:
            return f"c{value}"
        if value in made.held:
            return self._held(found, value, axes, row)
        if op.kind is OpKind.RESHAPE:
            inside = reshaped(axes, made.block.types[value].shape, made.block.types[op.inputs[0]].shape)
            assert inside is not None
            return self._value(found, op.inputs[0], inside, row)
        if isinstance(op.body, ThreadGraph):
            return self._thread(found, op, op.body, op.body.outputs[result], axes, row)
        operands = tuple(self._value(found, v, broadcast_axes(axes, made.block.types[v].shape), row) for v in op.inputs)
        return self._mapped(found, op, operands)

    def _thread(
        self, found: list[Statement], op: Op, graph: ThreadGraph, value: int, axes: tuple[str, ...], row: Index
    ) -> str:
        """The same inside a chain."""
        if value < graph.input_count:
            return self._value(found, op.inputs[value], axes, row)
        inside = next(o for o, values in graph.definitions() if value in values)
        operands = tuple(
            self._thread(found, op, graph, v, broadcast_axes(axes, graph.types[v].shape), row) for v in inside.inputs
        )
        return self._mapped(found, inside, operands)

    def _mapped(self, found: list[Statement], op: Op, operands: tuple[str, ...]) -> str:
        if isinstance(op.attrs, ConstAttrs):
            number = op.attrs.value
            return self._once(found, number, lambda name: Number(name, number))
        return self._once(found, (op.kind, op.attrs, operands), lambda name: Map(name, op.kind, op.attrs, operands))

    def _held(self, found: list[Statement], value: int, axes: tuple[str, ...], row: Index) -> str:
        attrs, block = self.made.held[value], self.made.block
        if attrs.arg in self.given.numbers:  # what lies beyond its end is not stored
            number = self.given.numbers[attrs.arg]
            return self._once(found, number, lambda name: Number(name, number))
        tile = block.tile_shape(attrs)
        self._global(f"x{attrs.arg}", block.args[attrs.arg], self._named(attrs.imap, axes))
        at = self._at(attrs.imap, tile, axes, row)
        return self._once(found, (attrs, axes), lambda name: Read(name, f"x{attrs.arg}", at))

    def _once(self, found: list[Statement], key: object, made: Callable[[str], Statement]) -> str:
        if key not in self.values:
            self.values[key] = f"v{len(self.values)}"
            found.append(made(self.values[key]))
        return self.values[key]
