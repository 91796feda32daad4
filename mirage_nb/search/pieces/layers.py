"""Layers of one input are one piece, where kernels that nobody searches for are estimated faster than each by itself.

In: a program, its pieces, a target. Out: pieces of which some are several that multiply the same few rows, with what
makes these for nobody else: queries, keys and values behind their norm, each with its bias and its adapter. A search
finds no kernel for so many products at once; the composition of the piece does (`search.composition`). Invariant: as of
`search.pieces.partition`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mirage_nb.errors import SearchError
from mirage_nb.ir import KernelGraph
from mirage_nb.search.axes import prepare
from mirage_nb.search.composition import COMPOSITIONS, FEW, PRODUCTS_FUSED, ROWS_FUSED, library_and_fused
from mirage_nb.search.pieces.piece import Piece, Whole, ordered
from mirage_nb.search.sizes.coarse import coarse_us
from mirage_nb.search.wordings.one_row import layers
from mirage_nb.targets import Target

Told = Callable[[KernelGraph], KernelGraph]


def layers_joined(program: KernelGraph, pieces: Sequence[Piece], target: Target, told: Told) -> tuple[Piece, ...]:
    """The pieces of a program, layers of one input joined; told: as of `partition`."""
    whole, found, known = Whole.of(program), tuple(pieces), dict[str, bool]()
    for rows, products in layers(program, FEW).items():
        some = [piece for piece in found if not {*products}.isdisjoint(piece.values[piece.graph.input_count :])]
        if len(some) < 2:
            continue
        others = [piece for piece in found if piece not in some]
        if rows not in program.outputs and not any(rows in piece.reads for piece in others):
            some += [piece for piece in others if piece.writes == (rows,)]
            others = [piece for piece in others if piece not in some]
        one = _one(program, whole, some, others)
        try:
            joined = tuple(ordered([*others, one], {*range(program.input_count)}))
        except SearchError:  # something comes between them
            continue
        if one.digest not in known:
            apart = sum(coarse_us(prepare(told(piece.graph)), target) for piece in some)
            known[one.digest] = any(us < apart for us in _composed_us(told(one.graph), target))
        if known[one.digest]:
            found = joined
    return found


def _one(program: KernelGraph, whole: Whole, some: Sequence[Piece], others: Sequence[Piece]) -> Piece:
    """The piece that computes what several do, but for what only they read."""
    inside = {value for piece in some for value in piece.writes}
    read = {value for piece in others for value in piece.reads}.union(program.outputs)
    stored = inside.union(*(piece.reads for piece in some))
    return whole.piece(whole.cone(stored, sorted(inside & read), inside))


def _composed_us(program: KernelGraph, target: Target) -> Iterator[float]:
    """What a program takes whose products of few rows are composed, in one way after the other."""
    for rows, said_as in (COMPOSITIONS[PRODUCTS_FUSED], COMPOSITIONS[ROWS_FUSED]):
        if (found := library_and_fused(program, target, rows=rows, said_as=said_as)) is not None:
            yield found.instance.cost.us
