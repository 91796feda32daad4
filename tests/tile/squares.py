"""MuGraphs whose results lie across what they are computed of."""

from __future__ import annotations

from mirage_nb.ir import DType, KernelGraph, OpKind
from tests.mugraphs import Kernel


def turned(rows: int, columns: int, dtype: DType, tile: tuple[int, int], *, shared: bool = False) -> KernelGraph:
    """(X * A + B + Y.T).T of X [3, rows, columns], A [columns], B [rows, 1] and Y [3, columns, rows], or of X less its
    means of rows, which passes through shared memory, in tiles of these extents, which may hang over the ends."""
    shapes = {"X": (3, rows, columns), "A": (columns,), "B": (rows, 1), "Y": (3, columns, rows)}
    k = Kernel(dtype, **shapes)
    grid = -(-rows // tile[0]), -(-columns // tile[1]), 3
    b = k.block((0, 1, 2, 3), grid)
    x = b.read(0, (1, 2, 0), tile=(1, *tile))
    a, c = b.read(1, (None, 0, None), tile=tile[1:]), b.read(2, (0, None, None), tile=(tile[0], 1))
    y = b.transpose(b.read(3, (2, 1, 0), tile=(1, *tile[::-1])), 0, 2, 1)
    if shared:
        x = b.op(OpKind.SUB, x, b.sum(x, 2))
    made = b.op(OpKind.ADD, b.op(OpKind.ADD, b.op(OpKind.MUL, x, a), c), y)
    b.save(b.transpose(made, 0, 2, 1), (2, 1, 0), shape=(3, columns, rows))
    return k.returning(k.launch((0, 1, 2, 3), b))
