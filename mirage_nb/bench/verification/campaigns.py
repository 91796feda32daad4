"""Long campaigns against the verifier, over processes: pairs made to go wrong, and muGraphs that searches find.

In: how many pairs, or how many right muGraphs are wanted; how many processes, for how long; where to begin. Out: a
tally. Work comes in units that are numbered: blocks of pairs (`campaign.block`), and configurations of programs, of
which each gives muGraphs with the program, both small. So a campaign goes on where another one ended, and what went
wrong is made again from its number. A muGraph is right where float64 values agree with the program's, which shares no
line with field trials; it must not be refused. One whose values differ must not be accepted.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from mirage_nb.bench.programs import PROGRAMS
from mirage_nb.bench.programs import text as program_text
from mirage_nb.bench.verification.campaign import BLOCK, Contradiction, Tally, block
from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.errors import MirageError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.runtime.many_calls import side_by_side
from mirage_nb.search import EFFORTS, configurations, prepare, run_configuration, tiny
from mirage_nb.verify.proof import with_proof
from mirage_nb.verify.trials import verify

CONFIGURATION_SECONDS, PARTS = 8.0, 2
"""Of the search of one configuration, and units among which what it finds is dealt out."""
CONFIGURATIONS = 60
"""Configurations of a program at most."""
CLOSE = 1e-8
"""How far float64 values of equal graphs are apart at most, relative to the largest."""


@dataclass(slots=True)
class Searched:
    """How many muGraphs were verified, what was said of right and of wrong ones, and those that were right and refused,
    or wrong and accepted."""

    mugraphs: int = 0
    right: int = 0
    said: Counter[str] = field(default_factory=Counter)
    contradictions: list[Contradiction] = field(default_factory=list)

    def take(self, unit: int, place: int, name: str, pair: tuple[KernelGraph, KernelGraph]) -> None:
        """One more muGraph."""
        self.mugraphs += 1
        right = agree(*pair)
        verdict = verify(*pair, final=True)
        if not verdict.accepted:
            verdict = with_proof(verdict, *pair)[0]
        self.right += right
        self.said[f"{'right' if right else 'wrong'}, {verdict.kind.value}"] += 1
        if right != verdict.accepted:
            self.contradictions.append(Contradiction(unit, place, name, pair[1].digest(), str(verdict)))

    def add(self, other: Searched) -> None:
        """The muGraphs of another one too."""
        self.mugraphs += other.mugraphs
        self.right += other.right
        self.said += other.said
        self.contradictions += other.contradictions

    def record(self) -> dict[str, Any]:
        """The numbers, by name."""
        accepted = sum(c.said.startswith(("field", "proved")) for c in self.contradictions)
        return {"right": self.right, "refused": len(self.contradictions) - accepted,
                "wrong": self.mugraphs - self.right, "accepted": accepted,
                "said": dict(sorted(self.said.items()))}  # fmt: skip


def agree(program: KernelGraph, candidate: KernelGraph) -> bool:
    """Whether float64 values agree wherever those of the program are finite."""
    rng = np.random.default_rng(7)
    for low, high in ((0.5, 1.5), (-1.0, 1.0), (-2.0, 3.0)):
        inputs = {i.name: rng.uniform(low, high, i.type.shape) for i in program.inputs}
        for ours, theirs in zip(evaluate(program, inputs), evaluate(candidate, inputs), strict=True):
            finite = np.isfinite(ours)
            scale = np.abs(ours[finite]).max(initial=1e-300)
            with np.errstate(invalid="ignore"):
                if not (np.abs(ours - theirs)[finite] <= CLOSE * scale).all():
                    return False
    return True


def units() -> Iterator[tuple[str, int, int]]:
    """Programs, numbers of configurations, and parts: the first configuration of all programs, then the second one."""
    names = (*(f"workload {name}" for name in WORKLOADS), *(f"program {name}" for name in PROGRAMS))
    return ((name, number, part) for part in range(PARTS) for number in range(CONFIGURATIONS) for name in names)


def found_in(name: str, number: int, part: int) -> Iterator[tuple[KernelGraph, KernelGraph]]:
    """A part of the muGraphs of a configuration, each with its program; none where there is no such configuration."""
    kind, named = name.split(" ")
    program = parse(workload(named) if kind == "workload" else program_text(named)).graph
    effort, prepared = EFFORTS["standard"], prepare(program)
    configuration = next(itertools.islice(configurations(prepared, effort), number, None), None)
    if configuration is None:
        return
    deadline = time.monotonic() + CONFIGURATION_SECONDS
    budget = replace(effort.budget, seconds=CONFIGURATION_SECONDS)
    late: Callable[[], bool] = lambda: time.monotonic() > deadline  # noqa: E731 (typed)
    found = run_configuration(prepared, configuration, effort, budget, stopped=late).structures
    for structure in found[part::PARTS]:
        yield tiny(prepared, structure)


def searched(unit: int, name: str, number: int, part: int) -> Searched:
    """Verify the muGraphs of a unit. A program that no search takes has none."""
    tally = Searched()
    with contextlib.suppress(MirageError):
        for place, pair in enumerate(found_in(name, number, part)):
            tally.take(unit, place, name, pair)
    return tally


@dataclass(slots=True)
class Campaign:
    """Pairs and muGraphs that were verified, how many of each were wanted, and what units raised."""

    wanted: int
    wanted_right: int
    pairs: Tally = field(default_factory=Tally)
    searched: Searched = field(default_factory=Searched)
    errors: list[str] = field(default_factory=list)

    def take(self, found: Tally | Searched) -> bool:
        """Take in what one unit showed; whether it is enough."""
        if isinstance(found, Tally):
            self.pairs.add(found)
        else:
            self.searched.add(found)
        sys.stderr.write(f"\r{self.pairs.pairs} of {self.wanted} pairs, {self.searched.right} of {self.wanted_right} "
                         "muGraphs\033[K")  # fmt: skip
        return self._left <= 0 and self._left_right <= 0

    def units(self, seed: int, first: int) -> Iterator[Callable[[], Tally | Searched]]:
        """Blocks and configurations, from this number on; of what is further from its end the next one."""
        blocks = (partial(block, number, seed, min(BLOCK, self.wanted)) for number in itertools.count(first))
        named = itertools.islice(enumerate(units()), first, None)
        found = (partial(searched, unit, *name) for unit, name in named)
        while self._left > 0 or self._left_right > 0:
            behind = self._left / max(1, self.wanted) < self._left_right / max(1, self.wanted_right)
            unit = next(found, None) if behind else None
            if unit is not None:
                yield unit
            elif self._left > 0:
                yield next(blocks)
            else:
                return

    @property
    def _left(self) -> int:
        return self.wanted - self.pairs.pairs

    @property
    def _left_right(self) -> int:
        return self.wanted_right - self.searched.right

    @property
    def wrong(self) -> list[Contradiction]:
        """Different pairs that were accepted, and muGraphs of which the verdict is wrong."""
        return [*self.pairs.false_acceptances, *self.searched.contradictions]


def run(pairs: int, right: int, seed: int = 0, jobs: int = 1, seconds: float = 3600.0, first: int = 0) -> Campaign:
    """Verify so many pairs, and muGraphs until so many are right, from this unit on, side by side."""
    found = Campaign(pairs, right)
    if jobs == 1:
        deadline = time.monotonic() + seconds
        for unit in found.units(seed, first):
            if found.take(unit()) or time.monotonic() > deadline:
                break
    elif pairs or right:
        side_by_side(found.units(seed, first), found.take, jobs, seconds, found.errors.append)
    return found
