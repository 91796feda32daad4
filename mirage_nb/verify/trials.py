"""Whether a candidate computes what its program computes: random trials over fields, and values over the reals.

In: two graphs of the same inputs. Out: a `Verdict` that says which rung was reached and what was checked. Equal means:
outputs in order have the same values over the reals wherever the program has one; the candidate may have more.

Two lines that know nothing of each other have to agree. Field trials (paper section 5.2) draw primes, a root of unity
and all inputs anew, until every output element was compared often enough. A difference refutes, at once where field
values prove it, else where the reals confirm it. Graphs with square roots agree with any function in their place, too,
or a bound holds. And values over the reals, at points of many kinds, exact or with the
error that they bear (`exact`): a difference there refutes, and what cannot be decided there is not accepted. Seeds are
made of both graphs and of what the system calls random, unless the caller gives one. `screen` is what a search does
with thousands of its own candidates: shared trials, and float64. Trials at real shapes: `large`.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from mirage_nb.errors import OptionError, VerificationError
from mirage_nb.interp.field import FieldInstance, Noted, evaluate, random_inputs
from mirage_nb.interp.instance import CPU, Device
from mirage_nb.interp.primes import PRIMES
from mirage_nb.ir import KernelGraph, Size, TensorType
from mirage_nb.ir.sizes import output_dims
from mirage_nb.verify.fields.bound import trial_bound
from mirage_nb.verify.fields.drawn import Candidate, Program, draw_trial, is_small, known_program, trial_seed
from mirage_nb.verify.fields.large import Believed, DeviceFault
from mirage_nb.verify.fields.matching import Matching
from mirage_nb.verify.fields.towers import Observer
from mirage_nb.verify.fields.work import SMALLER, TOO_LARGE
from mirage_nb.verify.reals.quick import in_floats, once_in_floats, pairing
from mirage_nb.verify.verdict import Looked, Outcome, Verdict, VerdictKind, Witness

__all__ = ["MAX_TRIALS", "TRIALS", "draw_trial", "screen", "trial_seed", "verify"]

TRIALS = 4
UNBOUNDED_TRIALS = 12
"""Final trials where no theorem bounds one, and roots may exist by chance or functions be anything."""
WITHOUT_ROOTS = 2
"""Trials of small graphs with any function in the place of the square root."""
ROOTS = "the square root"
BY_ROOTS = "field values agree, maybe by the roots that a field has: with any function in their place they do not"
BEYOND = "field values agree, and numbers are so large, or powers so high, that they may be 0 in every field"
MAX_TRIALS = 10_000
ATTEMPTS_PER_TRIAL = 4
"""How many draws a trial may take on average to give every element a value; some more at the start."""
FINAL_LOG2_BOUND = -64.0
"""What final verification adds trials for, up to `FINAL_TRIALS`, where a theorem bounds a trial."""
FINAL_TRIALS = 64
MAX_VERDICTS = 64
"""Verdicts of one candidate that are kept."""


Progress = Callable[[int, int], None]
"""Told after every trial how many there were and how many it takes at least."""


@dataclass(frozen=True, slots=True)
class Rigour:
    """How a pair is verified: how often every element is compared at least, from which seed, whether nobody knew it
    before, whether as many trials as a bound of 2^-64 takes, and whether float64 values are enough of a second line."""

    trials: int
    seed: int
    fresh: bool = False
    final: bool = False
    floats: bool = False


def verify(
    program: KernelGraph,
    candidate: KernelGraph,
    *,
    trials: int = TRIALS,
    seed: int | None = None,
    final: bool = False,
    permuted: bool = False,
    progress: Progress | None = None,
    device: Device = CPU,
) -> Verdict:
    """Whether `candidate` computes what `program` computes, its outputs in order.

    Args:
        trials: how often every output element is compared at least, on fresh random elements each time.
        seed: what all that is drawn follows from, to repeat a verdict; without it nobody can know before.
        final: for small inputs, where a theorem bounds a trial, as many trials as it takes for an error probability
            of 2^-64.
        permuted: outputs of the candidate may stand in any order and under any names.
        progress: called after every trial with the number of trials so far and the number that is needed; a
            trial at full size takes seconds.
        device: where field values of large programs are computed, such as `runtime.field_device()`. It is held
            against the CPU, which takes over where it fails or computes other values; the note says so then.

    Raises:
        VerificationError: the graphs do not have the same inputs, their values do not fit into memory, or a trial
            takes too long.
        GraphError: a graph breaks Definition 2.1.
        NamedSizeError: a graph does not compute elements along a size that is known at launch apart from each other.
        OptionError: a number of trials or a seed that is out of range.
    """
    fresh = seed is None
    rigour = Rigour(trials, pair_seed(program, candidate, os.urandom(32)) if seed is None else seed, fresh, final)
    return _verdict(program, candidate, rigour, permuted, device, progress)


def screen(program: KernelGraph, candidate: KernelGraph, *, seed: int) -> Verdict:
    """What `verify` says with little work: `TRIALS` trials that all candidates of the program share, and float64 values
    beside them. For candidates that were made by a search; whoever is shown one has it verified. Raises as `verify`."""
    return _verdict(program, candidate, Rigour(TRIALS, seed, floats=True), False, CPU, None)


def pair_seed(program: KernelGraph, candidate: KernelGraph, secret: bytes) -> int:
    """A seed for these two graphs."""
    named = f"{program.digest()} {candidate.digest()} {secret.hex()}"
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:7], "little")


def _verdict(
    program: KernelGraph,
    candidate: KernelGraph,
    rigour: Rigour,
    permuted: bool,
    device: Device,
    progress: Progress | None,
) -> Verdict:
    """The verdict, a known one unless somebody wants to be told of progress."""
    if not 1 <= rigour.trials <= MAX_TRIALS:
        raise OptionError(f"{rigour.trials} trials", hint=f"1 to {MAX_TRIALS}")
    if not 0 <= rigour.seed < 2**63:
        raise OptionError(f"a seed of {rigour.seed}", hint="0 to below 2^63")
    _check_inputs(program, candidate)
    try:
        known = known_program(program)
        if permuted:
            return _permuted(known, candidate, rigour, device, progress)
        conflict = crossed_names(program, candidate)
        if conflict:
            return Verdict(VerdictKind.REFUTED, seed=rigour.seed, note=conflict)
        return _known(known, known.candidate(candidate), rigour, device, progress)
    except MemoryError as error:
        raise VerificationError(TOO_LARGE, hint=SMALLER) from error


def _check_inputs(program: KernelGraph, candidate: KernelGraph) -> None:
    left, right = ({i.name: (i.type, i.size) for i in g.inputs} for g in (program, candidate))
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            ours, theirs = (_shown(given.get(name)) for given in (left, right))
            raise VerificationError(
                f"input {name} is {ours} in the program and {theirs} in the candidate",
                hint="only graphs with the same inputs can be compared",
            )
    if output_dims(program) != output_dims(candidate):
        raise VerificationError(
            "outputs have the size that is known at launch in other dimensions than the program's",
            hint="outputs stand in order",
        )


def _shown(given: tuple[TensorType, Size | None] | None) -> str:
    """The type and the size of an input."""
    return " ".join(str(part) for part in given if part is not None) if given else "missing"


def crossed_names(program: KernelGraph, candidate: KernelGraph) -> str:
    """A name that outputs of both graphs have, at different places; or nothing."""
    places = {name: place for place, name in enumerate(candidate.output_names)}
    for place, name in enumerate(program.output_names):
        if places.get(name, place) != place:
            return f"{name} is output {place} of the program and output {places[name]} of the candidate"
    return ""


def _permuted(
    program: Program, candidate: KernelGraph, rigour: Rigour, device: Device, progress: Progress | None
) -> Verdict:
    """The verdict on the candidate with its outputs in the program's order."""
    order = None
    if len(candidate.outputs) == len(program.graph.outputs):
        order = pairing(program, program.candidate(candidate)) if len(candidate.outputs) > 1 else (0,)
    if order is not None:
        outputs = tuple(candidate.outputs[place] for place in order)
        candidate = candidate.returning(outputs, program.graph.output_names)
    found = _known(program, program.candidate(candidate), rigour, device, progress)
    if order is None or not found.outputs or order == tuple(range(len(order))):
        return found
    return replace(found, outputs=order, note=f"outputs in another order, as allowed; {found.note}")


