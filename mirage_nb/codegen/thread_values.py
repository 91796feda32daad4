"""Thread graphs in registers: how the operands of an operator lie under its result, and what each thread computes.

In: a thread graph, its operands as its reader finds them, a multi-index, the dimension of a vector. Out: C expressions
in f32; the statements go where the reader has them. Invariant: a product is computed by one multiply-add after the
other, each of elements at the same place along its summed axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mirage_nb.codegen.operators import number
from mirage_nb.ir import ConstAttrs, Op, OpKind, TensorType, ThreadGraph
from mirage_nb.tile.index import Index, Multi, broadcast_index, operand_dims


class Outer(Protocol):
    """The reader of the block graph."""

    def read(self, value: int, index: Multi, dim: int | None) -> str: ...
    def statement(self, op: Op, operands: list[str], dims: list[int | None], repeated: bool) -> str: ...
    def sum_of(self, total: str, factors: list[str], dims: list[int | None]) -> str: ...


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
