"""The walk through a muGraph, kernel by kernel.

In: the semantics of a program, an effort, a muGraph of its inputs. Out: `Walk`, with a line for every value that the
search makes of it, and what stopped it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mirage_nb.ir import BlockGraph, KernelGraph, Op, OpKind, ReshapeAttrs
from mirage_nb.ir.rewrite import alone
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.space import Effort
from mirage_nb.search.walk.kernel import KernelWalk
from mirage_nb.search.walk.tiles import Ended, Tile


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
        prepared = self.semantics.prepared
        if op.kind is OpKind.CONST:
            if op.attrs not in prepared.constants:
                raise Ended(f"%{values[0]}: the search uses the constants of the program only; this is none of them.")
            leaf = next(i for i, attrs in enumerate(prepared.constants) if attrs == op.attrs)
            self.held[values[0]] = Tile(None, (), leaf)
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
