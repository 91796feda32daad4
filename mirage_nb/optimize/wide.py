"""Whether groups of four warps can do the products of a warp-private body (wgmma).

In: a block graph, its region, the options asked for. Out: yes or no. Invariant: where the answer is yes, the right
operand of every product is a tile in panels of 128 bytes, which the instruction takes as they are, and warp w has
rows 16 w to 16 w + 15 of the result, all columns of them.
"""

from __future__ import annotations

from mirage_nb.ir import BlockGraph, InIterAttrs, OpKind
from mirage_nb.optimize.options import Options
from mirage_nb.tile.roles.program import GROUP
from mirage_nb.tile.rules.bodies import Region
from mirage_nb.tile.rules.boxes import bulk_of
from mirage_nb.tile.rules.shared import LINE_BYTES, SharedLayout

COLUMNS = frozenset({16, 32, 64, 128, 256})
"""Columns that one instruction may have here: the lengths of its accumulators."""


def right_leaves(block: BlockGraph, region: Region) -> frozenset[int]:
    """The tiles behind the right operands of a region's products, seen through views."""
    made = {v: op for op, values in block.definitions() for v in values}
    found = set()
    for index in region.ops:
        if block.ops[index].kind is OpKind.MATMUL:
            leaf = block.ops[index].inputs[1]
            while made[leaf].kind in (OpKind.TRANSPOSE, OpKind.RESHAPE):
                leaf = made[leaf].inputs[0]
            found.add(leaf)
    return frozenset(found)


def wide_possible(block: BlockGraph, region: Region | None, options: Options) -> bool:
    """Whether every product of the region fits; only with bulk copies. A tile that the warps compute has to get a
    layout like those that are copied, which is known later (`fits_panels`)."""
    if not (options.wide and options.bulk) or region is None or block.loop == 1:
        return False
    # Only without accumulated matrices that leave through shared memory: these came out as NaN on a card when rows were
    # held in registers over the loop. They no longer are, which is to be seen on a card before this goes.
    if not region.direct:
        return False
    if options.warps % GROUP or region.row_warps != options.warps or region.row_tiles != 1:
        return False
    products = [block.ops[i] for i in region.ops if block.ops[i].kind is OpKind.MATMUL]
    if any(block.types[op.inputs[1]].shape[-1] not in COLUMNS for op in products):
        return False
    made = {v: op for op, values in block.definitions() for v in values}
    for leaf in right_leaves(block, region):
        attrs = made[leaf].attrs
        if isinstance(attrs, InIterAttrs):
            boxed = bulk_of(block, attrs) if attrs.fmap is not None else None
            if boxed is None or boxed.fold > 1 or boxed.swizzle != LINE_BYTES:
                return False
    return True


def fits_panels(layout: SharedLayout) -> bool:
    """Whether warpgroups can multiply by a tile that lies so."""
    return layout.swizzle == LINE_BYTES and layout.fold == 1
