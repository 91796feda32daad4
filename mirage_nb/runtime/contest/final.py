"""The last verification of a muGraph that ran: large primes, a proof for all sizes, what was made of it; and trials at
the real shape, which take longest.

In: a program, a candidate, the pieces that it was made of, if it was, and the programs that its kernels are printed of.
Out: a `Verdict`. A worker computes it.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence
from dataclasses import replace

from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.search.session.piecewise import Made, piecewise
from mirage_nb.search.session.progress import Candidate
from mirage_nb.search.wordings.said import Said
from mirage_nb.targets import Target
from mirage_nb.tile.planned import Planned
from mirage_nb.verify.proof import with_proof
from mirage_nb.verify.tiles import compare
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

REAL_TRIALS = 2
"""Trials at the real shape: a muGraph that became another one with its sizes is seen in each; the bound is that of
the small pair."""
TAKEN = "on parts of inputs, of which slices in the program were taken first"


def verify_final(
    program: KernelGraph,
    candidate: Candidate,
    parts: Made = (),
    programs: Sequence[Planned] = (),
    target: Target | None = None,
) -> Verdict:
    """What `_final` says; refuted where the program of a kernel, for this target, is not what it was planned of."""
    verdict = _final(program, candidate, parts)
    if not programs or target is None or not verdict.accepted:
        return verdict
    compared = [compare(made, target, secrets.randbits(62)) for made in programs]
    if findings := [finding for _, found in compared for finding in found]:
        return replace(verdict, kind=VerdictKind.REFUTED, note=f"its tile program is another one: {findings[0]}")
    generated = sum(op.kind is OpKind.GRAPH for op in candidate.graph.ops)
    some = f", {len(programs)} of {generated} kernels" if len(programs) < generated else ""
    said = f"tile level: {min(level for level, _ in compared)!s}{some}"
    return replace(verdict, note="; ".join(filter(None, (verdict.note, said))))


def verify_real(program: KernelGraph, graph: KernelGraph) -> Verdict:
    """A few trials of a muGraph at the real shape."""
    return verify(program, graph, trials=REAL_TRIALS, final=True)


def at_real_shape(verdict: Verdict, real: Verdict) -> Verdict:
    """A verdict with what trials at the real shape say beside it."""
    if real.kind is VerdictKind.REFUTED:
        return real
    tried = f"{real.trials} trials at the real shape"
    return replace(verdict, note=f"{verdict.note}; and {tried}{'' if real.accepted else ', which decided nothing'}")


def _final(program: KernelGraph, candidate: Candidate, parts: Made) -> Verdict:
    """Field trials with large primes on the candidate's small pair, or at the real shape if there is none, as many as
    their error bound takes, lifted by a proof if there is one: of the muGraph, or of each of the pieces that it is made
    of, as to a program as a whole no trial may apply. The program itself needs none."""
    if candidate.graph == program:
        return candidate.verdict
    proved = functools.partial(with_proof, these_sizes=True)
    verdict = verify(*(candidate.small or (program, candidate.graph)), final=True)
    if parts and verdict.accepted:
        found = piecewise([proved(c.verdict, piece, c.graph)[0] for piece, c in parts if c.graph != piece])
        return replace(verdict, kind=found.kind, note="; ".join(filter(None, (found.note, verdict.note))))
    taken = Said.of(program).parts
    if taken is None or (inner := taken.inner(candidate.graph)) is candidate.graph:
        return proved(verdict, program, candidate.graph)[0]
    found = proved(verdict, taken.program, inner)[0]  # no term says which elements of a product a slice has
    return replace(found, note="; ".join(filter(None, (found.note, TAKEN))))
