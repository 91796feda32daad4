"""Which of many candidates are compiled, tried and timed.

In: candidates, best estimate first. Out: a few of them, in that order. Invariant: everything that may win has its turn:
an estimate errs alike on like muGraphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirage_nb.ir import OpKind
from mirage_nb.search.explore import NEAR, of_every_kind
from mirage_nb.search.session.progress import Candidate

UNPRICED = frozenset({OpKind.CONST, OpKind.RESHAPE})
"""Operators between kernels that take no time."""


def unique(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each once, in their order."""
    return list({candidate.digest: candidate for candidate in candidates}.values())


def varied(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The best `count` candidates such that everything that may win has its turn: first the best of every way to share
    the program among pre-defined and graph-defined operators that is near the best by estimate, then half of them by
    rank alone, the rest by rank within their configuration, first all the best ones, of every way if near the best.
    An estimate errs alike on like muGraphs."""
    limit = NEAR * min((c.estimate_us for c in candidates), default=0.0)
    chosen = [c for _, c in of_every_kind([(c.estimate_us, c) for c in candidates], _way, count // 2)]
    taken = {c.digest for c in chosen}
    turns: dict[str, int] = {}
    seen: set[object] = set()
    rest: list[tuple[int, int]] = []
    for place, candidate in enumerate(candidates):
        turn = turns[candidate.configuration] = turns.get(candidate.configuration, 0) + 1
        like = candidate.configuration, _way(candidate)
        if candidate.estimate_us <= limit and like not in seen:
            turn = 1
            seen.add(like)
        if candidate.digest not in taken:
            rest.append((turn, place))
    chosen += [candidates[place] for _, place in sorted(rest)[: count - len(chosen)]]
    return sorted(chosen, key=lambda c: c.rank)


def _way(candidate: Candidate) -> tuple[OpKind, ...]:
    """How a muGraph shares the program among pre-defined and graph-defined operators."""
    return tuple(op.kind for op in candidate.graph.ops if op.kind not in UNPRICED)
