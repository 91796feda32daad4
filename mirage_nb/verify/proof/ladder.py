"""The rung above random tests: a verdict of field trials, lifted where a proof was found.

In: a verdict and a proof that was checked. Out: the verdict as `proved`, with its trials and its error bound kept;
without a proof it stays what it was, and its note says why. A refuted muGraph is not given to the prover.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from mirage_nb.errors import VerificationError
from mirage_nb.interp.instance import CPU, Device
from mirage_nb.ir import KernelGraph
from mirage_nb.typed import typed
from mirage_nb.verify.proof.prover import Unproved, prove
from mirage_nb.verify.proof.steps import DEFINED, Proof
from mirage_nb.verify.reals.twice import computed_once
from mirage_nb.verify.trials import TRIALS, Progress, verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

SECONDS = 5.0


@typed
def verify_and_prove(
    program: KernelGraph,
    candidate: KernelGraph,
    *,
    trials: int = TRIALS,
    seed: int | None = None,
    final: bool = False,
    permuted: bool = False,
    seconds: float = SECONDS,
    properties: Mapping[str, Iterable[str]] = MappingProxyType({}),
    device: Device = CPU,
    progress: Progress | None = None,
) -> tuple[Verdict, Proof | None]:
    """Random tests, and unless they refute, up to `seconds` of looking for a proof for all sizes.

    >>> verdict, proof = verify_and_prove(parse(text).graph, session.best.graph)

    Args:
        program: what is meant, as `parse(text).graph`.
        candidate: what shall be the same: of the same inputs, and with outputs of the same types.
        trials: random tests, each of all output elements.
        seed: what they are drawn from; default: a number that nobody knows.
        final: as many trials as an error bound of 2^-64 takes, at small sizes.
        permuted: whether outputs of the candidate may have any order and any names.
        seconds: what the search for a proof may take.
        properties: what else is known of functions, as in `prove`.
        device: where trials of large graphs run.
        progress: told after every trial how many are done and wanted.

    Returns:
        The verdict, as far as the proof lifts it, and the proof; None where there is none.

    Raises:
        OptionError: no trials, no such property, no time.
        VerificationError: the inputs differ, or a trial takes too much; GraphError: a graph breaks Definition 2.1.
    """
    verdict = verify(
        program, candidate, trials=trials, seed=seed, final=final, permuted=permuted, device=device, progress=progress
    )
    return with_proof(
        verdict, program, candidate, seconds=seconds, permuted=permuted, properties=properties, these_sizes=True
    )


def with_proof(
    verdict: Verdict,
    program: KernelGraph,
    candidate: KernelGraph,
    *,
    seconds: float = SECONDS,
    permuted: bool = False,
    properties: Mapping[str, Iterable[str]] = MappingProxyType({}),
    these_sizes: bool = False,
) -> tuple[Verdict, Proof | None]:
    """The verdict as far as a proof lifts it, and the proof. The verdict may be that of a smaller pair of graphs.

    `permuted`: where the verdict pairs no outputs, a proof may pair them in any order; else they are paired in order.
    `these_sizes`: a proof for the sizes of these graphs is enough, as where nothing of other sizes follows from it.
    """
    if verdict.kind is VerdictKind.REFUTED:
        return verdict, None
    in_order = None if permuted else tuple(range(len(program.outputs)))
    # the smaller pair of a muGraph that is made of pieces has the outputs of them all
    pairing = verdict.outputs if len(verdict.outputs) == len(program.outputs) else in_order
    found = prove(program, candidate, seconds=seconds, outputs=pairing, properties=properties, these_sizes=these_sizes)
    if isinstance(found, Unproved):
        return replace(verdict, note="; ".join(filter(None, (verdict.note, str(found))))), None
    return lifted(verdict, found), found


def decided(
    verdict: Verdict,
    program: KernelGraph,
    candidate: KernelGraph,
    *,
    seconds: float = SECONDS,
    these_sizes: bool = False,
) -> Verdict:
    """The verdict of random tests, lifted by a proof where they say nothing, as far as nothing of what is compared
    hangs on rounding: whether a kernel may stand for the program. Arguments as of `with_proof`."""
    if not verdict.accepted:
        verdict, _ = with_proof(verdict, program, candidate, seconds=seconds, these_sizes=these_sizes)
    return computed_once(verdict, program, candidate)


def lifted(verdict: Verdict, proof: Proof) -> Verdict:
    """The verdict as `proved` by a proof that `check` accepted; what was tried and its bound are kept.

    Raises:
        VerificationError: the muGraph was refuted.
    """
    if verdict.kind is VerdictKind.REFUTED:
        raise VerificationError("a refuted muGraph cannot be proved", hint="inputs outside of the proof's assumptions?")
    how = f"{proof.sizes} in {proof.length}"
    word = [f"on the user's word, tried on random numbers: {', '.join(proof.said)}"] if proof.said else []
    assumed = "; ".join((f"over the {DEFINED}", *word))
    tried = f"field trials: {verdict.note}" if verdict.kind is VerdictKind.FIELD else verdict.note
    note = "; ".join(filter(None, (f"{how} ({assumed})", tried)))
    return replace(verdict, kind=VerdictKind.PROVED, outputs=proof.outputs, note=note)
