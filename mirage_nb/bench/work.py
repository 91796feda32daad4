"""The least work of a program, for rooflines: floating-point operations, and bytes from and to device memory.

In: a tensor program. Out: `Work`, counted on the program and not on a muGraph of it: operations of its operators,
bytes of its inputs and outputs, each once.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir import KernelGraph, OpKind

VIEWS = frozenset({OpKind.CONST, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT, OpKind.CONCAT})
"""Operators that move elements and compute nothing."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a program does at least: floating-point operations, and bytes from and to device memory."""

    flops: int
    nbytes: int

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.nbytes


def work(program: KernelGraph) -> Work:
    """Two operations for every product of a matrix multiplication, one for every element that another operator
    writes, or reads if it reduces."""
    flops = 0
    for op, (result, *_) in program.definitions():
        made = program.types[result].elements
        read = max((program.types[v].elements for v in op.inputs), default=0)
        if op.kind is OpKind.MATMUL:
            flops += 2 * made * program.types[op.inputs[0]].shape[-1]
        elif op.kind is OpKind.CONCAT_MATMUL:
            flops += 2 * made * sum(program.types[v].shape[-1] for v in op.inputs[:2])
        elif op.kind not in VIEWS:
            flops += max(made, read)
    tensors = (*(i.type for i in program.inputs), *program.output_types)
    return Work(flops, sum(t.nbytes for t in tensors))
