"""Candidates that nobody has to search: the program's own operators, and a library's kernels with the rest fused.

In: a tensor program, a target. Out: screened `Candidate`s, the program itself first; they are there before the first
configuration is begun, so that every session has something that runs, and something to be faster than. The whole
verdict on them follows while others search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirage_nb.ir import AccumAttrs, BlockGraph, KernelGraph, ThreadGraph
from mirage_nb.search.composition import COMPOSITIONS, OWN_OPERATORS, Composition, library_and_fused, own_operators
from mirage_nb.search.limits import NO_LIMITS, Limits
from mirage_nb.search.pieces.partition import FREE, IsOver, never
from mirage_nb.search.session.progress import Candidate
from mirage_nb.targets import Target
from mirage_nb.verify.proof import decided
from mirage_nb.verify.reals.twice import computed_once
from mirage_nb.verify.trials import screen, verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

ITSELF = Verdict(VerdictKind.PROVED, note="it is the program, operator by operator")
PROOF_SECONDS = 1.0
"""What looking for a proof may take where field trials say nothing of a composition."""


def unsearched(
    program: KernelGraph, target: Target, limits: Limits = NO_LIMITS, seed: int = 0, is_over: IsOver = never
) -> Iterator[Candidate]:
    """The program's own operators, then its compositions where these are something else, as long as there is time."""
    yield Candidate.of(own_operators(program, target), OWN_OPERATORS, operators_of(program), ITSELF)
    known = {program.digest()}
    for name, (rows, said_as) in COMPOSITIONS.items():
        if is_over():
            return
        found = library_and_fused(program, target, limits, seed, rows, said_as, is_over)
        if found is not None and (digest := found.instance.graph.digest()) not in known:
            known.add(digest)
            if (fused := _fused(found, limits, seed, name)) is not None:
                yield fused


def _fused(found: Composition, limits: Limits, seed: int, name: str) -> Candidate | None:
    """Library kernels with the rest fused; None where it has operators that limits exclude, rounding decides what it
    compares, or nobody can verify it."""
    if limits.without & set(_named(found.instance.graph)):
        return None
    screened = screen(*found.small, seed=seed + 1)
    verdict = computed_once(screened, *found.small) if screened.accepted else judged(*found.small, seed)
    if not verdict.accepted:
        return None
    return Candidate.of(found.instance, name, found.assembly.operators, verdict, found.small)


def verified(known: list[Candidate], seed: int) -> Iterator[None]:
    """Give screened candidates their whole verdicts, one after the other, where they stand; the program itself needs
    none."""
    for place, candidate in enumerate(known):
        if candidate.small is not None:
            known[place] = replace(candidate, verdict=judged(*candidate.small, seed))
            yield


def _named(graph: KernelGraph) -> Iterator[str]:
    """The operators of its block and thread graphs, as limits call them."""
    for op in graph.ops:
        if isinstance(op.body, BlockGraph):
            for inner in op.body.ops:
                kind = f" {inner.attrs.kind.value}" if isinstance(inner.attrs, AccumAttrs) else ""
                yield inner.kind.value + kind
                if isinstance(inner.body, ThreadGraph):
                    yield from (small.kind.value for small in inner.body.ops)


def judged(program: KernelGraph, small: KernelGraph, seed: int, seconds: float = PROOF_SECONDS) -> Verdict:
    """What field trials say of a small pair, or a proof where they do not apply."""
    return decided(verify(program, small, seed=seed + 1), program, small, seconds=seconds)


def operators_of(program: KernelGraph) -> int:
    """Operators that compute, constants and views apart."""
    return sum(op.kind not in FREE for op in program.ops)
