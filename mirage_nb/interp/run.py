"""The one walk over a muGraph: kernels in order, all blocks, every loop iteration, accumulators, savers.

In: a graph, one value per input, and an `Algebra`: what each operator computes and how an accumulator
takes in one more iteration. Out: the values of the algebra. Blocks are evaluated side by side (leading
grid dimensions), iterations one after the other. The float64 reference and the field interpreter differ
only in their algebra, so both give a muGraph the same meaning (paper section 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from mirage_nb.errors import GraphError
from mirage_nb.interp import arrays
from mirage_nb.interp.arrays import Array, Move
from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    DimAttrs,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    ThreadGraph,
)
from mirage_nb.ir.graph import result_count
from mirage_nb.ir.ops import Attrs

T = TypeVar("T")

LARGE, TERMS = 2**16, 256
"""Elements of a product from which on those of several iterations are taken together, and terms that are enough."""

STRUCTURE = frozenset({OpKind.IN_ITER, OpKind.OUT_SAVER, OpKind.ACCUM, OpKind.GRAPH, OpKind.FUSED})
"""The operators that this walk itself gives a meaning; an algebra has a row for every other one."""

MOVES: Mapping[OpKind, Callable[[Array, Attrs | None, int], Array]] = {
    OpKind.REPEAT: arrays.repeat,
    OpKind.RESHAPE: arrays.reshape,
    OpKind.TRANSPOSE: arrays.transpose,
    OpKind.SLICE: arrays.sliced,
    OpKind.PAD: arrays.padded,
}
"""Operators that move elements."""
COMPOSED = frozenset({*MOVES, OpKind.CONCAT, OpKind.CONCAT_MATMUL})
"""Operators that are moves, joints, or made of others: see `composed`."""


class Algebra(Protocol[T]):
    """A number system for muGraphs."""

    def apply(self, kind: OpKind, operands: Sequence[T], attrs: Attrs | None, batch: int) -> T:
        """The result of one operator of the table; a constant has the shape of `batch` ones."""

    def view(self, value: T, move: Move) -> T:
        """The value with its elements moved."""

    def fold(self, kind: AccumKind, state: tuple[T, ...], operands: Sequence[T], batch: int) -> tuple[T, ...]:
        """An accumulator's state after one more iteration: empty before the first, its value in front."""

    def join(self, parts: Sequence[T], dim: int, batch: int) -> T:
        """Tiles behind each other along `dim`."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What an operator that moves elements does to tiles."""

    kind: OpKind
    attrs: Attrs | None
    batch: int

    def __call__(self, array: Array) -> Array:
        return MOVES[self.kind](array, self.attrs, self.batch)


def composed(algebra: Algebra[T], kind: OpKind, operands: Sequence[T], attrs: Attrs | None, batch: int) -> T:
    """What an operator of `COMPOSED` makes in any algebra."""
    if kind in MOVES:
        return algebra.view(operands[0], Moved(kind, attrs, batch))
    if isinstance(attrs, DimAttrs):
        return algebra.join(operands, attrs.dim, batch)
    w, x, y, z = operands
    both = [algebra.apply(OpKind.MATMUL, pair, None, batch) for pair in ((w, y), (x, z))]
    return algebra.apply(OpKind.ADD, both, None, batch)


def run_kernel(graph: KernelGraph, inputs: Sequence[T], algebra: Algebra[T]) -> list[T]:
    """All values of a kernel graph, inputs first."""
    values = list(inputs)
    for op in graph.ops:
        operands = [values[v] for v in op.inputs]
        if isinstance(op.body, BlockGraph):
            values.extend(run_block(op.body, operands, algebra))
        else:
            values.append(algebra.apply(op.kind, operands, op.attrs, 0))
    return values


def run_outputs(graph: KernelGraph, inputs: Sequence[T], algebra: Algebra[T]) -> list[T]:
    """The outputs of a kernel graph; no value is held for longer than it is read."""
    values: dict[int, T] = dict(enumerate(inputs))
    last = {v: index for index, op in enumerate(graph.ops) for v in op.inputs}
    for index, (op, results) in enumerate(graph.definitions()):
        operands = [values[v] for v in op.inputs]
        for value in {*op.inputs}:
            if last[value] == index and value not in graph.outputs:
                del values[value]
        if isinstance(op.body, BlockGraph):
            made = run_block(op.body, operands, algebra)
        else:
            made = (algebra.apply(op.kind, operands, op.attrs, 0),)
        values |= {v: x for v, x in zip(results, made, strict=True) if v in last or v in graph.outputs}
    return [values[v] for v in graph.outputs]


def run_block(graph: BlockGraph, args: Sequence[T], algebra: Algebra[T]) -> tuple[T, ...]:
    """What the savers of a block graph write, in order."""
    return _BlockRun(graph, args, algebra).outputs()


def run_thread(graph: ThreadGraph, inputs: Sequence[T], algebra: Algebra[T], batch: int) -> list[T]:
    """The outputs of a thread graph on whole tiles: each thread's elements side by side."""
    values = list(inputs)
    for op in graph.ops:
        values.append(algebra.apply(op.kind, [values[v] for v in op.inputs], op.attrs, batch))
    return [values[v] for v in graph.outputs]


