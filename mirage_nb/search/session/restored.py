"""What a checkpoint says of muGraphs, until this session has verified them itself.

In: facts and findings of an earlier life, from a file that anybody may have written. Out: the same, with candidates
that are `as stored`; then, one by one, what this session makes of them. Invariants: no verdict and no time of a
checkpoint is ever shown as one of this session's; a muGraph is accepted again only by a proof that holds for its own
sizes, or by trials at its own shape, never on the word of the small pair that lies beside it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mirage_nb.errors import MirageError, ProofError
from mirage_nb.ir import KernelGraph
from mirage_nb.search.session.findings import Explored
from mirage_nb.search.session.ledger import Facts
from mirage_nb.search.session.progress import Candidate
from mirage_nb.verify.fields.work import work
from mirage_nb.verify.proof import Proof, lifted, prove
from mirage_nb.verify.proof.shrunk import shrunk
from mirage_nb.verify.proof.translate import translate
from mirage_nb.verify.reals.twice import decides, twice
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

if TYPE_CHECKING:
    from mirage_nb.search.session.session import SearchSession

PROOF_SECONDS = 5.0
MAX_STEPS, MAX_ELEMENTS = 20_000, 2**24
"""What a trial may take here (see `verify.fields.work`): a file may hold graphs that take minutes each."""
LIMIT_SECONDS = 60.0
"""What a worker may take for one muGraph."""
PAIRS = 64
"""Small pairs whose verdicts are kept by who found them."""


def look_again(session: SearchSession, seconds: float | None = None) -> None:
    """Verify what is as stored, the best first: for so many seconds in this thread, or by workers until the search is
    over.

    Raises Stopped as `call_all` does.
    """
    left = session.unjudged()
    arguments = [(session.program, candidate) for candidate in left]
    if seconds is None:
        ends = session.search_ends
        calls = session.call_all(verified_again, arguments, seconds=LIMIT_SECONDS, until=ends) if left else ()
        for number, future in calls:
            if time.monotonic() > ends:
                return
            session.judge(left[number], _outcome(left[number], future.result))
        return
    until = time.monotonic() + seconds
    for candidate, asked in zip(left, arguments, strict=True):
        if time.monotonic() > until or not session.proceed():
            return
        session.judge(candidate, _outcome(candidate, partial(verified_again, *asked)))


def _outcome(candidate: Candidate, found: Callable[[], Verdict]) -> Verdict:
    try:
        return found()
    except (MirageError, MemoryError) as error:
        return replace(candidate.verdict, note=f"{candidate.verdict.note}: {error}")


def as_stored(facts: Facts, ended: Sequence[Explored]) -> tuple[Facts, tuple[Explored, ...]]:
    """What a checkpoint has, with nothing in it that only this session can say."""

    def all_doubted(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        return tuple(map(doubted, candidates))

    return replace(facts, known=all_doubted(facts.known), offered=all_doubted(facts.offered)), tuple(
        replace(found, findings=replace(found.findings, candidates=all_doubted(found.findings.candidates)))
        for found in ended
    )


def doubted(candidate: Candidate) -> Candidate:
    """A candidate of whom nothing is known but what a file says."""
    note = f"{candidate.verdict.kind.value} when it was stored, not verified since"
    return candidate.unmeasured(verdict=Verdict(VerdictKind.STORED, note=note), before=candidate.as_timed)


def verified_again(program: KernelGraph, candidate: Candidate) -> Verdict:
    """What this session makes of a candidate that was stored, by numbers that nobody could know who stored it.

    The verdict is the one that a search would have found; `STORED` where there is neither a proof nor a shape that is
    small enough to try. Raises as `verify` and `prove`.
    """
    graph = candidate.graph
    quick = _is_quick(program, graph)
    order = tuple(range(len(program.outputs)))  # a kernel writes its outputs in the program's order
    if decides(program):
        try:
            pair = (program, graph) if quick else shrunk(translate(program, graph, order))[1]
        except ProofError as error:
            return replace(candidate.verdict, note=f"{candidate.verdict.note}: {error}, and too large to be tried")
        if why := twice(*pair):
            return Verdict(VerdictKind.UNDECIDED, note=why)
    proof = prove(program, graph, seconds=PROOF_SECONDS, outputs=order, these_sizes=True)
    pair = candidate.small or (program, graph)
    tried = _tried(*pair) if _is_quick(*pair) else candidate.verdict
    if isinstance(proof, Proof):
        return tried if candidate.small and tried.kind is VerdictKind.FIELD else lifted(_unless_wrong(tried), proof)
    if not quick:
        return replace(candidate.verdict, note=f"{candidate.verdict.note}: {proof}, and too large to be tried")
    real = verify(program, graph) if candidate.small else tried
    if real.accepted and real.outputs not in ((), order):
        return replace(real, kind=VerdictKind.REFUTED, note="its outputs are in another order")
    return tried if real.accepted and tried.kind is VerdictKind.FIELD else real


@functools.lru_cache(maxsize=PAIRS)
def _tried(program: KernelGraph, graph: KernelGraph) -> Verdict:
    """Instances of one structure share their small pair."""
    return verify(program, graph)


def _unless_wrong(tried: Verdict) -> Verdict:
    """Trials of a small pair that is none of what was proved say nothing about it."""
    return Verdict(VerdictKind.UNDECIDED) if tried.kind is VerdictKind.REFUTED else tried


def _is_quick(*graphs: KernelGraph) -> bool:
    """Whether trials take no more than a second."""
    found = [work(graph) for graph in graphs]
    return all(one.steps <= MAX_STEPS and one.elements <= MAX_ELEMENTS for one in found)
