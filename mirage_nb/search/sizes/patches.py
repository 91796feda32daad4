"""What folds take whose threads have patches of results: distances, and other sums of what is computed of two tensors.

In: the tiles of a kernel at many sizes. Out: where the threads of a block fold patches, by the rule that the planner
asks, too (`tile.rules.sharing.patch`), and the operations of a lane for each element that is folded. Invariant: what an
element is computed of is read once for many, so that only what is computed of it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mirage_nb.ir import ApplyAttrs, OpKind
from mirage_nb.ir.formula import PRIMITIVES, fold
from mirage_nb.ir.formula import read as formula_of
from mirage_nb.ir.graph import reached
from mirage_nb.search.sizes.anatomy import WARPS, Cell, Numbers, Outline, Truths
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.tile.roles.program import LANES
from mirage_nb.tile.rules.sharing import PATCH_WIDTH, patch

DEAR = frozenset({"exp", "expm1", "log", "log1p", "sqrt", "tanh", "sigmoid", "erf", "sin", "cos", "atan", "div", "pow"})
"""What is no instruction by itself."""
DEAR_KINDS = frozenset(
    {OpKind.DIV, OpKind.EXP, OpKind.SQRT, OpKind.SILU, OpKind.GELU, OpKind.SIGMOID, OpKind.POW, OpKind.CONCAT}
)
FREE = frozenset({"abs", "neg"})
"""What another instruction does to its operands."""


def _counted(name: str) -> Callable[..., float]:
    """Instructions of a formula, of those of its operands."""
    own = math.inf if name in DEAR else 0.0 if name in FREE else 1.0
    return lambda *operands: own + sum(operands)


_COUNTED = {name: _counted(name) for name in PRIMITIVES}


@dataclass(frozen=True, slots=True)
class Patched:
    """Where a fold is one of patches; the operations of an element; vectors that a thread loads of a tile, one after
    the other."""

    able: Truths
    operations: Numbers
    steps: Numbers


def patched(tiles: Tiles, cell: Cell, constants: Constants) -> Patched | None:
    """What a sum or maximum is as one of patches; None where it reads no smaller values alone."""
    outline = tiles.outline
    (whole, *_) = cell.node.reads or (-1,)
    if cell.node.kind not in (OpKind.SUM, OpKind.MAX) or whole not in outline.placed.outer:
        return None
    extents = tiles.extents(whole)
    depth = extents.pop(cell.node.along)
    if len(extents) < 2:
        return None
    results = tiles.elements[whole] / depth
    high, wide = patch(extents[-2], extents[-1], results, WARPS * LANES)
    able = (high > 0) & tiles.repeats(whole)
    computed = _computed(outline, whole, fused=cell.node.kind is OpKind.SUM)
    return Patched(able, _read(high, wide, constants) + computed * constants.patch_operations, depth / PATCH_WIDTH)


def of_product(tiles: Tiles, cell: Cell, elements: Numbers, constants: Constants) -> Patched:
    """What a product is that threads compute as patches."""
    rows, columns = tiles.extents(cell.value)[-2:]
    depth = tiles.extents(cell.node.reads[0])[-1]
    high, wide = patch(rows, columns, elements, WARPS * LANES)
    return Patched(high > 0, _read(high, wide, constants) + constants.patch_operations, depth / PATCH_WIDTH)


def _read(high: Numbers, wide: Numbers, constants: Constants) -> Numbers:
    """Operations of the loads of an element's share."""
    found: Numbers = (high + wide) / np.maximum(high * wide, 1) / PATCH_WIDTH * constants.load_operations
    return found


def _computed(outline: Outline, whole: int, fused: bool) -> float:
    """Instructions for an element: operators that are computed where it is read, and the fold, which a product before
    a sum is one with."""
    flat, sources = outline.flat, outline.placed.outer[whole]
    values = reached([whole], lambda v: () if v in sources else flat.nodes[flat.defined[v]].reads)
    found = 0.0 if fused and flat.nodes[flat.defined[whole]].kind in (OpKind.MUL, OpKind.SQR) else 1.0
    for value in values - sources:
        index = flat.defined[value]
        if not flat.nodes[index].elementwise:
            continue
        attrs = outline.block.ops[index].attrs
        if isinstance(attrs, ApplyAttrs):
            found += fold(formula_of(attrs.formula), 0.0, lambda _: 0.0, _COUNTED)
        else:
            found += math.inf if flat.nodes[index].kind in DEAR_KINDS else 1.0
    return found