def _known(
    program: Program, candidate: Candidate, rigour: Rigour, device: Device, progress: Progress | None
) -> Verdict:
    if progress is not None:
        return _run(program, candidate, rigour, device, progress)
    key = (rigour, device)
    if key not in candidate.verdicts:
        if len(candidate.verdicts) >= MAX_VERDICTS:
            candidate.verdicts.clear()
        silent: Progress = lambda done, wanted: None  # noqa: E731 (typed)
        candidate.verdicts[key] = _run(program, candidate, rigour, device, silent)
    return candidate.verdicts[key]


def _run(program: Program, candidate: Candidate, rigour: Rigour, device: Device, progress: Progress) -> Verdict:
    """The verdict that the device finds, as far as it is believed, else the CPU from the beginning."""
    try:
        return _Run(program, candidate, rigour, device, progress).verdict()
    except DeviceFault as fault:
        with contextlib.suppress(Exception):  # what is lost cannot be tidied up
            device.release()
        found = _Run(program, candidate, rigour, CPU, progress).verdict()
        return replace(found, note="; ".join(filter(None, (found.note, f"on the CPU, as {fault}"))))


class _Run:
    """One verification."""

    def __init__(
        self, program: Program, candidate: Candidate, rigour: Rigour, device: Device, progress: Progress
    ) -> None:
        self.progress = progress
        self.pair = program, candidate
        self.program = program.graph
        self.candidate = candidate.graph
        self.rigour = rigour
        self.wanted = rigour.trials
        self.small = is_small(self.program)
        self.final = rigour.final and self.small
        self.lax = candidate.lax
        self.drawn = program.trials(self.lax, rigour.seed)
        self.believed = Believed(device, self.drawn, self.candidate, rigour.trials)
        self.primes: list[tuple[int, int]] = []
        self.observer: Observer | None = None
        self.bound: float | None = None
        self.once = 0.0

    def verdict(self) -> Verdict:
        """Field trials, or what the reals say where trials do not decide."""
        matching = Matching(self.program.output_types, self.candidate.output_types)
        if not matching.fits:
            return self._verdict(VerdictKind.REFUTED, note="the outputs have other types than the program's")
        if self.lax.second:
            return self._by_reals(
                VerdictKind.OUTSIDE_LAX, f"the result of {self.lax.second} enters a second exponential"
            )
        if (self.lax.maxima or self.lax.opaque) and self._floats().outcome is Outcome.DIFFERENT:
            # It takes float64 whatever uninterpreted functions say, and takes less time than they do.
            return self._by_reals(VerdictKind.UNDECIDED, "float64 values differ")
        self._find_bound()
        while len(self.primes) < ATTEMPTS_PER_TRIAL * self.wanted + 48:
            if len(self.primes) == 2 * self.wanted + 8:  # many elements without a value: the reals may know already
                looked = self._look()
                if matching.selects or looked.outcome is Outcome.DIFFERENT or looked.nowhere:
                    break
                if self._are_one_term():
                    return self._agreed(None, ROOTS)
            if not self.primes and self.observer is None and self.small:
                self._try_together(matching)
            else:
                self._try(matching, len(self.primes))
            if matching.witness is not None:
                return self._differs(matching.witness)
            if matching.compared(self.wanted):
                if not self._wants_more():
                    return self._equal()
                self.wanted += 1
        if matching.selects:
            return self._by_reals(
                VerdictKind.UNDECIDED,
                "the candidate has no value in many trials in which the program has one: these trials prove nothing",
            )
        return self._by_reals(
            VerdictKind.UNDECIDED,
            f"some output elements had a value in fewer than {self.wanted} trials; {self._agreement()}",
        )

    def _try_together(self, matching: Matching) -> None:
        """The first trials side by side, where nothing but values is looked at."""
        together = self.drawn.together(self.wanted)
        taken = matching.compare_all(together.expected, together.outputs(self.pair[1]), together.seeds)
        for instance in together.instances[:taken]:
            self._count(instance)

    def _try(self, matching: Matching, number: int) -> None:
        """One trial."""
        if not self.small:
            instance, expected, found = self.believed.outputs(number)
            matching.compare(expected, found, self.drawn.seed(number))
            self._count(instance)
            return
        trial = self.drawn.trial(number)
        noted = Noted()
        found = evaluate(self.candidate, trial.inputs, trial.instance, noted if self.observer else None)
        spared = self.observer is not None and self.observer.spares(self.drawn.shown(number))
        matching.compare(trial.expected, found, self.drawn.seed(number), not spared)
        if self.observer is not None and matching.witness is None and not spared:
            inputs = [trial.inputs[i.name] for i in self.candidate.inputs]
            ranked = [*trial.noted.ranked, *noted.ranked]
            self.observer.look(self.drawn.shown(number), inputs, trial.instance, noted.radicands, ranked)
        self._count(trial.instance)

    def _count(self, instance: FieldInstance) -> None:
        """One more trial, of this instance."""
        self.primes.append((instance.p.value, instance.q.value))
        self.progress(len(self.primes), self.wanted)

    def _find_bound(self) -> None:
        """What a trial is worth, whether it has to show more than values for that, and how many it takes."""
        lax = self.lax
        more = lax.roots or lax.exponentials or lax.maxima
        found = self.pair[1].tower if (self.final or not more) and not lax.opaque else None
        if found is not None:
            self.bound, self.once = found.chance, found.once
            self.observer = Observer(found) if more else None
        elif lax.bounded and self.final:
            self.bound = trial_bound(self.program, self.candidate, PRIMES)
            self.once = math.log2(len(self.program.outputs) ** 2)
        if self.bound is None and (lax.roots or lax.opaque) and self.final:
            self.wanted = max(self.wanted, UNBOUNDED_TRIALS)

    def _total(self) -> float | None:
        """log2 of the chance that graphs that differ pass all trials so far."""
        if self.bound is None or (self.observer is not None and not self.observer.holds):
            return None
        # Some of the trials may have left an element out; which ones is part of what was random, and so may be
        # how many trials were wanted in the end.
        chosen = math.comb(len(self.primes), self.wanted) * (self.wanted if self.final else 1)
        return self.wanted * self.bound + self.once + math.log2(chosen)

    def _equal_without_roots(self, trials: int) -> bool:
        """Whether the graphs agree with any function in the place of the square root, too. A field has roots of half of
        its elements, and sqrt(x * x) is x half of the time: what a trial leaves out, and the sign of a root, may be
        what keeps graphs alike that differ, where no bound says that it is not."""
        matching = Matching(self.program.output_types, self.candidate.output_types)
        for seed in map(self.drawn.seed, range(trials)):
            instance = FieldInstance.draw(seed)
            drawn = random_inputs(self.program, instance, self.lax.parts)
            inputs = dict(zip((i.name for i in self.program.inputs), drawn, strict=True))
            ours, theirs = (evaluate(g, inputs, instance, roots=False) for g in (self.program, self.candidate))
            matching.compare(ours, theirs, seed)
        return matching.witness is None and matching.compared(trials)

    def _are_one_term(self) -> bool:
        """Whether the graphs are equal whatever function the square root is: eight roots in a chain
        exist together in few trials, and make no number that fields are to be believed about."""
        known = self.lax.roots and not self.rigour.floats and self.pair[1].is_believed_of_functions
        return known and self._equal_without_roots(self.wanted)

    def _wants_more(self) -> bool:
        """Whether a trial more is worth it."""
        total = self._total()
        return self.final and total is not None and FINAL_LOG2_BOUND < total and self.wanted < FINAL_TRIALS

    def _equal(self) -> Verdict:
        if not (self.rigour.floats or self.pair[1].is_believed):
            return self._agreed(None, ROOTS) if self._are_one_term() else self._by_reals(VerdictKind.UNDECIDED, BEYOND)
        often = WITHOUT_ROOTS if self.small else 1
        if self.lax.roots and self._total() is None and not (self.rigour.floats or self._equal_without_roots(often)):
            if self.small and not self.final:
                return _Run(*self.pair, replace(self.rigour, final=True), CPU, self.progress).verdict()
            return self._by_reals(VerdictKind.UNDECIDED, BY_ROOTS)
        return self._agreed(self._total())

    def _agreed(self, total: float | None, *functions: str) -> Verdict:
        """Equal as far as fields show, these taken for any functions, too: what values over the reals say to that."""
        looked = self._look(covered=True)
        if looked.outcome is not Outcome.AGREE:
            return self._by_reals(VerdictKind.UNDECIDED, f"field values agree; {looked.note}", looked=looked)
        return self._verdict(
            VerdictKind.FIELD,
            log2_bound=total if total is not None and total <= -1 else None,
            outputs=tuple(range(len(self.program.outputs))),
            note=self._note(total, looked, functions),
        )

    def _differs(self, witness: Witness) -> Verdict:
        """A difference in the field, final where it proves one in the reals."""
        if self.lax.exact:
            return self._verdict(VerdictKind.REFUTED, witness=witness, note="the field values differ")
        return self._by_reals(
            VerdictKind.OUTSIDE_LAX if self.lax.opaque else VerdictKind.UNDECIDED,
            "the field values differ, which proves nothing because of "
            + " and ".join(self._caveats())
            + f"; {self._agreement()}",
            witness,
        )

    def _agreement(self) -> str:
        looked = self._look()
        return f"values agree: {looked.note}" if looked.outcome is Outcome.AGREE else looked.note

    def _floats(self) -> Looked:
        """What float64 says, of any seed."""
        return once_in_floats(*self.pair)

    def _look(self, *, covered: bool = False) -> Looked:
        """What values over the reals say, and whether the candidate is covered."""
        if self.rigour.floats:
            return self._floats()
        known, key = self.pair[1].looked, (self.rigour.fresh, covered)
        if key not in known:
            known[key] = self._looked(os.urandom(32) if self.rigour.fresh else b"", covered)
        return known[key]

    def _looked(self, secret: bytes, covered: bool) -> Looked:
        """Exact values; where not all elements can have them, float64 values of the others too."""
        from mirage_nb.verify.reals.exact import look

        seed = pair_seed(self.program, self.candidate, secret)
        exact = look(self.program, self.candidate, seed, covered=covered)
        if exact.outcome is Outcome.DIFFERENT or exact.whole:
            return exact
        floats = in_floats(*self.pair, seed)
        if floats.outcome is Outcome.DIFFERENT or not exact.compared:
            return floats if floats.outcome is not Outcome.OPEN and floats.compared else exact
        if exact.outcome is Outcome.OPEN or floats.outcome is Outcome.OPEN:
            return exact
        return replace(exact, note=f"{exact.note}, {floats.note}")

    def _by_reals(
        self, otherwise: VerdictKind, note: str, field_witness: Witness | None = None, looked: Looked | None = None
    ) -> Verdict:
        """REFUTED where values of the two graphs over the reals differ, else the given kind."""
        found = looked or self._look()
        if found.outcome is Outcome.DIFFERENT:
            both = "field values and values over the reals differ" if field_witness else found.note
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
            seed=self.rigour.seed,
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

    def _unbounded(self, functions: tuple[str, ...]) -> str:
        """Why there is no bound."""
        if self.lax.opaque or functions:
            return "which Theorem 2 has for operators of LAX only"
        if not self.final and (self.lax.roots or self.lax.exponentials or self.lax.maxima):
            return "which the final check of a small instance has"
        if self.observer is not None:
            return "the trials did not show the same roots and exponents in both graphs"
        many = "such " if self.small else "so many "
        names = [name for name in self._caveats() if name != "symbols"]
        return many + " and ".join(names or ["exponential terms"]) + " are beyond Theorem 2 and its extension"

    def _note(self, bound: float | None, looked: Looked, functions: tuple[str, ...]) -> str:
        parts = [f"all output elements at this size, {PRIMES.name}"]
        parts += [
            f"{name} as an uninterpreted function: equal whatever function stands in its place"
            for name in (*self.lax.opaque, *functions)
        ]
        if self.lax.maxima:
            parts.append("maxima as uninterpreted shifts, whose safety is for the float gate")
        if bound is not None and self.observer is not None:
            parts.append("roots and exponents seen to be the program's")
        if bound is None:
            parts.append(f"no error bound, {self._unbounded(functions)}")
        parts.append(looked.note)
        return "; ".join(parts)
