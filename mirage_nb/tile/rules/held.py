"""Which block graphs hold their tiles in the registers of their threads.

In: a block graph. Out: how its threads hold its tiles, by the rules of `tile.rules.register_resident`.
"""

from __future__ import annotations

from mirage_nb.ir import BlockGraph, InIterAttrs, OutSaverAttrs
from mirage_nb.tile.rules.register_resident import Holding, hold
from mirage_nb.tile.rules.sketch import Sketch, sketch_of


def holds(block: BlockGraph, warps: int = 8) -> bool:
    """Whether so many warps, or more, hold the rows or columns that a block folds, whatever ends within a tile."""
    found = hold(sketch_of(block), lambda value: block.types[value].shape, (), warps)
    return found is not None and bool(found.axes) and bool(found.width > 0)


def held(block: BlockGraph, sketch: Sketch, warps: int = 8) -> Holding | None:
    """How so many warps, or more, hold the tiles of a block graph; None if they cannot."""
    literals = (op.attrs for op, node in zip(block.ops, sketch.nodes, strict=True) if node.literal)
    if any(isinstance(attrs, InIterAttrs) and attrs.tile for attrs in literals):
        return None  # a number that ends with its tensor: threads know no place of their elements
    found = hold(sketch, lambda value: block.types[value].shape, sorted(_ragged_runs(block)), warps)
    return found if found is not None and found.width > 0 else None


def _ragged_runs(block: BlockGraph) -> set[int]:
    """The innermost extents of tensors over whose ends tiles hang: no vector may cross one."""
    reads = (
        block.args[a.arg].shape for op in block.ops if isinstance(a := op.attrs, InIterAttrs) and a.tile is not None
    )
    saves = (a.shape for op in block.ops if isinstance(a := op.attrs, OutSaverAttrs) and a.shape is not None)
    return {shape[-1] for shape in (*reads, *saves) if shape}
