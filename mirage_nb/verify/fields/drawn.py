"""The trials of a program: their fields, their random inputs, and what the program makes of them.

In: a program and its candidates, and a seed. Out: `Trials`, from which trial after trial is drawn.
Those of small programs are kept: the next candidate of the program meets the same ones, and what it computes like
the program or another candidate is known already. What is known of a candidate whatever the trial is kept too, so
that verifying it on a fresh instance is arithmetic and little else.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

from mirage_nb.interp.field import FieldInstance, FieldTensor, Noted, evaluate
from mirage_nb.interp.instance import FieldStack
from mirage_nb.interp.primes import PRIMES
from mirage_nb.interp.shared import Plan, Recorder, SharedFields
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.legality import check
from mirage_nb.verify.fields.exponents import exponents_of
from mirage_nb.verify.fields.groups import draw_inputs, draw_stacked, root_groups
from mirage_nb.verify.fields.heights import is_believed
from mirage_nb.verify.fields.lax import LaxReport, inspect, joined
from mirage_nb.verify.fields.towers import Shown, Tower, shown, tower
from mirage_nb.verify.fields.work import check_work
from mirage_nb.verify.verdict import Looked, Verdict

SMALL_ELEMENTS = 2**16
"""Trials with fewer input elements are kept."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Random inputs, what the program makes of them, and what was met on the way."""

    instance: FieldInstance
    inputs: Mapping[str, FieldTensor]
    expected: tuple[FieldTensor, ...]
    noted: Noted


def trial_seed(seed: int, number: int) -> int:
    """The seed of one trial; `Witness.seed` is such a number."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:7], "little")


def draw_trial(program: KernelGraph, lax: LaxReport, seed: int) -> Trial:
    """The trial that follows from a trial's seed."""
    instance, inputs = _drawn(program, lax, seed)
    noted = Noted()
    return Trial(instance, inputs, evaluate(program, inputs, instance, noted), noted)


def _drawn(program: KernelGraph, lax: LaxReport, seed: int) -> tuple[FieldInstance, dict[str, FieldTensor]]:
    instance = FieldInstance.draw(seed)
    inputs = draw_inputs(program, instance, lax.parts)
    return instance, dict(zip((i.name for i in program.inputs), inputs, strict=True))


def is_small(program: KernelGraph) -> bool:
    """Whether the trials of a program are kept, and looked at closely."""
    return sum(i.type.elements for i in program.inputs) < SMALL_ELEMENTS


class Trials:
    """The trials that follow from one seed."""

    def __init__(self, program: Program, lax: LaxReport, seed: int) -> None:
        self.program = program
        self._lax = lax
        self._seed = seed
        self._kept: dict[int, Trial] = {}
        self._together: dict[int, Together] = {}
        self._shown: dict[int, Shown] = {}

    def seed(self, number: int) -> int:
        """The seed of a trial."""
        return trial_seed(self._seed, number)

    def inputs(self, number: int) -> tuple[FieldInstance, dict[str, FieldTensor]]:
        """What one trial of a large program begins with."""
        return _drawn(self.program.graph, self._lax, self.seed(number))

    def trial(self, number: int) -> Trial:
        """One trial of a small program."""
        if number not in self._kept:
            self._kept[number] = draw_trial(self.program.graph, self._lax, self.seed(number))
        return self._kept[number]

    def shown(self, number: int) -> Shown:
        """What a trial shows of a small program."""
        if number not in self._shown:
            groups = root_groups(self.program.graph) if self._lax.roots else None
            exponents = exponents_of(self.program.graph) if self._lax.exponentials else None
            trial = self.trial(number)
            self._shown[number] = shown(groups, exponents, list(trial.inputs.values()), trial.instance)
        return self._shown[number]

    def together(self, count: int) -> Together:
        """The first trials of a small program, side by side."""
        if count not in self._together:
            seeds = tuple(self.seed(number) for number in range(count))
            self._together[count] = Together(self.program, self._lax, seeds)
        return self._together[count]


class Together:
    """Trials of a small program side by side: of every tensor, the first dimension counts them. What two candidates
    compute alike is computed once."""

    def __init__(self, program: Program, lax: LaxReport, seeds: tuple[int, ...]) -> None:
        self.seeds = seeds
        self.instances = tuple(FieldInstance.draw(seed) for seed in seeds)
        stack = FieldStack(self.instances)
        inputs = draw_stacked(program.graph, stack, lax.parts)
        self._shared = SharedFields(stack, dict(zip((i.name for i in program.graph.inputs), inputs, strict=True)))
        self.expected = self.outputs(program.itself)

    def outputs(self, candidate: Candidate) -> tuple[FieldTensor, ...]:
        """What a candidate makes of them."""
        return self._shared.run(candidate.plan)


class Candidate:
    """A graph that is held against a program: what is known of the two before any trial, and their verdicts.

    Raises GraphError where the graph breaks Definition 2.1, VerificationError where a trial takes too much.
    """

    def __init__(self, program: Program, graph: KernelGraph) -> None:
        check(graph)
        check_work(graph)
        self.graph = graph
        self.lax = joined(program.report, inspect(graph))
        self.verdicts: dict[Hashable, Verdict] = {}
        self._program = program
        self.looked: dict[tuple[bool, bool], Looked] = {}

    @cached_property
    def plan(self) -> Plan:
        """How it is evaluated; programs and candidates of one plan share steps."""
        return self._program.recorder.plan(self.graph)

    @cached_property
    def is_believed(self) -> bool:
        """Whether trials are to be believed where both agree."""
        return self.graph == self._program.graph or all(map(is_believed, (self._program.graph, self.graph)))

    @cached_property
    def is_believed_of_functions(self) -> bool:
        """The same where square roots are any functions."""
        return all(is_believed(graph, roots=False) for graph in (self._program.graph, self.graph))

    @cached_property
    def tower(self) -> Tower | None:
        """What bounds a trial with values and more, if anything does."""
        return tower(self._program.graph, self.graph, self.lax, PRIMES)


class Program:
    """A program that candidates are held against. Raises as `Candidate`."""

    def __init__(self, graph: KernelGraph) -> None:
        check(graph)
        check_work(graph)
        self.graph = graph
        self.report = inspect(graph)
        self.recorder = Recorder()
        self._candidates: dict[KernelGraph, Candidate] = {}
        self._trials: dict[Hashable, Trials] = {}
        self.itself = self.candidate(graph)

    def candidate(self, graph: KernelGraph) -> Candidate:
        """The one `Candidate` of a graph. Raises as it does."""
        known = self._candidates.get(graph)
        if known is None:
            if len(self._candidates) >= MAX_CANDIDATES:
                self._candidates = {}
            known = self._candidates[graph] = Candidate(self, graph)
        return known

    def trials(self, lax: LaxReport, seed: int) -> Trials:
        """The trials for candidates with this joint report."""
        parts = tuple(lax.parts[i.name] for i in self.graph.inputs)
        key = (parts, lax.roots, lax.exponentials, seed)
        known = self._trials.get(key)
        if known is None:
            while len(self._trials) >= MAX_KEPT:
                self._trials.pop(next(iter(self._trials)), None)
            known = self._trials[key] = Trials(self, lax, seed)
        return known


MAX_CANDIDATES = 1024
"""Candidates of one program that are known again."""
MAX_KEPT = 8
"""Seeds of one program whose trials are kept, the latest."""


@functools.lru_cache(maxsize=32)
def known_program(graph: KernelGraph) -> Program:
    """The one `Program` of a graph. Raises as it does."""
    return Program(graph)
