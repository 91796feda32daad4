"""Which of many candidates are compiled, tried and timed, and in which order.

In: candidates, best estimate first. Out: a few of them, in that order; or those that promise most by what was measured
of their like. Invariant: everything that may win has its turn: an estimate errs alike on like muGraphs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from mirage_nb.ir import BlockGraph, OpKind
from mirage_nb.runtime.contest.without_gpu import is_generated
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
    rank alone, the rest by rank within their configuration, first all the best ones, of every way and every number of
    blocks if near the best. An estimate errs alike on like muGraphs."""
    limit = NEAR * min((c.estimate_us for c in candidates), default=0.0)
    chosen = [c for _, c in of_every_kind([(c.estimate_us, c) for c in candidates], _way, count // 2)]
    taken = {c.digest for c in chosen}
    turns: dict[str, int] = {}
    seen: set[object] = set()
    rest: list[tuple[int, int]] = []
    for place, candidate in enumerate(candidates):
        turn = turns[candidate.configuration] = turns.get(candidate.configuration, 0) + 1
        like = candidate.configuration, _way(candidate), _blocks(candidate)
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


def _blocks(candidate: Candidate) -> int:
    """Blocks of the first kernel that is generated: what several kernels read they read in that one, mostly."""
    return next((math.prod(op.body.grid) for op in candidate.graph.ops if isinstance(op.body, BlockGraph)), 0)


def structure_of(candidate: Candidate) -> str:
    """What the instances of one structure share: their small instance; without one the muGraph itself."""
    return candidate.small[1].digest() if candidate.small is not None else candidate.digest


def calibrated(candidates: Sequence[Candidate]) -> Callable[[Candidate], float]:
    """The estimate in microseconds, corrected by the times of candidates that are like it."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for candidate in candidates:
        if candidate.time_us is not None:
            for key in _likeness(candidate):
                ratios.setdefault(key, []).append(math.log(candidate.time_us / candidate.estimate_us))
    factors = {key: math.exp(statistics.median(found)) for key, found in ratios.items()}

    def corrected(candidate: Candidate) -> float:
        factor = next((factors[key] for key in _likeness(candidate) if key in factors), 1.0)
        return candidate.estimate_us * factor

    return corrected


def _likeness(candidate: Candidate) -> tuple[tuple[str, str], ...]:
    """From most to least alike; what a library's kernels take says nothing of generated ones."""
    made = "generated" if is_generated(candidate.graph) else "library"
    return ("structure", structure_of(candidate)), ("configuration", candidate.configuration), ("any", made)


def next_ones(candidates: Sequence[Candidate], count: int, limit_us: float = math.inf) -> list[Candidate]:
    """The `count` candidates without a time or a note that promise most, and no more than `limit_us`: every other one
    from a structure that had no turn yet."""
    corrected = calibrated(candidates)
    waiting = [c for c in candidates if c.time_us is None and not c.note and corrected(c) <= limit_us]
    waiting.sort(key=lambda c: (corrected(c), c.digest))
    known = {structure_of(c) for c in candidates if c.time_us is not None or c.note}
    chosen: dict[str, Candidate] = {}
    fresh = (c for c in waiting if structure_of(c) not in known)
    ranked = iter(waiting)
    while len(chosen) < count:
        source = fresh if len(chosen) % 2 else ranked
        found = next((c for c in source if c.digest not in chosen), None) or next(
            (c for c in waiting if c.digest not in chosen), None
        )
        if found is None:
            break
        chosen[found.digest] = found
        if len(chosen) % 2 == 0:
            known.add(structure_of(found))
    return list(chosen.values())
