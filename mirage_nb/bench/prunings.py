"""What each pruning is worth: the closures of a program with one of them switched off at a time.

In: a program, a cap on values, a limit in seconds. Out: one `Spread` for each `Pruning`: applications tried, values
kept and CPU seconds over all one-kernel configurations, and whether a closure hit the cap or the limit. Nothing is
extracted: what is compared is the size of the space that has to be generated (paper sections 4.1 and 4.3).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mirage_nb.algebra import AlgebraOptions
from mirage_nb.bench.enumeration import EFFORT, closed
from mirage_nb.ir import KernelGraph
from mirage_nb.search import configurations, prepare
from mirage_nb.search.explore import root_sets, semantics_for
from mirage_nb.search.saturation.closure import Rules
from mirage_nb.search.saturation.semantics import Semantics


@dataclass(frozen=True, slots=True)
class Pruning:
    """One row: what is switched off (or on), and how.

    Attributes:
        name: as the table says it.
        rules: of the closure.
        options: the axioms in force, given those that a search at standard effort chooses.
    """

    name: str
    rules: Rules = field(default_factory=Rules)
    options: Callable[[AlgebraOptions], AlgebraOptions] = lambda standard: standard


def _with(**changes: Any) -> Callable[[AlgebraOptions], AlgebraOptions]:
    return lambda standard: replace(standard, **changes)


def _without(name: str) -> Callable[[AlgebraOptions], AlgebraOptions]:
    return lambda standard: replace(standard, off=standard.off | {name})


PRUNINGS: tuple[Pruning, ...] = (
    Pruning("all on"),
    Pruning("oracle off", rules=Rules(oracle=False)),
    Pruning("types off", rules=Rules(types=False)),
    Pruning("canonical form off", rules=Rules(canonical=False)),
    Pruning("shift rules off", rules=Rules(shifts=False)),
    Pruning("merging off", rules=Rules(merging=False)),
    Pruning("sqrt axiom on", options=_with(off=frozenset())),
    Pruning("exp axiom off", options=_without("exp_product")),
    Pruning("products factored", options=_with(products="factored")),
    Pruning("products expanded", options=_with(products="expanded")),
    Pruning("no replicas", rules=Rules(replicas=False)),
    Pruning("no concat", rules=Rules(concat=False)),
)
"""The rows; the last ones narrow the space instead of widening it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One cell: the sizes of all closures of a program under one row.

    `finals`: values that equal the output, in every combination; `capped`: the closures were not all saturated.
    """

    pruning: str
    generated: int
    kept: int
    finals: int
    seconds: float
    capped: bool


def measure(program: KernelGraph, cap: int, limit: float, prunings: Sequence[Pruning] = PRUNINGS) -> Iterator[Spread]:
    """One cell for each row; a closure ends at `cap` values, all those of a row after `limit` CPU seconds."""
    prepared = prepare(program)
    standard = semantics_for(prepared, EFFORT)[0].algebra.options
    for row in prunings:
        start = time.process_time()
        semantics = Semantics(prepared, row.options(standard))
        generated = kept = finals = 0
        capped = False
        late = _clock(start + limit)
        for configuration in configurations(prepared, EFFORT):
            closure = closed(semantics, configuration, replace(row.rules, max_values=cap), late)
            generated += sum(closure.counts.values())
            kept += len(closure.values)
            finals += sum(1 for _ in root_sets(closure, semantics, []))
            capped |= not closure.saturated
        yield Spread(row.name, generated, kept, finals, time.process_time() - start, capped)


def _clock(end: float) -> Callable[[], bool]:
    return lambda: time.process_time() > end
