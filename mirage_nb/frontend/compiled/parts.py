"""Regions in parts: what is looked at where a region as a whole did not pay.

In: a region, a target. Out: smaller regions. Invariant: parts in order compute what the region does; what no kernel
could be worth stays with PyTorch, and is no part.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

from mirage_nb.frontend.aten.terms import Left
from mirage_nb.frontend.compiled.regions import Region, region_of
from mirage_nb.frontend.compiled.shapes import as_priced
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.search.axes import prepare
from mirage_nb.search.pieces.piece import VIEWS, Piece, is_heavy, pieces
from mirage_nb.search.sizes.coarse import coarse_us
from mirage_nb.search.sizes.library import library_us
from mirage_nb.targets import Target


def parts_of(region: Region, target: Target) -> tuple[tuple[Region, ...], float]:
    """A region cut wherever a product reads what was computed, and its outputs from each other; and an estimate
    (microseconds) of the pieces: infinite where there is but one."""
    graph = region.source
    made = pieces(graph, frozenset(_read_by_products(graph)))
    if len(made) == 1:
        return (), math.inf
    return _regions(region, made), sum(least_us(piece.graph, target) for piece in made)


def _read_by_products(graph: KernelGraph) -> Iterator[int]:
    """Computed values that products of a program read, as they are or views of them."""
    maker = {values[0]: op for op, values in graph.definitions()}
    for op in graph.ops:
        for source in op.inputs if is_heavy(graph, op) else ():
            while source in maker and maker[source].kind in VIEWS:
                source = maker[source].inputs[0]
            if source in maker and maker[source].kind is not OpKind.CONST:
                yield source


def least_us(graph: KernelGraph, target: Target) -> float:
    """What a program is estimated to take as one kernel or two, or, as one operator, by a library."""
    prepared = prepare(as_priced(graph))
    alone = library_us(graph, graph.ops[0], target) if len(graph.ops) == 1 else math.inf
    return alone if prepared.refused else min(alone, coarse_us(prepared, target))


def _regions(region: Region, made: Sequence[Piece]) -> tuple[Region, ...]:
    fixed = {node for node, same in zip(region.reads, region.parameters, strict=True) if same}
    found = []
    for piece in made:
        with contextlib.suppress(Left):
            found.append(region_of(piece, region.nodes, fixed, region.alike))
    return tuple(found)
