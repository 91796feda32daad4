"""Products of a library whose rows begin anywhere, on operands with zeros behind them: 50,257 columns as 50,264.

In: a tensor program. Out: the same one in which products of 16 bits have summed elements and columns that fill chunks
of 16 bytes, of which their results are parts: libraries have kernels for such that take a third to a seventh of the
time. Invariant: over the real numbers the program stays what it was.
"""

from __future__ import annotations

from mirage_nb.ir import HALVES, KernelGraph, Op, OpKind, PadAttrs, SliceAttrs, TransposeAttrs
from mirage_nb.ir.rewrite import Rewrite, saying
from mirage_nb.ir.sizes import size_of
from mirage_nb.predefined.rows import CHUNK

LEAST_ROWS, LEAST_WORK = 16, 2**28
"""Of products that are padded: of fewer rows, or multiplications, operands are read no longer than they are copied."""


def products(program: KernelGraph) -> dict[int, tuple[int, ...]]:
    """Such products of a program whose rows begin anywhere: for each its operands."""
    return {value: op.inputs for op, (value, *_) in program.definitions() if _pads(program, op, CHUNK, LEAST_WORK)}


def padded(program: KernelGraph, chunk: int = CHUNK, work: int = LEAST_WORK) -> KernelGraph:
    """The program with these on longer operands: multiples of a chunk, where so much is multiplied."""
    found = {value: _pads(program, op, chunk, work) for op, (value, *_) in program.definitions()}
    maker = {value: op for op, (value, *_) in program.definitions()}

    def longer(made: Rewrite[KernelGraph], value: int, more: tuple[int, int]) -> int:
        """An operand with so many zeros behind its rows and columns, below the transposition that it is, if it is."""
        rank, op = len(program.types[value].shape), maker.get(value)
        turned = op is not None and op.attrs == TransposeAttrs((*range(rank - 2), rank - 1, rank - 2))
        there = made.held[op.inputs[0] if op is not None and turned else value]
        for dim, after in zip((rank - 2, rank - 1), more[::-1] if turned else more, strict=True):
            if after:
                there = made.add(Op(OpKind.PAD, (there,), PadAttrs(dim, 0, after)))
        return made.add(Op(OpKind.TRANSPOSE, (there,), op.attrs)) if op is not None and turned else there

    def say(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        depth, columns = found[value] or (0, 0)
        left, right = longer(made, op.inputs[0], (0, depth)), longer(made, op.inputs[1], (depth, columns))
        product = made.add(Op(OpKind.MATMUL, (left, right)))
        *lead, extent = program.types[value].shape
        return made.add(Op(OpKind.SLICE, (product,), SliceAttrs(len(lead), 0, extent, 1))) if columns else product

    return saying(program, {value for value, pads in found.items() if pads}, say)


def _pads(program: KernelGraph, op: Op, chunk: int, work: int) -> tuple[int, int] | None:
    """The zeros behind what a product sums and behind its columns; None where there are none."""
    if op.kind is not OpKind.MATMUL or size_of(program) is not None:
        return None
    left, right = (program.types[v] for v in op.inputs)
    (rows, depth), columns = left.shape[-2:], right.shape[-1]
    elements = max(left.elements * columns, right.elements * rows)
    if not {left.dtype, right.dtype} <= HALVES or elements < work or (work and rows < LEAST_ROWS):
        return None
    pads = -depth % chunk, -columns % chunk
    return pads if any(pads) else None
