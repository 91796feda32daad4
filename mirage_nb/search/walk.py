"""Walks of a muGraph through the rules of the closure: what the search makes of its values, and what it does not.

In: the semantics of a program, an effort, a muGraph of its inputs. Out: `Walk`, with a line for every value that the
search makes of it, and what stopped it. A kernel's operators are applied by a closure to just the values that it
applies them to; pre-defined operators are walked as if they were a kernel without a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mirage_nb.ir import (
    OPS,
    AccumAttrs,
    AccumKind,
    BlockGraph,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    ReshapeAttrs,
    ThreadGraph,
    Trait,
    TransposeAttrs,
)
from mirage_nb.ir.rewrite import alone
from mirage_nb.search.axes import Layout, broadcast_layouts, spread_layout
from mirage_nb.search.dims import folded_dim, joined_dim
from mirage_nb.search.saturation.closure import Closure
from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.saturation.sample import Sample
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.saturation.values import (
    BLOCK,
    DATA,
    GRID,
    ITER,
    LOOP,
    POST,
    TILE,
    Operator,
    Type,
    Value,
    show_type,
)
from mirage_nb.search.space import MAX_GRID_DIMS, Effort, label, last_grids
from mirage_nb.search.two_kernels import as_leaf


class Ended(Exception):
    """The search does not make the next value; says why."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A value of the walk, and the axis of each of its dimensions. `value` is None for constants: see `leaf`.

    `input`: of the program, whose aliases iterators may read instead.
    """

    value: Value | None
    layout: Layout
    leaf: int = -1
    input: int = -1


class Record(Sample):
    """Remembers what became of every application."""

    def __init__(self, semantics: Semantics) -> None:
        super().__init__(semantics, "", 0)
        self.seen: dict[tuple[Operator, tuple[int, ...]], tuple[Outcome, str, int]] = {}

    def event(
        self, outcome: Outcome, operator: Operator, args: list[Value], depth: int, type_: Type, stage: int,
        reason: str, expr: int,
    ) -> None:  # fmt: skip
        self.seen[operator, tuple(arg.id for arg in args)] = (outcome, reason, expr)


@dataclass(slots=True)
class Walk:
    """One walk; `ended` says what stopped it, `lines` what was met before."""

    semantics: Semantics
    effort: Effort
    graph: KernelGraph
    picks: Sequence[int]
    lines: list[str] = field(default_factory=list)
    ended: str = ""
    labels: list[str] = field(default_factory=list)
    operators: int = 0
    splits_late: bool = False
    between: set[bytes] = field(default_factory=set)
    of_program: set[bytes] = field(default_factory=set)
    names: tuple[str, ...] = ()
    held: dict[int, Tile] = field(default_factory=dict)
    _left: Iterator[int] = field(default_factory=lambda: iter(()))

    def run(self) -> None:
        """Walk as far as the search goes."""
        prepared = self.semantics.prepared
        self.names = tuple(axis.name for axis in prepared.axes)
        self.of_program = {value.print for value in self.semantics.program}
        self._left = iter(self.picks)
        for number, tensor in reversed(list(enumerate(prepared.tensors))):
            layout = tensor.axes if all(len(dim) < 2 for dim in tensor.dims) else ()
            self.held[tensor.input] = Tile(self.semantics.tensors[number], layout, input=tensor.input)
        try:
            if self.graph == prepared.graph:
                self.held.update(zip(self.graph.outputs, KernelWalk(self, self.graph, (), 0).program(), strict=True))
            elif any(op.kind is OpKind.GRAPH for op in self.graph.ops):
                for op, values in self.graph.definitions():
                    self._kernel_op(op, values)
            else:
                self._kernel(self.graph, range(self.graph.input_count), self.graph.outputs)
            self._check_outputs()
        except Ended as why:
            self.ended = str(why)

    def _kernel(self, body: BlockGraph | KernelGraph, operands: Sequence[int], values: Sequence[int]) -> None:
        tiles = [self.held.get(v, Tile(None, ())) for v in operands]
        for value, tile in zip(values, KernelWalk(self, body, tiles, len(self.labels)).run(), strict=True):
            self.held[value] = tile
            if value not in self.graph.outputs and tile.value is not None:
                self.between.add(tile.value.print)

    def picked(self, tile: Tile) -> Tile:
        """What an iterator reads: where the input has aliases, the next pick of them."""
        aliases = [n for n, tensor in enumerate(self.semantics.prepared.tensors) if tensor.input == tile.input]
        pick = next(self._left, 0) if self.picks else 0
        if len(aliases) < 2:
            return tile
        number = aliases[pick % len(aliases)]
        axes = self.semantics.prepared.tensors[number].axes
        return Tile(self.semantics.tensors[number], axes if tile.layout else (), input=tile.input)

    def _kernel_op(self, op: Op, values: Sequence[int]) -> None:
        if op.kind is OpKind.CONST:
            self.held[values[0]] = self.constant(op, values[0])
            return
        if any(v not in self.held for v in op.inputs):
            raise Ended(f"%{values[0]}: it reads an input that the program does not need.")
        if op.kind is OpKind.RESHAPE and self.held[op.inputs[0]].value is not None:
            self.held[values[0]] = self._viewed(op, op.inputs[0])
            return
        if isinstance(op.body, BlockGraph):
            self._kernel(op.body, op.inputs, values)
            return
        self._kernel(alone(self.graph, op), op.inputs, values)

    def constant(self, op: Op, number: int) -> Tile:
        """A constant of the program. Raises Ended for another one."""
        for leaf, attrs in enumerate(self.semantics.prepared.constants):
            if attrs == op.attrs:
                return Tile(None, (), leaf)
        raise Ended(f"%{number}: the search uses the constants of the program only; this is none of them.")

    def _viewed(self, op: Op, value: int) -> Tile:
        """A view of an input that has a dimension for every axis, or of a tensor whose axes stay."""
        assert isinstance(op.attrs, ReshapeAttrs)
        tile = self.held[value]
        layout = tile.layout
        if tile.input >= 0:
            layout = next(t.axes for t in self.semantics.prepared.tensors if t.input == tile.input)
        axes = iter([axis for axis in layout if axis is not None])
        moved = tuple(None if extent == 1 else next(axes, None) for extent in op.attrs.shape)
        return Tile(tile.value, moved, input=tile.input)

    def _check_outputs(self) -> None:
        targets = self.semantics.targets
        if len(targets) != len(self.graph.outputs):
            raise Ended(f"It has {len(self.graph.outputs)} outputs, the program has {len(targets)}.")
        found = {tile.value.print for v in self.graph.outputs if (tile := self.held[v]).value is not None}
        for number, target in enumerate(targets):
            if target.print not in found:
                raise Ended(f"No output of it is output {number} of the program: they are other functions.")


@dataclass(slots=True)
class KernelWalk:
    """The walk through one kernel: a block graph, or pre-defined operators as if they were one without a loop."""

    walk: Walk
    body: BlockGraph | KernelGraph
    operands: Sequence[Tile]
    number: int
    closure: Closure = field(init=False)
    record: Record = field(init=False)
    held: dict[int, Tile] = field(default_factory=dict)
    along: list[int | None] = field(default_factory=list)
    loop: int | None = None
    results: list[Tile] = field(default_factory=list)
    read: dict[int, Tile] = field(default_factory=dict)

    def run(self) -> list[Tile]:
        """The results as device tensors."""
        self._open()
        if isinstance(self.body, KernelGraph):
            for number, tile in enumerate(self.operands):
                self.held[number] = self._read(tile, tile.value.type if tile.value is not None else ())
        for op, values in self.body.definitions():
            self._step(op, values)
        if isinstance(self.body, KernelGraph):
            self.results += [self._stored(self.held[v], self.held[v].layout) for v in self.body.outputs]
        return self.results

    def program(self) -> list[Tile]:
        """The same for the program itself, over axes."""
        self._open()
        prepared, tensors = self.walk.semantics.prepared, self.walk.semantics.tensors
        for number, (operator, args) in enumerate(prepared.program):
            if operator.kind is OpKind.IN_ITER:
                leaf = tensors[operator.leaf]
                self.held[number] = self._read(Tile(leaf, ()), leaf.type)
            elif operator.kind is OpKind.CONST:
                self.held[number] = Tile(None, (), operator.leaf)
            else:
                self.held[number] = Tile(self._applied(operator, [self.held[a] for a in args]), ())
                self._say(number, operator.label, self.held[number])
        return [self._stored(self.held[number], ()) for number in prepared.outputs]

    def _open(self) -> None:
        walk, semantics = self.walk, self.walk.semantics
        grid = self._configure()
        reduced = [axis.reduced for axis in semantics.prepared.axes]
        loop = self.loop if self.loop is not None and reduced[self.loop] else None
        effort = walk.effort
        self.record = Record(semantics)
        self.closure = Closure(semantics, grid, loop, (), effort.rules, self.record, lambda counts: None, lambda: False)
        walk.labels.append(label(semantics.prepared, sorted(grid), loop))
        walk.lines.append(f"kernel {self.number + 1}, as in '{walk.labels[-1]}'")
        last = {axis for every in last_grids(semantics.prepared) for axis in every}
        walk.splits_late |= bool(grid - last) and self.number > 0

    def _configure(self) -> frozenset[int]:
        """Which axes the grid splits and the loop runs over, from the input iterators."""
        if isinstance(self.body, KernelGraph):
            return frozenset()
        self.along = [None] * len(self.body.grid)
        loops: set[int] = set()
        for op, values in self.body.definitions():
            if isinstance(op.attrs, InIterAttrs):
                self.read[values[0]] = self.walk.picked(self.operands[op.attrs.arg])
                layout = self.read[values[0]].layout
                for place, dim in enumerate(op.attrs.imap):
                    axis = None if dim is None or dim >= len(layout) else layout[dim]
                    if axis is not None and self.along[place] not in (None, axis):
                        raise Ended(f"Grid dim {'xyz'[place]} splits two different axes: the search has none such.")
                    self.along[place] = axis if axis is not None else self.along[place]
                if op.attrs.fmap is not None and op.attrs.fmap < len(layout):
                    loops |= {a for a in (layout[op.attrs.fmap],) if a is not None}
        if len(loops) > 1:
            raise Ended("The for-loop runs over two different axes: the search has one axis in a loop.")
        self.loop = next(iter(loops), None)
        split = {axis for axis in self.along if axis is not None}
        axes = self.walk.semantics.prepared.axes
        for axis in sorted(split | loops):
            if axes[axis].whole:
                raise Ended(f"Axis {axes[axis].name} is split: the search has it whole, as a concatenation is.")
        if len(split) > MAX_GRID_DIMS:
            raise Ended(f"The grid splits {len(split)} axes: at most {MAX_GRID_DIMS}.")
        return frozenset(a for a in split if self.walk.semantics.prepared.axes[a].reduced)

    def _read(self, tile: Tile, type_: Type) -> Tile:
        if tile.value is None:
            return tile
        return Tile(self.closure.keep_leaf(tile.value, type_, self.closure.first_stage), tile.layout)

    def _role(self, attrs: InIterAttrs, tile: Tile) -> Type:
        """The type of what a block reads in an iteration."""
        assert tile.value is not None
        split = {tile.layout[dim] for dim in attrs.imap if dim is not None and dim < len(tile.layout)}
        looped = None if attrs.fmap is None or attrs.fmap >= len(tile.layout) else tile.layout[attrs.fmap]
        found = []
        for axis, code in enumerate(tile.value.type):
            reduced = self.walk.semantics.prepared.axes[axis].reduced
            if code == DATA:
                grid = BLOCK if axis in split else GRID
                found.append(grid | (ITER if axis == looped else LOOP) | TILE)
            elif code and reduced and (axis in split or axis == looped):
                raise Ended(f"A tensor between kernels is split along what is left of axis {self.walk.names[axis]}.")
            else:
                found.append(code)
        return tuple(found)

    def _step(self, op: Op, values: tuple[int, ...]) -> None:
        if isinstance(op.attrs, InIterAttrs):
            tile = self.read[values[0]]
            if tile.value is not None and not tile.layout and any(tile.value.type):
                raise Ended("An input whose dimensions have several axes is read without a view that has them apart.")
            self.held[values[0]] = self._read(tile, () if tile.value is None else self._role(op.attrs, tile))
        elif isinstance(op.attrs, OutSaverAttrs):
            tile = self.held[op.inputs[0]]
            layout = list(tile.layout)
            for place, dim in enumerate(op.attrs.omap):
                if dim is not None and layout[dim] is None:
                    layout[dim] = self.along[place]
            self.results.append(self._stored(tile, tuple(layout)))
        elif isinstance(op.body, ThreadGraph):  # nothing but where its values are: in registers
            held = {number: self.held[v] for number, v in enumerate(op.inputs)}
            for inner, (number,) in op.body.definitions():
                held[number] = self._value(inner, number, held)
            self.held |= {v: held[output] for v, output in zip(values, op.body.outputs, strict=True)}
        else:
            self.held[values[0]] = self._value(op, values[0], self.held)

    def _value(self, op: Op, number: int, held: dict[int, Tile]) -> Tile:
        """What an operator makes of the values before it."""
        if op.kind is OpKind.CONST:
            return self.walk.constant(op, number)
        made = self._made(op, [held[v] for v in op.inputs])
        if op.kind not in (OpKind.RESHAPE, OpKind.TRANSPOSE):
            self._say(number, op.kind.value, made)
        return made

    def _say(self, number: int, label: str, made: Tile) -> None:
        self.walk.operators += 1
        if made.value is not None:
            type_, expr = show_type(made.value.type, self.walk.names), made.value.expr
            self.walk.lines.append(f"  %{number} {label} [{type_}]: {self.walk.semantics.algebra.show(expr)}")

    def _stored(self, tile: Tile, layout: Layout) -> Tile:
        if tile.value is None:
            raise Ended("A kernel stores a constant.")
        return Tile(as_leaf(tile.value, -1), layout)

    # -- one operator

    def _made(self, op: Op, tiles: list[Tile]) -> Tile:
        layouts = [tile.layout for tile in tiles]
        match op.kind:
            case OpKind.TRANSPOSE:
                assert isinstance(op.attrs, TransposeAttrs)
                return Tile(tiles[0].value, tuple(layouts[0][i] for i in op.attrs.perm))
            case OpKind.RESHAPE:
                assert isinstance(op.attrs, ReshapeAttrs)
                shape = self.body.types[op.inputs[0]].shape
                if sorted(e for e in shape if e != 1) != sorted(e for e in op.attrs.shape if e != 1):
                    raise Ended("A reshape in a block splits axes: the search reads and writes views instead.")
                return Tile(tiles[0].value, spread_layout(layouts[0], shape, op.attrs.shape))
            case OpKind.CAST:
                return tiles[0]
            case OpKind.MATMUL:
                axis = layouts[0][-1]
                layout = (*broadcast_layouts(layouts[0][:-2], layouts[1][:-2]), layouts[0][-2], layouts[1][-1])
                kind = Operator(OpKind.MUL) if axis is None else Operator(OpKind.MATMUL, axis=axis)
                return Tile(self._applied(kind, tiles), layout)
            case OpKind.CONCAT_MATMUL:
                w, x, y, z = tiles
                first, second = (self._made(Op(OpKind.MATMUL), pair) for pair in ([w, y], [x, z]))
                return Tile(self._applied(Operator(OpKind.ADD), [first, second]), first.layout)
            case OpKind.SUM | OpKind.MAX | OpKind.RESCALED_SUM:
                dim = folded_dim(op)
                axis = layouts[0][dim]
                if axis is None:
                    return tiles[0]
                layout = (*layouts[0][:dim], None, *layouts[0][dim + 1 :])
                return Tile(self._applied(Operator(op.kind, axis=axis), tiles), layout)
            case OpKind.ACCUM:
                return self._accumulated(op, tiles)
            case OpKind.CONCAT:
                return self._joined(joined_dim(op), tiles)
            case kind if Trait.ELEMENTWISE in OPS[kind].traits:
                layout = layouts[0]
                for other in layouts[1:]:
                    layout = broadcast_layouts(layout, other)
                if kind is OpKind.MUL and len(tiles) == 2 and tiles[0] is tiles[1]:
                    return Tile(self._applied(Operator(OpKind.SQR), tiles[:1]), layout)
                return Tile(self._applied(Operator(kind, attrs=op.attrs), tiles), layout)
            case _:
                raise Ended(f"{op.kind.value} has no axes: the search uses it between kernels only.")

    def _joined(self, dim: int, tiles: list[Tile]) -> Tile:
        sides = tuple(tile.layout[dim] for tile in tiles)
        known = self.walk.semantics.prepared.joins
        whole = next((join.whole for join in known if (join.first, join.second) == sides), None)
        if whole is None:
            raise Ended("Concat: the program joins no such axes.")
        layout = broadcast_layouts(*(tile.layout for tile in tiles))
        layout = (*layout[:dim], whole, *layout[dim + 1 :])
        return Tile(self._applied(Operator(OpKind.CONCAT, axis=whole), tiles), layout)

    def _accumulated(self, op: Op, tiles: list[Tile]) -> Tile:
        assert isinstance(op.attrs, AccumAttrs)
        if self.closure.loop is None:  # a loop over a free axis is derived from the graph without it
            return tiles[0]
        layout = list(tiles[0].layout)
        if op.attrs.kind is AccumKind.CONCAT and op.attrs.dim is not None:
            layout[op.attrs.dim] = self.closure.loop
        operator = Operator(OpKind.ACCUM, axis=self.closure.loop, accum=op.attrs.kind)
        return Tile(self._applied(operator, tiles), tuple(layout))

    def _applied(self, operator: Operator, tiles: list[Tile]) -> Value:
        """What the closure makes of this application. Raises Ended where it makes nothing."""
        stage = next((t.value.stage for t in tiles if t.value is not None), POST)
        constants = self.walk.semantics.constants
        args = [
            tile.value
            if tile.value is not None
            else self.closure.keep_leaf(constants[tile.leaf], constants[tile.leaf].type, stage)
            for tile in tiles
        ]
        if len({arg.stage for arg in args}) > 1:
            raise Ended(f"{operator.label}: a value of the loop meets one from after it.")
        if operator.accum is AccumKind.HOLD and self.number:
            args[0].level = 0  # the kernel before may as well have written it, and the search has it from there
        self.closure.attempt(args)
        orders = [tuple(a.id for a in args), tuple(a.id for a in reversed(args))]
        for node in ((operator, ids) for ids in orders):
            for value in self.closure.values:
                if node in value.nodes:
                    return value
        raise Ended(self._reason(operator, args, orders))

    def _reason(self, operator: Operator, args: list[Value], orders: list[tuple[int, ...]]) -> str:
        semantics = self.walk.semantics
        shown = ", ".join(semantics.algebra.show(arg.expr) for arg in args)
        head = f"Not made: {operator.label} of {shown}: "
        for ids in orders:
            if (operator, ids) in self.record.seen:
                outcome, reason, expr = self.record.seen[operator, ids]
                return f"{head}{outcome.value}. {reason or semantics.oracle.explain(expr)}"
        if operator.kind is OpKind.EXP and args[0].has_exp:
            return f"{head}a second exponential on one path: random tests take one, so a kernel has one."
        used = {op.kind for op, _ in semantics.prepared.program}
        if OpKind.MATMUL in used or OpKind.SUM in used:
            used |= {OpKind.MATMUL, OpKind.SUM, OpKind.MUL, OpKind.ACCUM}
        if operator.kind not in used:
            return f"{head}the program has no {operator.label}, and the search uses its operators only."
        if operator.accum is not None:
            return f"{head}the effort '{self.walk.effort.name}' or the rules of accumulators leave it out."
        expr = semantics.expression(operator, args, args[0].type[operator.axis] & DATA if operator.axis >= 0 else 0)
        return f"{head}{Outcome.PRUNED_EXPRESSION.value}. {semantics.oracle.explain(expr)}"
