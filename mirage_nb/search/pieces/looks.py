"""What the pieces of a program read elsewhere than in tensors of their own: parts of tensors, and what they look up.

In: a program, what kernels of a library compute of it, the pieces that a library computes. Out: pieces over axes, with
what they read of tensors that others read, too. An output that is looked up may be written by a piece that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_nb.ir import BlockGraph, KernelGraph
from mirage_nb.ir.lookups import Lookup
from mirage_nb.ir.windows import Share, Window, shares, views
from mirage_nb.predefined import Match
from mirage_nb.predefined.lookups import is_looked_up, lookup_of, share_of
from mirage_nb.search.axes import Prepared, prepare
from mirage_nb.search.pieces.piece import Piece
from mirage_nb.search.sizes.drafts import Instance
from mirage_nb.targets import Target
from mirage_nb.tile.rules.held import held
from mirage_nb.tile.rules.sketch import sketch_of


@dataclass(slots=True)
class Looks:
    """What a program's pieces look at. stored: what lies in memory; lookups: what they look up; unwritten: outputs
    among that which nobody but a kernel of their own has written."""

    said: KernelGraph
    whole: dict[int, Match]
    seen: dict[int, Window]
    stored: set[int]
    lookups: dict[int, Lookup]
    unwritten: set[int]

    @classmethod
    def of(cls, said: KernelGraph, library: Sequence[Match], by_library: Sequence[Piece]) -> Looks:
        """by_library: the pieces that a library computes, or kernels of their own."""
        whole = {match.output: match for match in library}
        read = {value for piece in by_library for value in piece.reads}
        lookups = {v: lookup_of(said, m) for v, m in whole.items() if is_looked_up(said, m) and v not in read}
        return cls(said, whole, views(said), {*said.outputs} | read, lookups, lookups.keys() & set(said.outputs))

    def are_all(self, piece: Piece) -> bool:
        """Whether a piece says nothing but where in tensors others look."""
        return (self.seen.keys() - self.stored).issuperset(piece.writes)

    def prepared(self, piece: Piece, seed: int) -> Prepared:
        """A piece over axes."""
        gaps = {
            value: self.seen[value].gaps(self.said.types[value].shape) for value in piece.reads if value in self.seen
        }
        apart = [(n, dim) for n, value in enumerate(piece.reads) for dim in gaps.get(value, ())]
        return prepare(piece.graph, seed=seed, apart=apart, shares=self._shares(piece))

    def _shares(self, piece: Piece) -> tuple[Share, ...]:
        own = shares(self.said, piece.reads, self.seen, range(len(self.said.types)))
        able = self.lookups.keys() - (self.unwritten - {*piece.writes})
        return tuple(
            share_of(self.said, value, self.lookups[value]) if value in able else share
            for value, share in zip(piece.reads, own, strict=True)
        )

    def writing(self, piece: Piece) -> Piece | None:
        """A piece that writes the outputs, too, that it looks up; None if there are none."""
        found = [place for place, value in enumerate(piece.reads) if value in self.unwritten]
        graph = piece.graph.returning((*piece.graph.outputs, *found))
        return replace(piece, graph=graph, writes=(*piece.writes, *(piece.reads[n] for n in found))) if found else None

    def pays(self, other: Instance, piece: Piece, plain: Instance, target: Target) -> bool:
        """Whether a kernel that writes such outputs, too, holds them, and takes less than theirs and one that reads
        them."""
        bodies = [op.body for op in other.graph.ops if isinstance(op.body, BlockGraph)]
        saved = sum(self.whole[v].us(self.said, target) for v in self.unwritten.intersection(piece.reads))
        able = bool(bodies) and all(held(body, sketch_of(body)) for body in bodies)
        return able and other.cost.us < plain.cost.us + saved