class _BlockRun(Generic[T]):
    """One execution of a block graph over all its blocks."""

    def __init__(self, graph: BlockGraph, args: Sequence[T], algebra: Algebra[T]) -> None:
        self.graph = graph
        self.algebra = algebra
        self.batch = len(graph.grid)
        self.values: dict[int, T] = {}
        self.body: list[tuple[Op, int]] = []
        self.accumulators: list[tuple[Op, int]] = []
        self.after: list[tuple[Op, int]] = []
        self.tiles: dict[int, T] = {}
        self.products = _summed_products(graph)
        summed = {op.inputs[0] for op, values in graph.definitions() if self.products.keys() & set(values)}
        value = 0
        for op, stage in zip(graph.ops, graph.stages(), strict=True):
            if op.kind is OpKind.ACCUM:
                self.accumulators.append((op, value))
            elif stage is None:
                self._step(op, value, self.values)
            elif (stage == 0 or op.kind is OpKind.IN_ITER) and value not in summed:
                self.body.append((op, value))
            elif value not in summed:
                self.after.append((op, value))
            if op.kind is OpKind.IN_ITER:
                self.tiles[value] = self._split(args, op)
            value += result_count(op)

    def outputs(self) -> tuple[T, ...]:
        if self.graph.has_loop:
            self._loop()
        else:
            self._iterate(0, self.values)
        saved: list[T] = []
        for op, value in self.after:
            if op.kind is OpKind.OUT_SAVER:
                saved.append(self._save(op))
            else:
                self._step(op, value, self.values)
        return tuple(saved)

    def _loop(self) -> None:
        states: dict[int, tuple[T, ...]] = {value: () for _, value in self.accumulators}
        waiting: dict[int, list[list[T]]] = {value: [] for value in self.products}
        for index in range(self.graph.loop):
            local = dict(self.values)
            self._iterate(index, local)
            for op, value in self.accumulators:
                assert isinstance(op.attrs, AccumAttrs)
                product = self.products.get(value)
                operands = [_read(local, v, op) for v in (op if product is None else product).inputs]
                if product is not None:
                    waiting[value].append(operands)
                    terms = len(waiting[value]) * self.graph.types[product.inputs[0]].shape[-1]
                    if terms < TERMS and index + 1 < self.graph.loop:
                        continue
                    operands = [self._product(product, waiting[value])]
                    waiting[value] = []
                if op.attrs.kind is AccumKind.CONCAT:
                    states[value] += tuple(operands)
                else:
                    states[value] = self.algebra.fold(op.attrs.kind, states[value], operands, self.batch)
        for op, value in self.accumulators:
            assert isinstance(op.attrs, AccumAttrs)
            dim, state = op.attrs.dim, states[value]
            self.values[value] = state[0] if dim is None else self.algebra.join(state, dim, self.batch)

    def _product(self, op: Op, operands: Sequence[Sequence[T]]) -> T:
        """The sum of some products: that of all left sides beside each other with all right sides below each other."""
        if len(operands) == 1:
            return self.algebra.apply(op.kind, operands[0], op.attrs, self.batch)
        ranks = [len(self.graph.types[v].shape) for v in op.inputs]
        joined = [
            self.algebra.join(parts, rank - back, self.batch)
            for parts, rank, back in zip(zip(*operands, strict=True), ranks, (1, 2), strict=True)
        ]
        return self.algebra.apply(op.kind, joined, op.attrs, self.batch)

    def _iterate(self, index: int, values: dict[int, T]) -> None:
        for op, value in self.body:
            if isinstance(op.attrs, InIterAttrs):
                at = 0 if op.attrs.fmap is None else index  # a replicated tile is the same one in all iterations
                values[value] = self.algebra.view(self.tiles[value], arrays.Iteration(at, self.batch))
            else:
                self._step(op, value, values)

    def _step(self, op: Op, value: int, values: dict[int, T]) -> None:
        operands = [_read(values, v, op) for v in op.inputs]
        if isinstance(op.body, ThreadGraph):
            for offset, result in enumerate(run_thread(op.body, operands, self.algebra, self.batch)):
                values[value + offset] = result
        else:
            values[value] = self.algebra.apply(op.kind, operands, op.attrs, self.batch)

    def _split(self, args: Sequence[T], op: Op) -> T:
        attrs = op.attrs
        assert isinstance(attrs, InIterAttrs)
        split = arrays.Split(attrs.imap, attrs.fmap, self.graph.grid, self.graph.loop, attrs.tile)
        return self.algebra.view(args[attrs.arg], split)

    def _save(self, op: Op) -> T:
        attrs = op.attrs
        assert isinstance(attrs, OutSaverAttrs)
        tile = _read(self.values, op.inputs[0], op)
        return self.algebra.view(tile, arrays.Place(attrs.omap, self.graph.grid, attrs.shape))


def _summed_products(graph: BlockGraph) -> dict[int, Op]:
    """For accumulators that add up large products that nothing else reads, these products: those of several iterations
    are one with a longer inner dimension."""
    if not graph.has_loop:
        return {}
    made = {values[0]: op for op, values in graph.definitions() if op.kind is OpKind.MATMUL}
    uses, blocks = graph.uses(), math.prod(graph.grid)
    return {
        values[0]: made[op.inputs[0]]
        for op, values in graph.definitions()
        if isinstance(op.attrs, AccumAttrs)
        and (op.attrs.kind, op.attrs.dim) == (AccumKind.SUM, None)
        and op.inputs[0] in made
        and len(uses[op.inputs[0]]) == 1
        and blocks * graph.types[op.inputs[0]].elements >= LARGE
    }


def _read(values: dict[int, T], value: int, op: Op) -> T:
    if value not in values:
        raise GraphError(f"{op.kind.value} after the loop reads %{value}, which lives in the loop body only")
    return values[value]
