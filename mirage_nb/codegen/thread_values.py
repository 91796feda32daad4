"""Thread graphs in registers: how the operands of an operator lie under its result, and what each thread computes.

In: a thread graph, its operands as its reader finds them, a multi-index, the dimension of a vector. Out: C expressions
in f32; the statements go where the reader has them. Invariant: a product is computed by one multiply-add after the
other, each of elements at the same place along its summed axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mirage_nb.codegen.index import Index
from mirage_nb.codegen.operators import number
from mirage_nb.ir import BlockGraph, ConstAttrs, Op, OpKind, TensorType, ThreadGraph

Multi = tuple[Index, ...]


class Outer(Protocol):
    """The reader of the block graph."""

    def read(self, value: int, index: Multi, dim: int | None) -> str: ...
    def statement(self, op: Op, operands: list[str], dims: list[int | None], repeated: bool) -> str: ...
    def sum_of(self, total: str, factors: list[str], dims: list[int | None]) -> str: ...


def broadcast_index(index: Multi, shape: tuple[int, ...]) -> Multi:
    """The index into an operand of `shape` for an index into the broadcast result."""
    tail = index[len(index) - len(shape) :]
    return tuple(Index() if extent == 1 else part for part, extent in zip(tail, shape, strict=True))


def broadcast_dim(dim: int | None, rank: int, shape: tuple[int, ...]) -> int | None:
    """The vector dimension of an operand, None where it is broadcast."""
    if dim is None:
        return None
    moved = dim - (rank - len(shape))
    return moved if moved >= 0 and shape[moved] != 1 else None


def operand_dims(graph: BlockGraph | ThreadGraph, op: Op, dim: int | None, rank: int) -> list[int | None]:
    """The vector dimension of every operand of an operator that computes from registers, given that of its result,
    which has so many dimensions: rows of a product are those of its left operand, columns those of the right one."""
    wanted = [dim for _ in op.inputs]
    if op.kind is OpKind.MATMUL and dim is not None:
        wanted = [None if dim == rank - 1 else dim, None if dim == rank - 2 else dim]
    return [broadcast_dim(d, rank, graph.types[v].shape) for d, v in zip(wanted, op.inputs, strict=True)]


def vector_reads(graph: ThreadGraph, value: int, dim: int | None) -> set[tuple[int, int | None]]:
    """The operands of a thread graph that a value of it is computed from, and the vector dimension of each."""
    found = {(value, dim)}
    for op, (made,) in reversed(list(graph.definitions())):
        for along in [d for v, d in found if v == made]:
            found |= set(zip(op.inputs, operand_dims(graph, op, along, len(graph.types[made].shape)), strict=True))
    return {(v, d) for v, d in found if v < graph.input_count}


def repeated(op: Op, types: Sequence[TensorType]) -> bool:
    """Whether several elements of the first operand meet the same element of the last."""
    return types[op.inputs[0]].elements > types[op.inputs[-1]].elements


class ThreadReader:
    """Evaluates a thread graph in the registers of its reader."""

    def __init__(self, outer: Outer, graph: ThreadGraph, operands: tuple[int, ...]) -> None:
        self.outer, self.graph, self.operands = outer, graph, operands
        self.defined = {values[0]: op for op, values in graph.definitions()}
        self.memo: dict[tuple[int, Multi, int | None], str] = {}

    def read(self, value: int, index: Multi, dim: int | None) -> str:
        """A C expression for thread value `value`."""
        if value < self.graph.input_count:
            return self.outer.read(self.operands[value], index, dim)
        key = (value, index, dim)
        if key in self.memo:
            return self.memo[key]
        op = self.defined[value]
        if op.kind is OpKind.CONST:
            assert isinstance(op.attrs, ConstAttrs)
            found = number(op.attrs.value)
        elif op.kind is OpKind.MATMUL:
            found = self._multiplied(op, index, dim)
        else:
            dims, operands = operand_dims(self.graph, op, dim, len(index)), []
            for operand, along in zip(op.inputs, dims, strict=True):
                at = broadcast_index(index, self.graph.types[operand].shape)
                operands.append(self.read(operand, at, along))
            found = self.outer.statement(op, operands, dims, repeated(op, self.graph.types))
        self.memo[key] = found
        return found

    def _multiplied(self, op: Op, index: Multi, dim: int | None) -> str:
        """A result of a product by one multiply-add after the other."""
        (left, a), (right, b) = ((v, self.graph.types[v].shape) for v in op.inputs)
        dims, total = operand_dims(self.graph, op, dim, len(index)), ""
        for k in (Index(const=depth) for depth in range(a[-1])):
            x = self.read(left, broadcast_index((*index[:-1], k), a), dims[0])
            y = self.read(right, broadcast_index((*index[:-2], k, index[-1]), b), dims[1])
            total = self.outer.sum_of(total, [x, y], dims)
        return total
