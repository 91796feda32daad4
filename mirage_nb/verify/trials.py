"""The random test: a candidate against its program on random field elements (paper section 5.2).

In: two graphs of the same inputs. Out: a `Verdict` that says which rung was reached and what was checked.
Every trial draws primes, a root of unity and all inputs anew. An element that has no value in a trial is
left out of it; trials go on until every output element was compared often enough. A difference refutes,
at once where field values prove it, else after the float64 reference confirmed it (`reals`). Where the field may
have values that reals have not, float64 values have to agree too. Trials at real shapes: `large`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace

from mirage_nb.errors import OptionError, VerificationError
from mirage_nb.interp.field import FieldInstance, Noted, evaluate
from mirage_nb.interp.instance import CPU, Device
from mirage_nb.interp.modular import LARGE, SMALL, Pool
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.bound import trial_bound
from mirage_nb.verify.drawn import Candidate, Program, draw_trial, is_small, known_program, trial_seed
from mirage_nb.verify.large import Believed, DeviceFault
from mirage_nb.verify.matching import Matching
from mirage_nb.verify.reals import MAX_ELEMENTS, Reals, RealsReport, in_reals, once_in_reals
from mirage_nb.verify.towers import Observer
from mirage_nb.verify.verdict import Verdict, VerdictKind, Witness
from mirage_nb.verify.work import SMALLER, TOO_LARGE

__all__ = ["MAX_TRIALS", "TRIALS", "draw_trial", "trial_seed", "verify"]

TRIALS = 4
MAX_TRIALS = 10_000
ATTEMPTS_PER_TRIAL = 4
"""How many draws a trial may take on average to give every element a value; some more at the start."""
FINAL_LOG2_BOUND = -64.0
"""What final verification adds trials for, up to `FINAL_TRIALS`, where a theorem bounds a trial."""
FINAL_TRIALS = 64
MAX_VERDICTS = 64
"""Verdicts of one candidate that are kept."""
WIDE_ELEMENTS = 2**20
"""Inputs up to which final trials use 31-bit primes; four times the work of 21-bit ones."""


Progress = Callable[[int, int], None]
"""Told after every trial how many there were and how many it takes at least."""


def verify(
    program: KernelGraph,
    candidate: KernelGraph,
    *,
    trials: int = TRIALS,
    seed: int = 0,
    final: bool = False,
    progress: Progress | None = None,
    device: Device = CPU,
) -> Verdict:
    """Whether `candidate` computes what `program` computes, its outputs in any order.

    Args:
        trials: how often every output element is compared, on fresh random elements each time.
        seed: the trials follow from it.
        final: for inputs of up to a million elements, primes of 31 bits instead of 21; for small ones, where
            a theorem bounds a trial, also as many trials as it takes for an error probability of 2^-64.
        progress: called after every trial with the number of trials so far and the number that is needed; a
            trial at full size takes seconds.
        device: where field values of large programs are computed, such as `runtime.field_device()`. It is held
            against the CPU, which takes over where it fails or computes other values; the note says so then.

    Raises:
        VerificationError: the graphs do not have the same inputs, their values do not fit into memory, or a trial
            takes too long.
        GraphError: a graph breaks Definition 2.1.
        OptionError: a number of trials or a seed that is out of range.
    """
    if not 1 <= trials <= MAX_TRIALS or not 0 <= seed < 2**63:
        raise OptionError(f"trials {trials}, seed {seed}: 1 to {MAX_TRIALS} trials, a seed below 2^63")
    _check_inputs(program, candidate)
    wide = final and sum(i.type.elements for i in program.inputs) <= WIDE_ELEMENTS
    pool = LARGE if wide else SMALL
    try:
        known = known_program(program)
        return _verdict(known, known.candidate(candidate), trials, seed, pool, device, progress)
    except MemoryError as error:
        raise VerificationError(TOO_LARGE, hint=SMALLER) from error


def _check_inputs(program: KernelGraph, candidate: KernelGraph) -> None:
    left, right = ({i.name: i.type for i in g.inputs} for g in (program, candidate))
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            raise VerificationError(
                f"input {name} is {left.get(name, 'missing')} in the program "
                f"and {right.get(name, 'missing')} in the candidate",
                hint="only graphs with the same inputs can be compared",
            )


def _verdict(
    program: Program,
    candidate: Candidate,
    trials: int,
    seed: int,
    pool: Pool,
    device: Device,
    progress: Progress | None,
) -> Verdict:
    """The verdict, a known one unless somebody wants to be told of progress."""
    if progress is not None:
        return _run(program, candidate, trials, seed, pool, device, progress)
    key = (trials, seed, pool, device)
    if key not in candidate.verdicts:
        if len(candidate.verdicts) >= MAX_VERDICTS:
            candidate.verdicts.clear()
        silent: Progress = lambda done, wanted: None  # noqa: E731 (typed)
        candidate.verdicts[key] = _run(program, candidate, trials, seed, pool, device, silent)
    return candidate.verdicts[key]


def _run(
    program: Program,
    candidate: Candidate,
    trials: int,
    seed: int,
    pool: Pool,
    device: Device,
    progress: Progress,
) -> Verdict:
    """The verdict that the device finds, as far as it is believed, else the CPU from the beginning."""
    try:
        return _Run(program, candidate, trials, seed, pool, device, progress).verdict()
    except DeviceFault as fault:
        with contextlib.suppress(Exception):  # what is lost cannot be tidied up
            device.release()
        found = _Run(program, candidate, trials, seed, pool, CPU, progress).verdict()
        return replace(found, note="; ".join(filter(None, (found.note, f"on the CPU, as {fault}"))))


class _Run:
    """One verification."""

    def __init__(
        self,
        program: Program,
        candidate: Candidate,
        trials: int,
        seed: int,
        pool: Pool,
        device: Device,
        progress: Progress,
    ) -> None:
        self.progress = progress
        self.pair = program, candidate
        self.program = program.graph
        self.candidate = candidate.graph
        self.wanted = trials
        self.seed = seed
        self.pool = pool
        self.final = pool is not SMALL and is_small(self.program)
        self.lax = candidate.lax
        self.drawn = program.trials(self.lax, seed, pool)
        self.believed = Believed(device, self.drawn, self.candidate, trials)
        self.primes: list[tuple[int, int]] = []
        self.observer: Observer | None = None
        self.bound: float | None = None
        self.once = 0.0

    def verdict(self) -> Verdict:
        """Field trials, or what the reals say where trials do not decide."""
        matching = Matching(self.program.output_types, self.candidate.output_types)
        if not matching.possible():
            return self._verdict(VerdictKind.REFUTED, note="the outputs have other types than the program's")
        if self.lax.second:
            return self._by_reals(
                VerdictKind.OUTSIDE_LAX, f"the result of {self.lax.second} enters a second exponential"
            )
        if (self.lax.maxima or self.lax.opaque) and not self._agree_in_reals():
            # It takes float64 whatever uninterpreted functions say, and takes less time than they do.
            return self._by_reals(VerdictKind.UNDECIDED, "float64 values differ")
        self._find_bound()
        while len(self.primes) < ATTEMPTS_PER_TRIAL * self.wanted + 48:
            if len(self.primes) == 2 * self.wanted + 8 and self._differ_in_reals():
                break  # many elements without a value: the reals may know already
            if not self.primes and self.observer is None and is_small(self.program):
                self._try_together(matching)
            else:
                self._try(matching, len(self.primes))
            if not matching.possible():
                return self._differs(matching)
            if matching.compared(self.wanted):
                if not self._wants_more():
                    return self._equal(matching)
                self.wanted += 1
        return self._by_reals(
            VerdictKind.UNDECIDED, f"some output elements had a value in fewer than {self.wanted} trials"
        )

    def _try_together(self, matching: Matching) -> None:
        """The first trials side by side, where nothing but values is looked at."""
        together = self.drawn.together(self.wanted)
        taken = matching.compare_all(together.expected, together.outputs(self.pair[1]), together.seeds)
        for instance in together.instances[:taken]:
            self._count(instance)

    def _try(self, matching: Matching, number: int) -> None:
        """One trial."""
        if not is_small(self.program):
            instance, expected, found = self.believed.outputs(number)
            matching.compare(expected, found, self.drawn.seed(number))
            self._count(instance)
            return
        trial = self.drawn.trial(number)
        noted = Noted()
        found = evaluate(self.candidate, trial.inputs, trial.instance, noted if self.observer else None)
        matching.compare(trial.expected, found, self.drawn.seed(number))
        if self.observer is not None and matching.possible():
            inputs = [trial.inputs[i.name] for i in self.candidate.inputs]
            ranked = [*trial.noted.ranked, *noted.ranked]
            self.observer.look(self.drawn.shown(number), inputs, trial.instance, noted.radicands, ranked)
        self._count(trial.instance)

    def _count(self, instance: FieldInstance) -> None:
        """One more trial, of this instance."""
        self.primes.append((instance.p.value, instance.q.value))
        self.progress(len(self.primes), self.wanted)

    def _differ_in_reals(self) -> bool:
        return self._in_reals().outcome is Reals.DIFFERENT

    def _find_bound(self) -> None:
        """What a trial is worth, and whether it has to show more than values for that."""
        lax = self.lax
        if len(self.program.outputs) != len(self.candidate.outputs) or lax.opaque:
            return
        more = lax.roots or lax.exponentials or lax.maxima
        found = self.pair[1].tower(self.pool) if self.final or not more else None
        if found is not None:
            self.bound, self.once = found.chance, found.once
            self.observer = Observer(found) if more else None
        elif lax.bounded and self.final:
            # Every pairing of outputs is bounded: which one holds shows only when the trials are over.
            self.bound = trial_bound(self.program, self.candidate, self.pool)
            self.once = math.log2(len(self.program.outputs) ** 2)

    def _total(self) -> float | None:
        """log2 of the chance that graphs that differ pass all trials so far."""
        if self.bound is None or (self.observer is not None and not self.observer.holds):
            return None
        # Some of the trials may have left an element out; which ones is part of what was random, and so may be
        # how many trials were wanted in the end.
        chosen = math.comb(len(self.primes), self.wanted) * (self.wanted if self.final else 1)
        return self.wanted * self.bound + self.once + math.log2(chosen)

    def _wants_more(self) -> bool:
        """Whether a trial more is worth it."""
        total = self._total()
        return self.final and total is not None and FINAL_LOG2_BOUND < total and self.wanted < FINAL_TRIALS

    def _equal(self, matching: Matching) -> Verdict:
        if not self._agree_in_reals():
            return self._by_reals(VerdictKind.UNDECIDED, "float64 values do not agree as field values do")
        total = self._total()
        return self._verdict(
            VerdictKind.FIELD,
            log2_bound=total if total is not None and total <= -1 else None,
            outputs=matching.permutation(),
            note=self._note(total),
        )

    def _differs(self, matching: Matching) -> Verdict:
        """A difference in the field, final where it proves one in the reals."""
        witness = matching.witness()
        if self.lax.exact:
            return self._verdict(VerdictKind.REFUTED, witness=witness, note="the field values differ")
        return self._by_reals(
            VerdictKind.OUTSIDE_LAX if self.lax.opaque else VerdictKind.UNDECIDED,
            "the field values differ, which proves nothing because of "
            + " and ".join(self._caveats())
            + "; float64 values agree",
            witness,
        )

    def _agree_in_reals(self) -> bool:
        """Whether float64 values agree, where the field may have values that reals have not."""
        if self.lax.exact or sum(i.type.elements for i in self.program.inputs) > MAX_ELEMENTS:
            return True
        return once_in_reals(*self.pair).outcome is Reals.AGREE

    def _in_reals(self) -> RealsReport:
        """What is known of any seed, else what this one says."""
        known = once_in_reals(*self.pair)
        return known if known.outcome is Reals.DIFFERENT else in_reals(*self.pair, self.seed)

    def _by_reals(self, otherwise: VerdictKind, note: str, field_witness: Witness | None = None) -> Verdict:
        """REFUTED where float64 values of the two graphs differ, else the given kind."""
        found = self._in_reals()
        if found.outcome is Reals.DIFFERENT:
            both = "the field and float64 values differ" if field_witness else "the float64 values differ"
            return self._verdict(VerdictKind.REFUTED, witness=field_witness or found.witness, note=both)
        return self._verdict(otherwise, note=note)

    def _verdict(
        self,
        kind: VerdictKind,
        *,
        log2_bound: float | None = None,
        outputs: tuple[int, ...] = (),
        witness: Witness | None = None,
        note: str = "",
    ) -> Verdict:
        return Verdict(
            kind=kind,
            trials=len(self.primes),
            primes=tuple(self.primes),
            seed=self.seed,
            sizes={i.name: i.type.shape for i in self.program.inputs},
            log2_bound=log2_bound,
            outputs=outputs,
            witness=witness,
            note=note,
        )

    def _caveats(self) -> list[str]:
        """What the field sees otherwise than the reals do."""
        return [
            *self.lax.opaque,
            *(["maxima"] if self.lax.maxima else []),
            *(["square roots"] if self.lax.roots else []),
            *(["symbols"] if self.lax.symbols else []),
        ]

    def _unbounded(self) -> str:
        """Why there is no bound."""
        if self.lax.opaque:
            return "which Theorem 2 has for operators of LAX only"
        if self.pool is SMALL and (self.lax.roots or self.lax.exponentials or self.lax.maxima):
            return "which the final check of a small instance has"
        if self.observer is not None:
            return "the trials did not show the same roots and exponents in both graphs"
        many = "such " if is_small(self.program) else "so many "
        names = [name for name in self._caveats() if name != "symbols"]
        return many + " and ".join(names or ["exponential terms"]) + " are beyond Theorem 2 and its extension"

    def _note(self, bound: float | None) -> str:
        parts = [f"all output elements at this size, {self.pool.name}"]
        parts += [
            f"{name} as an uninterpreted function: equal whatever function stands in its place"
            for name in self.lax.opaque
        ]
        if self.lax.maxima:
            parts.append("maxima as uninterpreted shifts, whose safety is for the float gate")
        if bound is not None and self.observer is not None:
            parts.append("roots and exponents seen to be the program's")
        if bound is None:
            parts.append(f"no error bound, {self._unbounded()}")
        return "; ".join(parts)
