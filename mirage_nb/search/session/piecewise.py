"""A large program in pieces: what is searched of each different one, and muGraphs of the whole from the best of all.

In: a tensor program, a target; candidates of its pieces as they are found. Out: configurations of the pieces, the ones
that pay most first, and `Candidate`s of the whole program. Invariants: pieces that are equal are searched once and
computed alike; a muGraph of the whole has a verdict no better than that of any piece in it, for the pieces meet in
device memory, at values of the program, and each computes its own from those before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from mirage_nb.errors import SearchError
from mirage_nb.ir import KernelGraph
from mirage_nb.search import Configuration, Effort, configurations, prepare
from mirage_nb.search.limits import Limits
from mirage_nb.search.pieces.assemble import beside, cheapest, joined, on_given
from mirage_nb.search.pieces.partition import IsOver, never, partition
from mirage_nb.search.pieces.piece import Piece
from mirage_nb.search.session.findings import Bounds
from mirage_nb.search.session.progress import Candidate, by_estimate
from mirage_nb.search.session.unsearched import operators_of, unsearched, verified
from mirage_nb.search.sizes.coarse import coarse_us
from mirage_nb.search.sizes.cost import Cost
from mirage_nb.search.sizes.drafts import Instance
from mirage_nb.search.wordings.coalesced import coalesced
from mirage_nb.search.wordings.said import Said
from mirage_nb.targets import Target
from mirage_nb.verify.verdict import Verdict, VerdictKind

WORTH_CUTTING = 12
"""Programs of more operators are searched in pieces first, if they have several."""
SEARCHED_WHOLE = 24
"""Programs of more operators are searched in pieces only: no closure of them ends in time."""
IN_PIECES_ONLY = f"a program of more than {SEARCHED_WHOLE} operators is searched in pieces only"
WHOLES = 8
"""muGraphs of the whole that are made from the best ones of the pieces."""
PER_PIECE = 4
"""So many of each."""
TURN = 2
"""Configurations of one piece that are explored before those of the next one."""

Made = tuple[tuple[KernelGraph, Candidate], ...]
"""The different pieces of a muGraph: what they compute, and what computes them."""


@dataclass(frozen=True, slots=True)
class Share:
    """A piece that is there `times` times. `known`: its candidates that nobody has to search."""

    piece: Piece
    times: int
    known: tuple[Candidate, ...]
    gain_us: float

    @property
    def digest(self) -> str:
        """Of the piece."""
        return self.piece.digest


class Pieces:
    """The pieces of one program for one target; is_over: once it is so, nothing more is looked for than what runs."""

    def __init__(
        self, program: KernelGraph, target: Target, limits: Limits, seed: int, is_over: IsOver = never
    ) -> None:
        self._is_over = is_over
        # Pieces take parts of what they read by themselves.
        self._said, self._target, self._seed = Said(program, coalesced(program)), target, seed
        self._pieces = partition(self._said.program, target, is_over=is_over)
        self._order = [piece.digest for piece in self._pieces]
        self._computing = [piece.digest for piece in self._pieces if piece.computes]
        shares: dict[str, Share] = {}
        # Beside numbers of places a piece is the program: what nobody has to search of that is known.
        most = 1 if len(set(self._computing)) == 1 else None
        for piece, digest in zip(self._pieces, self._order, strict=True):
            if digest not in shares:
                known = tuple(islice(unsearched(piece.graph, target, limits, seed, is_over), most))
                gain = 0.0 if is_over() else _gain(piece, known, target, seed)
                shares[digest] = Share(piece, self._order.count(digest), known, gain)
        self._shares = shares
        self._last: tuple[tuple[str, ...], ...] = ()
        self._wholes: tuple[Candidate, ...] = ()
        self._made: dict[str, Made] = {}
        self._joined: dict[tuple[str, ...], Instance] = {}

    def verify(self) -> Iterator[None]:
        """Give what nobody had to search its whole verdicts, one after the other; what gets none that is accepted is in
        no muGraph of the whole any more."""
        for digest, share in self._shares.items():
            known = [*share.known]
            yield from verified(known, self._seed)
            self._shares[digest] = replace(share, known=tuple(c for c in known if c.verdict.accepted))
        self._last = ()

    @property
    def several(self) -> bool:
        """Whether there are more than one."""
        return len(self._pieces) > 1

    def configurations(self, effort: Effort) -> Iterator[tuple[Configuration, KernelGraph]]:
        """What there is to explore, each with the program that it is about: some of the piece that pays most, some
        of the next one, and in the same order again."""
        rows: list[tuple[int, int, int, Configuration, KernelGraph]] = []
        ranked = sorted(self._shares.values(), key=lambda share: -share.gain_us * share.times)
        alone = sum(not share.piece.in_library for share in ranked) == 1
        for rank, share in enumerate(ranked):
            where = f"{', '.join(op.kind.value for op in share.piece.graph.ops)} alone"
            if share.piece.computes:
                where = f"piece {self._computing.index(share.digest) + 1} of {len(self._computing)}"
            try:
                found = configurations(prepare(share.piece.graph, seed=self._seed), effort)
            except SearchError:  # a library computes it
                continue
            for place, one in enumerate(found):
                named = replace(one, label=f"{where}: {one.label}", piece=share.digest, alone=alone)
                rows.append((place // TURN, rank, place, named, share.piece.graph))
        for *_, configuration, graph in sorted(rows, key=lambda row: row[:3]):
            yield configuration, graph

    def wholes(self, found: Callable[[str], Sequence[Candidate]]) -> tuple[Candidate, ...]:
        """muGraphs of the whole, best estimate first.

        Args:
            found: by the digest of a piece, its candidates, best first.
        """
        best = {d: by_estimate([*found(d)[:PER_PIECE], *share.known]) for d, share in self._shares.items()}
        known = tuple(tuple(c.digest for c in candidates) for candidates in best.values())
        if known != self._last:
            self._wholes = tuple(self._made_of(best))
            self._last = () if self._is_over() else known
        return self._wholes

    def made_of(self, digest: str) -> Made:
        """What a muGraph of the whole was made of; nothing for one that was not."""
        return self._made.get(digest, ())

    def _made_of(self, best: Mapping[str, Sequence[Candidate]]) -> Iterator[Candidate]:
        costs = [[c.estimate_us * self._shares[digest].times for c in best[digest]] for digest in best]
        fastest = {digest: candidates[0] for digest, candidates in best.items()}
        picks = [{d: best[d][place] for d, place in zip(best, pick, strict=True)} for pick in cheapest(costs, WHOLES)]
        for digest, share in self._shares.items():  # what is poor in one piece is right in the others
            picks.append({**fastest, digest: min(share.known, key=lambda c: c.estimate_us)})
        seen: set[str] = set()
        for chosen in picks:
            if seen and self._is_over():
                return
            whole = self._whole(chosen)
            if whole.digest not in seen:
                seen.add(whole.digest)
                yield whole

    def _whole(self, chosen: Mapping[str, Candidate]) -> Candidate:
        known = tuple(chosen[digest].digest for digest in self._order)
        made = self._joined.get(known)
        if made is None:
            instances = [_instance(chosen[digest]) for digest in self._order]
            made = joined(self._said.program, self._pieces, instances, self._target)
            made = self._joined[known] = on_given(made, self._said.whole(made.graph), self._target)
        pairs = dict.fromkeys(c.small for c in chosen.values() if c.small is not None)
        small = tuple(beside(graphs) for graphs in zip(*pairs, strict=True)) if pairs else ()
        parts = tuple((self._shares[digest].piece.graph, candidate) for digest, candidate in chosen.items())
        configuration = f"{len(self._computing)} piece{'s' * (len(self._computing) != 1)}"
        operators = sum(chosen[digest].operators for digest in self._order)
        verdict = piecewise([candidate.verdict for _, candidate in parts])
        whole = Candidate.of(made, configuration, operators, verdict, (small[0], small[1]) if small else None)
        self._made[whole.digest] = parts
        return whole


def is_large(program: KernelGraph) -> bool:
    """Whether a program is searched in pieces only."""
    return operators_of(program) > SEARCHED_WHOLE


def explorable(
    program: KernelGraph, pieces: Pieces | None, bounds: Bounds, seed: int, tell: Callable[[str], None], whole: bool
) -> Iterator[tuple[Configuration, KernelGraph]]:
    """Every configuration of a session, with the program that it is about: pieces first, then the whole if it may be,
    but in front of both the few muGraphs of a kernel for each piece. Where neither it nor a cut of it can be searched,
    that is told."""
    large, found = is_large(program), tuple[Configuration, ...]()
    if whole and not large:
        try:
            found = configurations(prepare(program, seed=seed), bounds.searched)
        except SearchError as error:  # its own operators remain
            tell(str(error))
    soon = [configuration for configuration in found if configuration.single]
    yield from ((configuration, program) for configuration in soon)
    if pieces is not None and (large or pieces.several):
        yield from pieces.configurations(bounds.searched)
    yield from ((configuration, program) for configuration in found if configuration not in soon)


def piecewise(verdicts: Sequence[Verdict]) -> Verdict:
    """What is known of a muGraph whose pieces have these verdicts, all of them accepted or as stored.

    Pieces meet at values of the program in device memory, so the whole computes the program if every piece computes its
    own: it is proved if all are, and the error bound is the sum of theirs.
    """
    stored = [verdict for verdict in verdicts if verdict.kind is VerdictKind.STORED]
    if stored:
        return stored[0]
    tried = [verdict for verdict in verdicts if verdict.kind is not VerdictKind.PROVED]
    proved = len(verdicts) - len(tried)
    note = f"piece by piece, which meet in device memory: {proved} of {len(verdicts)} different ones proved"
    if not tried:
        return Verdict(VerdictKind.PROVED, note=note)
    bounds = [verdict.log2_bound for verdict in tried if verdict.log2_bound is not None]
    return Verdict(
        VerdictKind.FIELD,
        trials=min(verdict.trials for verdict in tried),
        primes=tried[0].primes,
        seed=tried[0].seed,
        log2_bound=math.log2(sum(2.0**bound for bound in bounds)) if len(bounds) == len(tried) else None,
        note=note,
    )


def _instance(candidate: Candidate) -> Instance:
    """What a candidate is, as it is joined with others."""
    return Instance(candidate.sizes, candidate.graph, Cost(candidate.estimate_us, 0.0, 0.0, 0.0, 1, candidate.kernels))


def _gain(piece: Piece, known: Sequence[Candidate], target: Target, seed: int) -> float:
    """What a search may save, at best."""
    prepared = prepare(piece.graph, seed=seed)
    best = min(candidate.estimate_us for candidate in known)
    return 0.0 if prepared.refused else best - coarse_us(prepared, target)
