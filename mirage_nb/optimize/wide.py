"""Whether groups of four warps can do the products of a warp-private body (wgmma).

In: a block graph, its region, the options asked for. Out: yes or no. Invariant: where the answer is yes, the right
operand of every product is a streamed tile in panels of 128 bytes, which the instruction takes as they are, and warp
w has rows 16 w to 16 w + 15 of the result, all columns of them.
"""

from __future__ import annotations

from mirage_nb.ir import BlockGraph, InIterAttrs, OpKind
from mirage_nb.optimize.options import Options
from mirage_nb.optimize.region import Region
from mirage_nb.optimize.swizzle import LINE_BYTES
from mirage_nb.optimize.transfer import boxes

WARPGROUP = 4
"""Warps that multiply together."""
COLUMNS = frozenset({16, 32, 64, 128, 256})
"""Columns that one instruction may have here: the lengths of its accumulators."""


def wide_possible(block: BlockGraph, region: Region | None, options: Options) -> bool:
    """Whether every product of the region fits; only with bulk copies."""
    if not (options.wide and options.bulk) or region is None or block.loop == 1:
        return False
    if options.warps % WARPGROUP or region.row_warps != options.warps or region.row_tiles != 1:
        return False
    made = {v: op for op, values in block.definitions() for v in values}
    for index in region.ops:
        op = block.ops[index]
        if op.kind is not OpKind.MATMUL:
            continue
        leaf = op.inputs[1]
        while made[leaf].kind in (OpKind.TRANSPOSE, OpKind.RESHAPE):
            leaf = made[leaf].inputs[0]
        attrs = made[leaf].attrs
        boxed = boxes(block, attrs) if isinstance(attrs, InIterAttrs) and attrs.fmap is not None else None
        if boxed is None or boxed.fold > 1 or boxed.swizzle != LINE_BYTES:
            return False
        if block.types[op.inputs[1]].shape[-1] not in COLUMNS:
            return False
    return True
